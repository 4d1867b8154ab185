//! The last closed period of a limit: the pure step and the script against a model, and through
//! real processes in each store.

use std::cell::Cell;
use std::panic::AssertUnwindSafe;
use std::process::{Command, Output};
use std::time::{Duration, SystemTime};

use futures_util::FutureExt as _;
use serde_json::{Value, json};
use weir::core::algorithm::{Algorithm, AlgorithmKind, Options};
use weir::core::time::{Calendar, Micros, Period, Rate, Span, Unit, Zone};
use weir::core::usage::{Hits, Record};
use weir::limits::plan::{Check, CheckIndex, Checks, Modes};
use weir::store::redis::ScriptRef;

use super::service::api;
use super::tracking;
use crate::operators::admin::schema::Answers;
use crate::redis::{When, call};
use crate::support::wait::eventually_async;
use crate::support::{RedisServer, Weir, descriptor_with_hits, http_client, request};

/// 2027-03-27 00:00 UTC: the next day has 23 hours in Berlin, and the next month 30 days.
const START: u64 = 1_806_105_600_000_000;

fn periods() -> [(Period, Span); 3] {
    let berlin = Zone::named("Europe/Berlin").expect("a zone");
    let calendar = |unit| Calendar::new(unit, berlin, jiff::civil::Weekday::Monday, None);
    let calendar = |unit| Period::of_calendar(calendar(unit).expect("a calendar"));
    let days = |days: u64| Span::from_secs(days * 86_400);
    [
        (Period::Even(Span::from_secs(60)), Span::from_secs(60)),
        (calendar(Unit::Day), days(1)),
        (calendar(Unit::Month), days(30)),
    ]
}

fn checks(key: &str, hits: i64, period: Period) -> Checks {
    let rate = Rate {
        requests_per_unit: 1_000_000,
        unit: Unit::Minute,
        unit_multiplier: 1,
    };
    let options = Options {
        kind: AlgorithmKind::TokenBucket,
        ..Options::default()
    };
    let algorithm = Algorithm::try_new(&rate, &options).expect("an algorithm");
    let checks = Checks::of([(
        key.as_bytes(),
        Check::new(algorithm, hits, Modes::default()),
    )]);
    checks.tracked(CheckIndex(0), (tracking(10, 3), Some(period)))
}

/// The last period of a record at `now`.
fn last(record: &Record, period: Period, now: Micros) -> Option<[u64; 2]> {
    let number = period.number_at(now).checked_sub(1)?;
    let hits = record.hits_of(period.window(number))?;
    Some([hits.asked, hits.given_back])
}

/// Random hits and refunds, with gaps of up to three periods; each reading by the time of the last
/// hits and later. All hits at the instants of a period count in it, and no later ones.
#[test]
fn the_step_and_the_script_keep_the_hits_of_each_closed_period() {
    let server = RedisServer::start();
    let mut connection = server.connection();
    let seed = fastrand::u64(..);
    let mut random = fastrand::Rng::with_seed(seed);
    for world in 0..60 {
        let (period, length) = periods()[world % 3];
        let key = format!("w1{{d|k={world}}}");
        let (mut now, mut events, mut pure) = (START, Vec::new(), None::<Record>);
        for _ in 0..25 {
            let most = [5, 30][random.usize(0..2)];
            now += length.micros() * random.u64(0..=most) / 10;
            let hits = random.i64(-3..9);
            let at = Micros(now);
            let checks = checks(&format!("{key}tb60"), hits, period);
            let deadline = Micros(u64::MAX);
            let when = When {
                now: at,
                deadline,
                max_wait: Span::ZERO,
            };
            let command = call([(&checks, when)]).command(ScriptRef::ByText);
            command.exec(&mut connection).expect("Redis is well");
            if hits == 0 {
                continue;
            }
            events.push((at, hits));
            let (settings, of) = (tracking(10, 3).settings, Hits::of_check(hits, true));
            let none = || Record::step(None, &settings, at, Hits::default());
            let record = pure.get_or_insert_with(none);
            record.add(&settings, Some(period), at, of);
            let text = |tag: &str| server.run::<Vec<u8>>(&["GET", &format!("{key}{tag}")]);
            let stored = Record::from_stored(&text("us")).expect("a record");
            let stored = stored.with_snapshots(&text("up"));
            for later in [0, 5, 10, 20, 31] {
                let now = Micros(now + length.micros() * later / 10);
                let window = period.window(period.number_at(now) - 1);
                let of_it = |(at, _): &&(Micros, i64)| window.begin <= *at && *at < window.end;
                let sum = |sign: i64| {
                    let all = events.iter().filter(of_it).map(|(_, hits)| sign * hits);
                    all.filter(|&hits| hits > 0).sum::<i64>().cast_unsigned()
                };
                let expected = Some([sum(1), sum(-1)]);
                for (store, record) in [("pure", &*record), ("Redis", &stored)] {
                    let found = last(record, period, now);
                    assert_eq!(
                        found, expected,
                        "{store}, seed {seed}: {period:?} {events:?}"
                    );
                }
            }
        }
    }
    server.assert_every_key_expires();
}

