//! What is used up first, and what to do then.

use serde::Serialize;

use super::amount::grouped;
use super::inputs::{Demand, RedisInput, RedisKind};
use super::model::{self, Bound, Resource};
use crate::core::algorithm::AlgorithmKind;

/// What is used up, when, and what to do then.
#[derive(Serialize)]
pub(super) struct ShownBound {
    pub(super) resource: String,
    /// Decisions per second.
    pub(super) reached_at: serde_json::Number,
    pub(super) remedy: String,
}

/// A number of JSON: whole, or with three digits behind the point.
pub(super) fn number(value: f64) -> serde_json::Number {
    let rounded = (value * 1e3).round() / 1e3;
    let whole = (rounded.fract() == 0.0 && rounded.abs() < 9e15)
        .then(|| serde_json::Number::from(rounded as i64));
    whole
        .or_else(|| serde_json::Number::from_f64(rounded))
        .unwrap_or_else(|| 0.into())
}

/// A bound of a plan for this load and deployment.
pub(super) fn shown(bound: &Bound, demand: &Demand, redis: &RedisInput) -> ShownBound {
    let of_redis = |is_per_second: bool| {
        if is_per_second {
            "Redis per second"
        } else {
            "Redis"
        }
    };
    let (resource, remedy) = match bound.resource {
        Resource::Threads if redis.kind == RedisKind::None => (
            "threads of Weir".to_owned(),
            "more cores, and a larger WORKERS".to_owned(),
        ),
        Resource::Threads => (
            "threads of Weir".to_owned(),
            "more replicas: an autoscaler, or --spare".to_owned(),
        ),
        Resource::ConnectedThreads => (
            "connections of Envoy".to_owned(),
            "fewer connections than threads: a headless Service, so that every Envoy has one to \
             each replica"
                .to_owned(),
        ),
        Resource::OneProcess => (
            "cores of one machine".to_owned(),
            "counters in Redis (--redis), which replicas share".to_owned(),
        ),
        Resource::EnvoyConnections if redis.kind == RedisKind::None => (
            "connections of Envoy".to_owned(),
            "counters in Redis (--redis), and replicas that share the connections".to_owned(),
        ),
        Resource::EnvoyConnections => (
            "connections to a replica".to_owned(),
            "a Service with one address, so that an Envoy thread connects to one replica"
                .to_owned(),
        ),
        Resource::RedisCpu { is_per_second } => (
            format!("CPU of {}", of_redis(is_per_second)),
            redis_cpu_remedy(demand, redis),
        ),
        Resource::RedisMemory { is_per_second } => (
            format!("memory of {}", of_redis(is_per_second)),
            memory_remedy(demand, redis),
        ),
        Resource::RedisConnections { is_per_second } => (
            format!("connections of {}", of_redis(is_per_second)),
            format!(
                "maxclients above {}, its default: each thread of each replica has a connection",
                grouped(model::MAX_CLIENTS)
            ),
        ),
    };
    ShownBound {
        resource,
        reached_at: number(bound.reached_at.floor()),
        remedy,
    }
}

fn redis_cpu_remedy(demand: &Demand, redis: &RedisInput) -> String {
    let mut remedies = Vec::new();
    match redis.kind {
        RedisKind::Cluster => remedies.push("more primaries".to_owned()),
        _ => remedies.push("Redis Cluster (--redis cluster)".to_owned()),
    }
    if redis.per_second.is_none() {
        remedies.push("a second Redis for limits per second (--per-second)".to_owned());
    }
    if demand.algorithm != AlgorithmKind::FixedWindow {
        remedies.push("fixed_window, which costs Redis least".to_owned());
    }
    if demand.usage.is_some() {
        remedies.push("track_usage for fewer limits".to_owned());
    }
    if demand.cached == 0.0 {
        remedies.push("the denial cache, if many are refused (--cached)".to_owned());
    }
    remedies.join("; ")
}

fn memory_remedy(demand: &Demand, redis: &RedisInput) -> String {
    let more = if redis.kind == RedisKind::Cluster {
        "more primaries"
    } else {
        "larger servers (--redis-memory), or Redis Cluster"
    };
    match demand.algorithm {
        _ if demand.usage.is_some() => {
            format!("{more}; fewer usage_buckets; a shorter usage_expiry")
        }
        AlgorithmKind::FixedWindow => {
            format!("{more}; shorter keys; a smaller EXPIRATION_JITTER_MAX_SECONDS")
        }
        AlgorithmKind::SlidingWindowLog => {
            format!("{more}; sliding_window_counter, whose keys do not grow")
        }
        _ => format!("{more}; shorter keys"),
    }
}
