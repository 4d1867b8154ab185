-- commit: all_or_none: all checks of a request, or none when it is refused. Any check over its limit refuses; of quotas only all together
-- do; a shadow never does. The twin is src/plan/group.rs.
local all_or_none
if uses[65] then
  all_or_none = function(first, last, quotas)
    local undo, results = {}, {}
    local quotas_over, is_over, err = 0, false, nil
    for place = first, last do
      local result = { check(place, false, undo) }
      results[place] = result
      if result[1] == nil then
        err = err or result[2]
      end
      local role = checks[place * 4 - 3] % 4
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
        states[undo[place]] = undo[place + 1]
        expiries[undo[place]] = undo[place + 2]
      end
    end
    for place = first, last do
      local result = results[place]
      if err then
        answer(place, nil, result[1] == nil and result[2] or err)
      elseif not is_refused then
        answer(place, result[1], result[2], result[3], result[4], result[5])
      elseif result[1] then
        -- It would have been allowed, and says what it has left: what a look says.
        local _, used, reset = check(place, true)
        answer(place, true, used, reset, 0)
      else
        answer(place, false, result[2], result[3], result[4])
      end
    end
  end
end
