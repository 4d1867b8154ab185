//! A slow look at every server, beside the requests: whether it answers and how fast, how full it is, and what could be better (`advice`).
//!
//! It shows and says things and decides nothing: requests go by the breaker, whatever is seen here. Every question may be refused, because
//! managed servers refuse many; none writes anything. A server's own words are never logged.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::SystemTime;

use bb8_redis::redis::Value;
use futures_util::future::join_all;
use tokio::time::{Duration, Instant, sleep};

use super::diagnostics::{self, Config, Facts, Lacks};
use crate::store::redis::connection::exchange::Connection;
use crate::store::redis::connection::handshake::{self, Purpose};
use crate::store::redis::connection::options::Topology;
use crate::store::redis::error;
use crate::store::redis::topology::deployment::Deployment;
use crate::store::redis::topology::node::{Location, Node};
use crate::store::redis::topology::slot_map::SlotMap;
use crate::store::redis::topology::status::{Report, ServerStatus, Urgency};
use crate::store::redis::wire::commands::CommandBuffer;
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
        let looks = due.into_iter().map(|(node, mut inspector)| async move {
            inspector.look(deployment, map, node).await;
            (node.id, inspector)
        });
        inspectors.extend(join_all(looks).await);
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
    told: Option<Result<(), &'static str>>,
    facts: Facts,
}

/// A connection for looks, and what has come of asking there.
struct ProbeConnection {
    connection: Connection,
    /// Not to be asked again here: each refusal is a line in the server's log of what users may not do.
    refused: Vec<Question>,
    tried_rights: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Question {
    Info,
    /// A name for CONFIG GET.
    Config(&'static str),
    /// Whether the user may use it.
    Right(Right),
}

const SAVE: Question = Question::Config("save");
const STOPS_WRITES: Question = Question::Config("stop-writes-on-bgsave-error");
const FULL_COVERAGE: Question = Question::Config("cluster-require-full-coverage");

/// A command as requests use it, in a form that changes nothing, on a key that does not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Right {
    name: &'static str,
    has_key: bool,
    arguments: &'static [&'static str],
}

