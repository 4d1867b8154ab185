//! `/api/v1/status`: the identity of this process, and its condition.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Parts;
use super::access::Caller;
use crate::core::time::people::timestamp;
use crate::limits::rules::compile::Problem;
use crate::net::clock;
use crate::observe::metrics::families::{self, Value};
use crate::observe::metrics::{PolicyAnswers, Sample};

/// Response of `/api/v1/status`.
#[derive(Debug, JsonSchema, Serialize, Deserialize)]
pub struct Status {
    /// The version of Weir.
    pub version: String,
    /// Host name; on Kubernetes, the name of the pod.
    pub replica: String,
    /// The commit of the build; may be empty.
    pub commit: String,
    /// When the process started.
    pub started_at: Timestamp,
    /// Current time of the machine.
    pub now: Timestamp,
    /// `memory` or `redis`.
    #[schemars(extend("enum" = ["memory", "redis"]))]
    pub store: String,
    /// Whether the process accepts traffic.
    pub healthy: bool,
    /// Why it is unhealthy, one line per reason.
    pub reasons: Vec<String>,
    /// The number of the configuration in force; 0 before the first.
    pub generation: u64,
    /// Digest of the limits in force, equal for replicas that decide equally; empty before the
    /// first. Overrides are not part of it.
    #[serde(default)]
    pub digest: String,
    /// Limits in force.
    pub limits: usize,
    /// Domains in force.
    pub domains: usize,
    /// Whether a newer configuration was rejected.
    pub refused_configuration: bool,
    /// The rejected configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rejected: Option<Rejected>,
    pub redis: Vec<RedisServer>,
    /// When the certificate of the gRPC port expires, with TLS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate_expires_at: Option<Timestamp>,
    /// TLS handshakes on the gRPC port since the start.
    #[serde(default)]
    pub tls_handshakes: u64,
    /// Those that were not completed.
    #[serde(default)]
    pub failed_tls_handshakes: u64,
    /// The current outage of Redis.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outage: Option<Outage>,
    /// The name of the caller's token, if any.
    pub authorized_as: Option<String>,
    /// Whether this process accepts changes by callers with a token.
    pub may_change: bool,
}

/// A rejected configuration.
#[derive(Debug, JsonSchema, Serialize, Deserialize)]
pub struct Rejected {
    /// When Weir rejected it.
    pub at: Timestamp,
    /// First errors: file, line, error and remedy.
    pub problems: Vec<String>,
}

/// An outage of Redis.
#[derive(Debug, JsonSchema, Serialize, Deserialize)]
pub struct Outage {
    /// Start of the outage.
    pub since: Timestamp,
    /// Checks that failure policies have answered since then, by `on_store_failure`.
    pub answers: PolicyAnswers,
}

/// One Redis server.
#[derive(Debug, JsonSchema, Serialize, Deserialize)]
pub struct RedisServer {
    /// `main`, or `per_second` for limits per second.
    #[schemars(extend("enum" = ["main", "per_second"]))]
    pub deployment: String,
    /// `host:port` or the path of a socket.
    pub server: String,
    /// State of its circuit breaker.
    #[schemars(extend("enum" = ["closed", "open", "ramp"]))]
    pub circuit: String,
    /// Whether the server answered the latest inspection, even if it refuses writes.
    pub up: bool,
    /// Name of the error because of which the server cannot be used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Meaning of the error, and what to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
    /// Conditions of the server that need attention, by their names in deploy/redis.md.
    pub advice: Vec<String>,
}

/// Maximum number of errors of a rejected configuration in a response.
const MOST_PROBLEMS: usize = 5;

/// The commit that the binary was built from; empty without git.
const COMMIT: &str = env!("WEIR_COMMIT");

/// The wall clock.
pub fn now() -> Timestamp {
    timestamp(clock::now())
}

/// The texts of so many problems.
pub(crate) fn first_of(problems: &[Problem], most: usize) -> Vec<String> {
    let first = problems.iter().take(most);
    first.map(ToString::to_string).collect()
}

pub(super) fn report(parts: &Parts, caller: &Caller) -> Status {
    let snapshot = parts.live.load();
    let rules = snapshot.as_ref().map(|snapshot| &snapshot.rules);
    let reasons = parts.health.problem().unwrap_or_default();
    let rejected = parts.live.rejected();
    let servers = parts.deployments.iter().flat_map(|(name, deployment)| {
        let servers = deployment.servers().into_iter();
        servers.map(|server| RedisServer {
            deployment: (*name).to_owned(),
            circuit: server.state.name().to_owned(),
            up: server.status.is_up,
            error: (server.failure.as_ref()).map(|failure| failure.error.to_owned()),
            remedy: server.failure.map(|failure| failure.meaning().to_owned()),
            advice: server.status.advice().map(str::to_owned).collect(),
            server: server.address,
        })
    });
    let samples = parts.metrics.samples();
    let number = |one: &Sample| match one.value {
        Value::Number(number) => number as u64,
        Value::Observations(_) => 0,
    };
    // Of all samples of a family but those with this label.
    let sum = |family, label| -> u64 {
        let all = samples.iter().filter(|one| one.family == family);
        all.filter(|one| one.labels != [label]).map(number).sum()
    };
    let expires_at = Some(sum(&families::CERTIFICATE_EXPIRY, "") as i64).filter(|at| *at > 0);
    let is_alone = parts.deployments.is_empty();
    let store = if is_alone { "memory" } else { "redis" };
    let machine = rustix::system::uname();
    let replica = machine.nodename();
    Status {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        replica: replica.to_string_lossy().into_owned(),
        commit: COMMIT.to_owned(),
        started_at: parts.started_at,
        now: now(),
        store: store.to_owned(),
        healthy: parts.health.is_ready(),
        reasons: reasons.lines().map(str::to_owned).collect(),
        generation: snapshot.as_ref().map_or(0, |snapshot| snapshot.generation),
        digest: rules.map_or_else(String::new, |rules| rules.digest()),
        limits: rules.map_or(0, |rules| rules.limit_count()),
        domains: rules.map_or(0, |rules| rules.domains().count()),
        refused_configuration: rejected.is_some(),
        rejected: rejected.map(|rejected| Rejected {
            at: timestamp(rejected.at),
            problems: first_of(&rejected.problems, MOST_PROBLEMS),
        }),
        redis: servers.filter(|server| !server.server.is_empty()).collect(),
        certificate_expires_at: (expires_at)
            .map(|at| Timestamp::from_second(at).unwrap_or_default()),
        tls_handshakes: sum(&families::TLS_HANDSHAKES, ""),
        failed_tls_handshakes: sum(&families::TLS_HANDSHAKES, "completed"),
        outage: parts.outage.borrow().map(|(began, before)| Outage {
            since: now().checked_sub(began.elapsed()).unwrap_or_default(),
            answers: parts.metrics.process.policy_answers().since(before),
        }),
        authorized_as: caller.name.as_deref().map(str::to_owned),
        may_change: parts.access.accepts_changes(),
    }
}
