//! A real `weir serve` process with a clean environment, its own folder of limits and free ports;
//! it is killed when it is dropped.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};

use tempfile::TempDir;
use tonic::transport::Channel;

use super::Client;
use super::http_client;
use super::log::Log;
use super::wait::{eventually, eventually_async};

/// The arguments of every process: any free ports of the loopback interface.
pub const ARGUMENTS: [&str; 11] = [
    "serve",
    "--host",
    "127.0.0.1",
    "--port",
    "0",
    "--debug-port",
    "0",
    "--grpc-host",
    "127.0.0.1",
    "--grpc-port",
    "0",
];

/// A running service.
pub struct Weir {
    child: Child,
    grpc: SocketAddr,
    http: SocketAddr,
    config: TempDir,
    log: Log,
}

impl Weir {
    /// Starts a service with these files of limits (name, text) and these environment variables.
    /// Returns when both listeners are open.
    pub fn start(files: &[(&str, &str)], environment: &[(&str, &str)]) -> Self {
        let write = |folder: &Path| {
            for (name, text) in files {
                std::fs::write(folder.join(name), text).expect("a file of limits");
            }
        };
        Self::start_in(write, environment)
    }

    /// As [`Weir::start`], with a folder of limits that `fill` fills.
    pub fn start_in(fill: impl FnOnce(&Path), environment: &[(&str, &str)]) -> Self {
        let config = tempfile::tempdir().expect("a folder for limits");
        fill(config.path());
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        // A variable wins over nothing but a default: a test that sets GRPC_PORT must not meet the
        // flag.
        let set = |name: &str| environment.iter().any(|(variable, _)| *variable == name);
        command.args(if set("GRPC_PORT") {
            &ARGUMENTS[..ARGUMENTS.len() - 2]
        } else {
            &ARGUMENTS[..]
        });
        command
            .arg("--config")
            .arg(config.path())
            .env_clear()
            .envs(environment.iter().copied());
        Self::spawn(command, config)
    }

