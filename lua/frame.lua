-- The frame: decides many checks of many requests in one call. Behind it the files of the algorithms are joined (see
-- src/store/redis/wire/script.rs), and last decide.lua, into one text that never changes; nothing in it depends on a request.
--
-- KEYS are the keys of all checks, in order. ARGV[1] is empty, or for tests a time in microseconds in place of the server's. ARGV[2] has
-- the codes of the algorithms that occur, and an A if a request commits all or none: what is not used is not made, because making it would
-- be much of what a short call costs. The others are packed rows. ARGV[3], the limits that occur: the code of an algorithm, the microseconds
-- of a tick, and six numbers that mean what the algorithm says. ARGV[4], the checks, told in runs of neighbours that differ in nothing but
-- their keys: four times the number of a limit from 0 on, and where it matters plus 1 for a quota and 2 for a shadow; how many checks; the
-- hits of each; and one more number that belongs to the check and not to its limit. ARGV[5], the earliest deadline in microseconds of this
-- server's clock; then the requests, read only when one is late or commits all or none: 1 when it does; how many of the checks are its own;
-- quotas that pass without a check; its deadline. ARGV[6] is missing, or keys occur twice: for each check the first place with its key.
--
-- The reply is TIME's seconds and microseconds, then one packed text, and the lines of errors. The text has a row for each check. Where the
-- state tells all, the row is what was found, as the check met it, or zeros for none: the caller has a twin of each step and knows what it
-- means. Otherwise hits that count now; ticks until it has recovered; and 0 when allowed, or the retry of a refused check in ticks, -1 for
-- never. A first number below zero is an error: which of the lines. A given time adds behind all rows, for each check, the ticks for which
-- the state has to be kept, -1 when nothing changes. Last come the places of checks that were looks only: allowed, but not their request.
--
-- First everything is read and stepped, then everything is written: a call is broken off either before its first write or not at all.
-- A key that cannot be read spoils only its own check. All numbers are whole and below 2^53, where Lua's numbers are exact. They are packed
-- and not written as text, because Lua takes longer to read and write a number than Redis takes to look a key up. Lua runs slowly, and here
-- every step of it counts: no function is called for a check where nothing is unusual but those that pack, and what is packed is the state
-- alone.

local call, list, floor = redis.call, unpack, math.floor

-- A function of an algorithm is made for each call anew, and costs by what it uses of the following: what is a library's or a constant, they
-- name themselves.

-- By the code of the algorithm, if it occurs: step(from, to, hits, own, present, tick_ms, ...) steps the checks of a run. `present` is now in
-- ticks of so many milliseconds; behind stand the six numbers of the limit. Returns of the last check whether it is allowed; nil when it failed.
local steps = {}
-- Of a log (see log.lua): read(code, key) and write(key, state, life).
local log_read, log_write

-- The time in milliseconds; and a key expires no sooner than this, because keys outlive what they mean by five seconds.
local now_ms, soonest

-- By place: what was found under the key of a check, false for none; and by the first place of a key what stands there as of now, texts or
-- a log's table. The ticks to keep it for, at a given time.
local found, states, kept
-- By the first place of a key: until when it is to live, in milliseconds, if not on as it did. By place: what is answered, if not what was
-- found; and the first place with the same key, if not each has its own.
local lives, rows, firsts = {}, {}, ARGV[6]
-- The lines of errors.
local errors = {}
for index = 1, #ARGV[2] do
  steps[string.byte(ARGV[2], index)] = true
end

-- A row has three numbers, but that of sliding_window_counter (67) has four.
local function fail(place, code, line)
  errors[#errors + 1] = line or 'ERR value is not an integer or out of range'
  rows[place] = struct.pack('<d', -#errors) .. string.rep('\0', code == 67 and 24 or 16) -- 'C'
end

-- The first place of a key, what stands under it as of now, false for nothing, and whether that could be read; else it has failed. For checks
-- where this is not just what was found: what MGET does not know may be something else than a text.
local function read(place, code)
  local own = firsts and firsts[place] or place
  local state = states[own]
  if not state then
    if log_read and (code == 76 or code == 66) then -- 'L', 'B'
      state = log_read(code, KEYS[own])
    else
      state = redis.pcall('GET', KEYS[own])
    end
    if type(state) == 'table' and state.err ~= nil then
      fail(place, code, state.err)
      return own, false, false
    end
    found[own], states[own] = state, state
  end
  if not state or own ~= place then
    rows[place] = state or string.rep('\0', code == 67 and 32 or 24) -- 'C'
  end
  return own, state, true
end

-- An expiry costs Redis more than the write that it belongs to. Where a state tells when it expires, it is given in advance: a life until
-- `needed`, in milliseconds, and for as long again, but ten seconds more at least, and a minute if the key has had a life before: who comes
-- once takes no room for longer, and who comes often is seldom written so. Returns the expiry.
local function renew(own, needed, before)
  lives[own] = needed + math.max(needed - now_ms, before <= 1 and 10000 or 60000)
  return lives[own]
end
