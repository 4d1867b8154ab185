//! The inspection of every server at intervals: whether it answers, its round-trip time, its clock,
//! its memory, and its diagnostics.
//!
//! It feeds the metrics, the log and the health status, with connections of its own, and costs
//! requests nothing. It never decides whether requests go to a server; the circuit breaker does. It
//! writes only markers (`topology/markers.rs`) to Redis, works although managed servers refuse some
//! of its queries, and never logs the text of a server's error.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::SystemTime;

use bb8_redis::redis::Value;
use futures_util::future::join_all;
use tokio::time::{Duration, Instant, sleep};

use super::diagnostics::{self, Facts};
use super::queries::{
    self, CROSS_SLOT, FULL_COVERAGE, INFO, MissingAccess, NO_ANSWER, SAVE, STOPS_WRITES, TWO_SLOTS,
    read_config,
};
use crate::core::breaker::{CircuitState, Why};
use crate::core::verdict::StoreError;
use crate::store::redis::connection::Connection;
use crate::store::redis::connection::handshake::{self, Purpose};
use crate::store::redis::connection::options::Address;
use crate::store::redis::error::{self, RedisFailure};
use crate::store::redis::features::{KEY, Query, Uses};
use crate::store::redis::topology::markers::Markers;
use crate::store::redis::topology::node::{
    Diagnostic, InfoReport, Location, Node, ServerStatus, Urgency,
};
use crate::store::redis::topology::{Deployment, SlotMap};
use crate::store::redis::wire::replies::time_of;

/// The interval between inspections of a server without diagnostics. A usual scrape interval is as
/// long.
const USUAL_INTERVAL: Duration = Duration::from_secs(15);

/// The interval while there are diagnostics or a configuration error, because an operator who
/// repairs them waits for the result.
const DIAGNOSTIC_INTERVAL: Duration = Duration::from_secs(5);

/// The interval while a server cannot be reached, or after it has closed the connection.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);

/// The interval of checks whether an inspection is due, a server has moved, or a server has closed
/// the connection.
const TICK: Duration = Duration::from_millis(100);

/// The time for a reply. It is far longer than the time of a request, because a slow server still
/// counts as up.
const REPLY_TIMEOUT: Duration = Duration::from_secs(1);

/// After this many failures in a row of the queries that follow the round trip, an inspection of
/// this server measures only the round trip.
const MAX_FAILED_QUERIES: u32 = 3;

/// Inspects all servers of a deployment at intervals. Never returns.
pub(crate) async fn inspect_all(deployment: &Deployment) {
    // Each with the location that it inspects: a server that moved gets a new inspector.
    let mut inspectors: HashMap<u64, (Arc<Node>, Arc<Location>, Inspector)> = HashMap::new();
    loop {
        let map = deployment.map();
        let uses = deployment.uses();
        let refusals = deployment.error_counters.count(error::NO_PERMISSION);
        // Servers that left the map are dropped, with their connections.
        let mut before = std::mem::take(&mut inspectors);
        for node in &map.nodes {
            let Some(location) = node.location() else {
                continue;
            };
            let known = before.remove(&node.id);
            let known = known.filter(|(_, location, _)| node.is_at(location.generation));
            let known = known.unwrap_or_else(|| {
                // A server that moved counts as up if it was before, until its first inspection
                // at the new address.
                node.latest_status.store(Arc::new(ServerStatus {
                    is_up: node.latest_status.load().is_up,
                    ..ServerStatus::default()
                }));
                (Arc::clone(node), location, Inspector::default())
            });
            inspectors.insert(node.id, known);
        }
        let due = inspectors.values_mut().filter_map(|inspected| {
            let (node, location, inspector) = inspected;
            if !inspector.is_due(node, uses, refusals) {
                return None;
            }
            inspector.refusals = refusals;
            Some(inspector.inspect(deployment, &map, node, location))
        });
        join_all(due).await;
        sleep(TICK).await;
    }
}

/// The state between two inspections of one server.
#[derive(Default)]
struct Inspector {
    probe: Option<ProbeConnection>,
    inspected_at: Option<Instant>,
    /// From the latest inspection to the next one.
    interval: Duration,
    /// Number of consecutive inspections whose queries after the round trip failed.
    failed_queries: u32,
    /// Number of batches that the server had answered by the latest inspection.
    answered_batches: u64,
    /// Number of requests refused for a missing right by the latest inspection.
    refusals: u64,
    /// Whether the rights have to be checked, because requests were refused since they were.
    rechecks_access: bool,
    /// Whether the circuit was open at the latest check.
    was_open: bool,
    /// Whether a log line has reported that the server answers. `limiter::outages` logs that it
    /// does not.
    has_answered: bool,
    facts: Facts,
}

