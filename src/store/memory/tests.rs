//! The store as a whole.

use std::collections::HashMap;

use allocation_counter::measure;
use proptest::prelude::*;

use super::table::SAMPLE;
use super::*;
use crate::core::algorithm::{Algorithm, AlgorithmKind, FixedWindow, State};
use crate::core::time::{Period, Rate, Span, Unit};
use crate::core::verdict::Verdict;
use crate::limits::plan::{Check, Modes};
use crate::limits::rules::Commit;

const START: Arrival = Arrival {
    now: Micros(1_800_000_000_000_000),
    max_wait: Span::ZERO,
};

fn check(limit: u64, secs: u64) -> Check {
    let fixed = FixedWindow {
        limit,
        window: Period::Even(Span::from_secs(secs)),
        count_denied: true,
    };
    Check::new(Algorithm::FixedWindow(fixed), 1, Modes::default())
}

impl Memory {
    fn decide_one(&self, key: &[u8], check: &Check, at: Arrival) -> Verdict {
        let checks = Checks::of([(key, check.clone())]);
        self.decide_at(&checks, &checks.indices(), at).verdicts()[0].expect("a verdict")
    }

    /// Checks one hit of the request with this id.
    fn ask_by(&self, key: &[u8], id: &[u8], algorithm: &Algorithm, at: Arrival) -> Verdict {
        let checks = Checks::of([(key, Check::new(*algorithm, 1, Modes::default()))]);
        let checks = checks.with_holder(CheckIndex(0), id);
        self.decide_at(&checks, &checks.indices(), at).verdicts()[0].expect("a verdict")
    }
}

/// The effects of a request that commits all or none are the effects of its checks, if it passes.
#[test]
fn all_or_none_returns_effects_of_requests_that_pass() {
    let memory = Memory::new(Options::default());
    let places = |id| {
        let others = check(1, 60);
        let acquire = Check::new(places(), 1, Modes::default());
        let mut checks = Checks::of([(&b"a"[..], others), (b"b", acquire)]);
        checks.commit = Commit::AllOrNone;
        checks.with_holder(CheckIndex(1), id)
    };
    let effects = |id| {
        let checks = places(id);
        let answers = memory.decide_at(&checks, &checks.all(), START);
        answers
            .effects()
            .map(|(index, _)| index.0)
            .collect::<Vec<_>>()
    };
    assert_eq!(effects(b"1"), [1]);
    assert_eq!(effects(b"2"), [0; 0], "it is refused by the other check");
}

#[test]
fn a_full_store_forgets_and_never_refuses() {
    let memory = Memory::new(Options {
        max_keys: 1_000,
        ..Default::default()
    });
    for key in 0..5_000_u32 {
        assert!(
            memory
                .decide_one(&key.to_be_bytes(), &check(1, 60), START)
                .allowed
        );
    }
    let size = memory.size();
    assert_eq!((size.keys, size.evicted), (1_000, 4_000));
    let held: usize = (0..memory.shards())
        .map(|_| memory.sweep(Micros(u64::MAX)))
        .sum();
    assert_eq!(
        (held, memory.size().keys),
        (1_000, 0),
        "what is counted is what is there"
    );
}

fn places() -> Algorithm {
    let options = crate::core::algorithm::Options {
        kind: AlgorithmKind::Concurrency,
        max_duration: Some(Span::from_secs(60)),
        ..Default::default()
    };
    Algorithm::try_new(
        &Rate {
            requests_per_unit: 1_000,
            unit: Unit::None,
            unit_multiplier: 1,
        },
        &options,
    )
    .expect("a limit")
}

/// Clients choose the values of every algorithm: what the store counts is at least what is
/// allocated, and stays within the bound.
#[test]
fn a_store_is_full_in_bytes_too() {
    const MAX: usize = 2 << 20;
    for (name, algorithm) in algorithms().chain([("concurrency", places())]) {
        let memory = Memory::new(Options {
            max_bytes: MAX,
            ..Default::default()
        });
        let mut most = 0;
        let held = measure(|| {
            for key in 0..65_000_u32 {
                let bytes = key.to_be_bytes();
                assert!(memory.ask_by(&bytes, &bytes, &algorithm, START).allowed);
                most = most.max(memory.size().bytes);
            }
        });
        let size = memory.size();
        assert!(
            most < MAX && size.bytes > MAX * 4 / 5 && size.evicted > 0,
            "{name}: {most} bytes, {size:?}"
        );
        // Keys are hashed with a random secret, and shards fill unevenly: 8 of 72 runs held 74.4 to
        // 74.8 % of the bound, the others more.
        assert!(
            (MAX * 7 / 10..MAX).contains(&(held.bytes_current as usize)),
            "{name}: {held:?}, {size:?}"
        );
        for _ in 0..memory.shards() {
            memory.sweep(Micros(u64::MAX));
        }
        assert_eq!(
            (memory.size().keys, memory.size().bytes),
            (0, 0),
            "{name}: nothing is left"
        );
    }
}

