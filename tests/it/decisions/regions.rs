//! Shares of regions through real sockets: each cell of the table of pairs that can differ.
//!
//! | beside | what is divided | test |
//! |---|---|---|
//! | two regions, each with its Redis | each admits its share, together the limit | `two_regions_...` |
//! | override | the amount of a raise; a raise is compared with the whole limit | `a_raise_...` |
//! | trial | its amount; its limit's shares hold for it | `each_amount_...` |
//! | table, plan, network | each row and plan by the shares of its stack | `each_amount_...` |
//! | all-or-none, holders, calendar, scale, buckets | the amount and the burst | `each_amount_...` |
//! | limits in the request | by the shares of the limit that it replaces, or the domain's | `a_limit_...` |
//! | give-back | nothing: a hit is a hit | `a_hit_...` |
//! | usage, `weir explain`, `/rlconfig` | they show the region's amount | `pages_...` |
//! | reload | counts stay | `new_shares_...` |
//! | outage with `on_store_failure: local` | the replica's part of the region's share | `without_redis_...` |
//! | control plane | by the overlay, the defaults and `REGION_SHARE` | `limits_of_a_control_plane_...`, `the_share_of_the_process_...` |
//!
//! Leases of holders are times, which are not divided. `bounds` has the property: random shares and
//! numbers, in all regions together.

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
use crate::support::{Client, RedisServer, Weir, descriptor, descriptor_with_hits, request};

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
  - key: none
    rate_limit: { unit: year, requests_per_unit: 0 }
  - key: burst
    rate_limit: { unit: year, requests_per_unit: 10, algorithm: token_bucket, burst: 20 }
  - key: bucket
    rate_limit: { unit: year, requests_per_unit: 10, algorithm: token_bucket }
  - key: log
    rate_limit: { unit: year, requests_per_unit: 10, algorithm: sliding_window_log }
  - key: calendar
    rate_limit: { unit: year, requests_per_unit: 10, period: calendar }
  - key: tried
    rate_limit: { unit: year, requests_per_unit: 20, trial: { requests_per_unit: 10 } }
  - key: open
    rate_limit: { unlimited: true, trial: { unit: year, requests_per_unit: 10 } }
  - key: tracked
    rate_limit: { unit: year, requests_per_unit: 10, track_usage: true }
  - key: tenant
    table: tenants.csv
  - key: address
    match: cidr
    value: 10.0.0.0/8
    rate_limit: { unit: year, requests_per_unit: 10 }
  - key: job
    descriptors:
      - key: request
        rate_limit: { algorithm: concurrency, requests_per_unit: 10, max_duration: 60s }
  - key: local
    rate_limit: { unit: year, requests_per_unit: 20, on_store_failure: local }
";

const TOGETHER: &str = "
domain: together
commit: all_or_none
descriptors:
  - key: narrow
    rate_limit: { unit: year, requests_per_unit: 10, region_shares: { eu: 20%, us: 80% } }
  - key: wide
    rate_limit: { unit: year, requests_per_unit: 10, region_shares: { eu: 50%, us: 50% } }
";

const FILES: &[(&str, &str)] = &[
    ("limits.yaml", LIMITS),
    (
        "tenants.csv",
        "value,plan,requests_per_unit,unit\nacme,gold,,\nbig,gold,100,\nfree,,10,year\n",
    ),
    ("together.yaml", TOGETHER),
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

async fn ask(
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
        let answer = ask(client, domain, vec![one.clone()]).await;
        passed += usize::from(answer.overall_code() == Code::Ok);
    }
    passed
}

