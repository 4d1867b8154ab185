//! The memory store: counters in this process, exact with any number of threads.
//!
//! The keys are spread over shards. Each shard has a mutex, which is held for one step of
//! arithmetic, or for all steps of a request that commits all or none, and never across an await. A
//! key is stored as a 128-bit keyed hash (SipHash-1-3 with
//! a random secret), because clients choose the values and must not be able to construct
//! collisions. The store is bounded: when it is full, a new key evicts another one. A restart loses
//! all counters.
//!
//! A shard holds about a thousand keys, whatever the size of the store. Therefore growing,
//! shrinking or sweeping it holds its lock for a few microseconds. The memory for that comes from a
//! pool, which the sweeping thread maintains: a request seldom calls the allocator, and frees
//! nothing but states that do not fit into an entry.

mod packed;
mod shard;
mod table;
mod unpacked;
mod usage;

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use smallvec::SmallVec;

use self::packed::{Packed, UsedShare};
use self::shard::{NewState, Shard};
use self::table::{BlockPool, Entry, EntryKey, FreedBlocks, SLOTS, key_of};
pub use self::usage::{TableSize, UsageRecords};
use super::Budget;
use crate::core::algorithm::{Algorithm, Arrival, Holds, State, Step};
use crate::core::answer::{Answer, Answers};
use crate::core::fingerprint::Fingerprint;
use crate::core::lock;
use crate::core::time::Micros;
use crate::core::verdict::StoreError;
use crate::limits::plan::{AllOrNone, CheckIndex, Checks};
use crate::net::clock;

/// Size and options of the store.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The most keys that it holds; one more per thread that is adding a key. A key costs about 50
    /// bytes, one with a log or a ring more.
    pub max_keys: usize,
    /// The most bytes of keys and their states, without the states that threads are just stepping.
    pub max_bytes: usize,
    /// The most bytes of usage records.
    pub usage_bytes: usize,
}

impl Default for Options {
    /// A million keys in 256 MiB, and 64 MiB of usage records: about 190,000 of subjects that came
    /// once, 35,000 with full rings of 60 buckets.
    fn default() -> Self {
        Self {
            max_keys: 1_000_000,
            max_bytes: 256 << 20,
            usage_bytes: USAGE_BYTES,
        }
    }
}

/// The default of [`Options::usage_bytes`].
pub(crate) const USAGE_BYTES: usize = 64 << 20;

/// Bytes that count for a key, in addition to a state that is not packed: its entry, and its share
/// of the gaps and of the blocks that are ready.
const KEY_BYTES: usize = 48;

/// Keys per shard of a full store. Such a shard is about 40 KiB in ten blocks: quick to move, and
/// large compared with its last block, which is half empty on average.
const KEYS_PER_SHARD: usize = 1_024;

/// The most shards; an empty one costs 128 bytes. A store of more than 268 million keys has more
/// keys per shard.
const MAX_SHARDS: usize = 1 << 18;

/// Maximum number of keys that one step evicts for bytes, which takes some hundred microseconds.
/// Only a large log or set of ids that grows needs that many.
const MOST_EVICTED: usize = 1_024;

/// The answer to a check that was not picked.
const NOT_PICKED: StoreError = StoreError::NotExecuted("not picked");

/// The store; clones share the counters.
#[derive(Clone, Debug)]
pub struct Memory(Arc<Contents>);

#[derive(Debug)]
struct Contents {
    shards: Box<[CachePadded]>,
    pool: BlockPool,
    max_keys: usize,
    max_bytes: usize,
    next_sweep: AtomicUsize,
    keys: AtomicUsize,
    /// The bytes of states that are not packed.
    unpacked: AtomicUsize,
    evicted: AtomicU64,
    usage: UsageRecords,
}

/// A shard in two cache lines of its own, which hold its lock and its list of blocks. Threads on
/// neighbouring shards do not share a line.
#[derive(Debug, Default)]
#[repr(align(128))]
struct CachePadded(Mutex<Shard>);

/// Size of the store, for metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Keys in the store, with expired ones that were not swept yet.
    pub keys: usize,
    /// Bytes that count for them and their states.
    pub bytes: usize,
    /// Keys that were evicted because the store was full.
    pub evicted: u64,
}

