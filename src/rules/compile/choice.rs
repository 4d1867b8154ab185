//! What a map says about how its limit is decided: the algorithm and its options, and what answers while the store cannot.
//!
//! The same keys stand in `rate_limit`, for one limit, and in `defaults`, for a domain. Here each is read for itself; which of them go
//! together, and within which bounds, is the algorithms' own knowledge.

use super::fields::{self, Fields};
use super::problem::{Problems, quoted};
use crate::algorithm::{AlgorithmKind, Options};
use crate::rules::limit::OnStoreFailure;
use crate::rules::source::{Node, ValueType};
use crate::time::{LONGEST_WINDOW, ParseDurationError, Span};

/// The keys.
pub(super) const KEYS: [&str; 8] =
    ["algorithm", "burst", "bucket_interval", "bucket_span", "subject_expiry", "max_delay", "count_denied", "on_store_failure"];

/// The longest duration: room for two of the longest windows. Beyond it an instant and a duration would leave the 2^53 that Lua can count.
const LONGEST: Span = Span::from_micros(2 * LONGEST_WINDOW.micros());

/// What is said; `None` where nothing is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Choice {
    kind: Option<AlgorithmKind>,
    burst: Option<u32>,
    bucket_interval: Option<Span>,
    bucket_span: Option<Span>,
    subject_expiry: Option<Span>,
    max_delay: Option<Span>,
    count_denied: Option<bool>,
    pub(super) on_store_failure: Option<OnStoreFailure>,
}

impl Choice {
    /// What holds for a limit of this choice in a domain of these defaults. Of the defaults only those have a meaning that belong to the
    /// limit's own algorithm, so that a domain may give defaults for several.
    pub(super) fn over(&self, defaults: &Self) -> Options {
        let kind = self.kind.or(defaults.kind).unwrap_or_default();
        let is_buckets = kind == AlgorithmKind::SlidingWindowBuckets;
        Options {
            kind,
            burst: self.burst.or(defaults.burst.filter(|_| kind == AlgorithmKind::TokenBucket)),
            bucket_interval: self.bucket_interval.or(defaults.bucket_interval.filter(|_| is_buckets)),
            bucket_span: self.bucket_span.or(defaults.bucket_span.filter(|_| is_buckets)),
            subject_expiry: self.subject_expiry.or(defaults.subject_expiry.filter(|_| is_buckets)),
            max_delay: self.max_delay.or(defaults.max_delay.filter(|_| kind == AlgorithmKind::LeakyBucket)),
            count_denied: self.count_denied.or(defaults.count_denied),
        }
    }
}

/// Takes an option out that has no meaning for its algorithm, so that the next mistake shows; whether it was one.
pub(super) fn leave_out(options: &mut Options, option: &str) -> bool {
    let kind = options.kind;
    match option {
        "burst" if kind != AlgorithmKind::TokenBucket => options.burst.take().is_some(),
        "bucket_interval" if kind != AlgorithmKind::SlidingWindowBuckets => options.bucket_interval.take().is_some(),
        "bucket_span" if kind != AlgorithmKind::SlidingWindowBuckets => options.bucket_span.take().is_some(),
        "subject_expiry" if kind != AlgorithmKind::SlidingWindowBuckets => options.subject_expiry.take().is_some(),
        "max_delay" if kind != AlgorithmKind::LeakyBucket => options.max_delay.take().is_some(),
        _ => false,
    }
}

/// Reads the keys of a `rate_limit` or of `defaults`; `None` when one of them is wrong, and what they say together cannot be known.
pub(super) fn read(problems: &mut Problems, fields: &Fields<'_>) -> Option<Choice> {
    // Misspelled keys are reported already.
    let mut is_right = !KEYS.iter().any(|key| fields.meant(key));
    let choice = Choice {
        kind: option(fields, "algorithm", &mut is_right, |node| kind(problems, node)),
        burst: option(fields, "burst", &mut is_right, |node| fields::number(problems, node, "burst")),
        bucket_interval: option(fields, "bucket_interval", &mut is_right, |node| duration(problems, node, "bucket_interval")),
        bucket_span: option(fields, "bucket_span", &mut is_right, |node| duration(problems, node, "bucket_span")),
        subject_expiry: option(fields, "subject_expiry", &mut is_right, |node| duration(problems, node, "subject_expiry")),
        max_delay: option(fields, "max_delay", &mut is_right, |node| duration(problems, node, "max_delay")),
        count_denied: option(fields, "count_denied", &mut is_right, |node| fields::bool(problems, node, "count_denied")),
        on_store_failure: option(fields, "on_store_failure", &mut is_right, |node| on_store_failure(problems, node)),
    };
    is_right.then_some(choice)
}

