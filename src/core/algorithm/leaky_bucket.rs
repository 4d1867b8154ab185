//! `leaky_bucket`: a shaper. Hits leave a queue evenly spaced, `limit` per window. A hit that would
//! wait longer than `max_delay`, or longer than its caller can be held, is refused.
//!
//! The backlog has to drain before the next hit may leave. It is in units of which a hit has as
//! many as the window has ticks; each tick drains `limit` units; fewer where these numbers are too
//! large (see `ticks.rs`). The verdict only has the length of the delay; the service holds the
//! request. This is the leaky bucket as a queue, and with `max_delay` as the tolerance it accepts
//! what the continuous-state leaky bucket of ITU-T Recommendation I.371 (the generic cell rate
//! algorithm) does, but delays hits to their slots. The twin is `lua/leaky_bucket.lua`.

use super::definition::Definition;
use super::ticks::{Clock, Flow, TickOutcome, Units};
use super::{
    Arrival, Debt, OptionError, SCRIPT_PARAMETERS, State, Step, Terms, debt_in_field, messages,
};
use crate::core::time::{LONGEST_WINDOW, Period, Span, Tick};
use crate::core::verdict::Verdict;

/// A rate and the longest delay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LeakyBucket {
    /// The drain: hits per window, in the units that a backlog is counted in.
    pub flow: Flow,
    /// The longest delay in ticks; 0: hits are spaced strictly, and none waits.
    pub max_delay: u64,
    /// The resolution of its times.
    pub tick: Tick,
    /// Whether a refused hit takes a slot too, and by how many full limits the queue may then
    /// exceed its allowed length.
    pub debt: Debt,
}

impl LeakyBucket {
    /// The queue of these numbers. At most 2^32 - 1 hits wait, or one full limit if that is more,
    /// however long `max_delay` is.
    pub fn new(limit: u64, max_delay: Span, window: Span, debt: Debt) -> Self {
        let at = |units: Units| {
            let (tick, flow) = (units.tick(window), Flow::new(limit, window, units));
            let most_waiting = limit.max(u32::MAX.into()) - 1;
            let longest = (u128::from(most_waiting) * u128::from(flow.window))
                .checked_div(u128::from(limit))
                .unwrap_or(0);
            let max_delay = tick
                .floor(max_delay)
                .min(u64::try_from(longest).unwrap_or(u64::MAX));
            Self {
                flow,
                max_delay,
                tick,
                debt,
            }
        };
        at(Units::choose(|units| at(units).is_exact()))
    }

    /// The most hits that are counted in units.
    fn most_hits(&self) -> u64 {
        self.capacity()
            .saturating_add(self.debt.limits() * self.flow.limit)
            .saturating_add(2)
            .saturating_mul(2)
    }

    /// The current backlog in units.
    fn read(&self, state: Option<&State>, now: u64) -> (Clock, u64) {
        if let Some(&State::Queue {
            mut last,
            mut backlog,
            units,
        }) = state
        {
            if units != self.flow.units {
                // The rounding neither drains for a time twice nor loses a part of a hit.
                let amount =
                    |factor: u64, divisor: u64| backlog.div_ceil(divisor).saturating_mul(factor);
                (last, backlog) = self
                    .flow
                    .units
                    .convert(units, self.flow.period, last, amount);
            }
            // An empty queue means the same as no state, whatever the clock does.
            let Some(clock) = Clock::resume(now, last, self.flow.window).filter(|_| backlog > 0)
            else {
                return (Clock::fresh(now), 0);
            };
            let leaked = self.flow.between(last.min(clock.now), clock.now);
            return (clock, backlog.min(self.longest()).saturating_sub(leaked));
        }
        (Clock::fresh(now), 0)
    }

    /// The longest backlog at which so many hits are allowed; `None`: they never are.
    fn bound(&self, hits: i64, max_wait: Span, room: u64, capacity: u64) -> Option<u64> {
        let unit = self.flow.per_hit();
        match u64::try_from(hits) {
            // A peek is refused in debt only.
            Err(_) | Ok(0) => Some(room + unit),
            Ok(hits) if hits > capacity => None,
            // The caller may be held for less than max_delay, but not for longer.
            Ok(hits) => Some((room - (hits - 1) * unit).min(self.check_parameter(max_wait))),
        }
    }

    /// The hits that count: those that a new hit has to wait for, and the one in service.
    fn used(&self, backlog: u64, room: u64, capacity: u64) -> u64 {
        let unit = self.flow.per_hit();
        match room.checked_sub(backlog) {
            Some(left) => capacity - (left / unit + 1),
            None => capacity + backlog.saturating_sub(room + unit).div_ceil(unit),
        }
    }

    /// The units that drain within the longest delay.
    fn room(&self) -> u64 {
        self.flow.within(self.max_delay)
    }

    /// The longest backlog, debt included.
    fn longest(&self) -> u64 {
        self.room() + (1 + self.debt.limits() * self.flow.limit) * self.flow.per_hit()
    }
}

