//! The final outcome of each descriptor of a request, computed once, after all decisions. Answers,
//! headers, metrics, subjects, logs and explanations read it, and therefore cannot differ.

use std::borrow::Cow;
use std::num::NonZeroU32;

use smallvec::SmallVec;

use super::{Block, Check, Checked, Disposition, Plan};
use crate::core::algorithm::Algorithm;
use crate::core::answer::{Decision, Decisions, Effect};
use crate::core::time::{Rate, Span};
use crate::core::verdict::{StoreError, Wait};
use crate::limits::rules::Commit;
use crate::limits::rules::limit::LimitInForce;

/// The outcomes of one request.
#[derive(Debug)]
pub struct Outcomes<'p> {
    /// One per descriptor, in the order of the request.
    pub each: SmallVec<[Outcome<'p>; 4]>,
    /// The overall code is OVER_LIMIT.
    pub is_over_limit: bool,
    /// No hit of the request was counted or refunded, because it was refused as a whole.
    pub is_undone: bool,
    /// A quota is left without a check.
    pub passes_quota: bool,
    /// Why the request has no answer.
    pub failure: Option<StoreError>,
}

/// The outcome of one descriptor.
#[derive(Clone, Copy, Debug)]
pub struct Outcome<'p> {
    /// The limit that the look-up found; `None` also if the descriptor has a limit of its own.
    pub limit: Option<LimitInForce<'p>>,
    pub by: DecidedBy<'p>,
    /// The key of its counter, or of the one that it would have if nothing blocked it.
    pub counter: Option<&'p [u8]>,
    /// Its status is OVER_LIMIT.
    pub refuses: bool,
    /// The amount, if its status shows it.
    pub rate: Option<Rate>,
    /// The name of the limit in its status; empty without one.
    pub name: &'p str,
    /// The remaining hits, in the units of the limit.
    pub remaining: u64,
    /// Until the limit has recovered or, if it refuses, until a retry. Rounded up, because Envoy
    /// drops fractions of a second. `None` if unknown.
    pub reset_secs: Option<u64>,
}

/// The source of the decision on a descriptor.
#[derive(Clone, Copy, Debug)]
pub enum DecidedBy<'p> {
    /// Nothing: no limit applies.
    NoLimit,
    /// Nothing: the limit is `unlimited`.
    Unlimited,
    /// An override that exempts it.
    Exempt,
    /// An override that blocks it.
    Block(&'p Block),
    Check {
        /// The check in the plan.
        planned: &'p Checked,
        /// The check that was sent to the store.
        check: &'p Check,
        decision: &'p Decision,
        effect: &'p Effect,
    },
}

impl Plan {
    /// The outcome of each descriptor for these decisions on [`Plan::checks`].
    pub fn outcomes<'p>(&'p self, decisions: &'p Decisions) -> Outcomes<'p> {
        let checks = &self.checks;
        let mut each = SmallVec::with_capacity(self.slots.len());
        for slot in &self.slots {
            let limit = self.limit(slot);
            each.push(match &slot.disposition {
                Disposition::Checked(planned) => {
                    let check = &checks[planned.check];
                    Outcome {
                        counter: Some(checks.key(check)),
                        ..Outcome::of_check(limit, planned, check, decisions)
                    }
                }
                Disposition::Free => Outcome::of(limit, DecidedBy::NoLimit, 0),
                Disposition::Unlimited => Outcome::of(limit, DecidedBy::Unlimited, u32::MAX),
                Disposition::Exempt => Outcome::of(limit, DecidedBy::Exempt, u32::MAX),
                Disposition::Blocked(block) => Outcome {
                    counter: Some(checks.blocked_key(&block.key)),
                    refuses: true,
                    // For a limit without a reset time, Envoy would ask the client to come back at
                    // once.
                    rate: block.rate.filter(|_| block.ends_in.is_some()),
                    reset_secs: block.ends_in.map(Span::secs_rounded_up),
                    ..Outcome::of(limit, DecidedBy::Block(block), 0)
                },
            });
        }
        let is_over_limit = checks.is_over_limit(decisions.iter().map(Decision::allows));
        Outcomes {
            each,
            is_over_limit,
            is_undone: is_over_limit && checks.commit == Commit::AllOrNone,
            passes_quota: checks.passing_quotas() > 0,
            failure: decisions.iter().find_map(Decision::failure),
        }
    }
}

impl<'p> Outcome<'p> {
    #[inline]
    fn of(limit: Option<LimitInForce<'p>>, by: DecidedBy<'p>, remaining: u32) -> Self {
        Self {
            limit,
            by,
            counter: None,
            refuses: false,
            rate: None,
            name: limit.map_or("", |own| own.name().map_or("", |_| own.display_name())),
            remaining: remaining.into(),
            reset_secs: None,
        }
    }

