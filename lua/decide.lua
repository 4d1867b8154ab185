-- The last part of the script: goes through the groups, then writes what changed. See frame.lua.
local time = call('TIME')
local now = time[1] * 1000000 + time[2]
if is_given then
  now = tonumber(ARGV[1])
  time = { format('%.0f', floor(now / 1000000)), format('%.0f', now % 1000000) }
end
local reply = { time[1], time[2] }
local key, arg, args = 1, 3, #ARGV
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
    local state = known[key]
    if type(state) == 'table' then
      log_write(key, state, life)
    else
      call('SET', key, state, 'PX', life)
    end
  end
end
return reply
