//! The variables that `deploy/helm/weir` and the manifests set are those of `weir serve --help`.
//! `tests/deploy.sh` renders the chart and runs what it renders.

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::Value;

use super::at;
use crate::support::tools;

const CHART: &str = "deploy/helm/weir";

/// Variables that no value of the chart sets.
const NOT_IN_THE_CHART: &[&str] = &[
    // Ports, probes, Services and the NetworkPolicy agree on all addresses.
    "HOST",
    "GRPC_HOST",
    "PORT",
    "GRPC_PORT",
    "DEBUG_PORT",
    // An Envoy in another pod cannot reach a unix socket.
    "GRPC_UDS",
    "GRPC_UDS_MODE",
    // It has no effect.
    "GRPC_SERVER_TLS_CA_CERT",
    // Passwords come from Secrets, as files.
    "REDIS_SENTINEL_AUTH",
    "REDIS_PERSECOND_SENTINEL_AUTH",
    // REDIS_URL has it.
    "REDIS_SOCKET_TYPE",
    "REDIS_PERSECOND_SOCKET_TYPE",
];

/// The variables of `weir serve`.
fn variables_of_weir() -> BTreeSet<String> {
    let mut help = Command::new(env!("CARGO_BIN_EXE_weir"));
    let output = help.args(["serve", "--help"]).env_clear().output();
    let help = String::from_utf8(output.expect("the binary runs").stdout).expect("text");
    let names = help.split("[env: ").skip(1);
    names
        .map(|rest| rest.split(['=', ']']).next().expect("a name").to_owned())
        .collect()
}

/// The variables that the templates set, in the form `- { name: NAME, ...`.
fn of_templates() -> Vec<String> {
    let template = tools::file(&format!("{CHART}/templates/_environment.tpl"));
    let names = template.split("- { name: ").skip(1);
    let names = names.map(|rest| rest.split([',', '\n']).next().expect("a name"));
    let both = |name: &str| match name.strip_prefix("{{ $prefix }}") {
        Some(end) => vec![format!("REDIS{end}"), format!("REDIS_PERSECOND{end}")],
        None => vec![name.to_owned()],
    };
    // Names in small letters are those of volumes.
    let is_variable = |name: &&str| {
        !name
            .trim_start_matches("{{ $prefix }}")
            .contains(char::is_lowercase)
    };
    names.filter(is_variable).flat_map(both).collect()
}

/// A new setting gets a value in the chart, or a line above.
#[test]
fn the_chart_sets_every_variable_in_one_place() {
    let schema = tools::file(&format!("{CHART}/values.schema.json"));
    let schema: Value = serde_json::from_str(&schema).expect("JSON");
    let settings = at(&schema, "/properties/settings/properties").as_object();
    // OpenTelemetry's library reads it, and it has no flag.
    let settings = settings
        .expect("settings")
        .keys()
        .filter(|name| *name != "OTEL_RESOURCE_ATTRIBUTES");
    let templates: BTreeSet<_> = of_templates().into_iter().collect();
    let others = NOT_IN_THE_CHART.iter().map(ToString::to_string);
    let mut set = templates;
    for name in settings.cloned().chain(others) {
        assert!(set.insert(name.clone()), "{name} is set in two places");
    }
    let known = variables_of_weir();
    assert!(known.len() > 100, "{known:?}");
    let wrong: Vec<_> = set.symmetric_difference(&known).collect();
    assert!(
        wrong.is_empty(),
        "only in the chart, or only in `weir serve --help` (add it to `settings` in \
         values.schema.json, or give it a value of its own): {wrong:?}"
    );
}
