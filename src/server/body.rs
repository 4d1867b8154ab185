//! The message of a request, read before anything else happens: within a time, and within an amount of memory that all requests share.
//!
//! A client that sends half a message and waits would otherwise hold its stream and the bytes for as long as it likes. Most messages are
//! there in full when their request is, in one piece, and cost neither a timer nor a copy.

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

/// tonic's bound for a message, and what frames it.
const MOST_BYTES: usize = (4 << 20) + PREFIX_BYTES;

/// Messages up to this size are read at once and counted nowhere; Envoy's are smaller, as its headers are.
const SMALL_BYTES: usize = 64 << 10;

/// What all larger messages of the process may hold together. Who comes when it is used up waits, no longer than for its message.
const LARGE_BYTES_AT_A_TIME: usize = 64 << 20;

/// What messages may take of time and memory; clones share it.
#[derive(Clone, Debug)]
pub struct Budget {
    large: Arc<Semaphore>,
    /// Time for a message to arrive whole.
    pub arrives_within: Duration,
}

impl Default for Budget {
    /// Five seconds, which is hundreds of times what Envoy waits for an answer.
    fn default() -> Self {
        Self { large: Arc::new(Semaphore::new(LARGE_BYTES_AT_A_TIME)), arrives_within: Duration::from_secs(5) }
    }
}

/// What has arrived of a message, and the memory that it counts for until it is dropped.
#[derive(Debug, Default)]
pub(super) struct Message {
    /// The first piece, as long as it is the only one.
    first: Bytes,
    /// All pieces, when there are more.
    rest: BytesMut,
    memory: Option<OwnedSemaphorePermit>,
}

impl Message {
    /// What has arrived, in one piece.
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

    /// Adds one more piece, when there is memory for it.
    async fn add(&mut self, data: Bytes, budget: &Budget) -> Result<(), Status> {
        let length = self.len() + data.len();
        if length > MOST_BYTES {
            return Err(Status::out_of_range(format!("a message of more than {} MiB", MOST_BYTES >> 20)));
        }
        if length > SMALL_BYTES {
            let held = self.memory.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
            let more = u32::try_from(length - held).map_err(|_| Status::out_of_range("a message of more than 4 GiB"))?;
            let more = Arc::clone(&budget.large).acquire_many_owned(more).await.map_err(|_| Status::unavailable("the service ends"))?;
            match &mut self.memory {
                Some(memory) => memory.merge(more),
                None => self.memory = Some(more),
            }
        }
        self.push(data);
        Ok(())
    }
}

/// The message of a body that is one message and no more, not compressed, of the length that it says.
pub(super) fn single(body: &[u8]) -> Option<&[u8]> {
    let (&[compressed, a, b, c, d], message) = body.split_first_chunk::<PREFIX_BYTES>()?;
    let announced = u32::from_be_bytes([a, b, c, d]) as usize;
    (compressed == 0 && announced == message.len()).then_some(message)
}

/// Takes what has arrived already, at most the two frames that need no look at the budget. True: that is all of it.
pub(super) fn arrived(stream: &mut RecvStream, message: &mut Message, context: &mut Context<'_>) -> bool {
    for _ in 0..2 {
        // What of the window a stream has taken goes back when the stream is dropped; until then only a longer one needs it.
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
            // The error comes again to whoever reads on.
            Poll::Ready(Some(Err(_))) | Poll::Pending => return false,
        }
    }
    false
}

/// Reads the rest of a message.
pub(super) async fn read(mut stream: RecvStream, message: &mut Message, budget: &Budget) -> Result<(), Status> {
    let read = async {
        while let Some(data) = stream.data().await {
            let data = data.map_err(|error| Status::cancelled(format!("the message broke off: {error}")))?;
            let length = data.len();
            message.add(data, budget).await?;
            // An error means that the stream has ended, as the next look will tell.
            let _ = stream.flow_control().release_capacity(length);
        }
        Ok(())
    };
    timeout(budget.arrives_within, read).await.unwrap_or_else(|_| Err(Status::deadline_exceeded("the message did not arrive in time")))
}

/// A body that is passed on as it arrives, for calls that are no single message.
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
