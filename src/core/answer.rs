//! The answers of a store to the checks of a request, and the decisions that are made of them.
//!
//! A request is data that no store writes to. The answer to a check has its verdict and its
//! [`Effect`]: the change that the check made in the store and that its verdict does not show.
//! Metrics, usage, reports and the places of requests in flight read the effects; they never ask
//! the store again.

use std::num::NonZeroU32;
use std::ops::Deref;

use smallvec::SmallVec;

use crate::core::algorithm::places::Change;
pub use crate::core::algorithm::{HeldHits, HoldChange};
use crate::core::time::{Micros, Span};
use crate::core::verdict::{StoreError, Verdict, Wait};

/// The number of a check among the checks of its request, from 0 on. Everything that has one
/// element per check is indexed by it: the answers of a store, and the decisions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckIndex(pub usize);

/// The change that a check made in a store, beyond the hits that its verdict counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Effect {
    /// None: the hits of the check were counted, or refused.
    #[default]
    None,
    /// The request acquired places of a limit of requests in flight.
    Acquired(Change),
    /// It released places, or an acquire was undone.
    Released(Change),
    /// A check held or settled hits of a limit, was refused or repeated, or met holds that had
    /// expired.
    Hold(HoldChange),
    /// The hits of the request were counted together with hits that were drawn ahead: the count
    /// before all of them, and after.
    Drawn { before: u64, after: u64 },
}

/// The effects of a request, each with its check; none that is [`Effect::None`].
pub type Effects = Vec<(CheckIndex, Effect)>;

impl Effect {
    /// The effect of `hits` hits that moved places.
    #[inline]
    pub const fn of_places(hits: i64, change: Change) -> Self {
        match (change.places, hits) {
            (0, _) => Self::None,
            (_, 1..) => Self::Acquired(change),
            (_, _) => Self::Released(change),
        }
    }

    /// The hits that a check has counted, of which so many were requested: one that holds or
    /// settles hits may count others.
    #[inline]
    pub const fn hits_of(&self, requested: i64) -> i64 {
        match self {
            Self::Hold(change) => change.hits_of(requested),
            _ => requested,
        }
    }

    /// The hits that a check has used for good, or that were refused, of which so many were
    /// requested; without hits of holds that have expired.
    #[inline]
    pub fn own_use(&self, requested: i64, allowed: bool) -> i64 {
        match self {
            Self::Hold(change) => change.own_use(requested, allowed),
            _ => requested,
        }
    }

    /// The same, with the hits of holds that have expired and stay charged.
    #[inline]
    pub fn used_by(&self, requested: i64, allowed: bool) -> i64 {
        match self {
            Self::Hold(change) => {
                let own = change.own_use(requested, allowed);
                own.saturating_add(change.kept)
            }
            _ => requested,
        }
    }

    /// The change of holds; no change for all other effects.
    pub fn hold(&self) -> HoldChange {
        match self {
            Self::Hold(change) => *change,
            _ => HoldChange::default(),
        }
    }
}

impl From<HoldChange> for Effect {
    fn from(change: HoldChange) -> Self {
        if change == HoldChange::default() {
            Self::None
        } else {
            Self::Hold(change)
        }
    }
}

/// The answer of a store to one check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    pub verdict: Result<Verdict, StoreError>,
    pub effect: Effect,
}

impl From<Result<Verdict, StoreError>> for Answer {
    #[inline]
    fn from(verdict: Result<Verdict, StoreError>) -> Self {
        Self {
            verdict,
            effect: Effect::None,
        }
    }
}

impl From<StoreError> for Answer {
    fn from(error: StoreError) -> Self {
        Err(error).into()
    }
}

/// The answers to all checks of a request.
#[derive(Clone, Debug)]
pub struct Answers {
    /// The store's time when it decided. The ages in effects are of this instant.
    pub now: Micros,
    /// One per check, by its index.
    pub each: SmallVec<[Answer; 4]>,
}

impl Answers {
    /// The same error for each of `count` checks.
    pub fn failed(count: usize, error: StoreError) -> Self {
        Self {
            now: Micros::default(),
            each: SmallVec::from_elem(error.into(), count),
        }
    }

    /// The effects, each with its check.
    #[inline]
    pub fn effects(&self) -> impl Iterator<Item = (CheckIndex, Effect)> {
        let all = self.each.iter().enumerate();
        let has_some = all.filter(|(_, answer)| answer.effect != Effect::None);
        has_some.map(|(index, answer)| (CheckIndex(index), answer.effect))
    }

    /// The effects where the checks were a part of others: those at `picked`.
    pub fn effects_of(&self, picked: &[CheckIndex]) -> Effects {
        let all = self.effects();
        all.map(|(CheckIndex(at), effect)| (picked[at], effect))
            .collect()
    }

    /// The verdicts, in the order of the checks: for tests of stores.
    pub fn verdicts(&self) -> SmallVec<[Result<Verdict, StoreError>; 4]> {
        self.each.iter().map(|answer| answer.verdict).collect()
    }
}

