//! Limits with `reservations`: usage, `weir count`, `weir top` and metrics show costs, and held hits
//! apart.

use serde_json::{Value, json};

use super::service::api;
use crate::support::wait::eventually_async;
use crate::support::{Client, RedisServer, Weir, descriptor_with_hits, request};

const LIMITS: &[(&str, &str)] = &[(
    "limits.yaml",
    "
domain: llm
descriptors:
  - key: tenant
    rate_limit: { unit: year, requests_per_unit: 1000000, track_usage: true, \
        reservations: { ttl: 1h } }
  - key: kept
    rate_limit: { unit: year, requests_per_unit: 1000000, track_usage: true, \
        reservations: { ttl: 1s, on_expiry: keep } }
  - key: released
    rate_limit: { unit: year, requests_per_unit: 1000000, track_usage: true, \
        reservations: { ttl: 1s } }
  - key: window
    rate_limit: { unit: second, requests_per_unit: 1000, track_usage: true, \
        reservations: { ttl: 2s, on_expiry: keep } }
  - key: closed
    rate_limit: { unit: year, requests_per_unit: 0 }
",
)];

/// A request of these descriptors, each with its hits.
async fn call(client: &mut Client, descriptors: &[(&[(&str, &str)], i64)]) {
    let all = descriptors.iter();
    let all = all.map(|(entries, hits)| descriptor_with_hits(entries, *hits));
    let message = request("llm", all.collect());
    client.should_rate_limit(message).await.expect("an answer");
}

fn numbers(weir: &Weir, call: &str, names: &[&str]) -> Vec<Value> {
    let (status, answer) = api(weir, call);
    assert_eq!(status, 200, "{answer}");
    names.iter().map(|name| answer[name].clone()).collect()
}

/// Settled, cancelled, open and refused reservations of a tenant.
async fn assert_costs_are_shown(weir: &Weir, client: &mut Client) {
    for id in ["1", "2", "3", "4", "5"] {
        let reserve = [("tenant", "a"), ("reserve", id)];
        call(client, &[(&reserve, 100_000)]).await;
    }
    for (id, cost) in [("1", 500), ("2", 500), ("3", 500), ("4", 0), ("1", 500)] {
        call(client, &[(&[("tenant", "a"), ("settle", id)], cost)]).await;
    }
    let reserve = [("tenant", "a"), ("reserve", "6")];
    call(client, &[(&reserve, 7_000), (&[("closed", "x")], 1)]).await;
    let of_tenant = "domain=llm&entry=tenant%3Da";
    assert_eq!(
        numbers(
            weir,
            &format!("count?{of_tenant}&since=9s"),
            &["hits", "held", "exact"]
        ),
        [json!(1_500), json!(100_000), json!(true)]
    );
    assert_eq!(
        numbers(
            weir,
            &format!("usage?{of_tenant}"),
            &["hits", "used", "held"]
        ),
        [json!(1_500), json!(101_500), json!(100_000)]
    );
    let text = weir.command(&["count", "-d", "llm", "tenant=a", "--since", "9s"]);
    assert!(
        text.contains("  hits     1,500") && text.contains("  held     100,000 by reservations\n"),
        "{text}"
    );
    let (_, top) = api(weir, "top?limit=llm.tenant");
    assert_eq!(top["subjects"][0]["hits"], 1_500, "{top}");
    for (name, labels, expected) in [
        ("ratelimit_service_rate_limit_total_hits", "", 1_500.0),
        ("weir_settlements_total", "matched", 3.0),
        ("weir_settlements_total", "cancelled", 1.0),
        ("weir_settlements_total", "repeated", 1.0),
        ("weir_reservations_refunded_total", "", 1.0),
        ("weir_reserved_hits", "", 100_000.0),
    ] {
        let series = match (name.starts_with("weir"), labels) {
            (false, _) => format!("{name}{{domain=\"llm\",key1=\"tenant\"}}"),
            (true, "") => format!("{name}{{domain=\"llm\",limit=\"tenant\"}}"),
            (true, result) => {
                format!("{name}{{domain=\"llm\",limit=\"tenant\",result=\"{result}\"}}")
            }
        };
        let found = eventually_async(|| (weir.metric(&series) == Some(expected)).then_some(()));
        assert!(
            found.await.is_some(),
            "{series}: {:?}",
            weir.metric(&series)
        );
    }
}

