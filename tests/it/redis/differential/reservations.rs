//! Reservations: random reservations, settlements, hits, peeks and refunds on limits of each
//! algorithm, also while limits and terms change, windows end and clocks go back.

use std::collections::HashMap;

use weir::core::algorithm::places::RequestId;
use weir::core::algorithm::reservations::{
    BAND, Hold, HoldChange, Holds, Kind, Outcome, Peak, Purpose,
};
use weir::core::algorithm::{OnExpiry, Options, Reservations};
use weir::core::answer::Effect;
use weir::limits::rules::thresholds::Thresholds;

use super::*;

/// The number of checks per algorithm of a full run.
const CHECKS: u64 = 6_000;

/// Calls between two flushes of the server. A short run needs scenes of many kinds: one of 0 hits
/// in a day has hardly any holds.
const PER_SCENE: usize = 50;

/// The ids of a crowd: more than expire one by one.
const CROWD: u32 = 320;

const KEYS: [&str; 2] = ["w1{a}", "w1{b}"];

struct Scene {
    random: fastrand::Rng,
    limits: Vec<Algorithm>,
    terms: Vec<Reservations>,
    now: u64,
    /// The latest end of an id that a store may have forgotten: clocks do not go back to before it.
    forgotten: u64,
    /// The next calls reserve for so many ids.
    crowd: u32,
    states: HashMap<Vec<u8>, State>,
    holds: HashMap<Vec<u8>, Holds>,
}

impl Scene {
    fn new(kind: AlgorithmKind, mut random: fastrand::Rng) -> Self {
        let unit_multiplier = [1, 10, 100][random.usize(..3)];
        let period = (kind == AlgorithmKind::FixedWindow && random.u8(..4) == 0)
            .then_some(PeriodKind::Calendar);
        let (unit, unit_multiplier) = match period {
            Some(_) => (Unit::Day, 1),
            None => (Unit::Second, unit_multiplier),
        };
        let terms = |random: &mut fastrand::Rng| Reservations {
            ttl: Span::from_secs(random.u64(1..100)),
            max_share: [1, 50, 100][random.usize(..3)],
            minimum: 0,
            on_expiry: [OnExpiry::Release, OnExpiry::Keep][random.usize(..2)],
        };
        let terms: Vec<_> = (0..2).map(|_| terms(&mut random)).collect();
        let limits = (0..2).map(|_| {
            let requests_per_unit = match random.u8(..8) {
                0 => random.u64(..2),
                1 if kind != AlgorithmKind::SlidingWindowLog => u64::from(u32::MAX),
                _ => random.u64(5..300),
            };
            let options = Options {
                kind,
                period,
                max_debt: (kind != AlgorithmKind::FixedWindow).then_some(random.u32(1..4)),
                reservations: Some(terms[0]),
                ..Options::default()
            };
            let rate = Rate {
                requests_per_unit,
                unit,
                unit_multiplier,
            };
            Algorithm::try_new(&rate, &options).expect("an algorithm")
        });
        Self {
            limits: limits.collect(),
            terms,
            now: START + random.u64(..1_000_000_000_000),
            forgotten: 0,
            crowd: if random.u8(..6) == 0 { CROWD } else { 0 },
            random,
            states: HashMap::new(),
            holds: HashMap::new(),
        }
    }

    fn hits(&mut self, limit: &Algorithm) -> i64 {
        let some = self
            .random
            .i64(0..=limit.capacity().clamp(10, 400).cast_signed());
        match self.random.u8(..12) {
            0 => 0,
            1 => -some,
            2 => i64::MAX,
            3 => limit.capacity().cast_signed(),
            _ => some / 4,
        }
    }

    /// Reservations of one hit by some of the ids of a crowd.
    fn crowd(&mut self) -> Checks {
        let limit = self.limits[0];
        let key = format!("{}{}", KEYS[0], stored_state::tag(&limit));
        let check = (&key[..], Check::new(limit, 1, Modes::default()));
        let mut checks = checks_of(&vec![check; 20]);
        for index in 0..20 {
            self.crowd -= 1;
            let purpose = Purpose::Reserve(RequestId::of(&self.crowd.to_le_bytes()));
            checks = checks.with_reservation(CheckIndex(index), self.terms[0], purpose);
        }
        checks
    }

