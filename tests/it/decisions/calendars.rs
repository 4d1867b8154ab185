//! Calendar periods and calendar months: their windows beside those of another implementation, and
//! through the service with both stores.

use std::collections::HashSet;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use time::{Date, OffsetDateTime, UtcOffset};
use weir::core::algorithm::{Algorithm, AlgorithmKind, Options};
use weir::core::proto::rate_limit_response::Code;
use weir::core::proto::{RateLimitDescriptor, RateLimitResponse};
use weir::core::time::{Anchor, Micros, Period, PeriodKind, Rate, Unit, WEEKDAYS, Window, Zone};

use crate::support::{Client, RedisServer, Weir, descriptor, http_client, request, tools};

const MICROS_PER_SECOND: u64 = 1_000_000;

/// Zones that have moved to the other side of the date line.
const SKIPPED_A_DAY: [&str; 3] = ["Pacific/Apia", "Pacific/Kiritimati", "Pacific/Kwajalein"];

/// A line of `tests/vectors/calendars.txt`.
struct Line {
    unit: Unit,
    period: Period,
    first: u64,
    begins: Vec<u64>,
}

impl Line {
    fn parse(line: &str) -> Self {
        let [unit, zone, begin, first, begins] = line.split(" | ").collect::<Vec<_>>()[..] else {
            panic!("{line}: five columns")
        };
        let unit = Unit::named(unit).expect("a unit");
        let mut options = Options {
            period: Some(PeriodKind::Calendar),
            timezone: Zone::named(zone),
            ..Options::default()
        };
        assert!(options.timezone.is_some(), "{line}: no such zone");
        options.week_starts = WEEKDAYS
            .iter()
            .find(|(name, _)| *name == begin)
            .map(|(_, day)| *day);
        options.anchor = begin.parse::<Anchor>().ok();
        assert!(
            begin == "-" || options.week_starts.is_some() || options.anchor.is_some(),
            "{line}: no such begin"
        );
        let rate = Rate {
            requests_per_unit: 1,
            unit,
            unit_multiplier: 1,
        };
        let algorithm = Algorithm::try_new(&rate, &options)
            .unwrap_or_else(|error| panic!("{line}: {}", error.what));
        assert_eq!(algorithm.kind(), AlgorithmKind::FixedWindow);
        let begins = begins
            .split(' ')
            .map(|secs| secs.parse().expect("seconds"))
            .collect();
        Self {
            unit,
            period: algorithm.window(),
            first: first.parse().expect("a number"),
            begins,
        }
    }

    /// The windows, of which a skipped one is empty.
    fn windows(&self) -> impl Iterator<Item = Window> {
        let bounds = self
            .begins
            .windows(2)
            .map(|pair| [pair[0], pair[1]].map(|secs| Micros(secs * MICROS_PER_SECOND)));
        (self.first..)
            .zip(bounds)
            .map(|(number, [begin, end])| Window { number, begin, end })
    }
}

/// Windows around the changes of clocks in both hemispheres, from 1970 to 2400.
#[test]
fn windows_are_those_of_pythons_zoneinfo() {
    let (mut windows, mut skipped, mut zones, mut uneven) = (0, 0, HashSet::new(), 0);
    let text = tools::file("tests/vectors/calendars.txt");
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        zones.insert(line.split(" | ").nth(1));
        let read = Line::parse(line);
        // Calendar months and years in UTC are counted as those of the setting, from 1970 on.
        let offset = match read.period {
            Period::Months(months) => 1_970 * 12 / u64::from(months.get()),
            Period::Even(_) | Period::Calendar(_) => 0,
        };
        for expected in read.windows() {
            let expected = Window {
                number: expected.number - offset,
                ..expected
            };
            assert_eq!(read.period.window(expected.number), expected, "{line}");
            assert_eq!(read.period.end(expected.number), expected.end, "{line}");
            windows += 1;
            if expected.begin == expected.end {
                skipped += 1;
                continue;
            }
            // Clocks that go back shortly behind the begin show the day before once more.
            let behind = [90, 1_800]
                .map(|secs| expected.begin.0 + secs * MICROS_PER_SECOND)
                .into_iter()
                .filter(|&now| now < expected.end.0);
            let inside = [
                expected.begin.0,
                expected.begin.0 + 1,
                expected.begin.0.midpoint(expected.end.0),
                expected.end.0 - 1,
            ];
            for now in inside.into_iter().chain(behind) {
                // Takes the place of the window that this thread has found last.
                let _ = read.period.window(expected.number + 2);
                assert_eq!(
                    read.period.window_at(Micros(now)),
                    expected,
                    "{line}: at {now}"
                );
                assert_eq!(
                    read.period.number_at(Micros(now)),
                    expected.number,
                    "{line}: at {now}"
                );
            }
            let length = expected.end.since(expected.begin);
            uneven += usize::from(
                read.unit == Unit::Day && length.micros() != 86_400 * MICROS_PER_SECOND,
            );
            assert!(
                length >= read.period.shortest()
                    || SKIPPED_A_DAY.iter().any(|zone| line.contains(zone)),
                "{line}: {length}"
            );
        }
    }
    assert!(
        windows > 5_000 && skipped >= 3 && zones.len() > 30 && uneven > 100,
        "{windows} {skipped} {} {uneven}",
        zones.len()
    );
}

