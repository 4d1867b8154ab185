//! The files in `deploy/` as users run them: the image, Envoy's configurations, alerts, scripts,
//! and the commands of the pages. `tests/deploy.sh` has the chart and the manifests.

mod budgets;
mod compose;
pub mod examples;
mod gateways;
mod generated;
mod image;
mod install;
mod istio;
mod monitoring;
mod release;
mod reservations;
mod settings;
pub mod stores;

use std::path::Path;
use std::process::{Command, Output};

use serde::Deserialize;
use serde_json::{Value, json};

use crate::support::wait::eventually;
use crate::support::{Weir, http_client, tools};

/// The documents of a YAML file of the repository.
fn documents(path: &str) -> Vec<Value> {
    documents_in(&tools::file(path))
}

fn documents_in(text: &str) -> Vec<Value> {
    let read = serde_yaml::Deserializer::from_str(text).map(Value::deserialize);
    read.map(|document| document.unwrap_or_else(|error| panic!("{error} in\n{text}")))
        .collect()
}

/// The value at a JSON pointer such as `/spec/ports/0`; it must exist.
fn at<'a>(value: &'a Value, pointer: &str) -> &'a Value {
    value
        .pointer(pointer)
        .unwrap_or_else(|| panic!("no {pointer} in {value:#}"))
}

/// As [`at`], as text.
fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    at(value, pointer)
        .as_str()
        .unwrap_or_else(|| panic!("{pointer} is no text in {value:#}"))
}

/// As [`at`], as the items of a list.
fn items<'a>(value: &'a Value, pointer: &str) -> &'a [Value] {
    at(value, pointer)
        .as_array()
        .unwrap_or_else(|| panic!("{pointer} is no list in {value:#}"))
}

/// The environment variables of a container that have values: names and values.
fn environment(container: &Value) -> Vec<(&str, &str)> {
    let variables = items(container, "/env").iter();
    let with_value = variables.filter(|variable| variable.get("value").is_some());
    with_value
        .map(|variable| (text(variable, "/name"), text(variable, "/value")))
        .collect()
}

/// Standard output and standard error.
fn printed(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr[..]].concat()).into_owned()
}

/// Runs a program in a folder; it must succeed. Returns what it prints.
fn run(program: &Path, arguments: &[&str], folder: &Path) -> String {
    let mut command = Command::new(program);
    let output = command.args(arguments).current_dir(folder).output();
    let output = output.unwrap_or_else(|error| panic!("{}: {error}", program.display()));
    let succeeds = output.status.success();
    assert!(
        succeeds,
        "{} {arguments:?}: {}",
        program.display(),
        printed(&output)
    );
    printed(&output)
}

/// As [`run`], for a line of a shell.
fn shell(folder: &Path, line: &str) -> String {
    run(Path::new("sh"), &["-c", line], folder)
}

/// The hits that a descriptor has left.
fn left(weir: &Weir, domain: &str, entries: &[(&str, &str)]) -> u64 {
    let entries = entries.iter();
    let entries: Vec<_> = entries
        .map(|(key, value)| json!({ "key": key, "value": value }))
        .collect();
    let peek = json!({ "entries": entries, "hitsAddend": "0" });
    let body = json!({ "domain": domain, "descriptors": [peek] }).to_string();
    let answer = http_client::post(weir.http_addr(), "/json", body.as_bytes()).body;
    let answer: Value = serde_json::from_str(&answer).unwrap_or_else(|_| panic!("{answer}"));
    let left = &answer["statuses"][0]["limitRemaining"];
    left.as_u64().unwrap_or_default()
}

/// Waits until a descriptor has these hits left.
fn assert_left(weir: &Weir, domain: &str, entries: &[(&str, &str)], expected: u64) {
    let left = || left(weir, domain, entries);
    let is_left = || (left() == expected).then_some(());
    assert!(
        eventually(is_left).is_some(),
        "{entries:?} have {} left, not {expected}",
        left()
    );
}
