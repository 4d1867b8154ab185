//! The entries of one shard: a hash table of little more than it holds, and without a pointer, a flag or an allocation per entry.
//!
//! Slots in the order of their keys, with gaps. A key's home is its share of the slots, so that it is found within a few slots of it, most
//! often in the same cache line; keys are hashes, and fall evenly. Who comes later moves those behind it up to the next gap. Why not
//! hashbrown, which is the better table: it doubles, so that half of it may be empty, and a byte per bucket and what surrounds it are a
//! tenth of what Weir keeps. This one grows by a quarter, moves in its place and gives any slot by its number, which is what it takes to
//! drop one of a few chosen by chance.
//!
//! The slots are in blocks of one size (see [`super::blocks`]). To grow is to put blocks behind the last one and to spread the entries, to
//! shrink the reverse: nothing is copied to fresh memory, and no allocator is asked while the pool has blocks.

use super::blocks::{Blocks, Left, Pool, SLOTS};
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
    pub(super) const GAP: Self = Self { key: 0, packed: Packed::NOTHING };

    const fn is_gap(&self) -> bool {
        self.key == 0
    }
}

/// The table. Every entry is at its home or behind it with no gap between, and behind all smaller keys.
#[derive(Debug, Default)]
pub(super) struct Table {
    blocks: Blocks,
    len: usize,
}

/// Slots behind the last home at most, for what is moved up. A fuller table that needs more grows a little early.
const MOST_BEHIND: usize = 16;

impl Table {
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// The slot of a key.
    pub(super) fn find(&self, key: Fingerprint) -> Option<usize> {
        let slot = self.first_not_before(key)?;
        (self.at(slot).key == key).then_some(slot)
    }

    pub(super) fn get(&self, slot: usize) -> Packed {
        self.at(slot).packed
    }

    pub(super) fn set(&mut self, slot: usize, packed: Packed) {
        self.at_mut(slot).packed = packed;
    }

    /// Adds a key that is not in it.
    pub(super) fn insert(&mut self, entry: Entry, pool: &Pool) {
        if self.len >= most(self.slots()) {
            self.grow(pool);
        }
        while !self.try_insert(entry) {
            self.grow(pool);
        }
        self.len += 1;
    }

    fn try_insert(&mut self, entry: Entry) -> bool {
        let Some(slot) = self.first_not_before(entry.key) else { return false };
        let Some(gap) = self.first(slot, Entry::is_gap) else { return false };
        self.shift_up(slot, gap);
        *self.at_mut(slot) = entry;
        true
    }

    /// Takes the entry out of a slot; those behind it move back towards their homes.
    pub(super) fn remove(&mut self, slot: usize) -> Entry {
        let homes = homes(self.slots());
        let removed = *self.at(slot);
        let is_settled = |&at: &usize| self.at(at).is_gap() || home(self.at(at).key, homes) == at;
        let end = (slot + 1..self.slots()).find(is_settled).unwrap_or(self.slots());
        self.shift_down(slot, end);
        *self.at_mut(end - 1) = Entry::GAP;
        self.len -= 1;
        removed
    }

    /// Of so many entries from a slot on, the one that recovers soonest. Behind the last slot comes the first.
    pub(super) fn soonest_of(&self, sample: usize, from: usize) -> Option<usize> {
        let slots = (from..self.slots()).chain(0..from.min(self.slots()));
        slots.filter(|&slot| !self.at(slot).is_gap()).take(sample).min_by_key(|&slot| self.at(slot).packed.recovers())
    }

    /// How many slots there are, gaps included.
    pub(super) fn slots(&self) -> usize {
        self.blocks.len() * SLOTS
    }

    /// Removes what has recovered, and calls `forget` with it. What is left moves towards its home; blocks that are left over go to `left`.
    pub(super) fn sweep(&mut self, now: Micros, left: &mut Left, mut forget: impl FnMut(Packed)) {
        let has_recovered = |entry: &Entry| !entry.is_gap() && entry.packed.recovers() <= now;
        // Most often there is nothing to do, and nothing is written.
        let Some(first) = self.first(0, has_recovered) else { return };
        let mut gone = 0;
        let all_fit = self.settle(first, first, |entry| {
            let goes = has_recovered(entry);
            if goes {
                forget(entry.packed);
                gone += 1;
            }
            !goes
        });
        debug_assert!(all_fit, "who moves towards its home never comes behind where it was");
        self.len -= gone;
        if self.len < self.slots() / 4 {
            self.shrink(left);
        }
    }

