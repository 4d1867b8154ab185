//! Usage beside the request path: what is written behind the answers, and what is read for
//! operators.
//!
//! A tracked check tells the totals of its subject with its answer. They wait here, the latest of
//! each subject, and are written to the index of the limit within a second: a sorted set for each
//! order, in a hash slot of its own. Totals are absolute, so that one that is written twice or lost
//! does no harm: the subject's next check tells it again. Hits that the denial cache refused wait
//! here too, and are added to the records with a script call.
//!
//! No request waits for any of this. What waits is bounded, and what is dropped is counted.
//!
//! The control thread writes 2,500 totals twice a second, so that many replicas do not fill a core
//! of Redis; others wait for their turn. A page of the index shows the records themselves, so that
//! only the order is late. In memory there is no index: a query walks the records.
//!
//! Refused hits are rows of the same script that name no check, so that one text writes records.
//! What certainly did not run is sent again; of what may have run nothing is, and it is counted as
//! lost.

pub(crate) mod queue;
mod reader;
pub(crate) mod writer;

use std::sync::Arc;

use super::Direct;
use super::topology::deployment::Deployment;
pub use queue::UsageCounts;
pub use writer::{MOST_LISTED_AT_ONCE, WRITES_PER_SECOND};

/// Writes and reads the usage of one deployment, on the control thread.
#[derive(Debug)]
pub struct UsageClient {
    deployment: Arc<Deployment>,
    direct: Direct,
    /// `CACHE_KEY_PREFIX`.
    prefix: String,
}

impl UsageClient {
    /// A client that connects with its first query.
    pub fn new(deployment: Arc<Deployment>, prefix: String) -> Self {
        Self {
            direct: Direct::new(Arc::clone(&deployment)),
            deployment,
            prefix,
        }
    }
}
