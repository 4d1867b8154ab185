//! The files in `deploy/`: manifests match the schemas of Kubernetes and each other, the image is
//! complete, Envoy accepts the filters, and alerts fire.

mod chart;
mod compose;
mod dockerfile;
mod envoy_gateway;
pub mod examples;
mod gateways;
mod generated;
mod image;
mod install;
mod istio;
mod kubernetes;
mod monitoring;
mod release;
mod restricted;

use std::path::Path;
use std::process::{Command, Output};

use serde::Deserialize;
use serde_json::Value;

use crate::support::{envoy, tools};

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

/// For commands of Docker and Kubernetes the test checks only that their files exist; other tests
/// here use these files. All other commands are run.
#[test]
fn every_command_of_the_readme_names_what_is_there() {
    let readme = tools::file("deploy/README.md") + &tools::file("deploy/envoy/README.md");
    let commands: Vec<Vec<&str>> = readme
        .lines()
        .filter_map(|line| line.strip_prefix("$ "))
        .map(|line| line.split(' ').collect())
        .collect();
    assert!(!commands.is_empty());
    for command in commands {
        let exists = |path: &str| {
            assert!(
                tools::repository().join(path).exists(),
                "{path} of {command:?}"
            );
        };
        match command[..] {
            // Tests of deploy/install.rs run it.
            ["deploy/build-image.sh"] => exists("deploy/build-image.sh"),
            ["docker", "run", .., image] => {
                assert_eq!(image, concat!("weir:", env!("CARGO_PKG_VERSION")));
            }
            // tests/deploy/chart.py renders these.
            ["helm", "install", _, chart, ..]
            | ["helm", "upgrade", "--install", _, chart, ..]
            | ["helm", "package" | "lint", chart] => {
                exists(chart);
            }
            ["helm", "test", _] => {}
            [
                "docker",
                "compose",
                "-f",
                file,
                "up",
                "--build",
                "--detach",
                "--wait",
            ] => exists(file),
            ["kubectl", "apply", "-k" | "-f", path] => exists(path),
            ["envoy", "-c", file] => envoy::validate(&tools::file(file)),
            ["weir", ..] => {
                let mut weir = Command::new(env!("CARGO_BIN_EXE_weir"));
                let output = weir
                    .args(&command[1..])
                    .current_dir(tools::repository())
                    .output()
                    .expect("the binary runs");
                assert!(
                    output.status.success(),
                    "{}",
                    String::from_utf8_lossy(&output.stdout)
                );
            }
            _ => panic!("no test runs {command:?}"),
        }
    }
    for folder in ["deploy", "deploy/envoy"] {
        let page = tools::file(&format!("{folder}/README.md"));
        for row in page.lines().filter_map(|line| line.strip_prefix("| `")) {
            let (cell, _) = row.split_once('|').expect("a first cell");
            for name in cell.split(", ").map(|name| name.trim().trim_matches('`')) {
                let path = tools::repository().join(folder).join(name);
                assert!(path.exists(), "{folder} has no {name}");
            }
        }
    }
}
