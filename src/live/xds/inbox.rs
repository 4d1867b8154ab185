//! What passes from the thread of the connection to the thread that compiles: the newest update,
//! so that each configuration is compiled once.

use crate::core::lock;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;

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

/// An update that waits for the thread that compiles.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    state: Mutex<Waiting>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Waiting {
    update: Option<Update>,
    has_ended: bool,
}

/// Why the thread that compiles goes on.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Wake {
    /// This update is to be applied.
    Update(Update),
    /// It is time to look after other things.
    Idle,
    /// The process ends.
    Ended,
}

impl Inbox {
    /// Replaces the update that waits. Returns whether there was one. It needs no answer: the
    /// server ignores an answer to any but its last response.
    pub(super) fn put(&self, update: Update) -> bool {
        let replaced = self.lock().update.replace(update);
        self.changed.notify_one();
        replaced.is_some()
    }

    /// Ends the thread that compiles.
    pub(super) fn end(&self) {
        self.lock().has_ended = true;
        self.changed.notify_one();
    }

    /// Waits for an update, which is taken at `not_before` at the earliest, or for `idle` to pass.
    pub(super) fn wait(&self, not_before: Instant, idle: Duration) -> Wake {
        let until = Instant::now() + idle;
        let mut state = self.lock();
        loop {
            let now = Instant::now();
            if state.has_ended {
                return Wake::Ended;
            }
            if now >= not_before
                && let Some(update) = state.update.take()
            {
                return Wake::Update(update);
            }
            let at = if state.update.is_some() {
                not_before.min(until)
            } else {
                until
            };
            if now >= until {
                return Wake::Idle;
            }
            let (next, _) = self
                .changed
                .wait_timeout(state, at.saturating_duration_since(now))
                .unwrap_or_else(PoisonError::into_inner);
            state = next;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        // Whole values are written, so that a panic leaves none half written.
        lock(&self.state)
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

    #[test]
    fn the_newest_state_is_taken_and_not_before_its_time() {
        let inbox = Inbox::default();
        assert!(!inbox.put(update("1")));
        assert!(inbox.put(update("2")));
        let begin = Instant::now();
        let not_before = begin + Duration::from_millis(50);
        assert_eq!(
            inbox.wait(not_before, Duration::from_millis(10)),
            Wake::Idle
        );
        assert_eq!(
            inbox.wait(not_before, Duration::from_secs(60)),
            Wake::Update(update("2"))
        );
        assert!(
            begin.elapsed() >= Duration::from_millis(50),
            "{:?}",
            begin.elapsed()
        );
        assert_eq!(inbox.wait(begin, Duration::ZERO), Wake::Idle);
        inbox.end();
        assert_eq!(inbox.wait(begin, Duration::from_secs(60)), Wake::Ended);
    }
}
