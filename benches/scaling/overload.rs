//! What is left of the calls that can be answered when three times as many are made.
//!
//! First the peak: a closed loop on as many connections, with a few calls under way on each. Then an open loop at that rate, and one at three
//! times of it, by clients that wait for 100 ms and then give up: what is answered later helps nobody. Calls of an open loop come one by one,
//! where an answer of a closed loop brings the next call along with others, so that an open loop costs more, whatever its rate. What the
//! server gets of the machine differs from second to second, so all is counted in what it could have answered in the CPU time that it got, at
//! the price of either. The load has a core of its own, and the server shares one with its Redis, or with a program that does nothing but keep
//! it busy: so the load can offer so much.

use std::fmt::Write as _;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::Times;
use crate::service::load::{Client, Pace, Questions, Shape, Tally, Until};
use crate::service::machine::can_pin;
use crate::service::servers::{Kind, Place, Server};
use crate::service::tables::{extremes, median, spread};
use crate::service::workload::{Keys, questions};

const PATIENCE: Duration = Duration::from_millis(100);

/// Overloads of one server, with a peak before, between and after them.
const OVERLOADS: usize = 3;

/// Times the peak.
const OFFERED: f64 = 3.0;

/// Calls under way on each connection when the peak is measured.
const CLOSED: usize = 4;

const FEW: Shape = Shape { connections: 16, streams: 1_000 };
const MANY: Shape = Shape { connections: 64, streams: 1_000 };

/// A program that only uses up its share of the first core.
struct Spinner(Child);

