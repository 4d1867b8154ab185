//! The calls that Weir answers in time at three times its peak rate, as a share of the peak.
//!
//! First the peak: a closed loop with a few calls in flight on each connection. Then an open loop
//! at that rate, and one at three times that rate. Clients of the open loops give up after 100 ms,
//! because later answers are of no use. An open loop costs more CPU time per call than a closed one
//! at the same rate, because its calls arrive one by one and not several at a time. The server's
//! share of the machine differs from second to second. So results are shares of the calls that the
//! server could have answered in the CPU time that it got, at the cost of the closed loop and at
//! that of the open one. The load has its own core. The server shares the other one with its Redis,
//! or with programs that only keep it busy, so that the load can send three times the peak.

use std::fmt::Write as _;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::Times;
use crate::service::load::{Client, Pace, RequestSequence, Shape, Tally, Until};
use crate::service::machine::can_pin;
use crate::service::servers::{CpuPlacement, Server, ServerKind};
use crate::service::tables::{extremes, median, spread};
use crate::service::workload::{Keys, requests};

const CLIENT_TIMEOUT: Duration = Duration::from_millis(100);

/// Overloads of one server; the peak is measured before, between and after them.
const OVERLOADS: usize = 3;

/// The offered rate, as a multiple of the peak.
const OFFERED: f64 = 3.0;

/// Calls in flight on each connection while the peak is measured.
const STREAMS_AT_PEAK: usize = 4;

/// A client of an overload.
#[derive(Clone, Copy)]
struct Load {
    connections: usize,
    /// Each call has a `traceparent` of its own.
    traces: bool,
}

const LOADS: [Load; 3] = [
    Load {
        connections: 16,
        traces: false,
    },
    Load {
        connections: 64,
        traces: false,
    },
    Load {
        connections: 64,
        traces: true,
    },
];

/// A caller beside the load, on a connection of its own.
const SPORADIC: Pace = Pace::Open { per_second: 20.0 };

impl Load {
    fn name(self) -> String {
        format!(
            "{} connections{}",
            self.connections,
            if self.traces { ", traced" } else { "" }
        )
    }

    fn connect(self, server: &Server, streams: usize) -> Client {
        let client = Client::connect(
            server.address,
            Shape {
                connections: self.connections,
                streams,
            },
        )
        .with_timeout(CLIENT_TIMEOUT);
        if self.traces {
            client.with_traces()
        } else {
            client
        }
    }
}

/// Calls that wait on one connection of an open loop, at most.
const MAX_STREAMS: usize = 1_000;

/// A program that uses its share of the first core and does nothing.
struct Spinner(Child);

