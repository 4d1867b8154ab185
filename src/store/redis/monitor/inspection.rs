//! Inspects every server at intervals, beside the requests: whether it answers and how fast, how full it is, and what could be better
//! (`diagnostics`).
//!
//! It shows and says things and decides nothing: requests go by the breaker, whatever is seen here. Every question may be refused, because
//! managed servers refuse many; none writes anything. A server's own words are never logged.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::SystemTime;

use bb8_redis::redis::Value;
use futures_util::future::join_all;
use tokio::time::{Duration, Instant, sleep};

use super::diagnostics::{self, Facts, MissingAccess};
use super::queries::{FULL_COVERAGE, Query, Refusal, SAVE, STOPS_WRITES, check_access, read_config, required_commands};
use crate::store::redis::connection::exchange::Connection;
use crate::store::redis::connection::handshake::{self, Purpose};
use crate::store::redis::error;
use crate::store::redis::topology::deployment::Deployment;
use crate::store::redis::topology::node::{Location, Node};
use crate::store::redis::topology::slot_map::SlotMap;
use crate::store::redis::topology::status::{Report, ServerStatus, Urgency};
use crate::store::redis::wire::values::time;
use crate::verdict::StoreError;

/// Between two looks at a server that is well. Figures of this age are what a scrape shows anyway.
const CALM: Duration = Duration::from_secs(15);

/// The same while there is advice, or something that a person has to repair: whoever does so wants to see it.
const CARE: Duration = Duration::from_secs(5);

/// The same while a server cannot be reached, and at the least.
const SOON: Duration = Duration::from_millis(500);

/// How often it is looked whether a look is due, a server is elsewhere, or one has hung up.
const TICK: Duration = Duration::from_millis(100);

/// What a reply may take; far more than any request has.
const PATIENCE: Duration = Duration::from_secs(1);

/// So many times in a row the connection may break over what is asked beside the time; then nothing else is asked there.
const MOST_BROKEN: u32 = 3;

/// Looks at all servers of a deployment; never ends.
pub(crate) async fn inspect_all(deployment: &Deployment) {
    let mut inspectors: HashMap<u64, Inspector> = HashMap::new();
    loop {
        let map = deployment.map();
        let mut due = Vec::new();
        let mut others = HashMap::new();
        for node in &map.nodes {
            // A ramp ends in time although nobody asks.
            let _ = node.state();
            let Some(location) = node.location() else { continue };
            let mut inspector = inspectors.remove(&node.id).filter(|inspector| node.is_at(&inspector.location)).unwrap_or_else(|| {
                // Until it is known better the new place is as good as the old one was.
                node.latest_status.store(ServerStatus { is_up: node.latest_status.load().is_up, ..ServerStatus::default() });
                Inspector::new(location)
            });
            if inspector.is_due() {
                due.push((node, inspector));
            } else {
                others.insert(node.id, inspector);
            }
        }
        // Servers that are in use no more are forgotten, with their connections.
        inspectors = others;
        let (deployment, map) = (&deployment, &map);
        let inspections = due.into_iter().map(|(node, mut inspector)| async move {
            inspector.inspect(deployment, map, node).await;
            (node.id, inspector)
        });
        inspectors.extend(join_all(inspections).await);
        sleep(TICK).await;
    }
}

/// What is kept between two looks at one server.
struct Inspector {
    location: Arc<Location>,
    probe: Option<ProbeConnection>,
    inspected_at: Option<Instant>,
    wait: Duration,
    /// How often in a row the connection broke over questions.
    broken: u32,
    /// Batches that requests had answered before the last look.
    batches: u64,
    /// What was said of it last: that it answers, or why not.
    logged: Option<Result<(), &'static str>>,
    facts: Facts,
}

/// A connection for looks, and what has come of asking there.
struct ProbeConnection {
    connection: Connection,
    /// Not to be asked again here: each refusal is a line in the server's log of what users may not do.
    refused: Vec<Query>,
    checked_access: bool,
}

impl Inspector {
    fn new(location: Arc<Location>) -> Self {
        Self {
            location,
            probe: None,
            inspected_at: None,
            wait: Duration::ZERO,
            broken: 0,
            batches: 0,
            logged: None,
            facts: Facts::default(),
        }
    }

