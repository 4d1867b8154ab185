//! How limits count where their files say nothing: `STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT` and
//! `USE_CALENDAR_MONTH_RATE_LIMIT`, with both stores.

use std::time::{SystemTime, UNIX_EPOCH};

use time::{Month, OffsetDateTime};
use weir::core::proto::rate_limit_descriptor::RateLimitOverride;
use weir::core::proto::rate_limit_response::Code;
use weir::core::proto::{RateLimitDescriptor, RateLimitResponse};
use weir::core::time::Unit;

use crate::support::{Client, RedisServer, Weir, descriptor, descriptor_with_hits, request};

async fn ask(
    client: &mut Client,
    domain: &str,
    descriptors: Vec<RateLimitDescriptor>,
) -> RateLimitResponse {
    client
        .should_rate_limit(request(domain, descriptors))
        .await
        .expect("an answer")
        .into_inner()
}

/// Two domains with the same limits, of which one declares how it commits.
const COMMITS: &[(&str, &str)] = &[
    (
        "none.yaml",
        "
domain: says_nothing
descriptors:
  - { key: wide, rate_limit: { unit: year, requests_per_unit: 10 } }
  - { key: narrow, rate_limit: { unit: year, requests_per_unit: 1 } }
",
    ),
    (
        "each.yaml",
        "
domain: each
commit: each
descriptors:
  - { key: wide, rate_limit: { unit: year, requests_per_unit: 10 } }
  - { key: narrow, rate_limit: { unit: year, requests_per_unit: 1 } }
",
    ),
];

/// What the wide limit of a domain has left after five requests, of which the narrow limit refuses
/// four.
async fn left_after_refusals(client: &mut Client, domain: &str) -> u32 {
    let both = || vec![descriptor(&[("wide", "a")]), descriptor(&[("narrow", "a")])];
    let mut codes = Vec::new();
    for _ in 0..5 {
        codes.push(ask(client, domain, both()).await.overall_code());
    }
    assert_eq!(
        codes,
        [
            Code::Ok,
            Code::OverLimit,
            Code::OverLimit,
            Code::OverLimit,
            Code::OverLimit
        ],
        "{domain}"
    );
    ask(
        client,
        domain,
        vec![descriptor_with_hits(&[("wide", "a")], 0)],
    )
    .await
    .statuses[0]
        .limit_remaining
}

#[tokio::test]
async fn with_stop_increment_a_refused_request_counts_nowhere() {
    const STOP: (&str, &str) = ("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", "true");
    let redis = RedisServer::start();
    let (url, long) = (redis.url(), ("STORE_TIMEOUT", "5s"));
    let on_redis = [("REDIS_URL", &*url), long];
    // Refusals from the denial cache count nowhere either, whether it is on or off.
    let without_cache = [
        ("REDIS_URL", &*url),
        long,
        ("LOCAL_CACHE_SIZE_IN_BYTES", "0"),
    ];
    for environment in [&[][..], &on_redis, &without_cache] {
        redis.flush();
        let weir = Weir::start(COMMITS, &[environment, &[STOP]].concat());
        let client = &mut weir.client().await;
        assert_eq!(
            left_after_refusals(client, "says_nothing").await,
            9,
            "{environment:?}"
        );
        assert_eq!(
            left_after_refusals(client, "each").await,
            5,
            "a domain that declares it keeps it: {environment:?}"
        );
        assert!(
            !weir.logs().iter().any(|line| line.contains(STOP.0)),
            "it costs nothing that has to be known"
        );
        drop(weir);
        redis.flush();
        let weir = Weir::start(COMMITS, environment);
        assert_eq!(
            left_after_refusals(&mut weir.client().await, "says_nothing").await,
            5,
            "without the setting: {environment:?}"
        );
    }
}

