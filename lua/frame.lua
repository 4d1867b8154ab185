-- First part of the script that decides all checks of a batch in one call: its arguments, its
-- reply, and what all parts share. After it come all_or_none.lua, log.lua, one file per algorithm,
-- reservations.lua, usage.lua, clock.lua, read_at_once.lua, and decide.lua (see
-- src/store/redis/wire/script.rs). There are two texts, and a process never sends others, because
-- Redis keeps every different script. The second one, for a cluster, begins with
-- undeclared_keys.lua, and has read_each.lua instead of read_at_once.lua. The twin in Rust is
-- src/store/redis/wire/call.rs, which packs the arguments and reads the reply.
--
-- KEYS: the keys of all checks, in order, then the keys of usage records, then the
-- keys of reservations. A check is named by its index in KEYS, from 1 on.
--
-- ARGV, all packed in little-endian byte order by struct.pack, because Lua takes longer to convert
-- a number from or to text than Redis takes to look up a key. All numbers are whole and below 2^53,
-- where Lua's numbers are exact.
--   1  empty; or, for tests, the time in microseconds that replaces the server's.
--   2  the codes of the algorithms that occur (src/core/algorithm.rs), 'A' if a request commits all
--      or none, 'R' if hits can be reserved, and 'U' if usage is recorded. A step is defined only
--      if its code is here: defining all of them would be much of the cost of a short call.
--   3  one row per limit: the code of its algorithm; the microseconds of its tick; count_denied,
--      which is 1 if refused hits count, plus twice the largest debt of a key in full limits; its
--      five other parameters, as the algorithm defines them.
--   4  one row per run. A run is consecutive checks that differ only in their keys. The row has:
--      four times the number of its limit (from 0 on), plus 1 for a quota and 2 for shadow mode in
--      a request that commits all or none; the number of checks; the hits of each; the check
--      parameter.
--   5  the earliest deadline of all requests, in microseconds of this server's clock; then one row
--      per request: 1 if it commits all or none; how many checks it has; how many quotas pass
--      without a check; its deadline. The rows are read only if a request is late or commits all or
--      none.
--   6  if a key occurs twice: for each check its slot, which is the first index with the same key.
--      Otherwise missing or empty: the slot of each check is its own index.
--   7, 8  if usage is recorded: see usage.lua.
--   9  if a limit is for requests in flight: see concurrency.lua. Then 6 to 8 may be empty.
--   10 if hits can be reserved: see reservations.lua. Then 6 to 9 may be empty.
--
-- The reply: the seconds and microseconds of TIME; one packed text; the error lines. The text has a
-- row per check:
--   - If the state is enough, the row is the state that the check found, or zeros for none. Rust
--     takes the same step on it.
--   - Otherwise: the hits that count; the ticks until the key has recovered; 0 if allowed, else the
--     retry in ticks, or -1 for never.
--   - A failed check has minus the number of its error line.
-- With a given time, the text goes on with a number per check: the ticks for which the state must
-- be kept, or -1 if it did not change. If usage is recorded, four numbers per row of ARGV[7]
-- follow; if hits can be reserved, ten numbers per row of ARGV[10]. The text ends with the
-- indices of checks that only peeked, because they were allowed and their request was not.
--
-- All keys are read and stepped before the first write, so an aborted call has written nothing,
-- but for reservations (see reservations.lua). A key that cannot be read fails only its own
-- checks. Lua is slow: the usual path of a check calls no functions but those that pack numbers.
local call, list, floor = redis.call, unpack, math.floor

-- Each call creates the functions of the algorithms that occur. Each local variable of this file
-- that they use adds to the cost. So they look up library functions and write constants themselves.

-- By code: true if the algorithm occurs, then its step(from, to, hits, parameter, present, tick_ms,
-- ...), which steps the checks of a run. `present` is the time in ticks of `tick_ms` milliseconds;
-- the limit's six parameters follow. Returns whether the last check is allowed, or nil if it
-- failed.
local steps = {}
-- Defined by log.lua if a log occurs: log_read(code, key) and log_write(key, log, life).
local log_read, log_write
-- Defined by concurrency.lua if it occurs: holders_read(key) and holders_write(key, state, life).
local holders_read, holders_write

-- The time in microseconds and in milliseconds, and the earliest expiry of a key: a key lives five
-- seconds longer than its state has a meaning.
local now, now_ms, soonest

