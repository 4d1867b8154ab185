//! What was taken comes back, whatever an operator orders meanwhile: releases and give-backs under
//! a block, an exemption and a raise.

use serde_json::Value;
use weir::core::proto::rate_limit_response::Code;
use weir::core::proto::{RateLimitDescriptor, RateLimitResponse};

use super::{Desk, id_of};
use crate::support::{Client, RedisServer, Weir, ask, descriptor_with_hits};

const LIMITS: &str = "
domain: shop
plans:
  gold: { unit: year, requests_per_unit: 5 }
descriptors:
  - { key: plain, rate_limit: { unit: year, requests_per_unit: 5, track_usage: true, \
      trial: { requests_per_unit: 4 } } }
  - { key: bucket, rate_limit: { unit: year, requests_per_unit: 5, algorithm: token_bucket } }
  - { key: shadow, shadow_mode: true, rate_limit: { unit: year, requests_per_unit: 5 } }
  - { key: row, table: rows.csv }
  - { key: closed, rate_limit: { unit: year, requests_per_unit: 0 } }
  - key: job
    descriptors:
      - { key: request, rate_limit: { algorithm: concurrency, requests_per_unit: 2, \
          max_duration: 60s } }
";

/// One by its plan, the others by numbers of their own.
const ROWS: &str = "value,plan,requests_per_unit\nblock,gold,\nexempt,gold,5\nraise,gold,5\n";

const KINDS: [&str; 3] = ["block", "exempt", "raise"];

async fn call(
    client: &mut Client,
    domain: &str,
    descriptors: &[RateLimitDescriptor],
) -> RateLimitResponse {
    ask(client, domain, descriptors.to_vec()).await
}

/// The code for one descriptor of the shop, and what remains.
async fn one(client: &mut Client, entries: &[(&str, &str)], hits: i64) -> (Code, u32) {
    let answer = call(client, "shop", &[descriptor_with_hits(entries, hits)]).await;
    assert_eq!(
        answer.overall_code(),
        if hits < 0 {
            Code::Ok
        } else {
            answer.overall_code()
        },
        "{entries:?} {hits}"
    );
    (
        answer.statuses[0].code(),
        answer.statuses[0].limit_remaining,
    )
}

/// Runs a test with both stores and both ways to count.
async fn each(test: impl AsyncFn(&Desk, &Weir, &mut Client, bool)) {
    let (desk, redis) = (Desk::new(), RedisServer::start());
    for (is_whole, url) in [
        (false, None),
        (true, None),
        (false, Some(redis.url())),
        (true, Some(redis.url())),
    ] {
        let limits = if is_whole {
            LIMITS.replace("domain: shop\n", "domain: shop\ncommit: all_or_none\n")
        } else {
            LIMITS.to_owned()
        };
        let (tokens, prefix) = (desk.path("tokens"), if is_whole { "whole" } else { "each" });
        let mut environment = vec![
            ("ADMIN_TOKEN_FILE", tokens.to_str().expect("UTF-8")),
            ("STORE_TIMEOUT", "5s"),
            ("CACHE_KEY_PREFIX", prefix),
        ];
        environment.extend(url.as_deref().map(|url| ("REDIS_URL", url)));
        let weir = Weir::start(
            &[("limits.yaml", &limits), ("rows.csv", ROWS)],
            &environment,
        );
        test(&desk, &weir, &mut weir.client().await, is_whole).await;
    }
}

fn order(desk: &Desk, weir: &Weir, kind: &str, entries: &[&str], to: &str) -> String {
    let to = if kind == "raise" {
        &["--to", to][..]
    } else {
        &[]
    };
    id_of(&desk.ok(
        weir,
        &[&[kind, "-d", "shop", "--force"][..], entries, to].concat(),
    ))
}

