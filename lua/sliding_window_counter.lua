-- sliding_window_counter: the number of a window, its hits and those of the one before; the latter count for the
-- part of them that the window that ends now still covers. The twin is src/algorithm/sliding_window_counter.rs.
if steps[67] then -- 'C'
  steps[67] = function(from, to, hits, _, present, tick_ms, limit, window, count_denied) -- 'C'
    local most, present_number, present_passed = 2 * limit, floor(present / window), present % window
    local states, firsts, kept, soonest, unpack, pack = states, firsts, kept, soonest, struct.unpack, struct.pack
    local allowed
    for place = from, to do
      local own, text, readable = place, states[place]
      if not text or firsts and firsts[place] ~= place then
        own, text, readable = read(place, 67) -- 'C'
        text = text or readable and pack('<dddd', 1, present_number, 0, 0)
      end
      allowed = nil
      if text and #text == 32 then
        local expiry, stored, latest, before = unpack('<dddd', text)
        if (stored + latest + before) % 1 == 0 and latest >= 0 and before >= 0 and expiry > 0 then
          -- Stored under a larger limit, there may be more.
          if latest > most then
            latest = most
          end
          if before > most then
            before = most
          end
          local number, passed, current, previous, behind = present_number, present_passed, 0, 0, 0
          if stored == number then
            current, previous = latest, before
          elseif stored + 1 == number then
            previous = latest
          elseif stored == number + 1 then
            -- The clock went back: on at the start of the window that it had seen, and all waits are longer by as much.
            number, passed, current, previous, behind = stored, 0, latest, before, stored * window - present
          end
          -- Rounded up at once: current is whole, so that the sum is rounded up too, and no product leaves what is exact.
          local count = current + math.ceil(previous * (window - passed) / window)
          local current_after, previous_after = current, previous
          allowed = true
          if hits < 0 then
            current_after = math.max(0, current + hits)
            previous_after = math.max(0, previous + math.min(0, current + hits))
          elseif count + hits <= limit then
            current_after = current + hits
          else
            allowed = false
            if count_denied == 1 then
              current_after = current + math.max(0, math.min(hits, most - count))
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
              expiry = renew(own, needed, expiry)
            end
            states[own] = pack('<dddd', expiry, number, current_after, previous_after)
            if kept then
              kept[place] = keep
            end
          end
        end
      end
      if allowed == nil and text then
        fail(place, 67) -- 'C'
      end
    end
    return allowed
  end
end
