//! The denial cache: checks that the store has just refused and would still refuse. Weir refuses
//! them here, at no cost for the store.
//!
//! When in doubt, the cache sends the check to the store. An entry ends at the instant its decision
//! *began* plus the store's `retry_after`. It applies only to a limit with exactly the same
//! numbers. It lives for at most one second, which bounds how long a refund through another replica
//! may go unnoticed.
//!
//! Hits that the cache refuses are not counted in the store. So limits with `count_denied` bypass
//! the cache: their refused hits are charges. Only `fixed_window` does not, where further hits
//! change no verdict before the window ends.
//!
//! A cached refusal has the same numbers as the store's answer would have. So only keys that have
//! nothing left until the entry ends are cached: no other client can change their numbers
//! meanwhile. If the wait depends on the hits, only the wait for a single hit is cached, and the
//! store decides checks of more.
//!
//! The cache is a `table`: no allocation, and a lock that is held for the length of a lookup. Most
//! keys are not over their limits: a small array of [`Group`]s ends their lookups without the
//! table, whose memory is in no cache of the processor.
//!
//! Answering a check of several hits without the reset was not better: Envoy then shows
//! `x-ratelimit-reset: 0`. If the cache refuses an `all_or_none` request, the other checks only
//! peek; if one of those has less left than the request needs, the store decides all. A property
//! test compares each refusal with the answer of the store.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use smallvec::SmallVec;
use tokio::time::Instant;

use super::table::{Table, fingerprint, part};
use crate::core::algorithm::Algorithm;
use crate::core::answer::Answer;
use crate::core::fingerprint::Fingerprint;
use crate::core::lock;
use crate::core::time::Span;
use crate::core::verdict::{Verdict, Wait};
use crate::limits::plan::{Check, CheckIndex, Checks};
use crate::limits::rules::Commit;

/// The size of the cache.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Bytes of all entries, rounded down to whole sets, at least one set; 0 disables the cache.
    /// More than [`MAX_BYTES`] have no effect.
    pub bytes: usize,
}

/// The largest cache in bytes. It holds 5 million keys, more than a process refuses in the second
/// for which an entry lives, and all of it is in memory from the start.
pub const MAX_BYTES: usize = 256 << 20;

impl Default for Options {
    /// 8 MiB, for about 170,000 keys that are over their limits within one second.
    fn default() -> Self {
        Self { bytes: 8 << 20 }
    }
}

/// The longest life of an entry.
const MAX_AGE: Duration = Duration::from_secs(1);

/// Entries per set. They share a lock, and a new one replaces the one that ends first.
const WAYS: usize = 4;

/// Entries that share a lock.
type CacheSet = [CachedKey; WAYS];

/// Groups of a cache: 32 KiB, most of which stay in the nearest cache of the processor.
const GROUPS: usize = 1_024;

/// The cache; clones share the entries.
#[derive(Clone, Debug)]
pub struct DenialCache {
    table: Arc<Table<CacheSet>>,
    groups: Arc<[Group]>,
}

/// Neighboring sets of the table, and the lookups in them.
#[derive(Debug, Default)]
struct Group {
    /// No entry is valid from this instant on. In microseconds since the epoch of the cache.
    until: AtomicU64,
    /// When an entry was dropped last. Decisions that began before are not cached.
    forgotten: AtomicU64,
    hits: AtomicU64,
    misses: AtomicU64,
}

/// Number of lookups since the start, by result. Checks that bypass the cache are not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lookups {
    /// Checks that the cache refused.
    pub hits: u64,
    /// Checks that the cache left to the store.
    pub misses: u64,
}

/// A key that has nothing left. Times are in microseconds since the epoch of the cache. All zero if
/// empty.
#[derive(Clone, Copy, Debug, Default)]
struct CachedKey {
    key: Fingerprint,
    /// The entry is valid before this instant.
    until: u64,
    /// From the store's verdict: when a single hit is allowed, and when the limit has recovered.
    retry: u64,
    reset: u64,
    used: u64,
}

