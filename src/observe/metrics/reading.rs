//! What exporters read of one limit: the hits that envoyproxy/ratelimit counts too.

use super::counts::{Counts, HITS};
use super::dynamic::Labels;
use super::exposition::{Exposition, labels};
use super::families::Family;

/// The hits of one limit, or of one name that depends on requests.
#[derive(Debug)]
pub struct LimitReading<'a> {
    /// Its domain.
    pub domain: &'a str,
    /// Its first level, as `key` or `key_value`.
    pub key1: &'a str,
    /// Its second level; empty if there is none.
    pub key2: &'a str,
    /// Its levels from the second on, joined by dots; empty if there is none.
    pub below: &'a str,
    /// The values of [`LimitReading::FAMILIES`].
    pub hits: [u64; HITS.len()],
    /// Series without hits are shown too.
    pub is_expected: bool,
}

impl<'a> LimitReading<'a> {
    /// The families of [`LimitReading::hits`], in their order.
    pub const FAMILIES: &'static [&'static Family] = &HITS;

    pub(super) fn new(labels: &'a Labels, counts: &Counts, is_expected: bool) -> Self {
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
            hits,
            is_expected,
        }
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
