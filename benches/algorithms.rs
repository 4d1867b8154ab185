//! The cost of a decision by each algorithm, in memory and in Redis.
//!
//! `cargo bench --bench algorithms` prints the table of benches/figures.txt; `-- --write` writes it
//! there. Figures are CPU time of the process that decides, not wall time. Each round measures all
//! rows in turn. A row shows the median, and in brackets the median of the ratios to a plain INCR
//! that was measured right before. Only rows of one run on one machine can be compared. Redis is a
//! redis-server of the bench on the loopback interface, without persistence.

#![allow(
    clippy::panic,
    clippy::disallowed_methods,
    reason = "a measurement, with what the tests have for servers"
)]

use std::fmt::Write;
use std::sync::Arc;

use tokio::time::{Duration, Instant};
use weir::core::algorithm::{Algorithm, AlgorithmKind, Arrival, Options};
use weir::core::answer::Answers;
use weir::core::time::{Rate, Span, Unit};
use weir::core::usage::{Settings, Tracking};
use weir::limits::plan::{Check, CheckIndex, Checks, Modes};
use weir::net::clock;
use weir::store::redis::UsageClient;
use weir::store::{Budget, Memory, Redis, memory};

#[allow(dead_code, reason = "shared with the tests, which use more of it")]
#[path = "../tests/it/support"]
mod support {
    pub mod ports;
    pub mod redis;
    pub mod tools;
}

#[allow(
    dead_code,
    reason = "shared with the bench of that name, which uses more of it"
)]
#[path = "service"]
mod service {
    pub mod machine;
    pub mod tables;
}

use service::machine::{
    first_thread_micros, own_resident_bytes, processors, redis_version, version,
};
use service::tables::{median, write_table};
use support::redis::{RedisServer, connect};

const KEYS: usize = 20_000;
const ROUNDS: usize = 5;

/// Decisions in memory per round and row.
const IN_MEMORY: usize = 400_000;

/// Decisions in Redis per round and row.
const IN_REDIS: usize = 40_000;

const BATCHES: [usize; 3] = [1, 16, 64];

fn algorithms() -> Vec<(&'static str, Algorithm)> {
    let rate = Rate {
        requests_per_unit: 100,
        unit: Unit::Minute,
        unit_multiplier: 1,
    };
    let build = |&(name, kind): &(&'static str, AlgorithmKind)| {
        let options = Options {
            kind,
            ..Options::default()
        };
        (
            name,
            Algorithm::try_new(&rate, &options).expect("options that belong together"),
        )
    };
    AlgorithmKind::OVER_TIME.iter().map(build).collect()
}

/// `batch` checks on keys that go round.
fn checks(algorithm: Algorithm, batch: usize, first: usize) -> Checks {
    let keys: Vec<String> = (0..batch)
        .map(|offset| format!("w1{{bench|user={}}}x", (first + offset) % KEYS))
        .collect();
    Checks::of(
        keys.iter()
            .map(|key| (key.as_bytes(), Check::new(algorithm, 1, Modes::default()))),
    )
}

/// The same of a limit with `track_usage`, or without.
fn checks_of(
    algorithm: Algorithm,
    batch: usize,
    first: usize,
    tracking: Option<&Arc<Tracking>>,
) -> Checks {
    let checks = checks(algorithm, batch, first);
    tracking.into_iter().fold(checks, |checks, tracking| {
        (0..batch).fold(checks, |checks, index| {
            checks.tracked(CheckIndex(index), (Arc::clone(tracking), None))
        })
    })
}

fn in_memory(algorithm: Algorithm) -> f64 {
    in_memory_with(algorithm, None)
}

fn in_memory_with(algorithm: Algorithm, tracking: Option<&Arc<Tracking>>) -> f64 {
    let memory = Memory::new(memory::Options::default());
    let requests: Vec<Checks> = (0..KEYS)
        .map(|key| checks_of(algorithm, 1, key, tracking))
        .collect();
    let begin = first_thread_micros(std::process::id());
    for index in 0..IN_MEMORY {
        let at = Arrival {
            now: clock::now(),
            max_wait: Span::ZERO,
        };
        std::hint::black_box(memory.decide_at(&requests[index % KEYS], &[CheckIndex(0)], at));
    }
    (first_thread_micros(std::process::id()) - begin) / IN_MEMORY as f64
}

