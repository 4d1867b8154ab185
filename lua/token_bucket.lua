-- token_bucket: the newest tick and the level in units; a hit costs `window` units, a tick brings `rate` of them; none is
-- full, and a bucket without a rate holds nothing. The twin is src/algorithm/token_bucket.rs.
if uses[84] then
  steps[84] = function(from, to, hits, _, tick, rate, window, burst, count_denied)
    local full, cost, tick_ms = burst * window, hits * window, tick / 1000
    local present, soonest, empty = floor(now / tick), now_ms + GRACE, -full
    -- Hits are allowed where this much is left behind them: a look asks whether there is debt, and what is given back always may be.
    local least = hits < 0 and -MOST or 0
    local states, firsts, kept, unpack, pack = states, firsts, kept, unpack, pack
    local allowed
    for place = from, to do
      local own, text = place, states[place]
      local t, level, behind, expiry, last, stored = present, full, 0, 1, 0, full
      if not text or firsts and firsts[place] ~= place then
        own, text, expiry = read(place, 84)
      end
      if text then
        if #text ~= 24 then
          text = STRANGE
        end
        expiry, last, stored = unpack('<ddd', text)
      end
      allowed = nil
      if (last + stored) % 1 == 0 and expiry > 0 then
        -- What is too much or too little is cut to what there can be.
        if stored < empty then
          stored = empty
        end
        if last <= t then
          -- However long the gap: where the product is not exact any more, it is far too much.
          level = stored + (t - last) * rate
        elseif last - t <= window then
          -- The clock went back: on from where it was, and all waits are longer by as much.
          t, level, behind = last, stored, last - t
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
          after = count_denied == 1 and max(after, empty) or level
        end
        if after ~= level then
          local keep = 1
          if after < full then
            -- Rounded up without a call.
            keep = (full - after) / rate
            keep = keep + -keep % 1 + behind
          end
          local needed = soonest + keep * tick_ms
          if expiry < needed then
            expiry = renew(own, needed)
          end
          states[own] = pack('<ddd', expiry, t, after)
          if kept then
            kept[place] = keep
          end
        end
      elseif text then
        fail(place, 84, NO_COUNTER)
      end
    end
    return allowed
  end
end
