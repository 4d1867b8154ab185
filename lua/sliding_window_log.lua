-- sliding_window_log. The twin is src/core/algorithm/sliding_window_log.rs.
--
-- State: a log (see log.lua) with an entry per tick that had hits. Parameters: count_denied, limit,
-- window.
if steps[76] then -- 'L'
  steps[76] = function(from, to, hits, _, present, tick_ms, count_denied, limit, window) -- 'L'
    return log_run(76, present, tick_ms, from, to, 1, 0, function(log, key, t) -- 'L'
      if not log or log.tip - t > window then
        log = log_of(76, 0, 0, log and log.room or 0, 0, 0, 0, 0) -- 'L'
      end
      -- The clock went back: continue at the newest entry, all waits longer by the difference.
      local behind = math.max(0, log.tip - t)
      t = t + behind
      local allowed, used, newest, retry, after =
        log_step(log, key, t, t - window, t - window, hits, limit, count_denied)
      return allowed, used, newest, retry, after, window - t + behind
    end)
  end
end
