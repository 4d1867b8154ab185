//! The tables of the denial cache and of the leases: set-associative, one fixed block of memory, and
//! one lock for each set.
//!
//! A counter is found by a keyed hash of its key and of every number of its algorithm. So a changed
//! limit does not find what was noted of it before.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hash};
use std::sync::{Mutex, MutexGuard};

use siphasher::sip128::{Hasher128, SipHasher13};
use tokio::time::Instant;

use crate::core::algorithm::Algorithm;
use crate::core::lock;

/// The hash of a counter; all zero for none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Fingerprint(u64, u64);

/// Sets of entries.
pub(super) struct Table<S> {
    pub(super) sets: Box<[Mutex<S>]>,
    /// The key of the hash. Clients choose values, and must not be able to construct collisions.
    secret: (u64, u64),
    /// Zero of the times of all entries.
    epoch: Instant,
}

impl<S: Default> Table<S> {
    /// A table of so many sets, at least one.
    pub(super) fn new(sets: usize) -> Self {
        let secret = RandomState::new();
        Self {
            sets: (0..sets.max(1)).map(|_| Mutex::default()).collect(),
            secret: (secret.hash_one(0), secret.hash_one(1)),
            epoch: Instant::now(),
        }
    }

    /// The fingerprint of the counter with this key.
    pub(super) fn fingerprint(&self, key: &[u8], algorithm: &Algorithm) -> Fingerprint {
        let mut hasher = SipHasher13::new_with_keys(self.secret.0, self.secret.1);
        key.hash(&mut hasher);
        algorithm.hash(&mut hasher);
        let hash = hasher.finish128();
        Fingerprint(hash.h1, hash.h2)
    }

    /// The set that a counter belongs to.
    pub(super) fn set(&self, key: Fingerprint) -> MutexGuard<'_, S> {
        let index = (u128::from(key.0) * self.sets.len() as u128) >> u64::BITS;
        lock(&self.sets[index as usize])
    }

    /// Microseconds since the epoch, rounded down, which keeps the order of instants.
    pub(super) fn micros(&self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.epoch).as_micros()).unwrap_or(u64::MAX)
    }
}
