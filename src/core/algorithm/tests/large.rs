//! Large amounts, compared with a model in 128 bits without units: every time is exact to a second,
//! however long a key is in use.

use super::*;

/// An algorithm of a large amount, its amount, and its window in microseconds.
fn large(kind: AlgorithmKind) -> impl Strategy<Value = (Algorithm, u64, u64)> {
    let secs = prop_oneof![
        Just(1_u32),
        Just(60),
        Just(86_400),
        Just(2_592_000),
        Just(31_536_000),
        1..=3_153_600_000_u32
    ];
    // From 2^30 on, of all sizes.
    (any::<u64>(), 12_u32..34, secs).prop_map(move |(amount, shift, secs)| {
        let algorithm = made(
            kind,
            amount >> shift | 1 << 30,
            secs,
            false,
            u64::MAX >> 12,
            Span::ZERO,
        );
        let algorithm = if kind == AlgorithmKind::TokenBucket {
            algorithm
                .with_limit(amount >> shift | 1 << 30)
                .unwrap_or(algorithm)
        } else {
            algorithm
        };
        let limit = match algorithm {
            Algorithm::TokenBucket(bucket) => bucket.flow.limit,
            other => other.capacity(),
        };
        (algorithm, limit, u64::from(secs) * 1_000_000)
    })
}

fn near(span: Span, micros: u128) -> bool {
    // No clock of Weir goes farther.
    micros > u128::from(LAST) || u128::from(span.micros()).abs_diff(micros) <= 1_000_000
}

proptest! {
    #![proptest_config(crate::testing::property(3_000))]

    #[test]
    fn a_bucket_refills_as_its_rate_says(
        (algorithm, limit, window) in large(AlgorithmKind::TokenBucket),
        acts in acts(act()),
    ) {
        let Algorithm::TokenBucket(bucket) = algorithm else {
            unreachable!()
        };
        prop_assert!(bucket.tick.micros() <= 1_000_000);
        let (limit, window, burst) = (
            u128::from(limit),
            u128::from(window),
            u128::from(bucket.burst),
        );
        // The missing amount, in hits times microseconds of the window, and since when.
        let (mut missing, mut last, mut result) = (0_u128, START / 10_000_000 * 10_000_000, Ok(()));
        run(&algorithm, &acts, |_, now, hits, step| {
            let now = now / bucket.tick.micros() * bucket.tick.micros();
            missing = u128::saturating_sub(missing, limit * u128::from(now - last));
            last = now;
            if step.verdict.allowed && hits >= 0 {
                missing += u128::from(hits.unsigned_abs()) * window;
            } else if hits < 0 {
                missing = missing.saturating_sub(u128::from(hits.unsigned_abs()) * window);
            }
            if result.is_ok() {
                result = (|| {
                    // At most a second's refill more than the burst.
                    prop_assert!(missing <= burst * window + limit * 1_000_000 + window);
                    prop_assert!(
                        near(step.verdict.reset_after, missing.div_ceil(limit)),
                        "{:?} {}",
                        step.verdict,
                        missing.div_ceil(limit)
                    );
                    Ok(())
                })();
            }
        });
        result?;
    }

    #[test]
    fn a_counter_weighs_its_windows(
        (algorithm, limit, window) in large(AlgorithmKind::SlidingWindowCounter),
        acts in acts(act()),
    ) {
        let tick = algorithm.tick().micros();
        prop_assert!(tick <= 1_000_000 && window % tick == 0);
        // The number of the window, its hits, and the hits of the previous one.
        let (mut number, mut current, mut previous, mut result) =
            (START / window, 0_u128, 0_u128, Ok(()));
        run(&algorithm, &acts, |_, now, hits, step| {
            let now = now / tick * tick;
            let next = now / window;
            (current, previous) = match next - number {
                0 => (current, previous),
                1 => (0, current),
                _ => (0, 0),
            };
            number = next;
            let elapsed = u128::from(now % window);
            let count = |current: u128, previous: u128| {
                current + (previous * (u128::from(window) - elapsed)).div_ceil(u128::from(window))
            };
            let asked = u128::from(hits.unsigned_abs());
            let allowed = hits < 0 || count(current, previous) + asked <= u128::from(limit);
            if hits < 0 {
                (current, previous) = (
                    current.saturating_sub(asked),
                    previous.saturating_sub(asked.saturating_sub(current)),
                );
            } else if allowed {
                current += asked;
            }
            let reset = if current > 0 {
                2 * u128::from(window) - elapsed
            } else if previous > 0 {
                u128::from(window) - elapsed
            } else {
                0
            };
            if result.is_ok() {
                result = (|| {
                    prop_assert_eq!(step.verdict.allowed, allowed);
                    prop_assert_eq!(u128::from(step.verdict.used), count(current, previous));
                    prop_assert_eq!(u128::from(step.verdict.reset_after.micros()), reset);
                    Ok(())
                })();
            }
        });
        result?;
    }

    #[test]
    fn a_queue_drains_as_its_rate_says(
        (algorithm, _, window) in large(AlgorithmKind::LeakyBucket),
        (more, parts) in (
            0_u64..100,
            prop_oneof![Just(100_u64), Just(10_000), Just(1_000_000)],
        ),
        acts in acts(act()),
    ) {
        let Algorithm::LeakyBucket(queue) = algorithm else {
            unreachable!()
        };
        // Its window may be far longer than the queue.
        let queue = LeakyBucket::new(
            queue.flow.limit / 4,
            Span::from_micros(window / parts * more),
            Span::from_micros(window),
            Debt::NONE,
        );
        prop_assert!(queue.tick.micros() <= 1_000_000);
        let (limit, window) = (u128::from(queue.flow.limit), u128::from(window));
        let (mut backlog, mut last, mut result) = (0_u128, START / 10_000_000 * 10_000_000, Ok(()));
        run(
            &Algorithm::LeakyBucket(queue),
            &acts,
            |_, now, hits, step| {
                let now = now / queue.tick.micros() * queue.tick.micros();
                backlog = u128::saturating_sub(backlog, limit * u128::from(now - last));
                last = now;
                let before = backlog;
                if step.verdict.allowed && hits >= 0 {
                    backlog += u128::from(hits.unsigned_abs()) * window;
                } else if hits < 0 {
                    backlog = backlog.saturating_sub(u128::from(hits.unsigned_abs()) * window);
                }
                if result.is_ok() && limit > 0 {
                    result = (|| {
                        prop_assert!(
                            near(step.verdict.reset_after, backlog.div_ceil(limit)),
                            "{:?} {}",
                            step.verdict,
                            backlog.div_ceil(limit)
                        );
                        prop_assert!(
                            !step.verdict.allowed
                                || hits <= 0
                                || near(step.verdict.delay, before.div_ceil(limit)),
                            "{:?}",
                            step.verdict
                        );
                        Ok(())
                    })();
                }
            },
        );
        result?;
    }
}
