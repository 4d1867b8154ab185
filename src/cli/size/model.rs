//! How many threads, replicas and Redis servers a load needs, and which bound it reaches first.
//! Pure arithmetic on the measured costs: no figure of a measurement stands here.
//!
//! A thread of Weir, and a Redis server, are sized by their capacity: what they do per second when
//! they are never idle. The CPU that they show at less load is no measure of it, because at less
//! load calls and batches are smaller and cost more each.

use std::time::Duration;

use super::costs::{self, RedisShape};
use super::inputs::{Demand, Fleet, RedisInput, RedisKind, UsageDemand};
use super::keys::{self, KeyShape};
use super::measured::{CONNECTION_BYTES, LIMIT_BYTES, PROCESS_BYTES};
use crate::limiter::{denial_cache, failure_policies};
use crate::net::bounds::Shares;
use crate::net::bounds::memory::DEFAULT_LIMIT;
use crate::service::server;
use crate::store::memory;
use crate::store::redis::{MOST_LISTED_AT_ONCE, WRITES_PER_SECOND};

/// Weir's part.
#[derive(Clone, Debug)]
pub(super) struct WeirPlan {
    pub(super) requests: f64,
    /// All replicas, and how many of them answer the peak within the target.
    pub(super) replicas: f64,
    pub(super) needed_replicas: f64,
    pub(super) threads: f64,
    /// µs of CPU of a request, at capacity.
    pub(super) request_micros: f64,
    /// Of them, because calls come alone.
    pub(super) alone_micros: f64,
    /// Cores of all replicas together at the peak, at most.
    pub(super) cores: f64,
    /// Connections of Envoy to all replicas, and to one.
    pub(super) connections: f64,
    pub(super) connections_of_a_replica: f64,
    /// Bytes of a replica at the peak, of that the counters, and the keys that it has to have space
    /// for.
    pub(super) memory: f64,
    pub(super) counter_bytes: f64,
    pub(super) max_keys: Option<f64>,
    /// Bytes of usage records in memory, and the space for them.
    pub(super) usage_bytes: Option<f64>,
    pub(super) max_usage_bytes: Option<f64>,
    /// Bytes of a replica when its clients misbehave, or send more than it can answer.
    pub(super) memory_limit: f64,
}

/// The part of one Redis deployment.
#[derive(Clone, Debug)]
pub(super) struct RedisPlan {
    pub(super) is_per_second: bool,
    /// Decisions per second that reach it.
    pub(super) rate: f64,
    /// Primaries that it has.
    pub(super) servers: f64,
    /// Primaries that the CPU needs, and the memory.
    pub(super) by_cpu: f64,
    pub(super) by_memory: f64,
    /// Decisions per second of one server when it is never idle, and the checks of its batches
    /// then.
    pub(super) capacity: f64,
    pub(super) batch: f64,
    /// Checks of a batch at the peak, and cores of one server.
    pub(super) usual_batch: f64,
    pub(super) cores: f64,
    /// Connections to one server, usually and at most.
    pub(super) connections: f64,
    pub(super) most_connections: f64,
    /// Keys that are stored at a time, bytes of each, and bytes of one server.
    pub(super) keys: f64,
    pub(super) key_bytes: f64,
    pub(super) used_bytes: f64,
    pub(super) usage: Option<UsagePlan>,
    pub(super) maxmemory: f64,
    /// `maxmemory` to the memory that a server may have.
    pub(super) memory_share: f64,
}

/// The usage in one Redis deployment.
#[derive(Clone, Copy, Debug)]
pub(super) struct UsagePlan {
    /// Records that are stored at a time, bytes of each, and bytes of the lists of all limits.
    pub(super) records: f64,
    pub(super) record_bytes: f64,
    pub(super) lists_bytes: f64,
    /// Subjects that are written to the lists per second, at most, and cores for that.
    pub(super) listed: f64,
    pub(super) list_cores: f64,
}

impl UsagePlan {
    fn new(
        usage: &UsageDemand,
        demand: &Demand,
        weir: &WeirPlan,
        (share, rate): (f64, f64),
        cpu_factor: f64,
    ) -> Self {
        let records = usage.subjects * share;
        // A subject is written once at a time, however many hits it has had.
        let at_once = records.min(MOST_LISTED_AT_ONCE as f64);
        let listed = rate.min(weir.replicas * at_once * f64::from(WRITES_PER_SECOND));
        Self {
            records,
            record_bytes: keys::record_bytes(demand.key_bytes, usage.buckets),
            lists_bytes: keys::lists_bytes(demand.key_bytes, records, demand.limits),
            listed,
            list_cores: listed * costs::LISTS_MICROS * cpu_factor / 1e6,
        }
    }

