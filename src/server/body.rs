//! The message of a request, read before anything else happens: within a time, and within an amount of memory that all requests share.
//!
//! A client that sends half a message and waits would otherwise hold its stream and the bytes for as long as it likes.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;
use tonic::Status;

/// tonic's bound for a message, and what frames it.
const MOST_BYTES: usize = (4 << 20) + 5;

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

/// A message, and the memory that it counts for until it is dropped.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) bytes: Bytes,
    _memory: Option<OwnedSemaphorePermit>,
}

/// Reads a whole body.
pub(super) async fn read(body: Incoming, budget: &Budget) -> Result<Message, Status> {
    timeout(budget.arrives_within, collect(body, budget))
        .await
        .unwrap_or_else(|_| Err(Status::deadline_exceeded("the message did not arrive in time")))
}

async fn collect(mut body: Incoming, budget: &Budget) -> Result<Message, Status> {
    let (mut first, mut rest, mut memory) = (Bytes::new(), BytesMut::new(), None::<OwnedSemaphorePermit>);
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| Status::cancelled(format!("the message broke off: {error}")))?;
        let Ok(data) = frame.into_data() else { continue };
        // Most messages are a single frame, which is passed on as it came.
        if first.is_empty() && rest.is_empty() {
            first = data;
            continue;
        }
        let length = first.len() + rest.len() + data.len();
        if length > MOST_BYTES {
            return Err(Status::out_of_range(format!("a message of more than {} MiB", MOST_BYTES >> 20)));
        }
        if length > SMALL_BYTES {
            let held = memory.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
            let more = u32::try_from(length - held).map_err(|_| Status::out_of_range("a message of more than 4 GiB"))?;
            let more = Arc::clone(&budget.large).acquire_many_owned(more).await.map_err(|_| Status::unavailable("the service ends"))?;
            match &mut memory {
                Some(memory) => memory.merge(more),
                None => memory = Some(more),
            }
        }
        rest.extend_from_slice(&std::mem::take(&mut first));
        rest.extend_from_slice(&data);
    }
    let bytes = if rest.is_empty() { first } else { rest.freeze() };
    Ok(Message { bytes, _memory: memory })
}
