//! Replay against the service: the same rows through the service's own path, one by one, with the
//! times of the rows.

use std::io::{Cursor, Write};
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;

use super::engine::Decided;
use super::*;
use crate::core::algorithm::Arrival;
use crate::core::answer::{Decision, Decisions};
use crate::limits::plan::Plan;
use crate::live::files;
use crate::service::pages::json;
use crate::service::rls::decode::decode;
use crate::service::rls::respond::{self, respond};
use crate::store::{Memory, memory};

/// All algorithms, several limits for a request, calendars, a table, a trial, quotas, shadow mode
/// and networks.
const LIMITS: [(&str, &str); 3] = [
    (
        "d.yaml",
        "domain: d
descriptors:
  - key: fixed
    rate_limit: { unit: minute, requests_per_unit: 5, trial: { requests_per_unit: 2 } }
  - key: log
    rate_limit: { unit: minute, requests_per_unit: 4, algorithm: sliding_window_log }
  - key: counter
    rate_limit: { unit: minute, requests_per_unit: 6, algorithm: sliding_window_counter }
  - key: buckets
    rate_limit: { unit: minute, requests_per_unit: 6, algorithm: sliding_window_buckets }
  - key: bucket
    rate_limit: { unit: minute, requests_per_unit: 6, algorithm: token_bucket, burst: 9, \
        count_denied: true }
  - key: queue
    rate_limit: { unit: minute, requests_per_unit: 12, algorithm: leaky_bucket, max_delay: 20s }
  - key: calendar
    rate_limit: { unit: day, requests_per_unit: 20, period: calendar, timezone: America/New_York, \
        anchor: 2026-01-01T06:00 }
  - key: tenant
    table: tenants.csv
    rate_limit: { unit: minute, requests_per_unit: 3 }
  - key: shadow
    shadow_mode: true
    rate_limit: { unit: minute, requests_per_unit: 1 }
  - key: quota
    quota_mode: true
    rate_limit: { unit: minute, requests_per_unit: 2 }
  - key: admin
    rate_limit: { unlimited: true }
",
    ),
    (
        "all.yaml",
        "domain: all
commit: all_or_none
descriptors:
  - key: fixed
    rate_limit: { unit: minute, requests_per_unit: 3 }
  - key: bucket
    rate_limit: { unit: minute, requests_per_unit: 4, algorithm: token_bucket }
",
    ),
    (
        "tenants.csv",
        "value,requests_per_unit,algorithm,shadow_mode\na,9,,\nb,2,token_bucket,\nc,1,,true\n",
    ),
];

const KEYS: [&str; 13] = [
    "fixed", "log", "counter", "buckets", "bucket", "queue", "calendar", "tenant", "shadow",
    "quota", "admin", "unknown", "blocked",
];

const OVERRIDES: &str = r#"{"overrides": [
    {"kind": "block", "domain": "d", "entries": [{"key": "blocked", "value": "a"}], "until": "2026-11-23T12:00:00Z"},
    {"kind": "exempt", "domain": "d", "entries": [{"key": "fixed", "value": "c"}], "until": "2026-11-23T13:00:00Z"},
    {"kind": "raise", "domain": "d", "entries": [{"key": "log", "value": "b"}], "to": {"requests_per_unit": 9, "unit": "minute"}}
]}"#;

fn rules(folder: &Path) -> Arc<Rules> {
    let options = files::Options {
        path: folder.to_owned(),
        ..files::Options::default()
    };
    let read = files::read(&options).expect("files");
    let compiled = compile::compile(&read.texts, &options.compile).expect("limits");
    Arc::new(compiled.rules)
}

/// Rules of these files, and overrides.
fn site(files: &[(&str, &str)]) -> (tempfile::TempDir, Arc<Rules>, Arc<Overrides>) {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, text) in files {
        std::fs::write(folder.path().join(name), text).expect("written");
    }
    let rules = rules(folder.path());
    let path = folder.path().join("overrides.json");
    std::fs::write(&path, OVERRIDES).expect("written");
    let overrides = read_overrides(&path).expect("overrides");
    (folder, rules, Arc::new(Overrides::new(overrides)))
}

