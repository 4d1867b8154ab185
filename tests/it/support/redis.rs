//! A redis-server on a free port of the loopback interface, in a temporary folder; it ends when it
//! is dropped.

use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bb8_redis::redis::{self, Connection};
use tempfile::TempDir;
use weir::store::Redis;
use weir::store::redis::{Address, Deployment, Options, supervise};

use super::{ports, tools};

/// How long a server may take to answer its first PING.
const STARTS_WITHIN: Duration = Duration::from_secs(10);

/// A store with a deployment and a supervisor of its own.
pub fn connect(options: Options) -> Redis {
    let deployment = Deployment::new(options);
    tokio::spawn(supervise(Arc::clone(&deployment)));
    Redis::new(deployment, None)
}

/// The rights that `deploy/redis.md` names for requests, and those that limits with this option
/// need besides.
pub fn rights_of_the_page(option: &str) -> [Vec<String>; 2] {
    let page = tools::file("deploy/redis.md");
    let between = |begin: &str, end: &str| {
        let rest = page.split_once(begin).expect("a list of rights").1;
        let rights = rest.split_once(end).expect("an end").0.split_whitespace();
        rights.map(str::to_owned).collect()
    };
    // Those behind are for overrides.
    [
        between("ACL SETUSER weir on >secret ", "+hget"),
        between(&format!("`{option}` need `"), "`"),
    ]
}

pub struct RedisServer {
    port: u16,
    folder: TempDir,
    arguments: Vec<String>,
    password: Option<String>,
    child: Option<Child>,
}

impl RedisServer {
    /// Replaces the user `weir`, with the password `s3cret`, by one with these rights.
    pub fn grant(&self, rights: &[String]) {
        let user = ["ACL", "SETUSER", "weir", "reset", "on", ">s3cret"].into_iter();
        let command = user.chain(rights.iter().map(String::as_str));
        self.run::<()>(&command.collect::<Vec<_>>());
    }

    /// Starts a server. Returns when it answers.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts a server with further arguments. Returns when it answers.
    pub fn start_with(arguments: &[&str]) -> Self {
        let mut server = Self::absent();
        server.password = arguments
            .iter()
            .skip_while(|&&name| name != "--requirepass")
            .nth(1)
            .map(|&password| password.to_owned());
        server.arguments = arguments
            .iter()
            .map(|&argument| argument.to_owned())
            .collect();
        server.start_again();
        server
    }

    /// A port on which nothing listens, until [`RedisServer::start_again`].
    pub fn absent() -> Self {
        let port = ports::free().port();
        Self {
            port,
            folder: TempDir::new().expect("a folder"),
            arguments: Vec::new(),
            password: None,
            child: None,
        }
    }

