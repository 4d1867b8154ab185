//! Series whose names depend on the request: `detailed_metric`, `value_to_metric`, limits that a
//! request brings along.
//!
//! Their number and length are bounded, because a client may choose their text: once the bound is
//! reached, a new series is counted as `other` of its domain. Locks protect them, which only
//! requests for such limits take.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};

use super::counts::{Counts, HITS, add_up};
use super::exposition::{Exposition, labels};
use super::families::Family;
use crate::core::fingerprint::Fingerprint;
use crate::core::lock;
use crate::core::text::{self, MARK};

/// The number of locks; with several locks, cores seldom wait for each other.
const SHARDS: usize = 16;

/// The longest label value that is taken from a request, in bytes. A descriptor's value may have a
/// megabyte; a scrape must stay readable.
const LONGEST_LABEL_BYTES: usize = 256;

/// The label `key1` of the series for all names beyond the bound.
pub(super) const OTHER: &str = "other";

/// The labels of envoyproxy/ratelimit, which identify a series.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Labels {
    pub domain: String,
    /// The first level.
    pub key1: String,
    /// The levels from the second on, joined by dots; empty when there is only one.
    pub key2: String,
    /// Bytes of the second level in `key2`.
    second_bytes: usize,
}

impl Labels {
    /// The labels of a limit with these levels.
    pub fn new(domain: String, levels: &[String]) -> Self {
        let others = levels.get(1..).unwrap_or_default();
        Self {
            domain,
            key1: levels.first().cloned().unwrap_or_default(),
            key2: others.join("."),
            second_bytes: others.first().map_or(0, String::len),
        }
    }

    /// The labels with their names. A limit of one level has no `key2`.
    pub fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        let first = [("domain", &*self.domain), ("key1", &*self.key1)];
        let key2 = Some(("key2", &*self.key2)).filter(|_| !self.key2.is_empty());
        first.into_iter().chain(key2)
    }

    /// The second level alone, which may have dots itself; empty if there is only one.
    pub fn second_level(&self) -> &str {
        self.key2.get(..self.second_bytes).unwrap_or(&self.key2)
    }
}

/// Cuts a text of a request to the longest label value.
pub(super) fn cut(mut text: String) -> String {
    if text.len() > LONGEST_LABEL_BYTES {
        let longest = LONGEST_LABEL_BYTES - MARK.len();
        text.truncate(text::cut(text.as_bytes(), longest).len());
        text.push_str(MARK);
    }
    text
}

type LabelShard = HashMap<Labels, Counts>;

/// A bounded map from labels to counts.
#[derive(Debug)]
pub(super) struct Dynamic {
    shards: Box<[Mutex<LabelShard>]>,
    len: AtomicUsize,
    max: usize,
}

impl Dynamic {
    /// At most `max` series, without those named `other`.
    pub(super) fn new(max: usize) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            len: AtomicUsize::new(0),
            max,
        }
    }

    /// Adds to the series of these levels.
    pub(super) fn add(&self, domain: &[u8], levels: &[String], counts: &Counts) {
        let domain = cut(String::from_utf8_lossy(domain).into_owned());
        let mut labels = Labels::new(domain, levels);
        labels.key1 = cut(labels.key1);
        labels.key2 = cut(labels.key2);
        // Texts that are equal after the cut are one series.
        labels.second_bytes = labels.second_bytes.min(labels.key2.len());
        let mut shard = self.shard(&labels);
        if let Some(known) = shard.get_mut(&labels) {
            return add_up(known, counts);
        }
        if self.len.fetch_add(1, Ordering::Relaxed) < self.max {
            shard.insert(labels, *counts);
            return;
        }
        drop(shard);
        self.len.fetch_sub(1, Ordering::Relaxed);
        let other = Labels::new(labels.domain, &[OTHER.to_owned()]);
        add_up(self.shard(&other).entry(other).or_default(), counts);
    }

    /// Drops the series of domains that the rules no longer have: a changing configuration must not
    /// use up the bound.
    pub(super) fn retain_domains(&self, known: impl Fn(&str) -> bool) {
        for shard in &self.shards {
            let mut shard = lock(shard);
            shard.retain(|labels, _| {
                let keep = known(&labels.domain);
                if !keep && labels.key1 != OTHER {
                    self.len.fetch_sub(1, Ordering::Relaxed);
                }
                keep
            });
        }
    }

    /// All series now.
    pub(super) fn series(&self) -> Vec<(Labels, Counts)> {
        let shards = self.shards.iter();
        shards.flat_map(|shard| lock(shard).clone()).collect()
    }

    fn shard(&self, labels: &Labels) -> MutexGuard<'_, LabelShard> {
        lock(&self.shards[Fingerprint::of_value(labels).half() as usize % SHARDS])
    }
}

