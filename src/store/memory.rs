//! The embedded store: counters in this process, exact under any concurrency.
//!
//! A map cut into shards, each behind a mutex that is held for one step of arithmetic and never across an await. A key is kept as a 128-bit
//! fingerprint, made with a key that only this process knows: clients choose the values, and must not be able to make two keys meet. The map
//! is bounded; when it is full it forgets, it never refuses. Nothing here survives a restart.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use hashbrown::HashMap;
use siphasher::sip128::{Hasher128, SipHasher13};
use smallvec::SmallVec;

use super::{Store, Within};
use crate::algorithm::{Moment, State};
use crate::plan::{Check, Group, Plan};
use crate::rules::Commit;
use crate::time::Micros;
use crate::verdict::{Answers, Verdict};

/// How the store is built.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Keys that it holds at most, give or take what chance puts into one shard. A key costs about 100 bytes.
    pub max_keys: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { max_keys: 1_000_000 }
    }
}

/// More shards make the longest pause while a shard grows shorter; beyond this many nothing is gained (measured: 0.26 ms at 10 M keys).
const MOST_SHARDS: usize = 4_096;

/// Keys per shard below which more shards would only cost memory.
const KEYS_PER_SHARD: usize = 256;

/// Keys that are looked at when one has to go.
const SAMPLE: usize = 5;

/// The store; clones share the counters.
#[derive(Clone, Debug)]
pub struct Memory(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    shards: Box<[Mutex<Shard>]>,
    keys_per_shard: usize,
    secret: (u64, u64),
    next_sweep: AtomicUsize,
    evicted: AtomicU64,
}

type Shard = HashMap<Fingerprint, Entry, FingerprintIsHash>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Fingerprint(u64, u64);

#[derive(Clone, Debug)]
struct Entry {
    /// Taken out for the length of a step.
    state: Option<State>,
    /// When the state means no more than a missing one.
    recovers: Micros,
}

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
            shards: (0..shards).map(|_| Mutex::default()).collect(),
            keys_per_shard: options.max_keys.div_ceil(shards).max(1),
            secret: (secret.hash_one(0), secret.hash_one(1)),
            next_sweep: AtomicUsize::new(0),
            evicted: AtomicU64::new(0),
        }))
    }

    /// Decides the checks of `plan` at the places `picked`; a plan that commits all or none whole. The time is `at`.
    #[must_use]
    pub fn decide_at(&self, plan: &Plan, picked: &[usize], at: Moment) -> Answers {
        let checks = match plan.commit {
            Commit::Each => {
                picked.iter().map(|&place| &plan.checks[place]).map(|check| Ok(self.check(plan.key(check), check, at))).collect()
            }
            Commit::AllOrNone => self.all_or_none(plan, at).into_iter().map(Ok).collect(),
        };
        Answers { now: at.now, checks }
    }

    fn check(&self, key: &[u8], check: &Check, at: Moment) -> Verdict {
        let fingerprint = self.fingerprint(key);
        let mut shard = self.lock(self.place(fingerprint));
        let step = check.algorithm.step(shard.get_mut(&fingerprint).and_then(|entry| entry.state.take()), at, check.hits);
        match (step.keep_for, shard.get_mut(&fingerprint)) {
            (None, None) => {}
            (None, Some(entry)) => entry.state = step.state,
            (Some(keep_for), _) => self.put(&mut shard, fingerprint, Entry { state: step.state, recovers: at.now + keep_for }),
        }
        step.verdict
    }

    fn put(&self, shard: &mut Shard, key: Fingerprint, entry: Entry) {
        if let Some(known) = shard.get_mut(&key) {
            *known = entry;
            return;
        }
        if shard.len() >= self.0.keys_per_shard {
            self.make_room(shard);
        }
        shard.insert(key, entry);
    }

    /// Decides all checks under the locks of all their shards, and writes only when the request is not refused.
    fn all_or_none(&self, plan: &Plan, at: Moment) -> SmallVec<[Verdict; 4]> {
        let keys: SmallVec<[Fingerprint; 4]> = plan.checks.iter().map(|check| self.fingerprint(plan.key(check))).collect();
        // Always in the order of the shards, so that two requests never wait for each other.
        let mut places: SmallVec<[usize; 4]> = keys.iter().map(|key| self.place(*key)).collect();
        places.sort_unstable();
        places.dedup();
        let mut shards: SmallVec<[_; 4]> = places.iter().map(|&place| self.lock(place)).collect();
        let shard_of = |key: Fingerprint| places.binary_search(&self.place(key)).expect("every key's shard is locked");

        let stored = |key| shards[shard_of(key)].get(&key).and_then(|entry| entry.state.clone());
        let group = Group::decide(plan, at, |index| stored(keys[index]), |left, right| keys[left] == keys[right]);
        for (index, state, keep_for) in group.writes {
            let key = keys[index];
            self.put(&mut shards[shard_of(key)], key, Entry { state: Some(state), recovers: at.now + keep_for });
        }
        group.verdicts
    }

    /// Drops, of a few keys, the one that recovers soonest: least is forgotten with it.
    fn make_room(&self, shard: &mut Shard) {
        let start = fastrand::usize(..shard.len().saturating_sub(SAMPLE).max(1));
        let soonest = shard.iter().skip(start).take(SAMPLE).min_by_key(|(_, entry)| entry.recovers).map(|(&fingerprint, _)| fingerprint);
        if let Some(fingerprint) = soonest {
            shard.remove(&fingerprint);
            self.0.evicted.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Removes what has recovered from the next shard in turn; to be called now and then. Returns how many keys went.
    pub fn sweep(&self, now: Micros) -> usize {
        let mut shard = self.lock(self.0.next_sweep.fetch_add(1, Ordering::Relaxed) & (self.shards() - 1));
        let before = shard.len();
        shard.retain(|_, entry| entry.recovers > now);
        if shard.capacity() > 4 * shard.len().max(KEYS_PER_SHARD) {
            let room = 2 * shard.len();
            shard.shrink_to(room);
        }
        before - shard.len()
    }

    /// How many calls of [`Memory::sweep`] visit every key once.
    #[must_use]
    pub fn shards(&self) -> usize {
        self.0.shards.len()
    }

    /// Counts what is held; locks each shard in turn.
    #[must_use]
    pub fn size(&self) -> Size {
        Size { keys: (0..self.shards()).map(|index| self.lock(index).len()).sum(), evicted: self.0.evicted.load(Ordering::Relaxed) }
    }

    fn fingerprint(&self, key: &[u8]) -> Fingerprint {
        let mut hasher = SipHasher13::new_with_keys(self.0.secret.0, self.0.secret.1);
        hasher.write(key);
        let hash = hasher.finish128();
        Fingerprint(hash.h1, hash.h2)
    }

    /// The shard that a key belongs to; their number is a power of two.
    fn place(&self, key: Fingerprint) -> usize {
        key.0 as usize & (self.shards() - 1)
    }

    /// A step is total, so that a poisoned shard still holds whole entries.
    fn lock(&self, place: usize) -> std::sync::MutexGuard<'_, Shard> {
        self.0.shards[place].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Store for Memory {
    async fn decide(&self, plan: &Arc<Plan>, picked: &[usize], within: Within) -> Answers {
        self.decide_at(plan, picked, Moment { now: now(), patience: within.patience })
    }
}

/// The wall clock: windows are aligned to it. Before 1970 it is 1970.
#[must_use]
#[expect(clippy::disallowed_methods, reason = "this store's time is the wall clock")]
pub fn now() -> Micros {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Micros(u64::try_from(since_epoch.as_micros()).unwrap_or(u64::MAX))
}

impl std::hash::Hash for Fingerprint {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.1);
    }
}

