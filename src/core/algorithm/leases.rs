//! Hits that a replica draws ahead, for limits with `lease`.
//!
//! A draw is a hit with more hits. The count after it gives its hits their positions in the window,
//! which no other draw has, and its verdict has the time to the reset: a replica needs neither the
//! store's clock nor the number of a window.

use super::{Algorithm, AlgorithmKind, LARGEST_COUNT, OptionError, messages};
use crate::core::time::Span;
use crate::core::verdict::Verdict;

impl AlgorithmKind {
    /// The error for an option that has no meaning for the algorithm, if that has one of its own:
    /// for `lease`.
    pub(super) fn refusal(self, option: &str) -> Option<OptionError> {
        let why = match self {
            _ if option != "lease" => return None,
            Self::TokenBucket => "held tokens next to a refilling bucket exceed its burst",
            Self::LeakyBucket => "each of its hits waits for a time of its own",
            Self::Concurrency => "its requests take places and give them back",
            _ => "it dates each hit",
        };
        Some(messages::algorithm_without_lease(self.name(), why).of("lease"))
    }
}

impl Algorithm {
    /// The shortest time for which a position means the same; `None`: it has no leases.
    pub fn lease_window(&self) -> Option<Span> {
        match self {
            Self::FixedWindow(fixed) => Some(fixed.window.shortest()),
            Self::SlidingWindowCounter(counter) => Some(counter.period),
            Self::SlidingWindowBuckets(ring) => Some(Span::from_micros(ring.interval)),
            Self::SlidingWindowLog(_)
            | Self::TokenBucket(_)
            | Self::LeakyBucket(_)
            | Self::Concurrency(_) => None,
        }
    }

    /// The time from the decision until the positions of the hits that it counted have lost their
    /// meaning: to the end of the window, or of the bucket. Less by a tick, because the store's
    /// time is rounded down to one.
    pub fn lease_left(&self, verdict: &Verdict) -> Span {
        let behind = match self {
            // Hits of this window reach to the end of the next one.
            Self::SlidingWindowCounter(counter) => counter.tick.span(counter.window),
            // Hits of this bucket count for a window after it.
            Self::SlidingWindowBuckets(ring) => Span::from_micros(ring.window),
            _ => Span::ZERO,
        };
        let after = behind.micros() + self.tick().micros();
        Span::from_micros(verdict.reset_after.micros().saturating_sub(after))
    }

    /// The hits that counted in the window before these, by the verdict on them; `None`: they were
    /// not counted, or not all of them.
    pub fn counted_before(&self, verdict: &Verdict, hits: u64) -> Option<u64> {
        let is_counted = verdict.allowed || self.counts_denied();
        // A count of 2^53 has met its bound: it had fewer hits before, or as many.
        let hits = hits.min(LARGEST_COUNT);
        let is_whole = verdict.used < self.largest_charge() || verdict.used == LARGEST_COUNT;
        let before = verdict.used.checked_sub(hits);
        before.filter(|_| is_counted && is_whole)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Arrival, Options};
    use super::*;
    use crate::core::time::{Micros, Rate, Unit};

    /// Positions lose their meaning at an edge of the ticks, to which the store has rounded its
    /// time.
    #[test]
    fn what_is_left_ends_with_the_window_also_where_ticks_are_long() {
        let rate = Rate {
            requests_per_unit: 1_000_000,
            unit: Unit::Second,
            unit_multiplier: 3_153_600_000,
        };
        for kind in [
            AlgorithmKind::FixedWindow,
            AlgorithmKind::SlidingWindowCounter,
        ] {
            let options = Options {
                kind,
                ..Options::default()
            };
            let algorithm = Algorithm::try_new(&rate, &options).expect("an algorithm");
            let tick = algorithm.tick().micros();
            assert!(tick > 1 || kind == AlgorithmKind::FixedWindow, "{tick}");
            let window = algorithm.lease_window().expect("it has leases").micros();
            let window = window.div_ceil(tick) * tick;
            for into_tick in [0, 1, tick / 3, tick - 1] {
                let now = Micros(1_800_000_000_000_000 / tick * tick + into_tick);
                let at = Arrival {
                    now,
                    max_wait: Span::ZERO,
                };
                let left = algorithm.lease_left(&algorithm.step(None, at, 1).verdict);
                let end = (now.0 / window + 1) * window;
                let ends = now.0 + left.micros();
                assert!(
                    ends <= end,
                    "{kind:?} {into_tick} of {tick}: {ends} > {end}"
                );
                assert!(ends + 2 * tick >= end, "{kind:?}: {ends} of {end}");
            }
        }
    }
}
