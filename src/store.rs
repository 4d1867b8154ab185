//! Stores decide checks atomically.
//!
//! A store provides atomicity and the time; the algorithms do the arithmetic. Every call has a
//! deadline, and returns by then with one answer per check.

pub mod memory;
pub mod redis;

use std::sync::Arc;

use tokio::time::{Duration, Instant};

use crate::core::algorithm::{Algorithm, State};
use crate::core::answer::Answers;
use crate::core::time::{Micros, Span};
use crate::core::usage::{Order, Page, Record, Top, Tracking};
pub use crate::core::verdict::StoreError;
use crate::limits::plan::{CheckIndex, Checks, key};
use crate::net::clock;
use crate::observe::metrics::Tallies;
pub use memory::Memory;
pub use redis::Redis;
use redis::UsageClient;

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

/// The usage of subjects in the store of a process, for operators.
#[derive(Clone, Debug)]
pub enum Usage {
    /// In this process.
    Memory(Memory),
    /// In Redis, for all replicas.
    Redis {
        /// The deployment of most limits.
        main: Arc<UsageClient>,
        /// The deployment of limits per second, if there is one.
        per_second: Option<Arc<UsageClient>>,
    },
}

impl Usage {
    /// The usage of limits per second, which may have a Redis of their own, or of other limits.
    #[must_use]
    pub fn of_limits(&self, is_per_second: bool) -> Self {
        let mut usage = self.clone();
        if let Self::Redis { main, per_second } = &mut usage
            && let Some(own) = per_second.take().filter(|_| is_per_second)
        {
            *main = own;
        }
        usage
    }

    /// The record of the subject of a check, and the store's time.
    ///
    /// # Errors
    /// The store does not answer in time.
    pub async fn record(
        &self,
        checks: &Checks,
        index: CheckIndex,
        deadline: Instant,
    ) -> Result<(Micros, Option<Record>), StoreError> {
        let counter = checks.key(&checks[index]);
        match self.of_limits(checks.is_per_second(index)) {
            Self::Redis { main, .. } => main.record(counter, deadline).await,
            Self::Memory(memory) => {
                let now = clock::now();
                Ok((now, memory.usage(&key::usage_of(counter), now)))
            }
        }
    }

    /// The state of a check with buckets, and the store's time. Other algorithms keep no hits of
    /// intervals.
    ///
    /// # Errors
    /// The store does not answer in time.
    pub async fn ring(
        &self,
        checks: &Checks,
        index: CheckIndex,
        deadline: Instant,
    ) -> Result<(Micros, Option<State>), StoreError> {
        let check = &checks[index];
        let Algorithm::SlidingWindowBuckets(buckets) = &check.algorithm else {
            return Ok((Micros::default(), None));
        };
        match self.of_limits(checks.is_per_second(index)) {
            Self::Redis { main, .. } => main.ring(checks.key(check), buckets, deadline).await,
            Self::Memory(memory) => {
                let state = memory.state(checks.key(check), &check.algorithm);
                Ok((clock::now(), state))
            }
        }
    }

    /// Subjects of a limit in this order.
    ///
    /// # Errors
    /// The store does not answer in time.
    pub async fn top(
        &self,
        tracking: &Arc<Tracking>,
        order: Order,
        page: Page,
        deadline: Instant,
    ) -> Result<Top, StoreError> {
        match self {
            Self::Redis { main, .. } => main.top(tracking, order, page, deadline).await,
            Self::Memory(memory) => {
                let (memory, tracking) = (memory.clone(), Arc::clone(tracking));
                search(move || memory.top_usage(&tracking, order, page, clock::now())).await
            }
        }
    }

    /// The subjects of a limit with the most hits, each once: at most `usage_subjects`.
    ///
    /// # Errors
    /// The store does not answer in time.
    pub async fn subjects(
        &self,
        tracking: &Arc<Tracking>,
        deadline: Instant,
    ) -> Result<Vec<Vec<u8>>, StoreError> {
        match self {
            Self::Redis { main, .. } => main.subjects(tracking, deadline).await,
            Self::Memory(memory) => {
                let (memory, tracking) = (memory.clone(), Arc::clone(tracking));
                search(move || memory.usage_subjects(&tracking, clock::now())).await
            }
        }
    }

    /// Whether this replica has dropped subjects since its start, of whatever limit.
    pub fn has_dropped(&self) -> bool {
        match self {
            Self::Redis { main, .. } => main.deployment().usage.counts().dropped > 0,
            Self::Memory(memory) => memory.usage_size().evicted > 0,
        }
    }
}

/// Runs a search of all records in a task that may block.
async fn search<T: Send + 'static>(
    search: impl FnOnce() -> T + Send + 'static,
) -> Result<T, StoreError> {
    let found = tokio::task::spawn_blocking(search).await;
    found.map_err(|_| StoreError::NotExecuted("the search failed"))
}
