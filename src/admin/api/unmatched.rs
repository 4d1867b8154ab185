//! `/api/v1/unmatched`: the last descriptors that no limit matched, by domain. They are samples.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::query::Query;
use super::reply::Failure;
use super::{Parts, names};
pub use crate::observe::subjects::{UnmatchedDescriptor, UnmatchedDomain};

/// Response of `/api/v1/unmatched`.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct Unmatched {
    /// Domains, the most recently seen first.
    pub domains: Vec<UnmatchedDomain>,
}

pub(super) fn report(parts: &Parts, query: &Query) -> Result<Unmatched, Failure> {
    let domains = parts.subjects.unmatched(query.get("domain"));
    if domains.is_empty() {
        names::domain(&names::rules(parts), query.get("domain"))?;
    }
    Ok(Unmatched { domains })
}
