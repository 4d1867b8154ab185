//! Answers: what a store says about checks, and what becomes of each of them in the end.

use smallvec::SmallVec;

use crate::time::{Micros, Span};

/// The answer to one check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Whether the hits fit.
    pub allowed: bool,
    /// Hits that still fit now.
    pub remaining: u32,
    /// Hits that count against the limit now, this check's included; above the limit when it is in debt.
    pub used: u64,
    /// Until the limit has fully recovered.
    pub reset_after: Span,
    /// Until the same check would be allowed; meaningful only when refused.
    pub retry_after: Wait,
    /// How long an allowed request is to be held before it is answered: a shaper's spacing. Zero for all other algorithms.
    pub delay: Span,
}

/// "Not yet" and "never" are different answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Asking again after this much time succeeds, if nobody else asks in between.
    For(Span),
    /// The check asks for more than the limit ever gives.
    Never,
}

impl Verdict {
    /// What a caller is told to wait: the retry when refused (the reset when no retry helps), else the reset.
    #[must_use]
    pub fn until_reset(&self) -> Span {
        match self.retry_after {
            Wait::For(span) if !self.allowed => span,
            _ => self.reset_after,
        }
    }
}

/// Why a store gave no verdict, named for what the caller may do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The check provably did not run: it may be asked again, or answered by policy.
    #[error("not executed: {0}")]
    NotExecuted(&'static str),
    /// Nobody knows whether the check ran: it must not be asked again, only answered by policy.
    #[error("outcome unknown: {0}")]
    Unknown(&'static str),
    /// What is stored under the key cannot be read; only this check is affected.
    #[error("stored data: {0}")]
    Data(&'static str),
}

/// The answers to all checks of a plan, in their order.
#[derive(Clone, Debug)]
pub struct Answers {
    /// The store's time when it decided.
    pub now: Micros,
    /// One per check.
    pub checks: SmallVec<[Result<Verdict, StoreError>; 4]>,
}

impl Answers {
    /// No checks, so no answers.
    #[must_use]
    pub fn none() -> Self {
        Self { now: Micros::default(), checks: SmallVec::new() }
    }

    /// The same error for each of `count` checks.
    #[must_use]
    pub fn failed(count: usize, error: StoreError) -> Self {
        Self { now: Micros::default(), checks: SmallVec::from_elem(Err(error), count) }
    }
}

/// How one check of a request came out, and by whose word: the source is the name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The store's.
    Store(Verdict),
    /// The denial cache's: the store has refused it, and would still.
    DenialCache(Verdict),
    /// `on_store_failure: local`: the store failed, and the memory store decided with this replica's share of the limit.
    Local(Verdict, StoreError),
    /// The store failed, and the check passes all the same: `allow`, a limit in shadow mode, or one whose word does not matter any more.
    /// Nobody knows what is left.
    PolicyAllows(StoreError),
    /// `on_store_failure: deny`: the store failed, and the check is refused.
    PolicyRefuses(StoreError),
    /// `on_store_failure: error`: the store failed, and with it the request. Either no check of a request is one, or the request has no
    /// answer.
    Fails(StoreError),
}

/// One per check of a plan, in their order.
pub type Decisions = SmallVec<[Decision; 4]>;

impl Decision {
    /// When to ask again where a policy refuses: the store may answer any time.
    const POLICY_RETRY: Span = Span::from_secs(1);

    /// Whether the check passes. One that fails its request refuses nobody.
    #[must_use]
    pub const fn allows(&self) -> bool {
        match self {
            Self::Store(verdict) | Self::DenialCache(verdict) | Self::Local(verdict, _) => verdict.allowed,
            Self::PolicyRefuses(_) => false,
            Self::PolicyAllows(_) | Self::Fails(_) => true,
        }
    }

    /// The verdict, where somebody has counted.
    #[must_use]
    pub const fn verdict(&self) -> Option<&Verdict> {
        match self {
            Self::Store(verdict) | Self::DenialCache(verdict) | Self::Local(verdict, _) => Some(verdict),
            Self::PolicyAllows(_) | Self::PolicyRefuses(_) | Self::Fails(_) => None,
        }
    }

    /// Why the store did not decide.
    #[must_use]
    pub const fn store_error(&self) -> Option<StoreError> {
        match self {
            Self::Store(_) | Self::DenialCache(_) => None,
            Self::Local(_, error) | Self::PolicyAllows(error) | Self::PolicyRefuses(error) | Self::Fails(error) => Some(*error),
        }
    }

    /// Why the request has no answer.
    #[must_use]
    pub const fn failure(&self) -> Option<StoreError> {
        match self {
            Self::Fails(error) => Some(*error),
            _ => None,
        }
    }

    /// What a caller is told to wait; `None` when nobody knows.
    #[must_use]
    pub fn until_reset(&self) -> Option<Span> {
        match self {
            Self::PolicyRefuses(_) => Some(Self::POLICY_RETRY),
            _ => self.verdict().map(Verdict::until_reset),
        }
    }
}
