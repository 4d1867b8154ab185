//! Usage: the hits that a subject has requested of a limit with `track_usage`, since it was first
//! seen and over time.
//!
//! A subject is one counter of a limit: the domain and the entries of a descriptor. Its record has
//! totals, when it was first and last seen, and a ring of buckets, each with the hits of one
//! interval. This file has the one pure step that adds a check to a record; `lua/usage.lua` is its
//! twin.
//!
//! Totals and buckets count hits as they were requested, and never shrink: refused hits are among
//! `hits`, and refunded hits are counted apart.
//!
//! If refunded hits lowered `hits`, a bucket could be below zero, and a total would not be the sum
//! of its series. Of a refused `all_or_none` request, only checks over their limit are recorded:
//! `hits` less `refused` are the hits that the limit admitted. Unlimited limits have no usage,
//! because no store is queried for them.
//!
//! The key of a record does not name the algorithm, and a record names its interval: another
//! algorithm keeps it, another interval keeps its totals. A record is kept idle for as long as its
//! subject has existed, at least an hour and at most `usage_expiry`: clients choose values, and
//! records of values that come once would otherwise stay for a month.
//!
//! A record over time: the buckets of a recent time, and the hits of any recent interval.
//!
//! The hits of the last closed period of the limit are a difference of totals: the first hits of a
//! period make a snapshot of the totals before them, and the record has the last two. What is
//! recorded later never changes a closed period. In Redis the snapshots have a key of their own,
//! which only the first hits of a period read and write.
//!
//! A record as `lua/usage.lua` stores it: a header with the open bucket, followed by the cells of
//! the closed ones.
//!
//! The header is one byte, [`VERSION`], and thirteen numbers as little-endian doubles: the expiry
//! of the key in milliseconds; the length of a bucket; the number of buckets; `base`; `current`;
//! the three totals; when it was first and last seen; the open bucket. A cell is three numbers of
//! six bytes, little-endian.
//!
//! A hit reads and writes 105 bytes, and a cell only when a bucket ends. With Redis 7.0, 32 records
//! in one call took 3.0 µs each. Reading the whole string took 3.8 µs with 60 buckets and 28 µs
//! with 1,000, three HINCRBY on a hash 4.6 µs, HMGET and HSET 6.4 µs.

pub(crate) mod options;

use std::sync::Arc;

use crate::core::time::{MAX_SAFE_INTEGER, Micros, Period, Span, Window};
pub(crate) use options::MOST_SUBJECTS;
pub use options::{DEFAULT_EXPIRY, MOST_BUCKETS, Options, Settings};

/// The most hits of a total: a Lua number is exact up to here.
pub const MOST_IN_TOTAL: u64 = MAX_SAFE_INTEGER;

/// The most hits of a bucket, which is stored in six bytes.
pub const MOST_IN_BUCKET: u64 = (1 << 48) - 1;

/// How long the record of a subject that came once is kept, unless its ring is longer or
/// `usage_expiry` shorter.
pub(crate) const SHORTEST_LIFE: Span = Span::from_secs(3_600);

/// A limit with `track_usage`: its settings, and its position in the tree.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tracking {
    /// The options of `track_usage`.
    pub settings: Settings,
    /// The domain of the limit.
    pub domain: Arc<str>,
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
    /// Number of subjects before it.
    pub offset: usize,
    /// Maximum number of subjects on it.
    pub count: usize,
}

/// Some subjects of a limit.
#[derive(Debug)]
pub struct Top {
    /// Each with its record, the first ones first.
    pub subjects: Vec<(Vec<u8>, Record)>,
    /// Number of subjects in the index.
    pub total: usize,
}

/// A key, and a value or pattern.
pub type Level = (Arc<str>, Option<Arc<str>>);

/// Hits of a subject, in total or of one bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hits {
    /// Requested hits, with the refused ones.
    pub asked: u64,
    /// Hits over the limit.
    pub refused: u64,
    /// Refunded hits.
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

    /// The amounts that a check with so many hits adds: none for a peek.
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

    /// The hits after `earlier` totals.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Self {
        Self {
            asked: self.asked.saturating_sub(earlier.asked),
            refused: self.refused.saturating_sub(earlier.refused),
            given_back: self.given_back.saturating_sub(earlier.given_back),
        }
    }

    /// Whether nothing is to be recorded.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

