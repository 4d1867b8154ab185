//! `reservations`: hits that a request reserves when it starts and settles when their number is
//! known, as the tokens of a language model.
//!
//! The rule: a hold counts as its estimate from the instant of its reservation; once settled, as its
//! cost at that instant (what exceeds the hold, at the settlement); once expired, as nothing
//! (`on_expiry: release`) or as the estimate (`keep`). It is held only if its request was admitted
//! as a whole. It does not matter when or whether a check looks. `tests/vectors/holds.py` is the
//! model of it.
//!
//! A key has its counter, which counts the hits of holds as any others, and the [`Holds`]: of each
//! open one the places at which the counter has its hits. Every step first ends the holds that have
//! expired. What a hold does not cost is given back at its place, so that hits that have left the
//! window, and the hits of others, stay as they are; a token bucket gets at most what it would have
//! without the hold ([`Peaks`]).
//!
//! - Reserve (`n` hits): refused if the step refuses them, and then nothing is counted. The same id
//!   again takes only hits beyond those that it holds. An id that was settled holds nothing: its
//!   settlement has overtaken it. 0 hits hold nothing.
//! - Settle (`m` hits; negative hits count as 0): ends the hold, gives back what exceeds `m`, and
//!   counts what `m` exceeds it by, as debt if the limit refuses it. An id without a hold counts
//!   `m`. The same id again counts nothing for [`SETTLED_LIFE`].
//! - A hold that expired and is kept is known for another `ttl`: what its id reserves then is used
//!   at once, and its settlement counts only what exceeds it.
//!
//! An id whose time is over means the same as none. Every step forgets some of them; the twin
//! `lua/reservations.lua`, where that is a command, does so only while the key has many.

mod counted;
mod holds;
pub mod peaks;
mod tally;
pub mod terms;

use smallvec::{SmallVec, smallvec};

use self::holds::place_of;
pub use self::holds::{BAND, HeldHits, Hold, Holds, Kind};
pub use self::peaks::{Peak, Peaks};
pub use self::tally::Tally;
pub use self::terms::{OnExpiry, Reservations};
use super::places::{Change, RequestId};
use super::{Algorithm, Arrival, LARGEST_COUNT, Part, State, Step};
use crate::core::time::{MAX_SAFE_INTEGER, Micros, Span};
use crate::core::verdict::{Verdict, Wait};

/// Maximum number of holds of a key, open and kept: some hundred bytes each in Redis and in memory.
/// Beyond it the oldest kept one is dropped; if there is none, a reservation is refused.
pub const MOST_IDS: usize = 10_000;

/// Maximum number of settled ids of a key, in addition to [`MOST_IDS`]; then the oldest is dropped.
pub const MOST_SETTLED: usize = 256;

/// Maximum number of places of a hold: the same id can grow so often in further windows or ticks.
pub const MOST_PARTS: usize = 8;

/// Maximum number of open holds of a key that each expire at an instant of their own. Further ones
/// expire in groups, which end at multiples of a part of the `ttl`.
pub const MOST_SINGLE: usize = 256;

/// The groups in a `ttl`.
const GROUPS: u64 = 256;

/// For so long another settlement of an id counts nothing: longer than any proxy retries.
pub const SETTLED_LIFE: Span = Span::from_secs(60);

/// Maximum number of ids of a kind that one step forgets.
pub const MOST_FORGOTTEN: usize = 100;

/// The most hits of a reservation or a settlement: numbers up to here are exact in Lua.
const MOST_HITS: i64 = MAX_SAFE_INTEGER.cast_signed();

/// The most hits of [`HoldChange::kept`].
const LARGEST_KEPT: i64 = LARGEST_COUNT.cast_signed();

