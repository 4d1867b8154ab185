//! `concurrency`: how many requests may be in flight at a time.
//!
//! A request takes a place when it begins and gives it back when it ends. A key holds a set of
//! holders: the request (the digest of its id), the time of its acquire, and how many places it
//! holds (the hits). A holder whose request never ends loses its place after `max_duration`.
//!
//! - Acquire (hits above 0): allowed if that many places are free. A second acquire with the id of
//!   a holder takes only what it asks beyond the places that the holder has, and does not make its
//!   time longer.
//! - Release (hits below 0): removes the holder, however many places it has. An id that holds none
//!   frees nothing, and leaves a tombstone: an acquire that comes later, because the release
//!   overtook it, takes none, and needs no free place.
//! - Look (0 hits): allowed if a place is free, or if the id needs none.
//!
//! The twin is `lua/concurrency.lua`.
//!
//! A holder has the time of its acquire and not of its end, so that `max_duration` is no part of
//! the key: a changed one keeps the requests in flight, and holds for them.
//!
//! A tombstone does not refuse its acquire: the request is over, so that any answer will do, and a
//! client that repeats an id that was refused is answered as any other. When there are too many,
//! the oldest goes: under a flood of refusals the last tenths of a second are still remembered.
//!
//! In Redis the holders are a sorted set. A check costs the same few commands with one holder and
//! with thousands, and what has expired is dropped by range: with 1 holder and with 1,000, one at a
//! time, it took Redis 1.0 and 1.05 times as long as a check of a log. A packed text per key would
//! be read, searched and replicated whole.

mod gauge;
mod holders;

use std::hash::{Hash, Hasher};
use std::num::NonZeroU32;

pub use self::gauge::Gauge;
pub use self::holders::{Holder, Holders};
use super::definition::Definition;
use super::{Algorithm, Arrival, Debt, OptionError, Options, SCRIPT_PARAMETERS, State, Step};
use crate::core::digest::sha256;
use crate::core::time::{Period, Span, Tick};
use crate::core::verdict::{Verdict, Wait};

/// The largest limit: a key may have a holder for each place, of some hundred bytes in Redis and in
/// memory, and all of them may have to be dropped in one step.
pub const LARGEST_LIMIT: u64 = 10_000;

/// The longest `max_duration`: a day. A place of a request that was lost is taken for as long.
pub const LONGEST_DURATION: Span = Span::from_secs(86_400);

/// How long a release with an unknown id is remembered: longer than any caller waits for its
/// acquire.
pub const TOMBSTONE_LIFE: Span = Span::from_secs(2);

/// Tombstones of a key at most; then a new one replaces the oldest. Refused requests leave one
/// each. As many as a request has descriptors.
pub const MOST_TOMBSTONES: usize = 256;

/// `retry_after`: when a request ends is not known.
const RETRY: Span = Span::from_secs(1);

/// A limit of requests in flight.
#[derive(Clone, Copy, Debug)]
pub struct Concurrency {
    /// Places.
    pub limit: u64,
    /// After so many ticks a holder has lost its place; never zero.
    pub max_duration: u64,
    /// The id of the request that asks. No number of the limit: two checks of one limit are checks
    /// of equal algorithms.
    pub holder: HolderId,
}

impl PartialEq for Concurrency {
    fn eq(&self, other: &Self) -> bool {
        (self.limit, self.max_duration) == (other.limit, other.max_duration)
    }
}

impl Eq for Concurrency {}

impl Hash for Concurrency {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.limit, self.max_duration).hash(state);
    }
}

/// The digest of a request's id, so that a holder has one size whatever a client sends: half of a
/// SHA-256, equal in all replicas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct HolderId(pub [u8; Self::BYTES]);

impl HolderId {
    /// Bytes of a digest.
    pub const BYTES: usize = 16;

    /// The digest of an id. An empty one is an id like any other.
    #[must_use]
    pub fn of(id: &[u8]) -> Self {
        let digest = sha256(id);
        let (half, _) = digest
            .split_first_chunk()
            .expect("a digest of 32 bytes has 16");
        Self(*half)
    }
}

/// How many places a step took or gave back, and for how long their holder has had the first of
/// them. For the gauge of holders.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// The time since the holder acquired its place; zero for a new one.
    pub age: Span,
    /// How many places.
    pub places: u64,
}

impl Change {
    /// More than the places of any limit.
    const RADIX: u64 = 1 << 14;

    /// The change that a verdict of a store carries in place of a time until the reset, which a
    /// limit of requests in flight does not have.
    #[must_use]
    pub fn take(verdict: &mut Verdict) -> Self {
        let packed = std::mem::take(&mut verdict.reset_after).micros();
        Self {
            age: Span::from_micros(packed / Self::RADIX),
            places: packed % Self::RADIX,
        }
    }

    fn packed(self) -> Span {
        Span::from_micros(self.age.micros() * Self::RADIX + self.places)
    }
}

impl Algorithm {
    /// The same limit, asked by the request with this id: a limit of requests in flight has to know
    /// it.
    #[inline]
    #[must_use]
    pub fn asked_by(mut self, id: &[u8]) -> Self {
        if let Self::Concurrency(concurrency) = &mut self {
            concurrency.holder = HolderId::of(id);
        }
        self
    }
}