    fn is_due(&mut self) -> bool {
        let Some(inspected_at) = self.inspected_at else { return true };
        let hung_up = self.probe.as_mut().is_some_and(|probe| !probe.connection.is_quiet());
        inspected_at.elapsed() >= if hung_up { SOON } else { self.wait }
    }

    /// Looks, shows what is seen, and says what has changed.
    async fn inspect(&mut self, deployment: &Deployment, map: &SlotMap, node: &Arc<Node>) {
        let found = self.examine(deployment, map, node).await;
        self.inspected_at = Some(Instant::now());
        let before = node.latest_status.load();
        let mut status = ServerStatus { diagnostics: before.diagnostics.clone(), ..ServerStatus::default() };
        let wait = match found {
            Ok(round_trip) => {
                status.is_up = true;
                status.round_trip = round_trip;
                status.clock_ahead_micros = self.facts.clock_ahead;
                status.report = self.facts.report.clone();
                status.diagnostics = diagnostics::judge(&self.facts, &before.diagnostics);
                if status.diagnostics.is_empty() { CALM } else { CARE }
            }
            Err(name) => {
                self.probe = None;
                // There may be no room for another connection while those of requests are well.
                status.is_up = node.counters.counts().batches > self.batches;
                if error::server_failure(StoreError::NotExecuted(name)) == Some(crate::breaker::Why::Config) { CARE } else { SOON }
            }
        };
        self.batches = node.counters.counts().batches;
        self.wait = wait.mul_f64(0.75 + fastrand::f64() / 4.0);
        self.log_changes(found.map(drop), &before, &status);
        if node.is_at(&self.location) {
            node.latest_status.store(status);
        }
    }

    /// One line per change.
    fn log_changes(&mut self, found: Result<(), &'static str>, before: &ServerStatus, now: &ServerStatus) {
        let redis = &self.location.address;
        match found {
            _ if self.logged == Some(found) => {}
            Ok(()) => {
                let round_trip_ms = now.round_trip.map(|time| time.as_secs_f64() * 1e3);
                tracing::info!(%redis, version = now.report.version, round_trip_ms, "Redis answers");
            }
            Err(name) => tracing::warn!(%redis, error = name, "Redis cannot be reached: {}", error::meaning(name)),
        }
        self.logged = Some(found);
        for advice in now.diagnostics.iter().filter(|advice| !before.diagnostics.contains(advice)) {
            match advice.urgency {
                Urgency::Warning => tracing::warn!(%redis, advice = advice.name, "Redis: {}", advice.text),
                Urgency::Information => tracing::info!(%redis, advice = advice.name, "Redis: {}", advice.text),
            }
        }
        for advice in &before.diagnostics {
            if now.diagnostics.iter().all(|other| other.name != advice.name) {
                tracing::info!(%redis, advice = advice.name, "Redis: this advice has been followed");
            }
        }
    }

