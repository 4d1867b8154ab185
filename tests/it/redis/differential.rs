//! Compares the script inside Redis with the pure step: the same random checks at the same given
//! times must not differ.
//!
//! It compares every verdict, the time for which every changed key must be kept, and the states
//! stored after every batch. It deletes keys at random once they need not be kept any longer; no
//! verdict may change. `WEIR_DIFFERENTIAL_OPERATIONS` is the number of checks per algorithm, and
//! `WEIR_DIFFERENTIAL_SEED` repeats a run.

mod generator;
mod reservations;
mod stored_state;

use std::collections::{BTreeMap, BTreeSet};

use bb8_redis::redis::{Connection, ConnectionLike, Pipeline, cmd};
use weir::core::algorithm::{self, AlgorithmKind, Arrival, State};
use weir::core::time::{Period, PeriodKind, Rate, Unit, Zone};
use weir::core::verdict::Wait;
use weir::limits::plan::{AllOrNone, CheckIndex};
use weir::limits::rules::Commit;

use self::generator::Generator;
use super::*;
use crate::support::redis::RedisServer;
use crate::testing::{cases, number_in};

/// The number of checks per algorithm of a full run.
const OPERATIONS: u64 = 20_000;

/// Batches that are sent in one pipeline.
const TOGETHER: usize = 64;

/// The most batches before the limits and the keys are replaced. Other scenes are up to eight times
/// shorter, because a short run needs several of them.
const PER_SCENE: usize = 512;

/// Times in microseconds: from about today to the year 2112, so that a time plus a window of 100
/// years is still exact in Lua.
const START: u64 = 1_800_000_000_000_000;
const END: u64 = 1 << 52;

/// The state of a key by the pure steps, and until when it must be kept.
#[derive(Clone, Debug)]
struct Known {
    state: Option<State>,
    keep_until: Micros,
    /// The algorithm that wrote it last, and the latest time of a write.
    by: Algorithm,
    latest: Micros,
}

impl Known {
    /// Whether the key may be missing: for a check of the same algorithm, at a time that is not
    /// before the last write.
    fn may_be_missing(&self, check: &Check, now: Micros) -> bool {
        self.state.is_some()
            && self.keep_until <= now
            && self.latest <= now
            && self.by == check.algorithm
    }
}

fn write(
    model: &mut Model,
    key: &[u8],
    by: Algorithm,
    now: Micros,
    state: Option<State>,
    keep_for: Span,
) {
    let latest = model.get(key).map_or(now, |known| known.latest.max(now));
    model.insert(
        key.to_vec(),
        Known {
            state,
            keep_until: now + keep_for,
            by,
            latest,
        },
    );
}

type Model = BTreeMap<Vec<u8>, Known>;

/// The expected result of one batch.
struct Expected {
    checks: Checks,
    when: When,
    verdicts: Vec<Verdict>,
    /// One per check.
    effects: Vec<Effect>,
    /// One per check; `None` for `all_or_none`.
    kept: Option<Vec<Option<Span>>>,
    /// Each key of the batch, and its state after the batch.
    stored: Vec<(Vec<u8>, Option<State>)>,
    deleted: Vec<Vec<u8>>,
}

/// Runs a batch of `all_or_none` on the pure steps.
fn expect_all_or_none(
    checks: &Checks,
    at: Arrival,
    keys: &[Vec<u8>],
    model: &mut Model,
) -> (Vec<Verdict>, Vec<Effect>) {
    let known = |index: CheckIndex| {
        model
            .get(&keys[index.0])
            .and_then(|known| known.state.clone())
    };
    let group = AllOrNone::decide(checks, at, known, |left, right| {
        keys[left.0] == keys[right.0]
    });
    for (index, state, keep_for) in group.writes {
        // `AllOrNone::decide` does not report which check wrote last.
        let by = checks[index].algorithm;
        let is_one = keys
            .iter()
            .zip(checks.iter())
            .all(|(key, check)| *key != keys[index.0] || check.algorithm == by);
        write(
            model,
            &keys[index.0],
            by,
            at.now,
            Some(state),
            if is_one { keep_for } else { Span::MAX },
        );
    }
    let mut effects = vec![Effect::None; checks.len()];
    for (index, effect) in group.effects {
        effects[index.0] = effect;
    }
    (group.verdicts.to_vec(), effects)
}

