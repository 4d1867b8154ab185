//! One connection: its first bytes, HTTP/2 with all limits written out, and its end.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use h2::server::{self, SendResponse};
use h2::{Ping, PingPong, RecvStream};
use http::Request;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::backlog::{Backlog, Intake};
use super::call::{Calls, begin};
use super::socket::Socket;
use super::{Job, Options, Services};
use crate::rls::ShouldRateLimit;

type Http2 = server::Connection<Socket, Bytes>;

type Call = (Request<RecvStream>, SendResponse<Bytes>);

/// What all connections are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Go on.
    Serving,
    /// Finish what is in flight, within `patience`, and accept nothing more.
    Ending { patience: Duration },
}

/// How a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// When what is in flight is answered, or after so long.
    Within(Duration),
    /// As it is.
    Now,
}

/// How an HTTP/2 client begins. Source: RFC 9113, section 3.4.
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Headers of one request; gRPC needs few.
const MAX_HEADER_BYTES: u32 = 16 * 1_024;

/// What a stream may send, and all streams of a connection together, before it is read: this much of a connection waits in memory at most.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 1 << 20;

/// The largest frame that a peer may send: what HTTP/2 begins with.
const MAX_FRAME_BYTES: u32 = 16 * 1_024;

/// What small frames of data may cost in memory beside what they hold, before they are read.
const DATA_FRAME_BUDGET: usize = 512 * 1_024;

/// Answers that a stream may hold back before a service that streams has to wait; as hyper has it.
const SEND_BUFFER_BYTES: usize = 400 * 1_024;

/// Streams that were reset for what the peer did wrong, before the connection ends; as hyper has it.
const MAX_LOCAL_ERROR_RESETS: usize = 1_024;

/// Streams that were reset here are remembered, so that what was under way to them does no harm: so many, for so long.
const MAX_REMEMBERED_RESETS: usize = 50;
const REMEMBERED_RESET: Duration = Duration::from_secs(1);

/// Requests that are taken before they are served; then other connections have their turn.
const ACCEPTED_AT_A_TIME: usize = 128;

/// A peer that vanished without a word is noticed after these.
const KEEP_ALIVE: Duration = Duration::from_secs(30);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(10);

/// What is read of a request that is no gRPC, so that it can be answered.
const MOST_UNREAD: u64 = 64 * 1_024;

/// For those who try the port with curl or a browser.
const WRONG_PROTOCOL: &[u8] = b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\nconnection: close\r\n\r\n\
    This port speaks gRPC (HTTP/2 without TLS). Health, metrics and JSON are on the HTTP port.\n";

/// What the connections of one worker share.
pub(super) struct Shared<T> {
    services: Arc<Services<T>>,
    /// For calls that wait.
    places: Arc<Semaphore>,
    backlog: Arc<Backlog>,
    options: Options,
}

impl<T> Shared<T> {
    pub(super) fn new(services: Services<T>, backlog: Arc<Backlog>, options: Options) -> Self {
        Self { services: Arc::new(services), places: Arc::new(Semaphore::new(options.max_calls)), backlog, options }
    }
}

