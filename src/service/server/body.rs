//! A call's message that does not arrive whole: read within a time limit, and within memory budgets
//! that all calls share.
//!
//! Without them, a client that sends half a message and waits would hold the stream and its bytes
//! for as long as it likes. Most messages arrive whole with their request, in one piece; they cost
//! neither a timer nor a copy.
//!
//! Messages over 64 KiB take their announced length once, and wait for it in turn: when they took
//! it frame by frame, they waited for each other. h2 cannot release the window of a connection
//! without the window of the stream. Therefore the window of a connection is larger than the bytes
//! of all messages that wait.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use h2::RecvStream;
use http::header::HeaderMap;
use http::{HeaderName, HeaderValue};
use hyper::body::{Body, Frame};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Sleep, sleep};
use tonic::Status;
use tonic::metadata::MetadataValue;

use crate::net::bounds::{Cut, MemoryBudget, MemoryReservation};
use crate::service::rls::respond::PREFIX_BYTES;

/// The largest message for rate limits: gRPC's usual bound.
pub(crate) const MAX_BYTES: usize = 4 << 20;

/// The largest message for health and reflection, which have a name in them.
pub(crate) const MAX_SIDE_BYTES: usize = 4 << 10;

/// Messages up to this size are charged as they arrive. Envoy's are smaller.
pub(crate) const SMALL_BYTES: usize = 64 << 10;

/// Maximum number of larger messages that wait for that memory. They keep their connection's
/// flow-control window meanwhile; see `connection`.
pub(crate) const MAX_WAITING_LARGE: usize = 32;

/// The flow-control window of a stream in bytes. Envoy's messages are smaller, and a large message
/// takes it some hundred times.
pub(crate) const STREAM_WINDOW: u32 = 32 << 10;

/// Memory of a stream in addition to its bytes: its state in HTTP/2, a task, its headers and a
/// timer.
pub(crate) const STREAM_BYTES: usize = 3 << 10;

/// Memory of a stream of reflection: the unread bytes and small frames of its window, buffers of a
/// codec, and trailers, whose list may take three times its size.
pub(crate) const STREAMED_BYTES: usize = 1 << 20;

/// Memory of a call of health: the buffers of its codec, and its answer.
pub(crate) const CODEC_BYTES: usize = 14 << 10;

/// Bounds on clients' unfinished messages, in time and memory; clones share them.
#[derive(Clone, Debug)]
pub struct ClientBounds {
    /// The memory of everything in the process that waits for a client: parts of messages and of
    /// header blocks, unread answers, handshakes, open streams of health and reflection, JSON
    /// requests. When it is used up, the oldest ends.
    pub unfinished: MemoryBudget,
    /// The memory of all larger messages of the process together, from the announcement of their
    /// length until they are answered. They wait for it in turn.
    large: Arc<Semaphore>,
    waiting_large: Arc<Semaphore>,
    /// Time for a message to arrive whole.
    pub arrives_within: Duration,
    /// Time for a client to read an answer, or a message of a stream.
    pub taken_within: Duration,
    /// Time for all messages of a client to a service that streams; a client opens another stream
    /// when it needs one.
    pub streams_within: Duration,
}

impl ClientBounds {
    /// Half of these bytes is for large messages, of which at least one always fits, and half for
    /// all else. Five seconds for a message: hundreds of times Envoy's default timeout. Ten for an
    /// answer, as for a ping.
    pub fn new(bytes: u64) -> Self {
        let half = usize::try_from(bytes / 2).unwrap_or(usize::MAX);
        let large = half.clamp(MAX_BYTES + PREFIX_BYTES, Semaphore::MAX_PERMITS);
        Self {
            unfinished: MemoryBudget::new(half),
            large: Arc::new(Semaphore::new(large)),
            waiting_large: Arc::new(Semaphore::new(MAX_WAITING_LARGE)),
            arrives_within: Duration::from_secs(5),
            taken_within: Duration::from_secs(10),
            streams_within: Duration::from_secs(60),
        }
    }

