//! The usage records of the memory store, next to the counters and bounded in bytes: at most a
//! quarter of a megabyte in each table by default.
//!
//! When they are full, the record that was idle for longest is dropped. They are in many small
//! tables, each with a mutex that is held for one step, and for a walk over its records when it is
//! swept or searched.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::{Arc, Mutex, OnceLock};

use lru::LruCache;

use crate::core::answer::Answer;
use crate::core::fingerprint::Fingerprint;
use crate::core::lock;
use crate::core::time::Micros;
use crate::core::usage::{Hits, MOST_IN_TOTAL, Order, Page, Record, Top, Tracked, Tracking};
use crate::limits::plan::features::usage;
use crate::limits::plan::{Checks, key};
use crate::limits::rules::Commit;

/// The number of tables; a power of two.
const TABLES: usize = 256;

/// Cost of a record in addition to itself and its key: the pointers of the list and the map.
const OVERHEAD: usize = 64;

/// All usage records.
#[derive(Debug)]
pub struct UsageRecords {
    /// Made for the first record: most stores have none.
    tables: OnceLock<Box<[Mutex<Part>]>>,
    max_bytes: usize,
}

#[derive(Debug)]
struct Part {
    /// The one that was idle for longest comes last.
    records: LruCache<Box<[u8]>, UsageEntry>,
    bytes: usize,
    evicted: u64,
}

#[derive(Debug)]
struct UsageEntry {
    tracking: Arc<Tracking>,
    record: Record,
}

/// The size of all records, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableSize {
    /// Records, with expired ones that were not swept yet.
    pub records: usize,
    /// Bytes of these records.
    pub bytes: usize,
    /// Records that were dropped because their memory was full.
    pub evicted: u64,
}

/// A record of a list, in its order: its score, its subject and its key.
type Listed = (u64, Box<[u8]>, Box<[u8]>);

impl UsageRecords {
    pub(super) fn new(max_bytes: usize) -> Self {
        Self {
            tables: OnceLock::new(),
            max_bytes,
        }
    }

    /// Records the usage of the tracked checks that were answered. Of a request that is refused as
    /// a whole, only hits over their limits are recorded.
    pub(super) fn record_all(&self, checks: &Checks, answers: &[Answer], now: Micros) {
        let is_allowed = |answer: &Answer| answer.verdict.is_ok_and(|verdict| verdict.allowed);
        let is_refused = checks.commit == Commit::AllOrNone
            && checks.is_over_limit(answers.iter().map(is_allowed));
        let mut key = Vec::new();
        for (index, tracked) in checks.all_tracked() {
            let Answer { verdict, effect } = answers[index.0];
            let Ok(verdict) = verdict else { continue };
            let hold = effect.hold();
            let own = effect.own_use(checks[index].hits, verdict.allowed);
            let own = Hits::of_check(own, verdict.allowed || hold.outcome.ends());
            let hits = own.plus(Hits::of_check(hold.kept, true), MOST_IN_TOTAL);
            let is_undone = is_refused && verdict.allowed && !checks.is_apart(index);
            // A subject is listed from its first hold on.
            if !(hits.is_none() && !hold.is_new() || is_undone) {
                usage::write_key(checks.key(&checks[index]), &mut key);
                self.record(&key, tracked, now, hits);
            }
        }
    }

