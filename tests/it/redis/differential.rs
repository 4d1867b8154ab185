//! The script inside Redis against the pure step: the same random checks at the same given times, and not one difference.
//!
//! What is compared: every verdict, for how long every changed key has to be kept, and what is stored behind every batch. Keys that need not
//! be kept any longer are deleted at random, and no verdict may change. `WEIR_DIFFERENTIAL_OPERATIONS` makes the run longer, and
//! `WEIR_DIFFERENTIAL_SEED` repeats one.

mod stored;

use std::collections::{BTreeMap, BTreeSet};

use bb8_redis::redis::{Connection, ConnectionLike, Pipeline, Value, cmd};
use weir::algorithm::{self, Kind, Moment, State};
use weir::plan::Group;
use weir::rules::Commit;
use weir::store::redis::{Call, Named, When};
use weir::time::{Micros, Rate, Unit};
use weir::verdict::Wait;

use super::*;
use crate::support::redis::RedisServer;

/// Checks of each algorithm where nothing else is said.
const OPERATIONS: usize = 20_000;

/// Batches that go to Redis together.
const TOGETHER: usize = 64;

/// Batches after which other limits come.
const PER_SCENE: usize = 512;

/// About now, and the year 2112: with a window of 100 years more, times are still numbers that Lua counts.
const START: u64 = 1_800_000_000_000_000;
const END: u64 = 1 << 52;

fn setting(name: &str) -> Option<u64> {
    #[expect(clippy::disallowed_methods, reason = "a test that can be asked to run longer")]
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|error| panic!("{name}={text}: {error}")))
}

/// What the pure steps say is stored, and until when it has to be.
#[derive(Clone, Debug)]
struct Known {
    state: Option<State>,
    keep_until: Micros,
    /// Who wrote it, and the latest time at which anybody did.
    by: Algorithm,
    latest: Micros,
}

impl Known {
    /// Whether it may be gone: to those that count like its writer, when their clock is not behind.
    fn is_free(&self, check: &Check, now: Micros) -> bool {
        self.state.is_some() && self.keep_until <= now && self.latest <= now && self.by == check.algorithm
    }
}

fn write(model: &mut Model, key: &[u8], by: Algorithm, now: Micros, state: Option<State>, keep_for: Span) {
    let latest = model.get(key).map_or(now, |known| known.latest.max(now));
    model.insert(key.to_vec(), Known { state, keep_until: now + keep_for, by, latest });
}

type Model = BTreeMap<Vec<u8>, Known>;

/// What one batch has to come to.
struct Expected {
    plan: Plan,
    when: When,
    verdicts: Vec<Verdict>,
    /// One per check; `None` where a whole group decides.
    kept: Option<Vec<Option<Span>>>,
    /// Each key of the batch, and what is stored under it behind the batch.
    stored: Vec<(Vec<u8>, Option<State>)>,
    deleted: Vec<Vec<u8>>,
}

/// Makes the checks.
struct Source {
    random: fastrand::Rng,
    kinds: Vec<Kind>,
    scene: usize,
    limits: Vec<Algorithm>,
    /// In small steps and with few hits at once, so that much comes together under a key.
    is_steady: bool,
    now: u64,
    /// What the last refused check was told to wait.
    last_wait: u64,
}

impl Source {
    fn new(kinds: &[Kind], seed: u64) -> Self {
        let mut source = Self {
            random: fastrand::Rng::with_seed(seed),
            kinds: kinds.to_vec(),
            scene: 0,
            limits: Vec::new(),
            is_steady: false,
            now: START,
            last_wait: 0,
        };
        source.next_scene();
        source
    }

    fn next_scene(&mut self) {
        self.scene += 1;
        self.now = START;
        self.is_steady = self.random.u8(..4) == 0;
        self.limits = (0..if self.is_steady { 1 } else { 4 }).map(|_| self.limit(None)).collect();
    }

