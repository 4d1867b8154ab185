//! The table of deploy/capacity.md has the figures of the benches, its examples follow from it, and
//! real processes need what it says: bytes of a key in Redis and in the memory of a service.

use std::time::Duration;

use weir::core::algorithm::AlgorithmKind;

use crate::support::wait::eventually;
use crate::support::{Client, RedisServer, Weir, descriptor, request, tools};

/// Limits with keys that do not expire meanwhile.
const LIMITS: &str = "
domain: size
descriptors:
  - { key: fixed_window, rate_limit: { unit: hour, requests_per_unit: 1000 } }
  - { key: sliding_window_log, rate_limit: { unit: hour, requests_per_unit: 1000, \
      algorithm: sliding_window_log } }
  - { key: token_bucket, rate_limit: { unit: hour, requests_per_unit: 1000, \
      algorithm: token_bucket } }
  - { key: recorded, rate_limit: { unit: day, requests_per_unit: 1000, track_usage: true, \
      usage_interval: 1s } }
";

/// How far a key in Redis may be from the table. The buffers of connections are in what Redis
/// reports, and its allocator has steps.
const TOLERANCE: f64 = 0.15;

/// Descriptors of a request.
const TOGETHER: usize = 200;

/// Columns of the page's table: CPU of Weir, CPU of Redis by batch, bytes in Redis and in memory.
const COLUMNS: usize = 6;

/// Bytes of the names that the table holds for, and of those of its examples.
const NAME: f64 = 21.0;
const USUAL_NAME: f64 = 41.0;

/// The cells of the first row of a page whose first one begins so.
fn cells<'p>(page: &'p str, first: &str) -> Vec<&'p str> {
    let begin = format!("| {first}");
    let row = page.lines().find(|line| line.starts_with(&begin));
    let row = row.unwrap_or_else(|| panic!("no row {first:?}"));
    row.trim_matches('|')
        .split('|')
        .skip(1)
        .map(str::trim)
        .collect()
}

/// The numbers in a cell: `+ 870, and 42` has two.
fn numbers(cell: &str) -> Vec<f64> {
    cell.replace("0,000", "0000")
        .replace(",000", "000")
        .split(|letter: char| !letter.is_ascii_digit() && letter != '.')
        .filter_map(|number| number.parse().ok())
        .collect()
}

/// The first number of each cell.
fn firsts(cells: &[&str]) -> Vec<f64> {
    cells.iter().map(|cell| numbers(cell)[0]).collect()
}

/// The table between two markers of benches/figures.txt.
fn bench(page: &str, name: &str) -> String {
    let (_, table) = page
        .split_once(&format!("<!-- {name}: begin -->"))
        .expect("a marker");
    table.split("<!-- ").next().expect("an end").to_owned()
}

/// The row of an algorithm in the page.
fn row(algorithm: &str) -> Vec<f64> {
    let page = tools::file("deploy/capacity.md");
    let row = firsts(&cells(&page, &format!("`{algorithm}`")));
    assert_eq!(row.len(), COLUMNS);
    row
}

#[test]
fn the_table_has_the_figures_of_the_benches() {
    let page = tools::file("deploy/capacity.md");
    let benches = tools::file("benches/figures.txt");
    let [speed, algorithms, usage, sizing] =
        ["speed", "algorithms", "usage", "sizing"].map(|name| bench(&benches, name));
    // The page of the benches has the ratios, which are the first table of their file.
    let table = speed.split("\n\n").next().expect("a table").trim();
    assert!(tools::file("benches/README.md").contains(table));
    let mut ratios = [const { Vec::new() }; 2];
    for (name, _) in AlgorithmKind::OVER_TIME {
        let of_weir = cells(&speed, &format!("Weir, Redis, {name}"));
        let measured = cells(&algorithms, &format!("`{name}`"));
        let mut expected = vec![numbers(of_weir[0])[0]];
        expected.extend(firsts(&measured[1..4]));
        expected.extend([firsts(&measured)[5], firsts(&measured)[4]]);
        assert_eq!(row(name), expected, "{name}");
        let with_usage = cells(&usage, &format!("`{name}`"));
        for (ratios, cell) in ratios.iter_mut().zip(&with_usage[1..3]) {
            ratios.push(numbers(cell)[1]);
        }
        let cluster = numbers(cells(&sizing, &format!("`{name}`"))[1])[0];
        let most = if name == "leaky_bucket" { 1.33 } else { 1.23 };
        assert!(cluster < most, "{name} in a cluster: {cluster}");
    }
    let of_usage = cells(&page, "`track_usage`");
    for (mut ratios, cell) in ratios.into_iter().zip(&of_usage[1..3]) {
        ratios.sort_by(f64::total_cmp);
        assert_eq!(numbers(cell), [ratios[0], ratios[ratios.len() - 1]]);
    }
    let in_memory = numbers(cells(&speed, "Weir, memory")[0]);
    assert_eq!(numbers(cells(&page, "counters in memory")[0]), in_memory);
    let three = cells(&speed, "Weir, Redis, fixed_window, 3 descriptors");
    let further = (numbers(three[0])[0] - row("fixed_window")[0]) / 2.0;
    // The row has no name of its own in its block of the table.
    let (_, alone) = benches.split_once("|  | 256 | ").expect("256 connections");
    let alone = in_memory[0] * (numbers(&alone[..4])[0] - 1.0);
    for (name, measured) in [("each further", further), ("hundreds", alone)] {
        let shown = numbers(cells(&page, name)[0])[0];
        assert!(
            (shown - measured).abs() < 0.05,
            "{name}: {measured} measured, {shown} in the page"
        );
    }
}