impl Concurrency {
    /// The limit of these numbers, which the caller has checked.
    #[must_use]
    pub fn new(limit: u64, max_duration: Span) -> Self {
        Self {
            limit,
            max_duration: max_duration.micros(),
            holder: HolderId::default(),
        }
    }

    fn verdict(&self, allowed: bool, used: u64, hits: i64, change: Change) -> Verdict {
        Verdict {
            allowed,
            remaining: self.limit.saturating_sub(used),
            used,
            reset_after: change.packed(),
            retry_after: match allowed {
                true => Wait::For(Span::ZERO),
                false if hits.max(1).unsigned_abs() > self.limit => Wait::Never,
                false => Wait::For(RETRY),
            },
            delay: Span::ZERO,
        }
    }

    /// How long a changed state is kept. After a clock went back, a holder may be ahead of it by
    /// `max_duration`.
    fn keep_for(&self, holders: &Holders) -> Span {
        if holders.is_empty() {
            return Tick::FINEST.span(1);
        }
        Span::from_micros(2 * self.max_duration.max(TOMBSTONE_LIFE.micros()))
    }
}

impl Definition for Concurrency {
    fn try_new(
        limit: u64,
        _window: Span,
        options: &Options,
        _debt: Debt,
    ) -> Result<Self, OptionError> {
        let Some(max_duration) = options.max_duration else {
            let what = "a concurrency limit has no 'max_duration', after which a request that was \
                lost gives its place back";
            return Err(OptionError::new(
                "max_duration",
                what,
                "write the time that the longest request takes, such as 'max_duration: 60s'",
            ));
        };
        if max_duration == Span::ZERO || max_duration > LONGEST_DURATION {
            let what = "'max_duration' is zero or longer than 24 hours";
            return Err(OptionError::new(
                "max_duration",
                what,
                "write the time that the longest request takes, such as 60s",
            ));
        }
        Ok(Self::new(limit, max_duration))
    }

    fn step(&self, state: Option<State>, Arrival { now, .. }: Arrival, hits: i64) -> Step {
        let (now, id) = (Tick::FINEST.at(now), self.holder);
        let known = if let Some(State::Holders(holders)) = &state {
            Some(&**holders)
        } else {
            None
        };
        let used = known.map_or(0, |holders| holders.used(now, self.max_duration));
        let own = known.and_then(|holders| holders.find(id, now, self.max_duration));
        let places = own.map_or(0, |own| own.places);
        let asked = hits.max(0).unsigned_abs();
        let added = asked.saturating_sub(places);
        let is_released = hits >= 0 && known.is_some_and(|holders| holders.is_released(id, now));
        let others = if is_released { 0 } else { used };
        let allowed = match hits {
            0 => places > 0 || others < self.limit,
            1.. => added == 0 || others.saturating_add(added) <= self.limit,
            _ => true,
        };
        let is_taken = hits > 0 && allowed && added > 0 && !is_released;
        if !is_taken && hits >= 0 {
            return Step {
                verdict: self.verdict(allowed, used, hits, Change::default()),
                state,
                keep_for: None,
            };
        }
        let mut holders = match state {
            Some(State::Holders(holders)) => holders,
            _ => Box::default(),
        };
        holders.drop_expired(now, self.max_duration);
        let since = own.map_or(now, |own| own.since);
        let age = Span::from_micros(now.saturating_sub(since));
        let (used, places) = if is_taken {
            holders.insert(
                id,
                Holder {
                    since,
                    places: places + added,
                },
            );
            (used + added, added)
        } else {
            if own.is_some() {
                holders.remove(id);
            } else {
                holders.bury(id, now);
            }
            (used - places, places)
        };
        let change = Change {
            age: if places > 0 { age } else { Span::ZERO },
            places,
        };
        let (verdict, keep_for) = (
            self.verdict(true, used, hits, change),
            self.keep_for(&holders),
        );
        Step {
            verdict,
            state: Some(State::Holders(holders)),
            keep_for: Some(keep_for),
        }
    }

    fn share(self, replicas: NonZeroU32) -> Self {
        Self {
            limit: self.limit.div_ceil(replicas.get().into()),
            ..self
        }
    }

    fn with_limit(self, limit: u64) -> Self {
        Self { limit, ..self }
    }

    fn is_exact(&self) -> bool {
        self.limit <= LARGEST_LIMIT
    }

    fn capacity(&self) -> u64 {
        self.limit
    }

    /// A holder may have more places than the limit has now, and then asks for as many again.
    fn largest_charge(&self) -> u64 {
        LARGEST_LIMIT + 1
    }

    fn window(&self) -> Period {
        Period::Even(Span::from_micros(self.max_duration))
    }

    fn tick(&self) -> Tick {
        Tick::FINEST
    }

    fn debt(&self) -> Debt {
        Debt::NONE
    }

    fn set_debt(&mut self, _debt: Debt) {}

    fn script_parameters(&self) -> [u64; SCRIPT_PARAMETERS] {
        [
            self.debt().script_parameter(),
            self.limit,
            self.max_duration,
            TOMBSTONE_LIFE.micros(),
            MOST_TOMBSTONES as u64,
            RETRY.micros(),
        ]
    }
}

#[cfg(test)]
mod tests;
