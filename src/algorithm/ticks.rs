//! What the algorithms share: the choice of a tick, a clock that may go back, and the outcome of a step.
//!
//! Lua's numbers are exact only below 2^53. A coarser tick makes windows smaller numbers, so that the product of a limit and a window stays
//! below. Rust keeps the same bound, so that both decide the same. A window has [`FEWEST_TICKS`] at least, so that a limit can be too large.

use crate::time::{MAX_SAFE_INTEGER, Span, Tick};
use crate::verdict::{Verdict, Wait};

/// The largest count: more than any limit, and exact in Lua.
pub const LARGEST_COUNT: u64 = MAX_SAFE_INTEGER + 1;

/// The fewest ticks of a window: its times are never coarser than a hundredth of it. Limits of up to 2^32 - 1 need no tick as coarse.
const FEWEST_TICKS: u64 = 100;

/// The finest tick at which `most_hits(tick) * window + rate` stays exact, with the window in that tick. If there is none, one at which
/// [`is_exact`] says no.
pub(super) fn finest(window: Span, rate: u64, most_hits: impl Fn(Tick) -> u64) -> Tick {
    Tick::all().find(|&tick| is_exact(tick.ceil(window), rate, most_hits(tick))).unwrap_or(Tick::COARSEST)
}

/// Whether `most_hits * window + rate` is exact, and the window has ticks enough.
pub(super) fn is_exact(window: u64, rate: u64, most_hits: u64) -> bool {
    let most = u128::from(most_hits) * u128::from(window) + u128::from(rate);
    most <= u128::from(MAX_SAFE_INTEGER) && window >= FEWEST_TICKS
}

/// The largest number of hits that fits, if all below it do.
pub(super) fn largest(fits: impl Fn(u64) -> bool) -> u64 {
    let (mut most, mut too_many) = (0, LARGEST_COUNT);
    while too_many - most > 1 {
        let middle = most.midpoint(too_many);
        if fits(middle) {
            most = middle;
        } else {
            too_many = middle;
        }
    }
    most
}

/// The time of a step: never before the time of the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Clock {
    /// The tick that the step happens at.
    pub(super) now: u64,
    /// The ticks by which the store's clock is behind `now`.
    pub(super) behind: u64,
}

impl Clock {
    /// The clock of a key without a state.
    pub(super) const fn fresh(now: u64) -> Self {
        Self { now, behind: 0 }
    }

    /// Continues at `last` if the clock went back. `None`: by more than `most` ticks, and the state is dropped.
    pub(super) const fn resume(now: u64, last: u64, most: u64) -> Option<Self> {
        if last <= now {
            Some(Self::fresh(now))
        } else if last - now <= most {
            Some(Self { now: last, behind: last - now })
        } else {
            None
        }
    }

    /// The wait on the store's clock, which first has to catch up, for what takes so many ticks.
    pub(super) const fn wait(&self, ticks: u64) -> u64 {
        if ticks == 0 { 0 } else { ticks + self.behind }
    }
}

/// More than any tick's exponent: a state holds its tick in so many parts of another number.
pub(super) const EXPONENTS: i64 = 16;

/// The tick that the fraction of an expiry in Redis names (see `lua/frame.lua`).
pub(super) fn tick_of_expiry(expiry: f64) -> Tick {
    Tick::new((expiry.fract() * EXPONENTS as f64) as u8)
}

/// The outcome of a step, in ticks of the algorithm.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outcome {
    pub(super) allowed: bool,
    pub(super) capacity: u64,
    pub(super) used: u64,
    pub(super) reset: u64,
    /// `None`: never. Without a meaning if allowed.
    pub(super) retry: Option<u64>,
}

impl Outcome {
    pub(super) fn verdict(self, tick: Tick, clock: Clock) -> Verdict {
        Verdict {
            allowed: self.allowed,
            remaining: self.capacity.saturating_sub(self.used),
            used: self.used,
            reset_after: tick.span(clock.wait(self.reset)),
            retry_after: match self.retry {
                _ if self.allowed => Wait::For(Span::ZERO),
                Some(ticks) => Wait::For(tick.span(clock.wait(ticks))),
                None => Wait::Never,
            },
            delay: Span::ZERO,
        }
    }
}

/// How long a changed state is kept: until it has recovered, and at least one tick.
pub(super) fn keep_for(tick: Tick, verdict: &Verdict) -> Span {
    verdict.reset_after.max(tick.span(1))
}