    /// Asks the server. Returns how long a round trip took, if it came to one.
    ///
    /// # Errors
    /// The name of why it cannot be reached.
    async fn examine(&mut self, deployment: &Deployment, map: &SlotMap, node: &Node) -> Result<Option<Duration>, &'static str> {
        let usable =
            self.probe.take().and_then(|mut probe| (probe.connection.is_reusable() && probe.connection.is_quiet()).then_some(probe));
        let mut probe = match usable {
            Some(probe) => probe,
            None => match handshake::open(&self.location.address, node.options(), Purpose::Inspect).await {
                Ok(opened) => ProbeConnection { connection: opened.connection, refused: Vec::new(), checked_access: false },
                // It answers, but not to this user: only SELECT can be refused like this.
                Err(error) if error.name == error::NO_PERMISSION => {
                    self.facts.missing = MissingAccess { denied: vec!["SELECT"], ..MissingAccess::default() };
                    return Ok(None);
                }
                Err(error) => return Err(error.name),
            },
        };
        let (round_trip, missing) = self.ping(&mut probe.connection).await?;
        // What a look does not try stands as the last one that did left it.
        let checks_access = !probe.checked_access || !missing.is_nothing() || !self.facts.missing.is_nothing();
        let is_stuck = missing.denied.contains(&"EXEC") || missing.commands == ["EXEC"];
        if checks_access {
            self.facts.missing = missing;
        }
        if !is_stuck && self.broken < MOST_BROKEN {
            match self.query_all(deployment, map, node, &mut probe, checks_access).await {
                Ok(()) => (self.broken, probe.checked_access) = (0, true),
                // It has just answered; what it cannot answer is its own affair.
                Err(_) => self.broken += 1,
            }
        }
        self.probe = Some(probe).filter(|_| !is_stuck);
        Ok(Some(round_trip))
    }

    /// Asks what every request needs.
    async fn ping(&mut self, connection: &mut Connection) -> Result<(Duration, MissingAccess), &'static str> {
        const COMMANDS: [&str; 3] = ["MULTI", "TIME", "EXEC"];
        let out = connection.outgoing();
        for name in COMMANDS {
            out.command(name);
            out.end();
        }
        let began = Instant::now();
        let replies = connection.query(began + PATIENCE).await.map_err(error::name)?;
        let round_trip = began.elapsed();
        let mut missing = MissingAccess::default();
        for (name, reply) in COMMANDS.into_iter().zip(replies) {
            match check_access(name, reply) {
                Ok(()) => {}
                Err(Refusal::Access(refused)) => missing.add(refused),
                // What follows a refused command fails in its own way.
                Err(Refusal::Otherwise(_)) if !missing.is_nothing() => {}
                Err(Refusal::Otherwise(error::SERVER_ERROR)) => missing.commands.push(name),
                Err(Refusal::Otherwise(kind)) => return Err(kind),
            }
        }
        let time_shown =
            replies.iter().filter_map(|reply| if let Value::Array(values) = reply { values.first().and_then(time) } else { None });
        let time_shown = time_shown.chain(replies.get(1).and_then(time)).next();
        self.facts.clock_ahead = time_shown.and_then(|time| clock_ahead(time.0, round_trip / 2));
        Ok((round_trip, missing))
    }

    /// Asks all else, in one exchange.
    async fn query_all(
        &mut self,
        deployment: &Deployment,
        map: &SlotMap,
        node: &Node,
        probe: &mut ProbeConnection,
        checks_access: bool,
    ) -> Result<(), StoreError> {
        let key = map.key_of(node, |number| deployment.options().probe_key(number));
        let mut queries = vec![Query::Info, SAVE, STOPS_WRITES];
        if deployment.is_cluster() {
            queries.push(FULL_COVERAGE);
        }
        queries.retain(|query| !probe.refused.contains(query));
        if checks_access {
            queries.extend(
                required_commands(&deployment.options().topology).filter(|command| key.is_some() || !command.has_key).map(Query::Required),
            );
        }
        let out = probe.connection.outgoing();
        for query in &queries {
            query.write(key.as_deref().unwrap_or_default(), out);
        }
        let replies = probe.connection.query(Instant::now() + PATIENCE).await?;
        for (query, reply) in queries.iter().zip(replies) {
            match (query, reply) {
                (Query::Required(command), reply) => {
                    if let Err(Refusal::Access(missing)) = check_access(command.name, reply) {
                        self.facts.missing.add(missing);
                    }
                }
                (query, Value::ServerError(_)) => probe.refused.push(*query),
                (Query::Info, Value::BulkString(text)) => {
                    self.facts.report = Report::read(&String::from_utf8_lossy(text), deployment.options().database);
                }
                (query, reply) => read_config(&mut self.facts.config, *query, reply),
            }
        }
        Ok(())
    }
}

/// How far a clock is ahead of ours that showed `micros` so long ago.
#[expect(clippy::disallowed_methods, reason = "only to tell a person that two clocks differ")]
fn clock_ahead(micros: u64, ago: Duration) -> Option<i64> {
    let ours = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).ok()?.checked_sub(ago)?;
    i64::try_from(micros).ok()?.checked_sub(i64::try_from(ours.as_micros()).ok()?)
}
