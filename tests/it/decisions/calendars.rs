//! Calendar periods and calendar months: their windows beside those of another implementation, and
//! through the service with both stores.

use std::collections::HashSet;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use time::OffsetDateTime;
use weir::core::algorithm::{Algorithm, AlgorithmKind, Options};
use weir::core::proto::rate_limit_response::Code;
use weir::core::time::{Anchor, Micros, Period, PeriodKind, Rate, Unit, WEEKDAYS, Window, Zone};

use crate::support::{RedisServer, Weir, descriptor, request, tools};

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
            .unwrap_or_else(|error| panic!("{line}: {}", error.message.what));
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

fn now_secs() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.expect("after 1970").as_secs()
}

/// The code of a hit, what remains, and the seconds to the reset.
async fn ask(weir: &Weir, key: &str) -> (Code, u32, u64) {
    let request = request("cal", vec![descriptor(&[(key, "x")])]);
    let answer = weir.client().await.should_rate_limit(request).await;
    let answer = answer.expect("an answer").into_inner();
    let status = &answer.statuses[0];
    let reset = status.duration_until_reset.expect("a reset").seconds;
    (status.code(), status.limit_remaining, reset.unsigned_abs())
}

/// A boundary passes while both stores count: the answers before it point at it, and the counts
/// begin anew behind it.
#[tokio::test]
async fn counts_begin_anew_at_the_boundary_in_both_stores() {
    let redis = RedisServer::start();
    let url = redis.url();
    let boundary = now_secs() + AHEAD_SECS;
    let [hour, minute, second] = [boundary / 3_600 % 24, boundary / 60 % 60, boundary % 60];
    let limits = format!(
        "domain: cal\ndefaults: {{ period: calendar, anchor: \
         \"2020-01-01T{hour:02}:{minute:02}:{second:02}\" }}\ndescriptors:\n  - {{ key: day, \
         rate_limit: {{ unit: day, requests_per_unit: 2 }} }}\n"
    );
    let on_redis = [("REDIS_URL", &*url), ("STORE_TIMEOUT", "5s")];
    let services =
        [&[][..], &on_redis].map(|environment| Weir::start(&[("cal.yaml", &limits)], environment));
    for weir in &services {
        for expected in [(Code::Ok, 1), (Code::Ok, 0), (Code::OverLimit, 0)] {
            let (code, remaining, reset) = ask(weir, "day").await;
            let left = boundary.checked_sub(now_secs()).expect("a fast machine");
            assert_eq!((code, remaining), expected, "{left} s before the boundary");
            assert!((left..=left + 2).contains(&reset), "{reset}, {left}");
        }
    }
    // No refusal is cached for longer than a second.
    let behind = boundary + 1 - now_secs();
    tokio::time::sleep(Duration::from_secs(behind) + Duration::from_millis(200)).await;
    for weir in &services {
        let (code, remaining, reset) = ask(weir, "day").await;
        assert_eq!((code, remaining), (Code::Ok, 1), "behind the boundary");
        let expected = boundary + 86_400 - now_secs();
        assert!(reset.abs_diff(expected) < 3, "{reset}, {expected}");
    }
    redis.assert_every_key_expires();
}

/// `USE_CALENDAR_MONTH_RATE_LIMIT`: months end with the month of another implementation of the
/// calendar.
#[tokio::test]
async fn months_follow_the_calendar_in_both_stores() {
    let redis = RedisServer::start();
    let limits = "domain: cal\ndescriptors: [{ key: month, rate_limit: { unit: month, \
        requests_per_unit: 5 } }]\n";
    let url = redis.url();
    let setting = ("USE_CALENDAR_MONTH_RATE_LIMIT", "true");
    let on_redis = [setting, ("REDIS_URL", &url), ("STORE_TIMEOUT", "5s")];
    for environment in [&[setting][..], &on_redis] {
        let weir = Weir::start(&[("cal.yaml", limits)], environment);
        let now = now_secs();
        let today = OffsetDateTime::from_unix_timestamp(now.cast_signed());
        let today = today.expect("a time").date();
        let days = today.month().length(today.year()) - today.day() + 1;
        let left = u64::from(days) * 86_400 - now % 86_400;
        let (.., reset) = ask(&weir, "month").await;
        assert!(reset.abs_diff(left) < 20, "{reset} instead of {left}");
    }
}