fn setup(rules: &Arc<Rules>, overrides: &Arc<Overrides>) -> Setup {
    Setup {
        rules: Arc::clone(rules),
        plan: plan::Options::default(),
        overrides: Some(Arc::clone(overrides)),
        max_wait: Span::MAX,
        variant: None,
    }
}

/// A time, and a request as JSON.
type Line = (u64, String);

/// Random requests of three hours, in the order of time.
fn lines(random: &mut fastrand::Rng, count: usize) -> Vec<Line> {
    let mut micros = 1_795_428_000_000_000;
    let mut line = || {
        let is_pause = random.u8(..) == 0;
        micros += random.u64(0..=if is_pause { 600_000_000 } else { 400_000 });
        let mut descriptors = Vec::new();
        for _ in 0..random.usize(1..=3) {
            let key = KEYS[random.usize(..KEYS.len())];
            let value = ["a", "b", "c"][random.usize(..3)];
            let entries = serde_json::json!([{ "key": key, "value": value }]);
            let mut descriptor = serde_json::json!({ "entries": entries });
            match random.u8(..12) {
                0 => descriptor["hitsAddend"] = 0.into(),
                1 => descriptor["hitsAddend"] = 3.into(),
                2 => {
                    descriptor["hitsAddend"] = 1.into();
                    descriptor["isNegativeHits"] = true.into();
                }
                3 => {
                    descriptor["limit"] =
                        serde_json::json!({ "requestsPerUnit": 2, "unit": "MINUTE" });
                }
                _ => {}
            }
            descriptors.push(descriptor);
        }
        let domain = ["d", "d", "d", "all", "other"][random.usize(..5)];
        let request = serde_json::json!({ "domain": domain, "descriptors": descriptors });
        (micros, request.to_string())
    };
    (0..count).map(|_| line()).collect()
}

/// The trace of these requests in gzip, less than a minute out of order.
fn trace(random: &mut fastrand::Rng, lines: &[Line]) -> Vec<u8> {
    let mut late: Vec<_> = lines
        .iter()
        .map(|line| (line.0 + random.u64(..59_000_000), line))
        .collect();
    late.sort_by_key(|(arrives, _)| *arrives);
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    for (_, (micros, request)) in late {
        let time = match random.bool() {
            true => format!("{}.{:06}", micros / 1_000_000, micros % 1_000_000),
            false => format!("\"{}\"", people::timestamp(Micros(*micros))),
        };
        writeln!(gzip, "{{\"time\": {time}, {}", &request[1..]).expect("in memory");
    }
    gzip.finish().expect("in memory")
}

/// The whole answer, or what else becomes of the request; and what its trials would answer.
fn answer(decoded: &DecodedRequest<'_>, plan: &Plan, decisions: &Decisions) -> String {
    let tried = &decisions[plan.checks.len()..];
    let outcomes = plan.outcomes(decisions);
    let options = respond::Options::default();
    let reply = respond(decoded, &outcomes, &options).expect("an answer");
    format!("{:?} {:?} {tried:?}", reply.code, reply.answer)
}

