//! The arguments of overrides: entries with wildcards, rates, and times as people write them.

use jiff::civil::{Date, DateTime, Time};
use jiff::tz::TimeZone;
use jiff::{Span, Timestamp};

use crate::cli::UsageError;
use crate::cli::amount;
use crate::core::time::people;
use crate::limits::overrides::{Invalid, Pattern, RaiseRate, RateRecord};
use crate::limits::rules::limit::Units;

/// Entries as `KEY=VALUE`, or `KEY` for any value.
pub(super) fn entries(arguments: &[String]) -> Result<Vec<Pattern>, UsageError> {
    let several = "one descriptor at a time; give each override a command of its own";
    let entry = |text: &String| match text.split('=').next() {
        Some(",") => Err(UsageError(several.to_owned())),
        _ => text.parse().map_err(|error: Invalid| UsageError(error.0)),
    };
    arguments.iter().map(entry).collect()
}

/// Asks for `--all` where no entry has a value: every descriptor with these keys would be meant.
pub(super) fn check_values(entries: &[Pattern], kind: &str) -> Result<(), UsageError> {
    let has_value = |pattern: &Pattern| pattern.clone().canonical().has_value();
    if entries.iter().any(has_value) {
        return Ok(());
    }
    let keys: Vec<_> = entries.iter().map(|entry| entry.key.to_string()).collect();
    let does = match kind {
        "raise" => "raises the limit of".to_owned(),
        kind => format!("{kind}s"),
    };
    let (all, first) = (keys.join(" and "), keys.first().map_or("KEY", |key| key));
    let remedy = format!("write a value, as in {first}=VALUE, or --all if all are meant");
    Err(UsageError(format!("this {does} every {all}: {remedy}")))
}

/// The entries of one exact descriptor.
pub(super) fn exact_entries(arguments: &[String]) -> Result<Vec<Pattern>, UsageError> {
    let entries = entries(arguments)?;
    let mut all = entries.iter().zip(arguments);
    let Some((_, text)) = all.find(|(entry, _)| entry.exact().is_none()) else {
        return Ok(entries);
    };
    let what = "a reset takes one exact descriptor, without wildcards; write KEY=VALUE with the \
        whole value, and a star of it as \\*";
    Err(UsageError(format!("`{text}`: {what}")))
}

/// A rate: `500/minute`, `20/30 seconds`, `20/30second`; `20` of a limit of requests in flight. A
/// `+` before it adds it.
pub(super) fn rate(text: &str) -> Result<RaiseRate, String> {
    const WRONG: &str = "write HITS/UNIT, such as 500/minute, HITS/MULTIPLIER UNITs, such as 20/30 \
        seconds, or for a limit of requests in flight a number alone";
    let (hits, unit) = match text.split_once('/') {
        Some((hits, unit)) => (hits, Some(amount::multiple(unit.trim()).ok_or(WRONG)?)),
        None => (text, None),
    };
    let (hits, is_added) = match hits.trim().strip_prefix('+') {
        Some(added) if !added.starts_with('+') => (added, true),
        _ => (hits.trim(), false),
    };
    let (unit_multiplier, unit) = unit.unzip();
    let record = RateRecord {
        requests_per_unit: Units::rounded(amount::number(hits).map_err(|_| WRONG)?),
        unit,
        unit_multiplier,
    };
    let raise = if is_added {
        RaiseRate::by
    } else {
        RaiseRate::to
    };
    raise(&record).map_err(|Invalid(error)| error)
}

/// A time in the future: an instant, a time of a day in `zone`, the end of a date or of a day, or a
/// duration from `now`.
pub(super) fn until(text: &str, now: Timestamp, zone: &TimeZone) -> Result<Timestamp, UsageError> {
    let here = now.to_zoned(zone.clone());
    let local = |time: DateTime| zone.to_timestamp(time).ok();
    let later = |span: Span| here.checked_add(span).ok().map(|zoned| zoned.timestamp());
    let of_day = || {
        let is_date = text.len() == "2030-01-31".len();
        let date = text.parse::<Date>().ok().filter(|_| is_date);
        let end = date.and_then(end_of).or_else(|| text.parse().ok());
        end.or_else(|| day(text, here.date())).and_then(local)
    };
    let at = text.parse::<Timestamp>().ok().or_else(of_day);
    let Some(at) = at.or_else(|| text.parse().ok().and_then(later)) else {
        let forms = "write a duration such as 2h or 3d, a day such as tomorrow, friday or \
            2030-01-31, or \"friday 18:00\", or an instant such as 2030-01-31T18:00:00Z";
        let text = text.escape_debug();
        return Err(UsageError(format!("--until: `{text}` is no time; {forms}")));
    };
    if at <= now {
        let (at, what) = (people::instant(at), "is in the past; write a later time");
        return Err(UsageError(format!("--until: {at} {what}")));
    }
    // People do not order fractions of a second; the end is not before what they wrote.
    let second = at.as_second() + i64::from(at.subsec_nanosecond() > 0);
    Ok(Timestamp::from_second(second).unwrap_or(at))
}

