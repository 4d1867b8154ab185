//! One connection of the client: calls of `ShouldRateLimit` on h2 itself, because tonic's client
//! takes more of a core for each call.
//!
//! A connection that ends is opened again. A call that the server provably did not begin, such as
//! one after a GOAWAY, is made again on the new connection; what else fails is an error of the
//! call.

use std::cell::Cell;
use std::fmt;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use h2::client::SendRequest;
use h2::{Ping, Reason, RecvStream};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, Uri, Version, header};
use tokio::sync::{Mutex, oneshot};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

use super::super::connect::SERVICE;
use crate::core::proto::METHOD_PATH;
use crate::net::dial::{Address, Dial};
use crate::net::random;
use crate::observe::metrics::process::CODES;

/// The longest answer that is read, in bytes; and the flow-control window for all answers of a
/// connection together.
const MAX_ANSWER_BYTES: usize = 1 << 20;
const WINDOW: u32 = 16 << 20;

/// Attempts of a call that the server did not begin.
const ATTEMPTS: usize = 3;

/// The time between two attempts to open a connection.
const BETWEEN_ATTEMPTS: Duration = Duration::from_millis(100);

/// The longest message of an error that is kept, in characters.
const MAX_MESSAGE: usize = 200;

const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const GRPC: &str = "application/grpc";
const USER_AGENT: &str = concat!("weir-load/", env!("CARGO_PKG_VERSION"));

/// How to reach a server, and with how much at a time.
#[derive(Clone, Debug)]
pub struct Options {
    /// The server.
    pub dial: Dial,
    /// Connections; calls take them in turn.
    pub connections: usize,
    /// The most calls in flight on all connections together.
    pub max_in_flight: usize,
    /// The longest wait for an answer, which is also the deadline that the server sees.
    pub timeout: Duration,
    /// Headers of each call.
    pub headers: HeaderMap,
    /// Send a random `traceparent` with each call, as a proxy with tracing does.
    pub traces: bool,
}

/// Why a call has no answer.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The name under which it is counted.
    pub kind: FailureKind,
    /// Message of the server or the transport.
    pub message: String,
}

/// Kind of a failure; failures are counted by kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum FailureKind {
    /// No answer within the client's time.
    #[error("timeout")]
    Timeout,
    /// The connection failed, or could not be opened.
    #[error("connection")]
    Connection,
    /// The server provably did not begin the call.
    #[error("not begun")]
    NotBegun,
    /// The answer is not gRPC, or its message cannot be decoded.
    #[error("unreadable")]
    Unreadable,
    /// A status of HTTP.
    #[error("HTTP {0}")]
    Http(u16),
    /// A status of gRPC, by its number.
    #[error("{}", CODES.get(*.0).unwrap_or(&"UNKNOWN"))]
    Grpc(usize),
}

impl Failure {
    pub(super) fn new(kind: FailureKind, message: impl fmt::Display) -> Self {
        let message = message.to_string();
        let message = message.chars().take(MAX_MESSAGE).collect();
        Self { kind, message }
    }
}

impl From<h2::Error> for Failure {
    fn from(error: h2::Error) -> Self {
        let is_refused = error.is_reset() && error.reason() == Some(Reason::REFUSED_STREAM);
        let kind = match is_refused || (error.is_go_away() && error.is_remote()) {
            true => FailureKind::NotBegun,
            false => FailureKind::Connection,
        };
        Self::new(kind, error)
    }
}

fn not_begun(error: h2::Error) -> Failure {
    Failure::new(FailureKind::NotBegun, error)
}

/// One connection to a server.
pub(super) struct LoadConnection {
    dial: Dial,
    timeout: Duration,
    traces: bool,
    request: Request<()>,
    state: Mutex<ConnectionState>,
    /// How often it was opened, the generation of the connection: a call that fails late does not
    /// close a newer one.
    pub(super) opened: Cell<u64>,
}

#[derive(Default)]
struct ConnectionState {
    sender: Option<SendRequest<Bytes>>,
    not_before: Option<Instant>,
    drivers: JoinSet<()>,
}