    /// Starts the server on its port and waits until it answers.
    pub fn start_again(&mut self) {
        assert!(self.child.is_none(), "it runs already");
        let child = Command::new("redis-server")
            .args([
                "--bind",
                "127.0.0.1",
                "--port",
                &self.port.to_string(),
                "--save",
                "",
                "--appendonly",
                "no",
            ])
            .arg("--dir")
            .arg(self.folder.path())
            .arg("--unixsocket")
            .arg(self.socket())
            .args(&self.arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("redis-server is installed: tests/run.sh installs it");
        self.child = Some(child);
        let began = Instant::now();
        while self.try_connect().is_none() {
            assert!(
                began.elapsed() < STARTS_WITHIN,
                "redis-server on port {} does not answer",
                self.port
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Kills the server with SIGKILL.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            // Both fail only when the process has ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Stops the process (SIGSTOP); the kernel still accepts connections and bytes for it.
    pub fn pause(&self) {
        self.signal("-STOP");
    }

    /// Resumes the process (SIGCONT).
    pub fn resume(&self) {
        self.signal("-CONT");
    }

    fn signal(&self, signal: &str) {
        let id = self.child.as_ref().expect("it runs").id().to_string();
        assert!(
            Command::new("kill")
                .args([signal, &id])
                .status()
                .expect("kill is installed")
                .success()
        );
    }

    /// The process id.
    #[allow(dead_code, reason = "for benches, which share this file")]
    pub fn process_id(&self) -> u32 {
        self.child.as_ref().expect("it runs").id()
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// The value of `REDIS_URL`.
    pub fn url(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// The path of its unix socket.
    pub fn socket(&self) -> std::path::PathBuf {
        self.folder.path().join("redis.sock")
    }

    /// Weir's options for this server.
    pub fn options(&self) -> Options {
        Options::new(Address::Tcp {
            host: "127.0.0.1".to_owned(),
            port: self.port,
        })
    }

    fn try_connect(&self) -> Option<Connection> {
        let login = self
            .password
            .as_ref()
            .map(|password| format!(":{password}@"))
            .unwrap_or_default();
        let client = redis::Client::open(format!("redis://{login}127.0.0.1:{}", self.port))
            .expect("a good address");
        let mut connection = client
            .get_connection_with_timeout(Duration::from_secs(1))
            .ok()?;
        redis::cmd("PING").query::<String>(&mut connection).ok()?;
        Some(connection)
    }

    /// A new connection for the test.
    pub fn connection(&self) -> Connection {
        self.try_connect().expect("it answers")
    }

    /// Runs a command. Returns its reply.
    pub fn run<T: redis::FromRedisValue>(&self, command: &[&str]) -> T {
        redis::cmd(command[0])
            .arg(&command[1..])
            .query(&mut self.connection())
            .unwrap_or_else(|error| panic!("{command:?}: {error}"))
    }

    /// As [`RedisServer::run`], for a server that may not run or may reply with an error.
    #[allow(dead_code, reason = "for the tests, whose file benches share")]
    pub fn try_run<T: redis::FromRedisValue>(
        &self,
        command: &[&str],
    ) -> Result<T, redis::RedisError> {
        let client = redis::Client::open(format!("redis://127.0.0.1:{}", self.port))?;
        let mut connection = client.get_connection_with_timeout(Duration::from_millis(500))?;
        connection.set_read_timeout(Some(Duration::from_secs(2)))?;
        redis::cmd(command[0])
            .arg(&command[1..])
            .query(&mut connection)
    }

    /// Whether it was started and not killed.
    #[allow(dead_code, reason = "for the tests, whose file benches share")]
    pub fn runs(&self) -> bool {
        self.child.is_some()
    }

    /// How often a command was called, by clients and by scripts.
    #[allow(dead_code, reason = "for the tests, whose file benches share")]
    pub fn calls(&self, command: &str) -> u64 {
        let stats: String = self.run(&["INFO", "commandstats"]);
        let line = stats.lines().find_map(|line| {
            line.strip_prefix("cmdstat_")?
                .strip_prefix(command)?
                .strip_prefix(":calls=")
        });
        line.and_then(|line| line.split(',').next()?.parse().ok())
            .unwrap_or(0)
    }

    /// Deletes all keys.
    pub fn flush(&self) {
        self.run::<()>(&["FLUSHALL"]);
    }

    /// All keys except markers, in order; bytes that are not UTF-8 as U+FFFD.
    pub fn keys(&self) -> Vec<String> {
        let mut keys: Vec<_> = self
            .raw_keys()
            .iter()
            .map(|key| String::from_utf8_lossy(key).into_owned())
            .filter(|key| !key.contains("{weir|marker="))
            .collect();
        keys.sort();
        keys
    }

    /// Panics when a key has no TTL, or when there are no keys.
    pub fn assert_every_key_expires(&self) {
        let keys = self.raw_keys();
        assert!(!keys.is_empty(), "nothing was counted");
        let mut connection = self.connection();
        for key in keys {
            let ttl: i64 = redis::cmd("TTL")
                .arg(&key)
                .query(&mut connection)
                .expect("a TTL");
            assert!(ttl != -1, "{} never expires", String::from_utf8_lossy(&key));
        }
    }

    fn raw_keys(&self) -> Vec<Vec<u8>> {
        self.run(&["KEYS", "*"])
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.kill();
    }
}
