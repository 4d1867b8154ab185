//! Where the programs are that tests run beside Weir.
//!
//! `tests/run.sh` installs them and says where by the environment; without it (a plain `cargo test`) they are looked for where it would have
//! put them. A missing one is a failure that says what to do, never a silent pass.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The package's own folder.
pub fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A file of the repository, as text.
pub fn file(path: &str) -> String {
    std::fs::read_to_string(repository().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Envoy itself.
pub fn envoy() -> PathBuf {
    needed("Envoy", "WEIR_TEST_ENVOY", "envoy-", "envoy")
}

/// Checks manifests against the published schemas of Kubernetes.
pub fn kubernetes_validate() -> PathBuf {
    needed("kubernetes-validate", "WEIR_TEST_K8S_VALIDATE", "python", "bin/kubernetes-validate")
}

/// `None` only where `tests/run.sh` said that it cannot be had.
pub fn grpcurl() -> Option<PathBuf> {
    unless_told_none("grpcurl", "WEIR_TEST_GRPCURL")
}

/// `None` only where `tests/run.sh` said that it cannot be had.
pub fn kustomize() -> Option<PathBuf> {
    unless_told_none("kustomize", "WEIR_TEST_KUSTOMIZE")
}

fn unless_told_none(name: &str, variable: &str) -> Option<PathBuf> {
    (told(variable).as_deref() != Some("none".as_ref())).then(|| needed(name, variable, "bin", &format!("{name}-")))
}

#[expect(clippy::disallowed_methods, reason = "how tests/run.sh speaks to tests")]
fn told(variable: &str) -> Option<OsString> {
    std::env::var_os(variable)
}

/// By the variable; or in `target/tools/FOLDER*/FILE*`, where versions may follow both names; or on the path.
fn needed(name: &str, variable: &str, folder: &str, file: &str) -> PathBuf {
    if let Some(path) = told(variable) {
        return PathBuf::from(path);
    }
    let (inner, file) = file.rsplit_once('/').unwrap_or(("", file));
    let installed = starting_with(&repository().join("target/tools"), folder).and_then(|folder| starting_with(&folder.join(inner), file));
    let on_the_path = || {
        let program = file.trim_end_matches('-');
        let found = Command::new("sh").args(["-c", "command -v \"$0\"", program]).output().ok()?;
        found.status.success().then(|| PathBuf::from(String::from_utf8_lossy(&found.stdout).trim()))
    };
    installed.or_else(on_the_path).unwrap_or_else(|| panic!("{name} is missing: run tests/run.sh, which installs it"))
}

/// The last by name, so that of two versions the newer is likely to be taken.
fn starting_with(folder: &Path, prefix: &str) -> Option<PathBuf> {
    let entries = std::fs::read_dir(folder).ok()?.filter_map(Result::ok);
    entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix)).map(|entry| entry.path()).max()
}