    /// Adds hits to the record under a key, and drops others while there are too many bytes.
    pub(super) fn record(&self, key: &[u8], tracked: &Tracked, now: Micros, hits: Hits) {
        let (tracking, period) = tracked;
        let new_part = |_| Part {
            records: LruCache::unbounded(),
            bytes: 0,
            evicted: 0,
        };
        let new_tables = || (0..TABLES).map(new_part).map(Mutex::new).collect();
        let mut part = lock(&self.tables.get_or_init(new_tables)[part_of(key)]);
        match part.records.get_mut(key) {
            Some(entry) if !entry.is_expired(now) => {
                let before = entry.record.bytes();
                entry.record.add(&tracking.settings, *period, now, hits);
                if !Arc::ptr_eq(&entry.tracking, tracking) {
                    entry.tracking = Arc::clone(tracking);
                }
                let after = entry.record.bytes();
                part.bytes = part.bytes - before + after;
            }
            _ => {
                part.remove(key);
                let mut record = Record::step(None, &tracking.settings, now, Hits::default());
                record.add(&tracking.settings, *period, now, hits);
                part.bytes += cost(key, &record);
                let tracking = Arc::clone(tracking);
                part.records
                    .put(key.into(), UsageEntry { tracking, record });
            }
        }
        // The one that was just written stays, however large it is.
        while part.bytes > self.max_bytes / TABLES && part.records.len() > 1 {
            let Some((key, entry)) = part.records.pop_lru() else {
                break;
            };
            part.bytes -= cost(&key, &entry.record);
            part.evicted += 1;
        }
    }

    /// A copy of the record under a key.
    pub fn get(&self, key: &[u8], now: Micros) -> Option<Record> {
        let part = lock(&self.tables.get()?[part_of(key)]);
        let entry = part.records.peek(key);
        let entry = entry.filter(|entry| !entry.is_expired(now));
        entry.map(|entry| entry.record.clone())
    }

    /// Records of a limit in this order. Walks over all records.
    pub fn top(&self, tracking: &Tracking, order: Order, page: Page, now: Micros) -> Top {
        let listed = tracking.settings.subjects as usize;
        let wanted = page.offset.saturating_add(page.count).min(listed);
        let (best, total) = self.best(tracking, order, wanted, now);
        let record = |(_, subject, key): Listed| Some((subject.into_vec(), self.get(&key, now)?));
        let best = best.into_iter().skip(page.offset);
        Top {
            subjects: best.filter_map(record).collect(),
            total: total.min(listed),
        }
    }

    /// The subjects of a limit with the most hits, at most `usage_subjects`. Walks over all
    /// records.
    pub fn subjects(&self, tracking: &Tracking, now: Micros) -> Vec<Vec<u8>> {
        let listed = tracking.settings.subjects as usize;
        let (best, _) = self.best(tracking, Order::Total, listed, now);
        let best = best.into_iter();
        best.map(|(_, subject, _)| subject.into_vec()).collect()
    }

    /// The first `wanted` records of a limit in this order, and the number of all.
    fn best(
        &self,
        tracking: &Tracking,
        order: Order,
        wanted: usize,
        now: Micros,
    ) -> (Vec<Listed>, usize) {
        let (mut best, mut total) = (BinaryHeap::<Reverse<Listed>>::new(), 0);
        for part in self.parts() {
            let part = lock(part);
            for (key, entry) in &part.records {
                let summary = entry.record.summary();
                let is_listed = entry.tracking.is_same_limit(tracking) && order.lists(&summary);
                if entry.is_expired(now) || !is_listed {
                    continue;
                }
                total += 1;
                let (score, subject) = (order.score(&summary), key::subject(key));
                let is_better = best
                    .peek()
                    .is_none_or(|Reverse((worst, of, _))| (score, subject) > (*worst, of));
                if best.len() < wanted || is_better {
                    best.push(Reverse((score, subject.into(), key.clone())));
                }
                if best.len() > wanted {
                    best.pop();
                }
            }
        }
        let best = best.into_sorted_vec().into_iter();
        (best.map(|Reverse(listed)| listed).collect(), total)
    }

    /// Removes the expired records of part `part` of `parts` parts.
    pub(super) fn sweep(&self, part: usize, parts: usize, now: Micros) {
        let range = part * TABLES / parts..(part + 1) * TABLES / parts;
        for part in self.parts().take(range.end).skip(range.start) {
            let mut part = lock(part);
            let all = part.records.iter();
            let expired = all.filter(|(_, entry)| entry.is_expired(now));
            let expired: Vec<_> = expired.map(|(key, _)| key.clone()).collect();
            for key in expired {
                part.remove(&key);
            }
        }
    }

