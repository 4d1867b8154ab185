//! The denial cache, through real sockets: a refused key costs Redis at most one decision per
//! second, and its answers are those of the store.

use std::time::{Duration, Instant};

use weir::core::proto::RateLimitResponse;
use weir::core::proto::rate_limit_response::Code;

use crate::support::{Client, RedisServer, Weir, ask, descriptor_with_hits};

/// Limits per year, so that no window ends while a test runs.
const LIMITS: &[(&str, &str)] = &[("limits.yaml", FEW)];

const FEW: &str = "
domain: denied
descriptors:
  - key: fixed
    rate_limit: { unit: year, requests_per_unit: 2 }
  - key: log
    rate_limit: { unit: year, requests_per_unit: 2, algorithm: sliding_window_log }
  - key: bucket
    rate_limit: { unit: second, unit_multiplier: 2, requests_per_unit: 1, algorithm: token_bucket }
  - key: slow
    rate_limit: { unit: hour, requests_per_unit: 10, algorithm: token_bucket }
  - key: slow_log
    rate_limit: { unit: year, requests_per_unit: 10, algorithm: sliding_window_log }
  - key: recorded
    rate_limit: { unit: year, requests_per_unit: 1, track_usage: true }
";

async fn call(client: &mut Client, key: &str, hits: i64) -> RateLimitResponse {
    ask(
        client,
        "denied",
        vec![descriptor_with_hits(&[(key, "x")], hits)],
    )
    .await
}

async fn code(client: &mut Client, key: &str, hits: i64) -> Code {
    call(client, key, hits).await.overall_code()
}

/// How many decisions Redis has run: hits, looks and scripts.
fn decisions(redis: &RedisServer) -> u64 {
    ["incrby", "get", "evalsha"]
        .into_iter()
        .map(|command| redis.calls(command))
        .sum()
}

#[tokio::test]
async fn a_refused_key_costs_redis_one_decision_a_second() {
    let redis = RedisServer::start();
    let weir = Weir::start(
        LIMITS,
        &[
            ("REDIS_URL", &redis.url()),
            ("STORE_TIMEOUT", "5s"),
            ("WORKERS", "2"),
        ],
    );
    let client = &mut weir.client().await;
    for key in ["fixed", "log"] {
        while code(client, key, 1).await == Code::Ok {}
        let (before, began, mut refused) = (decisions(&redis), Instant::now(), 0_u64);
        // Connections are assigned to the workers in turn; all workers share the cache.
        let other = &mut weir.client().await;
        while refused < 2_000 {
            for client in [&mut *client, &mut *other] {
                assert_eq!(code(client, key, 1).await, Code::OverLimit);
                refused += 1;
            }
        }
        let (cost, secs) = (decisions(&redis) - before, began.elapsed().as_secs() + 1);
        // The second begins before the decision, which takes long on a busy machine.
        assert!(
            cost <= secs + secs / 4,
            "{key}: {cost} decisions for {refused} refusals in {secs} s"
        );
    }
    let label = "{domain=\"denied\",key1=\"fixed\"}";
    let counted = weir
        .metric(&format!("weir_denial_cache_refused_hits_total{label}"))
        .expect("the series");
    let over = weir
        .metric(&format!("ratelimit_service_rate_limit_over_limit{label}"))
        .expect("the series");
    assert!(counted >= 1_900.0 && over > counted, "{counted} of {over}");
    assert!(weir.metric("weir_denial_cache_answers_total") >= Some(3_800.0));
    // Scripts that look for the lines of one metric must not find those of another.
    let page = weir.get("/metrics").1;
    let found = page.lines().filter(|line| {
        line.contains("ratelimit_service_rate_limit_over_limit") && line.contains("key1=\"fixed\"")
    });
    assert_eq!(found.count(), 1);
    assert!(weir.metric("weir_denial_cache_entries").is_some());
}

/// Every answer of the service with the cache is that of one without it.
#[tokio::test]
async fn a_cached_refusal_repeats_no_old_numbers() {
    let redis = RedisServer::start();
    let environment = [("REDIS_URL", &*redis.url()), ("STORE_TIMEOUT", "5s")];
    let (cached, bare) = (
        Weir::start(LIMITS, &environment),
        Weir::start(
            LIMITS,
            &[&environment[..], &[("LOCAL_CACHE_SIZE_IN_BYTES", "0")]].concat(),
        ),
    );
    let (cached, bare) = (&mut cached.client().await, &mut bare.client().await);
    let numbers = |answer: &RateLimitResponse| {
        let status = &answer.statuses[0];
        (
            answer.overall_code(),
            status.limit_remaining,
            status
                .duration_until_reset
                .as_ref()
                .map_or(0, |reset| reset.seconds),
        )
    };
    for key in ["slow", "slow_log"] {
        // More than there is leaves something, of which another replica takes a part.
        assert_eq!(call(cached, key, 12).await.overall_code(), Code::OverLimit);
        assert_eq!(call(bare, key, 4).await.overall_code(), Code::Ok);
        assert_eq!(
            call(cached, key, 12).await.statuses[0].limit_remaining,
            6,
            "{key}"
        );
        assert_eq!(call(bare, key, 6).await.overall_code(), Code::Ok);
        // Then nothing is left, and more hits wait for longer.
        for hits in [1, 1, 4, 4, 12, 1] {
            let (told, truth) = (
                numbers(&call(cached, key, hits).await),
                numbers(&call(bare, key, hits).await),
            );
            assert_eq!((told.0, told.1), (truth.0, truth.1), "{key}, {hits} hits");
            assert!(
                (truth.2..=truth.2 + 1).contains(&told.2),
                "{key}, {hits} hits: {told:?} instead of {truth:?}"
            );
        }
    }
}

/// What the cache refuses is recorded later, by a call of its own.
#[tokio::test]
async fn a_cached_refusal_with_usage_leaves_the_other_checks_to_the_script() {
    let redis = RedisServer::start();
    let environment = [("REDIS_URL", &*redis.url()), ("STORE_TIMEOUT", "5s")];
    let weir = Weir::start(LIMITS, &environment);
    let client = &mut weir.client().await;
    while code(client, "recorded", 1).await == Code::Ok {}
    let both = ["recorded", "slow"].map(|key| descriptor_with_hits(&[(key, "x")], 1));
    let answer = ask(client, "denied", both.to_vec()).await;
    let left = |index: usize| answer.statuses[index].limit_remaining;
    assert_eq!((left(0), left(1)), (0, 9), "{answer:?}");
    let errors = "weir_redis_errors_total{error=\"server_error\"}";
    assert_eq!(weir.metric(errors).unwrap_or(0.0), 0.0);
}

#[tokio::test]
async fn a_give_back_takes_effect_at_once_here_and_within_a_second_on_other_replicas() {
    let redis = RedisServer::start();
    let environment = [("REDIS_URL", &*redis.url()), ("STORE_TIMEOUT", "5s")];
    let (here, elsewhere) = (
        Weir::start(LIMITS, &environment),
        Weir::start(LIMITS, &environment),
    );
    let (here, elsewhere) = (&mut here.client().await, &mut elsewhere.client().await);
    for client in [&mut *here, &mut *elsewhere] {
        while code(client, "log", 1).await == Code::Ok {}
    }
    assert_eq!(code(here, "log", -2).await, Code::Ok);
    assert_eq!(code(here, "log", 1).await, Code::Ok);
    let began = Instant::now();
    while code(elsewhere, "log", 1).await != Code::Ok {
        assert!(
            began.elapsed() < Duration::from_millis(1_300),
            "still refused after {:?}",
            began.elapsed()
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