const fn on_key(name: &'static str, arguments: &'static [&'static str]) -> Right {
    Right { name, has_key: true, arguments }
}

const fn alone(name: &'static str, arguments: &'static [&'static str]) -> Right {
    Right { name, has_key: false, arguments }
}

/// MULTI, EXEC and TIME are asked in every look. Scripts may use no more than their user, so that their commands are among these.
const RIGHTS: [Right; 11] = [
    // Refused as no number, if not before.
    on_key("INCRBY", &["x"]),
    on_key("EXPIRE", &["1"]),
    on_key("GET", &[]),
    on_key("MGET", &[]),
    on_key("SET", &["0", "XX", "PX", "1"]),
    on_key("GETRANGE", &["0", "0"]),
    on_key("SETRANGE", &["0", ""]),
    on_key("STRLEN", &[]),
    on_key("PEXPIRE", &["1"]),
    alone("EVAL", &["return 1", "0"]),
    // The script before.
    alone("EVALSHA", &["e0e1f9fabfc9d4800c877a703b823ac0578ff8db", "0"]),
];

/// How a primary is told from a replica.
const RIGHT_BEHIND_SENTINELS: Right = alone("ROLE", &[]);

/// How slots are found; ASKING is last, because it is meant for what follows it, and MULTI does not mind.
const RIGHTS_IN_A_CLUSTER: [Right; 3] = [alone("PING", &[]), alone("CLUSTER SLOTS", &[]), alone("ASKING", &[])];

impl Inspector {
    fn new(location: Arc<Location>) -> Self {
        Self { location, probe: None, inspected_at: None, wait: Duration::ZERO, broken: 0, batches: 0, told: None, facts: Facts::default() }
    }

    fn is_due(&mut self) -> bool {
        let Some(inspected_at) = self.inspected_at else { return true };
        let hung_up = self.probe.as_mut().is_some_and(|probe| !probe.connection.is_quiet());
        inspected_at.elapsed() >= if hung_up { SOON } else { self.wait }
    }

    /// Looks, shows what is seen, and says what has changed.
    async fn look(&mut self, deployment: &Deployment, map: &SlotMap, node: &Arc<Node>) {
        let found = self.see(deployment, map, node).await;
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
        self.tell(found.map(drop), &before, &status);
        if node.is_at(&self.location) {
            node.latest_status.store(status);
        }
    }

    /// One line per change.
    fn tell(&mut self, found: Result<(), &'static str>, before: &ServerStatus, now: &ServerStatus) {
        let redis = &self.location.address;
        match found {
            _ if self.told == Some(found) => {}
            Ok(()) => {
                let round_trip_ms = now.round_trip.map(|time| time.as_secs_f64() * 1e3);
                tracing::info!(%redis, version = now.report.version, round_trip_ms, "Redis answers");
            }
            Err(name) => tracing::warn!(%redis, error = name, "Redis cannot be reached: {}", error::meaning(name)),
        }
        self.told = Some(found);
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
    async fn see(&mut self, deployment: &Deployment, map: &SlotMap, node: &Node) -> Result<Option<Duration>, &'static str> {
        let usable =
            self.probe.take().and_then(|mut probe| (probe.connection.is_reusable() && probe.connection.is_quiet()).then_some(probe));
        let mut probe = match usable {
            Some(probe) => probe,
            None => match handshake::open(&self.location.address, node.options(), Purpose::Inspect).await {
                Ok(opened) => ProbeConnection { connection: opened.connection, refused: Vec::new(), tried_rights: false },
                // It answers, but not to this user: only SELECT can be refused like this.
                Err(error) if error.name == error::NO_PERMISSION => {
                    self.facts.lacks = Lacks { rights: vec!["SELECT"], ..Lacks::default() };
                    return Ok(None);
                }
                Err(error) => return Err(error.name),
            },
        };
        let (round_trip, lacks) = self.beat(&mut probe.connection).await?;
        // What a look does not try stands as the last one that did left it.
        let tries_rights = !probe.tried_rights || !lacks.is_nothing() || !self.facts.lacks.is_nothing();
        let is_stuck = lacks.rights.contains(&"EXEC") || lacks.commands == ["EXEC"];
        if tries_rights {
            self.facts.lacks = lacks;
        }
        if !is_stuck && self.broken < MOST_BROKEN {
            match self.ask(deployment, map, node, &mut probe, tries_rights).await {
                Ok(()) => (self.broken, probe.tried_rights) = (0, true),
                // It has just answered; what it cannot answer is its own affair.
                Err(_) => self.broken += 1,
            }
        }
        self.probe = Some(probe).filter(|_| !is_stuck);
        Ok(Some(round_trip))
    }

    /// Asks what every request needs.
    async fn beat(&mut self, connection: &mut Connection) -> Result<(Duration, Lacks), &'static str> {
        const BEAT: [&str; 3] = ["MULTI", "TIME", "EXEC"];
        let out = connection.outgoing();
        for name in BEAT {
            out.command(name);
            out.end();
        }
        let began = Instant::now();
        let replies = connection.query(began + PATIENCE).await.map_err(error::name)?;
        let round_trip = began.elapsed();
        let mut lacks = Lacks::default();
        for (name, reply) in BEAT.into_iter().zip(replies) {
            match lack(name, reply) {
                Ok(()) => {}
                Err(Refused::Lacks(lack)) => lacks.add(lack),
                // What follows a refused command fails in its own way.
                Err(Refused::Otherwise(_)) if !lacks.is_nothing() => {}
                Err(Refused::Otherwise(error::SERVER_ERROR)) => lacks.commands.push(name),
                Err(Refused::Otherwise(kind)) => return Err(kind),
            }
        }
        let told = replies.iter().filter_map(|reply| if let Value::Array(values) = reply { values.first().and_then(time) } else { None });
        let told = told.chain(replies.get(1).and_then(time)).next();
        self.facts.clock_ahead = told.and_then(|time| clock_ahead(time.0, round_trip / 2));
        Ok((round_trip, lacks))
    }

    /// Asks all else, in one exchange.
    async fn ask(
        &mut self,
        deployment: &Deployment,
        map: &SlotMap,
        node: &Node,
        probe: &mut ProbeConnection,
        tries_rights: bool,
    ) -> Result<(), StoreError> {
        let key = map.key_of(node, |number| deployment.options().probe_key(number));
        let mut questions = vec![Question::Info, SAVE, STOPS_WRITES];
        if deployment.is_cluster() {
            questions.push(FULL_COVERAGE);
        }
        questions.retain(|question| !probe.refused.contains(question));
        if tries_rights {
            questions.extend(rights(&deployment.options().topology).filter(|right| key.is_some() || !right.has_key).map(Question::Right));
        }
        let out = probe.connection.outgoing();
        for question in &questions {
            question.write(key.as_deref().unwrap_or_default(), out);
        }
        let replies = probe.connection.query(Instant::now() + PATIENCE).await?;
        for (question, reply) in questions.iter().zip(replies) {
            match (question, reply) {
                (Question::Right(right), reply) => {
                    if let Err(Refused::Lacks(lack)) = lack(right.name, reply) {
                        self.facts.lacks.add(lack);
                    }
                }
                (question, Value::ServerError(_)) => probe.refused.push(*question),
                (Question::Info, Value::BulkString(text)) => {
                    self.facts.report = Report::read(&String::from_utf8_lossy(text), deployment.options().database);
                }
                (question, reply) => learn(&mut self.facts.config, *question, reply),
            }
        }
        Ok(())
    }
}

fn rights(topology: &Topology) -> impl Iterator<Item = Right> {
    let further: &[Right] = match topology {
        Topology::Single(_) => &[],
        Topology::Sentinel { .. } => &[RIGHT_BEHIND_SENTINELS],
        Topology::Cluster(_) => &RIGHTS_IN_A_CLUSTER,
    };
    RIGHTS.iter().chain(further).copied()
}

impl Question {
    fn write(self, key: &[u8], out: &mut CommandBuffer) {
        match self {
            Self::Info => drop(out.command("INFO")),
            Self::Config(name) => drop(out.command("CONFIG").arg("GET").arg(name)),
            Self::Right(right) => {
                let command = out.begin();
                for word in right.name.split(' ') {
                    command.arg(word);
                }
                if right.has_key {
                    command.arg(key);
                }
                for argument in right.arguments {
                    command.arg(*argument);
                }
            }
        }
        out.end();
    }
}

/// The reply to CONFIG GET: name and value.
fn learn(config: &mut Config, question: Question, reply: &Value) {
    let Value::Array(pair) = reply else { return };
    let [_, Value::BulkString(value)] = pair.as_slice() else { return };
    let is_yes = Some(value == b"yes");
    match question {
        SAVE => config.takes_snapshots = Some(!value.is_empty()),
        STOPS_WRITES => config.stops_writes = is_yes,
        FULL_COVERAGE => config.needs_full_coverage = is_yes,
        _ => {}
    }
}

/// Why a command was refused.
enum Refused {
    /// As it will be every time.
    Lacks(Lacks),
    /// By an error of this name.
    Otherwise(&'static str),
}

fn lack(name: &'static str, reply: &Value) -> Result<(), Refused> {
    let Value::ServerError(error) = reply else { return Ok(()) };
    let mut lacks = Lacks::default();
    match error::classify(error).name {
        // "... to run the 'get' command", or else it is about keys.
        error::NO_PERMISSION if error.details().is_some_and(|text| text.contains("to run the")) => lacks.rights.push(name),
        error::NO_PERMISSION => lacks.keys = true,
        error::UNSUPPORTED => lacks.commands.push(name),
        kind => return Err(Refused::Otherwise(kind)),
    }
    Err(Refused::Lacks(lacks))
}

/// How far a clock is ahead of ours that showed `micros` so long ago.
#[expect(clippy::disallowed_methods, reason = "only to tell a person that two clocks differ")]
fn clock_ahead(micros: u64, ago: Duration) -> Option<i64> {
    let ours = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).ok()?.checked_sub(ago)?;
    i64::try_from(micros).ok()?.checked_sub(i64::try_from(ours.as_micros()).ok()?)
}
