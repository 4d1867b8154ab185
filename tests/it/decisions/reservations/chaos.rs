//! Reservations of which a process or Redis goes away before they are settled: what is charged in
//! the end is the sum of settled costs and kept estimates, and no settlement fails.
//! `tests/it/deploy/reservations.rs` kills an Envoy.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use weir::core::proto::rate_limit_response::Code;

use super::rule::{ALGORITHMS, all, answer, each, file, of_each_algorithm, request_of};
use crate::support::proxy::{Forwarding, ListenerState, Proxy};
use crate::support::wait::{TIMEOUT, eventually_async};
use crate::support::{Client, RedisServer, Weir};

const AMOUNT: u32 = 100_000;
const ESTIMATE: u32 = 100;
const TTL: Duration = Duration::from_secs(4);

/// The keys of limits of each algorithm that release expired holds, then of those that keep them.
fn keys() -> Vec<String> {
    let kept = ALGORITHMS.iter().map(|key| format!("kept_{key}"));
    ALGORITHMS
        .iter()
        .map(ToString::to_string)
        .chain(kept)
        .collect()
}

fn limits() -> String {
    let amount = format!("unit: year, requests_per_unit: {AMOUNT}");
    let option = |further: &str| format!("{amount}, reservations: {{ ttl: 4s{further} }}");
    file(
        &(of_each_algorithm("", &option(""))
            + &of_each_algorithm("kept_", &option(", on_expiry: keep"))),
    )
}

fn is_kept(key: &str) -> bool {
    key.starts_with("kept_")
}

