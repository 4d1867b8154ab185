//! The commands of `deploy/README.md`, `deploy/envoy/README.md`, `deploy/install.md` and
//! `RELEASING.md`, as far as no container, no cluster and no long build is needed; and the unit of
//! systemd.

use std::path::Path;
use std::process::Command;

use super::{release, shell};
use crate::form::docs::{Shown, assert_shows, console};
use crate::support::{Weir, envoy, tools, weir};

const BINARY: &str = env!("CARGO_BIN_EXE_weir");

/// Runs one command of a page. `release` is a folder with the files of a release.
fn run(shown: &Shown, release: &Path) {
    let command = &*shown.command;
    let exists = |path: &str, folder: &Path| {
        let path = path.trim_end_matches("/*");
        assert!(folder.join(path).exists(), "{path} of `{command}`");
    };
    let exists_here = |path: &str| exists(path, tools::repository());
    // What needs containers or a long build is run by the workflow.
    let in_workflow = |part: &str| {
        let workflow = tools::file(".github/workflows/tests.yaml");
        assert!(
            workflow.contains(part),
            "no step of the workflow runs `{part}`"
        );
    };
    let words: Vec<_> = command.split_whitespace().collect();
    match words[..] {
        ["weir", ..] => {
            let line = command.replacen("weir", BINARY, 1);
            assert_shows(shown, &shell(tools::repository(), &line));
        }
        ["sha256sum" | "tar", ..] => assert_shows(shown, &shell(release, command)),
        [program, "--version"] if program.starts_with("weir-") => {
            assert_shows(shown, &shell(release, command));
        }
        ["gh", "attestation", "verify", archive, "--repo", _] => exists(archive, release),
        ["cargo", "install", ..]
        | ["docker", "compose", ..]
        | ["curl", ..]
        | ["deploy/build-image.sh"] => in_workflow(command),
        ["docker", "run", ref options @ .., image] => {
            assert_eq!(image, concat!("weir:", env!("CARGO_PKG_VERSION")));
            in_workflow(&format!("docker run {} ", options.join(" ")));
        }
        ["install", "-m", "755", source, _] | ["install", "-D", "-m", "644", "-t", _, source] => {
            exists(source, release);
        }
        ["systemctl", "enable", "--now", "weir"] => exists_here("deploy/systemd/weir.service"),
        // Releases run the scripts that build. tests/deploy/chart.py renders what helm gets, and
        // builds what kubectl gets.
        [
            script @ ("deploy/build-image.sh" | "deploy/build-binary.sh"),
            ..,
        ] => exists_here(script),
        ["helm", "install", _, path, ..]
        | ["helm", "upgrade", "--install", _, path, ..]
        | ["kubectl", "apply", "-k" | "-f", path]
        | ["install", "-m", "644", path, _]
        | [path @ ("tests/run.sh" | "tests/deploy.sh")]
        | [path @ "tests/faults.sh", "--all"] => exists_here(path),
        ["envoy", "-c", file] => envoy::validate(&tools::file(file)),
        // tests/it/deploy/release.rs runs these.
        ["deploy/release.sh", name, ..] => assert!(release::COMMANDS.contains(&name), "{name}"),
        ["helm", "test", _] | ["git", "commit" | "tag" | "push", ..] => {}
        _ => panic!("no test runs `{command}`"),
    }
}

#[test]
fn every_command_of_the_pages_runs() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = release::program(folder.path());
    let release = folder.path().join("release");
    let files = release.display().to_string();
    for arguments in [
        &["package", &program, "amd64", &files][..],
        &["checksums", &files],
    ] {
        release::run(tools::repository(), arguments);
    }
    for page in [
        "deploy/README.md",
        "deploy/envoy/README.md",
        "deploy/install.md",
        "RELEASING.md",
    ] {
        // Commands of a list are indented.
        let text: String = tools::file(page)
            .lines()
            .map(|line| format!("{}\n", line.strip_prefix("   ").unwrap_or(line)))
            .collect();
        let commands = console(&text);
        assert!(commands.len() > 6, "{page}: {}", commands.len());
        for shown in &commands {
            run(shown, &release);
        }
    }
}

#[test]
fn the_tables_of_files_name_what_is_there() {
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

/// A setting of the unit.
fn of_unit(name: &str) -> String {
    let unit = tools::file("deploy/systemd/weir.service");
    let mut values = unit
        .lines()
        .filter_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    values.next().expect("a value").to_owned()
}

/// The unit starts what the page installs, with a command line that Weir accepts.
#[test]
fn the_unit_of_systemd_starts_weir() {
    let start = of_unit("ExecStart");
    let words: Vec<_> = start.split(' ').collect();
    let (program, arguments) = words.split_first().expect("a program");
    let installed = format!("/weir {}/\n", program.trim_end_matches("/weir"));
    assert!(
        tools::file("deploy/install.md").contains(&installed),
        "{installed}"
    );
    let config = tools::repository().join("config").display().to_string();
    let here = arguments
        .iter()
        .map(|word| if *word == "/etc/weir" { &*config } else { word });
    let mut command = Command::new(BINARY);
    // Free ports, after the command.
    command.args(here).args(&weir::ARGUMENTS[1..]).env_clear();
    let mut weir = Weir::spawn(command, tempfile::tempdir().expect("a folder"));
    assert_eq!(weir.get("/healthcheck").0, 200);
    weir.signal("KILL");
    weir.wait();
    // DRAIN_DELAY and 10 s for requests in flight.
    let grace = of_unit("TimeoutStopSec").parse::<u32>();
    assert!(grace.is_ok_and(|seconds| seconds >= 15));
}
