//! One connection: its first bytes, HTTP/2 with all limits written out, and its end.
//!
//! The age of a connection is 5 minutes by default (24 h in envoyproxy/ratelimit), because
//! kube-proxy chooses a replica for each connection and not for each call. After this time the load
//! has spread over new replicas; the autoscaler of Kubernetes waits as long before it takes an idle
//! one away. A reconnect costs a round trip, three with TLS, and a millisecond of a core.

use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker, ready};
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::FuturesUnordered;
use h2::{Ping, PingPong, server};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, copy, sink};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_rustls::server::TlsStream;
use tokio_util::either::Either;

use super::body::{MAX_WAITING_LARGE, STREAM_WINDOW};
use super::call::{Call, Calls, WaitPermits};
use super::client_errors::{self, ClientErrorLog};
use super::dispatch::LimitServices;
use super::open_connections::OpenConnection;
use super::overload::{Overload, QueueDelay};
use super::socket::{Detached, Socket, attach};
use super::tls::Session;
use super::unread::{OfConnection, UnreadAnswers};
use super::wire::{self, FrameBudget, MAX_FRAME_BYTES, Wire};
use super::{Options, Services};
use crate::net::bounds::TimedWrites;
use crate::observe::metrics::{ConnectionError, Metrics, families};

/// The byte stream under HTTP/2: the socket, or TLS on it.
type MaybeTls = Either<Socket, Box<TlsStream<Socket>>>;

type Http2Connection = server::Connection<Wire<TimedWrites<MaybeTls>>, Bytes>;

/// An accepted connection that is handed to a worker.
#[derive(Debug)]
pub(super) struct NewConnection {
    /// The accepted socket.
    pub(super) stream: Detached,
    /// The state of TLS after the handshake; `None` without TLS.
    pub(super) tls: Option<Session>,
    /// Its part among all open connections, until it closes.
    pub(super) open: OpenConnection,
}

/// While the process drains, connections accept no more requests, and finish the requests in flight
/// within this grace period. Every connection watches it.
pub(super) type Draining = watch::Receiver<Option<Duration>>;

/// The way in which a connection is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Close {
    /// When all requests in flight are answered, or after this grace period.
    Graceful(Duration),
    /// At once; requests in flight get no answer.
    Now,
    /// As `Now`, because the client did not answer a ping.
    WithoutPong,
}

/// The connection preface of an HTTP/2 client. Source: RFC 9113, section 3.4.
pub(super) const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The largest header list of one request, in bytes (SETTINGS_MAX_HEADER_LIST_SIZE). gRPC needs few
/// headers, but with tracing Envoy copies the `tracestate` of its client into the call: up to
/// `max_request_headers_kb`, which is 60 by default. If a call is refused for its headers, Envoy
/// lets the request pass. Therefore the bound has to be above Envoy's own.
pub(crate) const MAX_HEADER_BYTES: u32 = 256 * 1_024;

/// The flow-control window of all streams of a connection, in bytes: at most this much unread data
/// of a connection is in memory. Large messages that wait for memory leave 512 KiB of it to the
/// messages that have memory, which can then arrive.
pub(crate) const CONNECTION_WINDOW: u32 = (512 << 10) + MAX_WAITING_LARGE as u32 * STREAM_WINDOW;

/// The memory that unread DATA frames of a connection may take in addition to their content: many
/// small frames cost more than their bytes. Calls read theirs in the turn in which they arrive.
const DATA_FRAME_BUDGET: usize = 64 * 1_024;

/// The bytes of answers that one stream may buffer before a streaming service has to wait; hyper's
/// default.
const SEND_BUFFER_BYTES: usize = 400 * 1_024;

/// Number of streams of a connection that h2 resets for errors of the client before it closes the
/// connection with all calls in flight. A proxy's clients share its connection for a day: a single
/// client must not reach the bound soon. It is there for a client that does not read the resets:
/// each that waits to be written takes about half a KiB.
pub(crate) const MAX_LOCAL_ERROR_RESETS: usize = 65_536;