    /// `weir serve` on free ports, without variables and without limits.
    pub fn serve() -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        command.args(ARGUMENTS).env_clear();
        command
    }

    /// Runs a command that executes `weir serve` with the limits in `config`. Returns when both
    /// listeners are open.
    pub fn spawn(mut command: Command, config: TempDir) -> Self {
        command
            .env("LOG_FORMAT", "json")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|error| {
            panic!("cannot run {}: {error}", command.get_program().display())
        });
        let log = Log::follow(child.stderr.take().expect("stderr is piped"));
        let opened = eventually(|| {
            if child.try_wait().is_ok_and(|ended| ended.is_some()) {
                return Some(None);
            }
            Some(Some((listening(&log, "grpc")?, listening(&log, "http")?)))
        });
        let Some(Some((grpc, http))) = opened else {
            let _ = child.kill();
            let _ = child.wait();
            panic!("weir does not serve:\n{}", log.text());
        };
        Self {
            child,
            grpc,
            http,
            config,
            log,
        }
    }

    /// The address of the gRPC listener; that of a unix socket has no meaning.
    pub fn grpc_addr(&self) -> SocketAddr {
        self.grpc
    }

    /// The address of the HTTP listener.
    pub fn http_addr(&self) -> SocketAddr {
        self.http
    }

    /// The address of another listener, by its name in the log.
    pub fn listener(&self, name: &str) -> SocketAddr {
        eventually(|| self.find_listener(name))
            .unwrap_or_else(|| panic!("no listener {name}:\n{}", self.log.text()))
    }

    /// The same, if it is open.
    pub fn find_listener(&self, name: &str) -> Option<SocketAddr> {
        listening(&self.log, name)
    }

    /// The folder of limits.
    pub fn config_dir(&self) -> &Path {
        self.config.path()
    }

    /// A new connection to the gRPC listener.
    pub async fn channel(&self) -> Channel {
        let endpoint =
            Channel::from_shared(format!("http://{}", self.grpc)).expect("an address is a URI");
        endpoint
            .connect()
            .await
            .unwrap_or_else(|error| panic!("cannot connect to weir: {error}"))
    }

    /// A gRPC client with a new connection.
    pub async fn client(&self) -> Client {
        Client::new(self.channel().await)
    }

    /// Status and body of a GET of the HTTP listener.
    pub fn get(&self, path: &str) -> (u16, String) {
        let response = http_client::get(self.http, path);
        (response.status, response.body)
    }

    /// What a command that asks this service prints on stdout.
    pub fn command(&self, arguments: &[&str]) -> String {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        command
            .args(arguments)
            .env_clear()
            .env("WEIR_ADMIN", self.listener("debug").to_string());
        let output = command.output().expect("the binary runs");
        assert!(
            output.status.success(),
            "{arguments:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).expect("UTF-8")
    }

    /// The value of a series of `/metrics`, named as on that page: `name` or `name{label="value"}`.
    pub fn metric(&self, series: &str) -> Option<f64> {
        let page = self.get("/metrics").1;
        page.lines().find_map(|line| {
            line.strip_prefix(series)?
                .strip_prefix(' ')?
                .trim()
                .parse()
                .ok()
        })
    }

    /// The sum of the series of a metric that have this text in their labels; `None` without one.
    pub fn metric_sum(&self, name: &str, label: &str) -> Option<f64> {
        let page = self.get("/metrics").1;
        let value = |line: &str| {
            let (series, value) = line.rsplit_once(' ')?;
            let labels = series.strip_prefix(name)?;
            let is_one = labels.is_empty() || labels.starts_with('{');
            value
                .parse()
                .ok()
                .filter(|_| is_one && labels.contains(label))
        };
        let values = page.lines().filter_map(value);
        values.reduce(|sum: f64, value| sum + value)
    }

    /// The lines logged so far.
    pub fn logs(&self) -> Vec<String> {
        self.log.lines()
    }

    /// Waits for a line of the log that contains `text`, and returns it.
    pub async fn wait_for_log(&self, text: &str) -> String {
        let found =
            eventually_async(|| self.logs().into_iter().find(|line| line.contains(text))).await;
        found.unwrap_or_else(|| panic!("no line with {text:?} in the log:\n{}", self.log.text()))
    }

    /// The process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The resident memory of the process, in KiB.
    pub fn resident_kib(&self) -> u64 {
        self.status_kib("VmRSS:")
    }

    /// The most resident memory that the process had so far, in KiB.
    pub fn peak_resident_kib(&self) -> u64 {
        self.status_kib("VmHWM:")
    }

    /// A size that the kernel shows. Source of the names: proc_pid_status(5).
    fn status_kib(&self, name: &str) -> u64 {
        let status =
            std::fs::read_to_string(format!("/proc/{}/status", self.id())).expect("it runs");
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix(name))
            .expect("Linux");
        line.trim()
            .trim_end_matches(" kB")
            .parse()
            .expect("a number")
    }

    /// Sends the signal with this name: `TERM`, `STOP`, `CONT`.
    pub fn signal(&self, name: &str) {
        let sent = Command::new("kill")
            .args([&format!("-{name}"), &self.child.id().to_string()])
            .status();
        assert!(
            sent.is_ok_and(|status| status.success()),
            "cannot send SIG{name}"
        );
    }

    /// Waits for the process to end. Returns its exit status.
    pub fn wait(&mut self) -> ExitStatus {
        let ended = eventually(|| self.child.try_wait().expect("a child can be waited for"));
        ended.unwrap_or_else(|| panic!("weir does not end:\n{}", self.log.text()))
    }

    /// Sends SIGTERM and waits for the process to end. Returns its exit status.
    pub fn terminate(&mut self) -> ExitStatus {
        self.signal("TERM");
        self.wait()
    }
}

impl Drop for Weir {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        // The test runner shows it only when the test fails.
        println!("-- log of weir\n{}", self.log.text());
    }
}

/// The address in the log line of a listener's start.
fn listening(log: &Log, listener: &str) -> Option<SocketAddr> {
    log.lines()
        .iter()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .find_map(|line| {
            let matches = line["@message"] == "listening" && line["listener"] == listener;
            let parsed = |address: &str| {
                address
                    .parse()
                    .unwrap_or(SocketAddr::from(([0, 0, 0, 0], 0)))
            };
            matches
                .then(|| line["address"].as_str().map(parsed))
                .flatten()
        })
}
