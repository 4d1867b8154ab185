-- Gives hits of fixed windows back. The twin is src/algorithm/fixed_window.rs; plain hits and looks go as INCRBY and GET, without a script.
--
-- KEYS are counters, each the count of one window as a whole number. ARGV[1] is the deadline in microseconds of this server's clock; then
-- follow, for each key, the hits to give back and the seconds that a key without an expiry is kept for (there should be none: a counter is
-- made together with its expiry, and giving back does not change it).
--
-- The reply is TIME's seconds and microseconds, then one text for each key: the count that is left, or an error as its own command would
-- have put it, so that a key that holds something else spoils only its own answer. After the deadline nothing is given back, because the
-- caller has been told something else already.
--
-- Lua's numbers are exact only below 2^53, so counts are compared as numbers but written as the text that they came in.

local function give_back(key, hits, keep_secs)
  local stored = redis.pcall('GET', key)
  if not stored then
    return '0'
  end
  if type(stored) == 'table' then
    return stored.err
  end
  if not string.match(stored, '^%d+$') then
    return 'ERR value is not an integer or out of range'
  end
  -- Never below zero: no more is given back than what is there.
  local less = hits
  if tonumber(hits) >= tonumber(stored) then
    less = stored
  end
  local left = redis.pcall('DECRBY', key, less)
  if type(left) == 'table' then
    return left.err
  end
  if redis.call('TTL', key) == -1 then
    redis.call('EXPIRE', key, keep_secs)
  end
  return string.format('%.0f', left)
end

local time = redis.call('TIME')
local is_late = time[1] * 1000000 + time[2] > tonumber(ARGV[1])
local reply = { time[1], time[2] }
for index, key in ipairs(KEYS) do
  reply[index + 2] = is_late and 'LATE' or give_back(key, ARGV[2 * index], ARGV[2 * index + 1])
end
return reply
