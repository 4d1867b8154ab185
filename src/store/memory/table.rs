//! The entries of one shard: a hash table with linear probing in key order, without a pointer, a
//! flag or an allocation per entry.
//!
//! The entries are sorted by key, with gaps between them. The home slot of a key is proportional to
//! its upper half. Keys are hashes and evenly distributed: a key is found within a few slots of its
//! home, most often in the same cache line. An insertion moves the entries after it up to the next
//! gap.
//!
//! Why not hashbrown: it doubles, after which half of it may be empty, and its control byte per
//! bucket and allocation overhead are a tenth of the memory that Weir keeps. This table grows by a
//! quarter and in place, and returns any slot by its number, which sampling for eviction needs.
//!
//! The slots are in blocks of one size, which come from a pool and return to it. Growing appends
//! blocks and spreads the entries, shrinking is the reverse. Nothing is copied to fresh memory, and
//! the allocator is not called while the pool has blocks.
//!
//! Why not one allocation per table: freeing pieces of many sizes makes the allocator sort, join
//! and return them to the system at times of its own, and the system zeroes fresh memory when it is
//! first touched. Either can take milliseconds, and a request would wait for it. Here a block that
//! one table frees fits every other table. [`BlockPool::maintain`] allocates blocks ahead and frees
//! those that no table needs; requests must not call it.
//!
//! glibc's allocator took up to a millisecond to find space for a table where many had been freed,
//! and up to five to return memory. The control thread maintains the pool, outside the lock of
//! every shard, and at its normal priority: a thread that holds the lock of a shard must not be
//! preempted for long.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use smallvec::SmallVec;

use super::packed::{Packed, UsedShare};
use crate::core::fingerprint::Fingerprint;
use crate::core::time::Micros;
use crate::core::{lock, try_lock};

/// The fingerprint of a counter key; never zero, which marks a gap.
pub(super) type EntryKey = u128;

pub(super) fn key_of(fingerprint: Fingerprint) -> EntryKey {
    fingerprint.bits().max(1)
}

/// A key and its state. A slot without an entry is all zero: a gap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) key: EntryKey,
    pub(super) packed: Packed,
}

impl Entry {
    pub(super) const GAP: Self = Self {
        key: 0,
        packed: Packed::EMPTY,
    };

    pub(super) const fn is_gap(&self) -> bool {
        self.key == 0
    }
}

/// The table. Invariant: every entry is at its home slot or after it with no gap between, and after
/// all smaller keys.
#[derive(Debug, Default)]
pub(super) struct Table {
    blocks: Blocks,
    len: usize,
}

/// Keys of which an eviction chooses one.
pub(super) const SAMPLE: usize = 5;

/// Keys of which an eviction chooses one while it finds only keys that have nothing left. If nine of
/// ten keys have nothing left, it still finds another one in 97 of 100 cases.
const LONGEST_SAMPLE: usize = 32;

/// Maximum number of slots after the last home, for entries that are moved up. A table that needs
/// more of them grows a little early.
const MAX_OVERFLOW_SLOTS: usize = 16;

impl Table {
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// The slot of a key.
    pub(super) fn find(&self, key: EntryKey) -> Option<usize> {
        let slot = self.first_not_before(key)?;
        (self.at(slot).key == key).then_some(slot)
    }

    pub(super) fn get(&self, slot: usize) -> Packed {
        self.at(slot).packed
    }

    pub(super) fn set(&mut self, slot: usize, packed: Packed) {
        self.at_mut(slot).packed = packed;
    }

    /// Adds a key that the table does not hold.
    pub(super) fn insert(&mut self, entry: Entry, pool: &BlockPool) {
        // At most seven eighths of the slots are used.
        if self.len >= self.slots() / 8 * 7 {
            self.grow(pool);
        }
        while !self.try_insert(entry) {
            self.grow(pool);
        }
        self.len += 1;
    }

    fn try_insert(&mut self, entry: Entry) -> bool {
        let Some(slot) = self.first_not_before(entry.key) else {
            return false;
        };
        let Some(gap) = self.first(slot, Entry::is_gap) else {
            return false;
        };
        for next in (slot..gap).rev() {
            *self.at_mut(next + 1) = *self.at(next);
        }
        *self.at_mut(slot) = entry;
        true
    }

