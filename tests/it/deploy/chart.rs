//! `deploy/helm/weir` without helm: values match their schema, and every variable of Weir has its
//! value. `tests/deploy.sh` renders and runs the chart.

use std::collections::{BTreeMap, BTreeSet};
use std::process::{Command, Output};

use serde_json::{Value, json};

use super::{at, documents, text};
use crate::support::tools;

const CHART: &str = "deploy/helm/weir";

/// Variables that no value of the chart sets, with the reason.
const NOT_IN_THE_CHART: &[(&str, &str)] = &[
    (
        "HOST",
        "ports, probes, Services and the NetworkPolicy agree on all addresses",
    ),
    ("GRPC_HOST", "as HOST"),
    ("PORT", "as HOST: 8080"),
    ("GRPC_PORT", "as HOST: 8081"),
    ("DEBUG_PORT", "as HOST: 6070"),
    (
        "GRPC_UDS",
        "an Envoy in another pod cannot reach a unix socket",
    ),
    ("GRPC_UDS_MODE", "as GRPC_UDS"),
    ("GRPC_SERVER_TLS_CA_CERT", "it has no effect"),
    (
        "REDIS_SENTINEL_AUTH",
        "passwords come from Secrets, as files",
    ),
    ("REDIS_PERSECOND_SENTINEL_AUTH", "as REDIS_SENTINEL_AUTH"),
    ("REDIS_SOCKET_TYPE", "REDIS_URL says it"),
    ("REDIS_PERSECOND_SOCKET_TYPE", "as REDIS_SOCKET_TYPE"),
];

fn schema() -> Value {
    serde_json::from_str(&tools::file(&format!("{CHART}/values.schema.json"))).expect("JSON")
}

fn values() -> Value {
    documents(&format!("{CHART}/values.yaml")).remove(0)
}

/// Validates values with the library that kubernetes-validate brings.
fn validate(values: &Value) -> Output {
    let script = "import json, sys, jsonschema\n\
        schema, values = (json.load(open(path)) for path in sys.argv[1:])\n\
        jsonschema.Draft7Validator.check_schema(schema)\n\
        jsonschema.Draft7Validator(schema).validate(values)";
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("values.json");
    std::fs::write(&file, values.to_string()).expect("written");
    let mut python = Command::new(tools::kubernetes_validate().with_file_name("python"));
    python
        .args(["-c", script])
        .arg(tools::repository().join(CHART).join("values.schema.json"))
        .arg(file);
    python.output().expect("python runs")
}

#[test]
fn the_values_match_their_schema_and_misspelled_ones_do_not() {
    let output = validate(&values());
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    for wrong in [
        json!({"replicacount": 3}),
        json!({"redis": {"external": {"addresses": ["redis.example"]}}}),
        json!({"settings": {"LOGLEVEL": "debug"}}),
        json!({"settings": {"REDIS_URL": "a:1"}}),
        json!({"networkPolicy": {"ask": [{}]}}),
        json!({"limits": {"files": {"a.yaml": {"domain": "a"}}}}),
    ] {
        assert!(!validate(&wrong).status.success(), "{wrong}");
    }
}

/// The names of an object of values at each path; a name ends where the schema leaves it to the
/// user.
fn names_in_schema(schema: &Value, path: &str, names: &mut BTreeSet<String>) {
    let Some(properties) = schema
        .get("properties")
        .and_then(Value::as_object)
        .filter(|_| path != "settings")
    else {
        return;
    };
    for (name, inner) in properties {
        let path = if path.is_empty() {
            name.clone()
        } else {
            format!("{path}.{name}")
        };
        names_in_schema(inner, &path, names);
        names.insert(path);
    }
}

fn names_in_values(
    values: &Value,
    path: &str,
    known: &BTreeSet<String>,
    names: &mut BTreeSet<String>,
) {
    for (name, inner) in values.as_object().into_iter().flatten() {
        let path = if path.is_empty() {
            name.clone()
        } else {
            format!("{path}.{name}")
        };
        // Below a name without properties the user's names begin.
        if known
            .iter()
            .any(|other| other.starts_with(&format!("{path}.")))
        {
            names_in_values(inner, &path, known, names);
        }
        names.insert(path);
    }
}

