//! G1, G2, G3 and G5: Redis does not run, is killed, or hangs.

use std::time::Instant;

use super::*;
use crate::support::load::{Record, Report};

/// The result of a load during which Redis was killed repeatedly.
struct Kills {
    redis: RedisServer,
    report: Report,
    /// When Redis answered again, each time.
    back: Vec<Instant>,
}

fn kill_repeatedly(requests: impl Fn(u64) -> LoadRequest + Send + 'static) -> Kills {
    let (mut redis, pace) = (RedisServer::start(), Pace::here());
    let services = two_services(&redis.url(), &[("STORE_TIMEOUT", ENVOYS_BUDGET)]);
    let load = Load::start(Options::new(&services, requests));
    sleep(Duration::from_secs(1));
    let mut back = Vec::new();
    for _ in 0..pace.pick(2, 11) {
        redis.kill();
        sleep(Duration::from_secs(1));
        redis.start_again();
        back.push(Instant::now());
        sleep(Duration::from_secs(pace.pick(2, 4)));
    }
    Kills {
        redis,
        report: load.stop(),
        back,
    }
}

/// The longest of the recovery times; `None` when one recovery never came.
fn longest_recovery(report: &Report, back: &[Instant]) -> Option<Duration> {
    back.iter()
        .map(|&at| report.recovery_after(at))
        .collect::<Option<Vec<_>>>()?
        .into_iter()
        .max()
}

/// Redis is killed every few seconds while limits count locally: no caller sees an error, and each
/// loss of the counters and each outage admits at most one more limit.
#[test]
#[ignore = "weekly: tests/faults.sh --all"]
fn g1_redis_is_killed_repeatedly_and_limits_count_locally() {
    let (_exclusive, mut goal) = (exclusive(), Goal::of("G1"));
    let label = |number: u64| ["local", "error", "local", "tight"][number as usize / 2 % 4];
    let Kills {
        redis,
        report,
        back,
    } = kill_repeatedly(move |number| load_request(label(number), "g1"));
    let local = report.filter(|record| record.label != "error");
    let (errors, gave_up) = (local.count(Record::is_error), goal.few_gave_up(&local));
    goal.must(errors == 0, format!("errors: {:?}", local.outcomes()));
    let p99 = goal.within(Some(local.quantile(0.99)), Duration::from_millis(20), "p99");
    let again = goal.within(
        longest_recovery(&report.of("error"), &back),
        Duration::from_secs(1),
        "on Redis again",
    );
    let (admitted, kills) = (report.of("tight").count(Record::is_ok), back.len());
    // One limit at first; for each outage one for the lost counters, and one for the shares of the
    // replicas.
    let most = TIGHT * (1 + 2 * kills);
    goal.must(
        admitted <= most,
        format!("admitted {admitted} of at most {most}"),
    );
    goal.must_expire(&redis);
    goal.end(format!(
        "{kills} kills: {errors} errors, {gave_up}, p99 {p99}, on Redis again ≤ {again}, admitted \
         {admitted} ≤ {most}"
    ));
}

/// The same while the failure policy is `error`: each failed request gets UNAVAILABLE, in time.
#[test]
#[ignore = "weekly: tests/faults.sh --all"]
fn g2_redis_is_killed_repeatedly_and_errors_come_in_time() {
    let (_exclusive, mut goal) = (exclusive(), Goal::of("G2"));
    let Kills { report, back, .. } = kill_repeatedly(move |number| {
        load_request(["error", "script", "bucket"][number as usize / 2 % 3], "g2")
    });
    let failed = report.filter(Record::is_failed);
    let other = failed.count(|record| record.outcome != Outcome::Failed(tonic::Code::Unavailable));
    goal.must(failed.len() > 0, "nothing failed, so nothing was tested");
    goal.must(other == 0, format!("other codes: {:?}", failed.outcomes()));
    let longest = goal.within(
        Some(failed.longest()),
        Duration::from_millis(20),
        "an error took",
    );
    let again = goal.within(
        longest_recovery(&report, &back),
        Duration::from_secs(1),
        "on Redis again",
    );
    let (kills, requests) = (back.len(), report.len());
    goal.end(format!(
        "{kills} kills, {requests} requests: {} UNAVAILABLE, {other} others, each ≤ {longest}, on \
         Redis again ≤ {again}",
        failed.len()
    ));
}