    /// Removes the entry in a slot and moves the entries after it back towards their homes.
    pub(super) fn remove(&mut self, slot: usize) -> Entry {
        let homes = homes(self.slots());
        let removed = *self.at(slot);
        let is_home = |&at: &usize| self.at(at).is_gap() || home(self.at(at).key, homes) == at;
        let end = (slot + 1..self.slots())
            .find(is_home)
            .unwrap_or(self.slots());
        for next in slot + 1..end {
            *self.at_mut(next - 1) = *self.at(next);
        }
        *self.at_mut(end - 1) = Entry::GAP;
        self.len -= 1;
        removed
    }

    /// The slot of the entry with the least loss at `now`, of the first [`SAMPLE`] that may go from
    /// the slot `from` on, or of up to [`LONGEST_SAMPLE`] if all have nothing left. The first slot
    /// follows the last.
    pub(super) fn least_loss(
        &self,
        from: usize,
        now: Micros,
        may_go: impl Fn(Packed) -> bool,
    ) -> Option<usize> {
        let slots = (from..self.slots()).chain(0..from.min(self.slots()));
        let mut slots = slots.filter(|&slot| !self.at(slot).is_gap() && may_go(self.get(slot)));
        let loss = |slot: usize| self.get(slot).loss(now);
        let mut least = slots.by_ref().take(SAMPLE).min_by_key(|&slot| loss(slot))?;
        for slot in slots.take(LONGEST_SAMPLE - SAMPLE) {
            if self.get(least).used() < UsedShare::NOTHING_LEFT || loss(least) == 0 {
                break;
            }
            if loss(slot) < loss(least) {
                least = slot;
            }
        }
        Some(least)
    }

    /// The number of slots, gaps included.
    pub(super) fn slots(&self) -> usize {
        self.blocks.len() * SLOTS
    }

    /// Removes the entries that have recovered at `now`, calls `removed` with each, and moves the
    /// others towards their homes. Blocks that the table no longer needs go to `freed`.
    pub(super) fn sweep(
        &mut self,
        now: Micros,
        freed: &mut FreedBlocks,
        mut removed: impl FnMut(Packed),
    ) {
        let has_recovered = |entry: &Entry| !entry.is_gap() && entry.packed.recovers() <= now;
        // Usually none has, and then nothing is written. Keys that were evicted may have left
        // space.
        let first = self.first(0, has_recovered).unwrap_or(self.slots());
        let mut gone = 0;
        let all_fit = self.move_home(first, first, |entry| {
            let goes = has_recovered(entry);
            if goes {
                removed(entry.packed);
                gone += 1;
            }
            !goes
        });
        debug_assert!(
            all_fit,
            "an entry that moves towards its home never ends behind its old slot"
        );
        self.len -= gone;
        if self.len < self.slots() / 4 {
            self.shrink(freed);
        }
    }

    /// All states.
    pub(super) fn packed_mut(&mut self) -> impl Iterator<Item = &mut Packed> {
        self.blocks
            .iter_mut()
            .flat_map(|block| block.iter_mut())
            .filter(|entry| !entry.is_gap())
            .map(|entry| &mut entry.packed)
    }

    /// Grows by a quarter, or by more when the entries crowd at the end by chance.
    fn grow(&mut self, pool: &BlockPool) {
        loop {
            pool.take((self.blocks.len() / 4).max(1), &mut self.blocks);
            if self.spread() {
                return;
            }
        }
    }

    /// Shrinks to one and a half times as many slots as entries.
    fn shrink(&mut self, freed: &mut FreedBlocks) {
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
        freed.extend(self.blocks.drain(wanted..));
        // With all blocks that there were before, the entries fit in any case.
        while !self.spread() {
            self.blocks.extend(freed.pop());
        }
    }

    /// Moves all entries to their homes among the present slots. Returns false if they do not all
    /// fit after their homes: nothing is lost, but the table needs more slots.
    fn spread(&mut self) -> bool {
        let mut begin = self.slots();
        for slot in (0..self.slots()).rev() {
            let entry = std::mem::take(self.at_mut(slot));
            if !entry.is_gap() {
                begin -= 1;
                *self.at_mut(begin) = entry;
            }
        }
        self.move_home(begin, 0, |_| true)
    }

