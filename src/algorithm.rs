//! What every algorithm promises: one pure, total step in whole numbers.
//!
//! A step takes what is stored, the store's time and the hits, and gives the verdict and what to store next. Algorithms do arithmetic;
//! stores own atomicity. The twin of each `algorithm/*.rs` is the file of the same name in `lua/`.

pub mod fixed_window;
pub mod leaky_bucket;
pub mod options;
pub mod sliding_window_buckets;
pub mod sliding_window_counter;
pub mod sliding_window_log;
mod share;
mod ticks;
pub mod token_bucket;

pub use fixed_window::FixedWindow;
pub use leaky_bucket::LeakyBucket;
pub use options::{AlgorithmKind, OptionError, Options};
pub use sliding_window_buckets::SlidingWindowBuckets;
pub use sliding_window_counter::SlidingWindowCounter;
pub use sliding_window_log::SlidingWindowLog;
pub use token_bucket::TokenBucket;

use crate::time::{Micros, Span, Tick};
use crate::verdict::Verdict;

/// An algorithm with its numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// Windows aligned to the clock.
    FixedWindow(FixedWindow),
    /// Every hit with its time.
    SlidingWindowLog(SlidingWindowLog),
    /// The current window and what is left of the one before it.
    SlidingWindowCounter(SlidingWindowCounter),
    /// A ring of small windows.
    SlidingWindowBuckets(SlidingWindowBuckets),
    /// A bucket that is refilled all the time.
    TokenBucket(TokenBucket),
    /// A queue that drains at a constant rate.
    LeakyBucket(LeakyBucket),
}

/// What is stored for one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// A window and the hits counted in it.
    FixedWindow {
        /// Which window: the number of windows since the epoch.
        window: u64,
        /// Hits in it, refused ones included.
        count: u64,
    },
    /// The hits that count.
    Log(Box<sliding_window_log::Log>),
    /// Two windows.
    Counter {
        /// Which window is the current one: the number of windows since the epoch.
        window: u64,
        /// Hits in it.
        current: u64,
        /// Hits in the one before it.
        previous: u64,
    },
    /// The buckets that count.
    Buckets(Box<sliding_window_buckets::Ring>),
    /// What a bucket holds.
    Tokens {
        /// The tick that the level is of.
        last: u64,
        /// In parts of a token, as many as the window has ticks; below zero in debt.
        level: i64,
    },
    /// What waits in a queue.
    Queue {
        /// The tick that the backlog is of.
        last: u64,
        /// In parts of a hit, as many as the window has ticks.
        backlog: u64,
    },
}

/// When a check arrives, and how long its caller can be held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// The store's time.
    pub now: Micros,
    /// The longest time that the caller can be held. A shaper refuses a check that would have to wait longer.
    pub max_hold: Span,
}

/// What one check does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The answer.
    pub verdict: Verdict,
    /// What is stored from now on; the same as before when there is nothing to write.
    pub state: Option<State>,
    /// The state changed: it has to be written and kept for at least so long. After that it means no more than a missing one.
    pub keep_for: Option<Span>,
}

impl Algorithm {
    /// Whether an allowed check may have to be held: a shaper.
    #[must_use]
    pub const fn may_delay(&self) -> bool {
        match self {
            Self::LeakyBucket(leaky) => leaky.max_delay > 0,
            Self::FixedWindow(_)
            | Self::SlidingWindowLog(_)
            | Self::SlidingWindowCounter(_)
            | Self::SlidingWindowBuckets(_)
            | Self::TokenBucket(_) => false,
        }
    }

    /// Whether refused hits count too.
    #[must_use]
    pub const fn counts_denied(&self) -> bool {
        match self {
            Self::FixedWindow(fixed) => fixed.count_denied,
            Self::SlidingWindowLog(log) => log.count_denied,
            Self::SlidingWindowCounter(counter) => counter.count_denied,
            Self::SlidingWindowBuckets(buckets) => buckets.count_denied,
            Self::TokenBucket(token) => token.count_denied,
            Self::LeakyBucket(leaky) => leaky.count_denied,
        }
    }

    /// The most hits that a key without any can take at once.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        match self {
            Self::FixedWindow(fixed) => fixed.limit,
            Self::SlidingWindowLog(log) => log.limit,
            Self::SlidingWindowCounter(counter) => counter.limit,
            Self::SlidingWindowBuckets(buckets) => buckets.limit,
            Self::TokenBucket(token) => token.burst,
            Self::LeakyBucket(leaky) => leaky.capacity(),
        }
    }

    /// The grain of its times.
    #[must_use]
    pub const fn tick(&self) -> Tick {
        match self {
            Self::FixedWindow(_) => Tick::FINEST,
            Self::SlidingWindowLog(log) => log.tick,
            Self::SlidingWindowCounter(counter) => counter.tick,
            Self::SlidingWindowBuckets(buckets) => buckets.tick,
            Self::TokenBucket(token) => token.tick,
            Self::LeakyBucket(leaky) => leaky.tick,
        }
    }

    /// Decides `hits` (0 looks, below 0 gives back) at `at`. Total: never panics, whatever is stored and asked; a state that another
    /// algorithm wrote is no state.
    #[must_use]
    pub fn step(&self, state: Option<State>, at: Arrival, hits: i64) -> Step {
        match self {
            Self::FixedWindow(fixed) => fixed.step(state, at.now, hits),
            Self::SlidingWindowLog(log) => log.step(state, at.now, hits),
            Self::SlidingWindowCounter(counter) => counter.step(state, at.now, hits),
            Self::SlidingWindowBuckets(buckets) => buckets.step(state, at.now, hits),
            Self::TokenBucket(token) => token.step(state, at.now, hits),
            Self::LeakyBucket(leaky) => leaky.step(state, at, hits),
        }
    }
}

#[cfg(test)]
mod tests;
