//! `weir size`: what a load needs, from measured figures. The model beside this file is pure; here
//! are the flags and what they mean together.

mod algorithm_costs;
mod amount;
mod costs;
mod inputs;
pub mod keys;
mod measured;
#[cfg(test)]
mod measured_tests;
mod model;
#[cfg(test)]
mod model_tests;
mod remedies;
mod report;

use std::process::ExitCode;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, value_parser};

use super::{UsageError, print};
use crate::core::algorithm::AlgorithmKind;
use inputs::{Demand, Fleet, RedisInput, RedisKind, UsageDemand};
use report::Report;

/// Bytes of `w1{shop|remote_address=203.0.113.195}tb60`.
const USUAL_KEY_BYTES: u32 = 41;

#[derive(Args, Debug)]
#[command(
    after_help = "Amounts: 500, 50k, 2.5M, 1G. Shares: 60%. Durations: 300us, 1m, 24h. Bytes: \
        512MiB, 16GiB.\n\n\
    Example: weir size --rate 50k --keys 2M --algorithm token_bucket --redis cluster\n\n\
    Every figure is computed from measurements on one machine (benches/README.md). Measure with \
        your own load before you rely on them."
)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of its own")]
pub(super) struct Size {
    /// Decisions per second at the peak: requests, times the descriptors of a request that have a
    /// limit; 1 to 1G
    #[arg(long, value_name = "AMOUNT", value_parser = amount::rate, allow_hyphen_values = true)]
    rate: f64,
    /// Different keys, such as users or addresses, that are counted within one window; 1 to 100G
    #[arg(long, value_name = "AMOUNT", value_parser = amount::keys, allow_hyphen_values = true)]
    keys: f64,
    /// Descriptors of a request that have a limit; 1 to 256
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = value_parser!(u32).range(1..=256), allow_hyphen_values = true)]
    descriptors: u32,
    /// Algorithm of the limits
    #[arg(long, value_name = "NAME", default_value = "fixed_window", value_parser = algorithms())]
    algorithm: AlgorithmKind,
    /// Window of the limits; 1s to 876000h
    #[arg(long, value_name = "DURATION", default_value = "1m", value_parser = amount::window, allow_hyphen_values = true)]
    window: Duration,
    /// Bytes of a counter key in Redis, such as 41 of `w1{shop|remote_address=203.0.113.195}tb60`;
    /// 1 to 65535
    ///
    /// A key of fixed_window has a colon and the number of the window behind that, which is added
    /// here.
    #[arg(long, value_name = "COUNT", default_value_t = USUAL_KEY_BYTES, value_parser = value_parser!(u32).range(1..=65_535))]
    #[arg(allow_hyphen_values = true)]
    key_bytes: u32,
    /// Hits that a key of sliding_window_log holds, or buckets with hits of sliding_window_buckets;
    /// 1 to 100000
    #[arg(long, value_name = "COUNT", default_value_t = 10, value_parser = value_parser!(u32).range(1..=100_000), allow_hyphen_values = true)]
    entries: u32,
    /// Limits in the files; 0 to 10000000
    #[arg(long, value_name = "COUNT", default_value_t = 100, value_parser = value_parser!(u32).range(0..=10_000_000))]
    #[arg(allow_hyphen_values = true)]
    limits: u32,
    /// Share of the decisions that the denial cache refuses without Redis; 0% to 99%
    ///
    /// `weir_denial_cache_answers_total` of a running Weir counts them.
    #[arg(long, value_name = "SHARE", default_value = "0%", value_parser = amount::share, allow_hyphen_values = true)]
    cached: f64,
    /// Limits have `on_store_failure: local`, so that replicas count in their own memory during an
    /// outage of Redis
    #[arg(long)]
    local: bool,
    /// Limits have `track_usage`, so that the usage of each subject is recorded
    #[arg(long)]
    usage: bool,
    /// Subjects whose usage record is kept at a time, such as users that were seen within an hour;
    /// 1 to 100G [default: --keys]
    ///
    /// A record is kept for at least an hour, and for as long as its subject was known, at most for
    /// `usage_expiry`.
    #[arg(long, value_name = "AMOUNT", requires = "usage", value_parser = amount::keys, allow_hyphen_values = true)]
    subjects: Option<f64>,
    /// Buckets of a usage record (`usage_buckets`); 1 to 1000
    #[arg(long, value_name = "COUNT", requires = "usage", default_value_t = 60)]
    #[arg(value_parser = value_parser!(u32).range(1..=1_000), allow_hyphen_values = true)]
    usage_buckets: u32,
    /// Kind of Redis deployment; none: counters are in the memory of one process
    #[arg(
        long,
        value_name = "none|single|sentinel|cluster",
        default_value = "single"
    )]
    redis: RedisKind,
    /// Connections to Redis use TLS
    #[arg(long)]
    redis_tls: bool,
    /// Round trip between Weir and Redis; 10us to 500ms
    #[arg(long, value_name = "DURATION", default_value = "300us", value_parser = amount::round_trip, allow_hyphen_values = true)]
    redis_rtt: Duration,
    /// Time for which Envoy waits for an answer (the `timeout` of its filter); 1ms to 10s
    #[arg(long, value_name = "DURATION", default_value = "20ms", value_parser = amount::timeout, allow_hyphen_values = true)]
    timeout: Duration,
    /// Memory that a Redis server may have; 1MiB to 65536GiB
    #[arg(long, value_name = "BYTES", default_value = "16GiB", value_parser = amount::server_bytes, allow_hyphen_values = true)]
    redis_memory: f64,
    /// Share of the decisions, and of the keys, of limits per second, which a second Redis takes
    /// (REDIS_PERSECOND); 1% to 99%
    #[arg(long, value_name = "SHARE", value_parser = amount::part, allow_hyphen_values = true)]
    per_second: Option<f64>,
    /// Threads of a replica (WORKERS), a core each; 1 to 1024
    #[arg(long, value_name = "COUNT", default_value_t = 4, value_parser = value_parser!(u32).range(1..=1_024), allow_hyphen_values = true)]
    workers: u32,
    /// Replicas that may be missing at the peak; 0 to 1000
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = value_parser!(u32).range(0..=1_000), allow_hyphen_values = true)]
    spare: u32,
    /// Share of the capacity that is used at the peak, of Weir and of Redis; 1% to 100%
    #[arg(long, value_name = "SHARE", default_value = "60%", value_parser = amount::target, allow_hyphen_values = true)]
    target: f64,
    /// Envoys that ask; 1 to 1000000 [default: calls come one by one, over a connection for each
    /// 1,000 requests/s]
    #[arg(long, value_name = "COUNT", value_parser = value_parser!(u32).range(1..=1_000_000), allow_hyphen_values = true)]
    envoys: Option<u32>,
    /// Worker threads of an Envoy (its --concurrency), which have a connection each; 1 to 1024
    /// [default: 4]
    #[arg(long, value_name = "COUNT", requires = "envoys", value_parser = value_parser!(u32).range(1..=1_024), allow_hyphen_values = true)]
    envoy_threads: Option<u32>,
    /// Envoy connects to every replica (a headless Service), not to one of them behind a common
    /// address
    #[arg(long, requires = "envoys")]
    headless: bool,
    /// The gRPC port has TLS
    #[arg(long)]
    tls: bool,
    /// CPU time on your cores, to that of the machine of the measurements; 0.05 to 20
    #[arg(long, value_name = "RATIO", default_value = "1", value_parser = amount::factor, allow_hyphen_values = true)]
    cpu_factor: f64,
    /// Format of the output: text for people, json for programs
    #[arg(long, default_value = "text", value_name = "text|json")]
    format: print::Format,
}

