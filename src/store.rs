//! Stores decide checks atomically.
//!
//! A store provides atomicity and the time; the algorithms do the arithmetic. Every call has a
//! deadline, and returns by then with one answer per check.

pub mod memory;
pub mod redis;
mod usage;

use std::sync::Arc;

use tokio::time::{Duration, Instant};

use crate::core::time::Span;
use crate::core::verdict::Answers;
pub use crate::core::verdict::StoreError;
use crate::limits::plan::{CheckIndex, Checks};
pub use memory::Memory;
pub use redis::Redis;
pub use usage::Usage;

/// How long a decision may take.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// The store answers before this instant.
    pub deadline: Instant,
    /// How long a shaper may hold the request, counted from the beginning of the decision. A check
    /// that would have to wait longer is refused.
    pub max_hold: Span,
    /// The time until the deadline when the decision began, for the log; zero if it is not known.
    pub allowed: Duration,
    /// The caller's own deadline, for the log.
    pub caller: Option<Duration>,
}

impl Budget {
    /// The store answers before `deadline`, and no shaper holds the request.
    pub const fn until(deadline: Instant) -> Self {
        Self {
            deadline,
            max_hold: Span::ZERO,
            allowed: Duration::ZERO,
            caller: None,
        }
    }
}

/// The store that the settings select. An enum, so that the hot path has no dynamic dispatch.
#[derive(Clone, Debug)]
pub enum Store {
    /// Counters in this process.
    Memory(Memory),
    /// Counters in Redis.
    Redis(Redis),
}

impl Store {
    /// Decides the checks at `picked`, whose indices ascend. Counts each at most once, and returns
    /// before the deadline or a few milliseconds after it. The result has one answer per check of
    /// `checks`; those of checks that were not picked mean nothing. Of checks that commit all or
    /// none all are picked.
    ///
    /// Dropping the future is safe. What was sent to the store by then may be counted.
    pub async fn decide(
        &self,
        checks: &Arc<Checks>,
        picked: &[CheckIndex],
        budget: Budget,
    ) -> Answers {
        match self {
            Self::Memory(memory) => memory.decide(checks, picked, budget),
            Self::Redis(redis) => redis.decide(checks, picked, budget).await,
        }
    }

    /// Notes hits on tracked checks that were refused without this store.
    pub fn note_refused(&self, checks: &Checks, is_refused: impl Fn(CheckIndex) -> bool) {
        if let Self::Redis(redis) = self {
            redis.note_refused(checks, is_refused);
        }
    }
}
