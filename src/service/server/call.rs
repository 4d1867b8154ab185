//! Calls, which run in the connection's task.
//!
//! The listener calls the trait that tonic generates, as tonic's own server does. The future of a
//! `ShouldRateLimit` is polled once, at once: a call that memory or the denial cache decides is
//! ready then. One that has to wait is kept by the connection (`WaitingCall`) if it gets permits
//! (`WaitPermits`), and refused otherwise. A call whose message arrives in pieces is a task from
//! its beginning. The worker first takes all requests that have arrived on a connection, then
//! starts them on their received bytes, then writes the answers together.

use std::future::poll_fn;
use std::panic::AssertUnwindSafe;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::CatchUnwind;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use h2::server::SendResponse;
use h2::{Reason, RecvStream};
use http::header::{ALLOW, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::Status;
use tonic::metadata::MetadataMap;

use super::body::{self, CODEC_BYTES, GRPC_ENCODING, Message, STREAM_BYTES, STREAMED_BYTES};
use super::dispatch::{CallFuture, CallResult, LimitMethod, LimitServices, Services};
use super::open_connections::{OpenConnection, OpenStream, WaitsFor};
use super::overload::{QueueDelay, TurnCalls};
use super::unread::OfConnection;
use super::{reply, spawn};
use crate::observe::metrics::Metrics;
use crate::observe::traces::TRACE_HEADERS;
use crate::service::rls::{EncodedRequest, grpc_timeout};

/// A call that waits releases its flow-control window if its message is longer than this. The
/// shorter messages of all streams of a connection together leave most of its window, and release
/// theirs at the end.
pub(crate) const MAX_UNRELEASED_BYTES: usize = 256;

/// The longest value of a header that is kept for a call without its whole message: several times
/// what a trace context needs.
pub(crate) const MAX_KEPT_HEADER_BYTES: usize = 2 << 10;

/// The headers that health and reflection read.
static SERVICE_HEADERS: [HeaderName; 4] = [
    CONTENT_TYPE,
    GRPC_ENCODING,
    HeaderName::from_static("grpc-accept-encoding"),
    HeaderName::from_static("grpc-timeout"),
];

/// Waiting calls that a turn of a connection answers.
const ANSWERS_OF_A_TURN: usize = 16;

/// A request, with the sender of its answer.
pub(super) type Call = (Request<RecvStream>, SendResponse<Bytes>);

/// The calls of one connection.
pub(super) struct Calls<T> {
    pub(super) services: Arc<Services<T>>,
    pub(super) wait_permits: WaitPermits,
    pub(super) queue_delay: Arc<QueueDelay>,
    pub(super) unread: Arc<OfConnection>,
    pub(super) open: Arc<OpenConnection>,
    /// The calls that wait for the store or for a shaper.
    pub(super) waiting: FuturesUnordered<WaitingCall>,
}

/// A call whose panic costs one request, not the process. No lock is held across an await: nothing
/// is left half done.
type CaughtCall = CatchUnwind<AssertUnwindSafe<CallFuture>>;

/// A call that waits, until its answer is known or its client resets the stream. A task for each
/// would cost a tenth of the instructions of a call on Redis, and would answer each reply of a
/// batch in a turn of its own.
pub(super) struct WaitingCall {
    call: CaughtCall,
    respond: Option<SendResponse<Bytes>>,
    _permits: OwnedSemaphorePermit,
    _stream: OpenStream,
}

impl Future for WaitingCall {
    /// `None`: the client has reset the stream.
    type Output = Option<(SendResponse<Bytes>, std::thread::Result<CallResult>)>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { call, respond, .. } = &mut *self;
        match call.poll_unpin(context) {
            Poll::Ready(answer) => Poll::Ready(respond.take().map(|respond| (respond, answer))),
            Poll::Pending => match respond {
                Some(respond) => respond.poll_reset(context).map(|_| None),
                None => Poll::Ready(None),
            },
        }
    }
}

/// A request with its headers as metadata.
fn with_headers(
    headers: HeaderMap,
    message: Bytes,
    time_left: Option<Duration>,
) -> tonic::Request<EncodedRequest> {
    let metadata = MetadataMap::from_headers(headers);
    let request = EncodedRequest { message, time_left };
    tonic::Request::from_parts(metadata, tonic::Extensions::default(), request)
}

