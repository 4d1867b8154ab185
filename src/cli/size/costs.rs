//! What one request, one decision and one key cost, from the measured figures: interpolation
//! between what was measured, and the memory of a key in Redis.

use super::algorithm_costs::{AlgorithmCosts, BATCHES};
use super::measured::{ALGORITHMS, CONNECTIONS, DESCRIPTORS, KEYS, LIMITS};
use super::measured::{
    INCR_MICROS, MEMORY_MICROS, REDIS_3_DESCRIPTORS_MICROS, TLS_CALL_MICROS, USAGE_LISTS_INCRS,
};
use crate::core::algorithm::AlgorithmKind;
use crate::store::redis::{MAX_BATCH_CHECKS, TRACKED_WEIGHT};

/// The limits and the keys with which a request in memory was measured (benches/README.md, "Speed:
/// method").
const BENCH_LIMITS: f64 = 100.0;
const BENCH_KEYS: f64 = 10_000.0;

/// The row of an algorithm.
pub(super) fn of(kind: AlgorithmKind) -> &'static AlgorithmCosts {
    // Requests in flight have no row of their own: with 1 holder and with 1,000, a check took Redis
    // 1.0 and 1.05 times as long as one of a log.
    let measured = if kind == AlgorithmKind::Concurrency {
        AlgorithmKind::SlidingWindowLog
    } else {
        kind
    };
    ALGORITHMS
        .iter()
        .find(|row| row.kind == measured)
        .unwrap_or(&ALGORITHMS[0])
}

/// The value of a curve at `x`: straight between its points, and beyond the last one as between the
/// last two. Before the first it is the first value.
pub(super) fn straight(curve: &[(f64, f64)], x: f64) -> f64 {
    interpolate(curve, x, |x| x)
}

/// The same over the logarithm of `x`, for what is measured in powers; beyond the last point it is
/// the last value.
pub(super) fn over_powers(curve: &[(f64, f64)], x: f64) -> f64 {
    let most = curve.last().map_or(x, |last| last.0);
    interpolate(curve, x.clamp(1.0, most.max(1.0)), f64::ln)
}

fn interpolate(curve: &[(f64, f64)], x: f64, scale: impl Fn(f64) -> f64) -> f64 {
    let Some(first) = curve.first() else {
        return f64::NAN;
    };
    let behind = curve
        .iter()
        .position(|point| point.0 >= x)
        .unwrap_or(curve.len() - 1);
    let Some(before) = behind.checked_sub(1).map(|index| curve[index]) else {
        return first.1;
    };
    let after = curve[behind];
    let share = (scale(x) - scale(before.0)) / (scale(after.0) - scale(before.0));
    before.1 + share * (after.1 - before.1)
}

/// A request, as far as its cost depends on it.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestShape {
    pub(super) descriptors: u32,
    pub(super) algorithm: AlgorithmKind,
    pub(super) limits: f64,
    pub(super) keys: f64,
    pub(super) is_tls: bool,
    /// The limits have `track_usage`.
    pub(super) has_usage: bool,
}

/// µs of CPU of a request whose decisions are made in memory, or by the denial cache, at 4
/// connections with many calls each.
pub(super) fn memory_request_micros(shape: &RequestShape) -> f64 {
    let by_limits = over_powers(LIMITS, shape.limits) / over_powers(LIMITS, BENCH_LIMITS);
    let by_keys = (over_powers(KEYS, shape.keys) / over_powers(KEYS, BENCH_KEYS)).max(1.0);
    let descriptors = f64::from(shape.descriptors);
    // The figure of a request is that of a fixed window.
    let row = of(shape.algorithm);
    let step = row.memory_micros - of(AlgorithmKind::FixedWindow).memory_micros;
    let usage = if shape.has_usage {
        row.memory_micros * (row.usage_memory_ratio - 1.0).max(0.0)
    } else {
        0.0
    };
    MEMORY_MICROS * straight(DESCRIPTORS, descriptors) * by_limits * by_keys
        + (descriptors * step).max(0.0)
        + descriptors * usage
        + tls_micros(shape)
}

