//! The checks of limits with `notify`, and the thresholds that they cross.
//!
//! A store gives each position of a count to one request, and the answer names it. Therefore the
//! request that crosses a threshold is known from its own answer, in one replica. Hits that no
//! store counts cross nothing: refused ones of most limits, peeks, refunds, and hits that the
//! denial cache or a failure policy decides. `local` counters know only a share of the limit.

use std::ops::Range;

use super::{CheckIndex, Checks};
use crate::core::verdict::{Decision, Verdict};
use crate::limits::rules::thresholds::Thresholds;

impl Checks {
    /// Records the store's verdict on a check that leases sent with `hits`.
    pub fn record_drawn(&self, index: CheckIndex, verdict: &Verdict, hits: u64) {
        if let Some((_, drawn)) = self[index].notified()
            && let Some(before) = self[index].algorithm.counted_before(verdict, hits)
        {
            // Only a check of which nothing was counted is sent again.
            let _ = drawn.set(before..verdict.used);
        }
    }

    /// The thresholds of a check, and the count before and after its hits; `None` if it counted
    /// nothing, or its limit has no thresholds.
    pub fn counted(
        &self,
        index: CheckIndex,
        decision: &Decision,
    ) -> Option<(Thresholds, Range<u64>)> {
        let (thresholds, drawn) = self[index].notified()?;
        let taken = match (drawn.get(), decision) {
            (Some(drawn), _) => drawn.clone(),
            (None, Decision::Store(verdict)) => {
                let hits = self.counted_hits(index).try_into().ok()?;
                self[index].algorithm.counted_before(verdict, hits)?..verdict.used
            }
            (None, _) => return None,
        };
        Some((*thresholds, taken))
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;
    use std::sync::OnceLock;

    use super::*;
    use crate::core::algorithm::{Algorithm, Debt, FixedWindow, SlidingWindowCounter};
    use crate::core::time::{Period, Span};
    use crate::core::verdict::{StoreError, Wait};
    use crate::limits::plan::{Check, Modes};

    const MINUTE: Span = Span::from_secs(60);
    const INDEX: CheckIndex = CheckIndex(1);

    fn fixed(count_denied: bool) -> Algorithm {
        Algorithm::FixedWindow(FixedWindow {
            limit: 10,
            window: Period::Even(MINUTE),
            count_denied,
        })
    }

    fn verdict(allowed: bool, used: u64) -> Verdict {
        Verdict {
            allowed,
            remaining: 10_u64.saturating_sub(used),
            used,
            reset_after: MINUTE,
            retry_after: Wait::For(MINUTE),
            delay: Span::ZERO,
        }
    }

    /// Checks of which the second has a threshold.
    fn checks(algorithm: Algorithm, hits: i64) -> Checks {
        let check = Check::new(algorithm, hits, Modes::default());
        let mut checks = Checks::of([(&b"a"[..], check.clone()), (&b"b"[..], check)]);
        let thresholds = Thresholds::read(&["80%"]).expect("a threshold");
        checks.extras_mut(INDEX).notified = Some((thresholds, OnceLock::new()));
        checks
    }

    fn taken(algorithm: Algorithm, hits: i64, decision: &Decision) -> Option<Range<u64>> {
        let checks = checks(algorithm, hits);
        assert!(checks.counted(CheckIndex(0), decision).is_none());
        checks.counted(INDEX, decision).map(|(_, taken)| taken)
    }

    #[test]
    fn only_hits_that_the_store_has_counted_take_a_part() {
        let stored = |allowed, used| Decision::Store(verdict(allowed, used));
        let error = StoreError::Unknown("late");
        let one = NonZeroU32::MIN;
        for (algorithm, hits, decision, expected) in [
            (fixed(true), 3, stored(true, 8), Some(5..8)),
            // Refused hits, counted and not.
            (fixed(true), 3, stored(false, 12), Some(9..12)),
            (fixed(false), 3, stored(false, 9), None),
            // A peek, and a refund.
            (fixed(true), 0, stored(true, 8), Some(8..8)),
            (fixed(true), -3, stored(true, 5), None),
            (
                fixed(true),
                3,
                Decision::DenialCache(verdict(false, 12)),
                None,
            ),
            (fixed(true), 3, Decision::Lease(verdict(true, 8)), None),
            (
                fixed(true),
                3,
                Decision::Local(verdict(true, 8), error, one),
                None,
            ),
            (fixed(true), 3, Decision::PolicyAllows(error), None),
            (fixed(true), 3, Decision::PolicyRefuses(error), None),
            (fixed(true), 3, Decision::Fails(error), None),
        ] {
            assert_eq!(taken(algorithm, hits, &decision), expected, "{decision:?}");
        }
        // A window in full debt counts only a part of the hits.
        let counter = SlidingWindowCounter::new(10, MINUTE, Debt::ONE);
        let counter = Algorithm::SlidingWindowCounter(counter);
        assert_eq!(taken(counter, 3, &stored(false, 13)), Some(10..13));
        assert_eq!(taken(counter, 30, &stored(false, 20)), None);
    }

    #[test]
    fn a_draw_takes_the_part_of_all_its_hits() {
        let checks = checks(fixed(false), 2);
        // A refused draw is sent again, without the hits ahead.
        checks.record_drawn(INDEX, &verdict(false, 4), 9);
        checks.record_drawn(CheckIndex(0), &verdict(true, 9), 5);
        assert!(
            checks
                .counted(INDEX, &Decision::Lease(verdict(true, 4)))
                .is_none()
        );
        checks.record_drawn(INDEX, &verdict(true, 9), 5);
        for decision in [
            Decision::Store(verdict(true, 6)),
            Decision::Lease(verdict(true, 6)),
        ] {
            let (thresholds, taken) = checks.counted(INDEX, &decision).expect("a part");
            assert_eq!(taken, 4..9);
            assert_eq!(thresholds.crossed(10, &taken).collect::<Vec<_>>(), [80]);
        }
    }
}
