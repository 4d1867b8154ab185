//! `reservations`: hits that a request reserves when it starts and settles when their number is
//! known, as the tokens of a language model.
//!
//! A key with reservations has, in addition to its state, a set of [`Holds`]: the digest of a
//! request's id, its hits, and the window in which they were counted. A reservation is counted when
//! it is made, by the step of the algorithm. Its settlement counts the difference. So the state and
//! every other check on it need no knowledge of holds.
//!
//! - Reserve (`n` hits): refused if the step refuses them, and then nothing is counted. The same id
//!   again takes only hits beyond those that it holds. An id that was settled holds nothing: its
//!   settlement has overtaken it.
//! - Settle (`m` hits; negative hits count as 0): ends the hold and counts `m` - `n`, above 0 as
//!   debt. An id without a hold counts `m`. The same id again counts nothing for
//!   [`SETTLED_LIFE`].
//! - A hold expires after `ttl`. The next check of its key refunds it, or keeps it counted
//!   (`on_expiry: keep`). A peek computes the refund and writes nothing.
//!
//! Hits that an earlier window has counted are never refunded: the settlement of such a hold, and
//! of one that expired and was kept, counts `m` - `n` only above 0. Kept holds are known for
//! another `ttl`.
//!
//! The twin is `lua/reservations.lua`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};

use super::concurrency::{Change, Gauge, HolderId};
use super::options::{OnExpiry, Reservations};
use super::{Algorithm, Arrival, State, Step};
use crate::core::time::{MAX_SAFE_INTEGER, Micros, Span};
use crate::core::verdict::{Verdict, Wait};

/// Maximum number of ids of a key: some hundred bytes each in Redis and in memory. Beyond it the
/// oldest kept hold is dropped, or the oldest settled id; if there is none, a reservation is refused.
pub const MOST_IDS: usize = 10_000;

/// Maximum number of settled ids of a key, in addition to [`MOST_IDS`]; then the oldest is dropped.
pub const MOST_SETTLED: usize = 256;

/// For so long another settlement of an id counts nothing: longer than any proxy retries.
pub const SETTLED_LIFE: Span = Span::from_secs(60);

/// Maximum number of expired holds that one step ends.
pub const MOST_EXPIRED: usize = 100;

/// The most hits of a reservation or a settlement: numbers up to here are exact in Lua.
const MOST_HITS: i64 = MAX_SAFE_INTEGER.cast_signed();

/// `retry_after` of a reservation that is refused because the key has [`MOST_IDS`].
const RETRY: Span = Span::from_secs(1);

/// The key of the entry whose value is the id of a reservation.
pub const RESERVE: &[u8] = b"reserve";

/// The key of the entry whose value is the id of a reservation to settle.
pub const SETTLE: &[u8] = b"settle";

/// Whether the value of this key is the id of a reservation.
pub fn is_reservation_key(key: &[u8]) -> bool {
    key == RESERVE || key == SETTLE
}

/// The purpose of a check of a limit with reservations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Purpose {
    /// Hits, a peek or a refund without an id.
    #[default]
    Plain,
    /// Reserves its hits for this id.
    Reserve(HolderId),
    /// Settles the hold of this id with its hits.
    Settle(HolderId),
}

/// The result of a reservation or a settlement. `lua/reservations.lua` has the same numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Outcome {
    /// Neither of both.
    #[default]
    Plain = 0,
    /// The hits are held.
    Held = 1,
    /// A part of the hits is held: the share that one reservation may have.
    Shortened = 2,
    /// The step refused the hits.
    Refused = 3,
    /// The key has too many ids.
    Full = 4,
    /// The id held the hits already.
    HeldBefore = 5,
    /// The id was settled before it was reserved.
    Overtaken = 6,
    /// The settlement has ended a hold.
    Matched = 7,
    /// The id had no hold.
    Unknown = 8,
    /// The id was settled before.
    SettledBefore = 9,
}

impl Outcome {
    /// Whether it is of a reservation, which takes no debt.
    pub const fn is_of_hold(self) -> bool {
        (self as u8) >= Self::Held as u8 && (self as u8) <= Self::Overtaken as u8
    }

    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 10] = [
        Self::Plain,
        Self::Held,
        Self::Shortened,
        Self::Refused,
        Self::Full,
        Self::HeldBefore,
        Self::Overtaken,
        Self::Matched,
        Self::Unknown,
        Self::SettledBefore,
    ];
}

