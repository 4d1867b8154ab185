-- A change of overrides in one step. src/live/overrides/redis.rs describes KEYS and ARGV.
local key, ended, version, most = KEYS[1], KEYS[2], ARGV[1], tonumber(ARGV[2])
local change, id, text = ARGV[3], ARGV[4], ARGV[5]
if change == 'restore' then
  if redis.call('HLEN', key) > 0 then
    return 1
  end
  for index = 9, #ARGV, 4 do
    redis.call('HSET', key, ARGV[index], ARGV[index + 1])
  end
end
for index = 9, change == 'restore' and 0 or #ARGV, 4 do
  local found = redis.call('HGET', key, ARGV[index])
  if found and (found == ARGV[index + 1] or ARGV[index + 1] == '') then
    redis.call('HDEL', key, ARGV[index])
    redis.call('HSET', ended, ARGV[index + 2], ARGV[index + 3])
    redis.call('PEXPIRE', ended, ARGV[8])
  end
end
local fields = redis.call('HKEYS', ended)
table.sort(fields)
for index, field in ipairs(fields) do
  if field < ARGV[6] or index <= #fields - ARGV[7] then
    redis.call('HDEL', ended, field)
  end
end
if change == 'set' then
  if redis.call('HLEN', key) > most and redis.call('HEXISTS', key, id) == 0 then
    return 0
  end
  redis.call('HSET', key, id, text)
end
local last_reset = string.match(redis.call('HGET', key, 'version') or '', 'reset%x+$')
if last_reset and not string.find(version, 'reset', 1, true) then
  version = version .. ' ' .. last_reset
end
redis.call('HSET', key, 'version', version)
return 1
