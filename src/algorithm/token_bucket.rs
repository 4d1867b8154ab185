//! `token_bucket`: a bucket of `burst` tokens, refilled continuously with the limit's hits per window.
//!
//! A token is as many parts as the window has ticks, so that each tick brings a whole number of parts and nothing is rounded away. The twin
//! is `lua/token_bucket.lua`.

use super::ticks::{self, Clock, Found};
use super::{State, Step};
use crate::time::{Micros, Span, Tick};

/// A refill and a capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TokenBucket {
    /// Tokens per window.
    pub limit: u32,
    /// Tokens that the bucket holds.
    pub burst: u32,
    /// The window in ticks; never zero.
    pub window: u64,
    /// The grain of its times.
    pub tick: Tick,
    /// A refused hit is taken as debt, of one full bucket at most.
    pub count_denied: bool,
}

impl TokenBucket {
    /// The bucket of these numbers. A bucket that is never refilled holds nothing: 0 per window means that nothing passes.
    #[must_use]
    pub fn new(limit: u32, burst: u32, window: Span, count_denied: bool) -> Self {
        let burst = if limit == 0 { 0 } else { burst };
        let tick = ticks::finest(window, limit, |_| u64::from(limit.max(burst)) + 1);
        Self { limit, burst, window: tick.ceil(window), tick, count_denied }
    }

    /// One check; see [`super::Algorithm::step`].
    #[must_use]
    pub fn step(&self, state: Option<State>, now: Micros, hits: i64) -> Step {
        let (clock, level) = self.read(state.as_ref(), self.tick.at(now));
        let (full, parts) = (self.full(), self.window.cast_signed());
        let (allowed, after) = if hits > 0 {
            let cost = hits.min(i64::from(self.burst) + 1) * parts;
            let taken = level - cost;
            let is_allowed = taken >= 0;
            (
                is_allowed,
                if is_allowed {
                    taken
                } else if self.count_denied {
                    taken.max(-full)
                } else {
                    level
                },
            )
        } else {
            // No more is given back than what is missing.
            let given = hits.unsigned_abs().min((full - level).unsigned_abs().div_ceil(self.window)).cast_signed();
            (hits < 0 || level >= 0, (level + given * parts).min(full))
        };
        let verdict = Found {
            allowed,
            capacity: self.burst,
            used: (full - after).unsigned_abs().div_ceil(self.window),
            reset: self.refill(full - after),
            retry: (self.limit > 0 && hits <= i64::from(self.burst)).then(|| self.refill(hits.max(0) * parts - after)),
        }
        .verdict(self.tick, clock);
        if after == level {
            return Step { verdict, state, keep_for: None };
        }
        let keep_for = ticks::keep_for(self.tick, &verdict);
        Step { verdict, state: Some(State::Tokens { last: clock.now, level: after }), keep_for: Some(keep_for) }
    }

    /// The level as it is now.
    fn read(&self, state: Option<&State>, now: u64) -> (Clock, i64) {
        let full = self.full();
        if let Some(&State::Tokens { last, level }) = state
            && let Some(clock) = Clock::resume(now, last, self.window)
        {
            // Stored under a larger bucket, there may be more.
            let level = level.clamp(-full, full);
            // The refill ends when the bucket is full, so that no gap is too long to be multiplied.
            let refill = u64::from(self.limit) * (clock.now - last).min(self.refill(full - level));
            return (clock, (level + refill.cast_signed()).min(full));
        }
        (Clock::fresh(now), full)
    }

    /// The parts of a full bucket.
    fn full(&self) -> i64 {
        (u64::from(self.burst) * self.window).cast_signed()
    }

    /// Ticks until so many parts are refilled; 0 if none are, or never will be.
    fn refill(&self, parts: i64) -> u64 {
        match (self.limit, u64::try_from(parts)) {
            (0, _) | (_, Err(_)) => 0,
            (limit, Ok(parts)) => parts.div_ceil(u64::from(limit)),
        }
    }
}
