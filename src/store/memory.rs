//! The embedded store: counters in this process, exact under any concurrency.
//!
//! A table cut into shards, each behind a mutex that is held for one step of arithmetic and never across an await. A key is kept as a 128-bit
//! fingerprint, made with a key that only this process knows: clients choose the values, and must not be able to make two keys meet. The
//! store is bounded; when it is full it forgets, it never refuses. Nothing here survives a restart.
//!
//! No shard holds many keys, whatever the store holds: to grow, to shrink and to be swept takes a shard a few microseconds, and nobody waits
//! for longer. What that takes or leaves of memory comes from a pool, which the thread that sweeps fills and empties: a request hardly ever
//! asks the allocator, and never gives anything back to it but logs and rings.

mod blocks;
mod others;
mod packed;
mod shard;
mod table;

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use siphasher::sip128::{Hasher128, SipHasher13};
use smallvec::SmallVec;

use self::blocks::{Left, Pool};
use self::shard::{Change, Shard};
use self::table::Fingerprint;
use super::{Budget, Store};
use crate::algorithm::{Arrival, Step};
use crate::plan::{AllOrNone, Check, CheckIndex, Checks};
use crate::rules::Commit;
use crate::time::Micros;
use crate::verdict::{Answers, StoreError, Verdict};

/// How the store is built.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Keys that it holds at most, give or take one per thread that adds to it. A key costs about 50 bytes; one of a log or a ring more.
    pub max_keys: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { max_keys: 1_000_000 }
    }
}

/// Keys per shard of a full store. A shard of so many is some 40 KiB in ten blocks: short to move, and long beside the last block, which
/// is half empty.
const KEYS_PER_SHARD: usize = 1_024;

/// An empty shard costs 128 bytes. Beyond 268 million keys they hold more keys each.
const MOST_SHARDS: usize = 1 << 18;

/// Keys that are looked at when one has to go.
const SAMPLE: usize = 5;

const NOT_PICKED: StoreError = StoreError::NotExecuted("not picked");

/// The store; clones share the counters.
#[derive(Clone, Debug)]
pub struct Memory(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    shards: Box<[Alone]>,
    pool: Pool,
    max_keys: usize,
    secret: (u64, u64),
    next_sweep: AtomicUsize,
    keys: AtomicUsize,
    evicted: AtomicU64,
}

/// In two cache lines of its own: to find a key's block costs no more, and neighbours do not disturb each other.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Alone(Mutex<Shard>);

/// What the store holds, for metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Keys in it now, expired ones that were not swept yet included.
    pub keys: usize,
    /// Keys dropped because the store was full.
    pub evicted: u64,
}

impl Memory {
    /// An empty store.
    #[must_use]
    pub fn new(options: Options) -> Self {
        let shards = (options.max_keys / KEYS_PER_SHARD).next_power_of_two().clamp(1, MOST_SHARDS);
        let secret = RandomState::new();
        Self(Arc::new(Inner {
            shards: (0..shards).map(|_| Alone::default()).collect(),
            pool: Pool::default(),
            max_keys: options.max_keys,
            secret: (secret.hash_one(0), secret.hash_one(1)),
            next_sweep: AtomicUsize::new(0),
            keys: AtomicUsize::new(0),
            evicted: AtomicU64::new(0),
        }))
    }

    /// Decides the checks at `picked`, as [`Store::decide`] does, at the time `at`.
    #[must_use]
    pub fn decide_at(&self, checks: &Checks, picked: &[CheckIndex], at: Arrival) -> Answers {
        let answers = match checks.commit {
            Commit::Each => {
                let mut answers = SmallVec::from_elem(Err(NOT_PICKED), checks.len());
                for &index in picked {
                    let check = &checks[index];
                    answers[index.0] = Ok(self.check(checks.key(check), check, at));
                }
                answers
            }
            Commit::AllOrNone => self.all_or_none(checks, at).into_iter().map(Ok).collect(),
        };
        Answers { now: at.now, checks: answers }
    }

    fn check(&self, key: &[u8], check: &Check, at: Arrival) -> Verdict {
        let key = self.fingerprint(key);
        let mut shard = self.lock(self.place(key));
        let slot = shard.find(key);
        let state = slot.and_then(|slot| shard.take(slot, &check.algorithm));
        let Step { verdict, state, keep_for } = check.algorithm.step(state, at, check.hits);
        match (slot, state, keep_for) {
            (_, None, _) | (None, _, None) => {}
            (Some(slot), Some(state), None) => shard.put_back(slot, state),
            (Some(slot), Some(state), Some(keep_for)) => {
                shard.replace(slot, Change { state, algorithm: &check.algorithm, recovers: at.now + keep_for });
            }
            (None, Some(state), Some(keep_for)) => {
                self.add(&mut shard, key, Change { state, algorithm: &check.algorithm, recovers: at.now + keep_for });
            }
        }
        verdict
    }