/// The limit that is shown, and what remains of it.
fn shown(answer: &RateLimitResponse) -> [u32; 2] {
    let status = &answer.statuses[0];
    let limit = status.current_limit.as_ref().expect("a limit");
    [limit.requests_per_unit, status.limit_remaining]
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
        "{{\"kind\": \"raise\", \"domain\": \"d\", \"entries\": {entries}, \"reason\": \"test\", \"to\": {to}}}"
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
async fn each_amount_of_a_limit_is_that_of_the_region() {
    each_store(async |client, weir| {
        for (key, value, expected) in [
            ("user", "a", 4),
            ("own", "a", 14),
            ("few", "a", 1),
            ("none", "a", 0),
            ("burst", "a", 8),
            ("bucket", "a", 4),
            ("log", "a", 4),
            ("calendar", "a", 4),
            ("tracked", "a", 4),
            ("tenant", "acme", 5),
            ("tenant", "big", 10),
            ("tenant", "free", 4),
            ("address", "10.1.2.3", 4),
            ("tried", "a", 8),
            ("open", "a", 20),
        ] {
            let one = descriptor(&[(key, value)]);
            assert_eq!(
                passed(client, "d", &one, 20).await,
                expected,
                "{key} {value}"
            );
        }
        let refused_by_trial = |limit: &str| {
            weir.metric(&format!(
                "weir_trial_decisions_total{{domain=\"d\",limit=\"{limit}\",outcome=\"ok\"}}"
            ))
        };
        assert_eq!(
            [refused_by_trial("tried"), refused_by_trial("open")],
            [Some(4.0), Some(4.0)]
        );
        let mut held = 0;
        for id in ["a", "b", "c", "d", "e", "f"] {
            held += passed(
                client,
                "d",
                &descriptor(&[("job", "j"), ("request", id)]),
                1,
            )
            .await;
        }
        assert_eq!(held, 4, "requests in flight");
        // All or none: the narrow limit ends the group, and the wide one keeps the rest.
        let both = || vec![descriptor(&[("narrow", "a")]), descriptor(&[("wide", "a")])];
        let mut together = 0;
        for _ in 0..5 {
            together +=
                usize::from(ask(client, "together", both()).await.overall_code() == Code::Ok);
        }
        assert_eq!(together, 2);
        assert_eq!(
            passed(client, "together", &descriptor(&[("wide", "a")]), 9).await,
            3
        );
    })
    .await;
}

#[tokio::test]
async fn a_hit_and_a_give_back_are_not_divided() {
    each_store(async |client, _| {
        let of = |hits| vec![descriptor_with_hits(&[("user", "b")], hits)];
        assert_eq!(shown(&ask(client, "d", of(3)).await), [4, 1]);
        assert_eq!(shown(&ask(client, "d", of(-2)).await), [4, 3]);
        assert_eq!(
            ask(client, "d", of(4)).await.overall_code(),
            Code::OverLimit
        );
    })
    .await;
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
async fn a_limit_that_a_request_brings_is_divided() {
    each_store(async |client, _| {
        for (key, brought, admitted) in [
            ("unknown", 20, 8),
            ("user", 20, 8),
            ("own", 10, 14),
            ("open", 5, 2),
            ("user2", 1, 1),
            ("user3", 0, 0),
        ] {
            let one = bringing(key, brought);
            assert_eq!(passed(client, "d", &one, 30).await, admitted, "{key}");
        }
        assert_eq!(
            shown(&ask(client, "d", vec![bringing("unknown", 20)]).await),
            [8, 0]
        );
    })
    .await;
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
async fn new_shares_keep_what_was_counted() {
    each_store(async |client, weir| {
        let one = descriptor(&[("user", "c")]);
        assert_eq!(passed(client, "d", &one, 4).await, 4);
        let shares =
            |eu: u32| LIMITS.replace("eu: 40%, us: 60%", &format!("eu: {eu}%, us: {}%", 100 - eu));
        let reload = async |client: &mut Client, eu: u32| {
            std::fs::write(weir.config_dir().join("limits.yaml"), shares(eu)).expect("written");
            let look = || vec![descriptor_with_hits(&[("user", "c")], 0)];
            for _ in 0..500 {
                if shown(&ask(client, "d", look()).await)[0] == eu / 10 {
                    return;
                }
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            }
            panic!("{eu} % is not in force");
        };
        reload(client, 70).await;
        assert_eq!(passed(client, "d", &one, 9).await, 3, "4 of the 7 are used");
        reload(client, 20).await;
        assert_eq!(passed(client, "d", &one, 3).await, 0);
        // A file without a share for this region changes nothing.
        std::fs::write(
            weir.config_dir().join("limits.yaml"),
            shares(20).replace("eu: 20%, ", ""),
        )
        .expect("written");
        weir.wait_for_log("the region 'eu' has no share").await;
        assert_eq!(
            passed(client, "d", &descriptor(&[("user", "d")]), 5).await,
            2
        );
    })
    .await;
}

#[tokio::test]
async fn without_redis_a_replica_admits_its_part_of_the_regions_share() {
    let redis = RedisServer::absent().url();
    let weir = Weir::start(
        FILES,
        &[("REGION", "eu"), ("REDIS_URL", &redis), ("REPLICAS", "2")],
    );
    let one = descriptor(&[("local", "a")]);
    assert_eq!(
        passed(&mut weir.client().await, "d", &one, 20).await,
        4,
        "a half of 40 % of 20"
    );
}

#[tokio::test]
async fn limits_of_a_control_plane_are_divided() {
    let files = Files::new();
    files.write("overlay.yaml", "domains:\n- domain: a\n  defaults: { region_shares: { eu: 20%, us: 80% } }\n  descriptors:\n  - { key: path, rate_limit: { region_shares: { eu: 50%, us: 50% } } }\n- domain: lost\n  defaults: { region_shares: { us: 80% } }\n");
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
        files.write(name, &format!("domain: d\ndefaults: {{ region_shares: {{ {shares} }} }}\ndescriptors:\n- {{ key: user, rate_limit: {{ unit: hour, requests_per_unit: {amount} }} }}\n"));
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
    let line = "changed: d.user: rate 400 per hour -> 500 per hour, share 40 % of 1,000 (eu) -> 50 % of 1,000 (eu)\n";
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
