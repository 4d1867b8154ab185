//! `REPLICAS=dns:NAME`: the number of replicas follows the addresses of a name, and with it the
//! share of `on_store_failure: local`.

use std::num::NonZeroU32;
use std::time::Duration;

use weir::core::proto::rate_limit_response::Code;
use weir::limiter::replicas::{Options, ReplicaCount, Source, follow};
use weir::observe::health::{Health, Status};

use crate::support::dns::{DnsServer, Fault, Zone};
use crate::support::wait::eventually_async;
use crate::support::{Client, RedisServer, Weir, descriptor, request};

/// A limit per year, so that no window ends while a test runs.
const LIMITS: &[(&str, &str)] = &[(
    "limits.yaml",
    "
domain: shop
descriptors:
  - key: user
    rate_limit: { unit: year, requests_per_unit: 12, on_store_failure: local }
",
)];

/// Asks for a hit of this user. Returns whether it is within the limit, the limit that is shown,
/// and what remains of it.
async fn call(client: &mut Client, user: &str) -> (bool, u32, u32) {
    let answer = client
        .should_rate_limit(request("shop", vec![descriptor(&[("user", user)])]))
        .await
        .expect("an answer")
        .into_inner();
    let status = &answer.statuses[0];
    let limit = status
        .current_limit
        .as_ref()
        .expect("a limit")
        .requests_per_unit;
    (
        answer.overall_code == i32::from(Code::Ok),
        limit,
        status.limit_remaining,
    )
}

#[tokio::test]
async fn shares_follow_the_addresses_of_a_name_and_counts_stay() {
    let dns = DnsServer::start(Zone {
        v4: 1,
        ..Zone::default()
    });
    let name = format!(
        "dns://{}/ratelimit-headless.edge.svc.cluster.local",
        dns.address()
    );
    let redis = RedisServer::absent().url();
    let weir = Weir::start(LIMITS, &[("REPLICAS", &name), ("REDIS_URL", &redis)]);
    weir.wait_for_log(
        "REPLICAS: name resolved; on_store_failure: local admits this replica's share of each \
         limit",
    )
    .await;
    let client = &mut weir.client().await;
    for remaining in [11, 10, 9] {
        assert_eq!(
            call(client, "a").await,
            (true, 12, remaining),
            "the only replica has the whole limit"
        );
    }

    let started = weir.id();
    dns.set(Zone {
        v4: 4,
        v6: 3,
        ..Zone::default()
    });
    let line = weir
        .wait_for_log("REPLICAS: number of replicas changed")
        .await;
    assert!(
        line.contains(r#""replicas":4"#) && line.contains(r#""before":1"#),
        "{line}"
    );
    assert_eq!(weir.metric("weir_replicas"), Some(4.0));
    // Three hits were counted before: with a share of 3, nothing is left. A lost count would admit
    // them.
    assert_eq!(call(client, "a").await, (false, 3, 0));
    assert_eq!(call(client, "b").await, (true, 3, 2));
    assert_eq!(weir.id(), started);

    dns.set(Zone {
        fault: Some(Fault::ServerFailure),
        ..Zone::default()
    });
    let line = weir
        .wait_for_log("REPLICAS: cannot resolve the name; keeping the number of replicas")
        .await;
    assert!(
        line.contains(r#""level":"warn""#) && line.contains(r#""replicas":4"#),
        "{line}"
    );
    assert_eq!(
        call(client, "b").await,
        (true, 3, 1),
        "the last number stays"
    );
    assert!(weir.metric(r#"weir_replicas_lookups_total{result="answered"}"#) >= Some(2.0));
    assert!(weir.metric(r#"weir_replicas_lookups_total{result="failed"}"#) >= Some(1.0));
}

#[tokio::test]
async fn without_a_name_there_are_no_lookups() {
    let weir = Weir::start(
        LIMITS,
        &[
            ("REPLICAS", "3"),
            ("REDIS_URL", &RedisServer::absent().url()),
        ],
    );
    assert_eq!(weir.metric("weir_replicas"), Some(3.0));
    assert_eq!(
        weir.metric(r#"weir_replicas_lookups_total{result="answered"}"#),
        None
    );
    assert_eq!(call(&mut weir.client().await, "a").await, (true, 4, 3));
}

/// Follows a name of `dns` quickly, and holds a number for `hold`.
fn followed(dns: &DnsServer, hold: Duration) -> (ReplicaCount, tokio::task::JoinHandle<()>) {
    let Ok(Source::Dns(name)) = Source::try_new(&format!("dns://{}/weir.test", dns.address()))
    else {
        panic!("a name")
    };
    let count = ReplicaCount::new(NonZeroU32::MIN);
    let options = Options {
        interval: Duration::from_millis(10),
        hold,
        settle: Duration::ZERO,
    };
    let health = Health::default();
    health.report(Status::Ready);
    let task = tokio::spawn(follow(name, count.clone(), health, options));
    (count, task)
}

/// Waits until the number of replicas is this.
async fn wait_for(count: &ReplicaCount, expected: u32) {
    let reached = eventually_async(|| (count.get().get() == expected).then_some(())).await;
    assert!(
        reached.is_some(),
        "{expected} replicas, but there are {}",
        count.get()
    );
}

#[tokio::test]
async fn the_larger_number_of_addresses_counts_and_long_answers_come_by_tcp() {
    let dns = DnsServer::start(Zone {
        v4: 2,
        v6: 3,
        ..Zone::default()
    });
    let (count, task) = followed(&dns, Duration::ZERO);
    wait_for(&count, 3).await;
    dns.set(Zone {
        v4: 5,
        v6: 3,
        ..Zone::default()
    });
    wait_for(&count, 5).await;
    dns.set(Zone {
        v4: 5,
        fault: Some(Fault::OnlyV4),
        ..Zone::default()
    });
    let asked = dns.queries().names.len();
    assert!(
        eventually_async(|| (dns.queries().names.len() > asked + 4).then_some(()))
            .await
            .is_some()
    );
    dns.set(Zone {
        v4: 7,
        fault: Some(Fault::OnlyV4),
        ..Zone::default()
    });
    wait_for(&count, 7).await;

    assert_eq!(
        (dns.queries().truncated, dns.queries().names[0].clone()),
        (0, ("weir.test".to_owned(), 1))
    );
    dns.set(Zone {
        v4: 1_500,
        v6: 900,
        ..Zone::default()
    });
    wait_for(&count, 1_500).await;
    dns.set(Zone {
        v4: 10,
        v6: 900,
        ..Zone::default()
    });
    wait_for(&count, 900).await;
    let queries = dns.queries();
    assert!(
        queries.truncated >= 3 && queries.by_tcp >= 3,
        "{} truncated, {} by TCP",
        queries.truncated,
        queries.by_tcp
    );
    task.abort();
}