/// A fingerprint is a keyed hash already; its second half places it within the shard that the first half chose.
#[derive(Clone, Copy, Debug, Default)]
struct FingerprintIsHash;

#[derive(Debug, Default)]
struct Taken(u64);

impl BuildHasher for FingerprintIsHash {
    type Hasher = Taken;

    fn build_hasher(&self) -> Taken {
        Taken::default()
    }
}

impl Hasher for Taken {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        // Only write_u64 is called; this keeps the trait's promise for anything else.
        for &byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(byte);
        }
    }

    fn write_u64(&mut self, half: u64) {
        self.0 = half;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::{Algorithm, FixedWindow};
    use crate::plan::Role;
    use crate::time::Span;

    const START: Moment = Moment { now: Micros(1_800_000_000_000_000), patience: Span::ZERO };

    fn check(limit: u32, secs: u64) -> Check {
        let fixed = FixedWindow { limit, window: Span::from_secs(secs), count_denied: true };
        Check::new(Algorithm::FixedWindow(fixed), 1, Role::default())
    }

    #[test]
    fn a_full_store_forgets_and_never_refuses() {
        let memory = Memory::new(Options { max_keys: 1_000 });
        for key in 0..5_000_u32 {
            assert!(memory.check(&key.to_be_bytes(), &check(1, 60), START).allowed);
        }
        let size = memory.size();
        assert!(size.keys <= 1_024, "{size:?}");
        assert_eq!(size.evicted, 5_000 - size.keys as u64);
    }

    #[test]
    fn what_recovers_soonest_goes_first() {
        let memory = Memory::new(Options { max_keys: SAMPLE });
        for key in 0..SAMPLE as u32 - 1 {
            memory.check(&key.to_be_bytes(), &check(1, 3_600), START);
        }
        memory.check(b"soon", &check(1, 1), START);
        memory.check(b"one more", &check(1, 3_600), START);
        for key in 0..SAMPLE as u32 - 1 {
            assert!(!memory.check(&key.to_be_bytes(), &check(1, 3_600), START).allowed, "key {key} was forgotten");
        }
    }

    #[test]
    fn sweeping_removes_what_recovered_and_nothing_else() {
        let memory = Memory::new(Options::default());
        for key in 0..10_000_u32 {
            memory.check(&key.to_be_bytes(), &check(1, if key % 2 == 0 { 60 } else { 3_600 }), START);
        }
        let later = START.now + Span::from_secs(60);
        let swept: usize = (0..memory.shards()).map(|_| memory.sweep(later)).sum();
        assert_eq!(swept, 5_000);
        assert_eq!(memory.size().keys, 5_000);
        assert!(!memory.check(&1_u32.to_be_bytes(), &check(1, 3_600), START).allowed);
    }

    #[test]
    fn many_threads_on_one_key_get_exactly_the_limit() {
        let memory = Memory::new(Options::default());
        let admitted: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8)
                .map(|_| scope.spawn(|| (0..1_000).filter(|_| memory.check(b"one", &check(1_000, 60), START).allowed).count()))
                .collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).sum()
        });
        assert_eq!(admitted, 1_000);
    }
}
