//! The dimensions that grow, such as connections, keys and limits, and the cost of a request at
//! each point of them.

use std::fmt::Write;
use std::time::Duration;

use super::workload::{self, GeneratedRequests, Routes};
use crate::Times;
use crate::service::correctness;
use crate::service::load::{Client, Pace, Shape, Until};
use crate::service::servers::{CpuPlacement, Server};
use crate::service::tables::spread;

/// The number of keys in all dimensions but that of keys.
const KEYS: u32 = 100_000;

/// Calls in flight on all connections together, but at least one on each.
const IN_FLIGHT: usize = 64;

/// Descriptors of the requests that create the keys.
const FILLING: usize = 64;

/// One server and its load.
#[derive(Clone, Copy, Debug)]
struct Point {
    /// The value on the dimension.
    number: u32,
    workers: u32,
    placement: CpuPlacement,
    shape: Shape,
    keys: u32,
    descriptors: usize,
    limits: u32,
    /// The number of limits that requests use.
    asked: u32,
    routes: Routes,
}

const POINT: Point = Point {
    number: 1,
    workers: 1,
    placement: CpuPlacement::FirstCore,
    shape: Shape {
        connections: 4,
        streams: IN_FLIGHT / 4,
    },
    keys: KEYS,
    descriptors: 1,
    limits: 100,
    asked: 100,
    routes: Routes::Exact,
};

/// A dimension and its points.
pub struct Dimension {
    pub name: &'static str,
    points: Vec<Point>,
}

/// A dimension with its figures.
pub struct Measured {
    pub name: &'static str,
    pub points: Vec<Readings>,
}

/// One point in all rounds, as ratios to the first point of its dimension.
pub struct Readings {
    pub number: u32,
    pub cpu: Vec<f64>,
    pub per_second: Vec<f64>,
}

/// The figures of one load: CPU time of a request in microseconds, and requests a second.
#[derive(Clone, Copy, Debug)]
struct Reading {
    cpu: f64,
    per_second: f64,
}

/// The points of a dimension, with no value above `most`.
fn dimension(name: &'static str, numbers: &[u32], most: u32, point: fn(u32) -> Point) -> Dimension {
    let points = numbers
        .iter()
        .filter(|&&number| number <= most)
        .map(|&number| Point {
            number,
            ..point(number)
        });
    Dimension {
        name,
        points: points
            .map(|point| Point {
                keys: point.keys.min(most),
                ..point
            })
            .collect(),
    }
}

/// All dimensions, with no value above `most`.
pub fn all(most: u32) -> Vec<Dimension> {
    let row =
        |name, numbers: &[u32], point: fn(u32) -> Point| dimension(name, numbers, most, point);
    let cores: &[u32] = if crate::service::machine::cores() > 1 {
        &[1, 2]
    } else {
        &[1]
    };
    vec![
        row("cores", cores, |workers| Point {
            workers,
            placement: CpuPlacement::AllCores,
            ..POINT
        }),
        row("connections", &[1, 4, 16, 64, 256, 1_000], |connections| {
            let connections = connections as usize;
            Point {
                shape: Shape {
                    connections,
                    streams: IN_FLIGHT.div_ceil(connections),
                },
                ..POINT
            }
        }),
        row(
            "keys",
            &[1_000, 10_000, 100_000, 1_000_000, 10_000_000],
            |keys| Point { keys, ..POINT },
        ),
        row("descriptors", &[1, 2, 4, 8, 16], |descriptors| Point {
            descriptors: descriptors as usize,
            ..POINT
        }),
        row("limits", &[1, 10, 100, 1_000, 10_000, 100_000], |limits| {
            Point {
                limits,
                asked: limits,
                ..POINT
            }
        }),
        row(
            "limits, 10 of them asked",
            &[10, 1_000, 100_000],
            |limits| Point {
                limits,
                asked: 10,
                ..POINT
            },
        ),
        row("prefixes", &[1, 10, 1_000, 100_000], |limits| Point {
            limits,
            asked: limits,
            routes: Routes::Prefix,
            ..POINT
        }),
    ]
}

/// A server that holds all its keys, and the connections to it.
struct Running {
    server: Server,
    client: Client,
    requests: GeneratedRequests,
}

