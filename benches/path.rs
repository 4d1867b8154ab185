//! The cost of each step of a request, without the network: nanoseconds of this thread's CPU time
//! per call.
//!
//! `cargo bench --bench path` prints a table; words after `--` select the rows whose names contain
//! one of them. Each round measures all rows in turn, so that a busy moment of the machine affects
//! all of them. A row shows the median and the extremes of its rounds. Only rows of one run on one
//! machine can be compared.

#![allow(clippy::panic, clippy::disallowed_methods, reason = "a measurement")]

use std::fs;
use std::hint::black_box;
use std::sync::Arc;

use futures_util::FutureExt;
use weir::core::algorithm::{Algorithm, AlgorithmKind, Arrival, Options, State};
use weir::core::answer::Decisions;
use weir::core::request::Entry;
use weir::core::time::{Rate, Span, Unit};
use weir::limits::plan::{self, Check, CheckIndex, Checks, Modes, Plan};
use weir::limits::rules::Rules;
use weir::net::clock;
use weir::observe::traces::TraceSpan;
use weir::service::rls::decode::decode;
use weir::service::rls::respond::{self, respond};
use weir::store::{Memory, memory};

#[path = "../tests/it/support"]
mod support {
    pub mod workload;
}

use support::workload::{message, rules, service, typical_rules};

const ROUNDS: usize = 9;

/// CPU time of one row in one round.
const ROUND_NANOS: u64 = 20_000_000;

/// A step that is called repeatedly.
struct Row {
    name: String,
    call: Box<dyn FnMut()>,
    calls: u64,
    nanos: Vec<f64>,
}

impl Row {
    fn new(name: impl Into<String>, call: impl FnMut() + 'static) -> Self {
        Self {
            name: name.into(),
            call: Box::new(call),
            calls: 1,
            nanos: Vec::new(),
        }
    }

    /// CPU time of all calls of a round.
    fn round(&mut self) -> u64 {
        let began = cpu_nanos();
        for _ in 0..self.calls {
            (self.call)();
        }
        cpu_nanos() - began
    }

    /// Doubles the calls until they fill a round.
    fn calibrate(&mut self) {
        while self.round() < ROUND_NANOS {
            self.calls *= 2;
        }
    }

    fn measure(&mut self) {
        let nanos = self.round() as f64 / self.calls as f64;
        self.nanos.push(nanos);
    }

    fn line(&mut self) -> String {
        self.nanos.sort_by(f64::total_cmp);
        let (least, middle, most) = (
            self.nanos[0],
            self.nanos[ROUNDS / 2],
            self.nanos[ROUNDS - 1],
        );
        format!("| {} | {middle:.0} | {least:.0} .. {most:.0} |", self.name)
    }
}

/// CPU time of this thread so far, in nanoseconds. The kernel updates it some hundred times a
/// second.
fn cpu_nanos() -> u64 {
    let stat = fs::read_to_string("/proc/thread-self/schedstat").expect("Linux");
    stat.split(' ')
        .next()
        .and_then(|nanos| nanos.parse().ok())
        .expect("a number")
}

/// Rules with this number of limits on one level, each for its own value.
fn limits(count: usize, value: impl Fn(usize) -> String) -> Rules {
    let limit = |index| {
        format!(
            "- {{key: path, value: '{}', rate_limit: {{unit: hour, requests_per_unit: \
             4000000000}}}}\n",
            value(index)
        )
    };
    rules(&(0..count).map(limit).collect::<String>())
}

fn algorithms() -> Vec<(&'static str, Algorithm)> {
    let rate = Rate {
        requests_per_unit: 4_000_000,
        unit: Unit::Hour,
        unit_multiplier: 1,
    };
    let build = |&(name, kind): &(&'static str, AlgorithmKind)| {
        let rate = if kind == AlgorithmKind::SlidingWindowLog {
            Rate {
                requests_per_unit: 100,
                ..rate
            }
        } else {
            rate
        };
        (
            name,
            Algorithm::try_new(
                &rate,
                &Options {
                    kind,
                    ..Options::default()
                },
            )
            .expect("options that belong together"),
        )
    };
    AlgorithmKind::OVER_TIME.iter().map(build).collect()
}

fn matching(rows: &mut Vec<Row>) {
    let mut add = |name: String, rules: Rules, value: String| {
        rows.push(Row::new(name, move || {
            black_box(rules.find(
                b"shop",
                &[Entry {
                    key: b"path",
                    value: black_box(value.as_bytes()),
                }],
            ));
        }));
    };
    for count in [10, 1_000, 100_000] {
        let last = count - 1;
        add(
            format!("match, {count} values"),
            limits(count, |index| format!("/{index}")),
            format!("/{last}"),
        );
        add(
            format!("match, {count} prefixes"),
            limits(count, |index| format!("/{index}/*")),
            format!("/{last}/x"),
        );
        add(
            format!("match none, {count} prefixes"),
            limits(count, |index| format!("/{index}/*")),
            "/some/other/path".to_owned(),
        );
    }
}

