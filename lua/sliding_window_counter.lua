-- sliding_window_counter: the number of a window, its hits and those of the one before; the latter count for the
-- part of them that the window that ends now still covers. The twin is src/algorithm/sliding_window_counter.rs.
if uses[67] then
  formats[67] = '<dddd'
  steps[67] = function(at, text, t, hits)
    local limit, window, count_denied = limits[at], limits[at + 1], limits[at + 2]
    local number, passed = floor(t / window), t % window
    local current, previous, behind, expiry = 0, 0, 0, 0
    if text then
      if #text ~= 32 then
        return nil, NO_COUNTER
      end
      local stored, now, before
      expiry, stored, now, before = unpack('<dddd', text)
      if stored % 1 + now % 1 + before % 1 ~= 0 or now < 0 or before < 0 then
        return nil, NO_COUNTER
      end
      -- Stored under a larger limit, there may be more.
      now, before = min(now, 2 * limit), min(before, 2 * limit)
      if stored == number then
        current, previous = now, before
      elseif stored + 1 == number then
        previous = now
      elseif stored == number + 1 then
        -- The clock went back: on at the start of the window that it had seen, and all waits are longer by as much.
        number, passed, current, previous, behind = stored, 0, now, before, stored * window - t
      end
    end
    -- Rounded up at once: current is whole, so that the sum is rounded up too, and no product leaves what is exact.
    local count = current + ceil(previous * (window - passed) / window)
    local current_after, previous_after, allowed = current, previous, true
    if hits < 0 then
      current_after = max(0, current + hits)
      previous_after = max(0, previous + min(0, current + hits))
    elseif count + hits <= limit then
      current_after = current + hits
    else
      allowed = false
      if count_denied == 1 then
        current_after = current + max(0, min(hits, 2 * limit - count))
      end
    end
    local is_changed = current_after ~= current or previous_after ~= previous
    current, previous = current_after, previous_after
    local used = current + ceil(previous * (window - passed) / window)
    local reset = 0
    if current > 0 then
      reset = 2 * window - passed + behind
    elseif previous > 0 then
      reset = window - passed + behind
    end
    local retry = 0
    if not allowed then
      if hits > limit then
        retry = -1
      elseif current <= limit - hits then
        local passed_then = 0
        if previous > 0 then
          passed_then = window - floor((limit - hits - current) * window / previous)
        end
        retry = max(0, passed_then - passed)
      else
        retry = window - passed + max(0, window - floor((limit - hits) * window / current))
      end
      if retry > 0 then
        retry = retry + behind
      end
    end
    if not is_changed then
      return allowed, used, reset, retry
    end
    return allowed, used, reset, retry, max(1, reset), expiry, number, current, previous
  end
end