/// One per check, by its index: the cached refusal, if there is one.
pub type CachedRefusals = SmallVec<[Option<Verdict>; 4]>;

impl DenialCache {
    /// An empty cache; `None` if its size is 0.
    pub fn new(options: Options) -> Option<Self> {
        let sets = options.bytes / size_of::<Mutex<CacheSet>>();
        (options.bytes > 0).then(|| Self {
            table: Arc::new(Table::new(sets)),
            groups: (0..GROUPS).map(|_| Group::default()).collect(),
        })
    }

    /// The refusals that are cached at `now`. For checks that commit all or none, there are none
    /// unless they are all or refuse the request as a whole. A request with a refund is always
    /// decided by the store, and so is one that acquires a place with all others or not at all: the
    /// store marks the ids of acquires that it refuses.
    pub fn refused(&self, checks: &Checks, now: Instant) -> CachedRefusals {
        let nothing = || SmallVec::from_elem(None, checks.len());
        let is_marked = |check: &Check| {
            checks.commit == Commit::AllOrNone && check.algorithm.counts_in_flight()
        };
        if checks
            .iter()
            .any(|check| check.hits < 0 || is_marked(check))
        {
            return nothing();
        }
        let known: CachedRefusals = checks.iter().map(|check| self.find(check, now)).collect();
        let refuses = || {
            checks.is_over_limit(known.iter().map(Option::is_none))
                || known.iter().all(Option::is_some)
        };
        if checks.commit == Commit::AllOrNone && !refuses() {
            nothing()
        } else {
            known
        }
    }

    /// Records the store's answers to the checks at `picked`, which came `now` in a decision that
    /// began at `began`.
    pub fn record(
        &self,
        checks: &Checks,
        picked: &[CheckIndex],
        answers: &[Answer],
        began: Instant,
        now: impl Fn() -> Instant,
    ) {
        for &index in picked {
            let check = &checks[index];
            if let Ok(verdict) = &answers[index.0].verdict
                && !verdict.allowed
                && !checks.is_apart(index)
                && is_cacheable(checks, check, verdict)
            {
                self.insert(check, verdict, began, now());
            }
        }
        // A refund ends the entry of its key: after the loop above, because a refusal of the same
        // request must not stay, and also if the store did not answer, because it may have counted.
        for check in picked
            .iter()
            .map(|&index| &checks[index])
            .filter(|check| check.hits < 0)
        {
            self.forget_check(check);
        }
    }

    /// Drops the refusals of these checks.
    pub fn forget(&self, checks: &Checks) {
        checks.iter().for_each(|check| self.forget_check(check));
    }

    fn forget_check(&self, check: &Check) {
        let key = fingerprint(check);
        let forgotten = &self.group(key).forgotten;
        forgotten.fetch_max(self.table.micros(Instant::now()), Ordering::Relaxed);
        let mut set = self.table.set(key);
        for entry in set.iter_mut().filter(|entry| entry.key == key) {
            *entry = CachedKey::default();
        }
    }

    /// The number of entries that are valid at `now`, and the lookups since the start. Locks each
    /// set in turn.
    pub fn usage(&self, now: Instant) -> (usize, Lookups) {
        let now = self.table.micros(now);
        let valid =
            |set: &Mutex<CacheSet>| lock(set).iter().filter(|entry| entry.until > now).count();
        let mut lookups = Lookups::default();
        for group in &*self.groups {
            lookups.hits += group.hits.load(Ordering::Relaxed);
            lookups.misses += group.misses.load(Ordering::Relaxed);
        }
        (self.table.sets.iter().map(valid).sum(), lookups)
    }

    fn group(&self, key: Fingerprint) -> &Group {
        &self.groups[part(key, GROUPS)]
    }

