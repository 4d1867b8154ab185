//! Shaping: what waits, how long, for whom not, and how many at a time. Lower bounds of time only: a busy machine is late, never early.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tonic::Request;
use weir::algorithm::{Algorithm, AlgorithmKind, Options};
use weir::limiter::{self, Limiter, Outage, outage};
use weir::plan::{Check, Checks, Modes};
use weir::proto::rate_limit_response::Code;
use weir::store::{AnyStore, Memory, memory};
use weir::time::{Rate, Span, Unit};

use crate::support::{Client, RedisServer, Weir, descriptor, request};

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

/// How a request of a caller that waits for `patience` is answered, and after how long.
async fn ask(client: &mut Client, entries: &[(&str, &str)], patience: Duration) -> (Code, Duration) {
    let descriptors = entries.iter().map(|entry| descriptor(&[*entry])).collect();
    let mut asked = Request::new(request("shaped", descriptors));
    asked.set_timeout(patience);
    let began = Instant::now();
    let answer = client.should_rate_limit(asked).await.expect("an answer in time");
    (answer.into_inner().overall_code(), began.elapsed())
}

const PATIENT: Duration = Duration::from_secs(15);

async fn shapes(client: &mut Client) {
    let slow = [("slow", "a")];
    assert_eq!(ask(client, &slow, PATIENT).await.0, Code::Ok);
    let (code, waited) = ask(client, &slow, PATIENT).await;
    assert!(code == Code::Ok && waited >= Duration::from_millis(300), "held until its slot: {waited:?}");

    // Two slots are taken ahead; who does not wait that long is refused at once, and takes none.
    let (mut first, mut second) = (client.clone(), client.clone());
    let ahead = tokio::join!(ask(&mut first, &slow, PATIENT), ask(&mut second, &slow, PATIENT), async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        ask(client, &slow, Duration::from_millis(400)).await
    });
    assert_eq!((ahead.0.0, ahead.1.0, ahead.2.0), (Code::Ok, Code::Ok, Code::OverLimit));
    assert!(ahead.2.1 < Duration::from_millis(400), "refused before it leaves");

    // Who leaves keeps its slot, and holds nobody up.
    let gone = tokio::time::timeout(Duration::from_millis(50), ask(client, &slow, PATIENT)).await;
    assert!(gone.is_err());
    let (code, waited) = ask(client, &slow, PATIENT).await;
    assert!(code == Code::Ok && waited >= Duration::from_millis(400), "behind the one that left: {waited:?}");

    // A refused request is not held, and a shadow holds nobody.
    let begun = Instant::now();
    for _ in 0..3 {
        assert_eq!(ask(client, &[("slow", "b"), ("never", "")], PATIENT).await.0, Code::OverLimit);
        assert_eq!(ask(client, &[("shadow", "c")], PATIENT).await.0, Code::Ok);
    }
    assert!(begun.elapsed() < Duration::from_millis(1_500), "nobody was held: {:?}", begun.elapsed());

    // Without max_delay spacing is strict.
    assert_eq!(ask(client, &[("strict", "d")], PATIENT).await.0, Code::Ok);
    assert_eq!(ask(client, &[("strict", "d")], PATIENT).await.0, Code::OverLimit);
}

#[tokio::test]
async fn on_memory() {
    shapes(&mut Weir::start(LIMITS, &[]).client().await).await;
}

#[tokio::test]
async fn on_redis() {
    let redis = RedisServer::start();
    shapes(&mut Weir::start(LIMITS, &[("REDIS_URL", &redis.url()), ("STORE_TIMEOUT", "5s")]).client().await).await;
    redis.assert_every_key_expires();
}

#[tokio::test]
async fn so_many_wait_and_no_more() {
    let options = Options { kind: AlgorithmKind::LeakyBucket, max_delay: Some(Span::from_secs(60)), ..Options::default() };
    let rate = Rate { requests_per_unit: 4, unit: Unit::Second, unit_multiplier: 1 };
    let algorithm = Algorithm::try_new(&rate, &options).expect("an algorithm");
    let checks = Arc::new(Checks::of([(&b"key"[..], Check::new(algorithm, 1, Modes::default()))]));
    let limiter = Limiter::new(
        None,
        AnyStore::Memory(Memory::new(memory::Options::default())),
        Outage::new(outage::Options::default()),
        limiter::Options { max_waiting: 1, ..limiter::Options::default() },
    );
    let allowed = async || limiter.decide(&checks, Some(PATIENT)).await[0].allows();
    assert!(allowed().await, "the first need not wait");
    let answers = tokio::join!(allowed(), allowed(), allowed());
    assert_eq!(answers, (true, false, false), "one waits, and there is no place for more");
    assert!(allowed().await, "the place is free again");
}

#[tokio::test]
async fn a_refusal_says_when_to_ask_again() {
    let weir = Weir::start(LIMITS, &[("RETRY_AFTER_HEADER_ENABLED", "true")]);
    let client = &mut weir.client().await;
    let both = || request("shaped", vec![descriptor(&[("strict", "r")]), descriptor(&[("slow", "r")])]);
    let allowed = client.should_rate_limit(both()).await.expect("an answer").into_inner();
    assert!(allowed.response_headers_to_add.is_empty());
    let refused = client.should_rate_limit(both()).await.expect("an answer").into_inner();
    let [header] = &refused.response_headers_to_add[..] else { panic!("one header: {refused:?}") };
    let secs: u64 = header.value.parse().expect("seconds");
    assert!(header.key == "retry-after" && (3_500..=3_600).contains(&secs), "{header:?}");
}
