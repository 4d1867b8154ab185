//! Releases: `deploy/release.sh` on a copy of the repository, the form of CHANGELOG.md, and the
//! workflows of `.github`, whose syntax `tests/deploy.sh` checks with actionlint.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

use super::{at, documents, items, text};
use crate::support::tools;

/// The commands of deploy/release.sh.
pub(super) const COMMANDS: [&str; 6] = [
    "set-version",
    "check",
    "notes",
    "package",
    "sbom",
    "checksums",
];

/// The kinds of changes. Source: Keep a Changelog 1.1.0.
const KINDS: [&str; 6] = [
    "Added",
    "Changed",
    "Deprecated",
    "Removed",
    "Fixed",
    "Security",
];

/// Every right beyond reading that a job has.
const RIGHTS: [(&str, &str); 5] = [
    ("chart", "packages"),
    ("image", "packages"),
    ("release", "attestations"),
    ("release", "contents"),
    ("release", "id-token"),
];

fn script(repository: &Path, arguments: &[&str]) -> Output {
    let mut script = Command::new(tools::repository().join("deploy/release.sh"));
    script
        .args(arguments)
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .env("SOURCE_DATE_EPOCH", "1790000000");
    script
        .env("WEIR_RELEASE_ROOT", repository)
        .output()
        .expect("it runs")
}

fn printed(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr[..]].concat()).into_owned()
}

