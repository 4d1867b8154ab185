//! The instructions of a call, from socket to socket: HTTP/2, gRPC, the decision and Redis.
//!
//! `cargo bench --bench instructions` runs `weir serve` under callgrind, and prints the mean of the
//! calls for each store. A client sends its calls in waves and waits for all answers of a wave. So
//! each wave is one batch for Redis, and the counts can be repeated within a percent, also on a busy
//! machine. Another compiler or C library makes other instructions: only counts of one machine can
//! be compared. It needs valgrind and redis-server.

#![allow(
    clippy::panic,
    clippy::disallowed_methods,
    reason = "a measurement, with what the tests have for servers"
)]

use std::fs;
use std::io::{Read, Write, copy, sink};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use prost::Message;
use tempfile::TempDir;
use weir::core::proto::rate_limit_descriptor::Entry;
use weir::core::proto::{METHOD_PATH, RateLimitDescriptor, RateLimitRequest};

#[allow(dead_code, reason = "shared with the tests, which use more of it")]
#[path = "../tests/it/support"]
mod support {
    pub mod ports;
    pub mod redis;
    pub mod tools;
}

use support::ports;
use support::redis::RedisServer;

/// The longest time until a server under callgrind listens.
const STARTS_WITHIN: Duration = Duration::from_secs(60);

const WARM_UP_CALLS: u32 = 2_000;
const COUNTED_CALLS: u32 = 4_000;

/// Distinct keys, in turn.
const KEYS: u32 = 500;

/// A wave is one batch for Redis.
const WAVES: [u32; 2] = [16, 1];

const CONFIG: &str = "
domain: bench
descriptors:
- key: fixed_window
  rate_limit: {unit: hour, requests_per_unit: 4000000}
- key: token_bucket
  rate_limit: {unit: hour, requests_per_unit: 4000000, algorithm: token_bucket}
";

fn main() {
    println!("| store and algorithm | calls in a wave | instructions of a call |");
    println!("|---|---|---|");
    for wave in WAVES {
        for (store, key) in [
            ("memory", "fixed_window"),
            ("Redis", "fixed_window"),
            ("Redis", "token_bucket"),
        ] {
            let redis = (store == "Redis").then(RedisServer::start);
            let counted = Server::start(redis.as_ref()).count(key, wave);
            println!("| {store}, `{key}` | {wave} | {counted:.0} |");
        }
    }
}

/// `weir serve` with one worker, under callgrind.
struct Server {
    child: Child,
    address: SocketAddr,
    folder: TempDir,
}

