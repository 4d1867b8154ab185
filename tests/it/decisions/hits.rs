//! The table `tests/vectors/hits.txt`, run on the pure step and on the service with each store.

use weir::core::algorithm::{Algorithm, Arrival, FixedWindow};
use weir::core::proto::rate_limit_descriptor::RateLimitOverride;
use weir::core::proto::rate_limit_response::Code;
use weir::core::proto::{RateLimitDescriptor, RateLimitRequest};
use weir::core::time::{Micros, Period, Span, Unit};

use crate::support::{self, RedisServer, Weir};

/// One line of the table.
struct Sequence {
    name: String,
    limit: u32,
    /// The amount, and whether it is given back.
    hits: Vec<(u64, bool)>,
    /// Whether it is allowed, and what remains.
    expected: Vec<(bool, u32)>,
}

fn table() -> Vec<Sequence> {
    let text = include_str!("../../vectors/hits.txt");
    let lines = text
        .lines()
        .filter(|line| !line.starts_with('#') && !line.trim().is_empty());
    let sequences: Vec<_> = lines.map(sequence).collect();
    assert!(sequences.len() > 10, "the table was not read");
    sequences
}

fn sequence(line: &str) -> Sequence {
    let [name, limit, hits, expected] = line.split('|').map(str::trim).collect::<Vec<_>>()[..]
    else {
        panic!("four columns: {line}")
    };
    let hits = hits.split_whitespace().map(|text| {
        let amount = text.trim_start_matches('-');
        (
            if amount == "max" {
                u64::MAX
            } else {
                amount.parse().expect("a number")
            },
            text.starts_with('-'),
        )
    });
    let expected = expected.split(',').map(|text| {
        let (word, left) = text.trim().split_once(' ').expect("a word and a number");
        assert!(["ok", "over"].contains(&word), "{line}");
        (word == "ok", left.parse().expect("a number"))
    });
    let sequence = Sequence {
        name: name.to_owned(),
        limit: limit.parse().expect("a limit"),
        hits: hits.collect(),
        expected: expected.collect(),
    };
    assert_eq!(sequence.hits.len(), sequence.expected.len(), "{line}");
    sequence
}

#[test]
fn the_pure_step_matches_the_table() {
    for Sequence {
        name,
        limit,
        hits,
        expected,
    } in table()
    {
        let algorithm = Algorithm::FixedWindow(FixedWindow {
            limit: limit.into(),
            window: Period::Even(Span::from_secs(3_600)),
            count_denied: true,
        });
        let mut state = None;
        for ((amount, negative), expected) in hits.into_iter().zip(expected) {
            let amount = i64::try_from(amount).unwrap_or(i64::MAX);
            let at = Arrival {
                now: Micros(7_200_000_000),
                max_hold: Span::ZERO,
            };
            let step = algorithm.step(state, at, if negative { -amount } else { amount });
            state = step.state;
            assert_eq!(
                (step.verdict.allowed, step.verdict.remaining),
                (expected.0, expected.1.into()),
                "{name}"
            );
        }
    }
}

#[tokio::test]
async fn the_service_with_the_memory_store_matches_the_table() {
    through_the_socket(&Weir::start(support::DEMO, &[])).await;
}

#[tokio::test]
async fn the_service_with_redis_matches_the_table() {
    let redis = RedisServer::start();
    through_the_socket(&Weir::start(support::DEMO, &[("REDIS_URL", &redis.url())])).await;
    redis.assert_every_key_expires();
}

/// Each line uses its own key. The request brings a limit per year, so that no window ends while
/// the test runs.
async fn through_the_socket(weir: &Weir) {
    let mut client = weir.client().await;
    for Sequence {
        name,
        limit,
        hits,
        expected,
    } in table()
    {
        for ((amount, negative), expected) in hits.into_iter().zip(expected) {
            let descriptor = RateLimitDescriptor {
                limit: Some(RateLimitOverride {
                    requests_per_unit: limit,
                    unit: Unit::Year.number(),
                    unit_multiplier: None,
                }),
                hits_addend: Some(amount),
                is_negative_hits: negative,
                ..support::descriptor(&[("line", &name)])
            };
            let request = RateLimitRequest {
                domain: "demo".into(),
                descriptors: vec![descriptor],
                hits_addend: 0,
            };
            let response = client
                .should_rate_limit(request)
                .await
                .expect("an answer")
                .into_inner();
            let status = &response.statuses[0];
            assert_eq!(
                (status.code() == Code::Ok, status.limit_remaining),
                expected,
                "{name}"
            );
            assert_eq!(response.overall_code(), status.code(), "{name}");
        }
    }
}
