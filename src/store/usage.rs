//! The usage of subjects, as operators read it.

use std::sync::Arc;

use tokio::time::Instant;

use super::redis::UsageClient;
use super::{Memory, StoreError};
use crate::core::algorithm::{Algorithm, State};
use crate::core::time::Micros;
use crate::core::usage::{Order, Page, Record, Top, Tracking};
use crate::limits::plan::features::usage;
use crate::limits::plan::{CheckIndex, Checks};
use crate::net::clock;

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
                Ok((now, memory.usage().get(&usage::key_of(counter), now)))
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
                search(move || memory.usage().top(&tracking, order, page, clock::now())).await
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
                search(move || memory.usage().subjects(&tracking, clock::now())).await
            }
        }
    }

    /// Whether this replica has dropped subjects since its start, of whatever limit.
    pub fn has_dropped(&self) -> bool {
        match self {
            Self::Redis { main, .. } => main.deployment().usage.counts().dropped > 0,
            Self::Memory(memory) => memory.usage().size().evicted > 0,
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
