//! The cost of decisions in a Redis that is never idle: several stores use it all the time, like
//! replicas of Weir that share it, and like the plain `INCR`s with which decisions are compared.
//! With a single service on one core Redis sleeps between batches, and on a virtual machine waking
//! up is a large part of its CPU time then.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::Instant;
use weir::core::algorithm::{Algorithm, AlgorithmKind, Options};
use weir::core::time::{Rate, Unit};
use weir::limits::plan::{Check, CheckIndex, Checks, Modes};
use weir::store::{Budget, Redis};

use super::machine::cpu_micros;
use super::plain_redis;
use super::scenarios::Times;
use super::servers::{CpuPlacement, run_this_process_as_a_server, run_this_process_on};
use super::workload::KEYS;
use crate::support::RedisServer;
use crate::support::redis::connect;

const REPLICAS: usize = 4;

/// Decisions in flight in each store, as in the scenarios with a service.
const IN_FLIGHT: usize = 64;

/// The figures of a window. Times are CPU time of redis-server, in microseconds.
pub struct Reading {
    pub decision: f64,
    /// Per INCR, right before and after.
    pub incr: f64,
    pub checks_per_batch: f64,
    /// The share of the window in which Redis ran.
    pub busy: f64,
}

/// The names in the tables.
pub const FIXED_WINDOW: &str = "Redis asked by replicas, fixed_window";
pub const TOKEN_BUCKET: &str = "Redis asked by replicas, token_bucket";

const RUNS: [(&str, AlgorithmKind); 2] = [
    (FIXED_WINDOW, AlgorithmKind::FixedWindow),
    (TOKEN_BUCKET, AlgorithmKind::TokenBucket),
];

/// The readings of each selected run, one per round.
pub fn rounds(times: Times, is_wanted: impl Fn(&str) -> bool) -> Vec<(&'static str, Vec<Reading>)> {
    let mut readings: Vec<_> = RUNS
        .into_iter()
        .filter(|(name, _)| is_wanted(name))
        .map(|(name, kind)| (name, kind, Vec::new()))
        .collect();
    for round in 1..=times.rounds {
        for (name, kind, of_run) in &mut readings {
            let (reading, incr) =
                plain_redis::beside_incrs(times.window, || decisions(*kind, times.window));
            let reading = Reading { incr, ..reading };
            eprintln!(
                "round {round}: {name:40} {:5.2} us, INCR {:.2} us, {:.0} checks to a batch, busy \
                 {:.0} %",
                reading.decision,
                reading.incr,
                reading.checks_per_batch,
                reading.busy * 100.0
            );
            of_run.push(reading);
        }
    }
    readings
        .into_iter()
        .map(|(name, _, of_run)| (name, of_run))
        .collect()
}

/// Decisions on keys that never reach their limit, after a warm-up of half the window.
fn decisions(kind: AlgorithmKind, window: Duration) -> Reading {
    run_this_process_on(CpuPlacement::FirstCore);
    let server = RedisServer::start();
    run_this_process_as_a_server();
    let rate = Rate {
        requests_per_unit: 1_000_000,
        unit: Unit::Minute,
        unit_multiplier: 1,
    };
    let algorithm = Algorithm::try_new(
        &rate,
        &Options {
            kind,
            ..Options::default()
        },
    )
    .expect("options that belong together");
    let checks = |key| {
        let key = format!("w1{{bench|user=user-{key:06}}}tb60");
        Arc::new(Checks::of([(
            key.as_bytes(),
            Check::new(algorithm, 1, Modes::default()),
        )]))
    };
    let requests: Vec<_> = (0..KEYS).map(checks).collect();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let stores: Vec<_> = (0..REPLICAS).map(|_| connect(server.options())).collect();
        decide(&stores, &requests, window / 2).await;
        let (of_redis, batches) = (cpu_micros(server.process_id()), plain_redis::reads(&server));
        let begin = Instant::now();
        let decided = decide(&stores, &requests, window).await as f64;
        let (lasted, used) = (begin.elapsed(), cpu_micros(server.process_id()) - of_redis);
        let batches = plain_redis::reads(&server) - batches;
        Reading {
            decision: used / decided,
            incr: 0.0,
            checks_per_batch: decided / batches,
            busy: used / 1e6 / lasted.as_secs_f64(),
        }
    })
}

/// Decides until the window ends. Returns the number of decisions.
async fn decide(stores: &[Redis], requests: &[Arc<Checks>], window: Duration) -> usize {
    let end = Instant::now() + window;
    let one_after_the_other = |store| async move {
        let mut decided = 0;
        while Instant::now() < end {
            let checks = &requests[fastrand::usize(..KEYS)];
            let answers = Redis::decide(
                store,
                checks,
                &[CheckIndex(0)],
                &Budget::until(Instant::now() + Duration::from_secs(1)),
            )
            .await;
            assert!(
                answers
                    .verdicts()
                    .iter()
                    .all(|answer| answer.as_ref().is_ok_and(|verdict| verdict.allowed)),
                "{answers:?}"
            );
            decided += 1;
        }
        decided
    };
    let callers = stores
        .iter()
        .flat_map(|store| std::iter::repeat_n(store, IN_FLIGHT))
        .map(one_after_the_other);
    join_all(callers).await.into_iter().sum()
}
