-- reservations: checks of limits whose hits can be reserved and settled later. The twin is
-- src/core/algorithm/reservations.rs, which also describes them.
--
-- State, in addition to the state of the counter: a sorted set with the ids of a counter, and a
-- hash with a packed value for each. KEYS ends with these two keys for each counter, each pair
-- once. The score of an id is the end of its life in microseconds, minus 2^52 for a kept hold,
-- minus 2^53 for a settled id, and plus 2^52 for one of a group. A value has the kind, 1 if the
-- hold stays charged, when it was made, the end of its life, and for each place of the counter that
-- has hits of it the place and the hits. A group is a hold whose value ends with the number of
-- holds for which it stands. The field "p" has the peaks of a token bucket: the units of a hit,
-- then since when, how high, and for how many parts of holds, the oldest first.
--
-- ARGV[10]: one row per check, packed: the index of the check; the number of the pair of keys, from
-- 1 on; 0 for plain hits, 1 to reserve, 2 to settle, 3 to leave a hold the hits; 1 if expired holds
-- stay charged, plus 2 if the reply needs the hits of open holds; ttl; the most hits of a hold; the
-- number of the current window of a fixed window; the largest charge of the limit; the requested
-- hits; the id.
--
-- The reply has ten numbers for each row: the outcome, by its number in Rust; the hits of expired
-- holds that are used for good since this step; the hits of the step on the counter; the hits that
-- a settlement gave back; the hits that the id holds, or that were released; the milliseconds since
-- the hold was made; the number of expired holds; the hits of open holds; those that the counter
-- counts for good since this step; the microseconds until holds expire that make room for refused
-- hits, or 0. They are zeros if the check failed.
--
-- A step writes its set and its hash at once, after everything that may fail was read. What it adds
-- is written before anything is removed, because a key without members could not be written while
-- its slot is being migrated.