/// `retry_after` of a reservation that is refused because the key has [`MOST_IDS`], or its hold
/// [`MOST_PARTS`].
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
    Reserve(RequestId),
    /// Settles the hold of this id with its hits.
    Settle(RequestId),
    /// Leaves this id its hits of before it reserved more, because its request was refused.
    Undo(RequestId),
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
    /// The key has too many ids, or the hold too many places.
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
    /// The request was refused, and its reservation given back.
    Undone = 10,
    /// The settlement was of a hold that had expired and stays charged.
    MatchedLate = 11,
}

impl Outcome {
    /// Whether it is of a reservation, which takes no debt.
    pub const fn is_of_hold(self) -> bool {
        (self as u8) >= Self::Held as u8 && (self as u8) <= Self::Overtaken as u8
    }

    /// Whether it is of a check that ends holds: a settlement, or one that undoes a reservation.
    pub const fn ends(self) -> bool {
        (self as u8) >= Self::Matched as u8
    }

    /// Whether it is of a settlement whose id had a hold.
    pub const fn has_matched(self) -> bool {
        matches!(self, Self::Matched | Self::MatchedLate)
    }

    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 12] = [
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
        Self::Undone,
        Self::MatchedLate,
    ];
}

/// The change that a step has made to the holds of its key. Every answer has room for one: it is
/// small.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HoldChange {
    pub outcome: Outcome,
    /// Number of holds that expired; not above 65,535.
    pub expired: u16,
    /// The milliseconds since the hold was made; zero without one.
    pub age_ms: u32,
    /// The hits of the step on the counter: those that a reservation does not hold already, or by
    /// which a cost exceeds its hold.
    pub stepped: u64,
    /// The hits that a settlement or an undo has given back to the counter.
    pub returned: u64,
    /// The hits that the id of the reservation holds now, or that the settlement or the undo has
    /// released.
    pub held: u64,
    /// The hits of all open holds that the counter counts; known only if its limit has `notify`.
    pub open: u64,
    /// The hits that the counter counts for good since this step: of costs, and of kept holds.
    pub settled: u64,
    /// The hits that are used for good since this step, in addition to the check's own: of holds
    /// that have expired and stay charged, also if the counter counts them no more. Negative if the
    /// refused reservation of such a hold was given back.
    pub kept: i64,
}

const _: () = assert!(
    size_of::<HoldChange>() == 56,
    "it is a part of every answer"
);

impl HoldChange {
    /// A change of no hits.
    pub fn of(outcome: Outcome) -> Self {
        Self {
            outcome,
            ..Self::default()
        }
    }

    /// Whether its check had no id.
    pub fn is_plain(&self) -> bool {
        self.outcome == Outcome::Plain
    }

    /// The hits that a check has counted, of which so many were requested.
    pub const fn hits_of(&self, requested: i64) -> i64 {
        match self.outcome {
            Outcome::Plain => requested,
            _ => self.stepped.cast_signed() - self.returned.cast_signed(),
        }
    }

    /// The hits that a check has used for good, or that were refused, of which so many were
    /// requested: what is reserved is not used, and a settlement uses its cost. Without
    /// [`HoldChange::kept`].
    pub fn own_use(&self, requested: i64, allowed: bool) -> i64 {
        match self.outcome {
            Outcome::Plain => requested,
            Outcome::Matched | Outcome::Unknown => requested.max(0),
            Outcome::Refused if allowed => 0,
            Outcome::Refused | Outcome::MatchedLate => self.stepped.cast_signed(),
            _ => 0,
        }
    }

    /// The hits that the id of a reservation holds, and until when.
    pub fn hold(&self, ttl: Span, now: Micros) -> Option<(u64, Micros)> {
        let is_held = self.outcome.is_of_hold() && self.held > 0;
        let since = now.0.saturating_sub(self.age().micros());
        is_held.then(|| (self.held, Micros(since) + ttl))
    }

    /// The time since the hold was made.
    fn age(&self) -> Span {
        Span::from_micros(u64::from(self.age_ms) * 1_000)
    }

