//! The scenarios: each is a server under a load. All run one after the other, in several rounds.

use std::time::Duration;

use super::empty_server::Runtime;
use super::load::{Client, Pace, Shape, Until};
use super::servers::{CpuPlacement, Peer, Server, ServerKind};
use super::workload::{self, Keys};
use super::{correctness, plain_redis};

/// Calls a second of the open loops.
const OPEN_LOOP: Pace = Pace::Open {
    per_second: 8_000.0,
};

/// Four connections with sixteen calls each.
const SHAPE: Shape = Shape {
    connections: 4,
    streams: 16,
};

/// The load of a server on all cores.
const WIDE: Shape = Shape {
    connections: 8,
    streams: 16,
};

/// Connections of fleets, with one call at a time each.
const FLEETS: [usize; 2] = [64, 256];

/// The most calls in flight on a connection of an open loop; further ones wait. Most servers allow
/// a hundred.
const MAX_STREAMS: usize = 100;

/// The durations, and the number of rounds.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    pub window: Duration,
    pub warm_up: Duration,
    pub rounds: usize,
}

/// A server under a load.
pub struct Scenario {
    /// What the tables call it.
    pub name: String,
    kind: ServerKind,
    placement: CpuPlacement,
    shape: Shape,
    pace: Pace,
    keys: Keys,
    descriptors: usize,
}

/// The figures of a scenario in one round. Times are in microseconds.
#[derive(Clone, Copy, Debug)]
pub struct Reading {
    pub server: f64,
    /// 0 without a Redis.
    pub redis: f64,
    /// Of redis-server per INCR, sixteen to a round trip, beside this scenario; 0 where none was
    /// sent.
    pub incr: f64,
    pub per_second: f64,
    pub p50: f64,
    pub p99: f64,
    pub p999: f64,
    /// Commands of Redis per call, those of Weir's monitor included; 0 without a Redis.
    pub commands: f64,
    /// The share of the calls that failed or were refused, which none should.
    pub not_ok: f64,
}

/// The readings of each scenario, a value per round, in the order of the scenarios.
pub type Readings = Vec<(String, Vec<Reading>)>;

impl Scenario {
    fn new(name: &str, kind: ServerKind) -> Self {
        let (placement, shape, pace, keys) =
            (CpuPlacement::FirstCore, SHAPE, Pace::Closed, Keys::Uniform);
        Self {
            name: name.to_owned(),
            kind,
            placement,
            shape,
            pace,
            keys,
            descriptors: 1,
        }
    }

    fn open(self) -> Self {
        let shape = Shape {
            streams: MAX_STREAMS,
            ..self.shape
        };
        Self {
            name: format!("{}, 8k/s", self.name),
            pace: OPEN_LOOP,
            shape,
            ..self
        }
    }

    fn three(self) -> Self {
        Self {
            name: format!("{}, 3 descriptors", self.name),
            descriptors: 3,
            ..self
        }
    }

    fn zipf(self) -> Self {
        Self {
            name: format!("{}, Zipf", self.name),
            keys: Keys::Zipf,
            ..self
        }
    }

    fn one_key(self) -> Self {
        Self {
            name: format!("{}, one key", self.name),
            keys: Keys::One,
            ..self
        }
    }

    /// As many Envoys ask as it has connections, each one call at a time.
    fn fleet(self, connections: usize) -> Self {
        Self {
            name: format!("{}, {connections} × 1", self.name),
            shape: Shape {
                connections,
                streams: 1,
            },
            ..self
        }
    }

    fn everywhere(self) -> Self {
        Self {
            name: format!("{}, all cores", self.name),
            placement: CpuPlacement::AllCores,
            shape: WIDE,
            ..self
        }
    }

    /// With a core for Redis alone, as for plain INCRs, which are measured right before and after.
    fn redis_alone(self) -> Self {
        Self {
            name: format!("{}, a core for Redis", self.name),
            placement: CpuPlacement::BesideLoad,
            ..self
        }
    }

