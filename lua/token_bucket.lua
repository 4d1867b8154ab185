-- token_bucket: the newest tick and the level in units; a hit costs `window` units, a tick brings `rate` of them; none is
-- full, and a bucket without a rate holds nothing. The twin is src/algorithm/token_bucket.rs.
if uses[84] then
  steps[84] = function(at, from, to, hits)
    local tick, rate, window, burst, count_denied = limits[at - 1], limits[at], limits[at + 1], limits[at + 2], limits[at + 3]
    local full, cost, tick_ms = burst * window, hits * window, tick / 1000
    local present, soonest, empty = floor(now / tick), now_ms + GRACE, -full
    local states, firsts, kept, unpack, pack = states, firsts, kept, unpack, pack
    local allowed
    for place = from, to do
      local own, text = place, states[place]
      if firsts or not text then
        own, text = read(place, 84)
      end
      local t, level, behind, expiry, last, stored = present, full, 0, 0, nil, nil
      if text then
        if #text == 24 then
          expiry, last, stored = unpack('<ddd', text)
        end
        if #text ~= 24 or last % 1 + stored % 1 ~= 0 or not (expiry > 0) then
          text = fail(place, 84, NO_COUNTER)
        else
          -- Any whole numbers will do: what is too much is cut to what there can be.
          if stored < empty then
            stored = empty
          elseif stored > full then
            stored = full
          end
          if last <= t then
            -- The refill ends when the bucket is full, so that no gap is too long to be multiplied.
            local refill = (t - last) * rate
            if refill < full - stored then
              level = stored + refill
            end
          elseif last - t <= window then
            -- The clock went back: on from where it was, and all waits are longer by as much.
            t, level, behind = last, stored, last - t
          end
        end
      end
      allowed = nil
      if text ~= nil then
        local after = level
        if hits > 0 then
          allowed = level >= cost
          if allowed then
            after = level - cost
          elseif count_denied == 1 then
            after = max(level - cost, empty)
          end
        else
          allowed = hits < 0 or level >= 0
          after = min(full, level - cost)
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
      end
    end
    return allowed
  end
end