/// What the denial cache knows of one limit refuses the request. The others are looked at, as in
/// envoyproxy/ratelimit.
#[tokio::test]
async fn with_stop_increment_the_denial_cache_refuses_requests_of_several_limits() {
    let redis = RedisServer::start();
    let environment = [
        ("REDIS_URL", &*redis.url()),
        ("STORE_TIMEOUT", "5s"),
        ("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", "true"),
    ];
    let weir = Weir::start(COMMITS, &environment);
    let client = &mut weir.client().await;
    let both = || vec![descriptor(&[("wide", "a")]), descriptor(&[("narrow", "a")])];
    let shown = |answer: RateLimitResponse| {
        answer
            .statuses
            .into_iter()
            .map(|status| (status.code(), status.limit_remaining))
            .collect::<Vec<_>>()
    };
    assert_eq!(
        shown(ask(client, "says_nothing", both()).await),
        [(Code::Ok, 9), (Code::Ok, 0)]
    );
    let cached = |key: &str| {
        weir.metric(&format!(
            "weir_denial_cache_refused_hits_total{{domain=\"says_nothing\",key1=\"{key}\"}}"
        ))
    };
    for _ in 0..5 {
        assert_eq!(
            shown(ask(client, "says_nothing", both()).await),
            [(Code::Ok, 9), (Code::OverLimit, 0)]
        );
    }
    assert!(
        cached("narrow") >= Some(3.0),
        "an entry lives for a second: {:?}",
        cached("narrow")
    );
    assert_eq!(cached("wide").unwrap_or_default(), 0.0);
    // A limit that may be over too is decided by the store, and known from then on.
    assert_eq!(
        shown(
            ask(
                client,
                "says_nothing",
                vec![descriptor_with_hits(&[("wide", "a")], 9)]
            )
            .await
        ),
        [(Code::Ok, 0)]
    );
    for _ in 0..5 {
        assert_eq!(
            shown(ask(client, "says_nothing", both()).await),
            [(Code::OverLimit, 0), (Code::OverLimit, 0)]
        );
    }
    assert!(cached("wide") >= Some(3.0), "{:?}", cached("wide"));
}

/// All limits of a request are counted in one step, which one Redis has to do.
#[tokio::test]
async fn with_stop_increment_the_main_redis_counts_limits_per_second() {
    let [main, second] = [RedisServer::start(), RedisServer::start()];
    let limits = "domain: d\ndescriptors: [{ key: a, rate_limit: { unit: second, unit_multiplier: \
        100000, requests_per_unit: 1 } }]\n";
    let start = |stop: &str| {
        let (main, second) = (main.url(), second.url());
        let environment = [
            ("REDIS_URL", &*main),
            ("REDIS_PERSECOND", "1"),
            ("REDIS_PERSECOND_URL", &second),
            ("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", stop),
        ];
        Weir::start(
            &[("a.yaml", limits)],
            &[&environment[..], &[("STORE_TIMEOUT", "5s")]].concat(),
        )
    };
    for (stop, counted_in, empty) in [("T", &main, &second), ("F", &second, &main)] {
        main.flush();
        second.flush();
        let weir = start(stop);
        ask(
            &mut weir.client().await,
            "d",
            vec![descriptor(&[("a", "x")])],
        )
        .await;
        assert_eq!(
            (counted_in.keys().len(), empty.keys().len()),
            (1, 0),
            "{stop}"
        );
        let told = weir
            .logs()
            .iter()
            .any(|line| line.contains("not in that of REDIS_PERSECOND_URL"));
        assert_eq!(told, stop == "T", "the cost is in the log");
    }
}

const MONTHS: &[(&str, &str)] = &[(
    "months.yaml",
    "
domain: months
descriptors:
  - { key: month, rate_limit: { unit: month, requests_per_unit: 5 } }
  - { key: quarter, rate_limit: { unit: month, unit_multiplier: 3, requests_per_unit: 5 } }
  - { key: scripted, rate_limit: { unit: month, requests_per_unit: 2, count_denied: false } }
  - { key: year, rate_limit: { unit: year, requests_per_unit: 5 } }
",
)];

/// The number of the current month since January 1970 and the seconds until it ends, by another
/// implementation of the calendar.
fn this_month() -> (u64, u64) {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("after 1970")
        .as_secs();
    let today = OffsetDateTime::from_unix_timestamp(i64::try_from(now).expect("a time"))
        .expect("a time")
        .date();
    let next = match today.month() {
        Month::December => today
            .replace_year(today.year() + 1)
            .and_then(|day| day.replace_day(1))
            .and_then(|day| day.replace_month(Month::January)),
        month => today
            .replace_day(1)
            .and_then(|day| day.replace_month(month.next())),
    };
    let ends = next
        .expect("a first day")
        .midnight()
        .assume_utc()
        .unix_timestamp();
    let number = u64::try_from(today.year() - 1970).expect("after 1970") * 12
        + u64::from(u8::from(today.month()))
        - 1;
    (number, u64::try_from(ends).expect("after 1970") - now)
}