/// Deletes some of the states that equal a missing one, and returns their keys.
fn forget(
    checks: &Checks,
    keys: &[Vec<u8>],
    at: Arrival,
    model: &mut Model,
    generator: &mut Generator,
) -> Vec<Vec<u8>> {
    let mut deleted = Vec::new();
    for (key, (index, check)) in keys.iter().zip(checks.indexed()) {
        let Some(known) = model
            .get(key)
            .filter(|known| known.may_be_missing(check, at.now))
        else {
            continue;
        };
        if generator.random.bool() {
            let (old, _) = checks.step(index, known.state.clone(), at);
            let (none, _) = checks.step(index, None, at);
            assert_eq!(
                old.verdict, none.verdict,
                "after keep_for the state equals a missing one: {check:?} {known:?} {at:?}"
            );
            model.remove(key);
            deleted.push(key.clone());
        }
    }
    deleted
}

/// Runs a batch on the pure steps.
fn expect(checks: Checks, when: When, model: &mut Model, generator: &mut Generator) -> Expected {
    let keys: Vec<Vec<u8>> = checks
        .iter()
        .map(|check| stored_state::key(&checks, check, when.now))
        .collect();
    let at = Arrival {
        now: when.now,
        max_wait: when.max_wait,
    };
    let deleted = forget(&checks, &keys, at, model, generator);
    let mut effects = Vec::new();
    let (verdicts, kept) = match checks.commit {
        Commit::Each => {
            let (mut verdicts, mut kept) = (Vec::new(), Vec::new());
            for (key, (index, check)) in keys.iter().zip(checks.indexed()) {
                let state = model.get(key).and_then(|known| known.state.clone());
                let (step, effect) = checks.step(index, state, at);
                effects.push(effect);
                verdicts.push(step.verdict);
                kept.push(step.keep_for);
                if let Some(keep_for) = step.keep_for {
                    write(model, key, check.algorithm, when.now, step.state, keep_for);
                }
            }
            (verdicts, Some(kept))
        }
        Commit::AllOrNone => {
            let (verdicts, of_group) = expect_all_or_none(&checks, at, &keys, model);
            effects = of_group;
            (verdicts, None)
        }
    };
    for verdict in &verdicts {
        if let (false, Wait::For(span)) = (verdict.allowed, verdict.retry_after) {
            generator.last_wait = span.micros();
        }
    }
    let distinct: BTreeSet<_> = keys.into_iter().collect();
    let state = |key: &Vec<u8>| model.get(key).and_then(|known| known.state.clone());
    let stored = distinct
        .into_iter()
        .map(|key| (key.clone(), state(&key)))
        .collect();
    Expected {
        checks,
        when,
        verdicts,
        effects,
        kept,
        stored,
        deleted,
    }
}

/// The verdict without `retry_after` when it allows, because that field is not used then.
pub fn comparable(verdict: Verdict) -> Verdict {
    if verdict.allowed {
        Verdict {
            retry_after: Wait::For(Span::ZERO),
            ..verdict
        }
    } else {
        verdict
    }
}

/// Sends batches to Redis and compares the replies with the expected results.
fn compare(connection: &mut Connection, batches: &[Expected], seed: u64) {
    let mut pipeline = Pipeline::new();
    let mut commands = 0;
    let mut add = |command: bb8_redis::redis::Cmd| {
        pipeline.add_command(command);
        commands += 1;
    };
    for (index, batch) in batches.iter().enumerate() {
        for key in &batch.deleted {
            add(cmd("DEL").arg(key).clone());
        }
        let mut call = call([(&batch.checks, batch.when)]);
        // Both texts of the script, in turn on the same states.
        call.crosses_slots = index % 2 == 1;
        add(call.command(ScriptRef::ByHash));
        for (key, _) in &batch.stored {
            add(stored_state::read(key));
        }
    }
    let replies = connection
        .req_packed_commands(&pipeline.get_packed_pipeline(), 0, commands)
        .expect("Redis answers");
    let mut replies = replies.iter();
    for batch in batches {
        for _ in &batch.deleted {
            replies.next();
        }
        let reply = replies.next().expect("one per command");
        let call = call([(&batch.checks, batch.when)]);
        let details = || {
            format!(
                "seed {seed}, at {:?}, {:?}: {:#?}\nreply {reply:?}",
                batch.when, batch.checks.commit, batch.checks
            )
        };
        let mut answers = vec![Err(StoreError::Unknown("unanswered")); batch.verdicts.len()];
        assert_eq!(
            call.read(reply, &mut answers),
            Ok(batch.when.now),
            "{}",
            details()
        );
        for (index, (answer, expected)) in answers.iter().zip(&batch.verdicts).enumerate() {
            assert_eq!(
                answer.map(comparable),
                Ok(comparable(*expected)),
                "check {index}; {}",
                details()
            );
        }
        assert_eq!(call.effects(reply), batch.effects, "{}", details());
        if let Some(kept) = &batch.kept {
            assert_eq!(&call.keep_for(reply), kept, "{}", details());
        }
        for (key, expected) in &batch.stored {
            let expected = expected.as_ref().and_then(stored_state::of_state);
            let found =
                stored_state::of_reply(replies.next().expect("one per command"), expected.as_ref());
            assert_eq!(
                found,
                expected,
                "{}; {}",
                String::from_utf8_lossy(key),
                details()
            );
        }
    }
}

