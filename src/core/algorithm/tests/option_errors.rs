//! Options that do not belong to an algorithm, or are out of its bounds.

use super::*;

fn error_of(limit: u64, options: Options) -> (&'static str, String) {
    let rate = Rate {
        requests_per_unit: limit,
        unit: Unit::Minute,
        unit_multiplier: 1,
    };
    let error = Algorithm::try_new(&rate, &options).expect_err("an error");
    assert!(!error.what.is_empty() && !error.remedy.is_empty());
    (error.option, format!("{}: {}", error.what, error.remedy))
}

fn buckets() -> Options {
    Options {
        kind: AlgorithmKind::SlidingWindowBuckets,
        ..Options::default()
    }
}

#[test]
fn an_option_belongs_to_one_algorithm() {
    let second = Some(Span::from_secs(1));
    for (name, kind) in AlgorithmKind::OVER_TIME {
        let none = Options {
            kind,
            ..Options::default()
        };
        let given = [
            (
                "burst",
                AlgorithmKind::TokenBucket,
                Options {
                    burst: Some(1),
                    ..none
                },
            ),
            (
                "bucket_interval",
                AlgorithmKind::SlidingWindowBuckets,
                Options {
                    bucket_interval: second,
                    ..none
                },
            ),
            (
                "bucket_span",
                AlgorithmKind::SlidingWindowBuckets,
                Options {
                    bucket_span: second,
                    ..none
                },
            ),
            (
                "subject_expiry",
                AlgorithmKind::SlidingWindowBuckets,
                Options {
                    subject_expiry: second,
                    ..none
                },
            ),
            (
                "max_delay",
                AlgorithmKind::LeakyBucket,
                Options {
                    max_delay: second,
                    ..none
                },
            ),
        ];
        for (option, owner, options) in given {
            if owner != kind {
                let (place, text) = error_of(5, options);
                assert_eq!(place, option);
                assert_eq!(
                    text,
                    format!(
                        "'{option}' has no meaning for a {name}: remove it, or write 'algorithm: \
                         {}'",
                        owner.name()
                    )
                );
            }
        }
    }
}

/// Asserts that the errors of these limits per minute are about these options, and say this.
fn assert_errors(errors: impl IntoIterator<Item = (u64, Options, &'static str, &'static str)>) {
    for (limit, options, expected_option, part) in errors {
        let (option, text) = error_of(limit, options);
        assert_eq!(option, expected_option, "{text}");
        assert!(text.contains(part), "{text}");
    }
}

const fn secs(secs: u64) -> Span {
    Span::from_secs(secs)
}

#[test]
fn an_error_names_the_option_and_a_valid_value() {
    assert_errors([
        (
            5,
            Options {
                kind: AlgorithmKind::TokenBucket,
                burst: Some(0),
                ..Options::default()
            },
            "burst",
            "is 0",
        ),
        (
            100_001,
            Options {
                kind: AlgorithmKind::SlidingWindowLog,
                ..Options::default()
            },
            "algorithm",
            "sliding_window_buckets",
        ),
        (
            5,
            Options {
                kind: AlgorithmKind::LeakyBucket,
                max_delay: Some(secs(3_153_600_001)),
                ..Options::default()
            },
            "max_delay",
            "100 years",
        ),
        (
            5,
            Options {
                default_cost: Some(0),
                ..buckets()
            },
            "default_cost",
            "is 0",
        ),
    ]);
}

#[test]
fn an_error_names_a_window_that_is_too_long() {
    let rate = Rate {
        requests_per_unit: 1,
        unit: Unit::Year,
        unit_multiplier: 101,
    };
    assert_eq!(
        Algorithm::try_new(&rate, &Options::default())
            .expect_err("too long")
            .option,
        "unit_multiplier"
    );
}

#[test]
fn errors_of_debts_name_a_valid_value() {
    assert_errors([
        (
            5,
            Options {
                max_debt: Some(2),
                ..buckets()
            },
            "max_debt",
            "write 'count_denied: true'",
        ),
        (
            5,
            Options {
                max_debt: Some(0),
                count_denied: Some(true),
                ..buckets()
            },
            "max_debt",
            "not 1 to 100",
        ),
        (
            5,
            Options {
                max_debt: Some(101),
                count_denied: Some(true),
                ..buckets()
            },
            "max_debt",
            "not 1 to 100",
        ),
        (
            5,
            Options {
                max_debt: Some(2),
                ..Options::default()
            },
            "max_debt",
            "no meaning for a fixed_window",
        ),
    ]);
}

