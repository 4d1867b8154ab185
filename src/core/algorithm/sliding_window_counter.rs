//! `sliding_window_counter`: the hits of the current clock-aligned window, plus the previous
//! window's hits weighted by the part of it that the sliding window still covers.
//!
//! A key has two counters, whatever the limit. The estimate takes the hits of the previous window
//! as evenly spread; its error is how far they were not. The method is the one that Cloudflare
//! describes in "How we built rate limiting capable of scaling to millions of domains" (2017). The
//! twin is `lua/sliding_window_counter.lua`.

use super::definition::Definition;
use super::part::{CountedPlaces, Fading};
use super::ticks::{self, Clock, TickOutcome};
use super::{
    Arrival, Debt, OptionError, Part, SCRIPT_PARAMETERS, State, Step, Terms, debt_in_field,
};
use crate::core::time::{MAX_SAFE_INTEGER, Period, Span, Tick};

/// Bits of each count in a packed state.
const COUNT_BITS: u32 = 30;

/// A limit per sliding window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SlidingWindowCounter {
    /// Hits per window.
    pub limit: u64,
    /// The window.
    pub period: Span,
    /// The window in ticks, rounded up; never zero.
    pub window: u64,
    /// The resolution of its times.
    pub tick: Tick,
    /// Whether a refused hit is taken as debt, and of at most how many full limits.
    pub debt: Debt,
}

/// The two windows at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct WindowPair {
    number: u64,
    /// Ticks since the current one began.
    elapsed: u64,
    current: u64,
    previous: u64,
}

impl SlidingWindowCounter {
    /// The counter of these numbers.
    pub fn new(limit: u64, window: Span, debt: Debt) -> Self {
        let tick = ticks::finest(window, limit, Self::most_hits(limit, debt))
            .unwrap_or_else(|| ticks::split_tick(window));
        Self {
            limit,
            period: window,
            window: tick.ceil(window),
            tick,
            debt,
        }
    }

    /// The most hits that are added, or multiplied by the window: when a limit is lowered, both
    /// windows may be in debt, and so are the hits of the check.
    fn most_hits(limit: u64, debt: Debt) -> u64 {
        3 * (1 + debt.limits()) * (limit + 1)
    }

    /// The most hits that a window counts.
    fn most(&self) -> u64 {
        (1 + self.debt.limits()) * self.limit
    }

    /// The current windows.
    fn read(&self, state: Option<&State>, now: u64) -> (Clock, WindowPair) {
        let (number, elapsed) = (now / self.window, now % self.window);
        let windows = |number, elapsed, current, previous| WindowPair {
            number,
            elapsed,
            current,
            previous,
        };
        let Some(&State::Counter {
            window,
            current,
            previous,
        }) = state
        else {
            return (Clock::fresh(now), windows(number, elapsed, 0, 0));
        };
        // The state of a larger limit may hold more.
        let most = self.most();
        let (current, previous) = (current.min(most), previous.min(most));
        if window == number + 1 && current + previous > 0 {
            // The clock went back: continue at the start of the stored window.
            let start = window * self.window;
            let ahead = windows(window, 0, current, previous);
            return (Clock::ahead(start, now), ahead);
        }
        let (current, previous) = match number.checked_sub(window) {
            Some(0) => (current, previous),
            Some(1) => (0, current),
            _ => (0, 0),
        };
        let windows = windows(number, elapsed, current, previous);
        (Clock::fresh(now), windows)
    }

    /// The hits that count, rounded up.
    fn count(&self, windows: &WindowPair) -> u64 {
        windows.current + windows.previous
            - ticks::product(windows.previous, windows.elapsed, self.window)
    }

    /// Ticks until no more than `most` hits count.
    fn until(&self, windows: &WindowPair, most: u64) -> u64 {
        // The ticks of a window with so many hits that may still be covered, if `most` of them may
        // count.
        let reach = |hits: u64, most: u64| {
            if hits <= most {
                self.window
            } else {
                ticks::product(most, self.window, hits)
            }
        };
        match most.checked_sub(windows.current) {
            Some(rest) => {
                (self.window - reach(windows.previous, rest)).saturating_sub(windows.elapsed)
            }
            // Not within this window, but after it has become the previous one.
            None => 2 * self.window - windows.elapsed - reach(windows.current, most),
        }
    }
}

impl Definition for SlidingWindowCounter {
    fn try_new(terms: &Terms<'_>) -> Result<Self, OptionError> {
        Ok(Self::new(terms.limit, terms.window, terms.debt))
    }

