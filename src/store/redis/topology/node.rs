//! One Redis server, as all threads of the process see it: where it is, whether it can be asked, and what its clock shows.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwapOption;
use tokio::sync::Notify;
use tokio::time::{Duration, Instant, timeout_at};

use super::clock::Clock;
use super::counters::Counters;
use super::status::LatestStatus;
use crate::breaker::{self, Breaker, Why};
use crate::store::Budget;
use crate::store::redis::connection::exchange::Connection;
use crate::store::redis::connection::handshake::{self, Purpose};
use crate::store::redis::connection::options::{Address, Options};
use crate::store::redis::error::{self, ConnectError, ErrorCounters};
use crate::store::redis::rtt::RttEstimator;
use crate::store::redis::wire::batch::WorkReply;
use crate::time::Micros;

/// Who has less time than this learns nothing about a server.
const TELLING: Duration = Duration::from_millis(2);

/// One server.
#[derive(Debug)]
pub(crate) struct Node {
    /// No two nodes of a process have the same.
    pub(crate) id: u64,
    options: Arc<Options>,
    purpose: Purpose,
    location: ArcSwapOption<Location>,
    found: Notify,
    clock: Clock,
    began: Instant,
    circuit: Mutex<Circuit>,
    is_closed: AtomicBool,
    /// Wakes the supervisor when the circuit opens.
    pub(crate) circuit_opened: Arc<Notify>,
    error_counters: Arc<ErrorCounters>,
    connections: OpenConnections,
    pub(crate) counters: Counters,
    /// What the slow look beside the requests shows.
    pub(crate) latest_status: LatestStatus,
    /// What a request had for its trip, lately; a probe gets no more.
    budget_micros: AtomicU64,
    pub(crate) rtt: RttEstimator,
}

/// Where a server is. After a failover it is another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Location {
    pub(crate) address: Address,
    generation: u64,
    since: Instant,
}

#[derive(Debug)]
struct Circuit {
    breaker: Breaker,
    /// The name of the last error.
    reason: &'static str,
}

/// OpenConnections to the server, of all threads.
#[derive(Debug, Default)]
struct OpenConnections {
    opened: AtomicU64,
    open: AtomicUsize,
    /// One broke since the last was opened.
    broke: AtomicBool,
}

/// What became of the requests of one batch.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Outcome {
    answered: u32,
    slow: u32,
    failed: u32,
    failure: Option<(Why, &'static str)>,
}

/// Who takes longer than this share of a budget hardly makes it.
fn hardly(budget: Duration) -> Duration {
    budget * 4 / 5
}

impl Outcome {
    /// Counts the reply to a request that began at `since`.
    pub(crate) fn add(&mut self, reply: &WorkReply, since: Instant, budget: Budget) {
        let blamed = reply.answers.iter().filter_map(|answer| answer.err());
        let blamed =
            blamed.filter_map(|error| Some((error::server_failure(error)?, error::name(error)))).max_by_key(|(why, _)| *why == Why::Config);
        if blamed.is_some() {
            self.failed += 1;
            self.failure = blamed;
        } else {
            self.answered += 1;
            let available = budget.deadline.saturating_duration_since(since);
            // An answer in time is an answer; only who hardly makes it is slow.
            self.slow += u32::from(available >= TELLING && since.elapsed() > hardly(available));
        }
    }
}

impl Node {
    /// A server that nobody has asked yet. Without an address it has to be found first.
    pub(crate) fn new(
        address: Option<Address>,
        options: &Arc<Options>,
        purpose: Purpose,
        error_counters: &Arc<ErrorCounters>,
        opened: &Arc<Notify>,
    ) -> Arc<Self> {
        static IDS: AtomicU64 = AtomicU64::new(0);
        Arc::new(Self {
            id: IDS.fetch_add(1, Ordering::Relaxed),
            options: Arc::clone(options),
            purpose,
            location: ArcSwapOption::from(address.map(|address| Arc::new(Location { address, generation: 0, since: Instant::now() }))),
            found: Notify::new(),
            clock: Clock::new(),
            began: Instant::now(),
            circuit: Mutex::new(Circuit { breaker: Breaker::new(breaker::Options::default()), reason: error::NO_PRIMARY }),
            is_closed: AtomicBool::new(true),
            circuit_opened: Arc::clone(opened),
            error_counters: Arc::clone(error_counters),
            connections: OpenConnections::default(),
            counters: Counters::default(),
            latest_status: LatestStatus::default(),
            budget_micros: AtomicU64::new(0),
            rtt: RttEstimator::default(),
        })
    }

