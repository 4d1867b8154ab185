//! The list by share of the current period: in each store, by plan, row and override, over several
//! replicas, and what has no share.

use std::process::Command;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::service::{api, hit};
use crate::operators::admin::schema::Answers;
use crate::support::cluster::Cluster;
use crate::support::wait::eventually_async;
use crate::support::{RedisServer, Weir, descriptor_with_hits, http_client, request};

/// Limits per year, so that no window ends while a test runs.
const LIMITS: [(&str, &str); 3] = [
    (
        "limits.yaml",
        "
domain: shop
plans:
  pro: { unit: year, requests_per_unit: 1000, period: calendar, timezone: Europe/Berlin }
descriptors:
  - key: tenant
    rate_limit: { unit: year, requests_per_unit: 100, period: calendar, timezone: Europe/Berlin, \
        track_usage: true, trial: { requests_per_unit: 200 } }
    table: tenants.csv
  - key: bucket
    rate_limit: { unit: year, requests_per_unit: 10, algorithm: token_bucket, burst: 50, \
        scale: 10, track_usage: true }
  - key: model
    rate_limit: { unit: year, requests_per_unit: 1000, track_usage: true, \
        reservations: { ttl: 1h } }
  - key: few
    rate_limit: { unit: year, requests_per_unit: 10, track_usage: true, usage_subjects: 2 }
  - key: user
    descriptors:
      - key: request
        rate_limit: { name: reports, algorithm: concurrency, requests_per_unit: 2, \
            max_duration: 60s, track_usage: true }
",
    ),
    (
        "whole.yaml",
        "
domain: whole
commit: all_or_none
descriptors:
  - key: user
    rate_limit: { unit: year, requests_per_unit: 10, track_usage: true }
",
    ),
    (
        "tenants.csv",
        "value,plan,requests_per_unit\npro,pro,\nrow,,10\n",
    ),
];

/// A value of which only the digest is stored.
const LONG: &str = "0123456789012345678901234567890123456789012345678901234567890123456789\
    0123456789012345678901234567890123456789012345678901234567890123456789";

/// A service with a token, and the token's file.
fn start(environment: &[(&str, &str)]) -> (Weir, TempDir) {
    let folder = tempfile::tempdir().expect("a folder");
    let tokens = folder.path().join("tokens");
    std::fs::write(&tokens, "alice:0123456789abcdef0123\n").expect("written");
    let tokens = [("ADMIN_TOKEN_FILE", tokens.to_str().expect("UTF-8"))];
    let weir = Weir::start(&LIMITS, &[&tokens[..], environment].concat());
    (weir, folder)
}

/// What a command prints, of several services.
fn command(weirs: &[&Weir], folder: &TempDir, arguments: &[&str]) -> (bool, String) {
    let admin: Vec<_> = weirs
        .iter()
        .map(|weir| weir.listener("debug").to_string())
        .collect();
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    let output = command
        .args(arguments)
        .env_clear()
        .env("TZ", "UTC")
        .env("WEIR_ADMIN", admin.join(","))
        .env("WEIR_ADMIN_TOKEN_FILE", folder.path().join("tokens"))
        .output()
        .expect("the binary runs");
    let text = if output.status.success() {
        output.stdout
    } else {
        output.stderr
    };
    (
        output.status.success(),
        String::from_utf8(text).expect("UTF-8"),
    )
}

fn list(weir: &Weir, query: &str) -> Value {
    let (status, answer) = api(weir, &format!("usage/top?by=share&{query}"));
    assert_eq!(status, 200, "{query}: {answer}");
    answer
}

/// The value of each subject, with used hits, amount and share, and hits left.
fn rows(list: &Value) -> Vec<(String, [f64; 4])> {
    let row = |subject: &Value| {
        let value = subject["entries"][0]["value"].as_str().expect("a value");
        let value = value.chars().take(6).collect();
        let names = ["used", "amount", "share_percent", "left"];
        (
            value,
            names.map(|name| subject[name].as_f64().expect("a number")),
        )
    };
    let subjects = list["subjects"].as_array().expect("a list");
    subjects.iter().map(row).collect()
}

