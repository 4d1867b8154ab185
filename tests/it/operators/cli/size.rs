//! `weir size`: its output for people and for programs, and its errors.

use serde_json::Value;

use super::{stderr, stdout, weir};

fn json(arguments: &[&str]) -> Value {
    let output = weir(&[&["size", "--format", "json"], arguments].concat(), &[]);
    assert!(
        output.status.success(),
        "{arguments:?}: {}",
        stderr(&output)
    );
    let text = stdout(&output);
    assert_eq!(text.matches('\n').count(), 1, "one object on one line");
    serde_json::from_str(&text).expect("JSON")
}

/// The value of a figure, such as `/weir/replicas`.
fn value(report: &Value, path: &str) -> f64 {
    let figure = report
        .pointer(&format!("/figures{path}"))
        .unwrap_or_else(|| panic!("no {path} in {report}"));
    assert!(
        figure["assumption"]
            .as_str()
            .is_some_and(|text| text.len() > 10),
        "{path} has no assumption: {figure}"
    );
    figure["value"]
        .as_f64()
        .unwrap_or_else(|| panic!("{path} is no number: {figure}"))
}

#[test]
fn programs_get_every_figure_with_its_assumption() {
    let report = json(&[
        "--rate",
        "50k",
        "--keys",
        "2M",
        "--algorithm",
        "token_bucket",
        "--redis",
        "cluster",
    ]);
    assert_eq!(report["fits"], true);
    for (section, figures) in report["figures"].as_object().expect("sections") {
        for name in figures.as_object().expect("figures").keys() {
            value(&report, &format!("/{section}/{name}"));
        }
    }
    assert_eq!(value(&report, "/weir/requests_per_second"), 50_000.0);
    assert!(
        value(&report, "/weir/replicas") >= 2.0,
        "one may be missing"
    );
    assert!(
        value(&report, "/redis/servers") >= 3.0,
        "a cluster has three primaries at least"
    );
    let used = value(&report, "/redis/used_memory_bytes") * value(&report, "/redis/servers");
    let bytes = value(&report, "/redis/bytes_per_key");
    assert!(
        (used / (2e6 * bytes) - 1.0).abs() < 0.01,
        "{used} bytes, {bytes} of a key"
    );
    let bounds = report["bounds"].as_array().expect("bounds");
    assert!(
        bounds.len() > 2
            && bounds.iter().all(|bound| bound["reached_at"]
                .as_f64()
                .is_some_and(|rate| rate >= 50_000.0)),
        "{bounds:?}"
    );
    assert!(bounds.iter().all(|bound| {
        bound["remedy"]
            .as_str()
            .is_some_and(|text| !text.is_empty())
    }));
}

#[test]
fn people_get_the_same_figures() {
    let arguments = [
        "--rate",
        "250k",
        "--keys",
        "3M",
        "--descriptors",
        "2",
        "--redis",
        "sentinel",
    ];
    let text = stdout(&weir(&[&["size"][..], &arguments].concat(), &[]));
    let report = json(&arguments);
    for (section, name, label) in [
        ("weir", "requests_per_second", "requests per second"),
        ("weir", "replicas", "replicas"),
        ("weir", "local_max_keys", "local max keys"),
        ("redis", "capacity_per_server", "capacity per server"),
        ("redis", "connections_per_server", "connections per server"),
    ] {
        let value = format!("{:.0}", value(&report, &format!("/{section}/{name}")));
        let shown = text.lines().any(|line| {
            line.trim().starts_with(label)
                && line
                    .replace(',', "")
                    .split_whitespace()
                    .any(|word| word == value)
        });
        assert!(shown, "{label} {value} is not in:\n{text}");
    }
    assert_eq!(value(&report, "/weir/requests_per_second"), 125_000.0);
}

#[test]
fn a_deployment_that_is_too_small_is_marked() {
    let arguments = [
        "--rate",
        "10M",
        "--keys",
        "1M",
        "--algorithm",
        "token_bucket",
        "--redis",
        "single",
    ];
    let report = json(&arguments);
    assert_eq!(report["fits"], false);
    let first = &report["bounds"][0];
    assert_eq!(first["resource"], "CPU of Redis");
    assert!(
        first["reached_at"].as_f64().is_some_and(|rate| rate < 10e6)
            && first["remedy"]
                .as_str()
                .is_some_and(|text| text.contains("--redis cluster"))
    );
    let output = weir(&[&["size"][..], &arguments].concat(), &[]);
    assert!(
        output.status.success(),
        "the answer is that it does not fit"
    );
    assert!(
        stdout(&output).contains("TOO SMALL: Redis Cluster"),
        "{}",
        stdout(&output)
    );
}

#[test]
fn counters_in_memory_have_one_process() {
    let report = json(&["--rate", "50k", "--keys", "2M", "--redis", "none"]);
    assert_eq!(
        (
            value(&report, "/weir/replicas"),
            report.pointer("/figures/redis")
        ),
        (1.0, None)
    );
    assert!(value(&report, "/weir/memory_max_keys") > 2e6);
    let remedies: Vec<_> = report["bounds"]
        .as_array()
        .expect("bounds")
        .iter()
        .map(|bound| bound["remedy"].to_string())
        .collect();
    assert!(
        remedies.len() > 1
            && !remedies
                .iter()
                .any(|remedy| remedy.contains("more replicas")),
        "{remedies:?}"
    );
}