    /// Moves each entry from the slot `first` on down to its home or to the next free slot after
    /// it, and drops entries for which `stays` is false. `next` is the first slot that may be used.
    /// Returns false at an entry whose new slot would be after its present one.
    fn move_home(
        &mut self,
        first: usize,
        mut next: usize,
        mut stays: impl FnMut(&Entry) -> bool,
    ) -> bool {
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

    /// The slot of a key, or the slot to insert it at; `None` if that is after the last slot.
    fn first_not_before(&self, key: EntryKey) -> Option<usize> {
        self.first(home(key, homes(self.slots())), |entry| {
            entry.is_gap() || entry.key >= key
        })
    }

    /// The first slot from `from` on whose entry matches.
    fn first(&self, from: usize, matches: impl Fn(&Entry) -> bool) -> Option<usize> {
        let mut skipped = from % SLOTS;
        for (index, block) in self.blocks.iter().enumerate().skip(from / SLOTS) {
            if let Some(behind) = block[skipped..].iter().position(&matches) {
                return Some(index * SLOTS + skipped + behind);
            }
            skipped = 0;
        }
        None
    }

    fn at(&self, slot: usize) -> &Entry {
        &self.blocks[slot / SLOTS][slot % SLOTS]
    }

    fn at_mut(&mut self, slot: usize) -> &mut Entry {
        &mut self.blocks[slot / SLOTS][slot % SLOTS]
    }
}

/// Number of home slots among `slots` slots.
fn homes(slots: usize) -> usize {
    slots - (slots / 8).min(MAX_OVERFLOW_SLOTS)
}

/// The home slot, in proportion to the upper half of the key: a larger key never has a smaller
/// home.
const fn home(key: EntryKey, homes: usize) -> usize {
    (((key >> 64) * homes as u128) >> 64) as usize
}

/// Slots of a block. A block is 4 KiB: the half-empty last block of a table is small compared with
/// its thousand keys.
pub(super) const SLOTS: usize = 128;

/// A piece of a table. In the pool it holds gaps only.
pub(super) type Block = Box<[Entry; SLOTS]>;

/// The blocks of one table. A full shard's blocks are stored inline next to its lock, because one
/// more pointer to follow is a quarter of a lookup.
pub(super) type Blocks = SmallVec<[Block; 12]>;

/// Blocks that a table no longer needs; usually so few that they need no allocation while a shard
/// is locked.
pub(super) type FreedBlocks = SmallVec<[Block; 16]>;

/// Blocks in use for each block that the pool keeps ready.
const ONE_READY_OF: usize = 16;

/// The most blocks that are kept ready: 2 MiB, for fifty thousand new keys between two calls of
/// [`BlockPool::maintain`].
const MAX_READY: usize = 512;

/// The most blocks that one call of [`BlockPool::maintain`] allocates or frees, because its thread
/// has other work.
const MAX_AT_ONCE: usize = 64;

/// Blocks that are ready for tables.
#[derive(Debug, Default)]
pub(super) struct BlockPool {
    ready: Mutex<Vec<Block>>,
    /// Blocks that the tables have.
    used: AtomicUsize,
}

impl BlockPool {
    /// Adds `count` blocks to the blocks of a table. Never waits: when the pool is empty or its
    /// lock is taken, allocates them.
    pub(super) fn take(&self, count: usize, blocks: &mut Blocks) {
        self.used.fetch_add(count, Ordering::Relaxed);
        let wanted = blocks.len() + count;
        blocks.reserve(count);
        if let Some(mut ready) = try_lock(&self.ready) {
            let rest = ready.len().saturating_sub(count);
            blocks.extend(ready.drain(rest..));
        }
        blocks.resize_with(wanted, new);
    }

    /// Takes back the blocks that a table freed. Must not be called while a shard is locked.
    pub(super) fn refund(&self, freed: FreedBlocks) {
        if freed.is_empty() {
            return;
        }
        self.used.fetch_sub(freed.len(), Ordering::Relaxed);
        lock(&self.ready).extend(freed);
    }

    /// Brings the number of ready blocks nearer to its target: allocates blocks, or returns them to
    /// the allocator, both without the lock.
    pub(super) fn maintain(&self) {
        let wanted = (self.used.load(Ordering::Relaxed) / ONE_READY_OF).min(MAX_READY);
        let mut ready = lock(&self.ready);
        let len = ready.len();
        if len < wanted {
            drop(ready);
            // A new block is written at once, to map its pages before a request needs them.
            let added: Vec<_> = (len..wanted).take(MAX_AT_ONCE).map(|_| new()).collect();
            lock(&self.ready).extend(added);
        } else if len > 2 * wanted {
            // Up to twice the target stay, because the number of blocks in use goes up and down.
            let surplus = ready.split_off(wanted.max(len.saturating_sub(MAX_AT_ONCE)));
            drop(ready);
            drop(surplus);
        }
    }

    /// The number of ready blocks.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        lock(&self.ready).len()
    }
}

fn new() -> Block {
    Box::new([Entry::GAP; SLOTS])
}

#[cfg(test)]
mod tests;
