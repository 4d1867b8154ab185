//! The table `tests/vectors/usage.txt`, run on the pure step, in memory and on Redis.

use std::collections::HashMap;
use std::sync::Arc;

use bb8_redis::redis::Connection;
use weir::core::algorithm::{Algorithm, AlgorithmKind, Arrival, Options, State};
use weir::core::time::{Micros, Rate, Span, Unit};
use weir::core::usage::{Hits, Record, Tracking};
use weir::limits::plan::{AllOrNone, Check, Checks, Modes};
use weir::limits::rules::Commit;
use weir::store::redis::ScriptRef;
use weir::store::{Memory, memory};

use super::{total, tracked, tracking};
use crate::redis::{When, call};
use crate::support::RedisServer;

/// A day begins then.
const START: u64 = 1_800_057_600_000_000;

/// One line of the table.
struct Line {
    name: String,
    commit: Commit,
    modes: Modes,
    asks: Vec<Ask>,
    /// As it is written: the totals with the times, and the series. `None`: there is no record.
    expected: Option<[String; 2]>,
}

/// One request.
struct Ask {
    algorithm: Algorithm,
    tracking: Arc<Tracking>,
    now: Micros,
    hits: Vec<i64>,
}

impl Line {
    fn checks(&self, key: &str, ask: &Ask) -> Checks {
        let check = |&hits: &i64| (key.as_bytes(), Check::new(ask.algorithm, hits, self.modes));
        let mut checks = Checks::of(ask.hits.iter().map(check));
        checks.commit = self.commit;
        tracked(checks, &ask.tracking)
    }

    fn compare(&self, store: &str, record: Option<&Record>) {
        let found = record.map(|record| self.describe(record));
        assert_eq!(found, self.expected, "{} ({store})", self.name);
    }

    fn describe(&self, record: &Record) -> [String; 2] {
        let last = self.asks.last().expect("a request");
        let seconds = |at: Micros| {
            let text = format!("{}", (at.0 as f64 - START as f64) / 1e6);
            if text == "-0" { "0".to_owned() } else { text }
        };
        let hits = |[asked, refused, given]: [u64; 3]| {
            if [asked, refused, given] == [0; 3] {
                "0".to_owned()
            } else {
                format!("{asked}/{refused}/{given}")
            }
        };
        let series = record.series(last.now, Span::from_secs(1_000_000));
        let buckets: Vec<String> = series
            .buckets
            .iter()
            .map(|bucket| hits([bucket.asked, bucket.refused, bucket.given_back]))
            .collect();
        [
            format!(
                "{} {} {}",
                hits(total(record)),
                seconds(record.first_seen),
                seconds(record.last_seen)
            ),
            format!("{}: {}", seconds(series.begin), buckets.join(" ")),
        ]
    }
}

fn lines() -> Vec<Line> {
    let text = include_str!("../../../vectors/usage.txt");
    let lines: Vec<Line> = text
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(line)
        .collect();
    assert!(lines.len() > 30, "the table was not read");
    lines
}

/// One ask: hits, joined by `+`.
fn request_of(word: &str, amount: u64, kind: AlgorithmKind, ring: &Arc<Tracking>, now: u64) -> Ask {
    let rate = Rate {
        requests_per_unit: amount,
        unit: Unit::Minute,
        unit_multiplier: 1,
    };
    let options = Options {
        kind,
        ..Options::default()
    };
    let hits = |text: &str| {
        if text == "max" {
            i64::MAX
        } else {
            text.parse().expect("hits")
        }
    };
    Ask {
        algorithm: Algorithm::try_new(&rate, &options).expect("an algorithm"),
        tracking: Arc::clone(ring),
        now: Micros(now),
        hits: word.split('+').map(hits).collect(),
    }
}

fn line(line: &str) -> Line {
    let [name, limit, ring, asks, totals, series] =
        line.split('|').map(str::trim).collect::<Vec<_>>()[..]
    else {
        panic!("six columns: {line}")
    };
    let mut words = limit.split_whitespace();
    let mut kind = kind(words.next().expect("an algorithm"));
    let mut amount: u64 = words.next().expect("an amount").parse().expect("a number");
    let (mut commit, mut modes) = (Commit::Each, Modes::default());
    for word in words {
        match word {
            "commit=all_or_none" => commit = Commit::AllOrNone,
            "mode=shadow" => modes.shadow = true,
            "mode=quota" => modes.quota = true,
            other => panic!("no option: {other}"),
        }
    }
    let ring_of = |text: &str| {
        let (interval, buckets) = text.split_once('x').expect("seconds x buckets");
        tracking(
            interval.parse().expect("seconds"),
            buckets.parse().expect("buckets"),
        )
    };
    let (mut ring, mut now) = (ring_of(ring), START);
    let mut all = Vec::new();
    for word in asks.split_whitespace() {
        if let Some(time) = word.strip_prefix('@') {
            now = START + (time.parse::<f64>().expect("seconds") * 1e6).round() as u64;
        } else if let Some(text) = word.strip_prefix("ring=") {
            ring = ring_of(text);
        } else if let Some(text) = word.strip_prefix("amount=") {
            amount = text.parse().expect("a number");
        } else if let Some(name) = word.strip_prefix("algorithm=") {
            kind = self::kind(name);
        } else {
            all.push(request_of(word, amount, kind, &ring, now));
        }
    }
    let expected = (totals != "none").then(|| [totals.to_owned(), series.to_owned()]);
    Line {
        name: name.to_owned(),
        commit,
        modes,
        asks: all,
        expected,
    }
}

