//! Reads the holds of counters.

use super::Memory;
use super::table::key_of;
use crate::core::algorithm::Holds;
use crate::core::algorithm::places::RequestId;
use crate::core::algorithm::reservations::HeldHits;
use crate::core::fingerprint::Fingerprint;
use crate::core::time::Micros;

impl Memory {
    /// The holds of a counter that have not expired.
    pub fn held_hits(&self, key: &[u8], now: Micros) -> Option<HeldHits> {
        self.read_holds(key, |holds| HeldHits::of(holds.open(), now))?
    }

    /// Whether a request has hits of a counter that a settlement would release.
    pub fn has_hits(&self, key: &[u8], id: RequestId) -> bool {
        self.read_holds(key, |holds| holds.has_hits(id)) == Some(true)
    }

    /// Reads the holds of a counter under the lock of its shard.
    fn read_holds<T>(&self, key: &[u8], read: impl FnOnce(&Holds) -> T) -> Option<T> {
        let key = key_of(Fingerprint::of(key));
        self.lock(self.shard_index(key)).holds(key).map(read)
    }
}
