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
-- 1 on; 0 for plain hits, 1 to reserve, 2 to settle, 3 to give back; 1 if expired holds stay
-- charged, plus 2 if the reply needs the hits of open holds; ttl; the most hits of a hold; the
-- number of the current window of a fixed window; the largest charge of the limit; the requested
-- hits; the id.
--
-- The reply has nine numbers for each row: the outcome, by its number in Rust; the hits of the step
-- on the counter; the hits that a settlement gave back; the hits that the id holds, or that were
-- released; the milliseconds since the hold was made; the number of expired holds; the hits of open
-- holds; those that the counter counts for good since this step; the microseconds
-- until holds expire that make room for refused hits, or
-- 0. They are zeros if the check failed.
--
-- A step writes its set and its hash at once, after everything that may fail was read. What it adds
-- is written before anything is removed, because a key without members could not be written while
-- its slot is being migrated.

-- The keys of the checks alone, if there are others.
local checked
-- By the index of a check: the hits that usage records, and whether the check has newly reserved
-- some. effects() returns this part of the reply.
local counted, reserved, effects
if steps[82] then -- 'R'
  local unpack, pcall = struct.unpack, redis.pcall
  local ROW_SIZE, EFFECT_SIZE = 62, 9 * 8

  local entries, at_index, pairs_of_keys, results = ARGV[10], {}, 0, {}
  for at = 1, #entries, ROW_SIZE do
    local index, pair = unpack('<HH', entries, at)
    at_index[index], pairs_of_keys = at, math.max(pairs_of_keys, pair)
  end
  counted, reserved = {}, {}
  local keys_before = #KEYS - 2 * pairs_of_keys
  checked = { list(KEYS, 1, keys_before) }

  -- Returns the function that decides a check with an id, or with holds. Most calls need none, and
  -- creating its parts would be much of their cost.
  local function define()
    local pack, text, min, max = struct.pack, string.format, math.min, math.max
    local ROW, ID_SIZE, EFFECT, HEAD, PART = '<HHBBddddd', 16, '<ddddddddd', '<BBdd', '<dd'
    local HELD, KEPT, SETTLED, GROUPED, BAND = 0, 1, 2, 3, 4503599627370496
    local MOST_IDS, MOST_SETTLED, MOST_PARTS, MOST_SINGLE, GROUPS = 10000, 256, 8, 256, 256
    local SETTLED_LIFE, MARGIN, MOST_PEAKS, PEAKS = 60000000, 5000, 1000, 'p'
    local OFFSETS = { [HELD] = 0, [KEPT] = -BAND, [SETTLED] = -2 * BAND, [GROUPED] = BAND }

    local function score(kind, life)
      return text('%.0f', OFFSETS[kind] + life)
    end

    -- The first ids of a kind whose lives end up to `last`.
    local function ending(order, kind, last, most)
      return pcall('ZRANGEBYSCORE', order, score(kind, 0), score(kind, last), 'LIMIT', '0', most)
    end

    local function first(order, kind)
      return ending(order, kind, BAND - 1, '1')[1]
    end

    -- Sends a command with any number of arguments: Lua passes at most some thousand.
    local function send(command, key, arguments)
      for from = 1, #arguments, 4000 do
        call(command, key, list(arguments, from, min(from + 3999, #arguments)))
      end
    end

    -- The values of names in a hash, false for none; or a table with `err`.
    local function values_of(key, names)
      local all = {}
      for from = 1, #names, 4000 do
        local values = pcall('HMGET', key, list(names, from, min(from + 3999, #names)))
        if values.err then
          return values
        end
        for position = 1, #values do
          all[#all + 1] = values[position]
        end
      end
      return all
    end

    local function by_place(parts)
      table.sort(parts, function(left, right)
        return left[1] < right[1]
      end)
    end

    local function hold_of(value)
      if #value == 34 then
        local kind, keeps, since, life, place, hits = unpack('<BBdddd', value)
        return { { place, hits }, kind = kind, keeps = keeps, since = since, life = life,
          hits = hits, members = 0 }
      end
      local kind, keeps, since, life = unpack(HEAD, value)
      local hold = { kind = kind, keeps = keeps, since = since, life = life, hits = 0, members = 0 }
      for at = 19, #value - 15, 16 do
        local place, hits = unpack(PART, value, at)
        hold[#hold + 1], hold.hits = { place, hits }, hold.hits + hits
      end
      if (#value - 18) % 16 > 0 then
        hold.members = unpack('<d', value, #value - 7)
      end
      return hold
    end

    -- When a hold that has expired is forgotten: one ttl later if it stays charged.
    local function forgotten_at(hold)
      local keeps = hold.keeps == 1 and (hold.kind == HELD or hold.kind == GROUPED)
      return hold.life + (keeps and hold.life - hold.since or 0)
    end

    local function value_of(hold)
      if hold.members == 0 and not hold[2] then
        local head = pack(HEAD, hold.kind, hold.keeps, hold.since, hold.life)
        return hold[1] and head .. pack(PART, hold[1][1], hold[1][2]) or head
      end
      local parts = { pack(HEAD, hold.kind, hold.keeps, hold.since, hold.life) }
      for position = 1, #hold do
        parts[position + 1] = pack(PART, list(hold[position]))
      end
      if hold.members > 0 then
        parts[#parts + 1] = pack('<d', hold.members)
      end
      return table.concat(parts)
    end

    -- Writes the changes of a step on the ids of a counter, and the peaks of a bucket if they
    -- changed. The keys live as long as the ids, and as long as the counter while it is owed hits.
    local function write(order, values, added, removed, counter_life, peaks)
      local scores, fields, gone, life, is_owed = {}, {}, {}, SETTLED_LIFE, false
      for id, hold in pairs(added) do
        local ends = hold.kind == GROUPED and forgotten_at(hold) or hold.life
        scores[#scores + 1], scores[#scores + 2] = score(hold.kind, ends), id
        fields[#fields + 1], fields[#fields + 2] = id, value_of(hold)
        life = max(life, forgotten_at(hold) - now)
        is_owed = is_owed or hold.kind == HELD and hold.keeps == 0
      end
      for id in pairs(removed) do
        if not added[id] then
          gone[#gone + 1] = id
        end
      end
      if peaks.has_changed then
        if peaks[1] then
          local numbers = { peaks.unit }
          for position = 1, #peaks do
            for number = 1, 3 do
              numbers[#numbers + 1] = peaks[position][number]
            end
          end
          fields[#fields + 1], fields[#fields + 2] =
            PEAKS, pack('<' .. string.rep('d', #numbers), list(numbers))
        else
          call('HDEL', values, PEAKS)
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
      -- Setting an expiry costs more than the write that it belongs to: it is set ahead.
      local needed, left = life / 1000 + MARGIN, call('PTTL', values)
      if is_owed then
        needed = max(needed, counter_life + MARGIN)
      end
      -- Without open holds the ids of a counter go long before it does.
      local is_long = left > 8 * needed and not is_owed
      if left < needed or is_long and call('ZCOUNT', order, '0', score(HELD, BAND - 1)) == 0 then
        local ahead = text('%.0f', kept and LONGEST or min(2 * needed, LONGEST))
        call('PEXPIRE', order, ahead)
        call('PEXPIRE', values, ahead)
      end
    end

    -- The level of a token bucket: the tick, the level, and the expiry of a state.
    local function bucket_at(state, present, tick_ms, count_denied, rate, window, burst, code, unit)
      local full, mark, per_window = burst * unit, code / 16, code > 6 and rate * unit
      local empty = -full * (count_denied - count_denied % 2) / 2
      local expiry, last, stored = unpack('<ddd', state)
      if expiry % 1 ~= mark then
        last, stored = convert(mark, expiry % 1, window * tick_ms * 1000, last, stored, floor)
        expiry = expiry - expiry % 1 + mark
      end
      stored = max(stored, empty)
      if last <= present then
        local refilled = per_window and come_back(per_window, window, last, present)
          or (present - last) * rate
        return present, expiry, min(full, stored + refilled)
      elseif last - present <= window and stored < full then
        return last, expiry, stored
      end
      return present, expiry, full
    end

    -- Defines what only token buckets need.
    local peaks_of, rise, begin, refund_units, end_parts
    local function define_peaks()
      -- The peaks of a bucket: the highest level since an instant, and how many parts of holds
      -- begin there.
      peaks_of = function(value, unit)
        local peaks = { unit = unit }
        if value then
          peaks.unit = unpack('<d', value)
          local numbers = { unpack('<' .. string.rep('d', #value / 8 - 1), value, 9) }
          for position = 1, #numbers - 3, 3 do
            peaks[#peaks + 1] = { numbers[position], numbers[position + 1], numbers[position + 2] }
          end
        end
        return peaks
      end

      -- Notes the level of a bucket before hits are taken from it.
      rise = function(peaks, level, unit)
        if peaks.unit ~= unit then
          for position = 1, #peaks do
            peaks[position][2] = math.ceil(peaks[position][2] / peaks.unit) * unit
          end
          peaks.unit, peaks.has_changed = unit, true
        end
        local higher
        while peaks[1] and peaks[#peaks][2] <= level do
          local peak = table.remove(peaks)
          higher = { peak[1], level, peak[3] + (higher and higher[3] or 0) }
        end
        if higher then
          peaks[#peaks + 1], peaks.has_changed = higher, true
        end
      end

      -- Begins a part of a hold whose hits were taken from a bucket. Returns its place.
      begin = function(peaks, level, unit)
        local last = peaks[#peaks]
        peaks.unit, peaks.has_changed = unit, true
        if not last or now > last[1] and #peaks < MOST_PEAKS then
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

      -- The units that parts give back, whose places ascend; each at most `most` hits of `unit`.
      refund_units = function(peaks, parts, most, unit, level, full)
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
        return given
      end

      -- Ends parts of holds. Peaks without any go.
      end_parts = function(peaks, parts)
        by_place(parts)
        local after = 1
        for position = 1, #parts do
          while peaks[after] and peaks[after][1] <= parts[position][1] do
            after = after + 1
          end
          local own = peaks[after - 1]
          if own then
            own[3] = max(0, own[3] - 1)
          end
        end
        local count = 0
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
    end

    -- The windows of a counter: the expiry of the state, the number of the current one, its hits,
    -- and the hits of the previous one.
    local function windows_at(state, present, count_denied, limit, window)
      local expiry, stored, latest, before = unpack('<dddd', state)
      local most, number = (1 + floor(count_denied / 2)) * limit, floor(present / window)
      latest, before = min(latest, most), min(before, most)
      if stored == number or stored == number + 1 and latest + before > 0 then
        return expiry, stored, latest, before
      end
      return expiry, number, 0, stored + 1 == number and latest or 0
    end

    -- Gives back hits at the places where a state has counted them; `parts` are sorted. Returns the
    -- new state, or nil if it did not change, and the hits.
    local function refund_at(code, slot, state, parts, peaks, window, present, tick_ms,
      count_denied, a, b, c, d, e)
      local function hits_at(place)
        local hits = 0
        for position = 1, #parts do
          hits = hits + (parts[position][1] == place and parts[position][2] or 0)
        end
        return hits
      end
      if not state then
        return nil, 0
      elseif code == 70 then -- 'F'
        local hits = hits_at(window)
        if hits == 0 or #state > 19 or not string.match(state, '^%d+$') then
          return nil, 0
        end
        local count = min(tonumber(state), 9007199254740992)
        return text('%.0f', count - min(hits, count)), min(hits, count)
      elseif code == 76 or code == 66 then -- 'L', 'B'
        local scale = code == 76 and 1 or c -- 'L'
        return log_refund_at(state, KEYS[slot], parts, scale, present, b)
      elseif code == 67 and #state == 32 then -- 'C'
        local expiry, number, current, previous = windows_at(state, present, count_denied, a, b)
        local less, older = min(hits_at(number), current), min(hits_at(number - 1), previous)
        if less + older == 0 then
          return nil, 0
        end
        return pack('<dddd', expiry, number, current - less, previous - older), less + older
      elseif code == 84 and #state == 24 then -- 'T'
        local t, expiry, level = bucket_at(state, present, tick_ms, count_denied, a, b, c, d, e)
        local most = c + (count_denied - count_denied % 2) / 2 * c
        local given = refund_units(peaks, parts, most, e, level, c * e)
        if given == 0 then
          return nil, 0
        end
        return pack('<ddd', expiry, t, level + given), floor(given / e)
      end
      return nil, 0
    end

    -- Defines what only refused hits and thresholds need.
    local used_of, open_holds
    local function define_rooms()
      -- The hits that count in a state or in a row, rounded up.
      used_of = function(code, state, row, present, tick_ms, count_denied, a, b, c, d, e)
        if code ~= 84 and code ~= 67 then -- 'T', 'C'
          return (unpack('<d', row))
        elseif not state then
          return 0
        elseif code == 67 then -- 'C'
          local _, number, current, previous = windows_at(state, present, count_denied, a, b)
          local passed = max(0, present - number * b)
          return current + previous - product(previous, passed, b)
        end
        local _, _, level = bucket_at(state, present, tick_ms, count_denied, a, b, c, d, e)
        return math.ceil((c * e - level) / e)
      end

      -- The hits of open holds, of a fixed window those in `window`; and the time until so many of
      -- those that do not stay charged have expired that they make room for `lacking` hits, or 0.
      open_holds = function(order, values, window, lacking)
        local open, room = 0, 0
        local ids = call('ZRANGEBYSCORE', order, text('(%.0f', now), score(HELD, BAND - 1))
        local stored = values_of(values, ids)
        for position = 1, #stored do
          local hold = hold_of(stored[position])
          for part = 1, #hold do
            open = open + ((window == 0 or hold[part][1] == window) and hold[part][2] or 0)
          end
          if lacking > 0 and hold.keeps == 0 then
            lacking = lacking - hold.hits
            room = lacking <= 0 and hold.life - now or 0
          end
        end
        return open, room
      end
    end

    -- Defines what only crowded keys need.
    local regroup, room_of
    local function define_groups()
      -- The name of the group of a hold.
      local function group_of(hold)
        return pack('<d', hold.life) .. (hold.keeps == 1 and 'groupkep' or 'grouprel')
      end

      -- Adds hits of a hold to its group, or takes them off, with so many holds more or less.
      regroup = function(values, added, removed, hold, more, less, members)
        local name = group_of(hold)
        local value = added[name] or call('HGET', values, name)
        local group = type(value) == 'table' and value or value and hold_of(value)
          or { kind = HELD, keeps = hold.keeps, since = hold.since, life = hold.life, members = 0 }
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
              own[2] = max(0, own[2] + sign * parts[position][2])
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
        group.members = max(0, group.members + members)
        if group.members > 0 then
          added[name] = group
        else
          added[name], removed[name] = nil, true
        end
      end

      -- Whether a key is crowded, and whether it may have one more hold; all its holds, but for
      -- groups, are `number` or fewer.
      room_of = function(order, number)
        local held = call('ZCOUNT', order, '0', score(HELD, BAND - 1))
        if number >= MOST_IDS then
          number = number - call('ZCOUNT', order, score(GROUPED, 0), score(GROUPED, now))
          local names = call('ZRANGEBYSCORE', order, '0', score(HELD, BAND - 1))
          for position = 1, #names do
            if string.find(names[position], '^........group[kr]e[pl]$') then
              number = number - 1
            end
          end
        end
        return held >= MOST_SINGLE, number < MOST_IDS
      end
    end

    -- Forgets ids of a kind whose time is over.
    local function forget(order, kind, removed)
      local forgotten = ending(order, kind, now, '100')
      for position = 1, #forgotten do
        removed[forgotten[position]] = true
      end
    end

    -- Decides the check at `index`, whose row is at `at`; `expired` has the ids of expired holds.
    return function(step, code, at, index, expired, hits, parameter, present, tick_ms, count_denied,
      a, b, c, d, e)
      local _, pair, purpose, flags, ttl, most, window, largest, asked = unpack(ROW, entries, at)
      local id = string.sub(entries, at + ROW_SIZE - ID_SIZE, at + ROW_SIZE - 1)
      local order, values = KEYS[keys_before + 2 * pair - 1], KEYS[keys_before + 2 * pair]
      local stored, before = expired, 1
      if not expired.err and code ~= 84 and not expired[1] then -- 'T'
        local value = pcall('HGET', values, id)
        stored = type(value) == 'table' and value or { value }
      elseif not expired.err then
        if code == 84 and not peaks_of then -- 'T'
          define_peaks()
        end
        local names = { id, code == 84 and PEAKS or nil } -- 'T'
        before = #names
        for position = 1, #expired do
          names[before + position] = expired[position]
        end
        stored = values_of(values, names)
      end
      if stored.err then
        return fail(index, code, stored.err)
      end
      local slot, row = firsts and firsts[index] or index, rows[index]
      if not states[slot] then
        local _, _, readable = read(index, code)
        if not readable then
          return nil
        end
        -- Refused hits have one already.
        rows[index] = row or rows[index]
      end
      local function take(wanted, is_free)
        return step(index, index, min(wanted, largest), parameter, present, tick_ms,
          is_free and count_denied - count_denied % 2 or count_denied, a, b, c, d, e)
      end
      local peaks = code == 84 and peaks_of(stored[2], e) or {} -- 'T'
      local function level()
        local found = states[slot]
        if not found or #found ~= 24 then
          return c * e
        end
        local _, _, at_present = bucket_at(found, present, tick_ms, count_denied, a, b, c, d, e)
        return at_present
      end
      if peaks[1] then
        rise(peaks, level(), e)
      end
      local function returns(parts)
        if not parts[1] then
          return 0
        end
        by_place(parts)
        local after, returned = refund_at(code, slot, states[slot], parts, peaks, window, present,
          tick_ms, count_denied, a, b, c, d, e)
        if after then
          states[slot] = after
          if code == 84 or code == 67 then -- 'T', 'C'
            -- The row is the state that the next step finds.
            rows[index] = after
          else
            local keep = code == 70 and parameter or code == 76 and b or e -- 'F', 'L'
            lives[slot] = max(lives[slot] or 0, soonest + keep * tick_ms)
          end
          if kept then
            kept[index] = kept[index] or 1
          end
        end
        return returned
      end
      local function counter_life()
        local written = states[slot]
        if code == 84 then -- 'T'
          return written and #written == 24 and unpack('<d', written) - now_ms or 0
        end
        local keep = code == 70 and parameter or code == 67 and 2 * b -- 'F', 'C'
          or code == 76 and b or e -- 'L'
        return keep * tick_ms
      end

      -- Ends the holds that have expired.
      local removed, added, released, ended, kept_hits, settled = {}, {}, {}, {}, 0, 0
      local ended_count = 0
      -- The hits that a counter counts. Hits of an earlier fixed window count no more.
      local function counted_at(place, own)
        return (code ~= 70 or place == window) and own or 0 -- 'F'
      end
      for position = 1, #expired do
        local name, value = expired[position], stored[before + position]
        local hold = value and hold_of(value)
        removed[name] = true
        ended_count = ended_count + max(1, hold and hold.members or 0)
        for part = 1, hold and #hold or 0 do
          ended[#ended + 1] = hold[part]
        end
        if hold and hold.keeps == 1 then
          kept_hits = kept_hits + hold.hits
          for part = 1, #hold do
            settled = settled + counted_at(hold[part][1], hold[part][2])
          end
          hold.kind, hold.life = KEPT, forgotten_at(hold)
          added[name] = hold.life > now and hold.members == 0 and hold or nil
        elseif hold then
          for part = 1, #hold do
            released[#released + 1] = hold[part]
          end
        end
      end
      if expired[1] then
        returns(released)
        if peaks[1] then
          end_parts(peaks, ended)
        end
        forget(order, KEPT, removed)
        forget(order, GROUPED, removed)
        write(order, values, added, removed, counter_life(), peaks)
      end
      local hold = purpose > 0 and not (removed[id] and not added[id]) and stored[1] or nil
      hold = added[id] or hold and hold_of(hold)
      local was_settled = hold and hold.kind == SETTLED
      local end_of_life = hold and (hold.kind == GROUPED and forgotten_at(hold) or hold.life)
      if hold and hold.kind ~= HELD and end_of_life <= now then
        hold = nil
      end
      local is_open = hold and (hold.kind == HELD or hold.kind == GROUPED and hold.life > now)

      local outcome, stepped, returned, allowed = 0, 0, 0, nil
      added, removed = {}, {}
      if purpose == 0 or purpose == 1 and not hold and asked <= 0 then
        hits = purpose == 0 and hits or 0
        purpose, allowed = 0, take(hits)
      elseif purpose == 1 then
        local wanted = min(max(asked, 0), most)
        local missing = hold and hold.kind == SETTLED and 0
          or max(0, wanted - (hold and hold.hits or 0))
        local has_room, is_crowded = hold and (missing == 0 or #hold < MOST_PARTS), false
        if not hold then
          local number = call('ZCOUNT', order, '-inf', '+inf')
          has_room = true
          if number >= MOST_SINGLE then
            number = call('ZCOUNT', order, score(KEPT, 0), '+inf')
            if not room_of then
              define_groups()
            end
            is_crowded, has_room = room_of(order, number)
            is_crowded = is_crowded and code ~= 76 and code ~= 84 -- 'L', 'T'
          end
          if is_crowded then
            forget(order, GROUPED, removed)
          end
          local spare = not has_room and first(order, KEPT)
          if spare then
            removed[spare], has_room = true, true
          end
        end
        stepped = has_room and missing or 0
        allowed = take(stepped, true)
        if not has_room then
          outcome = 4
        elseif hold and hold.kind == SETTLED then
          outcome = 6
        elseif hold and missing == 0 then
          outcome = 5
        elseif not allowed then
          outcome = 3
        else
          outcome = wanted < asked and 2 or 1
          local is_new = not hold
          hold = hold or { kind = HELD, keeps = flags % 2, since = now, life = now + ttl,
            hits = 0, members = 0 }
          if is_new and is_crowded then
            -- Rounded up to the end of its group.
            local width = max(1, floor(ttl / GROUPS))
            hold.kind, hold.life = GROUPED, math.ceil(hold.life / width) * width
          end
          local place = window
          if code == 84 then -- 'T'
            place = begin(peaks, level(), e)
          elseif code == 67 then -- 'C'
            local _, number = unpack('<dd', states[slot])
            place = number
          elseif code ~= 70 then -- 'F'
            place = states[slot].tip
          end
          local last = hold[#hold]
          if last and last[1] == place then
            last[2] = last[2] + stepped
            if peaks[1] then
              end_parts(peaks, { last })
            end
          else
            hold[#hold + 1] = { place, stepped }
          end
          hold.hits = hold.hits + stepped
          added[id] = hold
          if hold.kind == GROUPED then
            if not regroup then
              define_groups()
            end
            regroup(values, added, removed, hold, { { place, stepped } }, {}, is_new and 1 or 0)
          end
        end
      elseif purpose == 3 then
        outcome = 10
        local rest, parts, since, gone = max(asked, 0), {}, hold and hold.since, {}
        if is_open then
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
          if hold.kind == GROUPED then
            if not regroup then
              define_groups()
            end
            regroup(values, added, removed, hold, {}, parts, hold[1] and 0 or -1)
          end
          returned = returns(parts)
          if peaks[1] then
            end_parts(peaks, gone)
          end
          hold = { hits = max(asked, 0) - rest, since = since }
        else
          hold = nil
        end
        allowed = take(0)
      elseif hold and hold.kind == SETTLED then
        outcome, hold, allowed = 9, nil, take(0)
      else
        local rest, parts = max(asked, 0), {}
        outcome = not hold and 8 or is_open and 7 or 11
        for position = 1, hold and #hold or 0 do
          local own = min(hold[position][2], rest)
          rest = rest - own
          if is_open then
            settled = settled + counted_at(hold[position][1], own)
          end
          if own < hold[position][2] then
            parts[#parts + 1] = { hold[position][1], hold[position][2] - own }
          end
        end
        if is_open then
          if hold.kind == GROUPED then
            if not regroup then
              define_groups()
            end
            regroup(values, added, removed, hold, {}, hold, -1)
          end
          returned = returns(parts)
          if peaks[1] then
            end_parts(peaks, { list(hold) })
          end
        end
        added[id] = { kind = SETTLED, keeps = 0, since = now, life = now + SETTLED_LIFE,
          members = 0 }
        if not was_settled
          and call('ZCOUNT', order, '-inf', '+inf') >= MOST_SETTLED
          and call('ZCOUNT', order, '-inf', score(KEPT, -1)) >= MOST_SETTLED
        then
          removed[first(order, SETTLED)] = true
        end
        stepped, settled, allowed = rest, settled + rest, take(rest)
      end
      if allowed == nil then
        return nil
      end
      write(order, values, added, removed, counter_life(), peaks)
      local asked_hits, capacity = purpose == 0 and hits or stepped, code == 84 and c or a -- 'T'
      if not allowed or flags > 1 then
        if not used_of then
          define_rooms()
        end
      end
      local lacking = not allowed and asked_hits <= capacity
          and used_of(code, states[slot], rows[index], present, tick_ms, count_denied, a, b, c, d,
              e)
            + max(0, asked_hits) - capacity
        or 0
      local open, room = 0, 0
      if flags > 1 or lacking > 0 then
        open, room = open_holds(order, values, code == 70 and window or 0, lacking) -- 'F'
      end
      local used = purpose == 0 and hits or (outcome == 3 or outcome == 11) and stepped
        or (outcome == 7 or outcome == 8) and max(asked, 0) or 0
      counted[index], reserved[index] = used + kept_hits, outcome == 1 or outcome == 2
      local held = purpose > 0 and hold and hold.hits or 0
      local age = held > 0 and floor(max(0, now - hold.since) / 1000) or 0
      results[index] = pack(EFFECT, outcome, stepped, returned, held, age, ended_count,
        flags > 1 and open or 0, min(settled, 9007199254740992), room)
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