/// Runs deploy/release.sh on a repository; it must succeed. Returns what it prints.
pub(super) fn run(repository: &Path, arguments: &[&str]) -> String {
    let output = script(repository, arguments);
    assert!(
        output.status.success(),
        "{arguments:?}: {}",
        printed(&output)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Runs it where it must fail; its message has `says`.
fn refuse(repository: &Path, arguments: &[&str], says: &str) {
    let output = script(repository, arguments);
    assert!(
        !output.status.success() && printed(&output).contains(says),
        "{arguments:?}: {}",
        printed(&output)
    );
}

/// A copy of the files that name the version.
fn copy() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let files = [
        "Cargo.toml",
        "Cargo.lock",
        "CHANGELOG.md",
        "README.md",
        "RELEASING.md",
        "LICENSE",
        "config",
        "deploy",
        "tests/it",
        "fuzz/Cargo.lock",
    ];
    let copied = Command::new("cp")
        .args(["-r", "--parents"])
        .args(files)
        .arg(folder.path())
        .current_dir(tools::repository())
        .status();
    assert!(copied.is_ok_and(|status| status.success()));
    folder
}

/// What is left names other things: dependencies of that version, and history.
fn assert_no_old_version(repository: &Path) {
    const OLD: &str = env!("CARGO_PKG_VERSION");
    let read = |file: &str| fs::read_to_string(repository.join(file)).expect(file);
    let forms = [
        "weir:",
        "weir ",
        "weir-",
        "image.version=\"",
        "starts version=",
        "newTag: ",
        "ersion: ",
        "ersion: \"",
    ]
    .map(|form| form.to_owned() + OLD);
    let mut left = Command::new("grep");
    left.args(["--recursive", "--line-number", "--fixed-strings"])
        .args(forms.iter().flat_map(|form| ["-e", form.as_str()]));
    let left = left
        .args(["README.md", "RELEASING.md", "deploy", "tests/it"])
        .current_dir(repository)
        .output()
        .expect("grep runs");
    assert_eq!(String::from_utf8_lossy(&left.stdout), "", "old versions");
    let own: Vec<_> = read("Cargo.lock")
        .lines()
        .zip(tools::file("Cargo.lock").lines())
        .filter(|(new, old)| new != old)
        .map(|(new, _)| new.to_owned())
        .collect();
    assert_eq!(own, ["version = \"1.2.3\""], "the others are dependencies");
}

#[test]
fn a_release_names_one_version_everywhere() {
    const OLD: &str = env!("CARGO_PKG_VERSION");
    let folder = copy();
    let repository = folder.path();
    let read = |file: &str| fs::read_to_string(repository.join(file)).expect(file);
    refuse(
        repository,
        &["check", "v1.2.3"],
        "deploy/release.sh set-version 1.2.3",
    );
    refuse(repository, &["set-version", "1.2"], "is no version");
    refuse(repository, &["set-version", OLD], "already");

    let changed = run(repository, &["set-version", "1.2.3"]);
    for file in [
        "Cargo.toml",
        "Cargo.lock",
        "fuzz/Cargo.lock",
        "README.md",
        "deploy/Dockerfile",
        "deploy/compose.yaml",
        "deploy/kubernetes/base/deployment.yaml",
    ] {
        assert!(
            changed.lines().any(|line| line == file),
            "{file} is not in\n{changed}"
        );
        assert!(read(file).contains("1.2.3"), "{file}");
    }
    assert_no_old_version(repository);

    refuse(repository, &["check", "v1.2.3"], "## [1.2.3] - YYYY-MM-DD");
    let changelog = read("CHANGELOG.md").replacen(
        "## [Unreleased]\n",
        "## [Unreleased]\n\n## [1.2.3] - 2026-12-01\n",
        1,
    );
    fs::write(repository.join("CHANGELOG.md"), &changelog).expect("written");
    assert_eq!(run(repository, &["check", "v1.2.3"]), "ready: v1.2.3\n");
    let notes = run(repository, &["notes", "1.2.3"]);
    assert!(
        notes.starts_with("### Added") && !notes.contains("\n## "),
        "{}",
        &notes[..80]
    );
    let older = "\n## [1.2.2] - 2026-11-01\n\n### Fixed\n\n- Old.\n";
    fs::write(repository.join("CHANGELOG.md"), changelog.clone() + older).expect("written");
    assert_eq!(
        run(repository, &["notes", "1.2.3"]),
        notes,
        "without the older version's"
    );
    assert_eq!(
        run(repository, &["notes", "1.2.2"]),
        "### Fixed\n\n- Old.\n"
    );
    fs::write(
        repository.join("CHANGELOG.md"),
        changelog.replace("2026-12-01", "soon"),
    )
    .expect("written");
    refuse(repository, &["check", "v1.2.3"], "## [1.2.3] - YYYY-MM-DD");
    refuse(repository, &["check", "1.2.3"], "the tag is 1.2.3");
}

/// `checksums` writes those of the files of a folder, and a changed file does not have them.
fn checksums_are_those_of(folder: &Path, archive: &Path) {
    run(
        tools::repository(),
        &["checksums", &folder.to_string_lossy()],
    );
    let verify = || {
        Command::new("sha256sum")
            .args(["--check", "SHA256SUMS"])
            .current_dir(folder)
            .output()
            .expect("it runs")
    };
    assert!(verify().status.success(), "{}", printed(&verify()));
    fs::write(archive, "other").expect("written");
    assert!(
        !verify().status.success(),
        "the checksums are those of the files"
    );
}

#[test]
fn what_is_no_release_is_refused() {
    let binary = env!("CARGO_BIN_EXE_weir");
    refuse(
        tools::repository(),
        &["package", "Cargo.toml", "amd64", "x"],
        "is no program",
    );
    refuse(
        tools::repository(),
        &["package", binary, "mips", "x"],
        "is no architecture",
    );
    refuse(
        tools::repository(),
        &["publish"],
        "deploy/release.sh package",
    );
}

#[test]
fn an_archive_holds_what_a_user_needs_and_is_the_same_each_time() {
    let folder = tempfile::tempdir().expect("a folder");
    let binary = env!("CARGO_BIN_EXE_weir");
    let name = concat!("weir-", env!("CARGO_PKG_VERSION"), "-linux-arm64");
    let archive = |release: &str| folder.path().join(release).join(format!("{name}.tar.gz"));
    for release in ["one", "two"] {
        run(
            tools::repository(),
            &[
                "package",
                binary,
                "arm64",
                &folder.path().join(release).to_string_lossy(),
            ],
        );
    }
    assert_eq!(
        fs::read(archive("one")).expect("a file"),
        fs::read(archive("two")).expect("a file")
    );
    let tar = |arguments: &[&str]| {
        let output = Command::new("tar")
            .args(arguments)
            .arg(archive("one"))
            .current_dir(folder.path())
            .output()
            .expect("tar runs");
        assert!(output.status.success(), "{}", printed(&output));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let listed = tar(&["--list", "--verbose", "--numeric-owner", "--file"]);
    assert!(
        listed
            .lines()
            .all(|line| line.contains(" 0/0 ") && line.contains(" 2026-")),
        "owner and time of the commit:\n{listed}"
    );
    tar(&["--extract", "--file"]);
    let inside = folder.path().join(name);
    for file in [
        "weir",
        "LICENSE",
        "README.md",
        "CHANGELOG.md",
        "config/basic.yaml",
    ] {
        assert!(inside.join(file).is_file(), "{file}");
    }
    let output = Command::new(inside.join("weir"))
        .arg("check")
        .arg(inside.join("config"))
        .output()
        .expect("it runs");
    assert!(output.status.success(), "{}", printed(&output));

    checksums_are_those_of(&folder.path().join("one"), &archive("one"));
}

#[test]
fn the_changelog_has_the_usual_form() {
    let text = tools::file("CHANGELOG.md");
    let (head, _) = text.split_once("\n## ").expect("a section");
    for link in [
        "https://keepachangelog.com/en/1.1.0/",
        "https://semver.org/spec/v2.0.0.html",
    ] {
        assert!(head.contains(link), "{link}");
    }
    let versions: Vec<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("## "))
        .collect();
    assert_eq!(versions[0], "[Unreleased]");
    let mut last = None;
    for version in &versions[1..] {
        let (number, date) = version
            .strip_prefix('[')
            .and_then(|rest| rest.split_once("] - "))
            .unwrap_or_else(|| panic!("{version}"));
        let number: Vec<u32> = number
            .split('-')
            .next()
            .expect("a number")
            .split('.')
            .map(|part| part.parse().expect("a number"))
            .collect();
        let digits: String = date
            .chars()
            .map(|letter| if letter.is_ascii_digit() { '0' } else { letter })
            .collect();
        assert!(number.len() == 3 && digits == "0000-00-00", "{version}");
        assert!(
            last.as_ref().is_none_or(|newer| *newer > number),
            "{version} is not older than the one above"
        );
        last = Some(number);
    }
    for section in text.split("\n## ").skip(1) {
        let kinds: Vec<&str> = section
            .lines()
            .filter_map(|line| line.strip_prefix("### "))
            .collect();
        let places: Vec<_> = kinds
            .iter()
            .map(|kind| {
                KINDS
                    .iter()
                    .position(|known| known == kind)
                    .unwrap_or_else(|| panic!("### {kind} is none of {KINDS:?}"))
            })
            .collect();
        assert!(
            !places.is_empty() && places.is_sorted_by(|one, other| one < other),
            "{kinds:?}: each once, in the order of {KINDS:?}"
        );
    }
}

fn workflows() -> BTreeMap<String, (String, Value)> {
    let read = |name: &str| {
        let file = format!(".github/workflows/{name}.yaml");
        (
            name.to_owned(),
            (tools::file(&file), documents(&file).remove(0)),
        )
    };
    let files = fs::read_dir(tools::repository().join(".github/workflows"))
        .expect("a folder")
        .count();
    let workflows: BTreeMap<_, _> = ["release", "tests", "weekly"].map(read).into();
    assert_eq!(workflows.len(), files, "all are checked");
    workflows
}

fn jobs(workflow: &Value) -> impl Iterator<Item = (&str, &Value)> {
    at(workflow, "/jobs")
        .as_object()
        .expect("jobs")
        .iter()
        .map(|(name, job)| (name.as_str(), job))
}

fn steps(job: &Value) -> &[Value] {
    if job.get("steps").is_some() {
        items(job, "/steps")
    } else {
        &[]
    }
}

#[test]
fn workflows_have_the_least_rights_and_pinned_actions() {
    let mut rights = BTreeSet::new();
    for (name, (source, workflow)) in &workflows() {
        assert_eq!(
            at(workflow, "/permissions"),
            &serde_json::json!({}),
            "{name}: nothing, unless a job says so"
        );
        for (job_name, job) in jobs(workflow) {
            for (right, value) in at(job, "/permissions").as_object().expect("rights") {
                if value != "read" {
                    assert_eq!(value, "write", "{name}: {job_name}");
                    rights.insert((job_name.to_owned(), right.clone()));
                }
            }
            assert!(
                job.get("uses").is_some() || job["timeout-minutes"].as_u64().is_some(),
                "{name}: {job_name} has no timeout"
            );
            for step in steps(job) {
                if let Some(action) = step.get("uses").map(|_| text(step, "/uses")) {
                    let (_, commit) = action.split_once('@').expect("a version");
                    let is_commit =
                        commit.len() == 40 && commit.bytes().all(|byte| byte.is_ascii_hexdigit());
                    assert!(is_commit, "{name}: {action} is not pinned by commit");
                    let line = source
                        .lines()
                        .find(|line| line.contains(action))
                        .expect("its line");
                    assert!(
                        line.contains(" # v"),
                        "{name}: {action} does not say which version it is"
                    );
                    if action.starts_with("actions/checkout@") {
                        assert_eq!(
                            at(step, "/with/persist-credentials"),
                            false,
                            "{name}: {job_name}"
                        );
                    }
                }
                // The value of an expression would be run as a part of the script. Values go
                // through the environment.
                let script = step.get("run").map_or("", |_| text(step, "/run"));
                assert!(!script.contains("${{"), "{name}: {job_name}: {script}");
                for word in script.split(|letter: char| letter.is_whitespace() || letter == '"') {
                    let is_file = Path::new(word)
                        .extension()
                        .is_some_and(|extension| extension == "sh" || extension == "yaml");
                    if is_file || word.starts_with("deploy/helm/") {
                        assert!(
                            tools::repository().join(word).exists(),
                            "{name}: there is no {word}"
                        );
                    }
                }
            }
        }
    }
    let rights: Vec<_> = rights
        .iter()
        .map(|(job, right)| (job.as_str(), right.as_str()))
        .collect();
    assert_eq!(rights, RIGHTS);
}

/// Nothing is published before the tests have passed, and everything is there before the release
/// is.
#[test]
fn a_release_waits_for_the_tests() {
    let workflows = workflows();
    let release = &workflows["release"].1;
    let needs = |name: &str| -> Vec<&str> {
        let needs = at(release, &format!("/jobs/{name}/needs"));
        needs.as_array().map_or_else(
            || vec![needs.as_str().expect("a job")],
            |all| all.iter().filter_map(Value::as_str).collect(),
        )
    };
    for (name, _) in RIGHTS {
        assert!(needs(name).contains(&"tests"), "{name} publishes");
    }
    let others: BTreeSet<_> = jobs(release)
        .map(|(name, _)| name)
        .filter(|name| *name != "release")
        .collect();
    assert_eq!(
        needs("release").into_iter().collect::<BTreeSet<_>>(),
        others
    );
    assert_eq!(
        text(release, "/jobs/tests/uses"),
        "./.github/workflows/tests.yaml"
    );
    assert!(
        workflows["tests"]
            .1
            .pointer("/on")
            .and_then(Value::as_object)
            .is_some_and(|on| on.contains_key("workflow_call"))
    );
}

/// Binaries, image and tests use one compiler, and the binaries of the release are built in the
/// image's own base.
#[test]
fn workflows_and_dockerfile_use_one_compiler() {
    let workflows = workflows();
    let from = &super::dockerfile::stages()[0][0].1;
    let base = from
        .split(' ')
        .find(|word| word.starts_with("rust:"))
        .expect("a base");
    assert_eq!(
        text(&workflows["release"].1, "/jobs/binaries/container"),
        base
    );
    for (_, workflow) in workflows.values() {
        let version = text(workflow, "/env/RUST_VERSION");
        assert!(
            base.starts_with(&format!("rust:{version}-")),
            "{version} and {base}"
        );
    }
    let ours = tools::file("tests/tools.sh");
    let pinned = ours
        .lines()
        .find_map(|line| line.strip_prefix("cyclonedx_version="))
        .expect("a version");
    assert_eq!(
        text(&workflows["release"].1, "/env/CYCLONEDX_VERSION"),
        pinned
    );
}
