-- concurrency. The twin is src/core/algorithm/concurrency.rs, which also describes the algorithm.
--
-- State: a sorted set. A holder is a member of 16 bytes, its id; the score is the time of its acquire. If it has more than one place, the member 'w'
-- with the id has minus their number as its score, and the member 'x' minus the sum of all places beyond the first of each holder. A tombstone is the
-- member 't' with the id; its score is -TOMBS minus the time of the release. All scores are whole. So one ZCOUNT says how many places are taken, and
-- if the set has as many members, then there is nothing else in it.
--
-- ARGV[9] has the ids of these checks, in order. Check parameter: how many checks of other algorithms are before them. Parameters: count_denied, limit,
-- max_duration, the life and the number of tombstones, the retry. The second number of a row is the change: the time since the holder's acquire times
-- 16384, and the places that were taken or given back.
--
-- In a call a key has one table `set`: what was read, and the changes so far. A state is a table that never changes: how many changes belong to it, and
-- its sums. A step on a state undoes all later changes, which are those of a request that was refused as a whole.
if steps[72] then -- 'H'
  local pcall, pack, max, min, format, sub = redis.pcall, struct.pack, math.max, math.min, string.format, string.sub
  local TOMBS, FOREVER, MOST_IN_COMMAND, ids = 1048576, 9007199254740991, 1000, ARGV[9]

  local function text(number)
    return format('%.0f', number)
  end

  -- The state of a key without changes. Returns a table with `err` if the key holds something else.
  holders_read = function(key)
    -- Not ZCARD, which users have a right to that have none to the other commands: their calls would fail as a whole.
    local count = pcall('ZCOUNT', key, '-inf', '+inf')
    if type(count) == 'table' then
      return count
    end
    -- stored: by member, what was read. current: by member, what it is now; false if it is removed. Both are nil where nothing is known.
    local set = { key = key, count = count, extra = 0, tombs = 0, is_mixed = false, changes = {}, stored = {}, current = {} }
    return { set = set, length = 0, floor = 0, top = FOREVER }
  end

  local function undo(state)
    local set = state.set
    for index = #set.changes, state.length + 1, -1 do
      local change = set.changes[index]
      set.current[change[1]], set.changes[index] = change[2], nil
    end
    return set
  end

  local function change(set, member, value)
    set.changes[#set.changes + 1] = { member, set.current[member] }
    set.current[member] = value
  end

  -- What Redis has: the time of a holder and its places, or the time of a tombstone; false for none.
  local function stored(set, member)
    local value = set.stored[member]
    if value == nil then
      value = false
      if set.count > 0 and (#member == 16 or set.is_mixed) then
        local score = call('ZSCORE', set.key, member)
        if score and #member == 16 then
          local places = set.extra > 0 and call('ZSCORE', set.key, 'w' .. member)
          value = { tonumber(score), places and -tonumber(places) or 1 }
        elseif score then
          value = { -tonumber(score) - TOMBS }
        end
      end
      set.stored[member] = value
    end
    return value
  end

  local function lookup(set, member)
    local value = set.current[member]
    if value == nil then
      return stored(set, member)
    end
    return value
  end

  -- The holders in Redis whose times are not from `floor` to `top`.
  local function expired(set, floor, top)
    local found = call('ZRANGEBYSCORE', set.key, 0, text(floor - 1))
    local later = call('ZRANGEBYSCORE', set.key, text(top + 1), '+inf')
    for index = 1, #later do
      found[#found + 1] = later[index]
    end
    return found
  end

  -- The scores of tombstones that have not expired.
  local function live_tombs(now, life)
    return text(-now - life - TOMBS), text(min(life - now, 1) - TOMBS - 1)
  end

  -- The places in Redis of holders whose times are from `floor` to `top`.
  local function stored_places(set, floor, top, now, life)
    local used = set.count > 0 and call('ZCOUNT', set.key, text(floor), text(top)) or 0
    if used == set.count then
      return used
    end
    if not set.is_mixed then
      set.is_mixed, set.stored = true, {}
      set.extra = -tonumber(call('ZSCORE', set.key, 'x') or 0)
      set.tombs = call('ZCOUNT', set.key, live_tombs(now, life))
    end
    used = used + set.extra
    if set.extra > 0 then
      local gone = expired(set, floor, top)
      for index = 1, #gone do
        used = used - stored(set, gone[index])[2] + 1
      end
    end
    return used
  end

  -- The places of a state.
  local function places(state, floor, top, now, life)
    if state.used and state.floor == floor and state.top == top then
      return state.used
    end
    local set = state.set
    local used = stored_places(set, floor, top, now, life)
    for member, value in pairs(set.current) do
      if #member == 16 then
        local before = stored(set, member)
        if before and before[1] >= floor and before[1] <= top then
          used = used - before[2]
        end
        if value and value[1] >= floor and value[1] <= top then
          used = used + value[2]
        end
      end
    end
    return used
  end

  -- Removes the oldest tombstone.
  local function drop_oldest(set, now, life)
    if not set.queue then
      local first, last = live_tombs(now, life)
      set.queue = call('ZREVRANGEBYSCORE', set.key, last, first)
    end
    for index = 1, #set.queue do
      if set.current[set.queue[index]] == nil then
        return change(set, set.queue[index], false)
      end
    end
  end

  steps[72] = function(from, to, hits, others, now, _, _, limit, duration, life, most, retry) -- 'H'
    local allowed
    for index = from, to do
      local slot, state, readable = read(index, 72) -- 'H'
      allowed = nil
      if readable then
        local set = undo(state)
        local floor, top = max(now - duration + 1, state.floor), min(now + duration, state.top)
        local used = places(state, floor, top, now, life)
        local tombs = state.tombs or set.tombs
        local last = 16 * (index - others)
        local id = sub(ids, last - 15, last)
        local own, tomb, since, moved = lookup(set, id), 't' .. id, now, 0
        local released = lookup(set, tomb)
        local is_released = released and released[1] > now - life and released[1] <= now + life
        local held = 0
        if own and own[1] >= floor and own[1] <= top then
          since, held = own[1], own[2]
        end
        local length = #set.changes
        if hits < 0 then
          allowed = true
          if held > 0 then
            moved, used = held, used - held
            change(set, id, false)
          else
            if not is_released and tombs >= most then
              drop_oldest(set, now, life)
            elseif not is_released then
              tombs = tombs + 1
            end
            change(set, tomb, { now })
          end
        elseif hits == 0 then
          allowed = held > 0 or used < limit or (is_released and limit > 0)
        else
          local added = max(0, hits - held)
          allowed = added == 0 or used + added <= limit or (is_released and added <= limit)
          if allowed and added > 0 and not is_released then
            moved, used = added, used + added
            change(set, id, { since, held + added })
          end
        end
        if #set.changes > length then
          local keep = used + tombs > 0 and 2 * max(duration, life) or 1
          states[slot] = { set = set, length = #set.changes, used = used, tombs = tombs, floor = floor, top = top, now = now, life = life }
          lives[slot] = soonest + keep / 1000
          if kept then
            kept[index] = keep
          end
        end
        local age = moved > 0 and max(0, now - since) or 0
        rows[index] = pack('<ddd', used, age * 16384 + moved, allowed and 0 or max(1, hits) > limit and -1 or retry)
      end
    end
    return allowed
  end

  -- Calls a command with all these arguments, several times if they are many.
  local function run(command, key, arguments)
    for first = 1, #arguments, MOST_IN_COMMAND do
      call(command, key, list(arguments, first, min(first + MOST_IN_COMMAND - 1, #arguments)))
    end
  end

  -- Writes a changed state, and drops what has expired: last, because a set that is empty for a moment is one that a node of a cluster does not have
  -- while its slot is being migrated, and Redis would refuse to add to it.
  holders_write = function(key, state, life)
    local set, added, removed = undo(state), {}, {}
    local extra = set.extra
    if set.is_mixed and extra > 0 then
      local gone = expired(set, state.floor, state.top)
      for index = 1, #gone do
        if set.current[gone[index]] == nil then
          set.current[gone[index]] = false
        end
      end
    end
    local function add(score, member)
      added[#added + 1], added[#added + 2] = text(score), member
    end
    for member, value in pairs(set.current) do
      if #member == 16 then
        local before = stored(set, member)
        -- A later step with a shorter max_duration, as during a reload, may have dropped it.
        local is_live = value and value[1] >= state.floor and value[1] <= state.top
        local had, has = before and before[2] or 0, is_live and value[2] or 0
        extra = extra + max(has - 1, 0) - max(had - 1, 0)
        if has > 0 then
          add(value[1], member)
        else
          removed[#removed + 1] = member
        end
        if has > 1 then
          add(-has, 'w' .. member)
        elseif had > 1 then
          removed[#removed + 1] = 'w' .. member
        end
      elseif value then
        add(-value[1] - TOMBS, member)
      else
        removed[#removed + 1] = member
      end
    end
    if extra > 0 then
      add(-extra, 'x')
    elseif set.extra > 0 then
      removed[#removed + 1] = 'x'
    end
    run('ZADD', key, added)
    if set.is_mixed then
      if set.extra == 0 then
        call('ZREMRANGEBYSCORE', key, 0, text(state.floor - 1))
        call('ZREMRANGEBYSCORE', key, text(state.top + 1), '+inf')
      end
      local first, last = live_tombs(state.now, state.life)
      call('ZREMRANGEBYSCORE', key, '-inf', '(' .. first)
      call('ZREMRANGEBYSCORE', key, '(' .. last, text(-TOMBS))
    end
    run('ZREM', key, removed)
    if added[1] then
      call('PEXPIRE', key, life)
    end
  end
end