/// The midnight after a date, which is included.
fn end_of(date: Date) -> Option<DateTime> {
    Some(date.tomorrow().ok()?.to_datetime(Time::midnight()))
}

/// `tomorrow`, or the next day of this name after today: its end, or the time of it that follows.
fn day(text: &str, today: Date) -> Option<DateTime> {
    let text = text.trim().to_ascii_lowercase();
    let (name, time) = match text.split_once(' ') {
        Some((name, time)) => (name, Some(time)),
        None => (&*text, None),
    };
    let names = |date: Date| date.strftime("%A %a").to_string().to_ascii_lowercase();
    let date = match name {
        "today" => today,
        "tomorrow" => today.tomorrow().ok()?,
        _ => {
            let mut days = today.series(Span::new().days(1)).skip(1).take(7);
            days.find(|date| names(*date).split(' ').any(|known| known == name))?
        }
    };
    match time {
        Some(time) => Some(date.to_datetime(time.trim().parse::<Time>().ok()?)),
        None => end_of(date),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_people_write_them() {
        let now: Timestamp = "2030-01-01T12:00:00.5Z".parse().expect("an instant");
        let zone = TimeZone::fixed(jiff::tz::offset(2));
        for (text, expected) in [
            ("2h", "2030-01-01T14:00:01Z"),
            ("1h30m", "2030-01-01T13:30:01Z"),
            ("90 minutes", "2030-01-01T13:30:01Z"),
            ("2030-01-31", "2030-01-31T22:00:00Z"),
            ("2030-01-31T18:00", "2030-01-31T16:00:00Z"),
            ("2030-01-31 18:00", "2030-01-31T16:00:00Z"),
            ("2030-01-31T18:00:00-05:00", "2030-01-31T23:00:00Z"),
            // 2030-01-01 is a Tuesday.
            ("today", "2030-01-01T22:00:00Z"),
            ("tomorrow", "2030-01-02T22:00:00Z"),
            ("friday", "2030-01-04T22:00:00Z"),
            ("tuesday", "2030-01-08T22:00:00Z"),
            ("friday 18:00", "2030-01-04T16:00:00Z"),
            ("today 18:00", "2030-01-01T16:00:00Z"),
        ] {
            assert_eq!(
                until(text, now, &zone)
                    .map(|at| at.to_string())
                    .map_err(|error| error.0)
                    .as_deref(),
                Ok(expected),
                "{text}"
            );
        }
        for (text, error) in [
            ("someday", "is no time; write a duration"),
            ("", "is no time"),
            ("-2h", "is in the past"),
            ("2029-12-31", "2029-12-31 22:00 UTC is in the past"),
        ] {
            let result = until(text, now, &zone);
            assert!(
                result.as_ref().is_err_and(|wrong| wrong.0.contains(error)),
                "{text}: {result:?}"
            );
        }
    }

    #[test]
    fn rates_are_read_as_they_are_shown() {
        let read = |text: &str| rate(text).map(|rate| rate.to_string());
        for (text, shown) in [
            ("500 / Minutes", "500/minute"),
            ("2M/day", "2000000/day"),
            ("20/30second", "20/30 seconds"),
            ("0/day", "0/day"),
            (" 20 ", "20 in flight"),
            ("+500k/month", "+500000/month"),
            ("+1.5M / 2 days", "+1500000/2 days"),
            ("+0.5/month", "+0.5/month"),
            ("10.25 / month", "10.25/month"),
            ("2.3M/day", "2300000/day"),
        ] {
            assert_eq!(read(text).as_deref(), Ok(shown), "{text}");
        }
        for text in [
            "",
            "500/",
            "-1/minute",
            "18446744073709551616/day",
            "1/0 days",
            "1/fortnight",
            "1/200 years",
            "++5/minute",
            "+",
        ] {
            assert!(read(text).is_err(), "{text}");
        }
        for nothing in ["+0/month", "+0"] {
            let error = "0 adds nothing; write 1 or more".to_owned();
            assert_eq!(rate(nothing), Err(error), "{nothing}");
        }
        assert!(
            rate("1/fortnight").is_err_and(|error| error.starts_with("`fortnight` is no unit"))
        );
    }

    #[test]
    fn an_entry_without_a_value_matches_any() {
        let text = |all: &[&str]| all.iter().map(ToString::to_string).collect::<Vec<_>>();
        let read = entries(&text(&["user=42", "path", "q=a=b", "e="])).expect("entries");
        let shown: Vec<_> = read.iter().map(Pattern::to_string).collect();
        assert_eq!(shown, ["user=42", "path", "q=a=b", "e="]);
        assert!(entries(&text(&["=x"])).is_err() && entries(&text(&["a=b", ","])).is_err());
        assert!(exact_entries(&text(&["user=42", r"path=\*", r"a\*=\\"])).is_ok());
        for wrong in ["user", "user=4*", "us*=42", r"user=\\*"] {
            assert!(
                exact_entries(&text(&[wrong]))
                    .is_err_and(|error| error.0.contains("one exact descriptor")),
                "{wrong}"
            );
        }
    }
}