pub(super) async fn serve<T: ShouldRateLimit>(job: Job, shared: Arc<Shared<T>>, mut phase: watch::Receiver<Phase>) {
    let options = shared.options;
    let Job { stream, permit: _permit } = job;
    let Ok(stream) = TcpStream::from_std(stream) else { return };
    // A client that says nothing, hangs up, or speaks something else is not worth a line in the log; nor is it waited for at the end.
    let greeted = tokio::select! {
        greeted = timeout(options.preface_timeout, greet(stream)) => greeted,
        _ = ending(&mut phase) => return,
    };
    let Ok(Ok(Some(stream))) = greeted else { return };
    let intake = Intake::new(&shared.backlog);
    let socket = Socket::new(PREFACE, stream, Arc::clone(&intake), Arc::clone(&shared.services.metrics));
    let Ok(mut http2) = http2(options).handshake(socket).await else { return };

    // What has to do with time is no part of the task that serves, which is woken often, and only looks whether it was told to end.
    let mut ends = JoinSet::new();
    if let Some(pings) = http2.ping_pong() {
        ends.spawn(vanished(pings));
    }
    ends.spawn(until_its_end(options, phase));
    let mut accepted = Vec::new();
    let mut calls = Calls::new(Arc::clone(&shared.services), Arc::clone(&shared.places), Arc::clone(&intake), begin);
    poll_fn(|context| {
        while let Poll::Ready(Some(Ok(end))) = ends.poll_join_next(context) {
            let End::Within(grace) = end else { return Poll::Ready(()) };
            http2.graceful_shutdown();
            ends.spawn(after(grace));
        }
        if accept(&mut http2, &mut accepted, &intake, context).is_ready() {
            return Poll::Ready(());
        }
        for (request, respond) in accepted.drain(..) {
            calls.serve(request, respond, context);
        }
        Poll::Pending
    })
    .await;
}

/// Takes all requests that have arrived, before any is served: their answers then leave together. Ready: the connection is closed.
///
/// What is sent wakes the connection, so that the answers are written when the tasks that are ready have had their turn.
fn accept(http2: &mut Http2, accepted: &mut Vec<Call>, intake: &Intake, context: &mut Context<'_>) -> Poll<()> {
    while accepted.len() < ACCEPTED_AT_A_TIME {
        match http2.poll_accept(context) {
            Poll::Ready(Some(Ok(call))) => accepted.push(call),
            // A client that breaks off is not worth a line in the log.
            Poll::Ready(Some(Err(_)) | None) => return Poll::Ready(()),
            Poll::Pending => {
                intake.emptied();
                return Poll::Pending;
            }
        }
    }
    context.waker().wake_by_ref();
    Poll::Pending
}

/// HTTP/2 with all that matters written out.
fn http2(options: Options) -> server::Builder {
    let mut builder = server::Builder::new();
    builder
        .max_concurrent_streams(options.max_concurrent_streams)
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

/// Reads how the client begins; `None` when it does not speak HTTP/2, and has been told so.
async fn greet(mut stream: TcpStream) -> std::io::Result<Option<TcpStream>> {
    let mut start = [0; PREFACE.len()];
    stream.read_exact(&mut start).await?;
    if start == *PREFACE {
        return Ok(Some(stream));
    }
    // Reads on until the other side closes: closing with something unread would take the answer away from it.
    stream.write_all(WRONG_PROTOCOL).await?;
    stream.shutdown().await?;
    tokio::io::copy(&mut stream.take(MOST_UNREAD), &mut tokio::io::sink()).await?;
    Ok(None)
}

/// Waits until the connection is old or the process ends.
async fn until_its_end(options: Options, mut phase: watch::Receiver<Phase>) -> End {
    let age = options.max_connection_age.mul_f64(0.9 + 0.2 * fastrand::f64());
    End::Within(tokio::select! {
        () = sleep(age) => options.max_connection_age_grace,
        patience = ending(&mut phase) => patience,
    })
}

/// Waits until the peer leaves a ping without an answer.
async fn vanished(mut pings: PingPong) -> End {
    loop {
        sleep(KEEP_ALIVE).await;
        match timeout(KEEP_ALIVE_TIMEOUT, pings.ping(Ping::opaque())).await {
            Ok(Ok(_)) => {}
            Ok(Err(_)) | Err(_) => return End::Now,
        }
    }
}

async fn after(grace: Duration) -> End {
    sleep(grace).await;
    End::Now
}

/// Waits until the process ends; returns the time for what is in flight.
pub(super) async fn ending(phase: &mut watch::Receiver<Phase>) -> Duration {
    match phase.wait_for(|phase| matches!(phase, Phase::Ending { .. })).await.as_deref() {
        Ok(Phase::Ending { patience }) => *patience,
        _ => Duration::ZERO,
    }
}
