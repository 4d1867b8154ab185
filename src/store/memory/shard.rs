//! One shard: a table of packed states, and a list of the states that cannot be packed.
//!
//! Everything here runs under the shard's lock, and takes at most time in proportion to the shard's
//! few keys.

use super::packed::{Packed, UsedShare};
use super::table::{BlockPool, Entry, EntryKey, FreedBlocks, Table};
use super::unpacked::UnpackedStates;

use crate::core::algorithm::{Algorithm, Holds, State};
use crate::core::time::Micros;

/// The keys of one shard.
#[derive(Debug, Default)]
pub(super) struct Shard {
    table: Table,
    /// Most shards have none.
    unpacked: Option<Box<UnpackedStates>>,
}

/// A state to be written.
#[derive(Debug)]
pub(super) struct NewState<'a> {
    pub(super) state: State,
    /// The algorithm that made the state.
    pub(super) algorithm: &'a Algorithm,
    /// From then on the state means the same as a missing one.
    pub(super) recovers: Micros,
    /// The share of the limit that is used now.
    pub(super) used: UsedShare,
}

impl Shard {
    /// The table slot of a key. It is valid until a key is added or removed.
    pub(super) fn find(&self, key: EntryKey) -> Option<usize> {
        self.table.find(key)
    }

    /// Takes the state out of a slot; [`Shard::put_back`] or [`Shard::replace`] has to follow.
    /// `None` if another algorithm wrote the state.
    pub(super) fn take(&mut self, slot: usize, algorithm: &Algorithm) -> Option<State> {
        let packed = self.table.get(slot);
        match (packed.unpacked_index(), &mut self.unpacked) {
            (Some(index), Some(unpacked)) => unpacked.take(index),
            _ => packed.state(algorithm),
        }
    }

    /// A copy of the state of a key, without its holds.
    pub(super) fn peek(&self, key: EntryKey, algorithm: &Algorithm) -> Option<State> {
        let packed = self.table.get(self.table.find(key)?);
        match (packed.unpacked_index(), &self.unpacked) {
            (Some(index), Some(unpacked)) => match unpacked.holds(index) {
                Some(holds) => holds.counter.clone(),
                None => unpacked.peek(index),
            },
            _ => packed.state(algorithm),
        }
    }

    /// The holds of a key.
    pub(super) fn holds(&self, key: EntryKey) -> Option<&Holds> {
        let index = self.table.get(self.table.find(key)?).unpacked_index()?;
        self.unpacked.as_ref()?.holds(index)
    }

    /// Ends a step that changed nothing.
    pub(super) fn put_back(&mut self, slot: usize, state: State, used: UsedShare) {
        if let (Some(index), Some(unpacked)) =
            (self.table.get(slot).unpacked_index(), &mut self.unpacked)
        {
            unpacked.put_back(index, state);
        }
        self.record_refusal(slot, used);
    }

    /// Records that a check of the key in this slot was refused.
    pub(super) fn record_refusal(&mut self, slot: usize, used: UsedShare) {
        if used == UsedShare::REFUSED {
            self.table.set(slot, self.table.get(slot).with_used(used));
        }
    }

    /// Ends a step that changed the state.
    pub(super) fn replace(&mut self, slot: usize, change: NewState<'_>) {
        let used = change.used;
        let packed = match (self.table.get(slot).unpacked_index(), &mut self.unpacked) {
            (Some(index), Some(unpacked)) => {
                match Packed::new(&change.state, change.algorithm, change.recovers) {
                    Some(packed) => {
                        unpacked.remove(index);
                        packed
                    }
                    None => {
                        unpacked.put_back(index, change.state);
                        Packed::reference(index, change.recovers)
                    }
                }
            }
            _ => self.pack(change),
        };
        self.table.set(slot, packed.with_used(used));
    }

    /// Adds a key that the shard does not hold.
    pub(super) fn add(&mut self, key: EntryKey, change: NewState<'_>, pool: &BlockPool) {
        let used = change.used;
        let packed = self.pack(change).with_used(used);
        self.table.insert(Entry { key, packed }, pool);
    }

    fn pack(&mut self, change: NewState<'_>) -> Packed {
        Packed::new(&change.state, change.algorithm, change.recovers).unwrap_or_else(|| {
            let index = self.unpacked.get_or_insert_default().add(change.state);
            Packed::reference(index, change.recovers)
        })
    }

    /// Removes a key. Returns whether it existed.
    pub(super) fn remove(&mut self, key: EntryKey) -> bool {
        let slot = self.table.find(key);
        let removed = slot.map(|slot| self.table.remove(slot).packed);
        remove_unpacked(&mut self.unpacked, removed);
        removed.is_some()
    }

    /// The bytes of the unpacked states.
    pub(super) fn unpacked_bytes(&self) -> usize {
        self.unpacked
            .as_ref()
            .map_or(0, |unpacked| unpacked.bytes())
    }

    /// Evicts the key with the least loss among random keys that may go. Returns false if the shard
    /// has none.
    pub(super) fn evict(&mut self, now: Micros, may_go: impl Fn(Packed) -> bool) -> bool {
        let from = fastrand::usize(..self.table.slots().max(1));
        let found = self.table.least_loss(from, now, may_go);
        let removed = found.map(|slot| self.table.remove(slot));
        remove_unpacked(&mut self.unpacked, removed.map(|entry| entry.packed));
        removed.is_some()
    }

    /// Removes the keys that have recovered at `now`, and returns how many they were. Blocks that
    /// the table no longer needs go to `freed`.
    pub(super) fn sweep(&mut self, now: Micros, freed: &mut FreedBlocks) -> usize {
        let before = self.table.len();
        self.table.sweep(now, freed, |packed| {
            remove_unpacked(&mut self.unpacked, Some(packed));
        });
        if self
            .unpacked
            .as_ref()
            .is_some_and(|unpacked| unpacked.is_sparse())
        {
            self.compact();
        }
        before - self.table.len()
    }

    /// Moves the unpacked states together, and frees the memory between them.
    fn compact(&mut self) {
        let Some(mut sparse) = self.unpacked.take() else {
            return;
        };
        for packed in self.table.packed_mut() {
            if let Some(index) = packed.unpacked_index() {
                *packed =
                    packed.with_index(sparse.move_to(self.unpacked.get_or_insert_default(), index));
            }
        }
    }
}

/// Removes the unpacked state of a removed entry, if it has one.
fn remove_unpacked(unpacked: &mut Option<Box<UnpackedStates>>, removed: Option<Packed>) {
    if let (Some(index), Some(unpacked)) = (removed.and_then(Packed::unpacked_index), unpacked) {
        unpacked.remove(index);
    }
}
