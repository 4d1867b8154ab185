-- leaky_bucket: the newest tick and the backlog in units; a hit adds `window` units, a tick drains `rate` of them; none is empty. The twin is
-- src/algorithm/leaky_bucket.rs. The check's own number is how many ticks the caller can be held, `longest` at most.
if uses[81] then
  formats[81] = '<ddd'
  steps[81] = function(at, text, t, hits, patience)
    local rate, window, longest, count_denied = limits[at], limits[at + 1], limits[at + 2], limits[at + 3]
    local room = longest * rate
    -- A queue that does not drain admits nothing and remembers nothing.
    if rate == 0 then
      return hits <= 0, 0, 0, hits > 0 and -1 or 0
    end
    local capacity, most = floor(room / window) + 1, room + window + rate * window
    local backlog, behind, expiry = 0, 0, 0
    if text then
      if #text ~= 24 then
        return nil, NO_COUNTER
      end
      local last, stored
      expiry, last, stored = unpack('<ddd', text)
      if last % 1 + stored % 1 ~= 0 or stored < 0 then
        return nil, NO_COUNTER
      end
      stored = min(stored, most)
      if last <= t then
        backlog = max(0, stored - rate * min(t - last, ceil(stored / rate)))
      elseif last - t <= window then
        -- The clock went back: on from where it was, and all waits are longer by as much.
        t, backlog, behind = last, stored, last - t
      end
    end
    -- The longest backlog that admits the hits; a look asks whether there is debt.
    local threshold = room + window
    if hits > 0 then
      threshold = min(room - (hits - 1) * window, patience * rate)
    end
    local after, allowed, extra = backlog, true, 0
    if hits < 0 then
      after = max(0, backlog + hits * window)
    else
      allowed = hits <= capacity and backlog <= threshold
      if allowed and hits > 0 then
        after, extra = backlog + hits * window, ceil(backlog / rate)
      elseif count_denied == 1 then
        after = min(backlog + hits * window, most)
      end
    end
    local fitting = 0
    if after <= room then
      fitting = floor((room - after) / window) + 1
    end
    local used = capacity - fitting + max(0, ceil((after - room - window) / window))
    local reset = 0
    if after > 0 then
      reset = ceil(after / rate) + behind
    end
    if not allowed then
      extra = hits > capacity and -1 or ceil((after - threshold) / rate) + behind
    end
    if after == backlog then
      return allowed, used, reset, extra
    end
    return allowed, used, reset, extra, max(1, reset), expiry, t, after
  end
end