impl Point {
    /// Starts a server, and returns when it holds all keys.
    fn start(self) -> Server {
        let folder = tempfile::tempdir().expect("a folder");
        let Self {
            limits,
            asked,
            routes,
            keys,
            ..
        } = self;
        workload::write(folder.path(), limits, routes, workload::PER_HOUR);
        let variables = [
            ("WORKERS", self.workers.to_string()),
            // The same capacity for all points, so that only the keys differ; at most half of it is
            // used.
            ("MEMORY_MAX_KEYS", "20000000".to_owned()),
            ("MERGE_DOMAIN_CONFIG", "true".to_owned()),
        ];
        let server = Server::weir(folder, &variables, self.placement);
        assert_last_limit_counts(&server, self);
        let mut filling = GeneratedRequests::in_turn(keys, asked, routes, FILLING);
        let calls = u64::from(keys).div_ceil(FILLING as u64);
        let shape_of_filling = Shape {
            connections: 4,
            streams: 2,
        };
        let tally = Client::connect(server.address, shape_of_filling).run(
            &mut filling,
            Pace::Closed,
            Until::Answered(calls),
        );
        assert_eq!(tally.ok, calls);
        server
    }

    fn connect(self, server: Server) -> Running {
        let client = Client::connect(server.address, self.shape);
        Running {
            server,
            client,
            requests: GeneratedRequests::drawn(
                self.keys,
                self.asked,
                self.routes,
                self.descriptors,
            ),
        }
    }
}

/// Checks with a real client that the last of the limits exists and counts.
fn assert_last_limit_counts(server: &Server, point: Point) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let request = workload::request(
        &format!("{:08}", point.limits - 1),
        "anyone",
        point.routes,
        1,
    );
    let answers = runtime
        .block_on(correctness::call(server.address, vec![request; 2]))
        .unwrap_or_else(|status| panic!("{status}"));
    let left: Vec<u32> = answers
        .iter()
        .map(|answer| answer.statuses[0].limit_remaining)
        .collect();
    assert_eq!(
        left,
        [workload::PER_HOUR - 1, workload::PER_HOUR - 2],
        "{point:?}"
    );
}

impl Running {
    fn read(&mut self, window: Duration) -> Reading {
        let before = self.server.cpu_micros();
        let tally = self
            .client
            .run(&mut self.requests, Pace::Closed, Until::Passed(window));
        let answered = tally.answered() as f64;
        assert_eq!(tally.ok, tally.answered(), "no call is refused");
        Reading {
            cpu: (self.server.cpu_micros() - before) / answered,
            per_second: answered / tally.lasted.as_secs_f64(),
        }
    }
}

impl Dimension {
    /// Starts all servers, then loads one after the other in each round.
    pub fn measure(&self, times: Times) -> Measured {
        // Connects after all servers have started, because servers close idle connections after a
        // while.
        let servers: Vec<Server> = self.points.iter().map(|point| point.start()).collect();
        let mut running: Vec<Running> = self
            .points
            .iter()
            .zip(servers)
            .map(|(point, server)| point.connect(server))
            .collect();
        let mut readings = Vec::new();
        for round in 1..=times.rounds {
            let mut of_round = Vec::new();
            for (point, running) in self.points.iter().zip(&mut running) {
                crate::service::servers::run_this_process_on(point.placement);
                let _ = running.read(times.warm_up);
                let reading = running.read(times.window);
                eprintln!(
                    "round {round}: {:26} {:9} {:7.2} us {:8.0}/s",
                    self.name, point.number, reading.cpu, reading.per_second
                );
                of_round.push(reading);
            }
            readings.push(of_round);
        }
        let ratios = |index: usize, of: fn(&Reading) -> f64| {
            readings
                .iter()
                .map(|round| of(&round[index]) / of(&round[0]))
                .collect()
        };
        let point = |(index, point): (usize, &Point)| Readings {
            number: point.number,
            cpu: ratios(index, |reading| reading.cpu),
            per_second: ratios(index, |reading| reading.per_second),
        };
        Measured {
            name: self.name,
            points: self.points.iter().enumerate().map(point).collect(),
        }
    }
}

/// One line for each point.
pub fn table(rows: &[Measured]) -> String {
    let mut text =
        "| what grows | how many | CPU of a request / that of the first | requests/s / those of \
         the first |\n|---|---|---|---|\n"
            .to_owned();
    for row in rows {
        for (index, point) in row.points.iter().enumerate() {
            let name = if index == 0 { row.name } else { "" };
            let [cpu, per_second] = if index == 0 {
                ["1".to_owned(), "1".to_owned()]
            } else {
                [spread(&point.cpu, 2), spread(&point.per_second, 2)]
            };
            let _ = writeln!(
                text,
                "| {name} | {} | {cpu} | {per_second} |",
                grouped(point.number)
            );
        }
    }
    text + "\n"
}

/// The number with a comma before every three digits.
pub fn grouped(number: u32) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
