//! The HTTP listener: health, metrics and JSON, one function per page.
//!
//! It runs on the control thread and is not made for load: connections, bodies and times have tight bounds. There is no authentication, so that
//! no page may show a secret.

mod encoding;
pub(crate) mod json;
mod scrapes;

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
use hyper::header::{ALLOW, CONTENT_ENCODING, CONTENT_TYPE, HeaderValue, VARY};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{sleep, timeout};
use tonic::{Code, Status};

use self::encoding::{Encoding, preferred};
use self::scrapes::Scrapes;
use crate::bounds::{Charge, TimedWrites, Unfinished};
use crate::health::Health;
use crate::metrics::Metrics;

/// Open connections at most. A further one closes the oldest, so that idle clients cannot keep out a health probe.
const MAX_CONNECTIONS: usize = 512;

/// JSON bodies that are parsed at a time; each may need many times its own size in memory.
const MAX_PARSED_AT_A_TIME: usize = 2;

/// The largest body in bytes, as for a gRPC message.
const MAX_BODY_BYTES: usize = 4 << 20;

/// The memory of all JSON requests together until they are answered, in bytes. When it is used up, the oldest is refused.
const MAX_UNANSWERED_BYTES: usize = 16 << 20;

/// What a JSON request takes beside its body.
const REQUEST_BYTES: usize = 4 << 10;

/// The largest head of a request in bytes: request line and headers.
const MAX_HEAD_BYTES: usize = 64 << 10;

/// Time for the head of a request to arrive, which includes the idle time between two requests.
const HEAD_DEADLINE: Duration = Duration::from_secs(10);

/// Time for the body of a request to arrive.
const BODY_DEADLINE: Duration = Duration::from_secs(10);

/// Time for a client to take an answer; until it does, Weir reads nothing more from it. A scrape of 10,000 limits has megabytes; Prometheus waits for
/// 10 s by default.
const ANSWER_DEADLINE: Duration = Duration::from_secs(30);

/// The maximum age of a connection, so that no client holds one for ever.
const CONNECTION_AGE: Duration = Duration::from_secs(600);

/// Grace period for the request in flight when a connection has to end.
const GRACE: Duration = Duration::from_secs(5);

/// Pause after an error of accept: most often there are no file descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

const INDEX: &str = "\
Weir, a rate-limit service for Envoy

/healthcheck   200 if healthy, 500 with the reasons if not
/metrics       metrics for Prometheus
/json          POST a RateLimitRequest as JSON: 200 for OK, 429 for OVER_LIMIT
";

type Answer = Pin<Box<dyn Future<Output = Result<Bytes, Status>> + Send>>;

/// The pages, and the sources of their content.
pub struct Pages {
    metrics: Arc<Metrics>,
    health: Health,
    scrapes: Scrapes,
    parsing: Arc<Semaphore>,
    unanswered: Unfinished,
    decide: Box<dyn Fn(Bytes) -> Answer + Send + Sync>,
}

impl std::fmt::Debug for Pages {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Pages").finish_non_exhaustive()
    }
}

impl Pages {
    /// `decide` answers an encoded `RateLimitRequest` with an encoded `RateLimitResponse`, on the request path of gRPC.
    pub fn new<D, F>(metrics: Arc<Metrics>, health: Health, decide: D) -> Self
    where
        D: Fn(Bytes) -> F + Send + Sync + 'static,
        F: Future<Output = Result<Bytes, Status>> + Send + 'static,
    {
        Self {
            scrapes: Scrapes::new(Arc::clone(&metrics)),
            metrics,
            health,
            parsing: Arc::new(Semaphore::new(MAX_PARSED_AT_A_TIME)),
            unanswered: Unfinished::new(MAX_UNANSWERED_BYTES),
            decide: Box::new(move |request| Box::pin(decide(request))),
        }
    }

    async fn page(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        match request.uri().path() {
            "/healthcheck" => self.healthcheck(),
            "/metrics" => self.metrics(&request).await,
            "/json" if request.method() != Method::POST => not_allowed("POST", "send a RateLimitRequest with POST\n"),
            "/json" => self.json(request.into_body()).await,
            "/" => text(StatusCode::OK, INDEX),
            _ => text(StatusCode::NOT_FOUND, "no such page; / lists them\n"),
        }
    }

    fn healthcheck(&self) -> Response<Full<Bytes>> {
        match self.health.problem() {
            None => text(StatusCode::OK, "OK"),
            Some(reasons) => text(StatusCode::INTERNAL_SERVER_ERROR, reasons),
        }
    }