-- The keys of the checks alone, if there are others.
local checked
-- By the index of a check: the hits that usage records, in addition the hits of expired holds, and
-- whether the check has newly reserved some. effects() returns this part of the reply.
local counted, kept_hits, reserved, effects
if steps[82] then -- 'R'
  local unpack, pcall = struct.unpack, redis.pcall
  local ROW_SIZE, EFFECT_SIZE = 62, 10 * 8

  local entries, at_index, pairs_of_keys, results = ARGV[10], {}, 0, {}
  for at = 1, #entries, ROW_SIZE do
    local index, pair = unpack('<HH', entries, at)
    at_index[index], pairs_of_keys = at, math.max(pairs_of_keys, pair)
  end
  counted, kept_hits, reserved = {}, {}, {}
  local keys_before = #KEYS - 2 * pairs_of_keys
  checked = { list(KEYS, 1, keys_before) }

  -- Returns the function that decides a check with an id, or with holds. Most calls need none, and
  -- creating its parts would be much of their cost. Parts that few checks need are created by them.
  -- A variable that a part shares costs more than its own constants: kinds are numbers, 0 for an
  -- open hold, 1 for a kept one, 2 for a settled id, and 3 for one of a group.
  local function define()
    local function score(kind, life)
      return string.format('%.0f', (kind == 3 and 1 or -kind) * 4503599627370496 + life)
    end

    -- Sends a command with any number of arguments: Lua passes at most some thousand.
    local function send(command, key, arguments)
      local size = #arguments
      if size > 4000 then
        for from = 1, size, 4000 do
          call(command, key, list(arguments, from, math.min(from + 3999, size)))
        end
      elseif size > 0 then
        call(command, key, list(arguments))
      end
    end

    -- The values of names in a hash, false for none; or a table with `err`.
    local function values_of(key, names)
      local size, all = #names, {}
      if size <= 4000 then
        return pcall('HMGET', key, list(names))
      end
      for from = 1, size, 4000 do
        local values = pcall('HMGET', key, list(names, from, math.min(from + 3999, size)))
        if values.err then
          return values
        end
        for position = 1, #values do
          all[#all + 1] = values[position]
        end
      end
      return all
    end

    local function hold_of(value)
      local size = #value
      if size == 34 then
        local kind, keeps, since, life, place, hits = unpack('<BBdddd', value)
        return { { place, hits }, kind = kind, keeps = keeps, since = since, life = life,
          hits = hits, members = 0 }
      end
      local kind, keeps, since, life = unpack('<BBdd', value)
      local hold = { kind = kind, keeps = keeps, since = since, life = life, hits = 0, members = 0 }
      for at = 19, size - 15, 16 do
        local place, hits = unpack('<dd', value, at)
        hold[#hold + 1], hold.hits = { place, hits }, hold.hits + hits
      end
      if (size - 18) % 16 > 0 then
        hold.members = unpack('<d', value, size - 7)
      end
      return hold
    end

    local function value_of(hold)
      local value = struct.pack('<BBdd', hold.kind, hold.keeps, hold.since, hold.life)
      for position = 1, #hold do
        value = value .. struct.pack('<dd', hold[position][1], hold[position][2])
      end
      return hold.members > 0 and value .. struct.pack('<d', hold.members) or value
    end

    -- When a hold that has expired is forgotten: one ttl later if it stays charged.
    local function forgotten_at(hold)
      local keeps = hold.keeps == 1 and (hold.kind == 0 or hold.kind == 3)
      return hold.life + (keeps and hold.life - hold.since or 0)
    end

    -- Writes the changes of a step on the ids of a counter, and the peaks of a bucket if they
    -- changed. The keys live as long as the ids, and as long as the counter while it is owed hits.
    local function write(check, added, removed)
      local scores, fields, gone, life, is_owed, max = {}, {}, {}, 60000000, false, math.max
      local order, values, peaks = check.order, check.values, check.peaks
      for id, hold in pairs(added) do
        local forgotten = forgotten_at(hold)
        scores[#scores + 1] = score(hold.kind, hold.kind == 3 and forgotten or hold.life)
        scores[#scores + 1] = id
        fields[#fields + 1], fields[#fields + 2] = id, value_of(hold)
        life = max(life, forgotten - now)
        is_owed = is_owed or hold.kind == 0 and hold.keeps == 0
      end
      for id in pairs(removed) do
        if not added[id] then
          gone[#gone + 1] = id
        end
      end
      if peaks and peaks.has_changed then
        local parts, pack = { struct.pack('<d', peaks.unit) }, struct.pack
        for position = 1, #peaks do
          parts[position + 1] = pack('<ddd', list(peaks[position]))
        end
        if peaks[1] or scores[1] then
          fields[#fields + 1], fields[#fields + 2] = 'p', table.concat(parts)
        else
          gone[#gone + 1] = 'p'
        end
        peaks.has_changed = false
      end
      send('ZADD', order, scores)
      send('HSET', values, fields)
      send('ZREM', order, gone)
      send('HDEL', values, gone)
      if not (scores[1] or gone[1]) then
        return
      end
      -- Setting an expiry costs more than the write that it belongs to: it is set ahead. The hash
      -- may outlive the set, whose last id has gone, by its peaks.
      local needed, left = life / 1000 + 5000, call('PTTL', order)
      if is_owed then
        local state, counter_life = states[check.slot], check.keep * check.tick_ms
        if check.code == 84 then -- 'T'
          counter_life = state and #state == 24 and unpack('<d', state) - now_ms or 0
        end
        needed = max(needed, counter_life + 5000)
      end
      -- Without open holds the ids of a counter go long before it does.
      local is_long = left > 8 * needed and not is_owed
      if left < needed
        or is_long and call('ZCOUNT', order, '0', '4503599627370495') == 0
      then
        local ahead = string.format('%.0f', kept and LONGEST or math.min(2 * needed, LONGEST))
        call('PEXPIRE', order, ahead)
        call('PEXPIRE', values, ahead)
      end
    end

    -- Returns the parts that only token buckets need.
    local function define_bucket()
      -- The level of a token bucket: the tick, the expiry of the state, and the level.
      local function bucket_at(check)
        local state, present, unit, full = states[check.slot], check.present, check.e,
          check.c * check.e
        if not state or #state ~= 24 then
          return present, 0, full
        end
        local mark, rate, denied = check.d / 16, check.a, check.count_denied
        local per_window = check.d > 6 and rate * unit
        local expiry, last, stored = unpack('<ddd', state)
        if expiry % 1 ~= mark then
          last, stored =
            convert(mark, expiry % 1, check.b * check.tick_ms * 1000, last, stored, floor)
          expiry = expiry - expiry % 1 + mark
        end
        stored = math.max(stored, -full * (denied - denied % 2) / 2)
        if last <= present then
          local refilled = per_window and come_back(per_window, check.b, last, present)
            or (present - last) * rate
          return present, expiry, math.min(full, stored + refilled)
        elseif last - present <= check.b and stored < full then
          return last, expiry, stored
        end
        return present, expiry, full
      end

      -- The peaks of a bucket: the highest level since an instant, and how many parts of holds
      -- begin there. Notes the level before hits are taken from it.
      local function peaks_of(check, value)
        local peaks, unit, stored = { unit = check.e, has_changed = false }, check.e, nil
        if not value or #value == 8 then
          return peaks
        end
        stored = unpack('<d', value)
        for at = 9, #value, 24 do
          local since, level, parts = unpack('<ddd', value, at)
          peaks[#peaks + 1] = { since, level, parts }
        end
        if stored ~= unit then
          for position = 1, #peaks do
            peaks[position][2] = math.ceil(peaks[position][2] / stored) * unit
          end
          peaks.has_changed = true
        end
        local higher, _, _, level = nil, bucket_at(check)
        while peaks[1] and peaks[#peaks][2] <= level do
          local peak = table.remove(peaks)
          higher = { peak[1], level, peak[3] + (higher and higher[3] or 0) }
        end
        if higher then
          peaks[#peaks + 1], peaks.has_changed = higher, true
        end
        return peaks
      end

      -- Begins a part of a hold whose hits were taken from a bucket. Returns its place.
      local function begin(check)
        local peaks, _, _, level = check.peaks, bucket_at(check)
        local last = peaks[#peaks]
        peaks.has_changed = true
        if not last or now > last[1] and #peaks < 1000 then
          peaks[#peaks + 1] = { now, level, 1 }
          return now
        end
        last[3] = last[3] + 1
        if now > last[1] then
          return now
        end
        last[2] = level
        return last[1]
      end

      -- Gives back the hits of parts, whose places ascend. Returns the state, nil if it did not
      -- change, and the hits.
      local function refund_at(check, parts)
        local min, max, peaks, unit, full =
          math.min, math.max, check.peaks, check.e, check.c * check.e
        local denied, t, expiry, level = check.count_denied, bucket_at(check)
        local most = check.c + (denied - denied % 2) / 2 * check.c
        local next_peak, given = 1, 0
        for position = 1, #parts do
          local place, units = parts[position][1], min(parts[position][2], most) * unit
          while peaks[next_peak] and peaks[next_peak][1] <= place do
            peaks[next_peak][2] = peaks[next_peak][2] + given
            next_peak = next_peak + 1
          end
          local own = peaks[next_peak - 1]
          units = max(0, min(units, full - (own and own[2] or level + given)))
          if own then
            own[2] = own[2] + units
          end
          given = given + units
        end
        for position = next_peak, #peaks do
          peaks[position][2] = peaks[position][2] + given
        end
        for position = #peaks - 1, 1, -1 do
          peaks[position][2] = max(peaks[position][2], peaks[position + 1][2])
        end
        peaks.has_changed = true
        if given == 0 then
          return nil, 0
        end
        return struct.pack('<ddd', expiry, t, level + given), floor(given / unit)
      end

      -- Ends parts of holds, whose places ascend. Peaks without any go.
      local function end_parts(peaks, parts)
        local after, count = 1, 0
        for position = 1, #parts do
          while peaks[after] and peaks[after][1] <= parts[position][1] do
            after = after + 1
          end
          local own = peaks[after - 1]
          if own then
            own[3] = math.max(0, own[3] - 1)
          end
        end
        for index = 1, #peaks do
          if peaks[index][3] > 0 then
            count = count + 1
            peaks[count] = peaks[index]
          end
        end
        for index = #peaks, count + 1, -1 do
          peaks[index] = nil
        end
        peaks.has_changed = true
      end
      return { bucket_at = bucket_at, peaks_of = peaks_of, begin = begin, refund = refund_at,
        end_parts = end_parts }
    end

    -- The windows of a counter: the expiry of the state, the number of the current one, its hits,
    -- and the hits of the previous one.
    local function windows_at(check, state)
      local min, limit, window = math.min, check.a, check.b
      local expiry, stored, latest, before = unpack('<dddd', state)
      local most, number =
        (1 + floor(check.count_denied / 2)) * limit, floor(check.present / window)
      latest, before = min(latest, most), min(before, most)
      if stored == number or stored == number + 1 and latest + before > 0 then
        return expiry, stored, latest, before
      end
      return expiry, number, 0, stored + 1 == number and latest or 0
    end

    local function by_place(parts)
      if parts[2] then
        table.sort(parts, function(left, right)
          return left[1] < right[1]
        end)
      end
      return parts
    end

    -- Gives back the hits of parts at the places where the counter has counted them. Returns how
    -- many it has given back.
    local bucket
    local function refund(check, parts)
      local code, slot, index, after, returned = check.code, check.slot, check.index, nil, 0
      local state = states[slot]
      if not state or not parts[1] then
        return 0
      elseif code == 76 or code == 66 then -- 'L', 'B'
        local scale = code == 76 and 1 or check.c -- 'L'
        after, returned =
          log_refund_at(state, KEYS[slot], by_place(parts), scale, check.present, check.b)
      elseif code == 84 then -- 'T'
        if #state == 24 then
          after, returned = bucket.refund(check, by_place(parts))
        end
      else
        local latest, before, number, expiry, current, previous = 0, 0, check.window, nil, nil, nil
        if code == 67 and #state == 32 then -- 'C'
          expiry, number, current, previous = windows_at(check, state)
        elseif code == 70 and #state < 20 and string.match(state, '^%d+$') then -- 'F'
          current, previous = math.min(tonumber(state), 9007199254740992), 0
        else
          return 0
        end
        for position = 1, #parts do
          local place, hits = parts[position][1], parts[position][2]
          latest = latest + (place == number and hits or 0)
          before = before + (place == number - 1 and hits or 0)
        end
        latest, before = math.min(latest, current), math.min(before, previous)
        returned = latest + before
        if returned > 0 then
          after = expiry
              and struct.pack('<dddd', expiry, number, current - latest, previous - before)
            or string.format('%.0f', current - latest)
        end
      end
      if after then
        states[slot] = after
        if code == 84 or code == 67 then -- 'T', 'C'
          -- The row is the state that the next step finds.
          rows[index] = after
        else
          lives[slot] = math.max(lives[slot] or 0, soonest + check.keep * check.tick_ms)
        end
        if kept then
          kept[index] = kept[index] or 1
        end
      end
      return returned
    end

    -- Returns a function that adds the hits of parts, and returns how many of all added ones the
    -- counter counts: the difference that they make to its use.
    local function counting(check)
      local code, state, min, max = check.code, states[check.slot], math.min, math.max
      if code == 84 then -- 'T'
        local peaks, unit, full, given = check.peaks, check.e, check.c * check.e, 0
        local denied, _, _, level = check.count_denied, bucket.bucket_at(check)
        local most = check.c + (denied - denied % 2) / 2 * check.c
        return function(parts)
          for position = 1, #parts do
            local low, high, place = 1, #peaks + 1, parts[position][1]
            while low < high do
              local middle = floor((low + high) / 2)
              if peaks[middle][1] <= place then
                low = middle + 1
              else
                high = middle
              end
            end
            local highest = max(level, low > 1 and peaks[low - 1][2] or level) + given
            given = given + max(0, min(min(parts[position][2], most) * unit, full - highest))
          end
          return math.ceil((full - level) / unit) - math.ceil((full - level - given) / unit)
        end
      end
      local first, last, hits, before, most, previous, passed = 1, 0, 0, 0, math.huge, 0, 0
      if code == 70 then -- 'F'
        first, last = check.window, check.window
      elseif state and code == 67 then -- 'C'
        local _, number
        _, number, most, previous = windows_at(check, state)
        first, last, passed = number, number, max(0, check.present - number * check.b)
      elseif state and code ~= 67 then -- 'C'
        local scale, window = code == 76 and 1 or check.c, check.b -- 'L'
        local newest, span = state.newest, math.ceil(window / scale) * scale
        if code == 76 then -- 'L'
          newest, span = state.tip, window
        end
        if newest * scale - check.present <= span then
          first, last = floor((max(check.present, newest * scale) - window + 1) / scale), math.huge
        end
      end
      return function(parts)
        for position = 1, #parts do
          local place, own = parts[position][1], parts[position][2]
          if first <= place and place <= last then
            hits = hits + own
          elseif place == first - 1 then
            before = before + own
          end
        end
        if previous == 0 then
          return min(hits, most)
        end
        local rest = max(0, previous - before)
        return min(hits, most) + previous - rest
          - product(previous, passed, check.b) + product(rest, passed, check.b)
      end
    end

    -- Returns the parts that only refused hits and thresholds need.
    local function define_rooms()
      -- The hits that count in a state or in a row, rounded up.
      local function used_of(check)
        local code, state, window = check.code, states[check.slot], check.b
        if code ~= 84 and code ~= 67 then -- 'T', 'C'
          return (unpack('<d', rows[check.index]))
        elseif not state then
          return 0
        elseif code == 67 then -- 'C'
          local _, number, current, previous = windows_at(check, state)
          local passed = math.max(0, check.present - number * window)
          return current + previous - product(previous, passed, window)
        end
        local _, _, level = bucket.bucket_at(check)
        return math.ceil((check.c * check.e - level) / check.e)
      end

      -- The hits of open holds that the counter counts, and the time until so many of those that do
      -- not stay charged have expired that `asked` hits have room, or 0.
      return function(check, asked, is_refused, is_shown)
        local room, lacking, open, add = 0, 0, {}, nil
        local capacity = check.code == 84 and check.c or check.a -- 'T'
        if is_refused and asked <= capacity then
          lacking = used_of(check) + math.max(0, asked) - capacity
        end
        if lacking <= 0 and not is_shown then
          return 0, 0
        end
        local ids = call('ZRANGEBYSCORE', check.order, string.format('(%.0f', now),
          '4503599627370495')
        local stored = ids[1] and values_of(check.values, ids) or {}
        for position = 1, #stored do
          local hold = stored[position] and hold_of(stored[position]) or { hits = 0 }
          for part = 1, is_shown and #hold or 0 do
            open[#open + 1] = hold[part]
          end
          if lacking > 0 and room == 0 and hold.keeps == 0 then
            add = add or counting(check)
            room = add(hold) >= lacking and hold.life - now or 0
          end
        end
        return open[1] and counting(check)(by_place(open)) or 0, room
      end
    end

    -- Returns the parts that only expired holds, crowded keys and many settled ids need.
    local function define_many()
      -- The first ids of a kind whose lives end up to `last`.
      local function ending(order, kind, last, most)
        return pcall('ZRANGEBYSCORE', order, score(kind, 0), score(kind, last), 'LIMIT', '0', most)
      end

      local function first(order, kind)
        return ending(order, kind, 4503599627370495, '1')[1]
      end

      -- Forgets ids of a kind whose time is over.
      local function forget(order, kind, removed)
        local forgotten = ending(order, kind, now, '100')
        for position = 1, #forgotten do
          removed[forgotten[position]] = true
        end
      end

      local function forget_all(order, removed)
        for kind = 1, 3 do
          forget(order, kind, removed)
        end
      end

      -- Ends the holds that have expired. Returns the changes, how many there were, the hits that
      -- stay charged, and those of them that the counter counts: hits of an earlier fixed window
      -- count no more.
      local function end_expired(check, expired, stored, before)
        local added, removed, released, staying, ended, count, charged = {}, {}, {}, {}, {}, 0, 0
        for position = 1, #expired do
          local name, value = expired[position], stored[before + position]
          local hold = value and hold_of(value)
          removed[name] = true
          count = count + math.max(1, hold and hold.members or 0)
          for part = 1, hold and #hold or 0 do
            ended[#ended + 1] = hold[part]
            local all = hold.keeps == 1 and staying or released
            all[#all + 1] = hold[part]
          end
          if hold and hold.keeps == 1 then
            charged = charged + hold.hits
            hold.kind, hold.life = 1, forgotten_at(hold)
            added[name] = hold.life > now and hold.members == 0 and hold or nil
          end
        end
        refund(check, released)
        local settled = staying[1] and counting(check)(by_place(staying)) or 0
        if check.peaks and check.peaks[1] then
          bucket.end_parts(check.peaks, by_place(ended))
        end
        forget_all(check.order, removed)
        write(check, added, removed)
        return added, removed, count, charged, settled
      end

      -- Adds hits of a hold to its group, or takes them off, with so many holds more or less.
      local function regroup(check, added, removed, hold, more, less, members)
        local name = struct.pack('<d', hold.life) .. (hold.keeps == 1 and 'groupkep' or 'grouprel')
        local value = added[name] or values_of(check.values, { name })[1]
        local group = type(value) == 'table' and value or value and hold_of(value)
          or { kind = 0, keeps = hold.keeps, since = hold.since, life = hold.life, members = 0 }
        local function change(parts, sign)
          for position = 1, #parts do
            local own
            for at = 1, #group do
              own = group[at][1] == parts[position][1] and group[at] or own
            end
            if not own and sign > 0 then
              own = { parts[position][1], 0 }
              group[#group + 1] = own
            end
            if own then
              own[2] = math.max(0, own[2] + sign * parts[position][2])
            end
          end
        end
        change(more, 1)
        change(less, -1)
        for at = #group, 1, -1 do
          if group[at][2] == 0 then
            table.remove(group, at)
          end
        end
        group.members = math.max(0, group.members + members)
        if group.members > 0 then
          added[name] = group
        else
          added[name], removed[name] = nil, true
        end
      end

      -- Whether a key is crowded, and whether it may have one more hold.
      local function room_of(order)
        local held = call('ZCOUNT', order, '0', '4503599627370495')
        local number = call('ZCOUNT', order, score(1, 0), '+inf')
        if number >= 10000 then
          -- All its holds, but for groups.
          number = number - call('ZCOUNT', order, score(3, 0), score(3, now))
          local names = call('ZRANGEBYSCORE', order, '0', '4503599627370495')
          for position = 1, #names do
            if string.find(names[position], '^........group[kr]e[pl]$') then
              number = number - 1
            end
          end
        end
        return held >= 256, number < 10000
      end
      return { first = first, forget = forget, forget_all = forget_all,
        end_expired = end_expired, regroup = regroup, room_of = room_of }
    end

    -- Decides the check at `index`, whose row is at `at`; `expired` has the ids of expired holds.
    return function(step, code, at, index, expired, hits, parameter, present, tick_ms, count_denied,
      a, b, c, d, e)
      local min, max, many = math.min, math.max, nil
      local _, pair, purpose, flags, ttl, most, window, largest, asked =
        unpack('<HHBBddddd', entries, at)
      local id, slot = string.sub(entries, at + 46, at + 61), firsts and firsts[index] or index
      local order, values = KEYS[keys_before + 2 * pair - 1], KEYS[keys_before + 2 * pair]
      local check = {
        code = code, index = index, slot = slot, order = order, values = values, window = window,
        present = present, tick_ms = tick_ms, count_denied = count_denied,
        a = a, b = b, c = c, d = d, e = e,
        -- The ticks for which the counter is kept.
        keep = code == 70 and parameter or code == 67 and 2 * b -- 'F', 'C'
          or code == 76 and b or e, -- 'L'
      }
      local stored, names = expired, { id, code == 84 and 'p' or nil } -- 'T'
      local before = #names
      if not expired.err then
        for position = 1, #expired do
          names[before + position] = expired[position]
        end
        stored = values_of(values, names)
      end
      if stored.err then
        return fail(index, code, stored.err)
      end
      local row = rows[index]
      if not states[slot] then
        local _, _, readable = read(index, code)
        if not readable then
          return nil
        end
        -- Refused hits have one already.
        rows[index] = row or rows[index]
      end
      if code == 84 then -- 'T'
        bucket = bucket or define_bucket()
        check.peaks = bucket.peaks_of(check, stored[2])
      end
      local peaks = check.peaks or {}

      local added, removed, ended, charged, settled = {}, {}, 0, 0, 0
      if expired[1] then
        many = define_many()
        added, removed, ended, charged, settled =
          many.end_expired(check, expired, stored, before)
      end
      local hold = added[id]
      if purpose > 0 and not hold and not removed[id] and stored[1] then
        hold = hold_of(stored[1])
      end
      local kind = hold and hold.kind
      local was_settled = kind == 2
      if hold and kind ~= 0 and (kind == 3 and forgotten_at(hold) or hold.life) <= now then
        hold = nil
      end
      local is_open = hold and (kind == 0 or kind == 3 and hold.life > now)
      local is_late = hold and kind ~= 2 and not is_open

      -- The hits of the step, how many of them the reply names, and the hits that the step follows.
      local outcome, stepped, returned, wanted, missing = 0, 0, 0, 0, 0
      local has_room, is_crowded, taken, parts = true, false, 0, {}
      added, removed = {}, {}
      if purpose == 0 or purpose == 1 and not hold and asked <= 0 then
        taken = purpose == 0 and hits or 0
        hits, purpose = taken, 0
      elseif purpose == 1 then
        wanted = min(max(asked, 0), most)
        missing = kind == 2 and hold and 0 or max(0, wanted - (hold and hold.hits or 0))
        if hold then
          has_room = missing == 0 or #hold < 8
        elseif call('HLEN', values) >= 256 then
          many = many or define_many()
          is_crowded, has_room = many.room_of(order)
          is_crowded = is_crowded and code ~= 76 and code ~= 84 -- 'L', 'T'
          if is_crowded then
            many.forget(order, 3, removed)
          end
          local spare = not has_room and many.first(order, 1)
          if spare then
            removed[spare], has_room = true, true
          end
        end
        stepped = has_room and missing or 0
        taken = stepped
      elseif purpose == 3 then
        outcome = 10
        if hold and kind ~= 2 then
          local released, since, gone = max(0, hold.hits - max(asked, 0)), hold.since, {}
          local rest = released
          for position = #hold, 1, -1 do
            local less = min(hold[position][2], rest)
            rest, hold[position][2] = rest - less, hold[position][2] - less
            if less > 0 then
              parts[#parts + 1] = { hold[position][1], less }
            end
            if hold[position][2] == 0 then
              gone[#gone + 1] = table.remove(hold, position)
            end
          end
          if hold[1] then
            added[id] = hold
          else
            removed[id] = true
          end
          if kind == 3 then
            many = many or define_many()
            many.regroup(check, added, removed, hold, {}, parts, hold[1] and 0 or -1)
          end
          if is_late then
            charged = charged - released
          end
          if is_late and code == 84 and released > 0 then -- 'T'
            -- Its peaks have ended: as if it were made now.
            parts = { { bucket.begin(check), released } }
            gone = parts
          end
          returned = refund(check, parts)
          if peaks[1] then
            bucket.end_parts(peaks, by_place(gone))
          end
          hold = { hits = released, since = since }
        else
          hold = nil
        end
      elseif kind == 2 and hold then
        outcome, hold = 9, nil
      else
        local cost = max(asked, 0)
        local rest = cost
        outcome = not hold and 8 or is_open and 7 or 11
        local costs = {}
        for position = 1, hold and #hold or 0 do
          local place, own = hold[position][1], min(hold[position][2], rest)
          rest = rest - own
          costs[position] = { place, own }
          if own < hold[position][2] then
            parts[#parts + 1] = { place, hold[position][2] - own }
          end
        end
        if is_open then
          if kind == 3 then
            many = many or define_many()
            many.regroup(check, added, removed, hold, {}, hold, -1)
          end
          returned = refund(check, parts)
          settled = settled + (cost > 0 and counting(check)(costs) or 0)
          if peaks[1] then
            bucket.end_parts(peaks, by_place({ list(hold) }))
          end
        end
        added[id] = { kind = 2, keeps = 0, since = now, life = now + 60000000, members = 0 }
        local ids = was_settled and 0 or call('HLEN', values)
        if ids >= 32 then
          many = many or define_many()
          many.forget_all(order, removed)
          if ids >= 256 and call('ZCOUNT', order, '-inf', score(1, -1)) >= 256 then
            removed[many.first(order, 2)] = true
          end
        end
        stepped, settled, taken = rest, settled + rest, rest
      end

      local allowed = step(index, index, min(taken, largest), parameter, present, tick_ms,
        purpose == 1 and count_denied - count_denied % 2 or count_denied, a, b, c, d, e)
      if allowed == nil then
        return nil
      elseif purpose == 1 and not has_room then
        outcome = 4
      elseif purpose == 1 and kind == 2 and hold then
        outcome = 6
      elseif purpose == 1 and hold and missing == 0 then
        outcome = 5
      elseif purpose == 1 and not allowed then
        outcome = 3
      elseif purpose == 1 then
        outcome = wanted < asked and 2 or 1
        local is_new, place = not hold, window
        hold = hold or { kind = 0, keeps = flags % 2, since = now, life = now + ttl, hits = 0,
          members = 0 }
        if is_new and is_crowded then
          -- Rounded up to the end of its group.
          local width = max(1, floor(ttl / 256))
          hold.kind, hold.life = 3, math.ceil(hold.life / width) * width
        end
        if is_late then
          -- No settlement and no expiry uses them.
          settled, charged = settled + stepped, charged + stepped
        end
        if code == 84 then -- 'T'
          -- Only an undo, which begins a peak, could end the peak of an expired hold.
          place = is_late and now or bucket.begin(check)
        elseif code == 67 then -- 'C'
          _, place = unpack('<dd', states[slot])
        elseif code ~= 70 then -- 'F'
          place = states[slot].tip
        end
        local last = hold[#hold]
        if last and last[1] == place then
          last[2] = last[2] + stepped
          if peaks[1] and not is_late then
            bucket.end_parts(peaks, { last })
          end
        else
          hold[#hold + 1] = { place, stepped }
        end
        hold.hits, added[id] = hold.hits + stepped, hold
        if hold.kind == 3 then
          many = many or define_many()
          many.regroup(check, added, removed, hold, { { place, stepped } }, {}, is_new and 1 or 0)
        end
      end
      if check.peaks or next(added) or next(removed) then
        write(check, added, removed)
      end
      local open, room = 0, 0
      if not allowed or flags > 1 then
        open, room =
          define_rooms()(check, purpose == 0 and hits or stepped, not allowed, flags > 1)
      end
      local used = purpose == 0 and hits or (outcome == 3 or outcome == 11) and stepped
        or (outcome == 7 or outcome == 8) and max(asked, 0) or 0
      charged = max(-9007199254740992, min(charged, 9007199254740992))
      counted[index], kept_hits[index] = used, charged
      reserved[index] = outcome == 1 or outcome == 2
      local held = purpose > 0 and hold and hold.hits or 0
      local age = held > 0 and floor(max(0, now - hold.since) / 1000) or 0
      results[index] = struct.pack('<dddddddddd', outcome, charged, stepped, returned, held, age,
        ended, open, min(settled, 9007199254740992), room)
      return outcome > 6 or allowed
    end
  end

  local decide, present
  for code, step in pairs(steps) do
    if type(step) == 'function' then
      steps[code] = function(from, to, hits, ...)
        local at = at_index[from]
        if at then
          local _, pair, purpose, flags = unpack('<HHBB', entries, at)
          present = present or string.format('%.0f', now)
          local order = KEYS[keys_before + 2 * pair - 1]
          local expired, own = pcall('ZRANGEBYSCORE', order, '0', present), step
          -- Hits have to know open holds if a bucket's level is noted for them, if the reply names
          -- them, or if the hits are refused.
          local looks = expired.err or expired[1] or code == 84 or flags > 1 -- 'T'
          if purpose == 0 and not looks then
            local allowed = step(from, to, hits, ...)
            own = function()
              return allowed
            end
            if allowed ~= false then
              return allowed
            end
          end
          if purpose > 0 or expired.err or expired[1] or call('EXISTS', order) == 1 then
            decide = decide or define()
            return decide(own, code, at, from, expired, hits, ...)
          end
          return own(from, to, hits, ...)
        end
        return step(from, to, hits, ...)
      end
    end
  end

  effects = function()
    if not decide then
      return string.rep('\0', #entries / ROW_SIZE * EFFECT_SIZE)
    end
    local all = {}
    for at = 1, #entries, ROW_SIZE do
      all[#all + 1] = results[unpack('<H', entries, at)] or string.rep('\0', EFFECT_SIZE)
    end
    return table.concat(all)
  end
end
