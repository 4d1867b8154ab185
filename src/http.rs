//! The HTTP listener: health, metrics and JSON, one function per page.
//!
//! It runs on the control thread and is not made for load: connections, bodies and times are bounded tightly. Nothing that a page shows may
//! be a secret, because nobody has to say who they are.

mod json;

use std::collections::VecDeque;
use std::convert::Infallible;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, Semaphore, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{sleep, timeout};
use tonic::{Code, Status};

use crate::health::Health;
use crate::metrics::Metrics;

/// Open connections; for one more the oldest is closed, so that those who only hold one cannot keep a probe out.
const MAX_CONNECTIONS: usize = 512;

/// JSON requests that are read at a time; each may need many times its own size.
const MAX_READ_AT_A_TIME: usize = 2;

/// The largest body, as for a message over gRPC.
const MAX_BODY_BYTES: usize = 4 << 20;

/// The largest head of a request.
const MAX_HEAD_BYTES: usize = 64 << 10;

/// Time for a request's head, and for what stays open between two requests.
const HEAD_DEADLINE: Duration = Duration::from_secs(10);

/// Time for a request's body.
const BODY_DEADLINE: Duration = Duration::from_secs(10);

/// After this a connection has to be made anew, so that a peer that reads nothing does not hold one for ever.
const CONNECTION_AGE: Duration = Duration::from_secs(600);

/// Time for what is in flight when a connection has to end.
const LAST_ANSWER: Duration = Duration::from_secs(5);

/// Before accepting again when it failed, as it does without free file descriptors.
const AFTER_ACCEPT_ERROR: Duration = Duration::from_millis(100);

const INDEX: &str = "\
Weir, a rate-limit service for Envoy

/healthcheck   200 and OK, or 500 while it wants no traffic
/metrics       metrics for Prometheus
/json          POST a RateLimitRequest as JSON; 200 is OK, 429 is OVER_LIMIT
";

type Answer = Pin<Box<dyn Future<Output = Result<Bytes, Status>> + Send>>;

/// What pages show.
pub struct Pages {
    metrics: Arc<Metrics>,
    health: Health,
    scrape: Mutex<()>,
    reading: Semaphore,
    decide: Box<dyn Fn(Bytes) -> Answer + Send + Sync>,
}

impl std::fmt::Debug for Pages {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Pages").finish_non_exhaustive()
    }
}

impl Pages {
    /// `decide` answers an encoded `RateLimitRequest` with an encoded `RateLimitResponse`, on the same path as gRPC.
    pub fn new<D, F>(metrics: Arc<Metrics>, health: Health, decide: D) -> Self
    where
        D: Fn(Bytes) -> F + Send + Sync + 'static,
        F: Future<Output = Result<Bytes, Status>> + Send + 'static,
    {
        Self {
            metrics,
            health,
            scrape: Mutex::new(()),
            reading: Semaphore::new(MAX_READ_AT_A_TIME),
            decide: Box::new(move |request| Box::pin(decide(request))),
        }
    }

    async fn page(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        match request.uri().path() {
            "/healthcheck" => self.healthcheck(),
            "/metrics" => self.metrics(request.method()).await,
            "/json" => self.json(request.into_body()).await,
            "/" => text(StatusCode::OK, INDEX),
            _ => text(StatusCode::NOT_FOUND, "no such page; / lists them\n"),
        }
    }

    fn healthcheck(&self) -> Response<Full<Bytes>> {
        if self.health.is_ready() { text(StatusCode::OK, "OK") } else { text(StatusCode::INTERNAL_SERVER_ERROR, "") }
    }

