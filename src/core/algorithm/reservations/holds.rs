//! The ids of a key: open holds, expired ones that stay charged, and settled ones.

use std::collections::{BTreeMap, BTreeSet};

use smallvec::SmallVec;

use super::counted::CountedHits;
use super::peaks::Peaks;
use super::{HoldChange, MOST_FORGOTTEN, MOST_IDS, Outcome};
use crate::core::algorithm::places::RequestId;
use crate::core::algorithm::{Algorithm, Arrival, Part, State};
use crate::core::time::{Micros, Span};
use crate::core::verdict::Verdict;

/// The state of a key with reservations: its counter, and its holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holds {
    /// The state of the algorithm, which counts the hits of open holds too.
    pub counter: Option<State>,
    by_id: BTreeMap<RequestId, Hold>,
    /// By kind and by the end of their lives.
    order: BTreeSet<(Kind, Micros, RequestId)>,
    /// Number of ids of each kind.
    counts: [usize; Kind::ALL.len()],
    /// The hits that come back when all open holds expire.
    released: u64,
    /// When all of them have ended; kept ones end when they are forgotten.
    pub until: Micros,
    /// Of a token bucket with open holds.
    pub peaks: Peaks,
}

/// An id of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    pub kind: Kind,
    /// `on_expiry: keep`.
    pub is_kept: bool,
    /// When it was made, or settled.
    pub since: Micros,
    /// When it expires, or is forgotten.
    pub until: Micros,
    /// None of a settled id.
    pub parts: SmallVec<[Part; 1]>,
    /// Of a group, the number of its holds; else 0.
    pub members: u64,
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
    /// It is one of a group, which expires as a whole: see [`Hold::group`].
    Grouped,
}

impl Kind {
    /// All of them, in the order of their values.
    pub const ALL: [Self; 4] = [Self::Held, Self::Kept, Self::Settled, Self::Grouped];
}

/// The scores of kinds in Redis differ by this number of microseconds; the scores of open holds are
/// below it. `lua/reservations.lua` has the same.
pub const BAND: u64 = 1 << 52;

/// The bytes of a hold in memory, with its share of both trees.
const HOLD_BYTES: usize = 208;

/// Bytes of a packed hold before its parts.
const HEAD_BYTES: usize = 18;

impl Hold {
    /// A value of the hash that `lua/reservations.lua` stores: the kind, 1 if it is kept, and
    /// little-endian doubles: two times, two numbers for each part, and of a group the number of its
    /// holds. `None` for anything else.
    pub fn unpack(packed: &[u8]) -> Option<Self> {
        let (head, parts) = packed.split_at_checked(HEAD_BYTES)?;
        let (&[kind, is_kept], times) = head.split_first_chunk()?;
        let number = |bytes: &[u8; 8]| f64::from_le_bytes(*bytes) as u64;
        let (times, numbers) = (times.as_chunks().0, parts.as_chunks().0);
        let parts = numbers.chunks_exact(2);
        let members = parts.remainder().first().map_or(0, number);
        let part = |pair: &[[u8; 8]]| Part {
            place: number(&pair[0]),
            hits: number(&pair[1]),
        };
        Some(Self {
            kind: *Kind::ALL.get(usize::from(kind))?,
            is_kept: is_kept == 1,
            since: Micros(number(&times[0])),
            until: Micros(number(&times[1])),
            parts: parts.map(part).collect(),
            members,
        })
    }

    /// Its hits at all places.
    pub fn hits(&self) -> u64 {
        Part::sum(&self.parts)
    }

    /// The hits that come back when it expires.
    fn released(&self) -> u64 {
        match (self.kind, self.is_kept) {
            (Kind::Held, false) => self.hits(),
            _ => 0,
        }
    }

    /// The id of the group that a hold is in.
    fn group(&self) -> RequestId {
        let mut id = *if self.is_kept {
            b"--------groupkep"
        } else {
            b"--------grouprel"
        };
        id[..8].copy_from_slice(&(self.until.0 as f64).to_le_bytes());
        RequestId(id)
    }

    /// The number of holds for which it stands.
    pub(super) fn number(&self) -> u64 {
        self.members.max(1)
    }

    /// Whether it can be settled below its estimate.
    pub(super) fn is_open(&self, now: Micros) -> bool {
        self.kind == Kind::Held || self.kind == Kind::Grouped && self.until > now
    }

    /// The end of its life in the order of its kind.
    pub fn end(&self) -> Micros {
        match self.kind {
            Kind::Grouped => self.forgotten(),
            _ => self.until,
        }
    }