    fn measure(&self, times: Times) -> Reading {
        if self.placement != CpuPlacement::BesideLoad {
            return self.measure_alone(times);
        }
        let (reading, incr) = plain_redis::beside_incrs(times.window, || self.measure_alone(times));
        Reading { incr, ..reading }
    }

    fn measure_alone(&self, times: Times) -> Reading {
        let server = Server::start(&self.kind, self.placement);
        correctness::answers(&server, &self.kind);
        let mut client = Client::connect(server.address, self.shape);
        let mut requests = workload::requests(self.keys, self.descriptors);
        // Servers that cache keys have seen most of them then.
        let warm_up = if matches!(self.keys, Keys::Zipf) {
            4 * times.warm_up
        } else {
            times.warm_up
        };
        let _ = client.run(&mut requests, self.pace, Until::Passed(warm_up));
        let commands = || server.redis.as_ref().map_or(0.0, plain_redis::commands);
        let before = commands();
        let (of_server, of_redis) = (server.cpu_micros(), server.redis_cpu_micros());
        let tally = client.run(&mut requests, self.pace, Until::Passed(times.window));
        let answered = tally.answered() as f64;
        let redis = server
            .redis_cpu_micros()
            .zip(of_redis)
            .map_or(0.0, |(after, before)| (after - before) / answered);
        let server = (server.cpu_micros() - of_server) / answered;
        let commands = (commands() - before) / answered;
        let [p50, p99, p999] = tally.quantiles([0.5, 0.99, 0.999]);
        let not_ok = (tally.failed + tally.over_limit) as f64 / answered;
        Reading {
            server,
            redis,
            incr: 0.0,
            per_second: answered / tally.lasted.as_secs_f64(),
            p50,
            p99,
            p999,
            commands,
            not_ok,
        }
    }
}

/// All of them, in the order of a round.
pub fn all(peers: &[Peer]) -> Vec<Scenario> {
    let empty = || Scenario::new("empty tonic", ServerKind::Empty(Runtime::CurrentThread));
    let memory = || {
        Scenario::new(
            "Weir, memory",
            ServerKind::Memory {
                algorithm: "fixed_window",
            },
        )
    };
    let redis = |algorithm| {
        Scenario::new(
            &format!("Weir, Redis, {algorithm}"),
            ServerKind::Redis { algorithm },
        )
    };
    let mut scenarios = vec![
        empty(),
        memory(),
        empty().three(),
        memory().three(),
        Scenario::new(
            "empty #[tokio::main]",
            ServerKind::Empty(Runtime::MultiThread),
        )
        .everywhere(),
        memory().everywhere(),
        redis("fixed_window"),
        redis("token_bucket"),
        redis("sliding_window_log"),
        redis("sliding_window_counter"),
        redis("sliding_window_buckets"),
        redis("leaky_bucket"),
        redis("fixed_window").redis_alone(),
        redis("token_bucket").redis_alone(),
        redis("fixed_window").three(),
        redis("fixed_window").zipf(),
        memory().one_key(),
        redis("fixed_window").one_key(),
        redis(workload::WITH_LEASE).one_key(),
        memory().one_key().open(),
        redis(workload::WITH_LEASE).one_key().open(),
        empty().open(),
        memory().open(),
        redis("fixed_window").open(),
    ];
    for connections in FLEETS {
        scenarios.extend(
            [empty(), memory(), redis("fixed_window")].map(|scenario| scenario.fleet(connections)),
        );
    }
    for peer in peers {
        let scenario = || Scenario::new(&peer.name, ServerKind::Peer(peer.clone()));
        scenarios.push(scenario());
        if peer.needs_redis() {
            scenarios.push(scenario().open());
        }
        if peer.name.contains("cached") {
            scenarios.push(scenario().zipf());
        }
    }
    scenarios
}