impl<T: LimitServices> Calls<T> {
    /// Serves the calls that a turn of the connection has accepted.
    pub(super) fn serve(
        &mut self,
        accepted: impl Iterator<Item = Call>,
        context: &mut Context<'_>,
    ) {
        let mut turn = self.queue_delay.turn_calls();
        for call in accepted {
            self.serve_one(call, &mut turn, context);
        }
        self.queue_delay.end(&turn);
    }

    /// Answers a request, or starts the task that will.
    fn serve_one(
        &mut self,
        (mut request, mut respond): Call,
        turn: &mut TurnCalls,
        context: &mut Context<'_>,
    ) {
        if let Some(refusal) = refusal(&request) {
            // An error means that the client has reset the stream.
            drop(respond.send_response(refusal, true));
            return;
        }
        let Some(method) = LimitMethod::of_path(request.uri().path()) else {
            return self.spawn_other(request, respond);
        };
        let Ok(time_left) = turn.time_left(grpc_timeout(request.headers())) else {
            self.services.metrics.calls_refused(1);
            return self.answer(respond, Err(Status::resource_exhausted("overloaded")));
        };
        if let Err(status) = body::check_encoding(request.headers()) {
            return self.answer(respond, Err(status));
        }
        let mut message = Message::default();
        if !body::arrived(request.body_mut(), &mut message, context) {
            return self.spawn_unread(method, request, respond, message, time_left);
        }
        let bytes = message.bytes();
        let first = match body::first_message(&bytes) {
            Ok(first) => bytes.slice_ref(first),
            Err(status) => return self.answer(respond, Err(status)),
        };
        let first = with_headers(std::mem::take(request.headers_mut()), first, time_left);
        let call = method.call(Arc::clone(&self.services.limits), first);
        let mut call = AssertUnwindSafe(call).catch_unwind();
        match call.poll_unpin(context) {
            Poll::Ready(answer) => self.answer(respond, unless_panicked(answer, &self.services)),
            Poll::Pending => {
                if bytes.len() > MAX_UNRELEASED_BYTES {
                    body::release_rest(request.body_mut());
                }
                self.wait(call, respond, bytes.len());
            }
        }
    }

    /// Answers a call. An error means that the client has reset the stream.
    fn answer(&self, mut respond: SendResponse<Bytes>, answer: CallResult) {
        let (services, unread, open) = (&self.services, &self.unread, &self.open);
        drop(reply::answer(&mut respond, answer, services, unread, open));
    }

    /// Takes the memory of a call that has to wait. Without memory, the call is refused: it has
    /// not begun, and its client may send it again.
    fn open_stream(
        &self,
        respond: &mut SendResponse<Bytes>,
        waits: WaitsFor,
    ) -> Option<OpenStream> {
        let stream = self.open.stream(waits);
        if stream.is_none() {
            self.services.metrics.calls_refused(1);
            respond.send_reset(Reason::REFUSED_STREAM);
        }
        stream
    }

    /// Answers waiting calls that are decided. More than one turn's have a further turn: HTTP/2
    /// keeps room for as many answers as it ever had at a time.
    pub(super) fn answer_waiting(&mut self, context: &mut Context<'_>) {
        for _ in 0..ANSWERS_OF_A_TURN {
            let Poll::Ready(Some(ended)) = self.waiting.poll_next_unpin(context) else {
                return;
            };
            if let Some((respond, answer)) = ended {
                self.answer(respond, unless_panicked(answer, &self.services));
            }
        }
        context.waker().wake_by_ref();
    }

    /// Keeps a call until it is decided, if it gets permits. A call that was only begun has sent
    /// nothing to the store yet.
    fn wait(&self, call: CaughtCall, mut respond: SendResponse<Bytes>, message_bytes: usize) {
        let Some(stream) = self.open_stream(&mut respond, WaitsFor::Decision) else {
            return;
        };
        match self.wait_permits.take(message_bytes) {
            Ok(permits) => self.waiting.push(WaitingCall {
                call,
                respond: Some(respond),
                _permits: permits,
                _stream: stream,
            }),
            Err(refused) => self.answer(respond, Err(refused)),
        }
    }