/// The totals between two hits of different periods: the time of the last hits before, the begin of
/// the period of the next ones, and the totals.
pub type Snapshot = (Micros, Micros, Hits);

/// A limit with `track_usage` and its periods; `None` for requests in flight.
pub type Tracked = (Arc<Tracking>, Option<Period>);

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
    /// The open bucket. It has no cell: hits of one interval change nothing else.
    open: Hits,
    /// The closed buckets: bucket `number` is in cell (`number` - `base`) modulo `buckets`. Missing
    /// cells are empty.
    cells: Vec<Hits>,
    /// The last two, the newest first. A subject that was seen in one period only has none.
    snapshots: Vec<Snapshot>,
    /// At least the end of the next period, up to which a store in this process keeps the record.
    kept_until: Micros,
}

/// A subject's element in the index of a limit.
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

/// The order of a limit's subjects, the largest first. Subjects with the same number are in the
/// descending order of their bytes.
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

    /// Whether a subject is in the list of this order. The list by refused hits has only subjects
    /// with some.
    pub const fn lists(self, summary: &Summary) -> bool {
        !matches!(self, Self::Refused) || summary.refused > 0
    }

    /// The number by which subjects are sorted.
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
            interval: settings.interval.micros().max(1),
            buckets: 1,
            base: 0,
            current: now.0 / settings.interval.micros().max(1),
            open: Hits::default(),
            cells: Vec::new(),
            snapshots: Vec::new(),
            kept_until: Micros::default(),
        };
        record.begin_ring(settings, now);
        record
    }

    /// Begins the ring anew at `now`. It covers the buckets from the end of the last hits on, which
    /// are known to be empty.
    fn begin_ring(&mut self, settings: &Settings, now: Micros) {
        let end = self.end_of_hits();
        self.interval = settings.interval.micros().max(1);
        self.buckets = settings.buckets.max(1);
        self.current = now.0 / self.interval;
        let oldest = self.current.saturating_sub(self.buckets.into());
        self.base = (end.0.div_ceil(self.interval)).clamp(oldest, self.current);
        self.open = Hits::default();
        self.cells = Vec::new();
    }

    /// Records hits at `now`. Without a record it begins one; a changed length or number of buckets
    /// begins the ring anew and keeps the totals. While the clock is earlier than the last hits,
    /// hits count in their bucket.
    pub fn step(record: Option<Self>, settings: &Settings, now: Micros, hits: Hits) -> Self {
        let mut record = record.unwrap_or_else(|| Self::new(settings, now));
        record.add(settings, None, now, hits);
        record
    }

    /// The same in place, for a limit with these periods.
    pub fn add(&mut self, settings: &Settings, period: Option<Period>, now: Micros, hits: Hits) {
        if let Some(window) = period.map(|period| period.window_at(now)) {
            if self.last_seen < window.begin {
                self.snapshots.truncate(1);
                let new = (self.last_seen, window.begin, self.total);
                self.snapshots.insert(0, new);
            }
            let length = window.end.since(window.begin).micros();
            // The next period is longer by less than an eighth.
            self.kept_until = window.end + Span::from_micros(length + length / 8);
        }
        let gap = (now.0 / self.interval).saturating_sub(self.current);
        if self.interval != settings.interval.micros()
            || self.buckets != settings.buckets
            || gap >= self.buckets.into()
        {
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
        if number <= self.current {
            return;
        }
        let closed = std::mem::take(&mut self.open);
        self.set(self.current, closed);
        // Buckets without hits in between have the cells of an earlier lap.
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
            Some(age) if age < u64::from(self.buckets) && number >= self.base => {
                let cell = self.cells.get(self.cell(number));
                cell.copied().unwrap_or_default()
            }
            _ => Hits::default(),
        }
    }

    const fn begin(&self, number: u64) -> Micros {
        Micros(number.saturating_mul(self.interval))
    }

    /// The end of the open bucket: no hits are later.
    const fn end_of_hits(&self) -> Micros {
        self.begin(self.current + 1)
    }

    /// The totals before the hits from this instant on; `None` if they are not known.
    fn total_before(&self, at: Micros) -> Option<Hits> {
        if self.last_seen < at {
            return Some(self.total);
        }
        if at <= self.first_seen {
            return Some(Hits::default());
        }
        let mut snapshots = self.snapshots.iter();
        let found = snapshots.find(|(seen, begin, _)| *seen < at && at <= *begin);
        found.map(|(.., total)| *total)
    }

    /// The hits of a closed period, the last one; `None` if they are not known, because the record
    /// is older than its snapshots, or the limit had other periods.
    pub fn hits_of(&self, last: Window) -> Option<Hits> {
        Some((self.total_before(last.end)?).since(self.total_before(last.begin)?))
    }

    /// How long an idle record is kept: as long as the subject has existed, but at least for the
    /// ring, an hour and the next period, and not longer than the limit's `usage_expiry`. So a flood
    /// of values that come once does not stay for weeks.
    pub fn keep_for(&self, settings: &Settings) -> Span {
        self.last_seen
            .since(self.first_seen)
            .max(settings.span())
            .max(SHORTEST_LIFE)
            .max(self.kept_until.since(self.last_seen))
            .min(settings.expiry)
    }

    /// The subject's element in the index.
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
        size_of::<Self>()
            + self.cells.capacity() * size_of::<Hits>()
            + self.snapshots.capacity() * size_of::<Snapshot>()
    }
}

