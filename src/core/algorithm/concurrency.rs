//! `concurrency`: how many requests may be in flight at a time.
//!
//! A request takes a place when it begins and releases it when it ends. A key holds a set of
//! holders: the request (the digest of its id), the time of its acquire, and how many places it
//! holds (the hits). A holder whose request never ends loses its place after `max_duration`.
//!
//! - Acquire (hits above 0): allowed if that many places are free. A second acquire with the id of
//!   a holder takes only hits beyond the places that the holder has, and does not make its time
//!   longer.
//! - Release (hits below 0): removes the holder, however many places it has. An id that holds none
//!   frees nothing. If it has no mark either, the release has overtaken its acquire. The acquire
//!   then takes nothing when it comes, because its request has ended.
//! - Peek (0 hits): allowed if a place is free, or if the id needs none.
//! - [`TAKE_BACK`]: undoes an acquire whose answer did not reach the caller. The acquire becomes a
//!   refused one, unless the caller has retried it since: then the retry has the place.
//!
//! The twin is `lua/concurrency.lua`.
//!
//! A holder has the time of its acquire and not of its end. So `max_duration` is not part of the
//! key: after a change the requests in flight still count, and the new value applies to them.
//!
//! A refused id gets a mark, and so does one that was released or taken back. Otherwise its
//! release, or a second one, would look like a release that overtook its acquire. If the client
//! then sent the id again, it would pass without a place. An acquire that was overtaken is not
//! refused: the request is over, and any answer will do. When there are too many marks, the oldest
//! is dropped: in a flood of requests, the marks of the last tenths of a second remain.
//!
//! In Redis the holders are a sorted set. A check costs the same few commands with one holder and
//! with thousands, and expired holders are dropped by range. Measured one check at a time, Redis
//! needs 1.0 times (1 holder) and 1.05 times (1,000 holders) the time of a check of a log. A packed
//! text per key would have to be read, searched and replicated as a whole.

mod holders;

pub use self::holders::{Holder, Holders};
use self::holders::{Mark, NUMBERS};
use super::definition::Definition;
use super::places::{Change, RequestId};
use super::{Arrival, Debt, OptionError, SCRIPT_PARAMETERS, State, Step, Terms, messages};
use crate::core::time::{Micros, Period, Span, Tick};
use crate::core::verdict::{Verdict, Wait};

/// The largest limit: a key may have a holder for each place, of some hundred bytes in Redis and in
/// memory, and all of them may have to be dropped in one step.
pub const LARGEST_LIMIT: u64 = 10_000;

/// The longest `max_duration`: a day. A lost request keeps its place for this time.
pub const LONGEST_DURATION: Span = Span::from_secs(86_400);

/// Lifetime of a mark (an id without places): longer than any caller waits for its acquire.
pub const MARK_LIFE: Span = Span::from_secs(2);

/// Maximum number of marks of a key; then a new one replaces the oldest. Each request leaves one,
/// about a hundred bytes.
pub const MOST_MARKS: usize = 1_024;

/// The hits that undo an acquire whose answer was not delivered. No request can have them, because
/// the decoder clamps negative hits to one more.
pub const TAKE_BACK: i64 = i64::MIN;

/// `retry_after`: the end of the requests in flight is unknown.
const RETRY: Span = Span::from_secs(1);

/// A limit of requests in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Concurrency {
    /// Maximum number of taken places.
    pub limit: u64,
    /// Number of ticks after which a holder has lost its place; never zero.
    pub max_duration: u64,
}

impl Concurrency {
    /// The limit of these numbers, which the caller has checked.
    pub fn new(limit: u64, max_duration: Span) -> Self {
        Self {
            limit,
            max_duration: max_duration.micros().max(1),
        }
    }

    fn verdict(&self, allowed: bool, used: u64, hits: i64) -> Verdict {
        Verdict {
            allowed,
            remaining: self.limit.saturating_sub(used),
            used,
            // The end of the requests in flight is unknown.
            reset_after: Span::ZERO,
            retry_after: match allowed {
                true => Wait::For(Span::ZERO),
                false if hits.max(1).unsigned_abs() > self.limit => Wait::Never,
                false => Wait::For(RETRY),
            },
            delay: Span::ZERO,
        }
    }

    /// The time for which a changed state is kept. It is twice `max_duration`, because after a
    /// clock went back, a holder may be ahead of it by `max_duration`.
    fn keep_for(&self, used: u64) -> Span {
        let held = if used > 0 { self.max_duration } else { 0 };
        Span::from_micros(2 * held.max(MARK_LIFE.micros()))
    }

