//! The records in Redis: random checks against the pure step, and that nothing is lost, counted
//! twice or invented.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bb8_redis::redis::{Connection, Value};
use tokio::time::Instant;
use weir::core::algorithm::{self, Algorithm, AlgorithmKind, TABLE};
use weir::core::time::{Micros, Rate, Span, Unit};
use weir::core::usage::{Hits, Record, Tracking};
use weir::core::verdict::Verdict;
use weir::limits::plan::{Check, CheckIndex, Checks, Modes};
use weir::limits::rules::Commit;
use weir::store::redis::ScriptRef;
use weir::store::{Budget, Redis, StoreError};

use super::vectors::stored;
use super::{total, tracked, tracking};
use crate::redis::{ScriptCall, When, call};
use crate::support::RedisServer;
use crate::support::redis::connect;

fn algorithm(kind: AlgorithmKind, amount: u64, unit: Unit) -> Algorithm {
    let rate = Rate {
        requests_per_unit: amount,
        unit,
        unit_multiplier: 1,
    };
    let max_duration = (kind == AlgorithmKind::Concurrency).then_some(Span::from_secs(86_400));
    Algorithm::try_new(
        &rate,
        &algorithm::Options {
            kind,
            max_duration,
            ..algorithm::Options::default()
        },
    )
    .expect("an algorithm")
}

/// Hits of a limit per year of each algorithm, asked with a long deadline.
async fn hit(
    redis: &Redis,
    key: &str,
    kind: AlgorithmKind,
    amount: u64,
    hits: &[i64],
    tracking: &Arc<Tracking>,
) -> Vec<bool> {
    let check = |&hits: &i64| {
        (
            key.as_bytes(),
            Check::new(algorithm(kind, amount, Unit::Year), hits, Modes::default()),
        )
    };
    let checks = Arc::new(tracked(Checks::of(hits.iter().map(check)), tracking));
    let answers = redis
        .decide(
            &checks,
            &checks.indices(),
            &Budget::until(Instant::now() + Duration::from_secs(10)),
        )
        .await;
    answers
        .verdicts()
        .iter()
        .map(|answer| answer.expect("a verdict").allowed)
        .collect()
}

/// Checks of a scene on few keys; most of them are tracked.
fn random_checks(random: &mut fastrand::Rng, scene: usize, rings: &[Arc<Tracking>]) -> Checks {
    let picked: Vec<(String, Check)> = (0..random.usize(1..6))
        .map(|_| {
            let kind = TABLE[random.usize(..TABLE.len())].kind;
            let hits = [1, 1, 1, 2, 0, -1, 4, i64::MAX, i64::MIN, 1 << 50][random.usize(..10)];
            let modes = Modes {
                shadow: random.u8(..6) == 0,
                quota: random.u8(..6) == 0,
            };
            let key = format!("w1{{{scene}|u={}}}{}", random.u8(..5), kind.name());
            let algorithm = algorithm(kind, random.u64(..6), Unit::Second);
            (key, Check::new(algorithm, hits, modes))
        })
        .collect();
    let mut checks = Checks::of(
        picked
            .iter()
            .map(|(key, check)| (key.as_bytes(), check.clone())),
    );
    checks.commit = if random.u8(..3) == 0 {
        Commit::AllOrNone
    } else {
        Commit::Each
    };
    // One subject always has the same ring, unless that changes for all.
    (0..picked.len()).fold(checks, |checks, index| {
        let ring = &rings[(scene + usize::from(picked[index].0.contains("u=3"))) % rings.len()];
        if random.u8(..4) > 0 {
            checks.tracked(CheckIndex(index), (Arc::clone(ring), None))
        } else {
            checks
        }
    })
}

/// Records what the answers to the checks of a request count, as the pure step does.
fn record(
    records: &mut BTreeMap<String, Record>,
    checks: &Checks,
    answers: &[Result<Verdict, StoreError>],
    now: Micros,
) {
    let is_allowed =
        |answer: &Result<Verdict, _>| answer.as_ref().is_ok_and(|verdict| verdict.allowed);
    let is_refused =
        checks.commit == Commit::AllOrNone && checks.is_over_limit(answers.iter().map(is_allowed));
    for ((index, check), answer) in checks.indexed().zip(answers) {
        let (Some(tracking), Ok(verdict)) = (checks[index].tracking(), answer) else {
            continue;
        };
        let hits = Hits::of_check(check.hits, verdict.allowed);
        if hits.is_none() || (is_refused && verdict.allowed) {
            continue;
        }
        let key = String::from_utf8_lossy(checks.key(check)).into_owned();
        let key = format!("{}}}us", key.split_once('}').expect("a hash tag").0);
        let record = Record::step(records.remove(&key), &tracking.settings, now, hits);
        records.insert(key, record);
    }
}