/// A record of a version without snapshots, and one of another unit: not known, never wrong.
#[test]
fn a_period_whose_begin_was_not_seen_is_not_known() {
    let [(minute, _), (day, _), _] = periods();
    let settings = tracking(10, 3).settings;
    let at = |seconds: u64| Micros(START + seconds * 1_000_000);
    let one = Hits::of_check(1, true);
    let mut record = Record::step(None, &settings, at(0), one);
    record.add(&settings, None, at(70), one);
    assert_eq!(last(&record, minute, at(80)), None, "no snapshot at 60 s");
    assert_eq!(
        last(&record, minute, at(130)),
        None,
        "that is the begin of the last period"
    );
    assert_eq!(
        last(&record, minute, at(190)),
        Some([0, 0]),
        "and then it is known"
    );
    record.add(&settings, Some(minute), at(130), one);
    record.add(&settings, Some(minute), at(190), one);
    assert_eq!(last(&record, minute, at(200)), Some([1, 0]));
    assert_eq!(
        last(&record, day, at(86_400 + 3_600)),
        Some([4, 0]),
        "the unit is a day now"
    );
}

/// The script's clock is past the end of the period of the caller's estimate.
#[tokio::test]
async fn a_late_estimate_of_the_clock_turns_the_period_all_the_same() {
    in_turns(2, async |turns| assert_late_estimate(turns)).await;
}

fn assert_late_estimate(turns: &Turns) {
    let server = RedisServer::start();
    let mut connection = server.connection();
    let period = Period::Even(Span::from_secs(turns.seconds));
    for hits in [3, 4] {
        turns.next();
        let checks = checks("w1{d|k=v}tb60", hits, period);
        let now = Micros(micros() - 700_000);
        let when = When {
            now,
            deadline: Micros(now.0 + 5_000_000),
            max_wait: Span::ZERO,
        };
        let mut command = call([(&checks, when)]);
        command.is_time_given = false;
        let command = command.command(ScriptRef::ByText);
        command.exec(&mut connection).expect("Redis is well");
    }
    let text = |tag: &str| server.run::<Vec<u8>>(&["GET", &format!("w1{{d|k=v}}{tag}")]);
    let record = Record::from_stored(&text("us"))
        .expect("a record")
        .with_snapshots(&text("up"));
    assert_eq!(last(&record, period, Micros(micros())), Some([3, 0]));
    let later = Micros(micros() + 1_000_000 * turns.seconds);
    assert_eq!(last(&record, period, later), Some([4, 0]));
}

fn micros() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.expect("after 1970")
        .as_micros()
        .try_into()
        .expect("in range")
}

/// Periods of a real clock, in which the parts of a test happen.
struct Turns {
    /// Length of a period.
    seconds: u64,
    /// End of the period of the last part, in microseconds since 1970.
    end: Cell<u64>,
}

impl Turns {
    fn is_in_time(&self) -> bool {
        micros() < self.end.get()
    }

    /// Waits for the begin of a period. The last part has ended within its own.
    fn next(&self) {
        assert!(self.is_in_time(), "a part took longer than a period");
        let window = self.seconds * 1_000_000;
        let begin = (micros() / window + 1) * window;
        std::thread::sleep(Duration::from_micros(begin + 20_000 - micros()));
        self.end.set(begin + window);
    }
}