#[tokio::test]
async fn hits_come_back_under_every_override() {
    each(async |desk, weir, client, _| {
        let mut ids = vec!["overrides".to_owned(), "remove".to_owned()];
        for key in ["plain", "bucket", "shadow", "row"] {
            for kind in KINDS {
                assert_eq!(
                    one(client, &[(key, kind)], 3).await,
                    (Code::Ok, 2),
                    "{key} {kind}"
                );
                ids.push(order(
                    desk,
                    weir,
                    kind,
                    &[&format!("{key}={kind}")],
                    "7/year",
                ));
                // A bucket that is raised goes on with its tokens.
                let left = if kind == "raise" && key != "bucket" {
                    6
                } else {
                    4
                };
                assert_eq!(
                    one(client, &[(key, kind)], -2).await,
                    (Code::Ok, left),
                    "{key} {kind}"
                );
                let code = if kind == "block" {
                    Code::OverLimit
                } else {
                    Code::Ok
                };
                assert_eq!(
                    one(client, &[(key, kind)], 1).await.0,
                    code,
                    "{key} {kind}: one that takes is decided by it"
                );
            }
        }
        desk.ok(weir, &ids.iter().map(String::as_str).collect::<Vec<_>>());
        for key in ["plain", "bucket", "shadow", "row"] {
            for (kind, left) in [("block", 4), ("exempt", 4), ("raise", 3)] {
                assert_eq!(
                    one(client, &[(key, kind)], 0).await,
                    (Code::Ok, left),
                    "{key} {kind}: what was given back is there"
                );
            }
        }
        for trial in [&[][..], &["--trial"]] {
            let usage = desk.ok(
                weir,
                &[
                    &["usage", "-d", "shop", "plain=block", "--format", "json"],
                    trial,
                ]
                .concat(),
            );
            let usage: Value = serde_json::from_str(&usage).expect("JSON");
            assert_eq!(
                (&usage["hits"], &usage["given_back"]),
                (&3.into(), &2.into()),
                "{trial:?}: {usage}"
            );
        }
        assert_eq!(
            weir.metric("weir_negative_hits_total{domain=\"shop\",limit=\"plain\"}"),
            Some(6.0)
        );
    })
    .await;
}

/// Places have no unit: they are raised by a number alone.
fn raise_by_a_number(desk: &Desk, weir: &Weir) {
    let raise = desk.ok(
        weir,
        &["raise", "-d", "shop", "job=big", "request", "--to", "20"],
    );
    assert!(
        raise.starts_with(
            "raise to 20 in flight job=big request in shop, until it is removed\n  limits  \
                 shop.job.request\n"
        ),
        "{raise}"
    );
    assert!(
        raise.contains("  count   kept: hits that were counted still count\n"),
        "{raise}"
    );
    assert!(
        desk.ok(weir, &["overrides"])
            .contains("raise to 20 in flight")
    );
    let listed: Value =
        serde_json::from_str(&desk.ok(weir, &["overrides", "--format", "json"])).expect("JSON");
    assert_eq!(
        listed["overrides"][0]["to"],
        serde_json::json!({"requests_per_unit": 20})
    );
    for (entries, to, error) in [
        (
            &["job=big", "request"][..],
            "20/minute",
            "to: the limit shop.job.request is 2 in flight, which has no unit; write a number \
                 alone, above 2",
        ),
        (
            &["job=big", "request"],
            "2",
            "to: the limit shop.job.request is 2 in flight already; write a larger amount",
        ),
        (
            &["job=big", "request"],
            "10001",
            "which holds at most 10000",
        ),
        (
            &["plain=x"],
            "20",
            "to: the limit shop.plain is 5/year, and can be raised in its own unit only; write \
                 an amount per year, such as 5/year",
        ),
    ] {
        let failed = desk.fails(
            weir,
            &[&["raise", "-d", "shop", "--to", to], entries].concat(),
        );
        assert!(failed.contains(error), "{entries:?} {to}: {failed}");
    }
}

#[tokio::test]
async fn places_are_released_under_every_override_and_raised_by_a_number() {
    each(async |desk, weir, client, _| {
        for (kind, while_ordered, afterwards) in [
            ("block", Code::OverLimit, Code::Ok),
            ("exempt", Code::Ok, Code::Ok),
            // Three hold places of two.
            ("raise", Code::Ok, Code::OverLimit),
        ] {
            let mut places =
                async |id: &str, hits| one(client, &[("job", kind), ("request", id)], hits).await.0;
            assert_eq!(
                (
                    places("1", 1).await,
                    places("2", 1).await,
                    places("3", 1).await
                ),
                (Code::Ok, Code::Ok, Code::OverLimit)
            );
            let id = order(desk, weir, kind, &[&format!("job={kind}"), "request"], "4");
            assert_eq!(places("3", 1).await, while_ordered, "{kind}");
            assert_eq!(places("1", -1).await, Code::Ok, "{kind}");
            assert_eq!(places("4", 1).await, while_ordered, "{kind}");
            desk.ok(weir, &["overrides", "remove", &id]);
            assert_eq!(
                places("5", 1).await,
                afterwards,
                "{kind}: whether a place of two is free"
            );
        }
        raise_by_a_number(desk, weir);
    })
    .await;
}