/// A key that grows while the store is full makes room, and takes it from others of its kind, not
/// from all that is small.
#[test]
fn what_grows_displaces_its_own_kind() {
    const MAX: usize = 4 << 20;
    let rate = Rate {
        requests_per_unit: 100_000,
        unit: Unit::Day,
        unit_multiplier: 1,
    };
    let log = crate::core::algorithm::Options {
        kind: AlgorithmKind::SlidingWindowLog,
        ..Default::default()
    };
    for large in [Algorithm::try_new(&rate, &log).expect("a limit"), places()] {
        let memory = Memory::new(Options {
            max_bytes: MAX,
            ..Default::default()
        });
        let small = |key: u32| {
            memory
                .decide_one(
                    &[&b"small"[..], &key.to_be_bytes()].concat(),
                    &check(1, 86_400),
                    START,
                )
                .allowed
        };
        assert!((0..30_000).all(small), "they take less than half");
        for hit in 0..200_000_u64 {
            let at = Arrival {
                now: Micros(START.now.0 + hit),
                ..START
            };
            let _ = memory.ask_by(&(hit % 400).to_be_bytes(), &hit.to_be_bytes(), &large, at);
            assert!(memory.size().bytes <= MAX, "{:?}", memory.size());
        }
        let left = (0..30_000).filter(|&key| !small(key)).count();
        assert!(
            memory.size().evicted > 0 && left == 30_000,
            "{left} small keys are left, {:?}",
            memory.size()
        );
    }
}

#[test]
fn what_recovers_soonest_goes_first() {
    let memory = Memory::new(Options {
        max_keys: SAMPLE,
        ..Default::default()
    });
    for key in 0..SAMPLE as u32 - 1 {
        memory.decide_one(&key.to_be_bytes(), &check(1, 3_600), START);
    }
    memory.decide_one(b"soon", &check(1, 1), START);
    memory.decide_one(b"one more", &check(1, 3_600), START);
    for key in 0..SAMPLE as u32 - 1 {
        assert!(
            !memory
                .decide_one(&key.to_be_bytes(), &check(1, 3_600), START)
                .allowed,
            "key {key} was forgotten"
        );
    }
}

/// A store of which nine tenths have nothing left: most of them stay, because a new key evicts
/// another one that has something left where there is one among the keys that it looks at.
#[test]
fn few_refused_keys_are_forgotten_even_if_most_are() {
    let memory = Memory::new(Options {
        max_keys: 2_000,
        ..Default::default()
    });
    let limit = check(5, 3_600);
    let refused = |key: u32| !memory.decide_one(&key.to_be_bytes(), &limit, START).allowed;
    for key in 0..1_800 {
        (0..6).for_each(|_| {
            refused(key);
        });
    }
    assert!((1_800..5_800).all(|key| !refused(key)));
    let forgotten = (0..1_800).filter(|&key| !refused(key)).count();
    assert!(forgotten < 400, "{forgotten} of 1,800");
}

/// Hits that are lost for a short time are worth less than a few that are lost for long.
#[test]
fn a_refused_key_that_recovers_soon_goes_before_a_used_one_that_does_not() {
    let memory = Memory::new(Options {
        max_keys: SAMPLE,
        ..Default::default()
    });
    for key in 0..SAMPLE as u32 - 1 {
        memory.decide_one(&key.to_be_bytes(), &check(2, 86_400), START);
    }
    for _ in 0..3 {
        memory.decide_one(b"soon", &check(1, 60), START);
    }
    memory.decide_one(b"one more", &check(2, 86_400), START);
    for key in 0..SAMPLE as u32 - 1 {
        let verdict = memory.decide_one(&key.to_be_bytes(), &check(2, 86_400), START);
        assert_eq!(verdict.remaining, 0, "key {key} was forgotten");
    }
}

