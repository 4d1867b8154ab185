//! The table is that of benches/README.md, plans hold what they promise, and more needs no less.

use proptest::prelude::*;

use super::measured::{self, BATCHES, MEMORY_MICROS, ROWS};
use super::*;

const LOAD: Size = Size {
    rate: 100_000.0,
    keys: 2e6,
    descriptors: 1,
    algorithm: AlgorithmKind::TokenBucket,
    usage: false,
    redis: RedisKind::Single,
    workers: 4,
    envoys: None,
    format: print::Format::Text,
};

/// The cells of the row of benches/README.md that begins with this one, in the table between two
/// markers.
fn cells(section: &str, name: &str) -> Vec<String> {
    let page = include_str!("../../../benches/README.md");
    let begin = page
        .find(&format!("<!-- {section}: begin -->"))
        .expect("a marker");
    let end = page
        .find(&format!("<!-- {section}: end -->"))
        .expect("a marker");
    let rows = page[begin..end].lines().map(|line| {
        let cells = line.trim_matches('|').split('|');
        cells
            .map(|cell| cell.trim().replace('`', ""))
            .collect::<Vec<_>>()
    });
    let mut rows = rows.filter(|row| row[0] == name);
    rows.next()
        .unwrap_or_else(|| panic!("table {section} has no row {name:?}"))
}

/// The number with which a text begins.
fn number(text: &str) -> f64 {
    let is_number = |letter: char| letter.is_ascii_digit() || letter == '.';
    let end = text.find(|letter| !is_number(letter)).unwrap_or(text.len());
    text[..end]
        .parse()
        .unwrap_or_else(|_| panic!("{text:?} begins with no number"))
}

/// The numbers in brackets.
fn ratios(cells: &[String]) -> Vec<f64> {
    cells
        .iter()
        .map(|cell| number(cell.split_once('(').expect("a ratio").1))
        .collect()
}

fn numbers(cells: &[String]) -> Vec<f64> {
    cells.iter().map(|cell| number(cell)).collect()
}

#[test]
fn the_table_is_that_of_the_benches() {
    let column = ["Redis, 1 at a time", "in batches of 16", "of 64"];
    assert_eq!(cells("algorithms", "algorithm")[2..5], column);
    assert_eq!(cells("usage", "algorithm")[2..5], column);
    assert_eq!(BATCHES.to_vec(), [1.0, 16.0, 64.0]);
    assert_eq!(
        ROWS.map(|row| row.kind),
        AlgorithmKind::OVER_TIME.map(|(_, kind)| kind)
    );
    for row in &ROWS {
        let name = row.kind.name();
        let [of, cluster, usage] =
            ["algorithms", "sizing", "usage"].map(|table| cells(table, name));
        assert_eq!(numbers(&of[2..5]), row.redis_micros, "{name}");
        assert_eq!(numbers(&of[5..7]), row.key_bytes, "{name}");
        assert_eq!(numbers(&cluster[1..4]), row.cluster, "{name}");
        assert_eq!(ratios(&usage[2..5]), row.usage, "{name}");
        let speed = cells("speed", &format!("Weir, Redis, {name}"));
        assert_eq!(numbers(&speed[1..2]), [row.weir_micros], "{name}");
        let (with, ratio) = (number(&usage[5]), ratios(&usage[5..6])[0]);
        assert!(
            with - with / ratio < measured::USAGE_MICROS + 0.01,
            "{name}"
        );
    }
    for (table, name, figure) in [
        ("speed", "Weir, memory", MEMORY_MICROS),
        (
            "sizing",
            "at the start, two threads, 100 limits",
            measured::PROCESS_BYTES,
        ),
        (
            "sizing",
            "a connection that has made calls",
            measured::CONNECTION_BYTES,
        ),
        (
            "usage",
            "bytes in memory, with 60 buckets",
            measured::USAGE_MEMORY_BYTES,
        ),
    ] {
        assert_eq!(numbers(&cells(table, name)[1..2]), [figure], "{name}");
    }
    let three = number(&cells("speed", "Weir, Redis, fixed_window, 3 descriptors")[1]);
    let further = (three - ROWS[0].weir_micros) / 2.0;
    // The rows that are further of a block have no name of their own.
    let page = include_str!("../../../benches/README.md");
    let sixteen = page.split_once("|  | 16 | 3.").expect("16 descriptors").1;
    let in_memory = MEMORY_MICROS * (2.0 + number(sixteen) / 100.0) / 15.0;
    let alone = page.split_once("|  | 256 | ").expect("256 connections").1;
    let alone = MEMORY_MICROS * (number(alone) - 1.0);
    for (measured, used) in [
        (further, measured::DESCRIPTOR_MICROS[1]),
        (in_memory, measured::DESCRIPTOR_MICROS[0]),
        (alone, measured::ALONE_MICROS),
    ] {
        assert!(
            (measured - used).abs() < 0.05,
            "{measured} measured, {used} in the table"
        );
    }
    assert!(page.contains(measured::MACHINE));
}

/// The value of a figure of the answer.
fn value(load: &Size, key: &str) -> f64 {
    let figures = plan::report(load).figures;
    let mut found = figures.iter().filter(|figure| figure.key == key);
    found
        .next()
        .unwrap_or_else(|| panic!("no {key} in {figures:?}"))
        .amount
        .value()
}

