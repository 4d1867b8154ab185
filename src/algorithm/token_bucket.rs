//! `token_bucket`: a bucket of `burst` tokens that is refilled continuously, with the limit's hits per window. A hit takes a token.
//!
//! In units of which a token has as many as the window has ticks, each tick adds `limit` units: the refill is exact, and nothing is rounded.
//! This is the leaky bucket as a meter, after J. S. Turner, "New Directions in Communications (or Which Way to the Information Age?)", IEEE
//! Communications Magazine, October 1986: it polices and never delays. The twin is `lua/token_bucket.lua`.

use std::num::NonZeroU32;

use super::definition::Definition;
use super::ticks::{self, Clock, Outcome};
use super::{Arrival, Debt, OptionError, Options, SCRIPT_PARAMETERS, State, Step};
use crate::time::{Period, Span, Tick};

/// A rate of refill and a capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TokenBucket {
    /// Tokens per window.
    pub limit: u64,
    /// The capacity in tokens.
    pub burst: u64,
    /// The window.
    pub period: Span,
    /// The window in ticks, rounded up; never zero.
    pub window: u64,
    /// The resolution of its times.
    pub tick: Tick,
    /// Whether a refused hit is taken as debt, and down to how many full buckets below zero.
    pub debt: Debt,
}

impl TokenBucket {
    /// The bucket of these numbers. A bucket that is never refilled holds nothing, so that a limit of 0 refuses everything.
    #[must_use]
    pub fn new(limit: u64, burst: u64, window: Span, debt: Debt) -> Self {
        let burst = if limit == 0 { 0 } else { burst };
        let tick = ticks::finest(window, limit, |_| Self::most_hits(limit, burst, debt));
        Self { limit, burst, period: window, window: tick.ceil(window), tick, debt }
    }

    /// The most that is multiplied by the window.
    fn most_hits(limit: u64, burst: u64, debt: Debt) -> u64 {
        (1 + debt.limits()) * (limit.max(burst) + 1)
    }

    /// The current level in units.
    fn read(&self, state: Option<&State>, now: u64) -> (Clock, i64) {
        let full = self.full();
        if let Some(&State::Tokens { mut last, mut level, tick }) = state {
            if tick != self.tick {
                // Rounded so that no time refills twice, and no part of a token is added.
                let (factor, divisor) = self.tick.ratio(tick);
                last = last.saturating_mul(factor).div_ceil(divisor);
                level = level.saturating_mul(factor.cast_signed()).div_euclid(divisor.cast_signed());
            }
            // A full bucket means the same as no state, whatever the clock does.
            let Some(clock) = Clock::resume(now, last, self.window).filter(|_| level < full) else { return (Clock::fresh(now), full) };
            // The state of a larger bucket may hold more.
            let level = level.clamp(-self.deepest(), full);
            // The refill ends when the bucket is full, so that a long gap cannot overflow the product.
            let refill = self.limit * (clock.now - last).min(self.refill(full - level));
            return (clock, (level + refill.cast_signed()).min(full));
        }
        (Clock::fresh(now), full)
    }

    /// The units of a full bucket.
    fn full(&self) -> i64 {
        (self.burst * self.window).cast_signed()
    }

    /// The units of the deepest debt.
    fn deepest(&self) -> i64 {
        self.full() * self.debt.limits().cast_signed()
    }

    /// The ticks in which so many units are refilled; 0 for none, and at a rate of 0.
    fn refill(&self, parts: i64) -> u64 {
        match (self.limit, u64::try_from(parts)) {
            (0, _) | (_, Err(_)) => 0,
            (limit, Ok(parts)) => parts.div_ceil(limit),
        }
    }
}

impl Definition for TokenBucket {
    fn try_new(limit: u64, window: Span, options: &Options, debt: Debt) -> Result<Self, OptionError> {
        if options.burst == Some(0) {
            return Err(OptionError::new("burst", "'burst' is 0, which refuses every hit", "write 1 or more, or remove 'burst'"));
        }
        Ok(Self::new(limit, options.burst.unwrap_or(limit), window, debt))
    }

    fn step(&self, state: Option<State>, Arrival { now, .. }: Arrival, hits: i64) -> Step {
        let (clock, level) = self.read(state.as_ref(), self.tick.at(now));
        let (full, parts) = (self.full(), self.window.cast_signed());
        let (allowed, after) = if hits > 0 {
            // More than from a full bucket to the bound of its debt makes no difference.
            let cost = hits.min((self.burst + self.most_debt()).cast_signed() + 1) * parts;
            let taken = level - cost;
            let is_allowed = taken >= 0;
            (
                is_allowed,
                if is_allowed {
                    taken
                } else if self.debt.counts() {
                    taken.max(-self.deepest())
                } else {
                    level
                },
            )
        } else {
            // A give-back fills the bucket at most.
            let given = hits.unsigned_abs().min((full - level).unsigned_abs().div_ceil(self.window)).cast_signed();
            (hits < 0 || level >= 0, (level + given * parts).min(full))
        };
        let verdict = Outcome {
            allowed,
            capacity: self.burst,
            used: (full - after).unsigned_abs().div_ceil(self.window),
            reset: self.refill(full - after),
            retry: (self.limit > 0 && hits <= self.burst.cast_signed()).then(|| self.refill(hits.max(0) * parts - after)),
        }
        .verdict(self.tick, clock);
        if after == level {
            return Step { verdict, state, keep_for: None };
        }
        let keep_for = ticks::keep_for(self.tick, &verdict);
        Step { verdict, state: Some(State::Tokens { last: clock.now, level: after, tick: self.tick }), keep_for: Some(keep_for) }
    }

    fn share(self, replicas: NonZeroU32) -> Self {
        Self { limit: self.limit.div_ceil(replicas.get().into()), burst: self.burst.div_ceil(replicas.get().into()), ..self }
    }

    fn with_limit(self, limit: u64) -> Self {
        let burst = if self.burst == self.limit { limit } else { self.burst };
        Self::new(limit, burst, self.period, self.debt)
    }

    fn is_exact(&self) -> bool {
        ticks::is_exact(self.window, self.limit, Self::most_hits(self.limit, self.burst, self.debt))
    }

    fn capacity(&self) -> u64 {
        self.burst
    }

    fn window(&self) -> Period {
        Period::Even(self.period)
    }

    fn tick(&self) -> Tick {
        self.tick
    }

    fn debt(&self) -> Debt {
        self.debt
    }

    fn set_debt(&mut self, debt: Debt) {
        self.debt = debt;
    }

    fn script_parameters(&self) -> [u64; SCRIPT_PARAMETERS] {
        [self.debt.script_parameter(), self.limit, self.window, self.burst, self.tick.exponent().into(), 0]
    }

    fn state_of_row(&self, [expiry, last, level, _]: [f64; 4]) -> Option<State> {
        Some(State::Tokens { last: last as u64, level: level as i64, tick: ticks::tick_of_expiry(expiry) })
    }

    /// The last tick; the level, and in the lowest four bits the tick's exponent.
    fn pack(&self, state: &State) -> Option<(u64, u64)> {
        let &State::Tokens { last, level, tick } = state else { return None };
        let number = level.checked_mul(ticks::EXPONENTS)?.cast_unsigned();
        Some((last.checked_mul(tick.micros())?, number | u64::from(tick.exponent())))
    }

    fn unpack(&self, micros: u64, number: u64) -> Option<State> {
        let tick = Tick::new((number % ticks::EXPONENTS.cast_unsigned()) as u8);
        Some(State::Tokens { last: micros / tick.micros(), level: number.cast_signed().div_euclid(ticks::EXPONENTS), tick })
    }
}
