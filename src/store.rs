//! Stores: who decides the checks of a plan atomically.
//!
//! A store owns atomicity and time; the arithmetic is the algorithms'. Every call takes a deadline and comes back by then, with one answer
//! per check.

pub mod memory;
pub mod redis;

use std::future::Future;
use std::sync::Arc;

use tokio::time::Instant;

use crate::plan::Plan;
use crate::time::Span;
use crate::verdict::Answers;
pub use crate::verdict::StoreError;
pub use memory::Memory;
pub use redis::Redis;

/// How long things may take.
#[derive(Clone, Copy, Debug)]
pub struct Within {
    /// When the store has to have answered.
    pub deadline: Instant,
    /// How long the caller can be held after that by a shaper; a check that would have to wait longer is refused.
    pub patience: Span,
}

impl Within {
    /// Until `deadline`, and no holding.
    #[must_use]
    pub const fn until(deadline: Instant) -> Self {
        Self { deadline, patience: Span::ZERO }
    }
}

/// Decides checks atomically.
pub trait Store {
    /// Decides the checks of `plan` at the places `picked`, counting each at most once, and returns before the deadline (or hardly after it)
    /// with one answer per picked check, in that order. A plan that commits all or none is picked whole. Dropping the future is safe: what
    /// was written to the store may count all the same.
    fn decide(&self, plan: &Arc<Plan>, picked: &[usize], within: Within) -> impl Future<Output = Answers> + Send;
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
    async fn decide(&self, plan: &Arc<Plan>, picked: &[usize], within: Within) -> Answers {
        match self {
            Self::Memory(memory) => memory.decide(plan, picked, within).await,
            Self::Redis(redis) => redis.decide(plan, picked, within).await,
        }
    }
}
