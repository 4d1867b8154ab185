//! The figures of deploy/capacity.md that no other bench measures: the cost of decisions in Redis
//! Cluster and with TLS, and the memory of a process.
//!
//! `cargo bench --bench sizing` prints the tables of benches/figures.txt; `-- --write` writes them
//! there, and `-- --memory` prints the second alone. CPU time is that of redis-server, each beside
//! a plain server that decides the same in the same round, so that only ratios are shown. Redis is
//! on the loopback interface, without persistence.

#![allow(
    clippy::panic,
    clippy::disallowed_methods,
    reason = "a measurement, with what the tests have for servers"
)]

#[allow(dead_code, reason = "shared with the tests, which use more of it")]
#[path = "../tests/it/support"]
mod support {
    pub mod certificates;
    pub mod ports;
    pub mod redis;
    pub mod tools;

    pub use redis::RedisServer;
}

#[allow(
    dead_code,
    reason = "shared with the bench of that name, which uses more of it"
)]
#[path = "service"]
mod service {
    pub mod empty_server;
    pub mod load;
    pub mod machine;
    pub mod servers;
    pub mod tables;
    pub mod workload;
}

use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;

use tokio::time::{Duration, Instant};
use weir::core::algorithm::{Algorithm, AlgorithmKind, Options};
use weir::core::proto::rate_limit_descriptor::Entry;
use weir::core::proto::{RateLimitDescriptor, RateLimitRequest, RateLimitServiceClient};
use weir::core::time::{Rate, Unit};
use weir::limits::plan::{Check, Checks, Modes};
use weir::store::redis::{self, RawOptions, TlsFiles};
use weir::store::{Budget, Redis};

use service::machine::{first_thread_micros, processors, redis_version};
use service::servers::{CpuPlacement, Server};
use service::tables::{median, write_table};
use support::certificates::{Authority, Files};
use support::redis::connect;
use support::{RedisServer, ports};

const KEYS: usize = 20_000;
const ROUNDS: usize = 5;

/// The first and the last slot of each node of the cluster.
const SLOTS: [[&str; 2]; 3] = [["0", "5460"], ["5461", "10922"], ["10923", "16383"]];

/// Decisions per round and cell.
const DECISIONS: usize = 16_000;

const BATCHES: [usize; 3] = [1, 16, 64];

/// Connections that are opened to see what one takes; each makes calls.
const CONNECTIONS: usize = 500;

/// Limits of a small and of a large configuration.
const LIMITS: [usize; 2] = [100, 50_000];

/// Reloads of the large one.
const RELOADS: usize = 10;

/// The deployments that are compared with the first.
const DEPLOYMENTS: [&str; 3] = ["plain", "cluster", "TLS"];

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let has = |wanted: &str| std::env::args().any(|argument| argument == wanted);
    // A part alone is printed and not written.
    let is_part = has("--memory");
    let report = runtime.block_on(async {
        let of_redis = if is_part {
            String::new()
        } else {
            measure_redis().await + "\n"
        };
        of_redis + &measure_memory().await
    });
    println!("{report}");
    if has("--write") && !is_part {
        write_table("sizing", &report);
    }
}

/// A server, and Weir's store for it.
struct Deployment {
    servers: Vec<RedisServer>,
    /// Those of each server.
    keys: Vec<Vec<String>>,
    redis: Redis,
    _files: Option<Files>,
}

impl Deployment {
    fn plain() -> Self {
        let server = RedisServer::start();
        let redis = connect(server.options());
        Self {
            servers: vec![server],
            keys: vec![all_keys()],
            redis,
            _files: None,
        }
    }

    /// Three nodes that own a third of the slots each.
    fn cluster() -> Self {
        let servers = SLOTS.map(|[first, last]| {
            let bus = ports::free().port().to_string();
            let server =
                RedisServer::start_with(&["--cluster-enabled", "yes", "--cluster-port", &bus]);
            server.run::<()>(&["CLUSTER", "SET-CONFIG-EPOCH", first]);
            server.run::<()>(&["CLUSTER", "ADDSLOTSRANGE", first, last]);
            (server, bus)
        });
        for (met, bus) in &servers[1..] {
            let port = met.port().to_string();
            let [(first, _), ..] = &servers;
            first.run::<()>(&["CLUSTER", "MEET", "127.0.0.1", &port, bus]);
        }
        let began = Instant::now();
        let is_ok = |(server, _): &(RedisServer, String)| {
            let info: String = server.run(&["CLUSTER", "INFO"]);
            info.contains("cluster_state:ok") && info.contains("cluster_size:3")
        };
        while !servers.iter().all(is_ok) {
            assert!(
                began.elapsed() < Duration::from_secs(30),
                "the nodes do not serve their slots"
            );
            std::thread::sleep(Duration::from_millis(50));
        }
        let servers: Vec<_> = servers.into_iter().map(|(server, _)| server).collect();
        let urls: Vec<_> = servers.iter().map(RedisServer::url).collect();
        let options = parse(
            &RawOptions {
                kind: "cluster",
                url: &urls.join(","),
                ..RawOptions::default()
            },
            &TlsFiles::default(),
        );
        let redis = connect(options);
        let mut keys = vec![Vec::new(); servers.len()];
        for key in all_keys() {
            let slot: u32 = servers[0].run(&["CLUSTER", "KEYSLOT", &key]);
            let is_last = |[_, last]: &[&str; 2]| last.parse().is_ok_and(|last: u32| slot <= last);
            keys[SLOTS.iter().position(is_last).expect("a slot")].push(key);
        }
        Self {
            servers,
            keys,
            redis,
            _files: None,
        }
    }

