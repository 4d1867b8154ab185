//! The servers that are measured: each run starts a new one on the given core, and ends it.
//!
//! Where `taskset` works, the server runs on the first core, Redis on the second, and the load on
//! either. Elsewhere everything runs on all cores, and the table says so.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::empty_server::Runtime;
use super::machine::{can_pin, cores, cpu_micros};
use super::workload;
use crate::support::{RedisServer, ports};

/// The longest time until a server listens.
const STARTS_WITHIN: Duration = Duration::from_secs(60);

/// The cores on which server, load and Redis run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CpuPlacement {
    /// The server on the first core, everything else on the second.
    FirstCore,
    /// The server and the load on the first core, Redis alone on the second.
    BesideLoad,
    /// Everything on all cores.
    AllCores,
}

/// A server that was added with `--peer`.
#[derive(Clone, Debug)]
pub struct Peer {
    pub name: String,
    /// A shell command; `{port}`, `{http}`, `{debug}`, `{redis}` and `{limits}` are replaced in
    /// each run.
    command: String,
}

impl Peer {
    /// `name=command`.
    pub fn parse(text: &str) -> Option<Self> {
        let (name, command) = text.split_once('=')?;
        (!name.is_empty() && command.contains("{port}")).then(|| Self {
            name: name.to_owned(),
            command: command.to_owned(),
        })
    }

    pub fn needs_redis(&self) -> bool {
        self.command.contains("{redis}")
    }
}

/// What to start.
#[derive(Clone, Debug)]
pub enum ServerKind {
    Empty(Runtime),
    Memory { algorithm: &'static str },
    Redis { algorithm: &'static str },
    Peer(Peer),
}

impl ServerKind {
    fn algorithm(&self) -> &'static str {
        match self {
            Self::Memory { algorithm } | Self::Redis { algorithm } => algorithm,
            Self::Empty(_) | Self::Peer(_) => "fixed_window",
        }
    }

    fn needs_redis(&self) -> bool {
        match self {
            Self::Redis { .. } => true,
            Self::Peer(peer) => peer.needs_redis(),
            Self::Empty(_) | Self::Memory { .. } => false,
        }
    }
}

/// A running server, and its Redis if it needs one.
pub struct Server {
    child: Child,
    pub address: SocketAddr,
    /// Of Weir's HTTP listener.
    pub http: SocketAddr,
    pub redis: Option<RedisServer>,
    folder: TempDir,
}

impl Server {
    /// Returns when it listens.
    pub fn start(kind: &ServerKind, placement: CpuPlacement) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        workload::write(folder.path(), kind.algorithm());
        run_this_process_on(placement);
        let redis = kind.needs_redis().then(RedisServer::start);
        if placement == CpuPlacement::BesideLoad {
            run_this_process_as_a_server();
        }
        let [address, http, debug] = [ports::free(), ports::free(), ports::free()];
        let command = match kind {
            ServerKind::Empty(runtime) => {
                let mut command = on(
                    placement,
                    &std::env::current_exe()
                        .expect("a program")
                        .display()
                        .to_string(),
                );
                command.args(["--serve-empty", runtime.name(), &address.port().to_string()]);
                command
            }
            ServerKind::Memory { .. } | ServerKind::Redis { .. } => {
                let mut command = weir(folder.path(), placement, [address, http]);
                command.envs(redis.as_ref().map(|redis| ("REDIS_URL", redis.url())));
                command
            }
            ServerKind::Peer(peer) => {
                let text = peer
                    .command
                    .replace("{port}", &address.port().to_string())
                    .replace("{http}", &http.port().to_string());
                let text = text
                    .replace("{debug}", &debug.port().to_string())
                    .replace("{limits}", &folder.path().display().to_string());
                let text = text.replace(
                    "{redis}",
                    &redis.as_ref().map(RedisServer::url).unwrap_or_default(),
                );
                let mut command = on(placement, "sh");
                // In a shell a line break would end the command.
                let text = text.replace('\n', " ");
                command.args(["-c", &format!("exec {text}")]);
                command
            }
        };
        Self::spawn(command, [address, http], redis, folder)
    }

