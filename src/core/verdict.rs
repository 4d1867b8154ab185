//! The answers of a store to checks, and the decisions that are made of them.

use std::num::NonZeroU32;

use smallvec::SmallVec;

use crate::core::time::{Micros, Span};

/// The answer of a store to one check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Whether the hits fit within the limit.
    pub allowed: bool,
    /// Hits that still fit within the limit now.
    pub remaining: u64,
    /// Hits that count against the limit now, including this check's. Above the limit while it is
    /// in debt.
    pub used: u64,
    /// The time until the limit has fully recovered.
    pub reset_after: Span,
    /// The time until the same check would be allowed. Meaningful only if it was refused.
    pub retry_after: Wait,
    /// How long Weir has to hold an allowed request before it answers: the spacing of a shaper
    /// (`leaky_bucket`). Zero for all other algorithms.
    pub delay: Span,
}

/// The time at which a refused check would be allowed. "Not yet" and "never" are different answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// After this time, if no other request counts in between.
    For(Span),
    /// Never: the check has more hits than the limit's capacity.
    Never,
}

impl Verdict {
    /// The `duration_until_reset` of the response: if refused, the time until a retry is allowed
    /// (until the reset if that is never), else the time until the reset.
    pub fn until_reset(&self) -> Span {
        match self.retry_after {
            Wait::For(span) if !self.allowed => span,
            _ => self.reset_after,
        }
    }
}

/// The reason why a store gave no verdict. The variants differ in the caller's possible reactions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The check provably did not run. It may be sent again, or decided by a failure policy.
    #[error("the store could not be asked ({0})")]
    NotExecuted(&'static str),
    /// Whether the check ran is unknown. It must not be sent again; only a failure policy may
    /// decide it.
    #[error("the store did not answer ({0})")]
    Unknown(&'static str),
    /// The value stored under the key cannot be read. Only this check is affected.
    #[error("what is stored cannot be read ({0})")]
    Data(&'static str),
}

/// The answers to all checks of a request.
#[derive(Clone, Debug)]
pub struct Answers {
    /// The store's time when it decided.
    pub now: Micros,
    /// One per check, by its index.
    pub checks: SmallVec<[Result<Verdict, StoreError>; 4]>,
}

impl Answers {
    /// The same error for each of `count` checks.
    pub fn failed(count: usize, error: StoreError) -> Self {
        Self {
            now: Micros::default(),
            checks: SmallVec::from_elem(Err(error), count),
        }
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

/// One decision per check, by its index.
pub type Decisions = SmallVec<[Decision; 4]>;

impl Decision {
    /// The retry time where a failure policy refuses: the store may be back at any time.
    const POLICY_RETRY: Span = Span::from_secs(1);

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