impl Spinner {
    fn start() -> Self {
        let mut command = Command::new("taskset");
        command.args(["-c", "0", "sh", "-c", "while :; do :; done"]).stdin(Stdio::null());
        Self(command.spawn().expect("taskset, as for the servers"))
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// One overload, as shares: of what the CPU time that the server got would have answered at the peak (answered in time, and offered), or at
/// its rate in an open loop; and of what was offered (refused, and given up).
struct Reading {
    goodput: f64,
    goodput_open: f64,
    offered: f64,
    refused: f64,
    given_up: f64,
    connections_lost: u64,
    /// Latencies in milliseconds: what was answered, and what was refused.
    answered_ms: [f64; 2],
    refused_ms: [f64; 2],
    mebibytes: [f64; 2],
}

/// Measures and returns the table.
pub fn measure(times: Times) -> String {
    let mut text = String::from(
        "| three times the peak, for callers that wait 100 ms | offered / peak | answered in time / open loop at the peak's rate \
         | answered in time / peak | refused | given up | time to a refusal, p50, p99 | p50, p99 of all answers | memory |\n\
         |---|---|---|---|---|---|---|---|---|\n",
    );
    if !can_pin() {
        return String::new();
    }
    let stores = [("memory", Kind::Memory { algorithm: "fixed_window" }, 2), ("Redis", Kind::Redis { algorithm: "fixed_window" }, 0)];
    for (store, kind, spinners) in stores {
        for shape in [FEW, MANY] {
            let name = format!("{store}, {} connections", shape.connections);
            let readings: Vec<Reading> =
                (0..times.rounds).flat_map(|_| overloads(&kind, spinners, shape, times)).inspect(|one| one.show(&name)).collect();
            let all = |value: fn(&Reading) -> f64| readings.iter().map(value).collect::<Vec<f64>>();
            let column = |value| spread(&all(value), 2);
            let middle = |value| median(&all(value)).unwrap_or(f64::NAN);
            let _ = writeln!(
                text,
                "| {name} | {} | {} | {} | {:.1} % | {:.1} % | {:.1} ms, {:.1} ms | {:.1} ms, {:.1} ms | {:.0} MiB, then {:.0} |",
                column(|one| one.offered),
                column(|one| one.goodput_open),
                column(|one| one.goodput),
                middle(|one| one.refused) * 100.0,
                middle(|one| one.given_up) * 100.0,
                middle(|one| one.refused_ms[0]),
                middle(|one| one.refused_ms[1]),
                middle(|one| one.answered_ms[0]),
                middle(|one| one.answered_ms[1]),
                all(|one| one.mebibytes[0])[0],
                extremes(&all(|one| one.mebibytes[1])).1,
            );
        }
    }
    text + "\n"
}

impl Reading {
    fn show(&self, name: &str) {
        let Self { goodput, goodput_open, offered, refused, given_up, connections_lost, answered_ms, refused_ms, mebibytes } = self;
        eprintln!(
            "{name:24} offered {offered:4.2} goodput {goodput:4.2} open {goodput_open:4.2} refused {refused:5.3} given up {given_up:5.3} lost {connections_lost} \
             answered {answered_ms:6.1?} ms, refused {refused_ms:6.1?} ms, {mebibytes:4.0?} MiB"
        );
    }
}

/// Overloads between peaks, so that each has neighbours to be compared with: what else goes on in the machine changes by the second.
fn overloads(kind: &Kind, spinners: usize, shape: Shape, times: Times) -> Vec<Reading> {
    let server = Server::start(kind, Place::FirstCore);
    let _spinners: Vec<Spinner> = (0..spinners).map(|_| Spinner::start()).collect();
    let mut questions = questions(Keys::Uniform, 1);
    let mut before = Peak::measure(&server, shape, &mut questions, times);
    let mut readings = Vec::new();
    for _ in 0..OVERLOADS {
        let overload = Open::measure(&server, shape, OFFERED * before.per_second, &mut questions, times);
        let after = Peak::measure(&server, shape, &mut questions, times);
        readings.push(overload.between(&before, &after));
        before = after;
    }
    readings
}

/// Long enough for who gives up to do so.
fn window(times: Times) -> Until {
    Until::Passed(times.window.max(5 * PATIENCE))
}

/// What the server does at its best.
struct Peak {
    per_second: f64,
    /// CPU time of an answer, in microseconds; and in an open loop at that rate.
    cost: f64,
    open_cost: f64,
}

impl Peak {
    fn measure(server: &Server, shape: Shape, questions: &mut Questions, times: Times) -> Self {
        let mut client = Client::connect(server.address, Shape { streams: CLOSED, ..shape }).impatient(PATIENCE);
        let _ = client.run(questions, Pace::Closed, Until::Passed(times.warm_up));
        let spent = server.all_cpu_micros();
        let peak = client.run(questions, Pace::Closed, window(times));
        let cost = (server.all_cpu_micros() - spent) / peak.ok as f64;
        let per_second = peak.ok as f64 / peak.lasted.as_secs_f64();
        drop(client);
        let open = Open::measure(server, shape, per_second, questions, times);
        Self { per_second, cost, open_cost: open.spent / open.tally.ok as f64 }
    }
}

/// What came of an open loop.
struct Open {
    tally: Tally,
    /// CPU time that the server got, in microseconds.
    spent: f64,
    resident_bytes: [f64; 2],
}

impl Open {
    fn measure(server: &Server, shape: Shape, per_second: f64, questions: &mut Questions, times: Times) -> Self {
        let before = server.resident_bytes();
        let mut client = Client::connect(server.address, shape).impatient(PATIENCE);
        let pace = Pace::Open { per_second };
        let _ = client.run(questions, pace, Until::Passed(15 * PATIENCE));
        let begin = server.all_cpu_micros();
        let tally = client.run(questions, pace, window(times));
        Self { tally, spent: server.all_cpu_micros() - begin, resident_bytes: [before, server.resident_bytes()] }
    }

    /// As an overload, at the prices of what was measured before and after it.
    fn between(mut self, before: &Peak, after: &Peak) -> Reading {
        let capacity = self.spent / f64::midpoint(before.cost, after.cost);
        let open_capacity = self.spent / f64::midpoint(before.open_cost, after.open_cost);
        let in_ms = |micros: [f64; 2]| micros.map(|micros| micros / 1_000.0);
        let Tally { ok, failed, given_up, connections_lost, .. } = self.tally;
        let offered = (ok + failed + given_up) as f64;
        Reading {
            goodput: ok as f64 / capacity,
            goodput_open: ok as f64 / open_capacity,
            offered: offered / capacity,
            refused: failed as f64 / offered,
            given_up: given_up as f64 / offered,
            connections_lost,
            refused_ms: in_ms(self.tally.failed_quantiles([0.5, 0.99])),
            answered_ms: in_ms(self.tally.quantiles([0.5, 0.99])),
            mebibytes: self.resident_bytes.map(|bytes| bytes / f64::from(1 << 20)),
        }
    }
}
