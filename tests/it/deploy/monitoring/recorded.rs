//! The alert rules on series that Prometheus recorded of real processes, and on made ones for what
//! cannot be recorded. `promtool test rules` evaluates the rules.
//!
//! The files in `tests/vectors/alerts/` are written by `tests/monitoring/record.py`, one for each
//! of its scenarios: what is to fail does so from minute 4 to minute 18, and the processes end at
//! minute 25. Each line is a series and its values, every 15 seconds, in promtool's notation.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::promql::Query;
use super::{alerts, names_of_alerts, printed, promtool, text};
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
        &[("WeirOverridesNotRead", 1), ("WeirBudgetNearlyUsed", 1)],
    ),
];

/// Lines are dropped from the first second on in this scenario.
const LOG: Expected = ("log", &[("WeirLogLinesDropped", 1)]);

/// Alerts that fire on made series only.
const MADE: [&str; 7] = [
    "WeirWorkersBusy",
    "WeirPanics",
    "WeirXdsRefused",
    "WeirXdsDisconnected",
    "WeirCertificateExpires",
    "WeirCertificateRefused",
    "WeirCallsReset",
];

const SERIES: &str = r#"{job="ratelimit",namespace="edge",pod="ratelimit-0"}"#;

fn series_of(scenario: &str) -> Vec<Value> {
    let lines = tools::file(&format!("tests/vectors/alerts/{scenario}.txt"));
    let parts = lines
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| line.split_once('\t').expect("a series and its values"));
    let series: Vec<_> = parts
        .map(|(series, values)| json!({"series": series, "values": values}))
        .collect();
    assert!(series.len() > 10, "{scenario}: {}", series.len());
    series
}

/// Whether exactly these alerts fire at that minute.
fn firing(minute: &str, alerts: &[(&str, usize)]) -> Value {
    let samples: Vec<_> = alerts
        .iter()
        .map(|(name, count)| json!({"labels": format!("{{alertname={name:?}}}"), "value": count}))
        .collect();
    json!({"expr": "count by (alertname) (ALERTS{alertstate=\"firing\"})", "eval_time": minute, "exp_samples": samples})
}

fn test(name: &str, series: &[Value], expected: &[Value]) -> Value {
    json!({"name": name, "interval": "15s", "input_series": series, "promql_expr_test": expected})
}

/// What promtool prints, and whether all tests hold.
fn run(tests: &[Value]) -> (bool, String) {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("tests.yaml");
    let rules = tools::repository().join("deploy/monitoring/alerts.yaml");
    std::fs::write(
        &file,
        json!({"rule_files": [rules], "evaluation_interval": "15s", "tests": tests}).to_string(),
    )
    .expect("written");
    let output = promtool(&["test", "rules"], &file);
    (output.status.success(), printed(&output))
}

/// Nothing fires in the first four minutes, the expected alerts fire before the failure ends, and
/// nothing fires at the end.
#[test]
fn alerts_fire_while_something_fails_and_only_then() {
    let mut tests = Vec::new();
    for (scenario, alerts) in RECORDED {
        let end = match *scenario {
            // A full store goes on dropping single keys for some minutes.
            "full" => "28m",
            // The machine was busy with other work in the last minutes of this recording, and
            // WeirRedisSlow was right.
            "redis-full" => "21m",
            _ => "24m45s",
        };
        // A budget that is used up is so until its period ends: the alert stays for an hour.
        let stays: &[_] = if *scenario == "desk" {
            &[("WeirBudgetNearlyUsed", 1)]
        } else {
            &[]
        };
        tests.push(test(
            scenario,
            &series_of(scenario),
            &[
                firing("4m", &[]),
                firing("17m30s", alerts),
                firing(end, stays),
            ],
        ));
    }
    tests.push(test(LOG.0, &series_of(LOG.0), &[firing("17m30s", LOG.1)]));
    let gone = [firing("29m", &[]), firing("36m", &[("WeirAbsent", 1)])];
    tests.push(test(
        "the processes have ended",
        &series_of("memory"),
        &gone,
    ));
    let (holds, output) = run(&tests);
    assert!(holds, "{output}");

    let wrong = test("outage", &series_of("outage"), &[firing("17m30s", &[])]);
    let (holds, output) = run(&[wrong]);
    assert!(
        !holds && output.contains("WeirFailsOpen"),
        "promtool finds what is not expected: {output}"
    );
}

