//! The verdict of a store on one check, and the reasons for a missing one.

use crate::core::time::Span;

/// The verdict of a store on one check.
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
