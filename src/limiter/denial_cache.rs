//! The denial cache: checks that the store has just refused, and would refuse again. They are answered here, and cost the store nothing.
//!
//! An entry errs on one side only: when in doubt the store is asked. It ends at the instant the decision *began* plus the wait that the store
//! told, it stands for the limit with exactly these numbers, and it lives no longer than a second, which is how long a give-back through
//! another replica may go unnoticed. Hits that it refuses are not counted in the store. One fixed block of memory, no allocation, and one lock
//! per handful of entries, held for the length of a look.

use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::{BuildHasher, Hash};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use siphasher::sip128::{Hasher128, SipHasher13};
use smallvec::SmallVec;
use tokio::time::Instant;

use crate::algorithm::Algorithm;
use crate::plan::{Check, CheckIndex, Checks};
use crate::rules::Commit;
use crate::time::Span;
use crate::verdict::{StoreError, Verdict, Wait};

/// How large it is.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Bytes of all entries together, rounded down to whole sets, but one set at least; 0: there is no cache.
    pub bytes: usize,
}

impl Default for Options {
    /// Room for some 120,000 keys that are over their limits within one second.
    fn default() -> Self {
        Self { bytes: 8 << 20 }
    }
}

/// The longest that an entry lives.
const LONGEST: Duration = Duration::from_secs(1);

/// Entries that share a lock, and compete for their places.
const WAYS: usize = 4;

/// The cache; clones share the entries.
#[derive(Clone)]
pub struct DenialCache(Arc<Inner>);

struct Inner {
    sets: Box<[Mutex<Set>]>,
    /// Clients choose values, and must not be able to make two keys meet.
    secret: (u64, u64),
    /// Where its time begins.
    epoch: Instant,
}

type Set = [Entry; WAYS];

/// The key of a counter and every number of its algorithm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Fingerprint(u64, u64);

/// What was refused, in microseconds of the cache's time; all zero where there is nothing.
#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    key: Fingerprint,
    /// So many hits are refused, and any more.
    hits: u64,
    /// It holds before this instant.
    until: u64,
    /// What the store told: when to ask again, and when the limit has recovered.
    retry: u64,
    reset: u64,
    used: u64,
    remaining: u32,
}

/// One per check, by its index: the refusal that is known.
pub type Known = SmallVec<[Option<Verdict>; 4]>;

impl DenialCache {
    /// An empty cache; `None` if it may have no bytes at all.
    #[must_use]
    pub fn new(options: Options) -> Option<Self> {
        let sets = (options.bytes / size_of::<Mutex<Set>>()).max(1);
        let secret = RandomState::new();
        let inner = || Inner {
            sets: (0..sets).map(|_| Mutex::default()).collect(),
            secret: (secret.hash_one(0), secret.hash_one(1)),
            epoch: Instant::now(),
        };
        (options.bytes > 0).then(|| Self(Arc::new(inner())))
    }

    /// The checks that need no store at `now`. Of checks that commit all or none either all are known or none: what is not refused has to say
    /// what it has left. A request that gives back is always decided by the store.
    #[must_use]
    pub fn refused(&self, checks: &Checks, now: Instant) -> Known {
        let nothing = || SmallVec::from_elem(None, checks.len());
        if checks.iter().any(|check| check.hits < 0) {
            return nothing();
        }
        let known: Known = checks.iter().map(|check| self.find(checks.key(check), check, now)).collect();
        if checks.commit == Commit::AllOrNone && known.iter().any(Option::is_none) { nothing() } else { known }
    }

    /// Takes in the store's answers to the checks at `picked`, which came at `now` in a decision that began at `began`.
    pub fn learn(&self, checks: &Checks, picked: &[CheckIndex], answers: &[Result<Verdict, StoreError>], began: Instant, now: Instant) {
        for &index in picked {
            let check = &checks[index];
            if let Ok(verdict) = &answers[index.0]
                && !verdict.allowed
                && is_lasting(checks, check)
            {
                self.insert(checks, check, verdict, began, now);
            }
        }
        // Last, so that no refusal of the same request stays. Also when the store did not answer: it may have given back.
        for check in picked.iter().map(|&index| &checks[index]).filter(|check| check.hits < 0) {
            let key = self.fingerprint(checks.key(check), &check.algorithm);
            for entry in self.set(key).iter_mut().filter(|entry| entry.key == key) {
                *entry = Entry::default();
            }
        }
    }

    /// Entries that hold at `now`; locks each set in turn.
    #[must_use]
    pub fn entries(&self, now: Instant) -> usize {
        let now = self.micros(now);
        self.0.sets.iter().map(|set| lock(set).iter().filter(|entry| entry.until > now).count()).sum()
    }