/// Weir remembers this many streams that it has reset, for this long: frames that were already
/// under way to them are then no error.
const MAX_REMEMBERED_RESETS: usize = 16;
const REMEMBERED_RESET: Duration = Duration::from_secs(1);

/// Weir pings each client this often, and closes a connection whose client does not answer in time.
pub(crate) const KEEP_ALIVE: Duration = Duration::from_secs(30);
pub(crate) const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(10);

/// Grace period for requests on a connection that was idle for longest when there were too many, or
/// had the most calls that wait, unless one of them waits for the store or for a shaper.
pub(crate) const IDLE_GRACE: Duration = Duration::from_secs(1);

/// Bytes of a request in another protocol that Weir reads before it closes the connection.
const MAX_OTHER_PROTOCOL_BYTES: u64 = 64 * 1_024;

/// The first two bytes of TLS: a record with a message of a handshake, in any version (RFC 8446,
/// section 5.1).
const TLS_HANDSHAKE: [u8; 2] = [0x16, 0x03];

/// State that the connections of one worker share.
pub(super) struct WorkerState<T> {
    services: Arc<Services<T>>,
    wait_permits: WaitPermits,
    pub(super) overload: Arc<Overload>,
    unread: Arc<UnreadAnswers>,
    error_log: Arc<ClientErrorLog>,
    options: Options,
}

impl<T> WorkerState<T> {
    /// The state of the worker of this number.
    pub(super) fn new(
        index: usize,
        services: Services<T>,
        error_log: Arc<ClientErrorLog>,
        options: Options,
    ) -> Self {
        let permits = Arc::new(Semaphore::new(options.max_waiting_calls));
        let (worker, overload) = (index.to_string(), Arc::<Overload>::default());
        let (free, shown) = (Arc::clone(&permits), Arc::clone(&overload));
        services.metrics.register(move || {
            let free = free.available_permits();
            let waiting = options.max_waiting_calls.saturating_sub(free);
            let behind = shown.connections_behind();
            [
                families::WAITING_CALLS.count(&[&worker], waiting as u64),
                families::CONNECTIONS_BEHIND.count(&[&worker], behind as u64),
            ]
        });
        let metrics = Arc::clone(&services.metrics);
        let wait_permits = WaitPermits { permits, metrics };
        Self {
            services: Arc::new(services),
            wait_permits,
            overload,
            unread: Arc::default(),
            error_log,
            options,
        }
    }
}

/// The waker of HTTP/2 on a connection. Each answer wakes it. While the connection answers waiting
/// calls, wakes are dropped, because the same turn writes the answers afterwards.
struct Http2Waker {
    connection: Waker,
    is_answering: AtomicBool,
}

impl Http2Waker {
    /// The waker on a connection that the current task serves.
    async fn of_task() -> Arc<Self> {
        let connection = poll_fn(|context| Poll::Ready(context.waker().clone())).await;
        let is_answering = AtomicBool::new(false);
        Arc::new(Self {
            connection,
            is_answering,
        })
    }

    fn while_answering(&self, answer: impl FnOnce()) {
        self.is_answering.store(true, Ordering::SeqCst);
        answer();
        self.is_answering.store(false, Ordering::SeqCst);
    }
}

impl Wake for Http2Waker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.is_answering.load(Ordering::SeqCst) {
            self.connection.wake_by_ref();
        }
    }
}

