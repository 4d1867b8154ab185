//! Shares of regions through real sockets: each cell of the table of pairs that can differ.
//!
//! | beside | what is divided | test |
//! |---|---|---|
//! | two regions, each with its Redis | each admits its share, together the limit | `two_regions_...` |
//! | override | the amount of a raise; a raise is compared with the whole limit | `a_raise_...` |
//! | trial | its amount; its limit's shares hold for it | `regions.txt` |
//! | table, plan, network | each row and plan by the shares of its stack | `regions.txt` |
//! | all-or-none, holders, calendar, scale, buckets | the amount and the burst | `regions.txt` |
//! | limits in the request | by the shares of the limit that it replaces, or the domain's | `regions.txt` |
//! | refund | nothing: a hit is a hit | `regions.txt` |
//! | usage, `weir explain`, `/rlconfig` | they show the region's amount | `pages_...` |
//! | reload | counts stay | `regions_reload.txt` |
//! | outage with `on_store_failure: local` | the replica's part of the region's share | `regions_outage.txt` |
//! | control plane | by the overlay, the defaults and `REGION_SHARE` | `limits_of_a_control_plane_...`, `the_share_of_the_process_...` |
//!
//! The files are in `tests/vectors/decisions`. Leases of holders are times, which are not divided.
//! `bounds` has the property: random shares and numbers, in all regions together.

mod bounds;

use std::process::Command;

use serde_json::Value;
use weir::core::proto::rate_limit_descriptor::RateLimitOverride;
use weir::core::proto::rate_limit_response::Code;
use weir::core::proto::{RateLimitDescriptor, RateLimitResponse};
use weir::core::time::Unit;

use crate::service::xds;
use crate::support::certificates::Files;
use crate::support::control_plane::ControlPlane;
use crate::support::http_client::{self, Response};
use crate::support::{Client, RedisServer, Weir, descriptor, request};

/// Limits per year, so that no window ends while a test runs.
const LIMITS: &str = "
domain: d
defaults: { region_shares: { eu: 40%, us: 60% } }
plans:
  gold: { unit: year, requests_per_unit: 50, region_shares: { eu: 10%, us: 90% } }
descriptors:
  - key: user
    rate_limit: { unit: year, requests_per_unit: 10 }
  - key: own
    rate_limit: { unit: year, requests_per_unit: 10, region_shares: { eu: 70%, us: 30% }, scale: 2 }
  - key: few
    rate_limit: { unit: year, requests_per_unit: 1 }
  - key: burst
    rate_limit: { unit: year, requests_per_unit: 10, algorithm: token_bucket, burst: 20 }
  - key: bucket
    rate_limit: { unit: year, requests_per_unit: 10, algorithm: token_bucket }
  - key: log
    rate_limit: { unit: year, requests_per_unit: 10, algorithm: sliding_window_log }
  - key: calendar
    rate_limit: { unit: year, requests_per_unit: 10, period: calendar }
  - key: tracked
    rate_limit: { unit: year, requests_per_unit: 10, track_usage: true }
  - key: tenant
    table: tenants.csv
";

const FILES: &[(&str, &str)] = &[
    ("limits.yaml", LIMITS),
    (
        "tenants.csv",
        "value,plan,requests_per_unit,unit\nacme,gold,,\nbig,gold,100,\nfree,,10,year\n",
    ),
];

/// Who may change what is in force.
const TOKEN: &str = "0123456789abcdef0123";

/// Runs a test for the region `eu`, with each store.
async fn each_store(test: impl AsyncFn(&mut Client, &Weir)) {
    let files = Files::new();
    files.write("tokens", &format!("alice:{TOKEN}\n"));
    let path = files.text("tokens");
    let redis = RedisServer::start();
    let url = redis.url();
    let in_memory = [("REGION", "eu"), ("ADMIN_TOKEN_FILE", &*path)];
    let in_redis = [("REDIS_URL", &*url), ("STORE_TIMEOUT", "5s")];
    for environment in [&in_memory[..], &[&in_memory[..], &in_redis].concat()] {
        let weir = Weir::start(FILES, environment);
        test(&mut weir.client().await, &weir).await;
    }
}

