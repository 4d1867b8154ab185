//! What metrics and health show of Redis: deployments by what they count (`main`, `per_second`), and each of their servers.

use std::sync::Arc;
use std::time::Duration;

use crate::breaker::State;
use crate::health::{Health, StoreHealth};
use crate::metrics::Sample;
use crate::store::redis::{Deployment, Server};

/// How often health is asked after.
const TICK: Duration = Duration::from_millis(250);

/// Deployments, with what metrics call them.
pub(super) type Deployments = Vec<(DeploymentName, Arc<Deployment>)>;

/// What a deployment counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DeploymentName {
    /// All limits, or all but those per second.
    Main,
    /// Limits per second.
    PerSecond,
}

impl DeploymentName {
    const fn label(self) -> &'static str {
        match self {
            Self::Main => "main",
            Self::PerSecond => "per_second",
        }
    }

    /// The names that envoyproxy/ratelimit has for open connections and for all that were opened.
    const fn pool_metrics(self) -> (&'static str, &'static str) {
        match self {
            Self::Main => ("ratelimit_redis_pool_cx_active", "ratelimit_redis_pool_cx_total"),
            Self::PerSecond => ("ratelimit_redis_per_second_pool_cx_active", "ratelimit_redis_per_second_pool_cx_total"),
        }
    }
}

/// Health follows Redis, from the first look at it on; never ends.
pub(super) async fn tell_health(deployments: Deployments, health: Health) {
    let mut tick = tokio::time::interval(TICK);
    loop {
        tick.tick().await;
        let is_usable = deployments.iter().all(|(_, deployment)| deployment.is_usable());
        health.store_is(if is_usable { StoreHealth::Up } else { StoreHealth::Down });
    }
}

/// All that a scrape shows of Redis.
pub(super) fn samples(deployments: &Deployments) -> Vec<Sample> {
    let mut samples = Vec::new();
    for (name, deployment) in deployments {
        of_deployment(*name, deployment, &mut samples);
        // A server that nobody has found yet has no name to be shown under.
        for server in deployment.servers().iter().filter(|server| !server.address.is_empty()) {
            of_server(*name, server, &mut samples);
        }
    }
    samples
}

fn of_deployment(name: DeploymentName, deployment: &Deployment, samples: &mut Vec<Sample>) {
    let (active, total) = name.pool_metrics();
    let connections = deployment.connections();
    samples.push(Sample::gauge(active, "Open connections to Redis.", Vec::new(), connections.open as f64));
    samples.push(Sample::counter(total, "Connections to Redis since the start.", Vec::new(), connections.opened));
    let help = "What went wrong with Redis, by name: once per request that it spoiled, once per attempt to connect.";
    for (name, count) in deployment.error_counts() {
        samples.push(Sample::counter("weir_redis_errors_total", help, vec![("error", name.to_owned())], count));
    }
    let labels = || vec![("redis", name.label().to_owned())];
    let help = "Requests of which nobody knows whether Redis counted them: the answer was lost or late.";
    samples.push(Sample::counter("weir_redis_unknown_outcomes_total", help, labels(), deployment.unknown_outcomes()));
    let help = "Requests that were sent a second time, because the first time they did certainly not run.";
    samples.push(Sample::counter("weir_redis_retries_total", help, labels(), deployment.retries()));
}

fn of_server(name: DeploymentName, server: &Server, samples: &mut Vec<Sample>) {
    let labels = || vec![("redis", name.label().to_owned()), ("server", server.address.clone())];
    let with = |name, value: &str| [labels(), vec![(name, value.to_owned())]].concat();
    let mut gauge = |name, help, value: Option<f64>| samples.extend(value.map(|value| Sample::gauge(name, help, labels(), value)));
    let state = match server.state {
        State::Closed => 0.0,
        State::Open => 1.0,
        State::Ramp { .. } => 2.0,
    };
    let (status, report) = (&server.status, &server.status.report);
    gauge("weir_redis_breaker_state", "Whether requests go to the server: 0 all, 1 none, 2 more and more after an outage.", Some(state));
    gauge("weir_redis_up", "Whether the server answered when it was looked at last.", Some(f64::from(u8::from(status.is_up))));
    let help = "From a question to its answer, when the server was looked at last.";
    gauge("weir_redis_round_trip_seconds", help, status.round_trip.map(|time| time.as_secs_f64()));
    let help = "How far the server's clock is ahead of this machine's.";
    gauge("weir_redis_clock_offset_seconds", help, status.clock_ahead_micros.map(|micros| micros as f64 / 1e6));
    let help = "Keys in the database that Weir uses, of whoever they are.";
    gauge("weir_redis_keys", help, report.keys.map(|keys| keys as f64));
    gauge("weir_redis_used_memory_bytes", "What the server's data takes.", report.used_memory_bytes.map(|bytes| bytes as f64));
    let help = "What the server's data may take (maxmemory); 0 for as much as there is.";
    gauge("weir_redis_max_memory_bytes", help, report.max_memory_bytes.map(|bytes| bytes as f64));
    let transitions = server.transitions;
    let changes = [
        ("open", "outage", transitions.opened_by_outage),
        ("open", "config", transitions.opened_by_config),
        ("open", "slowness", transitions.opened_by_slowness),
        ("ramp", "probe", transitions.ramped),
        ("closed", "ramp", transitions.closed),
    ];
    for (to, reason, count) in changes {
        let help = "How often requests were kept from the server (open), let back in little by little (ramp), and all let in (closed).";
        let labels = [labels(), vec![("to", to.to_owned()), ("reason", reason.to_owned())]].concat();
        samples.push(Sample::counter("weir_redis_breaker_transitions_total", help, labels, count));
    }
    if let Some(count) = report.evicted_keys {
        let help = "Keys that the server dropped because it was full, since it started.";
        samples.push(Sample::counter("weir_redis_evicted_keys_total", help, labels(), count));
    }
    if let Some(version) = &report.version {
        let help = "1, with the version of the server.";
        samples.push(Sample::gauge("weir_redis_server_info", help, with("version", version), 1.0));
    }
    for advice in &status.diagnostics {
        let help = "1 for what could be better about the server; the log says what to do.";
        samples.push(Sample::gauge("weir_redis_advice", help, with("advice", advice.name), 1.0));
    }
    let counts = server.counts;
    let help = "Batches of requests that the server answered.";
    samples.push(Sample::counter("weir_redis_batches_total", help, labels(), counts.batches));
    let help = "Requests in these batches; one that needs several servers counts at each.";
    samples.push(Sample::counter("weir_redis_batched_requests_total", help, labels(), counts.requests));
    let help = "Requests that were not sent, because their caller had left or their time was up.";
    samples.push(Sample::counter("weir_redis_abandoned_total", help, labels(), counts.abandoned));
}