#[test]
fn errors_of_buckets_name_a_valid_value() {
    assert_errors([
        (
            5,
            Options {
                bucket_interval: Some(secs(0)),
                ..buckets()
            },
            "bucket_interval",
            "is 0",
        ),
        (
            5,
            Options {
                bucket_interval: Some(secs(61)),
                ..buckets()
            },
            "bucket_interval",
            "longer than the window of 60s",
        ),
        (
            5,
            Options {
                bucket_interval: Some(secs(5)),
                bucket_span: Some(secs(64)),
                ..buckets()
            },
            "bucket_span",
            "write 65s or more",
        ),
        (
            5,
            Options {
                bucket_interval: Some(secs(5)),
                subject_expiry: Some(secs(64)),
                ..buckets()
            },
            "subject_expiry",
            "write 65s or more",
        ),
    ]);
}

#[test]
fn errors_of_too_many_buckets_name_a_valid_value() {
    assert_errors([
        (
            5,
            Options {
                bucket_interval: Some(Span::from_micros(60_060)),
                ..buckets()
            },
            "bucket_interval",
            "write 61ms or more",
        ),
        (
            5,
            Options {
                bucket_interval: Some(secs(1)),
                bucket_span: Some(secs(1_001)),
                ..buckets()
            },
            "bucket_interval",
            "write 1001ms or more",
        ),
        (
            5,
            Options {
                bucket_span: Some(secs(1_001)),
                ..buckets()
            },
            "bucket_span",
            "write 1000s or less",
        ),
        (
            5,
            Options {
                bucket_interval: Some(secs(1)),
                bucket_span: Some(secs(99_999)),
                ..buckets()
            },
            "bucket_span",
            "write 1000s or less",
        ),
    ]);
}

#[test]
fn the_values_that_remedies_name_are_valid() {
    let rate = Rate {
        requests_per_unit: 5,
        unit: Unit::Minute,
        unit_multiplier: 1,
    };
    for options in [
        Options {
            bucket_interval: Some(secs(60)),
            ..buckets()
        },
        Options {
            bucket_interval: Some(secs(5)),
            bucket_span: Some(secs(65)),
            subject_expiry: Some(secs(65)),
            ..buckets()
        },
        Options {
            bucket_interval: Some(Span::from_micros(60_061)),
            ..buckets()
        },
        Options {
            bucket_interval: Some(Span::from_micros(1_001_000)),
            bucket_span: Some(secs(1_001)),
            ..buckets()
        },
        Options {
            bucket_span: Some(secs(1_000)),
            ..buckets()
        },
        Options {
            kind: AlgorithmKind::LeakyBucket,
            max_delay: Some(secs(3_153_600_000)),
            ..Options::default()
        },
    ] {
        assert!(Algorithm::try_new(&rate, &options).is_ok(), "{options:?}");
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
                Algorithm::try_new(
                    &rate,
                    &Options {
                        kind,
                        scale: Some(scale),
                        ..Options::default()
                    },
                )
            };
            let error = of(MAX_SAFE_INTEGER / u64::from(scale) + 1).expect_err(name);
            if kind == AlgorithmKind::SlidingWindowLog {
                continue;
            }
            let largest: u64 = error
                .remedy
                .split([' ', ','])
                .find_map(|word| word.parse().ok())
                .expect("a number");
            assert_eq!(error.option, "requests_per_unit");
            assert_eq!(
                of(largest).expect(name).capacity() >= largest * u64::from(scale),
                kind != AlgorithmKind::LeakyBucket,
                "{name}"
            );
            assert!(
                of(largest + 1).is_err(),
                "{name}, {largest} units of {scale}"
            );
            assert!(
                largest * u64::from(scale) > 1 << 42,
                "{name}: {largest} units of {scale}"
            );
        }
    }
}

#[test]
fn defaults_are_as_documented() {
    let rate = Rate {
        requests_per_unit: 5,
        unit: Unit::Minute,
        unit_multiplier: 1,
    };
    let default = |kind| {
        Algorithm::try_new(
            &rate,
            &Options {
                kind,
                ..Options::default()
            },
        )
        .expect("good defaults")
    };
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
        let zero = Algorithm::try_new(
            &Rate {
                requests_per_unit: 0,
                ..rate
            },
            &Options {
                kind,
                ..Options::default()
            },
        )
        .expect("a limit of 0");
        assert_eq!(zero.capacity(), 0);
        assert_eq!(
            zero.step(None, at(START), 1).verdict.retry_after,
            Wait::Never
        );
    }
}
