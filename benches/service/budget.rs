//! The budget: bounds for the cost of Weir, as ratios to other servers in the same run, and the
//! tables that compare the figures with them.

use std::fmt::Write;

use super::busy_redis;
use super::memory_store::Fill;
use super::scenarios::{Reading, Readings};
use super::tables::{median, spread};
use super::workload;

/// A bound of the budget.
#[derive(Clone, Copy)]
enum Bound {
    AtMost(f64),
    AtLeast(f64),
    Exactly(f64),
}

use Bound::{AtLeast, AtMost, Exactly};

impl Bound {
    fn holds(self, value: f64) -> bool {
        match self {
            AtMost(bound) => value <= bound,
            AtLeast(bound) => value >= bound,
            Exactly(bound) => value.total_cmp(&bound).is_eq(),
        }
    }

    fn text(self) -> String {
        match self {
            AtMost(bound) => format!("≤ {bound}"),
            AtLeast(bound) => format!("≥ {bound}"),
            Exactly(bound) => format!("= {bound}"),
        }
    }
}

/// A line of the budget, with one value per round; without values when the peer was not measured.
struct Line {
    number: &'static str,
    measure: &'static str,
    must: Bound,
    goal: Bound,
    values: Vec<f64>,
}

fn line(
    number: &'static str,
    measure: &'static str,
    must: Bound,
    goal: Bound,
    values: Vec<f64>,
) -> Line {
    Line {
        number,
        measure,
        must,
        goal,
        values,
    }
}

/// All that was measured.
pub struct Measured {
    pub readings: Readings,
    pub busy_redis: Vec<(&'static str, Vec<busy_redis::Reading>)>,
    pub fill: Vec<Fill>,
    pub fill_keys: usize,
    pub admitted: Vec<(String, u64)>,
    pub log_bytes: (f64, f64),
    pub commands_per_refusal: f64,
}

/// The names of peers that lines of the budget are about.
const LIMITADOR: &str = "limitador-memory";
const LIMITADOR_REDIS: &str = "limitador-redis";
const LIMITADOR_CACHED: &str = "limitador-redis-cached, Zipf";
const RATELIMIT: &str = "ratelimit-redis";

const ON_REDIS: &str = "Weir, Redis, fixed_window";
const FIXED_WINDOW_ALONE: &str = "Weir, Redis, fixed_window, a core for Redis";
const TOKEN_BUCKET_ALONE: &str = "Weir, Redis, token_bucket, a core for Redis";

/// Rows 9 and 10 once more: as the INCRs are measured, which leave Redis no rest either.
const BUSY: &str = "the same, asked by four replicas without a rest";

fn server(reading: &Reading) -> f64 {
    reading.server
}

fn sum(reading: &Reading) -> f64 {
    reading.server + reading.redis
}

fn per_second(reading: &Reading) -> f64 {
    reading.per_second
}

fn p99(reading: &Reading) -> f64 {
    reading.p99
}

impl Measured {
    /// The readings of a scenario; empty when it did not run.
    fn of(&self, run: &str) -> &[Reading] {
        self.readings
            .iter()
            .find(|(name, _)| name == run)
            .map_or(&[], |(_, readings)| readings)
    }

    /// The ratios of one scenario to another, round by round.
    fn ratios(&self, run: &str, to: &str, of: fn(&Reading) -> f64) -> Vec<f64> {
        let values = |name| self.of(name).iter().map(of);
        values(run)
            .zip(values(to))
            .map(|(value, base)| value / base)
            .collect()
    }

    /// The Redis CPU time of a scenario, as a ratio to the INCRs beside it.
    fn to_incr(&self, run: &str) -> Vec<f64> {
        self.of(run)
            .iter()
            .map(|reading| reading.redis / reading.incr)
            .collect()
    }

    /// The same, with several stores.
    fn busy_to_incr(&self, run: &str) -> Vec<f64> {
        self.of_busy_redis(run, |reading| reading.decision / reading.incr)
    }

    fn of_busy_redis(&self, run: &str, figure: fn(&busy_redis::Reading) -> f64) -> Vec<f64> {
        let readings = self
            .busy_redis
            .iter()
            .filter(|(name, _)| *name == run)
            .flat_map(|(_, readings)| readings);
        readings.map(figure).collect()
    }

