//! The state of one Redis server that all threads of the process share: its address, circuit
//! breaker, clock estimate and counters.
//!
//! The threads share it because an outage or a failover that one worker meets concerns all of them.
//! Admitting a request takes no lock while the circuit is closed. Nothing here sends a check:
//! `lanes` and `monitor` do, and record the outcomes here.
//!
//! Of a server's text its status may keep only numbers and short names without special characters,
//! because the text may hold anything and ends up in logs and labels.

use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use arc_swap::{ArcSwap, ArcSwapOption};
use tokio::sync::Notify;
use tokio::time::{Duration, Instant, timeout_at};

use super::Deployment;
use super::clock::ServerClock;
use crate::core::breaker::{self, Breaker, Why};
use crate::core::lock;
use crate::core::time::{Micros, Span};
use crate::store::Budget;
use crate::store::redis::connection::handshake::{self, Purpose};
use crate::store::redis::connection::options::{Address, Options};
use crate::store::redis::connection::{Connection, OpenConnections};
use crate::store::redis::error::{self, ErrorCounters, RedisFailure};
use crate::store::redis::rtt::{RoundTrips, RttEstimator};
use crate::store::redis::wire::hash_slot::Redirect;
use crate::store::redis::wire::request::{Reply, Request};

/// A request with less time than this proves nothing about a server: its timeout is no failure, and
/// its reply is not slow.
const MIN_JUDGED_BUDGET: Duration = Duration::from_millis(2);

/// A server that refused keys of several hash slots gets the keys of each slot by themselves for at
/// least this long.
const SLOTS_REFUSED: Duration = Duration::from_secs(30);

/// The bounds of a probe's time.
const MIN_PROBE_BUDGET: Duration = Duration::from_millis(5);
const MAX_PROBE_BUDGET: Duration = Duration::from_millis(100);

/// State of one server that all threads share: location, clock, circuit, counters and status.
#[derive(Debug)]
pub(crate) struct Node {
    /// Unique in the process.
    pub(crate) id: u64,
    pub(crate) options: Arc<Options>,
    purpose: Purpose,
    location: ArcSwapOption<Location>,
    /// Notifies requests that wait for the first address.
    located: Notify,
    pub(crate) clock: ServerClock,
    /// The origin of the breaker's times.
    created_at: Instant,
    circuit: Mutex<Circuit>,
    /// Whether the circuit is closed: while it is, a request needs no lock.
    is_closed: AtomicBool,
    /// Wakes the supervisor when the circuit opens.
    pub(crate) circuit_opened: Arc<Notify>,
    pub(crate) error_counters: Arc<ErrorCounters>,
    pub(crate) connections: Arc<OpenConnections>,
    /// Requests in answered batches, and requests that were never sent, since the start.
    pub(crate) requests: AtomicU64,
    pub(crate) abandoned: AtomicU64,
    pub(crate) round_trips: RoundTrips,
    /// Whether it accepts keys of several hash slots together: a single server in transactions and
    /// scripts, a node of a cluster undeclared keys in scripts, and there only its own.
    spans_slots: AtomicBool,
    /// When it last refused that.
    slots_refused_at: Mutex<Option<Instant>>,
    /// Written by the monitor.
    pub(crate) latest_status: ArcSwap<ServerStatus>,
    /// The time that the latest request had left, in microseconds; a probe has about as much. 0
    /// before the first request.
    budget_micros: AtomicU64,
    pub(crate) rtt: RttEstimator,
}

/// The address of a server. After a failover, the node of a Sentinel deployment has another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Location {
    pub(crate) address: Address,
    /// Grows with each change of the address.
    pub(crate) generation: u64,
    since: Instant,
}

impl Location {
    fn new(address: Address, generation: u64) -> Arc<Self> {
        Arc::new(Self {
            address,
            generation,
            since: Instant::now(),
        })
    }
}

