//! The cost of a call, end to end, compared with the budget: Weir, an empty tonic service, plain
//! Redis, and other rate-limit services.
//!
//! `cargo bench --bench service` starts each server in turn, loads it, reads the CPU time of its
//! process and of its Redis, and prints the tables of benches/figures.txt; `-- --write` writes them
//! there, and the ratios into benches/README.md. Each figure of the budget is a ratio to another
//! server in the same round, and the median of rounds that go through all servers in turn. Run
//! nothing else meanwhile, because it would change the figures.

#![allow(
    clippy::panic,
    clippy::disallowed_methods,
    reason = "a measurement, with what the tests have for servers"
)]

use std::time::Duration;

#[allow(dead_code, reason = "shared with the tests, which use more of it")]
#[path = "../tests/it/support"]
mod support {
    pub mod ports;
    pub mod redis;
    pub mod tools;

    pub use redis::RedisServer;
}

#[allow(
    dead_code,
    reason = "shared with the bench of scaling, which uses more of it"
)]
mod service {
    pub mod budget;
    pub mod busy_redis;
    pub mod correctness;
    pub mod empty_server;
    pub mod load;
    pub mod machine;
    pub mod memory_store;
    pub mod plain_redis;
    pub mod scenarios;
    pub mod servers;
    pub mod tables;
    pub mod tls;
    pub mod workload;
}

use service::budget::Measured;
use service::busy_redis;
use service::empty_server::{self, Runtime};
use service::machine::{can_pin, processors, redis_version, version};
use service::memory_store;
use service::scenarios::{self, Times};
use service::servers::Peer;
use service::tables::{write_first_table, write_table};
use service::tls;

const FULL: Times = Times {
    window: Duration::from_secs(2),
    warm_up: Duration::from_millis(600),
    rounds: 3,
};

/// A quick run that shows whether everything works; its figures mean little.
const QUICK: Times = Times {
    window: Duration::from_millis(300),
    warm_up: Duration::from_millis(100),
    rounds: 1,
};

const FULL_KEYS: usize = 10_000_000;
const QUICK_KEYS: usize = 1_000_000;

const USAGE: &str = "\
cargo bench --bench service -- [OPTION...]
    --quick             one short round, to see that it works
    --rounds N          rounds [default: 3]
    --only TEXT         print the figures of runs with TEXT in their names, and no tables; can be
                        given more than once
    --peer NAME=COMMAND another server of the same protocol; COMMAND has {port}, and can have
                        {http} and {debug} for further ports, {limits} for the folder with
                        config/*.yaml, limitador.yaml and limitador-one.yaml, {redis} for host:port
    --write             write the tables into benches/figures.txt, and the ratios into
                        benches/README.md";

/// The options of the command line.
struct Options {
    times: Times,
    fill_keys: usize,
    only: Vec<String>,
    peers: Vec<Peer>,
    write: bool,
}

fn options(arguments: &[String]) -> Option<Options> {
    let mut options = Options {
        times: FULL,
        fill_keys: FULL_KEYS,
        only: Vec::new(),
        peers: Vec::new(),
        write: false,
    };
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--quick" => (options.times, options.fill_keys) = (QUICK, QUICK_KEYS),
            "--rounds" => {
                options.times.rounds = arguments
                    .next()?
                    .parse()
                    .ok()
                    .filter(|&rounds| rounds > 0)?;
            }
            "--only" => options.only.push(arguments.next()?.clone()),
            "--peer" => options.peers.push(Peer::parse(arguments.next()?)?),
            "--write" => options.write = true,
            // Cargo passes this to every bench.
            "--bench" => {}
            _ => return None,
        }
    }
    Some(options)
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["--serve-empty", runtime, port] => {
            let (_, runtime) = Runtime::NAMED
                .into_iter()
                .find(|(name, _)| *name == runtime)
                .expect("a runtime");
            empty_server::serve(runtime, port.parse().expect("a port"));
        }
        [memory_store::FILL, keys] => memory_store::here(keys.parse().expect("a number")),
        _ => match options(&arguments) {
            Some(options) => measure(&options),
            None => {
                eprintln!("{USAGE}");
                std::process::exit(2);
            }
        },
    }
}

fn measure(options: &Options) {
    let mut runs = scenarios::all(&options.peers);
    if !options.only.is_empty() {
        let is_wanted = |name: &str| options.only.iter().any(|only| name.contains(only));
        runs.retain(|run| is_wanted(&run.name));
        scenarios::rounds(&runs, options.times);
        busy_redis::rounds(options.times, is_wanted);
        tls::rounds(options.times, is_wanted);
        return;
    }
    let measured = Measured {
        readings: scenarios::rounds(&runs, options.times),
        busy_redis: busy_redis::rounds(options.times, |_| true),
        fill: memory_store::in_new_processes(options.fill_keys),
        fill_keys: options.fill_keys,
        admitted: scenarios::admitted(),
        log_bytes: scenarios::bytes_per_event(),
        commands_per_refusal: scenarios::commands_per_refusal(options.times.window),
    };
    let report = measured.report(&machine(options.times));
    let tls = tls::report(&tls::rounds(options.times, |_| true));
    println!("{report}\n{tls}");
    if options.write {
        write_table("speed", &report);
        write_first_table("speed", &report);
        write_table("tls", &tls);
    }
}

/// Where and how this was measured.
fn machine(times: Times) -> String {
    let pinned = if can_pin() {
        "the server on one core, Redis and the load on another"
    } else {
        "not pinned to cores"
    };
    format!(
        "Medians of {} rounds [least..most], windows of {:.1} s. {}, {pinned}; {}, {}.\n",
        times.rounds,
        times.window.as_secs_f64(),
        processors(),
        version("rustc"),
        redis_version()
    )
}