/// Bytes of this process per key, with a single hit each.
fn memory_bytes(algorithm: Algorithm) -> f64 {
    const MANY: usize = 400_000;
    let memory = Memory::new(memory::Options {
        max_keys: 4 * MANY,
        ..Default::default()
    });
    let begin = own_resident_bytes();
    for key in 0..MANY {
        let name = format!("w1{{bench|user={key}}}x");
        let checks = Checks::of([(name.as_bytes(), Check::new(algorithm, 1, Modes::default()))]);
        let _ = memory.decide_at(
            &checks,
            &checks.indices(),
            Arrival {
                now: clock::now(),
                max_wait: Span::ZERO,
            },
        );
    }
    (own_resident_bytes() - begin) / MANY as f64
}

/// Bytes of this process per subject with so many buckets, without its counter.
fn usage_bytes(buckets: u32) -> f64 {
    const MANY: usize = 100_000;
    let memory = Memory::new(memory::Options {
        usage_bytes: usize::MAX / 2,
        ..Default::default()
    });
    let tracking = Arc::new(Tracking {
        is_in_slot_of_domain: false,
        settings: Settings::default(),
        domain: "bench".into(),
        levels: [].into(),
        is_trial: false,
    });
    let (_, algorithm) = algorithms()[0];
    let checks = |key: usize| {
        let name = format!("w1{{bench|user={key}}}x");
        Checks::of([(name.as_bytes(), Check::new(algorithm, 1, Modes::default()))])
    };
    let now = clock::now();
    // The counters are there before.
    for key in 0..MANY {
        let _ = memory.decide_at(
            &checks(key),
            &[CheckIndex(0)],
            Arrival {
                now,
                max_wait: Span::ZERO,
            },
        );
    }
    let begin = own_resident_bytes();
    for bucket in 0..buckets {
        let at = Arrival {
            now: now + Span::from_micros(tracking.settings.interval.micros() * u64::from(bucket)),
            max_wait: Span::ZERO,
        };
        for key in 0..MANY {
            let _ = memory.decide_at(
                &checks(key).tracked(CheckIndex(0), (Arc::clone(&tracking), None)),
                &[CheckIndex(0)],
                at,
            );
        }
    }
    assert_eq!(memory.usage().size().records, MANY, "all are kept");
    (own_resident_bytes() - begin) / MANY as f64
}

/// The same, in a process that has not held anything before; what an allocator keeps for later
/// would hide what is new.
fn bytes_in_a_new_process(name: &str) -> f64 {
    let this = std::env::current_exe().expect("a program");
    let output = std::process::Command::new(this)
        .args([BYTES_OF, name])
        .output()
        .expect("it runs");
    String::from_utf8_lossy(&output.stdout)
        .trim()
        .parse()
        .expect("a number")
}

/// The argument that asks for one figure alone.
const BYTES_OF: &str = "--bytes-of";

async fn decide(redis: &Redis, checks: Checks, budget: Budget) -> Answers {
    let checks = Arc::new(checks);
    redis.decide(&checks, &checks.indices(), &budget).await
}

/// CPU time of redis-server per decision, in batches of `batch`.
async fn in_redis(server: &RedisServer, redis: &Redis, algorithm: Algorithm, batch: usize) -> f64 {
    in_redis_with(server, redis, algorithm, batch, None).await
}

async fn in_redis_with(
    server: &RedisServer,
    redis: &Redis,
    algorithm: Algorithm,
    batch: usize,
    tracking: Option<&Arc<Tracking>>,
) -> f64 {
    server.flush();
    let process = server.process_id();
    let begin = first_thread_micros(process);
    for index in (0..IN_REDIS).step_by(batch) {
        let budget = Budget::until(Instant::now() + Duration::from_secs(10));
        let answers = decide(redis, checks_of(algorithm, batch, index, tracking), budget).await;
        assert!(answers.verdicts().iter().all(Result::is_ok), "{answers:?}");
    }
    (first_thread_micros(process) - begin) / IN_REDIS as f64
}

/// CPU time of redis-server per plain INCR, sixteen to a round trip: what the figures are compared
/// with.
fn incr(server: &RedisServer) -> f64 {
    server.flush();
    let mut connection = server.connection();
    let process = server.process_id();
    let begin = first_thread_micros(process);
    for index in (0..IN_REDIS).step_by(16) {
        let mut pipe = bb8_redis::redis::pipe();
        for offset in 0..16 {
            pipe.cmd("INCR")
                .arg(format!("incr:{}", (index + offset) % KEYS));
        }
        pipe.query::<Vec<i64>>(&mut connection)
            .expect("sixteen numbers");
    }
    (first_thread_micros(process) - begin) / IN_REDIS as f64
}

