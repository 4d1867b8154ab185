//! Reservations and operators: overrides, resets and explanations see them.

use super::*;
use crate::support::RedisServer;

const LIMITS: &str = "
domain: shop
descriptors:
  - key: tenant
    rate_limit: { unit: year, requests_per_unit: 1000, reservations: { ttl: 60s }, \
      track_usage: true }
";

async fn reserve(client: &mut Client, tenant: &str, id: &str, hits: i64) -> (Code, u32) {
    of_id(client, "reserve", tenant, id, hits).await
}

async fn settle(client: &mut Client, tenant: &str, id: &str, hits: i64) -> (Code, u32) {
    of_id(client, "settle", tenant, id, hits).await
}

async fn of_id(client: &mut Client, key: &str, tenant: &str, id: &str, hits: i64) -> (Code, u32) {
    let entries = [("tenant", tenant), (key, id)];
    let answer = ask(client, "shop", vec![descriptor_with_hits(&entries, hits)]).await;
    (answer.overall_code(), answer.statuses[0].limit_remaining)
}

/// A block refuses reservations and no settlement; an exemption holds nothing; a raise makes room.
/// Explanations show what is held, and change nothing. A reset drops it.
#[tokio::test]
async fn operators_see_and_change_reservations() {
    let redis = RedisServer::start();
    for environment in [&[][..], &[("REDIS_URL", &*redis.url())]] {
        let desk = Desk::new();
        let weir = desk.start(LIMITS, environment);
        let client = &mut weir.client().await;
        let explain = |entries: &[&str]| {
            let command = [&["explain", "--domain", "shop"], entries].concat();
            desk.ok(&weir, &command)
        };
        assert_eq!(reserve(client, "a", "1", 400).await, (Code::Ok, 600));
        assert_eq!(reserve(client, "a", "2", 100).await, (Code::Ok, 500));
        for entries in [
            &["tenant=a"][..],
            &["tenant=a", "settle=1"],
            &["tenant=a", "reserve=9"],
        ] {
            let text = explain(entries);
            assert!(
                text.contains("held     2 reservations, 500 hits, the oldest for ")
                    && text.contains("500 used, 500 left"),
                "{text}"
            );
        }
        let (entry, domain) = (["tenant=a"], ["--domain", "shop"]);
        let command = |words: &[&'static str]| [words, &domain[..], &entry[..]].concat();
        desk.ok(
            &weir,
            &command(&["block", "--reason", "r", "--until", "1h"]),
        );
        assert_eq!(reserve(client, "a", "3", 1).await.0, Code::OverLimit);
        assert_eq!(settle(client, "a", "1", 500).await, (Code::Ok, 400));
        assert_eq!(settle(client, "a", "3", 50).await, (Code::Ok, 350));
        desk.ok(
            &weir,
            &command(&["exempt", "--reason", "r", "--until", "1h"]),
        );
        desk.ok(&weir, &["unblock", "--domain", "shop", "tenant=a"]);
        assert_eq!(reserve(client, "a", "4", 300).await.0, Code::Ok);
        assert!(explain(&["tenant=b"]).contains("0 used"));
        assert_eq!(settle(client, "a", "4", 50).await, (Code::Ok, 350));
        // What was reserved before the exemption is released.
        assert_eq!(settle(client, "a", "2", 30).await, (Code::Ok, 450));
        let usage = desk.ok(&weir, &["usage", "--domain", "shop", "tenant=a"]);
        assert!(
            usage.contains("hits        550, over the limit 0, refunded 0"),
            "{usage}"
        );
        let metric = "weir_settlements_total{domain=\"shop\",limit=\"tenant\",result=\"unknown\"}";
        assert_eq!(
            weir.metric(metric),
            Some(2.0),
            "the exempt one held nothing"
        );
        assert_eq!(reserve(client, "b", "1", 500).await, (Code::Ok, 500));
        let reset = desk.ok(&weir, &["reset", "--domain", "shop", "tenant=b"]);
        assert!(reset.contains("counts from zero"), "{reset}");
        assert_eq!(
            settle(client, "b", "1", 200).await,
            (Code::Ok, 800),
            "it is unknown"
        );
        assert!(!explain(&["tenant=b"]).contains("held"));
    }
}