/// The change that a step has made to the holds of its key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HoldChange {
    pub outcome: Outcome,
    /// Number of holds that expired.
    pub expired: u32,
    /// The hits that the reservation or the settlement has counted or refunded, without the hits
    /// of expired holds; see [`HoldChange::hits_of`].
    pub counted: i64,
    /// The hits that the id of the reservation holds now, or that the settlement has released.
    pub held: u64,
    /// The time since the hold was made; zero without one.
    pub age: Span,
}

impl HoldChange {
    /// The hits that a check has counted, of which so many were requested.
    pub const fn hits_of(&self, requested: i64) -> i64 {
        match self.outcome {
            Outcome::Plain => requested,
            _ => self.counted,
        }
    }

    /// The hits that the id of a reservation holds, and until when.
    pub fn hold(&self, ttl: Span, now: Micros) -> Option<(u64, Micros)> {
        let is_held = self.outcome.is_of_hold() && self.held > 0;
        let since = now.0.saturating_sub(self.age.micros());
        is_held.then(|| (self.held, Micros(since) + ttl))
    }

    /// The answer to the check, by the verdict of the algorithm on its hits.
    #[must_use]
    pub fn verdict(&self, verdict: Verdict) -> Verdict {
        let answer = |allowed, retry_after| Verdict {
            allowed,
            retry_after,
            ..verdict
        };
        match self.outcome {
            Outcome::Full => answer(false, Wait::For(RETRY)),
            // A settlement charges hits that were used, in debt too.
            Outcome::HeldBefore | Outcome::Matched | Outcome::Unknown | Outcome::SettledBefore => {
                answer(true, Wait::For(Span::ZERO))
            }
            _ => verdict,
        }
    }

    /// The change of the hits that all ids of the limit hold.
    fn places(&self) -> Change {
        let places = match self.outcome {
            Outcome::Held | Outcome::Shortened => self.counted.unsigned_abs(),
            outcome if outcome.is_of_hold() => 0,
            _ => self.held,
        };
        Change {
            places,
            age: self.age,
        }
    }
}

/// Counts the reservations and settlements of one limit, as far as this process has made them.
#[derive(Debug)]
pub struct Tally {
    /// The `ttl` of the limit.
    pub ttl: Span,
    /// Reserved hits that are not settled.
    pub held: Gauge,
    /// By the number of the outcome.
    outcomes: [AtomicU64; Outcome::ALL.len()],
    expired: AtomicU64,
    /// Settled hits beyond the reserved ones.
    above: AtomicU64,
    /// Reserved hits beyond the settled ones.
    below: AtomicU64,
}

impl Tally {
    /// Of a limit with this `ttl`.
    pub fn new(ttl: Span) -> Self {
        Self {
            ttl,
            held: Gauge::new(ttl),
            outcomes: Default::default(),
            expired: AtomicU64::new(0),
            above: AtomicU64::new(0),
            below: AtomicU64::new(0),
        }
    }

    /// Number of checks with this outcome.
    pub fn count(&self, outcome: Outcome) -> u64 {
        self.outcomes[outcome as usize].load(Ordering::Relaxed)
    }

    /// Settled hits above the reserved ones, and reserved hits above the settled ones.
    pub fn differences(&self) -> [u64; 2] {
        [&self.above, &self.below].map(|hits| hits.load(Ordering::Relaxed))
    }

    /// Number of holds that expired.
    pub fn expired(&self) -> u64 {
        self.expired.load(Ordering::Relaxed)
    }

    /// Counts a step of a check with these hits.
    pub fn record(&self, change: &HoldChange, hits: i64, now: Micros) {
        let is_settled = change.outcome == Outcome::Matched;
        self.held.record(change.places(), !is_settled, now);
        let add = |counter: &AtomicU64, number| counter.fetch_add(number, Ordering::Relaxed);
        add(&self.outcomes[change.outcome as usize], 1);
        add(&self.expired, change.expired.into());
        if is_settled {
            let cost = hits.max(0).unsigned_abs();
            add(&self.above, cost.saturating_sub(change.held));
            add(&self.below, change.held.saturating_sub(cost));
        }
    }
}

