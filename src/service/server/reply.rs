//! Writing answers: three frames for a rate limit's answer, one for an error; the answers of other
//! services frame by frame.
//!
//! No function here writes to the socket. h2 buffers the frames until the connection is polled
//! again, and then writes the frames of all requests together. It gets only what fits into the
//! client's flow-control window. The rest waits for the client, within the budget for clients'
//! unfinished work, and for a limited time; then the stream is reset.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, LazyLock};
use std::task::Poll;

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, SendStream};
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Response};
use hyper::body::Body as _;
use tonic::Status;
use tonic::body::Body;

use super::body::{ClientBounds, STREAM_BYTES};
use super::dispatch::{CallResult, Services};
use super::open_connections::{OpenConnection, WaitsFor};
use super::spawn;
use super::unread::OfConnection;
use crate::limiter::Places;
use crate::net::bounds::Cut;
use crate::observe::metrics::Metrics;
use crate::service::rls::respond::Framed;

/// The headers and the trailers of every answer. To clone them costs less than to build them.
static HEAD: LazyLock<HeaderMap> = LazyLock::new(|| one_header(CONTENT_TYPE, "application/grpc"));
static OK: LazyLock<HeaderMap> = LazyLock::new(|| one_header(Status::GRPC_STATUS, "0"));

fn one_header(name: http::HeaderName, value: &'static str) -> HeaderMap {
    let mut headers = HeaderMap::with_capacity(1);
    headers.insert(name, HeaderValue::from_static(value));
    headers
}

/// Answers a call. If the client's window has no room for the answer, a task sends it. Without
/// memory for that, the call counts as refused.
///
/// # Errors
/// The stream has ended: the client no longer waits for the answer.
pub(super) fn answer<T>(
    respond: &mut SendResponse<Bytes>,
    answer: CallResult,
    services: &Services<T>,
    unread: &Arc<OfConnection>,
    open: &Arc<OpenConnection>,
) -> Result<(), h2::Error> {
    let Framed(answer, places) = match answer {
        Ok(answer) => answer.into_inner(),
        Err(status) => return respond.send_response(status.into_http(), true).map(drop),
    };
    let mut head = Response::new(());
    *head.headers_mut() = HEAD.clone();
    let mut stream = respond.send_response(head, false)?;
    stream.reserve_capacity(answer.len());
    if stream.capacity() < answer.len() {
        let bounds = &services.bounds;
        let charge = bounds.unfinished.charge(STREAM_BYTES + answer.len());
        let limit = bounds.taken_within;
        let (unread, metrics) = (Arc::clone(unread), Arc::clone(&services.metrics));
        let Some(waits) = open.stream(WaitsFor::Client) else {
            metrics.calls_refused(1);
            stream.send_reset(Reason::CANCEL);
            return Err(Reason::CANCEL.into());
        };
        spawn(async move {
            let _waits = waits;
            let sent = charge.within(limit, send(&mut stream, answer)).await;
            let _ = unless_cut(&mut stream, sent, &metrics)
                .and_then(|()| end(&mut stream, places, &unread));
        });
        return Ok(());
    }
    stream.send_data(answer, false)?;
    end(&mut stream, places, unread)
}

/// Ends an answer. On an error its places are dropped.
fn end(
    stream: &mut SendStream<Bytes>,
    places: Option<Box<Places>>,
    unread: &OfConnection,
) -> Result<(), h2::Error> {
    stream.send_trailers(OK.clone())?;
    if let Some(places) = places {
        unread.queued(stream.stream_id().as_u32(), places);
    }
    Ok(())
}

/// Passes on the answer of a service.
///
/// # Errors
/// The stream has ended, or the service's body failed, or the client does not read the answer.
pub(super) async fn pass_on(
    respond: &mut SendResponse<Bytes>,
    answer: Response<Body>,
    bounds: &ClientBounds,
    metrics: &Metrics,
) -> Result<(), h2::Error> {
    let (head, body) = answer.into_parts();
    let head = Response::from_parts(head, ());
    if body.is_end_stream() {
        return respond.send_response(head, true).map(drop);
    }
    let mut stream = respond.send_response(head, false)?;
    let mut body = pin!(body);
    loop {
        let next = poll_fn(|context| match body.as_mut().poll_frame(context) {
            Poll::Ready(Some(frame)) => {
                Poll::Ready(frame.map(Some).map_err(|_| Reason::INTERNAL_ERROR.into()))
            }
            Poll::Ready(None) => Poll::Ready(Ok(None)),
            // The client may reset the stream while there is nothing to send.
            Poll::Pending => stream
                .poll_reset(context)
                .map(|gone| Err(gone.map_or_else(|error| error, h2::Error::from))),
        });
        match next.await? {
            None => return stream.send_data(Bytes::new(), true),
            Some(frame) => match frame.into_data() {
                Ok(data) => {
                    let data_charge = bounds.unfinished.charge(data.len());
                    let sent = data_charge
                        .within(bounds.taken_within, send(&mut stream, data))
                        .await;
                    unless_cut(&mut stream, sent, metrics)?;
                }
                Err(frame) => {
                    return stream.send_trailers(frame.into_trailers().unwrap_or_default());
                }
            },
        }
    }
}

/// Sends as much as the client's window has room for, until all is sent.
async fn send(stream: &mut SendStream<Bytes>, mut data: Bytes) -> Result<(), h2::Error> {
    while !data.is_empty() {
        stream.reserve_capacity(data.len());
        while stream.capacity() == 0 {
            match poll_fn(|context| stream.poll_capacity(context)).await {
                Some(room) => drop(room?),
                None => return Err(Reason::CANCEL.into()),
            }
        }
        let room = stream.capacity().min(data.len());
        stream.send_data(data.split_to(room), false)?;
    }
    Ok(())
}

/// Resets a stream whose work was cut off. If Weir needed the memory, the call counts as refused; a
/// client that does not read in time fails by itself.
fn unless_cut<T>(
    stream: &mut SendStream<Bytes>,
    done: Result<Result<T, h2::Error>, Cut>,
    metrics: &Metrics,
) -> Result<T, h2::Error> {
    done.unwrap_or_else(|cut| {
        if cut == Cut::Oldest {
            metrics.calls_refused(1);
        }
        stream.send_reset(Reason::CANCEL);
        Err(Reason::CANCEL.into())
    })
}