impl LoadConnection {
    pub(super) fn new(options: &Options) -> Self {
        let mut request = Request::new(());
        *request.method_mut() = Method::POST;
        *request.version_mut() = Version::HTTP_2;
        *request.uri_mut() = uri(&options.dial);
        let headers = request.headers_mut();
        headers.clone_from(&options.headers);
        headers.insert(header::TE, HeaderValue::from_static("trailers"));
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(GRPC));
        headers.insert(header::USER_AGENT, HeaderValue::from_static(USER_AGENT));
        if let Ok(value) = HeaderValue::try_from(format!("{}m", options.timeout.as_millis())) {
            headers.insert("grpc-timeout", value);
        }
        Self {
            dial: options.dial.clone(),
            timeout: options.timeout,
            traces: options.traces,
            request,
            state: Mutex::default(),
            opened: Cell::new(0),
        }
    }

    fn request(&self) -> Request<()> {
        let mut request = self.request.clone();
        if self.traces {
            // version, trace, parent and flags of W3C Trace Context
            let (trace, parent) = (random::bits(), fastrand::u64(1..));
            let value = HeaderValue::try_from(format!("00-{trace:032x}-{parent:016x}-01"));
            let value = value.ok().map(|value| (TRACEPARENT, value));
            request.headers_mut().extend(value);
        }
        request
    }

    /// Asks once. The message has the prefix of gRPC.
    ///
    /// # Errors
    /// There is no answer, or one that is no message.
    pub(super) async fn call(&self, message: Bytes) -> Result<Bytes, Failure> {
        let attempts = async {
            let mut attempt = 1;
            loop {
                let (sender, generation) = self.sender().await?;
                let answer = self.exchange(sender, message.clone()).await;
                let kind = answer.as_ref().err().map(|failure| failure.kind);
                if let Some(FailureKind::NotBegun | FailureKind::Connection) = kind {
                    let mut state = self.state.lock().await;
                    state.sender.take_if(|_| self.opened.get() == generation);
                }
                if kind != Some(FailureKind::NotBegun) || attempt == ATTEMPTS {
                    return answer;
                }
                attempt += 1;
            }
        };
        let answer = timeout(self.timeout, attempts).await;
        answer.unwrap_or_else(|_| {
            let what = format_args!("no answer within {:?}", self.timeout);
            Err(Failure::new(FailureKind::Timeout, what))
        })
    }

    /// The sender of the connection, which is opened unless it is open, and its generation.
    ///
    /// # Errors
    /// It cannot be opened, or what listens does not speak HTTP/2.
    pub(super) async fn sender(&self) -> Result<(SendRequest<Bytes>, u64), Failure> {
        let mut state = self.state.lock().await;
        if let Some(sender) = &state.sender {
            return Ok((sender.clone(), self.opened.get()));
        }
        if let Some(at) = state.not_before {
            sleep_until(at).await;
        }
        state.not_before = Some(Instant::now() + BETWEEN_ATTEMPTS);
        let sender = self.connect(&mut state.drivers).await?;
        self.opened.set(self.opened.get() + 1);
        state.not_before = None;
        state.sender = Some(sender.clone());
        Ok((sender, self.opened.get()))
    }

    async fn connect(&self, drivers: &mut JoinSet<()>) -> Result<SendRequest<Bytes>, Failure> {
        let failed = |cause| Failure::new(FailureKind::Connection, cause);
        let deadline = Instant::now() + self.timeout;
        let stream = self.dial.connect(deadline).await;
        let stream = stream.map_err(|error| failed(error.explain(&SERVICE)))?;
        let handshake = h2::client::Builder::new()
            .enable_push(false)
            .initial_window_size(MAX_ANSWER_BYTES as u32)
            .initial_connection_window_size(WINDOW)
            .handshake::<_, Bytes>(stream);
        let opened = async {
            let (sender, mut connection) = handshake.await?;
            let ping = connection.ping_pong();
            let (ended, end) = oneshot::channel();
            while drivers.try_join_next().is_some() {}
            drivers.spawn(async move {
                // The calls that are under way get the error as well.
                let _ = ended.send(connection.await);
            });
            // An answer to a PING proves HTTP/2; a port of HTTP/1 closes the connection.
            let Some(mut ping) = ping else {
                return Ok(sender);
            };
            tokio::select! {
                pong = ping.ping(Ping::opaque()) => pong.map(|_| sender),
                ended = end => {
                    let closed = || Reason::PROTOCOL_ERROR.into();
                    Err(ended.ok().and_then(Result::err).unwrap_or_else(closed))
                }
            }
        };
        let cause = match timeout_at(deadline, opened).await {
            Ok(Ok(sender)) => return Ok(sender),
            Ok(Err(error)) => error.to_string(),
            Err(_) => "no answer to a PING".to_owned(),
        };
        Err(failed(format!(
            "it does not speak gRPC ({cause}); use the gRPC port, which is 8081 unless GRPC_PORT \
             is set, and TLS if GRPC_SERVER_USE_TLS is"
        )))
    }

    async fn exchange(&self, sender: SendRequest<Bytes>, message: Bytes) -> Result<Bytes, Failure> {
        // Until here nothing was sent, whatever is wrong with the connection.
        let mut sender = sender.ready().await.map_err(not_begun)?;
        let sent = sender.send_request(self.request(), false);
        let (response, mut body) = sent.map_err(not_begun)?;
        body.send_data(message, true)?;
        let (head, mut body) = response.await?.into_parts();
        if head.status != StatusCode::OK {
            let kind = FailureKind::Http(head.status.as_u16());
            return Err(Failure::new(kind, "an answer of HTTP, not of gRPC"));
        }
        if let Some(failure) = failure_of(&head.headers) {
            return Err(failure);
        }
        let message = read(&mut body).await?;
        let trailers = body.trailers().await?.unwrap_or_default();
        match (failure_of(&trailers), message) {
            (Some(failure), _) => Err(failure),
            (None, Some(message)) if trailers.contains_key("grpc-status") => Ok(message),
            _ => {
                let what = "an answer without a message or without a status of gRPC";
                Err(Failure::new(FailureKind::Unreadable, what))
            }
        }
    }
}

