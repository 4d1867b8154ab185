//! How many replicas and Redis servers a load needs, and at which rate each of them is used up.
//!
//! A thread of Weir, and a Redis server, are sized by their capacity: what they do per second when
//! they are never idle. The CPU that they show at less load is no measure of it, because at less
//! load calls and batches are smaller and cost more each.

use super::measured::{self, BATCHES, Row};
use super::report::Amount::{Bytes, Cores, Count, Micros};
use super::report::SizeReport;
use super::{RedisKind, Size};
use crate::core::algorithm::AlgorithmKind;
use crate::limiter::{denial_cache, failure_policies};
use crate::net::bounds::Shares;
use crate::net::bounds::memory::DEFAULT_LIMIT;
use crate::service::server;
use crate::store::memory;

/// The share of the capacity that is used at the peak, of Weir and of Redis.
pub(super) const TARGET: f64 = 0.6;

/// Connections of an Envoy, one for each of its threads; and requests per second of a connection
/// where the number of Envoys is not given.
const ENVOY_THREADS: f64 = 4.0;
const REQUESTS_OF_A_CONNECTION: f64 = 1_000.0;

/// µs in which a Redis at its capacity answers one batch of every connection: half of the 20 ms for
/// which Envoy waits, because a check waits for the batch that is under way and for its own.
const LONGEST_ROUND: f64 = 10_000.0;

/// Memory of a server of Redis that counters use: three quarters of 16 GiB. Buffers and fragments
/// have the rest.
const MEMORY_IN_USE: f64 = 0.75;
const SERVER_BYTES: f64 = MEMORY_IN_USE * 16.0 * 1_073_741_824.0;

/// Primaries of the smallest Redis Cluster.
const LEAST_PRIMARIES: f64 = 3.0;

/// Connections that a replica accepts, and a Redis by default; and cores of a large machine.
const MAX_CONNECTIONS: f64 = 10_000.0;
const CORES_OF_A_MACHINE: f64 = 64.0;

/// How many keys Redis has for each key of a window of a minute, by fixed windows: past ones stay
/// for 5 s and up to a minute of jitter, and a tenth of all until Redis deletes them.
const FIXED_WINDOW_COPIES: f64 = (60.0 + 5.0 + 30.0) / 60.0 / 0.9;

/// Space of a store in memory, to the keys that are expected: a full one drops keys.
const KEYS_AND_MORE: f64 = 1.25;

/// Limits of memory are multiples of this, in bytes.
const MEMORY_STEP: u64 = 64 << 20;

/// What this load needs.
pub(super) fn report(load: &Size) -> SizeReport {
    let mut report = SizeReport::new(load);
    let threads = weir(load, &mut report);
    if load.redis != RedisKind::None {
        report.begin_redis();
        redis(load, threads, &mut report);
    }
    report
        .bounds
        .sort_by(|one, other| one.1.total_cmp(&other.1));
    report
}

/// Adds what the load needs of Weir to its report, and returns the number of threads that ask
/// Redis.
fn weir(load: &Size, report: &mut SizeReport) -> f64 {
    let micros = request_micros(load);
    let busy = load.requests() * micros / 1e6;
    let threads = (busy / TARGET).ceil().max(1.0);
    let thread_capacity = 1e6 / micros * f64::from(load.descriptors);
    // Counters in memory are those of one process.
    let (workers, needed, spare) = match load.redis {
        RedisKind::None => (threads, 1.0, 0.0),
        _ => (
            load.workers.into(),
            (threads / f64::from(load.workers)).ceil(),
            1.0,
        ),
    };
    let replicas = needed + spare;
    report.add(
        "requests_per_second",
        Count(load.requests()),
        "--rate by --descriptors",
    );
    let why = "one may be missing, when the others use 60 % of their capacity; REPLICAS";
    report.add("replicas", Count(replicas), why);
    let why = "WORKERS (--workers): request a core for each, and set no CPU limit";
    report.add("workers", Count(workers), why);
    let why = format!(
        "{} of it because calls come one by one; {}",
        measured::ALONE_MICROS,
        measured::MACHINE
    );
    report.add("request_cpu_micros", Micros(micros), why);
    let why = "of all replicas at the peak, at most; below it a request costs more CPU";
    report.add("cores", Cores(busy.min(replicas * workers)), why);
    let connections = match load.envoys {
        Some(envoys) => f64::from(envoys) * ENVOY_THREADS,
        None => (load.requests() / REQUESTS_OF_A_CONNECTION).ceil(),
    };
    let each = (connections / replicas).ceil();
    let why = "one for each of 4 threads of an Envoy (--envoys), or for 1,000 requests/s";
    report.add("envoy_connections_per_replica", Count(each), why);
    memory_of_a_replica(load, each, report);

    report.bound("threads of Weir", needed * workers * thread_capacity);
    if load.redis == RedisKind::None {
        report.bound("cores of one machine", CORES_OF_A_MACHINE * thread_capacity);
        report.bound(
            "connections to a replica",
            load.rate * MAX_CONNECTIONS / each,
        );
    } else if load.envoys.is_some() && connections < needed * workers {
        report.bound("connections of Envoy", connections * thread_capacity);
    }
    replicas * workers
}

