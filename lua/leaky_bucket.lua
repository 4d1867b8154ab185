-- leaky_bucket: the newest tick and the backlog in units; a hit adds `window` units, a tick drains `rate` of them; none is empty. The twin is
-- src/algorithm/leaky_bucket.rs. The check's own number is how many ticks the caller can be held, `longest` at most.
if uses[81] then
  steps[81] = function(from, to, hits, patience, tick, rate, window, longest, count_denied)
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
      local t, backlog, behind, expiry, last, stored = present, 0, 0, 1, 0, 0
      if not text or firsts and firsts[place] ~= place then
        own, text, expiry = read(place, 81)
      end
      if text then
        if #text ~= 24 then
          text = STRANGE
        end
        expiry, last, stored = unpack('<ddd', text)
      end
      allowed = nil
      if (last + stored) % 1 == 0 and stored >= 0 and expiry > 0 then
        if stored > most then
          stored = most
        end
        if last <= t then
          -- However long the gap: where the product is not exact any more, it is far too much.
          backlog = stored - (t - last) * rate
          if backlog < 0 then
            backlog = 0
          end
        elseif last - t <= window then
          -- The clock went back: on from where it was, and all waits are longer by as much.
          t, backlog, behind = last, stored, last - t
        end
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
      elseif text then
        fail(place, 81, NO_COUNTER)
      end
    end
    return allowed
  end
end