/// Seconds from the start of the service to the boundary: enough for the requests before it, on a
/// busy machine too.
const AHEAD_SECS: u64 = 12;

/// A zone without daylight saving, 5 hours and 45 minutes ahead of UTC.
const ZONE: &str = "Asia/Kathmandu";

fn now_secs() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("after 1970")
        .as_secs()
}

/// A boundary some seconds from now as the clocks of the zone show it, by another implementation of
/// the calendar.
struct Boundary {
    secs: u64,
    local: OffsetDateTime,
}

impl Boundary {
    fn soon() -> Self {
        let secs = now_secs() + AHEAD_SECS;
        let offset = UtcOffset::from_hms(5, 45, 0).expect("an offset");
        let local = OffsetDateTime::from_unix_timestamp(i64::try_from(secs).expect("a time"))
            .expect("a time")
            .to_offset(offset);
        Self { secs, local }
    }

    /// The date and the time of day, as an anchor.
    fn anchor(&self) -> String {
        let (date, (hour, minute, second)) = (self.local.date(), self.local.time().as_hms());
        format!(
            "{}-{:02}-{:02}T{hour:02}:{minute:02}:{second:02}",
            date.year(),
            u8::from(date.month()),
            date.day()
        )
    }

    /// The seconds from the boundary to the same day of the next month, or its last one.
    fn month_secs(&self) -> u64 {
        let date = self.local.date();
        let (year, month) = if u8::from(date.month()) == 12 {
            (date.year() + 1, date.month().next())
        } else {
            (date.year(), date.month().next())
        };
        let day = date.day().min(month.length(year));
        let next = Date::from_calendar_date(year, month, day).expect("a day");
        u64::try_from((next - date).whole_seconds()).expect("later")
    }

    /// The days from 1 January of the year 0.
    fn day_number(&self) -> i32 {
        self.local.date().to_julian_day()
            - Date::from_ordinal_date(0, 1)
                .expect("a day")
                .to_julian_day()
    }

    fn left(&self) -> u64 {
        self.secs.saturating_sub(now_secs())
    }

    /// Until shortly behind the boundary. No refusal is cached for longer than a second.
    async fn pass(&self) {
        let at = UNIX_EPOCH + Duration::from_secs(self.secs) + Duration::from_millis(1_200);
        tokio::time::sleep(at.duration_since(SystemTime::now()).unwrap_or_default()).await;
    }
}

/// With the address of Redis, in which keys then live until their window ends.
const ON_REDIS: [(&str, &str); 2] = [
    ("STORE_TIMEOUT", "5s"),
    ("EXPIRATION_JITTER_MAX_SECONDS", "0"),
];

async fn call(client: &mut Client, descriptor: RateLimitDescriptor) -> RateLimitResponse {
    client
        .should_rate_limit(request("cal", vec![descriptor]))
        .await
        .expect("an answer")
        .into_inner()
}

fn reset_secs(response: &RateLimitResponse) -> u64 {
    response.statuses[0]
        .duration_until_reset
        .expect("a reset")
        .seconds
        .unsigned_abs()
}