impl Server {
    /// Returns when it listens.
    fn start(redis: Option<&RedisServer>) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join("bench.yaml"), CONFIG).expect("a folder of our own");
        let [address, http] = [ports::free(), ports::free()];
        let log = fs::File::create(folder.path().join("log")).expect("a folder of our own");
        let mut command = Command::new("valgrind");
        command
            .args([
                "--tool=callgrind",
                "--separate-threads=yes",
                "--instr-atstart=no",
            ])
            .arg(format!(
                "--callgrind-out-file={}",
                folder.path().join("counts").display()
            ))
            .args([
                env!("CARGO_BIN_EXE_weir"),
                "serve",
                "--workers",
                "1",
                "--config",
            ])
            .arg(folder.path().join("bench.yaml"))
            .args(["--host", "127.0.0.1", "--port", &http.port().to_string()])
            .args([
                "--grpc-host",
                "127.0.0.1",
                "--grpc-port",
                &address.port().to_string(),
            ])
            .envs(redis.map(|redis| ("REDIS_URL", redis.url())))
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a file"))
            .stderr(log);
        let child = command.spawn().expect("valgrind is installed");
        let server = Self {
            child,
            address,
            folder,
        };
        let begin = Instant::now();
        while TcpStream::connect(address).is_err() {
            assert!(begin.elapsed() < STARTS_WITHIN, "{}", server.log());
            std::thread::sleep(Duration::from_millis(100));
        }
        server
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// The instructions of a call on the thread of the worker.
    fn count(mut self, key: &str, wave: u32) -> f64 {
        let mut client = Client::connect(self.address);
        client.call(key, WARM_UP_CALLS, wave);
        self.control("on");
        client.call(key, COUNTED_CALLS, wave);
        self.control("off");
        self.signal_end();
        self.child.wait().expect("a process of our own");
        let total = fs::read_dir(self.folder.path())
            .expect("a folder of our own")
            .filter_map(|file| total(&file.ok()?.path()))
            .max();
        let total = total.unwrap_or_else(|| panic!("callgrind wrote no counts: {}", self.log()));
        total as f64 / f64::from(COUNTED_CALLS)
    }

    /// Starts or stops the counting.
    fn control(&self, instrumentation: &str) {
        let pid = self.child.id().to_string();
        let mut command = Command::new("callgrind_control");
        let output = command.args(["-i", instrumentation, &pid]).output();
        let output = output.expect("it comes with valgrind");
        assert!(output.status.success(), "{output:?}");
    }

    fn signal_end(&self) {
        let mut command = Command::new("kill");
        let status = command.arg(self.child.id().to_string()).status();
        assert!(
            status.is_ok_and(|status| status.success()),
            "{}",
            self.log()
        );
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The instructions of one thread, from its file.
fn total(path: &Path) -> Option<u64> {
    let text = String::from_utf8_lossy(&fs::read(path).ok()?).into_owned();
    let mut lines = text.lines();
    lines.find_map(|line| line.strip_prefix("totals: ")?.trim().parse().ok())
}

/// A client with one connection. Source of the frames: RFC 9113, section 6.
struct Client {
    socket: TcpStream,
    calls: u32,
}

impl Client {
    fn connect(address: SocketAddr) -> Self {
        let mut socket = TcpStream::connect(address).expect("a server");
        socket.set_nodelay(true).expect("a socket");
        let window = frame(8, 0, 0, &(1_u32 << 30).to_be_bytes());
        let begin = [
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
            frame(4, 0, 0, &[]),
            frame(4, 1, 0, &[]),
            window,
        ];
        socket.write_all(&begin.concat()).expect("a server");
        Self { socket, calls: 0 }
    }

    /// Makes calls in waves, each when all calls of the wave before are answered.
    fn call(&mut self, key: &str, calls: u32, wave: u32) {
        for _ in 0..calls / wave {
            let mut frames = Vec::new();
            for _ in 0..wave {
                let stream = 2 * self.calls + 1;
                frames.extend(frame(1, 4, stream, &head()));
                frames.extend(frame(0, 1, stream, &message(key, self.calls % KEYS)));
                self.calls += 1;
            }
            self.socket.write_all(&frames).expect("a server");
            let mut open = wave;
            while open > 0 {
                open -= u32::from(self.ends_a_stream());
            }
        }
    }

    /// Reads one frame. True: it ends a stream.
    fn ends_a_stream(&mut self) -> bool {
        let mut head = [0; 9];
        self.socket.read_exact(&mut head).expect("an answer");
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut content = (&mut self.socket).take(length.into());
        copy(&mut content, &mut sink()).expect("an answer");
        head[3] <= 1 && head[4] & 1 == 1
    }
}

fn frame(kind: u8, flags: u8, stream: u32, content: &[u8]) -> Vec<u8> {
    let length = (content.len() as u32).to_be_bytes();
    let head = [&length[1..], &[kind, flags], &stream.to_be_bytes()];
    [&head.concat(), content].concat()
}

/// The headers that Envoy sends, as literals. Source: RFC 7541, section 6.2.2.
fn head() -> Vec<u8> {
    let mut head = Vec::new();
    for (name, value) in [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", METHOD_PATH),
        (":authority", "weir"),
        ("te", "trailers"),
        ("grpc-timeout", "20S"),
        ("content-type", "application/grpc"),
        ("x-envoy-internal", "true"),
        ("x-forwarded-for", "10.0.0.1"),
    ] {
        head.extend([0, name.len() as u8]);
        head.extend_from_slice(name.as_bytes());
        head.push(value.len() as u8);
        head.extend_from_slice(value.as_bytes());
    }
    head
}

/// A request with the prefix of a gRPC message.
fn message(key: &str, value: u32) -> Vec<u8> {
    let entry = Entry {
        key: key.into(),
        value: format!("c{value}").into(),
    };
    let descriptor = RateLimitDescriptor {
        entries: vec![entry],
        ..RateLimitDescriptor::default()
    };
    let request = RateLimitRequest {
        domain: "bench".to_owned(),
        descriptors: vec![descriptor],
        hits_addend: 0,
    };
    let request = request.encode_to_vec();
    [&[0][..], &(request.len() as u32).to_be_bytes(), &request].concat()
}