/// A connection for inspections.
struct ProbeConnection {
    connection: Connection,
    /// The queries that the server refused here. They are not sent again, because each refusal may
    /// add an entry to the server's ACL LOG.
    refused: Vec<Query>,
    /// The uses whose commands were tested here; `None` if no commands were.
    checked: Option<Uses>,
}

impl Inspector {
    /// Whether an inspection is due. `refusals`: number of requests refused for a missing right.
    fn is_due(&mut self, node: &Node, uses: Uses, refusals: u64) -> bool {
        let is_open = node.state() == CircuitState::Open;
        if is_open && !std::mem::replace(&mut self.was_open, is_open) {
            // The log reports how long the server takes now.
            node.latest_status.rcu(|status| ServerStatus {
                round_trip: None,
                ..ServerStatus::clone(status)
            });
            return true;
        }
        self.was_open = is_open;
        let Some(inspected_at) = self.inspected_at else {
            return true;
        };
        let can_check = self.failed_queries < MAX_FAILED_QUERIES;
        self.rechecks_access = refusals > self.refusals && self.facts.missing.is_empty();
        let is_soon = self.probe.as_mut().is_some_and(|probe| {
            let is_new = probe.checked.is_some_and(|checked| checked != uses);
            // Requests have found out that it refuses keys of several slots.
            let is_new = is_new || node.refuses_slots() != self.facts.refused_slots.is_some();
            can_check && (is_new || self.rechecks_access) || !probe.connection.is_quiet()
        });
        let interval = if is_soon {
            RETRY_INTERVAL
        } else {
            self.interval
        };
        inspected_at.elapsed() >= interval
    }

    /// Inspects the server, stores its status, and logs what has changed.
    async fn inspect(
        &mut self,
        deployment: &Deployment,
        map: &SlotMap,
        node: &Arc<Node>,
        location: &Arc<Location>,
    ) {
        let result = self.query(deployment, map, node, &location.address).await;
        let is_cluster = deployment.is_cluster();
        self.facts.refused_slots = node.refuses_slots().then_some(is_cluster);
        self.inspected_at = Some(Instant::now());
        let before = node.latest_status.load_full();
        let mut status = ServerStatus {
            diagnostics: before.diagnostics.clone(),
            ..ServerStatus::default()
        };
        let interval = match result {
            Ok(round_trip) => {
                status.is_up = true;
                status.round_trip = round_trip;
                status.clock_ahead_micros = self.facts.clock_ahead_micros;
                status.report = self.facts.report.clone();
                status.diagnostics = diagnostics::diagnose(&self.facts, &before.diagnostics);
                if status.diagnostics.is_empty() {
                    USUAL_INTERVAL
                } else {
                    DIAGNOSTIC_INTERVAL
                }
            }
            Err(failure) => {
                self.probe = None;
                let failed = StoreError::NotExecuted(failure.error);
                let is_config = error::server_failure(failed) == Some(Why::Config);
                // A server that accepts no further connection (maxclients) may still answer those
                // of requests.
                status.is_up = error::refuses_writes(failure.error)
                    || node.round_trips.counts().batches() > self.answered_batches;
                status.failure = Some(failure);
                if is_config {
                    DIAGNOSTIC_INTERVAL
                } else {
                    RETRY_INTERVAL
                }
            }
        };
        self.answered_batches = node.round_trips.counts().batches();
        self.interval = interval.mul_f64(0.75 + fastrand::f64() / 4.0);
        self.log_changes(&location.address, &before, &status);
        if node.is_at(location.generation) {
            node.latest_status.store(Arc::new(status));
        }
    }

