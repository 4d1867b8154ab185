-- fixed_window. The twin is src/core/algorithm/fixed_window.rs.
--
-- State: the count of one window in decimal digits, because plain INCRBY commands count it too. The
-- caller puts the window's number into the key and computes the times of the answer. Check
-- parameter: the ticks for which to keep the key. Parameters: count_denied, limit.
if steps[70] then -- 'F'
  steps[70] = function(from, to, hits, keep, _, tick_ms, count_denied, limit) -- 'F'
    local allowed
    for index = from, to do
      local slot, state, readable = read(index, 70) -- 'F'
      -- A count of Redis has at most 19 digits.
      if state and (#state > 19 or not string.match(state, '^%d+$')) then
        readable = fail(index, 70) -- 'F'
      end
      allowed = nil
      if readable then
        -- INCRBY may have counted beyond 2^53. This is above any limit: the lost digits do not
        -- matter.
        local count = math.min(tonumber(state or 0), 9007199254740992)
        local after = math.max(0, math.min(count + hits, 9007199254740992))
        allowed = hits < 0 or after <= limit
        if not allowed and count_denied % 2 == 0 then
          after = count
        end
        if after ~= count then
          states[slot] = string.format('%.0f', after)
          lives[slot] = soonest + keep * tick_ms
          if kept then
            kept[index] = keep
          end
        end
        rows[index] = struct.pack('<ddd', after, 0, allowed and 0 or -1)
      end
    end
    return allowed
  end
end