/// µs of CPU of a request in Weir, when each is read and written alone.
fn request_micros(load: &Size) -> f64 {
    let (one, further) = match load.redis {
        RedisKind::None => (measured::MEMORY_MICROS, measured::DESCRIPTOR_MICROS[0]),
        _ => (
            Row::of(load.algorithm).weir_micros,
            measured::DESCRIPTOR_MICROS[1],
        ),
    };
    let descriptors = f64::from(load.descriptors);
    let usage = load.with_usage(measured::USAGE_MICROS * descriptors);
    measured::ALONE_MICROS + one + further * (descriptors - 1.0) + usage
}

fn memory_of_a_replica(load: &Size, connections: f64, report: &mut SizeReport) {
    let counters = load.keys * Row::of(load.algorithm).key_bytes[0];
    let usage = load.with_usage(load.keys * measured::USAGE_MEMORY_BYTES);
    let (name, why, least, store) = match load.redis {
        RedisKind::None => {
            let why = "the keys and a quarter: a full store drops keys, and their counts";
            let least = memory::Options::default().max_keys;
            ("memory_max_keys", why.to_owned(), least, counters + usage)
        }
        _ => {
            let why = format!(
                "on_store_failure: local may need {} more in an outage",
                Bytes(counters)
            );
            let least = failure_policies::Options::default().max_keys;
            let cache = denial_cache::Options::default().bytes as f64;
            ("local_max_keys", why, least, cache)
        }
    };
    let own = measured::PROCESS_BYTES + connections * measured::CONNECTION_BYTES;
    let what = "the process, 100 limits, connections, and what it counts or caches";
    report.add("memory_bytes", Bytes(own + store), what);
    let shares = "MEMORY_LIMIT: with shares for what clients leave unfinished (SECURITY.md)";
    report.add(
        "memory_limit_bytes",
        Bytes(memory_limit(connections, store)),
        shares,
    );
    report.add(
        name,
        Count((load.keys * KEYS_AND_MORE).max(least as f64)),
        why,
    );
    if load.usage && load.redis == RedisKind::None {
        let bytes = (usage * KEYS_AND_MORE).max(memory::Options::default().usage_bytes as f64);
        let why = "a quarter more than the records: a full store drops those idle for longest";
        report.add("memory_usage_bytes", Bytes(bytes), why);
    }
}

/// The least limit, from that of the manifests on, whose shares are enough for the process itself,
/// its connections and its store.
fn memory_limit(connections: f64, store: f64) -> f64 {
    let suffices = |limit: u64| {
        let shares = Shares::of(limit);
        let options = server::Options::default().within(shares.connections, true);
        options.max_connections as f64 >= connections.min(MAX_CONNECTIONS)
            && shares.store as f64 >= store
    };
    let mut limit = DEFAULT_LIMIT;
    while !suffices(limit) && limit < 1 << 60 {
        limit += MEMORY_STEP.max(limit / 16 / MEMORY_STEP * MEMORY_STEP);
    }
    limit as f64
}

