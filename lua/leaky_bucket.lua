-- leaky_bucket: the newest tick and the backlog in units; a hit adds `window` units, a tick drains `rate` of them; none is empty. The twin is
-- src/algorithm/leaky_bucket.rs. The check's own number is how many ticks the caller can be held, `longest` at most.
if uses[81] then
  steps[81] = function(at, from, to, hits, patience)
    local tick, rate, window, longest, count_denied = limits[at - 1], limits[at], limits[at + 1], limits[at + 2], limits[at + 3]
    local room, tick_ms = longest * rate, tick / 1000
    local capacity, most = floor(room / window) + 1, room + window + rate * window
    -- The longest backlog that admits the hits; a look asks whether there is debt.
    local threshold = room + window
    if hits > 0 then
      threshold = min(room - (hits - 1) * window, patience * rate)
    end
    local present, soonest = floor(now / tick), now_ms + GRACE
    local states, firsts, kept, unpack, pack = states, firsts, kept, unpack, pack
    local allowed
    for place = from, to do
      local own, text = place, states[place]
      if firsts or not text then
        own, text = read(place, 81)
      end
      local t, backlog, behind, expiry, last, stored = present, 0, 0, 0, nil, nil
      if text then
        if #text == 24 then
          expiry, last, stored = unpack('<ddd', text)
        end
        if #text ~= 24 or last % 1 + stored % 1 ~= 0 or stored < 0 or not (expiry > 0) then
          text = fail(place, 81, NO_COUNTER)
        else
          if stored > most then
            stored = most
          end
          if last <= t then
            -- The drain ends when nothing waits, so that no gap is too long to be multiplied.
            local drained = (t - last) * rate
            if drained < stored then
              backlog = stored - drained
            end
          elseif last - t <= window then
            -- The clock went back: on from where it was, and all waits are longer by as much.
            t, backlog, behind = last, stored, last - t
          end
        end
      end
      allowed = nil
      if text ~= nil then
        local after = backlog
        if rate == 0 then
          -- A queue that does not drain admits nothing and remembers nothing.
          allowed = hits <= 0
        elseif hits < 0 then
          allowed, after = true, max(0, backlog + hits * window)
        else
          allowed = hits <= capacity and backlog <= threshold
          if allowed then
            after = backlog + hits * window
          elseif count_denied == 1 then
            after = min(backlog + hits * window, most)
          end
        end
        if after ~= backlog then
          local keep = after > 0 and ceil(after / rate) + behind or 1
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