-- found: by index, the stored state, false for none. states: by slot, the current state, a text or
-- the table of a log. kept: by index, with a given time, the ticks for which the state must be
-- kept.
local found, states, kept
-- lives: by slot, the new expiry of the key in milliseconds, if it changes. rows: by index, the
-- reply row, if it is not the state found. firsts: by index, the slot (ARGV[6]).
local lives, rows, firsts = {}, {}, ARGV[6] ~= '' and ARGV[6]
-- The error lines.
local errors = {}
for index = 1, #ARGV[2] do
  steps[string.byte(ARGV[2], index)] = true
end

-- Fails a check with an error line. A row has three numbers; in sliding_window_counter it has four.
local function fail(index, code, line)
  errors[#errors + 1] = line or 'ERR value is not an integer or out of range'
  rows[index] = struct.pack('<d', -#errors) .. string.rep('\0', code == 67 and 24 or 16) -- 'C'
end

-- Reads the state of a check that shares its key with an earlier check, or for which MGET returned
-- no text: nil from MGET may also mean a key of another type. Returns the slot, the current state
-- or false, and whether the key could be read; if not, the check has failed.
local function read(index, code)
  local slot = firsts and firsts[index] or index
  local state = states[slot]
  if not state then
    if log_read and (code == 76 or code == 66) then -- 'L', 'B'
      state = log_read(code, KEYS[slot])
    elseif code == 72 then -- 'H'
      state = holders_read(KEYS[slot])
    else
      state = redis.pcall('GET', KEYS[slot])
    end
    if type(state) == 'table' and state.err ~= nil then
      fail(index, code, state.err)
      return slot, false, false
    end
    found[slot], states[slot] = state, state
  end
  if not state or slot ~= index then
    rows[index] = state or string.rep('\0', code == 67 and 32 or 24) -- 'C'
  end
  return slot, state, true
end

-- The longest life of a key in milliseconds. Redis accepts it, and an expiry of this size leaves
-- bits of its number for the fraction.
local LONGEST = 10000000000000

-- Setting an expiry costs Redis more than the write that it belongs to. So states that contain
-- their expiry set it ahead: to `needed`, in milliseconds, plus the same time again. The addition
-- is at least 10 s for a new key, because a key that is used once should go soon, and at least 60 s
-- for others, because a busy key should seldom need a new expiry. Returns the expiry, a whole
-- number.
local function renew(slot, needed, before)
  lives[slot] = math.min(
    math.ceil(needed + math.max(needed - now_ms, before < 2 and 10000 or 60000)),
    now_ms + LONGEST
  )
  return lives[slot]
end

-- floor(one * other / divisor) for a product above 2^53. `other` is at most `divisor`, and
-- `divisor` is at most 2^35.
local function product(one, other, divisor)
  local floor, part = math.floor, one % divisor
  local high = floor(part / 131072) * other
  return floor(one / divisor) * other
    + floor(high / divisor) * 131072
    + floor((high % divisor * 131072 + part % 131072 * other) / divisor)
end

-- The units that return from one tick to another, at `rate` per window of the clock. For limits
-- whose products may be above 2^53.
local function come_back(rate, window, from, to)
  local floor = math.floor
  return (floor(to / window) - floor(from / window)) * rate
    - product(rate, from % window, window)
    + product(rate, to % window, window)
end

-- The fraction of a state's expiry is the code of its units (see src/core/algorithm/ticks.rs)
-- divided by 16, the `mark`. So a limit can read a state that it stored before a change of its
-- amount changed its units. Converts the tick of the last change, rounded up, and an amount of
-- other units, which `round` rounds. The window is in microseconds.
local function convert(mark, other, window, last, amount, round)
  local split = 1
  while window / split > 34359738368 do
    split = split * 10
  end
  local function tick_of(code)
    return code < 7 and 10 ^ code or split
  end
  local function units_of(code)
    return code < 7 and math.ceil(window / 10 ^ code) or 10 ^ (15 - code)
  end
  local own, their = mark * 16, other * 16
  local at, factor, divisor =
    math.ceil(last * tick_of(their) / tick_of(own)), units_of(own), units_of(their)
  if own < 7 and their < 7 then
    factor, divisor = 10 ^ math.max(0, their - own), 10 ^ math.max(0, own - their)
  end
  return at, round(amount / divisor) * factor
end