/// Consecutive buckets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Series {
    /// When the first bucket begins.
    pub begin: Micros,
    /// The length of a bucket.
    pub interval: Span,
    /// The last one is the current one.
    pub buckets: Vec<Hits>,
}

/// The hits of a recent interval, in whole buckets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// The hits of all buckets that overlap the interval, the oldest one whole.
    pub hits: Hits,
    /// The same without the oldest bucket, if that began before the interval. The hits of the
    /// interval are between both.
    pub at_least: Hits,
    /// A bucket is full, and there may have been more hits.
    pub is_cut: bool,
    /// When the oldest bucket begins.
    pub from: Micros,
    /// The end of the interval.
    pub to: Micros,
}

impl Record {
    /// The buckets that overlap the time since `since` before `now`, as far as the ring goes back.
    pub fn series(&self, now: Micros, since: Span) -> Series {
        let (first, last) = self.overlapping(now, since);
        Series {
            begin: self.begin(first),
            interval: Span::from_micros(self.interval),
            buckets: (first..=last).map(|number| self.bucket(number)).collect(),
        }
    }

    /// The hits of the interval `over` before `now`. `None` if the ring does not go back as far,
    /// and the subject has hits from before it that may be in the interval.
    pub fn count(&self, now: Micros, over: Span) -> Option<Count> {
        let from = Micros(now.0.saturating_sub(over.micros()));
        let (first, last) = self.overlapping(now, over);
        let begin = self.begin(first);
        // The ring may have begun later than the subject was seen, where its length was changed.
        let covered = self.begin(self.oldest(now).max(self.base));
        if from < covered && self.first_seen < covered && from < self.end_of_hits() {
            return None;
        }
        let sum = |first: u64| {
            (first..=last).fold(Hits::default(), |sum, number| {
                sum.plus(self.bucket(number), MOST_IN_TOTAL)
            })
        };
        let is_partial = begin < from && self.first_seen < from;
        let is_full =
            |hits: Hits| hits.asked.max(hits.refused).max(hits.given_back) >= MOST_IN_BUCKET;
        let is_cut = (first..=last).any(|number| is_full(self.bucket(number)));
        Some(Count {
            hits: sum(first),
            at_least: sum(first + u64::from(is_partial)),
            is_cut,
            from: begin,
            to: now,
        })
    }