    /// Some checks of one call.
    fn checks(&mut self) -> Checks {
        if self.crowd > 0 {
            return self.crowd();
        }
        let mut list = Vec::new();
        for _ in 0..=self.random.usize(..3) {
            let limit = self.limits[self.random.usize(..2)];
            let hits = self.hits(&limit);
            let base = format!(
                "{}{}",
                KEYS[self.random.usize(..2)],
                stored_state::tag(&limit)
            );
            list.push((base, Check::new(limit, hits, Modes::default())));
        }
        let count = list.len();
        let refs: Vec<_> = list
            .iter()
            .map(|(key, check)| (&key[..], check.clone()))
            .collect();
        let mut checks = checks_of(&refs);
        for index in 0..count {
            let id = match self.random.u8(..4) {
                0 => RequestId::of(&self.random.u32(..CROWD).to_le_bytes()),
                _ => RequestId::of(&[self.random.u8(..8)]),
            };
            let purpose = match self.random.u8(..8) {
                0..=1 => Purpose::Plain,
                2..=4 => Purpose::Reserve(id),
                5 => Purpose::Undo(id),
                _ => Purpose::Settle(id),
            };
            let terms = self.terms[usize::from(self.random.u8(..8) == 0)];
            checks = checks.with_reservation(CheckIndex(index), terms, purpose);
            if self.random.bool() {
                // Its answer has the hits of open holds.
                checks = checks.with_thresholds(CheckIndex(index), Thresholds::default());
            }
        }
        checks
    }

    fn time(&mut self) -> Micros {
        self.now = match self.random.u8(..20) {
            0 => (self.now - self.random.u64(..5_000_000)).max(self.forgotten),
            1 => self.now + self.random.u64(..150_000_000),
            _ => self.now + self.random.u64(..3_000_000),
        };
        Micros(self.now)
    }

    /// Decides the checks by the pure steps.
    fn expect(&mut self, checks: &Checks, at: Arrival) -> Vec<(Verdict, HoldChange)> {
        let each = checks.indexed().map(|(index, check)| {
            let key = stored_state::key(checks, check, at.now);
            let holds = self.holds.entry(checks.key(check).to_vec()).or_default();
            let ended = holds.iter().map(|(_, hold)| hold);
            let ended = ended.filter(|hold| is_over(hold, at.now));
            let last = ended.map(|hold| hold.end().0).max();
            self.forgotten = self.forgotten.max(last.unwrap_or_default());
            let counter = self.states.get(&key).cloned();
            let state = match holds.is_empty() {
                true => counter,
                false => {
                    let holds = std::mem::take(holds).with_counter(counter);
                    Some(State::Holds(Box::new(holds)))
                }
            };
            let (step, effect) = checks.step(index, state, at);
            let counter = match step.state {
                Some(State::Holds(mut after)) => {
                    let counter = after.counter.take();
                    *holds = *after;
                    counter
                }
                counter => counter,
            };
            if let Some(counter) = counter {
                self.states.insert(key, counter);
            }
            (step.verdict, effect.hold())
        });
        each.collect()
    }
}

/// Whether an id means the same as none: stores forget it at different times.
fn is_over(hold: &Hold, now: Micros) -> bool {
    hold.kind != Kind::Held && hold.end() <= now
}

/// The stored ids of a counter, and the peaks of a bucket.
fn stored(connection: &mut Connection, counter: &[u8]) -> (Vec<(RequestId, Hold)>, Vec<Peak>) {
    let end = counter
        .iter()
        .position(|&byte| byte == b'}')
        .expect("a subject")
        + 1;
    let key = |tag: &[u8]| [&counter[..end], tag, &counter[end..]].concat();
    let scores: HashMap<Vec<u8>, f64> = cmd("ZRANGE")
        .arg(key(b"ro"))
        .arg(0)
        .arg(-1)
        .arg("WITHSCORES")
        .query(connection)
        .expect("a sorted set");
    let mut values: BTreeMap<Vec<u8>, Vec<u8>> = cmd("HGETALL")
        .arg(key(b"rh"))
        .query(connection)
        .expect("a hash");
    let peaks = values.remove(&b"p"[..]).unwrap_or_default();
    let peaks = peaks.as_chunks::<8>().0.iter();
    let peaks: Vec<_> = peaks.map(|&bytes| f64::from_le_bytes(bytes)).collect();
    let peaks = peaks.get(1..).unwrap_or_default().chunks_exact(3);
    let peaks = peaks.map(|numbers| Peak {
        since: numbers[0] as u64,
        level: numbers[1] as i64,
        holds: numbers[2] as u64,
    });
    assert_eq!(scores.len(), values.len(), "both keys have the same ids");
    let hold = |(id, value): (Vec<u8>, Vec<u8>)| {
        let hold = Hold::unpack(&value).expect("a hold");
        let band = BAND as f64;
        let until = scores[&id] + [0.0, band, 2.0 * band, -band][hold.kind as usize];
        assert_eq!(
            until as u64,
            hold.end().0,
            "the order is that of the values"
        );
        (RequestId(id.try_into().expect("16 bytes")), hold)
    };
    let peaks = peaks.collect();
    (values.into_iter().map(hold).collect(), peaks)
}

