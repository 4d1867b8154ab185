-- concurrency. The twin is src/core/algorithm/concurrency.rs, which also describes the algorithm.
--
-- State: a sorted set. A holder is a member of 16 bytes, its id; the score is the time of its
-- acquire. If it has more than one place, the score of a member 'w' followed by the id is minus
-- their number. The score of the member 'x' is minus the sum of all places beyond the first of each
-- holder. A mark is the member of an id without places; its score is -MARKS minus the time of the
-- mark. A time is a stamp: rounded down to a multiple of 16, minus a small number, which is the
-- number of later acquires of the holder, or the kind of the mark. All scores are whole.
--
-- ARGV[9] has the ids of these checks, in order. Check parameter: how many checks of other
-- algorithms are before them. Parameters: count_denied, limit, max_duration, the life and the
-- number of marks, the retry. The second number of a row is the change: the time since the holder's
-- acquire times 16384, and the places that were taken or released. Hits of -2 undo an acquire whose
-- answer was not delivered. Hits of 0.5 mark the id of an acquire whose request is refused as a
-- whole, and have no row.
--
-- In a call a key has one table `set`: the data read, and the changes so far. A state is a table
-- that never changes: how many changes belong to it, and its sums. A step on a state first undoes
-- all later changes: they belong to a request that was refused as a whole.
if steps[72] then -- 'H'
  local pcall, pack, max, min, format, sub =
    redis.pcall, struct.pack, math.max, math.min, string.format, string.sub
  local MARKS, FOREVER, MOST_IN_COMMAND, ids = 1048576, 9007199254740991, 1000, ARGV[9]
  local EARLY, OVERTAKEN, OVER, TAKE_BACK, NOTE = 0, 1, 2, -2, 0.5

  local function text(number)
    return format('%.0f', number)
  end

  -- The state of a key without changes. Returns a table with `err` if the key holds something else.
  holders_read = function(key)
    -- Not ZCARD: a Redis user may have a right to ZCARD and not to the other commands. A later
    -- command would then fail the whole call.
    local count = pcall('ZCOUNT', key, '-inf', '+inf')
    if type(count) == 'table' then
      return count
    end
    -- stored: by member, the value read. current: by member, the value now; false if it is removed.
    -- Both are nil if it is not known. dead: how many members are neither live holders nor live
    -- marks.
    local set = { key = key, count = count, extra = 0, marks = 0, dead = 0, changes = {},
      stored = {}, current = {} }
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

  -- The time and the places of an id in Redis; a mark has 0 places. Returns false for no entry.
  local function stored(set, id)
    local value = set.stored[id]
    if value == nil then
      local score = set.count > 0 and tonumber(call('ZSCORE', set.key, id) or nil)
      if score and score < 0 then
        value = { -score - MARKS, 0 }
      elseif score then
        local places = set.extra > 0 and call('ZSCORE', set.key, 'w' .. id)
        value = { score, places and -tonumber(places) or 1 }
      end
      value = value or false
      set.stored[id] = value
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

  -- The first and the last stamp of live acquires or marks. An entry lasts as if it had begun in
  -- the last of the 16 microseconds of its time: it never ends early. It may also be up to `life`
  -- after now, because the clock may have gone back.
  local function live(now, life)
    local after = now - life + 1
    return after - after % 16 - 15, now + life - (now + life) % 16
  end

  -- The scores of marks that have not expired.
  local function live_marks(now, life)
    local first, last = live(now, life)
    return text(-MARKS - last), text(-MARKS - max(first, 0))
  end

  -- The places in Redis of holders whose times are from `floor` to `top`.
  local function stored_places(set, floor, top, now, life)
    if set.floor ~= floor or set.top ~= top then
      set.floor, set.top = floor, top
      set.used = set.count > 0 and call('ZCOUNT', set.key, text(floor), text(top)) or 0
      set.dead = set.count - set.used
      if set.dead > 0 then
        set.marks = call('ZCOUNT', set.key, live_marks(now, life))
        set.dead = set.dead - set.marks
      end
      if set.dead > 0 then
        set.extra = -tonumber(call('ZSCORE', set.key, 'x') or 0)
      end
    end
    local used = set.used + set.extra
    if set.extra > 0 then
      local gone = expired(set, floor, top)
      for index = 1, #gone do
        used = used - stored(set, gone[index])[2] + 1
      end
    end
    return used
  end

  -- The taken places of a state: the places in Redis, with the changes of this call.
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

  -- Removes the oldest mark.
  local function drop_oldest(set, now, life)
    local first, last = live_marks(now, life)
    for offset = 0, set.count do
      local member = call('ZREVRANGEBYSCORE', set.key, last, first, 'LIMIT', offset, 1)[1]
      if member == nil or set.current[member] == nil then
        return member and change(set, member, false)
      end
    end
  end

  steps[72] = function(from, to, hits, others, now, _, _, limit, duration, life, most, retry) -- 'H'
    local allowed
    for index = from, to do
      local row = rows[index]
      local slot, state, readable = read(index, 72) -- 'H'
      allowed = nil
      if readable then
        local set = undo(state)
        local floor, top = live(now, duration)
        floor, top = max(floor, state.floor), min(top, state.top)
        local used = places(state, floor, top, now, life)
        local marks = state.marks or set.marks
        local last = 16 * (index - others)
        local id = sub(ids, last - 15, last)
        local own = lookup(set, id)
        local since, held, mark = now, 0, nil
        if own and own[2] > 0 and own[1] >= floor and own[1] <= top then
          since, held = own[1], own[2]
        elseif own and own[2] == 0 then
          local first, latest = live(now, life)
          mark = own[1] >= first and own[1] <= latest and -own[1] % 16 or nil
        end
        -- The new time and places of the id; nil if nothing changes.
        local time, count
        local present, is_released = now - now % 16, mark ~= nil and mark < OVER
        if hits == NOTE then
          allowed = false
          if held == 0 and not mark then
            time, count = present - OVER, 0
          end
        elseif hits < 0 then
          allowed = true
          if held > 0 and hits == TAKE_BACK and -since % 16 > 0 then
            time, count = since + 1, held
          elseif held > 0 or mark == OVERTAKEN or not mark and hits == TAKE_BACK then
            time, count = present - OVER, 0
          elseif hits ~= TAKE_BACK and mark ~= OVER then
            time, count = present - EARLY, 0
          end
        elseif hits == 0 then
          allowed = held > 0 or used < limit or (is_released and limit > 0)
        else
          local added = max(0, hits - held)
          allowed = added == 0 or used + added <= limit or (is_released and added <= limit)
          if held > 0 then
            if allowed then
              time, count = since - (-since % 16 < 15 and 1 or 0), held + added
            end
          elseif not is_released then
            time, count = allowed and present or present - OVER, allowed and added or 0
          elseif allowed and mark == EARLY then
            time, count = own[1] - 1, 0
          end
        end
        local moved = time and math.abs(count - held) or 0
        if time then
          used = used + count - held
          if count == 0 and not mark and marks >= most then
            drop_oldest(set, now, life)
          else
            marks = marks + (count == 0 and 1 or 0) - (mark and 1 or 0)
          end
          change(set, id, { max(time, 0), count })
          local keep = 2 * max(used > 0 and duration or 0, life)
          -- A refusal is valid even if its mark cannot be written, as while Redis accepts no
          -- writes.
          local is_needed = state.is_needed or allowed
          states[slot] = { set = set, length = #set.changes, used = used, marks = marks,
            floor = floor, top = top, now = now, life = life, is_needed = is_needed }
          lives[slot] = soonest + keep / 1000
          if kept then
            kept[index] = keep
          end
        end
        local age = moved > 0 and max(0, now - since - -since % 16) or 0
        if hits == NOTE then
          rows[index] = row
        else
          rows[index] = pack('<ddd', used, age * 16384 + moved,
            allowed and 0 or max(1, hits) > limit and -1 or retry)
        end
      end
    end
    return allowed
  end

  -- Calls a command with all these arguments, in several calls if they are many.
  local function run(command, key, arguments)
    for first = 1, #arguments, MOST_IN_COMMAND do
      call(command, key, list(arguments, first, min(first + MOST_IN_COMMAND - 1, #arguments)))
    end
  end

  -- Writes a changed state, then drops expired members. If it dropped them first, the set could be
  -- empty for a moment: while its slot is being migrated, the node would no longer have the key,
  -- and would refuse to add to it.
  holders_write = function(key, state, life)
    local set, added, removed = undo(state), {}, {}
    stored_places(set, state.floor, state.top, state.now, state.life)
    local extra = set.extra
    if extra > 0 then
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
      local before = stored(set, member)
      -- A later step with a shorter max_duration, as during a reload, may have dropped it.
      local is_live = value and value[1] >= state.floor and value[1] <= state.top
      local had, has = before and before[2] or 0, is_live and value[2] or 0
      extra = extra + max(has - 1, 0) - max(had - 1, 0)
      if has > 0 then
        add(value[1], member)
      elseif value and value[2] == 0 then
        add(-value[1] - MARKS, member)
      else
        removed[#removed + 1] = member
      end
      if has > 1 then
        add(-has, 'w' .. member)
      elseif had > 1 then
        removed[#removed + 1] = 'w' .. member
      end
    end
    if extra > 0 then
      add(-extra, 'x')
    elseif set.extra > 0 then
      removed[#removed + 1] = 'x'
    end
    if state.is_needed then
      run('ZADD', key, added)
    elseif type(pcall('ZADD', key, list(added))) == 'table' then
      return
    end
    if set.dead > 0 then
      local first, last = live_marks(state.now, state.life)
      local gone = call('ZREMRANGEBYSCORE', key, '(' .. last, text(-MARKS))
        + call('ZREMRANGEBYSCORE', key, 0, text(state.floor - 1))
      if gone < set.dead then
        call('ZREMRANGEBYSCORE', key, text(state.top + 1), '+inf')
        call('ZREMRANGEBYSCORE', key, '-inf', '(' .. first)
      end
    end
    run('ZREM', key, removed)
    if added[1] then
      call('PEXPIRE', key, life)
    end
  end
end