    /// Adds a key that is not there.
    fn add(&self, shard: &mut Shard, key: Fingerprint, change: Change<'_>) {
        // A second one when there was nothing to drop where the last one came to, so that they do not add up.
        for _ in 0..2 {
            if self.0.keys.load(Ordering::Relaxed) >= self.0.max_keys && shard.drop_one_of(SAMPLE) {
                self.0.keys.fetch_sub(1, Ordering::Relaxed);
                self.0.evicted.fetch_add(1, Ordering::Relaxed);
            }
        }
        shard.add(key, change, &self.0.pool);
        self.0.keys.fetch_add(1, Ordering::Relaxed);
    }

    /// Decides all checks under the locks of all their shards, and writes only when the request is not refused.
    fn all_or_none(&self, checks: &Checks, at: Arrival) -> SmallVec<[Verdict; 4]> {
        let keys: SmallVec<[Fingerprint; 4]> = checks.iter().map(|check| self.fingerprint(checks.key(check))).collect();
        // Always in the order of the shards, so that two requests never wait for each other.
        let mut places: SmallVec<[usize; 4]> = keys.iter().map(|key| self.place(*key)).collect();
        places.sort_unstable();
        places.dedup();
        let mut shards: SmallVec<[_; 4]> = places.iter().map(|&place| self.lock(place)).collect();
        let shard_of = |key: Fingerprint| places.binary_search(&self.place(key)).expect("every key's shard is locked");

        let stored = |index: CheckIndex| shards[shard_of(keys[index.0])].peek(keys[index.0], &checks[index].algorithm);
        let outcome = AllOrNone::decide(checks, at, stored, |left, right| keys[left.0] == keys[right.0]);
        for (index, state, keep_for) in outcome.writes {
            let (key, algorithm) = (keys[index.0], &checks[index].algorithm);
            let change = Change { state, algorithm, recovers: at.now + keep_for };
            let shard = &mut *shards[shard_of(key)];
            match shard.find(key) {
                Some(slot) => shard.replace(slot, change),
                None => self.add(shard, key, change),
            }
        }
        outcome.verdicts
    }

    /// Removes what has recovered from the next shard in turn; to be called now and then. Returns how many keys went. Their memory is kept for
    /// other keys until [`Memory::tend`] gives it back.
    pub fn sweep(&self, now: Micros) -> usize {
        let place = self.0.next_sweep.fetch_add(1, Ordering::Relaxed) & (self.shards() - 1);
        let mut left = Left::new();
        let gone = self.lock(place).sweep(now, &mut left);
        self.0.pool.give(left);
        self.0.keys.fetch_sub(gone, Ordering::Relaxed);
        gone
    }

    /// Gets some memory ready for keys to come, or gives back some that no key needs; to be called after sweeping. It may take long when the
    /// allocator does, but no request waits for it.
    pub fn tend(&self) {
        self.0.pool.tend();
    }

    /// How many calls of [`Memory::sweep`] visit every key once.
    #[must_use]
    pub fn shards(&self) -> usize {
        self.0.shards.len()
    }

    /// Counts what is held. Takes no lock.
    #[must_use]
    pub fn size(&self) -> Size {
        Size { keys: self.0.keys.load(Ordering::Relaxed), evicted: self.0.evicted.load(Ordering::Relaxed) }
    }

    fn fingerprint(&self, key: &[u8]) -> Fingerprint {
        let mut hasher = SipHasher13::new_with_keys(self.0.secret.0, self.0.secret.1);
        hasher.write(key);
        // Zero stands for no key.
        hasher.finish128().as_u128().max(1)
    }

    /// The shard that a key belongs to; their number is a power of two. The shard itself places it by the upper half.
    fn place(&self, key: Fingerprint) -> usize {
        key as usize & (self.shards() - 1)
    }

    /// A step is total, so that a poisoned shard still holds whole entries.
    fn lock(&self, place: usize) -> MutexGuard<'_, Shard> {
        self.0.shards[place].0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Store for Memory {
    async fn decide(&self, checks: &Arc<Checks>, picked: &[CheckIndex], budget: Budget) -> Answers {
        self.decide_at(checks, picked, Arrival { now: now(), max_hold: budget.max_hold })
    }
}

/// The wall clock: windows are aligned to it. Before 1970 it is 1970.
#[must_use]
#[expect(clippy::disallowed_methods, reason = "this store's time is the wall clock")]
pub fn now() -> Micros {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Micros(u64::try_from(since_epoch.as_micros()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests;
