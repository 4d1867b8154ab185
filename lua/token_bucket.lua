-- token_bucket: 'last level', the newest tick and the level in units; a hit costs `window` units, a tick brings `rate` of them; none is
-- full, and a bucket without a rate holds nothing. The twin is src/algorithm/token_bucket.rs.
if uses[84] then
  steps[84] = function(text, t, hits, spec)
    local rate, window, burst, count_denied = unpack('<dddd', spec, 19)
    local full = burst * window
    local level, behind = full, 0
    if text then
      local last, stored = match(text, '^(%d+) (-?%d+)$')
      last, stored = tonumber(last), tonumber(stored)
      if not last or last > MOST or stored > MOST or stored < -MOST then
        return nil, NO_COUNTER
      end
      if last <= t then
        level = max(-full, min(full, stored))
        if level < full then
          level = min(full, level + rate * min(t - last, ceil((full - level) / rate)))
        end
      elseif last - t <= window then
        -- The clock went back: on from where it was, and all waits are longer by as much.
        t, level, behind = last, max(-full, min(full, stored)), last - t
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
    return allowed, used, reset, retry, format('%.0f %.0f', t, after), max(1, reset)
  end
end