    fn bytes(&self) -> f64 {
        self.records * self.record_bytes + self.lists_bytes
    }
}

/// What is used up when the load grows while nothing but the number of replicas does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Resource {
    /// The CPU of all threads of Weir.
    Threads,
    /// Threads that have a connection of an Envoy.
    ConnectedThreads,
    /// The cores of the one machine that keeps counters in memory.
    OneProcess,
    /// Connections of Envoy to one replica.
    EnvoyConnections,
    /// The CPU of the servers of Redis.
    RedisCpu { is_per_second: bool },
    /// Their memory.
    RedisMemory { is_per_second: bool },
    /// Connections to one of them.
    RedisConnections { is_per_second: bool },
}

/// A resource, and the decisions per second that use it up.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bound {
    pub(super) resource: Resource,
    pub(super) reached_at: f64,
}

/// What a load needs.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) weir: WeirPlan,
    pub(super) redis: Vec<RedisPlan>,
    /// The one that is reached first comes first.
    pub(super) bounds: Vec<Bound>,
}

/// A Redis that answers within a millisecond has one lane of each thread, a farther one two.
pub(super) const NEAR: Duration = Duration::from_millis(1);

/// The default of `REDIS_POOL_SIZE`.
pub(super) const POOL_SIZE: f64 = 10.0;

/// The default of Redis's `maxclients`.
pub(super) const MAX_CLIENTS: f64 = 10_000.0;

/// The share of `maxmemory` that counters use: buffers of connections and replicas, and the
/// fragments between values, have the rest.
pub(super) const MEMORY_IN_USE: f64 = 0.75;

/// Primaries of the smallest Redis Cluster.
const LEAST_PRIMARIES: f64 = 3.0;

/// Connections that a replica accepts (`max_connections` in `src/service/server.rs`).
pub(super) const MAX_CONNECTIONS: f64 = 10_000.0;

/// Limits of memory are multiples of this, in bytes.
const MEMORY_STEP: u64 = 64 << 20;

/// Cores of a large machine. Counters in memory are those of one process.
pub(super) const CORES_OF_A_MACHINE: f64 = 64.0;

/// Space of a store in memory, to the keys that are expected.
const KEYS_AND_MORE: f64 = 1.25;

/// Replicas or threads beyond any that run: a search ends there.
const MOST_THREADS: f64 = 1e9;

/// Plans for a load.
pub(super) fn plan(demand: &Demand, fleet: &Fleet, redis: &RedisInput) -> Plan {
    let is_in_memory = redis.kind == RedisKind::None;
    let shape = demand.request(fleet, is_in_memory);
    let in_memory = costs::memory_request_micros(&shape);
    let usual = if is_in_memory {
        in_memory
    } else {
        (1.0 - demand.cached) * costs::redis_request_micros(&shape) + demand.cached * in_memory
    };
    let weir = weir_plan(demand, fleet, is_in_memory, usual);
    let redis = match (is_in_memory, redis.per_second) {
        (true, _) => Vec::new(),
        (false, None) => vec![redis_plan(demand, fleet, redis, &weir, None)],
        (false, Some(share)) => vec![
            redis_plan(demand, fleet, redis, &weir, Some((1.0 - share, false))),
            redis_plan(demand, fleet, redis, &weir, Some((share, true))),
        ],
    };
    let mut bounds = bounds(demand, fleet, is_in_memory, &weir, &redis);
    bounds.sort_by(|one, other| one.reached_at.total_cmp(&other.reached_at));
    Plan {
        weir,
        redis,
        bounds,
    }
}