impl Definition for LeakyBucket {
    fn try_new(terms: &Terms<'_>) -> Result<Self, OptionError> {
        let max_delay = terms.options.max_delay.unwrap_or(Span::ZERO);
        if max_delay > LONGEST_WINDOW {
            return Err(messages::max_delay_too_long().of("max_delay"));
        }
        Ok(Self::new(terms.limit, max_delay, terms.window, terms.debt))
    }

    fn step(&self, state: Option<State>, Arrival { now, max_wait }: Arrival, hits: i64) -> Step {
        let now = self.tick.at(now);
        if self.flow.limit == 0 {
            let nothing = TickOutcome {
                allowed: hits <= 0,
                capacity: 0,
                used: 0,
                reset: 0,
                retry: (hits <= 0).then_some(0),
            };
            return Step::unchanged(nothing.verdict(self.tick, Clock::fresh(now)), state);
        }
        let (clock, backlog) = self.read(state.as_ref(), now);
        let (flow, unit) = (&self.flow, self.flow.per_hit());
        let delay = flow.ticks(clock.now, backlog);
        let (room, capacity) = (self.room(), self.capacity());
        let bound = self.bound(hits, max_wait, room, capacity);
        let allowed = hits < 0 || bound.is_some_and(|bound| backlog <= bound);
        let after = if let Ok(taken @ 1..) = u64::try_from(hits) {
            let longer = backlog + taken.min(capacity + self.most_debt()) * unit;
            match (allowed, self.debt.counts()) {
                (true, _) => longer,
                (false, true) => longer.min(self.longest()),
                (false, false) => backlog,
            }
        } else {
            // A refund cannot drain more than the queue has.
            backlog.saturating_sub(hits.unsigned_abs().min(backlog.div_ceil(unit)) * unit)
        };
        let found = TickOutcome {
            allowed,
            capacity,
            used: self.used(after, room, capacity),
            reset: flow.ticks(clock.now, after),
            retry: bound.map(|bound| flow.ticks(clock.now, after.saturating_sub(bound))),
        };
        let delay = if allowed && hits > 0 {
            self.tick.span(delay)
        } else {
            Span::ZERO
        };
        let verdict = Verdict {
            delay,
            ..found.verdict(self.tick, clock)
        };
        if after == backlog {
            return Step::unchanged(verdict, state);
        }
        let keep_ticks = clock.wait(flow.keep(after, found.reset)).max(1);
        let state = State::Queue {
            last: clock.now,
            backlog: after,
            units: self.flow.units,
        };
        Step::changed(verdict, state, self.tick.span(keep_ticks))
    }

    fn limit(&mut self) -> &mut u64 {
        &mut self.flow.limit
    }

    fn set_limit(&mut self, limit: u64) {
        let max_delay = self.tick.span(self.max_delay);
        *self = Self::new(limit, max_delay, self.flow.period, self.debt);
    }

    fn is_exact(&self) -> bool {
        self.flow.is_exact(self.most_hits())
    }

    /// The most hits that an empty queue takes: those whose slots are within `max_delay`.
    fn capacity(&self) -> u64 {
        if self.flow.limit == 0 {
            return 0;
        }
        (self.room() / self.flow.per_hit()).saturating_add(1)
    }

    /// Full limits, and the part of a slot by which `max_delay` is longer than whole slots.
    fn most_debt(&self) -> u64 {
        self.debt.limits() * self.flow.limit + 1
    }

    fn window(&self) -> Period {
        Period::Even(self.flow.period)
    }

    fn tick(&self) -> Tick {
        self.tick
    }

    fn may_delay(&self) -> bool {
        self.max_delay > 0
    }

    debt_in_field!();

    fn script_parameters(&self) -> [u64; SCRIPT_PARAMETERS - 1] {
        [
            self.flow.limit,
            self.flow.window,
            self.room(),
            self.flow.units.code().into(),
            self.flow.per_hit(),
        ]
    }

    /// The units that drain while the caller can be held.
    fn check_parameter(&self, max_wait: Span) -> u64 {
        self.flow
            .within(self.tick.floor(max_wait).min(self.max_delay))
    }

    fn state_of_row(&self, [expiry, last, backlog, _]: [f64; 4]) -> Option<State> {
        Some(State::Queue {
            last: last as u64,
            backlog: backlog as u64,
            units: Units::of_expiry(expiry),
        })
    }

    /// The last tick; the backlog, and in the lowest four bits the code of its units.
    fn pack(&self, state: &State) -> Option<(u64, u64)> {
        let &State::Queue {
            last,
            backlog,
            units,
        } = state
        else {
            return None;
        };
        let number = backlog.checked_mul(Units::CODES)?;
        Some((
            last.checked_mul(units.tick(self.flow.period).micros())?,
            number | u64::from(units.code()),
        ))
    }

    fn unpack(&self, micros: u64, number: u64) -> Option<State> {
        let units = Units::new((number % Units::CODES) as u8);
        Some(State::Queue {
            last: micros / units.tick(self.flow.period).micros(),
            backlog: number / Units::CODES,
            units,
        })
    }
}
