//! The links of one runtime: bb8 keeps them, this says how they are made and when they are not.
//!
//! While Redis cannot be reached a gate is shut: callers are told so at once, and one attempt at a time looks whether it is back, after 50 ms
//! and then ever longer up to a second. A dead Redis costs nobody a wait, and is found again within a second of its return.

use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bb8_redis::bb8;
use tokio::sync::{Notify, Semaphore, SemaphorePermit};
use tokio::time::{Duration, Instant, timeout_at};

use super::error::{self, Refusal};
use super::link::{LIFETIME, Link};
use super::{Shared, Topology};
use crate::verdict::StoreError;

/// Waits between attempts: the first, and the longest.
const FIRST_WAIT: Duration = Duration::from_millis(50);
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// Callers bring a deadline of their own, of some tens of milliseconds; this only ends what they forgot.
const LONGEST_GET: Duration = Duration::from_secs(5);

/// A link that nobody used for this long is closed.
const IDLE: Duration = Duration::from_secs(60);

/// How often links are looked at for their age.
const REAPER_RATE: Duration = Duration::from_secs(10);

/// The links of one runtime.
#[derive(Debug)]
pub(super) struct Pool {
    /// One for each link that may exist. bb8 gives a link that comes back to whoever asks next; under load those who wait would starve. Here
    /// they are served in the order in which they came.
    turns: Semaphore,
    links: bb8::Pool<Links>,
    gate: Arc<Gate>,
}

/// A link, borrowed until it is dropped; then its turn ends too, in this order.
pub(super) struct Lent<'a> {
    link: bb8::PooledConnection<'a, Links>,
    _turn: SemaphorePermit<'a>,
}

impl std::ops::Deref for Lent<'_> {
    type Target = Link;

    fn deref(&self) -> &Link {
        &self.link
    }
}

impl std::ops::DerefMut for Lent<'_> {
    fn deref_mut(&mut self) -> &mut Link {
        &mut self.link
    }
}

impl Pool {
    /// An empty pool, to be used in the runtime that it is made in. Connects when the first link is wanted.
    pub(super) fn new(shared: &Arc<Shared>) -> Self {
        let gate = Arc::new(Gate::default());
        let manager = Links { shared: Arc::clone(shared), gate: Arc::clone(&gate) };
        let links = bb8::Pool::builder()
            .max_size(shared.options().pool_size.get())
            .min_idle(None)
            // Costs no round trip here: it only looks whether the other side has hung up.
            .test_on_check_out(true)
            .connection_timeout(LONGEST_GET)
            // The gate decides when to try again; bb8's own way has no jitter and keeps callers waiting.
            .retry_connection(false)
            // Links retire by themselves at an age with jitter; this is for those that nobody uses.
            .max_lifetime(LIFETIME)
            .idle_timeout(IDLE)
            .reaper_rate(REAPER_RATE)
            // The link that was used last is the warmest, and those beyond what is needed grow idle.
            .queue_strategy(bb8::QueueStrategy::Lifo)
            .error_sink(Box::new(Sink(Arc::clone(shared))))
            .build_unchecked(manager);
        Self { turns: Semaphore::new(shared.options().pool_size.get() as usize), links, gate }
    }

    /// A link, by `deadline`.
    ///
    /// # Errors
    /// Always `NotExecuted`: at once when Redis is known to be away, else with the reason of the failed attempt, or `timeout` when all links
    /// are busy until the deadline.
    pub(super) async fn link(&self, deadline: Instant) -> Result<Lent<'_>, StoreError> {
        let now = Instant::now();
        if let Some(reason) = self.gate.is_shut(now) {
            return Err(StoreError::NotExecuted(reason));
        }
        if deadline <= now {
            return Err(StoreError::NotExecuted(error::TIMEOUT));
        }
        timeout_at(deadline, self.wait()).await.unwrap_or(Err(StoreError::NotExecuted(error::TIMEOUT)))
    }

    async fn wait(&self) -> Result<Lent<'_>, StoreError> {
        let mut lent = pin!(self.take_turn());
        loop {
            let attempt_failed = self.gate.attempt_failed.notified();
            tokio::select! {
                biased;
                lent = &mut lent => return lent.ok_or(StoreError::NotExecuted(error::TIMEOUT)),
                () = attempt_failed => {
                    if let Some(reason) = self.gate.is_shut(Instant::now()) {
                        return Err(StoreError::NotExecuted(reason));
                    }
                }
            }
        }
    }

    async fn take_turn(&self) -> Option<Lent<'_>> {
        let turn = self.turns.acquire().await.ok()?;
        let link = self.links.get().await.ok()?;
        Some(Lent { link, _turn: turn })
    }
}