fn answers(call: &ScriptCall, connection: &mut Connection) -> Vec<Result<Verdict, StoreError>> {
    let reply: Value = call
        .command(ScriptRef::ByText)
        .query(connection)
        .expect("Redis is well");
    let mut answers = vec![Err(StoreError::Unknown("unanswered")); call.len()];
    call.read(&reply, &mut answers).expect("a good reply");
    answers
}

/// Random requests of all algorithms, tracked and not, each alone or several in a call, with times
/// that go on and back: the record is what the pure step makes of the verdicts.
#[test]
fn random_checks_leave_the_records_of_the_pure_step() {
    let seed = fastrand::u64(..);
    let mut random = fastrand::Rng::with_seed(seed);
    let server = RedisServer::start();
    let mut connection = server.connection();
    let rings = [
        tracking(1, 5),
        tracking(3, 1),
        tracking(2, 40),
        tracking(60, 60),
    ];
    let mut now = 1_800_000_000_000_000_u64;
    for scene in 0..40 {
        let mut records: BTreeMap<String, Record> = BTreeMap::new();
        for _ in 0..40 {
            now = match random.u8(..8) {
                0 => now - random.u64(..3_000_000),
                1 => now + random.u64(..200_000_000),
                2 => now,
                _ => now + random.u64(..2_000_000),
            };
            let requests: Vec<Checks> = (0..random.usize(1..4))
                .map(|_| random_checks(&mut random, scene, &rings))
                .collect();
            let when = |late: bool| When {
                now: Micros(now),
                deadline: if late {
                    Micros(now - 1)
                } else {
                    Micros(u64::MAX)
                },
                max_wait: Span::ZERO,
            };
            let late: Vec<bool> = requests.iter().map(|_| random.u8(..10) == 0).collect();
            let calls = requests.iter().zip(&late);
            let mut call = call(calls.map(|(checks, &late)| (checks, when(late))));
            call.crosses_slots = random.bool();
            let answers = answers(&call, &mut connection);
            let mut rest = &answers[..];
            for (checks, &late) in requests.iter().zip(&late) {
                let (own, others) = rest.split_at(checks.len());
                rest = others;
                assert_eq!(own.iter().all(Result::is_err), late, "seed {seed}: {own:?}");
                record(&mut records, checks, own, Micros(now));
            }
            let keys: Vec<String> = (0..5)
                .map(|user| format!("w1{{{scene}|u={user}}}us"))
                .collect();
            for key in keys {
                let (found, expected) = (stored(&mut connection, &key), records.get(&key));
                let view = |record: &Record| {
                    (
                        total(record),
                        record.summary(),
                        record.series(Micros(now), Span::from_secs(1_000_000)),
                    )
                };
                assert_eq!(
                    found.as_ref().map(view),
                    expected.map(view),
                    "seed {seed}: {key}"
                );
            }
        }
    }
    server.assert_every_key_expires();
}

#[tokio::test]
async fn a_record_lives_as_long_as_its_subject_was_known() {
    let server = RedisServer::start();
    let (redis, tracking) = (connect(server.options()), tracking(60, 60));
    let hit_once = async || {
        let name = "w1{d|user=1}tb";
        hit(&redis, name, AlgorithmKind::TokenBucket, 5, &[1], &tracking).await
    };
    hit_once().await;
    let key = "w1{d|user=1}us";
    let ttl = || server.run::<i64>(&["TTL", key]);
    assert!(
        (3_600..=3_600 + 460).contains(&ttl()),
        "a new one: its ring and an eighth, not {}",
        ttl()
    );
    // It was seen first two days ago.
    let ago = |secs: u64| {
        let first = (server.run::<Vec<u64>>(&["TIME"])[0] - secs) * 1_000_000;
        let mut stored = server.run::<Vec<u8>>(&["GET", key]);
        stored[65..73].copy_from_slice(&(first as f64).to_le_bytes());
        bb8_redis::redis::cmd("SETRANGE")
            .arg(key)
            .arg(0)
            .arg(stored)
            .query::<()>(&mut server.connection())
            .expect("Redis is well");
    };
    ago(2 * 86_400);
    hit_once().await;
    assert!(
        (2 * 86_400..2 * 86_400 * 9 / 8 + 10).contains(&ttl()),
        "{}",
        ttl()
    );
    ago(400 * 86_400);
    hit_once().await;
    assert!(
        (30 * 86_400..30 * 86_400 * 9 / 8 + 10).contains(&ttl()),
        "{}",
        ttl()
    );
    let before = server.calls("pexpire");
    hit_once().await;
    assert_eq!(
        server.calls("pexpire"),
        before,
        "the expiry is set in advance"
    );
}