/// Runs a test with short periods. If it fails after the end of a period, the machine was too busy
/// for them, and periods of twice the length follow.
async fn in_turns(seconds: u64, test: impl AsyncFn(&Turns)) {
    for seconds in [1, 2, 4, 8].map(|times| times * seconds) {
        let end = Cell::new(u64::MAX);
        let turns = Turns { seconds, end };
        match AssertUnwindSafe(test(&turns)).catch_unwind().await {
            Err(_) if !turns.is_in_time() => println!("{seconds} s are too short"),
            Err(panic) => std::panic::resume_unwind(panic),
            Ok(()) => return,
        }
    }
    panic!("a part of the test takes longer than the longest period");
}

/// Limits with periods of four seconds.
const LIMITS: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: { unit: second, unit_multiplier: 4, requests_per_unit: 100, scale: 10, \
        track_usage: true, count_denied: false, trial: { requests_per_unit: 50 } }
  - key: bucket
    rate_limit: { unit: second, unit_multiplier: 4, requests_per_unit: 8, burst: 100, \
        algorithm: token_bucket, track_usage: true }
  - key: tenant
    rate_limit: { unit: second, unit_multiplier: 4, requests_per_unit: 100, track_usage: true, \
        reservations: { ttl: 1h } }
  - key: small
    rate_limit: { unit: second, unit_multiplier: 4, requests_per_unit: 100, track_usage: true, \
        usage_subjects: 1 }
  - key: short
    rate_limit: { unit: day, requests_per_unit: 100, track_usage: true, usage_expiry: 26h }
  - key: path
    descriptors:
      - key: id
        rate_limit: { algorithm: concurrency, requests_per_unit: 2, max_duration: 60s, \
            track_usage: true }
";

fn start(turns: &Turns, environment: &[(&str, &str)]) -> Weir {
    let multiplier = format!("unit_multiplier: {}", turns.seconds);
    let limits = LIMITS.replace("unit_multiplier: 4", &multiplier);
    Weir::start(&[("limits.yaml", &limits)], environment)
}

async fn hit(weir: &Weir, entries: &[(&str, &str)], hits: i64) {
    let asked = request("shop", vec![descriptor_with_hits(entries, hits)]);
    weir.client()
        .await
        .should_rate_limit(asked)
        .await
        .expect("an answer");
}

fn list(weir: &Weir, query: &str) -> Value {
    let (status, answer) = api(weir, &format!("usage/top?period=last&{query}"));
    assert_eq!(status, 200, "{query}: {answer}");
    answer
}

/// Each subject of a list: its value, then used units, used hits, requested and refused ones.
fn rows(list: &Value) -> Vec<(String, [f64; 4])> {
    let row = |one: &Value| {
        let number = |name: &str| one["last_period"][name].as_f64().expect("a number");
        let value = one["entries"][0]["value"].as_str().expect("a value");
        (
            value.to_owned(),
            ["used_units", "used", "hits", "refused"].map(number),
        )
    };
    list["subjects"]
        .as_array()
        .expect("a list")
        .iter()
        .map(row)
        .collect()
}

fn command(weirs: &[&Weir], arguments: &[&str]) -> Output {
    let admin: Vec<_> = weirs
        .iter()
        .map(|weir| weir.listener("debug").to_string())
        .collect();
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    let admin = command.env_clear().env("WEIR_ADMIN", admin.join(","));
    admin.args(arguments).output().expect("the binary runs")
}