#[derive(Debug)]
struct Circuit {
    breaker: Breaker,
    /// The name of the latest error.
    reason: &'static str,
    /// The error of the latest attempt to connect.
    failed_connect: Option<RedisFailure>,
}

/// The number of connections of all runtimes, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectionCounts {
    /// Opened since the start.
    pub opened: u64,
    /// Open now.
    pub open: usize,
}

/// The outcome of the requests of one batch, as the circuit breaker counts them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct BatchOutcome {
    answered: u32,
    /// Number of answered requests that took most of their budget.
    slow: u32,
    failed: u32,
    /// The name of the error of the latest request that failed.
    failure: Option<&'static str>,
}

/// A reply that takes longer than this share of a budget is slow.
fn slow_after(budget: Duration) -> Duration {
    budget * 4 / 5
}

impl BatchOutcome {
    /// Counts the reply to a request, which came at `now`. Of several failures in one reply, a
    /// configuration error counts.
    pub(crate) fn add(&mut self, reply: &Reply, request: &Request, now: Instant) {
        let answers = reply.answers.iter();
        let errors = answers.filter_map(|answer| answer.verdict.err());
        let failures = errors.filter(|&error| error::server_failure(error).is_some());
        let failure = failures
            .map(error::name)
            .max_by_key(|name| error::failure_kind(name) == Why::Config);
        if failure.is_some() {
            self.failed += 1;
            self.failure = failure;
        } else {
            self.answered += 1;
            let Request { budget, since, .. } = request;
            let available = budget.deadline.saturating_duration_since(*since);
            let is_slow = now.saturating_duration_since(*since) > slow_after(available);
            self.slow += u32::from(is_slow && available >= MIN_JUDGED_BUDGET);
        }
    }
}

impl Node {
    /// A server without connections, whose circuit is closed. `None` as the address: Sentinel has
    /// not named the primary yet.
    pub(crate) fn new(
        address: Option<Address>,
        purpose: Purpose,
        deployment: &Deployment,
    ) -> Arc<Self> {
        static IDS: AtomicU64 = AtomicU64::new(0);
        Arc::new(Self {
            id: IDS.fetch_add(1, Ordering::Relaxed),
            options: Arc::clone(&deployment.options),
            purpose,
            location: ArcSwapOption::from(address.map(|address| Location::new(address, 0))),
            located: Notify::new(),
            clock: ServerClock::new(),
            created_at: Instant::now(),
            circuit: Mutex::new(Circuit {
                breaker: Breaker::default(),
                reason: error::NO_PRIMARY,
                failed_connect: None,
            }),
            is_closed: AtomicBool::new(true),
            circuit_opened: Arc::clone(&deployment.circuit_opened),
            error_counters: Arc::clone(&deployment.error_counters),
            connections: Arc::default(),
            requests: AtomicU64::default(),
            abandoned: AtomicU64::default(),
            round_trips: RoundTrips::default(),
            // Of a node of a cluster this is not known before the first inspection.
            spans_slots: AtomicBool::new(!deployment.is_cluster()),
            slots_refused_at: Mutex::default(),
            latest_status: ArcSwap::default(),
            budget_micros: AtomicU64::new(0),
            rtt: RttEstimator::default(),
        })
    }

    /// The server's location; `None` before it is found.
    pub(crate) fn location(&self) -> Option<Arc<Location>> {
        self.location.load_full()
    }

    /// Records that the server is now at `address`. Connections to the old address are not used
    /// again. The clock estimate and the circuit breaker start afresh. Does nothing if the address
    /// is the same.
    pub(crate) fn move_to(&self, address: Address) {
        if self.has_address(&address) {
            return;
        }
        let generation = self.location().map_or(0, |old| old.generation + 1);
        let location = Location::new(address, generation);
        self.location.store(Some(location));
        self.clock.forget();
        self.forget_refused_slots();
        // The failures of the old server prove nothing about the new one.
        lock(&self.circuit).breaker = Breaker::default();
        self.is_closed.store(true, Ordering::Relaxed);
        self.located.notify_waiters();
    }