pub(super) async fn serve<T: LimitServices>(
    connection: NewConnection,
    worker: Arc<WorkerState<T>>,
    mut phase: Draining,
) {
    let options = worker.options;
    let NewConnection { stream, tls, open } = connection;
    let (open, turn) = (Arc::new(open), Arc::<FrameBudget>::default());
    let queue_delay = QueueDelay::new(options.sheds_load.then(|| Arc::clone(&worker.overload)));
    let unread = OfConnection::new(&worker.unread);
    // A client that sends nothing, disconnects, or speaks another protocol is not logged, and a
    // shutdown does not wait for it.
    let begun = tokio::select! {
        begun = begin_http2(stream, tls, &queue_delay, &unread, &open, &turn, &worker) => begun,
        _ = draining(&mut phase) => return,
        () = open.must_end() => return,
    };
    let Some(mut http2) = begun else { return };
    let metrics = &worker.services.metrics;

    // Timers run in separate tasks: the serving task is woken often, and would poll them each time.
    let mut timers = JoinSet::new();
    if let Some(pings) = http2.ping_pong() {
        timers.spawn(close_without_pong(pings, Arc::clone(&queue_delay)));
    }
    timers.spawn(close_in_time(options, phase, Arc::clone(&open)));
    let mut accepted = Vec::new();
    let mut calls = Calls {
        services: Arc::clone(&worker.services),
        wait_permits: worker.wait_permits.clone(),
        queue_delay: Arc::clone(&queue_delay),
        unread: Arc::clone(&unread),
        open: Arc::clone(&open),
        waiting: FuturesUnordered::new(),
    };
    let http2_waker = Http2Waker::of_task().await;
    let waker = Waker::from(Arc::clone(&http2_waker));
    poll_fn(|context| {
        if poll_close(&mut timers, &mut http2, &unread, &open, metrics, context).is_ready() {
            return Poll::Ready(());
        }
        queue_delay.begin();
        let is_blocked = turn.is_blocked();
        if !is_blocked {
            http2_waker.while_answering(|| calls.answer_waiting(context));
        }
        let http2_context = &mut Context::from_waker(&waker);
        // Writes the answers of the last turn first: HTTP/2 would read on before.
        if turn.is_over() && accept(&mut http2, &mut accepted, metrics, http2_context).is_ready() {
            return Poll::Ready(());
        }
        turn.begin(open.frames_of_a_turn());
        if accept(&mut http2, &mut accepted, metrics, http2_context).is_ready() {
            return Poll::Ready(());
        }
        if !accepted.is_empty() {
            open.called(accepted.len());
        }
        calls.serve(accepted.drain(..), context);
        if turn.is_over() || is_blocked && !turn.is_blocked() {
            context.waker().wake_by_ref();
        }
        Poll::Pending
    })
    .await;
    unread.end();
}

/// Ends the connection gracefully when a timer asks for it. Ready: it ends at once.
fn poll_close(
    timers: &mut JoinSet<Close>,
    http2: &mut Http2Connection,
    unread: &OfConnection,
    open: &Arc<OpenConnection>,
    metrics: &Metrics,
    context: &mut Context<'_>,
) -> Poll<()> {
    while let Poll::Ready(Some(Ok(close))) = timers.poll_join_next(context) {
        match close {
            Close::Graceful(grace) => {
                http2.graceful_shutdown();
                unread.closing();
                timers.spawn(close_after(grace, Arc::clone(open)));
            }
            Close::Now => return Poll::Ready(()),
            Close::WithoutPong => {
                metrics.http2.connection_ended(ConnectionError::NoPong);
                unread.broken();
                return Poll::Ready(());
            }
        }
    }
    Poll::Pending
}

