//! From what a limit says about its algorithm to the algorithm, or to the mistake in it.

use super::sliding_window_buckets::MOST_BUCKETS;
use super::{
    Algorithm, FixedWindow, LeakyBucket, SlidingWindowBuckets, SlidingWindowCounter, SlidingWindowLog, TokenBucket, sliding_window_log,
};
use crate::time::{LONGEST_WINDOW, Rate, Span};

/// The algorithms, by the names that files use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum AlgorithmKind {
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

impl AlgorithmKind {
    /// All of them with their names.
    pub const NAMED: [(&'static str, Self); 6] = [
        ("fixed_window", Self::FixedWindow),
        ("sliding_window_log", Self::SlidingWindowLog),
        ("sliding_window_counter", Self::SlidingWindowCounter),
        ("sliding_window_buckets", Self::SlidingWindowBuckets),
        ("token_bucket", Self::TokenBucket),
        ("leaky_bucket", Self::LeakyBucket),
    ];

    /// The name in a file.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::NAMED.iter().find(|&&(_, kind)| kind == self).map_or("unknown", |&(name, _)| name)
    }
}

/// What a limit says besides its rate; `None` where it says nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// `algorithm`.
    pub kind: AlgorithmKind,
    /// `burst`: capacity of a `token_bucket`; the rate's hits by default. Without a refill (0 per window) nothing passes, whatever it is.
    pub burst: Option<u32>,
    /// `bucket_interval` of `sliding_window_buckets`; a sixtieth of the window by default.
    pub bucket_interval: Option<Span>,
    /// `bucket_span` of `sliding_window_buckets`; window + one interval by default.
    pub bucket_span: Option<Span>,
    /// `subject_expiry` of `sliding_window_buckets`: an idle key is forgotten after it; the span by default.
    pub subject_expiry: Option<Span>,
    /// `max_delay` of a `leaky_bucket`; zero by default. No more than 2^32 - 1 hits wait, however long it is.
    pub max_delay: Option<Span>,
    /// `count_denied`; true for `fixed_window`, false for the others by default.
    pub count_denied: Option<bool>,
}

/// Why there is no such algorithm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OptionError {
    /// The option that is wrong, as files name it, so that the reader knows its place.
    pub option: &'static str,
    /// What is wrong.
    pub what: String,
    /// How to write it.
    pub remedy: String,
}

impl OptionError {
    fn new(option: &'static str, what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { option, what: what.into(), remedy: remedy.into() }
    }
}

/// A limit of 0 refuses everything with every algorithm.
impl Algorithm {
    /// The algorithm for a rate.
    ///
    /// # Errors
    /// The first [`OptionError`].
    pub fn try_new(rate: &Rate, options: &Options) -> Result<Self, OptionError> {
        let window = rate.window().ok_or_else(|| {
            OptionError::new(
                "unit_multiplier",
                "the window is longer than 100 years, or nothing",
                "write a unit_multiplier that makes it shorter",
            )
        })?;
        foreign(options)?;
        let limit = rate.requests_per_unit;
        let count_denied = options.count_denied.unwrap_or(options.kind == AlgorithmKind::FixedWindow);
        Ok(match options.kind {
            AlgorithmKind::FixedWindow => Self::FixedWindow(FixedWindow { limit, window, count_denied }),
            AlgorithmKind::SlidingWindowLog if limit > sliding_window_log::LARGEST_LIMIT => {
                let what =
                    format!("a sliding_window_log remembers every hit, and {limit} are more than {}", sliding_window_log::LARGEST_LIMIT);
                return Err(OptionError::new("algorithm", what, "write 'algorithm: sliding_window_buckets', which has no such bound"));
            }
            AlgorithmKind::SlidingWindowLog => Self::SlidingWindowLog(SlidingWindowLog::new(limit, window, count_denied)),
            AlgorithmKind::SlidingWindowCounter => Self::SlidingWindowCounter(SlidingWindowCounter::new(limit, window, count_denied)),
            AlgorithmKind::SlidingWindowBuckets => Self::SlidingWindowBuckets(buckets(limit, window, options, count_denied)?),
            AlgorithmKind::TokenBucket => match options.burst.unwrap_or(limit) {
                0 if options.burst.is_some() => {
                    return Err(OptionError::new("burst", "a bucket of 0 tokens lets nothing pass", "write 1 or more, or remove 'burst'"));
                }
                burst => Self::TokenBucket(TokenBucket::new(limit, burst, window, count_denied)),
            },
            AlgorithmKind::LeakyBucket => match options.max_delay.unwrap_or(Span::ZERO) {
                max_delay if max_delay > LONGEST_WINDOW => {
                    return Err(OptionError::new("max_delay", "'max_delay' is longer than 100 years", "write a shorter one"));
                }
                max_delay => Self::LeakyBucket(LeakyBucket::new(limit, max_delay, window, count_denied)),
            },
        })
    }
}

