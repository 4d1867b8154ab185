//! The usage records of the memory store: a table next to the counters, bounded in bytes.
//!
//! When it is full, the record that was idle for longest is dropped. It consists of many small
//! tables, each with a mutex that is held for one step, and for a walk over its records when it is
//! swept or searched: at most a quarter of a megabyte by default.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::{Arc, Mutex, OnceLock};

use lru::LruCache;

use crate::core::fingerprint::Fingerprint;
use crate::core::lock;
use crate::core::time::Micros;
use crate::core::usage::{Hits, Order, Page, Record, Top, Tracking};
use crate::limits::plan::key;

/// The number of tables; a power of two.
const TABLES: usize = 256;

/// Cost of a record in addition to itself and its key: the pointers of the list and the map.
const OVERHEAD: usize = 64;

/// All records.
#[derive(Debug)]
pub(super) struct UsageRecords {
    /// Made for the first record: most stores have none.
    tables: OnceLock<Box<[Mutex<UsageTable>]>>,
    max_bytes: usize,
}

#[derive(Debug)]
struct UsageTable {
    /// By the key of the record; the one that was idle for longest comes last.
    records: LruCache<Box<[u8]>, UsageEntry>,
    bytes: usize,
    evicted: u64,
}

#[derive(Debug)]
struct UsageEntry {
    tracking: Arc<Tracking>,
    record: Record,
}

/// A record of a list, in its order: its score, its subject and its key.
type Listed = (u64, Box<[u8]>, Box<[u8]>);

/// The size of all usage records, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UsageSize {
    /// Records, with expired ones that were not swept yet.
    pub records: usize,
    /// Bytes of these records.
    pub bytes: usize,
    /// Records that were dropped because their memory was full.
    pub evicted: u64,
}

impl UsageEntry {
    fn bytes(&self, key: &[u8]) -> usize {
        OVERHEAD + key.len() + self.record.bytes()
    }

    fn is_expired(&self, now: Micros) -> bool {
        now.since(self.record.last_seen) > self.record.keep_for(&self.tracking.settings)
    }
}

impl UsageRecords {
    pub(super) fn new(max_bytes: usize) -> Self {
        Self {
            tables: OnceLock::new(),
            max_bytes,
        }
    }

    /// Adds hits to the record under a key, and drops others while there are too many bytes.
    pub(super) fn record(&self, key: &[u8], tracking: &Arc<Tracking>, now: Micros, hits: Hits) {
        let tables = self.tables.get_or_init(|| {
            let table = |_| UsageTable {
                records: LruCache::unbounded(),
                bytes: 0,
                evicted: 0,
            };
            (0..TABLES).map(table).map(Mutex::new).collect()
        });
        let mut table = lock(&tables[table_of(key)]);
        match table.records.get_mut(key) {
            Some(entry) if !entry.is_expired(now) => {
                let before = entry.record.bytes();
                entry.record.add(&tracking.settings, now, hits);
                if !Arc::ptr_eq(&entry.tracking, tracking) {
                    entry.tracking = Arc::clone(tracking);
                }
                let after = entry.record.bytes();
                table.bytes = table.bytes - before + after;
            }
            _ => {
                let entry = UsageEntry {
                    tracking: Arc::clone(tracking),
                    record: Record::step(None, &tracking.settings, now, hits),
                };
                table.bytes += entry.bytes(key);
                if let Some(expired) = table.records.put(key.into(), entry) {
                    table.bytes -= expired.bytes(key);
                }
            }
        }
        // The one that was just written stays, however large it is.
        while table.bytes > self.max_bytes / TABLES && table.records.len() > 1 {
            let Some((key, entry)) = table.records.pop_lru() else {
                break;
            };
            table.bytes -= entry.bytes(&key);
            table.evicted += 1;
        }
    }

    /// A copy of the record under a key.
    pub(super) fn get(&self, key: &[u8], now: Micros) -> Option<Record> {
        let table = lock(&self.tables.get()?[table_of(key)]);
        let entry = table.records.peek(key);
        let live = entry.filter(|entry| !entry.is_expired(now))?;
        Some(live.record.clone())
    }

