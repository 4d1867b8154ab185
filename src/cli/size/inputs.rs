//! What a plan is made for: the load, the fleet of Weir, and the deployment of Redis.

use std::time::Duration;

use super::costs::RequestShape;
use super::keys::KeyShape;
use crate::core::algorithm::AlgorithmKind;

/// What Envoy asks for at the peak.
#[derive(Clone, Copy, Debug)]
pub(super) struct Demand {
    /// Decisions per second.
    pub(super) rate: f64,
    /// Decisions of a request.
    pub(super) descriptors: u32,
    /// Different keys within a window.
    pub(super) keys: f64,
    pub(super) key_bytes: u32,
    pub(super) algorithm: AlgorithmKind,
    pub(super) window: Duration,
    /// Entries of a log, or buckets with hits.
    pub(super) entries: u32,
    pub(super) limits: u32,
    /// The share of the decisions that the denial cache refuses.
    pub(super) cached: f64,
    /// Limits have `on_store_failure: local`.
    pub(super) has_local: bool,
    /// Limits have `track_usage`.
    pub(super) usage: Option<UsageDemand>,
}

/// What is recorded of limits with `track_usage`.
#[derive(Clone, Copy, Debug)]
pub(super) struct UsageDemand {
    /// Records that are kept at a time.
    pub(super) subjects: f64,
    /// Buckets of a record.
    pub(super) buckets: u32,
}

/// How Weir runs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fleet {
    /// Threads of a replica.
    pub(super) threads: u32,
    /// Replicas that may be missing at the peak.
    pub(super) spare: u32,
    /// The share of the capacity that is used at the peak, of Weir and of Redis.
    pub(super) target: f64,
    /// The worker threads of all Envoys, if known.
    pub(super) envoy_threads: Option<f64>,
    /// Every thread of an Envoy connects to every replica.
    pub(super) is_headless: bool,
    pub(super) is_tls: bool,
    /// CPU time on these cores, to that of the measurements.
    pub(super) cpu_factor: f64,
}

/// The kinds of Redis deployment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum RedisKind {
    /// None: counters are in the memory of one process.
    None,
    /// One server.
    Single,
    /// A primary with a replica, behind three Sentinels.
    Sentinel,
    /// Redis Cluster, a replica for each primary.
    Cluster,
}

/// The Redis of all limits, and that of limits per second if there is one.
#[derive(Clone, Copy, Debug)]
pub(super) struct RedisInput {
    pub(super) kind: RedisKind,
    pub(super) is_tls: bool,
    pub(super) round_trip: Duration,
    /// How long Envoy waits for an answer.
    pub(super) timeout: Duration,
    /// The memory that one server may have.
    pub(super) server_bytes: f64,
    /// The share of the decisions, and of the keys, that a second Redis for limits per second
    /// takes.
    pub(super) per_second: Option<f64>,
}

/// Requests per second of a thread of an Envoy, where the number of Envoys is not given.
pub(super) const REQUESTS_OF_AN_ENVOY_THREAD: f64 = 1_000.0;

impl Fleet {
    /// Connections of Envoy to all of `replicas`.
    pub(super) fn connections(&self, demand: &Demand, replicas: f64) -> f64 {
        let guessed = (demand.requests() / REQUESTS_OF_AN_ENVOY_THREAD)
            .ceil()
            .max(1.0);
        let threads = self.envoy_threads.unwrap_or(guessed);
        if self.is_headless {
            threads * replicas
        } else {
            threads
        }
    }
}

impl RedisInput {
    /// The longest time in which a Redis at its capacity answers one batch of every lane. A check
    /// waits for two such rounds at most: for the batch that is under way in its lane, and for its
    /// own.
    pub(super) fn longest_round(&self) -> Duration {
        self.timeout / 2
    }
}

impl Demand {
    /// Requests per second.
    pub(super) fn requests(&self) -> f64 {
        self.rate / f64::from(self.descriptors)
    }

    pub(super) fn request(&self, fleet: &Fleet, is_in_memory: bool) -> RequestShape {
        RequestShape {
            descriptors: self.descriptors,
            algorithm: self.algorithm,
            limits: f64::from(self.limits),
            keys: if is_in_memory { self.keys } else { 0.0 },
            is_tls: fleet.is_tls,
            has_usage: self.usage.is_some(),
        }
    }

    pub(super) fn key(&self) -> KeyShape {
        KeyShape {
            algorithm: self.algorithm,
            bytes: self.key_bytes,
            entries: self.entries,
            window: self.window,
        }
    }
}