    /// A limit, or the same one with another amount.
    fn limit(&mut self, like: Option<Rate>) -> Algorithm {
        loop {
            let random = &mut self.random;
            let kind = self.kinds[random.usize(..self.kinds.len())];
            let requests = match random.u8(..10) {
                0 => random.u32(0..2),
                1 => u32::MAX - random.u32(0..3),
                2 => random.u32(..),
                3 => random.u32(..100_001),
                _ if self.is_steady => random.u32(20..2_000),
                _ => random.u32(1..30),
            };
            let (unit, unit_multiplier) = match random.u8(..8) {
                // With longer ones the waits after a clock went back by a whole window are more microseconds than Lua counts.
                0 => (Unit::Year, random.u32(1..51)),
                1 => (Unit::Day, random.u32(1..40)),
                _ => (Unit::Second, random.u32(1..100)),
            };
            let rate = like.map_or(Rate { requests_per_unit: requests, unit, unit_multiplier }, |like| like);
            let mut options = algorithm::Options { kind, ..Default::default() };
            let window = rate.window().map_or(1, Span::micros);
            let mut some = |most: u64| random.bool().then(|| Span::from_micros(random.u64(..=most)));
            match kind {
                Kind::SlidingWindowBuckets => {
                    options.bucket_interval = some(window);
                    options.bucket_span = some(3 * window);
                    options.subject_expiry = some(5 * window);
                }
                Kind::LeakyBucket => options.max_delay = some(2 * window),
                Kind::TokenBucket => options.burst = some(2 * u64::from(requests)).and_then(|span| u32::try_from(span.micros()).ok()),
                _ => {}
            }
            options.count_denied = [None, Some(true), Some(false)][random.usize(..3)];
            if let Ok(limit) = Algorithm::try_new(&rate, &options) {
                return limit;
            }
        }
    }

    fn time(&mut self) -> Micros {
        let random = &mut self.random;
        let limit = self.limits[random.usize(..self.limits.len())];
        let (window, tick) = (stored::window(&limit), limit.tick().micros());
        let near = |at: u64, random: &mut fastrand::Rng| (at + random.u64(..3) * tick).saturating_sub(tick) + random.u64(..2);
        let now = self.now;
        if self.is_steady && random.u8(..64) > 0 {
            self.now = now + random.u64(..=window / 512 + 1);
            return Micros(self.now.min(END));
        }
        self.now = match random.u8(..32) {
            0..8 => now,
            8..14 => now + random.u64(..=tick),
            14..18 => now + random.u64(..=window / 8 + 1),
            18 => now + random.u64(..=3 * window),
            // Edges of windows, of buckets, and of waits.
            19..22 => near((now / window + 1) * window, random),
            22 => near(now + window, random),
            23..27 => near(now + self.last_wait.min(END), random),
            // Back by less than a window, by about one, by any time, and a jump ahead.
            27..29 => now.saturating_sub(random.u64(..=window)),
            29 => near(now.saturating_sub(window), random),
            30 => random.u64(..=END),
            _ => now + random.u64(..=1 << 50),
        };
        if self.now > END {
            self.now = START;
        }
        Micros(self.now)
    }

    fn hits(&mut self, limit: &Algorithm) -> i64 {
        let random = &mut self.random;
        let capacity = i64::from(limit.capacity());
        if self.is_steady && random.u8(..16) > 0 {
            return random.i64(-2..6);
        }
        match random.u8(..24) {
            0..3 => 0,
            3 => i64::MAX,
            4 => i64::MIN,
            5..7 => -random.i64(1..=capacity + 1),
            7..9 => -random.i64(1..4),
            9 => capacity,
            10 => capacity + 1,
            11..15 => random.i64(1..=capacity / 2 + 2),
            15 => random.i64(..),
            _ => random.i64(1..4),
        }
    }

    fn plan(&mut self) -> Plan {
        let mut checks = Vec::new();
        for _ in 0..self.random.usize(1..7) {
            let limit = self.limits[self.random.usize(..self.limits.len())];
            let limit = if self.random.u8(..10) == 0 { self.other_amount(limit) } else { limit };
            let role = Role { shadow: self.random.u8(..5) == 0, quota: self.random.u8(..4) == 0 };
            let key = format!("{}.{}.{}", self.scene, if self.is_steady { 0 } else { self.random.u8(..2) }, stored::tag(&limit));
            checks.push((key, Check::new(limit, self.hits(&limit), role)));
        }
        let mut plan = Plan::of_checks(checks.iter().map(|(key, check)| (key.as_bytes(), check.clone())));
        plan.commit = if self.random.u8(..3) == 0 { Commit::AllOrNone } else { Commit::Each };
        plan
    }