/// Every scenario once in each round, so that a machine that slows down slows all of them.
pub fn rounds(scenarios: &[Scenario], times: Times) -> Readings {
    let mut readings: Readings = scenarios
        .iter()
        .map(|scenario| (scenario.name.clone(), Vec::new()))
        .collect();
    for round in 1..=times.rounds {
        for (scenario, (_, of_scenario)) in scenarios.iter().zip(&mut readings) {
            let reading = scenario.measure(times);
            eprintln!(
                "round {round}: {:40} {:6.2} + {:5.2} us {:8.0}/s p50 {:6.0} p99 {:6.0} p99.9 \
                 {:6.0} us {:.5} commands {:.4} not ok; INCR {:.2} us",
                scenario.name,
                reading.server,
                reading.redis,
                reading.per_second,
                reading.p50,
                reading.p99,
                reading.p999,
                reading.commands,
                reading.not_ok,
                reading.incr
            );
            of_scenario.push(reading);
        }
    }
    readings
}

/// How many calls on one key a limit of a thousand admits, for each store and each algorithm but
/// the leaky bucket.
pub fn admitted() -> Vec<(String, u64)> {
    let algorithms = [
        "fixed_window",
        "sliding_window_log",
        "sliding_window_counter",
        "sliding_window_buckets",
        "token_bucket",
    ];
    let kinds = algorithms.into_iter().flat_map(|algorithm| {
        [
            ServerKind::Memory { algorithm },
            ServerKind::Redis { algorithm },
        ]
    });
    let admit = |kind: ServerKind| {
        let server = Server::start(&kind, CpuPlacement::FirstCore);
        let mut requests = workload::always(&workload::exact_request("thousand", "everyone"));
        let tally = Client::connect(server.address, SHAPE).run(
            &mut requests,
            Pace::Closed,
            Until::Answered(4 * u64::from(workload::THOUSAND)),
        );
        assert_eq!(tally.failed, 0);
        (format!("{kind:?}"), tally.ok)
    };
    kinds.map(admit).collect()
}

/// Commands of Redis per refused call, including those of Weir's monitor.
pub fn commands_per_refusal(window: Duration) -> f64 {
    let server = Server::start(
        &ServerKind::Redis {
            algorithm: "fixed_window",
        },
        CpuPlacement::FirstCore,
    );
    let mut requests = workload::always(&workload::exact_request("narrow", "abuser"));
    let mut client = Client::connect(server.address, SHAPE);
    let _ = client.run(&mut requests, Pace::Closed, Until::Answered(100));
    let redis = server.redis.as_ref().expect("it was started");
    let before = plain_redis::commands(redis);
    let tally = client.run(&mut requests, Pace::Closed, Until::Passed(window));
    assert_eq!((tally.ok, tally.failed), (0, 0), "all are refused");
    // The commands that read these numbers are included; they are a few.
    (plain_redis::commands(redis) - before) / tally.over_limit as f64
}

/// Bytes of Redis per event of a log, and of a sorted set that holds as many.
pub fn bytes_per_event() -> (f64, f64) {
    const KEYS: usize = 1_000;
    const EVENTS: usize = 100;
    let server = Server::start(
        &ServerKind::Redis {
            algorithm: "sliding_window_log",
        },
        CpuPlacement::FirstCore,
    );
    let redis = server.redis.as_ref().expect("it was started");
    let mut client = Client::connect(server.address, SHAPE);
    // The memory of scripts and connections is not counted.
    let _ = client.run(
        &mut workload::always(&workload::request(KEYS, 1)),
        Pace::Closed,
        Until::Answered(100),
    );
    let before = plain_redis::used_bytes(redis);
    let calls = (KEYS * EVENTS) as u64;
    let tally = client.run(
        &mut workload::in_turn(KEYS),
        Pace::Closed,
        Until::Answered(calls),
    );
    assert_eq!((tally.ok, tally.failed), (calls, 0), "no call is refused");
    let log = (plain_redis::used_bytes(redis) - before) / calls as f64;
    (log, plain_redis::sorted_set_bytes_per_event(KEYS, EVENTS))
}
