//! A primary, replicas and three Sentinels that watch them, on free ports; all end when they are
//! dropped.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use bb8_redis::redis::{self, Connection, RedisError};
use tempfile::TempDir;

use super::RedisServer;
use super::ports;
use super::wait::{eventually, eventually_within};

/// The name of the primary for the Sentinels.
pub const MASTER: &str = "mymaster";

/// A failover takes 1.4 to 2.5 s. One that does not succeed begins again after four seconds.
const FAILOVER_TIMEOUT: Duration = Duration::from_secs(90);

/// The number of Sentinels; two must agree that the primary has failed.
const SENTINELS: usize = 3;

/// Periods of a Sentinel, in ms. All of them know each other within a second. In a failover, a
/// Sentinel asks a replica for its state once a second, and promotes none whose state is older than
/// five pings. After its clock has jumped, as on a machine that pauses, it does nothing for the
/// time of `TILT-PERIOD`.
const PERIODS: [&str; 12] = [
    "SENTINEL",
    "DEBUG",
    "PUBLISH-PERIOD",
    "200",
    "INFO-PERIOD",
    "300",
    "PING-PERIOD",
    "300",
    "ASK-PERIOD",
    "100",
    "TILT-PERIOD",
    "1000",
];

/// After so many ms without an answer, a Sentinel takes the primary for failed. The last one only
/// votes, so that the votes for a leader never split.
const DOWN_AFTER: [u32; SENTINELS] = [1_000, 1_000, 60_000];

struct Sentinel {
    port: u16,
    child: Child,
    _folder: TempDir,
}

impl Sentinel {
    fn start(master: u16, down_after: u32) -> Self {
        let (folder, port) = (TempDir::new().expect("a folder"), ports::free().port());
        let file = folder.path().join("sentinel.conf");
        let text = format!(
            "port {port}\nbind 127.0.0.1\ndir {folder}\nsentinel monitor {MASTER} 127.0.0.1 \
             {master} 2\n\
             sentinel down-after-milliseconds {MASTER} {down_after}\n\
             sentinel failover-timeout {MASTER} 2000\n",
            folder = folder.path().display()
        );
        std::fs::write(&file, text).expect("a file");
        let child = Command::new("redis-server")
            .arg(&file)
            .arg("--sentinel")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("redis-server is installed: tests/run.sh installs it");
        let sentinel = Self {
            port,
            child,
            _folder: folder,
        };
        let ready = eventually(|| sentinel.query::<String>(&PERIODS).ok());
        assert!(
            ready.is_some(),
            "the sentinel on port {port} does not answer"
        );
        sentinel
    }

    fn connect(&self) -> Result<Connection, RedisError> {
        redis::Client::open(format!("redis://127.0.0.1:{}", self.port))?
            .get_connection_with_timeout(Duration::from_secs(1))
    }

    fn query<T: redis::FromRedisValue>(&self, command: &[&str]) -> Result<T, RedisError> {
        redis::cmd(command[0])
            .arg(&command[1..])
            .query(&mut self.connect()?)
    }

    /// Whether it knows the other Sentinels and all replicas.
    fn is_ready(&self, replicas: usize) -> bool {
        let Ok(facts) = self
            .query::<std::collections::HashMap<String, String>>(&["SENTINEL", "MASTER", MASTER])
        else {
            return false;
        };
        let number = |name: &str| facts.get(name).and_then(|text| text.parse::<usize>().ok());
        number("num-other-sentinels") == Some(SENTINELS - 1)
            && number("num-slaves") == Some(replicas)
            && facts["flags"] == "master"
    }
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        // Both fail only when the process has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whether the server's `INFO replication` contains this text; `None` when it does not answer.
fn replication_contains(server: &RedisServer, what: &str) -> Option<bool> {
    Some(
        server
            .try_run::<String>(&["INFO", "replication"])
            .ok()?
            .contains(what),
    )
}

fn wait_until_in_sync(server: &RedisServer) {
    let in_sync =
        eventually(|| replication_contains(server, "master_link_status:up")?.then_some(()));
    assert!(in_sync.is_some(), "{} does not get in sync", server.port());
}

/// Servers with their Sentinels.
pub struct SentinelSet {
    servers: Vec<RedisServer>,
    sentinels: Vec<Sentinel>,
}

impl SentinelSet {
    /// Starts a primary and this number of replicas. Returns when all are in sync and known to all
    /// Sentinels.
    pub fn start(replicas: usize) -> Self {
        let primary = RedisServer::start_with(&["--repl-diskless-sync-delay", "0"]);
        let port = primary.port().to_string();
        let arguments = [
            "--replicaof",
            "127.0.0.1",
            &port,
            "--repl-diskless-sync-delay",
            "0",
        ];
        let mut servers = vec![primary];
        servers.extend((0..replicas).map(|_| RedisServer::start_with(&arguments)));
        servers[1..].iter().for_each(wait_until_in_sync);
        let sentinels: Vec<_> = DOWN_AFTER
            .iter()
            .map(|&down_after| Sentinel::start(servers[0].port(), down_after))
            .collect();
        let ready = eventually(|| {
            sentinels
                .iter()
                .all(|sentinel| sentinel.is_ready(replicas))
                .then_some(())
        });
        assert!(ready.is_some(), "the sentinels do not find each other");
        Self { servers, sentinels }
    }