    fn find(&self, check: &Check, now: Instant) -> Option<Verdict> {
        let hits = u64::try_from(check.hits).ok().filter(|&hits| hits > 0)?;
        let is_never = hits > check.algorithm.capacity();
        if bypasses(check) || (hits > 1 && !is_never && !waits_alike(&check.algorithm)) {
            return None;
        }
        let (key, now) = (fingerprint(check), self.table.micros(now));
        let group = self.group(key);
        let is_valid = |entry: &&CachedKey| entry.key == key && now < entry.until;
        let find = || self.table.set(key).iter().find(is_valid).copied();
        let may_exist = now < group.until.load(Ordering::Relaxed);
        let Some(entry) = may_exist.then(find).flatten() else {
            group.misses.fetch_add(1, Ordering::Relaxed);
            return None;
        };
        group.hits.fetch_add(1, Ordering::Relaxed);
        let left = |at: u64| Span::from_micros(at.saturating_sub(now));
        Some(Verdict {
            allowed: false,
            remaining: 0,
            used: entry.used,
            reset_after: left(entry.reset),
            retry_after: if is_never {
                Wait::Never
            } else {
                Wait::For(left(entry.retry))
            },
            delay: Span::ZERO,
        })
    }

    fn insert(&self, check: &Check, verdict: &Verdict, began: Instant, now: Instant) {
        let wait = match verdict.retry_after {
            _ if waits_alike(&check.algorithm) => Some(verdict.reset_after),
            Wait::For(wait) => Some(wait),
            Wait::Never => None,
        };
        let (began, now) = (self.table.micros(began), self.table.micros(now));
        let longest = MAX_AGE.as_micros() as u64;
        let new = CachedKey {
            key: fingerprint(check),
            until: began.saturating_add(wait.map_or(longest, |wait| wait.micros().min(longest))),
            retry: now.saturating_add(wait.map_or(u64::MAX, Span::micros)),
            reset: now.saturating_add(verdict.reset_after.micros()),
            used: verdict.used,
        };
        let until = &self.group(new.key).until;
        until.fetch_max(new.until, Ordering::Relaxed);
        let mut set = self.table.set(new.key);
        // The lock orders it after `forget_check`, or before.
        if began < self.group(new.key).forgotten.load(Ordering::Relaxed) {
            return;
        }
        if let Some(known) = set.iter_mut().find(|entry| entry.key == new.key) {
            if new.until > known.until {
                *known = new;
            }
        } else if let Some(soonest) = set.iter_mut().min_by_key(|entry| entry.until) {
            *soonest = new;
        }
    }
}

/// Whether the store would refuse every hit until the `retry_after` of this verdict, for every
/// caller.
fn is_cacheable(checks: &Checks, check: &Check, verdict: &Verdict) -> bool {
    // A peek is refused only while the key is in debt. Fewer hits than the check has may be allowed
    // sooner, except in a window that has nothing left.
    let is_for_any_hits = check.hits == 1 || (check.hits > 1 && waits_alike(&check.algorithm));
    if !is_for_any_hits || verdict.remaining > 0 || bypasses(check) {
        return false;
    }
    // A refused all-or-none request counts nothing, but the verdicts of its checks are computed
    // with the hits of earlier checks on the same key.
    checks.commit == Commit::Each
        || checks
            .iter()
            .filter(|other| other.fingerprint == check.fingerprint)
            .count()
            == 1
}

/// Whether refused hits wait for the same instant, however many they are: the end of the window.
const fn waits_alike(algorithm: &Algorithm) -> bool {
    matches!(algorithm, Algorithm::FixedWindow(_))
}

/// Whether the store decides every check of the limit.
fn bypasses(check: &Check) -> bool {
    let algorithm = &check.algorithm;
    // A shaper's refusal depends on the caller's deadline. A refusal by a limit of requests in
    // flight depends on when they end, and one by held hits on when they are settled. A hit that
    // is refused and counts is a charge.
    check.has_holds()
        || algorithm.may_delay()
        || algorithm.counts_in_flight()
        || (algorithm.counts_denied() && !matches!(algorithm, Algorithm::FixedWindow(_)))
}

#[cfg(test)]
mod tests;
