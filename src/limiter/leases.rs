//! Leases: hits that this process has drawn ahead of its requests, for limits with `lease: true`.
//!
//! A request of a busy key draws more hits from Redis than its own, and the requests after it are
//! answered with these. A draw is a hit with more hits: stores and scripts do not handle leases. A
//! request carries it, and there is no timer, no task and no command in the background.
//!
//! Nothing is ever admitted beyond a limit, whatever crashes, is lost or is late (see `lease`),
//! except the hits that are held when a counter is reset. Only hits that were drawn and not used
//! can be lost, of a key in each process at most the hits of 0.1 s for each draw, and no more than
//! it has used. They are not refunded: a refund to the wrong window would admit too many.
//!
//! The table is created with the first check of a limit with `lease`. An entry that another key
//! replaces loses the hits that it holds.

mod lease;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use smallvec::SmallVec;
use tokio::time::Instant;

use self::lease::{Lease, LeaseStep, Terms};
use super::Limiter;
use super::draft::Draft;
use super::replicas::ReplicaCount;
use super::table::{Table, fingerprint};
use crate::core::answer::{Answer, Decision, Effect};
use crate::core::fingerprint::Fingerprint;
use crate::core::lock;
use crate::core::verdict::Verdict;
use crate::limits::plan::{Check, CheckIndex, CheckIndices, Checks};

/// Maximum number of keys in the table. A process that serves more busy keys at a time sends some
/// of their hits to the store one by one.
pub const MAX_ENTRIES: usize = 16_384;

/// The most bytes of the table.
pub const MAX_BYTES: usize = 2 << 20;

/// Entries per set. They share a lock, and a new one replaces the one that was not used for the
/// longest time.
const WAYS: usize = 4;

const _: () = assert!(size_of::<Mutex<LeaseSet>>() * MAX_ENTRIES / WAYS <= MAX_BYTES);

/// Events of draws and of their hits.
#[derive(Clone, Copy, Debug)]
pub enum Event {
    /// Draws of which all hits were granted.
    Granted,
    /// Draws of which some were.
    Partial,
    /// Draws of which none was.
    Refused,
    /// Draws that the store did not answer, or whose caller did not wait.
    Failed,
    /// Hits that were granted.
    DrawnHits,
    /// Hits that were held when their window ended.
    WindowEnded,
    /// Hits that were held by an entry that another key replaced, or that an operator reset.
    Evicted,
    /// Hits of a counter that was reset or lost.
    Void,
}
const EVENTS: usize = Event::Void as usize + 1;

/// The leases of this process; clones share them.
#[derive(Clone, Debug, Default)]
pub struct Leases(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    table: OnceLock<Table<LeaseSet>>,
    events: [AtomicU64; EVENTS],
}

type LeaseSet = [LeaseEntry; WAYS];

#[derive(Clone, Copy, Debug, Default)]
struct LeaseEntry {
    key: Fingerprint,
    lease: Lease,
}

/// Steps of the leases for the checks of one request.
#[derive(Debug)]
pub(super) struct Draws<'l> {
    leases: &'l Leases,
    began: Instant,
    replicas: u64,
    /// By check; `None` where leases have no part in it.
    each: SmallVec<[Option<(Fingerprint, LeaseStep)>; 4]>,
}

impl Leases {
    /// Hits of a check that a lease may answer; `None` without `lease`, for peeks and refunds, and
    /// above the capacity.
    fn hits(check: &Check) -> Option<u64> {
        let hits = u64::try_from(check.hits).ok()?;
        (check.draws_ahead && hits > 0 && hits <= check.algorithm.capacity()).then_some(hits)
    }

