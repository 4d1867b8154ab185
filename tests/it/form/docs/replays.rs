//! The examples of `weir replay`, run in a folder with the traces that config/replay.md shows, the
//! access log of `deploy/envoy`, the limits of `config/`, and `next/`, in which a client may send 10
//! requests a minute instead of 20.

use std::fs;
use std::process::Command;

use super::{Shown, WEIR, assert_shows};
use crate::support::tools;

pub fn assert_replays(shown: &Shown) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    for name in ["config", "next"] {
        fs::create_dir(path(name)).expect("a folder");
        for file in fs::read_dir(tools::repository().join("config")).expect("config/") {
            let file = file.expect("a file");
            fs::copy(file.path(), path(name).join(file.file_name())).expect("copied");
        }
    }
    let limits = tools::file("config/basic.yaml");
    let lower = limits.replacen("requests_per_unit: 20\n", "requests_per_unit: 10\n", 1);
    assert_ne!(limits, lower);
    fs::write(path("next/basic.yaml"), lower).expect("written");
    let page = tools::file("config/replay.md");
    let log = "deploy/envoy/access.log";
    fs::create_dir_all(path("deploy/envoy")).expect("a folder");
    fs::write(path(log), tools::file(log)).expect("written");
    for (kind, name) in [("json", "trace.jsonl"), ("csv", "trace.csv")] {
        let block = page.split(&format!("```{kind}\n")).nth(1);
        let block = block.and_then(|rest| rest.split("```").next());
        fs::write(path(name), block.expect("the page shows a trace")).expect("written");
    }
    let output = Command::new("sh")
        .args(["-c", &shown.command.replacen("weir", WEIR, 1)])
        .current_dir(folder.path())
        .output()
        .expect("a shell");
    assert_shows(shown, &String::from_utf8_lossy(&output.stdout));
}
