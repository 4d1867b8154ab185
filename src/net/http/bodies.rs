//! The bodies of requests, with bounds in bytes and in time.

use std::time::Duration;

use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::StatusCode;
use hyper::body::Incoming;
use tokio::time::timeout;

use super::responses::{Page, failed};
use crate::net::bounds::Charge;

/// Time for the body of a request to arrive.
pub(crate) const BODY_DEADLINE: Duration = Duration::from_secs(10);

/// Reads a body of at most `max_bytes`, and charges its bytes as they arrive.
///
/// # Errors
/// The answer to a client whose body is too large, breaks off, or does not arrive in time.
pub async fn collect(body: Incoming, max_bytes: usize, charge: &Charge) -> Result<Vec<u8>, Page> {
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