/// Redis hangs for two seconds: the breaker opens, callers get answers in time, and commands that
/// waited in the sockets do not count afterwards.
#[test]
fn g3_a_hang_opens_the_breaker_and_leaves_no_late_hits() {
    let (_exclusive, mut goal) = (exclusive(), Goal::of("G3"));
    let redis = RedisServer::start();
    let services = two_services(&redis.url(), &[("STORE_TIMEOUT", ENVOYS_BUDGET)]);
    let options = Options::new(&services, move |number| {
        load_request(["error", "script"][number as usize / 2 % 2], "g3")
    });
    let at_a_time = options.per_second as usize / 100;
    let load = Load::start(options);
    sleep(Duration::from_secs(1));
    redis.pause();
    let paused = Instant::now();
    let mut opened = None;
    while paused.elapsed() < Duration::from_secs(2) {
        if opened.is_none() && metric(&services, "weir_redis_breaker_state", "") > 0 {
            opened = Some(paused.elapsed());
        }
        sleep(Duration::from_millis(5));
    }
    redis.resume();
    let resumed = Instant::now();
    sleep(Duration::from_secs(2));
    let report = load.stop();
    let open = goal.within(opened, Duration::from_millis(100), "the breaker opens");
    let p99 = goal.within(
        Some(report.quantile(0.99)),
        Duration::from_millis(20),
        "p99",
    );
    let again = goal.within(
        report.recovery_after(resumed),
        Duration::from_millis(500),
        "on Redis again",
    );
    let beyond =
        |label: &str| counted(&redis, label) as i64 - report.of(label).count(Record::is_ok) as i64;
    let (by_script, by_transaction) = (beyond("script"), beyond("error"));
    // One batch may have run without a reply at the instant when Redis stopped.
    goal.must(
        (0..=at_a_time as i64).contains(&by_script),
        format!("{by_script} late hits by script"),
    );
    let hanging = report.of("error").between(
        paused - Duration::from_millis(20),
        paused + Duration::from_millis(250),
    );
    let waiting = hanging.count(Record::is_failed) as i64;
    goal.must(
        (0..=waiting).contains(&by_transaction),
        format!("{by_transaction} late hits by transaction, of {waiting} that waited"),
    );
    goal.must_expire(&redis);
    goal.end(format!(
        "breaker open after {open}, p99 {p99}, {by_script} late hits by script, {by_transaction} \
         by transaction (≤ {waiting}), on Redis again after {again}"
    ));
}

/// Redis does not run at the start: Weir serves at once, answers by policy, and counts in Redis as
/// soon as it runs.
#[test]
#[ignore = "weekly: tests/faults.sh --all"]
fn g5_redis_does_not_run_at_the_start() {
    let (_exclusive, mut goal, pace) = (exclusive(), Goal::of("G5"), Pace::here());
    let mut redis = RedisServer::absent();
    let begun = Instant::now();
    let services = two_services(&redis.url(), &[("STORE_TIMEOUT", ENVOYS_BUDGET)]);
    let healthy = services
        .iter()
        .all(|service| service.get("/healthcheck").0 == 200);
    let ready = goal.within(Some(begun.elapsed() / 2), Duration::from_secs(1), "ready");
    goal.must(healthy, "not healthy without Redis");
    let load = Load::start(Options::new(&services, move |number| {
        load_request(["local", "error"][number as usize / 2 % 2], "g5")
    }));
    sleep(Duration::from_secs(pace.pick(2, 10)));
    redis.start_again();
    let there = Instant::now();
    sleep(Duration::from_secs(2));
    let report = load.stop();
    let absent = report.between(begun, there - Duration::from_millis(50));
    let (errors, good) = (
        absent.of("local").count(|record| !record.is_ok()),
        absent.of("error").count(Record::is_ok),
    );
    goal.must(
        errors == 0,
        format!("local: {:?}", absent.of("local").outcomes()),
    );
    goal.must(good == 0, format!("{good} good answers without Redis"));
    let others = report.of("error").count(|record| {
        record.is_failed() && record.outcome != Outcome::Failed(tonic::Code::Unavailable)
    });
    goal.must(
        others == 0,
        format!("error: {:?}", report.of("error").outcomes()),
    );
    let p99 = goal.within(
        Some(report.quantile(0.99)),
        Duration::from_millis(20),
        "p99",
    );
    let again = goal.within(
        report.of("error").recovery_after(there),
        Duration::from_secs(1),
        "on Redis",
    );
    goal.must_expire(&redis);
    goal.end(format!(
        "ready after {ready}, {} answers without Redis: {errors} wrong, p99 {p99}, on Redis \
         {again} after it is there",
        absent.len()
    ));
}
