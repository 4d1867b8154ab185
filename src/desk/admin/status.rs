//! `/api/v1/status`: the identity of this process, and its condition.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Parts;
use super::access::Caller;
use crate::core::time::people::timestamp;
use crate::limits::rules::compile::Problem;
use crate::net::clock;
use crate::observe::metrics::PolicyAnswers;

/// The answer.
#[derive(Debug, JsonSchema, Serialize, Deserialize)]
pub struct Status {
    /// The version of Weir.
    pub version: String,
    /// The name of its machine, which is that of the pod on Kubernetes.
    pub replica: String,
    /// The commit that it was built from; may be empty.
    pub commit: String,
    /// When the process started.
    pub started_at: Timestamp,
    /// The clock of its machine.
    pub now: Timestamp,
    /// `memory` or `redis`.
    #[schemars(extend("enum" = ["memory", "redis"]))]
    pub store: String,
    /// Whether the process wants traffic.
    pub healthy: bool,
    /// Why not, a line each.
    pub reasons: Vec<String>,
    /// The number of the configuration in force; 0 before the first.
    pub generation: u64,
    /// Limits in force.
    pub limits: usize,
    /// Domains in force.
    pub domains: usize,
    /// Whether a later configuration was refused.
    pub refused_configuration: bool,
    /// That configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rejected: Option<Rejected>,
    pub redis: Vec<RedisServer>,
    /// The outage of Redis that is under way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outage: Option<Outage>,
    /// The name of the caller's token, if there is one.
    pub authorized_as: Option<String>,
    /// Whether this process accepts changes, of callers with a token.
    pub may_change: bool,
}

/// A configuration that was refused.
#[derive(Debug, JsonSchema, Serialize, Deserialize)]
pub struct Rejected {
    /// When it was.
    pub at: Timestamp,
    /// Its first mistakes: file, line, mistake and remedy.
    pub problems: Vec<String>,
}

/// An outage of Redis.
#[derive(Debug, JsonSchema, Serialize, Deserialize)]
pub struct Outage {
    /// When it began.
    pub since: Timestamp,
    /// The checks that failure policies have answered since then, by `on_store_failure`.
    pub answers: PolicyAnswers,
}

/// One server.
#[derive(Debug, JsonSchema, Serialize, Deserialize)]
pub struct RedisServer {
    /// `main`, or `per_second` for the one of limits per second.
    #[schemars(extend("enum" = ["main", "per_second"]))]
    pub deployment: String,
    /// `host:port` or the path of a socket.
    pub server: String,
    /// The state of its circuit breaker.
    #[schemars(extend("enum" = ["closed", "open", "ramp"]))]
    pub circuit: String,
    /// Whether it answered its latest inspection.
    pub up: bool,
}

/// Mistakes of a refused configuration in an answer.
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
            server: server.address,
        })
    });
    let store = match parts.deployments.is_empty() {
        true => "memory",
        false => "redis",
    };
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
        limits: rules.map_or(0, |rules| rules.limit_count()),
        domains: rules.map_or(0, |rules| rules.domains().count()),
        refused_configuration: rejected.is_some(),
        rejected: rejected.map(|rejected| Rejected {
            at: timestamp(rejected.at),
            problems: first_of(&rejected.problems, MOST_PROBLEMS),
        }),
        redis: servers.filter(|server| !server.server.is_empty()).collect(),
        outage: parts.outage.borrow().map(|(began, before)| Outage {
            since: now().checked_sub(began.elapsed()).unwrap_or_default(),
            answers: parts.metrics.process.policy_answers().since(before),
        }),
        authorized_as: caller.as_deref().map(str::to_owned),
        may_change: parts.access.accepts_changes(),
    }
}