fn reset_secs(response: &RateLimitResponse) -> u64 {
    let reset = response.statuses[0].duration_until_reset.expect("a reset");
    u64::try_from(reset.seconds).expect("not negative")
}

/// Keys of months and quarters, which live until their window ends.
fn assert_keys_are_of_months(redis: &RedisServer, month: u64, left: u64) {
    let key = |name: &str, of: &str| format!("w1{{months|{name}=x}}{of}");
    let of_month = [
        key("month", &format!("fwm1:{month}")),
        key("scripted", &format!("fwm1:{month}")),
        key("own", &format!("fwm1:{month}")),
    ];
    let keys = redis.keys();
    assert!(
        of_month
            .iter()
            .chain(&[key("quarter", &format!("fwm3:{}", month / 3))])
            .all(|key| keys.contains(key)),
        "{of_month:?} in {keys:?}"
    );
    for key in &of_month {
        let ttl: u64 = redis.run(&["TTL", key]);
        assert!(
            (left.saturating_sub(20)..=left + 6).contains(&ttl),
            "{key} lives for {ttl} s, and the month for {left} s"
        );
    }
}

fn now_secs() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("after 1970")
        .as_secs()
}

/// Limits by the month: of the file, by script, and of a request.
async fn assert_reset_at_the_end_of_the_month(client: &mut Client, left: u64) {
    let own = RateLimitOverride {
        requests_per_unit: 5,
        unit: Unit::Month.number(),
        unit_multiplier: None,
    };
    let own = RateLimitDescriptor {
        limit: Some(own),
        ..descriptor(&[("own", "x")])
    };
    for asked in [
        descriptor(&[("month", "x")]),
        descriptor(&[("scripted", "x")]),
        own,
    ] {
        let response = ask(client, "months", vec![asked.clone()]).await;
        let status = &response.statuses[0];
        assert_eq!(
            (
                status.code(),
                status.current_limit.as_ref().map(|limit| limit.unit)
            ),
            (Code::Ok, Some(Unit::Month.number()))
        );
        // Some seconds pass between the two readings of the clock.
        assert!(
            reset_secs(&response).abs_diff(left) < 20,
            "{asked:?}: {} and {left}",
            reset_secs(&response)
        );
    }
}

#[tokio::test]
async fn months_follow_the_calendar_in_both_stores() {
    let redis = RedisServer::start();
    let (url, calendar) = (redis.url(), ("USE_CALENDAR_MONTH_RATE_LIMIT", "true"));
    let on_redis = [
        calendar,
        ("REDIS_URL", &*url),
        ("STORE_TIMEOUT", "5s"),
        ("EXPIRATION_JITTER_MAX_SECONDS", "0"),
    ];
    let (month, left) = this_month();
    for environment in [&[calendar][..], &on_redis] {
        let weir = Weir::start(MONTHS, environment);
        let client = &mut weir.client().await;
        assert_reset_at_the_end_of_the_month(client, left).await;
        let quarter = ask(client, "months", vec![descriptor(&[("quarter", "x")])]).await;
        assert!(
            (left..=left + 62 * 86_400).contains(&(reset_secs(&quarter) + 20)),
            "{quarter:?}"
        );
        let year = ask(client, "months", vec![descriptor(&[("year", "x")])]).await;
        let now = now_secs();
        let year_secs = 365 * 86_400;
        assert!(
            reset_secs(&year).abs_diff(year_secs - now % year_secs) < 20,
            "a year is 365 days, as in the reference: {year:?}"
        );
        let mut codes = Vec::new();
        for _ in 0..2 {
            codes.push(
                ask(client, "months", vec![descriptor(&[("scripted", "x")])])
                    .await
                    .overall_code(),
            );
        }
        assert_eq!(
            codes,
            [Code::Ok, Code::OverLimit],
            "a refused hit is not counted"
        );
    }
    assert_keys_are_of_months(&redis, month, left);
    // A replica without the setting counts apart, in windows of 30 days.
    let weir = Weir::start(MONTHS, &on_redis[1..]);
    let other = ask(
        &mut weir.client().await,
        "months",
        vec![descriptor(&[("month", "x")])],
    )
    .await;
    assert_eq!(other.statuses[0].limit_remaining, 4);
    let month_secs = 30 * 86_400;
    let window = now_secs() / month_secs;
    let key = format!("w1{{months|month=x}}fw{month_secs}:{window}");
    assert!(redis.keys().contains(&key), "{:?}", redis.keys());
    redis.assert_every_key_expires();
}
