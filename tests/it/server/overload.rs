//! A worker that cannot keep up: who has waited too long is refused in passing, all others are served, and every connection goes on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tonic::Code;

use super::{Server, ask};
use crate::support::Client;
use weir::server::Options;

/// Calls of one connection at a time.
const AT_A_TIME: usize = 40;
const CONNECTIONS: usize = 4;

/// No more than this lasts an overload here.
const LONG: Duration = Duration::from_secs(20);

/// What became of calls.
#[derive(Debug, Default)]
struct Tally {
    served: AtomicU64,
    refused: AtomicU64,
    stop: AtomicBool,
}

impl Tally {
    /// Calls again and again, each for a millisecond of the worker's time.
    async fn call(self: Arc<Self>, mut client: Client) {
        while !self.stop.load(Ordering::Relaxed) {
            match client.should_rate_limit(ask("work")).await {
                Ok(_) => self.served.fetch_add(1, Ordering::Relaxed),
                Err(status) => {
                    assert_eq!((status.code(), status.message()), (Code::ResourceExhausted, "overloaded"));
                    self.refused.fetch_add(1, Ordering::Relaxed)
                }
            };
        }
    }

    fn counts(&self) -> (u64, u64) {
        (self.served.load(Ordering::Relaxed), self.refused.load(Ordering::Relaxed))
    }
}

/// Many callers on a few connections, until `enough` has seen enough of what became of their calls.
async fn overload(server: &Server, enough: impl Fn(u64, u64) -> bool) -> Arc<Tally> {
    let tally = Arc::<Tally>::default();
    let mut callers = JoinSet::new();
    for _ in 0..CONNECTIONS {
        let client = server.client().await;
        for _ in 0..AT_A_TIME {
            callers.spawn(Arc::clone(&tally).call(client.clone()));
        }
    }
    let began = Instant::now();
    while !enough(tally.counts().0, tally.counts().1) && began.elapsed() < LONG {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    tally.stop.store(true, Ordering::Relaxed);
    callers.join_all().await;
    tally
}

/// The worker needs 160 ms for a round of all callers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_waited_too_long_is_refused_and_all_connections_go_on() {
    let server = Server::start(Options { max_lag: Duration::from_millis(10), ..Options::default() });
    let mut health = server.health().await;
    let tally = overload(&server, |served, refused| served > 500 && refused > 2_000).await;
    let (served, refused) = tally.counts();
    assert!(served > 500 && refused > 2_000, "{served} were served and {refused} refused");
    assert_eq!(server.metric("weir_calls_refused_total"), Some(refused as f64), "each refusal is counted");
    assert_eq!(server.metric("weir_connections_refused_total"), Some(0.0));

    // Health has no part in it, and in better times nobody is refused.
    let check = || tonic_health::pb::HealthCheckRequest { service: String::new() };
    health.check(check()).await.expect("the connection is as good as new");
    tokio::time::sleep(Duration::from_secs(1)).await;
    let mut client = server.client().await;
    for _ in 0..100 {
        client.should_rate_limit(ask("x")).await.expect("it keeps up");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_a_lag_of_zero_nobody_is_refused() {
    let server = Server::start(Options { max_lag: Duration::ZERO, ..Options::default() });
    let (served, refused) = overload(&server, |served, _| served > 1_000).await.counts();
    assert!(served > 1_000);
    assert_eq!(refused, 0);
}

/// Health and reflection beside an overload, on connections of their own and on those that are overloaded.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn health_is_answered_meanwhile() {
    let server = Server::start(Options { max_lag: Duration::from_millis(10), ..Options::default() });
    let mut health = server.health().await;
    let asking = tokio::spawn(async move {
        for _ in 0..20 {
            let check = tonic_health::pb::HealthCheckRequest { service: String::new() };
            health.check(check).await.expect("health is answered");
        }
    });
    let (_, refused) = overload(&server, |_, refused| refused > 1_000 && asking.is_finished()).await.counts();
    assert!(refused > 1_000, "{refused} were refused");
    asking.await.expect("all were answered");
}
