//! What every algorithm promises: one pure, total step in whole numbers.
//!
//! A step takes what is stored, the store's time and the hits, and gives the verdict and what to store next. Algorithms do arithmetic;
//! stores own atomicity. The twin of each `algorithm/*.rs` is the file of the same name in `lua/`.

pub mod fixed_window;

pub use fixed_window::FixedWindow;

use crate::time::{Micros, Span};
use crate::verdict::Verdict;

/// An algorithm with its numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// Windows aligned to the clock.
    FixedWindow(FixedWindow),
}

/// What is stored for one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// A window and the hits counted in it.
    FixedWindow {
        /// Which window: the number of windows since the epoch.
        window: u64,
        /// Hits in it, refused ones included.
        count: u64,
    },
}

/// What one check does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// The answer.
    pub verdict: Verdict,
    /// What to store and for how long at least; `None`: write nothing.
    pub change: Option<(State, Span)>,
}

impl Algorithm {
    /// Decides `hits` (0 looks, below 0 gives back) at `now`. Total: never panics, whatever is stored and asked.
    #[must_use]
    pub fn step(&self, state: Option<State>, now: Micros, hits: i64) -> Step {
        match self {
            Self::FixedWindow(fixed) => fixed.step(state, now, hits),
        }
    }

    /// The most hits that fit at once.
    #[must_use]
    pub const fn capacity(&self) -> u32 {
        match self {
            Self::FixedWindow(fixed) => fixed.limit,
        }
    }
}
