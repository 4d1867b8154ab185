//! Places that requests with ids take of a limit, and the gauge that counts them. The holds of
//! hits are counted like places.
//!
//! [`Gauge`] counts the taken places of a limit, from the places that this process has seen taken
//! and released.
//!
//! A place may be acquired through one replica and released through another, and no replica
//! releases a lost one. So a gauge counts by the time of the acquire: taken places minus
//! released ones, in a ring over `max_duration`, which drops expired places. The sum over all
//! replicas is the number of places; the count of one replica may be below zero.
//!
//! A plain sum (acquired minus released minus expired) would stay wrong for ever if a key with lost
//! places is never checked again.

use std::sync::Mutex;

use crate::core::digest::sha256;
use crate::core::lock;
use crate::core::time::{Micros, Span};

/// The digest of a request's id: half of a SHA-256, equal in all replicas. So an id has one size
/// whatever a client sends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct RequestId(pub [u8; Self::BYTES]);

impl RequestId {
    /// Bytes of a digest.
    pub const BYTES: usize = 16;

    /// The digest of an id. An empty one is an id like any other.
    pub fn of(id: &[u8]) -> Self {
        let digest = sha256(id);
        Self(*digest.first_chunk().expect("a digest of 32 bytes has 16"))
    }
}

/// Number of places that a step took or released, and the time since their request acquired the
/// first one. For [`Gauge`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// The time since the request acquired its place; zero for a new one.
    pub age: Span,
    pub places: u64,
}

impl Change {
    /// More than the places of any limit.
    const RADIX: u64 = 1 << 14;

    /// The change that a row of the script holds.
    pub const fn of_row(number: u64) -> Self {
        Self {
            age: Span::from_micros(number / Self::RADIX),
            places: number % Self::RADIX,
        }
    }
}

/// Number of parts of `max_duration` that are counted separately: a lost place is counted for at
/// most 1/32 of `max_duration` longer.
const PARTS: u64 = 32;

/// Buckets that overlap the last `max_duration`, and the current one.
const BUCKETS: usize = PARTS as usize + 2;

/// Gauge of the taken places of one limit.
#[derive(Debug)]
pub struct Gauge {
    /// The length of a bucket in microseconds.
    width: u64,
    /// Held for a few instructions. All workers share it, because requests of one limit change the
    /// same buckets.
    buckets: Mutex<[Bucket; BUCKETS]>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Bucket {
    number: u64,
    places: i64,
}

impl Gauge {
    /// The gauge of a limit with this `max_duration`.
    pub fn new(max_duration: Span) -> Self {
        Self {
            width: max_duration.micros().div_ceil(PARTS).max(1),
            buckets: Mutex::new([Bucket::default(); BUCKETS]),
        }
    }

    /// Adds places that were taken, or subtracts released ones.
    pub fn record(&self, change: Change, is_taken: bool, now: Micros) {
        if change.places == 0 {
            return;
        }
        let places = change.places.cast_signed();
        let since = now.0.saturating_sub(change.age.micros());
        self.add(since, if is_taken { places } else { -places });
    }

    fn add(&self, since: u64, places: i64) {
        let number = since / self.width;
        let mut buckets = lock(&self.buckets);
        let bucket = &mut buckets[(number % BUCKETS as u64) as usize];
        if bucket.number < number {
            *bucket = Bucket { number, places: 0 };
        }
        // A bucket older than the ring has expired.
        if bucket.number == number {
            bucket.places += places;
        }
    }

    /// Adds the counts of the same limit's gauge in the previous rules, and empties that gauge.
    pub fn absorb(&self, before: &Self) {
        let buckets = std::mem::replace(&mut *lock(&before.buckets), [Bucket::default(); BUCKETS]);
        let newest = buckets.iter().map(|bucket| bucket.number).max();
        for Bucket { number, places } in buckets {
            if places != 0 && Some(number + PARTS) >= newest {
                self.add(number * before.width, places);
            }
        }
    }

    /// The places that are taken at `now`.
    pub fn places(&self, now: Micros) -> i64 {
        let current = now.0 / self.width;
        let buckets = lock(&self.buckets);
        let recent = buckets
            .iter()
            .filter(|bucket| bucket.number + PARTS >= current);
        recent.map(|bucket| bucket.places).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;

    #[test]
    fn replicas_add_up_and_lost_holders_expire() {
        let (one, other) = (
            Gauge::new(Span::from_secs(32)),
            Gauge::new(Span::from_secs(32)),
        );
        let at = |secs: u64| Micros((1_800_000_000 + secs) * SECOND);
        let change = |secs, places| Change {
            age: Span::from_secs(secs),
            places,
        };
        one.record(change(0, 3), true, at(0));
        one.record(change(0, 1), true, at(10));
        assert_eq!(one.places(at(10)), 4);
        other.record(change(5, 1), false, at(15));
        assert_eq!((one.places(at(15)), other.places(at(15))), (4, -1));
        other.record(change(0, 2), true, at(16));
        one.record(change(4, 2), false, at(20));
        assert_eq!(one.places(at(20)) + other.places(at(20)), 3);
        // The three of the beginning are lost.
        assert_eq!(one.places(at(32)) + other.places(at(32)), 3);
        assert_eq!(one.places(at(33)) + other.places(at(33)), 0);
        // The ring comes around, and a release that is too late changes nothing.
        one.record(change(0, 5), true, at(68));
        one.record(change(60, 1), false, at(70));
        one.record(Change::default(), false, at(70));
        assert_eq!(one.places(at(70)), 5);
        assert_eq!(one.places(at(1_000)), 0);
        // A reload: what was counted goes on, also with another max_duration.
        let reloaded = Gauge::new(Span::from_secs(64));
        reloaded.absorb(&one);
        assert_eq!((reloaded.places(at(70)), one.places(at(70))), (5, 0));
    }
}