fn steps(rows: &mut Vec<Row>) {
    for (name, algorithm) in algorithms() {
        let (mut state, mut now): (Option<State>, _) = (None, clock::now());
        rows.push(Row::new(format!("step, {name}"), move || {
            now = now + Span::from_micros(100_000);
            state = algorithm
                .step(
                    state.take(),
                    Arrival {
                        now,
                        max_wait: Span::ZERO,
                    },
                    1,
                )
                .state;
        }));
    }
}

fn store(rows: &mut Vec<Row>) {
    let fixed = algorithms()[0].1;
    for keys in [1_000, 1_000_000] {
        let memory = Memory::new(memory::Options {
            max_keys: 2_000_000,
            ..Default::default()
        });
        let now = clock::now();
        let mut index = 0_usize;
        let mut decide = move || {
            // Keys far from each other, so that the CPU's caches do not hold the next one.
            index = (index + 7_919) % keys;
            let mut key = *b"w1{shop|customer=c-________}fw3600";
            write_digits(&mut key[19..27], index);
            let checks = Checks::of([(&key[..], Check::new(fixed, 1, Modes::default()))]);
            black_box(memory.decide_at(
                &checks,
                &[CheckIndex(0)],
                Arrival {
                    now,
                    max_wait: Span::ZERO,
                },
            ));
        };
        (0..keys).for_each(|_| decide());
        rows.push(Row::new(
            format!("memory store, {keys} keys (with a plan of one check)"),
            decide,
        ));
    }
}

fn write_digits(out: &mut [u8], mut number: usize) {
    for digit in out.iter_mut().rev() {
        *digit = b'0' + (number % 10) as u8;
        number /= 10;
    }
}

fn path(rows: &mut Vec<Row>, descriptors: usize) {
    let of = |name: &str| format!("{name}, {descriptors} descriptors of 3 entries");
    let messages: Vec<_> = (0..10_000)
        .map(|customer| message(descriptors, customer))
        .collect();
    let message = messages[1].clone();
    rows.push(Row::new(of("decode"), {
        let message = message.clone();
        move || drop(black_box(decode(black_box(&message)).expect("a request")))
    }));
    let rules = Arc::new(typical_rules());
    rows.push(Row::new(of("plan, with decode"), {
        let (message, rules, options) = (
            message.clone(),
            Arc::clone(&rules),
            plan::Options::default(),
        );
        move || {
            drop(black_box(Arc::new(Plan::new(
                &rules,
                &decode(&message).expect("a request"),
                &options,
            ))));
        }
    }));
    let leaked: &'static [u8] = message.clone().leak();
    let request = decode(leaked).expect("a request");
    let plan = Plan::new(&rules, &request, &plan::Options::default());
    let memory = Memory::new(memory::Options::default());
    let answers = memory.decide_at(
        &plan.checks,
        &plan.checks.indices(),
        Arrival {
            now: clock::now(),
            max_wait: Span::ZERO,
        },
    );
    let decisions = Decisions::of_store(&answers);
    rows.push(Row::new(of("respond and encode"), move || {
        drop(black_box(
            respond(
                &request,
                &plan.outcomes(&decisions),
                &respond::Options::default(),
            )
            .expect("an answer"),
        ));
    }));
    let service = service();
    let mut index = 0;
    rows.push(Row::new(
        of("whole request in memory, 10k customers"),
        move || {
            index = (index + 7) % messages.len();
            drop(black_box(
                service
                    .answer(&messages[index], None, &TraceSpan::default())
                    .now_or_never()
                    .expect("memory does not wait")
                    .expect("an answer"),
            ));
        },
    ));
}

fn main() {
    let wanted: Vec<String> = std::env::args()
        .skip(1)
        .filter(|word| !word.starts_with("--"))
        .collect();
    let mut rows = Vec::new();
    for descriptors in [1, 3, 10] {
        path(&mut rows, descriptors);
    }
    matching(&mut rows);
    steps(&mut rows);
    store(&mut rows);
    rows.retain(|row| wanted.is_empty() || wanted.iter().any(|word| row.name.contains(word)));
    rows.iter_mut().for_each(Row::calibrate);
    for _ in 0..ROUNDS {
        rows.iter_mut().for_each(Row::measure);
    }
    println!("| step | ns | least .. most |\n|---|---|---|");
    for row in &mut rows {
        println!("{}", row.line());
    }
}
