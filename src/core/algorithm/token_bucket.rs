//! `token_bucket`: a bucket of `burst` tokens that is refilled continuously, with the limit's hits
//! per window. A hit takes a token.
//!
//! In units of which a token has as many as the window has ticks, each tick adds `limit` units: the
//! refill is exact, and nothing is rounded. Where these numbers are too large, a token has fewer
//! units, and they come by the clock (see `ticks.rs`). This is the leaky bucket as a meter, after
//! J. S. Turner, "New Directions in Communications (or Which Way to the Information Age?)", IEEE
//! Communications Magazine, October 1986: it polices and never delays. The twin is
//! `lua/token_bucket.lua`.

use std::num::NonZeroU32;

use super::definition::Definition;
use super::ticks::{Clock, Flow, TickOutcome, Units};
use super::{
    Arrival, Debt, OptionError, Part, Peaks, SCRIPT_PARAMETERS, State, Step, Terms, debt_in_field,
    messages,
};
use crate::core::time::{Period, Span, Tick};

/// A rate of refill and a capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TokenBucket {
    /// The refill: tokens per window, in the units that a level is counted in.
    pub flow: Flow,
    /// The capacity in tokens.
    pub burst: u64,
    /// The resolution of its times.
    pub tick: Tick,
    /// Whether a refused hit is taken as debt, and down to how many full buckets below zero.
    pub debt: Debt,
}

impl TokenBucket {
    /// The bucket of these numbers. A bucket that is never refilled holds nothing: a limit of 0
    /// refuses everything.
    pub fn new(limit: u64, burst: u64, window: Span, debt: Debt) -> Self {
        let burst = if limit == 0 { 0 } else { burst };
        let at = |units: Units| Self {
            flow: Flow::new(limit, window, units),
            burst,
            tick: units.tick(window),
            debt,
        };
        at(Units::choose(|units| at(units).is_exact()))
    }

    /// The current level in units, of a bucket that is full with so many.
    #[inline]
    fn read(&self, state: Option<&State>, now: u64, full: i64) -> (Clock, i64) {
        if let Some(&State::Tokens {
            mut last,
            mut level,
            units,
        }) = state
        {
            if units != self.flow.units {
                // The rounding neither refills for a time twice nor adds a part of a token.
                let amount = |factor: u64, divisor: u64| {
                    level
                        .div_euclid(divisor.cast_signed())
                        .saturating_mul(factor.cast_signed())
                };
                (last, level) = self
                    .flow
                    .units
                    .convert(units, self.flow.period, last, amount);
            }
            // A full bucket means the same as no state, whatever the clock does.
            let Some(clock) = Clock::resume(now, last, self.flow.window).filter(|_| level < full)
            else {
                return (Clock::fresh(now), full);
            };
            // The state of a larger bucket may hold more.
            let level = level.clamp(-self.deepest(full), full);
            let refill = self
                .flow
                .between(last.min(clock.now), clock.now)
                .min((full - level).unsigned_abs());
            return (clock, level + refill.cast_signed());
        }
        (Clock::fresh(now), full)
    }

    /// The units of a full bucket.
    fn full(&self) -> i64 {
        (self.burst * self.flow.per_hit()).cast_signed()
    }

    /// The level of a state in units.
    pub(super) fn level(&self, state: Option<&State>, at: Arrival) -> i64 {
        self.read(state, self.tick.at(at.now), self.full()).1
    }

    /// Gives back the hits of holds that were made at these places: at most what the bucket would
    /// have without the holds.
    pub(super) fn refund_held(
        &self,
        state: Option<State>,
        at: Arrival,
        parts: &[Part],
        peaks: &mut Peaks,
    ) -> (Option<State>, u64) {
        let (full, per_hit) = (self.full(), self.flow.per_hit());
        let (clock, before) = self.read(state.as_ref(), self.tick.at(at.now), full);
        let units = |part: &Part| (part.place, self.units(part.hits));
        let given = peaks.refund_at(parts.iter().map(units), before, full);
        if given == 0 {
            return (state, 0);
        }
        let state = State::Tokens {
            last: clock.now,
            level: before + given,
            units: self.flow.units,
        };
        (Some(state), given.unsigned_abs() / per_hit)
    }

    /// The units that hits of a hold have taken.
    fn units(&self, hits: u64) -> i64 {
        let hits = hits.min(self.burst + self.most_debt());
        (hits * self.flow.per_hit()).cast_signed()
    }

    /// The units that a refund of a hold's hits would add, if this was the highest level since they
    /// were taken.
    pub(super) fn refundable(&self, hits: u64, highest: i64) -> i64 {
        let missing = self.full().saturating_sub(highest);
        self.units(hits).min(missing).max(0)
    }

    /// The hits that a level counts, rounded up, and that a level of so many more units does not.
    /// That may be above a full bucket, where holds end of which peaks are unknown.
    pub(super) fn uncounted(&self, level: i64, units: i64) -> u64 {
        let per_hit = self.flow.per_hit().cast_signed();
        let used = |level: i64| -level.saturating_sub(self.full()).div_euclid(per_hit);
        let more = level.saturating_add(units);
        used(level).saturating_sub(used(more)).unsigned_abs()
    }