/// Amounts of a plan, a row, an override and the limit; hits over the limit count.
async fn assert_tenants_are_ranked(weir: &Weir, folder: &TempDir) {
    let raise = ["raise", "-d", "shop", "--to", "400/year", "tenant=raised"];
    let (is_raised, text) = command(&[weir], folder, &raise);
    assert!(is_raised, "{text}");
    let client = &mut weir.client().await;
    for (tenant, hits) in [
        ("plain", 60),
        ("pro", 500),
        ("row", 9),
        ("raised", 80),
        ("over", 130),
        (LONG, 70),
        ("back", 5),
        ("back", -5),
    ] {
        hit(client, ("tenant", tenant), hits).await;
    }
    let expected = [
        ("over", [130.0, 100.0, 130.0, 0.0]),
        ("row", [9.0, 10.0, 90.0, 1.0]),
        ("sha256", [70.0, 100.0, 70.0, 30.0]),
        ("plain", [60.0, 100.0, 60.0, 40.0]),
        ("pro", [500.0, 1_000.0, 50.0, 500.0]),
        ("raised", [80.0, 400.0, 20.0, 320.0]),
    ]
    .map(|(value, numbers)| (value.to_owned(), numbers));
    let all = || list(weir, "domain=shop&limit=tenant");
    let is_listed = eventually_async(|| (rows(&all()) == expected).then_some(())).await;
    assert!(is_listed.is_some(), "{}", all());
    let all = all();
    assert_eq!(
        [&all["examined"], &all["complete"], &all["total"]],
        [&json!(7), &json!(true), &json!(6)],
        "a subject without used hits is left out: {all}"
    );
    let raised = &all["subjects"][5];
    assert_eq!(
        [&raised["override"], &raised["timezone"]],
        ["raise", "Europe/Berlin"],
        "{raised}"
    );
    let pages = [
        ("count=4", &expected[..4]),
        ("count=4&cursor=4", &expected[4..]),
    ];
    for (page, expected) in pages {
        let list = list(weir, &format!("domain=shop&limit=tenant&{page}"));
        assert_eq!(rows(&list), expected);
        let next = (expected.len() == 4).then_some("4");
        assert_eq!(list["next"].as_str(), next);
    }
    let near = list(weir, "limit=shop.tenant&above=60");
    assert_eq!(
        (rows(&near), &near["total"]),
        (expected[..3].into(), &json!(3))
    );
}

/// The numbers are those of `weir explain`, in the list and for one subject.
fn assert_numbers_are_explained(weir: &Weir) {
    for value in ["over", "row", "plain", "pro", "raised"] {
        let name = format!("subject=shop%7Ctenant%3D{value}");
        let explained = http_client::post(
            weir.listener("debug"),
            &format!("/api/v1/explain?{name}"),
            b"",
        );
        let explained: Value = serde_json::from_str(&explained.body).expect("JSON");
        let explained = &explained["descriptors"][0];
        let (_, usage) = api(weir, &format!("usage?{name}"));
        let all = list(weir, "limit=shop.tenant");
        let subjects = all["subjects"].as_array().expect("a list");
        let is_it = |one: &&Value| one["entries"][0]["value"] == value;
        let listed = subjects.iter().find(is_it).expect("listed");
        for current in [&usage, listed] {
            assert_eq!(
                [&current["used"], &current["left"], &current["timezone"]],
                [
                    &explained["live"]["used"],
                    &explained["live"]["left"],
                    &explained["limit"]["fields"]["timezone"]
                ],
                "{value}: {current}"
            );
            let reset = |of: &Value| of["resets_in_seconds"].as_f64().expect("a time");
            assert!((reset(current) - reset(&explained["live"])).abs() < 60.0);
        }
    }
}

/// Units of `scale`, hits that fit at once, trials, domains that commit as a whole, and a full
/// index.
async fn assert_other_limits(weir: &Weir) {
    let client = &mut weir.client().await;
    hit(client, ("bucket", "b"), 255).await;
    for (user, hits) in [("a", 5), ("b", 6), ("c", 7)] {
        hit(client, ("few", user), hits).await;
    }
    let asked = request("whole", vec![descriptor_with_hits(&[("user", "w")], 4)]);
    client.should_rate_limit(asked).await.expect("an answer");
    for (query, expected) in [
        ("limit=shop.bucket", ("b", [25.5, 50.0, 51.0, 24.5])),
        ("domain=whole", ("w", [4.0, 10.0, 40.0, 6.0])),
        ("limit=shop.few&count=1", ("c", [7.0, 10.0, 70.0, 3.0])),
        (
            "limit=shop.tenant&trial=true&count=1",
            ("over", [130.0, 200.0, 65.0, 70.0]),
        ),
    ] {
        let expected = [(expected.0.to_owned(), expected.1)];
        let found = eventually_async(|| (rows(&list(weir, query)) == expected).then_some(()));
        assert!(found.await.is_some(), "{}", list(weir, query));
    }
    let few = list(weir, "limit=shop.few");
    assert_eq!(
        [&few["examined"], &few["complete"]],
        [&json!(2), &json!(false)],
        "{few}"
    );
}