    fn lines(&self) -> Vec<Line> {
        [
            self.of_memory(),
            self.of_redis(),
            self.of_redis_cpu(),
            self.of_latencies_and_counts(),
        ]
        .into_iter()
        .flatten()
        .collect()
    }

    /// Rows 1 to 4.
    fn of_memory(&self) -> Vec<Line> {
        let ratios = |run, to, of: fn(&Reading) -> f64| self.ratios(run, to, of);
        vec![
            line(
                "1",
                "memory: server CPU / empty tonic",
                AtMost(1.0),
                AtMost(0.8),
                ratios("Weir, memory", "empty tonic", server),
            ),
            line(
                "2",
                "the same with 3 descriptors",
                AtMost(1.1),
                AtMost(0.9),
                ratios(
                    "Weir, memory, 3 descriptors",
                    "empty tonic, 3 descriptors",
                    server,
                ),
            ),
            line(
                "3",
                "memory: server CPU / limitador in memory",
                AtMost(0.5),
                AtMost(0.4),
                ratios("Weir, memory", LIMITADOR, server),
            ),
            line(
                "4",
                "memory: requests/s on all cores / empty `#[tokio::main]`",
                AtLeast(2.0),
                AtLeast(2.5),
                ratios(
                    "Weir, memory, all cores",
                    "empty #[tokio::main], all cores",
                    per_second,
                ),
            ),
        ]
    }

    /// Rows 5 to 8.
    fn of_redis(&self) -> Vec<Line> {
        let ratios = |run, to, of: fn(&Reading) -> f64| self.ratios(run, to, of);
        vec![
            line(
                "5",
                "Redis: server CPU / empty tonic",
                AtMost(1.4),
                AtMost(1.15),
                ratios(ON_REDIS, "empty tonic", server),
            ),
            line(
                "6",
                "Redis: server + redis CPU / limitador on redis",
                AtMost(0.3),
                AtMost(0.2),
                ratios(ON_REDIS, LIMITADOR_REDIS, sum),
            ),
            line(
                "7",
                "Redis: server + redis CPU / limitador redis_cached, warm Zipf",
                AtMost(0.4),
                AtMost(0.25),
                ratios("Weir, Redis, fixed_window, Zipf", LIMITADOR_CACHED, sum),
            ),
            line(
                "8a",
                "Redis: requests/s / limitador on redis",
                AtLeast(4.0),
                AtLeast(6.0),
                ratios(ON_REDIS, LIMITADOR_REDIS, per_second),
            ),
            line(
                "8b",
                "Redis: requests/s / envoyproxy/ratelimit",
                AtLeast(3.0),
                AtLeast(5.0),
                ratios(ON_REDIS, RATELIMIT, per_second),
            ),
        ]
    }

    /// Rows 9 and 10.
    fn of_redis_cpu(&self) -> Vec<Line> {
        vec![
            line(
                "9a",
                "redis CPU per fixed-window decision / pipelined INCR",
                AtMost(2.5),
                AtMost(1.8),
                self.to_incr(FIXED_WINDOW_ALONE),
            ),
            line(
                "9b",
                BUSY,
                AtMost(2.5),
                AtMost(1.8),
                self.busy_to_incr(busy_redis::FIXED_WINDOW),
            ),
            line(
                "10a",
                "redis CPU per token-bucket decision / pipelined INCR",
                AtMost(4.5),
                AtMost(3.5),
                self.to_incr(TOKEN_BUCKET_ALONE),
            ),
            line(
                "10b",
                BUSY,
                AtMost(4.5),
                AtMost(3.5),
                self.busy_to_incr(busy_redis::TOKEN_BUCKET),
            ),
        ]
    }

