//! How long a server took to answer each batch, as a histogram for metrics.
//!
//! Every worker's lanes to a server add to a row of their own, so that no two threads write to one
//! cache line. Nothing decides by these counts.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::core::lock;

/// Upper bounds of the buckets in seconds. Envoy waits for 20 ms by default, of which 17 ms are
/// Redis's.
pub static BOUNDS: [f64; 13] = [
    0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.017, 0.05, 0.1, 0.25, 0.5, 1.0,
];

/// The round trips of one server, of all threads.
#[derive(Debug, Default)]
pub(crate) struct RoundTrips {
    /// Of all lanes since the start; those whose lanes have ended are used again.
    rows: Mutex<Vec<Arc<Row>>>,
}

/// The round trips of the lanes of one thread. Only that thread may add to it.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Row {
    buckets: [AtomicU64; BOUNDS.len() + 1],
    sum_nanos: AtomicU64,
}

/// The round trips of a server so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RoundTripCounts {
    /// Those within each of [`BOUNDS`] and above the one before, and last those above all bounds.
    pub buckets: [u64; BOUNDS.len() + 1],
    /// All of them together.
    pub sum: Duration,
}

impl RoundTripCounts {
    /// The number of answered batches.
    pub fn batches(&self) -> u64 {
        self.buckets.iter().sum()
    }
}

impl RoundTrips {
    /// A row for the lanes of one thread, which nothing else adds to for as long as it is held.
    pub(crate) fn row(&self) -> Arc<Row> {
        let mut rows = lock(&self.rows);
        let unused = rows.iter_mut().position(|row| Arc::get_mut(row).is_some());
        let index = unused.unwrap_or_else(|| {
            rows.push(Arc::default());
            rows.len() - 1
        });
        Arc::clone(&rows[index])
    }

    pub(crate) fn counts(&self) -> RoundTripCounts {
        let (mut buckets, mut sum_nanos) = ([0_u64; BOUNDS.len() + 1], 0_u64);
        for row in lock(&self.rows).iter() {
            for (sum, count) in buckets.iter_mut().zip(&row.buckets) {
                *sum += count.load(Ordering::Relaxed);
            }
            sum_nanos = sum_nanos.wrapping_add(row.sum_nanos.load(Ordering::Relaxed));
        }
        RoundTripCounts {
            buckets,
            sum: Duration::from_nanos(sum_nanos),
        }
    }
}

impl Row {
    /// Counts one round trip: two loads and two stores.
    pub(crate) fn record(&self, took: Duration) {
        let seconds = took.as_secs_f64();
        let add = |cell: &AtomicU64, amount: u64| {
            let sum = cell.load(Ordering::Relaxed).wrapping_add(amount);
            cell.store(sum, Ordering::Relaxed);
        };
        let bucket = BOUNDS.partition_point(|&bound| bound < seconds);
        add(&self.buckets[bucket], 1);
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        add(&self.sum_nanos, nanos);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trips_of_all_threads_are_added_up() {
        let round_trips = RoundTrips::default();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                let row = round_trips.row();
                scope.spawn(move || {
                    (0..10_000).for_each(|_| row.record(Duration::from_micros(300)));
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
        let row = round_trips.row();
        for micros in [0, 100, 101, 17_000, 1_000_000, 1_000_001] {
            row.record(Duration::from_micros(micros));
        }
        assert_eq!(
            round_trips.counts().buckets,
            [2, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 1]
        );
    }

    #[test]
    fn rows_are_used_again_and_lose_nothing() {
        let round_trips = RoundTrips::default();
        for _ in 0..100 {
            let (one, other) = (round_trips.row(), round_trips.row());
            assert!(!Arc::ptr_eq(&one, &other));
            one.record(Duration::from_millis(1));
        }
        assert_eq!(lock(&round_trips.rows).len(), 2);
        assert_eq!(round_trips.counts().buckets[3], 100);
    }
}
