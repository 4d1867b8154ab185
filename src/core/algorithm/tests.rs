//! Properties of all algorithms, on random limits, hits and clocks. The meaning of each one is in
//! `tests/naive.rs`.

mod bounds;
mod large;
mod naive;
mod option_errors;

use proptest::prelude::*;

use super::*;
use crate::core::time::{MAX_SAFE_INTEGER, Micros, Rate, Tick, Unit};
use crate::core::verdict::{Verdict, Wait};

/// An instant that minutes, hours and days begin at.
const START: u64 = 1_800_057_600_000_000;

/// Ticks no longer advance from here on.
const LAST: u64 = MAX_SAFE_INTEGER;

fn at(micros: u64) -> Arrival {
    Arrival {
        now: Micros(micros),
        max_wait: Span::MAX,
    }
}

/// The algorithm of these numbers, or of smaller amounts if those are too large for it.
fn made(
    kind: AlgorithmKind,
    limit: u64,
    secs: u32,
    count_denied: bool,
    burst: u64,
    max_delay: Span,
) -> Algorithm {
    let rate = Rate {
        requests_per_unit: limit,
        unit: Unit::Second,
        unit_multiplier: secs,
    };
    let options = Options {
        kind,
        burst: (kind == AlgorithmKind::TokenBucket).then_some(burst.max(1)),
        max_delay: (kind == AlgorithmKind::LeakyBucket).then_some(max_delay),
        bucket_interval: (kind == AlgorithmKind::SlidingWindowBuckets && burst.is_multiple_of(2))
            .then(|| {
                Span::from_micros(rate.window().expect("a window").micros() / (burst % 90 + 1))
            }),
        count_denied: Some(count_denied),
        max_debt: (count_denied && kind != AlgorithmKind::FixedWindow && burst.is_multiple_of(3))
            .then(|| (burst / 3 % 100) as u32 + 1),
        ..Options::default()
    };
    match Algorithm::try_new(&rate, &options) {
        Ok(algorithm) => algorithm,
        Err(error)
            if matches!(error.option, "requests_per_unit" | "burst")
                && limit.max(burst) > u32::MAX.into() =>
        {
            made(kind, limit / 3, secs, count_denied, burst / 3, max_delay)
        }
        Err(error) => panic!("options that belong together: {error:?}"),
    }
}

fn amount() -> impl Strategy<Value = u64> {
    let large = any::<u32>().prop_map(u64::from);
    prop_oneof![
        8 => 0_u64..8,
        4 => 8_u64..200,
        2 => large,
        1 => Just(u32::MAX.into()),
        1 => 0..=MAX_SAFE_INTEGER,
        1 => Just(MAX_SAFE_INTEGER),
    ]
}

/// Any algorithm except `without`.
fn algorithm(
    count_denied: impl Strategy<Value = bool>,
    without: &'static [AlgorithmKind],
) -> impl Strategy<Value = Algorithm> {
    let kinds: Vec<_> = AlgorithmKind::OVER_TIME
        .iter()
        .map(|&(_, kind)| kind)
        .filter(|kind| !without.contains(kind))
        .collect();
    let secs = prop_oneof![
        Just(1_u32),
        Just(7),
        Just(60),
        Just(86_400),
        Just(31_536_000),
        Just(3_153_600_000)
    ];
    let delay = prop_oneof![
        Just(0_u64),
        0_u64..100_000_000,
        0..=3_153_600_000_000_000_u64
    ];
    (
        prop::sample::select(kinds),
        amount(),
        secs,
        count_denied,
        amount(),
        delay,
    )
        .prop_map(|(kind, limit, secs, count_denied, burst, delay)| {
            let limit = if kind == AlgorithmKind::SlidingWindowLog {
                limit % 1_000
            } else {
                limit
            };
            made(
                kind,
                limit,
                secs,
                count_denied,
                burst,
                Span::from_micros(delay),
            )
        })
}

fn window(algorithm: &Algorithm) -> Span {
    match algorithm {
        Algorithm::FixedWindow(fixed) => fixed.window.shortest(),
        Algorithm::SlidingWindowLog(log) => Span::from_micros(log.window),
        Algorithm::SlidingWindowCounter(counter) => counter.tick.span(counter.window),
        Algorithm::SlidingWindowBuckets(buckets) => Span::from_micros(buckets.window),
        Algorithm::TokenBucket(token) => token.tick.span(token.flow.window),
        Algorithm::LeakyBucket(leaky) => leaky.tick.span(leaky.flow.window),
        Algorithm::Concurrency(concurrency) => Span::from_micros(concurrency.max_duration),
    }
}