    /// Whether the server is at `address`.
    pub(crate) fn has_address(&self, address: &Address) -> bool {
        let location = self.location.load();
        location.as_ref().is_some_and(|now| now.address == *address)
    }

    /// Whether it accepts keys of several hash slots together.
    pub(crate) fn spans_slots(&self) -> bool {
        self.spans_slots.load(Ordering::Relaxed)
    }

    /// Whether it refuses keys of several slots; `false` also while that is not known.
    pub(crate) fn refuses_slots(&self) -> bool {
        lock(&self.slots_refused_at).is_some()
    }

    /// Records that it refused keys of several slots. Requests send it the keys of each slot by
    /// themselves from now on.
    pub(crate) fn refuse_slots(&self) {
        *lock(&self.slots_refused_at) = Some(Instant::now());
        self.spans_slots.store(false, Ordering::Relaxed);
    }

    /// Records that it accepted keys of several slots. A server that refused them counts as
    /// accepting them after [`SLOTS_REFUSED`] without a refusal, because some refuse them now and
    /// then.
    pub(crate) fn accept_slots(&self) {
        let refused_at = *lock(&self.slots_refused_at);
        if refused_at.is_none_or(|at| at.elapsed() >= SLOTS_REFUSED) {
            self.forget_refused_slots();
        }
    }

    /// Records that it accepts keys of several slots, because it is another server.
    pub(crate) fn forget_refused_slots(&self) {
        *lock(&self.slots_refused_at) = None;
        self.spans_slots.store(true, Ordering::Relaxed);
    }

    /// A redirect of this node with its host: an empty one means the host of the node.
    pub(crate) fn complete(&self, mut redirect: Redirect) -> Redirect {
        let location = self.location.load();
        let address = location.as_ref().map(|location| &location.address);
        if let Some(Address::Tcp { host, .. }) = address
            && redirect.host.is_empty()
        {
            redirect.host.clone_from(host);
        }
        redirect
    }

    /// Whether the server has not moved since its location had this generation.
    pub(crate) fn is_at(&self, generation: u64) -> bool {
        let now = self.location.load();
        now.as_ref().is_some_and(|now| now.generation == generation)
    }

    /// Opens a connection.
    ///
    /// # Errors
    /// `no_primary` if no address is found in time, `readonly` if the server moved meanwhile, else
    /// the error of the handshake.
    pub(crate) async fn connect(&self) -> Result<Connection, RedisFailure> {
        let location = self.wait_for_location().await;
        let location = location.ok_or(RedisFailure::new(error::NO_PRIMARY))?;
        let opened = handshake::open(&location.address, &self.options, self.purpose).await;
        let (mut connection, time) = opened
            .inspect_err(|failure| lock(&self.circuit).failed_connect = Some(failure.clone()))?;
        connection.generation = location.generation;
        if !self.is_at(location.generation) {
            // The connection leads to the old primary.
            return Err(RedisFailure::new(error::READONLY));
        }
        let at = Instant::now();
        // After a connection broke, another machine with another clock may have the address.
        if self.connections.open.load(Ordering::Relaxed) == 0
            || self.connections.broke.swap(false, Ordering::Relaxed)
        {
            self.clock.restart(time, at);
        } else {
            self.clock.observe(time, at);
        }
        Ok(connection)
    }

    /// The location. Without one, waits until the server is located or the connect timeout ends.
    async fn wait_for_location(&self) -> Option<Arc<Location>> {
        let located = self.located.notified();
        if let Some(location) = self.location() {
            return Some(location);
        }
        let _ = timeout_at(Instant::now() + self.options.connect_timeout, located).await;
        self.location()
    }

    /// Whether a connection may be used again: it is intact, and leads to the server's current
    /// location.
    pub(crate) fn accepts(&self, connection: &Connection) -> bool {
        connection.is_reusable() && self.is_at(connection.generation)
    }

