//! Releases: `deploy/release.sh` on a copy of the repository, and the workflows of `.github`, whose
//! syntax `tests/deploy.sh` checks with actionlint.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

use super::{at, documents, printed, shell, text};
use crate::support::tools;

const BINARY: &str = env!("CARGO_BIN_EXE_weir");

/// The commands of deploy/release.sh.
pub(super) const COMMANDS: [&str; 6] = [
    "set-version",
    "check",
    "notes",
    "package",
    "sbom",
    "checksums",
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

/// A small program in the place of the binary, which takes a while to be compressed. Returns its
/// path.
pub(super) fn program(folder: &Path) -> String {
    let path = folder.join("program");
    fs::write(&path, format!("#!/bin/sh\nexec '{BINARY}' \"$@\"\n")).expect("written");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("executable");
    path.display().to_string()
}

/// Runs deploy/release.sh on a repository; it must succeed. Returns its output.
pub(super) fn run(repository: &Path, arguments: &[&str]) -> String {
    let output = script(repository, arguments);
    assert!(
        output.status.success(),
        "{arguments:?}: {}",
        printed(&output)
    );
    String::from_utf8(output.stdout).expect("text")
}

/// Runs it where it must fail; its message has `says`.
fn refuse(repository: &Path, arguments: &[&str], says: &str) {
    let output = script(repository, arguments);
    let is_named = !output.status.success() && printed(&output).contains(says);
    assert!(is_named, "{arguments:?}: {}", printed(&output));
}

/// A copy of the files that name the version.
fn copy() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let files = "Cargo.toml Cargo.lock CHANGELOG.md README.md RELEASING.md LICENSE config deploy \
        tests/it fuzz/Cargo.lock";
    let line = format!("cp -r --parents {files} '{}'", folder.path().display());
    shell(tools::repository(), &line);
    folder
}

const OLD: &str = env!("CARGO_PKG_VERSION");

/// Other mentions of the old version are those of dependencies, and history.
fn assert_no_old_version(repository: &Path) {
    let forms = [
        "weir:",
        "weir ",
        "weir-",
        "image.version=\"",
        "starts version=",
        "newTag: ",
        "ersion: ",
        "ersion: \"",
    ];
    let forms: String = forms
        .iter()
        .map(|form| format!(" -e '{form}{OLD}'"))
        .collect();
    let line = format!("! grep -rnF{forms} README.md RELEASING.md deploy tests/it");
    shell(repository, &line);
    let new = fs::read_to_string(repository.join("Cargo.lock")).expect("a file");
    let old = tools::file("Cargo.lock");
    let changed: Vec<_> = new
        .lines()
        .zip(old.lines())
        .filter(|(new, old)| new != old)
        .collect();
    assert_eq!(changed.len(), 1, "the others are dependencies: {changed:?}");
    assert_eq!(changed[0].0, "version = \"1.2.3\"");
}

#[test]
fn a_release_names_one_version_everywhere() {
    let folder = copy();
    let repository = folder.path();
    let changelog = repository.join("CHANGELOG.md");
    let write = |text: &str| fs::write(&changelog, text).expect("written");
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
        "deploy/helm/weir/Chart.yaml",
        "deploy/kubernetes/base/deployment.yaml",
    ] {
        assert!(
            changed.lines().any(|line| line == file),
            "{file} is not in\n{changed}"
        );
        let text = fs::read_to_string(repository.join(file)).expect(file);
        assert!(text.contains("1.2.3"), "{file}");
    }
    assert_no_old_version(repository);

    refuse(repository, &["check", "v1.2.3"], "## [1.2.3] - YYYY-MM-DD");
    let unreleased = "## [Unreleased]\n";
    let section = format!("{unreleased}\n## [1.2.3] - 2026-12-01\n");
    let text = tools::file("CHANGELOG.md").replacen(unreleased, &section, 1);
    write(&text);
    assert_eq!(run(repository, &["check", "v1.2.3"]), "ready: v1.2.3\n");
    let notes = run(repository, &["notes", "1.2.3"]);
    let is_section = notes.starts_with("### Added") && !notes.contains("\n## ");
    assert!(is_section, "{}", &notes[..80]);
    write(&format!(
        "{text}\n## [1.2.2] - 2026-11-01\n\n### Fixed\n\n- Old.\n"
    ));
    assert_eq!(
        run(repository, &["notes", "1.2.3"]),
        notes,
        "without the older version's"
    );
    assert_eq!(
        run(repository, &["notes", "1.2.2"]),
        "### Fixed\n\n- Old.\n"
    );
    write(&text.replace("2026-12-01", "soon"));
    refuse(repository, &["check", "v1.2.3"], "## [1.2.3] - YYYY-MM-DD");
    refuse(repository, &["check", "1.2.3"], "the tag is 1.2.3");
}

#[test]
fn an_archive_has_the_files_of_a_user_and_is_the_same_each_time() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = program(folder.path());
    let name = concat!("weir-", env!("CARGO_PKG_VERSION"), "-linux-arm64");
    for release in ["one", "two"] {
        let release = folder.path().join(release).display().to_string();
        run(
            tools::repository(),
            &["package", &program, "arm64", &release],
        );
    }
    let here = |line: &str| shell(folder.path(), line);
    here(&format!("cmp one/{name}.tar.gz two/{name}.tar.gz"));
    let listed = here(&format!(
        "tar --list --verbose --numeric-owner --file one/{name}.tar.gz"
    ));
    let is_of_the_commit = |line: &str| line.contains(" 0/0 ") && line.contains(" 2026-");
    assert!(
        listed.lines().all(is_of_the_commit),
        "owner and time:\n{listed}"
    );
    here(&format!("tar --extract --file one/{name}.tar.gz"));
    for file in [
        "LICENSE",
        "README.md",
        "CHANGELOG.md",
        "config/basic.yaml",
        "deploy/limits.schema.json",
    ] {
        assert!(folder.path().join(name).join(file).is_file(), "{file}");
    }
    here(&format!("{name}/weir check {name}/config"));

    let one = folder.path().join("one").display().to_string();
    run(tools::repository(), &["checksums", &one]);
    here("cd one && sha256sum --check SHA256SUMS");
    here(&format!(
        "cd one && echo other >{name}.tar.gz && ! sha256sum --check SHA256SUMS"
    ));
}

