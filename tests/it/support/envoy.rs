//! A real Envoy process; it is killed when it is dropped.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use super::http_client;
use super::log::Log;
use super::tools;
use super::wait::eventually;

/// A running Envoy.
pub struct Envoy {
    child: Child,
    admin: SocketAddr,
    log: Log,
    _folder: TempDir,
}

impl Envoy {
    /// Starts Envoy with this configuration, whose admin listener has port 0. Returns when Envoy is
    /// ready for requests.
    pub fn start(configuration: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder for Envoy");
        let (file, address) = (
            folder.path().join("envoy.yaml"),
            folder.path().join("admin"),
        );
        std::fs::write(&file, configuration).expect("Envoy's configuration");
        let mut command = command(&file);
        command
            .args(["--concurrency", "1", "--admin-address-path"])
            .arg(&address);
        let mut child = command
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("cannot run Envoy: {error}"));
        let log = Log::follow(child.stderr.take().expect("stderr is piped"));
        let ready = eventually(|| {
            if child.try_wait().is_ok_and(|ended| ended.is_some()) {
                return Some(None);
            }
            let admin = std::fs::read_to_string(&address).ok()?.parse().ok()?;
            (http_client::get(admin, "/ready").status == 200).then_some(Some(admin))
        });
        let Some(Some(admin)) = ready else {
            let _ = child.kill();
            let _ = child.wait();
            panic!("Envoy does not start:\n{}\n{configuration}", log.text());
        };
        Self {
            child,
            admin,
            log,
            _folder: folder,
        }
    }

    /// The address of a listener.
    pub fn listener(&self, name: &str) -> SocketAddr {
        let listeners = self.admin_page("/listeners?format=json");
        let statuses = listeners["listener_statuses"]
            .as_array()
            .expect("Envoy lists its listeners");
        let status = statuses
            .iter()
            .find(|status| status["name"] == name)
            .unwrap_or_else(|| panic!("no listener {name} in {listeners}"));
        let socket = &status["local_address"]["socket_address"];
        let port = socket["port_value"]
            .as_u64()
            .and_then(|port| u16::try_from(port).ok())
            .expect("a port");
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    /// A counter or gauge of Envoy's statistics; 0 when it does not exist.
    pub fn stat(&self, name: &str) -> u64 {
        let page = self.text("/stats");
        page.lines()
            .find_map(|line| {
                line.split_once(": ")
                    .filter(|(stat, _)| *stat == name)?
                    .1
                    .parse()
                    .ok()
            })
            .unwrap_or(0)
    }

    /// The log: warnings and errors.
    pub fn log(&self) -> String {
        self.log.text()
    }

    /// A page of Envoy's admin listener.
    pub fn text(&self, path: &str) -> String {
        http_client::get(self.admin, path).body
    }

    /// Changes something by the admin listener.
    pub fn post(&self, path: &str) {
        let answer = http_client::post(self.admin, path, b"");
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
    }

    fn admin_page(&self, path: &str) -> Value {
        let page = self.text(path);
        serde_json::from_str(&page).unwrap_or_else(|error| panic!("{path}: {error} in {page}"))
    }
}

impl Drop for Envoy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        // The test runner shows it only when the test fails.
        println!("-- log of Envoy\n{}", self.log.text());
    }
}

/// Lets Envoy validate a configuration. Panics with Envoy's output when it is invalid or uses a
/// deprecated field.
pub fn validate(configuration: &str) {
    let folder = tempfile::tempdir().expect("a folder for Envoy");
    let file = folder.path().join("envoy.yaml");
    std::fs::write(&file, configuration).expect("Envoy's configuration");
    let output = command(&file)
        .args(["--mode", "validate"])
        .output()
        .unwrap_or_else(|error| panic!("cannot run Envoy: {error}"));
    let output_text = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && !output_text.contains("Deprecated field"),
        "Envoy refuses:\n{output_text}\n{configuration}"
    );
}

/// Replaces `old` in `text`. Panics unless `old` stands there exactly once, so that a test fails
/// when the file that it edits has changed.
pub fn with(text: &str, old: &str, new: &str) -> String {
    assert_eq!(
        text.matches(old).count(),
        1,
        "{old:?} must be in the configuration once:\n{text}"
    );
    text.replace(old, new)
}

fn command(file: &Path) -> Command {
    let mut command = Command::new(tools::envoy());
    // With hot restart, Envoys of tests that run at the same time would share memory.
    command
        .args(["--disable-hot-restart", "--log-level", "warning"])
        .args(["--file-flush-interval-msec", "50", "-c"])
        .arg(file)
        .env_clear()
        .stdin(Stdio::null());
    command
}