    /// Checks with the circuit breaker whether a request may go to the server.
    ///
    /// # Errors
    /// The name of the server's latest error, if the breaker refuses the request.
    pub(crate) fn admit(&self, deadline: Instant, now: Instant) -> Result<(), &'static str> {
        let left = deadline.saturating_duration_since(now);
        let left = Span::from(left).micros();
        self.budget_micros.store(left, Ordering::Relaxed);
        if self.is_closed.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.with_circuit(|circuit, now| {
            let is_admitted = circuit.breaker.admits(now);
            is_admitted.then_some(()).ok_or(circuit.reason)
        })
    }

    /// The time that a probe has: the time after which the reply to the latest request is slow,
    /// from 5 ms to 100 ms.
    pub(crate) fn budget(&self) -> Duration {
        match self.budget_micros.load(Ordering::Relaxed) {
            0 => MAX_PROBE_BUDGET,
            micros => {
                slow_after(Duration::from_micros(micros)).clamp(MIN_PROBE_BUDGET, MAX_PROBE_BUDGET)
            }
        }
    }

    /// Reports the outcome of a batch to the circuit breaker.
    pub(crate) fn record_outcome(&self, outcome: BatchOutcome) {
        if outcome.answered == 0 && outcome.failed == 0 {
            return;
        }
        self.with_circuit(|circuit, now| {
            let breaker = &mut circuit.breaker;
            if outcome.answered > 0 {
                breaker.succeeded(now, outcome.answered, outcome.slow);
            }
            if let Some(name) = outcome.failure {
                circuit.reason = name;
                breaker.failed(now, outcome.failed, error::failure_kind(name));
            }
        });
    }

    /// Reports to the circuit breaker that `requests` requests failed with the error `name`.
    pub(crate) fn record_failed(&self, requests: u32, name: &'static str) {
        self.record_outcome(BatchOutcome {
            failed: requests,
            failure: Some(name),
            ..BatchOutcome::default()
        });
    }

    /// Reports to the circuit breaker that a request sent at `since` got no reply by its deadline.
    pub(crate) fn record_timeout(&self, since: Instant, budget: Budget) {
        // A timeout of the old server proves nothing about the new one.
        let location = self.location();
        let is_here = location.is_some_and(|location| location.since <= since);
        if is_here && budget.deadline.saturating_duration_since(since) >= MIN_JUDGED_BUDGET {
            self.record_failed(1, error::TIMEOUT);
        }
    }

    /// Reports the result of a probe to the circuit breaker: `Ok`, or the name of the error.
    pub(crate) fn record_probe(&self, result: Result<(), &'static str>) {
        self.with_circuit(|circuit, now| {
            let result = result.map_err(|name| {
                circuit.reason = name;
                error::failure_kind(name)
            });
            let jitter = fastrand::u32(..=1_000);
            circuit.breaker.probed(now, result, jitter);
        });
    }

    /// The time until the next probe is due; `None` unless the circuit is open.
    pub(crate) fn next_probe(&self) -> Option<Duration> {
        if self.is_closed.load(Ordering::Relaxed) {
            return None;
        }
        self.with_circuit(|circuit, now| {
            let due = circuit.breaker.next_probe()?;
            Some(due.since(now).into())
        })
    }

    /// The state of the circuit breaker. A ramp that is over counts as closed, also without
    /// requests.
    pub(crate) fn state(&self) -> breaker::CircuitState {
        if self.is_closed.load(Ordering::Relaxed) {
            return breaker::CircuitState::Closed;
        }
        self.with_circuit(|circuit, now| {
            circuit.breaker.advance(now);
            circuit.breaker.state()
        })
    }

    /// Whether it has an address and a circuit that is not open.
    pub(crate) fn is_available(&self) -> bool {
        self.state() != breaker::CircuitState::Open && self.location().is_some()
    }

    /// The failure because of which the server cannot be used: its circuit is not closed, or it did
    /// not answer the latest inspection or refused its write. `None` if it can be used, and while it
    /// has no address.
    pub(crate) fn failure(&self) -> Option<RedisFailure> {
        self.location()?;
        let status = self.latest_status.load();
        let inspected = status.failure.as_ref().filter(|_| !status.is_usable());
        if self.state() == breaker::CircuitState::Closed {
            return inspected.cloned();
        }
        let circuit = lock(&self.circuit);
        let known = match circuit.reason {
            // The error of an attempt to connect is more precise than a broken connection.
            error::IO | error::TIMEOUT => inspected,
            reason => {
                let mut known = circuit.failed_connect.iter().chain(inspected);
                known.find(|failure| failure.error == reason)
            }
        };
        Some(known.cloned().unwrap_or(RedisFailure::new(circuit.reason)))
    }

    /// The time that the server takes: the mean of its batches or the latest inspection, whichever
    /// is longer. `None` if nothing was measured since it has failed.
    pub(crate) fn round_trip(&self) -> Option<Duration> {
        let inspected = self.latest_status.load().round_trip?;
        Some(inspected.max(self.rtt.mean()))
    }

    /// Number of changes of the circuit breaker's state.
    pub(crate) fn transitions(&self) -> breaker::Transitions {
        lock(&self.circuit).breaker.transitions()
    }

    /// Runs `call` on the circuit at the present time. Wakes the supervisor when the circuit opens.
    /// `limiter::outages` logs its state.
    fn with_circuit<T>(&self, call: impl FnOnce(&mut Circuit, Micros) -> T) -> T {
        let now = Micros::default() + Span::from(self.created_at.elapsed());
        let mut circuit = lock(&self.circuit);
        let before = circuit.breaker.state();
        let result = call(&mut circuit, now);
        let after = circuit.breaker.state();
        let is_closed = after == breaker::CircuitState::Closed;
        self.is_closed.store(is_closed, Ordering::Relaxed);
        drop(circuit);
        if before != breaker::CircuitState::Open && after == breaker::CircuitState::Open {
            self.circuit_opened.notify_one();
        }
        result
    }
}