/// The ids of a key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holds {
    by_id: BTreeMap<HolderId, Hold>,
    /// By kind and by the end of their lives.
    order: BTreeSet<(Kind, Micros, HolderId)>,
    /// When all of them have ended, also those that are kept until then.
    pub until: Micros,
}

/// An id of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hold {
    pub kind: Kind,
    /// Its hits; 0 if it is settled.
    pub hits: u64,
    /// The number of the window that counted them; 0 for algorithms without windows.
    pub window: u64,
    /// When it was made.
    pub since: Micros,
    /// When it expires, or is forgotten.
    pub until: Micros,
}

impl Hold {
    /// A value of the hash that `lua/reservations.lua` stores: the kind in one byte, and four
    /// numbers as little-endian doubles. `None` for anything else.
    pub fn unpack(packed: &[u8]) -> Option<Self> {
        let (&kind, numbers) = packed.split_first()?;
        let numbers = numbers.as_chunks().0.iter();
        let mut numbers = numbers.map(|&bytes| f64::from_le_bytes(bytes) as u64);
        Some(Self {
            kind: *[Kind::Held, Kind::Kept, Kind::Settled].get(usize::from(kind))?,
            hits: numbers.next()?,
            window: numbers.next()?,
            since: Micros(numbers.next()?),
            until: Micros(numbers.next()?),
        })
    }

    /// A change of this hold.
    const fn change(&self, outcome: Outcome, counted: i64, now: Micros) -> HoldChange {
        HoldChange {
            outcome,
            expired: 0,
            counted,
            held: self.hits,
            age: if self.hits > 0 {
                now.since(self.since)
            } else {
                Span::ZERO
            },
        }
    }
}

/// The kind of an id. `lua/reservations.lua` has the same values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// It has not expired.
    Held,
    /// It has expired, and its hits stay counted.
    Kept,
    /// It is settled, and has no hits.
    Settled,
}

/// The bytes of a hold in memory, with its share of both trees.
const HOLD_BYTES: usize = 160;

impl Holds {
    /// Whether it has no ids.
    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    /// All ids, in their order.
    pub fn iter(&self) -> impl Iterator<Item = (HolderId, Hold)> {
        self.by_id.iter().map(|(&id, &hold)| (id, hold))
    }

    /// The bytes of memory that they take.
    pub fn bytes(&self) -> usize {
        size_of::<Self>() + self.by_id.len() * HOLD_BYTES
    }

    /// Whether this id has hits that a settlement would release.
    pub fn holds(&self, id: HolderId) -> bool {
        let hold = self.by_id.get(&id);
        hold.is_some_and(|hold| hold.kind != Kind::Settled)
    }

    /// The ids of a kind whose lives end up to an instant, in this order.
    fn ending(&self, kind: Kind, last: Micros) -> impl Iterator<Item = HolderId> {
        let (low, high) = (
            HolderId([0; HolderId::BYTES]),
            HolderId([u8::MAX; HolderId::BYTES]),
        );
        let range = (kind, Micros(0), low)..=(kind, last, high);
        self.order.range(range).map(|(.., id)| *id)
    }

    /// The first id of a kind.
    fn first(&self, kind: Kind) -> Option<HolderId> {
        self.ending(kind, Micros(u64::MAX)).next()
    }

    /// The hold of an id; `None` also after the end of its time as kept or settled.
    fn find(&self, id: HolderId, now: Micros) -> Option<Hold> {
        let hold = self.by_id.get(&id).copied();
        hold.filter(|hold| hold.kind == Kind::Held || hold.until > now)
    }

    fn remove(&mut self, id: HolderId) {
        if let Some(hold) = self.by_id.remove(&id) {
            self.order.remove(&(hold.kind, hold.until, id));
        }
    }

    fn set(&mut self, id: HolderId, hold: Hold) {
        self.remove(id);
        let ttl = hold.until.since(hold.since);
        self.until = self.until.max(hold.until + ttl);
        self.order.insert((hold.kind, hold.until, id));
        self.by_id.insert(id, hold);
    }
}