    /// Logs one line when the server answers for the first time, and one for each diagnostic that
    /// begins, changes or ends.
    fn log_changes(&mut self, redis: &Address, before: &ServerStatus, now: &ServerStatus) {
        if now.failure.is_none() && !std::mem::replace(&mut self.has_answered, true) {
            let millis = |time: Duration| (time.as_secs_f64() * 1e5).round() / 100.0;
            let round_trip_ms = now.round_trip.map(millis);
            tracing::info!(%redis, version = now.report.version, round_trip_ms, "Redis answers");
        }
        let known = |diagnostic: &&Diagnostic| !before.diagnostics.contains(diagnostic);
        for Diagnostic {
            name,
            urgency,
            text,
        } in now.diagnostics.iter().filter(known)
        {
            match urgency {
                Urgency::Warning => tracing::warn!(%redis, advice = name, "Redis: {text}"),
                Urgency::Information => tracing::info!(%redis, advice = name, "Redis: {text}"),
            }
        }
        for Diagnostic { name, .. } in &before.diagnostics {
            if now.diagnostics.iter().all(|other| other.name != *name) {
                tracing::info!(%redis, advice = name, "Redis: condition ended");
            }
        }
    }

    /// Connects if necessary, and queries the server for all facts. Returns the round-trip time;
    /// `None` if the server refused the user before it could be measured.
    ///
    /// # Errors
    /// The error of the connection.
    async fn query(
        &mut self,
        deployment: &Deployment,
        map: &SlotMap,
        node: &Node,
        address: &Address,
    ) -> Result<Option<Duration>, RedisFailure> {
        let usable = self.probe.take_if(|probe| probe.connection.is_usable());
        self.probe = None;
        let is_new = usable.is_none();
        let mut probe = match usable {
            Some(probe) => probe,
            None => match handshake::open(address, &node.options, Purpose::Inspect).await {
                Ok((connection, _)) => ProbeConnection {
                    connection,
                    refused: Vec::new(),
                    checked: None,
                },
                // The server answers but the user does not have a right. After the login, the
                // handshake sends only SELECT.
                Err(failure) if failure.error == error::NO_PERMISSION => {
                    self.facts.missing = MissingAccess::default();
                    self.facts.missing.deny("SELECT", NO_ANSWER);
                    return Ok(None);
                }
                Err(failure) => return Err(failure),
            },
        };
        let measured = self.measure_round_trip(&mut probe.connection).await;
        let (round_trip, missing) = measured.map_err(|name| match name {
            // The handshake may have sent nothing.
            name if is_new => {
                handshake::explain_failure(&mut probe.connection, name, &node.options)
            }
            name => RedisFailure::new(name),
        })?;
        // An inspection that does not check the rights keeps the result of the latest one that did.
        let uses = deployment.uses();
        let is_checked = probe.checked == Some(uses) && !self.rechecks_access;
        let checks_access = !is_checked || !missing.is_empty() || !self.facts.missing.is_empty();
        // Without EXEC the connection stays within the transaction and queues all further commands.
        let is_in_transaction = missing.denied.contains(&"EXEC") || missing.unknown == ["EXEC"];
        if checks_access {
            self.facts.missing = missing;
        }
        if !is_in_transaction && self.failed_queries < MAX_FAILED_QUERIES {
            let queried = self.query_facts(deployment, map, node, &mut probe, checks_access);
            match queried.await {
                Ok(()) => (self.failed_queries, probe.checked) = (0, Some(uses)),
                // The server is up, because it has just answered.
                Err(_) => self.failed_queries += 1,
            }
        }
        self.probe = Some(probe).filter(|_| !is_in_transaction);
        Ok(Some(round_trip))
    }

