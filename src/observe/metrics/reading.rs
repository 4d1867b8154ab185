//! What exporters read of one limit: the hits that envoyproxy/ratelimit counts too.

use super::counts::{Counts, HITS};
use super::dynamic::Labels;
use super::exposition::{Exposition, labels};
use super::families::Family;

/// Which of several series with equal labels it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part<'a> {
    /// That of a limit, with the labels `name` and `plan` of Weir's own metrics.
    Limit(Option<&'a str>, Option<&'a str>),
    /// Hits whose labels depend on requests.
    Requests,
}

/// The hits of one limit, or of one name that depends on requests.
#[derive(Debug)]
pub struct LimitReading<'a> {
    pub domain: &'a str,
    /// Its first level, as `key` or `key_value`.
    pub key1: &'a str,
    /// Its second level; empty if there is none.
    pub key2: &'a str,
    /// Its levels from the second on, joined by dots; empty if there is none.
    pub below: &'a str,
    /// Which of the series with these labels it is.
    pub part: Part<'a>,
    /// The values of [`LimitReading::FAMILIES`].
    pub hits: [u64; HITS.len()],
    /// Series without hits are shown too.
    pub is_expected: bool,
}

impl<'a> LimitReading<'a> {
    /// The families of [`LimitReading::hits`], in their order.
    pub const FAMILIES: &'static [&'static Family] = &HITS;

    pub(super) fn new(
        labels: &'a Labels,
        part: Part<'a>,
        counts: &Counts,
        is_expected: bool,
    ) -> Self {
        let Labels {
            domain, key1, key2, ..
        } = labels;
        let mut hits = [0; HITS.len()];
        hits.copy_from_slice(&counts[..HITS.len()]);
        Self {
            domain,
            key1,
            key2: labels.second_level(),
            below: key2,
            part,
            hits,
            is_expected,
        }
    }

    /// What tells its series from all others, before names are cleaned for an exporter.
    pub const fn identity(&self) -> (&'a str, &'a str, &'a str, &'a str, Part<'a>) {
        (self.domain, self.key1, self.key2, self.below, self.part)
    }

    /// The families that are shown, with their values.
    pub fn shown(&self) -> impl Iterator<Item = (&'static Family, u64)> {
        HITS.into_iter()
            .zip(self.hits)
            .filter(|&(_, count)| self.is_expected || count > 0)
    }
}

/// Adds the hits of a limit to Weir's own page, on which `key2` has all levels from the second on.
pub(super) fn gather(exposition: &mut Exposition, reading: &LimitReading<'_>) {
    let key2 = Some(("key2", reading.below)).filter(|(_, levels)| !levels.is_empty());
    let shared = labels(
        [("domain", reading.domain), ("key1", reading.key1)]
            .into_iter()
            .chain(key2),
    );
    for (family, count) in reading.shown() {
        exposition.count(family, &shared, None, count);
    }
}
