//! Where the workers' stores come from, and what stands around them: what all share is made once, the connections on each worker.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::redis::{self as shown, DeploymentName};
use crate::limiter::{self, Denials, Limiter, Outage};
use crate::metrics::{Metrics, Sample, families};
use crate::settings::{Backend, Settings};
use crate::store::{AnyStore, Memory, Redis, memory, redis};

/// How long one sweep through the whole memory store takes. Nothing but memory depends on it.
const SWEEP: Duration = Duration::from_secs(60);

/// What all stores of the process share.
#[derive(Clone)]
pub(super) struct Stores {
    shared: Shared,
    /// Only in front of Redis: a look at memory is as cheap as one at a cache.
    denials: Option<Denials>,
    outage: Outage,
    limiter: limiter::Options,
}

#[derive(Clone)]
enum Shared {
    Memory(Memory),
    Redis { main: Arc<redis::Deployment>, per_second: Option<Arc<redis::Deployment>> },
}

impl Stores {
    /// Says where counters are, and shows the store and what stands around it in the metrics.
    pub(super) fn new(settings: &Settings, metrics: &Metrics) -> Self {
        let shared = Shared::new(settings.backend.clone(), metrics);
        let outage = Outage::new(settings.outage);
        let denials = match &shared {
            Shared::Memory(_) => None,
            Shared::Redis { .. } => Denials::new(settings.denials),
        };
        if let Shared::Redis { .. } = &shared {
            let local = outage.local().clone();
            metrics.register(Box::new(move || local_samples(local.size())));
        }
        if let Some(shown) = denials.clone() {
            metrics.register(Box::new(move || denial_samples(&shown)));
        }
        Self { shared, denials, outage, limiter: settings.limiter }
    }

    /// To be called in the runtime that will use the store.
    pub(super) fn limiter(&self) -> Limiter {
        let store = match &self.shared {
            Shared::Memory(memory) => AnyStore::Memory(memory.clone()),
            Shared::Redis { main, per_second } => AnyStore::Redis(Redis::new(Arc::clone(main), per_second.clone())),
        };
        Limiter::new(self.denials.clone(), store, self.outage.clone(), self.limiter)
    }

    /// The Redis deployments; none for the memory store.
    pub(super) fn deployments(&self) -> shown::Deployments {
        self.shared.deployments()
    }

    /// What the stores need beside the requests; never ends. In Redis's case memory holds what was counted while it could not be reached.
    pub(super) async fn keep(self) {
        match self.shared {
            Shared::Memory(memory) => sweep(&memory).await,
            Shared::Redis { main, per_second } => {
                let per_second = async {
                    if let Some(shared) = per_second {
                        redis::supervise(shared).await;
                    }
                };
                tokio::join!(sweep(self.outage.local()), redis::supervise(main), per_second);
            }
        }
    }
}

impl Shared {
    fn new(backend: Backend, metrics: &Metrics) -> Self {
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
                let shared = Self::Redis { main: redis::Deployment::new(main), per_second: per_second.map(redis::Deployment::new) };
                let deployments = shared.deployments();
                metrics.register(Box::new(move || shown::samples(&deployments)));
                shared
            }
        }
    }

    /// Those of Redis, and what they count.
    fn deployments(&self) -> shown::Deployments {
        match self {
            Self::Memory(_) => Vec::new(),
            Self::Redis { main, per_second } => {
                let per_second = per_second.iter().map(|shared| (DeploymentName::PerSecond, Arc::clone(shared)));
                std::iter::once((DeploymentName::Main, Arc::clone(main))).chain(per_second).collect()
            }
        }
    }
}

/// In so many turns at most: a store of very many shards does not wake the thread for each.
const TURNS: usize = 4_096;

/// Frees what has recovered, a shard at a time. Their number is a power of two, as that of the turns is.
async fn sweep(memory: &Memory) {
    let turns = memory.shards().min(TURNS);
    let mut tick = tokio::time::interval(SWEEP / u32::try_from(turns).unwrap_or(u32::MAX));
    loop {
        tick.tick().await;
        for _ in 0..memory.shards() / turns {
            memory.sweep(memory::now());
        }
        memory.tend();
    }
}

fn memory_samples(size: memory::Size) -> Vec<Sample> {
    vec![families::MEMORY_KEYS.count(&[], size.keys as u64), families::MEMORY_EVICTED.count(&[], size.evicted)]
}

fn local_samples(size: memory::Size) -> Vec<Sample> {
    vec![families::LOCAL_KEYS.count(&[], size.keys as u64), families::LOCAL_EVICTED.count(&[], size.evicted)]
}

fn denial_samples(denials: &Denials) -> Vec<Sample> {
    vec![families::DENIAL_CACHE_ENTRIES.count(&[], denials.entries(Instant::now()) as u64)]
}
