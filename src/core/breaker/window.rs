//! A sliding window over the outcomes of calls, in buckets. It only counts; `breaker.rs` interprets
//! the counts.

use crate::core::time::{Micros, Span};

/// The number of buckets; the oldest one is dropped at a time.
pub(super) const BUCKETS: usize = 10;

/// Counts of calls by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    /// All reported calls.
    pub(super) calls: u64,
    /// Those without an answer.
    pub(super) failed: u64,
    /// Those that were answered just before their deadline.
    pub(super) slow: u64,
}

impl Tally {
    fn add(&mut self, other: Self) {
        self.calls = self.calls.saturating_add(other.calls);
        self.failed = self.failed.saturating_add(other.failed);
        self.slow = self.slow.saturating_add(other.slow);
    }
}

/// The last [`BUCKETS`] intervals, the current one included.
#[derive(Clone, Debug)]
pub(super) struct CallWindow {
    bucket_micros: u64,
    /// The number of the current bucket, counted from the origin of the caller's time.
    current: u64,
    buckets: [Tally; BUCKETS],
}

impl CallWindow {
    /// An empty window of that length. Buckets last for one microsecond at least.
    pub(super) fn new(length: Span) -> Self {
        Self {
            bucket_micros: (length.micros() / BUCKETS as u64).max(1),
            current: 0,
            buckets: [Tally::default(); BUCKETS],
        }
    }

    /// Adds a report. One with an earlier time than the last counts at the time of the last.
    pub(super) fn add(&mut self, now: Micros, report: Tally) {
        self.move_to(now);
        self.buckets[index(self.current)].add(report);
    }

    /// The counts of the whole window.
    pub(super) fn total(&self) -> Tally {
        self.buckets
            .iter()
            .fold(Tally::default(), |mut total, bucket| {
                total.add(*bucket);
                total
            })
    }

    /// The number of buckets in which `what` is not 0.
    pub(super) fn buckets_with(&self, what: fn(&Tally) -> u64) -> u64 {
        self.buckets
            .iter()
            .filter(|bucket| what(bucket) > 0)
            .count() as u64
    }

    fn move_to(&mut self, now: Micros) {
        let current = (now.0 / self.bucket_micros).max(self.current);
        for passed in (self.current..current).rev().take(BUCKETS) {
            self.buckets[index(passed + 1)] = Tally::default();
        }
        self.current = current;
    }
}

const fn index(bucket: u64) -> usize {
    (bucket % BUCKETS as u64) as usize
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    const LENGTH: Span = Span::from_micros(1_000_000);

    fn report(calls: u64) -> Tally {
        Tally {
            calls,
            failed: calls / 2,
            slow: calls / 3,
        }
    }

    #[test]
    fn reports_older_than_the_window_are_dropped() {
        for (later_micros, calls) in [
            (0, 12),
            (999_999, 12),
            (1_000_000, 6),
            (2_000_000, 6),
            (u64::MAX, 6),
        ] {
            let mut window = CallWindow::new(LENGTH);
            window.add(Micros(7_000_000), report(6));
            window.add(
                Micros(7_000_000_u64.saturating_add(later_micros)),
                report(6),
            );
            assert_eq!(
                window.total().calls,
                calls,
                "{later_micros} microseconds later"
            );
        }
    }

    #[test]
    fn a_window_of_no_length_has_buckets_of_a_microsecond() {
        let mut window = CallWindow::new(Span::ZERO);
        window.add(Micros(5), report(6));
        assert_eq!(window.total(), report(6));
        window.add(Micros(5 + BUCKETS as u64), report(9));
        assert_eq!(window.total(), report(9));
    }

    proptest! {
        #![proptest_config(crate::testing::property(1_000))]

        #[test]
        fn it_equals_a_list_of_all_reports(reports in prop::collection::vec((0_u64..1_500_000, 1_u64..9), 1..60)) {
            let (mut window, mut now, mut list) = (CallWindow::new(LENGTH), 0, Vec::new());
            for (pause, calls) in reports {
                // Most pauses are short: many reports fit in one window.
                now += if calls == 1 { pause } else { pause / 20 };
                window.add(Micros(now), report(calls));
                list.push((now / 100_000, report(calls)));
                let is_new = |slot: u64| slot + 10 > now / 100_000;
                let mut naive = Tally::default();
                list.iter().filter(|(slot, _)| is_new(*slot)).for_each(|(_, tally)| naive.add(*tally));
                prop_assert_eq!(window.total(), naive);
                let slow: BTreeSet<_> = list.iter().filter(|(slot, tally)| is_new(*slot) && tally.slow > 0).map(|(slot, _)| slot).collect();
                prop_assert_eq!(window.buckets_with(|bucket| bucket.slow), slow.len() as u64);
            }
        }
    }
}
