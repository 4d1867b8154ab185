//! From what a limit says about its algorithm to the algorithm, or to the mistake in it.

use super::{Algorithm, FixedWindow};
use crate::time::{Rate, Span};

/// The algorithms, by the names that files use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Kind {
    /// `fixed_window`, the default.
    #[default]
    FixedWindow,
    /// `sliding_window_log`.
    SlidingWindowLog,
    /// `sliding_window_counter`.
    SlidingWindowCounter,
    /// `sliding_window_buckets`.
    SlidingWindowBuckets,
    /// `token_bucket`.
    TokenBucket,
    /// `leaky_bucket`.
    LeakyBucket,
}

impl Kind {
    /// All of them with their names.
    pub const NAMED: [(&'static str, Self); 6] = [
        ("fixed_window", Self::FixedWindow),
        ("sliding_window_log", Self::SlidingWindowLog),
        ("sliding_window_counter", Self::SlidingWindowCounter),
        ("sliding_window_buckets", Self::SlidingWindowBuckets),
        ("token_bucket", Self::TokenBucket),
        ("leaky_bucket", Self::LeakyBucket),
    ];
}

/// What a limit says besides its rate; `None` where it says nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// `algorithm`.
    pub kind: Kind,
    /// `burst`: capacity of a `token_bucket`; the rate's hits by default.
    pub burst: Option<u32>,
    /// `bucket_interval` of `sliding_window_buckets`.
    pub bucket_interval: Option<Span>,
    /// `bucket_span` of `sliding_window_buckets`; window + one interval by default.
    pub bucket_span: Option<Span>,
    /// `subject_expiry` of `sliding_window_buckets`: an idle key is forgotten after it; the span by default.
    pub subject_expiry: Option<Span>,
    /// `max_delay` of a `leaky_bucket`; zero by default.
    pub max_delay: Option<Span>,
    /// `count_denied`; true for `fixed_window`, false for the others by default.
    pub count_denied: Option<bool>,
}

/// Why there is no such algorithm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// The option that is wrong, as files name it, so that the reader knows its place.
    pub option: &'static str,
    /// What is wrong.
    pub what: String,
    /// How to write it.
    pub remedy: String,
}

impl Algorithm {
    /// The algorithm for a rate.
    ///
    /// # Errors
    /// The first [`Mistake`].
    pub fn try_new(rate: &Rate, _options: &Options) -> Result<Self, Mistake> {
        let window = rate.window().ok_or_else(|| Mistake {
            option: "unit_multiplier",
            what: "the window is longer than 100 years".to_owned(),
            remedy: "write a smaller unit_multiplier".to_owned(),
        })?;
        Ok(Self::FixedWindow(FixedWindow { limit: rate.requests_per_unit, window }))
    }
}