#[test]
fn every_value_has_its_schema_and_stands_in_the_file() {
    let (mut known, mut present) = (BTreeSet::new(), BTreeSet::new());
    names_in_schema(&schema(), "", &mut known);
    names_in_values(&values(), "", &known, &mut present);
    // Helm adds `global` to the values of each chart.
    assert!(known.remove("global"));
    assert_eq!(known, present);
    assert!(known.len() > 150, "{}", known.len());
}

/// The variables that the templates set.
fn variables_of_the_templates() -> BTreeSet<String> {
    let template = tools::file(&format!("{CHART}/templates/_environment.tpl"));
    let mut found = BTreeSet::new();
    for rest in template.split("- { name: ").skip(1) {
        let name = rest.split([',', '\n']).next().expect("a name");
        match name.strip_prefix("{{ $prefix }}") {
            Some(end) => {
                found.extend(["REDIS", "REDIS_PERSECOND"].map(|prefix| format!("{prefix}{end}")));
            }
            None => drop(found.insert(name.to_owned())),
        }
    }
    // Those of mounts are names of volumes.
    found
        .into_iter()
        .filter(|name| {
            name.chars()
                .all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_')
        })
        .collect()
}

/// A setting that is new has to get a value, or a line above.
#[test]
fn every_variable_is_set_by_one_value() {
    let help = Command::new(env!("CARGO_BIN_EXE_weir"))
        .args(["serve", "--help"])
        .env_clear()
        .output()
        .expect("the binary runs");
    let help = String::from_utf8_lossy(&help.stdout).into_owned();
    let known: BTreeSet<String> = help
        .split("[env: ")
        .skip(1)
        .map(|rest| rest.split(['=', ']']).next().expect("a name").to_owned())
        .collect();
    assert!(known.len() > 100, "{known:?}");
    let mut set: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for name in variables_of_the_templates() {
        set.entry(name)
            .or_default()
            .push("templates/_environment.tpl");
    }
    let schema = schema();
    for name in at(&schema, "/properties/settings/properties")
        .as_object()
        .expect("settings")
        .keys()
    {
        // It has no flag, because OpenTelemetry's library reads it.
        if name != "OTEL_RESOURCE_ATTRIBUTES" {
            set.entry(name.clone())
                .or_default()
                .push("settings in values.schema.json");
        }
    }
    for (name, _) in NOT_IN_THE_CHART {
        set.entry((*name).to_owned())
            .or_default()
            .push("NOT_IN_THE_CHART");
    }
    let wrong: Vec<_> = set
        .iter()
        .filter(|(name, sources)| sources.len() != 1 || !known.contains(*name))
        .collect();
    assert!(
        wrong.is_empty(),
        "not in `weir serve --help`, or set twice: {wrong:?}"
    );
    let missing: Vec<_> = known
        .iter()
        .filter(|name| !set.contains_key(*name))
        .collect();
    assert!(
        missing.is_empty(),
        "add to `settings` in values.schema.json, or give it a value of its own: {missing:?}"
    );
}

/// Helm reads no file outside of a chart but by a link, and a package has the files themselves.
#[test]
fn the_chart_has_links_to_alerts_dashboards_and_limits_and_the_version_of_weir() {
    let chart = tools::repository().join(CHART);
    for (link, target) in [
        ("alerts.yaml", "deploy/monitoring/alerts.yaml"),
        ("dashboards", "deploy/monitoring/dashboards"),
        ("limits", "deploy/kubernetes/limits"),
    ] {
        let path = chart.join("files").join(link);
        assert!(
            path.is_symlink(),
            "{link} is a copy, which could differ from {target}"
        );
        let resolved =
            std::fs::canonicalize(&path).unwrap_or_else(|error| panic!("{link}: {error}"));
        assert_eq!(
            resolved,
            std::fs::canonicalize(tools::repository().join(target)).expect("the target")
        );
    }
    let described = documents(&format!("{CHART}/Chart.yaml")).remove(0);
    assert_eq!(
        [
            text(&described, "/version"),
            text(&described, "/appVersion")
        ],
        [env!("CARGO_PKG_VERSION"); 2]
    );
    assert_eq!(
        text(&values(), "/redis/bundled/image"),
        text(
            &super::kubernetes::manifest("Deployment", "ratelimit-redis"),
            "/spec/template/spec/containers/0/image"
        )
    );
}