/// How bb8 makes links and judges them.
#[derive(Debug)]
pub(super) struct Links {
    shared: Arc<Shared>,
    gate: Arc<Gate>,
}

/// A link that is counted while it exists.
#[derive(Debug)]
pub(super) struct Counted {
    link: Link,
    shared: Arc<Shared>,
    gate: Arc<Gate>,
}

impl std::ops::Deref for Counted {
    type Target = Link;

    fn deref(&self) -> &Link {
        &self.link
    }
}

impl std::ops::DerefMut for Counted {
    fn deref_mut(&mut self) -> &mut Link {
        &mut self.link
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.gate.open.fetch_sub(1, Ordering::Relaxed);
        self.shared.closed();
    }
}

/// What happened outside of any request.
#[derive(Debug)]
pub(super) enum Event {
    /// It is too early for another attempt; nothing was tried.
    TooEarly,
    /// An attempt failed.
    Refused(Refusal),
    /// The other side hung up on a link that nobody used.
    HungUp,
}

impl bb8::ManageConnection for Links {
    type Connection = Counted;
    type Error = Event;

    async fn connect(&self) -> Result<Counted, Event> {
        let Some(attempt) = self.gate.begin(Instant::now(), self.shared.options().connect_timeout) else {
            self.gate.attempt_failed.notify_waiters();
            return Err(Event::TooEarly);
        };
        let options = self.shared.options();
        let address = match &options.topology {
            Topology::Single(address) => address,
            // Settings do not let these through yet; and one of them is always there.
            Topology::Sentinel { sentinels: list, .. } | Topology::Cluster(list) => list.first().ok_or(Event::TooEarly)?,
        };
        match Link::open(options, address, self.shared.clock()).await {
            Ok(link) => {
                self.shared.opened();
                self.gate.succeeded();
                Ok(Counted { link, shared: Arc::clone(&self.shared), gate: Arc::clone(&self.gate) })
            }
            Err(refusal) => {
                self.gate.failed(attempt, Instant::now(), refusal.name);
                Err(Event::Refused(refusal))
            }
        }
    }

    async fn is_valid(&self, link: &mut Counted) -> Result<(), Event> {
        if link.is_quiet() {
            return Ok(());
        }
        link.condemn();
        Err(Event::HungUp)
    }

    fn has_broken(&self, link: &mut Counted) -> bool {
        link.is_spent()
    }
}

/// Where bb8 reports what no caller waits for.
#[derive(Clone, Debug)]
struct Sink(Arc<Shared>);

impl bb8::ErrorSink<Event> for Sink {
    fn sink(&self, event: Event) {
        match event {
            Event::TooEarly => {}
            Event::Refused(Refusal { name, cause }) => {
                self.0.tallies().record(name, cause.as_ref().map(|cause| cause as &dyn std::fmt::Display));
            }
            Event::HungUp => self.0.tallies().record(error::IDLE_CLOSED, None),
        }
    }

    fn boxed_clone(&self) -> Box<dyn bb8::ErrorSink<Event>> {
        Box::new(self.clone())
    }
}

/// Who may try to connect, and when.
#[derive(Debug, Default)]
struct Gate {
    /// Links that exist.
    open: AtomicUsize,
    outage: Mutex<Option<Outage>>,
    /// Told to all who wait for a link.
    attempt_failed: Notify,
}