fn option<'n, T>(fields: &Fields<'n>, key: &str, is_right: &mut bool, read: impl FnOnce(&'n Node) -> Option<T>) -> Option<T> {
    let value = read(fields.get(key)?);
    *is_right &= value.is_some();
    value
}

fn kind(problems: &mut Problems, node: &Node) -> Option<AlgorithmKind> {
    let text = fields::text(problems, node, "algorithm")?;
    fields::one_of(problems, node, text, "algorithm", &AlgorithmKind::NAMED)
}

fn on_store_failure(problems: &mut Problems, node: &Node) -> Option<OnStoreFailure> {
    let text = fields::text(problems, node, "on_store_failure")?;
    fields::one_of(problems, node, text, "value of 'on_store_failure'", &OnStoreFailure::NAMED)
}

/// A duration; `None`, with an error, when it is something else.
fn duration(problems: &mut Problems, node: &Node, key: &str) -> Option<Span> {
    let text = node.text().unwrap_or_default();
    let (what, remedy) = match (node.value_type(), text.parse::<Span>()) {
        (ValueType::Mapping | ValueType::Sequence | ValueType::Binary | ValueType::Bool, _) => {
            (format!("'{key}' is {} and not a duration", node.value_type().name()), HOW.to_owned())
        }
        (_, Ok(span)) if span <= LONGEST => return Some(span),
        (_, Ok(_) | Err(ParseDurationError::TooLong)) => {
            (format!("'{key}' is {}, which is longer than 200 years", quoted(text)), "write a shorter one".to_owned())
        }
        (ValueType::Int | ValueType::Huge | ValueType::Float, _) | (_, Err(ParseDurationError::NoUnit)) => {
            let remedy = match text.parse::<u32>() {
                Ok(number) => format!("write '{key}: {number}s' for seconds, or another unit: h, m, s, ms, us"),
                Err(_) => HOW.to_owned(),
            };
            (format!("'{key}' is {}, a number without a unit", quoted(text)), remedy)
        }
        (_, Err(error)) => {
            let (what, remedy) = error.report();
            (format!("'{key}' is {}, {what}", quoted(text)), remedy.to_owned())
        }
    };
    problems.error_at(node, what, remedy);
    None
}

const HOW: &str = "write a number and a unit, such as 250ms, 10s, 1m30s or 24h";

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Span = Span::from_secs(1);

    fn full() -> Choice {
        Choice {
            kind: Some(AlgorithmKind::TokenBucket),
            burst: Some(10),
            bucket_interval: Some(SECOND),
            bucket_span: Some(SECOND),
            subject_expiry: Some(SECOND),
            max_delay: Some(SECOND),
            count_denied: Some(true),
            on_store_failure: Some(OnStoreFailure::Deny),
        }
    }

    #[test]
    fn a_limit_takes_the_defaults_of_its_own_algorithm() {
        let buckets =
            Options { bucket_interval: Some(SECOND), bucket_span: Some(SECOND), subject_expiry: Some(SECOND), ..Options::default() };
        for (kind, options) in [
            (AlgorithmKind::FixedWindow, Options::default()),
            (AlgorithmKind::SlidingWindowLog, Options::default()),
            (AlgorithmKind::SlidingWindowCounter, Options::default()),
            (AlgorithmKind::SlidingWindowBuckets, buckets),
            (AlgorithmKind::TokenBucket, Options { burst: Some(10), ..Options::default() }),
            (AlgorithmKind::LeakyBucket, Options { max_delay: Some(SECOND), ..Options::default() }),
        ] {
            let expected = Options { kind, count_denied: Some(true), ..options };
            assert_eq!(Choice { kind: Some(kind), ..Choice::default() }.over(&full()), expected);
        }
        assert_eq!(
            Choice::default().over(&full()),
            Options { kind: AlgorithmKind::TokenBucket, burst: Some(10), count_denied: Some(true), ..Options::default() }
        );
        assert_eq!(Choice::default().over(&Choice::default()), Options::default());
    }

    #[test]
    fn what_a_limit_says_itself_counts() {
        let own = Choice { burst: Some(3), count_denied: Some(false), ..Choice::default() };
        let options = own.over(&full());
        assert_eq!((options.kind, options.burst, options.count_denied), (AlgorithmKind::TokenBucket, Some(3), Some(false)));
        // Also what does not belong to its algorithm: that is a mistake, and nothing to pass over in silence.
        let own = Choice { kind: Some(AlgorithmKind::LeakyBucket), burst: Some(3), ..Choice::default() };
        assert_eq!(own.over(&full()).burst, Some(3));
    }
}
