-- fixed_window: the count of one window as a whole number, the same that INCRBY counts. The twin is src/algorithm/fixed_window.rs.
-- The window is part of the key; its number and the times of the answer are the caller's business, who sends for how long to keep it.
if uses[70] then
  steps[70] = function(at, state, _, hits, keep)
    local limit, count_denied = limits[at], limits[at + 1]
    local count = 0
    if state then
      -- Redis counts to 19 digits.
      count = tonumber(state)
      if type(state) == 'string' and (#state > 19 or not string.match(state, '^%d+$')) then
        return nil, NO_COUNTER
      end
      -- INCRBY counts further than Lua; so far over every limit the difference means nothing.
      count = min(count, MOST)
    end
    local after, allowed = max(0, min(count + hits, MOST)), true
    if hits >= 0 then
      allowed = after <= limit
      if not allowed and count_denied == 0 then
        after = count
      end
    end
    if after == count then
      return allowed, after, 0, 0
    end
    return allowed, after, 0, 0, keep, 0, after
  end
end
