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
    pub const fn is_reservation(self) -> bool {
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

/// The changes that a step has made to the holds of its key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Effect {
    pub outcome: Outcome,
    /// The hits that the reservation or the settlement has counted or refunded, without the hits
    /// of expired holds; see [`Effect::hits_of`].
    pub hits: i64,
    /// The hits that the reservation holds now in addition, or that the settlement has released, as
    /// the gauge of held hits counts them.
    pub change: Change,
    /// Number of holds that expired.
    pub expired: u64,
}

impl Effect {
    /// The hits that a check has counted, of which so many were requested.
    pub const fn hits_of(&self, requested: i64) -> i64 {
        match self.outcome {
            Outcome::Plain => requested,
            _ => self.hits,
        }
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
            Outcome::HeldBefore => answer(true, Wait::For(Span::ZERO)),
            _ => verdict,
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
    pub fn record(&self, effect: &Effect, hits: i64, now: Micros) {
        let is_settled = effect.outcome == Outcome::Matched;
        self.held.record(effect.change, !is_settled, now);
        let add = |counter: &AtomicU64, number| counter.fetch_add(number, Ordering::Relaxed);
        add(&self.outcomes[effect.outcome as usize], 1);
        add(&self.expired, effect.expired);
        if is_settled {
            let (cost, held) = (hits.max(0).unsigned_abs(), effect.change.places);
            add(&self.above, cost.saturating_sub(held));
            add(&self.below, held.saturating_sub(cost));
        }
    }
}

/// The ids of a key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holds {
    by_id: BTreeMap<HolderId, Hold>,
    /// By kind and by the end of their lives.
    order: BTreeSet<(Kind, Micros, HolderId)>,
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

    /// So many of its hits, as the gauge of held hits counts them.
    const fn change(&self, hits: u64, now: Micros) -> Change {
        Change {
            age: if hits > 0 {
                now.since(self.since)
            } else {
                Span::ZERO
            },
            places: hits,
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
        self.order.insert((hold.kind, hold.until, id));
        self.by_id.insert(id, hold);
    }
}

/// The holds of a key that have not expired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    pub reservations: u64,
    /// The sum of their hits.
    pub hits: u64,
    /// When the oldest was made.
    pub since: Micros,
}

impl Held {
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

/// The holds of a key that have expired; their hits are refunded or stay counted.
struct Expired {
    /// The number of the current window.
    window: u64,
    refunded: Vec<HolderId>,
    /// The sum of their hits.
    refund: i64,
    kept: Vec<(HolderId, Hold)>,
}

impl Expired {
    fn of(holds: &Holds, terms: &Reservations, window: u64, now: Micros) -> Self {
        let mut expired = Self {
            window,
            refunded: Vec::new(),
            refund: 0,
            kept: Vec::new(),
        };
        for id in holds.ending(Kind::Held, now).take(MOST_EXPIRED) {
            let hold = holds.by_id[&id];
            if terms.on_expiry == OnExpiry::Release && hold.window == window {
                expired.refunded.push(id);
                expired.refund += hold.hits.cast_signed();
            } else {
                expired.kept.push((id, hold));
            }
        }
        expired
    }

    /// Ends the holds. Kept ones are known until `until`; earlier ones whose time is over
    /// are dropped.
    fn end(self, holds: &mut Holds, until: Micros, now: Micros) {
        let forgotten: Vec<_> = match self.kept.is_empty() {
            true => Vec::new(),
            false => holds.ending(Kind::Kept, now).take(MOST_EXPIRED).collect(),
        };
        for id in self.refunded.into_iter().chain(forgotten) {
            holds.remove(id);
        }
        for (id, hold) in self.kept {
            let kind = Kind::Kept;
            holds.set(
                id,
                Hold {
                    kind,
                    until,
                    ..hold
                },
            );
        }
    }
}

/// Steps of one check on the state of its key.
struct Steps<'a> {
    limit: &'a Algorithm,
    at: Arrival,
    state: Option<State>,
    keep_for: Option<Span>,
}