    /// When a hold that has expired is forgotten: one `ttl` later if it stays charged.
    pub(super) fn forgotten(&self) -> Micros {
        match (self.kind, self.is_kept) {
            (Kind::Held | Kind::Grouped, true) => self.until + self.until.since(self.since),
            _ => self.until,
        }
    }
}

impl Holds {
    /// The same ids with another counter.
    #[must_use]
    pub fn with_counter(self, counter: Option<State>) -> Self {
        Self { counter, ..self }
    }

    /// A key without holds.
    pub(super) fn of(counter: Option<State>) -> Box<Self> {
        Box::new(Self {
            counter,
            ..Self::default()
        })
    }

    /// Whether it has no ids.
    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    /// All ids, in their order.
    pub fn iter(&self) -> impl Iterator<Item = (RequestId, &Hold)> {
        self.by_id.iter().map(|(&id, hold)| (id, hold))
    }

    /// The bytes of memory that they take, without the counter.
    pub fn bytes(&self) -> usize {
        size_of::<Self>() + self.by_id.len() * HOLD_BYTES + size_of_val(&*self.peaks.list)
    }

    /// Whether this id has hits that a settlement would release.
    pub fn has_hits(&self, id: RequestId) -> bool {
        let hold = self.by_id.get(&id);
        hold.is_some_and(|hold| hold.kind != Kind::Settled)
    }

    /// The ids of a kind whose lives end up to an instant, in this order.
    pub(super) fn ending(&self, kind: Kind, last: Micros) -> impl Iterator<Item = RequestId> {
        let [low, high] = [0, u8::MAX].map(|byte| RequestId([byte; RequestId::BYTES]));
        let range = (kind, Micros(0), low)..=(kind, last, high);
        self.order.range(range).map(|(.., id)| *id)
    }

    /// Number of the ids of a kind.
    pub(super) const fn count(&self, kind: Kind) -> usize {
        self.counts[kind as usize]
    }

    /// The open holds, by their expiry.
    pub fn open(&self) -> impl Iterator<Item = &Hold> {
        let all = self.ending(Kind::Held, Micros(u64::MAX));
        all.map(|id| &self.by_id[&id])
    }

    /// The hold of an id; `None` also after the end of its time as kept or settled.
    pub(super) fn find(&self, id: RequestId, now: Micros) -> Option<&Hold> {
        let hold = self.by_id.get(&id);
        hold.filter(|hold| hold.kind == Kind::Held || hold.end() > now)
    }

    pub(super) fn remove(&mut self, id: RequestId) -> Option<Hold> {
        let hold = self.by_id.remove(&id)?;
        self.order.remove(&(hold.kind, hold.end(), id));
        self.counts[hold.kind as usize] -= 1;
        self.released -= hold.released();
        Some(hold)
    }

    /// Removes the id of a kind whose life ends first. Returns whether there was one.
    pub(super) fn remove_first(&mut self, kind: Kind) -> bool {
        let first = self.ending(kind, Micros(u64::MAX)).next();
        first.is_some_and(|first| self.remove(first).is_some())
    }

    pub(super) fn set(&mut self, id: RequestId, hold: Hold) {
        self.remove(id);
        self.order.insert((hold.kind, hold.end(), id));
        self.counts[hold.kind as usize] += 1;
        self.released += hold.released();
        self.until = self.until.max(hold.forgotten());
        self.by_id.insert(id, hold);
    }

    /// Whether there may be one more hold, of open and kept ones.
    pub(super) fn has_room(&self, now: Micros) -> bool {
        let all = [Kind::Held, Kind::Kept, Kind::Grouped].map(|kind| self.count(kind));
        let all: usize = all.iter().sum();
        all < MOST_IDS || {
            let groups = self.open().filter(|hold| hold.members > 0).count();
            all - groups - self.ending(Kind::Grouped, now).count() < MOST_IDS
        }
    }

    /// Forgets ids of a kind whose time is over. Returns whether there was one.
    pub(super) fn forget(&mut self, kind: Kind, now: Micros) -> bool {
        let forgotten = self.ending(kind, now).take(MOST_FORGOTTEN);
        let forgotten: Vec<_> = forgotten.collect();
        for id in &forgotten {
            self.remove(*id);
        }
        !forgotten.is_empty()
    }