impl Spinner {
    fn start() -> Self {
        let mut command = Command::new("taskset");
        command
            .args(["-c", "0", "sh", "-c", "while :; do :; done"])
            .stdin(Stdio::null());
        Self(command.spawn().expect("taskset, as for the servers"))
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The figures of one overload. `goodput` and `offered` are shares of the calls that the server's
/// CPU time would have answered at the peak, `goodput_open` of those in an open loop at the peak's
/// rate; `refused` and `given_up` are shares of the offered calls.
struct Reading {
    goodput: f64,
    goodput_open: f64,
    offered: f64,
    refused: f64,
    given_up: f64,
    connections_lost: u64,
    /// The share of the sporadic caller's calls that are answered in time.
    sporadic: f64,
    /// Latencies in milliseconds, p50 and p99, of answered and of refused calls.
    answered_ms: [f64; 2],
    refused_ms: [f64; 2],
    mebibytes: [f64; 2],
}

/// Measures and returns the table.
pub fn measure(times: Times) -> String {
    let mut text = String::from(
        "| three times the peak, for callers that wait 100 ms | offered / peak | answered in time \
         / open loop at the peak's rate | answered in time / peak | a sporadic caller's | refused \
         | given up | time to a refusal, p50, p99 | p50, p99 of all answers | memory |\n\
         |---|---|---|---|---|---|---|---|---|---|\n",
    );
    if !can_pin() {
        return String::new();
    }
    let stores = [
        (
            "memory",
            ServerKind::Memory {
                algorithm: "fixed_window",
            },
            2,
        ),
        (
            "Redis",
            ServerKind::Redis {
                algorithm: "fixed_window",
            },
            0,
        ),
    ];
    for (store, kind, spinners) in stores {
        for load in LOADS {
            let name = format!("{store}, {}", load.name());
            let readings: Vec<Reading> = (0..times.rounds)
                .flat_map(|_| overloads(&kind, spinners, load, times))
                .inspect(|one| one.show(&name))
                .collect();
            let all = |value: fn(&Reading) -> f64| readings.iter().map(value).collect::<Vec<f64>>();
            let column = |value| spread(&all(value), 2);
            let middle = |value| median(&all(value)).unwrap_or(f64::NAN);
            let _ = writeln!(
                text,
                "| {name} | {} | {} | {} | {:.1} % | {:.1} % | {:.1} % | {} | {} | {:.0} MiB, then \
                 {:.0} |",
                column(|one| one.offered),
                column(|one| one.goodput_open),
                column(|one| one.goodput),
                middle(|one| one.sporadic) * 100.0,
                middle(|one| one.refused) * 100.0,
                middle(|one| one.given_up) * 100.0,
                in_ms([
                    middle(|one| one.refused_ms[0]),
                    middle(|one| one.refused_ms[1])
                ]),
                in_ms([
                    middle(|one| one.answered_ms[0]),
                    middle(|one| one.answered_ms[1])
                ]),
                all(|one| one.mebibytes[0])[0],
                extremes(&all(|one| one.mebibytes[1])).1,
            );
        }
    }
    text + "\n"
}

/// Two latencies as the table shows them; none when there was no such answer.
fn in_ms([p50, p99]: [f64; 2]) -> String {
    if p50.is_nan() {
        "-".to_owned()
    } else {
        format!("{p50:.1} ms, {p99:.1} ms")
    }
}

impl Reading {
    fn show(&self, name: &str) {
        let Self {
            goodput,
            goodput_open,
            offered,
            refused,
            given_up,
            connections_lost,
            sporadic,
            answered_ms,
            refused_ms,
            mebibytes,
        } = self;
        eprintln!(
            "{name:32} offered {offered:4.2} goodput {goodput:4.2} open {goodput_open:4.2} \
             sporadic {sporadic:4.2} refused {refused:5.3} given up {given_up:5.3} lost \
             {connections_lost} answered {answered_ms:6.1?} ms, refused {refused_ms:6.1?} ms, \
             {mebibytes:4.0?} MiB"
        );
    }
}

/// Overloads between measurements of the peak, because the other work of the machine changes from
/// second to second.
fn overloads(kind: &ServerKind, spinners: usize, load: Load, times: Times) -> Vec<Reading> {
    let server = Server::start(kind, CpuPlacement::FirstCore);
    let _spinners: Vec<Spinner> = (0..spinners).map(|_| Spinner::start()).collect();
    let mut requests = requests(Keys::Uniform, 1);
    let mut before = Peak::measure(&server, load, &mut requests, times);
    let mut readings = Vec::new();
    for _ in 0..OVERLOADS {
        let overload = Open::measure(
            &server,
            load,
            OFFERED * before.per_second,
            &mut requests,
            times,
        );
        let after = Peak::measure(&server, load, &mut requests, times);
        readings.push(overload.between(&before, &after));
        before = after;
    }
    readings
}

/// Long enough for clients to give up calls.
fn window(times: Times) -> Until {
    Until::Passed(times.window.max(5 * CLIENT_TIMEOUT))
}

/// The rate and the costs of the server at its peak.
struct Peak {
    per_second: f64,
    /// CPU time of an answer in microseconds, in the closed loop and in an open loop at the same
    /// rate.
    cost: f64,
    open_cost: f64,
}

impl Peak {
    fn measure(server: &Server, load: Load, requests: &mut RequestSequence, times: Times) -> Self {
        let mut client = load.connect(server, STREAMS_AT_PEAK);
        let _ = client.run(requests, Pace::Closed, Until::Passed(times.warm_up));
        let cpu_micros = server.all_cpu_micros();
        let peak = client.run(requests, Pace::Closed, window(times));

        let cost = (server.all_cpu_micros() - cpu_micros) / peak.ok as f64;
        let per_second = peak.ok as f64 / peak.lasted.as_secs_f64();
        drop(client);
        let open = Open::measure(server, load, per_second, requests, times);
        Self {
            per_second,
            cost,
            open_cost: open.cpu_micros / open.tally.ok as f64,
        }
    }
}

/// The result of an open loop.
struct Open {
    tally: Tally,
    sporadic: Tally,
    /// CPU time of the server and its Redis, in microseconds.
    cpu_micros: f64,
    resident_bytes: [f64; 2],
}

impl Open {
    fn measure(
        server: &Server,
        load: Load,
        per_second: f64,
        requests: &mut RequestSequence,
        times: Times,
    ) -> Self {
        let before = server.resident_bytes();
        let mut client = load.connect(server, MAX_STREAMS);
        // Before the overload, in which a connection may take longer than a call may.
        let alone = Load {
            connections: 1,
            traces: false,
        };
        let mut other = alone.connect(server, MAX_STREAMS);
        let pace = Pace::Open { per_second };
        let _ = client.run(requests, pace, Until::Passed(15 * CLIENT_TIMEOUT));
        let begin = server.all_cpu_micros();
        let (tally, sporadic) = std::thread::scope(|scope| {
            let sporadic = scope.spawn(|| {
                let mut requests = crate::service::workload::requests(Keys::Uniform, 1);
                other.run(&mut requests, SPORADIC, window(times))
            });
            (
                client.run(requests, pace, window(times)),
                sporadic.join().expect("a caller"),
            )
        });
        Self {
            tally,
            sporadic,
            cpu_micros: server.all_cpu_micros() - begin,
            resident_bytes: [before, server.resident_bytes()],
        }
    }

    /// The figures as an overload, at the costs measured before and after it.
    fn between(self, before: &Peak, after: &Peak) -> Reading {
        let capacity = self.cpu_micros / f64::midpoint(before.cost, after.cost);
        let open_capacity = self.cpu_micros / f64::midpoint(before.open_cost, after.open_cost);
        let in_ms = |micros: [f64; 2]| micros.map(|micros| micros / 1_000.0);
        let Tally {
            ok,
            failed,
            given_up,
            connections_lost,
            ..
        } = self.tally;
        let offered = (ok + failed + given_up) as f64;
        Reading {
            goodput: ok as f64 / capacity,
            goodput_open: ok as f64 / open_capacity,
            offered: offered / capacity,
            refused: failed as f64 / offered,
            given_up: given_up as f64 / offered,
            connections_lost,
            sporadic: self.sporadic.ok as f64
                / (self.sporadic.answered() + self.sporadic.given_up) as f64,
            refused_ms: in_ms(self.tally.failed_quantiles([0.5, 0.99])),
            answered_ms: in_ms(self.tally.quantiles([0.5, 0.99])),
            mebibytes: self.resident_bytes.map(|bytes| bytes / f64::from(1 << 20)),
        }
    }
}