    fn with_tls() -> Self {
        let (authority, files, port) = (
            Authority::new("bench"),
            Files::new(),
            ports::free().port().to_string(),
        );
        files.write("ca.crt", &authority.pem());
        files.write_issued("redis", &authority.issue(&["localhost", "127.0.0.1"]));
        let (certificate, key, ca) = (
            files.text("redis.crt"),
            files.text("redis.key"),
            files.text("ca.crt"),
        );
        let certificates = [
            "--tls-cert-file",
            &certificate,
            "--tls-key-file",
            &key,
            "--tls-ca-cert-file",
            &ca,
        ];
        let server = RedisServer::start_with(
            &[
                &["--tls-port", &port, "--tls-auth-clients", "no"][..],
                &certificates[..],
            ]
            .concat(),
        );
        let trusted = TlsFiles {
            ca_cert: Some(files.path("ca.crt")),
            ..TlsFiles::default()
        };
        let options = parse(
            &RawOptions {
                url: &format!("rediss://127.0.0.1:{port}"),
                ..RawOptions::default()
            },
            &trusted,
        );
        let redis = connect(options);
        Self {
            servers: vec![server],
            keys: vec![all_keys()],
            redis,
            _files: Some(files),
        }
    }

    /// CPU time of redis-server per decision, in batches of `batch` at each server. The decisions
    /// before, which connect, load the script and create the counters, are not counted. The servers
    /// take turns, as if each had a machine of its own: the few cores of this one hold the caches
    /// of one server.
    async fn micros(&self, algorithm: Algorithm, batch: usize) -> f64 {
        let (mut micros, mut decided) = (0.0, 0);
        for (server, keys) in self.servers.iter().zip(&self.keys) {
            server.flush();
            for _ in 0..2 {
                self.decide(algorithm, 64, keys, keys.len()).await;
            }
            let begin = first_thread_micros(server.process_id());
            let decisions = DECISIONS / self.servers.len();
            decided += self.decide(algorithm, batch, keys, decisions).await;
            micros += first_thread_micros(server.process_id()) - begin;
        }
        micros / decided as f64
    }

    /// Decides about `decisions` checks of these keys, and returns how many.
    async fn decide(
        &self,
        algorithm: Algorithm,
        batch: usize,
        keys: &[String],
        decisions: usize,
    ) -> usize {
        let mut keys = keys.iter().cycle();
        for _ in 0..decisions.div_ceil(batch) {
            let checks = keys
                .by_ref()
                .take(batch)
                .map(|key| (key.as_bytes(), Check::new(algorithm, 1, Modes::default())));
            let checks = Arc::new(Checks::of(checks));
            let budget = Budget::until(Instant::now() + Duration::from_secs(10));
            let answers = self.redis.decide(&checks, &checks.indices(), &budget).await;
            assert!(answers.verdicts().iter().all(Result::is_ok), "{answers:?}");
        }
        decisions.div_ceil(batch) * batch
    }
}

/// The keys of all counters.
fn all_keys() -> Vec<String> {
    let key = |number| format!("w1{{bench|user={number}}}x");
    (0..KEYS).map(key).collect()
}

fn parse(raw: &RawOptions<'_>, files: &TlsFiles) -> redis::Options {
    let options = redis::Options::parse(raw, files).expect("good settings");
    redis::Options {
        connect_timeout: Duration::from_secs(2),
        ..options
    }
}

async fn measure_redis() -> String {
    let deployments = [
        Deployment::plain(),
        Deployment::cluster(),
        Deployment::with_tls(),
    ];
    let rate = Rate {
        requests_per_unit: 100,
        unit: Unit::Hour,
        unit_multiplier: 1,
    };
    let mut table =
        "| algorithm | Redis Cluster / one server, 1 at a time | in batches of 16 | of 64 | TLS / \
         plaintext, 1 at a time | in batches of 16 | of 64 |\n|---|---|---|---|---|---|---|\n"
            .to_owned();
    for (name, kind) in AlgorithmKind::OVER_TIME {
        let algorithm = Algorithm::try_new(
            &rate,
            &Options {
                kind,
                ..Options::default()
            },
        )
        .expect("options that belong together");
        let mut ratios = [const { [const { Vec::new() }; BATCHES.len()] }; 2];
        for round in 1..=ROUNDS {
            for (column, batch) in BATCHES.into_iter().enumerate() {
                let mut micros = Vec::new();
                for deployment in &deployments {
                    micros.push(deployment.micros(algorithm, batch).await);
                }
                eprintln!(
                    "round {round} of {ROUNDS}: {name}, {batch} at a time: {DEPLOYMENTS:?} \
                     {micros:.2?} us"
                );
                for (of_deployment, other) in ratios.iter_mut().zip(&micros[1..]) {
                    of_deployment[column].push(other / micros[0]);
                }
            }
        }
        let cells = ratios
            .iter()
            .flatten()
            .map(|values| format!(" | {:.2}", median(values).unwrap_or(f64::NAN)));
        let _ = writeln!(table, "| `{name}`{} |", cells.collect::<String>());
    }
    table
}

