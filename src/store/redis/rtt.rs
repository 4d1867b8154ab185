//! An estimate of how long one server takes to answer a batch, shared by all threads of the
//! process.
//!
//! The lanes use it to choose how many batches are under way at a time, and to refuse requests that
//! would wait for too long.
//!
//! A sample is the time from the encoding of a batch to its last reply, and so includes the
//! server's work. The mean is an exponentially weighted moving average in which the newest sample
//! weighs 1/8: the formula and the gain of SRTT in RFC 6298, section 2. Nothing else of that RFC is
//! used: there is no variance and no retransmission timeout. The minimum follows a faster sample at
//! once, and rises by at most 1/16 and 1 µs per slower one.
//!
//! Threads update both without a lock, so that a sample may be lost. Nothing here may be used where
//! a lost sample would matter.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::time::{Duration, Instant};

use crate::core::time::Span;
use crate::store::Budget;

/// A server whose minimum is below this is near.
const NEAR: Duration = Duration::from_millis(1);

/// A batch is overdue after this many times the mean.
const OVERDUE_FACTOR: u32 = 4;

/// No batch is overdue sooner than this.
const MIN_OVERDUE: Duration = Duration::from_millis(5);

/// The mean and the minimum response time of a server, in microseconds; both are 0 before the first
/// sample.
#[derive(Debug, Default)]
pub(crate) struct RttEstimator {
    mean_micros: AtomicU64,
    /// Close to the network's round trip; the mean also contains the time that this process was
    /// busy with other work.
    min_micros: AtomicU64,
}

impl RttEstimator {
    /// Adds a sample: how long a batch took to be answered.
    pub(crate) fn record(&self, sample: Duration) {
        let new = Span::from(sample).micros();
        let or_first = |old: u64, next: u64| if old == 0 { new } else { next };
        let mean = self.mean_micros.load(Ordering::Relaxed);
        self.mean_micros
            .store(or_first(mean, mean - mean / 8 + new / 8), Ordering::Relaxed);
        let min = self.min_micros.load(Ordering::Relaxed);
        // It rises slowly, so that one fast sample among many slow ones keeps it low, and a longer
        // round trip is still noticed.
        self.min_micros.store(
            or_first(min, new.min(min + min / 16 + 1)),
            Ordering::Relaxed,
        );
    }

    /// Whether the minimum is below 1 ms: the round trip is short, however busy this process is.
    /// True before the first sample.
    pub(crate) fn is_near(&self) -> bool {
        self.min_micros.load(Ordering::Relaxed) < Span::from(NEAR).micros()
    }

    /// Whether less than 2.5 times the mean is left until the deadline: too little to wait for the
    /// reply to a batch under way first.
    pub(crate) fn is_deadline_too_close(&self, budget: Budget, now: Instant) -> bool {
        budget.deadline.saturating_duration_since(now) < self.mean().saturating_mul(5) / 2
    }

    /// Whether the mean is more than a quarter of `time`.
    pub(crate) fn is_slow_for(&self, time: Duration) -> bool {
        self.mean() > time / 4
    }

    /// Whether `batches` earlier batches (the one under way among them) and the request's own would
    /// together take more than half of the time left until the deadline, at the mean. False without
    /// earlier batches: at least one request has to be sent so that a faster server is noticed.
    pub(crate) fn is_queue_too_long(&self, batches: u32, budget: Budget, now: Instant) -> bool {
        batches > 0
            && budget.deadline.saturating_duration_since(now) / 2
                < self.mean().saturating_mul(batches + 1)
    }

    /// Whether a batch that was sent at `since` is overdue: it has taken more than four times the
    /// mean, and more than 5 ms. A lost packet may hold up its connection; other connections may be
    /// faster.
    pub(crate) fn is_overdue(&self, since: Instant, now: Instant) -> bool {
        now.saturating_duration_since(since)
            > self.mean().saturating_mul(OVERDUE_FACTOR).max(MIN_OVERDUE)
    }

    pub(crate) fn mean(&self) -> Duration {
        Duration::from_micros(self.mean_micros.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUICK: Duration = Duration::from_micros(200);

    fn after(samples: impl IntoIterator<Item = Duration>) -> RttEstimator {
        let rtt = RttEstimator::default();
        samples.into_iter().for_each(|sample| rtt.record(sample));
        rtt
    }

    #[test]
    fn a_busy_process_does_not_make_a_near_server_far() {
        let now_and_then = (0..1_000).map(|index| if index % 10 == 0 { QUICK } else { 20 * QUICK });
        assert!(after(now_and_then).is_near());
    }

    #[test]
    fn a_round_trip_that_becomes_longer_or_shorter_is_noticed() {
        assert!(after([QUICK]).is_near());
        let longer = || std::iter::once(QUICK).chain(std::iter::repeat_n(50 * QUICK, 100));
        assert!(!after(longer()).is_near());
        assert!(!after([50 * QUICK]).is_near());
        assert!(after(longer().chain([QUICK])).is_near());
    }

    #[test]
    fn a_batch_is_overdue_after_four_times_the_mean_and_five_milliseconds() {
        let now = Instant::now();
        for (mean, overdue) in [(QUICK, 25 * QUICK), (10 * QUICK, 40 * QUICK)] {
            let rtt = after([mean; 3]);
            assert!(!rtt.is_overdue(now, now + overdue));
            assert!(rtt.is_overdue(now, now + overdue + Duration::from_micros(1)));
        }
    }

    #[test]
    fn the_queue_is_too_long_when_it_takes_half_of_the_time_left() {
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
    fn a_deadline_within_two_and_a_half_means_is_too_close() {
        let (rtt, now) = (after([4 * QUICK; 3]), Instant::now());
        let left = |left: Duration| Budget::until(now + left);
        assert!(rtt.is_deadline_too_close(left(9 * QUICK), now));
        assert!(!rtt.is_deadline_too_close(left(10 * QUICK), now));
        assert!(!RttEstimator::default().is_deadline_too_close(left(Duration::ZERO), now));
    }
}
