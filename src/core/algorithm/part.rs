//! Hits at one place of a counter, for those that may be given back later.

/// Hits that were counted at one place of a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The number of a window or of a bucket, a tick, or microseconds for a token bucket.
    pub place: u64,
    pub hits: u64,
}

impl Part {
    /// The hits of all parts.
    pub fn sum(parts: &[Self]) -> u64 {
        let hits = parts.iter().map(|part| part.hits);
        hits.fold(0, u64::saturating_add)
    }

    /// The hits of all parts at one place.
    pub fn hits_at(parts: &[Self], place: u64) -> u64 {
        let own = parts.iter().filter(|part| part.place == place);
        own.fold(0, |sum, part| sum.saturating_add(part.hits))
    }
}
