//! One shard: a table of packed states, and beside it those that cannot be packed.
//!
//! Everything here is done under the shard's lock, and takes no longer than its few keys.

use super::blocks::{Left, Pool};
use super::others::Others;
use super::packed::Packed;
use super::table::{Entry, Fingerprint, Table};
use crate::algorithm::{Algorithm, State};
use crate::time::Micros;

/// The keys of one shard.
#[derive(Debug, Default)]
pub(super) struct Shard {
    table: Table,
    /// Most shards have none.
    others: Option<Box<Others>>,
}

/// A state to be written.
#[derive(Debug)]
pub(super) struct Change<'a> {
    pub(super) state: State,
    /// The one that made it.
    pub(super) algorithm: &'a Algorithm,
    /// When the state means no more than a missing one.
    pub(super) recovers: Micros,
}

impl Shard {
    /// The slot of a key, until a key is added or removed.
    pub(super) fn find(&self, key: Fingerprint) -> Option<usize> {
        self.table.find(key)
    }

    /// The state in a slot, to be put back or replaced; none if another algorithm's.
    pub(super) fn take(&mut self, slot: usize, algorithm: &Algorithm) -> Option<State> {
        let packed = self.table.get(slot);
        match (packed.place(), &mut self.others) {
            (Some(place), Some(others)) => others.take(place),
            _ => packed.state(algorithm),
        }
    }

    /// A copy of the state of a key.
    pub(super) fn peek(&self, key: Fingerprint, algorithm: &Algorithm) -> Option<State> {
        let packed = self.table.get(self.table.find(key)?);
        match (packed.place(), &self.others) {
            (Some(place), Some(others)) => others.peek(place),
            _ => packed.state(algorithm),
        }
    }

    /// Ends a step that changed nothing.
    pub(super) fn put_back(&mut self, slot: usize, state: State) {
        if let (Some(place), Some(others)) = (self.table.get(slot).place(), &mut self.others) {
            others.put_back(place, state);
        }
    }

    /// Ends a step that changed the state.
    pub(super) fn replace(&mut self, slot: usize, change: Change<'_>) {
        let packed = match (self.table.get(slot).place(), &mut self.others) {
            (Some(place), Some(others)) => match Packed::new(&change.state, change.algorithm, change.recovers) {
                Some(packed) => {
                    others.free(place);
                    packed
                }
                None => {
                    others.put_back(place, change.state);
                    Packed::elsewhere(place, change.recovers)
                }
            },
            _ => self.pack(change),
        };
        self.table.set(slot, packed);
    }

    /// Adds a key that is not there.
    pub(super) fn add(&mut self, key: Fingerprint, change: Change<'_>, pool: &Pool) {
        let packed = self.pack(change);
        self.table.insert(Entry { key, packed }, pool);
    }

    fn pack(&mut self, change: Change<'_>) -> Packed {
        Packed::new(&change.state, change.algorithm, change.recovers).unwrap_or_else(|| {
            let place = self.others.get_or_insert_default().add(change.state);
            Packed::elsewhere(place, change.recovers)
        })
    }

    /// Drops, of so many keys, the one that recovers soonest: least is forgotten with it. False: there is none.
    pub(super) fn drop_one_of(&mut self, sample: usize) -> bool {
        let soonest = self.table.soonest_of(sample, fastrand::usize(..self.table.slots().max(1)));
        let removed = soonest.map(|slot| self.table.remove(slot));
        forget(&mut self.others, removed.map(|entry| entry.packed));
        removed.is_some()
    }

    /// Removes what has recovered, and returns how many keys that were. Blocks that are left over go to `left`.
    pub(super) fn sweep(&mut self, now: Micros, left: &mut Left) -> usize {
        let before = self.table.len();
        self.table.sweep(now, left, |packed| forget(&mut self.others, Some(packed)));
        if self.others.as_ref().is_some_and(|others| others.is_sparse()) {
            self.compact();
        }
        before - self.table.len()
    }

    /// Gives back the places that are free.
    fn compact(&mut self) {
        let Some(mut sparse) = self.others.take() else { return };
        for packed in self.table.packed_mut() {
            if let Some(place) = packed.place() {
                *packed = packed.moved(sparse.move_to(self.others.get_or_insert_default(), place));
            }
        }
    }
}

/// Frees the place of a state that was removed.
fn forget(others: &mut Option<Box<Others>>, removed: Option<Packed>) {
    if let (Some(place), Some(others)) = (removed.and_then(Packed::place), others) {
        others.free(place);
    }
}
