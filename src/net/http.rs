//! HTTP/1 for humans and scrapers: the server, bounded bodies, whole responses, and the guard of
//! host and origin. It runs on the control thread and is not made for load: connections, bodies and
//! times have tight bounds.
//!
//! Commands use the client for the admin API, and traces use it to send spans to a collector.

pub mod guard;
pub mod serving;
pub mod shared_texts;

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::{Request, Response, StatusCode};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tokio::time::timeout;

pub use self::serving::{Events, Site, serve};
use super::bounds::MemoryReservation;
use super::dial::{Connector, causes};

/// Time for the body of a request to arrive.
pub(crate) const BODY_DEADLINE: Duration = Duration::from_secs(10);

/// A response whose body is in memory.
pub type Page = Response<Full<Bytes>>;

/// 405, with the methods that are allowed.
pub fn not_allowed(allowed: &'static str, message: &'static str) -> Page {
    let refused = text(StatusCode::METHOD_NOT_ALLOWED, message);
    with_header(refused, ALLOW, allowed)
}

/// An error as one line of text; control characters of the message become spaces.
pub fn failed(status: StatusCode, message: &str) -> Page {
    let clean = |char: char| if char.is_control() { ' ' } else { char };
    let line: String = message.chars().map(clean).chain(['\n']).collect();
    text(status, line)
}

/// Plain text.
pub fn text(status: StatusCode, body: impl Into<Bytes>) -> Page {
    response(status, "text/plain; charset=utf-8", body)
}

/// A body of any type.
pub fn response(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Page {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    with_header(response, CONTENT_TYPE, content_type)
}

/// The page with one more header.
fn with_header(mut page: Page, name: HeaderName, value: &'static str) -> Page {
    page.headers_mut()
        .insert(name, HeaderValue::from_static(value));
    page
}

/// Reads a body of at most `max_bytes`, and charges its bytes as they arrive.
///
/// # Errors
/// The answer to a client whose body is too large, breaks off, or does not arrive in time.
pub async fn collect(
    body: Incoming,
    max_bytes: usize,
    charge: &MemoryReservation,
) -> Result<Vec<u8>, Page> {
    let mut body = Limited::new(body, max_bytes);
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
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(failed(
            StatusCode::PAYLOAD_TOO_LARGE,
            &format!("the body is larger than {} KiB", max_bytes >> 10),
        )),
        Ok(Err(error)) => Err(failed(
            StatusCode::BAD_REQUEST,
            &format!("the body cannot be read: {error}"),
        )),
        Err(_) => Err(failed(
            StatusCode::REQUEST_TIMEOUT,
            "the body did not arrive in time",
        )),
    }
}

/// A client of one server. Its connections stay open for the next call.
#[derive(Clone, Debug)]
pub struct HttpClient {
    client: Client<Connector, Full<Bytes>>,
    /// The largest body of an answer.
    max_body_bytes: usize,
}

/// Failure of a call.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// There is no connection.
    #[error("{0}")]
    Unreachable(String),
    /// The server does not speak HTTP.
    #[error("{0}")]
    NotHttp(String),
    /// The body is too large, or breaks off.
    #[error("{cause}")]
    Body {
        /// The status of the answer.
        status: StatusCode,
        /// Why it cannot be read.
        cause: String,
    },
}

impl HttpClient {
    /// A client of the server to which `connector` connects.
    pub fn new(connector: Connector, max_body_bytes: usize) -> Self {
        Self {
            client: Client::builder(TokioExecutor::new()).build(connector),
            max_body_bytes,
        }
    }

    /// The status and the body of the answer. The caller bounds its time.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn call(&self, request: Request<Bytes>) -> Result<(StatusCode, Bytes), CallError> {
        let answered = self.client.request(request.map(Full::new)).await;
        let response = answered.map_err(|error| {
            // The outermost error has only its kind: `client error (Connect)`.
            let cause = std::error::Error::source(&error).map_or_else(|| error.to_string(), causes);
            if error.is_connect() {
                CallError::Unreachable(cause)
            } else {
                CallError::NotHttp(cause)
            }
        })?;
        let status = response.status();
        let body = Limited::new(response.into_body(), self.max_body_bytes);
        let body = body.collect().await.map_err(|error| CallError::Body {
            status,
            cause: error.to_string(),
        })?;
        Ok((status, body.to_bytes()))
    }
}