    #[inline]
    fn of_check(
        limit: Option<LimitInForce<'p>>,
        planned: &'p Checked,
        check: &'p Check,
        decisions: &'p Decisions,
    ) -> Self {
        let decision = &decisions[planned.check.0];
        let by = DecidedBy::Check {
            planned,
            check,
            decision,
            effect: decisions.effect(planned.check),
        };
        let rate = match *decision {
            // The remaining hits are not available. With a limit, Envoy informs the client that
            // none remain, and a polite client would stop.
            Decision::PolicyAllows(_) => None,
            Decision::Local(.., replicas) => Some(share_of(planned, check.algorithm, replicas)),
            _ => Some(planned.rate),
        };
        // A limit of requests in flight has no reset time except, when it refuses, the time until a
        // retry. Envoy turns a status without a time into 0, and a client whose request can never
        // pass would retry at once: its reset time is the end of the window or, for algorithms
        // without windows, their length.
        let reset = match decision.retry_after() {
            Some(Wait::Never) if !matches!(check.algorithm, Algorithm::FixedWindow(_)) => {
                Some(check.algorithm.window().shortest())
            }
            Some(Wait::For(span)) => Some(span),
            None if check.algorithm.counts_in_flight() => None,
            _ => decision.until_reset(),
        };
        let remaining = decision.verdict().map(|verdict| verdict.remaining);
        Self {
            refuses: !decision.allows() && !check.modes.shadow,
            rate,
            remaining: remaining.map_or(0, |hits| planned.scale.units(hits)),
            reset_secs: reset.map(Span::secs_rounded_up),
            ..Self::of(limit, by, 0)
        }
    }

    /// The hits that a counter counts, or would count: of a settlement the difference.
    pub const fn hits(&self) -> i64 {
        match self.by {
            DecidedBy::Check { check, effect, .. } => effect.hits_of(check.hits),
            DecidedBy::Block(block) => block.hits,
            DecidedBy::NoLimit | DecidedBy::Unlimited | DecidedBy::Exempt => 0,
        }
    }

    /// The hits that were used for good, or refused: of a settlement its cost.
    pub fn used(&self) -> i64 {
        match self.by {
            DecidedBy::Check {
                check,
                decision,
                effect,
                ..
            } => effect.used_by(check.hits, decision.allows()),
            _ => self.hits(),
        }
    }

    /// The request is refused for it only if it is for all quotas.
    pub const fn is_quota(&self) -> bool {
        matches!(self.by, DecidedBy::Check { check, .. } if check.modes.quota)
    }

    /// Time until the refused hits would be allowed; `None` if it does not refuse.
    #[must_use]
    pub fn retry_after(&self) -> Option<Wait> {
        match self.by {
            DecidedBy::Block(block) => Some(block.ends_in.map_or(Wait::Never, Wait::For)),
            DecidedBy::Check { decision, .. } if self.refuses => decision.retry_after(),
            _ => None,
        }
    }
}

impl Outcomes<'_> {
    /// Replaces the names in the statuses.
    pub fn named<'n>(&'n self, names: &'n [Cow<'_, str>]) -> Outcomes<'n> {
        let each = self.each.iter().zip(names);
        Outcomes {
            each: each.map(|(one, name)| Outcome { name, ..*one }).collect(),
            is_over_limit: self.is_over_limit,
            is_undone: self.is_undone,
            passes_quota: self.passes_quota,
            failure: self.failure,
        }
    }

    /// The descriptors whose limits refuse the request, by index: blocked descriptors, descriptors
    /// over a limit that is not a quota, and all quotas where none of them is left.
    pub fn violated(&self) -> Vec<usize> {
        let passes = |outcome: &Outcome<'_>| outcome.is_quota() && !outcome.refuses;
        let a_quota_passes = self.passes_quota || self.each.iter().any(passes);
        let refuses = |it: &Outcome<'_>| it.refuses && !(a_quota_passes && it.is_quota());
        let all = self.each.iter().enumerate();
        let refusing = all.filter(|(_, outcome)| refuses(outcome));
        refusing.map(|(index, _)| index).collect()
    }
}

/// The displayed rate of a limit that one of several replicas decides by itself: its share, to
/// which the remaining hits of the verdict refer.
fn share_of(planned: &Checked, algorithm: Algorithm, replicas: NonZeroU32) -> Rate {
    let &Checked { rate, scale, .. } = planned;
    let capacity = |algorithm: Algorithm| scale.units_rounded_up(algorithm.capacity());
    let requests_per_unit = match rate.requests_per_unit == capacity(algorithm) {
        true => capacity(algorithm.share(replicas)),
        false => rate.requests_per_unit.div_ceil(replicas.get().into()),
    };
    Rate {
        requests_per_unit,
        ..rate
    }
}
