//! The connection pool of one worker for one server: bb8 keeps the connections; this file opens
//! them, checks them and replaces old ones.
//!
//! bb8's own reconnect has no jitter and makes callers wait, and its `max_lifetime` closes
//! connections before others are open. Both are switched off: the circuit breaker decides when to
//! try again, and an old connection is used until its replacement is ready.
//!
//! The pool never retries a command, and never hands out a connection that is broken or leads to a
//! former location of the server. Source of bb8's options: docs.rs/bb8, `Builder`.

use std::pin::pin;
use std::sync::{Arc, Mutex};

use bb8_redis::bb8;
use tokio::sync::watch;
use tokio::time::{Duration, Instant};

use crate::core::lock;
use crate::store::redis::connection::Connection;
use crate::store::redis::error;
use crate::store::redis::topology::node::Node;

/// A lane waits at most this long for a connection; attempts to connect end much sooner.
const GET_TIMEOUT: Duration = Duration::from_secs(5);

/// A connection that was not used for this long is closed. It is long because the next request
/// would have to wait for a new connection.
const IDLE_TIMEOUT: Duration = Duration::from_secs(600);

/// The wait after a failed attempt to replace an old connection.
const REPLACEMENT_RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Interval of bb8's check for idle connections to close.
const REAPER_RATE: Duration = Duration::from_secs(10);

/// The connections of one worker to one server.
#[derive(Debug)]
pub(super) struct ConnectionPool {
    connections: bb8::Pool<Connector>,
    last_failure: LastFailure,
    node: Arc<Node>,
    replacement: Arc<Mutex<Replacement>>,
}

/// The name of the last failed attempt's error. It wakes all lanes that wait for a connection,
/// which bb8 would keep waiting.
type LastFailure = watch::Sender<&'static str>;

/// The connection that replaces the next old one.
#[derive(Debug)]
enum Replacement {
    /// No connection. The next attempt to connect may begin at this instant, once a connection is
    /// old.
    NotBefore(Instant),
    /// A task is connecting.
    Connecting,
    /// Replaces the next old connection that a lane uses.
    Ready(Box<Connection>),
}

/// A connection of the pool, which returns to it when dropped.
pub(super) type PooledConnection<'a> = bb8::PooledConnection<'a, Connector>;

impl ConnectionPool {
    /// An empty pool, which opens its first connection for the first request. Must be used in the
    /// runtime that it was created in.
    pub(super) fn new(node: &Arc<Node>) -> Self {
        let last_failure = LastFailure::default();
        let connector = Connector {
            node: Arc::clone(node),
            last_failure: last_failure.clone(),
        };
        let connections = bb8::Pool::builder()
            .max_size(node.options.pool_size.get())
            .min_idle(None)
            // Costs no round trip here: it only checks whether the server has closed the
            // connection.
            .test_on_check_out(true)
            .connection_timeout(GET_TIMEOUT)
            // The circuit breaker decides when to try again; bb8's retries have no jitter and keep
            // callers waiting.
            .retry_connection(false)
            // Old connections are replaced by `renew`.
            .max_lifetime(None)
            .idle_timeout(IDLE_TIMEOUT)
            .reaper_rate(REAPER_RATE)
            // The connection that was used last is used next: connections beyond the need become
            // idle and are closed.
            .queue_strategy(bb8::QueueStrategy::Lifo)
            .build_unchecked(connector);
        let replacement = Arc::new(Mutex::new(Replacement::NotBefore(Instant::now())));
        Self {
            connections,
            last_failure,
            node: Arc::clone(node),
            replacement,
        }
    }

    /// Replaces a connection that is past its lifetime if a replacement is ready; otherwise starts
    /// connecting one. No request waits for it: the old connection stays in use until then.
    #[expect(
        clippy::disallowed_methods,
        reason = "ends with the attempt to connect"
    )]
    pub(super) fn renew(&self, pooled: &mut PooledConnection<'_>) {
        if !pooled.is_old() {
            return;
        }
        let mut replacement = lock(&self.replacement);
        match &*replacement {
            Replacement::Ready(_) => {
                let taken =
                    std::mem::replace(&mut *replacement, Replacement::NotBefore(Instant::now()));
                if let Replacement::Ready(mut connection) = taken
                    && connection.is_quiet()
                    && self.node.is_at(connection.generation)
                {
                    connection.count_in(&self.node.connections);
                    **pooled = *connection;
                }
            }
            Replacement::NotBefore(at) if *at <= Instant::now() => {
                *replacement = Replacement::Connecting;
                let (node, replacement) = (Arc::clone(&self.node), Arc::clone(&self.replacement));
                tokio::spawn(async move {
                    let connected = node.connect().await;
                    *lock(&replacement) = match connected {
                        Ok(connection) => Replacement::Ready(Box::new(connection)),
                        Err(error) => {
                            node.error_counters.record_failed_connect(&error);
                            Replacement::NotBefore(Instant::now() + REPLACEMENT_RETRY_INTERVAL)
                        }
                    };
                });
            }
            Replacement::NotBefore(_) | Replacement::Connecting => {}
        }
    }

    /// A connection. Returns when one is free or open, or when an attempt to connect has failed.
    ///
    /// # Errors
    /// The name of the error, which is `connect_timeout` after 5 s.
    pub(super) async fn connection(&self) -> Result<PooledConnection<'_>, &'static str> {
        let mut last_failure = self.last_failure.subscribe();
        let mut connection = pin!(self.connections.get());
        tokio::select! {
            biased;
            connection = &mut connection => connection.map_err(|_| error::CONNECT_TIMEOUT),
            Ok(()) = last_failure.changed() => Err(*last_failure.borrow()),
        }
    }
}

/// Opens and checks connections for bb8.
#[derive(Debug)]
pub(super) struct Connector {
    node: Arc<Node>,
    last_failure: LastFailure,
}

impl bb8::ManageConnection for Connector {
    type Connection = Connection;
    /// The error's name, only for debugging: errors are counted here, where they occur.
    type Error = &'static str;

    async fn connect(&self) -> Result<Connection, &'static str> {
        match self.node.connect().await {
            Ok(mut connection) => {
                connection.count_in(&self.node.connections);
                Ok(connection)
            }
            Err(failure) => {
                self.node.error_counters.record_failed_connect(&failure);
                self.last_failure.send_replace(failure.error);
                Err(failure.error)
            }
        }
    }

    async fn is_valid(&self, connection: &mut Connection) -> Result<(), &'static str> {
        if !self.node.accepts(connection) {
            return Err("not reusable");
        }
        if connection.is_quiet() {
            return Ok(());
        }
        connection.give_up();
        self.node.error_counters.record(error::IDLE_CLOSED);
        Err(error::IDLE_CLOSED)
    }

    fn has_broken(&self, connection: &mut Connection) -> bool {
        !self.node.accepts(connection)
    }
}
