//! Options that do not belong to an algorithm, or are out of its bounds.

use super::*;

const FIVE: Rate = Rate {
    requests_per_unit: 5,
    unit: Unit::Minute,
    unit_multiplier: 1,
};

/// The option that an error is about, and its text.
fn error_of(rate: &Rate, options: &Options) -> (&'static str, String) {
    let error = Algorithm::try_new(rate, options).expect_err("an error");
    assert!(!error.what.is_empty() && !error.remedy.is_empty());
    (error.option, format!("{}: {}", error.what, error.remedy))
}

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

fn burst(burst: u64) -> Options {
    Options {
        burst: Some(burst),
        ..of_kind(AlgorithmKind::TokenBucket)
    }
}

const SECOND: u64 = 1_000_000;

#[test]
fn an_option_belongs_to_one_algorithm() {
    let given = [
        ("bucket_interval", buckets(Some(SECOND), None, None)),
        ("bucket_span", buckets(None, Some(SECOND), None)),
        ("subject_expiry", buckets(None, None, Some(SECOND))),
        ("max_delay", delayed(1)),
        ("burst", burst(1)),
    ];
    for (name, kind) in AlgorithmKind::OVER_TIME {
        for (option, own) in given {
            if own.kind == kind {
                continue;
            }
            let owner = own.kind.name();
            let text = format!(
                "'{option}' has no meaning for a {name}: remove it, or write 'algorithm: {owner}'"
            );
            let found = error_of(&FIVE, &Options { kind, ..own });
            assert_eq!(found, (option, text));
        }
    }
}

#[test]
fn an_error_names_the_option_and_a_valid_value() {
    let log = of_kind(AlgorithmKind::SlidingWindowLog);
    let free = Options {
        default_cost: Some(0),
        ..buckets(None, None, None)
    };
    let debt = |debt, counts: bool| Options {
        max_debt: Some(debt),
        count_denied: counts.then_some(true),
        ..buckets(None, None, None)
    };
    let fixed_debt = Options {
        max_debt: Some(2),
        ..Options::default()
    };
    let interval = |micros| buckets(Some(micros), None, None);
    let span = |interval: Option<u64>, span| {
        buckets(
            interval.map(|secs| secs * SECOND),
            Some(span * SECOND),
            None,
        )
    };
    let expiry = buckets(Some(5 * SECOND), None, Some(64 * SECOND));
    for (limit, options, option, part) in [
        (5, burst(0), "burst", "is 0"),
        (100_001, log, "algorithm", "sliding_window_buckets"),
        (5, delayed(3_153_600_001), "max_delay", "100 years"),
        (5, free, "default_cost", "is 0"),
        (5, debt(2, false), "max_debt", "write 'count_denied: true'"),
        (5, debt(0, true), "max_debt", "not 1 to 100"),
        (5, debt(101, true), "max_debt", "not 1 to 100"),
        (5, fixed_debt, "max_debt", "no meaning for a fixed_window"),
        (5, interval(0), "bucket_interval", "is 0"),
        (
            5,
            interval(61 * SECOND),
            "bucket_interval",
            "longer than the window of 60s",
        ),
        (5, span(Some(5), 64), "bucket_span", "write 65s or more"),
        (5, expiry, "subject_expiry", "write 65s or more"),
        // Too many buckets.
        (5, interval(60_060), "bucket_interval", "write 61ms or more"),
        (
            5,
            span(Some(1), 1_001),
            "bucket_interval",
            "write 1.001s or more",
        ),
        (5, span(None, 1_001), "bucket_span", "write 16m40s or less"),
        (
            5,
            span(Some(1), 99_999),
            "bucket_span",
            "write 16m40s or less",
        ),
    ] {
        let rate = Rate {
            requests_per_unit: limit,
            ..FIVE
        };
        let (found, text) = error_of(&rate, &options);
        assert!(
            found == option && text.contains(part),
            "{options:?}: {text}"
        );
    }
}

#[test]
fn an_error_names_a_window_that_is_too_long() {
    let too_long = Rate {
        unit: Unit::Year,
        unit_multiplier: 101,
        ..FIVE
    };
    let (option, _) = error_of(&too_long, &Options::default());
    assert_eq!(option, "unit_multiplier");
}

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
            let mut words = error.remedy.split([' ', ',']);
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

#[test]
fn defaults_are_as_documented() {
    let default = |kind| Algorithm::try_new(&FIVE, &of_kind(kind)).expect("good defaults");
    assert!(matches!(
        default(AlgorithmKind::FixedWindow),
        Algorithm::FixedWindow(FixedWindow {
            count_denied: true,
            ..
        })
    ));
    assert!(matches!(
        default(AlgorithmKind::TokenBucket),
        Algorithm::TokenBucket(TokenBucket {
            burst: 5,
            debt: Debt::NONE,
            ..
        })
    ));
    assert!(matches!(
        default(AlgorithmKind::LeakyBucket),
        Algorithm::LeakyBucket(LeakyBucket { max_delay: 0, .. })
    ));
    let Algorithm::SlidingWindowBuckets(buckets) = default(AlgorithmKind::SlidingWindowBuckets)
    else {
        panic!("buckets")
    };
    assert_eq!(
        (buckets.interval, buckets.buckets, buckets.expiry),
        (1_000_000, 61, 61_000_000)
    );
    assert!(!default(AlgorithmKind::LeakyBucket).may_delay());
    for (_, kind) in AlgorithmKind::OVER_TIME {
        let none = Rate {
            requests_per_unit: 0,
            ..FIVE
        };
        let zero = Algorithm::try_new(&none, &of_kind(kind)).expect("a limit of 0");
        assert_eq!(zero.capacity(), 0);
        let retry_after = zero.step(None, at(START), 1).verdict.retry_after;
        assert_eq!(retry_after, Wait::Never);
    }
}
