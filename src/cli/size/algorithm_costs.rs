//! What the benches measure of each algorithm. The figures are in `measured.rs`, which is
//! generated.

use crate::core::algorithm::AlgorithmKind;

/// What was measured of one algorithm.
#[derive(Debug)]
pub(super) struct AlgorithmCosts {
    /// Which one.
    pub(super) kind: AlgorithmKind,
    /// µs of CPU of a decision in memory (table algorithms).
    pub(super) memory_micros: f64,
    /// µs of CPU of Weir for a request with Redis (table speed, `Weir, Redis, ...`).
    pub(super) redis_request_micros: f64,
    /// µs of CPU of Redis for a decision, in batches of [`BATCHES`] (table algorithms).
    pub(super) redis_micros: [f64; BATCHES.len()],
    /// Bytes of a key in memory after one hit (table algorithms).
    pub(super) memory_bytes: f64,
    /// The cost of a decision in Redis Cluster, to one server, in batches of [`BATCHES`] (table
    /// sizing).
    pub(super) cluster_ratio: [f64; BATCHES.len()],
    /// The cost of a decision with usage, in memory and in Redis in batches of [`BATCHES`], to one
    /// without (table usage).
    pub(super) usage_memory_ratio: f64,
    pub(super) usage_redis_ratio: [f64; BATCHES.len()],
    /// µs of CPU of Weir's store with a decision in Redis, with usage and without, to be compared
    /// with each other only (table usage).
    pub(super) usage_weir_micros: f64,
    pub(super) usage_weir_ratio: f64,
    /// The cost of a decision in Redis with TLS, to one without, in batches of [`BATCHES`] (table
    /// sizing).
    pub(super) redis_tls_ratio: [f64; BATCHES.len()],
}

/// Checks of the batches that were measured in Redis.
pub(super) const BATCHES: [f64; 3] = [1.0, 16.0, 64.0];