impl Steps<'_> {
    fn refund(&mut self, hits: i64) {
        if hits > 0 {
            self.charge(-hits);
        }
    }

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

    /// How long the holds of a key are kept after its last reservation or settlement.
    pub fn keep_for(&self) -> Span {
        let longest = (2 * self.ttl.micros()).max(SETTLED_LIFE.micros());
        Span::from_micros(longest + 5_000_000)
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
    ) -> (Step, Effect) {
        let now = at.now;
        let expired = Expired::of(holds, self, window_number(limit, now), now);
        let mut steps = Steps {
            limit,
            at,
            state,
            keep_for: None,
        };
        if purpose == Purpose::Plain && hits == 0 {
            let before = steps.state.clone().filter(|_| expired.refund > 0);
            steps.refund(expired.refund);
            let verdict = steps.charge(0);
            let state = if expired.refund > 0 {
                before
            } else {
                steps.state
            };
            return (Step::unchanged(verdict, state), Effect::default());
        }
        steps.refund(expired.refund);
        let expired_count = (expired.refunded.len() + expired.kept.len()) as u64;
        // The room that the refunded holds leave counts.
        let is_full = holds.by_id.len() >= MOST_IDS + expired.refunded.len();
        let spare = holds
            .first(Kind::Kept)
            .or_else(|| holds.first(Kind::Settled));
        let window = expired.window;
        expired.end(holds, now + self.ttl, now);
        let (verdict, mut effect) = match purpose {
            Purpose::Plain => (steps.charge(hits), Effect::default()),
            Purpose::Reserve(id) if is_full && spare.is_none() && holds.find(id, now).is_none() => {
                let outcome = Outcome::Full;
                (
                    steps.take(0),
                    Effect {
                        outcome,
                        ..Effect::default()
                    },
                )
            }
            Purpose::Reserve(id) => {
                if let (true, Some(spare), None) = (is_full, spare, holds.find(id, now)) {
                    holds.remove(spare);
                }
                self.reserve(id, hits, window, holds, &mut steps)
            }
            Purpose::Settle(id) => release(id, hits, window, holds, &mut steps),
        };
        effect.expired = expired_count;
        let step = Step {
            verdict: effect.verdict(verdict),
            state: steps.state,
            keep_for: steps.keep_for,
        };
        (step, effect)
    }

    fn reserve(
        &self,
        id: HolderId,
        hits: i64,
        window: u64,
        holds: &mut Holds,
        steps: &mut Steps<'_>,
    ) -> (Verdict, Effect) {
        let (now, asked) = (steps.at.now, hits.clamp(0, MOST_HITS).unsigned_abs());
        let wanted = asked.min(self.most_held(steps.limit));
        let known = holds.find(id, now);
        let hold = known.unwrap_or(Hold {
            kind: Kind::Held,
            hits: 0,
            window,
            since: now,
            until: now + self.ttl,
        });
        let is_settled = hold.kind == Kind::Settled;
        let missing = if is_settled {
            0
        } else {
            wanted.saturating_sub(hold.hits)
        };
        let verdict = steps.take(missing);
        let outcome = match known {
            _ if is_settled => Outcome::Overtaken,
            Some(_) if missing == 0 => Outcome::HeldBefore,
            _ if !verdict.allowed => Outcome::Refused,
            _ if wanted < asked => Outcome::Shortened,
            _ => Outcome::Held,
        };
        let mut effect = Effect {
            outcome,
            hits: missing.cast_signed(),
            ..Effect::default()
        };
        if matches!(outcome, Outcome::Held | Outcome::Shortened) {
            let hits = hold.hits + missing;
            holds.set(id, Hold { hits, ..hold });
            effect.change = hold.change(missing, now);
        }
        (verdict, effect)
    }
}

/// Settles the hold of an id.
fn release(
    id: HolderId,
    hits: i64,
    window: u64,
    holds: &mut Holds,
    steps: &mut Steps<'_>,
) -> (Verdict, Effect) {
    let (now, cost) = (steps.at.now, hits.clamp(0, MOST_HITS));
    let known = holds.find(id, now);
    let (outcome, counted) = match known {
        None => (Outcome::Unknown, cost),
        Some(hold) if hold.kind == Kind::Settled => (Outcome::SettledBefore, 0),
        Some(hold) => {
            let difference = cost - hold.hits.cast_signed();
            let is_open = hold.kind == Kind::Held && hold.window == window;
            (
                Outcome::Matched,
                if is_open {
                    difference
                } else {
                    difference.max(0)
                },
            )
        }
    };
    let verdict = steps.charge(counted);
    let change = match known {
        Some(hold) => hold.change(hold.hits, now),
        None => Change::default(),
    };
    if outcome != Outcome::SettledBefore {
        let settled = Hold {
            kind: Kind::Settled,
            hits: 0,
            window: 0,
            since: now,
            until: now + SETTLED_LIFE,
        };
        holds.set(id, settled);
        if holds.ending(Kind::Settled, Micros(u64::MAX)).count() > MOST_SETTLED
            && let Some(first) = holds.first(Kind::Settled)
        {
            holds.remove(first);
        }
    }
    let effect = Effect {
        outcome,
        hits: counted,
        change,
        expired: 0,
    };
    (verdict, effect)
}

#[cfg(test)]
mod tests;
