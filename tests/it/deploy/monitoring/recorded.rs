//! The alert rules on series that Prometheus recorded of real processes, and on made ones for what
//! cannot be recorded. `promtool test rules` evaluates the rules.
//!
//! The files in `tests/vectors/alerts/` are written by `tests/monitoring/record.py`, one for each
//! of its scenarios: what is to fail does so from minute 4 to minute 18, and the processes end at
//! minute 25. Each line is a series and its values, every 15 seconds, in promtool's notation.
//! `thresholds.txt` there has the made series.

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::{Value, json};

use super::promql::Query;
use super::{alerts, names_of_alerts, text};
use crate::deploy::printed;
use crate::support::tools;

/// A scenario, and how many alerts of each name fire in it.
type Expected = (&'static str, &'static [(&'static str, usize)]);

const RECORDED: &[Expected] = &[
    ("memory", &[]),
    ("redis", &[]),
    // Two policies each.
    ("outage", &[("WeirFailsOpen", 2), ("WeirRedisOutage", 2)]),
    ("slow", &[("WeirRedisSlow", 1)]),
    ("redis-full", &[("WeirRedisMemory", 1)]),
    (
        "redis-evicts",
        &[("WeirKeysEvicted", 1), ("WeirRedisMemory", 1)],
    ),
    ("full", &[("WeirKeysEvicted", 1)]),
    ("mistake", &[("WeirConfigRefused", 1)]),
    ("unknown", &[("WeirUnknownDomain", 1)]),
    (
        "throttled",
        &[("WeirCallsRefused", 1), ("WeirConnectionsBehind", 1)],
    ),
    ("waiting", &[("WeirManyCallsWait", 1)]),
    ("crowded", &[("WeirConnectionsRefused", 1)]),
    (
        "desk",
        &[
            ("WeirOverridesNotRead", 1),
            ("WeirBudgetNearlyUsed", 1),
            ("WeirBudgetThreshold", 1),
            ("WeirBudgetUsedUp", 1),
        ],
    ),
];

/// Lines are dropped from the first second on in this scenario.
const LOG: Expected = ("log", &[("WeirLogLinesDropped", 1)]);

fn series_of(scenario: &str) -> Vec<Value> {
    let lines = tools::file(&format!("tests/vectors/alerts/{scenario}.txt"));
    let series = |line: &str| {
        let (series, values) = line.split_once('\t').expect("a series and its values");
        json!({"series": series, "values": values})
    };
    let lines = lines.lines().filter(|line| !line.starts_with('#'));
    let series: Vec<_> = lines.map(series).collect();
    assert!(series.len() > 10, "{scenario}: {}", series.len());
    series
}

/// Exactly these alerts fire at that minute: those of a namespace, and those of none.
fn firing(namespace: &str, minute: &str, alerts: &[(&str, usize)]) -> Value {
    let of = |name| format!("ALERTS{{alertstate=\"firing\",namespace={name:?}}}");
    let query = format!("count by (alertname) ({} or {})", of(namespace), of(""));
    let sample = |(name, count): &(&str, usize)| {
        let labels = format!("{{alertname={name:?}}}");
        json!({"labels": labels, "value": count})
    };
    let samples: Vec<_> = alerts.iter().map(sample).collect();
    json!({"expr": query, "eval_time": minute, "exp_samples": samples})
}

/// The output of promtool for these series, and whether all expectations hold.
fn evaluate(series: &[Value], expected: &[Value]) -> (bool, String) {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("tests.yaml");
    let rules = tools::repository().join("deploy/monitoring/alerts.yaml");
    let test = json!({"interval": "15s", "input_series": series, "promql_expr_test": expected});
    let tests = json!({"rule_files": [rules], "evaluation_interval": "15s", "tests": [test]});
    std::fs::write(&file, tests.to_string()).expect("written");
    let mut promtool = Command::new(tools::promtool());
    let output = promtool.args(["test", "rules"]).arg(&file).output();
    let output = output.expect("promtool runs");
    (output.status.success(), printed(&output))
}

/// Nothing fires in the first four minutes, the expected alerts fire before the failure ends, and
/// nothing fires at the end. The namespace of a series is its scenario.
#[test]
fn alerts_fire_while_something_fails_and_only_then() {
    let mut series = series_of(LOG.0);
    let mut expected = vec![firing(LOG.0, "17m30s", LOG.1)];
    for (scenario, alerts) in RECORDED {
        let end = match *scenario {
            // A full store goes on dropping single keys for some minutes.
            "full" => "28m",
            // The machine was busy with other work in the last minutes of this recording, and
            // WeirRedisSlow was right.
            "redis-full" => "21m",
            _ => "24m45s",
        };
        // A budget that is used up is so until its period ends: its alerts stay for an hour.
        let stays = [
            ("WeirBudgetNearlyUsed", 1),
            ("WeirBudgetThreshold", 1),
            ("WeirBudgetUsedUp", 1),
        ];
        let stays = if *scenario == "desk" { &stays[..] } else { &[] };
        series.extend(series_of(scenario));
        expected.push(firing(scenario, "4m", &[]));
        expected.push(firing(scenario, "17m30s", alerts));
        expected.push(firing(scenario, end, stays));
    }
    // The processes have ended.
    expected.push(firing("memory", "29m", &[]));
    expected.push(firing("memory", "36m", &[("WeirAbsent", 1)]));
    let (holds, output) = evaluate(&series, &expected);
    assert!(holds, "{output}");
}

/// A case of thresholds.txt: when its alert fires, if one does, and its series.
struct Case<'a> {
    name: &'a str,
    minute: &'a str,
    alert: Option<&'a str>,
    series: Vec<&'a str>,
}

fn cases(thresholds: &str) -> Vec<Case<'_>> {
    let mut cases: Vec<Case<'_>> = Vec::new();
    for line in thresholds.lines().filter(|line| !line.starts_with('#')) {
        if let Some(series) = line.strip_prefix("  ") {
            cases.last_mut().expect("a case").series.push(series);
            continue;
        }
        let (name, expected) = line.split_once(':').expect("a name");
        let (minutes, alerts): (Vec<_>, Vec<_>) = expected
            .split_whitespace()
            .partition(|word| word.starts_with('@'));
        cases.push(Case {
            name,
            minute: minutes.first().map_or("20", |word| &word[1..]),
            alert: alerts.first().copied(),
            series: Vec::new(),
        });
    }
    assert!(cases.len() > 25, "{}", cases.len());
    cases
}

/// Cases of one minute are evaluated together, each in a namespace of its own.
#[test]
fn alerts_fire_beyond_their_thresholds_only() {
    let thresholds = tools::file("tests/vectors/alerts/thresholds.txt");
    let mut cases = cases(&thresholds);
    cases.sort_by_key(|case| case.minute);
    for together in cases.chunk_by(|one, other| one.minute == other.minute) {
        let (mut series, mut expected) = (Vec::new(), Vec::new());
        for case in together {
            let target = format!(
                "job=\"ratelimit\",namespace={:?},pod=\"ratelimit-0\"",
                case.name
            );
            let given = case
                .series
                .iter()
                .any(|line| line.starts_with("weir_build_info{"));
            let present = (!given).then_some("weir_build_info{*} 1x160");
            for line in case.series.iter().copied().chain(present) {
                let (name, values) = line.split_once(' ').expect("a series and its values");
                series.push(json!({"series": name.replace('*', &target), "values": values}));
            }
            let alerts: Vec<_> = case.alert.iter().map(|alert| (*alert, 1)).collect();
            expected.push(firing(case.name, &format!("{}m", case.minute), &alerts));
        }
        let (holds, output) = evaluate(&series, &expected);
        assert!(holds, "{output}");
    }
}

#[test]
fn every_alert_is_seen_to_fire_and_every_metric_is_recorded() {
    let scenarios = || RECORDED.iter().chain([&LOG]);
    let recorded = scenarios().flat_map(|(_, alerts)| alerts.iter().map(|(name, _)| *name));
    let recorded: BTreeSet<_> = recorded.chain(["WeirAbsent"]).map(str::to_owned).collect();
    let thresholds = tools::file("tests/vectors/alerts/thresholds.txt");
    let made = cases(&thresholds)
        .into_iter()
        .filter_map(|case| Some(case.alert?.to_owned()));
    let fired: BTreeSet<_> = recorded.iter().cloned().chain(made).collect();
    assert_eq!(fired, names_of_alerts());

    let series: Vec<_> = scenarios()
        .flat_map(|(scenario, _)| series_of(scenario))
        .collect();
    for alert in alerts() {
        if !recorded.contains(text(&alert, "/alert")) {
            continue;
        }
        for selector in Query::parse(text(&alert, "/expr")).selectors {
            let start = format!("{}{{", selector.metric);
            let is_recorded = series
                .iter()
                .any(|one| text(one, "/series").starts_with(&start));
            assert!(
                is_recorded,
                "no recording has {start}: run tests/monitoring/record.py"
            );
        }
    }
}
