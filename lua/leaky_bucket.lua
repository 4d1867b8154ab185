-- leaky_bucket: the newest tick and the backlog in units; a hit adds `window` units, a tick drains `rate` of them; none is empty. The twin is
-- src/algorithm/leaky_bucket.rs. The check's own number is how many ticks the caller can be held, `longest` at most.
if steps[81] then -- 'Q'
  steps[81] = function(from, to, hits, patience, present, tick_ms, rate, window, longest, count_denied) -- 'Q'
    local room, added = longest * rate, hits * window
    local most = room + window + rate * window
    -- The longest backlog that admits the hits: what is given back always may be, and a look asks whether there is debt.
    local threshold = hits < 0 and most or room + window
    if rate == 0 then
      -- A queue that does not drain admits nothing and remembers nothing.
      added, threshold = 0, hits > 0 and -1 or most
    elseif hits > 0 then
      threshold = hits <= floor(room / window) + 1 and math.min(room - (hits - 1) * window, patience * rate) or -1
    end
    -- A life may be a tick too long, which saves the rounding.
    local unit_ms, soonest = tick_ms / rate, soonest + tick_ms
    local states, firsts, kept, unpack, pack = states, firsts, kept, struct.unpack, struct.pack
    local allowed
    for place = from, to do
      local own, text, readable = place, states[place]
      if not text or firsts and firsts[place] ~= place then
        own, text, readable = read(place, 81) -- 'Q'
        text = text or readable and pack('<ddd', 1, present, 0)
      end
      allowed = nil
      if text and #text == 24 then
        local expiry, last, stored = unpack('<ddd', text)
        if (last + stored) % 1 == 0 and stored >= 0 and expiry > 0 then
          local t, backlog, earliest = present, 0, soonest
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
            after = count_denied == 1 and math.min(after, most) or backlog
          end
          if after ~= backlog then
            local needed = earliest + after * unit_ms
            if expiry < needed then
              expiry = renew(own, needed, expiry)
            end
            states[own] = pack('<ddd', expiry, t, after)
            if kept then
              kept[place] = after > 0 and math.ceil(after / rate) + t - present or 1
            end
          end
        end
      end
      if allowed == nil and text then
        fail(place, 81) -- 'Q'
      end
    end
    return allowed
  end
end
