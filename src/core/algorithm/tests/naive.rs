//! Each algorithm compared with its definition: a list of all hits that were taken, and nothing
//! clever.
//!
//! Small numbers, to meet every edge: windows of one second, ticks of a microsecond, times in
//! tenths of the window and one off.

use super::*;

/// A hit that was taken: its tick, and how many.
type Taken = Vec<(u64, u64)>;

const WINDOW: u64 = 1_000_000;

#[derive(Clone, Copy, Debug)]
struct TimedHits {
    pause: u64,
    hits: i64,
}

fn asks(least: i64) -> impl Strategy<Value = Vec<TimedHits>> {
    let pause = prop_oneof![
        3 => Just(0_u64),
        3 => (0_u64..15, 0_u64..3)
            .prop_map(|(tenths, off)| (tenths * WINDOW / 10 + off).saturating_sub(1)),
        2 => 0..WINDOW,
        1 => 0..5 * WINDOW,
    ];
    prop::collection::vec(
        (pause, least..5).prop_map(|(pause, hits)| TimedHits { pause, hits }),
        1..60,
    )
}

/// Takes hits away, newest first, of those that count.
fn refund(taken: &mut Taken, mut hits: u64, counts: impl Fn(u64) -> bool) {
    for (tick, count) in taken.iter_mut().rev() {
        if counts(*tick) {
            let less = hits.min(*count);
            *count -= less;
            hits -= less;
        }
    }
    taken.retain(|(_, count)| *count > 0);
}

/// A window's algorithm whose hits count one by one, by `counts(tick of the hit, now)`.
fn check_window(
    algorithm: &Algorithm,
    asks: &[TimedHits],
    counts: impl Fn(u64, u64) -> bool,
) -> Result<(), TestCaseError> {
    let (limit, count_denied) = match algorithm {
        Algorithm::SlidingWindowLog(log) => (log.limit, log.debt.counts()),
        Algorithm::SlidingWindowBuckets(buckets) => (buckets.limit, buckets.debt.counts()),
        _ => unreachable!("no window of single hits"),
    };
    let (mut taken, mut state, mut now) = (Taken::new(), None, START);
    for TimedHits { pause, hits } in asks {
        now += pause;
        let count = |taken: &Taken, now| {
            taken
                .iter()
                .filter(|(tick, _)| counts(*tick, now))
                .map(|(_, hits)| hits)
                .sum::<u64>()
        };
        let before = count(&taken, now);
        let allowed = match u64::try_from(*hits) {
            Ok(0) => before <= limit,
            Ok(asked) => before + asked <= limit,
            Err(_) => true,
        };
        match u64::try_from(*hits) {
            Ok(0) => {}
            Ok(asked) if allowed => taken.push((now, asked)),
            Ok(asked) if count_denied => taken.push((now, asked.min(2 * limit - before))),
            Ok(_) => {}
            Err(_) => refund(&mut taken, hits.unsigned_abs(), |tick| counts(tick, now)),
        }
        let step = algorithm.step(state, at(now), *hits);
        state = step.state;
        prop_assert_eq!(
            (step.verdict.allowed, step.verdict.used),
            (allowed, count(&taken, now))
        );
    }
    Ok(())
}

