//! Builds the stores of the workers, and the denial cache and failure policies around them. Shared
//! parts are built once, connections per worker.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::Instant;

use super::redis::{self as redis_metrics, Deployments, MAIN, PER_SECOND};
use crate::limiter::leases::{Event, Leases};
use crate::limiter::replicas::{self, Source};
use crate::limiter::{self, DenialCache, FailurePolicies, Limiter};
use crate::limits::plan;
use crate::live::overrides::OverrideStore;
use crate::net::clock;
use crate::observe::health::Health;
use crate::observe::metrics::{Metrics, Sample, families};
use crate::process::settings::{Backend, Settings};
use crate::store::redis::{Direct, UsageClient};
use crate::store::{Memory, Redis, Store, Usage, redis};

/// Time of one sweep through the whole memory store. It decides only how long recovered keys take
/// up memory.
const SWEEP: Duration = Duration::from_secs(60);

/// The parts that the stores of all workers share.
#[derive(Clone)]
pub(super) struct Stores {
    /// The store of the counters, by which operators see the usage of subjects.
    pub(super) usage: Usage,
    /// Only in front of Redis: the memory store is as fast as a cache.
    denials: Option<DenialCache>,
    /// Only in front of Redis: a check in memory has no round trip that a lease could save.
    leases: Option<Leases>,
    outage: FailurePolicies,
    replicas: Source,
    limiter: limiter::Options,
}

impl Stores {
    /// Logs where counters are kept, and registers the metrics of the store and the parts around
    /// it.
    pub(super) fn new(settings: &Settings, metrics: &Metrics) -> Self {
        let key_prefix = &settings.rls.plan.key_prefix;
        let usage = open(settings.backend.clone(), key_prefix, metrics);
        let outage = FailurePolicies::new(&settings.outage);
        let (mut denials, mut leases) = (None, None);
        let replicas = settings.outage.replicas.clone();
        if let Usage::Redis { .. } = &usage {
            denials = DenialCache::new(settings.denials);
            leases = Some(Leases::default());
            let (outage, has_lookups) = (outage.clone(), matches!(replicas, Source::Dns(_)));
            let (denials, leases) = (denials.clone(), leases.clone());
            metrics.register(move || {
                let mut samples = local_samples(&outage, has_lookups);
                samples.extend(denials.iter().flat_map(denial_samples));
                samples.extend(leases.iter().flat_map(lease_samples));
                samples
            });
        }
        Self {
            usage,
            denials,
            leases,
            outage,
            replicas,
            limiter: settings.limiter,
        }
    }

    /// The limiter of one worker; to be called inside its runtime, in which the connections are
    /// made.
    pub(super) fn limiter(&self) -> Limiter {
        let store = match &self.usage {
            Usage::Memory(memory) => Store::Memory(memory.clone()),
            Usage::Redis { main, per_second } => {
                let of = |client: &Arc<UsageClient>| Arc::clone(client.deployment());
                Store::Redis(Redis::new(of(main), per_second.as_ref().map(of)))
            }
        };
        let (denials, outage) = (self.denials.clone(), self.outage.clone());
        Limiter::new(denials, store, outage, self.limiter).with_leases(self.leases.clone())
    }

    /// A function to call when a counter was reset elsewhere: it drops all hits that this process has
    /// drawn ahead.
    pub(super) fn on_reset(&self) -> Box<dyn Fn() + Send + Sync> {
        let leases = self.leases.clone().unwrap_or_default();
        Box::new(move || leases.forget_all())
    }

    /// Writes the waiting usage of subjects once: at the end of the process.
    pub(super) async fn write_usage(&self) {
        if let Usage::Redis { main, per_second } = &self.usage {
            for writer in [main].into_iter().chain(per_second) {
                writer.flush().await;
            }
        }
    }

    /// The Redis deployments; none for the memory store.
    pub(super) fn deployments(&self) -> Deployments {
        deployments(&self.usage)
    }

    /// The store of overrides: the store of the counters. Logs surprises for an operator.
    pub(super) fn of_overrides(&self, settings: &Settings) -> OverrideStore {
        match (&self.usage, &settings.overrides_file) {
            (Usage::Redis { main, .. }, _) => OverrideStore::redis(
                Direct::new(Arc::clone(main.deployment())),
                plan::key::of_overrides(&settings.rls.plan.key_prefix),
            ),
            (Usage::Memory(_), Some(path)) => OverrideStore::File(path.clone()),
            (Usage::Memory(_), None) => OverrideStore::process(),
        }
    }

    /// Background work of the stores: sweeps, the supervision of Redis, and the number of replicas;
    /// never ends. With Redis, the memory store holds the counters of `on_store_failure: local`.
    pub(super) async fn maintain(self, health: Health) {
        let deployments = self.deployments().into_iter();
        match self.usage {
            Usage::Memory(memory) => sweep(&memory).await,
            Usage::Redis { main, per_second } => {
                let writers = [&main].into_iter().chain(&per_second);
                let usage = join_all(writers.map(|writer| writer.run()));
                let deployments = join_all(deployments.map(|(_, one)| redis::supervise(one)));
                let replicas = async {
                    if let Source::Dns(name) = self.replicas {
                        replicas::follow(name, self.outage.replicas().clone(), health).await;
                    }
                };
                tokio::join!(sweep(self.outage.local()), deployments, replicas, usage);
            }
        }
    }
}