/// Bytes of Redis per key, with a single hit each.
async fn redis_bytes(server: &RedisServer, redis: &Redis, algorithm: Algorithm) -> f64 {
    server.flush();
    let used = || {
        let info: String = server.run(&["INFO", "memory"]);
        info.lines()
            .find_map(|line| line.strip_prefix("used_memory:"))
            .expect("a size")
            .trim()
            .parse::<f64>()
            .expect("a number")
    };
    let begin = used();
    for first in (0..KEYS).step_by(64) {
        let budget = Budget::until(Instant::now() + Duration::from_secs(10));
        let _ = decide(
            redis,
            checks(algorithm, 64.min(KEYS - first), first),
            budget,
        )
        .await;
    }
    (used() - begin) / KEYS as f64
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if let Some(position) = arguments.iter().position(|argument| argument == BYTES_OF) {
        let wanted = arguments.get(position + 1).expect("a name");
        match wanted.as_str() {
            "usage-1" => return println!("{:.0}", usage_bytes(1)),
            "usage-all" => return println!("{:.0}", usage_bytes(Settings::default().buckets)),
            _ => {}
        }
        let (_, algorithm) = algorithms()
            .into_iter()
            .find(|(name, _)| name == wanted)
            .expect("an algorithm");
        return println!("{:.0}", memory_bytes(algorithm));
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let is_usage = arguments.iter().any(|argument| argument == "--usage");
    let report = if is_usage {
        runtime.block_on(measure_usage())
    } else {
        runtime.block_on(measure())
    };
    println!("{report}");
    if arguments.iter().any(|argument| argument == "--write") {
        write_table(if is_usage { "usage" } else { "algorithms" }, &report);
    }
}

/// CPU times in pairs: with `track_usage`, and without it right before or after.
type Pairs = Vec<(f64, f64)>;

/// An algorithm by its name, and its pairs in memory, in Redis by batch, and of Weir beside Redis.
type UsageRow = (&'static str, Algorithm, [Pairs; BATCHES.len() + 2]);

/// A row for each algorithm: medians, and in brackets their ratio to the same without
/// `track_usage`.
fn rows_of_usage(table: &mut String, rows: &[UsageRow]) {
    for (name, _, columns) in rows {
        let _ = write!(table, "| `{name}`");
        for pairs in columns {
            let middle = |value: fn(&(f64, f64)) -> f64| {
                median(&pairs.iter().map(value).collect::<Vec<_>>()).unwrap_or(f64::NAN)
            };
            let _ = write!(
                table,
                " | {:.2} µs ({:.2})",
                middle(|pair| pair.0),
                middle(|pair| pair.0 / pair.1)
            );
        }
        *table += " |\n";
    }
}

/// What `track_usage` adds. The sides take turns in going first, because the machine may be faster
/// for a while.
async fn measure_usage() -> String {
    let server = RedisServer::start();
    let redis = connect(server.options());
    let tracking = Arc::new(Tracking {
        is_in_slot_of_domain: false,
        settings: Settings::default(),
        domain: "bench".into(),
        levels: [].into(),
        is_trial: false,
    });
    let mut rows: Vec<UsageRow> = algorithms()
        .into_iter()
        .map(|(name, algorithm)| (name, algorithm, [const { Pairs::new() }; BATCHES.len() + 2]))
        .collect();
    let (mut lists, mut plain) = (Vec::new(), Vec::new());
    for round in 1..=ROUNDS {
        for (name, algorithm, columns) in &mut rows {
            eprintln!("round {round} of {ROUNDS}: {name}");
            let [in_memory, in_redis @ .., of_weir] = columns;
            let mut sides = [None, Some(&tracking)];
            sides.rotate_left(round % 2);
            let mut micros = sides.map(|side| in_memory_with(*algorithm, side));
            micros.rotate_right(round % 2);
            in_memory.push((micros[1], micros[0]));
            for (column, &batch) in in_redis.iter_mut().zip(&BATCHES) {
                let mut micros = [(f64::NAN, f64::NAN); 2];
                for (micros, side) in micros.iter_mut().zip(sides) {
                    let begin = first_thread_micros(std::process::id());
                    micros.0 = in_redis_with(&server, &redis, *algorithm, batch, side).await;
                    micros.1 = (first_thread_micros(std::process::id()) - begin) / IN_REDIS as f64;
                }
                micros.rotate_right(round % 2);
                column.push((micros[1].0, micros[0].0));
                if batch == BATCHES[BATCHES.len() - 1] {
                    of_weir.push((micros[1].1, micros[0].1));
                }
            }
        }
        plain.push(incr(&server));
        lists.push(of_lists(&server, &redis, &tracking).await);
    }
    let mut table =
        "| algorithm | in memory | Redis, 1 at a time | in batches of 16 | of 64 | Weir beside \
         Redis, of 64 |\n|---|---|---|---|---|---|\n"
            .to_owned();
    rows_of_usage(&mut table, &rows);
    let middle = |values: &[f64]| median(values).unwrap_or(f64::NAN);
    let ratios: Vec<f64> = lists
        .iter()
        .zip(&plain)
        .map(|(of_lists, incr)| of_lists / incr)
        .collect();
    let _ = write!(
        table,
        "\n| of a subject | figure |\n|---|---|\n| CPU of Redis to write it to all lists, to an \
         `INCR` | {:.2} |\n| bytes in memory, after one hit | {} |\n\
         | bytes in memory, with {} buckets | {} |\n",
        middle(&ratios),
        bytes_in_a_new_process("usage-1"),
        Settings::default().buckets,
        bytes_in_a_new_process("usage-all"),
    );
    let (processors, rustc, redis) = (processors(), version("rustc"), redis_version());
    table
        + &format!(
            "\nWith `track_usage`; in brackets to the same without it. Medians of {ROUNDS} rounds. \
             {processors}; {rustc}, {redis}.\n"
        )
}

/// CPU time of redis-server to write a subject to the lists of its limit, which have it already,
/// among as many as are written at a time.
async fn of_lists(server: &RedisServer, redis: &Redis, tracking: &Arc<Tracking>) -> f64 {
    const SUBJECTS: usize = 10_000;
    server.flush();
    let writer = UsageClient::new(Arc::clone(redis.deployment()), String::new());
    writer.flush().await;
    let (_, algorithm) = algorithms()[0];
    let mut micros = f64::NAN;
    for _ in 0..2 {
        for first in (0..SUBJECTS).step_by(50) {
            let budget = Budget::until(Instant::now() + Duration::from_secs(10));
            let _ = decide(
                redis,
                checks_of(algorithm, 50, first, Some(tracking)),
                budget,
            )
            .await;
        }
        let begin = first_thread_micros(server.process_id());
        writer.flush().await;
        micros = (first_thread_micros(server.process_id()) - begin) / SUBJECTS as f64;
    }
    let listed = server.run::<usize>(&["ZCARD", "w1{bench}ut"]);
    assert_eq!(listed, SUBJECTS, "all are written");
    micros
}

/// A row of the table: CPU time per decision, in microseconds, by round; in Redis by the size of
/// batches, each beside that of a plain INCR.
#[derive(Default)]
struct Row {
    in_memory: Vec<f64>,
    in_redis: [Vec<f64>; BATCHES.len()],
    to_incr: [Vec<f64>; BATCHES.len()],
}

async fn measure() -> String {
    let server = RedisServer::start();
    let redis = connect(server.options());
    let mut rows: Vec<_> = algorithms()
        .into_iter()
        .map(|(name, algorithm)| (name, algorithm, Row::default()))
        .collect();
    let mut plain = Vec::new();
    for round in 1..=ROUNDS {
        for (name, algorithm, row) in &mut rows {
            eprintln!("round {round} of {ROUNDS}: {name}");
            row.in_memory.push(in_memory(*algorithm));
            for (column, &batch) in BATCHES.iter().enumerate() {
                let beside = incr(&server);
                let micros = in_redis(&server, &redis, *algorithm, batch).await;
                row.in_redis[column].push(micros);
                row.to_incr[column].push(micros / beside);
                plain.push(beside);
            }
        }
    }
    let mut table =
        "| algorithm | in memory | Redis, 1 at a time | in batches of 16 | of 64 | bytes a key in \
         memory | in Redis |\n"
            .to_owned();
    table += "|---|---|---|---|---|---|---|\n";
    let middle = |values: &[f64]| median(values).unwrap_or(f64::NAN);
    for (name, algorithm, row) in &rows {
        let _ = write!(table, "| `{name}` | {:.2} µs", middle(&row.in_memory));
        for (micros, ratios) in row.in_redis.iter().zip(&row.to_incr) {
            let _ = write!(table, " | {:.1} µs ({:.1})", middle(micros), middle(ratios));
        }
        let _ = writeln!(
            table,
            " | {:.0} | {:.0} |",
            bytes_in_a_new_process(name),
            redis_bytes(&server, &redis, *algorithm).await
        );
    }
    let (plain, processors, rustc, redis) = (
        middle(&plain),
        processors(),
        version("rustc"),
        redis_version(),
    );
    table
        + &format!(
            "\nIn brackets: to a plain `INCR`, sixteen to a round trip, which cost redis-server \
             {plain:.1} µs. {processors}; {rustc}, {redis}.\n"
        )
}