/// A series with its values.
fn with(metric: &str, labels: &str, values: &str) -> Value {
    let series = format!(
        "{metric}{}",
        SERIES
            .replace('}', &format!(",{labels}}}"))
            .replace(",}", "}")
    );
    json!({"series": series, "values": values})
}

/// The alerts after twenty minutes of these series, while Weir is there.
fn case(name: &str, series: &[Value], alerts: &[(&str, usize)]) -> Value {
    let present = json!({"series": format!("weir_build_info{SERIES}"), "values": "1x160"});
    test(
        name,
        &[series, &[present]].concat(),
        &[firing("20m", alerts)],
    )
}

/// Alerts hold for these tests.
fn assert_alerts(tests: &[Value]) {
    let (holds, output) = run(tests);
    assert!(holds, "{output}");
}

/// Redis's labels.
const SERVER: &str = "redis=\"main\",server=\"r:6379\"";

// What a machine for tests should not do for a quarter of an hour, and the edges of thresholds and
// waiting times, as made series.

#[test]
fn alerts_of_workers_and_calls_fire_beyond_their_thresholds_only() {
    let busy = |values: &str| with("weir_worker_busy_seconds_total", "worker=\"0\"", values);
    let refused = |values: &str| {
        [
            with("weir_calls_refused_total", "", values),
            with("weir_requests_total", "code=\"OK\"", "0+15000x160"),
        ]
    };
    assert_alerts(&[
        case(
            "a worker uses 90 % of a core",
            &[busy("0+13.5x160")],
            &[("WeirWorkersBusy", 1)],
        ),
        case("a worker uses 80 % of a core", &[busy("0+12x160")], &[]),
        case(
            "a panic",
            &[with("weir_panics_total", "", "0x70 1x90")],
            &[("WeirPanics", 1)],
        ),
        case("no panic", &[with("weir_panics_total", "", "3x160")], &[]),
        case(
            "two calls of a thousand are refused",
            &refused("0+30x160"),
            &[("WeirCallsRefused", 1)],
        ),
        case(
            "one call of fifteen thousand is refused",
            &refused("0+1x160"),
            &[],
        ),
        case(
            "half of all calls wait",
            &[with("weir_waiting_calls", "worker=\"0\"", "8192x160")],
            &[],
        ),
        case(
            "nearly all calls wait for two minutes",
            &[with("weir_waiting_calls", "worker=\"0\"", "0x72 16000x90")],
            &[],
        ),
        test(
            "no Weir for seven minutes",
            &[json!({"series": format!("weir_build_info{SERIES}"), "values": "1x40"})],
            &[firing("22m", &[("WeirAbsent", 1)])],
        ),
        case(
            "calls are reset",
            &[with(
                "weir_http2_stream_resets_total",
                "reason=\"protocol_error\"",
                "0+3x160",
            )],
            &[("WeirCallsReset", 1)],
        ),
        case(
            "calls were reset",
            &[with(
                "weir_http2_stream_resets_total",
                "reason=\"protocol_error\"",
                "0+3x20 60x140",
            )],
            &[],
        ),
    ]);
}