    /// The answer to the check, by the verdict of the algorithm on its hits. A repeated
    /// reservation, a settlement and an undo are never refused. Expiring holds make room
    /// `room_after` from now, perhaps before the counter has recovered; zero: they make none.
    #[must_use]
    pub fn verdict(&self, verdict: Verdict, room_after: Span) -> Verdict {
        let answer = |allowed, retry_after| Verdict {
            allowed,
            retry_after,
            ..verdict
        };
        match self.outcome {
            Outcome::Full => answer(false, Wait::For(RETRY)),
            // A settlement charges hits that were used, in debt too.
            outcome if outcome == Outcome::HeldBefore || outcome.ends() => {
                answer(true, Wait::For(Span::ZERO))
            }
            _ => match verdict.retry_after {
                Wait::For(retry) if room_after > Span::ZERO && room_after < retry => {
                    answer(verdict.allowed, Wait::For(room_after))
                }
                _ => verdict,
            },
        }
    }

    /// Whether it is the first of its id, or adds to its hits.
    pub const fn is_new(&self) -> bool {
        matches!(self.outcome, Outcome::Held | Outcome::Shortened)
    }

    /// Whether it ends a hold, or a part of it.
    const fn is_end(&self) -> bool {
        matches!(self.outcome, Outcome::Matched | Outcome::Undone)
    }

    /// The change of the hits that all ids of the limit hold.
    fn places(&self) -> Change {
        let places = match self.outcome {
            Outcome::Held | Outcome::Shortened => self.stepped,
            Outcome::MatchedLate => 0,
            outcome if outcome.is_of_hold() => 0,
            _ => self.held,
        };
        Change {
            places,
            age: self.age(),
        }
    }
}

impl Verdict {
    /// A limit of 0 with reservations also refuses the peek before a reservation.
    #[must_use]
    pub fn of_capacity(self, limit: &Algorithm, hits: i64, outcome: Outcome) -> Self {
        let allowed = self.allowed && (limit.capacity() > 0 || hits < 0 || outcome.ends());
        Self { allowed, ..self }
    }
}

