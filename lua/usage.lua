-- track_usage: records the hits of checks in addition to their counters. The twin is
-- src/core/usage.rs, which also describes a record; src/core/usage/stored.rs describes how it is
-- stored.
--
-- After the keys of the checks, KEYS has the keys of the records, each once. The snapshots of a
-- record have an undeclared key in its slot: a declared key that does not exist yet would fail its
-- checks while the slot is being migrated. Where it cannot be used, snapshots are left out. They are
-- up to two texts of five numbers, the newest first, each the time of the last hits of a period, the
-- begin of the period of the next ones, and the three totals in between. ARGV, packed:
--   7  one row per record to add to: the index of the check, or 0 for hits that were refused
--      without the script; the number of the record, from 1 on; the number of its limit, from 1 on;
--      the requested hits; without a check, how many of them were refused.
--   8  one row per limit: the microseconds of a bucket; the buckets of a ring; the longest time in
--      milliseconds for which an idle record is kept; begin and end of the current period in
--      microseconds by the caller's estimate of this clock, 0 and 0 without periods and for rows
--      without a check.
--
-- The reply has for each row of ARGV[7] four numbers: the hits and the refused hits in total, and
-- when the subject was first and last seen. The first is -1 if nothing was recorded: the check
-- peeked, failed or was late, or it was within its limit in a request that all_or_none refused.
--
-- usage(time) reads and steps all records, and returns a function that writes them and returns this
-- part of the reply.
local usage
if steps[85] then -- 'U'
  local pack, unpack, max, min, pcall = struct.pack, struct.unpack, math.max, math.min, redis.pcall
  local ENTRY, ENTRY_SIZE, LIMIT, LIMIT_SIZE, TOTAL = '<HHHdd', 22, '<ddddd', 40, '<dddd'
  local HEADER, HEADER_SIZE, VERSION, CELL, CELL_SIZE = '<Bddddddddddddd', 105, 1, '<I6I6I6', 18
  local MOST, MOST_IN_BUCKET = 9007199254740991, 281474976710655
  -- The numbers of a record by their position. After them: the first of the cells to write, if a
  -- bucket was closed; these cells; whether all is new; the longest life of its key in
  -- milliseconds; the end of the next period in milliseconds or later; its new snapshots.
  local EXPIRY, INTERVAL, BUCKETS, BASE, CURRENT, ASKED, REFUSED, GIVEN, FIRST, LAST, OPEN =
    2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12
  local CLOSED, CELLS, IS_NEW, LONGEST_LIFE, KEPT_UNTIL, SNAPSHOTS = 15, 16, 17, 18, 19, 20

  local entries, records, count = ARGV[7], {}, 0
  for at = 1, #entries, ENTRY_SIZE do
    local _, number = unpack(ENTRY, entries, at)
    count = max(count, number)
  end
  checked = { list(KEYS, 1, (checked and #checked or #KEYS) - count) }

  -- By index: whether the check was allowed when it was stepped last, nil if it failed. A request
  -- with all_or_none steps some checks again.
  local allowed = {}
  for code, step in pairs(steps) do
    if code ~= 85 and code ~= 65 then -- 'U', 'A'
      steps[code] = function(from, ...)
        allowed[from] = step(from, ...)
        return allowed[from]
      end
    end
  end

  -- The record under a key: empty for none, false for a key of another type.
  local function record_at(key)
    local text = pcall('GETRANGE', key, '0', HEADER_SIZE - 1)
    if type(text) ~= 'string' then
      return false
    end
    if #text == HEADER_SIZE then
      local record = { unpack(HEADER, text) }
      -- unpack also returns the position after the text, at the index CLOSED.
      record[CLOSED] = false
      local base, current = record[BASE], record[CURRENT]
      if record[1] == VERSION
        and (base + current) % 1 == 0
        and 0 <= base
        and base <= current
        and record[LAST] % 1 == 0
      then
        return record
      end
    end
    return {}
  end

  -- Begins a new ring of a record. It covers the buckets from the end of the last hits on, which are
  -- known to be empty.
  local function begin_ring(record, number, interval, buckets)
    local current = record[CURRENT]
    local empty = current and math.ceil((current + 1) * record[INTERVAL] / interval) or number
    record[INTERVAL], record[BUCKETS] = interval, buckets
    record[BASE], record[CURRENT], record[OPEN], record[OPEN + 1], record[OPEN + 2] =
      max(number - buckets, min(empty, number)), number, 0, 0, 0
    record[IS_NEW], record[CLOSED] = true, false
  end

  local function snapshots_of(key)
    return string.sub(key, 1, -3) .. 'up'
  end

  -- The first hits of a period make a snapshot of the totals before them, and keep the last one.
  local function turn(record, key, now, from, to)
    local length = to - from
    if now >= to then
      from, to = to, to + length
    end
    record[KEPT_UNTIL] = math.ceil((to + length * 9 / 8) / 1000)
    if record[LAST] < from then
      local last = pcall('GETRANGE', snapshots_of(key), '0', '39')
      record[SNAPSHOTS] = pack('<ddddd', record[LAST], from, list(record, ASKED, GIVEN))
        .. (type(last) == 'string' and last or '')
    end
  end

  -- Reads a record, and brings its ring and its period to the present.
  local function open_record(key, now, interval, buckets, longest, from, to)
    local record = record_at(key)
    if not record then
      return false
    end
    record[LONGEST_LIFE] = longest
    local number = floor(now / interval)
    if not record[LAST] then
      record[1], record[EXPIRY], record[ASKED], record[REFUSED], record[GIVEN], record[FIRST],
        record[LAST] = VERSION, 0, 0, 0, 0, now, now
    end
    local current = record[CURRENT]
    if record[INTERVAL] ~= interval
      or record[BUCKETS] ~= buckets
      or number - current >= buckets
    then
      begin_ring(record, number, interval, buckets)
    elseif number > current then
      record[CLOSED] = (current - record[BASE]) % buckets
      record[CELLS] = pack(CELL, record[OPEN], record[OPEN + 1], record[OPEN + 2])
        .. string.rep('\0', CELL_SIZE * (number - current - 1))
      record[CURRENT], record[OPEN], record[OPEN + 1], record[OPEN + 2] = number, 0, 0, 0
    end
    turn(record, key, now, from, to)
    return record
  end

  -- Whether a check failed after its step: a request with all_or_none fails as a whole.
  local function has_failed(index)
    return rows[index] and unpack('<d', rows[index]) < 0
  end

  usage = function(now)
    for position = 1, looks and #looks or 0 do
      allowed[looks[position]] = nil
    end
    local now_ms, totals = floor(now / 1000), {}
    for at = 1, #entries, ENTRY_SIZE do
      local index, number, limit, hits, refused = unpack(ENTRY, entries, at)
      hits = counted and counted[index] or hits
      local charged = kept_hits and kept_hits[index] or 0
      -- A subject is listed from its first reservation on.
      local is_recorded = index == 0
        or ((hits ~= 0 or charged ~= 0 or reserved and reserved[index])
          and allowed[index] ~= nil
          and not has_failed(index))
      local record = records[number]
      if is_recorded and record == nil then
        record = open_record(KEYS[#checked + number], now,
          unpack(LIMIT, ARGV[8], (limit - 1) * LIMIT_SIZE + 1))
        records[number] = record
      end
      if is_recorded and record then
        if hits < 0 then
          record[GIVEN] = min(record[GIVEN] - hits, MOST)
          record[OPEN + 2] = min(record[OPEN + 2] - hits, MOST_IN_BUCKET)
        else
          if index ~= 0 then
            refused = allowed[index] and 0 or hits
          end
          record[ASKED], record[REFUSED] =
            min(record[ASKED] + hits, MOST), min(record[REFUSED] + refused, MOST)
          record[OPEN] = min(record[OPEN] + hits, MOST_IN_BUCKET)
          record[OPEN + 1] = min(record[OPEN + 1] + refused, MOST_IN_BUCKET)
        end
        if charged ~= 0 then
          -- Hits of holds that stay charged are none of the refused ones.
          local used, given = max(0, charged), max(0, -charged)
          record[ASKED], record[GIVEN] =
            min(record[ASKED] + used, MOST), min(record[GIVEN] + given, MOST)
          record[OPEN], record[OPEN + 2] = min(record[OPEN] + used, MOST_IN_BUCKET),
            min(record[OPEN + 2] + given, MOST_IN_BUCKET)
        end
        if index ~= 0 then
          record[LAST] = max(record[LAST], now)
        end
        totals[#totals + 1] =
          pack(TOTAL, record[ASKED], record[REFUSED], record[FIRST], record[LAST])
      else
        totals[#totals + 1] = pack(TOTAL, -1, 0, 0, 0)
      end
    end
    return function()
      for number, record in pairs(records) do
        if record then
          local key = KEYS[#checked + number]
          -- The record is kept for as long as the subject has been known, at least for the time of
          -- the ring and for an hour, at most for the longest life that the limit sets. The expiry
          -- is set in advance, because setting it costs more than the write that it belongs to.
          local ring, known =
            record[INTERVAL] * record[BUCKETS] / 1000, (record[LAST] - record[FIRST]) / 1000
          local period, snapshots = record[KEPT_UNTIL] - now_ms, record[SNAPSHOTS]
          local needed = now_ms + min(record[LONGEST_LIFE], max(3600000, ring, known, period))
          local life
          if record[EXPIRY] < needed or record[IS_NEW] then
            record[EXPIRY] =
              math.ceil(max(record[EXPIRY], needed + max(10000, (needed - now_ms) / 8)))
            life = string.format('%.0f', kept and LONGEST or min(record[EXPIRY] - now_ms, LONGEST))
          end
          local header = pack(HEADER, list(record, 1, OPEN + 2))
          if record[IS_NEW] then
            call('SET', key, header, 'PX', life)
          else
            call('SETRANGE', key, '0', header)
            local from, cells = record[CLOSED], record[CELLS]
            if from then
              -- The cells after the end of the ring continue at its start.
              local behind = CELL_SIZE * (record[BUCKETS] - from)
              call('SETRANGE', key, HEADER_SIZE + CELL_SIZE * from, string.sub(cells, 1, behind))
              if #cells > behind then
                call('SETRANGE', key, HEADER_SIZE, string.sub(cells, behind + 1))
              end
            end
            if life then
              call('PEXPIRE', key, life)
            end
          end
          if snapshots then
            pcall('SET', snapshots_of(key), snapshots, 'PX',
              string.format('%.0f', kept and LONGEST or min(period, LONGEST)))
          end
        end
      end
      return table.concat(totals)
    end
  end
end