async fn call(
    client: &mut Client,
    domain: &str,
    all: Vec<RateLimitDescriptor>,
) -> RateLimitResponse {
    let answer = client.should_rate_limit(request(domain, all)).await;
    answer.expect("an answer").into_inner()
}

/// How many of so many requests are let in.
async fn passed(
    client: &mut Client,
    domain: &str,
    one: &RateLimitDescriptor,
    requests: usize,
) -> usize {
    let mut passed = 0;
    for _ in 0..requests {
        let answer = call(client, domain, vec![one.clone()]).await;
        passed += usize::from(answer.overall_code() == Code::Ok);
    }
    passed
}

fn api(weir: &Weir, method: &str, call: &str, body: &str) -> Response {
    let authorization = format!("Bearer {TOKEN}");
    let headers = [
        ("authorization", &*authorization),
        ("content-type", "application/json"),
    ];
    let path = format!("/api/v1/{call}");
    http_client::call(
        weir.listener("debug"),
        method,
        &path,
        &headers,
        body.as_bytes(),
    )
}

fn raise(weir: &Weir, key: &str, to: u64) -> Response {
    let to = format!("{{\"requests_per_unit\": {to}, \"unit\": \"year\"}}");
    let entries = format!("[{{\"key\": \"{key}\", \"value\": \"a\"}}]");
    let body = format!(
        "{{\"kind\": \"raise\", \"domain\": \"d\", \"entries\": {entries}, \"reason\": \"test\", \
         \"to\": {to}}}"
    );
    api(weir, "POST", "overrides", &body)
}

#[tokio::test]
async fn two_regions_with_two_redis_admit_their_shares_and_together_the_limit() {
    let (eu_redis, us_redis) = (RedisServer::start(), RedisServer::start());
    let start = |region: &str, redis: &RedisServer| {
        let environment = [
            ("REGION", region),
            ("REDIS_URL", &redis.url()),
            ("STORE_TIMEOUT", "5s"),
        ];
        Weir::start(FILES, &environment)
    };
    let (eu, us) = (start("eu", &eu_redis), start("us", &us_redis));
    let (eu, us) = (&mut eu.client().await, &mut us.client().await);
    for key in ["user", "own", "bucket", "log", "calendar"] {
        // All traffic on one side: exactly its share.
        let (one, all, share) = (
            descriptor(&[(key, "a")]),
            if key == "own" { 20 } else { 10 },
            if key == "own" { 14 } else { 4 },
        );
        assert_eq!(passed(eu, "d", &one, 30).await, share, "{key}");
        assert_eq!(passed(us, "d", &one, 30).await, all - share, "{key}");
    }
    assert_eq!(
        [
            passed(eu, "d", &descriptor(&[("few", "a")]), 5).await,
            passed(us, "d", &descriptor(&[("few", "a")]), 5).await
        ],
        [1, 1],
        "a share below 1 is 1, of which a warning tells"
    );
    eu_redis.assert_every_key_expires();
}

#[tokio::test]
async fn a_raise_is_of_all_regions_and_is_divided() {
    each_store(async |client, weir| {
        let refused = raise(weir, "user", 10);
        assert_eq!(refused.status, 400, "{}", refused.body);
        assert!(
            refused.body.contains("d.user is 10/year already"),
            "{}",
            refused.body
        );
        for (key, to, admitted) in [
            ("user", 20, 8),
            ("own", 20, 28),
            ("bucket", 100, 40),
            ("burst", 100, 8),
            ("few", 2, 1),
        ] {
            let raised = raise(weir, key, to);
            assert!(
                (200..300).contains(&raised.status),
                "{key}: {}",
                raised.body
            );
            assert_eq!(
                passed(client, "d", &descriptor(&[(key, "a")]), 50).await,
                admitted,
                "{key}"
            );
        }
        let text = weir.command(&["explain", "-d", "d", "user=a"]);
        assert!(
            text.contains("share 40 % of 10 (eu), raised to 8/year"),
            "{text}"
        );
    })
    .await;
}

/// A descriptor with a limit per year of its own.
fn bringing(key: &str, requests_per_unit: u32) -> RateLimitDescriptor {
    RateLimitDescriptor {
        limit: Some(RateLimitOverride {
            requests_per_unit,
            unit: Unit::Year as i32,
            ..Default::default()
        }),
        ..descriptor(&[(key, "own")])
    }
}