    /// With 10,000 limits the text has megabytes and takes tenths of a second: it is put together beside this thread, which also accepts
    /// connections, and only once at a time.
    async fn metrics(&self, method: &Method) -> Response<Full<Bytes>> {
        if !matches!(*method, Method::GET | Method::HEAD) {
            let mut refused = text(StatusCode::METHOD_NOT_ALLOWED, "metrics can only be read; use GET\n");
            refused.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            return refused;
        }
        let _one = self.scrape.lock().await;
        let metrics = Arc::clone(&self.metrics);
        match tokio::task::spawn_blocking(move || metrics.encode()).await {
            Ok(metrics) => answer(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", metrics),
            Err(error) => failed(StatusCode::INTERNAL_SERVER_ERROR, &format!("the metrics cannot be shown: {error}")),
        }
    }

    /// Any method, as in envoyproxy/ratelimit.
    async fn json(&self, body: Incoming) -> Response<Full<Bytes>> {
        let body = match collect(body).await {
            Ok(body) => body,
            Err(refused) => return refused,
        };
        let request = {
            let _place = self.reading.acquire().await;
            tokio::task::spawn_blocking(move || json::request(&body)).await.unwrap_or_else(|error| Err(error.to_string()))
        };
        let request = match request {
            Ok(request) => request,
            Err(error) => return failed(StatusCode::BAD_REQUEST, &format!("the body is no RateLimitRequest in JSON: {error}")),
        };
        let decided = match (self.decide)(request).await {
            Ok(decided) => decided,
            Err(status) => return failed(status_code(status.code()), status.message()),
        };
        match json::response(decided) {
            Ok((json::Overall::Ok, json)) => answer(StatusCode::OK, "application/json", json),
            Ok((json::Overall::OverLimit, json)) => answer(StatusCode::TOO_MANY_REQUESTS, "application/json", json),
            Ok((json::Overall::Unknown, json)) => answer(StatusCode::INTERNAL_SERVER_ERROR, "application/json", json),
            Err(error) => failed(StatusCode::INTERNAL_SERVER_ERROR, &format!("the answer cannot be shown as JSON: {error}")),
        }
    }
}

async fn collect(body: Incoming) -> Result<Bytes, Response<Full<Bytes>>> {
    match timeout(BODY_DEADLINE, Limited::new(body, MAX_BODY_BYTES).collect()).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            Err(failed(StatusCode::PAYLOAD_TOO_LARGE, &format!("the body is larger than {} MiB", MAX_BODY_BYTES >> 20)))
        }
        Ok(Err(error)) => Err(failed(StatusCode::BAD_REQUEST, &format!("the body cannot be read: {error}"))),
        Err(_) => Err(failed(StatusCode::REQUEST_TIMEOUT, "the body did not arrive in time")),
    }
}

fn status_code(code: Code) -> StatusCode {
    match code {
        Code::InvalidArgument => StatusCode::BAD_REQUEST,
        Code::Unavailable | Code::DeadlineExceeded | Code::ResourceExhausted => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

/// An error in one line, whatever the message quotes.
fn failed(status: StatusCode, message: &str) -> Response<Full<Bytes>> {
    let mut line: String = message.chars().map(|char| if char.is_control() { ' ' } else { char }).collect();
    line.push('\n');
    text(status, line)
}

fn text(status: StatusCode, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    answer(status, "text/plain; charset=utf-8", body)
}

fn answer(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

/// Serves until `stop` is true (or its sender is gone), and then until what is in flight is answered.
pub async fn serve(listener: TcpListener, pages: Pages, mut stop: watch::Receiver<bool>) {
    let pages = Arc::new(pages);
    let mut connections = JoinSet::new();
    let mut oldest_first: VecDeque<AbortHandle> = VecDeque::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    oldest_first.retain(|connection| !connection.is_finished());
                    if oldest_first.len() >= MAX_CONNECTIONS && let Some(oldest) = oldest_first.pop_front() {
                        pages.metrics.connection_refused();
                        oldest.abort();
                    }
                    oldest_first.push_back(connections.spawn(connection(stream, Arc::clone(&pages), stop.clone())));
                }
                Err(error) => {
                    tracing::warn!(%error, "an HTTP connection cannot be accepted");
                    sleep(AFTER_ACCEPT_ERROR).await;
                }
            },
            Some(_) = connections.join_next() => {}
            () = stopped(&mut stop) => break,
        }
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

async fn stopped(stop: &mut watch::Receiver<bool>) {
    // An error means that nobody is left who could say stop.
    let _ = stop.wait_for(|stop| *stop).await;
}

async fn connection(stream: TcpStream, pages: Arc<Pages>, mut stop: watch::Receiver<bool>) {
    // Small answers wait for nothing; if it cannot be set they are only slower.
    let _ = stream.set_nodelay(true);
    let pages = service_fn(move |request| {
        let pages = Arc::clone(&pages);
        async move { Ok::<_, Infallible>(guarded(&pages, request).await) }
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEAD_DEADLINE).max_buf_size(MAX_HEAD_BYTES);
    let mut connection = std::pin::pin!(builder.serve_connection(TokioIo::new(stream), pages));
    tokio::select! {
        // A peer that breaks off is not worth a line in the log.
        _ = connection.as_mut() => return,
        () = stopped(&mut stop) => {}
        () = sleep(CONNECTION_AGE) => {}
    }
    connection.as_mut().graceful_shutdown();
    let _ = timeout(LAST_ANSWER, connection).await;
}

/// A panic costs one request and is counted.
async fn guarded(pages: &Pages, request: Request<Incoming>) -> Response<Full<Bytes>> {
    AssertUnwindSafe(pages.page(request)).catch_unwind().await.unwrap_or_else(|_| {
        pages.metrics.panicked();
        failed(StatusCode::INTERNAL_SERVER_ERROR, "the request made the service panic; this is a defect of the service")
    })
}

#[cfg(test)]
mod tests;
