//! `weir check`: problems with their positions, comparison with other files, and output for
//! programs.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::{folder_with, stderr, stdout, weir};
use crate::support::Weir;

#[test]
fn check_refuses_what_serve_tolerates_and_shows_the_line() {
    let text =
        "domain: d\ndescriptors:\n- key: a\n  unit: day\n- key: b\n  rate_limit: { unit: day }\n";
    let (_folder, path) = folder_with(&[("a.yaml", text)]);
    let output = weir(&["check", &path], &[]);
    assert_eq!(output.status.code(), Some(1), "{}", stdout(&output));
    let expected = format!(
        "{path}/a.yaml:4:3: error: 'unit' is next to 'key' and is ignored; indent it below \
         'rate_limit'\n    4 |   unit: day\n      |   ^\n\
         {path}/a.yaml:6:15: error: 'requests_per_unit' is missing, which means 0: every request \
         is refused; write 'requests_per_unit: ' and a number, even if it is 0\n    6 |   \
         rate_limit: {{ unit: day }}\n      |               ^\n2 errors, 0 warnings\n"
    );
    assert_eq!(stdout(&output), expected);
    let weir = Weir::start(&[("a.yaml", text)], &[]);
    let log = weir.logs().join("\n");
    assert!(
        log.contains(r#""warn","@message":"a.yaml:4:3: warning: 'unit' is next to"#),
        "a service tolerates it: {log}"
    );
    assert!(log.contains("limits loaded"), "{log}");
}

#[test]
fn check_prints_json_for_programs() {
    let limits = "domain: d\ndescriptors:\n- key: a\n  value: 10.0.0.0/8\n  rate_limit: { unit: \
        day, requests_per_unit: 1 }\n";
    let (_folder, path) = folder_with(&[("a.yaml", limits), ("README", "")]);
    let json = |arguments: &[&str]| {
        let output = weir(
            &[&["check", "--format", "json", &path], arguments].concat(),
            &[],
        );
        let text = stdout(&output);
        assert_eq!(text.lines().count(), 1, "{text}");
        (
            output.status.code(),
            serde_json::from_str::<serde_json::Value>(&text).expect("JSON"),
        )
    };
    let (code, found) = json(&[]);
    let problem = &found["problems"][0];
    assert_eq!(code, Some(0));
    assert_eq!(
        (
            problem["line"].as_u64(),
            problem["column"].as_u64(),
            problem["severity"].as_str(),
            problem["code"].as_str()
        ),
        (Some(4), Some(10), Some("warning"), Some("block-as-text"))
    );
    assert_eq!(problem["file"], format!("{path}/a.yaml"));
    assert!(
        problem["what"]
            .as_str()
            .is_some_and(|what| what.contains("looks like a block of addresses")),
        "{found}"
    );
    assert!(
        problem["remedy"]
            .as_str()
            .is_some_and(|remedy| remedy.contains("match: cidr")),
        "{found}"
    );
    assert_eq!(
        found["skipped"],
        serde_json::json!([format!("{path}/README")])
    );
    assert_eq!(
        found["summary"],
        serde_json::json!({"ok": true, "errors": 0, "warnings": 1, "limits": 1, "domains": 1})
    );
    let (code, found) = json(&["--strict"]);
    assert_eq!(
        (code, found["problems"][0]["severity"].as_str()),
        (Some(1), Some("error"))
    );
    assert_eq!(
        found["summary"],
        serde_json::json!({
            "ok": false, "errors": 1, "warnings": 0, "limits": null, "domains": null,
        })
    );
}

#[test]
fn check_reads_an_overlay() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder
        .path()
        .join("overlay.yaml")
        .to_string_lossy()
        .into_owned();
    let check = |text: &str, more: &[&str]| {
        fs::write(&file, text).expect("written");
        weir(&[&["check", "--overlay", &file], more].concat(), &[])
    };
    let right = "domains:\n- domain: d\n  descriptors:\n  - key: k\n    rate_limit: { algorithm: \
        token_bucket, burst: 5 }\n";
    let output = check(right, &["--strict"]);
    assert_eq!(
        (output.status.code(), stdout(&output)),
        (Some(0), "ok: an overlay of 2 entries\n".to_owned())
    );
    let output = check(&right.replace("burst", "brust"), &[]);
    let expected = format!(
        "{file}:5:44: error: unknown key 'brust' in rate_limit; write 'burst'\n    5 |     \
         rate_limit: {{ algorithm: token_bucket, brust: 5 }}\n      \
         |                                            ^\n1 error, 0 warnings\n"
    );
    assert_eq!((output.status.code(), stdout(&output)), (Some(1), expected));
    let output = check("", &["--format", "json"]);
    let found: serde_json::Value = serde_json::from_str(&stdout(&output)).expect("JSON");
    assert_eq!(
        (&found["summary"]["ok"], &found["summary"]["warnings"]),
        (&true.into(), &1.into())
    );
}

