//! Writing answers: three frames for a rate limit's answer, one for an error; the answers of other services frame by frame.
//!
//! No function here writes to the socket. h2 buffers the frames until the connection is polled again, and then writes those of all requests
//! together. It also buffers what does not fit into the client's flow-control window yet.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::LazyLock;
use std::task::Poll;

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, SendStream};
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Response};
use hyper::body::Body as _;
use tonic::Status;
use tonic::body::Body;

use crate::rls::respond::Framed;

/// The headers and the trailers of every answer. To clone them costs less than to build them.
static HEAD: LazyLock<HeaderMap> = LazyLock::new(|| one_header(CONTENT_TYPE, "application/grpc"));
static OK: LazyLock<HeaderMap> = LazyLock::new(|| one_header(Status::GRPC_STATUS, "0"));

fn one_header(name: http::HeaderName, value: &'static str) -> HeaderMap {
    let mut headers = HeaderMap::with_capacity(1);
    headers.insert(name, HeaderValue::from_static(value));
    headers
}

/// Answers a call.
///
/// # Errors
/// The stream has ended: the client no longer waits for the answer.
pub(super) fn answer(respond: &mut SendResponse<Bytes>, answer: Result<Framed, Status>) -> Result<(), h2::Error> {
    let answer = match answer {
        Ok(answer) => answer,
        Err(status) => return respond.send_response(status.into_http(), true).map(drop),
    };
    let mut head = Response::new(());
    *head.headers_mut() = HEAD.clone();
    let mut stream = respond.send_response(head, false)?;
    // h2 buffers it until the client's window has room, which for an answer of ordinary size it has at once.
    stream.send_data(answer.bytes(), false)?;
    stream.send_trailers(OK.clone())
}

/// Passes on the answer of a service.
///
/// # Errors
/// The stream has ended, or the service's body failed.
pub(super) async fn pass_on(respond: &mut SendResponse<Bytes>, answer: Response<Body>) -> Result<(), h2::Error> {
    let (head, body) = answer.into_parts();
    let head = Response::from_parts(head, ());
    if body.is_end_stream() {
        return respond.send_response(head, true).map(drop);
    }
    let mut stream = respond.send_response(head, false)?;
    let mut body = pin!(body);
    loop {
        let next = poll_fn(|context| match body.as_mut().poll_frame(context) {
            Poll::Ready(Some(frame)) => Poll::Ready(frame.map(Some).map_err(|_| Reason::INTERNAL_ERROR.into())),
            Poll::Ready(None) => Poll::Ready(Ok(None)),
            // The client may reset the stream while there is nothing to send.
            Poll::Pending => stream.poll_reset(context).map(|gone| Err(gone.map_or_else(|error| error, h2::Error::from))),
        });
        match next.await? {
            None => return stream.send_data(Bytes::new(), true),
            Some(frame) => match frame.into_data() {
                Ok(data) => send(&mut stream, data).await?,
                Err(frame) => return stream.send_trailers(frame.into_trailers().unwrap_or_default()),
            },
        }
    }
}

/// Sends when the client's window has room, so that at most one message of a stream is buffered.
async fn send(stream: &mut SendStream<Bytes>, data: Bytes) -> Result<(), h2::Error> {
    stream.reserve_capacity(data.len().max(1));
    while stream.capacity() == 0 {
        match poll_fn(|context| stream.poll_capacity(context)).await {
            Some(room) => drop(room?),
            None => return Err(Reason::CANCEL.into()),
        }
    }
    stream.send_data(data, false)
}