/// The hits that reservations hold are a part of the used ones.
async fn assert_holds_are_shown(weir: &Weir, folder: &TempDir) {
    let client = &mut weir.client().await;
    hit(client, ("model", "none"), 400).await;
    for (value, hits) in [("a", 200), ("b", 100)] {
        let entries = [("model", "some"), ("reserve", value)];
        let asked = request("shop", vec![descriptor_with_hits(&entries, hits)]);
        client.should_rate_limit(asked).await.expect("an answer");
    }
    let held = || {
        let list = list(weir, "limit=shop.model");
        let subjects = list["subjects"].as_array().expect("a list").iter();
        let held = subjects.map(|one| (one["entries"][0]["value"].clone(), one["held"].clone()));
        held.collect::<Vec<_>>()
    };
    let expected = [(json!("none"), json!(0)), (json!("some"), json!(300))];
    let is_listed = eventually_async(|| (held() == expected).then_some(())).await;
    assert!(is_listed.is_some(), "{:?}", held());
    let run = |arguments: &[&str]| command(&[weir], folder, arguments);
    let (_, text) = run(&["usage", "--limit", "shop.model", "--by", "share"]);
    let lines: Vec<Vec<_>> = text
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(lines[1][..5], ["used", "amount", "share", "left", "held"]);
    assert_eq!(
        lines[3][..6],
        ["300", "1,000", "30", "%", "700", "300"],
        "{text}"
    );
    let (_, text) = run(&["usage", "-d", "shop", "model=some"]);
    assert!(
        text.contains("700 left, 300 held by reservations, resets"),
        "{text}"
    );
    let (_, text) = run(&["usage", "-d", "shop", "model=none"]);
    assert!(text.contains("600 left, resets"), "{text}");
}

/// What both stores answer alike.
async fn answers(weir: &Weir, folder: &TempDir) {
    assert_tenants_are_ranked(weir, folder).await;
    assert_numbers_are_explained(weir);
    assert_other_limits(weir).await;
    assert_holds_are_shown(weir, folder).await;
    let (status, answer) = api(weir, "usage/top?by=share&limit=reports");
    let error = answer["error"].as_str().unwrap_or_default();
    assert!(
        status == 400
            && error.contains("counts requests in flight")
            && error.ends_with("; write hits"),
        "{answer}"
    );
    let mut described = Answers::default();
    let call = "/api/v1/usage/top?by=share&limit=shop.tenant";
    described.add("get", call, &http_client::get(weir.listener("debug"), call));
    described.validate(&http_client::get(weir.listener("debug"), "/api/v1/openapi.json").body);
}

/// The commands print the same, with the reset in the zone of the limit.
fn commands(weir: &Weir, folder: &TempDir) {
    let run = |arguments: &[&str]| command(&[weir], folder, arguments);
    let by_share = ["usage", "--limit", "shop.tenant", "--by", "share"];
    let (_, text) = run(&[&by_share[..], &["--above", "70%"]].concat());
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines[0], "2 of 2 subjects of shop.tenant, by share");
    let head: Vec<_> = lines[1].split_whitespace().collect();
    assert_eq!(
        head,
        ["used", "amount", "share", "left", "resets", "subject"]
    );
    assert!(
        lines[2].starts_with(" 130     100  130 %     0  in ")
            && lines[2].contains(" 00:00 Europe/Berlin, ")
            && lines[2].ends_with(" 23:00 UTC)  tenant=over")
            && lines[3].ends_with("  tenant=row"),
        "{text}"
    );
    let (_, text) = run(&[&by_share[..], &["--top", "1", "--format", "json"]].concat());
    let one: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!((rows(&one).len(), &one["next"]), (1, &json!("1")));
    let (_, text) = run(&["usage", "-d", "shop", "tenant=row", "--since", "30d"]);
    assert!(
        text.starts_with("tenant=row of shop.tenant\n  now         9 of 10 used (90 %), 1 left, ")
            && text.contains(" 00:00 Europe/Berlin, "),
        "{text}"
    );
}

#[tokio::test]
async fn in_memory() {
    let (weir, folder) = start(&[]);
    answers(&weir, &folder).await;
    commands(&weir, &folder);
}

#[tokio::test]
async fn in_redis() {
    let redis = RedisServer::start();
    let (weir, folder) = start(&[
        ("REDIS_URL", &redis.url()),
        ("STORE_TIMEOUT", "5s"),
        ("CACHE_KEY_PREFIX", "p:"),
    ]);
    answers(&weir, &folder).await;
    commands(&weir, &folder);
    // A list reads the counters and changes nothing.
    let before = redis.keys();
    list(&weir, "limit=shop.tenant");
    assert_eq!(redis.keys().len(), before.len());
}