/// The outcome of one check. The variant names the part of Weir that decided it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The store decided.
    Store(Verdict),
    /// Hits that this replica had drawn ahead decided.
    Lease(Verdict),
    /// The denial cache decided: the store refused the check earlier, and would refuse it still.
    DenialCache(Verdict),
    /// `on_store_failure: local`: the store failed, and the memory store decided with the share of
    /// the limit that one of so many replicas has.
    Local(Verdict, StoreError, NonZeroU32),
    /// The store failed, and the check is allowed: by `on_store_failure: allow`, by shadow mode, or
    /// because the request is over another limit anyway. The remaining hits are unknown.
    PolicyAllows(StoreError),
    /// `on_store_failure: deny`: the store failed, and the check is refused.
    PolicyRefuses(StoreError),
    /// `on_store_failure: error`: the store failed, and the whole request fails with UNAVAILABLE.
    Fails(StoreError),
}

/// One decision per check, by its index, as a slice; and the effects of the checks.
#[derive(Clone, Debug, Default)]
pub struct Decisions {
    pub each: SmallVec<[Decision; 4]>,
    /// At most one per check. The checks of most requests have none.
    pub effects: Effects,
}

impl Decisions {
    /// The decisions of a store that has answered all checks.
    pub fn of_store(answers: &Answers) -> Self {
        let mut all = Self {
            each: SmallVec::with_capacity(answers.each.len()),
            effects: Effects::new(),
        };
        for (index, answer) in answers.each.iter().enumerate() {
            all.each.push(Decision::of_store(answer.verdict));
            if !matches!(answer.effect, Effect::None) {
                all.effects.push((CheckIndex(index), answer.effect));
            }
        }
        all
    }

    /// The effect of a check.
    #[inline]
    pub fn effect(&self, index: CheckIndex) -> &Effect {
        if self.effects.is_empty() {
            return &Effect::None;
        }
        let mut effects = self.effects.iter();
        let found = effects.find(|(of, _)| *of == index);
        found.map_or(&Effect::None, |(_, effect)| effect)
    }

    /// Adds the effects of local counters on checks that have none in the store.
    pub fn add_effects(&mut self, effects: Effects) {
        for (index, effect) in effects {
            if *self.effect(index) == Effect::None {
                self.effects.push((index, effect));
            }
        }
    }
}

impl Deref for Decisions {
    type Target = [Decision];

    fn deref(&self) -> &[Decision] {
        &self.each
    }
}

impl FromIterator<Decision> for Decisions {
    fn from_iter<I: IntoIterator<Item = Decision>>(each: I) -> Self {
        Self {
            each: each.into_iter().collect(),
            effects: Effects::new(),
        }
    }
}

impl Decision {
    /// The retry time where a failure policy refuses: the store may be back at any time.
    const POLICY_RETRY: Span = Span::from_secs(1);

    /// The decision by the answer of the store; a failure policy decides where it has none.
    pub fn of_store(verdict: Result<Verdict, StoreError>) -> Self {
        verdict.map_or_else(Self::Fails, Self::Store)
    }

    /// Whether the check is within its limit. A check that fails its request counts as within.
    pub const fn allows(&self) -> bool {
        match self {
            Self::Store(verdict)
            | Self::Lease(verdict)
            | Self::DenialCache(verdict)
            | Self::Local(verdict, ..) => verdict.allowed,
            Self::PolicyRefuses(_) => false,
            Self::PolicyAllows(_) | Self::Fails(_) => true,
        }
    }

    /// The verdict of the store that counted; `None` if none did.
    pub const fn verdict(&self) -> Option<&Verdict> {
        match self {
            Self::Store(verdict)
            | Self::Lease(verdict)
            | Self::DenialCache(verdict)
            | Self::Local(verdict, ..) => Some(verdict),
            Self::PolicyAllows(_) | Self::PolicyRefuses(_) | Self::Fails(_) => None,
        }
    }

    /// Why the store did not decide.
    pub const fn store_error(&self) -> Option<StoreError> {
        match self {
            Self::Store(_) | Self::Lease(_) | Self::DenialCache(_) => None,
            Self::Local(_, error, _)
            | Self::PolicyAllows(error)
            | Self::PolicyRefuses(error)
            | Self::Fails(error) => Some(*error),
        }
    }

    /// The failure policy that decided instead of the store, as written in limit files.
    pub const fn policy(&self) -> Option<&'static str> {
        match self {
            Self::Store(_) | Self::Lease(_) | Self::DenialCache(_) => None,
            Self::Local(..) => Some("on_store_failure: local"),
            Self::PolicyAllows(_) => Some("on_store_failure: allow"),
            Self::PolicyRefuses(_) => Some("on_store_failure: deny"),
            Self::Fails(_) => Some("on_store_failure: error"),
        }
    }

    /// Why the request fails, if it does.
    pub const fn failure(&self) -> Option<StoreError> {
        match self {
            Self::Fails(error) => Some(*error),
            _ => None,
        }
    }

    /// The time at which a refused check would be allowed; `None` if unknown, and if it is not
    /// refused.
    #[must_use]
    pub fn retry_after(&self) -> Option<Wait> {
        match self {
            Self::PolicyRefuses(_) => Some(Wait::For(Self::POLICY_RETRY)),
            _ => self
                .verdict()
                .filter(|verdict| !verdict.allowed)
                .map(|verdict| verdict.retry_after),
        }
    }

    /// The `duration_until_reset` of the response; `None` if unknown.
    pub fn until_reset(&self) -> Option<Span> {
        match self {
            Self::PolicyRefuses(_) => Some(Self::POLICY_RETRY),
            _ => self.verdict().map(Verdict::until_reset),
        }
    }
}
