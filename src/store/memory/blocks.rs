//! The memory that tables are made of: blocks of one size, and the pool that they come from and go back to.
//!
//! Why not one allocation per table: an allocator that gets back pieces of many sizes sorts them, joins them and returns them to the system
//! when it sees fit, and fresh memory is zeroed by the system when it is first touched. Each takes up to milliseconds now and then, and a
//! request would wait for it. Here a block that one table leaves is what the next one needs, fresh ones are made ahead, and what nobody needs is
//! given back by whoever calls [`Pool::tend`], which must not be a request.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError, TryLockError};

use smallvec::SmallVec;

use super::table::Entry;

/// Slots of a block: 4 KiB, so that the last block of a table, half empty, matters little beside its thousand keys.
pub(super) const SLOTS: usize = 128;

/// A piece of a table. Outside of one it holds nothing but gaps.
pub(super) type Block = Box<[Entry; SLOTS]>;

/// The blocks of one table. As many as a full shard has stand beside its lock: to follow one more pointer is a quarter of a look-up.
pub(super) type Blocks = SmallVec<[Block; 12]>;

/// What a table left. Few enough, most often, to need no allocation while a shard is locked.
pub(super) type Left = SmallVec<[Block; 16]>;

/// Of so many blocks in use the pool keeps one ready.
const ONE_READY_OF: usize = 16;

/// Blocks that are kept ready at most: 2 MiB, for fifty thousand new keys between two calls of [`Pool::tend`].
const MOST_READY: usize = 512;

/// Blocks that one call of [`Pool::tend`] makes or frees at most, so that the thread that calls it gets on with its other work.
const AT_ONCE: usize = 64;

/// The blocks that are ready.
#[derive(Debug, Default)]
pub(super) struct Pool {
    ready: Mutex<Vec<Block>>,
    /// How many are ready, or will be when who adds them is done.
    len: AtomicUsize,
    /// How many are in tables.
    used: AtomicUsize,
}

impl Pool {
    /// Adds so many blocks to a table's. Never waits: when the pool is empty or busy, they are made here.
    pub(super) fn take(&self, count: usize, blocks: &mut Blocks) {
        self.used.fetch_add(count, Ordering::Relaxed);
        let wanted = blocks.len() + count;
        blocks.reserve(count);
        let ready = match self.ready.try_lock() {
            Ok(ready) => Some(ready),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        };
        if let Some(mut ready) = ready {
            let rest = ready.len().saturating_sub(count);
            blocks.extend(ready.drain(rest..));
            self.len.store(rest, Ordering::Relaxed);
        }
        blocks.resize_with(wanted, new);
    }

    /// Takes back what tables left, however much that is. Must not be called while a shard is locked.
    pub(super) fn give(&self, left: Left) {
        if left.is_empty() {
            return;
        }
        self.used.fetch_sub(left.len(), Ordering::Relaxed);
        self.add(left);
    }

    /// Brings what is ready a step nearer to what should be: makes blocks, or gives them back to the allocator.
    pub(super) fn tend(&self) {
        let (wanted, len) = ((self.used.load(Ordering::Relaxed) / ONE_READY_OF).min(MOST_READY), self.len.load(Ordering::Relaxed));
        if len < wanted {
            // Written, and not only reserved, while nobody waits for it.
            self.add((len..wanted).take(AT_ONCE).map(|_| new()).collect::<Vec<_>>());
        } else if len > 2 * wanted {
            // A few too many stay: they come and go.
            drop(self.cut(wanted));
        }
    }

    /// How many blocks are ready.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.ready.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    fn add(&self, blocks: impl IntoIterator<Item = Block>) {
        let mut ready = self.ready.lock().unwrap_or_else(PoisonError::into_inner);
        ready.extend(blocks);
        self.len.store(ready.len(), Ordering::Relaxed);
    }

    /// Takes out some of what is more than `wanted`, to be freed when nothing is locked.
    fn cut(&self, wanted: usize) -> Vec<Block> {
        let mut surplus = Vec::with_capacity(AT_ONCE);
        let mut ready = self.ready.lock().unwrap_or_else(PoisonError::into_inner);
        let rest = ready.len().saturating_sub(AT_ONCE).max(wanted.min(ready.len()));
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

    fn tend(pool: &Pool) {
        (0..100).for_each(|_| pool.tend());
    }

    #[test]
    fn a_part_of_what_is_used_is_kept_ready_and_no_more() {
        let (pool, mut blocks) = (Pool::default(), Blocks::new());
        tend(&pool);
        assert_eq!(pool.len(), 0, "an empty store keeps nothing");
        pool.take(1_600, &mut blocks);
        tend(&pool);
        assert_eq!((blocks.len(), pool.len()), (1_600, 100));
        pool.give(blocks.drain(..).collect());
        assert_eq!(pool.len(), 1_700);
        tend(&pool);
        assert_eq!(pool.len(), 0);
    }

    #[test]
    fn it_is_bounded() {
        let pool = Pool::default();
        pool.used.store(1_000_000, Ordering::Relaxed);
        tend(&pool);
        assert_eq!(pool.len(), MOST_READY);
    }

    #[test]
    fn what_one_left_the_next_one_gets() {
        let (pool, mut blocks) = (Pool::default(), Blocks::new());
        pool.take(3, &mut blocks);
        let first = &raw const *blocks[0];
        pool.give(blocks.drain(..1).collect());
        pool.take(2, &mut blocks);
        assert_eq!((blocks.len(), pool.len()), (4, 0));
        assert!(blocks.iter().any(|block| &raw const **block == first));
    }

    #[test]
    fn who_finds_it_busy_makes_a_block() {
        let (pool, mut blocks) = (Pool::default(), Blocks::new());
        let busy = pool.ready.lock().expect("nobody panicked");
        pool.take(2, &mut blocks);
        assert_eq!(blocks.len(), 2);
        drop(busy);
    }
}
