//! Why a request has no answer, and what its caller is told.

use tonic::Status;

use super::decode::InvalidRequest;
use crate::verdict::StoreError;

/// Why a request has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// It cannot be asked like that.
    InvalidRequest(InvalidRequest),
    /// There are no rules yet.
    NoRules,
    /// The store gave no verdict on one of its checks.
    Store(StoreError),
}

impl From<InvalidRequest> for Failure {
    fn from(error: InvalidRequest) -> Self {
        Self::InvalidRequest(error)
    }
}

impl From<Failure> for Status {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::InvalidRequest(error) => Self::invalid_argument(error.to_string()),
            Failure::NoRules => Self::unavailable("no rate limit configuration loaded"),
            Failure::Store(error) => Self::unavailable(format!("rate limit store: {error}")),
        }
    }
}
