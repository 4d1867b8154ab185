//! G8: Sentinel fails over.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use super::*;
use crate::support::load::{Record, Report};
use crate::support::sentinel::SentinelSet;

/// The names of the counters: before the failovers, after the first one and after the second one.
const TIMES: [&str; 3] = ["first", "killed", "stopped"];

/// The failovers: which one, and when the old primary failed and Sentinel switched.
fn fail_over_twice(set: &mut SentinelSet, time: &AtomicUsize) -> Vec<(usize, Instant, Instant)> {
    sleep(Duration::from_secs(1));
    let mut switches = Vec::new();
    for index in [1, 2] {
        let old = set.primary();
        if index == 1 {
            set.kill(old);
        } else {
            set.server(old).pause();
        }
        let failed = Instant::now();
        let (_, switched) = set.wait_for_switch_from(old);
        sleep(Duration::from_millis(500));
        // From here on every hit must be counted on the new primary.
        time.store(index, Ordering::Relaxed);
        sleep(Duration::from_millis(300));
        if index == 1 {
            set.start_again(old);
        } else {
            set.server(old).resume();
        }
        sleep(Duration::from_millis(1_200));
        set.wait_until_replica(old);
        switches.push((index, failed, switched));
        // The next failover needs a replica in sync.
        set.wait_until_in_sync(old);
        if index == 1 {
            sleep(Duration::from_secs(2));
        }
    }
    switches
}

/// The primary is killed. Then the next primary is paused; when it is resumed, it acts as a primary
/// for a while. Callers see no error, Weir uses the new primary at once, and the old one no more.
#[test]
#[ignore = "weekly: tests/faults.sh --all"]
fn g8_sentinel_fails_over() {
    let (_exclusive, mut goal, pace) = (exclusive(), Goal::of("G8"), Pace::here());
    // With two replicas a failover may take long, because the Sentinels disagree.
    let mut set = SentinelSet::start(pace.pick(1, 2));
    let services = two_services(
        &set.url(),
        &[("REDIS_TYPE", "sentinel"), ("STORE_TIMEOUT", ENVOYS_BUDGET)],
    );
    let time = Arc::new(AtomicUsize::new(0));
    let now = Arc::clone(&time);
    let load = Load::start(Options::new(&services, move |number| {
        let now = TIMES[now.load(Ordering::Relaxed)];
        if number / 2 % 2 == 0 {
            load_request("local", now)
        } else {
            LoadRequest {
                label: now,
                ..load_request("error", now)
            }
        }
    }));
    let switches = fail_over_twice(&mut set, &time);
    let report = load.stop();
    let local = report.of("local");
    let (errors, gave_up) = (local.count(Record::is_error), goal.few_gave_up(&local));
    goal.must(errors == 0, format!("local: {:?}", local.outcomes()));
    let primary = set.primary();
    let mut figures = Vec::new();
    for (index, failed, switched) in switches {
        let probes = report.filter(|record| record.label != "local");
        let again = goal.within(
            probes.recovery_after(switched),
            Duration::from_millis(500),
            &format!("{}: on the new primary", TIMES[index]),
        );
        // A counter may lose hits in a later failover, those that were not replicated yet; so only
        // the last one is compared.
        if index == 2 {
            must_count_all(
                &mut goal,
                &report.of(TIMES[index]),
                counted(set.server(primary), &format!("error={}", TIMES[index])),
            );
        }
        figures.push(format!(
            "{} to switch {} ms, then on the new primary after {again}",
            TIMES[index],
            (switched - failed).as_millis()
        ));
    }
    goal.must_expire(set.server(primary));
    goal.end(format!(
        "local: {errors} errors, {gave_up}; {}",
        figures.join("; ")
    ));
}

/// Records a miss unless the new primary counted every good answer, and no hit twice.
fn must_count_all(goal: &mut Goal, report: &Report, counted: usize) {
    let good = report.count(Record::is_ok);
    let right = good > 0 && (good..=report.len()).contains(&counted);
    goal.must(
        right,
        format!(
            "the new primary counted {counted}, {good} good answers of {}",
            report.len()
        ),
    );
}
