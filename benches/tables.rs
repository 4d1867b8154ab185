//! A table of a million rows that is reloaded under load: latencies of calls while it is, beside
//! those while nothing changes, and memory.
//!
//! `cargo bench --bench tables` starts one service with its counters in memory, sends calls at a
//! constant rate, and reads the latencies of phases that alternate: a quiet one, and one in which a
//! changed table is read, compiled and put in force. A call's latency begins when it was due, so
//! that one that waits behind another counts its wait. Run nothing else meanwhile.

#![allow(
    clippy::panic,
    clippy::disallowed_methods,
    reason = "a measurement, with what the tests have for servers"
)]

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use weir::core::proto::rate_limit_descriptor::Entry;
use weir::core::proto::{RateLimitDescriptor, RateLimitRequest};

#[allow(dead_code, reason = "shared with the tests, which use more of it")]
#[path = "../tests/it/support"]
mod support {
    pub mod http_client;
    pub mod log;
    pub mod wait;
    pub mod weir;

    pub type Client = ::weir::core::proto::RateLimitServiceClient<tonic::transport::Channel>;
}

use support::Client;
use support::weir::Weir;

const LIMITS: &str = "
domain: d
plans:
  free: { unit: minute, requests_per_unit: 60 }
  pro: { unit: minute, requests_per_unit: 600 }
descriptors:
  - { key: tenant, table: tenants.csv, rate_limit: { plan: free } }
";

/// Rows, without `--rows`.
const ROWS: usize = 1_000_000;

/// Pairs of phases, without `--rounds`.
const ROUNDS: usize = 5;

/// Calls a second, over so many connections.
const RATE: u32 = 2_000;
const CONNECTIONS: u32 = 8;

/// The length of a quiet phase.
const QUIET: Duration = Duration::from_secs(5);

/// The longest time until a table is in force.
const LOADED_WITHIN: Duration = Duration::from_secs(120);

fn main() {
    let number = |flag: &str| {
        let mut arguments = std::env::args()
            .skip_while(|argument| argument != flag)
            .skip(1);
        arguments.next().map(|number| {
            number
                .parse::<usize>()
                .unwrap_or_else(|error| panic!("{flag}: {error}"))
        })
    };
    let (rows, rounds) = (
        number("--rows").unwrap_or(ROWS),
        number("--rounds").unwrap_or(ROUNDS),
    );
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(measure(rows, rounds));
}

/// A table in which each row has its plan, and every tenth an amount. Tables of different numbers
/// differ in all of these amounts.
fn write_table(folder: &Path, rows: usize, number: usize) -> usize {
    let mut text = String::with_capacity(rows * 32);
    text.push_str("value,plan,requests_per_unit\n");
    for row in 0..rows {
        let plan = if row % 3 == 0 { "pro" } else { "free" };
        // Writing to a string does not fail.
        let _ = match row % 10 {
            0 => writeln!(
                text,
                "tenant-{row:012},{plan},{}",
                1_000 + row % 5_000 + number
            ),
            _ => writeln!(text, "tenant-{row:012},{plan},"),
        };
    }
    fs::write(folder.join(".new"), &text).expect("written");
    fs::rename(folder.join(".new"), folder.join("tenants.csv")).expect("renamed");
    text.len()
}

/// Latencies of the calls of a phase.
type Latencies = Arc<Mutex<Vec<Duration>>>;

async fn calls(mut client: Client, rows: usize, number: u32, latencies: Latencies) {
    let every = Duration::from_secs(1) * CONNECTIONS / RATE;
    let mut due = Instant::now() + every * number / CONNECTIONS;
    let mut random = fastrand::Rng::with_seed(number.into());
    loop {
        tokio::time::sleep_until(due.into()).await;
        let value = format!("tenant-{:012}", random.usize(..rows));
        let entries = vec![Entry {
            key: "tenant".into(),
            value: value.into_bytes(),
        }];
        let descriptors = vec![RateLimitDescriptor {
            entries,
            ..Default::default()
        }];
        let request = RateLimitRequest {
            domain: "d".to_owned(),
            descriptors,
            hits_addend: 0,
        };
        client.should_rate_limit(request).await.expect("an answer");
        latencies.lock().expect("no panic").push(due.elapsed());
        due += every;
    }
}

