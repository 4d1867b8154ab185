//! The permits of calls that wait: for the store or for a shaper. A worker has a bounded number, so
//! that the memory of its calls is bounded.
//!
//! A call takes permits when its message is whole and it has to wait; half a message takes none.
//!
//! A call starts first, and is refused with RESOURCE_EXHAUSTED only if it then has to wait and no
//! permit is free. At that point nothing of it has been sent to Redis. Calls that need not wait
//! (memory, denial cache, no match) are answered, as are health and reflection.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::Status;

use crate::observe::metrics::Metrics;

/// The part of a message that one permit covers. Nearly all messages are smaller, so that their
/// calls take one permit.
pub(crate) const BYTES_OF_A_PERMIT: usize = 4 << 10;

/// The permits of one worker; clones share them.
#[derive(Clone, Debug)]
pub(super) struct WaitPermits {
    pub(super) permits: Arc<Semaphore>,
    pub(super) metrics: Arc<Metrics>,
}

impl WaitPermits {
    /// Takes the permits of a call that has to wait with a message of so many bytes.
    ///
    /// # Errors
    /// `RESOURCE_EXHAUSTED`: too few are left.
    pub(super) fn take(&self, message_bytes: usize) -> Result<OwnedSemaphorePermit, Status> {
        let count = u32::try_from(1 + message_bytes / BYTES_OF_A_PERMIT).unwrap_or(u32::MAX);
        Arc::clone(&self.permits)
            .try_acquire_many_owned(count)
            .map_err(|_| {
                self.metrics.calls_refused(1);
                Status::resource_exhausted("too many calls are waiting already")
            })
    }

    /// The output of a call, which takes permits only if it has to wait.
    ///
    /// # Errors
    /// As of [`WaitPermits::take`]. The call is dropped: one that was only begun has sent nothing
    /// to the store yet.
    pub(super) async fn run<W: Future>(
        &self,
        call: W,
        message_bytes: usize,
    ) -> Result<W::Output, Status> {
        let mut call = pin!(call);
        if let Poll::Ready(done) = poll_fn(|context| Poll::Ready(call.as_mut().poll(context))).await
        {
            return Ok(done);
        }
        let _permits = self.take(message_bytes)?;
        Ok(call.await)
    }
}
