//! Where the workers' stores come from: what all share is made once, the connections on each worker.

use std::sync::Arc;
use std::time::Duration;

use crate::metrics::{Metrics, Sample};
use crate::settings::Backend;
use crate::store::{AnyStore, Memory, Redis, memory, redis};

/// How long one sweep through the whole memory store takes. Nothing but memory depends on it.
const SWEEP: Duration = Duration::from_secs(60);

/// What all stores of the process share.
#[derive(Clone)]
pub(super) enum Stores {
    Memory(Memory),
    Redis { main: Arc<redis::Shared>, per_second: Option<Arc<redis::Shared>> },
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
            Backend::Redis { main, per_second } => {
                tracing::info!(redis = %main.topology, tls = main.tls.is_some(), "counters are kept in Redis");
                if let Some(options) = &per_second {
                    tracing::info!(redis = %options.topology, tls = options.tls.is_some(), "those of limits per second in this one");
                }
                let (main, per_second) = (redis::Shared::new(main), per_second.map(redis::Shared::new));
                let shown = Arc::clone(&main);
                metrics.register(Box::new(move || redis_samples(&shown)));
                Self::Redis { main, per_second }
            }
        }
    }

    /// To be called in the runtime that will use the store.
    pub(super) fn connect(&self) -> AnyStore {
        match self {
            Self::Memory(memory) => AnyStore::Memory(memory.clone()),
            Self::Redis { main, per_second } => AnyStore::Redis(Redis::new(Arc::clone(main), per_second.clone())),
        }
    }

    /// What the stores need beside the requests; never ends.
    pub(super) async fn keep(self) {
        match self {
            Self::Memory(memory) => sweep(memory).await,
            Self::Redis { main, per_second: None } => redis::keep(main).await,
            Self::Redis { main, per_second: Some(per_second) } => drop(tokio::join!(redis::keep(main), redis::keep(per_second))),
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

fn redis_samples(shared: &redis::Shared) -> Vec<Sample> {
    let connections = shared.connections();
    let active = Sample::gauge("ratelimit_redis_pool_cx_active", "Open connections to Redis.", Vec::new(), connections.open as f64);
    let total = Sample::counter("ratelimit_redis_pool_cx_total", "Connections to Redis since the start.", Vec::new(), connections.opened);
    let help = "What went wrong with Redis, by name: once per request that it spoiled, once per attempt to connect.";
    let error = |(name, count): (&str, u64)| Sample::counter("weir_redis_errors_total", help, vec![("error", name.to_owned())], count);
    let errors = shared.error_counts().into_iter().map(error);
    [active, total].into_iter().chain(errors).collect()
}
