//! What was measured: the figures of the tables of benches/README.md that `weir size` computes
//! with. A test compares the two.

use crate::core::algorithm::AlgorithmKind;

/// What was measured of one algorithm.
#[derive(Debug)]
pub struct Row {
    /// Which one.
    pub kind: AlgorithmKind,
    /// µs of CPU of Weir for a request with Redis (table speed, `Weir, Redis, ...`).
    pub weir_micros: f64,
    /// µs of CPU of Redis for a decision, in batches of [`BATCHES`] (table algorithms).
    pub redis_micros: [f64; 3],
    /// The same in Redis Cluster, to that (table sizing).
    pub cluster: [f64; 3],
    /// The same with usage, to that (table usage).
    pub usage: [f64; 3],
    /// Bytes of a key after one hit, in memory and in Redis (table algorithms).
    pub key_bytes: [f64; 2],
}

/// Checks of the batches that were measured in Redis.
pub const BATCHES: [f64; 3] = [1.0, 16.0, 64.0];

/// One row for each algorithm.
#[allow(
    clippy::approx_constant,
    reason = "a figure may be near a constant of mathematics"
)]
pub const ROWS: [Row; 6] = [
    Row {
        kind: AlgorithmKind::FixedWindow,
        weir_micros: 18.72,
        redis_micros: [22.1, 3.6, 2.5],
        cluster: [1.04, 1.1, 1.14],
        usage: [3.4, 6.28, 7.28],
        key_bytes: [43.0, 130.0],
    },
    Row {
        kind: AlgorithmKind::SlidingWindowLog,
        weir_micros: 21.53,
        redis_micros: [52.7, 15.4, 13.7],
        cluster: [0.99, 1.1, 1.06],
        usage: [1.43, 1.81, 1.88],
        key_bytes: [193.0, 209.0],
    },
    Row {
        kind: AlgorithmKind::SlidingWindowCounter,
        weir_micros: 20.34,
        redis_micros: [38.8, 6.7, 6.2],
        cluster: [1.04, 1.22, 1.18],
        usage: [1.61, 2.5, 2.96],
        key_bytes: [44.0, 193.0],
    },
    Row {
        kind: AlgorithmKind::SlidingWindowBuckets,
        weir_micros: 23.73,
        redis_micros: [58.1, 15.9, 12.1],
        cluster: [0.94, 1.13, 1.06],
        usage: [1.35, 1.83, 1.96],
        key_bytes: [593.0, 225.0],
    },
    Row {
        kind: AlgorithmKind::TokenBucket,
        weir_micros: 17.68,
        redis_micros: [40.3, 7.4, 4.6],
        cluster: [1.06, 1.09, 1.19],
        usage: [1.62, 2.58, 3.03],
        key_bytes: [43.0, 171.0],
    },
    Row {
        kind: AlgorithmKind::LeakyBucket,
        weir_micros: 17.51,
        redis_micros: [38.4, 6.8, 4.0],
        cluster: [1.02, 1.32, 1.36],
        usage: [1.64, 2.93, 3.43],
        key_bytes: [43.0, 177.0],
    },
];

/// µs of CPU of a request with one fixed window in memory (table speed, `Weir, memory`).
pub(super) const MEMORY_MICROS: f64 = 11.71;

/// µs of CPU of Weir for each further descriptor of a request: in memory (table scaling,
/// `descriptors`, 16 of them), and with Redis (table speed, `fixed_window, 3 descriptors`).
pub(super) const DESCRIPTOR_MICROS: [f64; 2] = [2.06, 4.18];

/// µs of CPU that a request costs more when each is read and written alone: the dearest of the
/// table scaling, `connections`.
pub(super) const ALONE_MICROS: f64 = 25.8;

/// µs of CPU of Weir that usage adds to a decision, at most about (table usage).
pub(super) const USAGE_MICROS: f64 = 1.46;

/// Bytes of a process at its start with 100 limits, and of a connection (table sizing).
pub(super) const PROCESS_BYTES: f64 = 16_723_968.0;
pub(super) const CONNECTION_BYTES: f64 = 30_220.0;

/// Bytes of the usage record of a subject in memory, with 60 buckets (table usage).
pub(super) const USAGE_MEMORY_BYTES: f64 = 1_800.0;

/// Bytes of a name in Redis: of those that were measured, and of
/// `w1{shop|remote_address=203.0.113.195}tb60`.
const MEASURED_NAME: f64 = 21.0;
pub(super) const USUAL_NAME: f64 = 41.0;

/// Where it was measured (table speed).
pub(super) const MACHINE: &str = "2 × Intel(R) Xeon(R) Processor @ 2.50GHz";

impl Row {
    /// The row of an algorithm. Requests in flight have none of their own: with 1 holder and with
    /// 1,000, a check took Redis 1.0 and 1.05 times as long as one of a log.
    #[must_use]
    pub fn of(kind: AlgorithmKind) -> &'static Self {
        const LOG: usize = 1;
        ROWS.iter()
            .find(|row| row.kind == kind)
            .unwrap_or(&ROWS[LOG])
    }

    /// Bytes that Redis needs for a key with a name of so many bytes, after one hit.
    #[must_use]
    pub fn redis_bytes(&self, name: f64) -> f64 {
        self.key_bytes[1] + name - MEASURED_NAME
    }
}

/// Bytes that Redis needs for the usage of a subject with so many buckets: its record, and its
/// entries in the four lists of its limit. `tests/it/operators/size.rs` compares them with a real server.
#[must_use]
pub fn usage_bytes(buckets: u32) -> f64 {
    const AFTER_ONE_HIT: f64 = 870.0;
    const FURTHER_BUCKET: f64 = 42.0;
    AFTER_ONE_HIT + FURTHER_BUCKET * f64::from(buckets.max(1) - 1)
}