#[tokio::test]
async fn in_a_cluster() {
    let cluster = Cluster::start();
    let (weir, folder) = start(&[
        ("REDIS_TYPE", "cluster"),
        ("REDIS_URL", &cluster.url()),
        ("STORE_TIMEOUT", "5s"),
    ]);
    answers(&weir, &folder).await;
}

/// More subjects than one part of them has.
#[tokio::test]
async fn many_subjects_are_read_in_parts() {
    let redis = RedisServer::start();
    let stores = [
        &[][..],
        &[("REDIS_URL", &*redis.url()), ("STORE_TIMEOUT", "5s")],
    ];
    for environment in stores {
        let (weir, folder) = start(environment);
        let client = &mut weir.client().await;
        for part in 0..12 {
            let tenants = (0..50).map(|number| format!("t{}", 50 * part + number));
            let tenants: Vec<_> = tenants.collect();
            let descriptors = tenants.iter().zip(1..);
            let descriptors = descriptors.map(|(tenant, hits)| {
                descriptor_with_hits(&[("tenant", tenant)], hits + i64::from(part == 7))
            });
            let asked = request("shop", descriptors.collect());
            client.should_rate_limit(asked).await.expect("an answer");
        }
        let all = || list(&weir, "limit=shop.tenant&count=1000");
        let is_listed = eventually_async(|| (all()["total"] == 600).then_some(())).await;
        assert!(is_listed.is_some(), "{}", all()["total"]);
        let rows = rows(&all());
        let (first, numbers) = &rows[0];
        assert_eq!((&**first, numbers[0]), ("t399", 51.0));
        assert!(rows.is_sorted_by(|one, next| one.1[2] >= next.1[2]));
        let by_share = ["usage", "--limit", "shop.tenant", "--by", "share"];
        let (_, text) = command(
            &[&weir],
            &folder,
            &[&by_share[..], &["--top", "600"]].concat(),
        );
        assert_eq!(text.lines().count(), 602, "a head of two lines");
    }
}

/// Subjects whose totals could not be written to the index are missing in a list.
#[tokio::test]
async fn a_list_without_dropped_subjects_is_not_complete() {
    let redis = RedisServer::start();
    let (weir, _folder) = start(&[("REDIS_URL", &redis.url()), ("STORE_TIMEOUT", "5s")]);
    let client = &mut weir.client().await;
    let listed = async |subjects: i64, is_complete: bool| {
        let all = || list(&weir, "limit=shop.tenant");
        let is_it = || all()["total"] == json!(subjects) && all()["complete"] == json!(is_complete);
        let found = eventually_async(|| is_it().then_some(())).await;
        assert!(found.is_some(), "{}", all());
    };
    hit(client, ("tenant", "first"), 1).await;
    listed(1, true).await;
    redis.run::<()>(&["ACL", "SETUSER", "default", "-zadd"]);
    hit(client, ("tenant", "lost"), 1).await;
    let dropped = || weir.metric("weir_usage_index_dropped_total{redis=\"main\"}") > Some(0.0);
    let found = eventually_async(|| dropped().then_some(())).await;
    assert!(found.is_some(), "{}", weir.get("/metrics").1);
    redis.run::<()>(&["ACL", "SETUSER", "default", "+zadd"]);
    hit(client, ("tenant", "third"), 1).await;
    listed(2, false).await;
}

/// Each replica counts in its memory: a subject has its largest share, and a replica that does not
/// answer is named.
#[tokio::test]
async fn replicas_with_the_memory_store_are_merged() {
    let (one, folder) = start(&[]);
    let (other, _other_folder) = start(&[]);
    for (weir, tenant, hits) in [
        (&one, "a", 20),
        (&one, "b", 90),
        (&other, "a", 80),
        (&other, "b", 10),
        (&other, "c", 1),
    ] {
        hit(&mut weir.client().await, ("tenant", tenant), hits).await;
    }
    let arguments = ["usage", "--limit", "shop.tenant", "--by", "share"];
    let json = [&arguments[..], &["--format", "json"]].concat();
    let (_, text) = command(&[&one, &other], &folder, &json);
    let all: Value = serde_json::from_str(&text).expect("JSON");
    let shares: Vec<_> = rows(&all)
        .into_iter()
        .map(|(value, [used, ..])| (value, used))
        .collect();
    let expected = [("b", 90.0), ("a", 80.0), ("c", 1.0)];
    assert_eq!(
        shares,
        expected.map(|(value, used)| (value.to_owned(), used))
    );
    assert_eq!(all["replicas"].as_array().map(Vec::len), Some(2));
    assert_eq!(all["total"], json!(3));
}