    /// Decides hits of the request with this id. Also returns the places that it took or released.
    pub fn step_by(
        &self,
        id: RequestId,
        state: Option<State>,
        now: Micros,
        hits: i64,
    ) -> (Step, Change) {
        let now = Tick::FINEST.at(now);
        let known = if let Some(State::Holders(holders)) = &state {
            Some(&**holders)
        } else {
            None
        };
        let used = known.map_or(0, |holders| holders.used(now, self.max_duration));
        let own = known.and_then(|holders| holders.find(id, now, self.max_duration));
        let mark = known.and_then(|holders| holders.mark(id, now));
        let places = own.map_or(0, |own| own.places);
        let asked = hits.max(0).unsigned_abs();
        let added = asked.saturating_sub(places);
        let is_released = matches!(mark, Some((Mark::Early | Mark::Overtaken, _)));
        // The request has ended, and needs no free place.
        let others = if is_released { 0 } else { used };
        let allowed = match hits {
            0 => places > 0 || others < self.limit,
            1.. => added == 0 || others.saturating_add(added) <= self.limit,
            _ => true,
        };
        let next = match (own, mark) {
            _ if hits == 0 => None,
            (Some(own), _) if hits == TAKE_BACK && own.number() > 0 => {
                Some(own.with_number(own.number() - 1))
            }
            (Some(_), _) if hits < 0 => Some(Holder::mark(Mark::Over, now)),
            (Some(own), _) if allowed => Some(Holder {
                places: places + added,
                ..own.with_number((own.number() + 1).min(NUMBERS - 1))
            }),
            (Some(_), _) => None,
            (None, Some((Mark::Early, _))) if hits < 0 && hits != TAKE_BACK => {
                Some(Holder::mark(Mark::Early, now))
            }
            (None, Some((Mark::Early, early))) if allowed && hits > 0 => {
                Some(early.with_number(Mark::Overtaken as u64))
            }
            (None, Some((Mark::Overtaken, _))) if hits < 0 => Some(Holder::mark(Mark::Over, now)),
            (None, Some((Mark::Early | Mark::Overtaken, _))) => None,
            (None, Some((Mark::Over, _))) if hits < 0 => None,
            (None, None) if hits < 0 && hits != TAKE_BACK => Some(Holder::mark(Mark::Early, now)),
            (None, _) if hits > 0 && allowed => Some(Holder::new(now, added)),
            (None, _) => Some(Holder::mark(Mark::Over, now)),
        };
        let Some(next) = next else {
            let verdict = self.verdict(allowed, used, hits);
            return (Step::unchanged(verdict, state), Change::default());
        };
        let moved = places.abs_diff(next.places);
        let since = own.filter(|_| moved > 0).map_or(now, Holder::since);
        let change = Change {
            age: Span::from_micros(now.saturating_sub(since)),
            places: moved,
        };
        let used = used - places + next.places;
        let state = self.changed(state, id, next, now);
        let (verdict, keep_for) = (self.verdict(allowed, used, hits), self.keep_for(used));
        (Step::changed(verdict, state, keep_for), change)
    }

    /// The state after an acquire of a request that is refused as a whole: its id gets a mark, like
    /// the id of any refused request. `None` if the id has a mark or a place already.
    pub fn note_refused(
        &self,
        id: RequestId,
        state: Option<State>,
        now: Micros,
    ) -> Option<(State, Span)> {
        let now = Tick::FINEST.at(now);
        let mut used = 0;
        if let Some(State::Holders(holders)) = &state {
            used = holders.used(now, self.max_duration);
            if holders.find(id, now, self.max_duration).is_some() || holders.mark(id, now).is_some()
            {
                return None;
            }
        }
        let state = self.changed(state, id, Holder::mark(Mark::Over, now), now);
        Some((state, self.keep_for(used)))
    }

    fn changed(&self, state: Option<State>, id: RequestId, next: Holder, now: u64) -> State {
        let mut holders = match state {
            Some(State::Holders(holders)) => holders,
            _ => Box::default(),
        };
        holders.drop_expired(now, self.max_duration);
        holders.set(id, next);
        State::Holders(holders)
    }
}

impl Definition for Concurrency {
    fn try_new(terms: &Terms<'_>) -> Result<Self, OptionError> {
        let Some(max_duration) = terms.options.max_duration else {
            return Err(messages::max_duration_missing().of("max_duration"));
        };
        if max_duration == Span::ZERO || max_duration > LONGEST_DURATION {
            return Err(messages::max_duration_out_of_range().of("max_duration"));
        }
        Ok(Self::new(terms.limit, max_duration))
    }

    /// Steps a request without an id.
    fn step(&self, state: Option<State>, at: Arrival, hits: i64) -> Step {
        self.step_by(RequestId::default(), state, at.now, hits).0
    }

    fn limit(&mut self) -> &mut u64 {
        &mut self.limit
    }

    fn is_exact(&self) -> bool {
        self.limit <= LARGEST_LIMIT
    }

    fn capacity(&self) -> u64 {
        self.limit
    }

    /// A holder may have more places than the limit has now, and may then request as many again.
    fn largest_charge(&self) -> u64 {
        LARGEST_LIMIT + 1
    }

    /// All places of a request are released together: -1, or -2 for [`TAKE_BACK`].
    fn script_hits(&self, hits: i64) -> i64 {
        match hits {
            ..0 => -1 - i64::from(hits == TAKE_BACK),
            _ => hits.min(self.largest_charge().cast_signed()),
        }
    }

    fn window(&self) -> Period {
        Period::Even(Span::from_micros(self.max_duration))
    }

    fn debt(&self) -> Debt {
        Debt::NONE
    }

    fn set_debt(&mut self, _debt: Debt) {}

    fn script_parameters(&self) -> [u64; SCRIPT_PARAMETERS - 1] {
        [
            self.limit,
            self.max_duration,
            MARK_LIFE.micros(),
            MOST_MARKS as u64,
            RETRY.micros(),
        ]
    }
}

#[cfg(test)]
mod tests;