/// A key while a check on it is decided.
struct Key<'a> {
    limit: &'a Algorithm,
    at: Arrival,
    holds: &'a mut Holds,
    /// The counter or a hold was changed.
    has_changed: bool,
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
        let step = limit.step(self.holds.counter.take(), self.at, hits);
        self.holds.counter = step.state;
        self.keep_for = step.keep_for.or(self.keep_for);
        self.has_changed |= step.keep_for.is_some();
        step.verdict
    }

    fn set(&mut self, id: RequestId, hold: Hold) {
        self.holds.set(id, hold);
        self.has_changed = true;
    }

    fn refund_at(&mut self, parts: &mut [Part]) -> u64 {
        if parts.is_empty() {
            return 0;
        }
        self.has_changed = true;
        self.holds.refund_at(self.limit, self.at, parts)
    }

    /// The hits of parts that the counter counts.
    fn counted(&self, parts: &[Part]) -> u64 {
        self.holds.counting(self.limit, self.at).add(parts)
    }

    /// The level of a token bucket with holds, and the units of a hit.
    fn level(&self) -> Option<(i64, i64)> {
        match self.limit {
            Algorithm::TokenBucket(bucket) => Some((
                bucket.level(self.holds.counter.as_ref(), self.at),
                bucket.flow.per_hit().cast_signed(),
            )),
            _ => None,
        }
    }

    /// Ends the holds that have expired, and forgets ids whose time is over.
    fn end_expired(&mut self) -> HoldChange {
        let now = self.at.now;
        if !self.holds.peaks.list.is_empty()
            && let Some((level, per_hit)) = self.level()
        {
            self.holds.peaks.rise(level, per_hit);
        }
        let mut change = HoldChange::default();
        let expired: Vec<_> = self.holds.ending(Kind::Held, now).collect();
        let (mut released, mut charged, mut ended) = (Vec::new(), Vec::new(), Vec::new());
        for id in expired {
            let Some(mut hold) = self.holds.remove(id) else {
                continue;
            };
            let number = u16::try_from(hold.number()).unwrap_or(u16::MAX);
            change.expired = change.expired.saturating_add(number);
            ended.extend_from_slice(&hold.parts);
            if !hold.is_kept {
                released.extend_from_slice(&hold.parts);
                continue;
            }
            charged.extend_from_slice(&hold.parts);
            change.kept = change.kept.saturating_add_unsigned(hold.hits());
            (hold.kind, hold.until) = (Kind::Kept, hold.forgotten());
            if hold.until > now && hold.members == 0 {
                self.set(id, hold);
            }
        }
        self.has_changed |= change.expired > 0;
        self.refund_at(&mut released);
        if !charged.is_empty() {
            charged.sort_unstable_by_key(|part: &Part| part.place);
            change.settled = self.counted(&charged);
        }
        self.holds.end_parts(&mut ended);
        for kind in [Kind::Kept, Kind::Settled, Kind::Grouped] {
            self.has_changed |= self.holds.forget(kind, now);
        }
        change
    }

    /// Reserves hits for an id, if it has them already or there is room for another one.
    fn reserve(&mut self, id: RequestId, hits: i64, terms: &Reservations) -> (Verdict, HoldChange) {
        let (now, asked) = (self.at.now, amount(hits));
        let wanted = asked.min(terms.most_held(self.limit));
        let known = self.holds.find(id, now).cloned();
        if known.is_none() && asked == 0 {
            return (self.charge(0), HoldChange::default());
        }
        let is_known = known.is_some();
        let mut hold = known.unwrap_or(Hold {
            kind: Kind::Held,
            is_kept: terms.on_expiry == OnExpiry::Keep,
            since: now,
            until: now + terms.ttl,
            parts: SmallVec::new(),
            members: 0,
        });
        if !is_known && self.is_crowded() {
            // Rounded up to the end of its group.
            let width = (terms.ttl.micros() / GROUPS).max(1);
            hold.kind = Kind::Grouped;
            hold.until = Micros(hold.until.0.next_multiple_of(width));
        }
        let is_settled = hold.kind == Kind::Settled;
        let is_late = !is_settled && !hold.is_open(now);
        let mut missing = match is_settled {
            true => 0,
            false => wanted.saturating_sub(hold.hits()),
        };
        let has_room = match is_known {
            true => missing == 0 || hold.parts.len() < MOST_PARTS,
            false => self.make_room(),
        };
        if !has_room {
            missing = 0;
        }
        let verdict = self.take(missing);
        let outcome = if !has_room {
            Outcome::Full
        } else if is_settled {
            Outcome::Overtaken
        } else if is_known && missing == 0 {
            Outcome::HeldBefore
        } else if !verdict.allowed {
            Outcome::Refused
        } else if wanted < asked {
            Outcome::Shortened
        } else {
            Outcome::Held
        };
        if matches!(outcome, Outcome::Held | Outcome::Shortened) {
            let added = self.add(&mut hold, missing);
            if hold.kind == Kind::Grouped {
                self.holds
                    .regroup(&hold, &[added], &[], i64::from(!is_known));
            }
            self.set(id, hold.clone());
        }
        let mut change = HoldChange {
            stepped: missing,
            ..hold.change(outcome, now)
        };
        if is_late && change.is_new() {
            // No settlement and no expiry uses them.
            (change.settled, change.kept) = (missing, missing.cast_signed());
        }
        (verdict, change)
    }

    /// Whether a further hold is one of a group: an expiry of its own would make the step that ends
    /// many too long. Logs and token buckets have one for each.
    fn is_crowded(&self) -> bool {
        let has_places = matches!(
            self.limit,
            Algorithm::SlidingWindowLog(_) | Algorithm::TokenBucket(_)
        );
        !has_places && self.holds.count(Kind::Held) >= MOST_SINGLE
    }

    /// Whether the key may have one more hold. Drops the oldest kept one of a full key.
    fn make_room(&mut self) -> bool {
        if self.holds.has_room(self.at.now) {
            return true;
        }
        self.holds.remove_first(Kind::Kept)
    }

    /// Adds hits to a hold that the counter has just counted. Returns them with their place.
    fn add(&mut self, hold: &mut Hold, hits: u64) -> Part {
        let is_open = hold.is_open(self.at.now);
        let place = match self.level() {
            // Only an undo, which begins a peak, could end the peak of an expired hold.
            Some(_) if !is_open => self.at.now.0,
            Some((level, per_hit)) => {
                self.holds.peaks.per_hit = per_hit;
                self.holds.peaks.begin(self.at.now.0, level)
            }
            None => self.holds.counter.as_ref().map_or(0, place_of),
        };
        match hold.parts.last_mut() {
            Some(last) if last.place == place => {
                last.hits += hits;
                if is_open {
                    self.holds.end_parts(&mut [*last]);
                }
            }
            _ => hold.parts.push(Part { place, hits }),
        }
        Part { place, hits }
    }

    /// Leaves a hold this many hits, and gives back its newest ones. A second time, nothing.
    fn undo(&mut self, id: RequestId, hits: i64) -> (Verdict, HoldChange) {
        let mut change = HoldChange::of(Outcome::Undone);
        let (now, left) = (self.at.now, amount(hits));
        let known = self.holds.find(id, now);
        // One that is kept may have grown, too.
        if let Some(mut hold) = known.filter(|hold| hold.kind != Kind::Settled).cloned() {
            let (mut parts, mut rest) = (hold.parts.clone(), hold.hits().saturating_sub(left));
            for (own, less) in hold.parts.iter_mut().zip(&mut parts).rev() {
                less.hits = own.hits.min(rest);
                (own.hits, rest) = (own.hits - less.hits, rest - less.hits);
            }
            hold.parts.retain(|part| part.hits > 0);
            parts.retain(|part| part.hits > 0);
            change.held = Part::sum(&parts);
            if change.held > 0 {
                change.age_ms = age_ms(hold.since, now);
            }
            if hold.kind == Kind::Grouped {
                let ended = -i64::from(hold.parts.is_empty());
                self.holds.regroup(&hold, &[], &parts, ended);
            }
            let is_open = hold.is_open(now);
            if !is_open {
                change.kept = -change.held.cast_signed();
            }
            if let (false, 1.., Some((level, per_hit))) = (is_open, change.held, self.level()) {
                // Its peaks have ended: as if it were made now.
                self.holds.peaks.per_hit = per_hit;
                let place = self.holds.peaks.begin(now.0, level);
                parts = smallvec![Part {
                    place,
                    hits: change.held
                }];
            }
            change.returned = self.refund_at(&mut parts);
            let is_left = |part: &Part| hold.parts.iter().any(|left| left.place == part.place);
            parts.retain(|part| !(is_open && is_left(part)));
            self.holds.end_parts(&mut parts);
            if hold.parts.is_empty() {
                self.holds.remove(id);
            } else {
                self.set(id, hold);
            }
        }
        (self.charge(0), change)
    }

    /// Settles the hold of an id.
    fn release(&mut self, id: RequestId, hits: i64) -> (Verdict, HoldChange) {
        let (now, cost) = (self.at.now, amount(hits));
        let known = self.holds.find(id, now).cloned();
        let outcome = match &known {
            None => Outcome::Unknown,
            Some(hold) if hold.kind == Kind::Settled => Outcome::SettledBefore,
            Some(hold) if !hold.is_open(now) => Outcome::MatchedLate,
            Some(_) => Outcome::Matched,
        };
        if outcome == Outcome::SettledBefore {
            return (self.charge(0), HoldChange::of(outcome));
        }
        let (mut rest, mut returned, mut used) = (cost, 0, 0);
        if let Some(hold) = &known {
            let (mut parts, mut costs) = (hold.parts.clone(), hold.parts.clone());
            for (part, own) in parts.iter_mut().zip(&mut costs) {
                own.hits = part.hits.min(rest);
                (part.hits, rest) = (part.hits - own.hits, rest - own.hits);
            }
            if hold.is_open(now) {
                if hold.kind == Kind::Grouped {
                    self.holds.regroup(hold, &[], &hold.parts, -1);
                }
                parts.retain(|part| part.hits > 0);
                returned = self.refund_at(&mut parts);
                used = self.counted(&costs);
                self.holds.end_parts(&mut hold.parts.clone());
            }
        }
        let settled = Hold {
            kind: Kind::Settled,
            is_kept: false,
            since: now,
            until: now + SETTLED_LIFE,
            parts: SmallVec::new(),
            members: 0,
        };
        self.set(id, settled);
        if self.holds.count(Kind::Settled) > MOST_SETTLED {
            self.holds.remove_first(Kind::Settled);
        }
        let verdict = self.charge(rest.cast_signed());
        let change = known.map_or(HoldChange::of(outcome), |hold| hold.change(outcome, now));
        let change = HoldChange {
            stepped: rest,
            returned,
            settled: used.saturating_add(rest),
            ..change
        };
        (verdict, change)
    }
}

