//! The HTTP client: of commands, towards the admin API, and of spans, towards a collector.

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;

use crate::net::dial::{Connector, causes};

/// A client of one server. Its connections stay open for the next call.
#[derive(Clone, Debug)]
pub struct HttpClient {
    client: Client<Connector, Full<Bytes>>,
    /// The largest body of an answer.
    max_body_bytes: usize,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// There is no connection.
    #[error("{0}")]
    Unreachable(String),
    /// What listens does not answer in HTTP.
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

    /// The status and the body of the answer. Its time is the caller's business.
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
