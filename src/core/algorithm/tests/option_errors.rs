//! Options that do not belong to an algorithm, or are out of its bounds.

use super::*;

const FIVE: Rate = Rate {
    requests_per_unit: 5,
    unit: Unit::Minute,
    unit_multiplier: 1,
};

fn of_kind(kind: AlgorithmKind) -> Options {
    Options {
        kind,
        ..Options::default()
    }
}

/// Buckets with these numbers of microseconds.
fn buckets(interval: Option<u64>, span: Option<u64>, expiry: Option<u64>) -> Options {
    Options {
        bucket_interval: interval.map(Span::from_micros),
        bucket_span: span.map(Span::from_micros),
        subject_expiry: expiry.map(Span::from_micros),
        ..of_kind(AlgorithmKind::SlidingWindowBuckets)
    }
}

/// A shaper that may delay for so many seconds.
fn delayed(secs: u64) -> Options {
    Options {
        max_delay: Some(Span::from_secs(secs)),
        ..of_kind(AlgorithmKind::LeakyBucket)
    }
}

const SECOND: u64 = 1_000_000;

#[test]
fn the_values_that_remedies_name_are_valid() {
    for options in [
        buckets(Some(60 * SECOND), None, None),
        buckets(Some(5 * SECOND), Some(65 * SECOND), Some(65 * SECOND)),
        buckets(Some(60_061), None, None),
        buckets(Some(1_001_000), Some(1_001 * SECOND), None),
        buckets(None, Some(1_000 * SECOND), None),
        delayed(3_153_600_000),
    ] {
        assert!(Algorithm::try_new(&FIVE, &options).is_ok(), "{options:?}");
    }
}

/// The largest amount that an error names is valid, and one more is not.
#[test]
fn an_amount_that_is_too_large_names_the_largest() {
    for (name, kind) in AlgorithmKind::OVER_TIME {
        for scale in [1, 1_000, 999_983] {
            let of = |units: u64| {
                let rate = Rate {
                    requests_per_unit: units,
                    unit: Unit::Month,
                    unit_multiplier: 1,
                };
                let options = Options {
                    scale: Some(scale),
                    ..of_kind(kind)
                };
                Algorithm::try_new(&rate, &options)
            };
            let error = of(MAX_SAFE_INTEGER / u64::from(scale) + 1).expect_err(name);
            if kind == AlgorithmKind::SlidingWindowLog {
                continue;
            }
            let mut words = error.message.remedy.split([' ', ',']);
            let largest: u64 = words.find_map(|word| word.parse().ok()).expect("a number");
            let hits = largest * u64::from(scale);
            assert_eq!(error.option, "requests_per_unit");
            let is_whole = of(largest).expect(name).capacity() >= hits;
            assert_eq!(is_whole, kind != AlgorithmKind::LeakyBucket, "{name}");
            let is_largest = of(largest + 1).is_err() && hits > 1 << 42;
            assert!(is_largest, "{name}, {largest} units of {scale}");
        }
    }
}
