//! Trials: checks beside the plan, of limits with `trial`. They fill no slot of the response and
//! take no part in any decision on the request.
//!
//! They are checks of their own and not among [`Plan::checks`], so that all that asks those about
//! the request (`all_or_none`, the denial cache, failure policies, the response) cannot see them.
//!
//! A request has up to 256 trials beside up to 256 checks. The key of a trial is that of the limit
//! with `tr` before the algorithm, in the same hash slot. A trial counts what is asked of its
//! limit, whatever becomes of the request, as a limit beside others does with `commit: each`.

use std::num::NonZeroU64;
use std::sync::Arc;

use smallvec::SmallVec;

use super::{Check, CheckIndex, Checks, Fate, Matcher, Modes, Slot, key};
use crate::core::time::Unit;
use crate::limits::rules::limit::{self, Limit, LimitId, OnStoreFailure};

/// The trials of one request, at least one.
#[derive(Debug)]
pub struct Trials {
    /// Each counts for itself, whatever the domain's `commit` is.
    pub checks: Arc<Checks>,
    /// By [`CheckIndex`].
    of: SmallVec<[Trial; 2]>,
}

/// What a key has beyond that of its limit, and a part of what a longer algorithm takes.
const MARK_BYTES: usize = 16;

/// Whose trial a check is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trial {
    /// The limit that has it.
    pub limit: LimitId,
    /// The index of its descriptor.
    pub slot: usize,
}

impl Trials {
    /// The trials of the limits that were found, of which `slots` says what has become of them;
    /// `None` if there are none. The hits are those of the real checks: a descriptor that is blocked,
    /// exempt or replaced has none, and a raise changes the real amount only.
    #[cold]
    pub(super) fn new(matcher: &Matcher<'_, '_>, slots: &[Slot]) -> Option<Box<Self>> {
        let Matcher { ask, checks, .. } = matcher;
        let (mut all, mut of) = (Checks::default(), SmallVec::new());
        all.keys
            .reserve(checks.keys.len() + MARK_BYTES * slots.len());
        let found = matcher.found.iter().zip(slots);
        for (index, ((descriptor, entries), (found, slot))) in
            ask.descriptors().zip(found).enumerate()
        {
            let Some((found, trial)) = found.and_then(|found| Some((found, found.trial()?))) else {
                continue;
            };
            let limit = found.limit;
            let cost = trial.amount.default_cost.map_or(1, NonZeroU64::get);
            let hits = ask.hits_or(descriptor, cost);
            match &slot.fate {
                Fate::Checked(checked) => {
                    all.add_trial(checks.key(&checks[checked.check]), trial, hits);
                }
                Fate::Unlimited => {
                    let (mut key, prefix) = (Vec::new(), &matcher.options.key_prefix);
                    let (levels, commit) = (&limit.levels, checks.commit);
                    key::write(&mut key, prefix, ask.domain, entries, levels, None, commit);
                    all.add_trial(&key, trial, hits);
                }
                Fate::Free | Fate::Exempt | Fate::Blocked(_) => continue,
            }
            of.push(Trial {
                limit: limit.id,
                slot: index,
            });
        }
        (!of.is_empty()).then(|| {
            Box::new(Self {
                checks: Arc::new(all),
                of,
            })
        })
    }

    /// The trial of the only descriptor of a subject, whose counter has this key.
    pub(super) fn of_counter(counter: &[u8], limit: &Limit) -> Option<Box<Self>> {
        let mut all = Checks::default();
        all.add_trial(counter, limit.trial.as_deref()?, 0);
        let of = SmallVec::from_elem(
            Trial {
                limit: limit.id,
                slot: 0,
            },
            1,
        );
        Some(Box::new(Self {
            checks: Arc::new(all),
            of,
        }))
    }

    /// All trials with their checks.
    pub fn iter(&self) -> impl Iterator<Item = (CheckIndex, &Check, Trial)> {
        self.checks
            .indexed()
            .zip(&self.of)
            .map(|((index, check), of)| (index, check, *of))
    }

    /// The limit that has the trial of a check.
    #[must_use]
    pub fn limit(&self, CheckIndex(index): CheckIndex) -> LimitId {
        self.of[index].limit
    }

    /// The check of the trial beside a descriptor.
    #[must_use]
    pub fn of_slot(&self, slot: usize) -> Option<CheckIndex> {
        self.of
            .iter()
            .position(|of| of.slot == slot)
            .map(CheckIndex)
    }
}

impl Checks {
    fn add_trial(&mut self, key: &[u8], trial: &limit::Trial, hits: i64) {
        let start = self.keys.len();
        key::write_trial(&mut self.keys, key, &trial.amount.algorithm);
        self.tracked.extend(
            trial
                .usage
                .as_ref()
                .map(|usage| (CheckIndex(self.list.len()), Arc::clone(usage))),
        );
        self.list.push(Check {
            key: start..self.keys.len(),
            algorithm: trial.amount.algorithm,
            hits,
            modes: Modes::default(),
            // Nothing asks for it: without an answer of the store a trial has none.
            on_store_failure: OnStoreFailure::Allow,
            per_second: trial.amount.rate.unit == Unit::Second,
            lease: false,
        });
    }
}