fn kind(name: &str) -> AlgorithmKind {
    AlgorithmKind::NAMED
        .into_iter()
        .find(|(known, _)| *known == name)
        .expect("an algorithm")
        .1
}

#[test]
fn the_pure_step_matches_the_table() {
    for line in lines() {
        let mut states: HashMap<AlgorithmKind, State> = HashMap::new();
        let mut record = None;
        for ask in &line.asks {
            let (checks, kind) = (line.checks("key", ask), ask.algorithm.kind());
            let at = Arrival {
                now: ask.now,
                max_wait: Span::ZERO,
            };
            let mut add = |hits: i64, allowed: bool| {
                let hits = Hits::of_check(hits, allowed);
                if !hits.is_none() {
                    record = Some(Record::step(
                        record.take(),
                        &ask.tracking.settings,
                        ask.now,
                        hits,
                    ));
                }
            };
            if line.commit == Commit::AllOrNone {
                let group =
                    AllOrNone::decide(&checks, at, |_| states.get(&kind).cloned(), |_, _| true);
                let is_refused =
                    checks.is_over_limit(group.verdicts.iter().map(|verdict| verdict.allowed));
                for (check, verdict) in checks.iter().zip(&group.verdicts) {
                    if !(is_refused && verdict.allowed) {
                        add(check.hits, verdict.allowed);
                    }
                }
                states.extend(group.writes.into_iter().map(|(_, state, _)| (kind, state)));
            } else {
                for check in checks.iter() {
                    let step = check.algorithm.step(states.remove(&kind), at, check.hits);
                    add(check.hits, step.verdict.allowed);
                    states.extend(step.state.map(|state| (kind, state)));
                }
            }
        }
        line.compare("pure", record.as_ref());
    }
}

#[test]
fn the_memory_store_matches_the_table() {
    for line in lines() {
        let memory = Memory::new(memory::Options::default());
        for ask in &line.asks {
            let checks = line.checks(&format!("w1{{d|k=v}}{}", ask.algorithm.kind().name()), ask);
            let _ = memory.decide_at(
                &checks,
                &checks.indices(),
                Arrival {
                    now: ask.now,
                    max_wait: Span::ZERO,
                },
            );
        }
        let now = line.asks.last().expect("a request").now;
        line.compare("memory", memory.usage().get(b"w1{d|k=v}us", now).as_ref());
    }
}

/// The record that Redis has under a key.
pub fn stored(connection: &mut Connection, key: &str) -> Option<Record> {
    let text: Option<Vec<u8>> = bb8_redis::redis::cmd("GET")
        .arg(key)
        .query(connection)
        .expect("Redis is well");
    text.map(|text| Record::from_stored(&text).unwrap_or_else(|| panic!("no record: {text:?}")))
}

#[test]
fn the_script_matches_the_table() {
    let server = RedisServer::start();
    let mut connection = server.connection();
    for (number, line) in lines().iter().enumerate() {
        for ask in &line.asks {
            let checks = line.checks(
                &format!("w1{{d|k={number}}}{}", ask.algorithm.kind().name()),
                ask,
            );
            let call = call([(
                &checks,
                When {
                    now: ask.now,
                    deadline: Micros(u64::MAX),
                    max_wait: Span::ZERO,
                },
            )]);
            let reply = call
                .command(ScriptRef::ByText)
                .query(&mut connection)
                .expect("Redis is well");
            let mut answers =
                vec![Err(weir::store::StoreError::Unknown("unanswered")); checks.len()];
            call.read(&reply, &mut answers).expect("a good reply");
            assert!(
                answers.iter().all(Result::is_ok),
                "{}: {answers:?}",
                line.name
            );
            let summaries = call.usage(&reply);
            assert_eq!(summaries.len(), checks.len(), "{}", line.name);
            if let Some(summary) = summaries.iter().rev().flatten().next() {
                let record =
                    stored(&mut connection, &format!("w1{{d|k={number}}}us")).expect("a record");
                assert_eq!(*summary, record.summary(), "{}", line.name);
            }
        }
        line.compare(
            "Redis",
            stored(&mut connection, &format!("w1{{d|k={number}}}us")).as_ref(),
        );
    }
    server.assert_every_key_expires();
}
