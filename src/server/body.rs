//! The message of a request, read before it is decoded: within a time limit, and within a memory budget that all requests share.
//!
//! Without both, a client that sends half a message and waits would hold the stream and its bytes for as long as it likes. Most messages
//! arrive whole with their request, in one piece; they cost neither a timer nor a copy.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use h2::RecvStream;
use hyper::body::{Body, Frame};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;
use tonic::Status;

use crate::rls::respond::PREFIX_BYTES;

/// tonic's bound for a message, and its length prefix.
const MAX_BYTES: usize = (4 << 20) + PREFIX_BYTES;

/// Messages up to this size are read without a permit of the budget; Envoy's are smaller.
const SMALL_BYTES: usize = 64 << 10;

/// The memory of all larger messages of the process together, in bytes. When it is used up, a further message waits, at most until its own
/// time limit.
const MAX_LARGE_BYTES: usize = 64 << 20;

/// The limits of messages in time and memory; clones share them.
#[derive(Clone, Debug)]
pub struct Budget {
    large: Arc<Semaphore>,
    /// Time for a message to arrive whole.
    pub arrives_within: Duration,
}

impl Default for Budget {
    /// Five seconds: hundreds of times Envoy's default timeout.
    fn default() -> Self {
        Self { large: Arc::new(Semaphore::new(MAX_LARGE_BYTES)), arrives_within: Duration::from_secs(5) }
    }
}

/// The part of a message that has arrived, and its permits of the memory budget.
#[derive(Debug, Default)]
pub(super) struct Message {
    /// The first piece, as long as it is the only one.
    first: Bytes,
    /// All pieces, when there are more.
    rest: BytesMut,
    memory: Option<OwnedSemaphorePermit>,
}

impl Message {
    /// The bytes that have arrived, in one piece.
    pub(super) fn bytes(&mut self) -> Bytes {
        if !self.rest.is_empty() {
            self.first = std::mem::take(&mut self.rest).freeze();
        }
        self.first.clone()
    }

    fn len(&self) -> usize {
        self.first.len() + self.rest.len()
    }

    fn push(&mut self, data: Bytes) {
        if self.len() == 0 {
            self.first = data;
            return;
        }
        self.rest.extend_from_slice(&std::mem::take(&mut self.first));
        self.rest.extend_from_slice(&data);
    }

    /// Adds one piece, as soon as the budget has memory for it.
    ///
    /// # Errors
    /// `OUT_OF_RANGE` for a message that is too long.
    async fn add(&mut self, data: Bytes, budget: &Budget) -> Result<(), Status> {
        let length = self.len() + data.len();
        if length > MAX_BYTES {
            return Err(Status::out_of_range(format!("a message of more than {} MiB", MAX_BYTES >> 20)));
        }
        if length > SMALL_BYTES {
            let held = self.memory.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
            let more = u32::try_from(length - held).map_err(|_| Status::out_of_range("a message of more than 4 GiB"))?;
            let more = Arc::clone(&budget.large)
                .acquire_many_owned(more)
                .await
                .map_err(|_| Status::unavailable("the service is shutting down"))?;
            match &mut self.memory {
                Some(memory) => memory.merge(more),
                None => self.memory = Some(more),
            }
        }
        self.push(data);
        Ok(())
    }
}

/// The message of a body that is exactly one uncompressed message of the announced length. Source: gRPC over HTTP/2,
/// Length-Prefixed-Message.
pub(super) fn single(body: &[u8]) -> Option<&[u8]> {
    let (&[compressed, a, b, c, d], message) = body.split_first_chunk::<PREFIX_BYTES>()?;
    let announced = u32::from_be_bytes([a, b, c, d]) as usize;
    (compressed == 0 && announced == message.len()).then_some(message)
}

/// Takes the frames that have arrived, at most two, which stay below the budget's bound. True: the message is complete.
pub(super) fn arrived(stream: &mut RecvStream, message: &mut Message, context: &mut Context<'_>) -> bool {
    for _ in 0..2 {
        // Dropping the stream releases its flow-control window; only a message that goes on needs it back before.
        match stream.poll_data(context) {
            Poll::Ready(Some(Ok(data))) if stream.is_end_stream() => {
                message.push(data);
                return true;
            }
            Poll::Ready(Some(Ok(data))) => {
                let _ = stream.flow_control().release_capacity(data.len());
                message.push(data);
            }
            Poll::Ready(None) => return true,
            // The next read returns the same error.
            Poll::Ready(Some(Err(_))) | Poll::Pending => return false,
        }
    }
    false
}

/// Reads the rest of a message.
///
/// # Errors
/// `CANCELLED` when the client breaks off, `DEADLINE_EXCEEDED` when the message takes too long, and those of its length.
pub(super) async fn read(mut stream: RecvStream, message: &mut Message, budget: &Budget) -> Result<(), Status> {
    let read = async {
        while let Some(data) = stream.data().await {
            let data = data.map_err(|error| Status::cancelled(format!("the message broke off: {error}")))?;
            let length = data.len();
            message.add(data, budget).await?;
            // An error means that the stream has ended, which the next read returns too.
            let _ = stream.flow_control().release_capacity(length);
        }
        Ok(())
    };
    timeout(budget.arrives_within, read).await.unwrap_or_else(|_| Err(Status::deadline_exceeded("the message did not arrive in time")))
}

/// A body that is passed on frame by frame, for services that stream.
#[derive(Debug)]
pub(super) struct Streamed(pub(super) RecvStream);

impl Body for Streamed {
    type Data = Bytes;
    type Error = h2::Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, h2::Error>>> {
        match ready!(self.0.poll_data(context)) {
            Some(Ok(data)) => {
                let _ = self.0.flow_control().release_capacity(data.len());
                Poll::Ready(Some(Ok(Frame::data(data))))
            }
            Some(Err(error)) => Poll::Ready(Some(Err(error))),
            None => Poll::Ready(ready!(self.0.poll_trailers(context)).transpose().map(|trailers| trailers.map(Frame::trailers))),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_end_stream()
    }
}
