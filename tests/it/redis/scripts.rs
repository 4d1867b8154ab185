//! The script beyond its arithmetic: unreadable keys, `all_or_none`, lost scripts, late calls, and
//! many clients at once.

use bb8_redis::redis::Value;
use weir::core::algorithm::{self, AlgorithmKind};
use weir::core::time::{Rate, Unit};
use weir::limits::rules::Commit;
use weir::store::redis::ScriptRef;

use super::*;
use crate::support::redis::{RedisServer, connect};

/// A limit of each algorithm, per year, so that no hit is regained during a test.
fn each_algorithm(limit: u64) -> Vec<(&'static str, Algorithm)> {
    let rate = Rate {
        requests_per_unit: limit,
        unit: Unit::Year,
        unit_multiplier: 1,
    };
    let make = |&(name, kind): &(&'static str, AlgorithmKind)| {
        // A leaky bucket admits its whole limit at once only to a caller that waits.
        let max_delay = (kind == AlgorithmKind::LeakyBucket)
            .then(|| Span::from_secs((limit - 1) * 365 * 86_400 / limit + 60));
        let options = algorithm::Options {
            kind,
            max_delay,
            count_denied: Some(false),
            ..Default::default()
        };
        (
            name,
            Algorithm::try_new(&rate, &options).expect("a good limit"),
        )
    };
    AlgorithmKind::OVER_TIME.iter().map(make).collect()
}

fn check_of(algorithm: Algorithm, hits: i64) -> Check {
    Check::new(algorithm, hits, Modes::default())
}

async fn decide(redis: &Redis, checks: Checks) -> Answers {
    decide_within(
        redis,
        checks,
        Budget {
            max_wait: Span::MAX,
            ..Budget::until(Instant::now() + TIMEOUT)
        },
    )
    .await
}

fn all_or_none(checks: &[(&str, Check)]) -> Checks {
    let mut checks = checks_of(checks);
    checks.commit = Commit::AllOrNone;
    checks
}

fn used(answers: &Answers) -> Vec<Result<(bool, u64), StoreError>> {
    answers
        .verdicts()
        .iter()
        .map(|answer| answer.map(|verdict| (verdict.allowed, verdict.used)))
        .collect()
}

/// The name in Redis of a check's key.
fn stored_as(key: &str, algorithm: &Algorithm, answers: &Answers) -> String {
    match algorithm {
        Algorithm::FixedWindow(fixed) => format!("{key}:{}", fixed.number(answers.now)),
        _ => key.to_owned(),
    }
}

/// One of three checks has a key that cannot be read.
struct Unreadable<'a> {
    name: &'a str,
    algorithm: Algorithm,
    /// What the keys of the other checks begin with.
    keys: String,
    position: usize,
    hits: i64,
    /// What wrote the key.
    command: &'a [&'a str],
}

async fn assert_fails_alone(redis: &Redis, unreadable: &Unreadable<'_>) {
    let &Unreadable {
        name,
        algorithm,
        ref keys,
        position,
        hits,
        command,
    } = unreadable;
    let mut checks: Vec<(String, Check)> = (0..2)
        .map(|index| (format!("{keys}-{index}"), check_of(algorithm, 1)))
        .collect();
    checks.insert(position, (format!("{name}-bad"), check_of(algorithm, hits)));
    let checks: Vec<_> = checks
        .iter()
        .map(|(key, check)| (key.as_str(), check.clone()))
        .collect();
    let answers = decide(redis, checks_of(&checks)).await;
    for (index, answer) in used(&answers).into_iter().enumerate() {
        if index == position {
            let wrong = matches!(
                answer,
                Err(StoreError::Data("wrongtype" | "not_an_integer"))
            );
            assert!(wrong, "{name}, {command:?}: {answer:?}");
        } else {
            assert_eq!(answer, Ok((true, 1)), "{name}, {command:?} at {position}");
        }
    }
    let answers = decide(redis, all_or_none(&checks)).await;
    assert!(
        answers
            .verdicts()
            .iter()
            .all(|answer| matches!(answer, Err(StoreError::Data(_)))),
        "{name}: {answers:?}"
    );
    // `all_or_none` wrote nothing.
    let (key, check) = &checks[(position + 1) % 3];
    let peek = decide(redis, checks_of(&[(key, check_of(check.algorithm, 0))])).await;
    assert_eq!(used(&peek), [Ok((true, 1))], "{name}");
}