#[test]
fn alerts_of_the_configuration_fire_beyond_their_thresholds_only() {
    // The clock of promtool begins with 0.
    let certificate = |name: &str, days: u64, alerts: &[(&str, usize)]| {
        let expiry = with(
            "weir_certificate_expiry_timestamp_seconds",
            "",
            &format!("{}x400", days * 86_400 + 5_000),
        );
        let present = json!({"series": format!("weir_build_info{SERIES}"), "values": "1x400"});
        test(name, &[expiry, present], &[firing("80m", alerts)])
    };
    assert_alerts(&[
        case(
            "a refused domain",
            &[with(
                "weir_xds_refused_domains",
                "limits=\"absent\"",
                "1x160",
            )],
            &[("WeirXdsRefused", 1)],
        ),
        case(
            "no refused domain",
            &[with(
                "weir_xds_refused_domains",
                "limits=\"absent\"",
                "0x160",
            )],
            &[],
        ),
        case(
            "no control plane for a while",
            &[with("weir_xds_connected", "", "1x15 0x145")],
            &[("WeirXdsDisconnected", 1)],
        ),
        case(
            "no control plane for ten minutes",
            &[with("weir_xds_connected", "", "1x40 0x120")],
            &[],
        ),
        case(
            "a certificate is refused",
            &[with("weir_certificate_last_reload_successful", "", "0x160")],
            &[("WeirCertificateRefused", 1)],
        ),
        certificate(
            "a certificate expires in six days",
            6,
            &[("WeirCertificateExpires", 1)],
        ),
        certificate("a certificate expires in eight days", 8, &[]),
        case(
            "what is nearly used up is no budget",
            &[with(
                "ratelimit_service_rate_limit_near_limit",
                "domain=\"shop\",key1=\"user\"",
                "0+3x160",
            )],
            &[],
        ),
    ]);
}

#[test]
fn alerts_of_redis_fire_beyond_their_thresholds_only() {
    let memory = |used: &str| {
        [
            with("weir_redis_used_memory_bytes", SERVER, used),
            with("weir_redis_max_memory_bytes", SERVER, "100x160"),
        ]
    };
    let unlimited = [
        memory("200x160")[0].clone(),
        with("weir_redis_max_memory_bytes", SERVER, "0x160"),
    ];
    let policy = |policy: &str, values: &str| {
        with(
            "weir_outage_answers_total",
            &format!("policy={policy:?}"),
            values,
        )
    };
    let overrides_of_redis = |up: &str| {
        [
            with("weir_overrides_age_seconds", "", "0+15x160"),
            with("weir_redis_up", SERVER, &format!("{up}x160")),
        ]
    };
    assert_alerts(&[
        case(
            "91 % of the memory",
            &memory("91x160"),
            &[("WeirRedisMemory", 1)],
        ),
        case("89 % of the memory", &memory("89x160"), &[]),
        case("Redis without maxmemory", &unlimited, &[]),
        case(
            "a failover of thirty seconds, a minute ago",
            &[policy("error", "0x74 500x1 1000x90")],
            &[],
        ),
        case(
            "an outage for four minutes",
            &[
                policy("error", "0x64 0+500x96"),
                policy("local", "0x64 0+500x96"),
            ],
            &[("WeirFailsOpen", 1)],
        ),
        case(
            "overrides are not read, while Redis answers",
            &overrides_of_redis("1"),
            &[("WeirOverridesNotRead", 1)],
        ),
        case(
            "overrides are not read, while Redis is down",
            &overrides_of_redis("0"),
            &[],
        ),
        case(
            "overrides are read",
            &[with("weir_overrides_age_seconds", "", "0.5x160")],
            &[],
        ),
    ]);
}

#[test]
fn every_alert_is_seen_to_fire_and_every_metric_is_recorded() {
    let mut fired: Vec<&str> = RECORDED
        .iter()
        .chain([&LOG])
        .flat_map(|(_, alerts)| alerts.iter().map(|(name, _)| *name))
        .collect();
    fired.extend(MADE);
    fired.push("WeirAbsent");
    assert_eq!(
        fired
            .into_iter()
            .map(ToOwned::to_owned)
            .collect::<std::collections::BTreeSet<_>>(),
        names_of_alerts()
    );

    let mut recorded: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for scenario in RECORDED.iter().chain([&LOG]).map(|(scenario, _)| scenario) {
        for series in series_of(scenario) {
            let metric = text(&series, "/series")
                .split('{')
                .next()
                .expect("a name")
                .to_owned();
            recorded
                .entry(metric)
                .or_default()
                .push((*scenario).to_owned());
        }
    }
    for alert in alerts()
        .iter()
        .filter(|alert| !MADE.contains(&text(alert, "/alert")))
    {
        for selector in Query::parse(text(alert, "/expr")).selectors {
            assert!(
                recorded.contains_key(&selector.metric),
                "{} is in no recording: run tests/monitoring/record.py",
                selector.metric
            );
        }
    }
}