    pub(crate) fn options(&self) -> &Arc<Options> {
        &self.options
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.clock
    }

    pub(crate) fn error_counters(&self) -> &ErrorCounters {
        &self.error_counters
    }

    /// Where it is, when that is known.
    pub(crate) fn location(&self) -> Option<Arc<Location>> {
        self.location.load_full()
    }

    /// It is elsewhere from now on: connections to the old place are not used again, and what was known of its clock is forgotten.
    pub(crate) fn move_to(&self, address: Address) {
        let old = self.location.load_full();
        if old.as_ref().is_some_and(|location| location.address == address) {
            return;
        }
        let generation = old.map_or(0, |location| location.generation + 1);
        self.location.store(Some(Arc::new(Location { address, generation, since: Instant::now() })));
        self.clock.forget();
        // What the old one did says nothing about the new one.
        self.circuit().breaker = Breaker::new(breaker::Options::default());
        self.is_closed.store(true, Ordering::Relaxed);
        self.found.notify_waiters();
    }

    /// Whether its address is this one.
    pub(crate) fn has_address(&self, address: &Address) -> bool {
        self.location.load().as_ref().is_some_and(|location| location.address == *address)
    }

    /// Whether the server is still where this says.
    pub(crate) fn is_at(&self, location: &Arc<Location>) -> bool {
        self.location.load().as_ref().is_some_and(|now| now.generation == location.generation)
    }

    /// A new connection, and the place that it leads to.
    pub(crate) async fn connect(&self) -> Result<(Connection, Arc<Location>), ConnectError> {
        let location = self.find().await.ok_or(ConnectError { name: error::NO_PRIMARY, cause: None })?;
        let opened = handshake::open(&location.address, &self.options, self.purpose).await?;
        if !self.is_at(&location) {
            // It moved while we connected to where it was.
            return Err(ConnectError { name: error::READONLY, cause: None });
        }
        let at = Instant::now();
        // Behind a broken connection there may be another machine now.
        if self.connections.open.load(Ordering::Relaxed) == 0 || self.connections.broke.swap(false, Ordering::Relaxed) {
            self.clock.restart(opened.time, at);
        } else {
            self.clock.observe(opened.time, at);
        }
        Ok((opened.connection, location))
    }

    /// Waits for a server that is being looked for.
    async fn find(&self) -> Option<Arc<Location>> {
        let found = self.found.notified();
        if let Some(location) = self.location() {
            return Some(location);
        }
        let _ = timeout_at(Instant::now() + self.options.connect_timeout, found).await;
        self.location()
    }

