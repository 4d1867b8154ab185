//! How long a server takes to answer, as all threads of the process saw it lately.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::time::{Duration, Instant};

use crate::store::Budget;

/// A server that can answer sooner is near.
const NEAR: Duration = Duration::from_millis(1);

/// An answer that takes so many times as long as usual is overdue, if it takes longer than this.
const OVERDUE: u32 = 4;
const NEVER_OVERDUE: Duration = Duration::from_millis(5);

/// What is known from the last batches; nothing before there was one.
#[derive(Debug, Default)]
pub(crate) struct RttEstimator {
    mean_micros: AtomicU64,
    /// Of the quickest: what the way takes, where the mean also has what this process had to do beside.
    quickest_micros: AtomicU64,
}

impl RttEstimator {
    /// A batch took so long to be answered.
    pub(crate) fn record(&self, time: Duration) {
        let new = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let or_first = |old: u64, next: u64| if old == 0 { new } else { next };
        let mean = self.mean_micros.load(Ordering::Relaxed);
        self.mean_micros.store(or_first(mean, mean - mean / 8 + new / 8), Ordering::Relaxed);
        let quickest = self.quickest_micros.load(Ordering::Relaxed);
        // Grows slowly, so that one among many is enough, and a way that became longer is noticed all the same.
        self.quickest_micros.store(or_first(quickest, new.min(quickest + quickest / 16 + 1)), Ordering::Relaxed);
    }

    /// Whether the way to the server is short, however busy this process is.
    pub(crate) fn is_near(&self) -> bool {
        self.quickest_micros.load(Ordering::Relaxed) < u64::try_from(NEAR.as_micros()).unwrap_or(u64::MAX)
    }

    /// Whether so little time is left that waiting for a batch under way to come back would be too much.
    pub(crate) fn is_deadline_too_close(&self, budget: Budget, now: Instant) -> bool {
        budget.deadline.saturating_duration_since(now) < self.mean().saturating_mul(5) / 2
    }

    /// Whether an answer takes more than a quarter of this time.
    pub(crate) fn is_slow_for(&self, time: Duration) -> bool {
        self.mean() > time / 4
    }

    /// Whether more than half of the time would be over before so many batches, which begin with the one under way, and one's own are back. Never
    /// behind no other batch: somebody has to find out that it has become quicker.
    pub(crate) fn is_queue_too_long(&self, batches: u32, budget: Budget, now: Instant) -> bool {
        batches > 0 && budget.deadline.saturating_duration_since(now) / 2 < self.mean().saturating_mul(batches + 1)
    }

    /// Whether something is in the way of an answer that has been awaited since then, and may not be in the way of another one.
    pub(crate) fn is_overdue(&self, since: Instant, now: Instant) -> bool {
        now.saturating_duration_since(since) > self.mean().saturating_mul(OVERDUE).max(NEVER_OVERDUE)
    }

    fn mean(&self) -> Duration {
        Duration::from_micros(self.mean_micros.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUICK: Duration = Duration::from_micros(200);

    fn after(times: impl IntoIterator<Item = Duration>) -> RttEstimator {
        let rtt = RttEstimator::default();
        times.into_iter().for_each(|time| rtt.record(time));
        rtt
    }

    #[test]
    fn a_busy_process_makes_no_server_far() {
        let now_and_then = (0..1_000).map(|index| if index % 10 == 0 { QUICK } else { 20 * QUICK });
        assert!(after(now_and_then).is_near());
    }

    #[test]
    fn a_way_that_becomes_longer_or_shorter_is_noticed() {
        assert!(after([QUICK]).is_near());
        let longer = || std::iter::once(QUICK).chain(std::iter::repeat_n(50 * QUICK, 100));
        assert!(!after(longer()).is_near());
        assert!(!after([50 * QUICK]).is_near());
        assert!(after(longer().chain([QUICK])).is_near());
    }

    #[test]
    fn an_answer_is_overdue_after_four_times_the_usual_and_five_milliseconds() {
        let now = Instant::now();
        for (usual, overdue) in [(QUICK, 25 * QUICK), (10 * QUICK, 40 * QUICK)] {
            let rtt = after([usual; 3]);
            assert!(!rtt.is_overdue(now, now + overdue));
            assert!(rtt.is_overdue(now, now + overdue + Duration::from_micros(1)));
        }
    }

    #[test]
    fn half_of_the_time_is_for_the_batches_before() {
        let (rtt, now) = (after([4 * QUICK; 3]), Instant::now());
        let left = |left: Duration| Budget::until(now + left);
        assert!(!rtt.is_queue_too_long(0, left(QUICK), now));
        for batches in 1..4 {
            let time = (batches + 1) * 8 * QUICK;
            assert!(!rtt.is_queue_too_long(batches, left(time), now));
            assert!(rtt.is_queue_too_long(batches, left(time - Duration::from_micros(2)), now));
        }
        assert!(!rtt.is_slow_for(16 * QUICK) && rtt.is_slow_for(15 * QUICK));
    }

    #[test]
    fn who_has_less_time_than_two_and_a_half_cannot_wait_for_a_batch_under_way() {
        let (rtt, now) = (after([4 * QUICK; 3]), Instant::now());
        let left = |left: Duration| Budget::until(now + left);
        assert!(rtt.is_deadline_too_close(left(9 * QUICK), now));
        assert!(!rtt.is_deadline_too_close(left(10 * QUICK), now));
        assert!(!RttEstimator::default().is_deadline_too_close(left(Duration::ZERO), now));
    }
}