/// The memory of a process: what it takes at the start, and for each connection and limit.
async fn measure_memory() -> String {
    let [small, large] = LIMITS.map(|limits| {
        let folder = tempfile::tempdir().expect("a folder");
        write_limits(folder.path(), limits);
        Server::weir(
            folder,
            &[("WORKERS", "2".to_owned())],
            CpuPlacement::AllCores,
        )
    });
    for server in [&small, &large] {
        call(&mut client(server).await, 1_000).await;
    }
    let [at_start, with_limits] = [&small, &large].map(Server::resident_bytes);
    let reloads: Vec<f64> = (1..=RELOADS).map(|_| reload(&large)).collect();
    let (peak, reloaded) = (large.peak_resident_bytes(), large.resident_bytes());
    let mut clients = Vec::new();
    for _ in 0..CONNECTIONS {
        clients.push(client(&small).await);
    }
    for client in &mut clients {
        call(client, 20).await;
    }
    let with_connections = small.resident_bytes();
    let of_a_connection = (with_connections - at_start) / CONNECTIONS as f64;
    let of_a_limit = (with_limits - at_start) / (LIMITS[1] - LIMITS[0]) as f64;
    format!(
        "| memory of a process | bytes |\n|---|---|\n| at the start, two threads, {} limits | \
         {at_start:.0} |\n| a connection that has made calls | {of_a_connection:.0} |\n| a limit | \
         {of_a_limit:.0} |\n| a limit while all are reloaded | {:.0} |\n| a limit after {RELOADS} \
         reloads | {:.0} |\n\nA reload takes {:.0} ms, with at most 500 ms until it is noticed. \
         Medians of {ROUNDS} rounds; {CONNECTIONS} connections, {} limits. \
         {}; {}.\n",
        LIMITS[0],
        (peak - at_start) / LIMITS[1] as f64,
        (reloaded - at_start) / LIMITS[1] as f64,
        median(&reloads).expect("a reload") * 1_000.0,
        LIMITS[1],
        processors(),
        redis_version()
    )
}

/// Renames a copy over the limits, and returns the seconds until it is in force. Its memory has gone
/// back to the operating system two seconds later.
fn reload(server: &Server) -> f64 {
    let loads = || server.log().matches("limits loaded").count();
    let (config, before) = (server.folder().join("config"), loads());
    let [new, old] = ["limits.yaml~", "limits.yaml"].map(|name| config.join(name));
    let changed = std::fs::copy(&old, &new).and_then(|_| std::fs::rename(&new, &old));
    changed.expect("a folder of our own");
    let started = Instant::now();
    while loads() == before {
        std::thread::sleep(Duration::from_millis(5));
    }
    let seconds = started.elapsed().as_secs_f64();
    std::thread::sleep(Duration::from_secs(2));
    seconds
}

/// Writes `config/limits.yaml`: limits of values of one key.
fn write_limits(folder: &Path, limits: usize) {
    let config = folder.join("config");
    std::fs::create_dir_all(&config).expect("a folder of our own");
    let mut text = "domain: size\ndescriptors:\n".to_owned();
    for limit in 0..limits {
        let _ = writeln!(
            text,
            "- {{key: route, value: /p/{limit:08}, rate_limit: {{unit: hour, requests_per_unit: \
             4000000000}}}}"
        );
    }
    std::fs::write(config.join("limits.yaml"), text).expect("a folder of our own");
}

type Client = RateLimitServiceClient<tonic::transport::Channel>;

async fn client(server: &Server) -> Client {
    let endpoint = tonic::transport::Channel::from_shared(format!("http://{}", server.address))
        .expect("an address");
    Client::new(endpoint.connect().await.expect("it listens"))
}

/// Makes calls one after the other.
async fn call(client: &mut Client, calls: usize) {
    for call in 0..calls {
        let entry = Entry {
            key: b"route".to_vec(),
            value: format!("/p/{:08}", call % LIMITS[0]).into_bytes(),
        };
        let descriptors = vec![RateLimitDescriptor {
            entries: vec![entry],
            ..Default::default()
        }];
        let request = RateLimitRequest {
            domain: "size".to_owned(),
            descriptors,
            hits_addend: 0,
        };
        client.should_rate_limit(request).await.expect("an answer");
    }
}
