//! Answers of the API: JSON, and errors as `{"error": "..."}` with the remedy.

use hyper::StatusCode;
use hyper::header::{CACHE_CONTROL, HeaderValue, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::net::http::{Page, response};

/// A call that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The code of the answer.
    pub status: StatusCode,
    /// The problem, its place, and how to fix it.
    pub error: String,
}

/// The body of a failure.
#[derive(Debug, JsonSchema, Serialize, Deserialize)]
#[schemars(rename = "Error")]
pub struct ErrorBody {
    /// The problem, its place, and how to fix it.
    pub error: String,
}

impl Failure {
    fn new(status: StatusCode, error: &str) -> Self {
        let error = error.to_owned();
        Self { status, error }
    }

    /// 400: a parameter or the body.
    pub fn bad_request(error: &str) -> Self {
        Self::new(StatusCode::BAD_REQUEST, error)
    }

    /// 401: no token, or an unknown one.
    pub fn unauthorized(error: &str) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, error)
    }

    /// 403: not from here, or not as this process is set up.
    pub fn forbidden(error: &str) -> Self {
        Self::new(StatusCode::FORBIDDEN, error)
    }

    /// 404: nothing has this name.
    pub fn not_found(error: &str) -> Self {
        Self::new(StatusCode::NOT_FOUND, error)
    }

    /// 503: the store or the rules are not there now.
    pub fn unavailable(error: &str) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, error)
    }
}

impl From<Failure> for Page {
    fn from(Failure { status, error }: Failure) -> Self {
        let mut page = with_status(status, &ErrorBody { error });
        if status == StatusCode::UNAUTHORIZED {
            let scheme = HeaderValue::from_static("Bearer");
            page.headers_mut().insert(WWW_AUTHENTICATE, scheme);
        }
        page
    }
}

/// 200 with this body.
pub fn json(body: &impl Serialize) -> Page {
    with_status(StatusCode::OK, body)
}

/// An answer with this body.
pub fn with_status(status: StatusCode, body: &impl Serialize) -> Page {
    let mut text = serde_json::to_vec(body).expect("maps of the API have texts as keys");
    text.push(b'\n');
    let mut page = response(status, "application/json", text);
    let headers = page.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    page
}

/// Does work that may take long on a thread of lower priority.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    let done = tokio::task::spawn_blocking(work).await;
    let failed = StatusCode::INTERNAL_SERVER_ERROR;
    done.unwrap_or_else(|error| Err(Failure::new(failed, &error.to_string())))
}