impl Hold {
    /// A change of this hold.
    fn change(&self, outcome: Outcome, now: Micros) -> HoldChange {
        let held = self.hits();
        HoldChange {
            held,
            age_ms: match held {
                0 => 0,
                _ => age_ms(self.since, now),
            },
            ..HoldChange::of(outcome)
        }
    }
}

/// The hits that a reservation or a settlement asks for.
fn amount(hits: i64) -> u64 {
    hits.clamp(0, MOST_HITS).unsigned_abs()
}

/// The milliseconds since an instant.
fn age_ms(since: Micros, now: Micros) -> u32 {
    u32::try_from(now.since(since).micros() / 1_000).unwrap_or(u32::MAX)
}

impl Reservations {
    /// Decides a check on the state and the holds of its key.
    pub fn step(
        &self,
        limit: &Algorithm,
        purpose: Purpose,
        hits: i64,
        state: Option<State>,
        at: Arrival,
    ) -> (Step, HoldChange) {
        let mut holds = match state {
            Some(State::Holds(holds)) => holds,
            counter if purpose == Purpose::Plain => {
                let step = limit.step(counter, at, hits);
                let verdict = step.verdict.of_capacity(limit, hits, Outcome::Plain);
                return (Step { verdict, ..step }, HoldChange::default());
            }
            counter => Holds::of(counter),
        };
        let mut key = Key {
            limit,
            at,
            holds: &mut holds,
            has_changed: false,
            keep_for: None,
        };
        let ended = key.end_expired();
        let (verdict, change) = match purpose {
            Purpose::Plain => (key.charge(hits), HoldChange::default()),
            Purpose::Reserve(id) => key.reserve(id, hits, self),
            Purpose::Settle(id) => key.release(id, hits),
            Purpose::Undo(id) => key.undo(id, hits),
        };
        let (has_changed, keep_for) = (key.has_changed, key.keep_for);
        let change = HoldChange {
            expired: ended.expired,
            settled: (change.settled.saturating_add(ended.settled)).min(LARGEST_COUNT),
            kept: (change.kept.saturating_add(ended.kept)).clamp(-LARGEST_KEPT, LARGEST_KEPT),
            ..change
        };
        let room_after = holds.room_for(limit, hits, &verdict, &change, at);
        let verdict = change.verdict(verdict, room_after);
        let verdict = verdict.of_capacity(limit, hits, change.outcome);
        let keep_for = has_changed.then(|| {
            let counter = keep_for.unwrap_or_else(|| limit.idle_life(&verdict));
            counter.max(holds.until.since(at.now))
        });
        let state = match &holds.counter {
            Some(_) if holds.is_empty() => holds.counter.take(),
            _ => Some(State::Holds(holds)),
        };
        let step = Step {
            verdict,
            state,
            keep_for,
        };
        (step, change)
    }
}

#[cfg(test)]
mod tests;
