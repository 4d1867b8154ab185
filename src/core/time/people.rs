//! Human-readable spans, instants and large numbers, as commands print them. `admin/page/dom.js`
//! formats them in the same way.

use jiff::Timestamp;

use super::{Micros, Zone};

const UNITS: [(u64, &str); 4] = [(86_400, "d"), (3_600, "h"), (60, "m"), (1, "s")];

/// From this span on (an hour, in seconds), [`ahead`] also has the instant.
const LONG: f64 = 3_600.0;

/// A span of so many seconds by its two largest units: `21d 9h`, `1m 20s`, `42s`; below a second in
/// milliseconds.
pub fn span(seconds: f64) -> String {
    if seconds > 0.0 && seconds < 1.0 {
        return format!("{:.0}ms", (seconds * 1e3).ceil());
    }
    // Negative numbers and NaN are 0.
    let whole = seconds.round() as u64;
    let (mut rest, mut parts) = (whole, Vec::new());
    let is_larger = |(size, _): &&(u64, &str)| whole < *size && *size > 1;
    let units = UNITS.iter().skip_while(is_larger);
    for (size, unit) in units.take(2) {
        if rest >= *size || parts.is_empty() {
            parts.push(format!("{}{unit}", rest / size));
        }
        rest %= size;
    }
    parts.join(" ")
}

/// An instant: `2026-12-14 23:00 UTC`, with the seconds if they are not 0.
pub fn instant(at: Timestamp) -> String {
    at.strftime(if at.as_second() % 60 == 0 {
        "%F %H:%M UTC"
    } else {
        "%F %H:%M:%S UTC"
    })
    .to_string()
}

/// An instant of a store. A later one than the year 9999 becomes the last instant of that year.
pub fn timestamp(at: Micros) -> Timestamp {
    i64::try_from(at.0)
        .ok()
        .and_then(|micros| Timestamp::from_microsecond(micros).ok())
        .unwrap_or(Timestamp::MAX)
}

/// The instant that is `seconds` ahead: the span and, if it is an hour or more, the instant to the
/// minute, first in `zone`: `21d 9h (2026-12-14 23:00 UTC)`, `21d 9h (2026-12-15 00:00
/// Europe/Berlin, 2026-12-14 23:00 UTC)`.
pub fn ahead(seconds: f64, now: Timestamp, zone: Option<Zone>) -> String {
    let minute = ((now.as_second() as f64 + seconds) / 60.0).round() as i64;
    let at = Timestamp::from_second(minute.saturating_mul(60))
        .ok()
        .filter(|_| seconds >= LONG);
    let Some(at) = at else {
        return span(seconds);
    };
    let local = zone.filter(|zone| zone.name() != "UTC").map(|zone| {
        let local = at.to_zoned(zone.rules().clone());
        format!("{} {zone}, ", local.strftime("%F %H:%M"))
    });
    let local = local.unwrap_or_default();
    format!("{} ({local}{})", span(seconds), instant(at))
}

/// A whole number with `,` between thousands.
pub fn grouped(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A number with its noun: `1 row`, `1,200 rows`.
pub fn counted(count: u64, what: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{} {what}{plural}", grouped(count))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_has_its_two_largest_units() {
        for (seconds, text) in [
            (0.0, "0s"),
            (-1.0, "0s"),
            (f64::NAN, "0s"),
            (0.0004, "1ms"),
            (0.25, "250ms"),
            (1.4, "1s"),
            (41.7, "42s"),
            (59.6, "1m"),
            (80.0, "1m 20s"),
            (3_600.0, "1h"),
            (3_605.0, "1h"),
            (7_260.0, "2h 1m"),
            (1_850_551.0, "21d 10h"),
            (86_400.0 * 400.0, "400d"),
        ] {
            assert_eq!(span(seconds), text, "{seconds}");
        }
    }

    #[test]
    fn what_is_far_ahead_has_its_instant() {
        let now: Timestamp = "2026-11-23T12:57:29Z".parse().expect("an instant");
        assert_eq!(
            ahead(1_850_551.4, now, None),
            "21d 10h (2026-12-14 23:00 UTC)"
        );
        assert_eq!(
            ahead(1_850_549.9, now, Zone::named("UTC")),
            "21d 10h (2026-12-14 23:00 UTC)"
        );
        assert_eq!(
            ahead(1_850_551.4, now, Zone::named("europe/berlin")),
            "21d 10h (2026-12-15 00:00 Europe/Berlin, 2026-12-14 23:00 UTC)"
        );
        assert_eq!(ahead(59.0, now, None), "59s");
        assert_eq!(
            ahead(1e300, now, None),
            span(1e300),
            "there is no such instant"
        );
        assert_eq!(instant(now), "2026-11-23 12:57:29 UTC");
    }

    #[test]
    fn figures_are_written() {
        assert_eq!(
            [0, 999, 1_000, 1_234_567].map(grouped),
            ["0", "999", "1,000", "1,234,567"]
        );
    }
}
