//! What a store knows of the usage of subjects, for operators.

use std::sync::Arc;

use tokio::time::Instant;

use super::Memory;
use crate::core::algorithm::{Algorithm, State};
use crate::core::time::Micros;
use crate::core::usage::{Order, Page, Record, Top, Tracking};
use crate::core::verdict::StoreError;
use crate::limits::plan::{CheckIndex, Checks, key};
use crate::net::clock;
use crate::store::redis::UsageClient;

/// The usage in the store of a process.
#[derive(Clone, Debug)]
pub enum Usage {
    /// In this process.
    Memory(Memory),
    /// In Redis, for all replicas.
    Redis {
        /// The deployment of most limits.
        main: Arc<UsageClient>,
        /// The one of limits per second, if there is one.
        per_second: Option<Arc<UsageClient>>,
    },
}

impl Usage {
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
        match self {
            Self::Memory(memory) => {
                let (now, mut record) = (clock::now(), Vec::new());
                key::write_usage(counter, &mut record);
                Ok((now, memory.usage(&record, now)))
            }
            Self::Redis { main, per_second } => {
                let is_per_second = checks.is_per_second(index);
                let client = of(main, per_second.as_ref(), is_per_second);
                client.record(counter, deadline).await
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
        match self {
            Self::Memory(memory) => {
                let state = memory.state(checks.key(check), &check.algorithm);
                Ok((clock::now(), state))
            }
            Self::Redis { main, per_second } => {
                let is_per_second = checks.is_per_second(index);
                let client = of(main, per_second.as_ref(), is_per_second);
                client.ring(checks.key(check), buckets, deadline).await
            }
        }
    }

    /// Subjects of a limit in this order. `is_per_second`: the limit is counted
    /// by the deployment of limits per second.
    ///
    /// # Errors
    /// The store does not answer in time.
    pub async fn top(
        &self,
        tracking: &Arc<Tracking>,
        is_per_second: bool,
        order: Order,
        page: Page,
        deadline: Instant,
    ) -> Result<Top, StoreError> {
        match self {
            Self::Memory(memory) => {
                let (memory, tracking) = (memory.clone(), Arc::clone(tracking));
                // It looks at every record.
                let walk = move || memory.top_usage(&tracking, order, page, clock::now());
                let walked = tokio::task::spawn_blocking(walk).await;
                walked.map_err(|_| StoreError::NotExecuted("the search failed"))
            }
            Self::Redis { main, per_second } => {
                let client = of(main, per_second.as_ref(), is_per_second);
                client.top(tracking, order, page, deadline).await
            }
        }
    }
}

fn of<'r>(
    main: &'r Arc<UsageClient>,
    per_second: Option<&'r Arc<UsageClient>>,
    is_per_second: bool,
) -> &'r UsageClient {
    per_second.filter(|_| is_per_second).unwrap_or(main)
}
