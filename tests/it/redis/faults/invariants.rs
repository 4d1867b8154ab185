//! G13 to G16: any number of hits, any clock, equal decisions in both stores, and a TTL for every
//! key.

use ::weir::core::algorithm::{self, Algorithm, AlgorithmKind};
use ::weir::core::time::{Micros, Rate, Span, Unit};
use ::weir::core::verdict::{StoreError, Verdict, Wait};
use ::weir::limits::plan::{Check, Checks, Modes};
use ::weir::store::redis::ScriptRef;
use bb8_redis::redis::{Connection, Value};

use super::*;
use crate::redis::{When, call, differential};
use crate::support::load::{BlockingClient, Record};

/// A limit of every algorithm.
fn each_algorithm(extra: &str) -> String {
    let name = |(name, _): &(&'static str, AlgorithmKind)| {
        // A log's limit must not be above 100,000, and this amount is below it.
        format!(
            "  - key: {name}\n    rate_limit: {{ unit: year, requests_per_unit: 1000, algorithm: \
             {name}{extra} }}\n"
        )
    };
    format!(
        "domain: faults\ndescriptors:\n{}",
        AlgorithmKind::OVER_TIME
            .iter()
            .map(name)
            .collect::<String>()
    )
}

/// After a request for more hits than there are numbers for, a limit that counts refused hits is
/// used up, and the other limits do not change.
fn assert_stays_limited(
    goal: &mut Goal,
    key: &str,
    mut call: impl FnMut(&str, &str, u64) -> Record,
) {
    let huge = call(key, "after", u64::MAX);
    let used_up = key == "fixed_window";
    let next = call(key, "after", 1);
    goal.must(
        huge.outcome == Outcome::Over,
        format!("{key}: {:?} for the largest number of hits", huge.outcome),
    );
    goal.must(
        next.is_ok() != used_up,
        format!("{key}: {:?} after the largest number of hits", next.outcome),
    );
    let mut allowed = usize::from(next.is_ok());
    for _ in 0..10 {
        allowed += usize::from(call(key, "after", 100).is_ok());
    }
    goal.must(
        allowed <= 10,
        format!("{key}: allowed {allowed} times 100 of 1000"),
    );
}

/// Numbers of hits at which a type ends.
const CORNERS: [u64; 10] = [
    0,
    1,
    1 << 31,
    1 << 32,
    (1 << 53) - 1,
    1 << 53,
    (1 << 53) + 1,
    (1 << 63) - 1,
    1 << 63,
    u64::MAX,
];

/// Any number of hits gets an answer and no error, no count wraps around, and the key stays limited
/// afterwards.
#[test]
#[ignore = "weekly: tests/faults.sh --all"]
fn g13_any_number_of_hits_is_limited() {
    let (mut goal, pace) = (Goal::of("G13"), Pace::here());
    let redis = RedisServer::start();
    let limits = each_algorithm("");
    let weir = Weir::start(
        &[("limits.yaml", &limits)],
        &[("REDIS_URL", &redis.url()), ("STORE_TIMEOUT", "10s")],
    );
    let mut client = BlockingClient::new(&weir);
    let mixes = pace.pick(1_000, 10_000);
    let seed = fastrand::u64(..);
    let mut random = fastrand::Rng::with_seed(seed);
    let (mut errors, mut wraps, mut huge_allowed) = (0, 0, 0);
    let mut call = |key: &str, value: &str, hits: u64| {
        let mut request = request("faults", vec![descriptor(&[(key, value)])]);
        request.descriptors[0].hits_addend = Some(hits);
        client.call(request)
    };
    for number in 0..mixes {
        let (key, value) = (
            AlgorithmKind::OVER_TIME[number % AlgorithmKind::OVER_TIME.len()].0,
            format!("m{}", random.u8(..20)),
        );
        let hits = if random.u8(..4) == 0 {
            random.u64(..) >> random.u8(..64)
        } else {
            CORNERS[random.usize(..CORNERS.len())]
        };
        let record = call(key, &value, hits);
        errors += usize::from(record.is_failed());
        wraps += usize::from(record.remaining > 1_000);
        huge_allowed += usize::from(record.is_ok() && hits > 1_000);
    }
    goal.must(errors == 0, format!("{errors} errors (seed {seed})"));
    goal.must(
        wraps == 0,
        format!("{wraps} answers with more remaining than the limit (seed {seed})"),
    );
    goal.must(
        huge_allowed == 0,
        format!("{huge_allowed} requests allowed for more hits than the limit (seed {seed})"),
    );
    for (key, _) in AlgorithmKind::OVER_TIME {
        assert_stays_limited(&mut goal, key, &mut call);
    }
    goal.must_expire(&redis);
    goal.end(format!(
        "{mixes} requests of up to 2^64-1 hits on {} algorithms: {errors} errors, {wraps} wrapped, \
         all limited afterwards",
        AlgorithmKind::OVER_TIME.len()
    ));
}

