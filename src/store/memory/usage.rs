//! The usage records of the memory store: at most a quarter of a megabyte in each table by default.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use super::bounded::{Bounded, BoundedTable};
use crate::core::time::Micros;
use crate::core::usage::{Hits, Order, Page, Record, Top, Tracked, Tracking};
use crate::limits::plan::key;

/// All records.
pub(super) type UsageRecords = BoundedTable<UsageEntry>;

#[derive(Debug)]
pub(super) struct UsageEntry {
    tracking: Arc<Tracking>,
    record: Record,
}

/// A record of a list, in its order: its score, its subject and its key.
type Listed = (u64, Box<[u8]>, Box<[u8]>);

impl Bounded for UsageEntry {
    fn bytes(&self) -> usize {
        self.record.bytes()
    }

    fn is_expired(&self, now: Micros) -> bool {
        now.since(self.record.last_seen) > self.record.keep_for(&self.tracking.settings)
    }
}

impl UsageRecords {
    /// Adds hits to the record under a key.
    pub(super) fn record(&self, key: &[u8], tracked: &Tracked, now: Micros, hits: Hits) {
        let (tracking, period) = tracked;
        let new = || UsageEntry {
            tracking: Arc::clone(tracking),
            record: Record::step(None, &tracking.settings, now, Hits::default()),
        };
        self.step(key, now, new, |entry| {
            entry.record.add(&tracking.settings, *period, now, hits);
            if !Arc::ptr_eq(&entry.tracking, tracking) {
                entry.tracking = Arc::clone(tracking);
            }
        });
    }

    /// A copy of the record under a key.
    pub(super) fn get(&self, key: &[u8], now: Micros) -> Option<Record> {
        self.read(key, now, |entry| entry.record.clone())
    }

    /// Records of a limit in this order.
    pub(super) fn top(&self, tracking: &Tracking, order: Order, page: Page, now: Micros) -> Top {
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

    /// The subjects of a limit with the most hits, at most `usage_subjects`.
    pub(super) fn subjects(&self, tracking: &Tracking, now: Micros) -> Vec<Vec<u8>> {
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
        self.each(now, |key, entry| {
            let summary = entry.record.summary();
            if !entry.tracking.is_same_limit(tracking) || !order.lists(&summary) {
                return;
            }
            total += 1;
            let (score, subject) = (order.score(&summary), key::subject(key));
            let is_better = best
                .peek()
                .is_none_or(|Reverse((worst, of, _))| (score, subject) > (*worst, of));
            if best.len() < wanted || is_better {
                best.push(Reverse((score, subject.into(), key.into())));
            }
            if best.len() > wanted {
                best.pop();
            }
        });
        let best = best.into_sorted_vec().into_iter();
        (best.map(|Reverse(listed)| listed).collect(), total)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::time::Span;
    use crate::core::usage::Settings;
    use crate::store::memory::TableSize;

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
    fn the_top_of_a_limit_is_in_order_and_has_pages() {
        let records = UsageRecords::new(1 << 20);
        let other = Arc::new(Tracking {
            domain: "other".into(),
            ..Tracking::clone(&tracking().0)
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
                &(Arc::clone(&other), None),
                Micros(number),
                hits,
            );
        }
        let top = |order, (offset, count)| {
            let Top { subjects, total } =
                records.top(&tracking().0, order, Page { offset, count }, Micros(100));
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
                TableSize {
                    records: 0,
                    bytes: 0,
                    evicted: 0
                }
            )
        );
    }
}
