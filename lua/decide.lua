-- The last part of the script: goes through the runs, or where it has to through the requests, then writes what changed. See frame.lua.
now = reply[1] * 1000000 + reply[2]
if ARGV[1] ~= '' then
  now, kept = tonumber(ARGV[1]), {}
  reply[1], reply[2] = string.format('%.0f', floor(now / 1000000)), string.format('%.0f', now % 1000000)
end
now_ms = floor(now / 1000)
limits = { unpack(#ARGV[3] == 57 and '<Bddddddd' or '<' .. rep('Bddddddd', #ARGV[3] / 57), ARGV[3]) }
runs = { unpack(#ARGV[4] == 20 and '<HHdd' or '<' .. rep('HHdd', #ARGV[4] / 20), ARGV[4]) }
if firsts then
  firsts = { unpack('<' .. rep('H', #keys), firsts) }
end
-- Logs are long, and read in parts.
if log_read then
  found, states = {}, {}
else
  found = call('MGET', list(keys))
  states = { list(found) }
end
if not all_or_none and now <= unpack('<d', ARGV[5]) then
  local from = 1
  for row = 1, #runs - 1, 4 do
    local at, to = runs[row] * 2 + 3, from + runs[row + 1] - 1
    steps[limits[at - 2]](at, from, to, runs[row + 2], runs[row + 3])
    from = to + 1
  end
else
  local run_of = {}
  for row = 1, #runs - 1, 4 do
    for _ = 1, runs[row + 1] do
      run_of[#run_of + 1] = row
    end
  end
  -- Steps the check at a place, for other hits than its own if there are any, or lets it fail. Returns also its role.
  local function check(place, hits, line)
    local row = run_of[place]
    local role = runs[row] % 4
    local at = (runs[row] - role) * 2 + 3
    local code = limits[at - 2]
    if line then
      return fail(place, code, line)
    end
    return steps[code](at, place, place, hits or runs[row + 2], runs[row + 3]), role
  end
  local requests = { unpack('<' .. rep('BHHd', (#ARGV[5] - 8) / 13), ARGV[5], 9) }
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
    if log_write and type(state) == 'table' then
      log_write(keys[place], state, life)
    elseif life then
      call('SET', keys[place], state, 'PX', life)
    else
      call('SETRANGE', keys[place], '0', state)
    end
  end
end
for place, row in pairs(rows) do
  found[place] = row
end
local text = table.concat(found)
if kept then
  for place = 1, #keys do
    text = text .. pack('<d', kept[place] or -1)
  end
end
if looks and looks[1] then
  text = text .. pack('<' .. rep('H', #looks), list(looks))
end
reply[3] = text
return reply