impl Memory {
    /// An empty store.
    pub fn new(options: Options) -> Self {
        let shards = (options.max_keys.min(options.max_bytes / KEY_BYTES) / KEYS_PER_SHARD)
            .next_power_of_two()
            .clamp(1, MAX_SHARDS);
        Self(Arc::new(Contents {
            shards: (0..shards).map(|_| CachePadded::default()).collect(),
            pool: BlockPool::default(),
            max_keys: options.max_keys,
            // The first block of each shard may be empty but for one key.
            max_bytes: options
                .max_bytes
                .saturating_sub(shards * SLOTS * size_of::<Entry>()),
            next_sweep: AtomicUsize::new(0),
            keys: AtomicUsize::new(0),
            unpacked: AtomicUsize::new(0),
            evicted: AtomicU64::new(0),
            usage: UsageRecords::new(options.usage_bytes),
        }))
    }

    /// Decides the checks at `picked`, as [`Store::decide`](super::Store::decide) does.
    pub fn decide(&self, checks: &Checks, picked: &[CheckIndex], budget: Budget) -> Answers {
        let at = Arrival {
            now: clock::now(),
            max_wait: budget.max_wait,
        };
        self.decide_at(checks, picked, at)
    }

    /// Decides the checks at `picked`, which ascend, at the time `at`.
    pub fn decide_at(&self, checks: &Checks, picked: &[CheckIndex], at: Arrival) -> Answers {
        self.decide_if(checks, at, |CheckIndex(index)| {
            picked
                .binary_search_by_key(&index, |picked| picked.0)
                .is_ok()
        })
    }

    /// Decides all checks at the time `at`.
    #[inline]
    pub fn decide_all(&self, checks: &Checks, at: Arrival) -> Answers {
        self.decide_if(checks, at, |_| true)
    }

    fn decide_if(
        &self,
        checks: &Checks,
        at: Arrival,
        is_picked: impl Fn(CheckIndex) -> bool,
    ) -> Answers {
        let mut each: SmallVec<[Answer; 4]> = SmallVec::with_capacity(checks.total());
        // All of its checks are picked, or only those apart.
        if checks.is_all_or_none() && !checks.is_empty() && is_picked(CheckIndex(0)) {
            each = self.all_or_none(checks, at);
        }
        for index in (each.len()..checks.total()).map(CheckIndex) {
            each.push(match is_picked(index) {
                true => self.answer(checks, index, at),
                false => NOT_PICKED.into(),
            });
        }
        if checks.is_tracked() {
            self.0.usage.record_all(checks, &each, at.now);
        }
        Answers { now: at.now, each }
    }

    /// Whether the store has a key, perhaps one that has expired.
    pub fn contains(&self, key: &[u8]) -> bool {
        self.size().keys > 0 && {
            let (key, shard) = self.shard_of(key);
            shard.find(key).is_some()
        }
    }

    /// The usage records.
    pub fn usage(&self) -> &UsageRecords {
        &self.0.usage
    }

    /// Reads the holds of a counter, if it has some, under the lock of its shard.
    pub fn read_holds<T>(&self, key: &[u8], read: impl FnOnce(&Holds) -> T) -> Option<T> {
        let (key, shard) = self.shard_of(key);
        shard.holds(key).map(read)
    }

    /// A copy of the state of a counter.
    pub fn state(&self, key: &[u8], algorithm: &Algorithm) -> Option<State> {
        let (key, shard) = self.shard_of(key);
        shard.peek(key, algorithm)
    }