/// Ten requests a minute.
const TEN: Rate = Rate {
    requests_per_unit: 10,
    unit: Unit::Minute,
    unit_multiplier: 1,
};

/// Runs one check in the script at the given time.
fn decide_at(
    redis: &mut Connection,
    key: &str,
    algorithm: Algorithm,
    now: u64,
) -> Result<Verdict, StoreError> {
    let checks = Checks::of([(key.as_bytes(), Check::new(algorithm, 1, Modes::default()))]);
    let call = call([(
        &checks,
        When {
            now: Micros(now),
            deadline: Micros(1 << 52),
            max_wait: Span::ZERO,
        },
    )]);
    let reply: Value = call
        .command(ScriptRef::ByText)
        .query(redis)
        .expect("Redis answers");
    let mut answers = [Err(StoreError::Unknown("unanswered"))];
    call.read(&reply, &mut answers)?;
    answers[0]
}

/// Sends one hit at each of these times. Returns how many are allowed, the longest retry_after, and
/// whether all verdicts are plausible.
fn hits_at(
    redis: &mut Connection,
    key: &str,
    algorithm: Algorithm,
    times: impl Iterator<Item = u64>,
) -> (usize, Span, bool) {
    let (mut allowed, mut wait, mut sane) = (0, Span::ZERO, true);
    for now in times {
        let verdict = decide_at(redis, key, algorithm, now).expect("a verdict");
        sane &= verdict.remaining <= 10;
        match (verdict.allowed, verdict.retry_after) {
            (true, _) => allowed += 1,
            (false, Wait::For(span)) => wait = wait.max(span),
            (false, Wait::Never) => sane = false,
        }
    }
    (allowed, wait, sane)
}

/// Redis's clock jumps an hour back and forth, and jitters: the remaining count is never above the
/// limit, each jump admits at most one more limit, and no wait is longer than two windows.
#[test]
#[ignore = "weekly: tests/faults.sh --all"]
fn g14_redis_s_clock_jumps() {
    const MINUTE: u64 = 60_000_000;
    const NOW: u64 = 1_800_000_030_000_000;
    let mut goal = Goal::of("G14");
    let server = RedisServer::start();
    let mut redis = server.connection();
    let (mut most, mut longest) = (0, Span::ZERO);
    for (name, kind) in AlgorithmKind::OVER_TIME {
        let options = algorithm::Options {
            kind,
            ..Default::default()
        };
        let algorithm = Algorithm::try_new(&TEN, &options).expect("a good limit");
        // A leaky bucket without max_delay allows one hit at a time.
        let full = hits_at(&mut redis, name, algorithm, std::iter::repeat_n(NOW, 20)).0;
        for (jump, at) in [
            ("an hour back", NOW - 60 * MINUTE),
            ("an hour on", NOW + 60 * MINUTE),
            ("and back again", NOW),
        ] {
            let (allowed, wait, sane) =
                hits_at(&mut redis, name, algorithm, std::iter::repeat_n(at, 20));
            goal.must(
                sane,
                format!("{name}, {jump}: more remaining than the limit, or a wait without end"),
            );
            goal.must(
                allowed <= full,
                format!("{name}, {jump}: allowed {allowed}, the limit is {full}"),
            );
            goal.must(
                wait <= Span::from_micros(2 * MINUTE),
                format!("{name}, {jump}: has to wait {wait:?}"),
            );
            (most, longest) = (most.max(allowed), longest.max(wait));
        }
        let mut random = fastrand::Rng::with_seed(14);
        let trembling = (0..200).map(|_| NOW + random.u64(..100_000));
        let (allowed, _, sane) =
            hits_at(&mut redis, &format!("{name}-jitter"), algorithm, trembling);
        goal.must(
            sane && (1..=full).contains(&allowed),
            format!("{name}, ±50 ms: allowed {allowed}, the limit is {full}"),
        );
    }
    goal.must_expire(&server);
    let seconds = longest.micros() / 1_000_000;
    goal.end(format!(
        "±1 h and ±50 ms on {} algorithms: at most {most} of 10 admitted by a jump, longest wait \
         {seconds} s of a window of 60 s",
        AlgorithmKind::OVER_TIME.len()
    ));
}

