-- token_bucket. The twin is src/core/algorithm/token_bucket.rs, which also describes the algorithm.
--
-- State: the key's expiry in milliseconds, whose fraction names the units (see frame.lua); the tick
-- of the last change; the level in units. A hit costs `unit` of them, and `rate` hits come back per
-- window. No state means a full bucket; a bucket with rate 0 holds nothing. Parameters:
-- count_denied, rate, window, burst, the code of the units, unit.
if steps[84] then -- 'T'
  steps[84] = function( -- 'T'
    from, to, hits, _, present, tick_ms, count_denied, rate, window, burst, code, unit
  )
    local full, cost, mark, per_window =
      burst * unit, hits * unit, code / 16, code > 6 and rate * unit
    -- Hits are allowed if at least this level is left: a peek is refused in debt, and a refund is
    -- always allowed.
    local empty = -full * (count_denied - count_denied % 2) / 2
    local least = hits < 0 and empty or 0
    -- A life may be one tick too long, which avoids rounding.
    local unit_ms, soonest =
      per_window and tick_ms * window / per_window or tick_ms / rate, soonest + tick_ms
    local states, firsts, kept, unpack, pack = states, firsts, kept, struct.unpack, struct.pack
    local allowed
    for index = from, to do
      local slot, text, readable = index, states[index]
      if not text or firsts and firsts[index] ~= index then
        slot, text, readable = read(index, 84) -- 'T'
        text = text or readable and pack('<ddd', 1 + mark, present, full)
      end
      allowed = nil
      if text and #text == 24 then
        local expiry, last, stored = unpack('<ddd', text)
        if (last + stored) % 1 == 0 and expiry > 0 then
          local t, level, earliest = present, full, soonest
          if expiry % 1 ~= mark then
            last, stored =
              convert(mark, expiry % 1, window * tick_ms * 1000, last, stored, floor)
            expiry = expiry - expiry % 1 + mark
          end
          -- A level out of bounds is clamped.
          if stored < empty then
            stored = empty
          end
          if last <= t then
            -- After a long gap the product is not exact, but far above the burst, and clamped.
            level = stored
              + (per_window and come_back(per_window, window, last, t) or (t - last) * rate)
          elseif last - t <= window and stored < full then
            -- The clock went back: continue at the stored tick, all waits longer by the difference.
            t, level, earliest = last, stored, soonest + (last - t) * tick_ms
          end
          if level > full then
            level = full
          end
          local after = level - cost
          if after >= least then
            allowed = true
            if after > full then
              after = full
            end
          else
            allowed = false
            after = count_denied % 2 == 1 and math.max(after, empty) or level
          end
          if after ~= level then
            local needed = earliest + (full - after) * unit_ms
            if expiry < needed then
              expiry = renew(slot, needed, expiry) + mark
            end
            states[slot] = pack('<ddd', expiry, t, after)
            if kept then
              kept[index] = after == full and 1
                or t - present + (
                  per_window
                  and math.min(math.ceil((full - after) * window / per_window), 4503599627370496)
                    + 1
                  or math.ceil((full - after) / rate)
                )
            end
          end
        end
      end
      if allowed == nil and text then
        fail(index, 84) -- 'T'
      end
    end
    return allowed
  end
end
