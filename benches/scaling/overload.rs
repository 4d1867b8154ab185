//! What is left of the calls that can be answered when three times as many are made.
//!
//! First the peak: a closed loop with 64 calls under way. Then an open loop at three times that, by clients that wait for 100 ms and then give
//! up: what is answered later helps nobody. The load has a core of its own; the server shares one with a program that does nothing but
//! keep it busy, so that the load can offer so much.

use std::fmt::Write as _;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::Times;
use crate::service::figures::spread;
use crate::service::limits::{Keys, questions};
use crate::service::load::{Client, Pace, Shape, Tally, Until};
use crate::service::servers::{Kind, Place, Server, can_pin};

const PATIENCE: Duration = Duration::from_millis(100);

/// Times the peak.
const OFFERED: f64 = 3.0;

/// What keeps the server's core busy beside it: with two, a third is left to it.
const SPINNERS: usize = 2;

const PEAK: Shape = Shape { connections: 16, streams: 4 };
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

/// One overload, as shares: of the peak (answered in time, and offered), and of what was offered (refused, and given up).
struct Reading {
    goodput: f64,
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
        "| three times the peak, for callers that wait 100 ms | offered / peak | answered in time / peak | refused | time to a refusal, p50, p99 \
         | p50, p99 of all answers | memory |\n|---|---|---|---|---|---|---|\n",
    );
    if !can_pin() {
        return String::new();
    }
    for (store, kind) in [("memory", Kind::Memory { algorithm: "fixed_window" }), ("Redis", Kind::Redis { algorithm: "fixed_window" })] {
        for shape in [FEW, MANY] {
            let name = format!("{store}, {} connections", shape.connections);
            let readings: Vec<Reading> = (0..times.rounds).map(|_| overload(&kind, shape, times)).inspect(|one| one.show(&name)).collect();
            let column = |value: fn(&Reading) -> f64, digits| spread(&readings.iter().map(value).collect::<Vec<f64>>(), digits);
            let percent = |value: f64| format!("{:.1} %", value * 100.0);
            let last = readings.last().expect("a round");
            let _ = writeln!(
                text,
                "| {name} | {} | {} | {} | {:.1} ms, {:.1} ms | {:.1} ms, {:.1} ms | {:.0} MiB, then {:.0} |",
                column(|one| one.offered, 2),
                column(|one| one.goodput, 2),
                percent(last.refused),
                last.refused_ms[0],
                last.refused_ms[1],
                last.answered_ms[0],
                last.answered_ms[1],
                last.mebibytes[0],
                last.mebibytes[1],
            );
        }
    }
    text + "\n"
}

impl Reading {
    fn show(&self, name: &str) {
        let Self { goodput, offered, refused, given_up, connections_lost, answered_ms, refused_ms, mebibytes } = self;
        eprintln!(
            "{name:24} offered {offered:4.2} goodput {goodput:4.2} refused {refused:5.3} given up {given_up:5.3} lost {connections_lost} \
             answered {answered_ms:6.1?} ms, refused {refused_ms:6.1?} ms, {mebibytes:4.0?} MiB"
        );
    }
}

fn overload(kind: &Kind, shape: Shape, times: Times) -> Reading {
    let server = Server::start(kind, Place::FirstCore);
    let _spinners: Vec<Spinner> = (0..SPINNERS).map(|_| Spinner::start()).collect();
    let mut questions = questions(Keys::Uniform, 1);
    let window = times.window.max(5 * PATIENCE);
    let mut client = Client::connect(server.address, PEAK);
    let _ = client.run(&mut questions, Pace::Closed, Until::Passed(times.warm_up));
    let peak = client.run(&mut questions, Pace::Closed, Until::Passed(window));
    let peak = peak.ok as f64 / peak.lasted.as_secs_f64();
    drop(client);
    let before = server.resident_bytes();
    let mut client = Client::connect(server.address, shape).impatient(PATIENCE);
    let pace = Pace::Open { per_second: OFFERED * peak };
    let _ = client.run(&mut questions, pace, Until::Passed(15 * PATIENCE));
    let mut tally = client.run(&mut questions, pace, Until::Passed(window));
    let after = server.resident_bytes();
    let in_ms = |micros: [f64; 2]| micros.map(|micros| micros / 1_000.0);
    let Tally { ok, failed, given_up, connections_lost, lasted, .. } = tally;
    let offered = (ok + failed + given_up) as f64;
    Reading {
        goodput: ok as f64 / lasted.as_secs_f64() / peak,
        offered: offered / lasted.as_secs_f64() / peak,
        refused: failed as f64 / offered,
        given_up: given_up as f64 / offered,
        connections_lost,
        refused_ms: in_ms(tally.failed_quantiles([0.5, 0.99])),
        answered_ms: in_ms(tally.quantiles([0.5, 0.99])),
        mebibytes: [before, after].map(|bytes| bytes / f64::from(1 << 20)),
    }
}
