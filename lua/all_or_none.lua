-- commit: all_or_none: counts all checks of a request, or none if the request is refused. A check
-- over its limit refuses the request; a quota does so only if all quotas are over; a check in
-- shadow mode never does. Hits that a check refuses count only when the request is known to pass,
-- after all others. A refused request counts nothing. It only marks the ids of its acquires,
-- because their releases will come. The twin is src/limits/plan/all_or_none.rs.
--
-- all_or_none(first, last, quotas, check) steps the checks from `first` to `last` of a request with
-- `quotas` quotas that pass without a check. check(index, hits, line, is_free) steps or fails one
-- check (see decide.lua).
local all_or_none
-- The indices of checks that were allowed in a refused request.
local looks
if steps[65] then -- 'A'
  looks = {}
  all_or_none = function(first, last, quotas, check)
    local undo, results, charges = {}, {}, {}
    local quotas_over, is_over, err = 0, false, nil
    for index = first, last do
      local slot = firsts and firsts[index] or index
      local count = #undo
      undo[count + 1], undo[count + 2], undo[count + 3] =
        slot, states[slot] or false, lives[slot] or false
      local result, role, count_denied = check(index, nil, nil, true)
      results[index] = result
      if result == nil then
        err = err or errors[#errors]
      elseif not result and count_denied % 2 == 1 then
        charges[#charges + 1] = index
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
      for position = 1, #charges do
        local index = charges[position]
        local state = firsts and states[firsts[index]]
        -- The row is the state that this step finds: later checks may have changed it since the
        -- first step.
        if type(state) == 'string' then
          rows[index] = state
        end
        check(index)
      end
      return
    end
    for index = #undo - 2, 1, -3 do
      local slot = undo[index]
      -- A state that this request was the first to read is again the state found.
      states[slot], lives[slot] = undo[index + 1] or found[slot], undo[index + 2]
    end
    for index = first, last do
      if err then
        if results[index] ~= nil then
          check(index, nil, err)
        end
      elseif results[index] then
        -- The check would have been allowed: a peek reports the remaining hits.
        check(index, 0)
        looks[#looks + 1] = index
      end
    end
    -- Marks the ids of its acquires.
    for index = first, steps[72] and not err and last or 0 do -- 'H'
      check(index, 0.5)
    end
  end
end
