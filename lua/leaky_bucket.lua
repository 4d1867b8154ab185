-- leaky_bucket. The twin is src/core/algorithm/leaky_bucket.rs, which also describes the algorithm.
--
-- State: the key's expiry in milliseconds, whose fraction names the units (see frame.lua); the tick
-- of the last change; the backlog in units. A hit adds `unit` of them, and `rate` hits drain per
-- window. No state means an empty queue. Check parameter: the units that drain in the longest time
-- for which the caller can be delayed, at most `room`. Parameters: count_denied, rate, window,
-- room, the code of the units, unit.
if steps[81] then -- 'Q'
  steps[81] = function( -- 'Q'
    from, to, hits, max_hold, present, tick_ms, count_denied, rate, window, room, code, unit
  )
    local added, mark, per_window = hits * unit, code / 16, code > 6 and rate * unit
    local most = room + unit + floor(count_denied / 2) * rate * unit
    -- The longest backlog at which the hits are allowed: a refund is always allowed, and a peek is
    -- refused in debt.
    local threshold = hits < 0 and most or room + unit
    if rate == 0 then
      -- A queue that does not drain allows nothing and stores nothing.
      added, threshold = 0, hits > 0 and -1 or most
    elseif hits > 0 then
      threshold = hits <= floor(room / unit) + 1
          and math.min(room - (hits - 1) * unit, max_hold)
        or -1
    end
    -- A life may be one tick too long, which avoids rounding.
    local unit_ms, soonest =
      per_window and tick_ms * window / per_window or tick_ms / rate, soonest + tick_ms
    local states, firsts, kept, unpack, pack = states, firsts, kept, struct.unpack, struct.pack
    local allowed
    for index = from, to do
      local slot, text, readable = index, states[index]
      if not text or firsts and firsts[index] ~= index then
        slot, text, readable = read(index, 81) -- 'Q'
        text = text or readable and pack('<ddd', 1 + mark, present, 0)
      end
      allowed = nil
      if text and #text == 24 then
        local expiry, last, stored = unpack('<ddd', text)
        if (last + stored) % 1 == 0 and stored >= 0 and expiry > 0 then
          local t, backlog, earliest = present, 0, soonest
          if expiry % 1 ~= mark then
            last, stored =
              convert(mark, expiry % 1, window * tick_ms * 1000, last, stored, math.ceil)
            expiry = expiry - expiry % 1 + mark
          end
          if stored > most then
            stored = most
          end
          if last <= t then
            -- After a long gap the product is not exact, but far above the backlog: the queue is
            -- empty.
            backlog = stored
              - (per_window and come_back(per_window, window, last, t) or (t - last) * rate)
            if backlog < 0 then
              backlog = 0
            end
          elseif last - t <= window and stored > 0 then
            -- The clock went back: continue at the stored tick, all waits longer by the difference.
            t, backlog, earliest = last, stored, soonest + (last - t) * tick_ms
          end
          local after = backlog + added
          if backlog <= threshold then
            allowed = true
            if after < 0 then
              after = 0
            end
          else
            allowed = false
            after = count_denied % 2 == 1 and math.min(after, most) or backlog
          end
          if after ~= backlog then
            local needed = earliest + after * unit_ms
            if expiry < needed then
              expiry = renew(slot, needed, expiry) + mark
            end
            states[slot] = pack('<ddd', expiry, t, after)
            if kept then
              kept[index] = after == 0 and 1
                or t - present + (
                  per_window
                  and math.min(math.ceil(after * window / per_window), 4503599627370496)
                    + 1
                  or math.ceil(after / rate)
                )
            end
          end
        end
      end
      if allowed == nil and text then
        fail(index, 81) -- 'Q'
      end
    end
    return allowed
  end
end