#[test]
fn sweeping_removes_what_recovered_and_nothing_else() {
    let memory = Memory::new(Options::default());
    for key in 0..10_000_u32 {
        memory.decide_one(
            &key.to_be_bytes(),
            &check(1, if key % 2 == 0 { 60 } else { 3_600 }),
            START,
        );
    }
    let later = START.now + Span::from_secs(60);
    let swept: usize = (0..memory.shards()).map(|_| memory.sweep(later)).sum();
    assert_eq!(swept, 5_000);
    assert_eq!(memory.size().keys, 5_000);
    assert!(
        !memory
            .decide_one(&1_u32.to_be_bytes(), &check(1, 3_600), START)
            .allowed
    );
}

/// One call locks one shard, and no shard holds much more than its part.
#[test]
fn a_sweep_takes_a_small_part_at_a_time() {
    let memory = Memory::new(Options {
        max_keys: 100_000,
        ..Default::default()
    });
    for key in 0..100_000_u32 {
        memory.decide_one(&key.to_be_bytes(), &check(1, 60), START);
    }
    let later = START.now + Span::from_secs(60);
    let most = (0..memory.shards()).map(|_| memory.sweep(later)).max();
    assert!(most <= Some(2 * KEYS_PER_SHARD), "{most:?}");
    assert_eq!(memory.size().keys, 0);
}

#[test]
fn swept_blocks_are_freed_and_none_is_kept_without_need() {
    let memory = Memory::new(Options {
        max_keys: 100_000,
        ..Default::default()
    });
    let fill = || {
        (0..100_000_u32).for_each(|key| {
            assert!(
                memory
                    .decide_one(&key.to_be_bytes(), &check(1, 60), START)
                    .allowed
            );
        });
    };
    let sweep = || {
        for _ in 0..memory.shards() {
            memory.sweep(Micros(u64::MAX));
            memory.maintain();
        }
        (0..20).for_each(|_| memory.maintain());
    };
    let info = measure(|| {
        fill();
        sweep();
    });
    assert!(info.bytes_current < 100_000, "{} bytes", info.bytes_current);
}

/// Only the allocator makes a request wait: a request may need memory that is not ready, but must
/// not free any.
#[test]
fn what_was_swept_is_used_again() {
    let memory = Memory::new(Options {
        max_keys: 100_000,
        ..Default::default()
    });
    let fill = || {
        (0..100_000_u32).for_each(|key| {
            assert!(
                memory
                    .decide_one(&key.to_be_bytes(), &check(1, 60), START)
                    .allowed
            );
        });
    };
    // Without the key of each check.
    let allocations = || measure(fill).count_total - 100_000;
    let first = allocations();
    for _ in 0..memory.shards() {
        memory.sweep(Micros(u64::MAX));
    }
    let second = allocations();
    assert!(
        first > 500 && second < 100,
        "{first} allocations, then {second}"
    );
}

/// Bytes that are allocated and not freed for `keys` keys with a hit each, without the bytes of an
/// empty store.
fn bytes_per_key(check: &Check, keys: u32) -> f64 {
    let memory = Memory::new(Options::default());
    let info = measure(|| {
        for key in 0..keys {
            memory.decide_one(&key.to_be_bytes(), check, START);
        }
    });
    info.bytes_current as f64 / f64::from(keys)
}

#[test]
fn a_key_takes_few_bytes_however_many_there_are() {
    for keys in [
        50_000, 100_000, 150_000, 300_000, 500_000, 700_000, 1_000_000,
    ] {
        let bytes = bytes_per_key(&check(1, 60), keys);
        // A nearly empty store has nearly empty blocks, of at most a few megabytes.
        let most = if keys < 200_000 { 90.0 } else { 50.0 };
        assert!(
            (32.0..most).contains(&bytes),
            "{bytes} bytes each of {keys}"
        );
    }
}

#[test]
fn only_logs_rings_and_holders_take_more() {
    for (name, algorithm) in algorithms().chain([("concurrency", places())]) {
        let bytes = bytes_per_key(&Check::new(algorithm, 1, Modes::default()), 200_000);
        let most = match algorithm {
            Algorithm::SlidingWindowLog(_) => 250.0,
            // Sixty-one numbers.
            Algorithm::SlidingWindowBuckets(_) => 700.0,
            Algorithm::Concurrency(_) => 130.0,
            _ => 50.0,
        };
        println!("{name}: {bytes} bytes each");
        assert!(bytes < most, "{name}: {bytes} bytes each");
    }
}