    /// Sends MULTI, TIME and EXEC, which most requests need. Returns the round-trip time, and the
    /// commands of these that the server refuses. Reads the server's clock.
    ///
    /// # Errors
    /// The name of any other error.
    async fn measure_round_trip(
        &mut self,
        connection: &mut Connection,
    ) -> Result<(Duration, MissingAccess), &'static str> {
        const COMMANDS: [&str; 3] = ["MULTI", "TIME", "EXEC"];
        let out = connection.outgoing();
        for name in COMMANDS {
            out.push([name.as_bytes()]);
        }
        let began = Instant::now();
        let replies = connection.query(began + REPLY_TIMEOUT).await;
        let replies = replies.map_err(error::name)?;
        let round_trip = began.elapsed();
        let mut missing = MissingAccess::default();
        for (name, reply) in COMMANDS.into_iter().zip(replies) {
            match missing.record(name, NO_ANSWER, reply) {
                None => {}
                // After a refused command, the following ones fail too, with other errors.
                Some(_) if !missing.is_empty() => {}
                Some(error::SERVER_ERROR) => missing.unknown.push(name),
                Some(other) => return Err(other),
            }
        }
        // The time is in the reply to EXEC. A server without transactions sends it in the reply to
        // TIME.
        let in_exec = replies.iter().filter_map(|reply| match reply {
            Value::Array(values) => values.first().and_then(time_of),
            _ => None,
        });
        let server_time = in_exec.chain(replies.get(1).and_then(time_of)).next();
        self.facts.clock_ahead_micros =
            server_time.and_then(|time| clock_ahead_micros(time.0, round_trip / 2));
        Ok((round_trip, missing))
    }

    /// Queries INFO, the settings and, if `checks_access`, the required commands, in one round
    /// trip.
    ///
    /// # Errors
    /// The connection failed.
    async fn query_facts(
        &mut self,
        deployment: &Deployment,
        map: &SlotMap,
        node: &Node,
        probe: &mut ProbeConnection,
        checks_access: bool,
    ) -> Result<(), StoreError> {
        let probe_key = |number| deployment.options.probe_key(number);
        let key = map.key_where(|owner| owner.id == node.id, probe_key);
        let mut queries = vec![INFO, SAVE, STOPS_WRITES];
        let (of_slots, foreign_key) = if deployment.is_cluster() {
            queries.push(FULL_COVERAGE);
            let foreign = map.key_where(|owner| owner.id != node.id, probe_key);
            (CROSS_SLOT, foreign)
        } else {
            (TWO_SLOTS, Some(probe_key(1)))
        };
        let foreign_key = foreign_key.filter(|_| key.is_some());
        if foreign_key.is_some() && self.facts.missing.is_empty() {
            queries.push(of_slots);
        }
        queries.retain(|query| !probe.refused.contains(query));
        let mut required: Vec<(Query, &str)> = Vec::new();
        if checks_access {
            let purposes = queries::purposes(&deployment.options.topology, deployment.uses());
            for (effect, queries) in purposes {
                required.extend(queries.iter().map(|query| (*query, effect)));
            }
            required.retain(|(query, _)| key.is_some() || !query.contains(&KEY));
        }
        let out = probe.connection.outgoing();
        for query in queries
            .iter()
            .chain(required.iter().map(|(query, _)| query))
        {
            let [key, foreign_key] =
                [&key, &foreign_key].map(|key| key.as_deref().unwrap_or_default());
            queries::write(query, key, foreign_key, out);
        }
        let marker_key = |number| deployment.options.marker_key(number);
        let marker = map.key_where(|owner| owner.id == node.id, marker_key);
        if let Some(marker) = &marker {
            Markers::write(marker, out);
        }
        let deadline = Instant::now() + REPLY_TIMEOUT;
        let mut replies = probe.connection.query(deadline).await?.iter();
        for (query, reply) in queries.into_iter().zip(&mut replies) {
            match reply {
                reply if query == of_slots => match queries::spans_slots(reply) {
                    Some(true) if probe.checked.is_none() => node.forget_refused_slots(),
                    Some(true) => node.accept_slots(),
                    Some(false) => node.refuse_slots(),
                    None => {}
                },
                Value::ServerError(_) => probe.refused.push(query),
                Value::BulkString(text) if query == INFO => {
                    let text = String::from_utf8_lossy(text);
                    self.facts.report = InfoReport::read(&text, deployment.options.database);
                }
                reply => read_config(&mut self.facts.config, query, reply),
            }
        }
        for ((query, effect), reply) in required.iter().zip(&mut replies) {
            // Other errors prove nothing about the access.
            let _ = self.facts.missing.record(query[0], effect, reply);
        }
        if marker.is_some_and(|key| deployment.markers.is_lost(&key, replies.as_slice())) {
            let redis = node.location().map(|location| location.address.to_string());
            tracing::warn!(
                redis,
                "Redis has lost its counters, or evicted the key that marks them; limits of this \
                 server count from zero; see WeirCountersLost in deploy/runbooks.md"
            );
        }
        Ok(())
    }
}

/// Difference of a clock to the wall clock of this machine, in microseconds, if it showed `micros`
/// since the Unix epoch that long `ago`; positive if it is ahead.
#[expect(
    clippy::disallowed_methods,
    reason = "only for a diagnostic and a metric"
)]
fn clock_ahead_micros(micros: u64, ago: Duration) -> Option<i64> {
    let local = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let local = i64::try_from(local.ok()?.checked_sub(ago)?.as_micros()).ok()?;
    i64::try_from(micros).ok()?.checked_sub(local)
}
