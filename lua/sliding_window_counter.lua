-- sliding_window_counter. The twin is src/core/algorithm/sliding_window_counter.rs, which also
-- describes the algorithm.
--
-- State: the key's expiry in milliseconds; the number of the current window; its hits; the hits of
-- the previous window. Parameters: count_denied, limit, window.
if steps[67] then -- 'C'
  steps[67] = function(from, to, hits, _, present, tick_ms, count_denied, limit, window) -- 'C'
    local most, present_number, present_passed =
      (1 + floor(count_denied / 2)) * limit, floor(present / window), present % window
    local states, firsts, kept, soonest, unpack, pack =
      states, firsts, kept, soonest, struct.unpack, struct.pack
    local allowed
    for index = from, to do
      local slot, text, readable = index, states[index]
      if not text or firsts and firsts[index] ~= index then
        slot, text, readable = read(index, 67) -- 'C'
        text = text or readable and pack('<dddd', 1, present_number, 0, 0)
      end
      allowed = nil
      if text and #text == 32 then
        local expiry, stored, latest, before = unpack('<dddd', text)
        if (stored + latest + before) % 1 == 0 and latest >= 0 and before >= 0 and expiry > 0 then
          -- A state of a larger limit may hold more hits.
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
          elseif stored == number + 1 and latest + before > 0 then
            -- The clock went back: continue at the start of the stored window, all waits longer by
            -- the difference.
            number, passed, current, previous, behind =
              stored, 0, latest, before, stored * window - present
          end
          -- `current` is whole: rounding up the other term rounds up the sum.
          local weight = previous * (window - passed)
          local count = current
            + (
              weight < 9007199254740992 and math.ceil(weight / window)
              or previous - product(previous, passed, window)
            )
          local current_after, previous_after = current, previous
          allowed = true
          if hits < 0 then
            current_after = math.max(0, current + hits)
            previous_after = math.max(0, previous + math.min(0, current + hits))
          elseif count + hits <= limit then
            current_after = current + hits
          else
            allowed = false
            if count_denied % 2 == 1 then
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
              expiry = renew(slot, needed, expiry)
            end
            states[slot] = pack('<dddd', expiry, number, current_after, previous_after)
            if kept then
              kept[index] = keep
            end
          end
        end
      end
      if allowed == nil and text then
        fail(index, 67) -- 'C'
      end
    end
    return allowed
  end
end
