-- reservations: checks of limits whose hits can be reserved and settled later. The twin is
-- src/core/algorithm/reservations.rs, which also describes them.
--
-- State, in addition to the state of the counter: a sorted set with the ids of a counter, and a
-- hash with a packed value for each. KEYS ends with these two keys for each counter, each pair
-- once. The score of an id is the end of its life in microseconds, minus 2^52 for a kept hold and
-- minus 2^53 for a settled id. A value has the kind, the hits, the number of the window that
-- counted them, when the hold was made, and the end of its life.
--
-- ARGV[10]: one row per check, packed: the index of the check; the number of the pair of keys, from
-- 1 on; 0 for plain hits, 1 to reserve, 2 to settle; 1 if expired holds stay counted; ttl; the most
-- hits of a hold; the number of the current window (sliding_window_counter computes it); the
-- largest charge of the limit; the requested hits; the id.
--
-- The reply has five numbers for each row: the outcome, by its number in Rust; the hits of the last
-- step; the hits that the id holds, or that were released; the age of the hold; the number of
-- expired holds. They are zeros if the check failed, and for plain hits without expired holds.
--
-- A step writes its set and its hash at once, after everything that may fail was read. What it adds
-- is written before anything is removed, because a key without members could not be written while
-- its slot is being migrated.