/// Keys of both days and of the month, which live until their window ends.
fn assert_keys_are_of_days(redis: &RedisServer, boundary: &Boundary) {
    let anchor = boundary.anchor();
    let time = anchor.split_once('T').expect("a time").1.replace(':', "");
    // A time without seconds is shown without them, and midnight not at all.
    let shown = time.strip_suffix("00").unwrap_or(&time);
    let tag = if shown == "0000" {
        String::new()
    } else {
        format!("-{shown}")
    };
    let (keys, day, of_month) = (
        redis.keys(),
        boundary.day_number(),
        boundary.local.date().day(),
    );
    for key in [
        format!("w1{{cal|day=x}}fwday{tag}@{ZONE}:{}", day - 1),
        format!("w1{{cal|day=x}}fwday{tag}@{ZONE}:{day}"),
        format!(
            "w1{{cal|month=x}}fwmonth-{of_month:02}{tag}@{ZONE}:{}",
            12 * boundary.local.year() + i32::from(u8::from(boundary.local.month())) - 1
        ),
    ] {
        assert!(keys.contains(&key), "{key} is not in {keys:?}");
    }
    let ttl: u64 = redis.run(&["TTL", &format!("w1{{cal|day=x}}fwday{tag}@{ZONE}:{day}")]);
    assert!((86_400 - 20..=86_400 + 6).contains(&ttl), "{ttl}");
    redis.assert_every_key_expires();
}

/// The response and its header point at the boundary.
fn assert_refused_until(boundary: &Boundary, key: &str, response: &RateLimitResponse) {
    assert_eq!(response.overall_code(), Code::OverLimit);
    let (reset, left) = (reset_secs(response), boundary.left());
    assert!(
        (left..=left + 2).contains(&reset),
        "{key}: reset in {reset} s, and the boundary is {left} s ahead"
    );
    let shown = response
        .response_headers_to_add
        .iter()
        .find(|header| header.key == "RateLimit")
        .map(|header| &*header.value);
    assert!(
        shown.is_some_and(|value| value.ends_with(&format!(";r=0;t={reset}"))),
        "{shown:?}"
    );
}

/// A boundary passes while both stores count: the answers before it point at it, and the counts
/// begin anew behind it.
#[tokio::test]
async fn counts_begin_anew_at_the_boundary_in_both_stores() {
    let redis = RedisServer::start();
    let (url, headers) = (redis.url(), ("RATELIMIT_HEADERS", "draft-11"));
    let on_redis = [headers, ("REDIS_URL", &*url)];
    let boundary = Boundary::soon();
    let anchor = boundary.anchor();
    let limits = format!(
        "domain: cal\ndefaults: {{ period: calendar, timezone: {ZONE}, anchor: \"{anchor}\" \
         }}\ndescriptors:\n  - {{ key: day, rate_limit: {{ unit: day, requests_per_unit: 2, name: \
         daily }} }}\n  - {{ key: month, rate_limit: {{ unit: month, requests_per_unit: 1, \
         count_denied: false }} }}\n"
    );
    let services = [&[headers][..], &[&on_redis[..], &ON_REDIS].concat()]
        .map(|environment| Weir::start(&[("cal.yaml", &limits)], environment));
    for weir in &services {
        let client = &mut weir.client().await;
        for (key, limit, unit) in [("day", 2, Unit::Day), ("month", 1, Unit::Month)] {
            for remaining in (0..limit).rev() {
                let response = call(client, descriptor(&[(key, "x")])).await;
                let status = &response.statuses[0];
                assert_eq!(
                    (status.code(), status.limit_remaining),
                    (Code::Ok, remaining),
                    "{key}, {} s before the boundary",
                    boundary.left()
                );
                assert_eq!(
                    status.current_limit.as_ref().map(|limit| limit.unit),
                    Some(unit.number())
                );
            }
            let response = call(client, descriptor(&[(key, "x")])).await;
            assert_refused_until(&boundary, key, &response);
        }
        let json = http_client::post(
            weir.http_addr(),
            "/json",
            br#"{"domain":"cal","descriptors":[{"entries":[{"key":"day","value":"x"}]}]}"#,
        );
        assert_eq!(json.status, 429, "{}", json.body);
    }
    assert!(
        boundary.left() > 0,
        "the machine is too slow for {AHEAD_SECS} s"
    );
    boundary.pass().await;
    for weir in &services {
        let client = &mut weir.client().await;
        for (key, remaining, window) in [("day", 1, 86_400), ("month", 0, boundary.month_secs())] {
            let response = call(client, descriptor(&[(key, "x")])).await;
            assert_eq!(
                (
                    response.overall_code(),
                    response.statuses[0].limit_remaining
                ),
                (Code::Ok, remaining),
                "{key} behind the boundary"
            );
            let expected = boundary.secs + window - now_secs();
            assert!(
                reset_secs(&response).abs_diff(expected) < 3,
                "{key}: reset in {} s, expected {expected}",
                reset_secs(&response)
            );
        }
    }
    assert_keys_are_of_days(&redis, &boundary);
}