/// Worker threads of an Envoy where only the number of Envoys is given.
const USUAL_ENVOY_THREADS: u32 = 4;

/// The names of the algorithms, as in files.
fn algorithms() -> impl TypedValueParser<Value = AlgorithmKind> {
    let kind = |name: String| {
        AlgorithmKind::NAMED
            .iter()
            .find(|(known, _)| *known == name)
            .map(|&(_, kind)| kind)
            .ok_or("no algorithm")
    };
    PossibleValuesParser::new(AlgorithmKind::NAMED.map(|(name, _)| name)).try_map(kind)
}

pub(super) fn run(size: &Size) -> anyhow::Result<ExitCode> {
    let (demand, fleet, redis) = inputs(size)?;
    let report = Report::new(
        &demand,
        &fleet,
        &redis,
        &model::plan(&demand, &fleet, &redis),
    );
    print::out(match size.format {
        print::Format::Text => report.text(),
        print::Format::Json => print::json(&report)?,
    })?;
    Ok(ExitCode::SUCCESS)
}

/// The flags as the model takes them.
fn inputs(size: &Size) -> Result<(Demand, Fleet, RedisInput), UsageError> {
    if size.redis == RedisKind::None {
        let needs_redis = [
            ("--redis-tls", size.redis_tls),
            ("--per-second", size.per_second.is_some()),
            ("--local", size.local),
            ("--cached", size.cached > 0.0),
        ];
        if let Some((flag, _)) = needs_redis.into_iter().find(|(_, is_given)| *is_given) {
            return Err(UsageError(format!(
                "{flag} has no meaning without Redis; write --redis single, or leave {flag} out"
            )));
        }
    }
    if f64::from(size.descriptors) > size.rate {
        let what = format!(
            "{} decisions in a request of which there is less than one a second",
            size.descriptors
        );
        return Err(UsageError(format!(
            "{what}: --rate counts decisions, which are requests times descriptors"
        )));
    }
    let demand = Demand {
        rate: size.rate,
        descriptors: size.descriptors,
        keys: size.keys,
        key_bytes: size.key_bytes,
        algorithm: size.algorithm,
        window: size.window,
        entries: size.entries,
        limits: size.limits,
        cached: size.cached,
        has_local: size.local,
        usage: size.usage.then(|| UsageDemand {
            subjects: size.subjects.unwrap_or(size.keys),
            buckets: size.usage_buckets,
        }),
    };
    let fleet = Fleet {
        threads: size.workers,
        spare: size.spare,
        target: size.target,
        envoy_threads: size.envoys.map(|envoys| {
            f64::from(envoys) * f64::from(size.envoy_threads.unwrap_or(USUAL_ENVOY_THREADS))
        }),
        is_headless: size.headless,
        is_tls: size.tls,
        cpu_factor: size.cpu_factor,
    };
    let redis = RedisInput {
        kind: size.redis,
        is_tls: size.redis_tls,
        round_trip: size.redis_rtt,
        timeout: size.timeout,
        server_bytes: size.redis_memory,
        per_second: size.per_second,
    };
    Ok((demand, fleet, redis))
}