    /// Decides each check of a request that begins now by its lease, which uses held hits; `None` if
    /// leases have no part in it. A request with a refund sends all of its checks to the store.
    pub(super) fn draws(
        &self,
        checks: &Checks,
        began: Instant,
        replicas: &ReplicaCount,
    ) -> Option<Draws<'_>> {
        let has_part = checks.iter().any(|check| Self::hits(check).is_some())
            && checks.iter().all(|check| check.hits >= 0);
        if !has_part {
            return None;
        }
        let replicas = replicas.get().get().into();
        let each = checks.iter().map(|check| {
            let hits = Self::hits(check)?;
            let (key, table) = (fingerprint(check), self.table());
            let (mut set, now) = (table.set(key), table.micros(began));
            let entry = self.entry(&mut set, key, now);
            let terms = Terms {
                algorithm: &check.algorithm,
                replicas,
            };
            Some((key, entry.lease.decide(now, hits, terms)))
        });
        Some(Draws {
            leases: self,
            began,
            replicas,
            each: each.collect(),
        })
    }

    /// The hits of a counter that this process has drawn and not used.
    pub fn leased(&self, checks: &Checks, index: CheckIndex, now: Instant) -> u64 {
        let check = &checks[index];
        let Some(table) = self.0.table.get().filter(|_| check.draws_ahead) else {
            return 0;
        };
        let (key, now) = (fingerprint(check), table.micros(now));
        let set = table.set(key);
        set.iter()
            .find(|entry| entry.key == key)
            .map_or(0, |entry| entry.lease.leased(now))
    }

    /// Drops the hits that this process holds of the counters of these checks.
    pub fn forget(&self, checks: &Checks) {
        let Some(table) = self.0.table.get() else {
            return;
        };
        let now = table.micros(Instant::now());
        for check in checks.iter().filter(|check| check.draws_ahead) {
            let key = fingerprint(check);
            let mut set = table.set(key);
            for entry in set.iter_mut().filter(|entry| entry.key == key) {
                self.count_unused(entry.lease, now);
                *entry = LeaseEntry::default();
            }
        }
    }

    /// Drops the hits that this process holds of all counters, because one of them was reset and it
    /// is unknown which. Locks each set in turn.
    pub fn forget_all(&self) {
        let Some(table) = self.0.table.get() else {
            return;
        };
        let now = table.micros(Instant::now());
        for set in &table.sets {
            for entry in &mut *lock(set) {
                self.count_unused(entry.lease, now);
                entry.lease.rest = 0;
            }
        }
    }

    /// Number of keys with held hits at `now`. Locks each set in turn.
    pub fn len(&self, now: Instant) -> usize {
        let Some(table) = self.0.table.get() else {
            return 0;
        };
        let now = table.micros(now);
        let holds = |entry: &&LeaseEntry| entry.lease.leased(now) > 0;
        let in_set = |set: &Mutex<LeaseSet>| lock(set).iter().filter(holds).count();
        table.sets.iter().map(in_set).sum()
    }

    /// Number of events of a kind, or of their hits, since the start.
    pub fn counted(&self, event: Event) -> u64 {
        self.0.events[event as usize].load(Ordering::Relaxed)
    }

    fn count(&self, event: Event, number: u64) {
        if number > 0 {
            self.0.events[event as usize].fetch_add(number, Ordering::Relaxed);
        }
    }

    /// Counts the hits that a lease holds and that nothing will use.
    fn count_unused(&self, lease: Lease, now: u64) {
        let event = if now < lease.until {
            Event::Evicted
        } else {
            Event::WindowEnded
        };
        self.count(event, lease.rest);
    }

    fn table(&self) -> &Table<LeaseSet> {
        let new = || Table::new(MAX_ENTRIES / WAYS);
        self.0.table.get_or_init(new)
    }

    /// The entry of a key. A new one replaces the entry of the set that is idle for longest.
    fn entry<'s>(&self, set: &'s mut LeaseSet, key: Fingerprint, now: u64) -> &'s mut LeaseEntry {
        let found = set.iter().position(|entry| entry.key == key);
        let index = found.unwrap_or_else(|| {
            let oldest = (0..WAYS)
                .min_by_key(|&way| set[way].lease.slot)
                .unwrap_or(0);
            self.count_unused(std::mem::take(&mut set[oldest]).lease, now);
            set[oldest].key = key;
            oldest
        });
        &mut set[index]
    }
}

impl Limiter {
    /// The same limiter with leases, which all workers share.
    #[must_use]
    pub fn with_leases(self, leases: Option<Leases>) -> Self {
        Self { leases, ..self }
    }

