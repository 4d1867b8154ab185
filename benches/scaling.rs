//! The cost of a request as cores, connections, keys, descriptors or limits grow, and its latency
//! during reloads, scrapes and overload.
//!
//! `cargo bench --bench scaling` prints both tables and draws `benches/plots/scaling.svg`;
//! `-- --write` writes the tables into benches/figures.txt. All servers of one row run side by side,
//! one of them loaded at a time, round after round; a figure is a ratio to the row's first point in
//! the same round. Counters are in memory, so that Weir alone is measured. Run nothing else
//! meanwhile.

#![allow(
    clippy::panic,
    clippy::disallowed_methods,
    reason = "a measurement, with what the tests have for servers"
)]

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
    reason = "shared with the bench of that name, which uses more of it"
)]
#[path = "service"]
mod service {
    pub mod correctness;
    pub mod empty_server;
    pub mod load;
    pub mod machine;
    pub mod servers;
    pub mod tables;
    pub mod workload;
}

mod scaling {
    pub mod control_work;
    pub mod dimensions;
    pub mod overload;
    pub mod plot;
    pub mod workload;
}

use std::time::Duration;

use scaling::{control_work, dimensions, overload, plot};
use service::machine::{can_pin, processors, version};
use service::tables::write_table;

/// How long, and how often.
#[derive(Clone, Copy, Debug)]
struct Times {
    window: Duration,
    warm_up: Duration,
    /// The window of a load beside control work: a reload of many limits takes a while.
    control_window: Duration,
    rounds: usize,
    /// The largest value on any dimension.
    most: u32,
}

const FULL: Times = Times {
    window: Duration::from_secs(1),
    warm_up: Duration::from_millis(200),
    control_window: Duration::from_secs(5),
    rounds: 3,
    most: u32::MAX,
};

/// A quick run that shows whether everything works; its figures mean little.
const QUICK: Times = Times {
    window: Duration::from_millis(200),
    warm_up: Duration::from_millis(50),
    control_window: Duration::from_secs(2),
    rounds: 1,
    most: 10_000,
};

const USAGE: &str = "\
cargo bench --bench scaling -- [OPTION...]
    --quick      one short round with at most 10,000 of anything, to see that it works
    --only TEXT  only the rows whose names contain TEXT, or `control` or `overload`; may be repeated
    --write      write the tables into benches/figures.txt, and the plot";

fn main() {
    let (mut times, mut only, mut write) = (FULL, Vec::new(), false);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match (argument.as_str(), &mut arguments) {
            ("--quick", _) => times = QUICK,
            ("--write", _) => write = true,
            // Cargo passes this to every bench.
            ("--bench", _) => {}
            ("--only", rest) if rest.len() > 0 => only.extend(rest.next()),
            _ => {
                eprintln!("{USAGE}");
                std::process::exit(2);
            }
        }
    }
    let wanted = |name: &str| only.is_empty() || only.iter().any(|only| name.contains(only));
    let measured: Vec<dimensions::Measured> = dimensions::all(times.most)
        .into_iter()
        .filter(|row| wanted(row.name))
        .map(|row| row.measure(times))
        .collect();
    let mut report = String::new();
    if !measured.is_empty() {
        report += &dimensions::table(&measured);
    }
    if wanted("control") {
        report += &control_work::measure(times);
    }
    if wanted("overload") {
        report += &overload::measure(times);
    }
    report += &machine(times);
    println!("{report}");
    if write {
        assert!(only.is_empty(), "--write needs every row; leave out --only");
        plot::write(&measured);
        write_table("scaling", &report);
    }
}

/// Where and how this was measured.
fn machine(times: Times) -> String {
    let pinned = if can_pin() {
        "the server on one core and the load on the other, unless it says otherwise"
    } else {
        "not pinned to cores"
    };
    let Times {
        window,
        control_window,
        rounds,
        ..
    } = times;
    format!(
        "Medians of {rounds} rounds [least..most], windows of {:.1} s, and {:.0} s beside control \
         work. {}, {pinned}; {}.\n",
        window.as_secs_f64(),
        control_window.as_secs_f64(),
        processors(),
        version("rustc")
    )
}