/// The longest name in a server's text that is kept, in bytes.
const MAX_NAME_LEN: usize = 32;

/// The result of the latest inspection of a server: only data. `monitor` writes it, metrics and
/// health read it, and no request waits for it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServerStatus {
    /// Whether the server answered. `false` before the first inspection.
    pub is_up: bool,
    /// Why the latest inspection could not reach the server, or was refused by it.
    pub failure: Option<RedisFailure>,
    /// The time from sending MULTI, TIME and EXEC to the last of their replies; `None` if the
    /// server did not answer.
    pub round_trip: Option<Duration>,
    /// Difference of the server's clock to the wall clock of this machine, in microseconds;
    /// positive if it is ahead, `None` if it is unknown.
    pub clock_ahead_micros: Option<i64>,
    /// The fields of INFO that Weir uses.
    pub report: InfoReport,
    /// The conditions that matter to an operator.
    pub diagnostics: Vec<Diagnostic>,
}

impl ServerStatus {
    /// Whether the server answers, and takes writes as far as is known.
    pub(crate) fn is_usable(&self) -> bool {
        let refuses = |failure: &RedisFailure| error::refuses_writes(failure.error);
        self.is_up && !self.failure.as_ref().is_some_and(refuses)
    }

    /// The names of the diagnostics.
    pub fn advice(&self) -> impl Iterator<Item = &'static str> {
        self.diagnostics.iter().map(|diagnostic| diagnostic.name)
    }
}

/// A condition of a server that matters to an operator. The label `advice` of `weir_redis_advice`
/// has its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// The name of the condition, which is the same in all versions, because alerts match it.
    pub name: &'static str,
    /// The level of its log line.
    pub(crate) urgency: Urgency,
    /// Meaning of the condition, and how to end it.
    pub(crate) text: Cow<'static, str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Urgency {
    /// Counters may be lost, or limits get no answer.
    Warning,
    /// No counter is at risk while Redis runs.
    Information,
}