fn run(kinds: &[AlgorithmKind]) {
    run_for(
        kinds,
        number_in("WEIR_DIFFERENTIAL_OPERATIONS").unwrap_or_else(|| cases(OPERATIONS)) as usize,
    );
}

/// Runs this number of checks on these algorithms. Panics at the first difference; returns how many
/// checks there were.
pub fn run_for(kinds: &[AlgorithmKind], operations: usize) -> usize {
    let seed = number_in("WEIR_DIFFERENTIAL_SEED").unwrap_or_else(|| fastrand::u64(..));
    let server = RedisServer::start();
    let mut connection = server.connection();
    let (mut generator, mut model) = (Generator::new(kinds, seed), Model::new());
    let first = generator.checks();
    let when = When {
        now: Micros(0),
        deadline: Micros(END),
        max_wait: Span::ZERO,
    };
    let mut call = call([(&first, when)]);
    for crosses_slots in [false, true] {
        call.crosses_slots = crosses_slots;
        call.command(ScriptRef::ByText)
            .exec(&mut connection)
            .expect("Redis loads the script");
    }
    server.flush();
    let (mut done, mut batches, mut allowed, mut refused) = (0, 0, 0, 0);
    let mut in_scene = PER_SCENE / 4;
    while done < operations {
        if batches >= in_scene {
            in_scene = PER_SCENE >> generator.random.u8(..4);
            generator.next_scene();
            // A limit of 0 stores nothing.
            if !server.keys().is_empty() {
                server.assert_every_key_expires();
            }
            server.flush();
            model.clear();
            batches = 0;
        }
        let together: Vec<Expected> = (0..TOGETHER)
            .map(|_| {
                let checks = generator.checks();
                let max_wait = [
                    Span::ZERO,
                    Span::MAX,
                    Span::from_micros(generator.random.u64(..100_000_000)),
                ][generator.random.usize(..3)];
                let when = When {
                    now: generator.time(),
                    deadline: Micros(END),
                    max_wait,
                };
                expect(checks, when, &mut model, &mut generator)
            })
            .collect();
        compare(&mut connection, &together, seed);
        batches += TOGETHER;
        for verdict in together.iter().flat_map(|batch| &batch.verdicts) {
            done += 1;
            *(if verdict.allowed {
                &mut allowed
            } else {
                &mut refused
            }) += 1;
        }
    }
    println!("{kinds:?}: {done} operations, {allowed} allowed, {refused} refused, seed {seed}");
    // Of 480 runs of 4,000 operations, the one with the fewest refusals had 7.7 %.
    assert!(
        allowed > done / 40 && refused > done / 40,
        "{allowed} allowed, {refused} refused: too few of one kind"
    );
    done
}

#[test]
fn fixed_window() {
    run(&[AlgorithmKind::FixedWindow]);
}

#[test]
fn sliding_window_log() {
    run(&[AlgorithmKind::SlidingWindowLog]);
}

#[test]
fn sliding_window_counter() {
    run(&[AlgorithmKind::SlidingWindowCounter]);
}

#[test]
fn sliding_window_buckets() {
    run(&[AlgorithmKind::SlidingWindowBuckets]);
}

#[test]
fn token_bucket() {
    run(&[AlgorithmKind::TokenBucket]);
}

#[test]
fn leaky_bucket() {
    run(&[AlgorithmKind::LeakyBucket]);
}

#[test]
fn concurrency() {
    run(&[AlgorithmKind::Concurrency]);
}

#[test]
fn all_algorithms() {
    run(&AlgorithmKind::NAMED.map(|(_, kind)| kind));
}
