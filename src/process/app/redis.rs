//! The Redis deployments of the process, and their samples in a scrape.
//!
//! The store knows no metrics and the metrics know no Redis: this file reads the counters of the
//! one and makes samples for the other. It sends nothing to Redis.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::core::breaker::CircuitState;
use crate::observe::metrics::Sample;
use crate::observe::metrics::families::{self, Observations};
use crate::store::redis::{Deployment, ROUND_TRIP_BOUNDS, RoundTripCounts, Server};

/// The deployments, with their names in metrics.
pub(super) type Deployments = Vec<(&'static str, Arc<Deployment>)>;

/// The name of the deployment of all limits, or of all except those per second.
pub(super) const MAIN: &str = "main";

/// The name of the deployment of limits per second.
pub(super) const PER_SECOND: &str = "per_second";

/// The samples of all deployments and their servers.
pub(super) fn samples(deployments: &Deployments) -> Vec<Sample> {
    let mut samples = Vec::new();
    for (name, deployment) in deployments {
        deployment_samples(name, deployment, &mut samples);
        // Such a server is down from the start: without a sample, the alert on it would not fire.
        for sought in deployment.undiscovered() {
            samples.push(families::REDIS_UP.count(&[name, &sought], 0));
        }
        // The address is a label. A primary that the Sentinels have not named yet has none.
        let servers = deployment.servers();
        for server in servers.iter().filter(|server| !server.address.is_empty()) {
            server_samples(name, server, &mut samples);
        }
    }
    samples
}

fn deployment_samples(name: &str, deployment: &Deployment, samples: &mut Vec<Sample>) {
    let (open, opened) = match name {
        MAIN => (
            &families::REDIS_CONNECTIONS_OPEN,
            &families::REDIS_CONNECTIONS_OPENED,
        ),
        _ => (
            &families::REDIS_PER_SECOND_CONNECTIONS_OPEN,
            &families::REDIS_PER_SECOND_CONNECTIONS_OPENED,
        ),
    };
    let connections = deployment.connections();
    samples.extend([
        open.count(&[], connections.open as u64),
        opened.count(&[], connections.opened),
    ]);
    let errors = deployment.error_counts().into_iter();
    samples.extend(errors.map(|(error, count)| families::REDIS_ERRORS.count(&[error], count)));
    let (redis, usage) = (&[name], deployment.usage.counts());
    let unknown = deployment.unknown_outcomes.load(Ordering::Relaxed);
    let retries = deployment.retries.load(Ordering::Relaxed);
    samples.extend([
        families::REDIS_UNKNOWN_OUTCOMES.count(redis, unknown),
        families::REDIS_RETRIES.count(redis, retries),
        families::REDIS_COUNTERS_LOST
            .count(redis, deployment.markers.losses.load(Ordering::Relaxed)),
        families::USAGE_INDEX_DROPPED.count(redis, usage.dropped),
        families::USAGE_HITS_LOST.count(redis, usage.lost_hits),
    ]);
}

fn server_samples(redis: &str, server: &Server, samples: &mut Vec<Sample>) {
    let address = &*server.address;
    let state = match server.state {
        CircuitState::Closed => 0.0,
        CircuitState::Open => 1.0,
        CircuitState::Ramp { .. } => 2.0,
    };
    let (status, report) = (&server.status, &server.status.report);
    let (round_trip, clock_ahead) = (status.round_trip, status.clock_ahead_micros);
    let labels = &[redis, address];
    samples.push(families::REDIS_BREAKER_STATE.sample(labels, state));
    samples.extend(
        round_trip.map(|time| families::REDIS_ROUND_TRIP.sample(labels, time.as_secs_f64())),
    );
    samples.extend(
        clock_ahead.map(|micros| families::REDIS_CLOCK_OFFSET.sample(labels, micros as f64 / 1e6)),
    );
    let known = [
        (&families::REDIS_UP, Some(status.is_up.into())),
        (&families::REDIS_KEYS, report.keys),
        (&families::REDIS_USED_MEMORY, report.used_memory_bytes),
        (&families::REDIS_MAX_MEMORY, report.max_memory_bytes),
        (&families::REDIS_EVICTED_KEYS, report.evicted_keys),
        (&families::REDIS_BATCHES, Some(server.round_trips.batches())),
        (&families::REDIS_BATCHED_REQUESTS, Some(server.requests)),
        (&families::REDIS_ABANDONED, Some(server.abandoned)),
    ];
    let known = known.into_iter();
    samples.extend(known.filter_map(|(family, count)| Some(family.count(labels, count?))));
    let RoundTripCounts { buckets, sum } = &server.round_trips;
    let observations = Observations {
        bounds: ROUND_TRIP_BOUNDS.as_slice().into(),
        counts: buckets.to_vec(),
        sum: sum.as_secs_f64(),
    };
    samples.push(families::REDIS_BATCH_DURATION.histogram(&[redis, address], observations));
    let transitions = server.transitions;
    for (to, reason, count) in [
        ("open", "outage", transitions.opened_by_outage),
        ("open", "config", transitions.opened_by_config),
        ("open", "slowness", transitions.opened_by_slowness),
        ("ramp", "probe", transitions.ramped),
        ("closed", "ramp", transitions.closed),
    ] {
        let family = &families::REDIS_BREAKER_TRANSITIONS;
        samples.push(family.count(&[redis, address, to, reason], count));
    }
    if let Some(version) = &report.version {
        samples.push(families::REDIS_SERVER_INFO.count(&[redis, address, version], 1));
    }
    for advice in status.advice() {
        samples.push(families::REDIS_ADVICE.count(&[redis, address, advice], 1));
    }
}