    /// Spawns the task of a call whose message has not arrived. It keeps only the call's trace
    /// headers.
    fn spawn_unread(
        &self,
        method: LimitMethod,
        request: Request<RecvStream>,
        mut respond: SendResponse<Bytes>,
        mut message: Message,
        time_left: Option<Duration>,
    ) {
        let Some(mut open) = self.open_stream(&mut respond, WaitsFor::Client) else {
            return;
        };
        let headers = copied(request.headers(), &TRACE_HEADERS);
        let charge = self.services.bounds.call(&headers, &message);
        let mut stream = request.into_body();
        let (services, wait_permits) = (Arc::clone(&self.services), self.wait_permits.clone());
        // Thousands may wait for their messages: the task has room for the reading only.
        let call = Box::pin(async move {
            services
                .read(charge, &mut stream, &mut message, body::MAX_BYTES)
                .await?;
            open.message_arrived();
            let bytes = message.bytes();
            let first = body::first_message(&bytes)?;
            let request = with_headers(headers, bytes.slice_ref(first), time_left);
            let call = method.call(Arc::clone(&services.limits), request);
            wait_permits.run(call, bytes.len()).await?
        });
        let (services, unread) = (Arc::clone(&self.services), Arc::clone(&self.unread));
        let connection = Arc::clone(&self.open);
        spawn(async move {
            let answer = AssertUnwindSafe(call).catch_unwind();
            if let Some(answer) = unless_reset(&mut respond, answer).await {
                let answer = unless_panicked(answer, &services);
                let _ = reply::answer(&mut respond, answer, &services, &unread, &connection);
            }
        });
    }

    /// Makes a task of a call of another service.
    fn spawn_other(&self, mut request: Request<RecvStream>, mut respond: SendResponse<Bytes>) {
        let Some(stream) = self.open_stream(&mut respond, WaitsFor::Client) else {
            return;
        };
        let services = Arc::clone(&self.services);
        shrink(&mut request);
        let charge = services.bounds.unfinished.charge(other_bytes(&request));
        spawn(async move {
            let _stream = stream;
            let answered = charge.unless_oldest(async {
                let answer = AssertUnwindSafe(services.answer_other(request)).catch_unwind();
                let answer = unless_reset(&mut respond, answer).await?;
                let answer = answer.unwrap_or_else(|_| panicked(&services).into_http());
                let (bounds, metrics) = (&services.bounds, &services.metrics);
                let passed_on = reply::pass_on(&mut respond, answer, bounds, metrics);
                passed_on.await.ok()
            });
            let answered = answered.await;
            if answered.is_none() {
                services.metrics.calls_refused(1);
                let refused = Status::resource_exhausted("too many calls are unfinished");
                if respond.send_response(refused.into_http(), true).is_ok() {
                    return;
                }
            }
            // The answer has begun. A task of the service may still read messages: without a reset
            // it would keep the stream.
            if answered.flatten().is_none() {
                respond.send_reset(Reason::CANCEL);
            }
        });
    }
}

/// The answer to a call, which may have panicked.
fn unless_panicked<T>(
    answer: std::thread::Result<CallResult>,
    services: &Services<T>,
) -> CallResult {
    answer.unwrap_or_else(|_| Err(panicked(services)))
}

fn panicked<T>(services: &Services<T>) -> Status {
    services.metrics.panicked();
    Status::internal("the request made the service panic; this is a defect of the service")
}

/// The answer to a request that is not gRPC; as a status of HTTP, because another client would take
/// gRPC's 200 for success. Source: gRPC over HTTP/2, Requests (`:method POST`; 415 when the content
/// type does not begin with `application/grpc`).
fn refusal(request: &Request<RecvStream>) -> Option<Response<()>> {
    let mut refusal = Response::new(());
    let content_type = request.headers().get(CONTENT_TYPE);
    if request.method() != Method::POST {
        *refusal.status_mut() = StatusCode::METHOD_NOT_ALLOWED;
        refusal
            .headers_mut()
            .insert(ALLOW, HeaderValue::from_static("POST"));
    } else if !content_type.is_some_and(|value| is_grpc(value.as_bytes())) {
        *refusal.status_mut() = StatusCode::UNSUPPORTED_MEDIA_TYPE;
    } else {
        return None;
    }
    Some(refusal)
}