/// The sum of the holds of a key that have not expired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldHits {
    pub reservations: u64,
    /// The sum of their hits.
    pub hits: u64,
    /// When the oldest was made.
    pub since: Micros,
}

impl HeldHits {
    /// Of these holds at `now`; `None` if all have expired.
    pub fn of(holds: impl Iterator<Item = Hold>, now: Micros) -> Option<Self> {
        let held = holds.filter(|hold| hold.kind == Kind::Held && hold.until > now);
        held.fold(None, |sum: Option<Self>, hold| {
            let sum = sum.unwrap_or(Self {
                reservations: 0,
                hits: 0,
                since: hold.since,
            });
            Some(Self {
                reservations: sum.reservations + 1,
                hits: sum.hits.saturating_add(hold.hits),
                since: sum.since.min(hold.since),
            })
        })
    }
}

/// The number of the window that counts hits at `now`; 0 for algorithms whose hits leave one by
/// one.
pub fn window_number(limit: &Algorithm, now: Micros) -> u64 {
    match limit {
        Algorithm::FixedWindow(fixed) => fixed.number(now),
        Algorithm::SlidingWindowCounter(counter) => counter.tick.at(now) / counter.window,
        _ => 0,
    }
}

/// A key while a check on it is decided.
struct Key<'a> {
    limit: &'a Algorithm,
    at: Arrival,
    /// The number of the current window.
    window: u64,
    holds: &'a mut Holds,
    state: Option<State>,
    keep_for: Option<Span>,
}

impl Key<'_> {
    /// Counts hits; refused ones become debt.
    fn charge(&mut self, hits: i64) -> Verdict {
        self.step(self.limit, hits)
    }

    /// Counts hits if the limit allows them.
    fn take(&mut self, hits: u64) -> Verdict {
        self.step(&self.limit.without_debt(), hits.cast_signed())
    }

    fn step(&mut self, limit: &Algorithm, hits: i64) -> Verdict {
        let step = limit.step(self.state.take(), self.at, hits);
        self.state = step.state;
        self.keep_for = step.keep_for.or(self.keep_for);
        step.verdict
    }

    /// The answer to a peek, which changes nothing. The hits of expired holds are `refund`.
    fn peek(mut self, refund: i64) -> (Step, HoldChange) {
        let before = (refund > 0).then(|| self.state.clone());
        if refund > 0 {
            self.charge(-refund);
        }
        let verdict = self.charge(0);
        let state = before.unwrap_or(self.state);
        (Step::unchanged(verdict, state), HoldChange::default())
    }

    /// Reserves hits for an id, if it has them already or there is room for another one.
    fn reserve(
        &mut self,
        id: HolderId,
        hits: i64,
        terms: &Reservations,
        has_room: bool,
    ) -> (Verdict, HoldChange) {
        let (now, asked) = (self.at.now, hits.clamp(0, MOST_HITS).unsigned_abs());
        let wanted = asked.min(terms.most_held(self.limit));
        let known = self.holds.find(id, now);
        let mut hold = known.unwrap_or(Hold {
            kind: Kind::Held,
            hits: 0,
            window: self.window,
            since: now,
            until: now + terms.ttl,
        });
        let is_settled = hold.kind == Kind::Settled;
        let missing = match has_room && !is_settled {
            true => wanted.saturating_sub(hold.hits),
            false => 0,
        };
        let verdict = self.take(missing);
        let outcome = match known {
            _ if !has_room => Outcome::Full,
            _ if is_settled => Outcome::Overtaken,
            Some(_) if missing == 0 => Outcome::HeldBefore,
            _ if !verdict.allowed => Outcome::Refused,
            _ if wanted < asked => Outcome::Shortened,
            _ => Outcome::Held,
        };
        if matches!(outcome, Outcome::Held | Outcome::Shortened) {
            hold.hits += missing;
            self.holds.set(id, hold);
        }
        (verdict, hold.change(outcome, missing.cast_signed(), now))
    }

    /// Settles the hold of an id.
    fn release(&mut self, id: HolderId, hits: i64) -> (Verdict, HoldChange) {
        let (now, cost) = (self.at.now, hits.clamp(0, MOST_HITS));
        let known = self.holds.find(id, now);
        let (outcome, counted) = match known {
            None => (Outcome::Unknown, cost),
            Some(hold) if hold.kind == Kind::Settled => (Outcome::SettledBefore, 0),
            Some(hold) => {
                let is_open = hold.kind == Kind::Held && hold.window == self.window;
                let difference = cost - hold.hits.cast_signed();
                let counted = if is_open {
                    difference
                } else {
                    difference.max(0)
                };
                (Outcome::Matched, counted)
            }
        };
        let verdict = self.charge(counted);
        if outcome != Outcome::SettledBefore {
            let settled = Hold {
                kind: Kind::Settled,
                hits: 0,
                window: 0,
                since: now,
                until: now + SETTLED_LIFE,
            };
            self.holds.set(id, settled);
            let settled = self.holds.ending(Kind::Settled, Micros(u64::MAX));
            if settled.count() > MOST_SETTLED
                && let Some(first) = self.holds.first(Kind::Settled)
            {
                self.holds.remove(first);
            }
        }
        let without_hold = HoldChange {
            outcome,
            counted,
            ..HoldChange::default()
        };
        let change = known.map_or(without_hold, |hold| hold.change(outcome, counted, now));
        (verdict, change)
    }
}