/// Adds what the load needs of Redis, which has a connection of each of so many threads.
fn redis(load: &Size, threads: f64, report: &mut SizeReport) {
    let (batch, capacity) = capacity(load, threads);
    let (copies, why_keys) = match load.algorithm {
        AlgorithmKind::FixedWindow => {
            (FIXED_WINDOW_COPIES, "past windows of a minute stay a while")
        }
        _ => (1.0, "the same clients come again"),
    };
    let keys = load.keys * copies;
    let key_bytes = Row::of(load.algorithm).redis_bytes(measured::USUAL_NAME);
    let bytes = keys * key_bytes + load.with_usage(load.keys * measured::usage_bytes(60));
    let by_cpu = (load.rate / (TARGET * capacity)).ceil();
    let by_memory = (bytes / SERVER_BYTES).ceil();
    let servers = match load.redis {
        RedisKind::Cluster => by_cpu.max(by_memory).max(LEAST_PRIMARIES),
        _ => 1.0,
    };
    let why = format!(
        "a busy core each; CPU needs {}, memory {}; replicas come on top",
        Count(by_cpu),
        Count(by_memory)
    );
    report.add("servers", Count(servers), why);
    let why = format!("decisions/s when it is never idle, in batches of {batch:.1}, within 20 ms");
    report.add("capacity_per_server", Count(capacity), why);
    let why = "decisions/s: a key has one server, whatever their number; used to 60 %";
    report.add("most_decisions_of_a_key", Count(capacity * TARGET), why);
    report.add("keys", Count(keys), why_keys);
    let why = "after one hit, with a name of 41 bytes; a log grows with its hits; Redis 7.0";
    report.add("bytes_per_key", Count(key_bytes), why);
    if load.usage {
        let why = "with 60 buckets, all with hits; 870 after a single one";
        report.add(
            "bytes_per_usage_record",
            Count(measured::usage_bytes(60)),
            why,
        );
    }
    let used = bytes / servers;
    let why = "of each server; counters need no disk: no snapshots, no append-only file";
    report.add("used_memory_bytes", Bytes(used), why);
    report.add(
        "maxmemory_bytes",
        Bytes(used / MEMORY_IN_USE),
        "of which counters use 75 %",
    );
    let why = "one of each thread of all replicas; up to ten in need (REDIS_POOL_SIZE)";
    report.add("connections_per_server", Count(threads), why);

    report.bound("CPU of Redis", servers * capacity);
    report.bound("memory of Redis", load.rate * SERVER_BYTES / used);
    report.bound(
        "connections of Redis",
        load.rate * MAX_CONNECTIONS / threads,
    );
}

/// The checks of a batch in a Redis that is never idle, and its decisions per second: as many as
/// let it answer all connections in time, between the batches that were measured.
pub(super) fn capacity(load: &Size, connections: f64) -> (f64, f64) {
    let row = Row::of(load.algorithm);
    // With usage, fixed windows go by script as the others do.
    let in_cluster = match load.algorithm {
        AlgorithmKind::FixedWindow if load.usage => Row::of(AlgorithmKind::TokenBucket).cluster,
        _ => row.cluster,
    };
    let mut each = std::array::from_fn::<_, 3, _>(|index| {
        let usage = if load.usage { row.usage[index] } else { 1.0 };
        let cluster = if load.redis == RedisKind::Cluster {
            in_cluster[index]
        } else {
            1.0
        };
        row.redis_micros[index] * usage * cluster
    });
    // Each ratio was measured alone. Their product may say that a check costs less in a smaller
    // batch, which it does not.
    each[1] = each[1].max(each[2]);
    each[0] = each[0].max(each[1]);
    let points =
        std::array::from_fn::<_, 3, _>(|index| (BATCHES[index], BATCHES[index] * each[index]));
    // A batch with usage has at most 32 checks, so that the largest measured one does not occur.
    let points = if load.usage { &points[..2] } else { &points };
    let micros = (LONGEST_ROUND / connections).clamp(points[0].1, points[points.len() - 1].1);
    let after = if micros <= points[1].1 { 1 } else { 2 };
    let ((few, least), (many, most)) = (points[after - 1], points[after]);
    let batch = few + (many - few) * (micros - least) / (most - least);
    (batch, batch / micros * 1e6)
}