/// HTTP/2 on a connection, when its client has sent the preface. `None`: it does not speak HTTP/2,
/// or is gone.
async fn begin_http2<T>(
    stream: Detached,
    tls: Option<Session>,
    queue_delay: &Arc<QueueDelay>,
    unread: &Arc<OfConnection>,
    open: &OpenConnection,
    turn: &Arc<FrameBudget>,
    worker: &WorkerState<T>,
) -> Option<Http2Connection> {
    let stream = attach(stream).ok()?;
    let socket = Socket::new(stream, Arc::clone(queue_delay), Arc::clone(unread));
    let mut transport = match tls {
        None => Either::Left(socket),
        Some(session) => Either::Right(Box::new(Box::pin(session.resume(socket)).await.ok()?)),
    };
    let preface = read_preface(&mut transport, &worker.error_log);
    let within = worker.options.preface_timeout;
    if !matches!(timeout(within, preface).await, Ok(Ok(true))) {
        return None;
    }
    let (bounds, metrics) = (&worker.services.bounds, &worker.services.metrics);
    let wire = Wire::new(
        TimedWrites::new(transport, bounds.taken_within),
        PREFACE,
        bounds.unfinished.clone(),
        Arc::clone(metrics),
        Some(Arc::clone(unread)),
    );
    let streams = open.share(worker.options.max_concurrent_streams);
    http2(worker.options, streams)
        .handshake(wire.in_turns(turn))
        .await
        .ok()
}

/// Accepts all requests that were read in this turn before it serves any: their answers then leave
/// in one write. Ready: the connection is closed.
///
/// Each answer to an accepted call wakes the connection, which writes when the other tasks that are
/// ready have had their turn.
fn accept(
    http2: &mut Http2Connection,
    accepted: &mut Vec<Call>,
    metrics: &Metrics,
    context: &mut Context<'_>,
) -> Poll<()> {
    loop {
        match ready!(http2.poll_accept(context)) {
            Some(Ok(call)) => accepted.push(call),
            Some(Err(error)) => {
                wire::connection_ended(&error, metrics);
                return Poll::Ready(());
            }
            None => return Poll::Ready(()),
        }
    }
}

/// The settings of HTTP/2, all written out: a changed default of the library must not change a
/// bound.
fn http2(options: Options, streams: u32) -> server::Builder {
    let mut builder = server::Builder::new();
    builder
        .max_concurrent_streams(streams)
        .max_pending_accept_reset_streams(options.max_pending_resets)
        .max_local_error_reset_streams(Some(MAX_LOCAL_ERROR_RESETS))
        .max_concurrent_reset_streams(MAX_REMEMBERED_RESETS)
        .reset_stream_duration(REMEMBERED_RESET)
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .data_frame_budget(DATA_FRAME_BUDGET)
        .max_frame_size(MAX_FRAME_BYTES)
        .max_send_buffer_size(SEND_BUFFER_BYTES)
        .max_header_list_size(MAX_HEADER_BYTES);
    builder
}

/// Reads the connection preface. False: the client does not speak HTTP/2, and has been answered.
///
/// # Errors
/// The socket's.
async fn read_preface(stream: &mut MaybeTls, error_log: &ClientErrorLog) -> io::Result<bool> {
    let mut start = [0; PREFACE.len()];
    stream.read_exact(&mut start).await?;
    if start == *PREFACE {
        return Ok(true);
    }
    if let Either::Left(socket) = stream
        && start.starts_with(&TLS_HANDSHAKE)
    {
        error_log.report(client_errors::TLS_TO_PLAINTEXT, socket.client(), "");
    }
    refuse_protocol(stream, "gRPC (HTTP/2)").await?;
    Ok(false)
}

/// Answers a client that speaks another protocol: in HTTP/1, as curl and browsers speak it.
///
/// # Errors
/// The socket's.
pub(super) async fn refuse_protocol<S>(stream: &mut S, expected: &str) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let answer = format!(
        "HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\nconnection: close\r\n\r\n\
        This port speaks {expected}. Health, metrics and JSON are on the HTTP port.\n"
    );
    stream.write_all(answer.as_bytes()).await?;
    stream.shutdown().await?;
    // Reads until the client closes: a close with unread bytes resets the connection, and the
    // client would lose the answer.
    copy(&mut stream.take(MAX_OTHER_PROTOCOL_BYTES), &mut sink()).await?;
    Ok(())
}

