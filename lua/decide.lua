-- Last part of the script. It steps run by run; if a request is late or commits all or none, it
-- steps request by request. Then it writes the changed states and returns the reply. KEYS, ARGV and
-- the reply are described in frame.lua. The twin is src/store/redis/wire/call.rs.

-- The packing and the size of a row of ARGV[3] (a limit) and of ARGV[4] (a run).
local LIMIT, LIMIT_SIZE, RUN, RUN_SIZE = '<Bddddddd', 57, '<HHdd', 20
if not all_or_none and now <= unpack('<d', ARGV[5]) then
  local from, at, runs = 1, 1, ARGV[4]
  while at < #runs do
    local limit, count, hits, parameter, behind = unpack(RUN, runs, at)
    local code, tick, a, b, c, d, e, f = unpack(LIMIT, ARGV[3], limit / 4 * LIMIT_SIZE + 1)
    steps[code](from, from + count - 1, hits, parameter, floor(now / tick), tick / 1000,
      a, b, c, d, e, f)
    from, at = from + count, behind
  end
else
  -- By index: the position of its run in ARGV[4].
  local run_at = {}
  for at = 1, #ARGV[4], RUN_SIZE do
    local _, count = unpack(RUN, ARGV[4], at)
    for _ = 1, count do
      run_at[#run_at + 1] = at
    end
  end
  -- Steps one check. `other`, if given, replaces its hits. If `is_free`, refused hits do not count.
  -- With `line`, the check fails with this error. Hits of 0.5 apply only to acquires of requests in
  -- flight. Also returns the role of the check, and its count_denied.
  local function check(index, other, line, is_free)
    local limit, _, hits, parameter = unpack(RUN, ARGV[4], run_at[index])
    local role = limit % 4
    local code, tick, a, b, c, d, e, f =
      unpack(LIMIT, ARGV[3], (limit - role) / 4 * LIMIT_SIZE + 1)
    if line then
      return fail(index, code, line)
    elseif other == 0.5 and (code ~= 72 or hits <= 0) then -- 'H'
      return
    end
    return steps[code](index, index, other or hits, parameter, floor(now / tick), tick / 1000,
      is_free and a - a % 2 or a, b, c, d, e, f), role, a
  end
  local requests = { unpack('<' .. string.rep('BHHd', (#ARGV[5] - 8) / 13), ARGV[5], 9) }
  local first = 1
  for row = 1, #requests - 1, 4 do
    local last = first + requests[row + 1] - 1
    if now <= requests[row + 3] and requests[row] == 1 then
      all_or_none(first, last, requests[row + 2], check)
    else
      local line = now > requests[row + 3] and 'LATE' or nil
      for index = first, last do
        check(index, nil, line)
      end
    end
    first = last + 1
  end
end
local write_usage = usage and usage(now)
for index = 1, #keys do
  local state = states[index]
  if state ~= found[index] then
    local life = lives[index]
    if not life then
      call('SETRANGE', keys[index], '0', state)
    else
      -- With a given time (in tests) no key expires. No life is longer than Redis can count.
      life =
        string.format('%.0f', kept and LONGEST or math.min(math.ceil(life) - now_ms, LONGEST))
      if type(state) == 'table' then
        local write = state.set and holders_write or log_write
        write(keys[index], state, life)
      else
        call('SET', keys[index], state, 'PX', life)
      end
    end
  end
end
for index, row in pairs(rows) do
  found[index] = row
end
local text = table.concat(found)
if kept then
  for index = 1, #keys do
    text = text .. struct.pack('<d', kept[index] or -1)
  end
end
if write_usage then
  text = text .. write_usage()
end
if effects then
  text = text .. effects()
end
if looks and looks[1] then
  text = text .. struct.pack('<' .. string.rep('H', #looks), list(looks))
end
return { time[1], time[2], text, list(errors) }