    fn find(&self, key: &[u8], check: &Check, now: Instant) -> Option<Verdict> {
        let hits = u64::try_from(check.hits).ok().filter(|&hits| hits > 0)?;
        if check.algorithm.may_delay() {
            return None;
        }
        let (key, now) = (self.fingerprint(key, &check.algorithm), self.micros(now));
        let entry = *self.set(key).iter().find(|entry| entry.key == key && now < entry.until && entry.hits <= hits)?;
        let left = |at: u64| Span::from_micros(at.saturating_sub(now));
        let is_never = hits > u64::from(check.algorithm.capacity());
        Some(Verdict {
            allowed: false,
            remaining: entry.remaining,
            used: entry.used,
            reset_after: left(entry.reset),
            retry_after: if is_never { Wait::Never } else { Wait::For(left(entry.retry)) },
            delay: Span::ZERO,
        })
    }

    fn insert(&self, checks: &Checks, check: &Check, verdict: &Verdict, began: Instant, now: Instant) {
        let (hits, wait) = match (&check.algorithm, verdict.retry_after) {
            // The refused hits are counted themselves: the window is over its limit, for any hits, to its end. Not in a group, which counts
            // nothing when it is refused.
            (Algorithm::FixedWindow(fixed), _) if fixed.count_denied && checks.commit == Commit::Each => (1, Some(verdict.reset_after)),
            (_, Wait::For(wait)) => (check.hits.unsigned_abs(), Some(wait)),
            (_, Wait::Never) => (check.hits.unsigned_abs(), None),
        };
        let (began, now) = (self.micros(began), self.micros(now));
        let longest = LONGEST.as_micros() as u64;
        let new = Entry {
            key: self.fingerprint(checks.key(check), &check.algorithm),
            hits,
            until: began.saturating_add(wait.map_or(longest, |wait| wait.micros().min(longest))),
            retry: now.saturating_add(wait.map_or(u64::MAX, Span::micros)),
            reset: now.saturating_add(verdict.reset_after.micros()),
            used: verdict.used,
            remaining: verdict.remaining,
        };
        let mut set = self.set(new.key);
        if let Some(known) = set.iter_mut().find(|entry| entry.key == new.key) {
            // Of two that hold, the one of fewer hits refuses more.
            let is_better = new.hits < known.hits || (new.hits == known.hits && new.until > known.until);
            if known.until <= now || is_better {
                *known = new;
            }
        } else if let Some(soonest) = set.iter_mut().min_by_key(|entry| entry.until) {
            *soonest = new;
        }
    }

    fn fingerprint(&self, key: &[u8], algorithm: &Algorithm) -> Fingerprint {
        let mut hasher = SipHasher13::new_with_keys(self.0.secret.0, self.0.secret.1);
        key.hash(&mut hasher);
        // All its numbers, so that a limit that was changed does not meet what it refused before.
        algorithm.hash(&mut hasher);
        let hash = hasher.finish128();
        Fingerprint(hash.h1, hash.h2)
    }

    fn set(&self, key: Fingerprint) -> MutexGuard<'_, Set> {
        let place = (u128::from(key.0) * self.0.sets.len() as u128) >> u64::BITS;
        lock(&self.0.sets[place as usize])
    }

    /// Cut to whole microseconds, at both ends of a comparison: a later instant is never cut below an earlier one.
    fn micros(&self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.0.epoch).as_micros()).unwrap_or(u64::MAX)
    }
}

/// Whether the same check would be refused again for as long as the store told, whoever asks.
fn is_lasting(checks: &Checks, check: &Check) -> bool {
    // What a shaper refuses depends on how long the caller waits, and a look is refused only while there is debt.
    if check.hits <= 0 || check.algorithm.may_delay() {
        return false;
    }
    if checks.commit == Commit::Each {
        return true;
    }
    // In a group that is refused nothing is taken, but its checks say how long to wait as if it were: what earlier ones of the same key ask
    // for, and the debt of a refusal. A fixed window waits for its end in any case.
    let has_debt = check.algorithm.counts_denied() && !matches!(check.algorithm, Algorithm::FixedWindow(_));
    !has_debt && checks.iter().filter(|other| checks.key(other) == checks.key(check)).count() == 1
}

/// An entry is written as a whole.
fn lock(set: &Mutex<Set>) -> MutexGuard<'_, Set> {
    set.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for DenialCache {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("DenialCache").field("sets", &self.0.sets.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
