//! The counters of one server, for metrics.
//!
//! They are updated once per batch, not once per request, because the request path counts
//! instructions. Nothing in Weir decides by them except `monitor`, which sees from the answered
//! batches that requests still reach the server.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of one server, shared by all threads. They only grow.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    batches: AtomicU64,
    requests: AtomicU64,
    abandoned: AtomicU64,
}

/// The values of a server's counters, since Weir first knew the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Batches that the server answered.
    pub batches: u64,
    /// Requests in those batches. A request whose checks go to several servers counts at each of
    /// them.
    pub requests: u64,
    /// Requests that were not sent, because their caller had gone or their deadline had passed.
    pub abandoned: u64,
}

impl Counters {
    /// Counts an answered batch of `requests` requests.
    pub(crate) fn answered(&self, requests: usize) {
        self.batches.fetch_add(1, Ordering::Relaxed);
        self.requests.fetch_add(requests as u64, Ordering::Relaxed);
    }

    /// Counts requests that were not sent.
    pub(crate) fn abandoned(&self, requests: u64) {
        if requests > 0 {
            self.abandoned.fetch_add(requests, Ordering::Relaxed);
        }
    }

    pub(crate) fn counts(&self) -> Counts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counts {
            batches: read(&self.batches),
            requests: read(&self.requests),
            abandoned: read(&self.abandoned),
        }
    }
}
