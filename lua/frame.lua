-- The frame: decides many checks of many requests in one call. Behind it the files of the algorithms are joined (see
-- src/store/redis/script.rs), and last decide.lua, into one text that never changes; nothing in it depends on a request.
--
-- KEYS are the keys of all checks, in order. ARGV[1] is empty, or for tests a time in microseconds in place of the server's. ARGV[2] has
-- the codes of the algorithms that occur, and an A if a request commits all or none: what is not used is not made, because making it would
-- be most of what a short call costs. Then each request follows as a group: one packed text of four numbers (1 when it commits all or
-- none; how many checks; quotas that pass without a check; the deadline in microseconds of this server's clock), and one packed text per
-- check (the code of its algorithm; 1 for a quota plus 2 for a shadow; hits; microseconds of a tick; then what its algorithm unpacks).
--
-- The reply is TIME's seconds and microseconds, then four values per check: 1 when allowed, 0 when not, or an error's line; hits that count
-- now; ticks until it has recovered; and the delay of an allowed or the retry of a refused check in ticks, -1 for never. A given time
-- adds a fifth: the ticks for which the state has to be kept, -1 when nothing changes.
--
-- First everything is read and stepped, then everything is written: a call is broken off either before its first write or not at all.
-- A key that cannot be read spoils only its own check. All numbers are whole and below 2^53, where Lua's numbers are exact.

local call, try, unpack = redis.call, redis.pcall, struct.unpack
local byte, match, format = string.byte, string.match, string.format
local floor, ceil, min, max = math.floor, math.ceil, math.min, math.max

-- Whole numbers end here; a stored one that is larger is not ours.
local MOST = 9007199254740991
local NO_COUNTER = 'ERR value is not an integer or out of range'

-- Keys outlive what they mean by so many milliseconds, and none is given a longer life than Redis can count.
local GRACE = 5000
local LONGEST = 10000000000000

-- The codes of what this call uses.
local uses = {}
for index = 1, #ARGV[2] do
  uses[byte(ARGV[2], index)] = true
end

-- By the code of the algorithm: step(state, t, hits, spec, key). The state is what `known` holds for the key; `spec` is the check's text,
-- whose own part begins at byte 19. Returns allowed, used, reset and extra as in the reply, then the new state and the ticks to keep it for
-- when it changed; or nil and an error's line.
local steps = {}
-- For states that are no plain text (see log.lua): read(code, key), and write(key, state, life).
local log_read, log_write

-- By key: the state (text, or a log's table) as of now, false for none; or a table with the error `err`.
local known = {}
-- Keys in the order of their first change; by key, the life in milliseconds that the last change wants, false when it was taken back.
local changed, lives = {}, {}
local is_given = ARGV[1] ~= ''

-- Steps one check. Returns what its step returns, without the state; remembers in `undo`, when there is one, how to take it back.
local function check(key, spec, now, is_look, undo)
  local code, _, hits, tick = unpack('<BBdd', spec)
  local before = known[key]
  if before == nil then
    if code == 76 or code == 66 then
      before = log_read(code, key)
    else
      before = try('GET', key)
    end
    known[key] = before
  end
  if type(before) == 'table' and (before.err or before.code ~= code) then
    return nil, before.err or NO_COUNTER
  end
  if is_look then
    hits = 0
  end
  local allowed, used, reset, extra, after, keep = steps[code](before, floor(now / tick), hits, spec, key)
  if after then
    if undo then
      local count = #undo
      undo[count + 1], undo[count + 2], undo[count + 3] = key, before, lives[key] or false
    end
    known[key] = after
    if lives[key] == nil then
      changed[#changed + 1] = key
    end
    lives[key] = min(ceil(keep * tick / 1000) + GRACE, LONGEST)
  end
  return allowed, used, reset, extra, keep
end

local function answer(reply, allowed, used, reset, extra, keep)
  local count = #reply
  if allowed == nil then
    reply[count + 1], reply[count + 2], reply[count + 3], reply[count + 4] = used, 0, 0, 0
  else
    reply[count + 1], reply[count + 2], reply[count + 3], reply[count + 4] = allowed and 1 or 0, used, reset, extra
  end
  if is_given then
    reply[count + 5] = keep or -1
  end
end