    /// Records of a limit in this order.
    pub(super) fn top(&self, tracking: &Tracking, order: Order, page: Page, now: Micros) -> Top {
        let (listed, mut total) = (tracking.settings.subjects as usize, 0);
        let wanted = page.offset.saturating_add(page.count).min(listed);
        let mut best: BinaryHeap<Reverse<Listed>> = BinaryHeap::new();
        for table in self.tables.get().into_iter().flatten() {
            let table = lock(table);
            let of_limit = |entry: &UsageEntry| {
                entry.tracking.is_same_limit(tracking) && !entry.is_expired(now)
            };
            for (key, entry) in table.records.iter().filter(|(_, entry)| of_limit(entry)) {
                let summary = entry.record.summary();
                if !order.lists(&summary) {
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
        let best = best.into_sorted_vec().into_iter().skip(page.offset);
        let record = |Reverse((_, subject, key)): Reverse<Listed>| {
            Some((subject.into_vec(), self.get(&key, now)?))
        };
        Top {
            subjects: best.filter_map(record).collect(),
            total: total.min(listed),
        }
    }

    /// Removes the expired records of part `part` of `parts` parts.
    pub(super) fn sweep(&self, part: usize, parts: usize, now: Micros) {
        let range = part * TABLES / parts..(part + 1) * TABLES / parts;
        let tables = self.tables.get().map_or(&[][..], |tables| &tables[range]);
        for table in tables {
            let mut table = lock(table);
            let all = table.records.iter();
            let expired = all.filter(|(_, entry)| entry.is_expired(now));
            let expired: Vec<_> = expired.map(|(key, _)| key.clone()).collect();
            for key in expired {
                if let Some(entry) = table.records.pop(&key) {
                    table.bytes -= entry.bytes(&key);
                }
            }
        }
    }

    /// Locks each table in turn.
    pub(super) fn size(&self) -> UsageSize {
        let mut size = UsageSize::default();
        for table in self.tables.get().into_iter().flatten() {
            let table = lock(table);
            size.records += table.records.len();
            size.bytes += table.bytes;
            size.evicted += table.evicted;
        }
        size
    }
}

/// The table of a record.
fn table_of(key: &[u8]) -> usize {
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

    fn tracking() -> Arc<Tracking> {
        Arc::new(Tracking {
            settings: Settings::default(),
            domain: "d".into(),
            levels: [].into(),
            is_trial: false,
            is_in_slot_of_domain: false,
        })
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
    fn the_top_of_a_limit_is_in_order_and_has_pages() {
        let records = UsageRecords::new(1 << 20);
        let other = Arc::new(Tracking {
            domain: "other".into(),
            ..Tracking::clone(&tracking())
        });
        for number in 1..=30u64 {
            let hits = Hits {
                asked: number,
                refused: 30 - number,
                given_back: 0,
            };
            records.record(
                format!("w1{{d|user={number}}}us").as_bytes(),
                &tracking(),
                Micros(number),
                hits,
            );
            records.record(
                format!("w1{{other|user={number}}}us").as_bytes(),
                &other,
                Micros(number),
                hits,
            );
        }
        let top = |order, (offset, count)| {
            let Top { subjects, total } =
                records.top(&tracking(), order, Page { offset, count }, Micros(100));
            assert_eq!(total, if order == Order::Refused { 29 } else { 30 });
            subjects
                .into_iter()
                .map(|(subject, record)| {
                    (
                        String::from_utf8(subject).expect("text"),
                        record.total.asked,
                    )
                })
                .collect::<Vec<_>>()
        };
        let subject = |number: u64| (format!("d|user={number}"), number);
        assert_eq!(top(Order::Total, (0, 3)), [30, 29, 28].map(subject));
        assert_eq!(top(Order::Total, (28, 5)), [2, 1].map(subject));
        assert_eq!(top(Order::Refused, (0, 2)), [1, 2].map(subject));
        assert_eq!(
            top(Order::Refused, (27, 5)),
            [28, 29].map(subject),
            "one was never refused"
        );
        assert_eq!(top(Order::LastSeen, (1, 2)), [29, 28].map(subject));
        assert!(top(Order::FirstSeen, (30, 2)).is_empty());
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
                UsageSize {
                    records: 0,
                    bytes: 0,
                    evicted: 0
                }
            )
        );
    }
}