#[test]
fn rows_are_decided_as_by_the_service() {
    for seed in 0..8 {
        let mut random = fastrand::Rng::with_seed(seed);
        let (_folder, rules, overrides) = site(&LIMITS);
        let lines = lines(&mut random, 1_500);

        let (store, mut expected) = (Memory::new(memory::Options::default()), Vec::new());
        for (micros, request) in &lines {
            let message = json::request(request.as_bytes()).expect("a request");
            let decoded = decode(&message).expect("a request");
            let now = Micros(*micros);
            let options = plan::Options::default();
            let plan = Plan::with_overrides(&rules, Some(overrides.at(now)), &decoded, &options);
            let at = Arrival {
                now,
                max_wait: Span::MAX,
            };
            let answers = store
                .decide_at(&plan.checks, &plan.checks.all(), at)
                .verdicts();
            let decisions = answers
                .into_iter()
                .map(|answer| Decision::Store(answer.expect("memory answers")))
                .collect();
            expected.push((now, answer(&decoded, &plan, &decisions)));
        }

        let trace = trace(&mut random, &lines);
        let mut trace = Trace::new(
            Cursor::new(trace),
            Requests::new(None, &[], None, 0),
            false,
            None,
        )
        .expect("a trace");
        let mut engine = Engine::new(setup(&rules, &overrides));
        let (mut found, mut refused) = (Vec::new(), 0);
        while let Some(row) = trace.next().expect("in order") {
            let decoded = decode(&row.message).expect("a request");
            let decided = engine.decide(row.at, None, &decoded);
            let Decided {
                plan, decisions, ..
            } = &decided;
            refused += usize::from(decided.outcomes().is_over_limit);
            found.push((row.at, answer(&decoded, plan, decisions)));
        }
        assert_eq!(trace.bad.count, 0, "{:?}", trace.bad);
        assert_eq!(found.len(), expected.len());
        // Rows of one instant may have changed places.
        for (number, (found, expected)) in found.iter().zip(&expected).enumerate() {
            assert_eq!(found, expected, "row {number} of seed {seed}");
        }
        assert!(
            (200..1_200).contains(&refused),
            "{refused} of 1,500 are refused"
        );
    }
}

/// Whether a request is admitted, which ends after its duration.
fn is_admitted(
    engine: &mut Engine,
    at: Micros,
    duration: Option<Span>,
    decoded: &DecodedRequest<'_>,
) -> bool {
    let decided = engine.decide(at, duration, decoded);
    let is_refused = decided.outcomes().is_over_limit;
    engine.end_later(at, duration, &decided, is_refused);
    !is_refused
}

/// A request of a limit of requests in flight.
fn in_flight(engine: &mut Engine, secs: u64, duration: Option<u64>, id: &str) -> bool {
    let request = format!(
        r#"{{"domain": "r", "descriptors": [{{"entries": [{{"key": "user", "value": "a"}}, {{"key": "request", "value": "{id}"}}]}}]}}"#
    );
    let message = json::request(request.as_bytes()).expect("a request");
    let decoded = decode(&message).expect("a request");
    let duration = duration.map(Span::from_secs);
    is_admitted(engine, Micros(secs * 1_000_000), duration, &decoded)
}

#[test]
fn requests_in_flight_end_after_their_durations() {
    let limits = "domain: r\ndescriptors:\n  - key: user\n    descriptors:\n      - key: \
        request\n        rate_limit: { algorithm: concurrency, requests_per_unit: 2, \
        max_duration: 1h }\n";
    let (_folder, rules, overrides) = site(&[("r.yaml", limits)]);
    let mut engine = Engine::new(setup(&rules, &overrides));
    let mut admitted = |secs, duration, id| in_flight(&mut engine, secs, Some(duration), id);
    assert!(admitted(0, 10, "1") && admitted(1, 100, "2"));
    assert!(!admitted(2, 500, "3"), "two are in flight");
    assert!(!admitted(9, 500, "4"));
    assert!(admitted(10, 5, "5"), "the first has ended");
    assert!(!admitted(14, 5, "6") && admitted(15, 5, "7"));
    assert!(engine.left_out.is_empty());
    for id in ["8", "9", "10"] {
        assert!(
            in_flight(&mut engine, 16, None, id),
            "without a duration it is left out"
        );
    }
    assert!(engine.left_out.values().eq([&3]));
}

