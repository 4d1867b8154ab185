-- sliding_window_counter: the number of a window, its hits and those of the one before; the latter count for the
-- part of them that the window that ends now still covers. The twin is src/algorithm/sliding_window_counter.rs.
if uses[67] then
  steps[67] = function(at, from, to, hits)
    local tick, limit, window, count_denied = limits[at - 1], limits[at], limits[at + 1], limits[at + 2]
    local present, tick_ms, soonest = floor(now / tick), tick / 1000, now_ms + GRACE
    local states, firsts, kept, unpack, pack = states, firsts, kept, unpack, pack
    local allowed
    for place = from, to do
      local own, text = place, states[place]
      if firsts or not text then
        own, text = read(place, 67)
      end
      local number, passed = floor(present / window), present % window
      local current, previous, behind, expiry = 0, 0, 0, 0
      if text then
        local stored, latest, before
        if #text == 32 then
          expiry, stored, latest, before = unpack('<dddd', text)
        end
        if #text ~= 32 or stored % 1 + latest % 1 + before % 1 ~= 0 or latest < 0 or before < 0 or not (expiry > 0) then
          text = fail(place, 67, NO_COUNTER)
        else
          -- Stored under a larger limit, there may be more.
          latest, before = min(latest, 2 * limit), min(before, 2 * limit)
          if stored == number then
            current, previous = latest, before
          elseif stored + 1 == number then
            previous = latest
          elseif stored == number + 1 then
            -- The clock went back: on at the start of the window that it had seen, and all waits are longer by as much.
            number, passed, current, previous, behind = stored, 0, latest, before, stored * window - present
          end
        end
      end
      allowed = nil
      if text ~= nil then
        -- Rounded up at once: current is whole, so that the sum is rounded up too, and no product leaves what is exact.
        local count = current + ceil(previous * (window - passed) / window)
        local current_after, previous_after = current, previous
        allowed = true
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
        if current_after ~= current or previous_after ~= previous then
          local keep = 1
          if current_after > 0 then
            keep = 2 * window - passed + behind
          elseif previous_after > 0 then
            keep = window - passed + behind
          end
          local needed = soonest + keep * tick_ms
          if expiry < needed then
            expiry = renew(own, needed)
          end
          states[own] = pack('<dddd', expiry, number, current_after, previous_after)
          if kept then
            kept[place] = keep
          end
        end
      end
    end
    return allowed
  end
end
