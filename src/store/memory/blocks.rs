//! The memory of the tables: blocks of one size, and the pool that they come from and return to.
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

use super::entry::Entry;
use crate::core::{lock, try_lock};

/// Slots of a block. A block is 4 KiB, so that the half-empty last block of a table is small beside
/// its thousand keys.
pub(super) const SLOTS: usize = 128;

/// A piece of a table. In the pool it holds gaps only.
pub(super) type Block = Box<[Entry; SLOTS]>;

/// The blocks of one table. Those of a full shard stand inline beside its lock, because one more
/// pointer to follow is a quarter of a look-up.
pub(super) type Blocks = SmallVec<[Block; 12]>;

/// Blocks that a table no longer needs; usually so few that they need no allocation while a shard
/// is locked.
pub(super) type FreedBlocks = SmallVec<[Block; 16]>;

/// The pool keeps one block ready for so many in use.
const ONE_READY_OF: usize = 16;

/// The most blocks that are kept ready: 2 MiB, for fifty thousand new keys between two calls of
/// [`BlockPool::maintain`].
const MAX_READY: usize = 512;

/// The most blocks that one call of [`BlockPool::maintain`] allocates or frees, because its thread has
/// other work.
const MAX_AT_ONCE: usize = 64;

/// Blocks that are ready for tables.
#[derive(Debug, Default)]
pub(super) struct BlockPool {
    ready: Mutex<Vec<Block>>,
    /// How many are ready. May be behind `ready` by one call that is under way.
    len: AtomicUsize,
    /// How many the tables have.
    used: AtomicUsize,
}

impl BlockPool {
    /// Adds `count` blocks to those of a table. Never waits: when the pool is empty or its lock is
    /// taken, allocates them.
    pub(super) fn take(&self, count: usize, blocks: &mut Blocks) {
        self.used.fetch_add(count, Ordering::Relaxed);
        let wanted = blocks.len() + count;
        blocks.reserve(count);
        if let Some(mut ready) = try_lock(&self.ready) {
            let rest = ready.len().saturating_sub(count);
            blocks.extend(ready.drain(rest..));
            self.len.store(rest, Ordering::Relaxed);
        }
        blocks.resize_with(wanted, new);
    }

    /// Takes back what a table freed. Must not be called while a shard is locked.
    pub(super) fn give_back(&self, freed: FreedBlocks) {
        if freed.is_empty() {
            return;
        }
        self.used.fetch_sub(freed.len(), Ordering::Relaxed);
        self.add(freed);
    }

    /// Brings the number of ready blocks nearer to its target: allocates blocks, or returns them to
    /// the allocator.
    pub(super) fn maintain(&self) {
        let (wanted, len) = (
            (self.used.load(Ordering::Relaxed) / ONE_READY_OF).min(MAX_READY),
            self.len.load(Ordering::Relaxed),
        );
        if len < wanted {
            // A new block is written at once, so that its pages are mapped before a request needs
            // them.
            self.add(
                (len..wanted)
                    .take(MAX_AT_ONCE)
                    .map(|_| new())
                    .collect::<Vec<_>>(),
            );
        } else if len > 2 * wanted {
            // Up to twice the target stay, because the number of blocks in use goes up and down.
            drop(self.take_surplus(wanted));
        }
    }

    /// The number of ready blocks.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        lock(&self.ready).len()
    }

    fn add(&self, blocks: impl IntoIterator<Item = Block>) {
        let mut ready = lock(&self.ready);
        ready.extend(blocks);
        self.len.store(ready.len(), Ordering::Relaxed);
    }

    /// Takes out some of the blocks beyond `wanted`; the caller frees them without the lock.
    fn take_surplus(&self, wanted: usize) -> Vec<Block> {
        let mut surplus = Vec::with_capacity(MAX_AT_ONCE);
        let mut ready = lock(&self.ready);
        let rest = ready
            .len()
            .saturating_sub(MAX_AT_ONCE)
            .max(wanted.min(ready.len()));
        surplus.extend(ready.drain(rest..));
        self.len.store(ready.len(), Ordering::Relaxed);
        surplus
    }
}

fn new() -> Block {
    Box::new([Entry::GAP; SLOTS])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn maintain(pool: &BlockPool) {
        (0..100).for_each(|_| pool.maintain());
    }

    #[test]
    fn a_part_of_what_is_used_is_kept_ready_and_no_more() {
        let (pool, mut blocks) = (BlockPool::default(), Blocks::new());
        maintain(&pool);
        assert_eq!(pool.len(), 0, "an empty store keeps nothing");
        pool.take(1_600, &mut blocks);
        maintain(&pool);
        assert_eq!((blocks.len(), pool.len()), (1_600, 100));
        pool.give_back(blocks.drain(..).collect());
        assert_eq!(pool.len(), 1_700);
        maintain(&pool);
        assert_eq!(pool.len(), 0);
    }

    #[test]
    fn it_is_bounded() {
        let pool = BlockPool::default();
        pool.used.store(1_000_000, Ordering::Relaxed);
        maintain(&pool);
        assert_eq!(pool.len(), MAX_READY);
    }

    #[test]
    fn what_one_left_the_next_one_gets() {
        let (pool, mut blocks) = (BlockPool::default(), Blocks::new());
        pool.take(3, &mut blocks);
        let first = &raw const *blocks[0];
        pool.give_back(blocks.drain(..1).collect());
        pool.take(2, &mut blocks);
        assert_eq!((blocks.len(), pool.len()), (4, 0));
        assert!(blocks.iter().any(|block| &raw const **block == first));
    }

    #[test]
    fn who_finds_it_busy_makes_a_block() {
        let (pool, mut blocks) = (BlockPool::default(), Blocks::new());
        let busy = pool.ready.lock().expect("no thread panicked with the lock");
        pool.take(2, &mut blocks);
        assert_eq!(blocks.len(), 2);
        drop(busy);
    }
}
