//! What passes from the thread of the connection to the thread that compiles: the newest update,
//! so that each configuration is compiled once.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::Notify;
use tokio::time::{sleep_until, timeout};

use crate::core::lock;

/// A response that waits to be applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Update {
    /// The number of the stream.
    pub(super) stream: u64,
    pub(super) version: Bytes,
    pub(super) nonce: Bytes,
    /// All resources: each an encoded `Any`.
    pub(super) resources: Vec<Bytes>,
}

/// The update that waits for the thread that compiles.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    update: Mutex<Option<Update>>,
    arrived: Notify,
}

impl Inbox {
    /// Replaces the update that waits. Returns whether there was one. It needs no answer: the
    /// server ignores an answer to any but its last response.
    pub(super) fn put(&self, update: Update) -> bool {
        let replaced = lock(&self.update).replace(update);
        self.arrived.notify_one();
        replaced.is_some()
    }

    /// Waits for an update, which is taken at `not_before` at the earliest, or for `idle` to pass.
    pub(super) async fn next(&self, not_before: Instant, idle: Duration) -> Option<Update> {
        let next = async {
            sleep_until(not_before.into()).await;
            loop {
                let update = lock(&self.update).take();
                match update {
                    Some(update) => return update,
                    None => self.arrived.notified().await,
                }
            }
        };
        timeout(idle, next).await.ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn update(nonce: &'static str) -> Update {
        Update {
            stream: 1,
            version: "v".into(),
            nonce: nonce.into(),
            resources: Vec::new(),
        }
    }

    #[tokio::test]
    async fn the_newest_state_is_taken_and_not_before_its_time() {
        let inbox = Inbox::default();
        assert!(!inbox.put(update("1")));
        assert!(inbox.put(update("2")));
        let begin = Instant::now();
        let not_before = begin + Duration::from_millis(50);
        let idle = inbox.next(not_before, Duration::from_millis(10)).await;
        assert_eq!(idle, None);
        assert_eq!(
            inbox.next(not_before, Duration::from_secs(60)).await,
            Some(update("2"))
        );
        assert!(
            begin.elapsed() >= Duration::from_millis(50),
            "{:?}",
            begin.elapsed()
        );
        assert_eq!(inbox.next(begin, Duration::ZERO).await, None);
    }
}
