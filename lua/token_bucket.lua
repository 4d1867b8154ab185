-- token_bucket: the newest tick and the level in units; a hit costs `window` units, a tick brings `rate` of them; none is
-- full, and a bucket without a rate holds nothing. The twin is src/algorithm/token_bucket.rs.
if uses[84] then
  formats[84] = '<ddd'
  steps[84] = function(at, text, t, hits)
    local rate, window, burst, count_denied = limits[at], limits[at + 1], limits[at + 2], limits[at + 3]
    local full = burst * window
    local level, behind, expiry = full, 0, 0
    if text then
      if #text ~= 24 then
        return nil, NO_COUNTER
      end
      local last, stored
      expiry, last, stored = unpack('<ddd', text)
      -- Any whole numbers will do: what is too much is cut to what there can be.
      if last % 1 + stored % 1 ~= 0 then
        return nil, NO_COUNTER
      end
      if stored < -full then
        stored = -full
      elseif stored > full then
        stored = full
      end
      if last <= t then
        level = stored
        if level < full then
          -- The refill ends when the bucket is full, so that no gap is too long to be multiplied.
          local passed = t - last
          if passed * rate >= full - level then
            level = full
          else
            level = level + rate * passed
          end
        end
      elseif last - t <= window then
        -- The clock went back: on from where it was, and all waits are longer by as much.
        t, level, behind = last, stored, last - t
      end
    end
    local cost, after, allowed = hits * window, level, true
    if hits < 0 then
      after = min(full, level - cost)
    elseif hits == 0 then
      allowed = level >= 0
    elseif level >= cost then
      after = level - cost
    else
      allowed = false
      if count_denied == 1 then
        after = max(level - cost, -full)
      end
    end
    local reset, retry = 0, 0
    if after < full then
      reset = ceil((full - after) / rate) + behind
    end
    if not allowed then
      retry = hits > burst and -1 or ceil((cost - after) / rate) + behind
    end
    local used = ceil((full - after) / window)
    if after == level then
      return allowed, used, reset, retry
    end
    return allowed, used, reset, retry, reset > 0 and reset or 1, expiry, t, after
  end
end
