//! `fixed_window`: a number of hits in each window; windows are aligned to the clock.
//!
//! As in envoyproxy/ratelimit, hits are counted before the answer: refused hits count too, unless
//! `count_denied` is false. The twins are `lua/fixed_window.lua` and, for limits without options,
//! the plain `INCRBY` of `store/redis/batch.rs`.

use super::definition::Definition;
use super::part::CountedPlaces;
use super::{
    Arrival, Debt, LARGEST_COUNT, OptionError, Part, SCRIPT_PARAMETERS, State, Step, Terms,
};
use crate::core::time::{MAX_SAFE_INTEGER, Micros, Period, Span};
use crate::core::verdict::{Verdict, Wait};

/// A limit per clock-aligned window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FixedWindow {
    /// Hits per window.
    pub limit: u64,
    /// The windows; none is empty.
    pub window: Period,
    /// Refused hits count too.
    pub count_denied: bool,
}

impl FixedWindow {
    /// The number of the window that `now` lies in.
    pub fn number(&self, now: Micros) -> u64 {
        self.window.number_at(now)
    }

    /// The end of window `number`.
    pub fn end(&self, number: u64) -> Micros {
        self.window.end(number)
    }

    /// Hits as they are counted: at most as many as make a difference. Otherwise one request could
    /// overflow a counter.
    pub fn clamp(hits: i64) -> i64 {
        hits.min(LARGEST_COUNT.cast_signed())
    }

    /// The verdict on `hits` that changed the count of window `number` to `after`. A refund is
    /// always allowed. Reports at most [`LARGEST_COUNT`], which Redis may exceed.
    pub fn judge(&self, number: u64, after: u64, now: Micros, hits: i64) -> Verdict {
        let after = after.min(LARGEST_COUNT);
        // The clock may have left the window already; the caller still gets a wait above zero.
        let reset_after = self.end(number).since(now).max(Span::from_micros(1));
        Verdict {
            allowed: hits < 0 || after <= self.limit,
            remaining: self.limit.saturating_sub(after),
            used: after,
            reset_after,
            retry_after: if hits > self.limit.cast_signed() {
                Wait::Never
            } else {
                Wait::For(reset_after)
            },
            delay: Span::ZERO,
        }
    }
}

impl Definition for FixedWindow {
    fn try_new(terms: &Terms<'_>) -> Result<Self, OptionError> {
        Ok(Self {
            limit: terms.limit,
            window: Period::Even(terms.window),
            count_denied: terms.debt.counts(),
        })
    }

    fn step(&self, state: Option<State>, Arrival { now, .. }: Arrival, hits: i64) -> Step {
        let current = self.number(now);
        // A clock that went back by less than a window continues in the stored window; after a
        // larger jump the count starts again.
        let (window, before) = match state {
            Some(State::FixedWindow { window, count })
                if window == current || window == current + 1 =>
            {
                (window, count)
            }
            _ => (current, 0),
        };
        let before = before.min(LARGEST_COUNT);
        let asked = match u64::try_from(Self::clamp(hits)) {
            Ok(taken) => (before + taken).min(LARGEST_COUNT),
            Err(_) => before.saturating_sub(hits.unsigned_abs()),
        };
        let allowed = hits < 0 || asked <= self.limit;
        let after = if allowed || self.count_denied {
            asked
        } else {
            before
        };
        let keep_for = self.end(window).since(now);
        let verdict = Verdict {
            allowed,
            ..self.judge(window, after, now, hits)
        };
        if after == before {
            return Step::unchanged(verdict, state);
        }
        let count = after;
        Step::changed(verdict, State::FixedWindow { window, count }, keep_for)
    }

    fn refund_at(&self, state: Option<State>, _: Arrival, parts: &[Part]) -> (Option<State>, u64) {
        let Some(State::FixedWindow { window, count }) = state else {
            return (state, 0);
        };
        let less = Part::hits_at(parts, window).min(count);
        let count = count - less;
        (Some(State::FixedWindow { window, count }), less)
    }

    fn counted_places(&self, _: Option<&State>, at: Arrival) -> CountedPlaces {
        let number = self.number(at.now);
        CountedPlaces::all(number..=number)
    }

    fn limit(&mut self) -> &mut u64 {
        &mut self.limit
    }

    fn is_exact(&self) -> bool {
        self.limit <= MAX_SAFE_INTEGER
    }

    fn capacity(&self) -> u64 {
        self.limit
    }

    fn debt(&self) -> Debt {
        if self.count_denied {
            Debt::ONE
        } else {
            Debt::NONE
        }
    }

    fn set_debt(&mut self, debt: Debt) {
        self.count_denied = debt.counts();
    }

    /// As in envoyproxy/ratelimit, a window counts all of its hits.
    fn most_debt(&self) -> u64 {
        LARGEST_COUNT - self.limit
    }

    fn window(&self) -> Period {
        self.window
    }

    fn script_parameters(&self) -> [u64; SCRIPT_PARAMETERS - 1] {
        [self.limit, 0, 0, 0, 0]
    }

    /// The window's end and its count.
    fn pack(&self, state: &State) -> Option<(u64, u64)> {
        let &State::FixedWindow { window, count } = state else {
            return None;
        };
        let end = self.end(window);
        // The end of time is no end of a window.
        (end.0 < u64::MAX).then_some((end.0, count))
    }

    fn unpack(&self, micros: u64, number: u64) -> Option<State> {
        Some(State::FixedWindow {
            window: self.number(Micros(micros.saturating_sub(1))),
            count: number,
        })
    }
}