    /// The states, to be changed.
    pub(super) fn packed_mut(&mut self) -> impl Iterator<Item = &mut Packed> {
        self.blocks.iter_mut().flat_map(|block| block.iter_mut()).filter(|entry| !entry.is_gap()).map(|entry| &mut entry.packed)
    }

    /// A quarter more, or a little more than that when chance has crowded the entries at the end.
    fn grow(&mut self, pool: &Pool) {
        loop {
            pool.take((self.blocks.len() / 4).max(1), &mut self.blocks);
            if self.spread() {
                return;
            }
        }
    }

    /// Keeps half as many slots again as there are entries.
    fn shrink(&mut self, left: &mut Left) {
        let wanted = (self.len + self.len / 2).div_ceil(SLOTS);
        if wanted >= self.blocks.len() {
            return;
        }
        let mut next = 0;
        for slot in 0..self.slots() {
            let entry = std::mem::take(self.at_mut(slot));
            if !entry.is_gap() {
                *self.at_mut(next) = entry;
                next += 1;
            }
        }
        left.extend(self.blocks.drain(wanted..));
        // As many as there were are enough in any case.
        while !self.spread() {
            self.blocks.extend(left.pop());
        }
    }

    /// Moves all entries to where they belong among the slots that there are now. False: they do not all fit behind their homes; nothing is
    /// lost, but they have to be spread among more slots.
    fn spread(&mut self) -> bool {
        let mut begin = self.slots();
        for slot in (0..self.slots()).rev() {
            let entry = std::mem::take(self.at_mut(slot));
            if !entry.is_gap() {
                begin -= 1;
                *self.at_mut(begin) = entry;
            }
        }
        self.settle(begin, 0, |_| true)
    }

    /// Moves each entry from the slot `first` on to its home, or to the next slot behind it; those that do not stay go. `next` is where the
    /// first one may go at the earliest. False: one belongs behind where it is, because it and those behind it find too little room.
    fn settle(&mut self, first: usize, mut next: usize, mut stays: impl FnMut(&Entry) -> bool) -> bool {
        let homes = homes(self.slots());
        for slot in first..self.slots() {
            let entry = std::mem::take(self.at_mut(slot));
            if entry.is_gap() || !stays(&entry) {
                continue;
            }
            next = home(entry.key, homes).max(next);
            if next > slot {
                *self.at_mut(slot) = entry;
                return false;
            }
            *self.at_mut(next) = entry;
            next += 1;
        }
        true
    }

    /// The slot of a key, or where it belongs; none when that is behind the last slot.
    fn first_not_before(&self, key: Fingerprint) -> Option<usize> {
        self.first(home(key, homes(self.slots())), |entry| entry.is_gap() || entry.key >= key)
    }

    /// The first slot from one on that is what is looked for.
    fn first(&self, from: usize, is_it: impl Fn(&Entry) -> bool) -> Option<usize> {
        let mut skipped = from % SLOTS;
        for (index, block) in self.blocks.iter().enumerate().skip(from / SLOTS) {
            if let Some(behind) = block[skipped..].iter().position(&is_it) {
                return Some(index * SLOTS + skipped + behind);
            }
            skipped = 0;
        }
        None
    }

    /// Moves the entries of `from..to` up by one slot; what is at `to` is lost.
    fn shift_up(&mut self, from: usize, to: usize) {
        let mut end = to;
        while end > from {
            let (block, at) = (end / SLOTS, end % SLOTS);
            if at == 0 {
                self.blocks[block][0] = self.blocks[block - 1][SLOTS - 1];
                end -= 1;
            } else {
                let begin = from.max(block * SLOTS);
                self.blocks[block].copy_within(begin % SLOTS..at, begin % SLOTS + 1);
                end = begin;
            }
        }
    }

    /// Moves the entries behind `from` and before `to` down by one slot; what is at `from` is lost.
    fn shift_down(&mut self, from: usize, to: usize) {
        let mut begin = from;
        while begin + 1 < to {
            let (block, at) = (begin / SLOTS, begin % SLOTS);
            if at == SLOTS - 1 {
                self.blocks[block][at] = self.blocks[block + 1][0];
                begin += 1;
            } else {
                let end = to.min((block + 1) * SLOTS);
                self.blocks[block].copy_within(at + 1..end - block * SLOTS, at);
                begin = end - 1;
            }
        }
    }

    fn at(&self, slot: usize) -> &Entry {
        &self.blocks[slot / SLOTS][slot % SLOTS]
    }

    fn at_mut(&mut self, slot: usize) -> &mut Entry {
        &mut self.blocks[slot / SLOTS][slot % SLOTS]
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

#[cfg(test)]
mod tests;
