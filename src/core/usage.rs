//! Usage: what a subject has asked of a limit with `track_usage`, since it was first seen and over
//! time.
//!
//! A subject is one counter of a limit: the domain and the entries of a descriptor. Its record has
//! totals, when it was first and last seen, and a ring of buckets, each with the hits of one
//! interval. This file has the one pure step that adds a check to a record; `lua/usage.lua` is its
//! twin.
//!
//! Totals and buckets count hits as they were asked, and never shrink: refused hits are among
//! `hits`, and hits that were given back are counted apart.
//!
//! If hits that were given back lowered `hits`, a bucket could be below zero, and a total would not
//! be the sum of its series. Of a refused `all_or_none` request, only checks over their limit are
//! recorded, so that `hits` less `refused` is what the limit admitted. Unlimited limits have no
//! usage, because nothing asks a store about them.
//!
//! The key of a record does not name the algorithm, and a record names its interval: another
//! algorithm keeps it, another interval keeps its totals. A record lives as long as its subject was
//! known, at least an hour and at most `usage_expiry`: clients choose values, and records of values
//! that come once would otherwise stay for a month.

pub(crate) mod options;
mod series;
mod stored;

pub use options::{DEFAULT_EXPIRY, MOST_BUCKETS, Options, Settings};
pub use series::{Count, Series};
pub use stored::{HEADER_BYTES, VERSION};

use crate::core::time::{MAX_SAFE_INTEGER, Micros, Span};

/// The most hits of a total: a Lua number is exact up to here.
pub const MOST_IN_TOTAL: u64 = MAX_SAFE_INTEGER;

/// The most hits of a bucket, which is stored in six bytes.
pub const MOST_IN_BUCKET: u64 = (1 << 48) - 1;

/// How long the record of a subject that came once is kept, unless its ring is longer or
/// `usage_expiry` shorter.
pub(crate) const SHORTEST_LIFE: Span = Span::from_secs(3_600);

/// A limit with `track_usage`: its settings, and where it stands in the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tracking {
    /// What the limit says.
    pub settings: Settings,
    /// The domain of the limit.
    pub domain: Box<str>,
    /// The key and the value or pattern of each level, as written.
    pub levels: Box<[Level]>,
    /// It is the `trial` of the limit, which has records and lists of its own.
    pub is_trial: bool,
    /// All keys of the domain are in one hash slot.
    pub is_in_slot_of_domain: bool,
}

impl Tracking {
    /// Whether both are of the same limit, perhaps with other settings.
    pub fn is_same_limit(&self, other: &Self) -> bool {
        (&self.domain, &self.levels, self.is_trial)
            == (&other.domain, &other.levels, other.is_trial)
    }
}

/// A part of a list of subjects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Page {
    /// How many subjects come before it.
    pub offset: usize,
    /// How many it has at most.
    pub count: usize,
}

/// Some subjects of a limit.
#[derive(Debug)]
pub struct Top {
    /// Each with its record, the first ones first.
    pub subjects: Vec<(Vec<u8>, Record)>,
    /// How many subjects the index has.
    pub total: usize,
}

/// A key, and a value or pattern.
pub type Level = (Box<str>, Option<Box<str>>);

/// Hits of a subject, in total or of one bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hits {
    /// Hits as they were asked, with the refused ones.
    pub asked: u64,
    /// Those that were over the limit.
    pub refused: u64,
    /// Hits that were given back.
    pub given_back: u64,
}

impl Hits {
    /// The sum of both, of which no number exceeds `most`.
    #[must_use]
    pub fn plus(self, other: Self, most: u64) -> Self {
        let add = |one: u64, other: u64| one.saturating_add(other).min(most);
        Self {
            asked: add(self.asked, other.asked),
            refused: add(self.refused, other.refused),
            given_back: add(self.given_back, other.given_back),
        }
    }

    /// What a check with so many hits adds: nothing for a look.
    pub fn of_check(hits: i64, allowed: bool) -> Self {
        let size = hits.unsigned_abs().min(MOST_IN_TOTAL);
        match hits {
            ..0 => Self {
                given_back: size,
                ..Self::default()
            },
            _ => Self {
                asked: size,
                refused: if allowed { 0 } else { size },
                given_back: 0,
            },
        }
    }

    /// Whether nothing is to be recorded.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

/// The record of a subject.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Since it was first seen.
    pub total: Hits,
    /// When its first hits were recorded.
    pub first_seen: Micros,
    /// When its last hits were recorded; never earlier than before.
    pub last_seen: Micros,
    /// The length of a bucket in microseconds; never zero.
    interval: u64,
    /// Buckets of the ring, with the open one.
    buckets: u32,
    /// The number of the bucket that has the cell 0: intervals since 1970.
    base: u64,
    /// The number of the open bucket, the last one that had hits.
    current: u64,
    /// The open bucket. It has no cell, so that hits of one interval change nothing else.
    open: Hits,
    /// The closed buckets: bucket `number` is in cell (`number` - `base`) modulo `buckets`. Missing
    /// cells are empty.
    cells: Vec<Hits>,
}