    /// The numbers of the first and the last bucket that overlap the `span` up to `now`.
    fn overlapping(&self, now: Micros, span: Span) -> (u64, u64) {
        let last = self.last(now);
        let first = now.0.saturating_sub(span.micros()) / self.interval;
        (first.clamp(self.oldest(now), last), last)
    }

    fn last(&self, now: Micros) -> u64 {
        self.current.max(now.0 / self.interval)
    }

    /// The number of the oldest bucket that the ring can hold at `now`.
    fn oldest(&self, now: Micros) -> u64 {
        (self.last(now) + 1).saturating_sub(self.buckets.into())
    }
}

/// The first byte of a stored record.
pub const VERSION: u8 = 1;

const NUMBERS: usize = 13;
const NUMBER_BYTES: usize = 8;

/// The bytes before the cells.
pub const HEADER_BYTES: usize = 1 + NUMBERS * NUMBER_BYTES;

/// Bytes of one number of a cell.
const CELL_NUMBER_BYTES: usize = 6;
const CELL_BYTES: usize = 3 * CELL_NUMBER_BYTES;

impl Record {
    /// Reads a stored record. `None`: it is invalid, and the next step replaces it.
    pub fn from_stored(bytes: &[u8]) -> Option<Self> {
        let (&version, rest) = bytes.split_first()?;
        let (numbers, cells) = rest.split_at_checked(NUMBERS * NUMBER_BYTES)?;
        let mut numbers = self::numbers(numbers);
        let mut number = || numbers.next().flatten();
        let _expiry = number()?;
        let (interval, buckets) = (number()?, u32::try_from(number()?).ok()?);
        let (base, current) = (number()?, number()?);
        let total = hits(&mut number)?;
        let (first_seen, last_seen) = (Micros(number()?), Micros(number()?));
        let open = hits(&mut number)?;
        let is_ring = (1..=MOST_BUCKETS).contains(&buckets) && interval > 0 && base <= current;
        if version != VERSION || !is_ring {
            return None;
        }
        let cells = cells.as_chunks::<CELL_BYTES>().0.iter();
        Some(Self {
            total,
            first_seen,
            last_seen,
            interval,
            buckets,
            base,
            current,
            open,
            cells: cells.take(buckets as usize).filter_map(cell).collect(),
            snapshots: Vec::new(),
            kept_until: Micros::default(),
        })
    }

    /// The record with its stored snapshots: five numbers each.
    #[must_use]
    pub fn with_snapshots(mut self, bytes: &[u8]) -> Self {
        let snapshots = bytes.as_chunks::<{ 5 * NUMBER_BYTES }>().0.iter();
        let snapshots = snapshots.filter_map(|bytes| {
            let mut numbers = numbers(bytes);
            let mut number = || numbers.next().flatten();
            Some((Micros(number()?), Micros(number()?), hits(&mut number)?))
        });
        self.snapshots = snapshots.collect();
        self
    }
}

/// Packed numbers; `None` for one that is not whole.
fn numbers(bytes: &[u8]) -> impl Iterator<Item = Option<u64>> {
    let numbers = bytes.as_chunks::<NUMBER_BYTES>().0.iter();
    numbers.map(|bytes| whole(f64::from_le_bytes(*bytes)))
}

/// Three numbers, in the order in which they are stored.
fn hits(mut number: impl FnMut() -> Option<u64>) -> Option<Hits> {
    Some(Hits {
        asked: number()?,
        refused: number()?,
        given_back: number()?,
    })
}

fn cell(bytes: &[u8; CELL_BYTES]) -> Option<Hits> {
    let mut numbers = bytes.as_chunks::<CELL_NUMBER_BYTES>().0.iter();
    hits(|| {
        let bytes = numbers.next()?.iter().rev();
        Some(bytes.fold(0, |number, &byte| (number << 8) | u64::from(byte)))
    })
}

fn whole(number: f64) -> Option<u64> {
    (number >= 0.0 && number.fract() == 0.0 && number <= MAX_SAFE_INTEGER as f64)
        .then_some(number as u64)
}

#[cfg(test)]
mod tests;