    /// The units of the deepest debt of a bucket that is full with so many.
    #[inline]
    fn deepest(&self, full: i64) -> i64 {
        full * self.debt.limits().cast_signed()
    }

    /// The ticks from `now` on in which so many units are refilled; 0 for none, and at a rate of 0.
    #[inline]
    fn refill(&self, now: u64, parts: i64) -> u64 {
        match (self.flow.limit, u64::try_from(parts)) {
            (0, _) | (_, Err(_)) => 0,
            (_, Ok(parts)) => self.flow.ticks(now, parts),
        }
    }
}

impl Definition for TokenBucket {
    fn try_new(terms: &Terms<'_>) -> Result<Self, OptionError> {
        if terms.options.burst == Some(0) {
            return Err(messages::burst_is_zero().of("burst"));
        }
        let burst = terms.options.burst.unwrap_or(terms.limit);
        Ok(Self::new(terms.limit, burst, terms.window, terms.debt))
    }

    fn step(&self, state: Option<State>, Arrival { now, .. }: Arrival, hits: i64) -> Step {
        let per_hit = self.flow.per_hit();
        let (full, parts) = (self.full(), per_hit.cast_signed());
        let (clock, level) = self.read(state.as_ref(), self.tick.at(now), full);
        let (allowed, after) = if hits > 0 {
            // More than from a full bucket to the bound of its debt makes no difference.
            let cost = hits.min((self.burst + self.most_debt()).cast_signed() + 1) * parts;
            let taken = level - cost;
            let is_allowed = taken >= 0;
            let after = match (is_allowed, self.debt.counts()) {
                (true, _) => taken,
                (false, true) => taken.max(-self.deepest(full)),
                (false, false) => level,
            };
            (is_allowed, after)
        } else {
            // A refund cannot fill the bucket beyond its capacity.
            let given = hits
                .unsigned_abs()
                .min((full - level).unsigned_abs().div_ceil(per_hit))
                .cast_signed();
            (hits < 0 || level >= 0, (level + given * parts).min(full))
        };
        let outcome = TickOutcome {
            allowed,
            capacity: self.burst,
            used: (full - after).unsigned_abs().div_ceil(per_hit),
            reset: self.refill(clock.now, full - after),
            retry: (self.flow.limit > 0 && hits <= self.burst.cast_signed())
                .then(|| self.refill(clock.now, hits.max(0) * parts - after)),
        };
        let verdict = outcome.verdict(self.tick, clock);
        if after == level {
            return Step::unchanged(verdict, state);
        }
        let lacking = (full - after).unsigned_abs();
        let keep_ticks = clock.wait(self.flow.keep(lacking, outcome.reset)).max(1);
        let state = State::Tokens {
            last: clock.now,
            level: after,
            units: self.flow.units,
        };
        Step::changed(verdict, state, self.tick.span(keep_ticks))
    }

    fn limit(&mut self) -> &mut u64 {
        &mut self.flow.limit
    }

    fn share(&mut self, replicas: NonZeroU32) {
        for amount in [&mut self.flow.limit, &mut self.burst] {
            *amount = amount.div_ceil(replicas.get().into());
        }
    }

    fn set_limit(&mut self, limit: u64) {
        let burst = if self.burst == self.flow.limit {
            limit
        } else {
            self.burst
        };
        *self = Self::new(limit, burst, self.flow.period, self.debt);
    }

    fn is_exact(&self) -> bool {
        let most = self.flow.limit.max(self.burst) + 1;
        self.flow.is_exact((1 + self.debt.limits()) * most)
    }

    fn capacity(&self) -> u64 {
        self.burst
    }

    fn window(&self) -> Period {
        Period::Even(self.flow.period)
    }

    fn tick(&self) -> Tick {
        self.tick
    }

    debt_in_field!();

    fn script_parameters(&self) -> [u64; SCRIPT_PARAMETERS - 1] {
        [
            self.flow.limit,
            self.flow.window,
            self.burst,
            self.flow.units.code().into(),
            self.flow.per_hit(),
        ]
    }

    fn state_of_row(&self, [expiry, last, level, _]: [f64; 4]) -> Option<State> {
        Some(State::Tokens {
            last: last as u64,
            level: level as i64,
            units: Units::of_expiry(expiry),
        })
    }

    /// The last tick; the level, and in the lowest four bits the code of its units.
    fn pack(&self, state: &State) -> Option<(u64, u64)> {
        let &State::Tokens { last, level, units } = state else {
            return None;
        };
        let number = level
            .checked_mul(Units::CODES.cast_signed())?
            .cast_unsigned();
        Some((
            last.checked_mul(units.tick(self.flow.period).micros())?,
            number | u64::from(units.code()),
        ))
    }

    fn unpack(&self, micros: u64, number: u64) -> Option<State> {
        let units = Units::new((number % Units::CODES) as u8);
        let last = micros / units.tick(self.flow.period).micros();
        Some(State::Tokens {
            last,
            level: number.cast_signed().div_euclid(Units::CODES.cast_signed()),
            units,
        })
    }
}
