//! The paths of the programs that tests run beside Weir.
//!
//! `tests/run.sh` installs them and passes their paths in environment variables. Without it (a
//! plain `cargo test`) they are searched where it would have installed them. A missing program
//! fails the test with a message that names the remedy.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The folder of the repository.
pub fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A file of the repository, as text.
pub fn file(path: &str) -> String {
    std::fs::read_to_string(repository().join(path))
        .unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Envoy.
pub fn envoy() -> PathBuf {
    required("Envoy", "WEIR_TEST_ENVOY", "envoy-", "envoy")
}

/// kubernetes-validate, whose Python has the library that checks JSON against a schema.
pub fn kubernetes_validate() -> PathBuf {
    required(
        "kubernetes-validate",
        "WEIR_TEST_K8S_VALIDATE",
        "python",
        "bin/kubernetes-validate",
    )
}

/// promtool, which checks rules of Prometheus and evaluates them.
pub fn promtool() -> PathBuf {
    required("promtool", "WEIR_TEST_PROMTOOL", "prometheus", "promtool")
}

/// A program by its name in PATH, or by its path.
pub fn on_the_path(program: &str) -> PathBuf {
    in_path(program)
        .unwrap_or_else(|| panic!("{program} is missing: run tests/run.sh, which installs it"))
}

/// The binary that the tests of the image use, where `tests/deploy.sh` has built a static one.
pub fn image_binary() -> Option<PathBuf> {
    variable_value("WEIR_TEST_IMAGE_BINARY").map(PathBuf::from)
}

/// grpcurl; `None` only when `tests/run.sh` reported that it cannot be installed.
pub fn grpcurl() -> Option<PathBuf> {
    let variable = "WEIR_TEST_GRPCURL";
    (variable_value(variable).as_deref() != Some("none".as_ref()))
        .then(|| required("grpcurl", variable, "bin", "grpcurl-"))
}

#[expect(
    clippy::disallowed_methods,
    reason = "tests/run.sh passes paths to tests by variables"
)]
fn variable_value(variable: &str) -> Option<OsString> {
    std::env::var_os(variable)
}

/// The path in the variable; else `target/tools/FOLDER*/FILE*`, where a version may follow both
/// names; else the program in PATH.
fn required(name: &str, variable: &str, folder: &str, file: &str) -> PathBuf {
    if let Some(path) = variable_value(variable) {
        return PathBuf::from(path);
    }
    let (inner, file) = file.rsplit_once('/').unwrap_or(("", file));
    let installed = starting_with(&repository().join("target/tools"), folder)
        .and_then(|folder| starting_with(&folder.join(inner), file));
    installed
        .or_else(|| in_path(file.trim_end_matches('-')))
        .unwrap_or_else(|| panic!("{name} is missing: run tests/run.sh, which installs it"))
}

/// The path of a program in PATH, if it is there.
pub fn find(program: &str) -> Option<PathBuf> {
    in_path(program)
}

fn in_path(program: &str) -> Option<PathBuf> {
    let found = Command::new("sh")
        .args(["-c", "command -v \"$0\"", program])
        .output()
        .ok()?;
    found
        .status
        .success()
        .then(|| PathBuf::from(String::from_utf8_lossy(&found.stdout).trim()))
}

/// The last entry by name, which is the newer one of two versions in most cases.
fn starting_with(folder: &Path, prefix: &str) -> Option<PathBuf> {
    let entries = std::fs::read_dir(folder).ok()?.filter_map(Result::ok);
    entries
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix))
        .map(|entry| entry.path())
        .max()
}