fn run_reservations(kind: AlgorithmKind) {
    let seed = number_in("WEIR_DIFFERENTIAL_SEED").unwrap_or_else(|| fastrand::u64(..));
    let operations = number_in("WEIR_DIFFERENTIAL_OPERATIONS").unwrap_or_else(|| cases(CHECKS));
    let server = RedisServer::start();
    let mut connection = server.connection();
    let mut random = fastrand::Rng::with_seed(seed);
    let mut outcomes: BTreeMap<usize, usize> = BTreeMap::new();
    let (mut done, mut expired) = (0, 0);
    while done < operations as usize {
        server.flush();
        let mut scene = Scene::new(kind, random.fork());
        for index in 0..PER_SCENE {
            let checks = scene.checks();
            let now = scene.time();
            let at = Arrival {
                now,
                max_wait: Span::ZERO,
            };
            let when = When {
                now,
                deadline: Micros(END),
                max_wait: Span::ZERO,
            };
            let expected = scene.expect(&checks, at);
            let mut call = call([(&checks, when)]);
            call.crosses_slots = index % 2 == 1;
            let reply: Value = call
                .command(ScriptRef::ByText)
                .query(&mut connection)
                .unwrap_or_else(|error| panic!("seed {seed}: {error} {checks:#?}"));
            let mut answers = vec![Err(StoreError::Unknown("unanswered")); expected.len()];
            assert_eq!(
                call.read(&reply, &mut answers),
                Ok(now),
                "seed {seed}, {checks:#?}, {expected:?}, {reply:?}"
            );
            let effects = call.effects(&reply);
            for (position, (verdict, effect)) in expected.iter().enumerate() {
                let details = format!("seed {seed}, check {position} of {checks:#?} at {now:?}");
                assert_eq!(effects[position], Effect::from(*effect), "{details}");
                assert_eq!(
                    answers[position].map(comparable),
                    Ok(comparable(*verdict)),
                    "{details}"
                );
                *outcomes.entry(effect.outcome as usize).or_default() += 1;
                expired += effect.expired;
            }
            for (counter, holds) in &scene.holds {
                let details = format!("seed {seed}, after {checks:#?} at {now:?}");
                let (ids, peaks) = stored(&mut connection, counter);
                let is_known = |(_, hold): &(RequestId, Hold)| !is_over(hold, now);
                let ids: Vec<_> = ids.into_iter().filter(is_known).collect();
                let expected = holds.iter().map(|(id, hold)| (id, hold.clone()));
                let expected: Vec<_> = expected.filter(is_known).collect();
                assert_eq!(ids, expected, "{details}");
                assert_eq!(peaks, holds.peaks.list, "{details}");
            }
            done += expected.len();
        }
        server.assert_every_key_expires();
    }
    println!("{kind:?}: {done} checks, {outcomes:?}, {expired} expired, seed {seed}");
    // Of 400 short runs, each of these outcomes had at least 11 of 1,200, and 26 holds expired.
    let is_rare = |outcome| matches!(outcome, Outcome::Full | Outcome::MatchedLate);
    for outcome in Outcome::ALL.into_iter().filter(|one| !is_rare(*one)) {
        let count = outcomes.get(&(outcome as usize)).map_or(0, |count| *count);
        assert!(count * 500 > done, "{outcome:?}: {count} of {done}");
    }
    assert!(expired > 5, "{expired}");
}

#[test]
fn fixed_window_reservations() {
    run_reservations(AlgorithmKind::FixedWindow);
}

#[test]
fn sliding_window_log_reservations() {
    run_reservations(AlgorithmKind::SlidingWindowLog);
}

#[test]
fn sliding_window_counter_reservations() {
    run_reservations(AlgorithmKind::SlidingWindowCounter);
}

#[test]
fn sliding_window_buckets_reservations() {
    run_reservations(AlgorithmKind::SlidingWindowBuckets);
}

#[test]
fn token_bucket_reservations() {
    run_reservations(AlgorithmKind::TokenBucket);
}
