-- fixed_window: the count of one window as a whole number, the same that INCRBY counts. The twin is src/algorithm/fixed_window.rs.
-- The window is part of the key; its number and the times of the answer are the caller's business, who sends for how long to keep it.
if uses[70] then
  steps[70] = function(text, _, hits, spec)
    local limit, count_denied, keep = unpack('<ddd', spec, 19)
    local count = 0
    if text then
      -- Redis counts to 19 digits.
      count = #text < 20 and match(text, '^%d+$') and tonumber(text)
      if not count then
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
    return allowed, after, 0, 0, format('%.0f', after), keep
  end
end
