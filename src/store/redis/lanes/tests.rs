//! Which requests a batch takes.

use super::*;
use crate::core::algorithm::{Algorithm, AlgorithmKind, Options};
use crate::core::time::{Rate, Unit};
use crate::core::usage::Tracking;
use crate::limits::plan::{Check, CheckIndex, Checks, Modes};
use crate::store::Budget;
use crate::store::redis::wire::request::Request;

/// A request with so many checks, the first of them with usage, of which all from `from` on are for
/// the server.
fn request(checks: usize, tracked: usize, from: usize) -> Request {
    let rate = Rate {
        requests_per_unit: 10,
        unit: Unit::Minute,
        unit_multiplier: 1,
    };
    let bucket = Algorithm::try_new(
        &rate,
        &Options {
            kind: AlgorithmKind::TokenBucket,
            ..Options::default()
        },
    )
    .expect("an algorithm");
    let tracking = Arc::new(Tracking {
        domain: "d".into(),
        ..Tracking::default()
    });
    let all = Checks::of((0..checks).map(|_| {
        (
            &b"w1{d|k=v}tb60"[..],
            Check::new(bucket, 1, Modes::default()),
        )
    }));
    let all = (0..tracked).fold(all, |all, index| {
        all.tracked(CheckIndex(index), (Arc::clone(&tracking), None))
    });
    let budget = Budget::until(Instant::now() + std::time::Duration::from_secs(60));
    let mut request = Request::unawaited(all, budget);
    request.picked.drain(..from);
    request
}

/// The number of requests in each batch that a lane takes, one after the other.
fn batches(all: impl IntoIterator<Item = Request>) -> Vec<usize> {
    let (mut queue, mut receivers, mut sizes) = (LaneQueue::default(), Vec::new(), Vec::new());
    for request in all {
        let (queued, receiver) = request.share();
        queue.push(queued);
        receivers.push(receiver);
    }
    while !queue.waiting.is_empty() {
        let (batch, abandoned) = queue.take(Instant::now());
        assert_eq!(abandoned, 0, "none has ended");
        sizes.push(batch.expect("a batch").requests.len());
    }
    assert_eq!(queue.weight, 0);
    sizes
}

#[test]
fn a_batch_has_a_third_as_many_checks_with_usage() {
    let many = |count: usize, checks, tracked| (0..count).map(move |_| request(checks, tracked, 0));
    assert_eq!(batches(many(200, 1, 0)), [96, 96, 8]);
    assert_eq!(batches(many(100, 1, 1)), [32, 32, 32, 4]);
    assert_eq!(
        batches(many(50, 4, 2)),
        [12, 12, 12, 12, 2],
        "twice one, and twice three"
    );
    assert_eq!(batches(many(16, 1, 1).chain(many(60, 1, 0))), [64, 12]);
    assert_eq!(
        batches(many(1, 1, 0).chain(many(2, 256, 256)).chain(many(1, 1, 0))),
        [1, 1, 1, 1],
        "a request is not divided"
    );
}

#[test]
fn checks_with_usage_that_another_server_decides_weigh_nothing() {
    assert_eq!(
        [0, 2, 6].map(|from| request(10, 4, from).weight()),
        [18, 12, 4]
    );
}

/// The weight with which a lane takes its batch, if each turn adds to the queue.
async fn gathered(each_turn: impl Fn(usize) -> usize, turn: Duration) -> usize {
    let weight = std::cell::Cell::new(1);
    let others = async {
        for number in 0..1_000 {
            // It yields.
            tokio::time::advance(turn).await;
            weight.set(weight.get() + each_turn(number));
        }
    };
    tokio::select! {
        biased;
        () = others => panic!("the lane waits for ever"),
        () = gather(|| weight.get()) => weight.get(),
    }
}

#[tokio::test(start_paused = true)]
async fn a_batch_grows_until_a_turn_adds_nothing() {
    let short = Duration::from_nanos(1);
    let three_turns = |number| if number < 3 { 5 } else { 0 };
    assert_eq!(gathered(|_| 0, short).await, 1);
    assert_eq!(gathered(three_turns, short).await, 16);
    assert_eq!(gathered(|_| 5, short).await, MAX_BATCH_CHECKS);
    let long = gathered(|_| 1, MAX_GATHERING / 4).await;
    assert!((4..=8).contains(&long), "{long} when the time is over");
}

/// The estimate of the wait ahead sees the batches that will be made.
#[test]
fn the_wait_ahead_is_that_of_the_batches() {
    for (tracked, expected) in [(0, 2), (1, 6)] {
        let mut queue = LaneQueue::default();
        for _ in 0..192 {
            queue.push(request(1, tracked, 0).share().0);
        }
        assert_eq!(queue.batches(), expected);
    }
}