    /// Locks each table in turn.
    pub fn size(&self) -> TableSize {
        let mut size = TableSize::default();
        for part in self.parts() {
            let part = lock(part);
            size.records += part.records.len();
            size.bytes += part.bytes;
            size.evicted += part.evicted;
        }
        size
    }

    fn parts(&self) -> impl Iterator<Item = &Mutex<Part>> {
        self.tables.get().into_iter().flatten()
    }
}

impl Part {
    fn remove(&mut self, key: &[u8]) {
        if let Some(entry) = self.records.pop(key) {
            self.bytes -= cost(key, &entry.record);
        }
    }
}

impl UsageEntry {
    /// Whether it means the same as none at `now`.
    fn is_expired(&self, now: Micros) -> bool {
        now.since(self.record.last_seen) > self.record.keep_for(&self.tracking.settings)
    }
}

/// The bytes that a record takes with its key.
fn cost(key: &[u8], record: &Record) -> usize {
    OVERHEAD + key.len() + record.bytes()
}

/// The table of a record.
fn part_of(key: &[u8]) -> usize {
    Fingerprint::of(key).half() as usize % TABLES
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::time::Span;
    use crate::core::usage::Settings;

    const ONE: Hits = Hits {
        asked: 1,
        refused: 0,
        given_back: 0,
    };

    fn tracking() -> Tracked {
        let tracking = Tracking {
            domain: "d".into(),
            ..Tracking::default()
        };
        (Arc::new(tracking), None)
    }

    #[test]
    fn endless_new_values_stay_within_the_bound_and_those_in_use_stay() {
        let (records, tracking) = (UsageRecords::new(1 << 20), tracking());
        let now = |number: u64| Micros(1_000_000_000 + number);
        for number in 0..50_000u64 {
            records.record(
                format!("w1{{d|user={number}}}us").as_bytes(),
                &tracking,
                now(number),
                ONE,
            );
            records.record(b"w1{d|user=busy}us", &tracking, now(number), ONE);
            let size = records.size();
            assert!(size.bytes <= 1 << 20, "{size:?}");
        }
        let size = records.size();
        assert!(
            size.records > 1_000 && size.evicted == 50_001 - size.records as u64,
            "{size:?}"
        );
        assert_eq!(
            records
                .get(b"w1{d|user=busy}us", now(50_000))
                .expect("the busy one is kept")
                .total
                .asked,
            50_000
        );
        let is_kept = |number: u64| {
            records
                .get(format!("w1{{d|user={number}}}us").as_bytes(), now(50_000))
                .is_some()
        };
        assert!(
            (49_900..50_000).all(is_kept) && !(0..10_000).any(is_kept),
            "the newest are kept"
        );
    }

    #[test]
    fn expired_records_are_not_read_begin_anew_and_are_swept() {
        let (records, tracking) = (UsageRecords::new(1 << 20), tracking());
        let after = |span: Span| Micros(1_000_000_000) + span;
        let life = Settings::default().span();
        for key in [b"one", b"two"] {
            records.record(key, &tracking, after(Span::ZERO), ONE);
        }
        assert!(records.get(b"one", after(life)).is_some());
        let later = after(Span::from_micros(life.micros() + 1));
        assert!(records.get(b"one", later).is_none());
        records.record(b"one", &tracking, later, ONE);
        assert_eq!(
            records.get(b"one", later).expect("a new one").first_seen,
            later
        );
        assert_eq!(records.size().records, 2);
        (0..16).for_each(|part| records.sweep(part, 16, later));
        assert_eq!(records.size().records, 1);
        let size = records.size();
        (0..1_024).for_each(|part| records.sweep(part, 1_024, later + Span::from_secs(86_400)));
        assert_eq!(
            (size.evicted, records.size()),
            (
                0,
                TableSize {
                    records: 0,
                    bytes: 0,
                    evicted: 0
                }
            )
        );
    }
}