    /// The hits that this process has drawn ahead for a check and not used.
    pub fn leased(&self, checks: &Checks, index: CheckIndex) -> u64 {
        let leases = self.leases.as_ref();
        leases.map_or(0, |leases| leases.leased(checks, index, Instant::now()))
    }

    /// The part of the leases in a request that begins now.
    pub(super) fn draws(&self, checks: &Checks, began: Instant) -> Option<Box<Draws<'_>>> {
        let draws = self
            .leases
            .as_ref()?
            .draws(checks, began, self.failure_policies.replicas());
        draws.map(Box::new)
    }
}

impl Draft<'_> {
    /// The answer of leases to a check.
    pub(super) fn drawn(&self, index: CheckIndex) -> Option<Verdict> {
        self.draws.as_ref()?.answer(index)
    }

    /// Decides the checks that leases answer. Returns the checks with the hits to draw ahead, if
    /// there are some.
    pub(super) fn use_draws(&mut self) -> Option<Checks> {
        let (draws, mut ahead) = (self.draws.as_ref()?, None);
        for index in self.of.checks.indices() {
            let hits = draws.ahead(index);
            if let Some(verdict) = draws.answer(index) {
                self.decided[index.0] = Some(Decision::Lease(verdict));
            } else if hits > 0 {
                let checks = ahead.get_or_insert_with(|| Checks::clone(self.of.checks));
                checks.draw_ahead(index, hits);
            }
        }
        ahead
    }
}