#[tokio::test]
async fn pages_show_the_amount_of_the_region() {
    each_store(async |client, weir| {
        assert_eq!(
            passed(client, "d", &descriptor(&[("tracked", "a")]), 5).await,
            4
        );
        let text = weir.command(&["explain", "-d", "d", "tracked=a"]);
        assert!(
            text.starts_with("tracked=a: REFUSED NOW: 4 per year, share 40 % of 10 (eu)\n"),
            "{text}"
        );
        let config = http_client::get(weir.listener("debug"), "/rlconfig").body;
        assert!(
            config.contains("d.own: unit=YEAR requests_per_unit=7, ")
                && config.contains(", share: 70 % of 10 (eu), "),
            "{config}"
        );
        let usage: Value =
            serde_json::from_str(&api(weir, "GET", "usage?domain=d&entry=tracked%3Da", "").body)
                .expect("JSON");
        assert_eq!(usage["periods"][0]["limit"], 4, "{usage}");
    })
    .await;
}

#[tokio::test]
async fn limits_of_a_control_plane_are_divided() {
    let files = Files::new();
    files.write(
        "overlay.yaml",
        "domains:\n- domain: a\n  defaults: { region_shares: { eu: 20%, us: 80% } }\n  \
         descriptors:\n  - { key: path, rate_limit: { region_shares: { eu: 50%, us: 50% } } }\n\
         - domain: lost\n  defaults: { region_shares: { us: 80% } }\n",
    );
    let path = files.text("overlay.yaml");
    let control = ControlPlane::start();
    let leaves = vec![
        xds::leaf("user", "", xds::yearly(10)),
        xds::leaf("path", "", xds::yearly(10)),
    ];
    control.set(
        "1",
        [
            xds::config("a", leaves),
            xds::users("b", 10),
            xds::users("lost", 10),
        ],
    );
    let environment = [
        ("REGION", "eu"),
        ("REGION_SHARE", "90%"),
        ("CONFIG_GRPC_XDS_OVERLAY_FILE", &*path),
        (
            "CONFIG_GRPC_XDS_DEFAULTS",
            "region_shares: { eu: 40%, us: 60% }",
        ),
    ];
    let weir = xds::start(&control.url(), &environment);
    let client = &mut weir.client().await;
    let one = |key: &str| descriptor(&[(key, "u")]);
    let nack = control.wait_for_nack().await;
    assert!(
        nack.contains("the region 'eu' has no share"),
        "a region is not left out: {nack}"
    );
    xds::wait_for_amount(client, "b", 4).await;
    for (domain, key, admitted) in [
        ("a", "user", 2),
        ("a", "path", 5),
        ("b", "user", 4),
        ("lost", "user", 20),
    ] {
        assert_eq!(
            passed(client, domain, &one(key), 20).await,
            admitted,
            "{domain} {key}"
        );
    }
    let brought = bringing("other", 10);
    assert_eq!(
        [
            passed(client, "a", &brought, 9).await,
            passed(client, "b", &brought, 9).await
        ],
        [2, 4]
    );
}

#[tokio::test]
async fn the_share_of_the_process_divides_limits_without_other_shares() {
    let control = ControlPlane::start();
    control.set("1", [xds::users("a", 10)]);
    let weir = xds::start(&control.url(), &[("REGION_SHARE", "90%")]);
    let client = &mut weir.client().await;
    xds::wait_for_amount(client, "a", 9).await;
    assert_eq!(passed(client, "a", &bringing("other", 10), 20).await, 9);
    let explained = weir.command(&["explain", "-d", "a", "user=u"]);
    assert!(
        explained.starts_with("user=u: 9 per year, share 90 % of 10\n"),
        "{explained}"
    );
}

fn check(arguments: &[&str]) -> (bool, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    let output = command
        .arg("check")
        .args(arguments)
        .env_clear()
        .output()
        .expect("it runs");
    (
        output.status.success(),
        String::from_utf8_lossy(&output.stdout).into_owned(),
    )
}