/// Since the last attempt failed.
#[derive(Clone, Copy, Debug)]
struct Outage {
    reason: &'static str,
    wait: Duration,
    failed_at: Instant,
    next_attempt: Instant,
}

/// When an attempt began.
#[derive(Clone, Copy, Debug)]
struct Attempt(Instant);

impl Gate {
    /// Why no link can be had now; `None` while there is one, or when it is time to try.
    fn is_shut(&self, now: Instant) -> Option<&'static str> {
        let outage = (*self.outage())?;
        (now < outage.next_attempt && self.open.load(Ordering::Relaxed) == 0).then_some(outage.reason)
    }

    /// Begins an attempt: while Redis is away one at a time, when its time has come.
    fn begin(&self, now: Instant, longest_attempt: Duration) -> Option<Attempt> {
        if let Some(outage) = self.outage().as_mut() {
            if now < outage.next_attempt {
                return None;
            }
            outage.next_attempt = now + longest_attempt + outage.wait;
        }
        Some(Attempt(now))
    }

    fn succeeded(&self) {
        self.open.fetch_add(1, Ordering::Relaxed);
        *self.outage() = None;
    }

    fn failed(&self, Attempt(began): Attempt, now: Instant, reason: &'static str) {
        {
            let mut outage = self.outage();
            *outage = Some(match *outage {
                // Attempts that were under way together fail together and are one failure.
                Some(known) if began <= known.failed_at => Outage { reason, ..known },
                known => {
                    let wait = known.map_or(FIRST_WAIT, |known| (known.wait * 2).min(LONGEST_WAIT));
                    Outage { reason, wait, failed_at: now, next_attempt: now + wait.mul_f64(0.5 + fastrand::f64() / 2.0) }
                }
            });
        }
        self.attempt_failed.notify_waiters();
    }

    fn outage(&self) -> MutexGuard<'_, Option<Outage>> {
        // Every change is a single assignment, so that a poisoned lock holds a whole value.
        self.outage.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ATTEMPT: Duration = Duration::from_millis(250);

    #[test]
    fn waits_grow_to_a_second_and_one_attempt_is_made_at_a_time() {
        let gate = Gate::default();
        let mut now = Instant::now();
        let mut attempts = Vec::new();
        let first = gate.begin(now, ATTEMPT).expect("nothing is known yet");
        let beside = gate.begin(now, ATTEMPT).expect("nothing is known yet");
        gate.failed(first, now, "connect");
        gate.failed(beside, now, "auth");
        assert_eq!(gate.is_shut(now), Some("auth"));
        for _ in 0..10 {
            let began = now;
            while gate.is_shut(now).is_some() {
                now += Duration::from_millis(1);
            }
            attempts.push((now - began).as_millis());
            let attempt = gate.begin(now, ATTEMPT).expect("its time has come");
            assert!(gate.begin(now, ATTEMPT).is_none(), "one at a time");
            assert!(gate.is_shut(now).is_some(), "who comes meanwhile is not kept waiting");
            gate.failed(attempt, now, "connect");
        }
        assert!((25..=50).contains(&attempts[0]), "two failures together are one: {attempts:?}");
        assert!((500..=1_000).contains(attempts.last().expect("ten")), "{attempts:?}");
        let attempt = gate.begin(now + LONGEST_WAIT, ATTEMPT).expect("its time has come");
        gate.succeeded();
        assert_eq!(gate.is_shut(now), None);
        gate.open.fetch_sub(1, Ordering::Relaxed);
        gate.failed(attempt, now, "connect");
        assert!(gate.begin(now + FIRST_WAIT, ATTEMPT).is_some(), "after a success waits are short again");
    }

    #[test]
    fn a_link_that_lives_keeps_the_gate_open() {
        let gate = Gate::default();
        let now = Instant::now();
        let attempt = gate.begin(now, ATTEMPT).expect("nothing is known yet");
        gate.succeeded();
        gate.failed(attempt, now, "maxclients");
        assert_eq!(gate.is_shut(now), None);
    }
}
