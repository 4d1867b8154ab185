//! Stores: who decides the checks of a plan atomically.
//!
//! A store owns atomicity and time; the arithmetic is the algorithms'. Every call takes a deadline and comes back by then, with one answer
//! per check.

pub mod memory;
pub mod redis;

use std::future::Future;

use tokio::time::Instant;

use crate::plan::Plan;
use crate::verdict::Answers;
pub use crate::verdict::StoreError;
pub use memory::Memory;
pub use redis::Redis;

/// Decides checks atomically.
pub trait Store {
    /// Decides every check of `plan`, counting each at most once, and returns before `deadline` (or hardly after it) with one answer per
    /// check, in their order. Dropping the future is safe: what was written to the store may count all the same.
    fn decide(&self, plan: &Plan, deadline: Instant) -> impl Future<Output = Answers> + Send;
}

/// The store that the settings chose; one match instead of a table of functions on the hot path.
#[derive(Clone, Debug)]
pub enum AnyStore {
    /// Counters in this process.
    Memory(Memory),
    /// Counters in Redis.
    Redis(Redis),
}

impl Store for AnyStore {
    async fn decide(&self, plan: &Plan, deadline: Instant) -> Answers {
        match self {
            Self::Memory(memory) => memory.decide(plan, deadline).await,
            Self::Redis(redis) => redis.decide(plan, deadline).await,
        }
    }
}