/// Whether a content type is gRPC's: alone, with a format (`+proto`) or with parameters. gRPC-Web
/// (`application/grpc-web`) is another protocol.
fn is_grpc(content_type: &[u8]) -> bool {
    const GRPC: &[u8] = b"application/grpc";
    let (start, rest) = content_type.split_at(content_type.len().min(GRPC.len()));
    start.eq_ignore_ascii_case(GRPC) && matches!(rest.first(), None | Some(b'+' | b';' | b' '))
}

/// Removes the headers that the services do not read. They may take a megabyte, which a call that
/// waits would keep. The remaining ones are copied out of the buffers that they share with the
/// rest.
fn shrink(request: &mut Request<RecvStream>) {
    *request.headers_mut() = copied(request.headers(), &SERVICE_HEADERS);
    if let Ok(path) = Uri::try_from(request.uri().path().to_owned()) {
        *request.uri_mut() = path;
    }
}

/// The memory of a call of another service, in addition to its messages.
fn other_bytes(request: &Request<RecvStream>) -> usize {
    if request.uri().path().starts_with("/grpc.reflection.") {
        STREAMED_BYTES
    } else {
        STREAM_BYTES + CODEC_BYTES
    }
}

/// Copies of these headers without long values, which would take memory while a call waits.
fn copied(headers: &HeaderMap, names: &[HeaderName]) -> HeaderMap {
    let copied = |name: &HeaderName| {
        let value = headers.get(name)?.as_bytes();
        let is_short = value.len() <= MAX_KEPT_HEADER_BYTES;
        let value = is_short.then(|| HeaderValue::from_bytes(value).ok())?;
        Some((name.clone(), value?))
    };
    names.iter().filter_map(copied).collect()
}

/// The output of `work`; `None`, and `work` is dropped, when the client resets the stream first.
async fn unless_reset<W: Future>(respond: &mut SendResponse<Bytes>, work: W) -> Option<W::Output> {
    let mut work = pin!(work);
    poll_fn(|context| match work.as_mut().poll(context) {
        Poll::Ready(done) => Poll::Ready(Some(done)),
        Poll::Pending => respond.poll_reset(context).map(|_| None),
    })
    .await
}

/// The part of a message that one permit covers. Nearly all messages are smaller, and their calls
/// take one permit.
pub(crate) const BYTES_OF_A_PERMIT: usize = 4 << 10;

/// The permits of one worker for calls that wait for the store or for a shaper, to bound their
/// memory; clones share them.
///
/// A call takes permits when its message is whole and it has to wait. At that point nothing of it
/// has been sent to Redis. Calls that need not wait (memory, denial cache, no match) are answered,
/// as are health and reflection.
#[derive(Clone, Debug)]
pub(super) struct WaitPermits {
    pub(super) permits: Arc<Semaphore>,
    pub(super) metrics: Arc<Metrics>,
}

impl WaitPermits {
    /// Takes the permits of a call that has to wait, by the bytes of its message.
    ///
    /// # Errors
    /// `RESOURCE_EXHAUSTED`: too few are left.
    pub(super) fn take(&self, message_bytes: usize) -> Result<OwnedSemaphorePermit, Status> {
        let count = u32::try_from(1 + message_bytes / BYTES_OF_A_PERMIT).unwrap_or(u32::MAX);
        Arc::clone(&self.permits)
            .try_acquire_many_owned(count)
            .map_err(|_| {
                self.metrics.calls_refused(1);
                Status::resource_exhausted("too many calls are waiting already")
            })
    }

    /// The output of a call, which takes permits only if it has to wait.
    ///
    /// # Errors
    /// As of [`WaitPermits::take`]. The call is dropped: one that was only begun has sent nothing
    /// to the store yet.
    pub(super) async fn run<W: Future>(
        &self,
        call: W,
        message_bytes: usize,
    ) -> Result<W::Output, Status> {
        let mut call = pin!(call);
        if let Poll::Ready(done) = poll_fn(|context| Poll::Ready(call.as_mut().poll(context))).await
        {
            return Ok(done);
        }
        let _permits = self.take(message_bytes)?;
        Ok(call.await)
    }
}
