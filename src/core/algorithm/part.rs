//! Hits at one place of a counter, for those that may be given back later.

use std::ops::RangeInclusive;

use super::ticks;

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

/// The places whose hits a counter counts.
#[derive(Clone, Debug)]
pub struct CountedPlaces {
    /// The places whose hits count in full.
    pub full: RangeInclusive<u64>,
    /// The hits that the counter has there.
    pub most: u64,
    /// The place before these.
    pub before: Fading,
}

/// A place whose hits count less from tick to tick.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fading {
    /// The hits that the counter has there; 0 if it counts none.
    pub most: u64,
    /// Ticks since they began to fade.
    pub elapsed: u64,
    /// The ticks after which none counts.
    pub window: u64,
}

impl CountedPlaces {
    /// Of a counter that counts nothing.
    pub const NONE: Self = Self {
        full: RangeInclusive::new(1, 0),
        most: 0,
        before: Fading {
            most: 0,
            elapsed: 0,
            window: 0,
        },
    };

    /// Of a counter that counts all hits at these places, and no others.
    pub fn all(full: RangeInclusive<u64>) -> Self {
        Self {
            full,
            most: u64::MAX,
            ..Self::NONE
        }
    }

    /// How many of the hits of parts are counted, of which so many are at places that count in
    /// full, and at the one before.
    pub fn counted(&self, full: u64, before: u64) -> u64 {
        let Fading { most, .. } = self.before;
        let less = self.before.counted(most) - self.before.counted(most.saturating_sub(before));
        full.min(self.most).saturating_add(less)
    }
}

impl Fading {
    /// How many of these hits at the place count now, rounded up.
    pub fn counted(&self, hits: u64) -> u64 {
        match hits {
            0 => 0,
            _ => hits - ticks::product(hits, self.elapsed, self.window),
        }
    }
}
