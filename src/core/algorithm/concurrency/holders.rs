//! The state of a `concurrency` key: its holders, and marks of ids that hold nothing and were
//! checked a moment ago.
//!
//! Each set is found by id and by time: a step takes O(log n). It also drops expired entries, each
//! once.
//!
//! The time of an entry is rounded down to a multiple of [`NUMBERS`] ticks. Less a small number it
//! is the stamp of the entry, which is one member with one score in Redis. The entry may have begun
//! in the last of these ticks, and lasts as if it had: it never ends early, and at most
//! `NUMBERS - 1` ticks late.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use super::{MARK_LIFE, MOST_MARKS};
use crate::core::algorithm::places::RequestId;

/// Number of values that the number in a stamp can have.
pub(super) const NUMBERS: u64 = 16;

/// An id that holds places, or without any a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The tick of its acquire or of the event of the mark, less a number: how many acquires have
    /// joined the holder, or which [`Mark`] it is.
    pub stamp: u64,
    /// Number of places; zero for a mark.
    pub places: u64,
}

/// The event that left an id without places. The values are the numbers in its stamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    /// It was released before its acquire, which is still to come.
    Early = 0,
    /// The same, and the acquire has come.
    Overtaken = 1,
    /// It was refused, or was released when it held places.
    Over = 2,
}

impl Holder {
    /// Of so many places from this tick on.
    pub(super) const fn new(now: u64, places: u64) -> Self {
        let stamp = now - now % NUMBERS;
        Self { stamp, places }
    }

    pub(super) const fn mark(mark: Mark, now: u64) -> Self {
        Self::new(now, 0).with_number(mark as u64)
    }

    pub(super) const fn number(self) -> u64 {
        (NUMBERS - self.stamp % NUMBERS) % NUMBERS
    }

    pub(super) const fn with_number(self, number: u64) -> Self {
        Self {
            stamp: self.since().saturating_sub(number),
            ..self
        }
    }

    /// The tick of its acquire, or of the event of the mark.
    pub(super) const fn since(self) -> u64 {
        self.stamp.next_multiple_of(NUMBERS)
    }
}

/// The holders of a key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holders {
    by_id: BTreeMap<RequestId, Holder>,
    /// Without marks.
    by_time: BTreeSet<(u64, RequestId)>,
    /// Of all holders, with those that have expired.
    used: u64,
    /// The oldest first.
    marks_by_time: BTreeSet<(u64, Reverse<RequestId>)>,
}

impl FromIterator<(RequestId, Holder)> for Holders {
    fn from_iter<I: IntoIterator<Item = (RequestId, Holder)>>(all: I) -> Self {
        let mut holders = Self::default();
        all.into_iter()
            .for_each(|(id, holder)| holders.set(id, holder));
        holders
    }
}

/// Whether a holder or mark with this stamp that lasts for `life` is over at `now`, even if it
/// began in the last of the ticks that have this stamp.
const fn is_past(stamp: u64, now: u64, life: u64) -> bool {
    stamp.next_multiple_of(NUMBERS) + NUMBERS - 1 + life <= now
}

/// Whether the stamp is too far in the future: a clock that went back lost at most `life`.
const fn is_ahead(stamp: u64, now: u64, life: u64) -> bool {
    stamp.next_multiple_of(NUMBERS) > now + life
}

const fn is_live(stamp: u64, now: u64, life: u64) -> bool {
    !is_past(stamp, now, life) && !is_ahead(stamp, now, life)
}

/// The entries of a set by time that are not live.
fn expired<I>(
    by_time: &BTreeSet<(u64, I)>,
    now: u64,
    life: u64,
) -> impl Iterator<Item = &(u64, I)> {
    let past = by_time.iter();
    let past = past.take_while(move |(stamp, _)| is_past(*stamp, now, life));
    let ahead = by_time.iter().rev();
    past.chain(ahead.take_while(move |(stamp, _)| is_ahead(*stamp, now, life)))
}

impl Holders {
    /// All holders and marks, in the order of their ids, with those that have expired.
    pub fn iter(&self) -> impl Iterator<Item = (RequestId, Holder)> {
        self.by_id.iter().map(|(&id, &holder)| (id, holder))
    }

    /// Maximum number of its bytes: a node of a tree has space for 11 entries, at least five are
    /// used, and its allocation takes 32 bytes more.
    pub fn bytes(&self) -> usize {
        let tree =
            |entries: usize, entry_bytes: usize| entries.div_ceil(5) * (11 * entry_bytes + 32);
        let by_time = [self.by_time.len(), self.marks_by_time.len()];
        size_of::<Self>()
            + tree(self.by_id.len(), size_of::<(RequestId, Holder)>())
            + by_time
                .map(|entries| tree(entries, size_of::<(u64, RequestId)>()))
                .iter()
                .sum::<usize>()
    }

    /// The places of all holders that have not expired.
    pub(super) fn used(&self, now: u64, life: u64) -> u64 {
        let expired = expired(&self.by_time, now, life).filter_map(|(_, id)| self.by_id.get(id));
        self.used - expired.map(|holder| holder.places).sum::<u64>()
    }

    /// The holder of this id, if it has not expired.
    pub(super) fn find(&self, id: RequestId, now: u64, life: u64) -> Option<Holder> {
        let holder = self.by_id.get(&id)?;
        (holder.places > 0 && is_live(holder.stamp, now, life)).then_some(*holder)
    }

    /// The mark of this id, if it has not expired.
    pub(super) fn mark(&self, id: RequestId, now: u64) -> Option<(Mark, Holder)> {
        let known = self.by_id.get(&id)?;
        let mark = match known.number() {
            0 => Mark::Early,
            1 => Mark::Overtaken,
            _ => Mark::Over,
        };
        let is_live = known.places == 0 && is_live(known.stamp, now, MARK_LIFE.micros());
        is_live.then_some((mark, *known))
    }

    pub(super) fn drop_expired(&mut self, now: u64, life: u64) {
        let holders = expired(&self.by_time, now, life).map(|&(_, id)| id);
        let marks = expired(&self.marks_by_time, now, MARK_LIFE.micros());
        let expired: Vec<RequestId> = holders.chain(marks.map(|(_, id)| id.0)).collect();
        for id in expired {
            self.remove(id);
        }
    }

    /// Sets the state of an id. A mark beyond the maximum replaces the oldest.
    pub(super) fn set(&mut self, id: RequestId, holder: Holder) {
        self.remove(id);
        self.by_id.insert(id, holder);
        if holder.places > 0 {
            self.by_time.insert((holder.stamp, id));
            self.used += holder.places;
            return;
        }
        if self.marks_by_time.len() >= MOST_MARKS
            && let Some(&(_, Reverse(oldest))) = self.marks_by_time.first()
        {
            self.remove(oldest);
        }
        self.marks_by_time.insert((holder.stamp, Reverse(id)));
    }

    fn remove(&mut self, id: RequestId) {
        if let Some(holder) = self.by_id.remove(&id) {
            self.by_time.remove(&(holder.stamp, id));
            self.marks_by_time.remove(&(holder.stamp, Reverse(id)));
            self.used -= holder.places;
        }
    }
}