proptest! {
    #![proptest_config(crate::testing::property(3_000))]

    #[test]
    fn the_log_counts_what_is_younger_than_a_window(
        limit in 0_u64..12,
        count_denied in any::<bool>(),
        asks in asks(-3),
    ) {
        let algorithm = made(
            AlgorithmKind::SlidingWindowLog,
            limit,
            1,
            count_denied,
            1,
            Span::ZERO,
        );
        check_window(&algorithm, &asks, |tick, now| now - tick < WINDOW)?;
    }

    #[test]
    fn buckets_count_whole_buckets_that_the_window_reaches_into(
        limit in 0_u64..12,
        count_denied in any::<bool>(),
        asks in asks(-3),
        interval in prop_oneof![Just(100_000_u64), Just(WINDOW), 1_001..WINDOW],
        more in 0_u64..3 * WINDOW,
    ) {
        let rate = Rate {
            requests_per_unit: limit,
            unit: Unit::Second,
            unit_multiplier: 1,
        };
        let span = (WINDOW + interval + more)
            .min(1_000 * interval)
            .max(WINDOW + interval);
        let options = Options {
            kind: AlgorithmKind::SlidingWindowBuckets,
            bucket_interval: Some(Span::from_micros(interval)),
            bucket_span: Some(Span::from_micros(span)),
            count_denied: Some(count_denied),
            ..Options::default()
        };
        prop_assume!(span.div_ceil(interval) <= 1_000);
        let algorithm = Algorithm::try_new(&rate, &options).expect("good options");
        // The last tick of the hit's bucket is younger than a window.
        check_window(&algorithm, &asks, |tick, now| {
            tick / interval * interval + interval - 1 + WINDOW > now
        })?;
    }

    #[test]
    fn buckets_count_over_any_recent_interval(
        asks in asks(1),
        interval in prop_oneof![Just(50_000_u64), 5_001..WINDOW],
        over in 1..4 * WINDOW,
    ) {
        let span = (over + interval).max(WINDOW + interval);
        prop_assume!(span.div_ceil(interval) <= 1_000);
        let buckets = u16::try_from(span.div_ceil(interval)).expect("few");
        let ring = SlidingWindowBuckets {
            limit: 1_000,
            window: WINDOW,
            interval,
            buckets,
            expiry: span,
            debt: Debt::NONE,
        };
        let (mut taken, mut state, mut now) = (Taken::new(), None, START);
        for TimedHits { pause, hits } in asks {
            now += pause;
            taken.push((now, hits.unsigned_abs()));
            state = ring.step(state, at(now), hits).state;
            let expected: u64 = taken
                .iter()
                .filter(|(tick, _)| tick / interval * interval + interval - 1 + over > now)
                .map(|(_, hits)| hits)
                .sum();
            prop_assert_eq!(
                ring.count_over(state.as_ref(), Micros(now), Span::from_micros(over)),
                expected
            );
        }
    }

    #[test]
    fn the_counter_weighs_the_window_before(
        limit in 0_u64..12,
        count_denied in any::<bool>(),
        asks in asks(-3),
    ) {
        let algorithm = made(
            AlgorithmKind::SlidingWindowCounter,
            limit,
            1,
            count_denied,
            1,
            Span::ZERO,
        );
        let (limit, mut taken, mut state, mut now) = (limit as f64, Taken::new(), None, START);
        for TimedHits { pause, hits } in asks {
            now += pause;
            let number = now / WINDOW;
            // Hits of the window before count as far as it is still within reach: all numbers here
            // are far below what f64 holds exactly.
            let weigh = |taken: &Taken| {
                let of = |wanted: u64| {
                    taken
                        .iter()
                        .filter(|(tick, _)| tick / WINDOW == wanted)
                        .map(|(_, hits)| *hits)
                        .sum::<u64>() as f64
                };
                of(number) * WINDOW as f64 + of(number - 1) * (WINDOW - now % WINDOW) as f64
            };
            let (before, full) = (weigh(&taken), limit * WINDOW as f64);
            let allowed = hits < 0 || before + hits as f64 * WINDOW as f64 <= full;
            if hits > 0 {
                let debt = ((2.0 * full - before) / WINDOW as f64)
                    .floor()
                    .max(0.0)
                    .min(hits as f64);
                taken.push((
                    now,
                    if allowed {
                        hits.unsigned_abs()
                    } else if count_denied {
                        debt as u64
                    } else {
                        0
                    },
                ));
            } else {
                refund(&mut taken, hits.unsigned_abs(), |tick| {
                    tick / WINDOW + 1 >= number
                });
            }
            let step = algorithm.step(state, at(now), hits);
            state = step.state;
            prop_assert_eq!(
                (step.verdict.allowed, step.verdict.used),
                (allowed, (weigh(&taken) / WINDOW as f64).ceil() as u64)
            );
        }
    }

    /// No more than the burst and what was refilled since, from any hit on.
    #[test]
    fn tokens_are_the_burst_and_the_refill_since_any_hit(
        limit in 1_u64..12,
        burst in 1_u64..12,
        asks in asks(0),
    ) {
        let algorithm = made(
            AlgorithmKind::TokenBucket,
            limit,
            1,
            false,
            burst,
            Span::ZERO,
        );
        let (limit, burst, mut taken, mut state, mut now) = (
            i128::from(limit),
            i128::from(burst),
            Taken::new(),
            None,
            START,
        );
        for TimedHits { pause, hits } in asks {
            now += pause;
            let missing = |taken: &Taken| {
                let since = |index: usize| {
                    let hits: u64 = taken[index..].iter().map(|(_, hits)| hits).sum();
                    i128::from(hits) * i128::from(WINDOW) - limit * i128::from(now - taken[index].0)
                };
                (0..taken.len()).map(since).max().unwrap_or(0).max(0)
            };
            let allowed = missing(&taken) + i128::from(hits) * i128::from(WINDOW)
                <= burst * i128::from(WINDOW);
            if allowed && hits > 0 {
                taken.push((now, hits.unsigned_abs()));
            }
            let step = algorithm.step(state, at(now), hits);
            state = step.state;
            let used = (missing(&taken) + i128::from(WINDOW) - 1) / i128::from(WINDOW);
            prop_assert_eq!(
                (step.verdict.allowed, i128::from(step.verdict.used)),
                (allowed, used)
            );
        }
    }

    /// Each hit has a slot of its own, a spacing after the one before it, and none before it came.
    #[test]
    fn a_queue_gives_each_hit_a_slot(
        limit in 1_u64..12,
        delay in prop_oneof![Just(0), 0..3 * WINDOW],
        patience in prop_oneof![Just(u64::MAX), 0..2 * WINDOW],
        asks in asks(0),
    ) {
        let algorithm = made(
            AlgorithmKind::LeakyBucket,
            limit,
            1,
            false,
            1,
            Span::from_micros(delay),
        );
        // Times here have as many parts per tick as the limit, which makes slots whole: a spacing
        // is a window's ticks of parts.
        let (parts, mut state, mut now, mut next) = (limit, None, START, 0);
        for TimedHits { pause, hits } in asks {
            now += pause;
            let first = next.max(now * parts);
            let held = (first - now * parts).div_ceil(parts);
            let last = first + hits.unsigned_abs().saturating_sub(1) * WINDOW;
            let allowed = hits == 0 || (last - now * parts <= delay * parts && held <= patience);
            if allowed && hits > 0 {
                next = last + WINDOW;
            }
            let step = algorithm.step(
                state,
                Arrival {
                    now: Micros(now),
                    max_wait: Span::from_micros(patience),
                },
                hits,
            );
            state = step.state;
            prop_assert_eq!(step.verdict.allowed, allowed);
            prop_assert_eq!(
                step.verdict.delay,
                Span::from_micros(if allowed && hits > 0 { held } else { 0 })
            );
        }
    }

    #[test]
    fn refused_hits_of_a_fixed_window_count_only_when_they_shall(
        limit in 0_u64..12,
        count_denied in any::<bool>(),
        asks in asks(-3),
    ) {
        let algorithm = made(
            AlgorithmKind::FixedWindow,
            limit,
            1,
            count_denied,
            1,
            Span::ZERO,
        );
        let (mut state, mut now, mut number, mut count) = (None, START, 0, 0);
        for TimedHits { pause, hits } in asks {
            now += pause;
            if now / WINDOW != number {
                (number, count) = (now / WINDOW, 0);
            }
            let asked = match u64::try_from(hits) {
                Ok(hits) => count + hits,
                Err(_) => count.saturating_sub(hits.unsigned_abs()),
            };
            let allowed = hits < 0 || asked <= limit;
            if allowed || count_denied {
                count = asked;
            }
            let step = algorithm.step(state, at(now), hits);
            state = step.state;
            prop_assert_eq!((step.verdict.allowed, step.verdict.used), (allowed, count));
        }
    }
}

