//! The table of deploy/capacity.md has the figures of the benches, its examples follow from it, and
//! real processes need what it says: bytes of a key in Redis and in the memory of a service.

use std::time::Duration;

use crate::support::wait::eventually;
use crate::support::{Client, RedisServer, Weir, ask, descriptor, tools};

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

/// The row of an algorithm in the page.
fn row(algorithm: &str) -> Vec<f64> {
    let page = tools::file("deploy/capacity.md");
    let row = firsts(&cells(&page, &format!("`{algorithm}`")));
    assert_eq!(row.len(), COLUMNS);
    row
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
        let answer = ask(client, "size", descriptors).await;
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