/// µs of CPU of a request that Redis decides, of Weir alone, at 4 connections with many calls each.
pub(super) fn redis_request_micros(shape: &RequestShape) -> f64 {
    let by_limits = over_powers(LIMITS, shape.limits) / over_powers(LIMITS, BENCH_LIMITS);
    let further =
        (REDIS_3_DESCRIPTORS_MICROS - of(AlgorithmKind::FixedWindow).redis_request_micros) / 2.0;
    let row = of(shape.algorithm);
    let usage = if shape.has_usage {
        row.usage_weir_micros * (1.0 - 1.0 / row.usage_weir_ratio).max(0.0)
    } else {
        0.0
    };
    row.redis_request_micros * by_limits
        + further * f64::from(shape.descriptors - 1)
        + usage * f64::from(shape.descriptors)
        + tls_micros(shape)
}

/// µs that a call costs more when a thread has so many connections, and reads and writes most calls
/// alone.
pub(super) fn alone_micros(connections_of_a_thread: f64) -> f64 {
    MEMORY_MICROS * (over_powers(CONNECTIONS, connections_of_a_thread).max(1.0) - 1.0)
}

/// µs that a call costs more when each is read and written alone: the dearest that was measured.
pub(super) fn most_alone_micros() -> f64 {
    CONNECTIONS
        .iter()
        .map(|&(connections, _)| alone_micros(connections))
        .fold(0.0, f64::max)
}

fn tls_micros(shape: &RequestShape) -> f64 {
    let [plaintext, tls] = TLS_CALL_MICROS;
    // The two were measured on a machine of their own, so that only their ratio is used.
    if shape.is_tls {
        MEMORY_MICROS * (tls / plaintext - 1.0).max(0.0)
    } else {
        0.0
    }
}

/// A deployment of Redis, as far as the cost of a decision depends on it.
#[derive(Clone, Copy, Debug)]
pub(super) struct RedisShape {
    pub(super) algorithm: AlgorithmKind,
    pub(super) is_cluster: bool,
    pub(super) is_tls: bool,
    /// The limits have `track_usage`: for each decision, how many subjects are written to the
    /// lists; `None` without.
    pub(super) listed: Option<f64>,
}

/// µs of CPU of a Redis server for one batch of `checks`.
pub(super) fn batch_micros(shape: &RedisShape, checks: f64) -> f64 {
    let row = of(shape.algorithm);
    // With usage, fixed windows go by script as the others do.
    let is_script = shape.listed.is_some() && shape.algorithm == AlgorithmKind::FixedWindow;
    let ratios = if is_script {
        of(AlgorithmKind::TokenBucket)
    } else {
        row
    };
    let mut points: [(f64, f64); BATCHES.len()] = std::array::from_fn(|index| {
        let by_cluster = if shape.is_cluster {
            ratios.cluster_ratio[index]
        } else {
            1.0
        };
        let by_tls = if shape.is_tls {
            ratios.redis_tls_ratio[index]
        } else {
            1.0
        };
        let by_usage = if shape.listed.is_some() {
            row.usage_redis_ratio[index]
        } else {
            1.0
        };
        (
            BATCHES[index],
            BATCHES[index] * row.redis_micros[index] * by_cluster * by_tls * by_usage,
        )
    });
    // Each ratio was measured alone. Their product may say that a check costs less in a smaller
    // batch, which it does not.
    for index in (1..points.len()).rev() {
        let (larger, micros) = points[index];
        let (smaller, least) = (points[index - 1].0, micros / larger);
        points[index - 1].1 = points[index - 1].1.max(least * smaller);
    }
    straight(&points, checks) + shape.listed.unwrap_or(0.0) * checks * LISTS_MICROS
}

/// µs of CPU of Redis to write a subject to all lists of its limit.
pub(super) const LISTS_MICROS: f64 = USAGE_LISTS_INCRS * INCR_MICROS;

/// The largest batch that was measured. Weir makes none of more than 96 checks, and of a third as
/// many with usage.
pub(super) const fn largest_batch(has_usage: bool) -> f64 {
    let measured = BATCHES[BATCHES.len() - 1];
    let most = (if has_usage {
        MAX_BATCH_CHECKS / TRACKED_WEIGHT
    } else {
        MAX_BATCH_CHECKS
    }) as f64;
    if most < measured { most } else { measured }
}
