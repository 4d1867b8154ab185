//! Shaping by leaky buckets: which requests wait, for how long, and how many at a time. Waits have
//! lower bounds only, because a busy machine answers late and never early.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tonic::Request;
use weir::core::algorithm::{Algorithm, AlgorithmKind, Options};
use weir::core::proto::RateLimitDescriptor;
use weir::core::proto::rate_limit_response::Code;
use weir::core::time::{Rate, Span, Unit};
use weir::limiter::{self, FailurePolicies, Limiter, failure_policies};
use weir::limits::plan::{Check, Checks, Modes};
use weir::observe::traces::TraceSpan;
use weir::store::{Memory, Store, memory};

use crate::support::{Client, RedisServer, Weir, descriptor, descriptor_with_hits, request};

const LIMITS: &[(&str, &str)] = &[(
    "limits.yaml",
    "
domain: shaped
descriptors:
  - key: slow
    rate_limit: { unit: second, requests_per_unit: 2, algorithm: leaky_bucket, max_delay: 20s }
  - key: shadow
    shadow_mode: true
    rate_limit: { unit: second, requests_per_unit: 1, algorithm: leaky_bucket, max_delay: 20s }
  - key: strict
    rate_limit: { unit: hour, requests_per_unit: 1, algorithm: leaky_bucket }
  - key: never
    rate_limit: { unit: year, requests_per_unit: 0 }
",
)];

/// The code of the answer to a caller with this timeout, and how long the answer took.
async fn ask(client: &mut Client, entries: &[(&str, &str)], timeout: Duration) -> (Code, Duration) {
    let descriptors = entries.iter().map(|entry| descriptor(&[*entry])).collect();
    let mut asked = Request::new(request("shaped", descriptors));
    asked.set_timeout(timeout);
    let began = Instant::now();
    let answer = client
        .should_rate_limit(asked)
        .await
        .expect("an answer in time");
    (answer.into_inner().overall_code(), began.elapsed())
}

const TIMEOUT: Duration = Duration::from_secs(15);

async fn delays_requests(client: &mut Client) {
    let slow = [("slow", "a")];
    assert_eq!(ask(client, &slow, TIMEOUT).await.0, Code::Ok);
    let (code, waited) = ask(client, &slow, TIMEOUT).await;
    assert!(
        code == Code::Ok && waited >= Duration::from_millis(300),
        "held until its slot: {waited:?}"
    );

    // Two slots ahead are taken. A caller whose timeout is too short for the next slot is refused
    // at once, and takes none.
    let (mut first, mut second) = (client.clone(), client.clone());
    let ahead = tokio::join!(
        ask(&mut first, &slow, TIMEOUT),
        ask(&mut second, &slow, TIMEOUT),
        async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            ask(client, &slow, Duration::from_millis(400)).await
        }
    );
    assert_eq!(
        (ahead.0.0, ahead.1.0, ahead.2.0),
        (Code::Ok, Code::Ok, Code::OverLimit)
    );
    assert!(
        ahead.2.1 < Duration::from_millis(400),
        "refused before its timeout"
    );

    // A caller that gives up keeps its slot, and does not block others.
    let gave_up =
        tokio::time::timeout(Duration::from_millis(50), ask(client, &slow, TIMEOUT)).await;
    assert!(gave_up.is_err());
    let (code, waited) = ask(client, &slow, TIMEOUT).await;
    assert!(
        code == Code::Ok && waited >= Duration::from_millis(400),
        "its slot is behind that of the caller that gave up: {waited:?}"
    );

    // Refused requests and shadow limits are not delayed.
    let begun = Instant::now();
    for _ in 0..3 {
        assert_eq!(
            ask(client, &[("slow", "b"), ("never", "")], TIMEOUT)
                .await
                .0,
            Code::OverLimit
        );
        assert_eq!(ask(client, &[("shadow", "c")], TIMEOUT).await.0, Code::Ok);
    }
    assert!(
        begun.elapsed() < Duration::from_millis(1_500),
        "no request was delayed: {:?}",
        begun.elapsed()
    );

    // Without max_delay, a request that comes too early is refused.
    assert_eq!(ask(client, &[("strict", "d")], TIMEOUT).await.0, Code::Ok);
    assert_eq!(
        ask(client, &[("strict", "d")], TIMEOUT).await.0,
        Code::OverLimit
    );
}

#[tokio::test]
async fn on_memory() {
    delays_requests(&mut Weir::start(LIMITS, &[]).client().await).await;
}

#[tokio::test]
async fn on_redis() {
    let redis = RedisServer::start();
    delays_requests(
        &mut Weir::start(
            LIMITS,
            &[("REDIS_URL", &redis.url()), ("STORE_TIMEOUT", "5s")],
        )
        .client()
        .await,
    )
    .await;
    redis.assert_every_key_expires();
}

#[tokio::test]
async fn a_caller_that_leaves_keeps_its_slot() {
    let weir = Weir::start(LIMITS, &[]);
    let client = &mut weir.client().await;
    let began = Instant::now();
    assert_eq!(ask(client, &[("slow", "left")], TIMEOUT).await.0, Code::Ok);
    // Its slot is half a second after the first one.
    let left = tokio::time::timeout(
        Duration::from_millis(50),
        ask(client, &[("slow", "left")], TIMEOUT),
    )
    .await;
    assert!(
        left.is_err() || began.elapsed() > Duration::from_millis(450),
        "it did not wait"
    );
    let (code, _) = ask(client, &[("slow", "left")], TIMEOUT).await;
    assert!(
        code == Code::Ok && began.elapsed() >= Duration::from_millis(950),
        "the slot behind it: {:?}",
        began.elapsed()
    );
}

