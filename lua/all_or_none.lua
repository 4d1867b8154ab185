-- commit: all_or_none: all checks of a request, or none when it is refused. Any check over its limit refuses; of quotas only all together
-- do; a shadow never does. The twin is src/plan/group.rs.
local all_or_none
if uses[65] then
  all_or_none = function(reply, first_key, first_spec, count, quotas, now)
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
end