#[tokio::test]
async fn an_unreadable_key_fails_only_its_own_check() {
    let server = RedisServer::start();
    let redis = connect(server.options());
    let now = decide(&redis, checks_of(&[("now", check(1, 0))])).await;
    let mut round = 0;
    for (name, algorithm) in each_algorithm(10) {
        let bad = stored_as(&format!("{name}-bad"), &algorithm, &now);
        let make_unreadable: [&[&str]; 14] = [
            &["LPUSH", &bad, "x"],
            &["HSET", &bad, "a", "1"],
            &["ZADD", &bad, "1", "a"],
            &["SADD", &bad, "a"],
            &["XADD", &bad, "*", "a", "1"],
            &["SET", &bad, "abc"],
            &["SET", &bad, "-5"],
            &["SET", &bad, "1.5"],
            &["SET", &bad, " 1"],
            &["SET", &bad, "1 2 3 4"],
            &["SET", &bad, "99999999999999999999 99999999999999999999"],
            &["SET", &bad, "99999999999999999999 1 1"],
            // A value as long as the header of a log, and a header without its cells.
            &[
                "SET",
                &bad,
                "0123456789012345678901234567890123456789012345678901234567890123456789",
            ],
            &[
                "SET",
                &bad,
                "\u{1}\0\0\0\0\0\0\0\u{1}\0\0\0\
                 \u{2}\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
            ],
        ];
        for command in make_unreadable {
            for position in 0..3 {
                server.run::<()>(&["DEL", &bad]);
                server.run::<Value>(command);
                for hits in [1, 0, -1] {
                    assert_fails_alone(
                        &redis,
                        &Unreadable {
                            name,
                            algorithm,
                            keys: format!("{name}-{round}-{position}-{hits}"),
                            position,
                            hits,
                            command,
                        },
                    )
                    .await;
                }
            }
            round += 1;
        }
        server.run::<()>(&["DEL", &bad]);
    }
    assert_eq!(
        redis.deployment().connections().opened,
        1,
        "the connection is kept"
    );
    server.assert_every_key_expires();
}

#[tokio::test]
async fn a_late_call_counts_nothing() {
    let server = RedisServer::start();
    let mut connection = server.connection();
    for (name, algorithm) in each_algorithm(10) {
        let checks = checks_of(&[
            (name, check_of(algorithm, 1)),
            ("other", check_of(algorithm, 1)),
        ]);
        for (is_late, deadline) in [
            (true, 1_799_999_999_999_999),
            (false, 1_800_000_000_000_000),
        ] {
            let when = When {
                now: Micros(1_800_000_000_000_000),
                deadline: Micros(deadline),
                max_wait: Span::ZERO,
            };
            let call = call([(&checks, when)]);
            let reply = call
                .command(ScriptRef::ByText)
                .query(&mut connection)
                .expect("Redis is well");
            let mut answers = [Err(StoreError::Unknown("unanswered")); 2];
            assert_eq!(call.read(&reply, &mut answers), Ok(when.now));
            match is_late {
                true => assert_eq!(answers, [Err(StoreError::NotExecuted("late")); 2], "{name}"),
                false => assert!(
                    answers
                        .iter()
                        .all(|answer| answer.is_ok_and(|verdict| verdict.allowed)),
                    "{name}: {answers:?}"
                ),
            }
            assert_eq!(server.keys().is_empty(), is_late, "{name}");
        }
        server.flush();
    }
}

/// When requests of one call are decided.
const CALLED: Micros = Micros(1_800_000_000_000_000);

/// A deadline that is passed by `late` microseconds less one.
fn in_time(late: u64) -> When {
    When {
        now: CALLED,
        deadline: Micros(CALLED.0 + 1 - late),
        max_wait: Span::MAX,
    }
}

/// The hits of a key and of the key `other`.
fn assert_used(server: &RedisServer, name: &str, algorithm: Algorithm, used: [u64; 2]) {
    let peek = checks_of(&[
        (name, check_of(algorithm, 0)),
        ("other", check_of(algorithm, 0)),
    ]);
    let peek = call([(&peek, in_time(0))]);
    let mut answers = [Err(StoreError::Unknown("unanswered")); 2];
    let reply = peek
        .command(ScriptRef::ByText)
        .query(&mut server.connection())
        .expect("Redis is well");
    peek.read(&reply, &mut answers).expect("a good reply");
    assert_eq!(
        answers.map(|answer| answer.map(|verdict| verdict.used)),
        used.map(Ok),
        "{name}"
    );
}

/// Requests of one call, of which some cannot be decided.
fn requests_of(name: &str, algorithm: Algorithm) -> [Checks; 6] {
    [
        checks_of(&[
            (name, check_of(algorithm, 1)),
            ("bad", check_of(algorithm, 1)),
        ]),
        all_or_none(&[
            (name, check_of(algorithm, 1)),
            (name, check_of(algorithm, 9)),
            ("other", check_of(algorithm, 1)),
        ]),
        checks_of(&[(name, check_of(algorithm, 1))]),
        all_or_none(&[
            (name, check_of(algorithm, 1)),
            ("other", check_of(algorithm, 2)),
        ]),
        all_or_none(&[
            (name, check_of(algorithm, 1)),
            ("bad", check_of(algorithm, 0)),
        ]),
        checks_of(&[(name, check_of(algorithm, 0))]),
    ]
}