/// Finds an option that belongs to another algorithm.
fn foreign(options: &Options) -> Result<(), OptionError> {
    let given = [
        ("burst", options.burst.is_some(), AlgorithmKind::TokenBucket),
        ("bucket_interval", options.bucket_interval.is_some(), AlgorithmKind::SlidingWindowBuckets),
        ("bucket_span", options.bucket_span.is_some(), AlgorithmKind::SlidingWindowBuckets),
        ("subject_expiry", options.subject_expiry.is_some(), AlgorithmKind::SlidingWindowBuckets),
        ("max_delay", options.max_delay.is_some(), AlgorithmKind::LeakyBucket),
    ];
    match given.into_iter().find(|&(_, is_given, owner)| is_given && owner != options.kind) {
        None => Ok(()),
        Some((option, _, owner)) => {
            let what = format!("'{option}' has no meaning for a {}", options.kind.name());
            Err(OptionError::new(option, what, format!("remove it, or write 'algorithm: {}'", owner.name())))
        }
    }
}

/// The buckets of a limit: a sixtieth of the window each, when nothing is said.
fn buckets(limit: u32, window: Span, options: &Options, count_denied: bool) -> Result<SlidingWindowBuckets, OptionError> {
    let interval = options.bucket_interval.unwrap_or(Span::from_micros(window.micros().div_ceil(60)));
    if interval == Span::ZERO {
        return Err(OptionError::new(
            "bucket_interval",
            "'bucket_interval' is 0, which makes no bucket",
            "write a longer one, or remove it",
        ));
    }
    if interval > window {
        let what = format!("a bucket of {} is longer than the window of {}", interval, window);
        return Err(OptionError::new("bucket_interval", what, format!("write {} or less; a sixtieth of the window if removed", window)));
    }
    let shortest = Span::from_micros(window.micros() + interval.micros());
    let span = options.bucket_span.unwrap_or(shortest);
    if span < shortest {
        let what = format!("a span of {} does not hold the window of {} and one bucket of {}", span, window, interval);
        return Err(OptionError::new("bucket_span", what, format!("write {} or more, or remove it", shortest)));
    }
    let count = span.micros().div_ceil(interval.micros());
    let Some(count) = u16::try_from(count).ok().filter(|&count| count <= MOST_BUCKETS) else {
        let what = format!("a span of {} in buckets of {} makes {count}, which is more than {MOST_BUCKETS}", span, interval);
        let longer = span.micros().div_ceil(u64::from(MOST_BUCKETS));
        // Without a span the buckets cover the window and one of them.
        let longer = if options.bucket_span.is_some() { longer } else { window.micros().div_ceil(u64::from(MOST_BUCKETS) - 1) };
        let (longer, longest) = (Span::from_micros(longer), Span::from_micros(interval.micros() * u64::from(MOST_BUCKETS)));
        return Err(match options.bucket_span {
            // Longer buckets than the window there cannot be.
            Some(_) if longest >= shortest && (options.bucket_interval.is_none() || longer > window) => {
                OptionError::new("bucket_span", what, format!("write {} or less, or a longer bucket_interval", longest))
            }
            // Windows are whole seconds: up to a whole millisecond it is not longer than one.
            _ => {
                let longer = Span::from_micros(longer.micros().next_multiple_of(1_000));
                OptionError::new("bucket_interval", what, format!("write {} or more", longer))
            }
        });
    };
    let expiry = options.subject_expiry.unwrap_or(span);
    if expiry < span {
        let what = format!("keys would be forgotten after {}, but their buckets count for {}", expiry, span);
        return Err(OptionError::new("subject_expiry", what, format!("write {} or more, or remove it", span)));
    }
    Ok(SlidingWindowBuckets::new(limit, window, interval, count, expiry, count_denied))
}