/// Requests per second of a thread whose calls come many at a time, beside the table speed.
#[test]
fn a_thread_carries_what_was_measured() {
    for (redis, name) in [
        (RedisKind::None, "Weir, memory"),
        (RedisKind::Single, "Weir, Redis, fixed_window"),
    ] {
        let algorithm = AlgorithmKind::FixedWindow;
        let micros = value(
            &Size {
                algorithm,
                redis,
                ..LOAD
            },
            "request_cpu_micros",
        );
        let together = 1e6 / (micros - measured::ALONE_MICROS);
        let measured = number(&cells("speed", name)[3]);
        let ratio = together / measured;
        assert!(
            (ratio - 1.0).abs() < 0.1,
            "{together} by the table, {measured} measured"
        );
    }
}

#[test]
fn a_redis_that_is_too_small_says_so() {
    let first = |load: &Size| {
        let (resource, reached_at) = plan::report(load).bounds[0];
        (resource, reached_at < load.rate)
    };
    let small = Size {
        rate: 10_000.0,
        ..LOAD
    };
    let large = Size { rate: 10e6, ..LOAD };
    // Keys decide where they are many.
    let many = Size {
        rate: 1_000.0,
        keys: 1e9,
        ..LOAD
    };
    assert_eq!(first(&small), ("threads of Weir", false));
    assert_eq!(first(&large), ("CPU of Redis", true));
    assert_eq!(first(&many), ("memory of Redis", true));
    for load in [large, many] {
        let redis = RedisKind::Cluster;
        assert!(!first(&Size { redis, ..load }).1, "a cluster grows");
    }
}

#[test]
fn threads_without_a_connection_are_found() {
    let has_idle = |envoys| {
        let report = plan::report(&Size {
            rate: 400_000.0,
            envoys,
            ..LOAD
        });
        report
            .bounds
            .iter()
            .any(|(resource, _)| *resource == "connections of Envoy")
    };
    assert!(has_idle(Some(1)), "4 connections and more threads");
    assert!(!has_idle(Some(100)) && !has_idle(None));
}

/// Whatever the products of measured ratios say; and usage costs more.
#[test]
fn a_check_costs_no_less_with_more_connections() {
    for (_, algorithm) in AlgorithmKind::OVER_TIME {
        for redis in [RedisKind::Single, RedisKind::Cluster] {
            let capacities = [false, true].map(|usage| {
                let load = Size {
                    algorithm,
                    usage,
                    redis,
                    ..LOAD
                };
                let connections = (0..12).map(|power| f64::from(1 << power));
                connections
                    .map(|connections| plan::capacity(&load, connections).1)
                    .collect::<Vec<_>>()
            });
            for of in &capacities {
                assert!(
                    of.is_sorted_by(|few, many| many <= &(few * 1.000_001)),
                    "{algorithm:?}: {of:?}"
                );
            }
            let [without, with] = &capacities;
            assert!(
                without
                    .iter()
                    .zip(with)
                    .all(|(without, with)| with < without),
                "{capacities:?}"
            );
        }
    }
}

prop_compose! {
    fn loads()(
        rate in 1_u64..1_000_000_000,
        keys in 1_u64..100_000_000_000,
        descriptors in 1_u32..=256,
        (_, algorithm) in prop::sample::select(AlgorithmKind::OVER_TIME.to_vec()),
        usage in any::<bool>(),
        redis in prop::sample::select(vec![RedisKind::None, RedisKind::Single, RedisKind::Sentinel, RedisKind::Cluster]),
        workers in 1_u32..=1_024,
        envoys in prop::option::of(1_u32..=1_000_000),
    ) -> Size {
        let rate = (rate as f64).max(f64::from(descriptors));
        Size { rate, keys: keys as f64, descriptors, algorithm, usage, redis, workers, envoys, ..LOAD }
    }
}

proptest! {
    #![proptest_config(crate::testing::property(256))]

    #[test]
    fn every_plan_carries_its_peak_and_prints_numbers(load in loads()) {
        let of = |key| value(&load, key);
        let spare = if load.redis == RedisKind::None { 0.0 } else { 1.0 };
        let thread = 1e6 / of("request_cpu_micros") * f64::from(load.descriptors);
        let carried = (of("replicas") - spare) * of("workers") * thread * plan::TARGET;
        prop_assert!(carried >= load.rate * 0.999, "{carried} of {}", load.rate);
        prop_assert!(of("cores") <= of("replicas") * of("workers") + 1e-3);
        let report = plan::report(&load);
        prop_assert!(report.bounds.is_sorted_by(|one, next| one.1 <= next.1));
        let text = report.text() + &serde_json::to_string(&report).expect("JSON");
        prop_assert!(!text.contains("NaN") && !text.contains("inf") && !text.contains("null"), "{text}");
    }

    #[test]
    fn more_never_needs_less(load in loads(), factor in 1.0_f64..10.0) {
        let needs = |load: &Size| {
            let threads = value(load, "replicas") * value(load, "workers");
            let mut needs = vec![threads, value(load, "cores")];
            if load.redis != RedisKind::None {
                needs.push(value(load, "servers"));
                needs.push(value(load, "servers") * value(load, "used_memory_bytes"));
            }
            needs
        };
        let without = needs(&load);
        for more in [
            Size { rate: load.rate * factor, envoys: Some(load.envoys.unwrap_or(1)), ..load.clone() },
            Size { keys: load.keys * factor, ..load.clone() },
            Size { usage: true, ..load.clone() },
        ] {
            let without = if more.rate > load.rate { needs(&Size { envoys: more.envoys, ..load.clone() }) } else { without.clone() };
            let with = needs(&more);
            let grows = without.iter().zip(&with).all(|(without, with)| *with >= without * 0.999);
            prop_assert!(grows, "{without:?}, {with:?} with {more:?}");
        }
    }
}
