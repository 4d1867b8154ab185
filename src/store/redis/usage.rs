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

pub(crate) mod queue;
mod reader;
mod writer;

pub use queue::UsageCounts;
pub use reader::UsageReader;
pub use writer::{MOST_LISTED_AT_ONCE, UsageWriter, WRITES_PER_SECOND};
