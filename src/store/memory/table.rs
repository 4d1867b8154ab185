//! The entries of one shard: a hash table of little more than it holds, and without a pointer, a flag or an allocation per entry.
//!
//! One block of slots in the order of their keys, with gaps. A key's home is its share of the block, so that it is found within a few slots
//! of it, most often in the same cache line; keys are hashes, and fall evenly. Who comes later moves those behind it up to the next gap. Why
//! not hashbrown, which is the better table: it doubles, so that half of it may be empty, and a byte per bucket and what surrounds it are a
//! tenth of what Weir keeps. This one grows by a quarter, moves with one pass and gives any slot by its number, which is what it takes to
//! drop one of a few chosen by chance.

use super::packed::Packed;
use crate::time::Micros;

/// What a key is known by: a keyed hash of it, never zero.
pub(super) type Fingerprint = u128;

/// A key and its state. All zero: a gap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) key: Fingerprint,
    pub(super) packed: Packed,
}

impl Entry {
    const GAP: Self = Self { key: 0, packed: Packed::NOTHING };

    const fn is_gap(&self) -> bool {
        self.key == 0
    }
}

/// The table. Every entry is at its home or behind it with no gap between, and behind all smaller keys.
#[derive(Debug, Default)]
pub(super) struct Table {
    slots: Box<[Entry]>,
    len: usize,
}

/// Slots of the smallest table.
const SMALLEST: usize = 4;

/// Slots behind the last home at most, for what is moved up. A fuller table that needs more grows a little early.
const MOST_BEHIND: usize = 16;

impl Table {
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// The slot of a key.
    pub(super) fn find(&self, key: Fingerprint) -> Option<usize> {
        let slot = self.first_not_before(key);
        self.slots.get(slot).is_some_and(|entry| entry.key == key).then_some(slot)
    }

    pub(super) fn get(&self, slot: usize) -> Packed {
        self.slots[slot].packed
    }

    pub(super) fn set(&mut self, slot: usize, packed: Packed) {
        self.slots[slot].packed = packed;
    }

    /// Adds a key that is not in it.
    pub(super) fn insert(&mut self, entry: Entry) {
        if self.len >= most(self.slots.len()) {
            self.rebuild(grown(self.slots.len()));
        }
        while !self.try_insert(entry) {
            self.rebuild(grown(self.slots.len()));
        }
        self.len += 1;
    }

    fn try_insert(&mut self, entry: Entry) -> bool {
        let slot = self.first_not_before(entry.key);
        let Some(behind) = self.slots.get(slot..) else { return false };
        let Some(moved) = behind.iter().position(Entry::is_gap) else { return false };
        self.slots.copy_within(slot..slot + moved, slot + 1);
        self.slots[slot] = entry;
        true
    }

    /// Takes the entry out of a slot; those behind it move back towards their homes.
    pub(super) fn remove(&mut self, slot: usize) -> Entry {
        let homes = homes(self.slots.len());
        let removed = self.slots[slot];
        let is_settled = |(at, entry): (usize, &Entry)| entry.is_gap() || home(entry.key, homes) == at;
        let behind = self.slots.iter().enumerate().skip(slot + 1).position(is_settled);
        let end = behind.map_or(self.slots.len(), |moved| slot + 1 + moved);
        self.slots.copy_within(slot + 1..end, slot);
        self.slots[end - 1] = Entry::GAP;
        self.len -= 1;
        removed
    }

    /// Of so many entries from a slot on, the one that recovers soonest. Behind the last slot comes the first.
    pub(super) fn soonest_of(&self, sample: usize, from: usize) -> Option<usize> {
        let (before, behind) = self.slots.split_at(from.min(self.slots.len()));
        let slots = (from..).zip(behind).chain(before.iter().enumerate());
        slots.filter(|(_, entry)| !entry.is_gap()).take(sample).min_by_key(|(_, entry)| entry.packed.recovers()).map(|(slot, _)| slot)
    }

    /// How many slots there are, gaps included.
    pub(super) const fn slots(&self) -> usize {
        self.slots.len()
    }

    /// Removes what has recovered, and calls `forget` with it. What is left moves towards its home.
    pub(super) fn sweep(&mut self, now: Micros, mut forget: impl FnMut(Packed)) {
        let has_recovered = |entry: &Entry| !entry.is_gap() && entry.packed.recovers() <= now;
        // Most often there is nothing to do, and nothing is written.
        let Some(first) = self.slots.iter().position(has_recovered) else { return };
        let homes = homes(self.slots.len());
        let mut next = first;
        for slot in first..self.slots.len() {
            let entry = std::mem::take(&mut self.slots[slot]);
            if has_recovered(&entry) {
                forget(entry.packed);
                self.len -= 1;
            } else if !entry.is_gap() {
                // Never behind the slot that it comes from.
                next = next.max(home(entry.key, homes));
                self.slots[next] = entry;
                next += 1;
            }
        }
        if self.len < self.slots.len() / 4 {
            self.shrink();
        }
    }

    /// The states, to be changed.
    pub(super) fn packed_mut(&mut self) -> impl Iterator<Item = &mut Packed> {
        self.slots.iter_mut().filter(|entry| !entry.is_gap()).map(|entry| &mut entry.packed)
    }

    fn shrink(&mut self) {
        if self.len == 0 {
            *self = Self::default();
        } else {
            self.rebuild((self.len + self.len / 2).max(SMALLEST));
        }
    }

    /// Moves all entries into so many slots, or a few more when chance has crowded them at the end.
    fn rebuild(&mut self, mut slots: usize) {
        loop {
            if let Some(rebuilt) = self.spread(slots) {
                self.slots = rebuilt;
                return;
            }
            slots = grown(slots);
        }
    }

    fn spread(&self, slots: usize) -> Option<Box<[Entry]>> {
        let mut rebuilt = vec![Entry::GAP; slots].into_boxed_slice();
        let (homes, mut next) = (homes(slots), 0);
        for entry in self.slots.iter().filter(|entry| !entry.is_gap()) {
            next = home(entry.key, homes).max(next);
            *rebuilt.get_mut(next)? = *entry;
            next += 1;
        }
        Some(rebuilt)
    }

    /// The slot of a key, or where it belongs.
    fn first_not_before(&self, key: Fingerprint) -> usize {
        let home = home(key, homes(self.slots.len()));
        let behind = self.slots.get(home..).unwrap_or_default();
        home + behind.iter().position(|entry| entry.is_gap() || entry.key >= key).unwrap_or(behind.len())
    }
}

/// How many of the slots are homes.
const fn homes(slots: usize) -> usize {
    let behind = slots / 8;
    slots - if behind < MOST_BEHIND { behind } else { MOST_BEHIND }
}

/// The key's upper half, in proportion: a larger key has no smaller home.
const fn home(key: Fingerprint, homes: usize) -> usize {
    (((key >> 64) * homes as u128) >> 64) as usize
}

/// How many entries so many slots take: seven of eight.
const fn most(slots: usize) -> usize {
    slots - slots.div_ceil(8)
}

/// A quarter more.
const fn grown(slots: usize) -> usize {
    let more = slots / 4;
    slots + if more > SMALLEST { more } else { SMALLEST }
}

#[cfg(test)]
mod tests;