    /// Adds hits of a hold to its group, or takes them off, with so many holds more or less.
    pub(super) fn regroup(&mut self, hold: &Hold, more: &[Part], less: &[Part], members: i64) {
        let id = hold.group();
        let mut group = self.remove(id).unwrap_or(Hold {
            kind: Kind::Held,
            parts: SmallVec::new(),
            members: 0,
            is_kept: hold.is_kept,
            since: hold.since,
            until: hold.until,
        });
        for part in more {
            let own = group.parts.iter_mut().find(|own| own.place == part.place);
            match own {
                Some(own) => own.hits += part.hits,
                None => group.parts.push(*part),
            }
        }
        for part in less {
            let own = group.parts.iter_mut().find(|own| own.place == part.place);
            if let Some(own) = own {
                own.hits = own.hits.saturating_sub(part.hits);
            }
        }
        group.parts.retain(|part| part.hits > 0);
        group.members = group.members.saturating_add_signed(members);
        if group.members > 0 {
            self.set(id, group);
        }
    }

    /// The hits of open holds that the counter counts: without them it would have so many less.
    pub fn open_hits(&self, limit: &Algorithm, at: Arrival) -> u64 {
        let parts = self.open().flat_map(|hold| hold.parts.iter().copied());
        let mut parts: Vec<_> = parts.collect();
        parts.sort_unstable_by_key(|part| part.place);
        self.counting(limit, at).add(&parts)
    }

    /// Adds up hits of holds that the counter counts.
    pub(super) fn counting<'a>(&'a self, limit: &'a Algorithm, at: Arrival) -> CountedHits<'a> {
        CountedHits::new(limit, self.counter.as_ref(), &self.peaks, at)
    }

    /// The time until holds have expired that make room for the hits of a refused check; zero if
    /// none do. Those that stay charged make none, nor do hits that have left the window.
    pub(super) fn room_for(
        &self,
        limit: &Algorithm,
        hits: i64,
        verdict: &Verdict,
        change: &HoldChange,
        at: Arrival,
    ) -> Span {
        let asked = match change.outcome {
            Outcome::Plain => hits.max(0).unsigned_abs(),
            _ => change.stepped,
        };
        let missing = (verdict.used.saturating_add(asked)).saturating_sub(limit.capacity());
        let is_in_vain = asked > limit.capacity() || self.released < missing;
        if verdict.allowed || missing == 0 || is_in_vain {
            return Span::ZERO;
        }
        let mut released = self.counting(limit, at);
        let mut ending = self.open().filter(|hold| !hold.is_kept);
        let last = ending.find(|hold| released.add(&hold.parts) >= missing);
        last.map_or(Span::ZERO, |hold| hold.until.since(at.now))
    }

    /// Gives hits back to the counter at the places where they were counted. Returns how many the
    /// counter still had.
    pub(super) fn refund_at(&mut self, limit: &Algorithm, at: Arrival, parts: &mut [Part]) -> u64 {
        parts.sort_unstable_by_key(|part| part.place);
        let counter = self.counter.take();
        let (counter, returned) = match limit {
            Algorithm::TokenBucket(bucket) => {
                bucket.refund_held(counter, at, parts, &mut self.peaks)
            }
            _ => limit.refund_at(counter, at, parts),
        };
        self.counter = counter;
        returned
    }

    /// Ends parts of open holds, which give back nothing more.
    pub(super) fn end_parts(&mut self, parts: &mut [Part]) {
        if !self.peaks.list.is_empty() {
            parts.sort_unstable_by_key(|part| part.place);
            self.peaks.end(parts);
        }
    }
}

/// Where a state has counted the hits of its last step.
pub(super) fn place_of(state: &State) -> u64 {
    match state {
        State::FixedWindow { window, .. } | State::Counter { window, .. } => *window,
        State::Log(log) => log.entries.back().map_or(0, |entry| entry.tick),
        State::Buckets(ring) => ring.last,
        State::Tokens { last, .. } | State::Queue { last, .. } => *last,
        State::Holders(_) | State::Holds(_) => 0,
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
    pub fn of<'h>(holds: impl Iterator<Item = &'h Hold>, now: Micros) -> Option<Self> {
        let held = holds.filter(|hold| hold.kind == Kind::Held && hold.until > now);
        held.fold(None, |sum: Option<Self>, hold| {
            let sum = sum.unwrap_or(Self {
                reservations: 0,
                hits: 0,
                since: hold.since,
            });
            Some(Self {
                reservations: sum.reservations + hold.number(),
                hits: sum.hits.saturating_add(hold.hits()),
                since: sum.since.min(hold.since),
            })
        })
    }
}
