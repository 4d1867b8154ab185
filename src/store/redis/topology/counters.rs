//! What went to one server, in numbers: one addition per batch or event, none per request.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of one server; they only grow.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    batches: AtomicU64,
    requests: AtomicU64,
    abandoned: AtomicU64,
}

/// What was counted since the server became known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Batches that were answered.
    pub batches: u64,
    /// Requests, or parts of requests, in them.
    pub requests: u64,
    /// Requests whose caller had left before they were sent.
    pub abandoned: u64,
}

impl Counters {
    /// A batch of so many requests was answered.
    pub(crate) fn answered(&self, requests: usize) {
        self.batches.fetch_add(1, Ordering::Relaxed);
        self.requests.fetch_add(requests as u64, Ordering::Relaxed);
    }

    /// So many requests were not sent, because nobody waits for them any more.
    pub(crate) fn abandoned(&self, requests: u64) {
        if requests > 0 {
            self.abandoned.fetch_add(requests, Ordering::Relaxed);
        }
    }

    pub(crate) fn counts(&self) -> Counts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counts { batches: read(&self.batches), requests: read(&self.requests), abandoned: read(&self.abandoned) }
    }
}
