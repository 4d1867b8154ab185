//! What every algorithm promises: one pure, total step in whole numbers.
//!
//! A step takes what is stored, the store's time and the hits, and gives the verdict and what to store next. Algorithms do arithmetic;
//! stores own atomicity. The twin of each `algorithm/*.rs` is the file of the same name in `lua/`.

pub mod fixed_window;
pub mod options;

pub use fixed_window::FixedWindow;
pub use options::{Kind, Mistake, Options};

use crate::time::{Micros, Span};
use crate::verdict::Verdict;

/// An algorithm with its numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// Windows aligned to the clock.
    FixedWindow(FixedWindow),
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
}

/// When a check is decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// The store's time.
    pub now: Micros,
    /// How long the caller can be held; a shaper refuses what would have to wait longer.
    pub patience: Span,
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
    pub const fn holds(&self) -> bool {
        match self {
            Self::FixedWindow(_) => false,
        }
    }

    /// Decides `hits` (0 looks, below 0 gives back) at `at`. Total: never panics, whatever is stored and asked.
    #[must_use]
    pub fn step(&self, state: Option<State>, at: Moment, hits: i64) -> Step {
        match self {
            Self::FixedWindow(fixed) => fixed.step(state, at.now, hits),
        }
    }
}
