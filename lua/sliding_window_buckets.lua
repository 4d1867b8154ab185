-- sliding_window_buckets. The twin is src/core/algorithm/sliding_window_buckets.rs.
--
-- State: a log (see log.lua) with an entry per bucket that had hits, whose tick is the bucket's
-- number: empty buckets need no space, and a bucket is never mistaken for one of an earlier lap.
-- The oldest bucket that overlaps the window counts as a whole. Parameters: count_denied, limit,
-- window, interval, buckets, life.
if steps[66] then -- 'B'
  steps[66] = function( -- 'B'
    from, to, hits, _, present, tick_ms, count_denied, limit, window, interval, buckets, life
  )
    return log_run(66, present, tick_ms, from, to, interval, life, function(log, key, t) -- 'B'
      local bucket = floor(t / interval)
      if not log or log.newest - bucket > math.ceil(window / interval) then
        log = log_of(66, 0, 0, log and log.room or 0, 0, 0, 0, 0) -- 'B'
      end
      local behind = 0
      if log.newest > bucket then
        -- The clock went back: continue at the start of the newest bucket, all waits longer by the
        -- difference.
        bucket, behind = log.newest, log.newest * interval - t
        t = t + behind
      end
      local over = floor((t - window + 1) / interval) - 1
      local allowed, used, newest, retry, after =
        log_step(log, key, bucket, over, bucket - buckets, hits, limit, count_denied)
      -- A bucket leaves when the window no longer overlaps its last tick.
      return allowed, used, newest, retry, after, interval + window - 1 - t + behind
    end)
  end
end