/// Waits until the connection has reached its maximum age, varied by a tenth, the process drains,
/// or another connection needs the memory of this one.
async fn close_in_time(options: Options, mut phase: Draining, open: Arc<OpenConnection>) -> Close {
    let part = 0.9 + 0.2 * fastrand::f64();
    let age = options.max_connection_age.mul_f64(part);
    Close::Graceful(tokio::select! {
        () = sleep(age) => options.max_connection_age_grace,
        grace = draining(&mut phase) => grace,
        () = open.must_end() => options.max_connection_age_grace,
    })
}

/// Waits for this grace period; if another connection needs the memory of this one, only while
/// calls wait for the store or for a shaper, and [`IDLE_GRACE`].
async fn close_after(grace: Duration, open: Arc<OpenConnection>) -> Close {
    let place_is_needed = async {
        open.must_end().await;
        while open.is_needed() {
            sleep(IDLE_GRACE).await;
        }
        sleep(IDLE_GRACE).await;
    };
    let _ = timeout(grace, place_is_needed).await;
    Close::Now
}

/// Waits until the client leaves a ping without an answer. While Weir reads the connection last, the
/// answer may be among the bytes that it has not read.
async fn close_without_pong(mut pings: PingPong, queue_delay: Arc<QueueDelay>) -> Close {
    loop {
        sleep(KEEP_ALIVE).await;
        let mut pong = pin!(pings.ping(Ping::opaque()));
        let answer = loop {
            let answer = timeout(KEEP_ALIVE_TIMEOUT, &mut pong).await;
            if answer.is_ok() || !queue_delay.is_behind() {
                break answer;
            }
        };
        match answer {
            Ok(Ok(_)) => {}
            Ok(Err(_)) => return Close::Now,
            Err(_) => return Close::WithoutPong,
        }
    }
}

/// Waits until the process drains; returns the grace period for requests in flight.
pub(super) async fn draining(phase: &mut Draining) -> Duration {
    let grace = phase.wait_for(Option::is_some).await;
    grace.ok().and_then(|grace| *grace).unwrap_or_default()
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "tests wait for their tasks")]
mod tests {
    use super::*;
    use crate::service::server::open_connections::{OpenConnections, WaitsFor};
    use crate::service::server::wire::tests::frame;

    const HOUR: Duration = Duration::from_secs(3_600);

    /// The client answers no ping.
    #[tokio::test(start_paused = true)]
    async fn a_ping_has_time_while_the_connection_is_behind() {
        let (mut client, server) = tokio::io::duplex(1_024);
        let settings = frame(4, 0, 0, &[]);
        client.write_all(PREFACE).await.expect("a server");
        client.write_all(&settings).await.expect("a server");
        let mut http2 = server::handshake(server).await.expect("HTTP/2");
        let queue_delay = QueueDelay::behind();
        let pings = http2.ping_pong().expect("not taken yet");
        let mut close = tokio::spawn(close_without_pong(pings, Arc::clone(&queue_delay)));
        assert!(timeout(HOUR, &mut close).await.is_err());
        queue_delay.caught_up();
        let close = timeout(KEEP_ALIVE_TIMEOUT, close).await.expect("in time");
        assert_eq!(close.expect("no panic"), Close::WithoutPong);
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_has_to_end_waits_only_for_calls_that_are_held() {
        let all = OpenConnections::new(&Options {
            max_connections: 1,
            ..Options::default()
        });
        let open = Arc::new(all.open().expect("there is space").0);
        // As after its age.
        let mut close = tokio::spawn(close_after(HOUR, Arc::clone(&open)));
        assert!(timeout(HOUR / 2, &mut close).await.is_err());
        all.tick();
        let _other = all.open().expect("the first is idle");
        let held = open.stream(WaitsFor::Decision);
        assert!(timeout(HOUR / 4, &mut close).await.is_err());
        drop(held);
        assert!(timeout(3 * IDLE_GRACE, close).await.is_ok());
    }
}
