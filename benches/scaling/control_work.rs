//! The effect of control work on the latency of requests: reloads of very many limits, and scrapes
//! of their metrics.
//!
//! The load is an open loop, so that a stall delays all calls that are due meanwhile. There is one
//! worker, and nothing is pinned: control work, the worker, the load and the reader of metrics
//! share all cores, as in a pod.

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::workload::{self, GeneratedRequests, Routes};
use crate::Times;
use crate::service::load::{Client, Pace, Shape, Until};
use crate::service::servers::{CpuPlacement, Server, run_this_process_on};
use crate::service::tables::spread;

const LIMITS: u32 = 100_000;
const KEYS: u32 = 100_000;
const PER_SECOND: f64 = 5_000.0;
const SHAPE: Shape = Shape {
    connections: 4,
    streams: 100,
};

/// The longest time that a reload may take.
const LONGEST_RELOAD: Duration = Duration::from_secs(60);

/// Time between two scrapes: more often than Prometheus scrapes.
const BETWEEN_SCRAPES: Duration = Duration::from_millis(200);

/// The control work during the load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    Nothing,
    Reloads,
    Scrapes,
}

const WORKS: [(Work, &str); 3] = [
    (Work::Nothing, "nothing else"),
    (Work::Reloads, "all limits are reloaded"),
    (Work::Scrapes, "metrics are read, 0.2 s apart"),
];

/// Latencies of the calls of a window in microseconds (p50, p99, p99.9, longest), and how often the
/// work was done.
struct Reading {
    micros: [f64; 4],
    done: f64,
}

/// Measures and returns the table.
pub fn measure(times: Times) -> String {
    let limits = LIMITS.min(times.most);
    run_this_process_on(CpuPlacement::AllCores);
    let mut readings: [Vec<Reading>; 3] = Default::default();
    for round in 1..=times.rounds {
        for ((work, name), readings) in WORKS.into_iter().zip(&mut readings) {
            let reading = beside(work, limits, times);
            let [p50, p99, p999, max] = reading.micros;
            eprintln!(
                "round {round}: {name:26} p50 {p50:6.0} p99 {p99:6.0} p99.9 {p999:6.0} max \
                 {max:6.0} us, {} times",
                reading.done
            );
            readings.push(reading);
        }
    }
    table(limits, &readings)
}

fn table(limits: u32, readings: &[Vec<Reading>; 3]) -> String {
    let mut text = format!(
        "| {} limits, {PER_SECOND} calls a second | times | p50 | p99 | p99.9 | longest \
         |\n|---|---|---|---|---|---|\n",
        super::dimensions::grouped(limits)
    );
    let [nothing, ..] = readings;
    for ((work, name), of_work) in WORKS.into_iter().zip(readings) {
        let done: Vec<f64> = of_work.iter().map(|reading| reading.done).collect();
        let ratios = |index: usize| {
            of_work
                .iter()
                .zip(nothing)
                .map(|(one, base)| one.micros[index] / base.micros[index])
                .collect::<Vec<f64>>()
        };
        let cells = [0, 1, 2, 3].map(|index| {
            if work == Work::Nothing {
                "1".to_owned()
            } else {
                spread(&ratios(index), 2)
            }
        });
        let done = if work == Work::Nothing {
            "-".to_owned()
        } else {
            spread(&done, 0)
        };
        let _ = writeln!(text, "| {name} | {done} | {} |", cells.join(" | "));
    }
    let longest = |index: usize| {
        readings[index]
            .iter()
            .map(|reading| reading.micros[3] / 1_000.0)
            .fold(0.0, f64::max)
    };
    let [none, reloads, scrapes] = [0, 1, 2].map(longest);
    let _ = writeln!(
        text,
        "\nThe longest call of all rounds took {none:.1} ms with no other work, {reloads:.1} ms \
         during reloads, {scrapes:.1} ms during scrapes.\n"
    );
    text
}

/// Loads a new server while another thread does the work. The server is new, because it polls its
/// files less often after a load that took long.
fn beside(work: Work, limits: u32, times: Times) -> Reading {
    let folder = tempfile::tempdir().expect("a folder");
    workload::write(folder.path(), limits, Routes::Exact, workload::PER_HOUR);
    let variables = [
        ("WORKERS", "1".to_owned()),
        ("MERGE_DOMAIN_CONFIG", "true".to_owned()),
    ];
    let server = Server::weir(folder, &variables, CpuPlacement::AllCores);
    let mut client = Client::connect(server.address, SHAPE);
    let mut requests = GeneratedRequests::drawn(KEYS, limits, Routes::Exact, 1);
    let pace = Pace::Open {
        per_second: PER_SECOND,
    };
    let _ = client.run(&mut requests, pace, Until::Passed(times.warm_up));
    let (stop, before) = (AtomicBool::new(false), loaded(&server));
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| match work {
            Work::Nothing => 0,
            Work::Reloads => change(server.folder()),
            Work::Scrapes => scrape_repeatedly(server.http, &stop),
        });
        let tally = client.run(&mut requests, pace, Until::Passed(times.control_window));
        assert_eq!(tally.ok, tally.answered(), "no call is refused");
        stop.store(true, Ordering::Relaxed);
        let mut done = worker.join().expect("no panic");
        if work == Work::Reloads {
            // On a busy machine a reload may take longer than the load.
            let begin = Instant::now();
            while loaded(&server) == before && begin.elapsed() < LONGEST_RELOAD {
                std::thread::sleep(Duration::from_millis(100));
            }
            done = loaded(&server) - before;
        }
        assert!(work == Work::Nothing || done > 0, "{work:?} was never done");
        Reading {
            micros: tally.quantiles([0.5, 0.99, 0.999, 1.0]),
            done: done as f64,
        }
    })
}

/// How many times the server has loaded limits.
fn loaded(server: &Server) -> usize {
    server.log().matches("limits loaded").count()
}

fn pause(time: Duration, stop: &AtomicBool) {
    let begin = Instant::now();
    while begin.elapsed() < time && !stop.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Adds a file, so that the server compiles all limits again.
fn change(folder: &Path) -> usize {
    std::fs::write(folder.join("config/other.yaml"), "domain: other\n")
        .expect("a folder of our own");
    1
}

/// Reads `/metrics` repeatedly. Returns how many times.
fn scrape_repeatedly(address: SocketAddr, stop: &AtomicBool) -> usize {
    let mut scrapes = 0;
    let mut buffer = vec![0; 1 << 18];
    while !stop.load(Ordering::Relaxed) {
        let mut stream = TcpStream::connect(address).expect("it listens");
        stream
            .write_all(b"GET /metrics HTTP/1.1\r\nhost: weir\r\nconnection: close\r\n\r\n")
            .expect("it reads");
        let mut length = 0;
        while let Ok(more @ 1..) = stream.read(&mut buffer) {
            length += more;
        }
        assert!(length > 1_000, "no metrics");
        scrapes += 1;
        pause(BETWEEN_SCRAPES, stop);
    }
    scrapes
}