impl Reservations {
    /// The most hits that one reservation can hold.
    pub fn most_held(&self, limit: &Algorithm) -> u64 {
        let capacity = limit.capacity();
        let share = u128::from(capacity) * u128::from(self.max_share) / 100;
        u64::try_from(share)
            .unwrap_or(u64::MAX)
            .max(capacity.min(1))
    }

    /// The smallest number of hits that a reservation asks for.
    pub fn least_held(&self, limit: &Algorithm) -> i64 {
        let least = u64::from(self.minimum).min(self.most_held(limit));
        least.cast_signed()
    }

    /// Decides a check on the state and the holds of its key.
    pub fn step(
        &self,
        limit: &Algorithm,
        purpose: Purpose,
        hits: i64,
        state: Option<State>,
        holds: &mut Holds,
        at: Arrival,
    ) -> (Step, HoldChange) {
        let (now, window) = (at.now, window_number(limit, at.now));
        let expired = holds.ending(Kind::Held, now).take(MOST_EXPIRED);
        let expired = expired.map(|id| (id, holds.by_id[&id]));
        let is_refunded =
            |hold: &Hold| self.on_expiry == OnExpiry::Release && hold.window == window;
        let (refunded, kept): (Vec<_>, Vec<_>) = expired.partition(|(_, hold)| is_refunded(hold));
        let refund = refunded.iter().map(|(_, hold)| hold.hits.cast_signed());
        let refund = refund.sum();
        let mut key = Key {
            limit,
            at,
            window,
            holds,
            state,
            keep_for: None,
        };
        if purpose == Purpose::Plain && hits == 0 {
            return key.peek(refund);
        }
        if refund > 0 {
            key.charge(-refund);
        }
        let spare = key.holds.first(Kind::Kept);
        let spare = spare.or_else(|| key.holds.first(Kind::Settled));
        for (id, _) in &refunded {
            key.holds.remove(*id);
        }
        let is_full = key.holds.by_id.len() >= MOST_IDS;
        if !kept.is_empty() {
            let forgotten = key.holds.ending(Kind::Kept, now).take(MOST_EXPIRED);
            for id in forgotten.collect::<Vec<_>>() {
                key.holds.remove(id);
            }
        }
        for &(id, mut hold) in &kept {
            let ttl = hold.until.since(hold.since);
            (hold.kind, hold.until) = (Kind::Kept, now + ttl);
            key.holds.set(id, hold);
        }
        let (verdict, mut change) = match purpose {
            Purpose::Plain => (key.charge(hits), HoldChange::default()),
            Purpose::Reserve(id) => {
                let is_added = is_full && key.holds.find(id, now).is_none();
                if is_added && let Some(spare) = spare {
                    key.holds.remove(spare);
                }
                key.reserve(id, hits, self, !is_added || spare.is_some())
            }
            Purpose::Settle(id) => key.release(id, hits),
        };
        change.expired = (refunded.len() + kept.len()) as u32;
        let step = Step {
            verdict: change.verdict(verdict),
            state: key.state,
            keep_for: key.keep_for,
        };
        (step, change)
    }
}

#[cfg(test)]
mod tests;