/// Hits as parts of the capacity or few, and pauses as parts of the window or short.
#[derive(Clone, Copy, Debug)]
enum Act {
    Few(i64),
    /// Thousandths of the capacity.
    Part(i64),
    Any(i64),
}

type Acts = Vec<(u64, Act)>;

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        6 => (1_i64..4).prop_map(Act::Few),
        3 => (1_i64..1_100).prop_map(Act::Part),
        1 => Just(Act::Few(0)),
        1 => (-3_i64..0).prop_map(Act::Few),
        1 => any::<i64>().prop_map(Act::Any),
    ]
}

/// The pauses are in 16ths of a window: most are shorter than one.
fn acts(act: impl Strategy<Value = Act>) -> impl Strategy<Value = Acts> {
    let pause = prop_oneof![4 => Just(0_u64), 4 => 0_u64..6, 2 => 6_u64..17, 1 => 17_u64..100];
    prop::collection::vec((pause, act), 1..40)
}

fn hits(algorithm: &Algorithm, act: Act) -> i64 {
    match act {
        Act::Few(hits) | Act::Any(hits) => hits,
        Act::Part(part) => (algorithm.capacity().cast_signed() / 1_000 * part
            + algorithm.capacity().cast_signed() % 1_000 * part / 1_000)
            .max(1),
    }
}

/// Runs acts one after the other and hands over each: what was stored, when, how many hits, and the
/// step.
fn run(
    algorithm: &Algorithm,
    acts: &Acts,
    mut each: impl FnMut(&Option<State>, u64, i64, &Step),
) -> (Option<State>, u64) {
    let (mut state, mut now) = (None, START);
    for &(pause, act) in acts {
        // Not a round share: edges are met from both sides.
        now += window(algorithm).micros() / 16 * pause + pause * 37 % 11;
        let hits = hits(algorithm, act);
        let step = algorithm.step(state.clone(), at(now), hits);
        each(&state, now, hits, &step);
        state = step.state;
    }
    (state, now)
}

fn peek(algorithm: &Algorithm, state: Option<&State>, now: u64) -> Verdict {
    algorithm.step(state.cloned(), at(now), 0).verdict
}

