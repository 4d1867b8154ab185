//! How the tables of the limiter find a counter: by a keyed hash of its key and of every number of
//! its algorithm. So a changed limit does not find what was noted of it before.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hash};
use std::sync::{Mutex, MutexGuard};

use siphasher::sip128::{Hasher128, SipHasher13};

use crate::core::algorithm::Algorithm;
use crate::core::lock;

/// The hash; all zero for no counter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Fingerprint(u64, u64);

impl Fingerprint {
    /// The set of a table that it belongs to.
    pub(super) fn set<T>(self, sets: &[Mutex<T>]) -> MutexGuard<'_, T> {
        let index = (u128::from(self.0) * sets.len() as u128) >> u64::BITS;
        lock(&sets[index as usize])
    }
}

/// Makes the fingerprints of one table. Clients choose values, and must not be able to construct
/// collisions: so the hash has a secret key.
pub(super) struct Fingerprints(u64, u64);

impl Default for Fingerprints {
    fn default() -> Self {
        let secret = RandomState::new();
        Self(secret.hash_one(0), secret.hash_one(1))
    }
}

impl Fingerprints {
    /// That of the counter with this key.
    pub(super) fn of(&self, key: &[u8], algorithm: &Algorithm) -> Fingerprint {
        let mut hasher = SipHasher13::new_with_keys(self.0, self.1);
        key.hash(&mut hasher);
        algorithm.hash(&mut hasher);
        let hash = hasher.finish128();
        Fingerprint(hash.h1, hash.h2)
    }
}
