-- The time by which all checks are decided, and the values that the next parts need.
local time = call('TIME')
now = time[1] * 1000000 + time[2]
if ARGV[1] ~= '' then
  now, kept = tonumber(ARGV[1]), {}
  time[1], time[2] =
    string.format('%.0f', floor(now / 1000000)), string.format('%.0f', now % 1000000)
end
now_ms = floor(now / 1000)
soonest = now_ms + 5000
local keys, unpack = checked or KEYS, struct.unpack
if firsts then
  firsts = { unpack('<' .. string.rep('H', #keys), firsts) }
end