    async fn metrics(&self, request: &Request<Incoming>) -> Response<Full<Bytes>> {
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            return not_allowed("GET, HEAD", "metrics can only be read; use GET\n");
        }
        let Some(encoding) = preferred(request.headers()) else {
            return failed(StatusCode::NOT_ACCEPTABLE, "metrics are sent as they are or in gzip, and Accept-Encoding refuses both");
        };
        // The answer to HEAD shows the length only if it is known (RFC 9110, 8.6), so that no text is made for it.
        let body = if request.method() == Method::HEAD { Ok(Bytes::new()) } else { self.scrapes.body(encoding).await };
        let mut response = match body {
            Ok(body) => answer(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", body),
            Err(error) => return failed(StatusCode::INTERNAL_SERVER_ERROR, &format!("the metrics cannot be shown: {error}")),
        };
        response.headers_mut().insert(VARY, HeaderValue::from_static("accept-encoding"));
        if encoding == Encoding::Gzip {
            response.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        }
        response
    }

    async fn json(&self, body: Incoming) -> Response<Full<Bytes>> {
        let charge = self.unanswered.charge(REQUEST_BYTES);
        let answer = charge.unless_oldest(self.decide_json(body, &charge)).await;
        answer.unwrap_or_else(|| failed(StatusCode::SERVICE_UNAVAILABLE, "too many requests are unanswered, and this one was the oldest"))
    }

    async fn decide_json(&self, body: Incoming, charge: &Charge) -> Response<Full<Bytes>> {
        let body = match collect(body, charge).await {
            Ok(body) => body,
            Err(refused) => return refused,
        };
        let request = {
            let permit = Arc::clone(&self.parsing).acquire_owned().await;
            let parse = move || (json::request(&body), permit).0;
            tokio::task::spawn_blocking(parse).await.unwrap_or_else(|error| Err(error.to_string()))
        };
        let request = match request {
            Ok(request) => request,
            Err(error) => return failed(StatusCode::BAD_REQUEST, &format!("the body is not a RateLimitRequest in JSON: {error}")),
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

/// Reads a body, and charges its bytes as they arrive.
async fn collect(body: Incoming, charge: &Charge) -> Result<Vec<u8>, Response<Full<Bytes>>> {
    let mut body = Limited::new(body, MAX_BODY_BYTES);
    let mut collected = Vec::new();
    let arrives = async {
        while let Some(frame) = body.frame().await {
            if let Some(data) = frame?.data_ref() {
                let before = collected.capacity();
                collected.extend_from_slice(data);
                charge.add(collected.capacity() - before);
            }
        }
        Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
    };
    match timeout(BODY_DEADLINE, arrives).await {
        Ok(Ok(())) => Ok(collected),
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

fn not_allowed(allowed: &'static str, message: &'static str) -> Response<Full<Bytes>> {
    let mut refused = text(StatusCode::METHOD_NOT_ALLOWED, message);
    refused.headers_mut().insert(ALLOW, HeaderValue::from_static(allowed));
    refused
}

/// An error as one line of text; control characters of the message become spaces.
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

/// Serves until `stop` is true or its sender is dropped, and then until all requests in flight are answered.
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
                    tracing::warn!(%error, "cannot accept an HTTP connection");
                    sleep(ACCEPT_PAUSE).await;
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
    // An error means that the sender was dropped, which stops too.
    let _ = stop.wait_for(|stop| *stop).await;
}

async fn connection(stream: TcpStream, pages: Arc<Pages>, mut stop: watch::Receiver<bool>) {
    // Sends small answers at once; an error of the option only makes them slower.
    let _ = stream.set_nodelay(true);
    let pages = service_fn(move |request| {
        let pages = Arc::clone(&pages);
        async move { Ok::<_, Infallible>(catch_panics(&pages, request).await) }
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEAD_DEADLINE).max_buf_size(MAX_HEAD_BYTES);
    let stream = TimedWrites::new(stream, ANSWER_DEADLINE);
    let mut connection = std::pin::pin!(builder.serve_connection(TokioIo::new(stream), pages));
    tokio::select! {
        // A client that breaks off its connection is not logged.
        _ = connection.as_mut() => return,
        () = stopped(&mut stop) => {}
        () = sleep(CONNECTION_AGE) => {}
    }
    connection.as_mut().graceful_shutdown();
    let _ = timeout(GRACE, connection).await;
}

/// A panic costs one request and is counted.
async fn catch_panics(pages: &Pages, request: Request<Incoming>) -> Response<Full<Bytes>> {
    AssertUnwindSafe(pages.page(request)).catch_unwind().await.unwrap_or_else(|_| {
        pages.metrics.panicked();
        failed(StatusCode::INTERNAL_SERVER_ERROR, "the request made the service panic; this is a defect of the service")
    })
}

#[cfg(test)]
mod tests;