fn workflows() -> BTreeMap<&'static str, (String, Value)> {
    let read = |name: &'static str| {
        let file = format!(".github/workflows/{name}.yaml");
        (name, (tools::file(&file), documents(&file).remove(0)))
    };
    let files = fs::read_dir(tools::repository().join(".github/workflows"));
    let workflows: BTreeMap<_, _> = ["release", "tests", "weekly"].map(read).into();
    assert_eq!(
        workflows.len(),
        files.expect("a folder").count(),
        "all are checked"
    );
    workflows
}

fn jobs(workflow: &Value) -> &serde_json::Map<String, Value> {
    at(workflow, "/jobs").as_object().expect("jobs")
}

/// Actions are pinned by commits, with the version in a comment, and keep no token.
fn assert_action_is_pinned(source: &str, step: &Value, action: &str) {
    let (_, commit) = action.split_once('@').expect("a version");
    let is_commit = commit.len() == 40 && commit.bytes().all(|byte| byte.is_ascii_hexdigit());
    assert!(is_commit, "{action} is not pinned by commit");
    let mut lines = source.lines().filter(|line| line.contains(action));
    assert!(
        lines.all(|line| line.contains(" # v")),
        "{action} has no comment with its version"
    );
    let keeps_token =
        action.starts_with("actions/checkout@") && at(step, "/with/persist-credentials") != false;
    assert!(!keeps_token, "{step}");
}

/// Values go through the environment: that of an expression would be run as a part of the script.
fn assert_script_is_safe(script: &str) {
    assert!(!script.contains("${{"), "{script}");
    for word in script.split(|letter: char| letter.is_whitespace() || letter == '"') {
        let extension = Path::new(word).extension();
        let is_file = extension.is_some_and(|extension| extension == "sh" || extension == "yaml");
        if is_file || word.starts_with("deploy/helm/") {
            assert!(
                tools::repository().join(word).exists(),
                "there is no {word}"
            );
        }
    }
}

#[test]
fn workflows_have_the_least_rights_and_pinned_actions() {
    let workflows = workflows();
    let mut rights = BTreeSet::new();
    for (name, (source, workflow)) in &workflows {
        let all = at(workflow, "/permissions");
        assert_eq!(
            *all,
            serde_json::json!({}),
            "{name}: a job names its rights"
        );
        for (job_name, job) in jobs(workflow) {
            for (right, value) in at(job, "/permissions").as_object().expect("rights") {
                if value != "read" {
                    rights.insert((&**job_name, &**right));
                }
            }
            let ends = job.get("uses").is_some() || job["timeout-minutes"].is_u64();
            assert!(ends, "{name}: {job_name} has no timeout");
            for step in job
                .get("steps")
                .and_then(Value::as_array)
                .into_iter()
                .flatten()
            {
                if let Some(action) = step.get("uses").and_then(Value::as_str) {
                    assert_action_is_pinned(source, step, action);
                }
                assert_script_is_safe(step.get("run").and_then(Value::as_str).unwrap_or_default());
            }
        }
    }
    assert_eq!(rights, RIGHTS.into());
}

/// Nothing is published before the tests have passed, and the release is after everything else.
#[test]
fn a_release_waits_for_the_tests() {
    let workflows = workflows();
    let release = &workflows["release"].1;
    let needs = |name: &str| -> BTreeSet<&str> {
        let needs = at(release, &format!("/jobs/{name}/needs"));
        let list = needs.as_array().into_iter().flatten();
        list.chain([needs]).filter_map(Value::as_str).collect()
    };
    for (name, _) in RIGHTS {
        assert!(needs(name).contains("tests"), "{name} publishes");
    }
    let others = jobs(release)
        .keys()
        .map(String::as_str)
        .filter(|name| *name != "release");
    assert_eq!(needs("release"), others.collect());
    let called = text(release, "/jobs/tests/uses");
    assert_eq!(called, "./.github/workflows/tests.yaml");
    at(&workflows["tests"].1, "/on/workflow_call");
}

/// Binaries, image and tests use one compiler, and the binaries of the release are built in the
/// image's own base.
#[test]
fn workflows_and_dockerfile_use_one_compiler() {
    let workflows = workflows();
    let release = &workflows["release"].1;
    let base = text(release, "/jobs/binaries/container");
    let (image, digest) = base.split_once("@sha256:").expect("a digest");
    assert_eq!(digest.len(), 64);
    let from = format!("\nFROM --platform=$BUILDPLATFORM {base} AS build\n");
    assert!(tools::file("deploy/Dockerfile").contains(&from), "{from}");
    for (_, workflow) in workflows.values() {
        let version = text(workflow, "/env/RUST_VERSION");
        assert!(
            image.starts_with(&format!("rust:{version}-")),
            "{version} and {base}"
        );
    }
    let pinned = format!(
        "\ncyclonedx_version={}\n",
        text(release, "/env/CYCLONEDX_VERSION")
    );
    assert!(tools::file("tests/tools.sh").contains(&pinned), "{pinned}");
}
