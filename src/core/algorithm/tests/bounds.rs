//! Any numbers at all: no panic, and nothing that Lua could not count.

use std::collections::VecDeque;

use super::super::definition::Definition;
use super::super::sliding_window_buckets::Ring;
use super::super::sliding_window_log::{Log, LoggedHits};
use super::*;
use crate::core::time::LONGEST_WINDOW;

fn number() -> impl Strategy<Value = u64> {
    prop_oneof![
        Just(0),
        Just(1),
        Just(u64::MAX),
        Just(1 << 53),
        START - 100..START + 100,
        any::<u64>(),
        0_u64..100_000
    ]
}

fn level() -> impl Strategy<Value = i64> {
    prop_oneof![
        Just(0),
        Just(i64::MIN),
        Just(i64::MAX),
        Just(-(1 << 53)),
        Just(1 << 53),
        any::<i64>()
    ]
}

fn units() -> impl Strategy<Value = Units> {
    prop_oneof![Just(Units::new(0)), (0..=15_u8).prop_map(Units::new)]
}

fn state() -> impl Strategy<Value = Option<State>> {
    let ring =
        (number(), prop::collection::vec(number(), 0..120)).prop_map(|(last, counts)| Ring {
            last,
            counts: counts.into(),
        });
    let entry = (number(), number()).prop_map(|(tick, total)| LoggedHits { tick, total });
    let log = (number(), prop::collection::vec(entry, 0..9)).prop_map(|(before, entries)| Log {
        before,
        entries: VecDeque::from(entries),
    });
    prop_oneof![
        Just(None),
        (number(), number()).prop_map(|(window, count)| Some(State::FixedWindow { window, count })),
        (number(), number(), number()).prop_map(|(window, current, previous)| Some(
            State::Counter {
                window,
                current,
                previous
            }
        )),
        (number(), level(), units()).prop_map(|(last, level, units)| Some(State::Tokens {
            last,
            level,
            units
        })),
        (number(), number(), units()).prop_map(|(last, backlog, units)| Some(State::Queue {
            last,
            backlog,
            units
        })),
        ring.prop_map(|ring| Some(State::Buckets(Box::new(ring)))),
        log.prop_map(|log| Some(State::Log(Box::new(log)))),
    ]
}

/// A state that was stored under a larger limit is cut to the most that this one could have stored.
/// Others have nothing that is multiplied.
fn most_used(algorithm: &Algorithm) -> u64 {
    let debt = algorithm.debt().limits();
    match algorithm {
        Algorithm::TokenBucket(token) => (1 + debt) * token.burst,
        Algorithm::LeakyBucket(leaky) => leaky.capacity() + debt * leaky.flow.limit,
        // Both windows.
        Algorithm::SlidingWindowCounter(counter) => 2 * (1 + debt) * counter.limit,
        _ => u64::MAX,
    }
}

proptest! {
    #![proptest_config(crate::testing::property(30_000))]

    #[test]
    fn nothing_panics(
        algorithm in algorithm(any::<bool>(), &[]),
        state in state(),
        now in number(),
        patience in number(),
        hits in any::<i64>(),
    ) {
        let arrival = Arrival {
            now: Micros(now),
            max_wait: Span::from_micros(patience),
        };
        for hits in [
            hits,
            0,
            1,
            -1,
            hits % 1_000,
            i64::MIN,
            i64::MAX,
            algorithm.capacity().cast_signed(),
            algorithm.capacity().cast_signed() + 1,
        ] {
            let step = algorithm.step(state.clone(), arrival, hits);
            prop_assert!(
                step.verdict.remaining <= algorithm.capacity()
                    && step.verdict.used <= most_used(&algorithm)
            );
            prop_assert!(hits >= 0 || step.verdict.allowed);
            let again = algorithm.step(step.state, arrival, hits);
            prop_assert!(again.verdict.remaining <= algorithm.capacity());
        }
    }

    #[test]
    fn every_product_is_exact_in_lua(
        limit in amount(),
        burst in amount(),
        secs in 1_u32..=3_153_600_000,
        delay in any::<u64>(),
    ) {
        for secs in [secs, secs % 100_000 + 1, 1, 3_153_600_000] {
            check_products(
                limit,
                burst,
                secs,
                Span::from_micros(delay % 3_153_600_000_000_000),
            )?;
        }
    }
}

