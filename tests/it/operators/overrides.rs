//! Overrides through the commands and the real socket: two replicas and one Redis, files, every
//! algorithm, and what goes wrong.

mod access;
mod additions;
mod addresses;
mod commands;
mod ended;
mod give_backs;
mod many;
mod redis;
mod reservations;
mod resets;

use std::path::PathBuf;
use std::process::{Command, Output};

use tempfile::TempDir;
use weir::core::proto::RateLimitResponse;
use weir::core::proto::rate_limit_response::Code;

use crate::support::{Client, Weir, ask, descriptor_with_hits};

/// Limits per year, so that no window ends while a test runs.
const LIMITS: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: { unit: year, requests_per_unit: 2 }
  - key: vip
    rate_limit: { unit: year, requests_per_unit: 2, name: vip, on_store_failure: allow }
  - key: free
    rate_limit: { unlimited: true }
  - key: log
    rate_limit: { unit: hour, requests_per_unit: 2, algorithm: sliding_window_log }
  - key: region
    value: \"eu-*\"
    share_threshold: true
    rate_limit: { unit: year, requests_per_unit: 2 }
";

/// A file with a token, and the variables of a service that accepts it.
struct Desk {
    folder: TempDir,
}

impl Desk {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(
            folder.path().join("tokens"),
            "alice:0123456789abcdef0123\nbob:fedcba98765432100123\n",
        )
        .expect("written");
        std::fs::write(folder.path().join("token"), "0123456789abcdef0123\n").expect("written");
        Self { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A service with these limits and variables.
    fn start(&self, limits: &str, environment: &[(&str, &str)]) -> Weir {
        let tokens = self.path("tokens");
        let tokens = [("ADMIN_TOKEN_FILE", tokens.to_str().expect("UTF-8"))];
        Weir::start(
            &[("limits.yaml", limits)],
            &[&tokens[..], environment].concat(),
        )
    }

    /// Runs a command against a service, as alice.
    fn weir(&self, service: &Weir, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        command
            .env_clear()
            .args(arguments)
            .env("TZ", "UTC")
            .current_dir(env!("CARGO_MANIFEST_DIR"));
        command
            .env("WEIR_ADMIN", service.listener("debug").to_string())
            .env("WEIR_ADMIN_TOKEN_FILE", self.path("token"));
        command.output().expect("the binary runs")
    }

    /// The same, which has to succeed: its stdout.
    fn ok(&self, service: &Weir, arguments: &[&str]) -> String {
        let output = self.weir(service, arguments);
        assert!(
            output.status.success(),
            "{arguments:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).expect("UTF-8")
    }

    /// The same, which has to fail: its stderr, after the address.
    fn fails(&self, service: &Weir, arguments: &[&str]) -> String {
        let output = self.weir(service, arguments);
        assert!(
            !output.status.success(),
            "{arguments:?}: {}",
            String::from_utf8_lossy(&output.stdout)
        );
        let address = format!("weir: {}: ", service.listener("debug"));
        String::from_utf8(output.stderr)
            .expect("UTF-8")
            .replace(&address, "")
    }
}

async fn call(
    client: &mut Client,
    domain: &str,
    key: &str,
    value: &str,
    hits: i64,
) -> RateLimitResponse {
    ask(
        client,
        domain,
        vec![descriptor_with_hits(&[(key, value)], hits)],
    )
    .await
}

async fn code(client: &mut Client, key: &str, value: &str, hits: i64) -> Code {
    call(client, "shop", key, value, hits).await.overall_code()
}

/// The id in the output of a command that sets an override.
fn id_of(output: &str) -> String {
    let line = output
        .lines()
        .find(|line| line.starts_with("  undo    weir un"))
        .and_then(|line| line.split(' ').next_back());
    line.unwrap_or_else(|| panic!("no id in {output}"))
        .to_owned()
}

/// An instant so many seconds from now, in RFC 3339.
fn in_seconds(seconds: i64) -> String {
    let at = jiff::Timestamp::now().as_second() + seconds;
    jiff::Timestamp::from_second(at)
        .expect("an instant")
        .to_string()
}
