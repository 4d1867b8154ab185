//! The connections of one runtime to one server: bb8 keeps them, this says how they are made and when they are not used again.

use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};

use bb8_redis::bb8;
use tokio::sync::Notify;
use tokio::time::{Duration, Instant};

use crate::store::redis::connection::exchange::Connection;
use crate::store::redis::error::{self, ConnectError};
use crate::store::redis::topology::node::{Location, Node};

/// A lane gives up on a connection after this long; attempts to connect end much sooner.
const LONGEST_GET: Duration = Duration::from_secs(5);

/// A connection that nobody used for this long is closed. Long, because whoever asks next would have to wait for another one.
const IDLE: Duration = Duration::from_secs(600);

/// Between two attempts to replace an old connection.
const RENEW_AGAIN: Duration = Duration::from_secs(1);

/// How often connections are looked at for their age.
const REAPER_RATE: Duration = Duration::from_secs(10);

/// The connections of one runtime to one server.
#[derive(Debug)]
pub(super) struct Pool {
    connections: bb8::Pool<Connector>,
    last_failure: Arc<LastFailure>,
    node: Arc<Node>,
    replacement: Arc<Mutex<Replacement>>,
}

/// A connection to replace an old one.
#[derive(Debug)]
enum Replacement {
    /// None is needed yet, or the last attempt failed and the next one is not due.
    NotBefore(Instant),
    /// Somebody connects.
    Coming,
    /// For the next old connection that is used.
    Ready(Box<Connection>, Arc<Location>),
}

/// How the last attempt to connect failed, told to all who wait for a connection: bb8 would let them wait on.
#[derive(Debug, Default)]
struct LastFailure {
    failure: Mutex<&'static str>,
    failed: Notify,
}

/// A connection, until it is dropped.
pub(super) type PooledConnection<'a> = bb8::PooledConnection<'a, Connector>;

impl Pool {
    /// An empty pool, to be used in the runtime that it is made in. Connects when the first connection is wanted.
    pub(super) fn new(node: &Arc<Node>) -> Self {
        let last_failure = Arc::new(LastFailure::default());
        let manager = Connector { node: Arc::clone(node), last_failure: Arc::clone(&last_failure) };
        let connections = bb8::Pool::builder()
            .max_size(node.options().pool_size.get())
            .min_idle(None)
            // Costs no round trip here: it only looks whether the other side has hung up.
            .test_on_check_out(true)
            .connection_timeout(LONGEST_GET)
            // The breaker decides when to try again; bb8's own way has no jitter and keeps callers waiting.
            .retry_connection(false)
            // Old connections are replaced in use, when there is another one.
            .max_lifetime(None)
            .idle_timeout(IDLE)
            .reaper_rate(REAPER_RATE)
            // The connection that was used last is the warmest, and those beyond what is needed grow idle.
            .queue_strategy(bb8::QueueStrategy::Lifo)
            .error_sink(Box::new(Sink(Arc::clone(node))))
            .build_unchecked(manager);
        let replacement = Arc::new(Mutex::new(Replacement::NotBefore(Instant::now())));
        Self { connections, last_failure, node: Arc::clone(node), replacement }
    }

    /// Replaces a connection that is old, as soon as there is another one; until then it goes on, so that nobody has to wait for its successor.
    #[expect(clippy::disallowed_methods, reason = "ends with the attempt to connect")]
    pub(super) fn renew(&self, pooled: &mut PooledConnection<'_>) {
        if !pooled.is_old() {
            return;
        }
        let mut replacement = lock(&self.replacement);
        match &*replacement {
            Replacement::Ready(..) => {
                let now = Replacement::NotBefore(Instant::now());
                if let Replacement::Ready(mut connection, location) = std::mem::replace(&mut *replacement, now)
                    && connection.is_quiet()
                    && self.node.is_at(&location)
                {
                    self.node.connection_opened();
                    pooled.replace(*connection, location);
                }
            }
            Replacement::NotBefore(at) if *at <= Instant::now() => {
                *replacement = Replacement::Coming;
                let (node, replacement) = (Arc::clone(&self.node), Arc::clone(&self.replacement));
                tokio::spawn(async move {
                    let opened = node.connect().await;
                    *lock(&replacement) = match opened {
                        Ok((connection, location)) => Replacement::Ready(Box::new(connection), location),
                        Err(error) => {
                            node.error_counters().record_failed_connect(&error);
                            Replacement::NotBefore(Instant::now() + RENEW_AGAIN)
                        }
                    };
                });
            }
            Replacement::NotBefore(_) | Replacement::Coming => {}
        }
    }

