-- token_bucket: the newest tick and the level in units; a hit costs `window` units, a tick brings `rate` of them; none is
-- full, and a bucket without a rate holds nothing. The twin is src/algorithm/token_bucket.rs.
if steps[84] then -- 'T'
  steps[84] = function(from, to, hits, _, present, tick_ms, rate, window, burst, count_denied) -- 'T'
    local full, cost = burst * window, hits * window
    -- Hits are allowed where this much is left behind them: a look asks whether there is debt, and what is given back always may be.
    local empty, least = -full, hits < 0 and -full or 0
    -- A life may be a tick too long, which saves the rounding.
    local unit_ms, soonest = tick_ms / rate, soonest + tick_ms
    local states, firsts, kept, unpack, pack = states, firsts, kept, struct.unpack, struct.pack
    local allowed
    for place = from, to do
      local own, text, readable = place, states[place]
      if not text or firsts and firsts[place] ~= place then
        own, text, readable = read(place, 84) -- 'T'
        text = text or readable and pack('<ddd', 1, present, full)
      end
      allowed = nil
      if text and #text == 24 then
        local expiry, last, stored = unpack('<ddd', text)
        if (last + stored) % 1 == 0 and expiry > 0 then
          local t, level, earliest = present, full, soonest
          -- What is too much or too little is cut to what there can be.
          if stored < empty then
            stored = empty
          end
          if last <= t then
            -- However long the gap: where the product is not exact any more, it is far too much.
            level = stored + (t - last) * rate
          elseif last - t <= window then
            -- The clock went back: on from where it was, and all waits are longer by as much.
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
            after = count_denied == 1 and math.max(after, empty) or level
          end
          if after ~= level then
            local needed = earliest + (full - after) * unit_ms
            if expiry < needed then
              expiry = renew(own, needed, expiry)
            end
            states[own] = pack('<ddd', expiry, t, after)
            if kept then
              kept[place] = after < full and math.ceil((full - after) / rate) + t - present or 1
            end
          end
        end
      end
      if allowed == nil and text then
        fail(place, 84) -- 'T'
      end
    end
    return allowed
  end
end