    fn step(&self, state: Option<State>, Arrival { now, .. }: Arrival, hits: i64) -> Step {
        let (clock, before) = self.read(state.as_ref(), self.tick.at(now));
        let (limit, count) = (self.limit, self.count(&before));
        let mut after = before;
        let allowed = match u64::try_from(hits) {
            Ok(0) => count <= limit,
            Ok(taken) => {
                // More than the bound of the debt makes no difference.
                let taken = taken.min(self.most() + 1);
                let allowed = count + taken <= limit;
                if allowed {
                    after.current += taken;
                } else if self.debt.counts() {
                    after.current += taken.min(self.most().saturating_sub(count));
                }
                allowed
            }
            Err(_) => {
                let given = hits.unsigned_abs();
                after.current = before.current.saturating_sub(given);
                after.previous = before
                    .previous
                    .saturating_sub(given.saturating_sub(before.current));
                true
            }
        };
        let verdict = TickOutcome {
            allowed,
            capacity: self.limit,
            used: self.count(&after),
            reset: match after {
                WindowPair { current: 1.., .. } => 2 * self.window - after.elapsed,
                WindowPair { previous: 1.., .. } => self.window - after.elapsed,
                _ => 0,
            },
            retry: limit
                .checked_sub(hits.max(0).unsigned_abs())
                .map(|free| self.until(&after, free)),
        }
        .verdict(self.tick, clock);
        if after == before {
            return Step::unchanged(verdict, state);
        }
        let keep_for = ticks::keep_for(self.tick, &verdict);
        let state = State::Counter {
            window: after.number,
            current: after.current,
            previous: after.previous,
        };
        Step::changed(verdict, state, keep_for)
    }

    fn refund_at(&self, state: Option<State>, at: Arrival, parts: &[Part]) -> (Option<State>, u64) {
        if state.is_none() {
            return (None, 0);
        }
        let windows = self.read(state.as_ref(), self.tick.at(at.now)).1;
        let hits_of = |age| {
            let number = windows.number.checked_sub(age);
            number.map_or(0, |number| Part::hits_at(parts, number))
        };
        let [current, previous] = [(windows.current, 0), (windows.previous, 1)]
            .map(|(count, age)| count.saturating_sub(hits_of(age)));
        let less = windows.current - current + windows.previous - previous;
        if less == 0 {
            return (state, 0);
        }
        let state = State::Counter {
            window: windows.number,
            current,
            previous,
        };
        (Some(state), less)
    }

    fn counted_places(&self, state: Option<&State>, at: Arrival) -> CountedPlaces {
        let windows = self.read(state, self.tick.at(at.now)).1;
        CountedPlaces {
            full: windows.number..=windows.number,
            most: windows.current,
            before: Fading {
                most: windows.previous,
                elapsed: windows.elapsed,
                window: self.window,
            },
        }
    }

    fn limit(&mut self) -> &mut u64 {
        &mut self.limit
    }

    fn set_limit(&mut self, limit: u64) {
        *self = Self::new(limit, self.period, self.debt);
    }

    fn is_exact(&self) -> bool {
        Self::most_hits(self.limit, self.debt) <= MAX_SAFE_INTEGER
    }

    fn capacity(&self) -> u64 {
        self.limit
    }

    fn window(&self) -> Period {
        Period::Even(self.period)
    }

    fn tick(&self) -> Tick {
        self.tick
    }

    debt_in_field!();

    fn script_parameters(&self) -> [u64; SCRIPT_PARAMETERS - 1] {
        [self.limit, self.window, 0, 0, 0]
    }

    fn state_of_row(&self, [_, window, current, previous]: [f64; 4]) -> Option<State> {
        Some(State::Counter {
            window: window as u64,
            current: current as u64,
            previous: previous as u64,
        })
    }

    /// The start of the current window, and both counts in 32 bits each.
    fn pack(&self, state: &State) -> Option<(u64, u64)> {
        let &State::Counter {
            window,
            current,
            previous,
        } = state
        else {
            return None;
        };
        let fits = current.max(previous) < 1 << COUNT_BITS;
        let start = window.checked_mul(self.tick.span(self.window).micros())?;
        fits.then_some((start, current << COUNT_BITS | previous))
    }

    fn unpack(&self, micros: u64, number: u64) -> Option<State> {
        let window = micros / self.tick.span(self.window).micros();
        Some(State::Counter {
            window,
            current: number >> COUNT_BITS,
            previous: number & ((1 << COUNT_BITS) - 1),
        })
    }
}