/// What the index of a limit holds of a subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Since it was first seen.
    pub asked: u64,
    /// Of these, over the limit.
    pub refused: u64,
    /// When its first hits were recorded.
    pub first_seen: Micros,
    /// When its last hits were recorded.
    pub last_seen: Micros,
}

/// How the subjects of a limit are sorted, the largest first; of those with the same number, the
/// last one by its bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// By hits.
    #[default]
    Total,
    /// By refused hits.
    Refused,
    /// By when they were last seen.
    LastSeen,
    /// By when they were first seen.
    FirstSeen,
}

impl Order {
    /// All of them with their names.
    pub const NAMED: [(&'static str, Self); 4] = [
        ("hits", Self::Total),
        ("refused", Self::Refused),
        ("last-seen", Self::LastSeen),
        ("first-seen", Self::FirstSeen),
    ];

    /// Whether a subject is in the list of this order: in that of refused hits, only those that
    /// have some.
    pub const fn lists(self, summary: &Summary) -> bool {
        !matches!(self, Self::Refused) || summary.refused > 0
    }

    /// What subjects are sorted by.
    pub const fn score(self, summary: &Summary) -> u64 {
        match self {
            Self::Total => summary.asked,
            Self::Refused => summary.refused,
            Self::LastSeen => summary.last_seen.0,
            Self::FirstSeen => summary.first_seen.0,
        }
    }
}

impl Record {
    fn new(settings: &Settings, now: Micros) -> Self {
        let mut record = Self {
            total: Hits::default(),
            first_seen: now,
            last_seen: now,
            interval: 1,
            buckets: 1,
            base: 0,
            current: 0,
            open: Hits::default(),
            cells: Vec::new(),
        };
        record.begin_ring(settings, now);
        record
    }

    fn begin_ring(&mut self, settings: &Settings, now: Micros) {
        self.interval = settings.interval.micros().max(1);
        self.buckets = settings.buckets.max(1);
        self.base = now.0 / self.interval;
        self.current = self.base;
        self.open = Hits::default();
        self.cells = Vec::new();
    }

    /// Records hits at `now`. Without a record it begins one; a changed length or number of buckets
    /// begins the ring anew and keeps the totals. While the clock is behind the last hits, hits
    /// count in the bucket of those.
    pub fn step(record: Option<Self>, settings: &Settings, now: Micros, hits: Hits) -> Self {
        let mut record = record.unwrap_or_else(|| Self::new(settings, now));
        record.add(settings, now, hits);
        record
    }

    /// The same in place.
    pub fn add(&mut self, settings: &Settings, now: Micros, hits: Hits) {
        if self.interval != settings.interval.micros() || self.buckets != settings.buckets {
            self.begin_ring(settings, now);
        }
        self.advance(now);
        self.total = self.total.plus(hits, MOST_IN_TOTAL);
        self.open = self.open.plus(hits, MOST_IN_BUCKET);
        self.last_seen = self.last_seen.max(now);
    }

    /// Closes the open bucket if its interval has ended at `now`.
    fn advance(&mut self, now: Micros) {
        let number = now.0 / self.interval;
        let Some(gap) = number.checked_sub(self.current).filter(|&gap| gap > 0) else {
            return;
        };
        if gap >= u64::from(self.buckets) {
            (self.base, self.current, self.open) = (number, number, Hits::default());
            self.cells = Vec::new();
            return;
        }
        let closed = std::mem::take(&mut self.open);
        self.set(self.current, closed);
        // Those without hits in between have the cells of an earlier lap.
        for empty in self.current + 1..number {
            self.set(empty, Hits::default());
        }
        self.current = number;
    }

    fn set(&mut self, number: u64, hits: Hits) {
        let cell = self.cell(number);
        if cell >= self.cells.len() {
            if hits.is_none() {
                return;
            }
            self.cells.resize(cell + 1, Hits::default());
        }
        self.cells[cell] = hits;
    }

    fn cell(&self, number: u64) -> usize {
        // Less than the number of buckets.
        (number.saturating_sub(self.base) % u64::from(self.buckets)) as usize
    }

    /// The hits of a bucket; none if it is not in the ring.
    fn bucket(&self, number: u64) -> Hits {
        match self.current.checked_sub(number) {
            Some(0) => self.open,
            Some(age) if age < u64::from(self.buckets) && number >= self.base => self
                .cells
                .get(self.cell(number))
                .copied()
                .unwrap_or_default(),
            _ => Hits::default(),
        }
    }

    /// How long an idle record is kept: as long as the subject has been known, at least for the
    /// ring and an hour, and at most for the limit's `usage_expiry`. So a flood of values that come
    /// once does not stay for weeks.
    pub fn keep_for(&self, settings: &Settings) -> Span {
        self.last_seen
            .since(self.first_seen)
            .max(settings.span())
            .max(SHORTEST_LIFE)
            .min(settings.expiry)
    }

    /// What the index holds.
    pub const fn summary(&self) -> Summary {
        Summary {
            asked: self.total.asked,
            refused: self.total.refused,
            first_seen: self.first_seen,
            last_seen: self.last_seen,
        }
    }

    /// The bytes that the record takes in memory.
    pub const fn bytes(&self) -> usize {
        size_of::<Self>() + self.cells.capacity() * size_of::<Hits>()
    }
}

#[cfg(test)]
mod tests;
