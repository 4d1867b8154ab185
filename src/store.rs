//! Stores decide checks atomically.
//!
//! A store provides atomicity and the time; the algorithms do the arithmetic. Every call has a
//! deadline, and returns by then with one answer per check.

pub mod memory;
pub mod redis;
mod usage;

use std::sync::Arc;

use tokio::time::{Duration, Instant};

use crate::core::answer::Answers;
use crate::core::time::Span;
pub use crate::core::verdict::StoreError;
use crate::limits::plan::{CheckIndex, Checks};
use crate::observe::metrics::Tallies;
pub use memory::Memory;
pub use redis::Redis;
pub use usage::Usage;

/// Time limits of a decision.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// The store answers before this instant.
    pub deadline: Instant,
    /// The longest time for which a shaper may hold the request, counted from the beginning of the
    /// decision. A check that would have to wait longer is refused.
    pub max_wait: Span,
    /// The time until the deadline when the decision began, for the log; zero if it is unknown.
    pub allowed: Duration,
    /// The caller's own deadline, for the log.
    pub caller: Option<Duration>,
}

impl Budget {
    /// The store answers before `deadline`, and no shaper holds the request.
    pub const fn until(deadline: Instant) -> Self {
        Self {
            deadline,
            max_wait: Span::ZERO,
            allowed: Duration::ZERO,
            caller: None,
        }
    }
}

/// The store that the settings select. An enum, because the hot path should have no dynamic
/// dispatch.
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
    /// `checks`; the answer to a check that was not picked has no meaning. Of checks that commit
    /// all or none all are picked.
    ///
    /// Dropping the future is safe. Checks that were sent to the store by then may be counted.
    pub async fn decide(
        &self,
        checks: &Arc<Checks>,
        picked: &[CheckIndex],
        budget: &Budget,
    ) -> Answers {
        match self {
            Self::Memory(memory) => memory.decide(checks, picked, *budget),
            Self::Redis(redis) => redis.decide(checks, picked, budget).await,
        }
    }

    /// The same store, of which these tallies count the effects of answers that come after their
    /// callers have gone.
    #[must_use]
    pub fn with_tallies(&self, tallies: &Tallies) -> Self {
        match self {
            Self::Memory(memory) => Self::Memory(memory.clone()),
            Self::Redis(redis) => Self::Redis(redis.with_tallies(tallies)),
        }
    }

    /// Notes hits on tracked checks that were refused without this store.
    pub fn note_refused(&self, checks: &Checks, is_refused: impl Fn(CheckIndex) -> bool) {
        if let Self::Redis(redis) = self {
            redis.note_refused(checks, is_refused);
        }
    }
}