    fn answer(&self, checks: &Checks, index: CheckIndex, at: Arrival) -> Answer {
        let (check, now) = (&checks[index], at.now);
        let (key, algorithm) = (key_of(check.fingerprint), &check.algorithm);
        let mut shard = self.lock(self.shard_index(key));
        let before = shard.unpacked_bytes();
        let slot = shard.find(key);
        let state = slot.and_then(|slot| shard.take(slot, algorithm));
        let (step, effect) = checks.step(index, state, at);
        let Step {
            verdict,
            state,
            keep_for,
        } = step;
        let used = UsedShare::after(&verdict);
        let change = |state, keep_for| NewState {
            state,
            algorithm,
            recovers: now + keep_for,
            used,
        };
        match (slot, state, keep_for) {
            (_, None, _) | (None, _, None) => {}
            (Some(slot), Some(state), None) => shard.put_back(slot, state, used),
            (Some(slot), Some(state), Some(keep_for)) => {
                shard.replace(slot, change(state, keep_for));
            }
            (None, Some(state), Some(keep_for)) => {
                self.add(&mut shard, key, change(state, keep_for), now);
            }
        }
        let has_grown = self.record_growth(before, shard.unpacked_bytes()) || slot.is_none();
        drop(shard);
        if has_grown {
            self.make_room(now);
        }
        Answer {
            verdict: Ok(verdict),
            effect,
        }
    }

    /// Adds a key that the shard does not hold, and evicts others while the store is full.
    fn add(&self, shard: &mut Shard, key: EntryKey, change: NewState<'_>, now: Micros) {
        // Up to two: an earlier key may have been added to an empty shard, where there was none to
        // evict.
        for _ in 0..2 {
            if self.0.keys.load(Ordering::Relaxed) >= self.0.max_keys {
                self.evict(shard, now, |_| true);
            }
        }
        shard.add(key, change, &self.0.pool);
        self.0.keys.fetch_add(1, Ordering::Relaxed);
    }