#[test]
fn an_empty_store_is_small() {
    let info = measure(|| drop(std::hint::black_box(Memory::new(Options::default()))));
    assert!(info.bytes_max < 300_000, "{} bytes", info.bytes_max);
}

fn algorithms() -> impl Iterator<Item = (&'static str, Algorithm)> {
    let rate = Rate {
        requests_per_unit: 5,
        unit: Unit::Minute,
        unit_multiplier: 1,
    };
    AlgorithmKind::OVER_TIME
        .into_iter()
        .map(move |(name, kind)| {
            let options = crate::core::algorithm::Options {
                kind,
                ..Default::default()
            };
            (name, Algorithm::try_new(&rate, &options).expect("a limit"))
        })
}

proptest! {
    #![proptest_config(crate::testing::property(200))]

    /// The store's verdicts with states that are packed, moved, unpacked and swept are the verdicts
    /// of the bare steps.
    #[test]
    fn it_decides_as_the_steps_do(
        calls in prop::collection::vec(
            (
                0..12_u8,
                0..6_usize,
                -3..9_i64,
                0..40_000_000_u64,
                any::<bool>(),
            ),
            1..200,
        ),
    ) {
        let (memory, mut states) = (
            Memory::new(Options {
                max_keys: 1_000,
                ..Default::default()
            }),
            HashMap::<_, State>::new(),
        );
        let (algorithms, mut at): (Vec<_>, _) = (algorithms().collect(), START);
        for (key, kind, hits, later, is_swept) in calls {
            let (name, algorithm) = algorithms[kind];
            at.now = at.now + Span::from_micros(if later % 3 == 0 { later } else { later % 1_000 });
            let step = algorithm.step(states.remove(&(key, kind)), at, hits);
            let verdict = memory.decide_one(
                format!("{key}{name}").as_bytes(),
                &Check::new(algorithm, hits, Modes::default()),
                at,
            );
            prop_assert_eq!(verdict, step.verdict, "{} {}", name, hits);
            states.extend(step.state.map(|state| ((key, kind), state)));
            if is_swept && later % 7 == 0 {
                for _ in 0..memory.shards() {
                    memory.sweep(at.now);
                }
            }
        }
    }
}

/// Few holders and marks are in one block, more are in trees.
#[test]
fn few_holders_are_as_exact_as_many() {
    let (memory, mut state, mut at, mut most) = (Memory::new(Options::default()), None, START, 0);
    for call in 0..4_000_u64 {
        at.now = at.now + Span::from_micros(if call % 500 == 0 { 59_000_000 } else { 50_000 });
        let hits = [1, -1, 2, 0, 1, -1][(call / 7 % 6) as usize];
        let (algorithm, id) = (places(), [(call * 7_919 % (1 + call / 200)) as u8]);
        let check = Check::new(algorithm, hits, Modes::default());
        let checks = Checks::of([(&b"one"[..], check)]).with_holder(CheckIndex(0), &id);
        let (step, _) = checks.step(CheckIndex(0), state.take(), at);
        let answers = memory.decide_at(&checks, &checks.indices(), at);
        assert_eq!(answers.verdicts()[0], Ok(step.verdict), "call {call}");
        state = step.state;
        assert_eq!(memory.state(b"one", &algorithm), state, "call {call}");
        let holders = if let Some(State::Holders(holders)) = &state {
            holders.iter().count()
        } else {
            0
        };
        most = most.max(holders);
    }
    assert!(most > 10, "{most} holders");
}

/// More than 2^30 hits do not fit next to another number: such a state is unpacked, and packed
/// again later.
#[test]
fn what_is_too_large_to_be_packed_is_as_exact() {
    let rate = Rate {
        requests_per_unit: u32::MAX.into(),
        unit: Unit::Minute,
        unit_multiplier: 1,
    };
    let options = crate::core::algorithm::Options {
        kind: AlgorithmKind::SlidingWindowCounter,
        count_denied: Some(true),
        ..Default::default()
    };
    let algorithm = Algorithm::try_new(&rate, &options).expect("a limit");
    let (memory, mut state) = (Memory::new(Options::default()), None);
    for hits in [
        i64::from(u32::MAX),
        5,
        i64::from(u32::MAX),
        0,
        -i64::from(u32::MAX),
        -7,
        0,
        1,
    ] {
        let step = algorithm.step(state.take(), START, hits);
        assert_eq!(
            memory.decide_one(
                b"many",
                &Check::new(algorithm, hits, Modes::default()),
                START
            ),
            step.verdict,
            "{hits}"
        );
        state = step.state;
    }
}
