-- State of sliding_window_log and sliding_window_buckets: an entry for each tick that had hits,
-- with the running total after it. For buckets, a tick is the number of a bucket. There is no twin:
-- Rust keeps these states as in src/core/algorithm/sliding_window_log.rs and
-- sliding_window_buckets.rs, and a test compares their contents.
--
-- It is stored as one packed string: a header, then cells of equal size. Cell number `first` is the
-- oldest entry, and `last` is one after the newest cell. The newest entry is in the header: hits of
-- the same tick change nothing else. Totals count modulo a power of two, because only differences
-- have a meaning. A check reads O(log n) cells.
--
-- In a call a log is a table that never changes. `tip` and `total` are the newest entry, `newest`
-- is the latest tick of any change, `room` is the number of cells that the string has space for,
-- and `base` is the total before the oldest entry. One cell may be `pushed` and not yet written;
-- there is never a second one, because time does not advance within a call. A `patch` is the index
-- of a cell, and new texts of the cells from there on.
--
-- Defines, for this file and the two algorithms: log_of makes a log, log_step steps one check,
-- log_run steps the checks of a run; for reservations.lua: log_refund_at; for decide.lua: log_read
-- and log_write.
local log_of, log_step, log_run, log_refund_at
if steps[76] or steps[66] then -- 'L', 'B'
  local pack, unpack, min, max = struct.pack, struct.unpack, math.min, math.max
  local HEADER, HEADER_SIZE, VERSION = '>BI4I4I4I7I7I6I6', 39, 1

  -- The packing of a cell, its size in bytes, and the modulus of totals. The limit of a
  -- sliding_window_log is at most 100,000, and debt doubles it.
  local packings = {
    [76] = { '>I7I3', 10, 16777216 }, -- 'L'
    [66] = { '>I7I6', 13, 281474976710656 }, -- 'B'
  }

  log_of = function(code, first, last, room, newest, tip, base, total, pushed, patch)
    return { code = code, first = first, last = last, room = room, newest = newest, tip = tip,
      base = base, total = total, pushed = pushed, patch = patch }
  end

  -- Reads the header. Returns false if there is no key, and a table with `err` if it is not a log;
  -- `err = false` means the usual error line.
  log_read = function(code, key)
    local text = redis.pcall('GETRANGE', key, 0, HEADER_SIZE - 1)
    if type(text) == 'table' then
      return text
    end
    if text == '' then
      return false
    end
    if #text ~= HEADER_SIZE or string.byte(text) ~= VERSION then
      return { err = false }
    end
    local _, first, last, room, newest, tip, base, total = unpack(HEADER, text)
    if first > last
      or last > room
      or call('STRLEN', key) ~= HEADER_SIZE + room * packings[code][2]
    then
      return { err = false }
    end
    return log_of(code, first, last, room, newest, tip, base, total)
  end

  -- The tick and the total of entry `index`; the newest is `last`.
  local function log_entry(log, key, index)
    if index == log.last then
      return log.tip, log.total
    end
    if log.pushed and log.pushed[1] == index then
      return log.pushed[2], log.pushed[3]
    end
    local packing, patch = packings[log.code], log.patch
    if patch and index >= patch[1] and (index - patch[1]) * packing[2] < #patch[2] then
      return unpack(packing[1], patch[2], (index - patch[1]) * packing[2] + 1)
    end
    local start = HEADER_SIZE + index * packing[2]
    return unpack(packing[1], call('GETRANGE', key, start, start + packing[2] - 1))
  end

  local function log_is_found(log, key, index, tick, sum)
    local at, total = log_entry(log, key, index)
    return at > tick and (total - log.base) % packings[log.code][3] >= sum
  end

  -- The first entry from `index` on whose tick is above `tick` and whose total is at least `sum`
  -- above the base; if there is none, one after the newest. A galloping search, because the entry
  -- is mostly near the start: steps double, then a binary search.
  local function log_search(log, key, index, tick, sum)
    local low, high, stride = index, index, 1
    while high <= log.last and not log_is_found(log, key, high, tick, sum) do
      low, high, stride = high + 1, high + stride, stride * 2
    end
    high = min(high, log.last + 1)
    while low < high do
      local middle = floor((low + high) / 2)
      if log_is_found(log, key, middle, tick, sum) then
        high = middle
      else
        low = middle + 1
      end
    end
    return low
  end

  -- The total before an entry, above the base.
  local function log_before(log, key, index)
    if index == log.first then
      return 0
    end
    local _, total = log_entry(log, key, index - 1)
    return (total - log.base) % packings[log.code][3]
  end

  -- Refunds hits: removes them from the newest entries until `left` above the base remain.
  local function log_pop(log, key, newest, left)
    local total = (log.base + left) % packings[log.code][3]
    if left == 0 then
      return log_of(log.code, log.first, log.first, log.room, newest, 0, total, total)
    end
    local index = log_search(log, key, log.first, -1, left)
    local tip = log_entry(log, key, index)
    return log_of(log.code, log.first, index, log.room, newest, tip, log.base, total, log.pushed,
      log.patch)
  end

  local function log_push(log, tick, hits)
    local total = (log.total + hits) % packings[log.code][3]
    if log.tip == tick then
      return log_of(log.code, log.first, log.last, log.room, tick, tick, log.base, total,
        log.pushed, log.patch)
    end
    if log.total == log.base then
      return log_of(log.code, log.first, log.first, log.room, tick, tick, log.base, total)
    end
    return log_of(log.code, log.first, log.last + 1, log.room, tick, tick, log.base, total,
      { log.last, log.tip, log.total }, log.patch)
  end

  -- Drops the entries up to `tick`.
  local function log_drop(log, key, tick)
    local index = log_search(log, key, log.first, tick, 0)
    if index == log.first then
      return log
    end
    if index > log.last then
      return log_of(log.code, log.first, log.first, log.room, log.newest, 0, log.total, log.total)
    end
    local base = (log.base + log_before(log, key, index)) % packings[log.code][3]
    return log_of(log.code, index, log.last, log.room, log.newest, log.tip, base, log.total,
      log.pushed, log.patch)
  end

  -- Steps a log at `tick`. Entries up to the tick `over` count no more; entries up to `gone` are
  -- dropped. Returns allowed, the hits that count, the tick of the newest entry that counts if any,
  -- the tick of the entry whose expiry makes room for a refused check, and the log if it changed.
  log_step = function(log, key, tick, over, gone, hits, limit, count_denied)
    log = log_drop(log, key, gone)
    local index = over == gone and log.first or log_search(log, key, log.first, over, 0)
    local sum = (log.total - log.base) % packings[log.code][3]
    local dead = sum
    if index <= log.last then
      dead = log_before(log, key, index)
    end
    local count, after, allowed = sum - dead, log, true
    if hits < 0 then
      local taken = min(-hits, count)
      if taken > 0 then
        after = log_pop(log, key, tick, sum - taken)
        count = count - taken
      end
    else
      local added = hits
      if count + hits > limit then
        allowed = false
        added = count_denied % 2 == 1
            and max(0, min(hits, (1 + floor(count_denied / 2)) * limit - count))
          or 0
      end
      if added > 0 then
        after = log_push(log, tick, added)
        count = count + added
      end
    end
    local retry
    if not allowed and hits <= limit then
      retry = log_entry(after, key,
        log_search(after, key, after.first, over, dead + count + hits - limit))
    end
    return allowed, count, count > 0 and after.tip, retry, after ~= log and after
  end

  -- Gives back hits of entries: `parts` has their ticks, which ascend, and the hits of each.
  -- `scale` is the length of an entry's tick, `t` the time, and `window` how long hits count, all
  -- three in ticks of the clock. Returns the log if it changed, and how many hits it still had.
  log_refund_at = function(log, key, parts, scale, t, window)
    local packing, size, modulus = list(packings[log.code])
    local newest = scale == 1 and log.tip or log.newest
    if newest * scale - t > (scale == 1 and window or math.ceil(window / scale) * scale) then
      return nil, 0
    end
    local oldest, at = floor((max(t, newest * scale) - window + 1) / scale), 1
    while parts[at] and parts[at][1] < oldest do
      at = at + 1
    end
    local from = parts[at] and log_search(log, key, log.first, parts[at][1] - 1, 0) or log.last + 1
    if from > log.last then
      return nil, 0
    end
    local before, less = log_before(log, key, from), 0
    local function next_total(tick, total)
      local own, asked = (total - log.base) % modulus - before, 0
      before = before + own
      while parts[at] and parts[at][1] <= tick do
        asked = asked + (parts[at][1] == tick and parts[at][2] or 0)
        at = at + 1
      end
      less = less + min(asked, own)
      return (total - less) % modulus
    end
    local cells, last, pushed = {}, log.last, log.pushed
    -- A refund may have removed the pushed cell.
    pushed = pushed and pushed[1] < last and pushed or nil
    for index = from, (pushed and last - 1 or last) - 1 do
      local tick, total = log_entry(log, key, index)
      cells[#cells + 1] = pack(packing, tick, next_total(tick, total))
    end
    if pushed and pushed[1] >= from then
      pushed = { pushed[1], pushed[2], next_total(pushed[2], pushed[3]) }
    end
    local total = next_total(log.tip, log.total)
    if less == 0 then
      return nil, 0
    end
    local patch = log.patch
    if cells[1] then
      local text = table.concat(cells)
      if patch and patch[1] < from then
        -- An earlier change has some before these cells.
        text, from = string.sub(patch[2], 1, (from - patch[1]) * size) .. text, patch[1]
      end
      patch = { from, text }
    end
    local after = log_of(log.code, log.first, last, log.room, log.newest, log.tip, log.base, total,
      pushed, patch)
    return log_pop(after, key, log.newest, (total - log.base) % modulus), less
  end

  -- Writes a changed log. The log does not contain its expiry: every write sets it.
  log_write = function(key, log, life)
    local packing = packings[log.code]
    local pushed = log.pushed
    -- A refund may have removed the pushed cell.
    if pushed and pushed[1] >= log.last then
      pushed = nil
    end
    -- If the string is full, or half of its cells are dropped, write the remaining cells again,
    -- with space for an eighth more.
    local is_full = log.room == 0
      or pushed and (log.last > log.room or (log.first > 64 and log.first * 2 > log.last))
    if log.patch then
      call('SETRANGE', key, HEADER_SIZE + log.patch[1] * packing[2], log.patch[2])
    end
    if not is_full then
      call('SETRANGE', key, '0', pack(HEADER, VERSION, log.first, log.last, log.room, log.newest,
        log.tip, log.base, log.total))
      if pushed then
        call('SETRANGE', key, HEADER_SIZE + pushed[1] * packing[2],
          pack(packing[1], pushed[2], pushed[3]))
      end
      call('PEXPIRE', key, life)
      return
    end
    local cells, count = '', log.last - log.first
    local stored = pushed and count - 1 or count
    if stored > 0 then
      cells = call('GETRANGE', key, HEADER_SIZE + log.first * packing[2],
        HEADER_SIZE + (log.first + stored) * packing[2] - 1)
    end
    if pushed then
      cells = cells .. pack(packing[1], pushed[2], pushed[3])
    end
    local room = count + floor(count / 8) + 2
    local header = pack(HEADER, VERSION, 0, count, room, log.newest, log.tip, log.base, log.total)
    call('SET', key, header .. cells .. string.rep('\0', (room - count) * packing[2]), 'PX', life)
  end

  -- Steps the checks of a run. step(log, key, t) steps one check and returns the results of
  -- log_step, and `offset`: an entry `e` leaves the window after e * scale + offset ticks. A
  -- changed log is kept for at least `life` ticks.
  log_run = function(code, t, tick_ms, from, to, scale, life, step)
    local allowed
    for index = from, to do
      local slot, log, readable = read(index, code)
      if log and log.code ~= code then
        readable = fail(index, code)
      end
      allowed = nil
      if readable then
        local used, newest, retry, after, offset
        allowed, used, newest, retry, after, offset = step(log, KEYS[slot], t)
        local reset = newest and newest * scale + offset or 0
        if after then
          local keep = max(1, reset, life)
          states[slot] = after
          lives[slot] = soonest + keep * tick_ms
          if kept then
            kept[index] = keep
          end
        end
        rows[index] =
          pack('<ddd', used, reset, allowed and 0 or retry and retry * scale + offset or -1)
      end
    end
    return allowed
  end
end