fn weir_plan(demand: &Demand, fleet: &Fleet, is_in_memory: bool, usual: f64) -> WeirPlan {
    let requests = demand.requests();
    let of_a_replica = f64::from(fleet.threads);
    // The cost when `threads` share the connections, and what of it is for calls that come alone.
    let cost = |threads: f64| {
        let replicas = if is_in_memory {
            1.0
        } else {
            (threads / of_a_replica).ceil()
        };
        let alone = match fleet.envoy_threads {
            Some(_) => costs::alone_micros(fleet.connections(demand, replicas) / threads),
            None => costs::most_alone_micros(),
        };
        ((usual + alone) * fleet.cpu_factor, alone * fleet.cpu_factor)
    };
    let needed = |micros: f64| {
        (requests * micros / 1e6 / fleet.target)
            .ceil()
            .clamp(1.0, MOST_THREADS)
    };
    let mut threads = needed((usual + costs::most_alone_micros()) * fleet.cpu_factor);
    // Fewer threads have more connections each and need more CPU for a call, so that the least
    // number is approached from above.
    loop {
        let fewer = needed(cost(threads).0);
        if fewer >= threads || needed(cost(fewer).0) > fewer {
            break;
        }
        threads = fewer;
    }
    let (request_micros, alone_micros) = cost(threads);
    let needed_replicas = if is_in_memory {
        1.0
    } else {
        (threads / of_a_replica).ceil()
    };
    let replicas = if is_in_memory {
        1.0
    } else {
        needed_replicas + f64::from(fleet.spare)
    };
    let threads = if is_in_memory { threads } else { of_a_replica };
    let connections = fleet.connections(demand, replicas);
    let connections_of_a_replica = (connections / replicas).ceil();
    // A full store drops keys, so that it gets space for a quarter more.
    let max_keys = match (is_in_memory, demand.has_local) {
        (true, _) => {
            Some((demand.keys * KEYS_AND_MORE).max(memory::Options::default().max_keys as f64))
        }
        (false, true) => Some(
            (demand.keys * KEYS_AND_MORE).max(failure_policies::Options::default().max_keys as f64),
        ),
        (false, false) => None,
    };
    let counters = if max_keys.is_some() {
        demand.keys * keys::memory_bytes(&demand.key())
    } else {
        0.0
    };
    // Local counters of an outage record nothing.
    let usage_bytes = demand
        .usage
        .filter(|_| is_in_memory)
        .map(|usage| usage.subjects * keys::memory_record_bytes(usage.buckets));
    let max_usage_bytes = usage_bytes
        .map(|bytes| (bytes * KEYS_AND_MORE).max(memory::Options::default().usage_bytes as f64));
    let cache = if is_in_memory {
        0.0
    } else {
        denial_cache::Options::default().bytes as f64
    };
    let counted = counters + usage_bytes.unwrap_or(0.0);
    let memory = PROCESS_BYTES
        + counted
        + cache
        + f64::from(demand.limits) * LIMIT_BYTES
        + connections_of_a_replica * CONNECTION_BYTES;
    let dearest = (usual + costs::most_alone_micros()) * fleet.cpu_factor;
    WeirPlan {
        requests,
        replicas,
        needed_replicas,
        threads,
        request_micros,
        alone_micros,
        cores: (requests * dearest / 1e6).min(replicas * threads),
        connections,
        connections_of_a_replica,
        memory,
        counter_bytes: counters,
        max_keys,
        usage_bytes,
        max_usage_bytes,
        memory_limit: memory_limit(
            PROCESS_BYTES + f64::from(demand.limits) * LIMIT_BYTES,
            connections_of_a_replica,
            counted + cache,
        ),
    }
}

/// The least limit, from that of the manifests on, whose shares are enough for the process itself,
/// its connections and what it counts.
fn memory_limit(process: f64, connections: f64, store: f64) -> f64 {
    let suffices = |limit: u64| {
        let shares = Shares::of(limit);
        let own = limit - shares.connections - shares.unfinished - shares.store - shares.resources;
        let accepted = server::Options::default()
            .within(shares.connections, true)
            .max_connections as f64;
        own as f64 >= process
            && accepted >= connections.min(MAX_CONNECTIONS)
            && shares.store as f64 >= store
    };
    let mut limit = DEFAULT_LIMIT;
    while !suffices(limit) && limit < 1 << 60 {
        limit += MEMORY_STEP.max(limit / 16 / MEMORY_STEP * MEMORY_STEP);
    }
    limit as f64
}

