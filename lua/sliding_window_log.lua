-- sliding_window_log: every tick that had hits, in a log (see log.lua). The twin is src/algorithm/sliding_window_log.rs.
if steps[76] then
  steps[76] = function(from, to, hits, _, present, tick_ms, limit, window, count_denied)
    return log_run(76, present, tick_ms, from, to, function(log, key, t)
      if not log or log.tip - t > window then
        log = log_of(76, 0, 0, log and log.room or 0, 0, 0, 0, 0)
      end
      -- The clock went back: on from where it was, and all waits are longer by as much.
      local behind = math.max(0, log.tip - t)
      t = t + behind
      local allowed, used, newest, retry, after = log_step(log, key, t, t - window, t - window, hits, limit, count_denied)
      local reset = newest and newest - t + window + behind or 0
      return allowed, used, reset, retry and retry - t + window + behind or -1, after, math.max(1, reset)
    end)
  end
end