    /// Charges a call whose message has not arrived whole, with the headers that it keeps.
    pub(super) fn call(&self, headers: &HeaderMap, message: &Message) -> MemoryReservation {
        let values = headers.values().map(HeaderValue::len).sum::<usize>();
        self.unfinished
            .charge(STREAM_BYTES + values + message.len())
    }

    /// Waits for the memory of a large message, at most [`MAX_BYTES`].
    ///
    /// # Errors
    /// `RESOURCE_EXHAUSTED`: too many wait already.
    async fn large(&self, bytes: usize) -> Result<OwnedSemaphorePermit, Status> {
        let too_many =
            |_| Status::resource_exhausted("too many large messages are waiting already");
        let _waits = self.waiting_large.try_acquire().map_err(too_many)?;
        let memory = Arc::clone(&self.large)
            .acquire_many_owned(bytes as u32)
            .await;
        memory.map_err(|_| Status::unavailable("the service is shutting down"))
    }
}

/// The part of a message that has arrived, and its permits of the memory budget.
#[derive(Debug, Default)]
pub(super) struct Message {
    /// The first piece, as long as it is the only one.
    pub(super) first: Bytes,
    /// All pieces, when there are more.
    rest: BytesMut,
    pub(super) memory: Option<OwnedSemaphorePermit>,
}

impl Message {
    /// The bytes that have arrived, in one piece.
    pub(super) fn bytes(&mut self) -> Bytes {
        if !self.rest.is_empty() {
            self.first = std::mem::take(&mut self.rest).freeze();
        }
        self.first.clone()
    }

    pub(super) fn len(&self) -> usize {
        self.first.len() + self.rest.len()
    }

    fn push(&mut self, data: Bytes) {
        if self.len() == 0 {
            self.first = data;
            return;
        }
        self.copy_first();
        self.rest.extend_from_slice(&data);
    }

    /// Copies the first piece out of the buffer that it shares with other frames.
    fn copy_first(&mut self) {
        self.rest
            .extend_from_slice(&std::mem::take(&mut self.first));
    }

    /// The length that the message's prefix announces, with the prefix; as soon as that has
    /// arrived and is copied.
    fn announced(&self) -> Option<usize> {
        let [_, length @ ..] = self.rest.first_chunk::<PREFIX_BYTES>()?;
        Some(PREFIX_BYTES + u32::from_be_bytes(*length) as usize)
    }
}

/// The first message of a body, which is not compressed. Later bytes are ignored, as in tonic.
/// Source: gRPC over HTTP/2, Length-Prefixed-Message.
///
/// # Errors
/// `INTERNAL`, as gRPC prescribes, if the body is not a length-prefixed message.
pub(super) fn first_message(body: &[u8]) -> Result<&[u8], Status> {
    let Some((&[compressed, a, b, c, d], rest)) = body.split_first_chunk::<PREFIX_BYTES>() else {
        return Err(Status::internal("the call has no message"));
    };
    if compressed != 0 {
        return Err(Status::internal(
            "the message is compressed, and grpc-encoding does not say how",
        ));
    }
    rest.get(..u32::from_be_bytes([a, b, c, d]) as usize)
        .ok_or_else(|| Status::internal("the message is incomplete"))
}

/// Takes the frames that have arrived, at most two, which stay below the bound of a small message.
/// True: the message is complete.
pub(super) fn arrived(
    stream: &mut RecvStream,
    message: &mut Message,
    context: &mut Context<'_>,
) -> bool {
    for _ in 0..2 {
        // The end of the call releases its flow-control window; only an unfinished message needs it
        // earlier.
        match stream.poll_data(context) {
            Poll::Ready(Some(Ok(data))) if stream.is_end_stream() => {
                message.push(data);
                return true;
            }
            Poll::Ready(Some(Ok(data))) => {
                release(stream, data.len());
                message.push(data);
            }
            Poll::Ready(None) => return true,
            // The next read returns the same error.
            Poll::Ready(Some(Err(_))) | Poll::Pending => return false,
        }
    }
    false
}

/// Releases the flow-control window of all bytes of a message that were read and not released yet.
pub(super) fn release_rest(stream: &mut RecvStream) {
    let bytes = stream.flow_control().used_capacity();
    release(stream, bytes);
}