/// Old files that a service would have refused cannot be compared with; those of which it warns
/// can.
#[test]
fn check_compares_with_what_a_service_would_have_taken() {
    let (folder, _) = folder_with(&[
        (
            "new.yaml",
            "domain: d\ndescriptors:\n- key: kept\n  rate_limit: { unit: day, \
             requests_per_unit: 1 }\n",
        ),
        ("broken.yaml", "domain: d\ndescriptors:\n- kye: a\n"),
        (
            "tolerated.yaml",
            "domain: d\ndescriptors:\n- key: kept\n  unit: day\n",
        ),
    ]);
    let path = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
    let (new, broken, tolerated) = (
        path("new.yaml"),
        path("broken.yaml"),
        path("tolerated.yaml"),
    );
    let output = weir(&["check", &new, "--diff", &broken], &[]);
    assert_eq!(output.status.code(), Some(1), "{}", stdout(&output));
    assert!(
        stdout(&output).contains("broken.yaml:3:3: error: "),
        "{}",
        stdout(&output)
    );
    let output = weir(&["check", &new, "--strict", "--diff", &tolerated], &[]);
    assert!(
        stdout(&output).ends_with("; 1 added, 0 removed, 0 changed\n"),
        "{}",
        stdout(&output)
    );
    assert_eq!(
        weir(&["check", &broken, "--diff", &new], &[]).status.code(),
        Some(1)
    );
}

#[test]
fn check_compares_with_other_files() {
    let (folder, _) = folder_with(&[]);
    let write = |name: &str, text: &str| {
        fs::create_dir_all(folder.path().join(name)).expect("a folder");
        fs::write(folder.path().join(name).join("a.yaml"), text).expect("written");
        folder.path().join(name).to_string_lossy().into_owned()
    };
    let limit = |key: &str, per_day: u32| {
        format!("- key: {key}\n  rate_limit: {{ unit: day, requests_per_unit: {per_day} }}\n")
    };
    let head = "domain: d\ndescriptors:\n";
    let old = write(
        "old",
        &[
            head,
            &limit("kept", 1),
            &limit("changed", 1),
            &limit("removed", 1),
        ]
        .concat(),
    );
    let new = write(
        "new",
        &[
            head,
            &limit("kept", 1),
            &limit("changed", 2),
            &limit("added", 1),
        ]
        .concat(),
    );
    let output = weir(&["check", &new, "--diff", &old], &[]);
    let expected = "added: d.added (1 per day)\nremoved: d.removed (1 per day)\nchanged: \
        d.changed: rate 1 per day -> 2 per day\n\
                    ok: 3 limits in 1 domain; 1 added, 1 removed, 1 changed\n";
    assert_eq!(
        (output.status.code(), stdout(&output)),
        (Some(0), expected.to_owned())
    );
    let output = weir(
        &[
            "check",
            &new,
            "--diff",
            &format!("{old}/a.yaml"),
            "--format",
            "json",
        ],
        &[],
    );
    let found: serde_json::Value = serde_json::from_str(&stdout(&output)).expect("JSON");
    let diff = serde_json::json!({
        "added": [{"limit": "d.added", "amount": "1 per day"}],
        "removed": [{"limit": "d.removed", "amount": "1 per day"}],
        "changed": [{
            "limit": "d.changed",
            "fields": [{"field": "rate", "old": "1 per day", "new": "2 per day"}],
        }],
    });
    assert_eq!(found["diff"], diff);
}