    /// What a reload does: the same key, but another amount.
    fn other_amount(&mut self, limit: Algorithm) -> Algorithm {
        let window = stored::window(&limit) / 1_000_000;
        let unit_multiplier = u32::try_from(window).unwrap_or(u32::MAX);
        let rate = Rate { requests_per_unit: self.random.u32(0..40), unit: Unit::Second, unit_multiplier };
        self.limit(Some(rate))
    }
}

/// Runs a batch on the pure steps.
fn expect(plan: Plan, when: When, model: &mut Model, source: &mut Source) -> Expected {
    let keys: Vec<Vec<u8>> = plan.checks.iter().map(|check| stored::key(&plan, check, when.now)).collect();
    let at = Moment { now: when.now, patience: when.patience };
    let mut deleted = Vec::new();
    for (key, check) in keys.iter().zip(&plan.checks) {
        let Some(known) = model.get(key).filter(|known| known.is_free(check, when.now)) else { continue };
        if source.random.bool() {
            let (old, none) = (check.algorithm.step(known.state.clone(), at, check.hits), check.algorithm.step(None, at, check.hits));
            assert_eq!(old.verdict, none.verdict, "past keep_for it means no more than a missing one: {check:?} {known:?} {at:?}");
            model.remove(key);
            deleted.push(key.clone());
        }
    }
    let (verdicts, kept) = match plan.commit {
        Commit::Each => {
            let (mut verdicts, mut kept) = (Vec::new(), Vec::new());
            for (key, check) in keys.iter().zip(&plan.checks) {
                let step = check.algorithm.step(model.get(key).and_then(|known| known.state.clone()), at, check.hits);
                verdicts.push(step.verdict);
                kept.push(step.keep_for);
                if let Some(keep_for) = step.keep_for {
                    write(model, key, check.algorithm, when.now, step.state, keep_for);
                }
            }
            (verdicts, Some(kept))
        }
        Commit::AllOrNone => {
            let known = |index: usize| model.get(&keys[index]).and_then(|known| known.state.clone());
            let group = Group::decide(&plan, at, known, |left, right| keys[left] == keys[right]);
            for (index, state, keep_for) in group.writes {
                // A group does not tell which of its checks wrote last.
                let by = plan.checks[index].algorithm;
                let is_one = keys.iter().zip(&plan.checks).all(|(key, check)| *key != keys[index] || check.algorithm == by);
                write(model, &keys[index], by, when.now, Some(state), if is_one { keep_for } else { Span::MAX });
            }
            (group.verdicts.to_vec(), None)
        }
    };
    for verdict in &verdicts {
        if let (false, Wait::For(span)) = (verdict.allowed, verdict.retry_after) {
            source.last_wait = span.micros();
        }
    }
    let distinct: BTreeSet<_> = keys.into_iter().collect();
    let stored = distinct.into_iter().map(|key| (key.clone(), model.get(&key).and_then(|known| known.state.clone()))).collect();
    Expected { plan, when, verdicts, kept, stored, deleted }
}

fn call<'p>(plan: &'p Plan, when: When) -> Call<'p> {
    Call { plan, checks: 0..plan.checks.len(), when, is_time_given: true, jitter_secs: 0 }
}

/// What matters of a verdict: nobody is told when to come again who was let in.
fn told(verdict: Verdict) -> Verdict {
    if verdict.allowed { Verdict { retry_after: Wait::For(Span::ZERO), ..verdict } } else { verdict }
}

