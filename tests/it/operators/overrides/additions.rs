//! Raises that add to the amount of a limit: `weir raise --to +5/year`.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use weir::core::proto::rate_limit_response::Code;

use super::{Desk, LIMITS, call, code, id_of, in_seconds};
use crate::support::{Client, RedisServer, Weir};

/// The amount of the limit of a descriptor, in the answer to a peek.
async fn amount(client: &mut Client, key: &str, value: &str) -> u32 {
    let answer = call(client, "shop", key, value, 0).await;
    let limit = answer.statuses[0].current_limit.clone();
    limit.expect("a limit").requests_per_unit
}

/// Waits until the limit of a descriptor has this amount.
async fn becomes(client: &mut Client, (key, value): (&str, &str), expected: u32) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while amount(client, key, value).await != expected {
        assert!(Instant::now() < deadline, "{key}={value} is not {expected}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The override of an id in the JSON of `weir overrides`.
fn listed(desk: &Desk, weir: &Weir, id: &str) -> Value {
    let all: Value =
        serde_json::from_str(&desk.ok(weir, &["overrides", "--format", "json"])).expect("JSON");
    let all = all["overrides"].as_array().expect("a list").clone();
    let mut found = all.into_iter().filter(|one| one["id"] == id);
    found.next().expect("it is listed")
}

fn rate(requests_per_unit: u64) -> Value {
    json!({ "requests_per_unit": requests_per_unit, "unit": "year", "unit_multiplier": 1 })
}

#[tokio::test]
async fn an_addition_is_shown_with_its_sum_and_admits_it() {
    let desk = Desk::new();
    let weir = desk.start(LIMITS, &[]);
    let client = &mut weir.client().await;
    // A fixed window counts refused hits.
    assert_eq!(code(client, "user", "42", 2).await, Code::Ok);
    assert_eq!(code(client, "user", "42", 1).await, Code::OverLimit);
    let raise =
        |arguments: &[&str]| desk.ok(&weir, &[&["raise", "-d", "shop"], arguments].concat());
    let added = raise(&[
        "user=42",
        "--to",
        "+1k/year",
        "--until",
        "2100-01-31T16:00:00Z",
    ]);
    let id = id_of(&added);
    for part in [
        "raise by 1000/year to 1002/year user=42 in shop, until 2100-01-31 16:00 UTC\n",
        "  limits  shop.user\n  count   kept: hits that were counted still count\n",
    ] {
        assert!(added.contains(part), "{part}: {added}");
    }
    assert_eq!(code(client, "user", "42", 999).await, Code::Ok);
    assert_eq!(code(client, "user", "42", 1).await, Code::OverLimit);
    let table = desk.ok(&weir, &["overrides"]);
    assert!(
        table.contains("  raise by 1000/year to 1002/year  shop "),
        "{table}"
    );
    let one = listed(&desk, &weir, &id);
    assert_eq!((&one["to"], &one["add"]), (&Value::Null, &rate(1_000)));
    assert_eq!(one["total"], rate(1_002));
    let explained = desk.ok(&weir, &["explain", "-d", "shop", "user=42"]);
    let reason = format!("2 per year, raised by 1000/year to 1002/year by the override {id} of");
    assert!(explained.contains(&reason), "{explained}");
    let log = weir.wait_for_log("override set").await;
    assert!(log.contains("\"to\":\"+1000/year\""), "{log}");

    // A raise of the same entries replaces it, and the reverse.
    let absolute = raise(&["user=42", "--to", "3000/year"]);
    let before = "  before  raise by 1000/year user=42 in shop, until 2100-01-31 16:00 UTC\n";
    assert!(absolute.contains(before), "{absolute}");
    assert_eq!(amount(client, "user", "42").await, 3_000);
    assert_eq!(id_of(&absolute), id);
    raise(&["user=42", "--to", "+5/year"]);
    assert_eq!(amount(client, "user", "42").await, 7);
    assert_eq!(
        desk.ok(&weir, &["unraise", "-d", "shop", "user=42"]),
        "removed: raise by 5/year user=42 in shop, until it is removed\n"
    );
    assert_eq!(amount(client, "user", "42").await, 2);
    raise(&["user=42", "--to", "+5/year", "--until", &in_seconds(2)]);
    let mut ends = weir.client().await;
    assert_eq!(amount(&mut ends, "user", "42").await, 7);
    weir.wait_for_log("override ended").await;
    assert_eq!(amount(client, "user", "42").await, 2);
    // Of many descriptors there is no one sum.
    let many = raise(&["user=4*", "--to", "+5/year"]);
    assert!(
        many.starts_with("raise by 5/year 'user=4*' in shop, until"),
        "{many}"
    );
}

#[tokio::test]
async fn the_row_of_a_table_has_the_amount_that_is_added_to() {
    let desk = Desk::new();
    let limits = "
domain: shop
plans:
  free: { unit: year, requests_per_unit: 2 }
  pro: { unit: year, requests_per_unit: 5 }
descriptors:
  - key: tenant
    rate_limit: { plan: free }
    table: tenants.csv
";
    let rows = |acme: &str| format!("value,plan,requests_per_unit\nacme,pro,{acme}\nbig,pro,\n");
    let tokens = desk.path("tokens");
    let weir = Weir::start(
        &[("limits.yaml", limits), ("tenants.csv", &rows("9"))],
        &[("ADMIN_TOKEN_FILE", tokens.to_str().expect("UTF-8"))],
    );
    let client = &mut weir.client().await;
    let raise = |tenant: &str, to: &str| {
        desk.ok(&weir, &["raise", "-d", "shop", tenant, "--all", "--to", to])
    };
    let acme = raise("tenant=acme", "+100/year");
    assert!(
        acme.starts_with("raise by 100/year to 109/year tenant=acme in"),
        "{acme}"
    );
    raise("tenant", "+10/year");
    let warning = "warning: no row of tenants.csv, plan free\n";
    assert!(!acme.contains("no row of"), "{acme}");
    let other = raise("tenant=typo", "+1/year");
    assert!(other.contains(warning), "{other}");
    // A row, a plan, and the limit.
    for (tenant, expected) in [("acme", 109), ("big", 15), ("other", 12)] {
        assert_eq!(amount(client, "tenant", tenant).await, expected, "{tenant}");
    }
    // It follows the row.
    std::fs::write(weir.config_dir().join("tenants.csv"), rows("20")).expect("written");
    becomes(client, ("tenant", "acme"), 120).await;
    assert_eq!(listed(&desk, &weir, &id_of(&acme))["total"], rate(120));
}

#[tokio::test]
async fn a_top_up_adds_to_the_one_before() {
    let (desk, redis) = (Desk::new(), RedisServer::start());
    let environment = [("REDIS_URL", &*redis.url())];
    let (weir, replica) = (
        desk.start(LIMITS, &environment),
        desk.start(LIMITS, &environment),
    );
    let client = &mut weir.client().await;
    let raise = |weir: &Weir, more: &[&str]| {
        desk.ok(weir, &[&["raise", "-d", "shop", "user=42"], more].concat())
    };
    let end = "2100-01-31T16:00:00Z";
    let first = raise(&weir, &["--to", "+1k/year", "--until", end]);
    assert!(first.contains("  periods "), "{first}");
    assert!(!first.contains("  sum "), "{first}");
    // At once by another replica, which has not read the first one yet. It keeps the end.
    let second = raise(&replica, &["--to", "+500/year"]);
    for part in [
        "raise by 1500/year to 1502/year user=42 in shop, until 2100-01-31 16:00 UTC\n",
        "  before  raise by 1000/year user=42 in shop, until 2100-01-31 16:00 UTC\n",
        "  sum     of both; --replace replaces the one before\n",
    ] {
        assert!(second.contains(part), "{part}: {second}");
    }
    becomes(client, ("user", "42"), 1_502).await;
    let third = raise(
        &weir,
        &["--to", "+1/year", "--until", "2099-01-31T16:00:00Z"],
    );
    let expected = "raise by 1501/year to 1503/year user=42 in shop, until 2099-01-31 16:00 UTC\n";
    assert!(third.starts_with(expected), "{third}");
    let replaced = raise(&weir, &["--to", "+5/year", "--replace"]);
    let expected = "raise by 5/year to 7/year user=42 in shop, until it is removed\n";
    assert!(replaced.starts_with(expected), "{replaced}");
    assert!(
        replaced.contains("  periods all; the current one ends 2"),
        "{replaced}"
    );
    assert!(!replaced.contains("  sum "), "{replaced}");
    becomes(client, ("user", "42"), 7).await;
    // A sum that no counter could hold changes nothing.
    let arguments = ["raise", "-d", "shop", "log=1", "--to", "+60000/hour"];
    desk.ok(&weir, &arguments);
    let failed = desk.fails(&weir, &arguments);
    assert!(
        failed.contains("holds at most 100000 in all; add less"),
        "{failed}"
    );
    let listed = desk.ok(&weir, &["overrides"]);
    assert!(listed.contains("raise by 60000/hour"), "{listed}");
}

#[tokio::test]
async fn a_raise_can_end_with_the_period_of_its_limit() {
    let desk = Desk::new();
    let limits = "
domain: shop
descriptors:
  - key: tenant
    rate_limit: { unit: month, requests_per_unit: 2, period: calendar, timezone: Europe/Berlin }
  - key: user
    rate_limit: { unit: day, requests_per_unit: 2 }
  - key: bucket
    rate_limit: { unit: day, requests_per_unit: 2, algorithm: token_bucket }
";
    let weir = desk.start(limits, &[]);
    let raise = |entry: &str, more: &[&str]| {
        desk.ok(&weir, &[&["raise", "-d", "shop", entry], more].concat())
    };
    let answer = raise("tenant=a", &["--to", "+5/month", "--until", "reset"]);
    let end = listed(&desk, &weir, &id_of(&answer))["until"].clone();
    let end: jiff::Timestamp = end
        .as_str()
        .and_then(|end| end.parse().ok())
        .expect("an end");
    let local = end.in_tz("Europe/Berlin").expect("a zone");
    let midnight = jiff::civil::Time::midnight();
    assert_eq!((local.day(), local.time()), (1, midnight), "{answer}");
    assert!(local.datetime() > jiff::Zoned::now().datetime(), "{answer}");
    let shown = end.strftime("%F %H:%M UTC").to_string();
    assert!(
        answer.contains(&format!("  periods 1; the current one ends {shown}\n")),
        "{answer}"
    );
    assert!(answer.contains("  ends    in "), "{answer}");
    assert_eq!(amount(&mut weir.client().await, "tenant", "a").await, 7);
    let answer = raise("user=1", &["--to", "+5/day", "--until", "3d"]);
    assert!(
        answer.contains("  periods 4; the current one ends "),
        "{answer}"
    );
    let arguments = [
        "raise", "-d", "shop", "bucket=1", "--to", "+5/day", "--until", "reset",
    ];
    let failed = desk.fails(&weir, &arguments);
    assert!(
        failed.contains("`reset` needs limits of the algorithm fixed_window"),
        "{failed}"
    );
}