#[test]
fn the_examples_follow_from_the_table() {
    let page = tools::file("deploy/capacity.md");
    let [alone, usage] = ["hundreds", "`track_usage`"].map(|name| cells(&page, name));
    let bucket = row("token_bucket");
    let record = numbers(usage[4]);
    for rate in [
        "10,000",
        "100,000",
        "100,000 | 2,000,000 | yes",
        "1,000,000",
    ] {
        let begin = format!("| {rate} |");
        let line = page.lines().find(|line| line.starts_with(&begin));
        let line: Vec<_> = line.expect("an example").split('|').collect();
        let number = |column: usize| -> f64 {
            let text = line[column].trim().replace(',', "");
            text.parse().expect("a number")
        };
        let (rate, keys, batch) = (number(1), number(2), number(4));
        let has_usage = line[3].trim() == "yes";
        let mut micros = bucket[if batch > 16.0 { 3 } else { 2 }];
        let (mut weir, mut bytes) = (
            bucket[0] + numbers(alone[0])[0],
            bucket[4] + USUAL_NAME - NAME,
        );
        if has_usage {
            weir += numbers(usage[0])[0];
            micros *= numbers(
                cells(
                    &bench(&tools::file("benches/figures.txt"), "usage"),
                    "`token_bucket`",
                )[2],
            )[1];
            bytes += record[0] + 59.0 * record[1];
        }
        let cores = |rate: f64, micros: f64| (rate * micros / 600_000.0).ceil();
        let threads = cores(rate, weir);
        assert_eq!(number(5), threads, "{line:?}");
        let primaries = cores(rate, micros);
        let of_cluster = if primaries > 1.0 { 1.1 } else { 1.0 };
        assert_eq!(number(6), cores(rate, micros * of_cluster), "{line:?}");
        assert_eq!(number(7), (keys * bytes / 1_048_576.0).ceil(), "{line:?}");
        let round = bucket[if batch > 16.0 { 3 } else { 2 }] * batch * threads;
        assert!(round <= 10_000.0, "{line:?}: {round} µs");
    }
}

/// A digit of each value varies, so that all keys have the same length.
fn value(key: usize, length: usize) -> String {
    format!("{key:0length$}")
}

/// Sends a hit on each of `keys` keys.
async fn hit(client: &mut Client, limit: &str, keys: usize, length: usize) {
    for first in (0..keys).step_by(TOGETHER) {
        let descriptors = (first..keys.min(first + TOGETHER))
            .map(|key| descriptor(&[(limit, &value(key, length))]))
            .collect();
        let answer = client
            .should_rate_limit(request("size", descriptors))
            .await
            .expect("an answer")
            .into_inner();
        assert!(
            answer
                .statuses
                .iter()
                .all(|status| status.current_limit.is_some()),
            "every one is counted"
        );
    }
}

/// The memory of Redis without the buffers of its clients, which shrink some seconds after a large
/// batch.
fn used_memory(redis: &RedisServer) -> f64 {
    let read = || {
        let info: String = redis.run(&["INFO", "memory"]);
        let bytes = |name: &str| {
            info.lines()
                .find_map(|line| line.strip_prefix(name))
                .expect("a size")
                .trim()
                .parse::<f64>()
                .expect("a number")
        };
        bytes("used_memory:") - bytes("mem_clients_normal:")
    };
    // Tables that grow are there twice for a while.
    let steady = eventually(|| {
        let before = read();
        std::thread::sleep(Duration::from_millis(60));
        ((read() - before).abs() < 4_096.0).then_some(before)
    });
    steady.unwrap_or_else(read)
}