fn release(stream: &mut RecvStream, bytes: usize) {
    // An error means that the stream has ended, which the next read returns too.
    let _ = stream.flow_control().release_capacity(bytes);
}

/// Reads the rest of a message of at most `max_bytes`, whose call has this charge. Bytes after the
/// message are dropped.
///
/// # Errors
/// `CANCELLED` when the client breaks off, `DEADLINE_EXCEEDED` when the message takes too long,
/// `OUT_OF_RANGE` when it is too long, and `RESOURCE_EXHAUSTED` when its memory is needed for
/// others.
pub(super) async fn read(
    charge: MemoryReservation,
    stream: &mut RecvStream,
    message: &mut Message,
    bounds: &ClientBounds,
    max_bytes: usize,
) -> Result<(), Status> {
    if stream.is_end_stream() {
        return Ok(());
    }
    message.copy_first();
    let read = async {
        loop {
            let announced = message.announced();
            if let Some(length) = announced {
                if length > max_bytes + PREFIX_BYTES {
                    return Err(Status::out_of_range(format!(
                        "a message of more than {max_bytes} bytes"
                    )));
                }
                if length > SMALL_BYTES && message.memory.is_none() {
                    message.memory = Some(bounds.large(length).await?);
                    message.rest.reserve(length - message.rest.len());
                }
            }
            let Some(data) = stream.data().await else {
                return Ok(());
            };
            let data =
                data.map_err(|error| Status::cancelled(format!("the message broke off: {error}")))?;
            release(stream, data.len());
            let room = announced.map_or(data.len(), |length| {
                length.saturating_sub(message.rest.len()).min(data.len())
            });
            message.rest.extend_from_slice(&data[..room]);
            if message.memory.is_none() {
                charge.add(room);
            }
        }
    };
    match charge.within(bounds.arrives_within, read).await {
        Ok(read) => read,
        Err(Cut::Late) => Err(Status::deadline_exceeded(
            "the message did not arrive in time",
        )),
        Err(Cut::Oldest) => Err(Status::resource_exhausted(
            "too many messages are unfinished, and this one was the oldest",
        )),
    }
}

/// A body that is passed on frame by frame, for services that stream. It ends when it is too old.
pub(super) struct Streamed {
    stream: RecvStream,
    ends: Pin<Box<Sleep>>,
}

impl Streamed {
    /// The unread bytes of the body are bounded by its flow-control window.
    pub(super) fn new(stream: RecvStream, bounds: &ClientBounds) -> Self {
        Self {
            stream,
            ends: Box::pin(sleep(bounds.streams_within)),
        }
    }
}

impl Body for Streamed {
    type Data = Bytes;
    type Error = h2::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, h2::Error>>> {
        if self.ends.as_mut().poll(context).is_ready() {
            return Poll::Ready(None);
        }
        match ready!(self.stream.poll_data(context)) {
            Some(Ok(data)) => {
                release(&mut self.stream, data.len());
                Poll::Ready(Some(Ok(Frame::data(data))))
            }
            Some(Err(error)) => Poll::Ready(Some(Err(error))),
            None => Poll::Ready(
                ready!(self.stream.poll_trailers(context))
                    .transpose()
                    .map(|trailers| trailers.map(Frame::trailers)),
            ),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.stream.is_end_stream()
    }
}

pub(super) const GRPC_ENCODING: HeaderName = HeaderName::from_static("grpc-encoding");

/// Refuses messages that may be compressed: Envoy compresses none. Source: gRPC, "Compression".
///
/// # Errors
/// `UNIMPLEMENTED`, with the list of accepted encodings.
pub(super) fn check_encoding(headers: &HeaderMap) -> Result<(), Status> {
    match headers.get(GRPC_ENCODING).map(HeaderValue::as_bytes) {
        None | Some(b"identity") => Ok(()),
        Some(_) => {
            let mut refusal = Status::unimplemented("compressed messages are not supported");
            let accepted = MetadataValue::from_static("identity");
            refusal
                .metadata_mut()
                .insert("grpc-accept-encoding", accepted);
            Err(refusal)
        }
    }
}