/// The script in Redis and the pure step, which the memory store uses, agree in every verdict and
/// in every stored state.
#[test]
#[ignore = "weekly: tests/faults.sh --all"]
fn g15_redis_and_memory_agree() {
    let (goal, each) = (Goal::of("G15"), Pace::here().pick(10_000, 250_000));
    // Panics at the first difference.
    let done: usize = AlgorithmKind::OVER_TIME
        .iter()
        .map(|(_, kind)| differential::run_for(&[*kind], each))
        .sum();
    goal.end(format!(
        "{done} operations on {} algorithms: 0 differences",
        AlgorithmKind::OVER_TIME.len()
    ));
}

/// After any request, every key has a TTL and a bounded length. A key that lost its TTL gets one
/// with its next hit.
#[test]
#[ignore = "weekly: tests/faults.sh --all"]
fn g16_every_key_expires() {
    const LONGEST: usize = 512;
    let mut goal = Goal::of("G16");
    let redis = RedisServer::start();
    let limits = each_algorithm("")
        + "  - key: long\n    rate_limit: { unit: second, requests_per_unit: 5 }\n";
    let weir = Weir::start(
        &[("limits.yaml", &limits)],
        &[
            ("REDIS_URL", &redis.url()),
            ("STORE_TIMEOUT", "5s"),
            ("LOCAL_CACHE_SIZE_IN_BYTES", "0"),
        ],
    );
    let mut client = BlockingClient::new(&weir);
    let long = "x".repeat(100_000);
    let mut asked = 0;
    for key in AlgorithmKind::OVER_TIME
        .iter()
        .map(|(name, _)| *name)
        .chain(["long"])
    {
        for value in ["a", "a b{}|%", "\u{1F600}", &long] {
            for (hits, is_negative_hits) in [
                (1, false),
                (2_000, false),
                (0, false),
                (1, true),
                (5, false),
            ] {
                let mut request = request("faults", vec![descriptor(&[(key, value)])]);
                request.descriptors[0].hits_addend = Some(hits);
                request.descriptors[0].is_negative_hits = is_negative_hits;
                goal.must(
                    !client.call(request).is_failed(),
                    format!("{key}: an error"),
                );
                asked += 1;
            }
        }
    }
    goal.must_expire(&redis);
    for key in redis.keys() {
        redis.run::<()>(&["PERSIST", &key]);
    }
    let mut expiring = 0;
    for (name, _) in AlgorithmKind::OVER_TIME {
        client.call(request("faults", vec![descriptor(&[(name, "a")])]));
        for key in redis
            .keys()
            .into_iter()
            .filter(|key| key.contains(&format!("{name}=a}}")))
        {
            expiring += usize::from(redis.run::<i64>(&["PTTL", &key]) > 0);
        }
    }
    let longest = redis
        .keys()
        .iter()
        .map(String::len)
        .max()
        .unwrap_or_default();
    goal.must(longest <= LONGEST, format!("a key of {longest} bytes"));
    goal.must(expiring >= 1, "no key got a new TTL");
    goal.end(format!(
        "{asked} requests: 0 keys without a TTL, longest key {longest} bytes; {expiring} of {} \
         keys that had lost theirs got a new one",
        AlgorithmKind::OVER_TIME.len()
    ));
}
