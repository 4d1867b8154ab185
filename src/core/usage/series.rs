//! A record over time: the buckets of a recent time, and the hits of any recent interval.

use super::{Hits, MOST_IN_BUCKET, MOST_IN_TOTAL, Record};
use crate::core::time::{Micros, Span};

/// Consecutive buckets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Series {
    /// When the first bucket begins.
    pub begin: Micros,
    /// The length of a bucket.
    pub interval: Span,
    /// The last one is that of the present.
    pub buckets: Vec<Hits>,
}

/// The hits of a recent interval, in whole buckets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count {
    /// The hits of all buckets that overlap the interval, the oldest one whole.
    pub hits: Hits,
    /// The same without the oldest bucket, if that began before the interval. The hits of the
    /// interval are between both.
    pub at_least: Hits,
    /// A bucket is at its end, so that there may have been more hits.
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
            begin: Micros(first.saturating_mul(self.interval)),
            interval: Span::from_micros(self.interval),
            buckets: (first..=last).map(|number| self.bucket(number)).collect(),
        }
    }

    /// The hits of the interval `over` before `now`. `None` if the ring does not go back as far,
    /// and the subject was known before.
    pub fn count(&self, now: Micros, over: Span) -> Option<Count> {
        let from = Micros(now.0.saturating_sub(over.micros()));
        let (first, last) = self.overlapping(now, over);
        let begin = Micros(first.saturating_mul(self.interval));
        // The ring may have begun later than the subject was seen, where its length was changed.
        let covered = Micros(
            self.oldest(now)
                .max(self.base)
                .saturating_mul(self.interval),
        );
        if from < covered && self.first_seen < covered {
            return None;
        }
        let sum = |first: u64| {
            (first..=last).fold(Hits::default(), |sum, number| {
                sum.plus(self.bucket(number), MOST_IN_TOTAL)
            })
        };
        let at_least = if begin < from && self.first_seen < from {
            sum(first + 1)
        } else {
            sum(first)
        };
        let is_full =
            |Hits {
                 asked,
                 refused,
                 given_back,
             }: Hits| asked.max(refused).max(given_back) >= MOST_IN_BUCKET;
        let is_cut = (first..=last).any(|number| is_full(self.bucket(number)));
        Some(Count {
            hits: sum(first),
            at_least,
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
