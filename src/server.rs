//! The gRPC listener: our own accept loop, which hands connections in turn to one current-thread runtime per core.
//!
//! Measured, that is half the CPU per request of a work-stealing runtime, and a client with few connections still uses all cores. The usual
//! call is answered on top of HTTP/2 itself; the generated service and a router's worth of other services stand beside it. Limits that
//! HTTP/2 needs are all written out here.

mod backlog;
mod body;
mod call;
mod connection;
mod dispatch;
mod gate;
mod reply;
mod socket;
mod worker;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::Instant;

use crate::metrics::Metrics;
pub use body::Budget;
pub use dispatch::{GrpcHealth, Services};
pub use worker::{Job, Workers};

/// Limits of the listener, each with its reason.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Open connections. Envoy holds one per worker thread; beyond this, something leaks, and new ones are closed at once.
    pub max_connections: usize,
    /// Time for a new connection to say that it speaks HTTP/2; a silent one would be kept for ever.
    pub preface_timeout: Duration,
    /// Requests at a time on one connection. tonic's own server leaves this open.
    pub max_concurrent_streams: u32,
    /// Calls of one worker that wait for something (the store, a shaper, the rest of a message) at a time, each for some KiB; beyond it, a
    /// call that would have to wait is refused at once. More than may wait for Redis and be held by shapers together.
    pub max_calls: usize,
    /// Calls are refused, before they cost anything, while all that comes on their connection waits longer to be read than those who call
    /// wait for an answer. Else a worker that cannot keep up answers only those who have left.
    pub sheds_load: bool,
    /// Streams that were reset before they were accepted. When a service stalls, Envoy's 20 ms timeout resets as many as it may have under way
    /// again and again, 1,024 by default; the library's default of 20 answers that with the end of the connection.
    pub max_pending_resets: usize,
    /// Age at which a connection is asked to end, so that clients spread over new replicas; varied by a tenth. From the reference.
    pub max_connection_age: Duration,
    /// Time for what is in flight on a connection that was asked to end. From the reference.
    pub max_connection_age_grace: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            max_connections: 10_000,
            preface_timeout: Duration::from_secs(5),
            max_concurrent_streams: 1_024,
            max_calls: 16_384,
            sheds_load: true,
            max_pending_resets: 8_192,
            max_connection_age: Duration::from_secs(24 * 3_600),
            max_connection_age_grace: Duration::from_secs(3_600),
        }
    }
}

/// Connections that wait in the kernel to be accepted.
const BACKLOG: i32 = 1_024;

/// Pause after an error of accept: most often there are no file descriptors left, and asking again at once would only burn a core.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Between two lines about it in the log.
const WARNING_PAUSE: Duration = Duration::from_secs(1);

/// Opens a listening socket. An IPv6 address takes IPv4 connections too; two processes cannot share a port without noticing.
///
/// # Errors
/// The operating system's, for example when the port is in use.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if address.is_ipv6() {
        socket.set_only_v6(false)?;
    }
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

/// Accepts until `stop` becomes true, and hands each connection to the next worker in turn.
pub async fn accept(
    listener: TcpListener,
    workers: Arc<Workers>,
    options: Options,
    metrics: Arc<Metrics>,
    mut stop: watch::Receiver<bool>,
) {
    let free = Arc::new(Semaphore::new(options.max_connections));
    let mut last_warning = None::<Instant>;
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stop.wait_for(|&stop| stop) => return,
        };
        match accepted {
            Ok((stream, _)) => match Arc::clone(&free).try_acquire_owned() {
                Ok(permit) => hand_over(stream, permit, &workers, &metrics),
                Err(_) => metrics.connection_refused(),
            },
            Err(error) => {
                if last_warning.is_none_or(|last| last.elapsed() > WARNING_PAUSE) {
                    tracing::warn!(%error, "cannot accept a connection");
                    last_warning = Some(Instant::now());
                }
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// A worker's own sockets must be registered with its own runtime, so the stream travels as the operating system's.
fn hand_over(stream: TcpStream, permit: OwnedSemaphorePermit, workers: &Workers, metrics: &Metrics) {
    let _ = stream.set_nodelay(true);
    let taken = stream.into_std().is_ok_and(|stream| workers.give(Job { stream, permit }));
    if !taken {
        metrics.connection_refused();
    }
}

#[cfg(test)]
mod costs;