/// The largest intermediate values of the steps, from their formulas.
fn check_products(limit: u64, burst: u64, secs: u32, delay: Span) -> Result<(), TestCaseError> {
    let made = |kind, delay| made(kind, limit, secs, true, burst, delay);
    let window = Span::from_secs(u64::from(secs));
    if let Algorithm::TokenBucket(token) = made(AlgorithmKind::TokenBucket, Span::ZERO) {
        check_token_bucket(&token)?;
        let amount = limit.max(burst);
        check_tick(token.tick, token.flow.window, token.debt, amount, window)?;
    }
    if let Algorithm::SlidingWindowCounter(counter) =
        made(AlgorithmKind::SlidingWindowCounter, Span::ZERO)
    {
        let (rate, ticks) = (u128::from(counter.limit), u128::from(counter.window));
        let most = u128::from(1 + counter.debt.limits()) * rate;
        check_exact("hits", 3 * (most + 1))?;
        // Larger products are split.
        prop_assert!(most * ticks <= u128::from(MAX_SAFE_INTEGER) || ticks <= 1 << 35);
        let amount = limit.max(burst);
        check_tick(counter.tick, counter.window, counter.debt, amount, window)?;
    }
    if let Algorithm::LeakyBucket(leaky) = made(AlgorithmKind::LeakyBucket, delay) {
        check_leaky_bucket(&leaky, delay)?;
        let amount = limit.max(burst);
        check_tick(leaky.tick, leaky.flow.window, leaky.debt, amount, window)?;
    }
    Ok(())
}

fn check_exact(what: &str, value: u128) -> Result<(), TestCaseError> {
    prop_assert!(value <= u128::from(MAX_SAFE_INTEGER), "{} {}", what, value);
    Ok(())
}

/// A window has ticks enough.
fn check_tick(
    tick: Tick,
    ticks: u64,
    debt: Debt,
    amount: u64,
    window: Span,
) -> Result<(), TestCaseError> {
    prop_assert!(tick.micros() <= 1_000_000 && tick.span(ticks) == window);
    let fewest = if amount > u32::MAX.into() {
        100
    } else {
        30_000
    };
    let fewest = if debt.limits() > 1 {
        fewest.min(500)
    } else {
        fewest
    };
    prop_assert!(
        tick == Tick::FINEST || ticks >= fewest,
        "{:?} {}",
        tick,
        ticks
    );
    Ok(())
}

fn check_token_bucket(token: &TokenBucket) -> Result<(), TestCaseError> {
    let window = u128::from(token.script_parameters()[4]);
    let (rate, burst) = (u128::from(token.flow.limit), u128::from(token.burst));
    check_exact("units of a window", rate * window)?;
    // A level that is far below the bound of the debt may be rounded, because it is clamped to
    // that.
    let debt = u128::from(token.debt.limits());
    check_exact("cost", ((1 + debt) * burst).max(burst + 1) * window)?;
    let per_tick = if token.flow.units.code() < 7 { rate } else { 0 };
    check_exact("refill", (1 + debt) * burst * window + per_tick)
}

fn check_leaky_bucket(leaky: &LeakyBucket, delay: Span) -> Result<(), TestCaseError> {
    let [limit, _, room, _, unit] = leaky.script_parameters();
    let (rate, window, room) = (u128::from(limit), u128::from(unit), u128::from(room));
    let debt = u128::from(leaky.debt.limits()) * rate;
    let longest = room + window + debt * window;
    let most_hits = u128::from(leaky.capacity()) + debt + 1;
    check_exact("backlog + hits", longest + most_hits * window)?;
    let per_tick = if leaky.flow.units.code() < 7 { rate } else { 0 };
    check_exact("drain", longest + per_tick)?;
    prop_assert!(leaky.tick.span(leaky.max_delay) <= delay);
    let is_cut = leaky.tick.floor(delay) > leaky.max_delay;
    prop_assert!(
        !is_cut
            || leaky.flow.limit == 0
            || leaky.capacity()
                > leaky.flow.limit.max(u32::MAX.into()) - 2 - leaky.flow.limit / leaky.flow.window,
        "only what would be 2^32 hits, and more than a full limit, is cut"
    );
    Ok(())
}

#[test]
fn instants_and_the_longest_spans_are_exact_in_lua() {
    let year_2100 = 4_102_444_800_000_000_u64;
    let (window, interval) = (LONGEST_WINDOW.micros(), LONGEST_WINDOW.micros() / 999);
    assert!(year_2100 + window + interval <= MAX_SAFE_INTEGER);
    assert_eq!(Tick::all().count(), 13);
    assert_eq!(Tick::new(200), Tick::COARSEST);
}