/// Peeks until each key has used so much.
async fn until_used(client: &mut Client, expected: &[(String, u64)]) {
    let peeks: Vec<_> = expected
        .iter()
        .map(|(key, _)| format!("{key}=a 0"))
        .collect();
    let began = Instant::now();
    loop {
        let left = all(client, &peeks).await;
        let used = left.iter().map(|(_, left)| u64::from(AMOUNT - left));
        let used: Vec<_> = used
            .zip(expected)
            .map(|(used, (key, _))| (key.clone(), used))
            .collect();
        if used == expected {
            return;
        }
        assert!(
            began.elapsed() < TIMEOUT,
            "{used:?} is used, not {expected:?}"
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// A caller of one replica, and of another one when that is gone.
struct Caller {
    client: Client,
    other: Option<Client>,
}

impl Caller {
    /// Sends a request until a replica answers it. It may have been decided before.
    async fn send(&mut self, descriptor: &str) -> bool {
        loop {
            let sent = self
                .client
                .should_rate_limit(request_of(&[descriptor]))
                .await;
            match (sent, self.other.take()) {
                (Ok(answer), other) => {
                    self.other = other;
                    let answer = answer.into_inner();
                    assert!(answer.statuses[0].current_limit.is_some(), "{descriptor}");
                    return answer.overall_code() == Code::Ok;
                }
                (Err(_), Some(other)) => self.client = other,
                (Err(error), None) => panic!("{descriptor}: {error}"),
            }
        }
    }

    /// A request that reserves, and ends in one of four ways. Returns what it is charged for good.
    async fn request(&mut self, key: &str, id: &str, kind: u32) -> u64 {
        let reserve = format!("{key}=a reserve={id} {ESTIMATE}");
        assert!(self.send(&reserve).await, "{reserve}");
        tokio::time::sleep(Duration::from_millis(u64::from(20 + kind % 8 * 10))).await;
        let cost = match kind % 4 {
            0 => 30,
            1 => 170,
            2 => -1,
            _ => return u64::from(is_kept(key)) * u64::from(ESTIMATE),
        };
        let settle = format!("{key}=a settle={id} {cost}");
        assert!(self.send(&settle).await, "{settle}");
        u64::try_from(cost).unwrap_or_default()
    }
}

/// The settlements of all limits that had this result.
fn settlements(weir: &Weir, result: &str) -> Option<f64> {
    weir.metric_sum("weir_settlements_total", &format!("result=\"{result}\""))
}

/// A replica is killed while callers reserve and settle: they send again what it has not answered
/// to another one, with the same id, and nothing counts twice or is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_is_killed() {
    let redis = RedisServer::start();
    // Replies take long, so that many calls have run and are not answered.
    let proxy = Proxy::before(redis.port());
    let (by, jitter) = (Duration::from_millis(30), Duration::from_millis(10));
    proxy.to_client(Forwarding::Delay { by, jitter });
    let start = |url: String| {
        let environment = [("REDIS_URL", &*url), ("STORE_TIMEOUT", "5s")];
        Weir::start(&[("limits.yaml", &limits())], &environment)
    };
    let (mut killed, stays) = (start(proxy.url()), start(redis.url()));
    let expected: Vec<_> = keys()
        .into_iter()
        .map(|key| (key, Arc::<AtomicU64>::default()))
        .collect();
    let mut callers = Vec::new();
    for (number, (key, charged)) in expected.iter().cycle().take(40).cloned().enumerate() {
        let of_killed = number % 4 != 0;
        let first = if of_killed { &killed } else { &stays };
        let other = if of_killed {
            Some(stays.client().await)
        } else {
            None
        };
        let mut caller = Caller {
            client: first.client().await,
            other,
        };
        callers.push(tokio::spawn(async move {
            for round in 0..200 {
                let waits_for_kill = of_killed && caller.other.is_some();
                if round >= 12 && !waits_for_kill {
                    break;
                }
                let kind = number as u32 / 4 + round;
                let id = format!("{number}.{round}");
                let cost = caller.request(&key, &id, kind).await;
                charged.fetch_add(cost, Ordering::Relaxed);
            }
            caller.other.is_none() && of_killed
        }));
    }
    let is_busy = || (settlements(&killed, "matched") >= Some(10.0)).then_some(());
    assert!(eventually_async(is_busy).await.is_some());
    killed.signal("KILL");
    killed.wait();
    let mut moved = 0;
    for caller in callers {
        moved += u32::from(caller.await.expect("it ends"));
    }
    assert_eq!(moved, 30, "all of its callers were in the middle");
    let charged: Vec<_> = expected
        .iter()
        .map(|(key, sum)| (key.clone(), sum.load(Ordering::Relaxed)))
        .collect();
    until_used(&mut stays.client().await, &charged).await;
    let repeated = settlements(&stays, "repeated").expect("series");
    assert!(
        repeated > 1.0,
        "{repeated} settlements were made and not answered"
    );
}

/// Redis is gone for longer than the `ttl`: settlements meanwhile are OK and count nothing. A later
/// one counts its cost, or of a kept hold what exceeds it.
#[tokio::test]
async fn redis_is_gone_for_longer_than_the_ttl() {
    let redis = RedisServer::start();
    let proxy = Proxy::before(redis.port());
    let environment = [("REDIS_URL", &*proxy.url()), ("STORE_TIMEOUT", "1s")];
    let weir = Weir::start(&[("limits.yaml", &limits())], &environment);
    let client = &mut weir.client().await;
    let keys = keys();
    let keys: Vec<_> = keys.iter().map(|key| &**key).collect();
    let began = Instant::now();
    for id in 1..=6 {
        let held = all(client, &each(&keys, &format!("=a reserve={id} {ESTIMATE}"))).await;
        assert!(held.iter().all(|one| one.0), "{held:?}");
    }
    let settle = |id: u32, cost: i32| each(&keys, &format!("=a settle={id} {cost}"));
    all(client, &settle(1, 30)).await;
    proxy.set_listener(ListenerState::Closed);
    proxy.cut();
    for (id, cost) in [(2, 30), (3, 170), (4, -1)] {
        let during = answer(client, &settle(id, cost)).await;
        assert_eq!(during.overall_code(), Code::Ok, "{id}");
        let decided = during
            .statuses
            .iter()
            .filter(|one| one.current_limit.is_some());
        assert_eq!(decided.count(), 0, "Redis is gone: {id}");
    }
    tokio::time::sleep(TTL.saturating_sub(began.elapsed()) + Duration::from_millis(500)).await;
    proxy.set_listener(ListenerState::Open);
    let peek = request_of(&each(&keys, "=b 0"));
    while client.should_rate_limit(peek.clone()).await.is_err() {
        assert!(began.elapsed() < TIMEOUT, "Redis is back");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    for late in [settle(5, 30), settle(6, 170)] {
        let answers = all(client, &late).await;
        assert!(answers.iter().all(|one| one.0), "{answers:?}");
    }
    // A kept hold is known for another `ttl`; this machine may be slower than that.
    let above = if began.elapsed() < 2 * TTL { 70 } else { 200 };
    let used = |key| {
        if is_kept(key) {
            30 + 5 * u64::from(ESTIMATE) + above
        } else {
            30 + 30 + 170
        }
    };
    let expected: Vec<_> = keys
        .iter()
        .map(|key| (key.to_string(), used(key)))
        .collect();
    until_used(client, &expected).await;
}
