//! One connection: its first bytes, HTTP/2 with all limits written out, and its end.

use std::io::Cursor;
use std::pin::pin;
use std::time::Duration;

use hyper::server::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::{Job, Options, Services};
use crate::proto::RateLimitService;

/// What all connections are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Go on.
    Serving,
    /// Finish what is in flight, within `patience`, and accept nothing more.
    Ending { patience: Duration },
}

/// How an HTTP/2 client begins. Source: RFC 9113, section 3.4.
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Headers of one request; gRPC needs few.
const MAX_HEADER_BYTES: u32 = 16 * 1_024;

/// What a stream may send, and all streams of a connection together, before it is read: this much of a connection waits in memory at most.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 1 << 20;

/// A peer that vanished without a word is noticed after these.
const KEEP_ALIVE: Duration = Duration::from_secs(30);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(10);

/// What is read of a request that is no gRPC, so that it can be answered.
const MOST_UNREAD: u64 = 64 * 1_024;

/// For those who try the port with curl or a browser.
const WRONG_PROTOCOL: &[u8] = b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\nconnection: close\r\n\r\n\
    This port speaks gRPC (HTTP/2 without TLS). Health, metrics and JSON are on the HTTP port.\n";

pub(super) async fn serve<T: RateLimitService>(job: Job, services: Services<T>, options: Options, mut phase: watch::Receiver<Phase>) {
    let Job { stream, permit: _permit } = job;
    let Ok(stream) = TcpStream::from_std(stream) else { return };
    // A client that says nothing, hangs up, or speaks something else is not worth a line in the log; nor is it waited for at the end.
    let greeted = tokio::select! {
        greeted = timeout(options.preface_timeout, greet(stream)) => greeted,
        _ = ending(&mut phase) => return,
    };
    let Ok(Ok(Some(stream))) = greeted else { return };
    let (reader, writer) = stream.into_split();
    let io = TokioIo::new(tokio::io::join(Cursor::new(PREFACE).chain(reader), writer));

    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(options.max_concurrent_streams)
        .max_pending_accept_reset_streams(options.max_pending_resets)
        .max_local_error_reset_streams(1_024)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_header_list_size(MAX_HEADER_BYTES)
        .keep_alive_interval(KEEP_ALIVE)
        .keep_alive_timeout(KEEP_ALIVE_TIMEOUT);
    let mut connection = pin!(builder.serve_connection(io, services));
    let grace = tokio::select! {
        _ = connection.as_mut() => return,
        grace = until_its_end(options, phase) => grace,
    };
    connection.as_mut().graceful_shutdown();
    let _ = timeout(grace, connection).await;
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

/// Waits until the connection is old or the process ends; returns the time for what is in flight.
async fn until_its_end(options: Options, mut phase: watch::Receiver<Phase>) -> Duration {
    let age = options.max_connection_age.mul_f64(0.9 + 0.2 * fastrand::f64());
    tokio::select! {
        () = sleep(age) => options.max_connection_age_grace,
        patience = ending(&mut phase) => patience,
    }
}

/// Waits until the process ends; returns the time for what is in flight.
pub(super) async fn ending(phase: &mut watch::Receiver<Phase>) -> Duration {
    match phase.wait_for(|phase| matches!(phase, Phase::Ending { .. })).await.as_deref() {
        Ok(Phase::Ending { patience }) => *patience,
        _ => Duration::ZERO,
    }
}
