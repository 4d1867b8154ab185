//! The tables of the denial cache and of hits drawn ahead: set-associative, one fixed block of
//! memory, and one lock for each set.
//!
//! A counter is found by the fingerprint of its key and of every number of its algorithm. So a
//! changed limit does not find an entry of its old numbers.

use std::sync::{Mutex, MutexGuard};

use tokio::time::Instant;

use crate::core::fingerprint::Fingerprint;
use crate::core::lock;
use crate::limits::plan::Check;

/// Fingerprint by which an entry is found; the default for none.
pub(super) fn fingerprint(check: &Check) -> Fingerprint {
    check.fingerprint.with(&check.algorithm)
}

/// The number of the part in which a counter is, of `parts` equal ones. A part of a smaller number
/// of parts is a union of neighboring ones.
pub(super) fn part(key: Fingerprint, parts: usize) -> usize {
    ((u128::from(key.half()) * parts as u128) >> u64::BITS) as usize
}

/// Sets of entries.
#[derive(Debug)]
pub(super) struct Table<S> {
    pub(super) sets: Box<[Mutex<S>]>,
    /// Zero of the times of all entries.
    epoch: Instant,
}

impl<S: Default> Table<S> {
    /// A table of `sets` sets, at least one.
    pub(super) fn new(sets: usize) -> Self {
        Self {
            sets: (0..sets.max(1)).map(|_| Mutex::default()).collect(),
            epoch: Instant::now(),
        }
    }

    /// The set that a counter belongs to.
    pub(super) fn set(&self, key: Fingerprint) -> MutexGuard<'_, S> {
        lock(&self.sets[part(key, self.sets.len())])
    }

    /// Microseconds since the epoch, rounded down, which keeps the order of instants.
    pub(super) fn micros(&self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.epoch).as_micros()).unwrap_or(u64::MAX)
    }
}