/// A change whose counters start at zero looked like any other.
#[test]
fn check_names_what_starts_at_zero_and_fails_on_it() {
    let (folder, _) = folder_with(&[]);
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, text).expect("written");
        path.to_string_lossy().into_owned()
    };
    let usual = "domain: d\ndescriptors:\n- key: user\n  rate_limit: { unit: day, \
        requests_per_unit: 5 }\n";
    let old = write("old.yaml", usual);
    let zero = "; counters start at zero\n";
    for (from, to, resets) in [
        ("unit: 5", "unit: 6", false),
        ("day", "hour", true),
        ("domain: d", "domain: d\ncommit: all_or_none", true),
    ] {
        let new = write("new.yaml", &usual.replace(from, to));
        let output = weir(
            &["check", &new, "--diff", &old, "--fail-on", "removed,resets"],
            &[],
        );
        let (code, text) = (output.status.code(), stdout(&output));
        assert_eq!(
            (code, text.contains(zero)),
            (Some(i32::from(resets)), resets),
            "{to}: {text}"
        );
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(
            error.starts_with("weir: --fail-on resets: d.user: "),
            resets,
            "{error}"
        );
    }
    let table = usual.replace("- key: user", "- key: user\n  table: rows.csv");
    let [old, new] = ["old", "new"].map(|name| {
        fs::create_dir(folder.path().join(name)).expect("a folder");
        write(&format!("{name}/a.yaml"), &table);
        folder.path().join(name).to_string_lossy().into_owned()
    });
    for (unit, code) in [("day", 0), ("hour", 1)] {
        let rows = |unit: &str| format!("value,unit,requests_per_unit\nann,{unit},7\n");
        write("old/rows.csv", &rows("day"));
        write("new/rows.csv", &rows(unit));
        let output = weir(&["check", &new, "--diff", &old, "--fail-on", "resets"], &[]);
        assert_eq!(output.status.code(), Some(code), "{}", stdout(&output));
        assert_eq!(stdout(&output).contains(zero), code == 1);
    }
}

#[test]
fn check_reads_the_settings_of_serve_and_names_files_relative_to_the_current_folder() {
    let (folder, path) = folder_with(&[]);
    let check = |environment: &[(&str, &str)]| weir(&["check", &path], environment);
    let output = check(&[]);
    assert_eq!(
        output.status.code(),
        Some(1),
        "an empty folder limits nothing"
    );
    assert!(
        stdout(&output).starts_with(&format!("{path}: error: there are no files of limits")),
        "{}",
        stdout(&output)
    );

    let limits = |key: &str| {
        format!(
            "domain: d\ndescriptors: [{{ key: {key}, rate_limit: {{ unit: day, requests_per_unit: \
             1 }} }}]\n"
        )
    };
    fs::write(folder.path().join("a.yaml"), limits("a")).expect("written");
    assert_eq!(stdout(&check(&[])), "ok: 1 limit in 1 domain\n");
    fs::write(folder.path().join("b.yaml"), limits("b")).expect("written");
    let output = check(&[]);
    assert!(
        stdout(&output).starts_with(&format!("{path}/b.yaml:1:")),
        "{}",
        stdout(&output)
    );
    assert_eq!(
        stdout(&check(&[("MERGE_DOMAIN_CONFIG", "true")])),
        "ok: 2 limits in 1 domain\n"
    );
    assert_eq!(
        stdout(&weir(&["check", "--merge-domain-config", &path], &[])),
        "ok: 2 limits in 1 domain\n"
    );
    fs::write(folder.path().join(".c\n.yaml"), "domain: [").expect("written");
    let file = folder.path().join(".c\n.yaml");
    let output = weir(&["check", &file.to_string_lossy()], &[]);
    assert!(
        stdout(&output).starts_with(&format!("{path}/.c\\n.yaml:")),
        "{}",
        stdout(&output)
    );
}

const CHANGED: &str = "changed: shop.a: rate 1 per day -> 2 per day\n";

