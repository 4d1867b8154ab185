-- sliding_window_counter: the number of a window, its hits and those of the one before; the latter count for the
-- part of them that the window that ends now still covers. The twin is src/algorithm/sliding_window_counter.rs.
if uses[67] then
  steps[67] = function(from, to, hits, _, tick, limit, window, count_denied)
    local present, tick_ms, soonest, most = floor(now / tick), tick / 1000, now_ms + GRACE, 2 * limit
    local states, firsts, kept, unpack, pack = states, firsts, kept, unpack, pack
    local allowed
    for place = from, to do
      local own, text = place, states[place]
      local expiry, stored, latest, before = 1, 0, 0, 0
      if not text or firsts and firsts[place] ~= place then
        own, text, expiry = read(place, 67)
      end
      if text then
        if #text ~= 32 then
          text = STRANGE
        end
        expiry, stored, latest, before = unpack('<dddd', text)
      end
      allowed = nil
      if (stored + latest + before) % 1 == 0 and latest >= 0 and before >= 0 and expiry > 0 then
        -- Stored under a larger limit, there may be more.
        if latest > most then
          latest = most
        end
        if before > most then
          before = most
        end
        local number, passed = floor(present / window), present % window
        local current, previous, behind = 0, 0, 0
        if stored == number then
          current, previous = latest, before
        elseif stored + 1 == number then
          previous = latest
        elseif stored == number + 1 then
          -- The clock went back: on at the start of the window that it had seen, and all waits are longer by as much.
          number, passed, current, previous, behind = stored, 0, latest, before, stored * window - present
        end
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
            current_after = current + max(0, min(hits, most - count))
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
      elseif text then
        fail(place, 67, NO_COUNTER)
      end
    end
    return allowed
  end
end
