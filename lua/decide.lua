-- The last part of the script: goes through the requests, then writes what changed. See frame.lua.
local time = call('TIME')
now = time[1] * 1000000 + time[2]
if is_given then
  now = tonumber(ARGV[1])
  time = { string.format('%.0f', floor(now / 1000000)), string.format('%.0f', now % 1000000) }
end
now_ms = floor(now / 1000)
limits = { unpack('<' .. rep('Bddddddd', #ARGV[3] / 57), ARGV[3]) }
checks = { unpack('<' .. rep('HHdd', #keys), ARGV[4]) }
-- Logs are long, and read in parts.
if not log_read then
  states = call('MGET', list(keys))
end
local requests = { unpack('<' .. rep('BHHd', #ARGV[5] / 13), ARGV[5]) }
local place = 1
for row = 1, #requests - 1, 4 do
  local last = place + requests[row + 1] - 1
  if now > requests[row + 3] then
    for own = place, last do
      answer(own, nil, 'LATE')
    end
  elseif requests[row] == 1 then
    all_or_none(place, last, requests[row + 2])
  else
    for own = place, last do
      answer(own, check(own))
    end
  end
  place = last + 1
end
for first = 1, #keys do
  local expiry = expiries[first]
  if expiry then
    local key, state, form = keys[first], states[first], forms[first]
    if form == -1 then
      log_write(key, state, expiry)
    elseif expiry ~= 0 then
      call('SET', key, form == 0 and string.format('%.0f', state) or state, 'PX', life_until(expiry))
    else
      call('SETRANGE', key, '0', state)
    end
  end
end
local rows = pack('<' .. rep('Bddd', #keys), list(checks))
if is_given then
  rows = rows .. pack('<' .. rep('d', #keys), list(kept))
end
return { time[1], time[2], rows, list(lines) }
