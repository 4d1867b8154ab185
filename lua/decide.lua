-- The last part of the script: goes through the runs, or where it has to through the requests, then writes what changed. See frame.lua.
local time = call('TIME')
local now = time[1] * 1000000 + time[2]
if ARGV[1] ~= '' then
  now, kept = tonumber(ARGV[1]), {}
  time[1], time[2] = string.format('%.0f', floor(now / 1000000)), string.format('%.0f', now % 1000000)
end
now_ms = floor(now / 1000)
soonest = now_ms + 5000
local keys, unpack = KEYS, struct.unpack
if firsts then
  firsts = { unpack('<' .. string.rep('H', #keys), firsts) }
end
-- Logs are long, and read in parts.
if log_read then
  found, states = {}, {}
else
  found = call('MGET', list(keys))
  states = { list(found) }
end
-- A limit, and a run; and the longest life in milliseconds.
local LONGEST = 10000000000000
local LIMIT, LIMIT_SIZE, RUN, RUN_SIZE = '<Bddddddd', 57, '<HHdd', 20
if not all_or_none and now <= unpack('<d', ARGV[5]) then
  local from, at, told = 1, 1, ARGV[4]
  while at < #told do
    local limit, count, hits, own, behind = unpack(RUN, told, at)
    local code, tick, a, b, c, d, e, f = unpack(LIMIT, ARGV[3], limit / 4 * LIMIT_SIZE + 1)
    steps[code](from, from + count - 1, hits, own, floor(now / tick), tick / 1000, a, b, c, d, e, f)
    from, at = from + count, behind
  end
else
  -- By place: where its run is told.
  local told_at = {}
  for at = 1, #ARGV[4], RUN_SIZE do
    local _, count = unpack(RUN, ARGV[4], at)
    for _ = 1, count do
      told_at[#told_at + 1] = at
    end
  end
  -- Steps the check at a place, for other hits than its own if there are any, or lets it fail. Returns also its role.
  local function check(place, other, line)
    local limit, _, hits, own = unpack(RUN, ARGV[4], told_at[place])
    local role = limit % 4
    local code, tick, a, b, c, d, e, f = unpack(LIMIT, ARGV[3], (limit - role) / 4 * LIMIT_SIZE + 1)
    if line then
      return fail(place, code, line)
    end
    return steps[code](place, place, other or hits, own, floor(now / tick), tick / 1000, a, b, c, d, e, f), role
  end
  local requests = { unpack('<' .. string.rep('BHHd', (#ARGV[5] - 8) / 13), ARGV[5], 9) }
  local first = 1
  for row = 1, #requests - 1, 4 do
    local last = first + requests[row + 1] - 1
    if now <= requests[row + 3] and requests[row] == 1 then
      all_or_none(first, last, requests[row + 2], check)
    else
      local line = now > requests[row + 3] and 'LATE' or nil
      for place = first, last do
        check(place, nil, line)
      end
    end
    first = last + 1
  end
end
for place = 1, #keys do
  local state = states[place]
  if state ~= found[place] then
    local life = lives[place]
    if not life then
      call('SETRANGE', keys[place], '0', state)
    else
      -- At a given time nothing expires, and none is given a longer life than Redis can count.
      life = string.format('%.0f', kept and LONGEST or math.min(math.ceil(life) - now_ms, LONGEST))
      if log_write and type(state) == 'table' then
        log_write(keys[place], state, life)
      else
        call('SET', keys[place], state, 'PX', life)
      end
    end
  end
end
for place, row in pairs(rows) do
  found[place] = row
end
local text = table.concat(found)
if kept then
  for place = 1, #keys do
    text = text .. struct.pack('<d', kept[place] or -1)
  end
end
if looks and looks[1] then
  text = text .. struct.pack('<' .. string.rep('H', #looks), list(looks))
end
return { time[1], time[2], text, list(errors) }
