//! The rows: what there is more and more of, and what a request costs then.

use std::fmt::Write;
use std::time::Duration;

use super::workload::{self, Numbered, Routes};
use crate::Times;
use crate::service::correctness;
use crate::service::load::{Client, Pace, Shape, Until};
use crate::service::servers::{Place, Server};
use crate::service::tables::spread;

/// Keys that each row has, unless they are what grows.
const KEYS: u32 = 100_000;

/// Calls under way, as long as connections allow it.
const UNDER_WAY: usize = 64;

/// Descriptors of a request that only makes keys known.
const FILLING: usize = 64;

/// One server and its load.
#[derive(Clone, Copy, Debug)]
struct Point {
    /// How much there is of what grows.
    number: u32,
    workers: u32,
    place: Place,
    shape: Shape,
    keys: u32,
    descriptors: usize,
    limits: u32,
    /// Of these limits only.
    asked: u32,
    routes: Routes,
}

const POINT: Point = Point {
    number: 1,
    workers: 1,
    place: Place::FirstCore,
    shape: Shape { connections: 4, streams: UNDER_WAY / 4 },
    keys: KEYS,
    descriptors: 1,
    limits: 100,
    asked: 100,
    routes: Routes::Exact,
};

/// What grows, and what is measured then.
pub struct Row {
    pub name: &'static str,
    points: Vec<Point>,
}

/// A row with its figures.
pub struct Measured {
    pub name: &'static str,
    pub points: Vec<Readings>,
}

/// One point in all rounds, as ratios to the first of its row.
pub struct Readings {
    pub number: u32,
    pub cpu: Vec<f64>,
    pub per_second: Vec<f64>,
}

/// What was read off one load: microseconds of CPU of one request, and requests a second.
#[derive(Clone, Copy, Debug)]
struct Reading {
    cpu: f64,
    per_second: f64,
}

/// All rows, with no more than `most` of anything.
pub fn all(most: u32) -> Vec<Row> {
    let row = |name, numbers: &[u32], point: fn(u32) -> Point| {
        let points = numbers.iter().filter(|&&number| number <= most).map(|&number| Point { number, ..point(number) });
        Row { name, points: points.map(|point| Point { keys: point.keys.min(most), ..point }).collect() }
    };
    let cores: &[u32] = if crate::service::machine::cores() > 1 { &[1, 2] } else { &[1] };
    vec![
        row("cores", cores, |workers| Point { workers, place: Place::Anywhere, ..POINT }),
        row("connections", &[1, 4, 16, 64, 256, 1_000], |connections| {
            let connections = connections as usize;
            Point { shape: Shape { connections, streams: UNDER_WAY.div_ceil(connections) }, ..POINT }
        }),
        row("keys", &[1_000, 10_000, 100_000, 1_000_000, 10_000_000], |keys| Point { keys, ..POINT }),
        row("descriptors", &[1, 2, 4, 8, 16], |descriptors| Point { descriptors: descriptors as usize, ..POINT }),
        row("limits", &[1, 10, 100, 1_000, 10_000, 100_000], |limits| Point { limits, asked: limits, ..POINT }),
        row("limits, 10 of them asked", &[10, 1_000, 100_000], |limits| Point { limits, asked: 10, ..POINT }),
        row("prefixes", &[1, 10, 1_000, 100_000], |limits| Point { limits, asked: limits, routes: Routes::Prefix, ..POINT }),
    ]
}

/// A server, its keys all known, with its connections.
struct Running {
    server: Server,
    client: Client,
    questions: Numbered,
}

