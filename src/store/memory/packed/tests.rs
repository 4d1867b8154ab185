//! Any state that an algorithm may store is unpacked exactly as it was packed, or is not packed.

use proptest::prelude::*;

use super::*;
use crate::core::algorithm::{AlgorithmKind, Options, Units};
use crate::core::time::{Rate, Unit};

fn algorithms() -> impl Strategy<Value = Algorithm> {
    let units = vec![Unit::Second, Unit::Minute, Unit::Hour, Unit::Day];
    let named = prop::sample::select(&AlgorithmKind::OVER_TIME[..]);
    (
        named,
        prop::sample::select(units),
        prop_oneof![1..200_u64, 1..=u64::from(u32::MAX), 1..1_u64 << 53],
        1..90_u32,
    )
        .prop_filter_map(
            "options that belong together",
            |((_, kind), unit, requests_per_unit, unit_multiplier)| {
                Algorithm::try_new(
                    &Rate {
                        requests_per_unit,
                        unit,
                        unit_multiplier,
                    },
                    &Options {
                        kind,
                        ..Options::default()
                    },
                )
                .ok()
            },
        )
}

fn numbers() -> impl Strategy<Value = u64> {
    let edges = vec![
        0,
        1,
        u64::from(u32::MAX),
        1 << 32,
        LATEST,
        LATEST + 1,
        1 << 53,
        1 << 63,
        u64::MAX - 1,
        u64::MAX,
    ];
    prop_oneof![
        any::<u64>(),
        0..1_000_000_u64,
        1_800_000_000_000_000..1_900_000_000_000_000_u64,
        prop::sample::select(edges)
    ]
}

fn shares() -> impl Strategy<Value = UsedShare> {
    (0..8_u8).prop_map(UsedShare)
}

fn states() -> impl Strategy<Value = State> {
    (0..4, numbers(), numbers(), numbers(), 0..=15_u8).prop_map(|(kind, one, two, three, tick)| {
        match kind {
            0 => State::FixedWindow {
                window: one,
                count: two,
            },
            1 => State::Counter {
                window: one,
                current: two,
                previous: three,
            },
            2 => State::Tokens {
                last: one,
                level: two.cast_signed(),
                units: Units::new(tick),
            },
            _ => State::Queue {
                last: one,
                backlog: two,
                units: Units::new(tick),
            },
        }
    })
}

proptest! {
    #![proptest_config(crate::testing::property(4_000))]

    #[test]
    fn a_state_comes_out_as_it_went_in(
        state in states(),
        algorithm in algorithms(),
        recovers in numbers(),
        used in shares(),
    ) {
        if let Some(packed) = Packed::new(&state, &algorithm, Micros(recovers)) {
            prop_assert_eq!(packed.state(&algorithm), Some(state));
            prop_assert_eq!(packed.unpacked_index(), None);
            prop_assert!(packed.recovers() >= Micros(recovers));
            let other = packed.with_used(used);
            prop_assert_eq!(other.used(), used);
            prop_assert_eq!(other.state(&algorithm), packed.state(&algorithm));
            prop_assert_eq!(other.with_used(packed.used()), packed);
        }
    }

    #[test]
    fn what_is_stored_today_is_packed(
        algorithm in algorithms(),
        now in 1_800_000_000_000_000..4_000_000_000_000_000_u64,
        hits in 1..9_i64,
    ) {
        let at = crate::core::algorithm::Arrival {
            now: Micros(now),
            max_wait: Span::ZERO,
        };
        let step = algorithm.step(None, at, hits);
        let (Some(state), Some(keep_for)) = (step.state, step.keep_for) else {
            return Ok(());
        };
        let packed = Packed::new(&state, &algorithm, at.now + keep_for);
        prop_assert_eq!(
            packed.is_some(),
            !matches!(state, State::Log(_) | State::Buckets(_))
        );
        let Some(packed) = packed else { return Ok(()) };
        let late = packed.recovers().since(at.now + keep_for).micros();
        // A state that has begun before may be measured from its beginning, a window earlier.
        prop_assert!(
            late <= keep_for.micros().max(algorithm.tick().micros()) / 4
                + algorithm.tick().micros(),
            "{late} of {keep_for:?}"
        );
    }

    #[test]
    fn a_reference_keeps_its_index_and_its_recovery(
        index in any::<u32>(),
        recovers in numbers(),
        used in shares(),
    ) {
        let packed = Packed::reference(UnpackedIndex(index), Micros(recovers)).with_used(used);
        prop_assert_eq!(packed.with_index(UnpackedIndex(7)).used(), used);
        prop_assert_eq!(packed.unpacked_index(), Some(UnpackedIndex(index)));
        prop_assert!(packed.recovers() >= Micros(recovers));
        prop_assert_eq!(
            packed.with_index(UnpackedIndex(7)).unpacked_index(),
            Some(UnpackedIndex(7))
        );
        prop_assert_eq!(
            packed.with_index(UnpackedIndex(7)).recovers(),
            packed.recovers()
        );
    }

    #[test]
    fn a_number_is_shortened_upwards_by_an_eighth_at_most(number in numbers()) {
        let short = shorten(number);
        prop_assert!(short < 1 << LATER_BITS);
        prop_assert!(expand(short) >= number);
        prop_assert!(expand(short) - number <= number / 8, "{} is {}", number, expand(short));
    }
}

#[test]
fn the_used_share_is_of_the_limit() {
    let after = |used, remaining, allowed| {
        let verdict = Verdict {
            allowed,
            remaining,
            used,
            reset_after: Span::ZERO,
            retry_after: crate::core::verdict::Wait::Never,
            delay: Span::ZERO,
        };
        UsedShare::after(&verdict)
    };
    assert_eq!(after(0, 5, true), UsedShare(0));
    assert_eq!(
        [1, 2, 3, 4].map(|used| after(used, 5 - used, true).0),
        [1, 2, 3, 4]
    );
    assert_eq!(after(u64::MAX, u64::MAX, true), UsedShare(0));
    assert_eq!(after(4, 1, false), UsedShare(4), "something is left");
    assert_eq!(after(5, 0, true), UsedShare::NOTHING_LEFT);
    assert_eq!(after(9, 0, false), UsedShare::REFUSED);
}

#[test]
fn the_state_of_another_algorithm_is_none() {
    let of = |kind| {
        let rate = Rate {
            requests_per_unit: 5,
            unit: Unit::Minute,
            unit_multiplier: 1,
        };
        Algorithm::try_new(
            &rate,
            &Options {
                kind,
                ..Options::default()
            },
        )
        .expect("a limit")
    };
    let (token, leaky) = (
        of(AlgorithmKind::TokenBucket),
        of(AlgorithmKind::LeakyBucket),
    );
    let state = State::Tokens {
        last: 1,
        level: 2,
        units: Units::new(0),
    };
    assert_eq!(Packed::new(&state, &leaky, Micros(9)), None);
    assert_eq!(
        Packed::new(&state, &token, Micros(9))
            .expect("it fits")
            .state(&leaky),
        None
    );
}
