-- The frame: decides many checks of many requests in one call. The files of the algorithms are joined behind it (see
-- src/store/redis/script.rs) into one text that never changes; nothing in it depends on a request.
--
-- KEYS are the keys of all checks, in order. ARGV[1] is empty, or for tests a time in microseconds in place of the server's. Then each
-- request follows as a group: one packed text of four numbers (1 when it commits all or none; how many checks; quotas that pass without a
-- check; the deadline in microseconds of this server's clock), and one packed text per check (the code of its algorithm; 1 for a quota plus
-- 2 for a shadow; hits; microseconds of a tick; then what its algorithm unpacks).
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

-- By the code of the algorithm: step(state, t, hits, spec, key). The state is what `known` holds for the key; `spec` is the check's text,
-- whose own part begins at byte 19. Returns allowed, used, reset and extra as in the reply, then the new state and the ticks to keep it for
-- when it changed; or nil and an error's line.
local steps = {}
-- By the code: how to read a state, and how to write one, when not by GET and SET.
local reads, writes = {}, {}

-- By key: the state (text or table) as of now, false for none; or a table with the error `err`.
local known = {}
-- Keys in the order of their first change; by key, the life in milliseconds that the last change wants.
local changed, lives, codes = {}, {}, {}
local is_given = ARGV[1] ~= ''

-- Steps one check. Returns what its step returns, without the state; remembers in `undo`, when there is one, how to take it back.
local function check(key, spec, now, is_look, undo)
  local code, _, hits, tick = unpack('<BBdd', spec)
  local before = known[key]
  if before == nil then
    local read = reads[code]
    if read then
      before = read(key)
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
    if codes[key] == nil then
      changed[#changed + 1] = key
      codes[key] = code
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

-- All checks of a request, or none when it is refused. Any check over its limit refuses; of quotas only all together do; a shadow never does.
local function all_or_none(reply, first_key, first_spec, count, quotas, now)
  local undo, results = {}, {}
  local quotas_over, is_over, err = 0, false, nil
  for index = 0, count - 1 do
    local spec = ARGV[first_spec + index]
    local result = { check(KEYS[first_key + index], spec, now, false, undo) }
    results[index] = result
    if result[1] == nil then
      err = err or result[2]
    end
    local role = byte(spec, 2)
    local is_quota, refuses = role % 2 == 1, not result[1] and role < 2
    if is_quota then
      quotas = quotas + 1
      quotas_over = quotas_over + (refuses and 1 or 0)
    else
      is_over = is_over or refuses
    end
  end
  local is_refused = err or is_over or (quotas > 0 and quotas == quotas_over)
  if is_refused then
    for place = #undo - 2, 1, -3 do
      known[undo[place]] = undo[place + 1]
      lives[undo[place]] = undo[place + 2]
    end
  end
  for index = 0, count - 1 do
    local result = results[index]
    if err then
      answer(reply, nil, result[1] == nil and result[2] or err)
    elseif not is_refused then
      answer(reply, result[1], result[2], result[3], result[4], result[5])
    elseif result[1] then
      -- It would have been allowed, and says what it has left: what a look says.
      local _, used, reset = check(KEYS[first_key + index], ARGV[first_spec + index], now, true)
      answer(reply, true, used, reset, 0)
    else
      answer(reply, false, result[2], result[3], result[4])
    end
  end
end

local function decide()
  local time = call('TIME')
  local now = time[1] * 1000000 + time[2]
  if is_given then
    now = tonumber(ARGV[1])
    time = { format('%.0f', floor(now / 1000000)), format('%.0f', now % 1000000) }
  end
  local reply = { time[1], time[2] }
  local key, arg, args = 1, 2, #ARGV
  while arg <= args do
    local is_whole, count, quotas, deadline = unpack('<dddd', ARGV[arg])
    if now > deadline then
      for _ = 1, count do
        answer(reply, nil, 'LATE')
      end
    elseif is_whole == 1 then
      all_or_none(reply, key, arg + 1, count, quotas, now)
    else
      for index = 0, count - 1 do
        answer(reply, check(KEYS[key + index], ARGV[arg + 1 + index], now, false))
      end
    end
    key, arg = key + count, arg + 1 + count
  end
  for index = 1, #changed do
    key = changed[index]
    local life = lives[key]
    if life then
      if is_given then
        life = LONGEST
      end
      local write = writes[codes[key]]
      if write then
        write(key, known[key], life)
      else
        call('SET', key, known[key], 'PX', life)
      end
    end
  end
  return reply
end
