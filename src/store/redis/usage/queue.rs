//! Queue of usage to be written: the latest totals of subjects, and refused hits.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use hashbrown::HashMap;
use lru::LruCache;

use crate::core::lock;
use crate::core::time::MAX_SAFE_INTEGER;
use crate::core::usage::{Summary, Tracking};
use crate::limits::plan::features::usage;
use crate::limits::plan::{CheckIndex, Checks};

/// Maximum number of subjects that wait for the index, and of subjects with refused hits: a few
/// megabytes, and as much as an index has by default.
pub(crate) const MAX_WAITING: usize = 10_000;

/// Subjects that are taken under the lock at a time. With more, a request could wait for longer
/// than some microseconds.
const MAX_TAKEN_LOCKED: usize = 100;

/// Queue that all workers of a deployment share.
#[derive(Debug, Default)]
pub(crate) struct UsageQueue {
    waiting: Mutex<Waiting>,
    pub(super) dropped: AtomicU64,
    pub(super) lost_hits: AtomicU64,
}

/// By the key of the record.
#[derive(Debug)]
struct Waiting {
    /// In the order of arrival: a subject that waits and arrives again keeps its turn. So the least
    /// recently used one is the one that waits longest.
    summaries: LruCache<Vec<u8>, (Arc<Tracking>, Summary)>,
    refused: HashMap<Vec<u8>, (Arc<Tracking>, u64)>,
}

impl Default for Waiting {
    fn default() -> Self {
        Self {
            summaries: LruCache::unbounded(),
            refused: HashMap::new(),
        }
    }
}

/// The totals of a subject: the key of its record, and its limit.
pub(super) type Totals = (Vec<u8>, Arc<Tracking>, Summary);

/// Usage that could not be written, since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UsageCounts {
    /// Subjects whose totals were not written to the index, because too many waited or Redis
    /// failed.
    pub dropped: u64,
    /// Refused hits of the denial cache that are in no record, or may not be.
    pub lost_hits: u64,
}

impl UsageQueue {
    /// Queues the totals of the subjects of these checks.
    pub(crate) fn enqueue_all(&self, checks: &Checks, summaries: Vec<(CheckIndex, Summary)>) {
        for (index, summary) in summaries {
            let check = &checks[index];
            if let Some((tracking, _)) = check.tracked() {
                self.enqueue(usage::key_of(checks.key(check)), tracking, summary);
            }
        }
    }

