//! Estimate of the time in which one server answers a batch, shared by all threads of the process.
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
//! Threads update both without a lock, and a sample may be lost. Nothing here may be used where a
//! lost sample would matter.

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
    /// Adds a sample: the time in which a batch was answered.
    pub(crate) fn record(&self, sample: Duration) {
        let new = Span::from(sample).micros();
        let or_first = |old: u64, next: u64| if old == 0 { new } else { next };
        let mean = self.mean_micros.load(Ordering::Relaxed);
        self.mean_micros
            .store(or_first(mean, mean - mean / 8 + new / 8), Ordering::Relaxed);
        let min = self.min_micros.load(Ordering::Relaxed);
        // It rises slowly: one fast sample among many slow ones keeps it low, and a longer round
        // trip is still noticed.
        let least = or_first(min, new.min(min + min / 16 + 1));
        self.min_micros.store(least, Ordering::Relaxed);
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
    /// earlier batches: unless at least one request is sent, a faster server is not noticed.
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

/// Upper bounds of the buckets in seconds. Envoy waits for 20 ms by default, of which 17 ms are
/// Redis's.
pub static BOUNDS: [f64; 13] = [
    0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.017, 0.05, 0.1, 0.25, 0.5, 1.0,
];

/// Histogram of the times in which one server answered batches, for metrics. Nothing decides by it.
/// Threads share it, as they share the clock and the circuit of the server with each batch.
#[derive(Debug, Default)]
pub(crate) struct RoundTrips {
    buckets: [AtomicU64; BOUNDS.len() + 1],
    sum_nanos: AtomicU64,
}

/// The round trips of a server since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RoundTripCounts {
    /// Round trips within each of [`BOUNDS`] and above the one before; the last element counts
    /// those above all bounds.
    pub buckets: [u64; BOUNDS.len() + 1],
    /// Sum of all times.
    pub sum: Duration,
}

impl RoundTripCounts {
    /// The number of answered batches.
    pub fn batches(&self) -> u64 {
        self.buckets.iter().sum()
    }
}

impl RoundTrips {
    /// Counts one round trip.
    pub(crate) fn record(&self, took: Duration) {
        let seconds = took.as_secs_f64();
        let bucket = BOUNDS.partition_point(|&bound| bound < seconds);
        self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.sum_nanos.fetch_add(nanos, Ordering::Relaxed);
    }

    pub(crate) fn counts(&self) -> RoundTripCounts {
        let count = |bucket: &AtomicU64| bucket.load(Ordering::Relaxed);
        RoundTripCounts {
            buckets: self.buckets.each_ref().map(count),
            sum: Duration::from_nanos(count(&self.sum_nanos)),
        }
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

    #[test]
    fn round_trips_of_all_threads_are_added_up() {
        let round_trips = RoundTrips::default();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    (0..10_000).for_each(|_| round_trips.record(Duration::from_micros(300)));
                });
            }
        });
        let counts = round_trips.counts();
        assert_eq!(
            (counts.buckets[2], counts.buckets.iter().sum::<u64>()),
            (40_000, 40_000)
        );
        assert_eq!(counts.sum, Duration::from_secs(12));
    }

    #[test]
    fn a_round_trip_is_in_the_bucket_of_the_next_bound() {
        let round_trips = RoundTrips::default();
        for micros in [0, 100, 101, 17_000, 1_000_000, 1_000_001] {
            round_trips.record(Duration::from_micros(micros));
        }
        assert_eq!(
            round_trips.counts().buckets,
            [2, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 1]
        );
    }
}
