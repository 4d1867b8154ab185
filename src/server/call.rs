//! Calls: the usual ones are answered where they are read, all others in tasks of their own.
//!
//! A usual call is a `ShouldRateLimit` whose message is there in full, in one piece and not compressed. It is begun at once; when that is
//! all it needs (memory decides, or the denial cache) it has cost no task and no queue. What has to wait goes on as a task, so that nobody
//! waits for it but its caller; when its caller gives up, it is dropped. What is unusual is answered by the generated service.
//!
//! Tasks for rate limits have a bounded number of places in each worker. Without one, a call that would have to wait is refused at once.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use h2::RecvStream;
use h2::server::SendResponse;
use http::{HeaderName, Method, Request};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::Status;

use super::backlog::Intake;
use super::body::{self, Message};
use super::dispatch::Services;
use super::reply;
use crate::proto;
use crate::rls::ShouldRateLimit;
use crate::rls::respond::Framed;
use crate::rls::timeout::grpc_timeout;

const GRPC_ENCODING: HeaderName = HeaderName::from_static("grpc-encoding");

type Answer = Result<Framed, Status>;

/// The calls of one connection. `begin` makes the future of a usual one.
pub(super) struct Calls<T, B, F> {
    services: Arc<Services<T>>,
    /// For calls that wait, in the whole worker.
    places: Arc<Semaphore>,
    intake: Arc<Intake>,
    begin: B,
    /// Where futures are polled for the first time. Most are ready then, and leave their place to the next one.
    place: Pin<Box<Option<F>>>,
}

/// The future of a usual call.
pub(super) async fn begin<T: ShouldRateLimit>(limits: Arc<T>, message: Bytes, timeout: Option<Duration>) -> Answer {
    limits.should_rate_limit(&message, timeout).await
}

impl<T, B, F> Calls<T, B, F>
where
    T: ShouldRateLimit,
    B: Fn(Arc<T>, Bytes, Option<Duration>) -> F,
    F: Future<Output = Answer> + Send + 'static,
{
    pub(super) fn new(services: Arc<Services<T>>, places: Arc<Semaphore>, intake: Arc<Intake>, begin: B) -> Self {
        Self { services, places, intake, begin, place: Box::pin(None) }
    }

    /// Answers a request, or starts the task that will.
    pub(super) fn serve(&mut self, mut request: Request<RecvStream>, mut respond: SendResponse<Bytes>, context: &mut Context<'_>) {
        // Where calls wait for long, some are given up before they are begun.
        if self.intake.is_behind() && respond.poll_reset(context).is_ready() {
            return;
        }
        let mut message = Message::default();
        if is_usual(&request)
            && body::arrived(request.body_mut(), &mut message, context)
            && let bytes = message.bytes()
            && let Some(single) = body::single(&bytes)
        {
            let timeout = grpc_timeout(request.headers());
            self.intake.waits(timeout);
            match self.begin(bytes.slice_ref(single), timeout, context) {
                // Who has gone needs no answer.
                Poll::Ready(answer) => drop(reply::answer(&mut respond, answer)),
                Poll::Pending => self.go_on(respond),
            }
            return;
        }
        // Whether the service is healthy is answered also when it has no place left.
        let place = if request.uri().path() == proto::METHOD_PATH {
            let Some(place) = self.wait(&mut respond) else { return };
            Some(place)
        } else {
            None
        };
        let services = Arc::clone(&self.services);
        spawn(async move {
            let _place = place;
            let answer = AssertUnwindSafe(services.answer(request, message)).catch_unwind();
            if let Some(answer) = unless_reset(&mut respond, answer).await {
                let answer = answer.unwrap_or_else(|_| panicked(&services).into_http());
                let _ = reply::pass_on(&mut respond, answer).await;
            }
        });
    }

    fn begin(&mut self, message: Bytes, timeout: Option<Duration>, context: &mut Context<'_>) -> Poll<Answer> {
        let Self { services, begin, place, .. } = self;
        // A defect of ours costs one request, not the process. Locks are not held across awaits, so nothing is left half done.
        let begun = catch_unwind(AssertUnwindSafe(|| {
            place.set(Some(begin(Arc::clone(&services.limits), message, timeout)));
            poll(place, context)
        }));
        begun.unwrap_or_else(|_| Poll::Ready(Err(panicked(services))))
    }

    /// A place to wait in; `None`, and the call is refused, when there is none.
    fn wait(&self, respond: &mut SendResponse<Bytes>) -> Option<OwnedSemaphorePermit> {
        let place = Arc::clone(&self.places).try_acquire_owned().ok();
        if place.is_none() {
            self.services.metrics.calls_refused(1);
            drop(reply::answer(respond, Err(Status::resource_exhausted("too many calls are waiting already"))));
        }
        place
    }

    /// Makes a task of the call that was just begun.
    fn go_on(&mut self, mut respond: SendResponse<Bytes>) {
        let Some(place) = self.wait(&mut respond) else {
            // What was only begun has not been sent anywhere yet.
            self.place.set(None);
            return;
        };
        let mut begun = std::mem::replace(&mut self.place, Box::pin(None));
        let services = Arc::clone(&self.services);
        spawn(async move {
            let _place = place;
            let answer = AssertUnwindSafe(poll_fn(|context| poll(&mut begun, context))).catch_unwind();
            if let Some(answer) = unless_reset(&mut respond, answer).await {
                let _ = reply::answer(&mut respond, answer.unwrap_or_else(|_| Err(panicked(&services))));
            }
        });
    }
}

/// Polls the future that has the place.
fn poll<F: Future<Output = Answer>>(place: &mut Pin<Box<Option<F>>>, context: &mut Context<'_>) -> Poll<Answer> {
    match place.as_mut().as_pin_mut() {
        Some(future) => future.poll(context),
        None => Poll::Pending,
    }
}

fn panicked<T>(services: &Services<T>) -> Status {
    services.metrics.panicked();
    Status::internal("the request made the service panic; this is a defect of the service")
}

/// What a call is counted among before its message is read. Where the generated service answers the same, it is not asked.
fn is_usual(request: &Request<RecvStream>) -> bool {
    request.uri().path() == proto::METHOD_PATH && request.method() == Method::POST && !request.headers().contains_key(GRPC_ENCODING)
}

/// What becomes of `work`; `None`, and it is dropped, when the client resets the stream before.
async fn unless_reset<W: Future>(respond: &mut SendResponse<Bytes>, work: W) -> Option<W::Output> {
    let mut work = pin!(work);
    poll_fn(|context| match work.as_mut().poll(context) {
        Poll::Ready(done) => Poll::Ready(Some(done)),
        Poll::Pending => respond.poll_reset(context).map(|_| None),
    })
    .await
}

#[expect(clippy::disallowed_methods, reason = "a call ends with its stream, and the stream with its connection, which draining knows")]
fn spawn(call: impl Future<Output = ()> + Send + 'static) {
    drop(tokio::spawn(call));
}