/// Lines of a shell in a repository, with the exit code, and parts of the output.
const REVISIONS: &[(&str, i32, &[&str])] = &[
    (
        "$weir check limits --diff HEAD",
        0,
        &[
            CHANGED,
            "added: new.a (1 per day)\n",
            "changed: tables.t: rows of limits/rows.csv: 1 added, 0 removed, 0 changed: bob",
            "1 added, 0 removed, 2",
        ],
    ),
    (
        "$weir check limits/ --diff origin/main --fail-on removed",
        0,
        &[CHANGED],
    ),
    (
        "cd limits; $weir check . --diff v1 --fail-on changed",
        1,
        &[CHANGED, "--fail-on changed: shop.a"],
    ),
    (
        "$weir check limits/shop.yaml limits/api.yaml limits/shop.yaml --diff HEAD",
        0,
        &[
            CHANGED,
            "ok: 2 limits in 2 domains; 0 added, 0 removed, 1 changed",
        ],
    ),
    (
        "cd limits; GIT_DIR=$PWD/../.git GIT_INDEX_FILE=.git/index $weir check shop.yaml --diff HEAD",
        0,
        &[CHANGED],
    ),
    (
        "$weir check limits/shop.yaml --diff nope",
        1,
        &[
            "nope: error: it is no path",
            "ot a valid object name",
            "or a revision that has PATHS",
        ],
    ),
    (
        "mkdir v1; cp limits/shop.yaml v1; $weir check limits/shop.yaml --diff v1",
        1,
        &["v1: error: it is a path, and a revision of git as well; write ./v1, or a full name"],
    ),
    (
        "$weir check limits/shop.yaml --diff ./v1 --fail-on changed; rm -r v1",
        0,
        &["0 added, 0 removed, 0 changed"],
    ),
    (
        "$weir check limits/shop.yaml --diff=-x",
        1,
        &["-x: error: it is no path"],
    ),
    (
        "mkdir /tmp/weir-$$; cp limits/shop.yaml /tmp/weir-$$; r=0; \
         $weir check /tmp/weir-$$ --diff HEAD || r=$?; rm -r /tmp/weir-$$; exit $r",
        1,
        &["not a git repository"],
    ),
    (
        "commit() { git add limits/api.yaml; git -c user.name=a -c user.email=a@a commit -qm 2; }; \
         echo 'domain: [' > limits/api.yaml; commit; git checkout -q HEAD~1 -- limits/api.yaml; \
         $weir check limits --diff HEAD; r=$?; commit; exit $r",
        1,
        &["HEAD:limits/api.yaml:", "error: "],
    ),
];

/// A repository with limits in one commit, and changes after it.
fn repository() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let limit = |domain: &str, amount: u32| {
        format!(
            "domain: {domain}\ndescriptors: [{{ key: a, rate_limit: {{ unit: day, \
             requests_per_unit: {amount} }} }}]\n"
        )
    };
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        fs::write(path, text).expect("written");
    };
    let table = "domain: tables\nplans: { p: { unit: day, requests_per_unit: 1 } }\ndescriptors: \
        [{ key: t, table: rows.csv }]\n";
    write("limits/shop.yaml", &limit("shop", 1));
    write("limits/api.yaml", &limit("api", 1));
    write("limits/table.yaml", table);
    write("limits/rows.csv", "value,plan\nann,p\n");
    write("outside.yaml", &limit("outside", 1));
    let (code, text) = in_folder(
        folder.path(),
        "git init -q -b main; git add -A; git -c user.name=a -c user.email=a@a commit -qm 1; git \
         update-ref refs/remotes/origin/main HEAD; git tag v1",
    );
    assert_eq!(code, Some(0), "{text}");
    write("limits/shop.yaml", &limit("shop", 2));
    write("limits/new.yaml", &limit("new", 1));
    write("limits/rows.csv", "value,plan\nann,p\nbob,p\n");
    folder
}

/// Runs a line of a shell in a folder; its exit code and its output.
fn in_folder(folder: &Path, line: &str) -> (Option<i32>, String) {
    let mut command = Command::new("bash");
    command.args(["-c", line]).current_dir(folder).env_clear();
    let temporary = folder.join("temporary");
    fs::create_dir_all(&temporary).expect("a folder");
    command.env("TMPDIR", &temporary).env("HOME", folder);
    command
        .env("PATH", "/usr/bin:/bin")
        .env("weir", env!("CARGO_BIN_EXE_weir"));
    let output = command.output().expect("a shell");
    let left = fs::read_dir(temporary).expect("a folder").count();
    assert_eq!(left, 0, "{line}: temporary files are left");
    (output.status.code(), stdout(&output) + &stderr(&output))
}

/// Compares a folder, several paths and a file with a revision of git.
#[test]
fn check_compares_with_a_revision_of_git() {
    let repository = repository();
    for (line, code, parts) in REVISIONS {
        let (status, text) = in_folder(repository.path(), line);
        assert_eq!(status, Some(*code), "{line}: {text}");
        for part in *parts {
            assert!(text.contains(part), "{line}: {part} is not in {text}");
        }
    }
}

/// Every command of the page runs, also in the files that it shows.
#[test]
fn the_commands_for_limits_in_git_run() {
    let repository = repository();
    let page = crate::support::tools::file("deploy/limits-in-git.md");
    let lines = page.lines().filter(|line| !line.contains('`'));
    let commands = lines.filter_map(|line| Some(&line[line.find("weir check --")?..]));
    let commands: Vec<_> = commands.collect();
    assert_eq!(commands.len(), 4, "{commands:?}");
    for command in commands {
        let (status, text) = in_folder(repository.path(), &command.replacen("weir", "$weir", 1));
        assert_eq!(status, Some(0), "{command}: {text}");
    }
}