/// The plan of the only deployment, or of one of two with its share of the decisions and keys.
fn redis_plan(
    demand: &Demand,
    fleet: &Fleet,
    input: &RedisInput,
    weir: &WeirPlan,
    part: Option<(f64, bool)>,
) -> RedisPlan {
    let (share, is_per_second) = part.unwrap_or((1.0, false));
    let key = KeyShape {
        window: if is_per_second {
            Duration::from_secs(1)
        } else {
            demand.window
        },
        ..demand.key()
    };
    let rate = demand.rate * (1.0 - demand.cached) * share;
    let usage = demand
        .usage
        .map(|usage| UsagePlan::new(&usage, demand, weir, (share, rate), fleet.cpu_factor));
    let listed = usage.map(|usage| usage.listed / rate);
    let shape = RedisShape {
        algorithm: demand.algorithm,
        is_cluster: input.kind == RedisKind::Cluster,
        is_tls: input.is_tls,
        listed,
    };
    let lanes = weir.replicas * weir.threads * lanes_of_a_thread(input.round_trip);
    let micros = |checks: f64| costs::batch_micros(&shape, checks) * fleet.cpu_factor;
    let batch = largest_batch(
        costs::largest_batch(usage.is_some()),
        lanes,
        input.longest_round(),
        micros,
    );
    let capacity = batch / micros(batch) * 1e6;
    let keys = demand.keys * share * keys::redis_copies(&key);
    let key_bytes = keys::redis_bytes(&key, None);
    let by_cpu = (rate / (fleet.target * capacity)).ceil().max(1.0);
    let bytes = keys * key_bytes + usage.map_or(0.0, |usage| usage.bytes());
    let by_memory = (bytes / (MEMORY_IN_USE * input.server_bytes))
        .ceil()
        .max(1.0);
    let servers = if input.kind == RedisKind::Cluster {
        by_cpu.max(by_memory).max(LEAST_PRIMARIES)
    } else {
        1.0
    };
    let rate_of_a_server = rate / servers;
    let usual_batch = (rate_of_a_server * input.round_trip.as_secs_f64() / lanes).clamp(1.0, batch);
    let used_bytes = bytes / servers;
    let connections = lanes;
    RedisPlan {
        is_per_second,
        rate,
        servers,
        by_cpu,
        by_memory,
        capacity,
        batch,
        usual_batch,
        cores: (rate_of_a_server * micros(usual_batch) / usual_batch / 1e6).min(1.0),
        connections,
        most_connections: weir.replicas * weir.threads * POOL_SIZE,
        keys,
        key_bytes,
        used_bytes,
        usage,
        maxmemory: used_bytes / MEMORY_IN_USE,
        memory_share: used_bytes / MEMORY_IN_USE / input.server_bytes,
    }
}

/// Connections that a thread uses to one server.
pub(super) fn lanes_of_a_thread(round_trip: Duration) -> f64 {
    if round_trip < NEAR { 1.0 } else { 2.0 }
}

/// The checks of a batch in a Redis that is never idle: as many as were measured, and as let it
/// answer all lanes in time.
fn largest_batch(most: f64, lanes: f64, round: Duration, micros: impl Fn(f64) -> f64) -> f64 {
    let mut checks = most;
    while checks > 1.0 && lanes * micros(checks) > round.as_secs_f64() * 1e6 {
        checks -= 1.0;
    }
    checks
}

fn bounds(
    demand: &Demand,
    fleet: &Fleet,
    is_in_memory: bool,
    weir: &WeirPlan,
    redis: &[RedisPlan],
) -> Vec<Bound> {
    let grows_by = |factor: f64| demand.rate * factor;
    let descriptors = f64::from(demand.descriptors);
    let of_a_thread = 1e6 / weir.request_micros * descriptors;
    let mut bounds = Vec::new();
    let mut add = |resource, reached_at| {
        bounds.push(Bound {
            resource,
            reached_at,
        });
    };
    add(
        Resource::Threads,
        weir.needed_replicas * weir.threads * of_a_thread,
    );
    if is_in_memory {
        add(Resource::OneProcess, CORES_OF_A_MACHINE * of_a_thread);
    }
    if fleet.envoy_threads.is_some() {
        let connected = if fleet.is_headless {
            weir.connections_of_a_replica * weir.needed_replicas
        } else {
            weir.connections
        };
        if connected < weir.needed_replicas * weir.threads {
            add(Resource::ConnectedThreads, connected * of_a_thread);
        }
    }
    // More load comes from more Envoys. Where each knows all replicas, one has the connections of
    // all of them.
    let grows = if fleet.is_headless || is_in_memory {
        MAX_CONNECTIONS / weir.connections_of_a_replica
    } else {
        f64::INFINITY
    };
    if grows.is_finite() {
        add(Resource::EnvoyConnections, grows_by(grows));
    }
    for of_redis in redis {
        let is_per_second = of_redis.is_per_second;
        let to_all = demand.rate / of_redis.rate;
        add(
            Resource::RedisCpu { is_per_second },
            of_redis.servers * of_redis.capacity * to_all,
        );
        add(
            Resource::RedisMemory { is_per_second },
            grows_by(1.0 / of_redis.memory_share),
        );
        add(
            Resource::RedisConnections { is_per_second },
            grows_by(MAX_CLIENTS / of_redis.connections),
        );
    }
    bounds
}