/// Makes the store of the counters, and registers its metrics.
fn open(backend: Backend, key_prefix: &str, metrics: &Metrics) -> Usage {
    match backend {
        Backend::Memory(options) => {
            tracing::info!(
                max_keys = options.max_keys,
                max_bytes = options.max_bytes,
                "keeping counters in memory: for this replica only, until it restarts"
            );
            let memory = Memory::new(options);
            let scraped = memory.clone();
            metrics.register(move || memory_samples(&scraped));
            Usage::Memory(memory)
        }
        Backend::Redis { main, per_second } => {
            tracing::info!(
                redis = %main.topology,
                tls = main.tls.is_some(),
                "keeping counters in Redis"
            );
            if let Some(options) = &per_second {
                tracing::info!(
                    redis = %options.topology,
                    tls = options.tls.is_some(),
                    "keeping counters of limits per second in a separate Redis"
                );
            }
            let client = |options| {
                let deployment = redis::Deployment::new(options);
                Arc::new(UsageClient::new(deployment, key_prefix.to_owned()))
            };
            let usage = Usage::Redis {
                main: client(main),
                per_second: per_second.map(client),
            };
            let deployments = deployments(&usage);
            metrics.register(move || redis_metrics::samples(&deployments));
            usage
        }
    }
}

fn deployments(usage: &Usage) -> Deployments {
    let Usage::Redis { main, per_second } = usage else {
        return Vec::new();
    };
    let mut all = vec![(MAIN, Arc::clone(main.deployment()))];
    let per_second = per_second.as_ref();
    all.extend(per_second.map(|one| (PER_SECOND, Arc::clone(one.deployment()))));
    all
}

/// Maximum number of turns of a sweep, because a store with very many shards must not wake the
/// thread for each of them.
const MAX_TURNS: usize = 4_096;

/// Frees recovered keys, a shard at a time. The numbers of shards and of turns are powers of two:
/// one divides the other.
async fn sweep(memory: &Memory) {
    let turns = memory.shards().min(MAX_TURNS);
    let mut tick = tokio::time::interval(SWEEP / u32::try_from(turns).unwrap_or(u32::MAX));
    loop {
        tick.tick().await;
        for _ in 0..memory.shards() / turns {
            memory.sweep(clock::now());
        }
        memory.maintain();
    }
}

fn memory_samples(memory: &Memory) -> Vec<Sample> {
    let (size, usage) = (memory.size(), memory.usage().size());
    vec![
        families::MEMORY_KEYS.count(&[], size.keys as u64),
        families::MEMORY_BYTES.count(&[], size.bytes as u64),
        families::MEMORY_EVICTED.count(&[], size.evicted),
        families::USAGE_RECORDS.count(&[], usage.records as u64),
        families::USAGE_BYTES.count(&[], usage.bytes as u64),
        families::USAGE_EVICTED.count(&[], usage.evicted),
    ]
}

fn local_samples(policies: &FailurePolicies, has_lookups: bool) -> Vec<Sample> {
    let (size, replicas) = (policies.local().size(), policies.replicas());
    let mut samples = vec![
        families::LOCAL_KEYS.count(&[], size.keys as u64),
        families::LOCAL_EVICTED.count(&[], size.evicted),
        families::REPLICAS.count(&[], replicas.get().get().into()),
    ];
    if has_lookups {
        for (result, count) in [
            ("answered", replicas.answered()),
            ("failed", replicas.failed()),
        ] {
            samples.push(families::REPLICAS_LOOKUPS.count(&[result], count));
        }
    }
    samples
}

fn denial_samples(denials: &DenialCache) -> Vec<Sample> {
    let (entries, lookups) = denials.usage(Instant::now());
    vec![
        families::DENIAL_CACHE_ENTRIES.count(&[], entries as u64),
        families::DENIAL_CACHE_LOOKUPS.count(&["hit"], lookups.hits),
        families::DENIAL_CACHE_LOOKUPS.count(&["miss"], lookups.misses),
    ]
}

fn lease_samples(leases: &Leases) -> Vec<Sample> {
    let count = |event| leases.counted(event);
    let draws = |result, event| families::LEASE_DRAWS.count(&[result], count(event));
    let unused = |reason, event| families::LEASE_UNUSED_HITS.count(&[reason], count(event));
    vec![
        families::LEASES.count(&[], leases.len(Instant::now()) as u64),
        draws("granted", Event::Granted),
        draws("partial", Event::Partial),
        draws("refused", Event::Refused),
        draws("failed", Event::Failed),
        families::LEASE_DRAWN_HITS.count(&[], count(Event::DrawnHits)),
        unused("window_ended", Event::WindowEnded),
        unused("evicted", Event::Evicted),
        unused("void", Event::Void),
    ]
}