/// The URI of all calls.
fn uri(dial: &Dial) -> Uri {
    let authority = match &dial.address {
        Address::Tcp { .. } => dial.address.to_string(),
        Address::Unix(_) => "localhost".to_owned(),
    };
    let scheme = if dial.tls.is_some() { "https" } else { "http" };
    let uri = Uri::builder().scheme(scheme).authority(authority);
    let uri = uri.path_and_query(METHOD_PATH).build();
    // An address was read as a host and a port.
    uri.unwrap_or_else(|_| Uri::from_static("http://localhost"))
}

/// The error of gRPC in headers or trailers, unless the status is 0 or is not there.
fn failure_of(headers: &HeaderMap) -> Option<Failure> {
    let status = headers.get("grpc-status")?.to_str().ok();
    let code = status.and_then(|text| text.parse().ok()).unwrap_or(2);
    // A number that gRPC does not define is UNKNOWN, which bounds the number of kinds.
    let code = tonic::Code::from(code) as usize;
    (code != 0).then(|| {
        let message = headers.get("grpc-message").map(HeaderValue::as_bytes);
        let message = percent_encoding::percent_decode(message.unwrap_or_default());
        Failure::new(FailureKind::Grpc(code), message.decode_utf8_lossy())
    })
}

/// The message of a body, without the prefix of gRPC; `None` without a whole one.
async fn read(body: &mut RecvStream) -> Result<Option<Bytes>, Failure> {
    let mut all = BytesMut::new();
    while let Some(chunk) = body.data().await {
        let chunk = chunk?;
        // The window of the stream is the longest answer: a longer one is not read on.
        if all.len() + chunk.len() > MAX_ANSWER_BYTES {
            let what = format_args!("an answer of more than {MAX_ANSWER_BYTES} bytes");
            return Err(Failure::new(FailureKind::Unreadable, what));
        }
        body.flow_control().release_capacity(chunk.len())?;
        all.put(chunk);
    }
    let all = all.freeze();
    let is_whole = |&[flag, length @ ..]: &[u8; 5]| {
        flag == 0 && u32::from_be_bytes(length) as usize == all.len() - 5
    };
    let is_whole = all.first_chunk().is_some_and(is_whole);
    Ok(is_whole.then(|| all.slice(5..)))
}