fn output(weirs: &[&Weir], arguments: &[&str]) -> String {
    let output = command(weirs, arguments);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {error}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// Three periods of two subjects, of which one comes in the first only.
async fn answers(turns: &Turns, weir: &Weir) {
    let expected = |all: &[(&str, [f64; 4])]| -> Vec<_> {
        all.iter()
            .map(|(user, numbers)| ((*user).to_owned(), *numbers))
            .collect()
    };
    turns.next();
    for (user, hits) in [("a", 5), ("b, \"c\"", 990), ("a", -1), ("b, \"c\"", 20)] {
        hit(weir, &[("user", user)], hits).await;
    }
    hit(weir, &[("bucket", "b")], 12).await;
    hit(weir, &[("tenant", "t"), ("reserve", "1")], 60).await;
    hit(weir, &[("small", "x")], 1).await;
    turns.next();
    // The index may be a second late; nothing of the new period has come.
    let first = expected(&[
        ("b, \"c\"", [99.0, 990.0, 1_010.0, 20.0]),
        ("a", [0.4, 4.0, 5.0, 0.0]),
    ]);
    let of_user = || list(weir, "limit=shop.user");
    let found = eventually_async(|| (rows(&of_user()) == first).then_some(())).await;
    assert!(found.is_some(), "{}", of_user());
    hit(weir, &[("user", "a")], 7).await;
    hit(weir, &[("tenant", "t"), ("settle", "1")], 30).await;
    let answer = of_user();
    assert_eq!(
        rows(&answer),
        first,
        "a later hit changes nothing: {answer}"
    );
    assert_eq!(
        [&answer["by"], &answer["total"]],
        [&json!("share"), &json!(2)]
    );
    let b = &answer["subjects"][0]["last_period"];
    assert_eq!(
        [&b["limit_units"], &b["share_percent"]],
        [&json!(100), &json!(99.0)],
        "{b}"
    );
    assert_one_subject(turns, weir);
    assert_commands(weir);
    assert_incomplete_lists(weir);
    turns.next();
    assert_eq!(
        rows(&of_user()),
        expected(&[("a", [0.7, 7.0, 7.0, 0.0])]),
        "b came before"
    );
    let (_, b) = api(
        weir,
        "usage?period=last&subject=shop%7Cuser%3Db%2C%20%22c%22",
    );
    assert_eq!(b["last_period"]["hits"], 0, "two periods ago: {b}");
    let tenant = list(weir, "limit=shop.tenant");
    let settled = expected(&[("t", [30.0, 30.0, 30.0, 0.0])]);
    assert_eq!(rows(&tenant), settled, "a cost counts when it is settled");
}

fn assert_one_subject(turns: &Turns, weir: &Weir) {
    let (_, a) = api(weir, "usage?period=last&domain=shop&entry=user%3Da");
    let last = &a["last_period"];
    assert_eq!(
        [&last["hits"], &last["given_back"], &last["used_units"]],
        [&json!(5), &json!(1), &json!(0.4)]
    );
    let time = |name: &str| {
        last[name]
            .as_str()
            .expect("a time")
            .parse::<jiff::Timestamp>()
    };
    let [begin, end] = ["begin", "end"].map(|name| time(name).expect("RFC 3339").as_second());
    let seconds = turns.seconds.cast_signed();
    assert!(end - begin == seconds && begin % seconds == 0, "{last}");
    let (_, current) = api(weir, "usage?period=current&domain=shop&entry=user%3Da");
    assert_eq!(current["last_period"], Value::Null);
    let (_, bucket) = api(weir, "usage?period=last&domain=shop&entry=bucket%3Db");
    let last = &bucket["last_period"];
    assert_eq!(
        [&last["used_units"], &last["limit"]],
        [&json!(12), &json!(8)],
        "not the burst"
    );
    let trial = list(weir, "limit=shop.user&trial=true&count=1");
    assert_eq!(rows(&trial)[0].1, [2.0, 20.0, 1_010.0, 990.0], "{trial}");
    let tenant = list(weir, "limit=shop.tenant");
    assert_eq!(rows(&tenant), [], "held hits are in no total: {tenant}");
    for (call, status, error) in [
        (
            "usage/top?period=next",
            400,
            "period: write current or last",
        ),
        (
            "usage/top?period=last&limit=shop.path.id",
            400,
            "requests in flight and has no period",
        ),
    ] {
        let (found, answer) = api(weir, call);
        let text = answer["error"].as_str().unwrap_or_default();
        assert!(found == status && text.contains(error), "{call}: {answer}");
    }
    let mut described = Answers::default();
    for call in [
        "usage/top?period=last&limit=shop.user",
        "usage?period=last&subject=shop%7Cuser%3Da",
    ] {
        let call = format!("/api/v1/{call}");
        described.add(
            "get",
            &call,
            &http_client::get(weir.listener("debug"), &call),
        );
    }
    described.validate(&http_client::get(weir.listener("debug"), "/api/v1/openapi.json").body);
}

fn assert_commands(weir: &Weir) {
    let of_user = ["usage", "--limit", "shop.user", "--period", "last"];
    let text = output(&[weir], &of_user);
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(
        lines[0],
        "2 of 2 subjects of shop.user in the last period, by share"
    );
    let words: Vec<_> = lines[3].split_whitespace().collect();
    assert_eq!(words[..5], ["0.4", "100", "0.4", "%", "5"], "{text}");
    let csv = output(
        &[weir],
        &[&of_user[..], &["--by", "share", "--format", "csv"]].concat(),
    );
    let mut reader = csv::Reader::from_reader(csv.as_bytes());
    let rows: Vec<csv::StringRecord> = reader.records().map(|row| row.expect("a row")).collect();
    assert_eq!(&rows[0][0], "shop|user=b,%20\"c\"", "{csv}");
    assert_eq!(
        rows[0].iter().skip(4).collect::<Vec<_>>(),
        ["990", "1000", "99", "100", "99.0", "1010", "20", "0"]
    );
    assert_eq!(
        [&rows[0][1], &rows[1][1], &rows[1][4], &rows[1][6]],
        ["'user=b, \"c\"'", "user=a", "4", "0.4"]
    );
    let text = output(
        &[weir],
        &["usage", "-d", "shop", "user=a", "--period", "last"],
    );
    assert!(
        text.contains("  last        0.4 of 100 used (0.4 %), 20"),
        "{text}"
    );
}

/// Lists that may not have all subjects: of a full index, and of a period that is kept too short.
fn assert_incomplete_lists(weir: &Weir) {
    assert_eq!(list(weir, "limit=shop.small")["complete"], false);
    let of_small = [
        "usage",
        "--limit",
        "shop.small",
        "--period",
        "last",
        "--format",
        "csv",
    ];
    let small = command(&[weir], &of_small);
    let error = String::from_utf8_lossy(&small.stderr);
    assert!(
        !small.status.success() && error.contains("may not have all subjects"),
        "{error}"
    );
    assert!(String::from_utf8_lossy(&small.stdout).contains("shop|small=x,small=x,"));
}

#[tokio::test]
async fn in_memory() {
    in_turns(4, assert_in_memory).await;
}

async fn assert_in_memory(turns: &Turns) {
    let weir = start(turns, &[]);
    answers(turns, &weir).await;
    hit(&weir, &[("short", "x")], 1).await;
    let short = list(&weir, "limit=shop.short");
    assert_eq!(
        [&short["total"], &short["complete"]],
        [&json!(0), &json!(false)],
        "{short}"
    );
    let user = list(&weir, "limit=shop.user");
    assert_eq!(
        user["complete"], true,
        "the period began after the process: {user}"
    );
}

#[tokio::test]
async fn in_redis_over_two_replicas_and_a_restart() {
    in_turns(4, assert_in_redis).await;
}

async fn assert_in_redis(turns: &Turns) {
    let redis = RedisServer::start();
    let url = redis.url();
    let environment = [
        ("REDIS_URL", &*url),
        ("STORE_TIMEOUT", "5s"),
        ("CACHE_KEY_PREFIX", "p:"),
    ];
    let weir = start(turns, &environment);
    answers(turns, &weir).await;
    turns.next();
    let other = start(turns, &environment);
    for weir in [&weir, &other] {
        hit(weir, &[("user", "a")], 10).await;
    }
    drop(weir);
    turns.next();
    hit(&other, &[("user", "a")], 1).await;
    let answer = list(&other, "limit=shop.user");
    assert_eq!(
        rows(&answer),
        [("a".to_owned(), [2.0, 20.0, 20.0, 0.0])],
        "{answer}"
    );
    assert_eq!(
        answer["complete"], true,
        "a restarted replica knows all: {answer}"
    );
    redis.assert_every_key_expires();
}
