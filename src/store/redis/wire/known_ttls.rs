//! Which counters are known to expire, so that a hit need not say it again.
//!
//! Belongs to one connection, and knows only what that connection was told: a server that lost its counters, or another one under the same name, is met by
//! new connections. What is known may be wrong all the same, because a server can be flushed or drop a key under way; then the hit that makes the
//! key anew finds nothing before itself, and its expiry is said after it. Bounded: what was not asked for in a while is forgotten.

use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::{BuildHasher, Hasher};

use hashbrown::HashTable;
use siphasher::sip::SipHasher13;

/// Counters of one generation; as many as fill a table of 65,536 places, which are 576 KiB. Two generations are kept.
const GENERATION: usize = 65_536 / 8 * 7;

/// A counter of one window.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CounterKey<'k> {
    pub(crate) key: &'k [u8],
    pub(crate) window: u64,
}

/// Keyed hashes of counters; that two are the same costs one repair and nothing else.
pub(crate) struct KnownTtls {
    recent: HashTable<u64>,
    older: HashTable<u64>,
    secret: (u64, u64),
}

impl Default for KnownTtls {
    fn default() -> Self {
        let secret = RandomState::new();
        Self { recent: HashTable::new(), older: HashTable::new(), secret: (secret.hash_one(0), secret.hash_one(1)) }
    }
}

impl fmt::Debug for KnownTtls {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Expiring").field("recent", &self.recent.len()).field("older", &self.older.len()).finish_non_exhaustive()
    }
}

impl KnownTtls {
    /// Whether the counter was seen to get an expiry; it is remembered for longer then.
    pub(crate) fn knows(&mut self, counter: CounterKey<'_>) -> bool {
        let hash = self.hash(counter);
        if self.recent.find(hash, |known| *known == hash).is_some() {
            return true;
        }
        let is_known = self.older.find(hash, |known| *known == hash).is_some();
        if is_known {
            self.insert(hash);
        }
        is_known
    }

    /// The counter has an expiry.
    pub(crate) fn learn(&mut self, counter: CounterKey<'_>) {
        let hash = self.hash(counter);
        if self.recent.find(hash, |known| *known == hash).is_none() {
            self.insert(hash);
        }
    }

    /// The counter may have no expiry.
    pub(crate) fn forget(&mut self, counter: CounterKey<'_>) {
        let hash = self.hash(counter);
        for table in [&mut self.recent, &mut self.older] {
            if let Ok(known) = table.find_entry(hash, |known| *known == hash) {
                known.remove();
            }
        }
    }

    fn insert(&mut self, hash: u64) {
        if self.recent.len() >= GENERATION {
            std::mem::swap(&mut self.recent, &mut self.older);
            self.recent.clear();
        }
        self.recent.insert_unique(hash, hash, |known| *known);
    }

    fn hash(&self, counter: CounterKey<'_>) -> u64 {
        let mut hasher = SipHasher13::new_with_keys(self.secret.0, self.secret.1);
        hasher.write(counter.key);
        hasher.write_u64(counter.window);
        hasher.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counter(key: &[u8], window: u64) -> CounterKey<'_> {
        CounterKey { key, window }
    }

    #[test]
    fn a_counter_is_known_by_its_key_and_its_window() {
        let mut known_ttls = KnownTtls::default();
        known_ttls.learn(counter(b"a", 7));
        assert!(known_ttls.knows(counter(b"a", 7)));
        assert!(!known_ttls.knows(counter(b"a", 8)) && !known_ttls.knows(counter(b"b", 7)));
        known_ttls.forget(counter(b"a", 7));
        assert!(!known_ttls.knows(counter(b"a", 7)));
    }

    #[test]
    fn what_is_asked_for_is_kept_and_all_of_it_is_bounded() {
        let mut known_ttls = KnownTtls::default();
        known_ttls.learn(counter(b"kept", 0));
        for window in 0..10 * GENERATION as u64 {
            known_ttls.learn(counter(b"k", window));
            if window % 1_000 == 0 {
                assert!(known_ttls.knows(counter(b"kept", 0)), "after {window}");
            }
        }
        assert!(known_ttls.knows(counter(b"k", 10 * GENERATION as u64 - 1)));
        assert!(!known_ttls.knows(counter(b"k", 0)), "what nobody asked for is forgotten");
        assert!(known_ttls.recent.len() + known_ttls.older.len() <= 2 * GENERATION);
        assert!(known_ttls.recent.capacity() + known_ttls.older.capacity() <= 2 * GENERATION, "two tables of 65,536 places");
        known_ttls.forget(counter(b"kept", 0));
        assert!(!known_ttls.knows(counter(b"kept", 0)), "in both generations");
    }
}
