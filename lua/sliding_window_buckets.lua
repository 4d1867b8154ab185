-- sliding_window_buckets: hits counted by intervals, as a log (see log.lua) of the numbers of buckets: only buckets that had hits take
-- place, and no lap can come back. The twin is src/algorithm/sliding_window_buckets.rs. The oldest bucket that overlaps the window
-- counts whole.
if steps[66] then -- 'B'
  steps[66] = function(from, to, hits, _, present, tick_ms, limit, window, count_denied, interval, buckets, life) -- 'B'
    return log_run(66, present, tick_ms, from, to, interval, life, function(log, key, t) -- 'B'
      local bucket = floor(t / interval)
      if not log or log.newest - bucket > math.ceil(window / interval) then
        log = log_of(66, 0, 0, log and log.room or 0, 0, 0, 0, 0) -- 'B'
      end
      local behind = 0
      if log.newest > bucket then
        -- The clock went back: on at the start of the bucket that it had seen, and all waits are longer by as much.
        bucket, behind = log.newest, log.newest * interval - t
        t = t + behind
      end
      local over = floor((t - window + 1) / interval) - 1
      local allowed, used, newest, retry, after = log_step(log, key, bucket, over, bucket - buckets, hits, limit, count_denied)
      -- The end of a bucket leaves the window a window after its last tick.
      return allowed, used, newest, retry, after, interval + window - 1 - t + behind
    end)
  end
end
