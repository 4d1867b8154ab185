//! The checks of limits with `notify`, and the thresholds that they cross.
//!
//! A store gives each position of a count to one request, and the answer names it. Therefore the
//! request that crosses a threshold is known from its own answer, in one replica. Hits that no
//! store counts cross nothing: refused ones of most limits, peeks, refunds, and hits that the
//! denial cache or a failure policy decides. `local` counters know only a share of the limit.

use std::ops::Range;

use crate::core::answer::{Decision, Effect};
use crate::core::verdict::Verdict;
use crate::limits::plan::{Check, CheckIndex, Checks};
use crate::limits::rules::thresholds::Thresholds;

impl Checks {
    /// Whether a check is of a limit with `notify`.
    #[inline]
    pub fn has_thresholds(&self) -> bool {
        self.extras().any(|extras| extras.thresholds.is_some())
    }

    /// The same checks, of which the one at `index` is of a limit with `notify`: for tests of
    /// stores.
    #[must_use]
    pub fn with_thresholds(mut self, index: CheckIndex, thresholds: Thresholds) -> Self {
        self.extras_mut(index).thresholds = Some(thresholds);
        self
    }
}

impl Check {
    fn thresholds(&self) -> Option<&Thresholds> {
        self.extras.as_ref()?.thresholds.as_ref()
    }

    /// Whether its limit has `notify`: then answers report the hits of open holds.
    #[inline]
    pub fn reports_use(&self) -> bool {
        self.thresholds().is_some()
    }

    /// The thresholds of the check, and the count before and after its hits; `None` if it counted
    /// nothing, or its limit has no thresholds. The hits that leases drew ahead cross nothing when
    /// they are used.
    pub fn counted(
        &self,
        decision: &Decision,
        effect: &Effect,
    ) -> Option<(Thresholds, Range<u64>)> {
        let thresholds = self.thresholds()?;
        let counted = match (effect, decision) {
            (Effect::Drawn { before, after }, _) => *before..*after,
            (Effect::Hold(change), Decision::Store(verdict)) => {
                let plain = match change.is_plain() {
                    true => verdict.used - self.counted_before(verdict)?,
                    false => 0,
                };
                // Open holds are not used yet.
                let after = verdict.used.saturating_sub(change.open);
                after.saturating_sub(plain.saturating_add(change.settled))..after
            }
            (_, Decision::Store(verdict)) => self.counted_before(verdict)?..verdict.used,
            (_, _) => return None,
        };
        Some((*thresholds, counted))
    }

    /// The count before the requested hits.
    fn counted_before(&self, verdict: &Verdict) -> Option<u64> {
        let hits = self.hits.try_into().ok()?;
        self.algorithm.counted_before(verdict, hits)
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;
    use crate::core::algorithm::{Algorithm, Debt, FixedWindow, SlidingWindowCounter};
    use crate::core::time::{Period, Span};
    use crate::core::verdict::{StoreError, Wait};
    use crate::limits::plan::Modes;

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
        checks.extras_mut(INDEX).thresholds = Some(thresholds);
        checks
    }

    fn counted(algorithm: Algorithm, hits: i64, decision: &Decision) -> Option<Range<u64>> {
        let checks = checks(algorithm, hits);
        let none = Effect::None;
        assert!(checks[CheckIndex(0)].counted(decision, &none).is_none());
        checks[INDEX]
            .counted(decision, &none)
            .map(|(_, counted)| counted)
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
            assert_eq!(
                counted(algorithm, hits, &decision),
                expected,
                "{decision:?}"
            );
        }
        // A window in full debt counts only a part of the hits.
        let counter = SlidingWindowCounter::new(10, MINUTE, Debt::ONE);
        let counter = Algorithm::SlidingWindowCounter(counter);
        assert_eq!(counted(counter, 3, &stored(false, 13)), Some(10..13));
        assert_eq!(counted(counter, 30, &stored(false, 20)), None);
    }

    #[test]
    fn a_draw_counts_all_its_hits() {
        let checks = checks(fixed(false), 2);
        let drawn = Effect::Drawn {
            before: 4,
            after: 9,
        };
        for decision in [
            Decision::Store(verdict(true, 6)),
            Decision::Lease(verdict(true, 6)),
        ] {
            let counted = checks[INDEX].counted(&decision, &drawn);
            let (thresholds, counted) = counted.expect("it has thresholds");
            assert_eq!(counted, 4..9);
            assert_eq!(thresholds.crossed(10, &counted).collect::<Vec<_>>(), [80]);
        }
    }
}
