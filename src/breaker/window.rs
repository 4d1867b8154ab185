//! What became of the calls of the last second, in buckets, so that old news goes without a list of every call.
//!
//! It only counts; what the counts mean is said in `breaker.rs`.

use crate::time::{Micros, Span};

/// Old news goes a tenth of the window at a time.
pub(super) const BUCKETS: usize = 10;

/// Calls and what became of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    /// All that were told.
    pub(super) calls: u64,
    /// Of these, without an answer.
    pub(super) failed: u64,
    /// Of these, answered late.
    pub(super) slow: u64,
}

impl Tally {
    fn add(&mut self, other: Self) {
        self.calls = self.calls.saturating_add(other.calls);
        self.failed = self.failed.saturating_add(other.failed);
        self.slow = self.slow.saturating_add(other.slow);
    }
}

/// The last [`BUCKETS`] stretches of time, the present one included.
#[derive(Clone, Debug)]
pub(super) struct Window {
    bucket_micros: u64,
    /// The number of the present bucket, counted from the origin of the caller's time.
    present: u64,
    buckets: [Tally; BUCKETS],
}

impl Window {
    /// An empty window of that length. One that is too short to be cut has buckets of a microsecond.
    pub(super) fn new(length: Span) -> Self {
        Self { bucket_micros: (length.micros() / BUCKETS as u64).max(1), present: 0, buckets: [Tally::default(); BUCKETS] }
    }

    /// Counts `news`. Told out of order, it counts as of the latest time that was told.
    pub(super) fn add(&mut self, now: Micros, news: Tally) {
        self.move_to(now);
        self.buckets[index(self.present)].add(news);
    }

    /// All that is not old.
    pub(super) fn total(&self) -> Tally {
        self.buckets.iter().fold(Tally::default(), |mut total, bucket| {
            total.add(*bucket);
            total
        })
    }

    /// How many buckets hold any of `what`.
    pub(super) fn buckets_with(&self, what: fn(&Tally) -> u64) -> u64 {
        self.buckets.iter().filter(|bucket| what(bucket) > 0).count() as u64
    }

    fn move_to(&mut self, now: Micros) {
        let present = (now.0 / self.bucket_micros).max(self.present);
        for passed in (self.present..present).rev().take(BUCKETS) {
            self.buckets[index(passed + 1)] = Tally::default();
        }
        self.present = present;
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

    fn told(calls: u64) -> Tally {
        Tally { calls, failed: calls / 2, slow: calls / 3 }
    }

    #[test]
    fn what_is_a_window_old_is_forgotten() {
        for (later_micros, calls) in [(0, 12), (999_999, 12), (1_000_000, 6), (2_000_000, 6), (u64::MAX, 6)] {
            let mut window = Window::new(LENGTH);
            window.add(Micros(7_000_000), told(6));
            window.add(Micros(7_000_000_u64.saturating_add(later_micros)), told(6));
            assert_eq!(window.total().calls, calls, "{later_micros} microseconds later");
        }
    }

    #[test]
    fn a_window_that_cannot_be_cut_is_still_one() {
        let mut window = Window::new(Span::ZERO);
        window.add(Micros(5), told(6));
        assert_eq!(window.total(), told(6));
        window.add(Micros(5 + BUCKETS as u64), told(9));
        assert_eq!(window.total(), told(9));
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 1_000, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn it_holds_what_a_list_of_all_reports_says(reports in prop::collection::vec((0_u64..1_500_000, 1_u64..9), 1..60)) {
            let (mut window, mut now, mut list) = (Window::new(LENGTH), 0, Vec::new());
            for (pause, calls) in reports {
                // Most pauses are short: many reports fit in one window.
                now += if calls == 1 { pause } else { pause / 20 };
                window.add(Micros(now), told(calls));
                list.push((now / 100_000, told(calls)));
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
