-- The frame: decides many checks of many requests in one call. Behind it the files of the algorithms are joined (see
-- src/store/redis/script.rs), and last decide.lua, into one text that never changes; nothing in it depends on a request.
--
-- KEYS are the keys of all checks, in order. ARGV[1] is empty, or for tests a time in microseconds in place of the server's. ARGV[2] has
-- the codes of the algorithms that occur, and an A if a request commits all or none: what is not used is not made, because making it would
-- be much of what a short call costs. The others are packed rows. ARGV[3], the limits that occur: the code of an algorithm, the microseconds
-- of a tick, and six numbers that mean what the algorithm says. ARGV[4], the checks: four times the number of a limit from 0 on, plus 1 for a
-- quota and 2 for a shadow; the first place that has the same key; hits; and one more number that belongs to the check and not to its limit.
-- ARGV[5], the requests: 1 when it commits all or none; how many of the checks are its own; quotas that pass without a check; the deadline
-- in microseconds of this server's clock.
--
-- The reply is TIME's seconds and microseconds, then one packed text, and the lines of errors. The text has a row for each check: 1 when
-- allowed, 0 when not; hits that count now; ticks until it has recovered; and the delay of an allowed or the retry of a refused check in
-- ticks, -1 for never. Or 2 and which of the lines, from 1 on. A given time adds behind all rows, for each check, the ticks for which the
-- state has to be kept, -1 when nothing changes.
--
-- First everything is read and stepped, then everything is written: a call is broken off either before its first write or not at all.
-- A key that cannot be read spoils only its own check. All numbers are whole and below 2^53, where Lua's numbers are exact. They are packed
-- and not written as text, because Lua takes longer to read and write a number than Redis takes to look a key up; and rows are unpacked in
-- one go into a single table, in which the reply takes the places of the checks, because tables that grow cost more than all arithmetic.

local call, try, list, keys = redis.call, redis.pcall, unpack, KEYS
local pack, unpack, byte, rep = struct.pack, struct.unpack, string.byte, string.rep
local floor, ceil, min, max = math.floor, math.ceil, math.min, math.max

-- Whole numbers end here; a stored one that is larger is not ours.
local MOST = 9007199254740991
local NO_COUNTER = 'ERR value is not an integer or out of range'

-- Keys outlive what they mean by so many milliseconds, and none is given a longer life than Redis can count.
local GRACE, LONGEST = 5000, 10000000000000

-- An expiry costs Redis more than the write that it belongs to. Where a state tells when it expires, it is given in advance: for as long
-- again as it has to be, and so many milliseconds at least. Until then the key is written in its place.
local ADVANCE = 10000

-- By the code of the algorithm: step(at, state, t, hits, own, key), where the six numbers of the limit begin at limits[at]; the state is
-- what `states` holds for the key, never an error. Returns allowed, used, reset and extra as in the reply; and when something changes the
-- ticks to keep it for, the stored expiry or 0, and the numbers of the new state. Or nil and an error's line.
local steps = {}
-- By the code: how a state is packed, its expiry first. What has no such format is a plain number, or a log (see log.lua), for which there
-- are read(code, key) and write(key, state, expiry).
local formats = {}
local log_read, log_write

-- The time in microseconds and in milliseconds; the numbers of all limits, eight each, and of all checks, four each.
local now, now_ms, limits, checks

-- By the first place of a key: the state (text, a number, or a log's table) as of now, false for none, and the format it is written in, 0 for
-- numbers, -1 for logs; the line of an error; the expiry that the last change wants, 0 when the one it has will do, false when the change
-- was taken back.
local states, forms, errors, expiries = {}, {}, {}, {}
local is_given = ARGV[1] ~= ''
local uses = {}
for index = 1, #ARGV[2] do
  uses[byte(ARGV[2], index)] = true
end

-- Reads what stands under a key. What MGET does not know may be something else than a text.
local function read(first, code)
  local state
  if log_read and (code == 76 or code == 66) then
    state = log_read(code, keys[first])
  else
    state = try('GET', keys[first])
  end
  if type(state) == 'table' and state.err then
    errors[first] = state.err
    state = false
  end
  states[first] = state
  return state
end

-- Steps the check at a place. Returns what its step returns, without the state; remembers in `undo`, when there is one, how to take it back.
local function check(place, is_look, undo)
  local row = place * 4
  local at, first, hits = checks[row - 3], checks[row - 2], checks[row - 1]
  at = (at - at % 4) * 2 + 3
  local code, tick, before = limits[at - 2], limits[at - 1], states[first]
  if not before then
    before = read(first, code)
    if errors[first] then
      return nil, errors[first]
    end
  end
  if is_look then
    hits = 0
  end
  local allowed, used, reset, extra, keep, expiry, a, b, c = steps[code](at, before, floor(now / tick), hits, checks[row], keys[first])
  if keep then
    local planned, format = expiries[first], formats[code]
    if undo then
      local count = #undo
      undo[count + 1], undo[count + 2], undo[count + 3] = first, before, planned or false
    end
    local needed = now_ms + keep * tick / 1000 + GRACE
    if before and needed <= expiry then
      expiries[first] = planned or 0
    else
      -- The life of whole milliseconds, and what is given in advance.
      local life = min(ceil(needed) - now_ms, LONGEST)
      if format then
        life = min(life + max(life, ADVANCE), LONGEST)
      end
      expiry = now_ms + life
      expiries[first] = expiry
    end
    if format then
      states[first], forms[first] = pack(format, expiry, a, b, c), format
    else
      states[first], forms[first] = a, log_read and code ~= 70 and -1 or 0
    end
  end
  return allowed, used, reset, extra, keep
end

-- The life of a key as SET takes it. At a given time nothing expires.
local function life_until(expiry)
  return string.format('%.0f', is_given and LONGEST or expiry - now_ms)
end

-- The lines of errors; and what a given time adds to the rows.
local lines, kept = {}, {}

local function answer(place, allowed, used, reset, extra, keep)
  local row, kind = place * 4, 0
  if allowed then
    kind = 1
  elseif allowed == nil then
    lines[#lines + 1] = used
    kind, used, reset, extra = 2, #lines, 0, 0
  end
  checks[row - 3], checks[row - 2], checks[row - 1], checks[row] = kind, used, reset, extra
  if is_given then
    kept[place] = keep or -1
  end
end