#[tokio::test]
async fn requests_in_one_call_see_each_other_and_fail_separately() {
    let server = RedisServer::start();
    for (name, algorithm) in each_algorithm(4) {
        let requests = requests_of(name, algorithm);
        let bad = match &algorithm {
            Algorithm::FixedWindow(fixed) => format!("bad:{}", fixed.number(CALLED)),
            _ => "bad".to_owned(),
        };
        server.run::<()>(&["SADD", &bad, "x"]);
        let late = [0, 0, 2, 0, 0, 0];
        let all = call(
            requests
                .iter()
                .zip(late)
                .map(|(checks, late)| (checks, in_time(late))),
        );
        let reply = all
            .command(ScriptRef::ByText)
            .query(&mut server.connection())
            .expect("Redis is well");
        let mut answers = vec![Err(StoreError::Unknown("unanswered")); all.len()];
        assert_eq!(all.read(&reply, &mut answers), Ok(CALLED), "{name}");
        let seen: Vec<_> = answers
            .into_iter()
            .map(|answer| answer.map(|verdict| (verdict.allowed, verdict.used)))
            .collect();
        let wrong = Err(StoreError::Data("wrongtype"));
        let expected = [
            Ok((true, 1)),
            wrong,
            // Refused: its own hits are not counted, and those of the request before it stay.
            Ok((true, 1)),
            Ok((false, 2)),
            Ok((true, 0)),
            Err(StoreError::NotExecuted("late")),
            Ok((true, 2)),
            Ok((true, 2)),
            wrong,
            wrong,
            Ok((true, 2)),
        ];
        assert_eq!(seen, expected, "{name}");
        // The keys of the refused request are written all the same, because an earlier request
        // changed them.
        assert_eq!(server.keys().len(), 3, "{name}: {:?}", server.keys());
        assert_used(&server, name, algorithm, [2, 2]);
        server.flush();
        // Two requests. The second one changes nothing, and must not undo the change of the first.
        let pair = call(requests[..2].iter().map(|checks| (checks, in_time(0))));
        let reply = pair
            .command(ScriptRef::ByText)
            .query::<Value>(&mut server.connection());
        let is_whole = |reply| matches!(reply, Value::Array(values) if values.len() == 3);
        assert!(reply.is_ok_and(is_whole), "{name}");
        assert_used(&server, name, algorithm, [1, 0]);
        server.assert_every_key_expires();
        server.flush();
    }
}

#[tokio::test]
async fn a_key_lives_until_its_state_has_recovered_and_its_ttl_is_set_ahead() {
    let server = RedisServer::start();
    let redis = connect(server.options());
    for kind in [
        AlgorithmKind::TokenBucket,
        AlgorithmKind::SlidingWindowCounter,
        AlgorithmKind::LeakyBucket,
        AlgorithmKind::SlidingWindowLog,
        AlgorithmKind::SlidingWindowBuckets,
    ] {
        let rate = Rate {
            requests_per_unit: 100,
            unit: Unit::Minute,
            unit_multiplier: 1,
        };
        let max_delay = (kind == AlgorithmKind::LeakyBucket).then(|| Span::from_secs(3_600));
        let options = algorithm::Options {
            kind,
            max_delay,
            ..Default::default()
        };
        let algorithm = Algorithm::try_new(&rate, &options).expect("options that belong together");
        for hit in 0..60 {
            let verdict = decide(&redis, checks_of(&[("kept", check_of(algorithm, 1))]))
                .await
                .verdicts()[0]
                .expect("Redis is well");
            assert!(verdict.allowed, "{kind:?}");
            let lives_for_ms: u64 = server.run(&["PTTL", "kept"]);
            if hit == 0
                && matches!(
                    kind,
                    AlgorithmKind::TokenBucket | AlgorithmKind::LeakyBucket
                )
            {
                // Recovered after 600 ms; five seconds of grace and ten seconds ahead.
                assert!(
                    lives_for_ms < 16_000,
                    "{kind:?}: {lives_for_ms} ms after a single hit"
                );
            }
            // Some of the five seconds of grace has passed.
            assert!(
                lives_for_ms > verdict.reset_after.micros() / 1_000 + 2_000,
                "{kind:?}: {lives_for_ms} ms, {verdict:?}"
            );
        }
        if matches!(
            kind,
            AlgorithmKind::TokenBucket
                | AlgorithmKind::SlidingWindowCounter
                | AlgorithmKind::LeakyBucket
        ) {
            // Some of these calls are Weir's check of its own rights, and its marker.
            assert!(
                server.calls("set") <= 5,
                "{kind:?}: {} expiries for 60 hits",
                server.calls("set")
            );
        }
        server.flush();
        server.run::<()>(&["CONFIG", "RESETSTAT"]);
    }
}