/// All buckets of a ring are kept, also when they cover more than an hour, or more than a subject
/// was known.
#[tokio::test]
async fn a_record_lives_as_long_as_its_ring() {
    let server = RedisServer::start();
    let redis = connect(server.options());
    for (number, (interval, buckets, least)) in
        [(60, 1, 3_600), (60, 600, 36_000), (3_600, 72, 259_200)]
            .into_iter()
            .enumerate()
    {
        hit(
            &redis,
            &format!("w1{{d|user={number}}}tb"),
            AlgorithmKind::TokenBucket,
            5,
            &[1],
            &tracking(interval, buckets),
        )
        .await;
        let ttl = server.run::<i64>(&["TTL", &format!("w1{{d|user={number}}}us")]);
        assert!(
            (least - 5..=least * 9 / 8 + 10).contains(&ttl),
            "{buckets} x {interval} s: {ttl}"
        );
    }
}

/// In an interval that goes on, a recorded hit reads and writes one header.
#[tokio::test]
async fn a_recorded_hit_costs_redis_two_commands() {
    let server = RedisServer::start();
    let (redis, tracking) = (connect(server.options()), tracking(86_400, 60));
    let calls = || ["getrange", "setrange", "pexpire"].map(|command| server.calls(command));
    hit(
        &redis,
        "w1{d|user=1}fw",
        AlgorithmKind::FixedWindow,
        5,
        &[1],
        &tracking,
    )
    .await;
    let before = calls();
    for _ in 0..10 {
        hit(
            &redis,
            "w1{d|user=1}fw",
            AlgorithmKind::FixedWindow,
            5,
            &[1],
            &tracking,
        )
        .await;
    }
    // A day may end meanwhile, which closes a bucket.
    let [reads, writes, expiries] = [0, 1, 2].map(|index| calls()[index] - before[index]);
    assert!(
        reads == 10 && (10..=11).contains(&writes) && expiries <= 1,
        "{reads} {writes} {expiries}"
    );
}

/// Whatever is under the key of a record, the check is decided.
#[tokio::test]
async fn a_key_that_is_no_record_fails_no_check() {
    let server = RedisServer::start();
    let (redis, tracking) = (connect(server.options()), tracking(60, 60));
    for (number, command) in [
        &["SET", "KEY", "text"][..],
        &["SET", "KEY", ""],
        &["SETRANGE", "KEY", "2000", "x"],
        &["SETRANGE", "KEY", "104", "\u{1}"],
        &["RPUSH", "KEY", "x"],
        &["HSET", "KEY", "a", "b"],
    ]
    .into_iter()
    .enumerate()
    {
        let key = format!("w1{{d|user={number}}}us");
        let command: Vec<&str> = command
            .iter()
            .map(|&word| if word == "KEY" { &key } else { word })
            .collect();
        server.run::<Value>(&command);
        for kind in TABLE.iter().map(|spec| spec.kind) {
            let allowed = hit(
                &redis,
                &format!("w1{{d|user={number}}}{}", kind.name()),
                kind,
                5,
                &[1],
                &tracking,
            )
            .await;
            assert_eq!(allowed, [true], "{command:?}");
        }
        if server.run::<String>(&["TYPE", &key]) == "string" {
            assert_eq!(
                stored(&mut server.connection(), &key).map(|record| total(&record)),
                Some([TABLE.len() as u64, 0, 0]),
                "{command:?}"
            );
            assert!(server.run::<i64>(&["PTTL", &key]) > 0, "{command:?}");
        } else {
            assert_eq!(
                server.run::<i64>(&["PTTL", &key]),
                -1,
                "what is not Weir's is left alone"
            );
        }
    }
}

/// A counter of another type fails its check, and that check is not recorded; neither is any other
/// of its request with all_or_none.
#[tokio::test]
async fn checks_that_failed_are_not_recorded() {
    let server = RedisServer::start();
    let (redis, tracking) = (connect(server.options()), tracking(60, 60));
    server.run::<i64>(&["RPUSH", "w1{d|user=1}tb", "x"]);
    for (commit, recorded) in [
        (Commit::Each, Some([1, 0, 0])),
        (Commit::AllOrNone, Some([1, 0, 0])),
    ] {
        let bucket = algorithm(AlgorithmKind::TokenBucket, 5, Unit::Year);
        let keys: [&[u8]; 2] = [b"w1{d|user=1}tb", b"w1{d|user=1}sc"];
        let others = algorithm(AlgorithmKind::SlidingWindowCounter, 5, Unit::Year);
        let mut checks = Checks::of(
            keys.into_iter()
                .zip([bucket, others].map(|algorithm| Check::new(algorithm, 1, Modes::default()))),
        );
        checks.commit = commit;
        let checks = Arc::new(tracked(checks, &tracking));
        let answers = redis
            .decide(
                &checks,
                &checks.indices(),
                &Budget::until(Instant::now() + Duration::from_secs(10)),
            )
            .await;
        assert!(
            matches!(answers.verdicts()[0], Err(StoreError::Data(_))),
            "{answers:?}"
        );
        assert_eq!(answers.verdicts()[1].is_ok(), commit == Commit::Each);
        assert_eq!(
            stored(&mut server.connection(), "w1{d|user=1}us").map(|record| total(&record)),
            recorded,
            "{commit:?}"
        );
    }
}