    /// Starts Weir with these variables and the limits in `config` of this folder. The folder is
    /// removed with the server.
    pub fn weir(folder: TempDir, variables: &[(&str, String)], placement: CpuPlacement) -> Self {
        run_this_process_on(placement);
        let [address, http] = [ports::free(), ports::free()];
        let mut command = weir(folder.path(), placement, [address, http]);
        command.envs(variables.iter().map(|(name, value)| (name, value)));
        Self::spawn(command, [address, http], None, folder)
    }

    fn spawn(
        mut command: Command,
        [address, http]: [SocketAddr; 2],
        redis: Option<RedisServer>,
        folder: TempDir,
    ) -> Self {
        let log = fs::File::create(folder.path().join("log")).expect("a folder of our own");
        command
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a file"))
            .stderr(log);
        let child = command.spawn().unwrap_or_else(|error| {
            panic!("cannot run {}: {error}", command.get_program().display())
        });
        let mut server = Self {
            child,
            address,
            http,
            redis,
            folder,
        };
        server.wait();
        server
    }

    /// The folder that the server was started with.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    fn wait(&mut self) {
        let begin = Instant::now();
        while TcpStream::connect(self.address).is_err() {
            let ended = self.child.try_wait().is_ok_and(|ended| ended.is_some());
            assert!(
                !ended && begin.elapsed() < STARTS_WITHIN,
                "it does not serve:\n{}",
                self.log()
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// The log so far.
    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// The resident memory of the process, in bytes.
    pub fn resident_bytes(&self) -> f64 {
        let statm = fs::read_to_string(format!("/proc/{}/statm", self.child.id())).expect("Linux");
        statm
            .split_whitespace()
            .nth(1)
            .and_then(|pages| pages.parse::<f64>().ok())
            .expect("pages")
            * 4_096.0
    }

    /// The most that it was, in bytes.
    pub fn peak_resident_bytes(&self) -> f64 {
        let status = format!("/proc/{}/status", self.child.id());
        let status = fs::read_to_string(status).expect("Linux");
        let mut lines = status.lines();
        let line = lines.find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
        kib.expect("a size") * 1_024.0
    }

    /// CPU time of all its threads so far, in microseconds.
    pub fn cpu_micros(&self) -> f64 {
        cpu_micros(self.child.id())
    }

    /// CPU time of the server and its Redis so far, in microseconds.
    pub fn all_cpu_micros(&self) -> f64 {
        self.cpu_micros() + self.redis_cpu_micros().unwrap_or_default()
    }

    /// CPU time of its Redis so far, in microseconds.
    pub fn redis_cpu_micros(&self) -> Option<f64> {
        self.redis
            .as_ref()
            .map(|redis| cpu_micros(redis.process_id()))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// `weir serve`, listening on these two addresses.
fn weir(folder: &Path, placement: CpuPlacement, [address, http]: [SocketAddr; 2]) -> Command {
    let mut command = on(placement, env!("CARGO_BIN_EXE_weir"));
    command.args([
        "serve",
        "--host",
        "127.0.0.1",
        "--grpc-host",
        "127.0.0.1",
        "--port",
        &http.port().to_string(),
    ]);
    command
        .args(["--grpc-port", &address.port().to_string(), "--config"])
        .arg(folder.join("config"));
    command.env_clear();
    command
}

fn on(placement: CpuPlacement, program: &str) -> Command {
    if placement != CpuPlacement::AllCores && can_pin() {
        let mut command = Command::new("taskset");
        command.args(["-c", "0", program]);
        command
    } else {
        Command::new(program)
    }
}

/// Moves this process, and so every Redis that it starts later, to the cores of the load.
pub fn run_this_process_on(placement: CpuPlacement) {
    match placement {
        CpuPlacement::FirstCore | CpuPlacement::BesideLoad => run_this_process_on_cores("1"),
        CpuPlacement::AllCores => run_this_process_on_cores(&format!("0-{}", cores() - 1)),
    }
}

/// Moves this process to the core of servers, so that Redis has the other one alone.
pub fn run_this_process_as_a_server() {
    run_this_process_on_cores("0");
}

fn run_this_process_on_cores(list: &str) {
    if can_pin() {
        let moved = Command::new("taskset")
            .args(["-a", "-c", "-p", list, &std::process::id().to_string()])
            .stdout(Stdio::null())
            .status();
        assert!(
            moved.is_ok_and(|status| status.success()),
            "taskset cannot move this process to {list}"
        );
    }
}
