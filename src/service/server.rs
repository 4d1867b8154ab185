//! The gRPC listener: an accept loop of our own, which hands connections in turn to one
//! current-thread runtime per core. With TLS other threads do the handshakes before (`tls`).
//!
//! Measured, a request costs half the CPU that it costs on a work-stealing runtime, and a client
//! with few connections still uses all cores. `call` answers rate limits directly on HTTP/2;
//! `dispatch` has the services, and routes calls to health and reflection. All limits of the
//! listener are declared in [`Options`] or in `connection`.
//!
//! The listener calls the services by the traits that tonic generates, [`LimitServices`], and is on
//! h2 itself. tonic's server on hyper costs 1.35 to 1.5 times the CPU of a call in memory, and 1.2
//! to 1.3 times the CPU of a call on Redis. Above hyper, two bounds cannot be enforced: on answers
//! that clients do not read, and on large headers of calls that wait. tonic's server is the oracle:
//! a test sends every kind of call to both (`tests/it/service/server/oracle.rs`).
//!
//! The accept loop assigns connections to cores, because with `SO_REUSEPORT` one core might get all
//! of a client's few connections.

pub(crate) mod body;
pub(crate) mod call;
mod client_errors;
pub(crate) mod connection;
mod dispatch;
mod listen;
pub(crate) mod open_connections;
mod overload;
mod reply;
mod socket;
pub(crate) mod tls;
pub(crate) mod unread;
pub(crate) mod wire;
mod worker;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::net::throttle::Throttle;
use crate::observe::metrics::{Metrics, families};
pub use body::ClientBounds;
pub use client_errors::log_resets;
use connection::NewConnection;
pub use dispatch::{GrpcHealth, LimitServices, Services};
pub use listen::{Address, Listener, TcpAddress, listen};
use open_connections::OpenConnections;
use socket::Detached;
pub use tls::{Certificates, Handshakes, Options as TlsOptions};
pub use worker::Workers;

/// Limits of the listener, each with its reason.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Maximum number of open connections; fewer if memory or file descriptors are scarce. A
    /// further connection ends the one that was idle for longest. Envoy holds one per worker
    /// thread: more than this is a leak.
    pub max_connections: usize,
    /// Memory of all connections, and of each without waiting calls, in bytes.
    pub connections_bytes: u64,
    pub connection_bytes: u64,
    /// Time for a new connection to send HTTP/2's preface; a silent one would stay open for ever.
    pub preface_timeout: Duration,
    /// Concurrent requests on one connection; tonic's own server sets no bound.
    pub max_concurrent_streams: u32,
    /// Calls of one worker that wait for the store or a shaper at a time; each takes some KiB, and
    /// one with a message of more than 4 KiB counts as several. A further call that has to wait is
    /// refused at once. The bound is above what may wait for Redis and be held by shapers together.
    pub max_waiting_calls: usize,
    /// Whether Weir refuses calls whose deadlines passed in the socket, and reads connections last
    /// whose calls are late. Without that, a worker that cannot keep up spends its time on calls
    /// whose clients have given up.
    pub sheds_load: bool,
    /// Maximum number of streams that the client resets before Weir accepts them. When Weir stalls,
    /// Envoy's timeout of 20 ms resets all concurrent streams of a connection, 1,024 by default,
    /// again and again; h2's default of 20 would close the connection.
    pub max_pending_resets: usize,
    /// Age at which Weir asks a connection to end, to spread clients over new replicas; varied by a
    /// tenth. Five minutes, because Kubernetes's autoscaler waits for that long before it takes
    /// away a replica again that got too little to do. Envoy answers calls in flight and opens the
    /// next connection when it needs one, which costs a round trip, or three with TLS.
    pub max_connection_age: Duration,
    /// Grace period for requests in flight on a connection that was asked to end. As in
    /// envoyproxy/ratelimit.
    pub max_connection_age_grace: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            max_connections: 10_000,
            connections_bytes: u64::MAX,
            connection_bytes: CONNECTION_BYTES,
            preface_timeout: Duration::from_secs(5),
            max_concurrent_streams: 1_024,
            max_waiting_calls: 16_384,
            sheds_load: true,
            max_pending_resets: 8_192,
            max_connection_age: Duration::from_secs(300),
            max_connection_age_grace: Duration::from_secs(3_600),
        }
    }
}

/// Pause after an error of accept: most often there are no file descriptors left, and a retry at
/// once would only use CPU.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Minimum time between two log lines about errors of accept.
const WARNING_INTERVAL: Duration = Duration::from_secs(1);

impl Options {
    /// Bounds the connections by this memory.
    #[must_use]
    pub fn within(self, bytes: u64, is_tls: bool) -> Self {
        let of_each = CONNECTION_BYTES + if is_tls { TLS_BYTES } else { 0 };
        Self {
            max_connections: self.max_connections.min((bytes / of_each) as usize).max(1),
            connections_bytes: bytes,
            connection_bytes: of_each,
            ..self
        }
    }
}

/// The memory of a connection that makes a call at a time, in bytes, as measured: nearly all of it is
/// buffers of HTTP/2. With TLS, rustls takes more.
pub const CONNECTION_BYTES: u64 = 32 << 10;
pub(crate) const TLS_BYTES: u64 = 24 << 10;

/// Destination of accepted connections.
#[derive(Debug)]
pub enum Acceptor {
    Plaintext(Arc<Workers>),
    /// To a handshake, and then to the workers.
    Tls(Handshakes),
}

/// Accepts until `stop` becomes true, and hands each connection to the next worker in turn, with
/// TLS after its handshake.
pub async fn accept(
    listener: Listener,
    acceptor: Acceptor,
    options: Options,
    metrics: Arc<Metrics>,
    mut stop: watch::Receiver<bool>,
) {
    let connections = OpenConnections::new(&options);
    let gauge = Arc::clone(&connections);
    metrics.register(move || [families::CONNECTIONS.count(&[], gauge.count() as u64)]);
    let mut seconds = interval(Duration::from_secs(1));
    seconds.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut warnings = Throttle::new(WARNING_INTERVAL);
    loop {
        let accepted = tokio::select! {
            accepted = accept_one(&listener, &acceptor) => accepted,
            _ = seconds.tick() => {
                connections.tick();
                continue;
            }
            _ = stop.wait_for(|&stop| stop) => return,
        };
        match accepted {
            Ok(stream) => {
                let is_one_closed = connections.open().is_none_or(|(open, has_ended_another)| {
                    let tls = None;
                    let connection = NewConnection { stream, tls, open };
                    let is_admitted = match &acceptor {
                        Acceptor::Plaintext(workers) => workers.assign(connection),
                        Acceptor::Tls(handshakes) => handshakes.begin(connection),
                    };
                    has_ended_another || !is_admitted
                });
                // Either this connection or another one.
                if is_one_closed {
                    metrics.connection_refused();
                }
            }
            Err(error) => {
                if warnings.admit(Instant::now()).is_some() {
                    tracing::warn!(%error, "cannot accept a connection");
                }
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Accepts a connection, once there is space for its handshake.
async fn accept_one(listener: &Listener, acceptor: &Acceptor) -> io::Result<Detached> {
    if let Acceptor::Tls(handshakes) = acceptor {
        handshakes.ready().await;
    }
    listener.accept().await
}

#[expect(
    clippy::disallowed_methods,
    reason = "a call ends with its stream, a stream with its connection, and draining ends \
        connections"
)]
fn spawn(call: impl Future<Output = ()> + Send + 'static) {
    drop(tokio::spawn(call));
}

#[cfg(test)]
mod cost_tests;