    /// The value of `REDIS_URL`.
    pub fn url(&self) -> String {
        let addresses: Vec<_> = self
            .sentinels
            .iter()
            .map(|sentinel| format!("127.0.0.1:{}", sentinel.port))
            .collect();
        format!("{MASTER},{}", addresses.join(","))
    }

    /// The port of the primary, as most of the sentinels say.
    pub fn primary(&self) -> u16 {
        let most_say = || {
            let mut announced: Vec<u16> = self
                .sentinels
                .iter()
                .filter_map(|sentinel| self.primary_by(sentinel))
                .collect();
            announced.sort_unstable();
            announced.get(announced.len() / 2).copied()
        };
        eventually(most_say).expect("a Sentinel that answers")
    }

    fn primary_by(&self, sentinel: &Sentinel) -> Option<u16> {
        let (_, port) = sentinel
            .query::<(String, u16)>(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER])
            .ok()?;
        self.servers
            .iter()
            .any(|server| server.port() == port)
            .then_some(port)
    }

    /// Waits until a Sentinel announces another primary than `old`. Returns its port and the
    /// instant of the announcement.
    pub fn wait_for_switch_from(&self, old: u16) -> (u16, Instant) {
        let switched = eventually_within(FAILOVER_TIMEOUT, || {
            let found = self
                .sentinels
                .iter()
                .filter_map(|sentinel| self.primary_by(sentinel))
                .find(|&port| port != old);
            found.map(|port| (port, Instant::now()))
        });
        switched.unwrap_or_else(|| panic!("no other primary than {old}"))
    }

    /// The server on this port.
    pub fn server(&self, port: u16) -> &RedisServer {
        self.servers
            .iter()
            .find(|server| server.port() == port)
            .unwrap_or_else(|| panic!("no server on port {port}"))
    }

    fn server_mut(&mut self, port: u16) -> &mut RedisServer {
        self.servers
            .iter_mut()
            .find(|server| server.port() == port)
            .unwrap_or_else(|| panic!("no server on port {port}"))
    }

    /// Kills the server on this port with SIGKILL.
    pub fn kill(&mut self, port: u16) {
        self.server_mut(port).kill();
    }

    /// Starts the server on this port again with its first arguments; the Sentinels make it a
    /// replica.
    pub fn start_again(&mut self, port: u16) {
        self.server_mut(port).start_again();
    }

    /// Whether the server on this port is a primary; `None` when it does not answer. A Sentinel
    /// that makes a server a replica also closes all its client connections.
    fn is_primary(&self, port: u16) -> Option<bool> {
        replication_contains(self.server(port), "role:master")
    }

    /// Waits until the server on this port is in sync with its primary.
    pub fn wait_until_in_sync(&self, port: u16) {
        wait_until_in_sync(self.server(port));
    }

    /// Waits until the server on this port is a replica.
    pub fn wait_until_replica(&self, port: u16) {
        let demoted = eventually(|| (self.is_primary(port) == Some(false)).then_some(()));
        assert!(demoted.is_some(), "{port} stays a primary");
    }
}
