//! Measured figures, from the tables of benches/README.md. Each has the table and the row that it
//! is from.
//!
//! This file is generated from that page: `WEIR_WRITE=1 cargo test --lib cli::size::measured_tests`
//! writes it anew. The same test compares the two.

#![allow(
    clippy::approx_constant,
    reason = "a figure may be near a constant of mathematics"
)]

use super::algorithm_costs::AlgorithmCosts;
use crate::core::algorithm::AlgorithmKind;

/// One row for each algorithm.
pub(super) const ALGORITHMS: [AlgorithmCosts; 6] = [
    AlgorithmCosts {
        kind: AlgorithmKind::FixedWindow,
        memory_micros: 0.46,
        redis_request_micros: 18.72,
        redis_micros: [22.1, 3.6, 2.5],
        memory_bytes: 43.0,
        cluster_ratio: [1.17, 1.35, 1.62],
        usage_memory_ratio: 2.6,
        usage_redis_ratio: [3.4, 6.28, 7.28],
        usage_weir_micros: 2.38,
        usage_weir_ratio: 1.91,
        redis_tls_ratio: [1.58, 1.46, 1.22],
    },
    AlgorithmCosts {
        kind: AlgorithmKind::SlidingWindowLog,
        memory_micros: 0.7,
        redis_request_micros: 21.53,
        redis_micros: [52.7, 15.4, 13.7],
        memory_bytes: 193.0,
        cluster_ratio: [1.04, 2.27, 2.67],
        usage_memory_ratio: 2.13,
        usage_redis_ratio: [1.43, 1.81, 1.88],
        usage_weir_micros: 3.01,
        usage_weir_ratio: 1.94,
        redis_tls_ratio: [1.26, 1.1, 1.01],
    },
    AlgorithmCosts {
        kind: AlgorithmKind::SlidingWindowCounter,
        memory_micros: 0.38,
        redis_request_micros: 20.34,
        redis_micros: [38.8, 6.7, 6.2],
        memory_bytes: 44.0,
        cluster_ratio: [1.08, 2.48, 3.0],
        usage_memory_ratio: 2.55,
        usage_redis_ratio: [1.61, 2.5, 2.96],
        usage_weir_micros: 2.52,
        usage_weir_ratio: 2.21,
        redis_tls_ratio: [1.35, 1.14, 1.01],
    },
    AlgorithmCosts {
        kind: AlgorithmKind::SlidingWindowBuckets,
        memory_micros: 1.81,
        redis_request_micros: 23.73,
        redis_micros: [58.1, 15.9, 12.1],
        memory_bytes: 593.0,
        cluster_ratio: [1.05, 2.27, 2.73],
        usage_memory_ratio: 1.62,
        usage_redis_ratio: [1.35, 1.83, 1.96],
        usage_weir_micros: 2.67,
        usage_weir_ratio: 1.98,
        redis_tls_ratio: [1.26, 1.1, 1.07],
    },
    AlgorithmCosts {
        kind: AlgorithmKind::TokenBucket,
        memory_micros: 0.44,
        redis_request_micros: 17.68,
        redis_micros: [40.3, 7.4, 4.6],
        memory_bytes: 43.0,
        cluster_ratio: [1.09, 2.51, 3.5],
        usage_memory_ratio: 2.52,
        usage_redis_ratio: [1.62, 2.58, 3.03],
        usage_weir_micros: 2.3,
        usage_weir_ratio: 2.07,
        redis_tls_ratio: [1.37, 1.11, 1.06],
    },
    AlgorithmCosts {
        kind: AlgorithmKind::LeakyBucket,
        memory_micros: 0.55,
        redis_request_micros: 17.51,
        redis_micros: [38.4, 6.8, 4.0],
        memory_bytes: 43.0,
        cluster_ratio: [1.02, 2.28, 3.41],
        usage_memory_ratio: 2.55,
        usage_redis_ratio: [1.64, 2.93, 3.43],
        usage_weir_micros: 2.29,
        usage_weir_ratio: 2.15,
        redis_tls_ratio: [1.34, 0.91, 1.1],
    },
];

/// µs of CPU of a request with one fixed window in memory (table speed, `Weir, memory`).
pub(super) const MEMORY_MICROS: f64 = 11.71;

/// µs of CPU of Weir for a request with three of them in Redis (table speed,
/// `Weir, Redis, fixed_window, 3 descriptors`).
pub(super) const REDIS_3_DESCRIPTORS_MICROS: f64 = 27.08;

/// Bytes of a process at its start (table sizing).
pub(super) const PROCESS_BYTES: f64 = 16_723_968.0;

/// Bytes of a connection that has made calls (table sizing).
pub(super) const CONNECTION_BYTES: f64 = 30_220.0;

/// Bytes of a limit (table sizing).
pub(super) const LIMIT_BYTES: f64 = 2_580.0;

/// CPU of Redis to write a subject to all lists of its limit, to a plain INCR (table usage).
pub(super) const USAGE_LISTS_INCRS: f64 = 2.37;

/// Bytes of a usage record in memory after one hit, and with the default number of buckets (table
/// usage).
pub(super) const USAGE_BYTES: [f64; 2] = [244.0, 1_800.0];

/// µs of CPU of Redis for a plain INCR (table algorithms).
pub(super) const INCR_MICROS: f64 = 1.8;

/// µs of CPU of a call without TLS and with it, to be compared with each other only (table tls).
pub(super) const TLS_CALL_MICROS: [f64; 2] = [12.78, 13.18];

/// The number of connections of a thread, and the CPU of a request to that with one (table scaling,
/// `connections`).
pub(super) const CONNECTIONS: &[(f64, f64)] = &[
    (1.0, 1.0),
    (4.0, 1.01),
    (16.0, 1.11),
    (64.0, 1.99),
    (256.0, 3.2),
    (1_000.0, 2.99),
];

/// The number of descriptors of a request, and the CPU of a request to that with one (table
/// scaling, `descriptors`).
pub(super) const DESCRIPTORS: &[(f64, f64)] = &[
    (1.0, 1.0),
    (2.0, 1.19),
    (4.0, 1.35),
    (8.0, 1.88),
    (16.0, 3.64),
];

/// The number of limits, and the CPU of a request to that with one (table scaling, `limits`).
pub(super) const LIMITS: &[(f64, f64)] = &[
    (1.0, 1.0),
    (10.0, 1.04),
    (100.0, 1.08),
    (1_000.0, 1.1),
    (10_000.0, 1.19),
    (100_000.0, 1.23),
];

/// The number of keys in memory, and the CPU of a request to that with the fewest (table scaling,
/// `keys`).
pub(super) const KEYS: &[(f64, f64)] = &[
    (1_000.0, 1.0),
    (10_000.0, 1.01),
    (100_000.0, 1.08),
    (1_000_000.0, 1.05),
    (10_000_000.0, 1.09),
];

/// Where it was measured (table speed).
pub(super) const MACHINE: &str = "2 × Intel(R) Xeon(R) Processor @ 2.50GHz";