/// Sends batches to Redis and holds them to what was expected.
fn compare(connection: &mut Connection, batches: &[Expected], seed: u64) {
    let mut pipeline = Pipeline::new();
    let mut commands = 0;
    let mut add = |command: bb8_redis::redis::Cmd| {
        pipeline.add_command(command);
        commands += 1;
    };
    for batch in batches {
        for key in &batch.deleted {
            add(cmd("DEL").arg(key).clone());
        }
        add(call(&batch.plan, batch.when).command(Named::ByHash));
        for (key, _) in &batch.stored {
            add(cmd("GET").arg(key).clone());
        }
    }
    let replies = connection.req_packed_commands(&pipeline.get_packed_pipeline(), 0, commands).expect("Redis answers");
    let mut replies = replies.iter();
    for batch in batches {
        for _ in &batch.deleted {
            replies.next();
        }
        let reply = replies.next().expect("one per command");
        let call = call(&batch.plan, batch.when);
        let shown = || format!("seed {seed}, at {:?}, {:?}: {:#?}\nreply {reply:?}", batch.when, batch.plan.commit, batch.plan.checks);
        let mut answers = vec![Err(StoreError::Unknown("unanswered")); batch.verdicts.len()];
        assert_eq!(call.read(reply, &mut answers), Ok(batch.when.now), "{}", shown());
        for (index, (answer, expected)) in answers.iter().zip(&batch.verdicts).enumerate() {
            assert_eq!(answer.map(told), Ok(told(*expected)), "check {index}; {}", shown());
        }
        if let Some(kept) = &batch.kept {
            assert_eq!(&call.kept(reply), kept, "{}", shown());
        }
        for (key, expected) in &batch.stored {
            let text = match replies.next().expect("one per command") {
                Value::BulkString(text) => Some(text.clone()),
                Value::Nil => None,
                other => panic!("{other:?}"),
            };
            let expected = expected.as_ref().map(stored::of_state);
            let found = text.as_deref().map(|text| stored::of_text(text, expected.as_ref()));
            assert_eq!(found, expected, "{}; {}", String::from_utf8_lossy(key), shown());
        }
    }
}

fn run(kinds: &[Kind]) {
    let operations = setting("WEIR_DIFFERENTIAL_OPERATIONS").map_or(OPERATIONS, |number| number as usize);
    let seed = setting("WEIR_DIFFERENTIAL_SEED").unwrap_or_else(|| fastrand::u64(..));
    let server = RedisServer::start();
    let mut connection = server.connection();
    let (mut source, mut model) = (Source::new(kinds, seed), Model::new());
    let first = source.plan();
    let when = When { now: Micros(0), deadline: Micros(END), patience: Span::ZERO };
    call(&first, when).command(Named::ByText).exec(&mut connection).expect("the script is known from here on");
    server.flush();
    let (mut done, mut batches, mut allowed, mut refused) = (0, 0, 0, 0);
    while done < operations {
        if batches >= PER_SCENE {
            source.next_scene();
            // A limit of nothing leaves nothing.
            if !server.keys().is_empty() {
                server.assert_every_key_expires();
            }
            server.flush();
            model.clear();
            batches = 0;
        }
        let together: Vec<Expected> = (0..TOGETHER)
            .map(|_| {
                let plan = source.plan();
                let patience = [Span::ZERO, Span::MAX, Span::from_micros(source.random.u64(..100_000_000))][source.random.usize(..3)];
                let when = When { now: source.time(), deadline: Micros(END), patience };
                expect(plan, when, &mut model, &mut source)
            })
            .collect();
        compare(&mut connection, &together, seed);
        batches += TOGETHER;
        for verdict in together.iter().flat_map(|batch| &batch.verdicts) {
            done += 1;
            *(if verdict.allowed { &mut allowed } else { &mut refused }) += 1;
        }
    }
    println!("{kinds:?}: {done} operations, {allowed} allowed, {refused} refused, seed {seed}");
    assert!(allowed > done / 10 && refused > done / 10, "{allowed} allowed, {refused} refused: the mix is no test");
}

#[test]
fn fixed_window() {
    run(&[Kind::FixedWindow]);
}

#[test]
fn sliding_window_log() {
    run(&[Kind::SlidingWindowLog]);
}

#[test]
fn sliding_window_counter() {
    run(&[Kind::SlidingWindowCounter]);
}

#[test]
fn sliding_window_buckets() {
    run(&[Kind::SlidingWindowBuckets]);
}

#[test]
fn token_bucket() {
    run(&[Kind::TokenBucket]);
}

#[test]
fn leaky_bucket() {
    run(&[Kind::LeakyBucket]);
}

#[test]
fn all_together() {
    run(&Kind::NAMED.map(|(_, kind)| kind));
}