    /// Rows 11 to 17.
    fn of_latencies_and_counts(&self) -> Vec<Line> {
        let ratios = |run, to, of: fn(&Reading) -> f64| self.ratios(run, to, of);
        let thousand = f64::from(workload::THOUSAND);
        let furthest = self
            .admitted
            .iter()
            .map(|(_, admitted)| *admitted as f64 / thousand)
            .max_by(|a, b| (a - 1.0).abs().total_cmp(&(b - 1.0).abs()));
        vec![
            line(
                "11",
                "p99 at 8k/s, Redis / limitador on redis",
                AtMost(0.3),
                AtMost(0.15),
                ratios(
                    "Weir, Redis, fixed_window, 8k/s",
                    "limitador-redis, 8k/s",
                    p99,
                ),
            ),
            line(
                "12",
                "p99 at 8k/s, memory / empty tonic",
                AtMost(1.5),
                AtMost(1.1),
                ratios("Weir, memory, 8k/s", "empty tonic, 8k/s", p99),
            ),
            line(
                "13",
                "memory: bytes per key (RSS), see below",
                AtMost(80.0),
                AtMost(56.0),
                self.fill.iter().map(|fill| fill.bytes_per_key).collect(),
            ),
            line(
                "14",
                "memory: longest stall while they are inserted and swept, ms",
                AtMost(1.0),
                AtMost(0.3),
                self.fill
                    .iter()
                    .map(|fill| fill.longest_insertion_ms + fill.longest_sweep_ms)
                    .collect(),
            ),
            line(
                "15",
                "admitted / limit of 1000, furthest from 1 of every store and algorithm, 64 at a \
                 time",
                Exactly(1.0),
                Exactly(1.0),
                furthest.into_iter().collect(),
            ),
            line(
                "16",
                "log: redis bytes per event / sorted set",
                AtMost(0.7),
                AtMost(0.5),
                vec![self.log_bytes.0 / self.log_bytes.1],
            ),
            line(
                "17",
                "redis commands per refused request of one key",
                AtMost(0.01),
                AtMost(0.001),
                vec![self.commands_per_refusal],
            ),
        ]
    }

    /// A fleet of Envoys: connections with one call each.
    fn lines_of_fleets(&self) -> Vec<Line> {
        let line = |number, measure, must, goal, [run, to]: [&str; 2]| {
            let values = self.ratios(run, to, server);
            Line {
                number,
                measure,
                must,
                goal,
                values,
            }
        };
        vec![
            line(
                "18a",
                "64 connections with one call each, memory: server CPU / empty tonic",
                AtMost(1.0),
                AtMost(0.85),
                ["Weir, memory, 64 × 1", "empty tonic, 64 × 1"],
            ),
            line(
                "18b",
                "the same, Redis",
                AtMost(1.4),
                AtMost(1.15),
                ["Weir, Redis, fixed_window, 64 × 1", "empty tonic, 64 × 1"],
            ),
            line(
                "19a",
                "256 connections with one call each, memory: server CPU / empty tonic",
                AtMost(1.0),
                AtMost(0.85),
                ["Weir, memory, 256 × 1", "empty tonic, 256 × 1"],
            ),
            line(
                "19b",
                "the same, Redis",
                AtMost(1.4),
                AtMost(1.15),
                ["Weir, Redis, fixed_window, 256 × 1", "empty tonic, 256 × 1"],
            ),
        ]
    }

    /// One key with all of the load.
    fn lines_of_a_hot_key(&self) -> Vec<Line> {
        let (memory, lease) = (
            "Weir, memory, one key",
            "Weir, Redis, fixed_window, lease: true, one key",
        );
        let one = "Weir, Redis, fixed_window, one key";
        let ratios = |run, to, of: fn(&Reading) -> f64| self.ratios(run, to, of);
        let commands = self.of(lease).iter().map(|reading| reading.commands);
        vec![
            line(
                "20a",
                "one key with `lease`: server CPU / the same in memory",
                AtMost(1.15),
                AtMost(1.05),
                ratios(lease, memory, server),
            ),
            line(
                "20b",
                "redis commands per hit of it",
                AtMost(0.01),
                AtMost(0.001),
                commands.collect(),
            ),
            line(
                "20c",
                "p99 of it at 8k/s / the same in memory",
                AtMost(1.5),
                AtMost(1.1),
                ratios(
                    "Weir, Redis, fixed_window, lease: true, one key, 8k/s",
                    "Weir, memory, one key, 8k/s",
                    p99,
                ),
            ),
            line(
                "21",
                "merged hits: redis CPU per hit of one key without `lease` / of 10,000 keys",
                AtMost(0.5),
                AtMost(0.25),
                ratios(one, ON_REDIS, |reading| reading.redis),
            ),
        ]
    }