impl Point {
    /// Returns when it knows all keys.
    fn start(self) -> Server {
        let folder = tempfile::tempdir().expect("a folder");
        let Self { limits, asked, routes, keys, .. } = self;
        workload::write(folder.path(), limits, routes, workload::PER_HOUR);
        let variables = [
            ("WORKERS", self.workers.to_string()),
            // The same for all, so that only the keys differ, and no more than half full.
            ("MEMORY_MAX_KEYS", "20000000".to_owned()),
            ("MERGE_DOMAIN_CONFIG", "true".to_owned()),
        ];
        let server = Server::weir(folder, &variables, self.place);
        counts(&server, self);
        let mut filling = Numbered::in_turn(keys, asked, routes, FILLING);
        let calls = u64::from(keys).div_ceil(FILLING as u64);
        let shape_of_filling = Shape { connections: 4, streams: 2 };
        let tally = Client::connect(server.address, shape_of_filling).run(&mut filling, Pace::Closed, Until::Answered(calls));
        assert_eq!(tally.ok, calls);
        server
    }

    fn connect(self, server: Server) -> Running {
        let client = Client::connect(server.address, self.shape);
        Running { server, client, questions: Numbered::drawn(self.keys, self.asked, self.routes, self.descriptors) }
    }
}

/// A real client sees that the last of the limits is there and counts.
fn counts(server: &Server, point: Point) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let request = workload::request(&format!("{:08}", point.limits - 1), "anyone", point.routes, 1);
    let answers = runtime.block_on(correctness::ask(server.address, vec![request; 2])).unwrap_or_else(|status| panic!("{status}"));
    let left: Vec<u32> = answers.iter().map(|answer| answer.statuses[0].limit_remaining).collect();
    assert_eq!(left, [workload::PER_HOUR - 1, workload::PER_HOUR - 2], "{point:?}");
}

impl Running {
    fn read(&mut self, window: Duration) -> Reading {
        let before = self.server.cpu_micros();
        let tally = self.client.run(&mut self.questions, Pace::Closed, Until::Passed(window));
        let answered = tally.answered() as f64;
        assert_eq!(tally.ok, tally.answered(), "everybody stays below the limits");
        Reading { cpu: (self.server.cpu_micros() - before) / answered, per_second: answered / tally.lasted.as_secs_f64() }
    }
}

impl Row {
    /// Starts all servers, and loads one after the other, again and again.
    pub fn measure(&self, times: Times) -> Measured {
        // Connected when all are there: connections that nobody reads are closed after a while.
        let servers: Vec<Server> = self.points.iter().map(|point| point.start()).collect();
        let mut running: Vec<Running> = self.points.iter().zip(servers).map(|(point, server)| point.connect(server)).collect();
        let mut readings = Vec::new();
        for round in 1..=times.rounds {
            let mut of_round = Vec::new();
            for (point, running) in self.points.iter().zip(&mut running) {
                crate::service::servers::run_this_on(point.place);
                let _ = running.read(times.warm_up);
                let reading = running.read(times.window);
                eprintln!("round {round}: {:26} {:9} {:7.2} us {:8.0}/s", self.name, point.number, reading.cpu, reading.per_second);
                of_round.push(reading);
            }
            readings.push(of_round);
        }
        let ratios = |place: usize, of: fn(&Reading) -> f64| readings.iter().map(|round| of(&round[place]) / of(&round[0])).collect();
        let point = |(place, point): (usize, &Point)| Readings {
            number: point.number,
            cpu: ratios(place, |reading| reading.cpu),
            per_second: ratios(place, |reading| reading.per_second),
        };
        Measured { name: self.name, points: self.points.iter().enumerate().map(point).collect() }
    }
}

/// One line for each point.
pub fn table(rows: &[Measured]) -> String {
    let mut text =
        "| what grows | how many | CPU of a request / that of the first | requests/s / those of the first |\n|---|---|---|---|\n"
            .to_owned();
    for row in rows {
        for (place, point) in row.points.iter().enumerate() {
            let name = if place == 0 { row.name } else { "" };
            let [cpu, per_second] =
                if place == 0 { ["1".to_owned(), "1".to_owned()] } else { [spread(&point.cpu, 2), spread(&point.per_second, 2)] };
            let _ = writeln!(text, "| {name} | {} | {cpu} | {per_second} |", grouped(point.number));
        }
    }
    text + "\n"
}

/// With a comma before every three digits.
pub fn grouped(number: u32) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