#[test]
fn a_refused_request_releases_at_once_what_it_holds() {
    let limit = |key: &str, amount: u64| {
        format!(
            "  - key: {key}\n    descriptors:\n      - key: request\n        \
            rate_limit: {{ algorithm: concurrency, requests_per_unit: {amount}, \
            max_duration: 1h }}\n"
        )
    };
    let limits = format!(
        "domain: r\ndescriptors:\n{}{}",
        limit("user", 2),
        limit("route", 1)
    );
    let (_folder, rules, overrides) = site(&[("r.yaml", &limits)]);
    let mut engine = Engine::new(setup(&rules, &overrides));
    let mut admitted = |secs: u64, keys: &[&str]| {
        let id = secs.to_string();
        let descriptor = |key: &&str| {
            serde_json::json!({
                "entries": [{ "key": key, "value": "a" }, { "key": "request", "value": id }],
            })
        };
        let descriptors: Vec<_> = keys.iter().map(descriptor).collect();
        let request = serde_json::json!({ "domain": "r", "descriptors": descriptors });
        let message = json::request(request.to_string().as_bytes()).expect("a request");
        let decoded = decode(&message).expect("a request");
        let (at, duration) = (Micros(secs * 1_000_000), Some(Span::from_secs(100)));
        is_admitted(&mut engine, at, duration, &decoded)
    };
    assert!(admitted(0, &["user", "route"]));
    assert!(
        !admitted(1, &["user", "route"]),
        "the route has one already"
    );
    assert!(admitted(2, &["user"]), "the user has one, not two");
    assert!(!admitted(3, &["user"]));
}

#[test]
fn the_subjects_that_are_refused_most_are_exact() {
    let (_folder, rules, overrides) = site(&[(
        "d.yaml",
        "domain: d\ndescriptors:\n  - key: k\n    rate_limit: { unit: year, \
         requests_per_unit: 3 }\n",
    )]);
    let mut engine = Engine::new(setup(&rules, &overrides));
    let (mut tally, mut random) = (ReplayTally::default(), fastrand::Rng::with_seed(3));
    let mut counts = std::collections::BTreeMap::<u64, u64>::new();
    for row in 0..20_000 {
        let value = random.u64(1..400) * random.u64(1..400) / 400;
        *counts.entry(value).or_default() += 1;
        let request = format!(
            r#"{{"domain": "d", "descriptors": [{{"entries": [{{"key": "k", "value": "{value}"}}]}}]}}"#
        );
        let message = json::request(request.as_bytes()).expect("a request");
        let decoded = decode(&message).expect("a request");
        let at = Micros(1_795_428_000_000_000 + row);
        let decided = engine.decide(at, None, &decoded);
        tally.observe(at, &decoded, &decided, &decided.outcomes());
    }
    let mut refused: Vec<_> = counts
        .values()
        .map(|count| count.saturating_sub(3))
        .collect();
    refused.sort_unstable_by(|one, other| other.cmp(one));
    let name = "d".to_owned();
    let outcome = ConfigurationResult::new(&Run {
        name,
        engine,
        tally,
    });
    let most: Vec<_> = outcome.most_refused.iter().map(|one| one.count).collect();
    assert_eq!(most, refused[..10]);
    for one in &outcome.most_refused {
        let value: u64 = one.entries[0].value.parse().expect("a number");
        assert_eq!(one.count, counts[&value] - 3, "{value}");
    }
    let limit = &outcome.limits[0];
    assert_eq!((limit.tally.asked, limit.tally.most_in_window), (20_000, 3));
    assert_eq!(limit.tally.refused, refused.iter().sum::<u64>());
    assert_eq!(limit.tally.subjects, counts.len() as u64);
    let over = counts.values().filter(|count| **count > 3).count();
    assert_eq!(limit.tally.subjects_refused, over as u64);
}

#[test]
fn a_series_keeps_its_sum_however_long_it_becomes() {
    let mut series = TimeSeries::default();
    for second in (0..100_000).step_by(7) {
        series.add(Micros((5 + second) * 1_000_000));
    }
    let width = series.width();
    assert_eq!((width, series.end()), (256, Some(5 + 256 * 391)));
    let rates = series.rates(5, width, 391);
    let sum: f64 = rates.iter().map(|rate| rate * width as f64).sum();
    assert!((sum - 14_286.0).abs() < 0.1, "{sum}");
    assert!(
        rates[..390]
            .iter()
            .all(|rate| (rate - 1.0 / 7.0).abs() < 0.01)
    );
}

#[test]
fn a_series_begins_with_the_first_request_also_where_that_is_delayed() {
    let mut series = TimeSeries::default();
    let second = |secs: u64| Micros(secs * 1_000_000);
    series.add_after(second(5), Span::from_secs(3));
    series.add(second(6));
    assert_eq!(series.rates(5, 1, 4), [0.0, 1.0, 0.0, 1.0]);
}
