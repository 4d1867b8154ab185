//! What passes between the thread of the connection and the thread that compiles: the newest update
//! in one direction, outcomes in the other.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::change::Update;

/// Nonces of delta responses that may wait for one answer each. A server that sends more without
/// one is not read on.
const MAX_NONCES: usize = 64;

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
    /// Adds an update to the one that waits. Returns whether there was one.
    pub(super) fn put(&self, update: Update) -> bool {
        let mut state = self.lock();
        let waiting = state.update.take();
        let merged = waiting.is_some();
        state.update = Some(match waiting {
            None => update,
            Some(waiting) => waiting.then(update),
        });
        self.changed.notify_one();
        merged
    }

    /// Whether no more may be put in: what waits has `max_bytes`, or too many nonces. A state of
    /// the world replaces the one that waits.
    pub(super) fn is_full(&self, max_bytes: usize) -> bool {
        let state = self.lock();
        state.update.as_ref().is_some_and(|update| {
            update.nonces.len() >= MAX_NONCES || update.len_edit_bytes() >= max_bytes
        })
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
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::super::change::{Change, Edit};
    use super::*;

    fn update(nonce: u32, change: Change) -> Update {
        Update {
            stream: 1,
            version: "v".into(),
            nonces: vec![nonce.to_string().into()],
            change,
        }
    }

    #[test]
    fn the_newest_state_is_taken_and_not_before_its_time() {
        let inbox = Inbox::default();
        assert!(!inbox.put(update(1, Change::All(vec!["a".into()]))));
        assert!(inbox.put(update(2, Change::All(vec!["b".into()]))));
        let begin = Instant::now();
        let not_before = begin + Duration::from_millis(50);
        assert_eq!(
            inbox.wait(not_before, Duration::from_millis(10)),
            Wake::Idle
        );
        assert_eq!(
            inbox.wait(not_before, Duration::from_secs(60)),
            Wake::Update(update(2, Change::All(vec!["b".into()])))
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

    #[test]
    fn it_is_full_of_nonces_or_of_bytes_and_never_of_states() {
        let inbox = Inbox::default();
        for nonce in 0..1_000 {
            inbox.put(update(nonce, Change::All(vec![vec![0; 1_000].into()])));
            assert!(!inbox.is_full(1_000), "a state replaces the one that waits");
        }
        let inbox = Inbox::default();
        for nonce in 0..MAX_NONCES as u32 {
            assert!(!inbox.is_full(1_000), "{nonce}");
            inbox.put(update(nonce, Change::Edits(Vec::new())));
        }
        assert!(inbox.is_full(1_000));
        let inbox = Inbox::default();
        inbox.put(update(
            1,
            Change::Edits(vec![Edit::Set(vec![0; 1_000].into())]),
        ));
        let bytes = 1_000 + size_of::<Edit>();
        assert!(inbox.is_full(bytes) && !inbox.is_full(bytes + 1));
    }
}