/// The calls since the last time: their number, and the latencies at these shares in milliseconds.
fn take(latencies: &Latencies) -> (usize, [f64; 3]) {
    let mut all = std::mem::take(&mut *latencies.lock().expect("no panic"));
    all.sort_unstable();
    let at = |share: f64| {
        all.get((all.len() as f64 * share) as usize)
            .map_or(0.0, |latency| latency.as_secs_f64() * 1e3)
    };
    (all.len(), [at(0.5), at(0.99), at(0.999)])
}

fn median(mut all: Vec<f64>) -> f64 {
    all.sort_unstable_by(f64::total_cmp);
    all[all.len() / 2]
}

/// The calls of a phase, and their shares of latencies.
type Phase = (usize, [f64; 3]);

fn print_latencies(rounds: usize, quiet: &[Phase], reloaded: &[Phase]) {
    let of = |phases: &[Phase], index: usize| {
        median(phases.iter().map(|(_, shares)| shares[index]).collect())
    };
    for (name, phases) in [("no reload", quiet), ("reload", reloaded)] {
        let calls: usize = phases.iter().map(|(calls, _)| calls).sum();
        println!(
            "{name:>10}: {calls} calls, p50 {:.2} ms, p99 {:.2} ms, p99.9 {:.2} ms (medians of \
             {rounds})",
            of(phases, 0),
            of(phases, 1),
            of(phases, 2)
        );
    }
    println!(
        "p99 of reloads to p99 without: {:.2}",
        of(reloaded, 1) / of(quiet, 1)
    );
}

fn resident_kib_without_table() -> u64 {
    let empty = Weir::start(
        &[(
            "limits.yaml",
            "domain: d\ndescriptors: [{ key: tenant, rate_limit: { unit: minute, \
             requests_per_unit: 60 } }]\n",
        )],
        &[],
    );
    empty.resident_kib()
}

async fn measure(rows: usize, rounds: usize) {
    let mib = |kib: u64| kib as f64 / 1_024.0;
    let without = mib(resident_kib_without_table());
    let mut bytes = 0;
    let begun = Instant::now();
    let fill = |folder: &Path| {
        fs::write(folder.join("limits.yaml"), LIMITS).expect("written");
        bytes = write_table(folder, rows, 0);
    };
    let weir = Weir::start_in(fill, &[]);
    println!(
        "{rows} rows of {} MB; start with the table: {:.1} s",
        bytes / 1_000_000,
        begun.elapsed().as_secs_f64()
    );
    println!(
        "resident: {without:.0} MiB without a table, {:.0} MiB with it",
        mib(weir.resident_kib())
    );
    let latencies = Latencies::default();
    let mut callers = Vec::new();
    for number in 0..CONNECTIONS {
        callers.push(tokio::spawn(calls(
            weir.client().await,
            rows,
            number,
            Arc::clone(&latencies),
        )));
    }
    tokio::time::sleep(QUIET).await;
    let loaded = || weir.metric("weir_config_generation").map(f64::to_bits);
    let (mut quiet, mut reloaded, mut took) = (Vec::new(), Vec::new(), Vec::new());
    for round in 1..=rounds {
        take(&latencies);
        tokio::time::sleep(QUIET).await;
        quiet.push(take(&latencies));
        let before = loaded();
        let folder = weir.config_dir().to_owned();
        tokio::task::spawn_blocking(move || write_table(&folder, rows, round))
            .await
            .expect("written");
        // Writing the file is none of the service's work.
        take(&latencies);
        let begun = Instant::now();
        while loaded() == before {
            assert!(begun.elapsed() < LOADED_WITHIN, "the table is not in force");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        took.push(begun.elapsed().as_secs_f64());
        // The old table is freed.
        tokio::time::sleep(Duration::from_secs(1)).await;
        reloaded.push(take(&latencies));
        println!(
            "round {round}: in force after {:.1} s; resident {:.0} MiB",
            took[round - 1],
            mib(weir.resident_kib())
        );
    }
    print_latencies(rounds, &quiet, &reloaded);
    println!(
        "in force after {:.1} s (median); peak resident {:.0} MiB",
        median(took),
        mib(weir.peak_resident_kib())
    );
    // Before the service stops, which would be an error of theirs.
    callers.iter().for_each(tokio::task::JoinHandle::abort);
}
