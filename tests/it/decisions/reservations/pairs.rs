//! Reservations with each other feature: an answer, an error of the loader, or the test that has it.

use std::process::Command;
use std::time::{Duration, Instant};

use super::rule::{all, each, file, of_each_algorithm, one, until_left};
use crate::support::wait::TIMEOUT;
use crate::support::{Client, RedisServer, Weir, tools};

/// The result of a pair.
enum Cell {
    /// Each descriptor, and the hits left after it; `!` for one that is refused.
    Answers(&'static str),
    /// A descriptor that the loader refuses, and a part of the message.
    Error(&'static str, &'static str),
    /// A file and a function, or a line of a table.
    At(&'static str, &'static str),
}

use Cell::{Answers, At, Error};

const PAIRS: &[(&str, Cell)] = &[
    (
        "block, exemption, raise and reset",
        At(
            "tests/it/operators/overrides/reservations.rs",
            "async fn operators_see_and_change_reservations",
        ),
    ),
    (
        "trial",
        Error(
            "{ key: k, rate_limit: { unit: day, requests_per_unit: 9, reservations: { ttl: 1s }, \
             trial: { requests_per_unit: 5 } } }",
            "a limit with 'trial' has no 'reservations'",
        ),
    ),
    (
        "all_or_none",
        At(
            "tests/vectors/config/reservations_all_or_none.expect",
            "a domain with 'commit: all_or_none' has no 'reservations'",
        ),
    ),
    (
        "lease",
        Error(
            "{ key: k, rate_limit: { unit: day, requests_per_unit: 9, reservations: { ttl: 1s }, \
             lease: true } }",
            "a limit with 'reservations' has no 'lease'",
        ),
    ),
    (
        "holders",
        Error(
            "{ key: k, rate_limit: { algorithm: concurrency, requests_per_unit: 9, \
             max_duration: 1s, reservations: { ttl: 1s } } }",
            "'reservations' has no meaning for a concurrency",
        ),
    ),
    (
        "a shaper",
        Error(
            "{ key: k, rate_limit: { unit: day, requests_per_unit: 9, algorithm: leaky_bucket, \
             reservations: { ttl: 1s } } }",
            "'reservations' has no meaning for a leaky_bucket",
        ),
    ),
    (
        "refused hits that do not count",
        Error(
            "{ key: k, rate_limit: { unit: day, requests_per_unit: 9, count_denied: false, \
             reservations: { ttl: 1s } } }",
            "a limit with 'reservations' has no 'count_denied: false'",
        ),
    ),
    (
        "unlimited",
        Error(
            "{ key: k, rate_limit: { unlimited: true, reservations: { ttl: 1s } } }",
            "an unlimited limit has no reservations",
        ),
    ),
    // Half of the row's amount, or of the plan's.
    (
        "a row and a plan of a table",
        Answers(
            "tenant=row reserve=1 900 -> 100, tenant=row settle=1 20 -> 180, \
             tenant=pro reserve=1 900 -> 500, tenant=pro settle=1 20 -> 980, \
             tenant=none reserve=1 900 -> 20",
        ),
    ),
    (
        "a network",
        Answers(
            "ip=10.0.0.1 reserve=1 30 -> 70, ip=10.0.0.1 settle=1 10 -> 90, \
             ip=10.9.9.9 0 -> 100, ip=192.0.2.7 reserve=1 30 -> 70, ip=192.0.2.8 0 -> 70, \
             ip=192.0.2.8 settle=1 10 -> 90",
        ),
    ),
    // A refund also takes hits that are held. The settlement gives back the rest.
    (
        "refund",
        Answers(
            "plain=a 40 -> 60, plain=a reserve=1 30 -> 30, plain=a -20 -> 50, \
             plain=a settle=1 10 -> 70, plain=a reserve=2 50 -> 20, plain=a -100 -> 100, \
             plain=a settle=2 10 -> 100",
        ),
    ),
    (
        "shadow mode",
        Answers("shadow=a 100 -> 0, shadow=a reserve=1 10 -> 0, shadow=a settle=1 5 -> 0"),
    ),
    (
        "a calendar",
        Answers("calendar=a reserve=1 40 -> 60, calendar=a settle=1 10 -> 90"),
    ),
    (
        "usage",
        At(
            "tests/it/decisions/reservations/rule.rs",
            "async fn what_is_held_is_not_used",
        ),
    ),
    (
        "thresholds",
        At(
            "tests/it/decisions/reservations/rule.rs",
            "async fn what_is_held_is_not_used",
        ),
    ),
    (
        "requests in flight",
        At(
            "tests/it/decisions/reservations/rule.rs",
            "async fn a_refused_request_holds_nothing",
        ),
    ),
    (
        "reload",
        At(
            "tests/it/decisions/reservations/pairs.rs",
            "async fn without_the_option_open_holds_end",
        ),
    ),
    (
        "outage",
        At(
            "tests/it/decisions/reservations.rs",
            "async fn reservations_during_an_outage",
        ),
    ),
    (
        "slots that move",
        At(
            "tests/it/decisions/reservations.rs",
            "async fn reservations_while_their_slot_moves",
        ),
    ),
    (
        "a control plane",
        At(
            "deploy/README.md",
            "reservations](recipes.md#budgets-of-language-models) need a Weir that reads files.",
        ),
    ),
    (
        "Kuadrant",
        At(
            "tests/it/service/kuadrant.rs",
            "async fn a_reservation_holds_hits_until_it_is_committed",
        ),
    ),
];

const LIMITS: &str = "
  - { key: tenant, table: tenants.csv, rate_limit: { unit: year, requests_per_unit: 40, \
      reservations: { ttl: 60s } } }
  - { key: ip, match: cidr, value: 10.0.0.0/8, rate_limit: { unit: year, requests_per_unit: 100, \
      reservations: { ttl: 60s } } }
  - { key: ip, match: cidr, value: 192.0.2.0/24, share_threshold: true, rate_limit: { unit: year, \
      requests_per_unit: 100, reservations: { ttl: 60s } } }
  - { key: plain, rate_limit: { unit: year, requests_per_unit: 100, reservations: { ttl: 60s } } }
  - { key: shadow, shadow_mode: true, rate_limit: { unit: year, requests_per_unit: 100, \
      reservations: { ttl: 60s } } }
  - { key: calendar, rate_limit: { unit: year, requests_per_unit: 100, period: calendar, \
      timezone: Europe/Berlin, reservations: { ttl: 60s } } }
";

/// The message of the loader about a file with this descriptor.
fn error_of(descriptor: &str) -> String {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("limits.yaml");
    std::fs::write(&path, file(&format!("  - {descriptor}\n"))).expect("written");
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    let output = command
        .args(["check"])
        .arg(&path)
        .env_clear()
        .output()
        .expect("the binary runs");
    assert!(!output.status.success(), "{descriptor}");
    let both = [output.stdout, output.stderr].concat();
    String::from_utf8(both).expect("UTF-8")
}

#[tokio::test]
async fn reservations_with_each_other_feature() {
    let redis = RedisServer::start();
    let url = redis.url();
    let table = "value,plan,requests_per_unit\nrow,,200\npro,pro,\n";
    let limits = file(LIMITS).replacen(
        "descriptors:",
        "plans: { pro: { unit: year, requests_per_unit: 1000 } }\ndescriptors:",
        1,
    );
    let files = [("limits.yaml", &*limits), ("tenants.csv", table)];
    for environment in [&[][..], &[("REDIS_URL", &*url), ("STORE_TIMEOUT", "5s")]] {
        let weir = Weir::start(&files, environment);
        let client = &mut weir.client().await;
        for (pair, cell) in PAIRS {
            let Answers(steps) = cell else { continue };
            for step in steps.split(", ") {
                let (descriptor, expected) = step.split_once(" -> ").expect("an answer");
                let (is_ok, left) = one(client, descriptor).await;
                let found = format!("{left}{}", if is_ok { "" } else { "!" });
                assert_eq!(found, expected, "{pair}: {step}");
            }
        }
    }
    for (pair, cell) in PAIRS {
        match cell {
            Answers(_) => {}
            Error(descriptor, message) => {
                let found = error_of(descriptor);
                assert!(found.contains(message), "{pair}: {found}");
            }
            At(path, text) => assert!(tools::file(path).contains(text), "{pair}: {path}"),
        }
    }
}

/// Files with `reservations`, or of the same limits without it, which may then draw hits ahead.
fn with_and_without() -> [String; 3] {
    let limits = |option: &str, lease: &str, further: &str| {
        let amount = "unit: year, requests_per_unit: 100";
        let kept = option.replace("2s", "2s, on_expiry: keep");
        let further = format!("  - {{ key: {further}, rate_limit: {{ {amount} }} }}\n");
        file(
            &(of_each_algorithm("", &format!("{amount}{option}"))
                + &of_each_algorithm("kept_", &format!("{amount}{kept}"))
                + &format!("  - {{ key: drawn, rate_limit: {{ {amount}{option}{lease} }} }}\n")
                + "  - { key: end, rate_limit: { unit: year, requests_per_unit: 9, \
                    reservations: { ttl: 3s } } }\n"
                + &further),
        )
    };
    [
        limits(", reservations: { ttl: 2s }", "", "first"),
        limits("", ", lease: true", "second"),
        limits("", ", lease: true", "third"),
    ]
}

/// Puts another file in force. `further` is the key of a limit that it has.
async fn reload(client: &mut Client, weir: &Weir, text: &str, further: &str) {
    std::fs::write(weir.config_dir().join("limits.yaml"), text).expect("written");
    let began = Instant::now();
    while one(client, &format!("{further}=x 0")).await.1 == 0 {
        assert!(began.elapsed() < TIMEOUT, "reloaded");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Open holds of a limit that has no `reservations` any more end by themselves, also after further
/// reloads. What is kept stays charged. A replica that starts later sees what others have ended.
#[tokio::test]
async fn without_the_option_open_holds_end() {
    let [with, without, again] = with_and_without();
    let keys = ["fixed", "counter", "log", "buckets", "bucket", "drawn"];
    let kept = ["fixed", "counter", "log", "buckets", "bucket"].map(|key| format!("kept_{key}"));
    let redis = RedisServer::start();
    let url = redis.url();
    for environment in [&[][..], &[("REDIS_URL", &*url), ("STORE_TIMEOUT", "5s")]] {
        let weir = Weir::start(&[("limits.yaml", &with)], environment);
        let client = &mut weir.client().await;
        let mut all_keys = keys.to_vec();
        all_keys.extend(kept.iter().map(|key| &**key));
        let begin = ["=a reserve=1 40", "=b reserve=1 40", "=c reserve=1 40"];
        let begin = begin.map(|rest| each(&all_keys, rest)).concat();
        let answers = all(client, &begin).await;
        assert!(
            answers.iter().all(|left| *left == (true, 60)),
            "{answers:?}"
        );
        all(client, &["end=a reserve=1 1"]).await;
        reload(client, &weir, &without, "second").await;
        // The entry `reserve` is now one of no limit.
        assert_eq!(one(client, "fixed=b reserve=1 0").await, (true, 0));
        until_left(client, &["end=a 0"], 9).await;
        for key in keys {
            assert_eq!(
                one(client, &format!("{key}=a 0")).await,
                (true, 100),
                "{key}"
            );
            assert_eq!(
                one(client, &format!("{key}=a 90")).await,
                (true, 10),
                "{key}"
            );
            assert!(!one(client, &format!("{key}=a 11")).await.0, "{key}");
        }
        for key in &kept {
            assert_eq!(
                one(client, &format!("{key}=a 0")).await,
                (true, 60),
                "{key}"
            );
        }
        reload(client, &weir, &again, "third").await;
        for key in keys {
            assert_eq!(
                one(client, &format!("{key}=b 1")).await,
                (true, 99),
                "{key}"
            );
        }
        if !environment.is_empty() {
            let late = Weir::start(&[("limits.yaml", &again)], environment);
            let other = &mut late.client().await;
            let peeks = each(&["fixed", "counter", "log", "buckets", "bucket"], "=c 0");
            assert_eq!(all(other, &peeks).await, [(true, 60); 5]);
            assert_eq!(all(client, &peeks).await, [(true, 100); 5]);
            assert_eq!(all(other, &peeks).await, [(true, 100); 5]);
        }
    }
}
