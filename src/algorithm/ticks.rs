//! What the algorithms share: the choice of a tick, a clock that may go back, and the shape of a verdict.
//!
//! Lua's numbers are exact only below 2^53. A coarser tick makes windows smaller numbers, so that no product of a limit and a window gets
//! there; Rust keeps to the same bound, so that both mean the same.

use crate::time::{MAX_SAFE_INTEGER, Span, Tick};
use crate::verdict::{Verdict, Wait};

/// The finest tick at which twice `most_hits` (of the window's ticks at that tick) times the window, and `rate` more, stay exact.
pub(super) fn finest(window: Span, rate: u32, most_hits: impl Fn(Tick) -> u64) -> Tick {
    let is_exact = |tick: &Tick| {
        let most = 2 * u128::from(most_hits(*tick)) * u128::from(tick.ceil(window)) + u128::from(rate);
        most <= u128::from(MAX_SAFE_INTEGER)
    };
    Tick::all().find(is_exact).unwrap_or(Tick::COARSEST)
}

/// The time of a step: never before the state's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Clock {
    /// The tick that the step happens at.
    pub(super) now: u64,
    /// How far the store's clock is behind it.
    pub(super) behind: u64,
}

impl Clock {
    /// A clock without a past.
    pub(super) const fn fresh(now: u64) -> Self {
        Self { now, behind: 0 }
    }

    /// Goes on from `last`; `None`: the clock went back by more than `most` ticks, and what is stored is forgotten.
    pub(super) const fn resume(now: u64, last: u64, most: u64) -> Option<Self> {
        if last <= now {
            Some(Self::fresh(now))
        } else if last - now <= most {
            Some(Self { now: last, behind: last - now })
        } else {
            None
        }
    }

    /// The wait on the store's clock for what takes so many ticks: it has to make up first what it is behind.
    pub(super) const fn wait(&self, ticks: u64) -> u64 {
        if ticks == 0 { 0 } else { ticks + self.behind }
    }
}

/// The outcome of a step, in ticks of the algorithm.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outcome {
    pub(super) allowed: bool,
    pub(super) capacity: u32,
    pub(super) used: u64,
    pub(super) reset: u64,
    /// `None`: never. Of no meaning when allowed.
    pub(super) retry: Option<u64>,
}

impl Outcome {
    pub(super) fn verdict(self, tick: Tick, clock: Clock) -> Verdict {
        Verdict {
            allowed: self.allowed,
            remaining: u32::try_from(u64::from(self.capacity).saturating_sub(self.used)).unwrap_or(u32::MAX),
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

/// How long a changed state is kept: until it has recovered, and never no time at all.
pub(super) fn keep_for(tick: Tick, verdict: &Verdict) -> Span {
    verdict.reset_after.max(tick.span(1))
}