#[test]
fn check_takes_the_region_and_says_in_which_order_shares_move() {
    let files = Files::new();
    for (name, shares) in [
        ("old.yaml", "eu: 40%, us: 60%"),
        ("new.yaml", "eu: 50%, us: 50%"),
        ("raised.yaml", "eu: 40%, us: 60%"),
    ] {
        let amount = if name == "raised.yaml" { 2000 } else { 1000 };
        files.write(
            name,
            &format!(
                "domain: d\ndefaults: {{ region_shares: {{ {shares} }} }}\ndescriptors:\n\
                 - {{ key: user, rate_limit: {{ unit: hour, requests_per_unit: {amount} }} }}\n"
            ),
        );
    }
    let [old, new, raised] = ["old.yaml", "new.yaml", "raised.yaml"].map(|name| files.text(name));
    let (ok, text) = check(&[&old]);
    assert!(
        !ok && text.contains(
            "old.yaml:2:28: error: the limit is divided by 'region_shares', and REGION is not set"
        ),
        "{text}"
    );
    let (ok, text) = check(&["--region", "ap", &old]);
    assert!(
        !ok && text.contains("the region 'ap' has no share"),
        "{text}"
    );
    let (ok, text) = check(&["--region", "eu", "--diff", &old, &new]);
    let line = "changed: d.user: rate 400 per hour -> 500 per hour, share 40 % of 1,000 (eu) -> \
        50 % of 1,000 (eu)\n";
    assert!(
        ok && text.contains(line)
            && text.contains("shares: lower a region first, and raise another only after"),
        "{text}"
    );
    let (ok, text) = check(&["--region", "eu", "--diff", &old, &raised]);
    assert!(
        ok && text.contains("rate 400 per hour -> 800 per hour") && !text.contains("shares: "),
        "{text}"
    );
    let (ok, text) = check(&["--region", "eu", "--diff", &old, &old]);
    assert!(ok && !text.contains("shares: "), "{text}");
    let limit = "{ unit: hour, requests_per_unit: 9 }";
    let file = format!("domain: d\ndescriptors: [{{ key: user, rate_limit: {limit} }}]\n");
    files.write("limited.yaml", &file);
    files.write("open.yaml", &file.replace(limit, "{ unlimited: true }"));
    let [limited, open] = ["limited.yaml", "open.yaml"].map(|name| files.text(name));
    let (ok, text) = check(&["--diff", &limited, &open]);
    assert!(
        ok && text.contains("changed: d.user: ") && !text.contains("shares: "),
        "no amount has no share: {text}"
    );
    // Only the shares of a plan.
    for (folder, gold) in [("a", "eu: 10%, us: 90%"), ("b", "eu: 20%, us: 80%")] {
        std::fs::create_dir(files.text(folder)).expect("a folder");
        let limits = LIMITS.replace("eu: 10%, us: 90%", gold);
        files.write(&format!("{folder}/limits.yaml"), &limits);
        let rows = "value,plan,requests_per_unit,unit\naa,,10,year\nacme,gold,,\nzz,,10,year\n";
        files.write(&format!("{folder}/tenants.csv"), rows);
    }
    let [old, new] = ["a", "b"].map(|name| files.text(name));
    let (ok, text) = check(&["--region", "eu", "--diff", &old, &new]);
    assert!(
        ok && text.contains("shares: lower a region first"),
        "{text}"
    );
}

#[tokio::test]
async fn a_service_without_its_region_does_not_start_and_a_wrong_share_is_named() {
    let files = Files::new();
    files.write("limits.yaml", LIMITS);
    files.write("tenants.csv", FILES[1].1);
    let folder = files.text("");
    for (environment, expected) in [
        (vec![], "REGION is not set"),
        (vec![("REGION", "ap")], "the region 'ap' has no share"),
        (
            vec![("REGION_SHARE", "0.4")],
            "write a percentage above 0% and at most 100%",
        ),
        (
            vec![("REGION_SHARE", "0%")],
            "write a percentage above 0% and at most 100%",
        ),
        (
            vec![("REGION_SHARE", "100.0001%")],
            "write a percentage above 0% and at most 100%",
        ),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        command
            .args(["serve", "--config", &folder])
            .env_clear()
            .envs(environment.iter().copied());
        let output = command.output().expect("it runs");
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(
            !output.status.success() && text.contains(expected),
            "{environment:?}: {text}"
        );
    }
}