/// Whether a retry after exactly its time is allowed, and one tick earlier refused.
fn check_retry(
    algorithm: &Algorithm,
    state: Option<&State>,
    now: u64,
    hits: i64,
    retry: Wait,
) -> Result<(), TestCaseError> {
    let tick = algorithm.tick().micros();
    match retry {
        Wait::Never => prop_assert!(hits > algorithm.capacity().cast_signed()),
        Wait::For(span)
            if now
                .checked_add(span.micros())
                .is_none_or(|then| then > LAST) => {}
        Wait::For(span) => {
            prop_assert!(hits <= algorithm.capacity().cast_signed());
            prop_assert!(span.micros() >= tick, "a refused check waits");
            prop_assert!(
                span.micros() % tick == 0 || matches!(algorithm, Algorithm::FixedWindow(_))
            );
            let then = now + span.micros();
            prop_assert!(
                algorithm
                    .step(state.cloned(), at(then), hits)
                    .verdict
                    .allowed,
                "allowed after {:?}",
                span
            );
            prop_assert!(
                !algorithm
                    .step(state.cloned(), at(then - tick), hits)
                    .verdict
                    .allowed,
                "refused before {:?}",
                span
            );
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(crate::testing::property(3_000))]

    #[test]
    fn a_retry_is_exact_and_a_reset_too(
        algorithm in algorithm(any::<bool>(), &[]),
        acts in acts(act()),
    ) {
        let mut result = Ok(());
        run(&algorithm, &acts, |_, now, hits, step| {
            let verdict = step.verdict;
            if result.is_ok() && !verdict.allowed {
                result = check_retry(
                    &algorithm,
                    step.state.as_ref(),
                    now,
                    hits,
                    verdict.retry_after,
                );
            }
            let (tick, reset) = (algorithm.tick().micros(), verdict.reset_after.micros());
            let is_fixed = matches!(algorithm, Algorithm::FixedWindow(_));
            if result.is_ok() && !is_fixed && reset > 0 && now.saturating_add(reset) <= LAST {
                let recovered = peek(&algorithm, step.state.as_ref(), now + reset);
                result = (|| {
                    prop_assert_eq!((recovered.used, recovered.reset_after), (0, Span::ZERO));
                    prop_assert!(
                        peek(&algorithm, step.state.as_ref(), now + reset - tick).reset_after
                            > Span::ZERO
                    );
                    Ok(())
                })();
            }
        });
        result?;
    }

    #[test]
    fn what_is_not_counted_changes_nothing(
        algorithm in algorithm(Just(false), &[]),
        acts in acts(act()),
    ) {
        let mut result = Ok(());
        run(&algorithm, &acts, |before, _, hits, step| {
            if result.is_ok() && (hits == 0 || !step.verdict.allowed) {
                result = (|| {
                    prop_assert_eq!(step.keep_for, None);
                    prop_assert_eq!(&step.state, before);
                    Ok(())
                })();
            }
        });
        result?;
    }

    #[test]
    fn looks_write_nothing_and_are_refused_exactly_in_debt(
        algorithm in algorithm(any::<bool>(), &[]),
        acts in acts(act()),
    ) {
        let (state, now) = run(&algorithm, &acts, |_, _, _, _| {});
        let step = algorithm.step(state.clone(), at(now), 0);
        prop_assert_eq!(step.keep_for, None);
        prop_assert_eq!(&step.state, &state);
        prop_assert_eq!(
            step.verdict.allowed,
            step.verdict.used <= algorithm.capacity()
        );
        if !step.verdict.allowed {
            check_retry(&algorithm, state.as_ref(), now, 0, step.verdict.retry_after)?;
        }
        let capacity = algorithm.capacity();
        prop_assert_eq!(
            step.verdict.remaining,
            capacity.saturating_sub(step.verdict.used)
        );
        let debt = match algorithm {
            Algorithm::LeakyBucket(leaky) => algorithm.debt().limits() * leaky.flow.limit,
            Algorithm::FixedWindow(_) => u64::MAX / 2,
            _ => algorithm.debt().limits() * capacity,
        };
        prop_assert!(
            step.verdict.used <= capacity + debt,
            "debt of at most so many full limits"
        );
    }

    #[test]
    fn what_remains_fits_and_not_one_more(
        algorithm in algorithm(any::<bool>(), &[]),
        acts in acts(act()),
    ) {
        let (state, now) = run(&algorithm, &acts, |_, _, _, _| {});
        let remaining = peek(&algorithm, state.as_ref(), now)
            .remaining
            .cast_signed();
        if remaining > 0 {
            let step = algorithm.step(state.clone(), at(now), remaining);
            prop_assert!(step.verdict.allowed);
            prop_assert_eq!(step.verdict.remaining, 0);
        }
        prop_assert!(
            !algorithm
                .step(state, at(now), remaining + 1)
                .verdict
                .allowed
        );
    }

    #[test]
    fn after_its_time_a_state_means_nothing(
        algorithm in algorithm(any::<bool>(), &[]),
        acts in acts(act()),
        gap in prop_oneof![0_u64..3, any::<u64>()],
        then in act(),
    ) {
        let (mut kept, mut is_longest) = (None, false);
        run(&algorithm, &acts, |_, now, _, step| {
            if let Some(keep) = step.keep_for {
                is_longest = keep.micros() > 1 << 52;
                kept = Some((step.state.clone(), now.saturating_add(keep.micros())));
            }
        });
        // None is kept for more than 142 years.
        if let Some((state, until)) = kept.filter(|_| !is_longest) {
            let (now, hits) = (until.saturating_add(gap), hits(&algorithm, then));
            if now <= LAST {
                let fresh = algorithm.step(None, at(now), hits);
                prop_assert_eq!(algorithm.step(state, at(now), hits).verdict, fresh.verdict);
            }
        }
    }

    #[test]
    fn giving_back_stops_at_empty(
        algorithm in algorithm(any::<bool>(), &[]),
        acts in acts(act()),
        some in 1_i64..1_000,
    ) {
        let (state, now) = run(&algorithm, &acts, |_, _, _, _| {});
        let before = peek(&algorithm, state.as_ref(), now).used;
        let less = algorithm.step(state.clone(), at(now), -some).verdict;
        prop_assert!(less.allowed);
        prop_assert!(
            before.saturating_sub(some.unsigned_abs()) <= less.used && less.used <= before
        );
        let all = algorithm.step(state, at(now), i64::MIN);
        prop_assert!(all.verdict.allowed);
        prop_assert_eq!(
            (all.verdict.used, all.verdict.remaining),
            (0, algorithm.capacity())
        );
        let full = algorithm.capacity().cast_signed();
        prop_assert!(
            full == 0
                || algorithm
                    .step(all.state.clone(), at(now), full)
                    .verdict
                    .allowed
        );
        prop_assert!(!algorithm.step(all.state, at(now), full + 1).verdict.allowed);
    }

    #[test]
    fn a_larger_limit_never_refuses_what_a_smaller_one_allows(
        smaller in algorithm(any::<bool>(), &[]),
        acts in acts(act()),
        more in amount(),
        pause in 0_u64..20,
        then in act(),
    ) {
        let (state, now) = run(&smaller, &acts, |_, _, _, _| {});
        let mut larger = smaller;
        match &mut larger {
            Algorithm::FixedWindow(fixed) => {
                fixed.limit = fixed.limit.saturating_add(more).min(MAX_SAFE_INTEGER);
            }
            Algorithm::SlidingWindowLog(log) => {
                log.limit = log.limit.saturating_add(more % 100_000);
            }
            Algorithm::Concurrency(concurrency) => concurrency.limit += 1,
            Algorithm::SlidingWindowBuckets(buckets) => {
                buckets.limit = buckets.limit.saturating_add(more);
            }
            // These must keep to the bounds of their tick.
            Algorithm::SlidingWindowCounter(counter) => {
                counter.limit += u64::from(counter.limit > 100 && counter.limit < u32::MAX.into());
            }
            Algorithm::TokenBucket(token) => {
                token.flow.limit = token.flow.limit.max(token.burst.min(more));
            }
            Algorithm::LeakyBucket(leaky) => {
                leaky.flow.limit += u64::from(
                    leaky.flow.limit > 100
                        && leaky.flow.limit < u32::MAX.into()
                        && leaky.max_delay < leaky.flow.window,
                );
            }
        }
        let (now, hits) = (
            now + window(&smaller).micros() / 16 * pause,
            hits(&smaller, then),
        );
        let (by_smaller, by_larger) = (
            smaller.step(state.clone(), at(now), hits).verdict,
            larger.step(state, at(now), hits).verdict,
        );
        prop_assert!(by_larger.allowed || !by_smaller.allowed);
    }

    #[test]
    fn a_clock_that_goes_back_neither_locks_nor_opens(
        algorithm in algorithm(any::<bool>(), &[]),
        acts in acts(act()),
        back in prop_oneof![0_u64..40, any::<u64>()],
    ) {
        // From the last write on, or from the last hit, a clock may be behind. Or from any hit: a
        // refund leaves an older one as the newest.
        let (mut written, mut taken, mut hits_at) = (START, START, Vec::new());
        let (state, now) = run(&algorithm, &acts, |_, now, hits, step| {
            if step.keep_for.is_some() {
                hits_at.extend((hits > 0).then_some(now));
                (written, taken) = (now, if hits > 0 { now } else { taken });
            }
        });
        let fill = |mut state: Option<State>, now: u64| {
            let fits = peek(&algorithm, state.as_ref(), now).remaining;
            if fits > 0 {
                state = algorithm.step(state, at(now), fits.cast_signed()).state;
            }
            (state, fits)
        };
        let (state, first) = fill(state, now);
        let (written, taken) = if first > 0 {
            (now, now)
        } else {
            (written, taken)
        };
        let then = now
            - (window(&algorithm).micros() / 16)
                .saturating_mul(back)
                .min(now);
        let (_, second) = fill(state.clone(), then);
        let capacity = algorithm.capacity();
        prop_assert!(first + second <= 2 * capacity, "one extra limit at most");
        if capacity > 0 {
            let longest = |now| match algorithm.step(state.clone(), at(now), 1).verdict {
                Verdict { allowed: true, .. } => Span::ZERO,
                Verdict {
                    retry_after: Wait::For(span),
                    ..
                } => span,
                Verdict {
                    retry_after: Wait::Never,
                    ..
                } => unreachable!("one hit fits"),
            };
            // Hits that the clock cuts off continue at the start of its bucket or window.
            let extra = match algorithm {
                Algorithm::SlidingWindowBuckets(buckets) => 2 * buckets.interval,
                Algorithm::FixedWindow(_) | Algorithm::SlidingWindowCounter(_) => {
                    window(&algorithm).micros()
                }
                _ => 0,
            };
            let before = [written, taken]
                .into_iter()
                .chain(hits_at)
                .map(longest)
                .max()
                .unwrap_or_default()
                .micros();
            let after = longest(then).micros();
            prop_assert!(
                after <= before.saturating_add(window(&algorithm).micros() + extra),
                "one \
                window at most: {} {}",
                before,
                after
            );
            let refused = algorithm.step(state.clone(), at(then), 1);
            if !refused.verdict.allowed {
                check_retry(
                    &algorithm,
                    refused.state.as_ref(),
                    then,
                    1,
                    refused.verdict.retry_after,
                )?;
            }
        }
    }
}