    /// A connection, as soon as there is one or the attempt to make one has failed.
    ///
    /// # Errors
    /// The name of what went wrong.
    pub(super) async fn connection(&self) -> Result<PooledConnection<'_>, &'static str> {
        let failed = self.last_failure.failed.notified();
        let mut connection = pin!(self.connections.get());
        tokio::select! {
            biased;
            connection = &mut connection => connection.map_err(|_| error::CONNECT_TIMEOUT),
            () = failed => Err(*self.last_failure.failure()),
        }
    }
}

fn lock(replacement: &Mutex<Replacement>) -> std::sync::MutexGuard<'_, Replacement> {
    // Every change is a single assignment, so that a poisoned lock holds a whole value.
    replacement.lock().unwrap_or_else(PoisonError::into_inner)
}

impl LastFailure {
    fn failure(&self) -> std::sync::MutexGuard<'_, &'static str> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How bb8 makes connections and judges them.
#[derive(Debug)]
pub(super) struct Connector {
    node: Arc<Node>,
    last_failure: Arc<LastFailure>,
}

/// A connection that is counted while it exists, and knows where it leads.
#[derive(Debug)]
pub(super) struct TrackedConnection {
    connection: Connection,
    location: Arc<Location>,
    node: Arc<Node>,
}

impl TrackedConnection {
    /// The old connection is closed.
    fn replace(&mut self, connection: Connection, location: Arc<Location>) {
        let old = std::mem::replace(&mut self.connection, connection);
        self.node.connection_closed(&old);
        self.location = location;
    }

    /// Whether the connection may be used again: it is intact, and leads to where the server is.
    pub(super) fn is_reusable(&self) -> bool {
        self.connection.is_reusable() && self.node.is_at(&self.location)
    }
}

impl std::ops::Deref for TrackedConnection {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        &self.connection
    }
}

impl std::ops::DerefMut for TrackedConnection {
    fn deref_mut(&mut self) -> &mut Connection {
        &mut self.connection
    }
}

impl Drop for TrackedConnection {
    fn drop(&mut self) {
        self.node.connection_closed(&self.connection);
    }
}

/// What happened outside of any request.
#[derive(Debug)]
pub(super) enum Event {
    /// An attempt failed.
    Refused(ConnectError),
    /// The other side hung up on a connection that nobody used.
    HungUp,
    /// The server is elsewhere by now.
    Moved,
}

impl bb8::ManageConnection for Connector {
    type Connection = TrackedConnection;
    type Error = Event;

    async fn connect(&self) -> Result<TrackedConnection, Event> {
        match self.node.connect().await {
            Ok((connection, location)) => {
                self.node.connection_opened();
                Ok(TrackedConnection { connection, location, node: Arc::clone(&self.node) })
            }
            Err(error) => {
                *self.last_failure.failure() = error.name;
                self.last_failure.failed.notify_waiters();
                Err(Event::Refused(error))
            }
        }
    }

    async fn is_valid(&self, connection: &mut TrackedConnection) -> Result<(), Event> {
        if !connection.is_reusable() {
            return Err(Event::Moved);
        }
        if connection.is_quiet() {
            return Ok(());
        }
        connection.give_up();
        Err(Event::HungUp)
    }

    fn has_broken(&self, connection: &mut TrackedConnection) -> bool {
        !connection.is_reusable()
    }
}

/// Where bb8 reports what no caller waits for.
#[derive(Clone, Debug)]
struct Sink(Arc<Node>);

impl bb8::ErrorSink<Event> for Sink {
    fn sink(&self, event: Event) {
        match event {
            Event::Refused(error) => self.0.error_counters().record_failed_connect(&error),
            Event::HungUp => self.0.error_counters().record(error::IDLE_CLOSED, None),
            Event::Moved => {}
        }
    }

    fn boxed_clone(&self) -> Box<dyn bb8::ErrorSink<Event>> {
        Box::new(self.clone())
    }
}
