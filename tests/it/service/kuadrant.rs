//! Kuadrant's service, through the socket: each method in memory, and reservations on Redis too.

use std::time::{Duration, Instant};

use prost::Message;
use tonic::transport::Channel;
use tonic::{Code, Status};
use weir::core::proto::kuadrant::{
    CommitRequest, RateLimitServiceClient, ReserveRequest, ReserveResponse,
};
use weir::core::proto::rate_limit_response::Code as Answer;
use weir::core::proto::{RateLimitDescriptor, RateLimitRequest, RateLimitResponse};

use crate::support::wait::TIMEOUT;
use crate::support::{self, RedisServer, Weir, descriptor};

/// Per year, so that no window ends while a test runs.
const LIMITS: &[(&str, &str)] = &[(
    "llm.yaml",
    "
domain: llm
defaults:
  algorithm: fixed_window
descriptors:
  - key: user
    rate_limit: { unit: year, requests_per_unit: 100, name: tokens, reservations: { ttl: 60s, max_share: 100% } }
  - key: team
    rate_limit: { unit: year, requests_per_unit: 150, reservations: { ttl: 60s, max_share: 100% } }
  - key: short
    rate_limit: { unit: year, requests_per_unit: 100, reservations: { ttl: 1s, max_share: 100% } }
  - key: half
    rate_limit: { unit: year, requests_per_unit: 100, reservations: { ttl: 60s } }
  - key: least
    rate_limit: { unit: year, requests_per_unit: 100, reservations: { ttl: 60s, minimum: 20 } }
  - key: window
    rate_limit: { unit: second, unit_multiplier: 3, requests_per_unit: 100, reservations: { ttl: 60s } }
  - key: plain
    rate_limit: { unit: year, requests_per_unit: 10, name: plain }
  - key: free
    rate_limit: { unlimited: true }
",
)];

type Entries<'e> = &'e [(&'e str, &'e str)];

const ANN: Entries<'_> = &[("user", "ann")];
const TEAM: Entries<'_> = &[("team", "red")];
const SHORT: Entries<'_> = &[("short", "x")];
const HALF: Entries<'_> = &[("half", "x")];
const LEAST: Entries<'_> = &[("least", "x")];
const WINDOW: Entries<'_> = &[("window", "x")];
const PLAIN: Entries<'_> = &[("plain", "x")];

struct Gateway(RateLimitServiceClient<Channel>);

impl Gateway {
    async fn of(weir: &Weir) -> Self {
        Self(RateLimitServiceClient::new(weir.channel().await))
    }

