//! The counters that certainly have a TTL: a hit on one of them needs no EXPIRE.
//!
//! The set belongs to one connection and holds only counters that this connection has given a TTL.
//! A restarted server, or another server with the same name, is reached through new connections,
//! whose sets are empty. An entry can still be wrong, because a server can be flushed or evict a
//! key while the connection stays open. The next hit then creates the key again without a TTL; its
//! count shows that, and the batch sends the EXPIRE afterwards (see `Batch::learn`).
//!
//! The set never decides what is counted, and its memory is bounded: it drops counters that were
//! not used lately.
//!
//! The transaction of INCRBY and EXPIRE costs Redis twice as much as INCRBY, and a cluster needs
//! one per slot. The price: a connection that breaks between both leaves a key without a TTL. So
//! does a Redis that stalls for longer than a key lives beyond its window and then executes what it
//! had buffered. Such a key stays until a connection whose set does not have it sets its TTL.

use hashbrown::HashTable;

use crate::core::fingerprint::Fingerprint;

/// Counters of one generation: as many as a hash table of 65,536 buckets (576 KiB) holds at its
/// load factor of 7/8. Two generations are kept.
const GENERATION_SIZE: usize = 65_536 / 8 * 7;

/// The counter of one fixed window. Its key in Redis is `key:window`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CounterKey {
    /// Of the counter key without the window number.
    pub(crate) key: Fingerprint,
    /// The number of the window.
    pub(crate) window: u64,
}

/// A bounded set of counters, as hashes of 64 bits. When the hashes of two counters collide, a
/// counter may be created without a TTL; the batch then repairs it as it repairs one that Redis
/// lost.
#[derive(Debug, Default)]
pub(crate) struct KnownTtls {
    recent: HashTable<u64>,
    older: HashTable<u64>,
}

impl KnownTtls {
    /// Whether the counter is in the set. A query keeps it there for longer.
    pub(crate) fn knows(&mut self, counter: CounterKey) -> bool {
        let hash = counter.hash();
        if self.recent.find(hash, |known| *known == hash).is_some() {
            return true;
        }
        let is_known = self.older.find(hash, |known| *known == hash).is_some();
        if is_known {
            self.insert(hash);
        }
        is_known
    }

    /// Records that the counter has a TTL.
    pub(crate) fn learn(&mut self, counter: CounterKey) {
        let hash = counter.hash();
        if self.recent.find(hash, |known| *known == hash).is_none() {
            self.insert(hash);
        }
    }

    /// Records that the counter may have no TTL.
    pub(crate) fn forget(&mut self, counter: CounterKey) {
        let hash = counter.hash();
        for table in [&mut self.recent, &mut self.older] {
            if let Ok(known) = table.find_entry(hash, |known| *known == hash) {
                known.remove();
            }
        }
    }

    fn insert(&mut self, hash: u64) {
        if self.recent.len() >= GENERATION_SIZE {
            std::mem::swap(&mut self.recent, &mut self.older);
            self.recent.clear();
        }
        self.recent.insert_unique(hash, hash, |known| *known);
    }
}

impl CounterKey {
    /// The half of the fingerprint is as random as a hash. The factor, an odd number near 2^64 by
    /// the golden ratio, spreads the windows of one key.
    fn hash(self) -> u64 {
        self.key.half() ^ self.window.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counter(key: &[u8], window: u64) -> CounterKey {
        let key = Fingerprint::of(key);
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
    fn counters_that_are_asked_for_are_kept_and_the_set_is_bounded() {
        let mut known_ttls = KnownTtls::default();
        known_ttls.learn(counter(b"kept", 0));
        for window in 0..10 * GENERATION_SIZE as u64 {
            known_ttls.learn(counter(b"k", window));
            if window % 1_000 == 0 {
                assert!(known_ttls.knows(counter(b"kept", 0)), "after {window}");
            }
        }
        assert!(known_ttls.knows(counter(b"k", 10 * GENERATION_SIZE as u64 - 1)));
        assert!(
            !known_ttls.knows(counter(b"k", 0)),
            "a counter that was not asked for is forgotten"
        );
        assert!(known_ttls.recent.len() + known_ttls.older.len() <= 2 * GENERATION_SIZE);
        assert!(
            known_ttls.recent.capacity() + known_ttls.older.capacity() <= 2 * GENERATION_SIZE,
            "two tables of 65,536 buckets"
        );
        known_ttls.forget(counter(b"kept", 0));
        assert!(
            !known_ttls.knows(counter(b"kept", 0)),
            "it is removed from both generations"
        );
    }
}