/// The reply that GCRA's authors published for a throttle: limit, remaining, retry after, reset
/// after. A burst beyond the first of 4 makes a limit of 5; 60 a minute are one each second.
#[test]
fn a_token_bucket_replies_as_gcra() {
    let algorithm = made(AlgorithmKind::TokenBucket, 60, 60, false, 5, Span::ZERO);
    let mut state = None;
    // Seconds, quantity; allowed, remaining, retry after, reset after.
    let replies = [
        (0, 1, (true, 4, 0, 1)),
        (0, 1, (true, 3, 0, 2)),
        (0, 3, (true, 0, 0, 5)),
        (0, 1, (false, 0, 1, 5)),
        (0, 3, (false, 0, 3, 5)),
        (1, 1, (true, 0, 0, 5)),
        (3, 1, (true, 1, 0, 4)),
        (3, 3, (false, 1, 2, 4)),
        (4, 0, (true, 2, 0, 3)),
        (100, 5, (true, 0, 0, 5)),
    ];
    assert_eq!(algorithm.capacity(), 5);
    for (secs, quantity, (allowed, remaining, retry, reset)) in replies {
        let step = algorithm.step(state, at(START + secs * 1_000_000), quantity);
        state = step.state;
        let verdict = step.verdict;
        assert_eq!(
            (verdict.allowed, verdict.remaining, verdict.reset_after),
            (allowed, remaining, Span::from_secs(reset)),
            "{secs} {quantity}"
        );
        if !allowed {
            assert_eq!(
                verdict.retry_after,
                Wait::For(Span::from_secs(retry)),
                "{secs} {quantity}"
            );
        }
    }
    assert_eq!(
        algorithm.step(state, at(START), 6).verdict.retry_after,
        Wait::Never,
        "more than the limit: never"
    );
}