    fn request(descriptors: &[Entries<'_>], hits_addend: u32) -> RateLimitRequest {
        RateLimitRequest {
            hits_addend,
            ..support::request("llm", all(descriptors))
        }
    }

    async fn check(&mut self, entries: Entries<'_>, hits: u32) -> RateLimitResponse {
        let request = Self::request(&[entries], hits);
        let answer = self.0.check_rate_limit(request).await;
        answer.expect("an answer").into_inner()
    }

    /// Whether so many hits are left, and not one more.
    async fn has_left(&mut self, entries: Entries<'_>, hits: u32) -> bool {
        let fits = self.check(entries, hits).await.overall_code() == Answer::Ok;
        fits && self.check(entries, hits + 1).await.overall_code() == Answer::OverLimit
    }

    async fn report(&mut self, entries: Entries<'_>, hits: u32) -> RateLimitResponse {
        let answer = self.0.report(Self::request(&[entries], hits)).await;
        answer.expect("an answer").into_inner()
    }

    async fn reserve(
        &mut self,
        descriptors: &[Entries<'_>],
        amount: u64,
    ) -> Result<ReserveResponse, Status> {
        self.reserve_for(descriptors, amount, None).await
    }

    /// Reserves for so many seconds.
    async fn reserve_for(
        &mut self,
        descriptors: &[Entries<'_>],
        amount: u64,
        ttl: Option<i64>,
    ) -> Result<ReserveResponse, Status> {
        let request = ReserveRequest {
            domain: "llm".to_owned(),
            descriptors: all(descriptors),
            amount,
            ttl: ttl.map(|seconds| prost_types::Duration { seconds, nanos: 0 }),
        };
        Ok(self.0.reserve(request).await?.into_inner())
    }

    /// Returns the id.
    async fn reserved(&mut self, descriptors: &[Entries<'_>], amount: u64) -> String {
        let answer = self.reserve(descriptors, amount).await.expect("an answer");
        assert_eq!(answer.code(), Answer::Ok);
        assert_eq!(answer.reservation_id.len(), 32);
        answer.reservation_id
    }

    async fn is_refused(&mut self, descriptors: &[Entries<'_>], amount: u64) -> bool {
        let answer = self.reserve(descriptors, amount).await.expect("an answer");
        answer.code() == Answer::OverLimit && answer.reservation_id.is_empty()
    }

    /// Returns whether a hold was found.
    async fn commit(
        &mut self,
        descriptors: &[Entries<'_>],
        id: &str,
        actual_amount: u64,
    ) -> Result<bool, Status> {
        let request = CommitRequest {
            domain: "llm".to_owned(),
            descriptors: all(descriptors),
            reservation_id: id.to_owned(),
            actual_amount,
        };
        let answer = self.0.commit(request).await?;
        Ok(answer.into_inner().reservation_released)
    }
}

fn all(descriptors: &[Entries<'_>]) -> Vec<RateLimitDescriptor> {
    descriptors.iter().map(|one| descriptor(one)).collect()
}

/// A service on memory, and one on Redis.
fn on_each_store() -> [(Weir, Option<RedisServer>); 2] {
    let redis = RedisServer::start();
    let on_redis = Weir::start(LIMITS, &[("REDIS_URL", &redis.url())]);
    [(Weir::start(LIMITS, &[]), None), (on_redis, Some(redis))]
}

#[tokio::test]
async fn a_check_counts_nothing_and_a_report_charges() {
    let weir = Weir::start(LIMITS, &[]);
    let mut gateway = Gateway::of(&weir).await;
    for _ in 0..2 {
        assert!(gateway.has_left(PLAIN, 10).await);
    }
    let refused = gateway.check(PLAIN, 11).await;
    let status = &refused.statuses[0];
    assert_eq!(status.code(), Answer::OverLimit);
    assert_eq!(status.limit_remaining, 10);
    assert!(
        status
            .duration_until_reset
            .is_some_and(|left| left.seconds > 0)
    );

    let reported = gateway.report(PLAIN, 4).await;
    assert_eq!(reported.overall_code(), Answer::Ok);
    assert!(gateway.has_left(PLAIN, 6).await);
    let reported = gateway.report(PLAIN, 100).await;
    assert_eq!(reported.overall_code(), Answer::Ok, "the hits were used");
    assert_eq!(reported.statuses[0].code(), Answer::OverLimit);
    let exhausted = gateway.check(PLAIN, 0).await;
    assert_eq!(exhausted.overall_code(), Answer::OverLimit, "0 means 1");
    let free = gateway.check(&[("free", "x")], 1_000).await;
    assert_eq!(free.overall_code(), Answer::Ok);
}

#[tokio::test]
async fn a_reservation_holds_hits_until_it_is_committed() {
    for (weir, _redis) in on_each_store() {
        let mut gateway = Gateway::of(&weir).await;
        let id = gateway.reserved(&[ANN], 60).await;
        assert!(gateway.is_refused(&[ANN], 60).await);
        let other = gateway.reserved(&[ANN], 40).await;
        assert_ne!(id, other);
        assert!(gateway.is_refused(&[ANN], 1).await);
        assert!(
            gateway.is_refused(&[ANN], 0).await,
            "one hit has to be left"
        );

        let commit = gateway.commit(&[ANN], &id, 25).await;
        assert!(commit.expect("an answer"));
        assert!(gateway.has_left(ANN, 35).await);
        let commit = gateway.commit(&[ANN], &id, 25).await;
        assert!(!commit.expect("an answer"), "it is committed already");
        assert!(gateway.has_left(ANN, 35).await);
        let commit = gateway.commit(&[ANN], &other, 0).await;
        assert!(commit.expect("an answer"), "the request cost nothing");
        assert!(gateway.has_left(ANN, 75).await);

        for (id, left) in [("unknown", 70), ("", 65), ("", 60)] {
            let commit = gateway.commit(&[ANN], id, 5).await;
            assert!(!commit.expect("an answer"), "{id:?} has no hold");
            assert!(gateway.has_left(ANN, left).await, "{id:?} charges the cost");
        }
        let id = gateway.reserved(&[ANN], 0).await;
        assert!(gateway.has_left(ANN, 60).await, "nothing is held");
        let commit = gateway.commit(&[ANN], &id, 10).await;
        assert!(!commit.expect("an answer"));
        assert!(gateway.has_left(ANN, 50).await);
    }
}

/// The `ttl` of a request shortens the `ttl` of the limit, and never lengthens it.
#[tokio::test]
async fn a_hold_expires_after_the_shorter_ttl() {
    for (weir, _redis) in on_each_store() {
        let mut gateway = Gateway::of(&weir).await;
        for ttl in [Some(3_600), Some(0), Some(-1), None] {
            let reserved = gateway.reserve_for(&[ANN], 10, ttl).await;
            assert_eq!(reserved.expect("an answer").code(), Answer::Ok, "{ttl:?}");
        }
        let mut lost = String::new();
        for (entries, ttl) in [(ANN, 1), (SHORT, 3_600)] {
            let reserved = gateway.reserve_for(&[entries], 50, Some(ttl)).await;
            lost = reserved.expect("an answer").reservation_id;
        }
        let began = Instant::now();
        while !(gateway.has_left(ANN, 60).await && gateway.has_left(SHORT, 100).await) {
            assert!(began.elapsed() < TIMEOUT, "both expire");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let commit = gateway.commit(&[SHORT], &lost, 5).await;
        assert!(!commit.expect("an answer"), "its hits were refunded");
        assert!(gateway.has_left(SHORT, 95).await);
    }
}

#[tokio::test]
async fn a_malformed_message_is_named() {
    let weir = Weir::start(LIMITS, &[]);
    let begin = ReserveRequest {
        domain: "llm".to_owned(),
        descriptors: all(&[ANN]),
        ..ReserveRequest::default()
    };
    let begin = begin.encode_to_vec();
    for (method, end, why) in [
        (
            "CheckRateLimit",
            &b"\x0a"[..],
            "RateLimitRequest: request: ",
        ),
        ("Report", b"\x0a", "RateLimitRequest: request: "),
        ("Reserve", b"\x0a", "ReserveRequest: request: "),
        ("Reserve", b"\x12\x01\x0a", "ReserveRequest: descriptors: "),
        ("Reserve", b"\x22\x01\x08", "ReserveRequest: ttl: "),
        ("Commit", b"\x0a", "CommitRequest: request: "),
    ] {
        let path = format!("/kuadrant.service.ratelimit.v1.RateLimitService/{method}");
        let message = [&begin, end].concat();
        let answer = support::raw_call_of(&weir, path.leak(), &message).await;
        let error = answer.expect_err("malformed");
        assert_eq!(error.code(), Code::InvalidArgument);
        let why = format!("malformed {why}");
        assert!(error.message().starts_with(&why), "{}", error.message());
    }
    assert!(Gateway::of(&weir).await.has_left(ANN, 100).await);
}

#[tokio::test]
async fn all_descriptors_are_reserved_or_none() {
    for (weir, _redis) in on_each_store() {
        let mut gateway = Gateway::of(&weir).await;
        gateway.reserved(&[TEAM], 100).await;
        for both in [[ANN, TEAM], [TEAM, ANN]] {
            assert!(
                gateway.is_refused(&both, 80).await,
                "50 of the team's are left"
            );
            assert!(gateway.has_left(ANN, 100).await, "they are not held");
            assert!(gateway.has_left(TEAM, 50).await);
        }
        let id = gateway.reserved(&[ANN, TEAM, &[("free", "x")]], 50).await;
        assert!(gateway.has_left(ANN, 50).await);
        let commit = gateway.commit(&[ANN, TEAM], &id, 10).await;
        assert!(commit.expect("an answer"));
        assert!(gateway.has_left(ANN, 90).await);
        assert!(gateway.has_left(TEAM, 40).await);
    }
}

#[tokio::test]
async fn a_limit_without_reservations_is_an_error() {
    let weir = Weir::start(LIMITS, &[]);
    let mut gateway = Gateway::of(&weir).await;
    let why = "limit 'plain' has no 'reservations'; add them, or call CheckRateLimit and Report";
    let both = [ANN, PLAIN];
    let reserve = gateway.reserve(&both, 1).await.map(drop);
    let commit = gateway.commit(&both, "id", 1).await.map(drop);
    for error in [reserve, commit].map(|answer| answer.expect_err("invalid")) {
        assert_eq!(error.code(), Code::InvalidArgument);
        assert_eq!(error.message(), why);
    }
    assert!(gateway.has_left(ANN, 100).await, "nothing is counted");
    assert!(gateway.has_left(PLAIN, 10).await);

    let error = gateway.reserve(&[], 1).await.expect_err("invalid");
    assert_eq!(error.code(), Code::InvalidArgument);
    gateway.reserved(&[&[("unknown", "x")]], 1).await;
    let own = &[("user", "ann"), ("reserve", "own")][..];
    gateway.reserved(&[own], 30).await;
    assert!(
        gateway.has_left(ANN, 70).await,
        "an id of the caller's own has no effect"
    );
}

/// An amount is refused where it is above what is left, and of a larger one than `max_share` that
/// share is held. Source: the admission check and the clamp of Kuadrant's RFC 0021, as Limitador
/// has them.
#[tokio::test]
async fn an_amount_has_to_be_left_and_its_share_is_held() {
    for (weir, _redis) in on_each_store() {
        let mut gateway = Gateway::of(&weir).await;
        let first = gateway.reserved(&[HALF], 100).await;
        assert!(gateway.has_left(HALF, 50).await, "half of it is held");
        for amount in [100, 51, u64::MAX] {
            assert!(gateway.is_refused(&[HALF], amount).await, "{amount}");
            assert!(gateway.has_left(HALF, 50).await, "a refusal holds nothing");
            let both = [ANN, HALF];
            assert!(gateway.is_refused(&both, amount).await, "{amount}");
            assert!(gateway.has_left(ANN, 100).await);
        }
        gateway.reserved(&[HALF], 30).await;
        assert!(gateway.has_left(HALF, 20).await);
        let commit = gateway.commit(&[HALF], &first, 60).await;
        assert!(commit.expect("an answer"));
        assert!(gateway.has_left(HALF, 10).await, "60 and the held 30");
        assert!(gateway.is_refused(&[HALF], 11).await);
        gateway.reserved(&[HALF], 10).await;
        assert!(gateway.is_refused(&[HALF], 0).await, "exactly the limit");
    }
}

#[tokio::test]
async fn a_reservation_without_an_amount_holds_the_minimum() {
    for (weir, _redis) in on_each_store() {
        let mut gateway = Gateway::of(&weir).await;
        let id = gateway.reserved(&[LEAST], 0).await;
        assert!(gateway.has_left(LEAST, 80).await);
        gateway.reserved(&[LEAST, HALF], 5).await;
        assert!(gateway.has_left(LEAST, 60).await);
        assert!(gateway.has_left(HALF, 95).await);
        let commit = gateway.commit(&[LEAST], &id, 3).await;
        assert!(commit.expect("an answer"));
        assert!(gateway.has_left(LEAST, 77).await);
        gateway.report(LEAST, 60).await;
        assert!(gateway.is_refused(&[LEAST], 0).await, "17 are left");
        assert!(gateway.has_left(LEAST, 17).await);
    }
}

/// The differences to Limitador that the page lists: the hold was counted in the window before, and
/// its commit counts what exceeds it.
#[tokio::test]
async fn a_commit_in_a_later_window_charges_what_exceeds_the_hold() {
    for (weir, _redis) in on_each_store() {
        let mut gateway = Gateway::of(&weir).await;
        let began = Instant::now();
        loop {
            let id = gateway.reserved(&[WINDOW], 30).await;
            assert!(began.elapsed() < 2 * TIMEOUT, "a window of 3 s");
            while !gateway.has_left(WINDOW, 100).await {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            let commit = gateway.commit(&[WINDOW], &id, 50).await;
            assert!(commit.expect("an answer"));
            // A slow machine may be in the window after it.
            if gateway.has_left(WINDOW, 80).await {
                break;
            }
        }
    }
}

/// As `ShouldRateLimit` answers them.
#[tokio::test]
async fn a_domain_or_a_descriptor_without_limits_is_admitted() {
    let weir = Weir::start(LIMITS, &[]);
    let mut gateway = Gateway::of(&weir).await;
    gateway.reserved(&[&[("unknown", "x")]], 1_000).await;
    let commit = gateway.commit(&[&[("unknown", "x")]], "id", 1_000).await;
    assert!(!commit.expect("an answer"), "nothing is held");
    let unknown = ReserveRequest {
        domain: "unknown".to_owned(),
        descriptors: all(&[ANN]),
        amount: 1_000,
        ttl: None,
    };
    let without = ReserveRequest {
        domain: String::new(),
        ..unknown.clone()
    };
    let answer = gateway.0.reserve(unknown).await.expect("an answer");
    assert_eq!(answer.into_inner().code(), Answer::Ok);
    let error = gateway.0.reserve(without).await.expect_err("no domain");
    assert_eq!(error.code(), Code::InvalidArgument);
    assert!(gateway.has_left(ANN, 100).await);
}
