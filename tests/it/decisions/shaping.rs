//! Shaping by leaky buckets: callers whose timeout is short, callers that leave, and how many may
//! wait. Waits have lower bounds only, because a busy machine answers late and never early.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tonic::Request;
use weir::core::algorithm::{Algorithm, AlgorithmKind, Options};
use weir::core::proto::RateLimitResponse;
use weir::core::proto::rate_limit_response::Code;
use weir::core::time::{Rate, Span, Unit};
use weir::limiter::{self, FailurePolicies, Limiter, Undecided, failure_policies};
use weir::limits::plan::{Check, Checks, Modes};
use weir::observe::traces::TraceSpan;
use weir::store::{Memory, Store, memory};

use crate::support::{Client, RedisServer, Weir, descriptor_with_hits, request};

const LIMITS: &[(&str, &str)] = &[(
    "limits.yaml",
    "
domain: shaped
descriptors:
  - key: slow
    rate_limit: { unit: second, requests_per_unit: 2, algorithm: leaky_bucket, max_delay: 20s }
  - key: hourly
    rate_limit: { unit: hour, requests_per_unit: 1, algorithm: leaky_bucket, max_delay: 10h }
",
)];

const TIMEOUT: Duration = Duration::from_secs(15);

/// Asks by a caller with a timeout of [`TIMEOUT`].
async fn call(client: &mut Client, key: &str, hits: i64) -> RateLimitResponse {
    let descriptor = descriptor_with_hits(&[(key, "a")], hits);
    let mut asked = Request::new(request("shaped", vec![descriptor]));
    asked.set_timeout(TIMEOUT);
    let answer = client.should_rate_limit(asked).await;
    answer.expect("an answer in time").into_inner()
}

#[tokio::test]
async fn a_caller_without_time_takes_no_slot_and_one_that_leaves_keeps_its_own() {
    let redis = RedisServer::start();
    let url = redis.url();
    for environment in [&[][..], &[("REDIS_URL", &url[..]), ("STORE_TIMEOUT", "5s")]] {
        let weir = Weir::start(LIMITS, environment);
        let client = &mut weir.client().await;
        assert_eq!(call(client, "hourly", 1).await.overall_code(), Code::Ok);
        for _ in 0..2 {
            let refused = call(client, "hourly", 1).await;
            assert_eq!(refused.overall_code(), Code::OverLimit, "{refused:?}");
        }
        let left = call(client, "hourly", 0).await.statuses[0].limit_remaining;
        assert_eq!(left, 10, "slots after the first");

        let began = Instant::now();
        assert_eq!(call(client, "slow", 1).await.overall_code(), Code::Ok);
        // Its slot is half a second after the first one.
        let left = tokio::time::timeout(Duration::from_millis(50), call(client, "slow", 1)).await;
        assert!(
            left.is_err() || began.elapsed() > Duration::from_millis(450),
            "it did not wait"
        );
        let next = call(client, "slow", 1).await.overall_code();
        assert!(
            next == Code::Ok && began.elapsed() >= Duration::from_millis(950),
            "the slot behind it: {:?}",
            began.elapsed()
        );
    }
    redis.assert_every_key_expires();
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
        let span = TraceSpan::default();
        let mut decided = limiter.decide(Undecided {
            checks: &checks,
            timeout: Some(TIMEOUT),
            span: &span,
            tallies: None,
        });
        decided.wait().await.decisions[0].allows()
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