    pub(crate) fn connection_opened(&self) {
        self.connections.opened.fetch_add(1, Ordering::Relaxed);
        self.connections.open.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn connection_closed(&self, connection: &Connection) {
        self.connections.open.fetch_sub(1, Ordering::Relaxed);
        self.connections.broke.fetch_or(connection.is_broken(), Ordering::Relaxed);
    }

    /// OpenConnections, opened since the start and open now.
    pub(crate) fn connections(&self) -> (u64, usize) {
        (self.connections.opened.load(Ordering::Relaxed), self.connections.open.load(Ordering::Relaxed))
    }

    /// Whether a request may go there.
    ///
    /// # Errors
    /// The name of what went wrong last.
    pub(crate) fn admit(&self, budget: Budget) -> Result<(), &'static str> {
        let left = budget.deadline.saturating_duration_since(Instant::now());
        self.budget_micros.store(u64::try_from(left.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
        if self.is_closed.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.with_circuit(|circuit, now| if circuit.breaker.admits(now) { Ok(()) } else { Err(circuit.reason) })
    }

    /// What a probe has for its trip: what a request has before it counts as slow, at most a tenth of a second.
    pub(crate) fn budget(&self) -> Duration {
        match self.budget_micros.load(Ordering::Relaxed) {
            0 => PROBE_AT_MOST,
            micros => hardly(Duration::from_micros(micros)).clamp(PROBE_AT_LEAST, PROBE_AT_MOST),
        }
    }

    /// What became of the requests of a batch.
    pub(crate) fn record_outcome(&self, outcome: Outcome) {
        let Outcome { answered, slow, failed, failure } = outcome;
        if answered == 0 && failed == 0 {
            return;
        }
        self.with_circuit(|circuit, now| {
            if answered > 0 {
                circuit.breaker.succeeded(now, answered, slow);
            }
            if let Some((why, reason)) = failure {
                circuit.reason = reason;
                circuit.breaker.failed(now, failed, why);
            }
        });
    }

    /// So many requests got no connection.
    pub(crate) fn record_failed(&self, requests: u32, name: &'static str) {
        self.record_outcome(Outcome { failed: requests, failure: Some((error::failure_kind(name), name)), ..Outcome::default() });
    }

    /// A request was not answered within its time.
    pub(crate) fn record_timeout(&self, since: Instant, budget: Budget) {
        // What an old place owed us is not the new one's fault.
        let is_here = self.location().is_some_and(|location| location.since <= since);
        if is_here && budget.deadline.saturating_duration_since(since) >= TELLING {
            self.record_failed(1, error::TIMEOUT);
        }
    }

    /// What a probe found.
    pub(crate) fn record_probe(&self, result: Result<(), (Why, &'static str)>) {
        self.with_circuit(|circuit, now| {
            if let Err((_, reason)) = result {
                circuit.reason = reason;
            }
            circuit.breaker.probed(now, result.map_err(|(why, _)| why), fastrand::u32(..=1_000));
        });
    }

    /// How long until the next probe is due; `None` while none is needed.
    pub(crate) fn next_probe(&self) -> Option<Duration> {
        if self.is_closed.load(Ordering::Relaxed) {
            return None;
        }
        self.with_circuit(|circuit, now| circuit.breaker.next_probe().map(|due| Duration::from(due.since(now))))
    }

    /// Whether it is asked now.
    pub(crate) fn state(&self) -> breaker::State {
        if self.is_closed.load(Ordering::Relaxed) {
            return breaker::State::Closed;
        }
        self.with_circuit(|circuit, now| {
            circuit.breaker.advance(now);
            circuit.breaker.state()
        })
    }

    /// How often the circuit opened and closed.
    pub(crate) fn transitions(&self) -> breaker::Transitions {
        self.circuit().breaker.transitions()
    }

    /// Asks the breaker, says what changes, and wakes the supervisor.
    fn with_circuit<T>(&self, ask: impl FnOnce(&mut Circuit, Micros) -> T) -> T {
        let now = Micros(u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX));
        let (answer, before, after, reason) = {
            let mut circuit = self.circuit();
            let before = circuit.breaker.state();
            let answer = ask(&mut circuit, now);
            let after = circuit.breaker.state();
            self.is_closed.store(after == breaker::State::Closed, Ordering::Relaxed);
            (answer, before, after, circuit.reason)
        };
        match (before, after) {
            (breaker::State::Open, breaker::State::Open) | (_, breaker::State::Ramp { .. }) => {}
            (_, breaker::State::Open) => {
                let redis = self.location().map(|location| location.address.to_string());
                tracing::warn!(
                    redis,
                    error = reason,
                    "Redis cannot be used: limits are answered by on_store_failure until a probe succeeds"
                );
                self.circuit_opened.notify_one();
            }
            (breaker::State::Closed, breaker::State::Closed) => {}
            (_, breaker::State::Closed) => {
                let redis = self.location().map(|location| location.address.to_string());
                tracing::info!(redis, "Redis is back");
            }
        }
        answer
    }

    fn circuit(&self) -> MutexGuard<'_, Circuit> {
        // The breaker is total, so that a poisoned lock still holds a whole state.
        self.circuit.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The time that a probe has: what requests have, within these bounds.
const PROBE_AT_LEAST: Duration = Duration::from_millis(5);
const PROBE_AT_MOST: Duration = Duration::from_millis(100);