    /// What each server took for each load.
    fn table_of_readings(&self) -> String {
        let mut text =
            "\n| server and load | server, µs CPU | redis, µs CPU | requests/s | p50 µs \
            | p99 µs | p99.9 µs | not OK |\n|---|---|---|---|---|---|---|---|\n"
                .to_owned();
        for (name, readings) in &self.readings {
            let of = |of: fn(&Reading) -> f64| readings.iter().map(of).collect::<Vec<f64>>();
            let [p50, p99, p999] =
                [of(|one| one.p50), of(p99), of(|one| one.p999)].map(|values| spread(&values, 0));
            let redis = if readings.iter().all(|one| one.redis == 0.0) {
                "-".to_owned()
            } else {
                spread(&of(|one| one.redis), 2)
            };
            let not_ok = median(&of(|one| one.not_ok))
                .filter(|&share| share > 0.0)
                .map_or("-".to_owned(), |share| format!("{:.2} %", share * 100.0));
            let (server, rate) = (spread(&of(server), 2), spread(&of(per_second), 0));
            let _ = writeln!(
                text,
                "| {name} | {server} | {redis} | {rate} | {p50} | {p99} | {p999} | {not_ok} |"
            );
        }
        text
    }

    /// Both tables and the notes on them.
    pub fn report(&self, machine: &str) -> String {
        let mut text =
            "| # | measure | must | goal | measured |  |\n|---|---|---|---|---|---|\n".to_owned();
        let lines = [
            self.lines(),
            self.lines_of_fleets(),
            self.lines_of_a_hot_key(),
        ];
        for line in lines.into_iter().flatten() {
            let verdict = match median(&line.values) {
                None => "not measured",
                Some(value) if line.goal.holds(value) => "goal",
                Some(value) if line.must.holds(value) => "must",
                Some(_) => "**missed**",
            };
            let (must, goal, measured) = (
                line.must.text(),
                line.goal.text(),
                spread(&line.values, digits(&line.values)),
            );
            let _ = writeln!(
                text,
                "| {} | {} | {must} | {goal} | {measured} | {verdict} |",
                line.number, line.measure
            );
        }
        text += &self.table_of_readings();
        let (log, set) = self.log_bytes;
        let incr: Vec<f64> = [FIXED_WINDOW_ALONE, TOKEN_BUCKET_ALONE]
            .iter()
            .flat_map(|run| self.of(run))
            .map(|reading| reading.incr)
            .collect();
        let busy = |figure: fn(&busy_redis::Reading) -> f64, digits| {
            let [window, bucket] = [busy_redis::FIXED_WINDOW, busy_redis::TOKEN_BUCKET]
                .map(|run| spread(&self.of_busy_redis(run, figure), digits));
            format!("{window} and {bucket}")
        };
        let fill = |figure: fn(&Fill) -> f64| {
            spread(&self.fill.iter().map(figure).collect::<Vec<f64>>(), 2)
        };
        let _ = writeln!(
            text,
            "\nA plain INCR, sixteen to a round trip, cost redis-server {} µs. Rows 9b and 10b: {} \
             µs, with {} checks to a batch, while Redis was busy for {} % of the time. Rows 13 and \
             14: {} keys in one process, CPU time of {} ms for the longest sixteen insertions and \
             {} ms for the longest sweep of a shard, beside {} ms for the longest of as many \
             pieces of arithmetic in between, which is the machine's own part of either; {} ms for \
             the longest maintenance of memory, which no request waits for. Row 16: {log:.1} bytes \
             and {set:.1}.\n\n{machine}",
            spread(&incr, 2),
            busy(|reading| reading.decision, 2),
            busy(|reading| reading.checks_per_batch, 0),
            busy(|reading| reading.busy * 100.0, 0),
            self.fill_keys,
            fill(|fill| fill.longest_insertion_ms),
            fill(|fill| fill.longest_sweep_ms),
            fill(|fill| fill.longest_arithmetic_ms),
            fill(|fill| fill.longest_tending_ms),
        );
        text
    }
}

/// Enough decimals for about three significant digits.
fn digits(values: &[f64]) -> usize {
    match median(values) {
        Some(value) if value < 0.01 => 5,
        Some(value) if value < 20.0 => 2,
        _ => 0,
    }
}