/// Expired holds: their hits are used if they stay charged, and a late cost only beyond them.
async fn assert_expired_holds_are_shown(weir: &Weir, client: &mut Client) {
    let of = |key: &str| format!("count?domain=llm&entry={key}%3Da&since=1h");
    for (key, on_expiry, used, after_cost) in
        [("kept", "keep", 400, 450), ("released", "release", 0, 450)]
    {
        call(client, &[(&[(key, "a"), ("reserve", "1")], 400)]).await;
        let series = format!(
            "weir_reservations_expired_total{{domain=\"llm\",limit=\"{key}\",on_expiry=\"{on_expiry}\"}}"
        );
        // The first check after the expiry ends the hold.
        for _ in 0..600 {
            call(client, &[(&[(key, "a")], 0)]).await;
            if weir.metric(&series) == Some(1.0) {
                break;
            }
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
        assert_eq!(weir.metric(&series), Some(1.0), "{series}");
        let hits = ["hits", "held"];
        assert_eq!(
            numbers(weir, &of(key), &hits),
            [json!(used), json!(0)],
            "{key}"
        );
        call(client, &[(&[(key, "a"), ("settle", "1")], 450)]).await;
        let found = numbers(weir, &of(key), &hits);
        assert_eq!(found, [json!(after_cost), json!(0)], "{key}");
    }
}

/// Also if a read ends the hold that stays charged.
async fn assert_reads_lose_no_usage(weir: &Weir, client: &mut Client) {
    let reads = [
        ("b", &["usage", "-d", "llm", "kept=b"][..]),
        ("c", &["explain", "-d", "llm", "kept=c"]),
        ("d", &["usage", "--limit", "llm.kept", "--by", "share"]),
    ];
    for (value, _) in reads {
        call(client, &[(&[("kept", value), ("reserve", "1")], 400)]).await;
    }
    tokio::time::sleep(std::time::Duration::from_millis(1_100)).await;
    for (value, read) in reads {
        weir.command(read);
        call(client, &[(&[("kept", value)], 0)]).await;
        let count = format!("count?domain=llm&entry=kept%3D{value}&since=1h");
        let found = numbers(weir, &count, &["hits", "held"]);
        assert_eq!(found, [json!(400), json!(0)], "{read:?}");
    }
    let series =
        "weir_reservations_expired_total{domain=\"llm\",limit=\"kept\",on_expiry=\"keep\"}";
    assert_eq!(
        weir.metric(series),
        Some(4.0),
        "one before, and one for each read"
    );
}

/// A hold that stays charged is used, also if its window has ended before a check looks.
async fn assert_hits_of_earlier_windows_are_shown(weir: &Weir, client: &mut Client) {
    let key = [("window", "a"), ("reserve", "1")];
    call(client, &[(&key, 400)]).await;
    tokio::time::sleep(std::time::Duration::from_millis(2_050)).await;
    let series = "ratelimit_service_rate_limit_total_hits{domain=\"llm\",key1=\"window\"}";
    let refused: &[(&str, &str)] = &[("closed", "x")];
    // The request that ends the hold is refused.
    let other = [("window", "a"), ("reserve", "2")];
    call(client, &[(&other, 10), (refused, 1)]).await;
    let found = numbers(
        weir,
        "count?domain=llm&entry=window%3Da&since=1h",
        &["hits"],
    );
    let metric = eventually_async(|| (weir.metric(series) == Some(400.0)).then_some(()));
    assert!(metric.await.is_some(), "{:?}", weir.metric(series));
    assert_eq!(found, [json!(400)]);
}

#[tokio::test]
async fn usage_shows_costs_and_not_estimates() {
    let redis = RedisServer::start();
    let url = redis.url();
    let on_redis = [("REDIS_URL", &*url), ("STORE_TIMEOUT", "5s")];
    for store in [&[][..], &on_redis] {
        let weir = Weir::start(LIMITS, store);
        let client = &mut weir.client().await;
        assert_costs_are_shown(&weir, client).await;
        assert_expired_holds_are_shown(&weir, client).await;
        assert_reads_lose_no_usage(&weir, client).await;
        assert_hits_of_earlier_windows_are_shown(&weir, client).await;
    }
}
