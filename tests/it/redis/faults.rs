//! The fault suite: measures what Weir promises while Redis fails, with the real binary and real
//! redis-servers.
//!
//! Each goal is one test that prints one line: `Gnn PASS figures` or `Gnn FAIL figures`. In CI the
//! tests are short and only their counts are strict. `tests/faults.sh` runs the long ones
//! (`WEIR_FAULTS=script`), whose times are strict too, and writes their figures into
//! tests/faults.txt.

mod cluster;
mod error_replies;
mod exact_counts;
mod goal;
mod invariants;
mod lost_scripts;
mod network;
mod outages;
mod sentinel;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use self::goal::Goal;
use crate::support::load::{Load, LoadRequest, Options, Outcome, Pace};
use crate::support::{RedisServer, Weir, descriptor, exclusive, request, tools};

/// Limits of the domain `faults`, per year, so that no window ends while a test runs. The key names
/// the failure policy (`local`, `tight`, `error`), or how Redis runs the check: `script` and
/// `bucket` by script, the others by transaction.
const LIMITS: &[(&str, &str)] = &[(
    "faults.yaml",
    "
domain: faults
descriptors:
  - key: local
    rate_limit: { unit: year, requests_per_unit: 1000000000, on_store_failure: local }
  - key: tight
    rate_limit: { unit: year, requests_per_unit: 500, on_store_failure: local }
  - key: error
    rate_limit: { unit: year, requests_per_unit: 1000000000, on_store_failure: error }
  - key: script
    rate_limit: { unit: year, requests_per_unit: 1000000000, on_store_failure: error, \
        count_denied: false }
  - key: bucket
    rate_limit: { unit: year, requests_per_unit: 1000000000, on_store_failure: error, \
        algorithm: token_bucket }
",
)];

/// The amount of `tight`.
const TIGHT: usize = 500;

/// The time that Envoy's default timeout of 20 ms leaves for the store.
const ENVOYS_BUDGET: &str = "17ms";

/// Two services that share one Redis. They have no denial cache, so that every request reaches
/// Redis.
fn two_services(url: &str, further: &[(&str, &str)]) -> Vec<Weir> {
    let environment = [
        &[
            ("REDIS_URL", url),
            ("REPLICAS", "2"),
            ("LOCAL_CACHE_SIZE_IN_BYTES", "0"),
        ],
        further,
    ]
    .concat();
    (0..2).map(|_| Weir::start(LIMITS, &environment)).collect()
}

/// A request for one hit of a limit; the report files it under that limit's key.
fn load_request(label: &'static str, value: &str) -> LoadRequest {
    LoadRequest {
        label,
        request: request("faults", vec![descriptor(&[(label, value)])]),
    }
}

fn sleep(time: Duration) {
    std::thread::sleep(time);
}

/// The counters of the keys that contain this text.
fn counters(redis: &RedisServer, part: &str) -> BTreeMap<String, i64> {
    let keys = redis.keys().into_iter().filter(|key| key.contains(part));
    keys.map(|key| (key.clone(), redis.run(&["GET", &key])))
        .collect()
}

/// The sum of the counters of the keys that contain this text.
fn counted(redis: &RedisServer, part: &str) -> usize {
    usize::try_from(counters(redis, part).values().sum::<i64>()).expect("no counter is below zero")
}

/// The value of a metric, summed over services and over all series that contain `label`.
fn metric(services: &[Weir], name: &str, label: &str) -> u64 {
    let sums = services.iter();
    let sums = sums.filter_map(|service| service.metric_sum(name, label));
    sums.map(|sum| sum as u64).sum()
}

/// tests/README.md lists every goal of the code, and no other.
#[test]
fn the_page_lists_the_goals() {
    let folder = tools::repository().join("tests/it/redis/faults");
    let texts = std::fs::read_dir(folder)
        .expect("a folder")
        .map(|file| std::fs::read_to_string(file.expect("a file").path()).expect("text"));
    let mut tested: Vec<String> = Vec::new();
    for text in texts {
        tested.extend(
            text.split("Goal::of(\"")
                .skip(1)
                .filter_map(|rest| Some(rest.split_once('"')?.0.to_owned())),
        );
    }
    let distinct: BTreeSet<_> = tested.iter().cloned().collect();
    assert_eq!(
        distinct.len(),
        tested.len(),
        "each goal has one test: {tested:?}"
    );
    let page = tools::file("tests/README.md");
    let rows = page.lines().filter_map(|line| {
        line.strip_prefix("| G")?
            .split(' ')
            .next()
            .map(|number| format!("G{number}"))
    });
    assert_eq!(
        rows.collect::<BTreeSet<_>>(),
        distinct,
        "the table of tests/README.md, and the tests"
    );
    let figures = tools::file("tests/faults.txt");
    let measured = figures
        .lines()
        .filter_map(|line| Some(line.split_once(' ')?.0.to_owned()));
    assert_eq!(
        measured.collect::<BTreeSet<_>>(),
        distinct,
        "tests/faults.txt, and the tests"
    );
    assert_eq!(distinct.len(), 16);
}