/// Which of several series with equal labels it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part<'a> {
    /// The series of a limit, with the labels `name` and `plan` of Weir's own metrics.
    Limit(Option<&'a str>, Option<&'a str>),
    /// Hits whose labels depend on requests.
    Requests,
}

/// The hits of one limit, or of one name that depends on requests.
#[derive(Debug)]
pub struct LimitReading<'a> {
    pub labels: &'a Labels,
    /// Which of the series with these labels it is.
    pub part: Part<'a>,
    /// The values of [`LimitReading::FAMILIES`].
    pub hits: &'a [u64],
    /// Series without hits are shown too.
    pub is_expected: bool,
}

impl<'a> LimitReading<'a> {
    /// The families of [`LimitReading::hits`], in their order.
    pub const FAMILIES: &'static [&'static Family] = &HITS;

    pub(super) fn new(
        labels: &'a Labels,
        part: Part<'a>,
        counts: &'a Counts,
        is_expected: bool,
    ) -> Self {
        Self {
            labels,
            part,
            hits: &counts[..HITS.len()],
            is_expected,
        }
    }

    /// The families that are shown, with their values.
    pub fn exported(&self) -> impl Iterator<Item = (&'static Family, u64)> {
        HITS.into_iter()
            .zip(self.hits.iter().copied())
            .filter(|&(_, count)| self.is_expected || count > 0)
    }
}

/// Adds the hits of a limit to Weir's own page, on which `key2` has all levels from the second on.
pub(super) fn gather(exposition: &mut Exposition, reading: &LimitReading<'_>) {
    let mut shared = exposition.of(labels(reading.labels.pairs()));
    for (family, count) in reading.exported() {
        shared.count(family, None, count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one() -> Counts {
        let mut counts = Counts::default();
        counts[0] = 1;
        counts
    }

    fn level(text: &str) -> Vec<String> {
        vec![text.to_owned()]
    }

    #[test]
    fn series_beyond_the_bound_are_counted_as_other_of_their_domain() {
        let dynamic = Dynamic::new(100);
        for user in 0..1_000 {
            dynamic.add(b"shop", &level(&format!("user_{user}")), &one());
        }
        dynamic.add(b"blog", &level("user_1"), &one());
        dynamic.add(b"shop", &level("user_7"), &one());
        let series = dynamic.series();
        assert_eq!(series.len(), 102);
        let count = |domain: &str, key: &str| {
            series
                .iter()
                .find(|(labels, _)| labels.domain == domain && labels.key1 == key)
                .map(|(_, counts)| counts[0])
        };
        assert_eq!(count("shop", "user_7"), Some(2));
        assert_eq!(count("shop", OTHER), Some(900));
        assert_eq!(count("blog", OTHER), Some(1));
    }

    #[test]
    fn series_of_removed_domains_make_room() {
        let dynamic = Dynamic::new(2);
        for (domain, user) in [("a", "1"), ("a", "2"), ("a", "3")] {
            dynamic.add(domain.as_bytes(), &level(user), &one());
        }
        dynamic.retain_domains(|domain| domain == "b");
        assert_eq!(dynamic.series(), []);
        dynamic.add(b"b", &level("1"), &one());
        dynamic.add(b"b", &level("2"), &one());
        assert!(
            dynamic
                .series()
                .iter()
                .all(|(labels, _)| labels.key1 != OTHER)
        );
    }

    #[test]
    fn long_and_invalid_text_stays_readable() {
        let dynamic = Dynamic::new(2);
        dynamic.add(
            b"\xff",
            &[
                format!("k_{}", "ü".repeat(500_000)),
                "b".to_owned(),
                "c".to_owned(),
            ],
            &one(),
        );
        let (labels, _) = dynamic.series().remove(0);
        assert_eq!(labels.domain, "\u{fffd}");
        assert!(
            labels.key1.len() <= LONGEST_LABEL_BYTES && labels.key1.ends_with("ü…"),
            "{}",
            labels.key1
        );
        assert_eq!((labels.key2.as_str(), labels.second_level()), ("b.c", "b"));
        dynamic.add(
            b"d",
            &["a".to_owned(), "ü".repeat(500_000), "c".to_owned()],
            &one(),
        );
        let series = dynamic.series();
        let (labels, _) = series
            .iter()
            .find(|(labels, _)| labels.domain == "d")
            .unwrap();
        assert_eq!(
            labels.second_level(),
            labels.key2,
            "the whole of what a cut has left"
        );
    }
}
