//! The HTTP listener: health, metrics and JSON, one function per page.
//!
//! It runs on the control thread and is not made for load: connections, bodies and times have tight
//! bounds. There is no authentication, so no page may show a secret. The other listeners for
//! operators are served by the same code (`net/http/`).

pub(crate) mod json;

use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use hyper::body::Incoming;
use hyper::{Method, Request, StatusCode};
use tokio::sync::Semaphore;
use tonic::{Code, Status};

use crate::net::bounds::{MemoryBudget, MemoryReservation};
use crate::net::http::guard::Guard;
use crate::net::http::shared_texts::{METRICS_TYPE, SharedTexts};
use crate::net::http::{Events, Page, Site, collect, failed, not_allowed, response, text};
use crate::observe::health::Health;
use crate::observe::metrics::Metrics;

/// JSON bodies that are parsed at a time; each may need many times its own size in memory.
pub(crate) const MAX_PARSED_AT_A_TIME: usize = 2;

/// The largest body in bytes, as for a gRPC message.
pub(crate) const MAX_BODY_BYTES: usize = 4 << 20;

/// Memory of a JSON request in addition to its body.
const REQUEST_BYTES: usize = 4 << 10;

const INDEX: &str = "\
Weir, a rate-limit service for Envoy

/healthcheck   200 if healthy, 500 with the reasons if not
/metrics       metrics for Prometheus
/json          POST a RateLimitRequest as JSON: 200 for OK, 429 for OVER_LIMIT
";

/// The answer of `/json` where it is turned off.
const JSON_IS_OFF: &str = "HTTP_JSON=off turns requests in JSON off; send them to the gRPC port";

pub type PageFuture = Pin<Box<dyn Future<Output = Result<Bytes, Status>> + Send>>;

/// The pages, and the sources of their content.
pub struct Pages {
    metrics: Arc<Metrics>,
    health: Health,
    scrapes: SharedTexts<()>,
    parsing: Arc<Semaphore>,
    unanswered: MemoryBudget,
    decide: Option<Decide>,
}

/// Answers an encoded `RateLimitRequest` with an encoded `RateLimitResponse`.
pub type Decide = Box<dyn Fn(Bytes) -> PageFuture + Send + Sync>;

impl Pages {
    /// `decide` is the request path of gRPC; without it, `/json` is turned off.
    ///
    /// JSON requests count as `unfinished` until they are answered.
    pub fn new(
        metrics: Arc<Metrics>,
        health: Health,
        unfinished: MemoryBudget,
        decide: Option<Decide>,
    ) -> Self {
        let scraped = Arc::clone(&metrics);
        Self {
            scrapes: SharedTexts::new(move |()| scraped.encode()),
            metrics,
            health,
            parsing: Arc::new(Semaphore::new(MAX_PARSED_AT_A_TIME)),
            unanswered: unfinished,
            decide,
        }
    }

    async fn json(&self, body: Incoming, decide: &Decide) -> Page {
        let charge = self.unanswered.charge(REQUEST_BYTES);
        let decided = self.decide_json(body, decide, &charge);
        match charge.unless_oldest(decided).await {
            Some(Ok(page) | Err(page)) => page,
            None => failed(
                StatusCode::SERVICE_UNAVAILABLE,
                "too many unanswered requests, of which this one was the oldest; try again",
            ),
        }
    }

    async fn decide_json(
        &self,
        body: Incoming,
        decide: &Decide,
        charge: &MemoryReservation,
    ) -> Result<Page, Page> {
        let body = collect(body, MAX_BODY_BYTES, charge).await?;
        let request = {
            let permit = Arc::clone(&self.parsing).acquire_owned().await;
            let parse = move || (json::request(&body), permit).0;
            tokio::task::spawn_blocking(parse)
                .await
                .unwrap_or_else(|error| Err(error.to_string()))
        };
        let request = request.map_err(|error| {
            let message = format!("the body is not a RateLimitRequest in JSON: {error}");
            failed(StatusCode::BAD_REQUEST, &message)
        })?;
        let decided = decide(request).await;
        let decided =
            decided.map_err(|status| failed(status_code(status.code()), status.message()))?;
        let (status, json) = json::response(decided).map_err(|error| {
            let message = format!("the response cannot be encoded as JSON: {error}");
            failed(StatusCode::INTERNAL_SERVER_ERROR, &message)
        })?;
        Ok(response(status, "application/json", json))
    }
}

impl Site for Pages {
    fn events(&self) -> &impl Events {
        &*self.metrics
    }

    async fn page(&self, request: Request<Incoming>) -> Page {
        match request.uri().path() {
            "/healthcheck" => match self.health.problem() {
                None => text(StatusCode::OK, "OK"),
                Some(reasons) => text(StatusCode::INTERNAL_SERVER_ERROR, reasons),
            },
            "/metrics" => self.scrapes.page(&request, (), METRICS_TYPE).await,
            "/json" if request.method() != Method::POST => {
                not_allowed("POST", "send a RateLimitRequest with POST\n")
            }
            "/json" => match (&self.decide, Guard::ANY_NAME.check(&request)) {
                (None, _) => failed(StatusCode::NOT_FOUND, JSON_IS_OFF),
                (_, Err(refused)) => failed(StatusCode::FORBIDDEN, refused),
                (Some(decide), Ok(())) => self.json(request.into_body(), decide).await,
            },
            "/" => text(StatusCode::OK, INDEX),
            _ => text(StatusCode::NOT_FOUND, "no such page; / lists them\n"),
        }
    }
}

fn status_code(code: Code) -> StatusCode {
    match code {
        Code::InvalidArgument => StatusCode::BAD_REQUEST,
        Code::Unavailable | Code::DeadlineExceeded | Code::ResourceExhausted => {
            StatusCode::SERVICE_UNAVAILABLE
        }
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

#[cfg(test)]
mod tests;