#[test]
fn usage_has_its_memory_and_lowers_the_capacity() {
    let load = [
        "--rate",
        "50k",
        "--keys",
        "2M",
        "--algorithm",
        "token_bucket",
    ];
    let [without, with] = [&[][..], &["--usage"]].map(|usage| json(&[&load[..], usage].concat()));
    let record = "/figures/redis/bytes_per_usage_record";
    assert_eq!(without.pointer(record), None);
    let of = |report: &Value, name: &str| value(report, &format!("/redis/{name}"));
    assert!(of(&with, "capacity_per_server") < of(&without, "capacity_per_server"));
    let records = 2e6 * of(&with, "bytes_per_usage_record");
    let more = of(&with, "used_memory_bytes") - of(&without, "used_memory_bytes");
    assert!(
        (more / records - 1.0).abs() < 0.01,
        "{more} bytes more, {records} of usage"
    );
    let in_memory = json(&[&load[..], &["--usage", "--redis", "none"]].concat());
    assert!(
        value(&in_memory, "/weir/memory_usage_bytes") > 2e6 * 1_000.0,
        "{in_memory}"
    );
    let text = stdout(&weir(&[&["size"], &load[..], &["--usage"]].concat(), &[]));
    assert!(
        text.starts_with("50,000 decisions/s by token_bucket with usage, "),
        "{text}"
    );
}

/// Arguments, and what the error has to say.
const MISTAKES: &[(&str, &[&str])] = &[
    ("", &["--rate", "--keys", "required"]),
    ("--rate 0 --keys 1", &["'0'", "--rate", "write 1 to 1G"]),
    ("--rate -5k --keys 1", &["'-5k'", "such as 500, 50k"]),
    ("--rate 5m --keys 1", &["'5m'", "M for millions"]),
    ("--rate 5x --keys 1", &["'x' is no suffix"]),
    ("--rate 1e6 --keys 1", &["'1e6'"]),
    ("--rate 2G --keys 1", &["write 1 to 1G"]),
    ("--rate 1 --keys 101G", &["--keys", "write 1 to 100G"]),
    ("--rate 1 --keys 0", &["--keys", "write 1 to 100G"]),
    ("--descriptors 0", &["--descriptors", "1..=256"]),
    ("--descriptors -1", &["--descriptors"]),
    ("--algorithm gcra", &["gcra", "token_bucket"]),
    ("--redis memcached", &["memcached", "cluster"]),
    ("--workers 2000", &["--workers"]),
    (
        "--rate 10 --keys 1 --descriptors 16",
        &["--rate counts decisions"],
    ),
    ("--replicas 3", &["--replicas"]),
    ("--envoys 0", &["--envoys"]),
    (
        "--cached 20%",
        &["--cached", "deploy/sizing.md#assumptions"],
    ),
];

#[test]
fn mistakes_are_errors_with_a_remedy() {
    let good = ["--rate", "50k", "--keys", "2M"];
    for (arguments, parts) in MISTAKES {
        let arguments: Vec<_> = arguments.split_whitespace().collect();
        let has_load = arguments.contains(&"--rate") || arguments.is_empty();
        let all = [
            &["size"][..],
            if has_load { &[][..] } else { &good },
            &arguments,
        ]
        .concat();
        let output = weir(&all, &[]);
        let text = stderr(&output);
        assert_eq!(
            (output.status.code(), stdout(&output).as_str()),
            (Some(2), ""),
            "{all:?}: {text}"
        );
        assert_eq!(text.matches('\n').count(), 1, "{all:?}: one line: {text}");
        assert!(
            parts.iter().all(|part| text.contains(part)),
            "{all:?}: {text} lacks one of {parts:?}"
        );
    }
}

const EXTREMES: [&str; 6] = [
    "--rate 1 --keys 1",
    "--rate 1G --keys 100G --redis cluster --algorithm sliding_window_log --usage",
    "--rate 1G --keys 1 --redis none --algorithm sliding_window_buckets",
    "--rate 1G --keys 100G --redis none --usage",
    "--rate 256 --keys 1 --descriptors 256 --envoys 1000000",
    "--rate 1 --keys 1 --workers 1024 --algorithm concurrency",
];

/// No combination of extreme values overflows, panics or prints what is no number.
#[test]
fn extremes_are_answered() {
    for arguments in EXTREMES {
        let arguments: Vec<_> = arguments.split_whitespace().collect();
        let output = weir(&[&["size"][..], &arguments].concat(), &[]);
        let text = stdout(&output);
        assert!(
            output.status.success() && !text.contains("NaN") && !text.contains("inf"),
            "{arguments:?}: {}{text}",
            stderr(&output)
        );
        json(&arguments);
    }
}