impl Draws<'_> {
    /// The answer to a check that needs no store.
    fn answer(&self, CheckIndex(index): CheckIndex) -> Option<Verdict> {
        match self.each.get(index) {
            Some(Some((_, LeaseStep::Leased(verdict)))) => Some(*verdict),
            _ => None,
        }
    }

    /// The hits to draw beyond the hits of a check.
    fn ahead(&self, CheckIndex(index): CheckIndex) -> u64 {
        match self.each[index] {
            Some((_, LeaseStep::Sent { ahead, .. })) => ahead,
            Some((_, LeaseStep::Leased(_))) | None => 0,
        }
    }

    /// Answers a check that was refused, or that the store did not answer, with held hits, if there
    /// are enough. Ends its draw either way.
    fn take(&mut self, checks: &Checks, index: CheckIndex) -> Option<Verdict> {
        let answer = self.with_lease(checks, index, |lease, now, hits, terms| {
            lease.take(now, hits, terms)
        });
        self.end_draw(index);
        let verdict = answer.flatten()?;
        let (_, step) = self.each[index.0].as_mut()?;
        *step = LeaseStep::Leased(verdict);
        Some(verdict)
    }

    /// Whether leases overrule a refusal of the denial cache: held hits answer or, where their count
    /// is old, the store does.
    pub(super) fn lifts_refusal(&mut self, checks: &Checks, index: CheckIndex) -> bool {
        let is_old = |lease: &mut Lease, now, hits, _: Terms<'_>| lease.is_old(now, hits);
        self.with_lease(checks, index, is_old) == Some(true) || self.take(checks, index).is_some()
    }

    /// Takes in the store's answers to the checks at `picked`. Returns the checks to send again,
    /// with their own hits alone: draws that were refused, if the limit does not count refused
    /// hits. Nothing of these was counted.
    pub(super) fn take_in(
        &mut self,
        checks: &Checks,
        picked: &[CheckIndex],
        answers: &mut [Answer],
    ) -> CheckIndices {
        let mut again = CheckIndices::new();
        for &index in picked {
            if !matches!(
                self.each.get(index.0),
                Some(Some((_, LeaseStep::Sent { .. })))
            ) {
                continue;
            }
            let answer = &mut answers[index.0];
            let verdict = match answer.verdict {
                Ok(verdict) => self.drawn(checks, index, &verdict, &mut answer.effect),
                Err(_) => {
                    self.failed(checks, index);
                    None
                }
            };
            if let Some(verdict) = verdict {
                answer.verdict = Ok(verdict);
            }
            if verdict.is_some_and(|verdict| verdict.allowed) {
                self.end_draw(index);
            } else if let Some(held) = self.take(checks, index) {
                // The denial cache must not take the refusal of a draw for one of the check.
                answer.verdict = Ok(held);
            } else if verdict.is_none() && answer.verdict.is_ok() {
                again.push(index);
            }
        }
        again
    }

    /// The verdict on a check that the store has answered; `None`: its own hits have to be sent
    /// again.
    fn drawn(
        &self,
        checks: &Checks,
        index: CheckIndex,
        verdict: &Verdict,
        effect: &mut Effect,
    ) -> Option<Verdict> {
        let (ahead, began) = (self.ahead(index), self.leases.table().micros(self.began));
        let hits = Leases::hits(&checks[index])?;
        let algorithm = &checks[index].algorithm;
        let before = algorithm.counted_before(verdict, hits + ahead);
        if let Some(before) = before {
            *effect = Effect::Drawn {
                before,
                after: verdict.used,
            };
        }
        let drawn = self.with_lease(checks, index, |lease, now, hits, terms| {
            lease.drawn((began, now), (hits, ahead), verdict, terms)
        })?;
        let counted = [
            (Event::DrawnHits, drawn.granted),
            (Event::Void, drawn.void),
            (Event::WindowEnded, drawn.ended),
        ];
        for (event, number) in counted {
            self.leases.count(event, number);
        }
        if ahead > 0 {
            let event = match drawn.granted {
                0 => Event::Refused,
                granted if granted == ahead => Event::Granted,
                _ => Event::Partial,
            };
            self.leases.count(event, 1);
        }
        drawn.verdict
    }

    /// Notes that the store did not answer a check.
    fn failed(&self, checks: &Checks, index: CheckIndex) {
        let is_draw = self.ahead(index) > 0;
        self.with_lease(checks, index, |lease, now, _, _| {
            lease.failed(now);
            if is_draw {
                lease.draw_lost();
            }
        });
        self.leases.count(Event::Failed, is_draw.into());
    }

    /// Runs `work` on the lease of a check that is sent to the store, with the time, the check's hits
    /// and terms; `None` if leases have no part in it.
    fn with_lease<T>(
        &self,
        checks: &Checks,
        index: CheckIndex,
        work: impl FnOnce(&mut Lease, u64, u64, Terms<'_>) -> T,
    ) -> Option<T> {
        let Some((key, LeaseStep::Sent { .. })) = self.each[index.0] else {
            return None;
        };
        let (check, table) = (&checks[index], self.leases.table());
        let (hits, now) = (Leases::hits(check)?, table.micros(Instant::now()));
        let mut set = table.set(key);
        let entry = self.leases.entry(&mut set, key, now);
        let terms = Terms {
            algorithm: &check.algorithm,
            replicas: self.replicas,
        };
        Some(work(&mut entry.lease, now, hits, terms))
    }

    /// Ends the draw of a check, if it has one.
    fn end_draw(&mut self, CheckIndex(index): CheckIndex) {
        let Some((key, LeaseStep::Sent { ahead, draws })) = &mut self.each[index] else {
            return;
        };
        *ahead = 0;
        if std::mem::take(draws) {
            let key = *key;
            self.with_entry(key, Lease::end_draw);
        }
    }

    /// Runs `work` on the lease of a key, if it is still in the table.
    fn with_entry(&self, key: Fingerprint, work: impl FnOnce(&mut Lease)) {
        let mut set = self.leases.table().set(key);
        if let Some(entry) = set.iter_mut().find(|entry| entry.key == key) {
            work(&mut entry.lease);
        }
    }
}

/// Ends the draws that are under way: their request was dropped, and the hits that they drew are
/// lost.
impl Drop for Draws<'_> {
    fn drop(&mut self) {
        for index in 0..self.each.len() {
            if let Some((key, LeaseStep::Sent { ahead: 1.., .. })) = self.each[index] {
                self.leases.count(Event::Failed, 1);
                self.with_entry(key, Lease::draw_lost);
            }
            self.end_draw(CheckIndex(index));
        }
    }
}

#[cfg(test)]
mod tests;
