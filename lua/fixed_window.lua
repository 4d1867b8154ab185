-- fixed_window: the count of one window as a whole number, the same that INCRBY counts. The twin is src/algorithm/fixed_window.rs.
-- The window is part of the key; its number and the times of the answer are the caller's business, who sends for how long to keep it.
if steps[70] then -- 'F'
  steps[70] = function(from, to, hits, keep, _, tick_ms, limit, count_denied) -- 'F'
    local allowed
    for place = from, to do
      local own, state, readable = read(place, 70) -- 'F'
      -- Redis counts to 19 digits.
      if state and (#state > 19 or not string.match(state, '^%d+$')) then
        readable = fail(place, 70) -- 'F'
      end
      allowed = nil
      if readable then
        -- INCRBY counts further than Lua, whose numbers are exact up to here; so far over every limit the difference means nothing.
        local count = math.min(tonumber(state or 0), 9007199254740991)
        local after = math.max(0, math.min(count + hits, 9007199254740991))
        allowed = hits < 0 or after <= limit
        if not allowed and count_denied == 0 then
          after = count
        end
        if after ~= count then
          states[own] = string.format('%.0f', after)
          lives[own] = soonest + keep * tick_ms
          if kept then
            kept[place] = keep
          end
        end
        rows[place] = struct.pack('<ddd', after, 0, allowed and 0 or -1)
      end
    end
    return allowed
  end
end