    /// Queues the totals of the subject of this record.
    pub(crate) fn enqueue(&self, record: Vec<u8>, tracking: &Arc<Tracking>, summary: Summary) {
        let mut waiting = lock(&self.waiting);
        if let Some(known) = waiting.summaries.peek_mut(&record) {
            *known = (Arc::clone(tracking), summary);
        } else if waiting.summaries.len() < MAX_WAITING {
            let entry = (Arc::clone(tracking), summary);
            waiting.summaries.put(record, entry);
        } else {
            drop(waiting);
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Queues hits of the subject of this record that the denial cache refused.
    pub(crate) fn refuse(&self, record: Vec<u8>, tracking: &Arc<Tracking>, hits: u64) {
        let mut waiting = lock(&self.waiting);
        if let Some((_, known)) = waiting.refused.get_mut(&record) {
            *known = known.saturating_add(hits).min(MAX_SAFE_INTEGER);
        } else if waiting.refused.len() < MAX_WAITING {
            let entry = (Arc::clone(tracking), hits.min(MAX_SAFE_INTEGER));
            waiting.refused.insert(record, entry);
        } else {
            drop(waiting);
            self.lost_hits.fetch_add(hits, Ordering::Relaxed);
        }
    }

    /// Usage that could not be written so far.
    pub(crate) fn counts(&self) -> UsageCounts {
        UsageCounts {
            dropped: self.dropped.load(Ordering::Relaxed),
            lost_hits: self.lost_hits.load(Ordering::Relaxed),
        }
    }

    /// Takes at most `most` subjects, first the ones that have waited for longest.
    pub(super) fn take_summaries(&self, most: usize) -> Vec<Totals> {
        let mut taken = Vec::new();
        loop {
            let mut waiting = lock(&self.waiting);
            let next = (taken.len() + MAX_TAKEN_LOCKED).min(most);
            while taken.len() < next {
                let Some((record, (tracking, summary))) = waiting.summaries.pop_lru() else {
                    return taken;
                };
                taken.push((record, tracking, summary));
            }
            if next == most {
                return taken;
            }
        }
    }

    pub(super) fn take_refused(&self) -> HashMap<Vec<u8>, (Arc<Tracking>, u64)> {
        std::mem::take(&mut lock(&self.waiting).refused)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::time::Micros;
    use crate::limits::plan::features::usage::key_of;

    #[test]
    fn what_waits_is_bounded_and_the_rest_is_counted() {
        let tracking = Arc::new(Tracking {
            domain: "d".into(),
            ..Tracking::default()
        });
        let queue = UsageQueue::default();
        let summary = |asked| Summary {
            asked,
            refused: 0,
            first_seen: Micros(1),
            last_seen: Micros(2),
        };
        for number in 0..MAX_WAITING as u64 + 5 {
            let counter = format!("w1{{d|user={number}}}tb60");
            queue.enqueue(key_of(counter.as_bytes()), &tracking, summary(number));
            queue.refuse(key_of(counter.as_bytes()), &tracking, 3);
        }
        queue.enqueue(key_of(b"w1{d|user=7}fw60:99"), &tracking, summary(99));
        queue.refuse(key_of(b"w1{d|user=7}fw60:99"), &tracking, u64::MAX);
        assert_eq!(
            queue.counts(),
            UsageCounts {
                dropped: 5,
                lost_hits: 15
            }
        );
        let (summaries, refused) = (queue.take_summaries(usize::MAX), queue.take_refused());
        assert_eq!((summaries.len(), refused.len()), (MAX_WAITING, MAX_WAITING));
        let record = &b"w1{d|user=7}us"[..];
        let asked = |record: &[u8]| {
            summaries
                .iter()
                .find(|(key, ..)| key == record)
                .map(|(.., summary)| summary.asked)
        };
        assert_eq!(
            (asked(record), refused[record].1),
            (Some(99), MAX_SAFE_INTEGER),
            "of any algorithm, the latest and the sum"
        );
        assert!(queue.take_summaries(usize::MAX).is_empty() && queue.take_refused().is_empty());
    }

    /// A subject that comes again and again neither pushes others back nor is pushed back by them.
    #[test]
    fn those_that_wait_for_longest_are_taken_first() {
        let tracking = Arc::new(Tracking {
            domain: "d".into(),
            ..Tracking::default()
        });
        let queue = UsageQueue::default();
        let enqueue = |number: u64, asked| {
            let summary = Summary {
                asked,
                refused: 0,
                first_seen: Micros(1),
                last_seen: Micros(2),
            };
            queue.enqueue(
                key_of(format!("w1{{d|user={number}}}tb60").as_bytes()),
                &tracking,
                summary,
            );
        };
        let take = |most| {
            queue
                .take_summaries(most)
                .into_iter()
                .map(|(.., summary)| summary.asked)
                .collect::<Vec<_>>()
        };
        (0..1_000).for_each(|number| enqueue(number, number));
        enqueue(0, 5_000);
        enqueue(700, 5_700);
        assert_eq!(take(0), [0; 0]);
        let first: Vec<u64> = std::iter::once(5_000).chain(1..350).collect();
        assert_eq!(take(350), first);
        enqueue(0, 6_000);
        let rest: Vec<u64> = (350..700)
            .chain([5_700])
            .chain(701..1_000)
            .chain([6_000])
            .collect();
        assert_eq!(take(usize::MAX), rest);
        assert_eq!(queue.counts(), UsageCounts::default());
    }
}
