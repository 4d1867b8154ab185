//! Why a request gets no response, and the gRPC status that its caller gets instead.

use tonic::Status;

use super::decode::InvalidRequest;
use crate::core::verdict::StoreError;
use crate::store::redis::error as redis_error;

/// Why a request gets no response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The request is invalid: INVALID_ARGUMENT.
    InvalidRequest(InvalidRequest),
    /// No configuration is loaded yet: UNAVAILABLE.
    NoRules,
    /// The store gave no verdict on a check whose failure policy is `error`: UNAVAILABLE.
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
            Failure::Store(error) => Self::unavailable(format!(
                "{}; on_store_failure is error",
                redis_error::for_callers(error)
            )),
        }
    }
}