-- The keys of the checks alone, if there are others.
local checked
-- By the index of a check: the hits that it has counted. effects() returns this part of the reply.
local counted, effects
if steps[82] then -- 'R'
  local unpack, pcall = struct.unpack, redis.pcall
  local ROW_SIZE, EFFECT_SIZE = 62, 40

  local entries, at_index, pairs_of_keys, results = ARGV[10], {}, 0, {}
  for at = 1, #entries, ROW_SIZE do
    local index, pair = unpack('<HH', entries, at)
    at_index[index], pairs_of_keys = at, math.max(pairs_of_keys, pair)
  end
  counted = {}
  local keys_before = #KEYS - 2 * pairs_of_keys
  checked = { list(KEYS, 1, keys_before) }

  -- Returns the function that decides a check with an id, or with expired holds. Most calls need
  -- none, and creating its parts would be much of their cost.
  local function define()
    local pack, text = struct.pack, string.format
    local ROW, ID_SIZE, EFFECT, VALUE = '<HHBBddddd', 16, '<ddddd', '<Bdddd'
    local HELD, KEPT, SETTLED, MOST_IDS, MOST_SETTLED = 0, 1, 2, 10000, 256
    local SETTLED_LIFE, MARGIN = 60000000, 5000
    local OFFSETS = { [HELD] = 0, [KEPT] = -4503599627370496, [SETTLED] = -9007199254740992 }

    local function score(kind, life)
      return text('%.0f', OFFSETS[kind] + life)
    end

    -- The first ids of a kind whose lives end up to `last`.
    local function ending(order, kind, last, most)
      return pcall('ZRANGEBYSCORE', order, score(kind, 0), score(kind, last), 'LIMIT', '0', most)
    end

    local function first(order, kind)
      return ending(order, kind, 4503599627370495, '1')[1]
    end

    -- The changes of a step on the ids of a counter.
    local function write(order, values, added, removed, ttl)
      local scores, fields, gone = {}, {}, {}
      for id, hold in pairs(added) do
        scores[#scores + 1], scores[#scores + 2] = score(hold[1], hold[5]), id
        fields[#fields + 1], fields[#fields + 2] = id, pack(VALUE, list(hold))
        -- Others may have a longer life than this check gives.
        ttl = math.max(ttl, hold[5] - now)
      end
      for id in pairs(removed) do
        if not added[id] then
          gone[#gone + 1] = id
        end
      end
      if scores[1] then
        call('ZADD', order, list(scores))
        call('HSET', values, list(fields))
      end
      if gone[1] then
        call('ZREM', order, list(gone))
        call('HDEL', values, list(gone))
      end
      -- Setting an expiry costs more than the write that it belongs to: it is set ahead.
      local needed = math.max(2 * ttl, SETTLED_LIFE) / 1000 + MARGIN
      if scores[1] and call('PTTL', values) < needed then
        local life = text('%.0f', kept and LONGEST or 2 * needed)
        call('PEXPIRE', order, life)
        call('PEXPIRE', values, life)
      end
    end

    -- The holds that have expired: the ids whose hits are refunded, these hits, and the holds that
    -- stay counted.
    local function split(expired, stored, window, keeps)
      local refunded, refund, stay = {}, 0, {}
      for position = 1, #expired do
        local hold = stored[position + 1] and { unpack(VALUE, stored[position + 1]) }
        if hold and (keeps == 1 or hold[3] ~= window) then
          stay[expired[position]] = { KEPT, hold[2], hold[3], hold[4], now + hold[5] - hold[4] }
        else
          refunded[expired[position]] = true
          refund = refund + (hold and hold[2] or 0)
        end
      end
      return refunded, refund, stay
    end

    local function size(set)
      local count = 0
      for _ in pairs(set) do
        count = count + 1
      end
      return count
    end

    -- The hold of an id; nil also after the end of its time as kept or settled.
    local function known_hold(id, value, refunded, stay)
      if refunded[id] or not value then
        return nil
      end
      local hold = stay[id] or { unpack(VALUE, value) }
      return (hold[1] == HELD or hold[5] > now) and hold or nil
    end

    -- Reserves hits for an id. Returns the outcome, the hits, the verdict, and the id's new hold.
    local function reserve(hold, window, most, asked, ttl, has_room, take)
      local wanted = math.min(math.max(asked, 0), most)
      if hold and hold[1] == SETTLED then
        return 6, 0, take(0, true)
      elseif not (hold or has_room) then
        local allowed = take(0, true)
        return 4, 0, allowed and false or allowed
      end
      local missing = math.max(0, wanted - (hold and hold[2] or 0))
      local allowed = take(missing, true)
      if hold and missing == 0 then
        return 5, 0, allowed ~= nil or nil
      elseif not allowed then
        return 3, missing, allowed
      end
      local next_hold = hold or { HELD, 0, window, now, now + ttl }
      return wanted < asked and 2 or 1, missing, allowed,
        { next_hold[1], next_hold[2] + missing, next_hold[3], next_hold[4], next_hold[5] }
    end

    -- Settles the hold of an id. Returns the same.
    local function settle(hold, window, asked, take)
      local cost = math.max(asked, 0)
      if hold and hold[1] == SETTLED then
        return 9, 0, take(0)
      end
      local hits = cost - (hold and hold[2] or 0)
      if hold and (hold[1] ~= HELD or hold[3] ~= window) then
        hits = math.max(hits, 0)
      end
      return hold and 7 or 8, hits, take(hits), { SETTLED, 0, 0, now, now + SETTLED_LIFE }
    end

    -- Decides the check at `index`, whose row is at `at`; `expired` has the ids of expired holds.
    return function(step, code, at, index, expired, hits, parameter, present, tick_ms, count_denied,
      a, b, c, d, e)
      local _, pair, purpose, keeps, ttl, most, window, largest, asked = unpack(ROW, entries, at)
      local id = string.sub(entries, at + ROW_SIZE - ID_SIZE, at + ROW_SIZE - 1)
      local order, values = KEYS[keys_before + 2 * pair - 1], KEYS[keys_before + 2 * pair]
      if code == 67 then -- 'C'
        window = floor(present / b)
      end
      local stored = expired.err and expired or pcall('HMGET', values, id, list(expired))
      if stored.err then
        return fail(index, code, stored.err)
      end
      local removed, refund, stay = split(expired, stored, window, keeps)
      local slot = firsts and firsts[index] or index
      local function take(wanted, is_free)
        return step(index, index, math.min(wanted, largest), parameter, present, tick_ms,
          is_free and count_denied - count_denied % 2 or count_denied, a, b, c, d, e)
      end
      local state, life = states[slot] or false, lives[slot]
      if refund > 0 then
        if take(-refund) == nil then
          return nil
        end
        if type(states[slot]) == 'string' then
          -- The row is the state that the next step finds.
          rows[index] = states[slot]
        end
      end
      if purpose == 0 and hits == 0 then
        local allowed = take(0)
        -- A peek writes nothing.
        states[slot], lives[slot] = state or found[slot], life
        if kept then
          kept[index] = nil
        end
        results[index] = pack(EFFECT, 0, 0, 0, 0, 0)
        return allowed
      end
      local outcome, taken, allowed, next_hold, spare = 0, 0, nil, nil, nil
      local hold = purpose > 0 and known_hold(id, stored[1], removed, stay) or nil
      if purpose == 0 then
        allowed = take(hits)
      elseif purpose == 1 then
        local has_room = hold or call('HLEN', values) - size(removed) < MOST_IDS
        spare = not has_room and (first(order, KEPT) or first(order, SETTLED)) or nil
        outcome, taken, allowed, next_hold =
          reserve(hold, window, most, asked, ttl, has_room or spare, take)
      else
        outcome, taken, allowed, next_hold = settle(hold, window, asked, take)
      end
      if allowed == nil then
        return nil
      end
      local forgotten = next(stay) and ending(order, KEPT, now, '100') or {}
      forgotten[#forgotten + 1] = spare
      for position = 1, #forgotten do
        removed[forgotten[position]] = true
      end
      stay[id] = next_hold or stay[id]
      write(order, values, stay, removed, ttl)
      if purpose == 2
        and next_hold
        and call('ZCOUNT', order, '-inf', score(KEPT, -1)) > MOST_SETTLED
      then
        write(order, values, {}, { [first(order, SETTLED)] = true }, ttl)
      end
      counted[index] = purpose > 0 and taken or nil
      local own = purpose == 1 and next_hold or hold
      local held = own and own[2] or 0
      results[index] = pack(EFFECT, outcome, taken, held,
        held > 0 and math.max(0, now - own[4]) or 0, #expired)
      return allowed
    end
  end

  local decide, present
  for code, step in pairs(steps) do
    if type(step) == 'function' then
      steps[code] = function(from, to, hits, ...)
        local at = at_index[from]
        if at then
          local _, pair, purpose = unpack('<HHB', entries, at)
          present = present or string.format('%.0f', now)
          local expired = pcall('ZRANGEBYSCORE', KEYS[keys_before + 2 * pair - 1], '0', present,
            'LIMIT', '0', '100')
          if purpose > 0 or expired.err or expired[1] then
            decide = decide or define()
            return decide(step, code, at, from, expired, hits, ...)
          end
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
