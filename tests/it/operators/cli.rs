//! The command line as its users see it: one file per command. Here is what concerns all of them:
//! arguments, help and output.

mod check;
mod envoy;
mod explain;
mod health;
mod hit;
mod serve;

use std::fs;
use std::process::{Command, Output};

use tempfile::TempDir;

/// Runs the built binary to its end, with these environment variables only.
pub fn weir(arguments: &[&str], environment: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command
        .env_clear()
        .envs(environment.iter().copied())
        .args(arguments)
        .current_dir(env!("CARGO_MANIFEST_DIR"));
    command.output().expect("the binary runs")
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A temporary folder with these files (name, text), and its path.
pub fn folder_with(files: &[(&str, &str)]) -> (TempDir, String) {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, text) in files {
        fs::write(folder.path().join(name), text).expect("written");
    }
    let path = folder.path().to_string_lossy().into_owned();
    (folder, path)
}

/// Runs a shell line in which `weir` is the built binary; its exit code and stderr.
fn shell(line: &str) -> (Option<i32>, String) {
    let mut command = Command::new("bash");
    command
        .args(["-c", line])
        .env("weir", env!("CARGO_BIN_EXE_weir"))
        .current_dir(env!("CARGO_MANIFEST_DIR"));
    let output = command.output().expect("a shell");
    (output.status.code(), stderr(&output))
}

#[test]
fn help_and_version_succeed() {
    for arguments in [
        &["--help"][..],
        &["--version"],
        &["serve", "--help"],
        &["check", "--help"],
        &["hit", "-h"],
        &["envoy", "--help"],
        &["envoy", "-h"],
        &["help"],
        &["help", "serve"],
    ] {
        let output = weir(
            arguments,
            &[
                ("REDIS_AUTH", "hunter2"),
                ("REDIS_URL", "redis://:hunter2@h"),
            ],
        );
        assert!(output.status.success(), "{arguments:?}");
        assert!(
            !stdout(&output).contains("hunter2"),
            "{arguments:?} shows a secret"
        );
        assert!(
            !stdout(&output).contains('\u{1b}'),
            "colours are for terminals only: {arguments:?}"
        );
    }
    assert_eq!(
        stdout(&weir(&["help"], &[])),
        stdout(&weir(&["--help"], &[]))
    );
    assert!(
        stdout(&weir(&["help"], &[])).contains("Usage: weir [COMMAND] [OPTIONS]\n"),
        "the command is optional"
    );
}

/// Each shell takes its script, where it is installed; each script knows the commands and their
/// flags.
#[test]
fn completions_are_scripts_of_their_shells() {
    for name in ["bash", "zsh", "fish"] {
        let output = weir(&["completions", name], &[]);
        let script = stdout(&output);
        assert!(output.status.success(), "{}", stderr(&output));
        for word in [
            "check",
            "hit",
            "envoy",
            "health",
            "size",
            "timeout-ms",
            "grpc-port",
        ] {
            assert!(script.contains(word), "{name}: no {word}");
        }
        let file = tempfile::NamedTempFile::new().expect("a file");
        fs::write(file.path(), &script).expect("written");
        if let Ok(parsed) = Command::new(name).arg("-n").arg(file.path()).output() {
            assert!(parsed.status.success(), "{name}: {}", stderr(&parsed));
        }
    }
}

/// `script` of util-linux runs a command on a terminal of its own.
#[test]
fn colours_are_for_terminals_without_no_color() {
    let on_a_terminal = |environment: &str| {
        let line = format!(
            "TERM=xterm {environment} script -qec '\"$weir\" check config' /dev/null </dev/null"
        );
        let mut command = Command::new("bash");
        command
            .args(["-c", &line])
            .env("weir", env!("CARGO_BIN_EXE_weir"))
            .env_remove("NO_COLOR");
        stdout(
            &command
                .current_dir(env!("CARGO_MANIFEST_DIR"))
                .output()
                .expect("a shell"),
        )
    };
    if !on_a_terminal("").contains("20 limits") {
        eprintln!("not tested: there is no `script` of util-linux");
        return;
    }
    assert!(on_a_terminal("").contains("\u{1b}[1;32mok\u{1b}[0m: 20 limits"));
    for environment in ["NO_COLOR=1", "TERM=dumb"] {
        assert!(
            !on_a_terminal(environment).contains('\u{1b}'),
            "{environment}"
        );
    }
}

#[test]
fn a_closed_or_full_output_does_not_panic() {
    let full = "weir: stdout cannot be written: No space left on device (os error 28)\n";
    for command in ["check config", "--help", "check --help", "--version"] {
        let run = |redirection: &str| shell(&format!("\"$weir\" {command} {redirection}"));
        assert_eq!(run(">/dev/full"), (Some(1), full.to_owned()), "{command}");
        assert_eq!(
            run(">/dev/full 2>&1"),
            (Some(1), String::new()),
            "{command}"
        );
        assert_eq!(run(">&- 2>&-").0, Some(0), "{command}");
        // The reader exits before the first byte is written.
        let (code, text) = shell(&format!(
            "{{ sleep 0.2; \"$weir\" {command}; }} | true; exit ${{PIPESTATUS[0]}}"
        ));
        assert_eq!((code, text.as_str()), (Some(0), ""), "{command}");
    }
    assert_eq!(shell("\"$weir\" --no-such-flag 2>/dev/full").0, Some(2));
    assert_eq!(shell("\"$weir\" --redis-type x 2>/dev/full").0, Some(2));
}
