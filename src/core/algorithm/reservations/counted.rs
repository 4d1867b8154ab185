//! The hits of holds that a counter counts: the difference that they make to its use.

use super::peaks::Peaks;
use crate::core::algorithm::part::CountedPlaces;
use crate::core::algorithm::{Algorithm, Arrival, Part, State, TokenBucket};

/// Adds up parts of holds.
#[derive(Debug)]
pub(super) enum CountedHits<'a> {
    /// By their places.
    AtPlaces {
        places: CountedPlaces,
        /// Hits at places that count in full.
        full: u64,
        /// Hits at the place before these.
        before: u64,
    },
    /// By the highest levels since they were taken.
    InBucket {
        bucket: &'a TokenBucket,
        peaks: &'a Peaks,
        level: i64,
        /// Units that a refund of the added parts would add.
        given: i64,
    },
}

impl<'a> CountedHits<'a> {
    /// None yet, of a counter in this state.
    pub(super) fn new(
        limit: &'a Algorithm,
        counter: Option<&State>,
        peaks: &'a Peaks,
        at: Arrival,
    ) -> Self {
        match limit {
            Algorithm::TokenBucket(bucket) => Self::InBucket {
                bucket,
                peaks,
                level: bucket.level(counter, at),
                given: 0,
            },
            _ => Self::AtPlaces {
                places: limit.counted_places(counter, at),
                full: 0,
                before: 0,
            },
        }
    }

    /// Adds parts. Returns the hits of all added ones that the counter counts; of a bucket too few
    /// rather than too many, if the places of all do not ascend.
    pub(super) fn add(&mut self, parts: &[Part]) -> u64 {
        match self {
            Self::AtPlaces {
                places,
                full,
                before,
            } => {
                for part in parts {
                    if places.full.contains(&part.place) {
                        *full = full.saturating_add(part.hits);
                    } else if part.place.checked_add(1) == Some(*places.full.start()) {
                        *before = before.saturating_add(part.hits);
                    }
                }
                places.counted(*full, *before)
            }
            Self::InBucket {
                bucket,
                peaks,
                level,
                given,
            } => {
                for part in parts {
                    let highest = peaks.highest(part.place, *level);
                    let highest = highest.saturating_add(*given);
                    *given = given.saturating_add(bucket.refundable(part.hits, highest));
                }
                bucket.uncounted(*level, *given)
            }
        }
    }
}
