//! Where the workers' stores come from: what all share is made once, the connections on each worker.

use std::sync::Arc;
use std::time::Duration;

use super::redis::{self as shown, Role};
use crate::health::{Health, StoreHealth};
use crate::metrics::{Metrics, Sample};
use crate::settings::Backend;
use crate::store::{AnyStore, Memory, Redis, memory, redis};

/// How long one sweep through the whole memory store takes. Nothing but memory depends on it.
const SWEEP: Duration = Duration::from_secs(60);

/// What all stores of the process share.
#[derive(Clone)]
pub(super) enum Stores {
    Memory(Memory),
    Redis(Arc<redis::Shared>),
}

impl Stores {
    /// Says where counters are, and shows the store in the metrics.
    pub(super) fn new(backend: Backend, metrics: &Metrics) -> Self {
        match backend {
            Backend::Memory(options) => {
                tracing::info!(max_keys = options.max_keys, "counters are kept in memory: for one replica, until it restarts");
                let memory = Memory::new(options);
                let shown = memory.clone();
                metrics.register(Box::new(move || memory_samples(shown.size())));
                Self::Memory(memory)
            }
            Backend::Redis(options) => {
                tracing::info!(redis = %options.topology, "counters are kept in Redis");
                let shared = redis::Shared::new(options);
                let deployments = vec![(Role::Main, Arc::clone(&shared))];
                metrics.register(Box::new(move || shown::samples(&deployments)));
                Self::Redis(shared)
            }
        }
    }

    /// To be called in the runtime that will use the store.
    pub(super) fn connect(&self) -> AnyStore {
        match self {
            Self::Memory(memory) => AnyStore::Memory(memory.clone()),
            Self::Redis(shared) => AnyStore::Redis(Redis::new(Arc::clone(shared), None)),
        }
    }

    /// Makes health depend on the store: unhealthy until it can be used, and whenever it cannot. Memory always can. Never ends.
    pub(super) fn tell_health(&self, health: Health) -> impl Future<Output = ()> + use<> {
        let deployments = match self {
            Self::Memory(_) => Vec::new(),
            Self::Redis(shared) => vec![(Role::Main, Arc::clone(shared))],
        };
        // Before anybody asks.
        health.store_is(if deployments.is_empty() { StoreHealth::Up } else { StoreHealth::Down });
        shown::tell_health(deployments, health)
    }

    /// What the stores need beside the requests; never ends.
    pub(super) async fn keep(self) {
        match self {
            Self::Memory(memory) => sweep(memory).await,
            Self::Redis(shared) => redis::keep(shared).await,
        }
    }
}

/// Frees what has recovered, a shard at a time.
async fn sweep(memory: Memory) {
    let mut tick = tokio::time::interval(SWEEP / u32::try_from(memory.shards()).unwrap_or(u32::MAX));
    loop {
        tick.tick().await;
        memory.sweep(memory::now());
    }
}

fn memory_samples(size: memory::Size) -> Vec<Sample> {
    let keys = Sample::gauge("weir_memory_keys", "Keys in the memory store.", Vec::new(), size.keys as f64);
    let evicted = "Keys that the memory store forgot because it was full.";
    vec![keys, Sample::counter("weir_memory_evicted_total", evicted, Vec::new(), size.evicted)]
}