    fn evict(&self, shard: &mut Shard, now: Micros, may_go: impl Fn(Packed) -> bool) {
        if shard.evict(now, may_go) {
            self.0.keys.fetch_sub(1, Ordering::Relaxed);
            self.0.evicted.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Records that the unpacked states of shards, which are still locked, took `before` bytes and
    /// take `after`. Returns whether they have grown.
    fn record_growth(&self, before: usize, after: usize) -> bool {
        if before != after {
            let grown = after.wrapping_sub(before);
            self.0.unpacked.fetch_add(grown, Ordering::Relaxed);
        }
        after > before
    }

    /// Evicts keys while all take too many bytes, from random shards: the shard of the state that
    /// has grown may be too small. If unpacked states take more than half of the bytes, only they
    /// are evicted, because few large states must not displace all small ones. No shard may be
    /// locked.
    fn make_room(&self, now: Micros) {
        for _ in 0..MOST_EVICTED {
            if self.size().bytes <= self.0.max_bytes {
                return;
            }
            let only_unpacked = self.0.unpacked.load(Ordering::Relaxed) > self.0.max_bytes / 2;
            let mut shard = self.lock(fastrand::usize(..self.shards()));
            let before = shard.unpacked_bytes();
            if before > 0 || !only_unpacked {
                self.evict(&mut shard, now, |packed| {
                    !only_unpacked || packed.unpacked_index().is_some()
                });
                self.record_growth(before, shard.unpacked_bytes());
            }
        }
    }

    /// Decides all checks under the locks of all their shards. Counts nothing if the request is
    /// over its limit; only that a check was refused is noted with its key.
    fn all_or_none(&self, checks: &Checks, at: Arrival) -> SmallVec<[Answer; 4]> {
        let keys = checks.iter().map(|check| key_of(check.fingerprint));
        let keys: SmallVec<[EntryKey; 4]> = keys.collect();
        // Locked in ascending order, because two requests would deadlock otherwise.
        let mut indices: SmallVec<[usize; 4]> =
            keys.iter().map(|key| self.shard_index(*key)).collect();
        indices.sort_unstable();
        indices.dedup();
        let mut shards: SmallVec<[_; 4]> = indices.iter().map(|&index| self.lock(index)).collect();
        let shard_of = |key: EntryKey| {
            indices
                .binary_search(&self.shard_index(key))
                .expect("every key's shard is locked")
        };
        let bytes = |shards: &[MutexGuard<'_, Shard>]| {
            shards.iter().map(|shard| shard.unpacked_bytes()).sum()
        };
        let before = bytes(&shards);

        let stored = |index: CheckIndex| {
            shards[shard_of(keys[index.0])].peek(keys[index.0], &checks[index].algorithm)
        };
        let outcome = AllOrNone::decide(checks, at, stored, |left, right| {
            keys[left.0] == keys[right.0]
        });
        for (index, state, keep_for) in outcome.writes {
            let (key, algorithm) = (keys[index.0], &checks[index].algorithm);
            let change = NewState {
                state,
                algorithm,
                recovers: at.now + keep_for,
                used: UsedShare::after(&outcome.verdicts[index.0]),
            };
            let shard = &mut *shards[shard_of(key)];
            match shard.find(key) {
                Some(slot) => shard.replace(slot, change),
                None => self.add(shard, key, change, at.now),
            }
        }
        for (&key, verdict) in keys.iter().zip(&outcome.verdicts) {
            let shard = &mut *shards[shard_of(key)];
            if let Some(slot) = shard.find(key).filter(|_| !verdict.allowed) {
                shard.record_refusal(slot, UsedShare::after(verdict));
            }
        }
        self.record_growth(before, bytes(&shards));
        drop(shards);
        self.make_room(at.now);
        let verdicts = outcome.verdicts.into_iter();
        let answers = verdicts.map(|verdict| Ok(verdict).into());
        let mut answers: SmallVec<[Answer; 4]> = answers.collect();
        for (index, effect) in outcome.effects {
            answers[index.0].effect = effect;
        }
        answers
    }

    /// Removes a key, which then counts from zero. Returns whether it existed.
    pub fn reset(&self, key: &[u8]) -> bool {
        let (key, mut shard) = self.shard_of(key);
        let before = shard.unpacked_bytes();
        let removed = shard.remove(key);
        let count = usize::from(removed);
        self.0.keys.fetch_sub(count, Ordering::Relaxed);
        self.record_growth(before, shard.unpacked_bytes());
        removed
    }

    /// Removes the keys of one shard that have recovered at `now`; the next call sweeps the next
    /// shard. Returns how many keys it removed. Their memory stays in the pool until
    /// [`Memory::maintain`] frees it.
    pub fn sweep(&self, now: Micros) -> usize {
        let index = self.0.next_sweep.fetch_add(1, Ordering::Relaxed) & (self.shards() - 1);
        let mut freed = FreedBlocks::new();
        let mut shard = self.lock(index);
        let before = shard.unpacked_bytes();
        let removed = shard.sweep(now, &mut freed);
        self.record_growth(before, shard.unpacked_bytes());
        self.0.keys.fetch_sub(removed, Ordering::Relaxed);
        drop(shard);
        self.make_room(now);
        self.0.usage.sweep(index, self.shards(), now);
        self.0.pool.refund(freed);
        removed
    }

    /// Allocates some memory for new keys, or frees some that no key needs. To be called after
    /// sweeping, and not by a request: the allocator may take milliseconds. No request waits for
    /// it.
    pub fn maintain(&self) {
        self.0.pool.maintain();
    }

    /// The number of shards: this many calls of [`Memory::sweep`] visit every key once.
    pub fn shards(&self) -> usize {
        self.0.shards.len()
    }

    /// The size of the store. Takes no lock.
    pub fn size(&self) -> Size {
        let keys = self.0.keys.load(Ordering::Relaxed);
        Size {
            keys,
            bytes: keys * KEY_BYTES + self.0.unpacked.load(Ordering::Relaxed),
            evicted: self.0.evicted.load(Ordering::Relaxed),
        }
    }

    /// The locked shard of a key, and the key in it.
    fn shard_of(&self, key: &[u8]) -> (EntryKey, MutexGuard<'_, Shard>) {
        let key = key_of(Fingerprint::of(key));
        (key, self.lock(self.shard_index(key)))
    }

    /// The shard of a key, by its lowest bits. The number of shards is a power of two. The table of
    /// the shard uses the upper half.
    fn shard_index(&self, key: EntryKey) -> usize {
        key as usize & (self.shards() - 1)
    }

    fn lock(&self, index: usize) -> MutexGuard<'_, Shard> {
        lock(&self.0.shards[index].0)
    }
}

#[cfg(test)]
mod tests;
