//! G4 and G7: the network to Redis is slow, or loses replies.

use std::time::Instant;

use super::*;
use crate::support::load::{Record, Report};
use crate::support::proxy::{Forwarding, Proxy};

/// A phase with added latency, and what became of its requests.
struct Phase {
    added: Duration,
    report: Report,
}

/// Checks what each phase promises; the figures of all.
fn goal_of_phases(
    goal: &mut Goal,
    phases: [Phase; 3],
    few: impl Fn(usize) -> usize,
) -> Vec<String> {
    let mut figures = Vec::new();
    for Phase { added, report } in phases {
        let (failed, all, added) = (
            report.count(Record::is_failed),
            report.len(),
            added.as_millis(),
        );
        if added == 5 {
            goal.must(
                failed <= few(all),
                format!("+{added} ms: {failed} of {all} by policy"),
            );
        } else {
            // Replies that were sent before the phase began may still arrive.
            goal.must(
                failed >= all * 9 / 10,
                format!("+{added} ms: only {failed} of {all} by policy"),
            );
        }
        let p99 = goal.within(
            Some(report.quantile(0.99)),
            Duration::from_millis(20),
            &format!("+{added} ms: p99"),
        );
        figures.push(format!(
            "+{added} ms: {failed} of {all} by policy, p99 {p99}"
        ));
    }
    figures
}

/// Weir waits for a latency within its timeout. Above it the failure policy answers in time, and
/// memory does not grow.
#[test]
#[ignore = "weekly: tests/faults.sh --all"]
fn g4_latency_is_waited_for_or_answered() {
    let (_exclusive, mut goal, pace) = (exclusive(), Goal::of("G4"), Pace::here());
    let redis = RedisServer::start();
    let proxy = Proxy::before(redis.port());
    let services = two_services(&proxy.url(), &[("STORE_TIMEOUT", ENVOYS_BUDGET)]);
    let load = Load::start(Options::new(&services, |_| load_request("error", "g4")));
    sleep(Duration::from_secs(1));
    let before: u64 = services.iter().map(Weir::resident_kib).sum();
    let phase = |millis| {
        let added = Duration::from_millis(millis);
        proxy.to_client(Forwarding::Delay {
            by: added,
            jitter: Duration::ZERO,
        });
        let begun = Instant::now();
        sleep(Duration::from_millis(pace.pick(1_500, 10_000)));
        let ended = Instant::now();
        proxy.to_client(Forwarding::Pass);
        sleep(Duration::from_secs(1));
        Phase {
            added,
            report: load.so_far().between(begun, ended),
        }
    };
    // In CI other tests run at the same time, so that a few answers are late.
    let few = |all: usize| pace.pick(all / 20, 0);
    let mut fitting = phase(5);
    for _ in 1..pace.pick(3, 1) {
        if fitting.report.count(Record::is_failed) <= few(fitting.report.len()) {
            break;
        }
        // A busy moment may delay enough answers in a row to open the breaker; that must not happen
        // in every attempt.
        fitting = phase(5);
    }
    let phases = [fitting, phase(50), phase(200)];
    let after: u64 = services.iter().map(Weir::resident_kib).sum();
    let report = load.stop();
    let figures = goal_of_phases(&mut goal, phases, few);
    let others = report.count(|record| {
        record.is_error() && record.outcome != Outcome::Failed(tonic::Code::Unavailable)
    });
    goal.must(others == 0, format!("{:?}", report.outcomes()));
    let grown = after.saturating_sub(before) / 1_024;
    goal.must(grown < 32, format!("grew by {grown} MiB"));
    goal.must_expire(&redis);
    let gave_up = goal.few_gave_up(&report);
    goal.end(format!(
        "{}; {gave_up}; memory of two services +{grown} MiB",
        figures.join("; ")
    ));
}

/// Replies are lost after Redis has received the requests. Such a hit may count although the
/// failure policy answered its caller, but never twice.
#[test]
fn g7_a_lost_reply_never_counts_twice() {
    let (_exclusive, mut goal, pace) = (exclusive(), Goal::of("G7"), Pace::here());
    let redis = RedisServer::start();
    let proxy = Proxy::before(redis.port());
    let services = two_services(&proxy.url(), &[]);
    // Half of the requests share two keys; each of the others has its own key.
    let load = Load::start(Options::new(&services, |number| {
        let label = ["error", "script"][number as usize / 2 % 2];
        if number % 8 < 4 {
            load_request(label, "shared")
        } else {
            load_request(label, &format!("once{number}"))
        }
    }));
    let end = Instant::now() + Duration::from_secs(pace.pick(3, 30));
    while Instant::now() < end {
        sleep(Duration::from_millis(200));
        proxy.lose_one_reply();
    }
    let report = load.stop();
    let lost = proxy.traffic().resets;
    goal.must(lost > 5, format!("only {lost} replies were lost"));
    let mut figures = Vec::new();
    for label in ["error", "script"] {
        let (all, sent) = (counters(&redis, &format!("{label}=")), report.of(label));
        let (good, count) = (
            sent.count(Record::is_ok),
            usize::try_from(all.values().sum::<i64>()).expect("counters are positive"),
        );
        goal.must(
            (good..=sent.len()).contains(&count),
            format!(
                "{label}: counted {count}, {good} good answers, {} sent",
                sent.len()
            ),
        );
        goal.must(
            good > sent.len() / 2,
            format!("{label}: only {good} of {} good answers", sent.len()),
        );
        let twice = all
            .iter()
            .filter(|(key, count)| key.contains("once") && **count > 1)
            .count();
        goal.must(
            twice == 0,
            format!("{label}: {twice} requests counted twice"),
        );
        figures.push(format!(
            "{label}: {good} good ≤ {count} counted ≤ {} sent, {twice} twice",
            sent.len()
        ));
    }
    goal.must_expire(&redis);
    goal.end(format!("{lost} replies lost; {}", figures.join("; ")));
}