/// The fields of INFO that Weir uses; `None` for a field that the server did not send. Source:
/// redis.io, the page of INFO.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InfoReport {
    /// The version of Redis or Valkey (`redis_version`, `valkey_version`).
    pub version: Option<String>,
    /// The number of keys in the database that Weir uses.
    pub keys: Option<u64>,
    /// The memory that the server uses, in bytes (`used_memory`).
    pub used_memory_bytes: Option<u64>,
    /// The limit of that memory, in bytes; 0 means no limit (`maxmemory`).
    pub max_memory_bytes: Option<u64>,
    /// The number of keys that the server evicted since it started, because its memory was full
    /// (`evicted_keys`).
    pub evicted_keys: Option<u64>,
    /// Eviction policy for a full memory (`maxmemory_policy`).
    pub(crate) eviction_policy: Option<String>,
    pub(crate) connected_replicas: Option<u64>,
    /// Whether writes need connected replicas (`min-replicas-to-write`).
    pub(crate) requires_replicas: bool,
    pub(crate) aof_enabled: Option<bool>,
    pub(crate) last_snapshot_failed: bool,
    pub(crate) cluster_enabled: bool,
}

impl InfoReport {
    /// Reads the reply to INFO. A field of another form counts as absent.
    pub(crate) fn read(info: &str, database: u32) -> Self {
        let mut report = Self::default();
        let database = format!("db{database}");
        let keys = |part: &str| part.strip_prefix("keys=")?.parse().ok();
        for (name, value) in info.lines().filter_map(|line| line.trim().split_once(':')) {
            match name {
                "redis_version" => report.version = report.version.or_else(|| plain_name(value)),
                // Valkey sends in redis_version the version of Redis with which it is compatible.
                "valkey_version" => report.version = plain_name(value),
                "used_memory" => report.used_memory_bytes = value.parse().ok(),
                "maxmemory" => report.max_memory_bytes = value.parse().ok(),
                "maxmemory_policy" => report.eviction_policy = plain_name(value),
                "evicted_keys" => report.evicted_keys = value.parse().ok(),
                "connected_slaves" => report.connected_replicas = value.parse().ok(),
                // Redis sends this field only if min-replicas-to-write is above 0.
                "min_slaves_good_slaves" => report.requires_replicas = true,
                "aof_enabled" => report.aof_enabled = Some(value == "1"),
                "rdb_last_bgsave_status" => report.last_snapshot_failed = value == "err",
                "cluster_enabled" => report.cluster_enabled = value == "1",
                name if name == database => report.keys = value.split(',').find_map(keys),
                _ => {}
            }
        }
        if report.version.is_some() {
            // INFO does not list a database without keys.
            report.keys = report.keys.or(Some(0));
        }
        report
    }
}

/// The text, if it is a short name of ASCII letters, digits, `.`, `-` and `_`.
fn plain_name(text: &str) -> Option<String> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    (!text.is_empty() && text.len() <= MAX_NAME_LEN && text.chars().all(is_plain))
        .then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that refuses several slots now and then does not change to and fro.
    #[tokio::test(start_paused = true)]
    async fn a_server_accepts_slots_again_after_a_while_without_a_refusal() {
        let deployment = Deployment::new(Options::new(Address::Unix("/none".into())));
        let node = Arc::clone(deployment.map().node(0));
        let state = || (node.spans_slots(), node.refuses_slots());
        assert_eq!(state(), (true, false));
        for _ in 0..3 {
            node.refuse_slots();
            tokio::time::advance(SLOTS_REFUSED / 2).await;
            node.accept_slots();
            assert_eq!(state(), (false, true));
        }
        tokio::time::advance(SLOTS_REFUSED / 2).await;
        node.accept_slots();
        assert_eq!(state(), (true, false));
        node.refuse_slots();
        node.forget_refused_slots();
        assert_eq!(state(), (true, false), "another server");
    }
}