/// A Redis, a service on it, and whether the table was measured with such a Redis.
fn start() -> (RedisServer, Weir, bool) {
    let redis = RedisServer::start();
    let environment = [
        ("REDIS_URL", &*redis.url()),
        ("WORKERS", "1"),
        ("STORE_TIMEOUT", "10s"),
        ("EXPIRATION_JITTER_MAX_SECONDS", "0"),
    ];
    let weir = Weir::start(&[("size.yaml", LIMITS)], &environment);
    let info: String = redis.run(&["INFO"]);
    let is_measured =
        info.contains("redis_version:7.0.") && info.contains("mem_allocator:jemalloc");
    (redis, weir, is_measured)
}

#[tokio::test]
async fn a_key_in_redis_takes_what_the_page_says() {
    // As many as in the bench for each place in the tables of Redis, which have powers of two; and
    // so many that buffers of a busy connection (100 KiB) are a small part.
    const KEYS: usize = 20_000;
    let (redis, weir, is_measured) = start();
    let mut client = weir.client().await;
    // Hits on a key, and bytes of its value.
    for (name, hits, length) in [
        ("fixed_window", 1, 8),
        ("sliding_window_log", 9, 20),
        ("token_bucket", 1, 90),
    ] {
        redis.flush();
        // The connection and the script are there before.
        hit(&mut client, name, 1, length).await;
        redis.flush();
        let before = used_memory(&redis);
        for _ in 0..hits {
            hit(&mut client, name, KEYS, length).await;
        }
        assert_eq!(redis.keys().len(), KEYS, "{name}");
        let measured = (used_memory(&redis) - before) / KEYS as f64;
        let key: String = redis.run(&["RANDOMKEY"]);
        let bytes = key.split(':').next().expect("a key").len() as f64;
        // A further hit is a cell of a log.
        let expected = row(name)[4] + bytes - NAME + f64::from(hits - 1) * 10.0;
        eprintln!("{name}, {hits} hits: {measured:.1} bytes of {key}, {expected:.1} in the page");
        let least = if is_measured { 1.0 - TOLERANCE } else { 0.5 };
        assert!(
            (expected * least..=expected * (1.0 + TOLERANCE)).contains(&measured),
            "{name}, {hits} hits: {measured:.1} bytes of {key}, {expected:.1} in the page"
        );
    }
}

/// The record of a subject and its entries of the lists, in addition to its counter.
#[tokio::test]
async fn usage_in_redis_takes_what_the_page_says() {
    const SUBJECTS: usize = 2_400;
    let (redis, weir, is_measured) = start();
    let mut client = weir.client().await;
    let are_listed = |subjects: usize| {
        let is_listed = |list| {
            redis.run::<usize>(&["ZCARD", &format!("w1{{size|recorded}}{list}")]) == subjects
        };
        let all = || ["ut", "ul", "uf"].into_iter().all(is_listed).then_some(());
        assert!(eventually(all).is_some(), "all are in the lists");
    };
    hit(&mut client, "recorded", 1, 8).await;
    are_listed(1);
    redis.flush();
    let before = used_memory(&redis);
    let key = "w1{size|recorded=00000001}fw86400";
    let page = tools::file("deploy/capacity.md");
    let of_usage = numbers(cells(&page, "`track_usage`")[4]);
    for further in 0..=1_u8 {
        // The next bucket begins.
        tokio::time::sleep(Duration::from_secs(further.into())).await;
        hit(&mut client, "recorded", SUBJECTS, 8).await;
        are_listed(SUBJECTS);
        let measured = (used_memory(&redis) - before) / SUBJECTS as f64;
        let expected = row("fixed_window")[4] + key.len() as f64 - NAME
            + of_usage[0]
            + f64::from(further) * of_usage[1];
        eprintln!("{further} further buckets: {measured:.1} bytes, {expected:.1} in the page");
        let least = if is_measured { 0.75 } else { 0.5 };
        assert!(
            (expected * least..=expected * (1.0 + TOLERANCE)).contains(&measured),
            "{further} further buckets: {measured:.1} bytes, {expected:.1} in the page"
        );
    }
}

#[tokio::test]
async fn a_key_in_memory_takes_what_the_page_says() {
    const KEYS: usize = 200_000;
    let weir = Weir::start(&[("size.yaml", LIMITS)], &[("WORKERS", "1")]);
    let resident = || weir.resident_kib() as f64 * 1_024.0;
    let mut client = weir.client().await;
    hit(&mut client, "fixed_window", 1, 8).await;
    let before = resident();
    hit(&mut client, "token_bucket", KEYS, 8).await;
    let measured = (resident() - before) / KEYS as f64;
    let expected = row("token_bucket")[5];
    eprintln!("{measured:.1} bytes, {expected:.1} in the page");
    assert!(
        (measured / expected - 1.0).abs() < 0.25,
        "{measured:.1} bytes, {expected:.1} in the page"
    );
}
