//! Why a request has no answer, and what its caller is told.

use tonic::Status;

use super::decode::Refusal;
use crate::verdict::StoreError;

/// Why a request has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// It cannot be asked like that.
    Refused(Refusal),
    /// There are no rules yet.
    NoRules,
    /// The store gave no verdict on one of its checks.
    Store(StoreError),
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<Failure> for Status {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Refused(refusal) => Self::invalid_argument(refusal.to_string()),
            Failure::NoRules => Self::unavailable("no rate limit configuration loaded"),
            Failure::Store(error) => Self::unavailable(format!("rate limit store: {error}")),
        }
    }
}
