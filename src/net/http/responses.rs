//! Whole responses of the listeners for operators: texts, JSON and errors.

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::{Response, StatusCode};

/// A response whose body is in memory.
pub type Page = Response<Full<Bytes>>;

/// 405, with the methods that are allowed.
pub fn not_allowed(allowed: &'static str, message: &'static str) -> Page {
    let mut refused = text(StatusCode::METHOD_NOT_ALLOWED, message);
    refused
        .headers_mut()
        .insert(ALLOW, HeaderValue::from_static(allowed));
    refused
}

/// An error as one line of text; control characters of the message become spaces.
pub fn failed(status: StatusCode, message: &str) -> Page {
    let mut line: String = message
        .chars()
        .map(|char| if char.is_control() { ' ' } else { char })
        .collect();
    line.push('\n');
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
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}