#[tokio::test]
async fn the_number_of_waiting_requests_is_limited() {
    let options = Options {
        kind: AlgorithmKind::LeakyBucket,
        max_delay: Some(Span::from_secs(60)),
        ..Options::default()
    };
    let rate = Rate {
        requests_per_unit: 4,
        unit: Unit::Second,
        unit_multiplier: 1,
    };
    let algorithm = Algorithm::try_new(&rate, &options).expect("an algorithm");
    let checks = Arc::new(Checks::of([(
        &b"key"[..],
        Check::new(algorithm, 1, Modes::default()),
    )]));
    let limiter = Limiter::new(
        None,
        Store::Memory(Memory::new(memory::Options::default())),
        FailurePolicies::new(&failure_policies::Options::default()),
        limiter::Options {
            max_waiting: 1,
            ..limiter::Options::default()
        },
    );
    let allowed = async || {
        limiter
            .decide(&checks, Some(TIMEOUT), &TraceSpan::default())
            .await[0]
            .allows()
    };
    assert!(allowed().await, "the first does not wait");
    let answers = tokio::join!(allowed(), allowed(), allowed());
    assert_eq!(
        answers,
        (true, false, false),
        "one waits, and no permit is left for the others"
    );
    assert!(allowed().await, "the permit is free again");
}

#[tokio::test]
async fn a_refusal_has_a_retry_after_header() {
    let weir = Weir::start(LIMITS, &[("RETRY_AFTER_HEADER_ENABLED", "true")]);
    let client = &mut weir.client().await;
    let both = || {
        request(
            "shaped",
            vec![descriptor(&[("strict", "r")]), descriptor(&[("slow", "r")])],
        )
    };
    let allowed = client
        .should_rate_limit(both())
        .await
        .expect("an answer")
        .into_inner();
    assert!(allowed.response_headers_to_add.is_empty());
    let refused = client
        .should_rate_limit(both())
        .await
        .expect("an answer")
        .into_inner();
    let [header] = &refused.response_headers_to_add[..] else {
        panic!("one header: {refused:?}")
    };
    let secs: u64 = header.value.parse().expect("seconds");
    assert!(
        header.key == "retry-after" && (3_500..=3_600).contains(&secs),
        "{header:?}"
    );
}

const NEVER: &[(&str, &str)] = &[(
    "never.yaml",
    "
domain: never
descriptors:
  - {key: nothing, rate_limit: {unit: hour, requests_per_unit: 0}}
  - {key: few, rate_limit: {unit: hour, requests_per_unit: 10}}
  - {key: bucket, rate_limit: {unit: hour, requests_per_unit: 10, algorithm: token_bucket}}
  - {key: small_quota, quota_mode: true, rate_limit: {unit: hour, requests_per_unit: 1}}
  - {key: large_quota, quota_mode: true, rate_limit: {unit: hour, requests_per_unit: 10}}
",
)];

#[tokio::test]
async fn what_can_never_pass_has_no_retry_after_header() {
    let redis = RedisServer::start();
    for environment in [
        &[("RETRY_AFTER_HEADER_ENABLED", "true")][..],
        &[
            ("RETRY_AFTER_HEADER_ENABLED", "true"),
            ("REDIS_URL", &redis.url()),
        ],
    ] {
        let weir = Weir::start(NEVER, environment);
        let client = &mut weir.client().await;
        let mut header = async |descriptors: Vec<RateLimitDescriptor>| {
            let response = client
                .should_rate_limit(request("never", descriptors))
                .await
                .expect("an answer")
                .into_inner();
            assert_eq!(response.overall_code(), Code::OverLimit);
            response
                .response_headers_to_add
                .into_iter()
                .next()
                .map(|header| header.key)
        };
        let of = |key: &str, hits| descriptor_with_hits(&[(key, "x")], hits);
        // The second answer comes from the denial cache where there is one.
        for _ in 0..2 {
            assert_eq!(header(vec![of("nothing", 1)]).await, None);
            assert_eq!(header(vec![of("bucket", 11)]).await, None);
            assert_eq!(header(vec![of("few", 11)]).await, None);
            assert_eq!(header(vec![of("small_quota", 2)]).await, None);
            assert_eq!(
                header(vec![of("few", 1), of("nothing", 1)]).await,
                None,
                "the longest wait is for ever"
            );
            let waits = Some("retry-after".to_owned());
            for (descriptors, expected, why) in [
                (
                    vec![of("few", 1)],
                    &waits,
                    "refused hits count, until the window ends",
                ),
                (
                    vec![of("small_quota", 2), of("large_quota", 11)],
                    &None,
                    "no quota can ever be met",
                ),
                (
                    vec![of("small_quota", 2), of("large_quota", 9)],
                    &waits,
                    "one quota can be met later",
                ),
                (
                    vec![of("few", 1), of("small_quota", 2)],
                    &None,
                    "no quota can ever be met, whatever else waits",
                ),
                (
                    vec![of("few", 1), of("small_quota", 2), of("large_quota", 0)],
                    &waits,
                    "a quota is met",
                ),
            ] {
                assert_eq!(&header(descriptors).await, expected, "{why}");
            }
        }
    }
}
