//! How many places of a limit are taken, of those that this process has seen taken and given back.
//!
//! A holder may be acquired through one replica and released through another, and a holder that is
//! lost is released by none. So a gauge counts by the time of the acquire: taken places less those
//! given back, in a ring over `max_duration`, which forgets what has expired. The sum over all
//! replicas is the number of holders; that of one replica may be below zero.
//!
//! Acquired less released less expired would stay wrong for good where a key with lost holders is
//! never asked again.

use std::sync::Mutex;

use super::Change;
use crate::core::lock;
use crate::core::time::{Micros, Span};

/// Parts of `max_duration` that are counted apart: a lost holder is counted for a thirty-second
/// longer at most.
const PARTS: u64 = 32;

/// Those of which some are not older than `max_duration`, and the current one.
const BUCKETS: usize = PARTS as usize + 2;

/// The gauge of one limit.
#[derive(Debug)]
pub struct Gauge {
    /// The length of a bucket in microseconds.
    width: u64,
    /// Held for a few instructions. One per limit, whichever the worker: requests of one limit
    /// change the same buckets.
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

    /// Adds places that were taken, or subtracts those that were given back.
    pub fn note(&self, change: Change, is_taken: bool, now: Micros) {
        if change.places == 0 {
            return;
        }
        let places = change.places.cast_signed();
        self.add(
            now.0.saturating_sub(change.age.micros()),
            if is_taken { places } else { -places },
        );
    }

    fn add(&self, since: u64, places: i64) {
        let number = since / self.width;
        let mut buckets = lock(&self.buckets);
        let bucket = &mut buckets[(number % BUCKETS as u64) as usize];
        if bucket.number < number {
            *bucket = Bucket { number, places: 0 };
        }
        // What is older than the ring has expired.
        if bucket.number == number {
            bucket.places += places;
        }
    }

    /// Goes on with what another gauge has counted, which then has counted nothing: that of the
    /// same limit in the rules before.
    pub fn absorb(&self, before: &Self) {
        let buckets = std::mem::replace(&mut *lock(&before.buckets), [Bucket::default(); BUCKETS]);
        let newest = buckets
            .iter()
            .map(|bucket| bucket.number)
            .max()
            .unwrap_or_default();
        for Bucket { number, places } in buckets
            .into_iter()
            .filter(|bucket| bucket.places != 0 && bucket.number + PARTS >= newest)
        {
            self.add(number * before.width, places);
        }
    }

    /// The places that are taken at `now`.
    pub fn places(&self, now: Micros) -> i64 {
        let current = now.0 / self.width;
        let buckets = lock(&self.buckets);
        buckets
            .iter()
            .filter(|bucket| bucket.number + PARTS >= current)
            .map(|bucket| bucket.places)
            .sum()
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
        one.note(change(0, 3), true, at(0));
        one.note(change(0, 1), true, at(10));
        assert_eq!(one.places(at(10)), 4);
        other.note(change(5, 1), false, at(15));
        assert_eq!((one.places(at(15)), other.places(at(15))), (4, -1));
        other.note(change(0, 2), true, at(16));
        one.note(change(4, 2), false, at(20));
        assert_eq!(one.places(at(20)) + other.places(at(20)), 3);
        // The three of the beginning are lost.
        assert_eq!(one.places(at(32)) + other.places(at(32)), 3);
        assert_eq!(one.places(at(33)) + other.places(at(33)), 0);
        // The ring comes around, and a release that is too late changes nothing.
        one.note(change(0, 5), true, at(68));
        one.note(change(60, 1), false, at(70));
        one.note(Change::default(), false, at(70));
        assert_eq!(one.places(at(70)), 5);
        assert_eq!(one.places(at(1_000)), 0);
        // A reload: what was counted goes on, also with another max_duration.
        let reloaded = Gauge::new(Span::from_secs(64));
        reloaded.absorb(&one);
        assert_eq!((reloaded.places(at(70)), one.places(at(70))), (5, 0));
    }
}
