-- commit: all_or_none: all checks of a request, or none when it is refused. Any check over its limit refuses; of quotas only all together
-- do; a shadow never does. The twin is src/plan/group.rs.
local all_or_none
-- The places of checks that were allowed, in a request that was not.
local looks
if steps[65] then -- 'A'
  looks = {}
  all_or_none = function(first, last, quotas, check)
    local undo, results = {}, {}
    local quotas_over, is_over, err = 0, false, nil
    for place = first, last do
      local own = firsts and firsts[place] or place
      local count = #undo
      undo[count + 1], undo[count + 2], undo[count + 3] = own, states[own] or false, lives[own] or false
      local result, role = check(place)
      results[place] = result
      if result == nil then
        err = err or errors[#errors]
      end
      local is_quota, refuses = role % 2 == 1, not result and role < 2
      if is_quota then
        quotas = quotas + 1
        quotas_over = quotas_over + (refuses and 1 or 0)
      else
        is_over = is_over or refuses
      end
    end
    if not (err or is_over or (quotas > 0 and quotas == quotas_over)) then
      return
    end
    for place = #undo - 2, 1, -3 do
      local own = undo[place]
      -- What was not read before is as it was found.
      states[own], lives[own] = undo[place + 1] or found[own], undo[place + 2]
    end
    for place = first, last do
      if err then
        if results[place] ~= nil then
          check(place, nil, err)
        end
      elseif results[place] then
        -- It would have been allowed, and says what it has left: what a look says.
        check(place, 0)
        looks[#looks + 1] = place
      end
    end
  end
end
