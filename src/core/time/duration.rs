//! Durations as text: `250ms`, `10s`, `1m30s`, `24h`.
//!
//! The notation is the one of Go's `time.ParseDuration` without signs, which users of
//! envoyproxy/ratelimit know. All arithmetic is in whole numbers: a text finer than the result's
//! unit is refused, not rounded.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use super::Span;

/// The units with their nanoseconds. Both characters for micro are in use: U+00B5 and U+03BC.
const UNITS: [(&str, u64); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("μs", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// The problem with a text that is not a duration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ParseDurationError {
    /// A number has no unit.
    NoUnit,
    /// This unit does not exist.
    Unit(String),
    /// The duration is negative.
    Negative,
    /// The duration is finer than the unit of the result.
    TooFine,
    /// The duration is longer than the result can hold.
    TooLong,
    /// The text is anything else.
    Other,
}

impl ParseDurationError {
    /// The problem, as the end of a sentence about the text, and how to correct it.
    pub fn report(&self) -> (&'static str, &'static str) {
        match self {
            Self::NoUnit => (
                "which has no unit",
                "add a unit to each number: h, m, s, ms or us",
            ),
            Self::Unit(unit) if matches!(unit.as_str(), "d" | "day" | "days") => {
                ("which counts days", "write hours, such as 24h")
            }
            Self::Unit(unit) if matches!(unit.as_str(), "w" | "week" | "weeks") => {
                ("which counts weeks", "write hours, such as 168h")
            }
            Self::Unit(_) => (
                "which has an unknown unit",
                "use the units h, m, s, ms or us",
            ),
            Self::Negative => (
                "which is negative",
                "write a duration from 0s on, or remove it",
            ),
            Self::TooFine => (
                "which is finer than a microsecond",
                "write whole microseconds, such as 10us",
            ),
            Self::TooLong => ("which is too long", "write a shorter duration"),
            Self::Other => (
                "which is not a duration",
                "write numbers with units, such as 250ms, 10s, 1m30s or 24h",
            ),
        }
    }
}

/// Reads a duration such as `1m30s`: one or more numbers, each followed by its unit. A number may
/// have a fraction.
///
/// # Errors
/// See [`ParseDurationError`]; `TooFine` if the duration is not a whole number of nanoseconds.
pub fn parse_duration(text: &str) -> Result<Duration, ParseDurationError> {
    match text.as_bytes() {
        [] => return Err(ParseDurationError::Other),
        [b'-', b'0'..=b'9' | b'.', ..] => return Err(ParseDurationError::Negative),
        _ => {}
    }
    let is_number = |character: char| character.is_ascii_digit() || character == '.';
    let (mut total, mut rest) = (Duration::ZERO, text);
    while !rest.is_empty() {
        let end = rest.find(|character| !is_number(character));
        let (number, behind) = rest.split_at(end.unwrap_or(rest.len()));
        let (unit, behind) = behind.split_at(behind.find(is_number).unwrap_or(behind.len()));
        total = total
            .checked_add(parse_part(number, unit)?)
            .ok_or(ParseDurationError::TooLong)?;
        rest = behind;
    }
    Ok(total)
}

/// One number with its unit.
fn parse_part(number: &str, unit: &str) -> Result<Duration, ParseDurationError> {
    const NANOS_PER_SECOND: u128 = 1_000_000_000;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return Err(ParseDurationError::Other);
    }
    if unit.is_empty() {
        return Err(ParseDurationError::NoUnit);
    }
    let Some(&(_, unit_nanos)) = UNITS.iter().find(|(known, _)| *known == unit) else {
        let is_word = unit.chars().all(char::is_alphabetic);
        return Err(if is_word {
            ParseDurationError::Unit(unit.to_owned())
        } else {
            ParseDurationError::Other
        });
    };
    let unit_nanos = u128::from(unit_nanos);
    let digits = |text: &str| match text {
        "" => Some(0),
        _ => text.parse::<u64>().ok().map(u128::from),
    };
    let whole = digits(whole).ok_or(ParseDurationError::TooLong)?;
    // An hour is 2^13 * 3^2 * 5^11 ns: a fraction of it with more than 13 digits is not whole, nor
    // is one of a shorter unit.
    let fraction = fraction.trim_end_matches('0');
    let scale = u32::try_from(fraction.len())
        .ok()
        .filter(|&digits| digits <= 13)
        .map(|digits| 10_u128.pow(digits));
    let (Some(scale), Some(fraction)) = (scale, digits(fraction)) else {
        return Err(ParseDurationError::TooFine);
    };
    if fraction * unit_nanos % scale != 0 {
        return Err(ParseDurationError::TooFine);
    }
    let nanos = whole * unit_nanos + fraction * unit_nanos / scale;
    let secs = u64::try_from(nanos / NANOS_PER_SECOND).map_err(|_| ParseDurationError::TooLong)?;
    Ok(Duration::new(secs, (nanos % NANOS_PER_SECOND) as u32))
}

impl FromStr for Span {
    type Err = ParseDurationError;

    /// See [`parse_duration`]; whole microseconds.
    fn from_str(text: &str) -> Result<Self, ParseDurationError> {
        let duration = parse_duration(text)?;
        if duration.subsec_nanos() % 1_000 != 0 {
            return Err(ParseDurationError::TooFine);
        }
        u64::try_from(duration.as_micros())
            .map(Self::from_micros)
            .map_err(|_| ParseDurationError::TooLong)
    }
}

impl fmt::Display for Span {
    /// As people write it: `250ms`, `1.5s`, `90s`, `5m`, `1h30m`, `720h`. [`FromStr`] reads it
    /// back.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        const MINUTE: u64 = 60_000_000;
        let mut left = self.micros();
        // 60s and 90s are more usual than 1m and 1m30s.
        if left >= 2 * MINUTE {
            for (unit, micros) in [("h", 60 * MINUTE), ("m", MINUTE)] {
                if left >= micros {
                    write!(formatter, "{}{unit}", left / micros)?;
                    left %= micros;
                }
            }
            if left == 0 {
                return Ok(());
            }
        }
        let (unit, digits) = match left {
            0 | 1_000_000.. => ("s", 6),
            1_000.. => ("ms", 3),
            _ => ("us", 0),
        };
        let scale = 10_u64.pow(digits);
        write!(formatter, "{}", left / scale)?;
        if !left.is_multiple_of(scale) {
            let fraction = format!("{:0width$}", left % scale, width = digits as usize);
            write!(formatter, ".{}", fraction.trim_end_matches('0'))?;
        }
        formatter.write_str(unit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_whole_microseconds() {
        for (text, micros) in [
            ("0s", 0),
            ("1us", 1),
            ("1µs", 1),
            ("250ms", 250_000),
            ("10s", 10_000_000),
            ("1m30s", 90_000_000),
            ("1h0m0.5s", 3_600_500_000),
            (".5ms", 500),
            ("1.s", 1_000_000),
            ("0.0000000025h", 9),
            ("1500us", 1_500),
            ("2000ns", 2),
            ("24h", 86_400_000_000),
            ("18446744073709551615us", u64::MAX),
        ] {
            assert_eq!(text.parse(), Ok(Span::from_micros(micros)), "{text}");
        }
    }

    #[test]
    fn an_error_says_why_a_text_is_not_a_span() {
        for (text, error) in [
            ("", ParseDurationError::Other),
            ("10", ParseDurationError::NoUnit),
            ("1m30", ParseDurationError::NoUnit),
            ("s", ParseDurationError::Other),
            (".s", ParseDurationError::Other),
            ("1..5s", ParseDurationError::Other),
            ("-1s", ParseDurationError::Negative),
            ("-", ParseDurationError::Other),
            ("10 s", ParseDurationError::Other),
            ("1d", ParseDurationError::Unit("d".to_owned())),
            ("1M", ParseDurationError::Unit("M".to_owned())),
            ("10ns", ParseDurationError::TooFine),
            ("0.5us", ParseDurationError::TooFine),
            ("0.00000000001h", ParseDurationError::TooFine),
            ("0.99999999999999999999999s", ParseDurationError::TooFine),
            ("18446744073709551616us", ParseDurationError::TooLong),
            ("5124095577h", ParseDurationError::TooLong),
            ("18446744073709551615us1us", ParseDurationError::TooLong),
        ] {
            assert_eq!(text.parse::<Span>(), Err(error), "{text:?}");
        }
    }

    #[test]
    fn durations_are_whole_nanoseconds() {
        for (text, nanos) in [
            ("1ns", 1),
            ("1.5us", 1_500),
            ("0.0000000025h", 9_000),
            ("0.0000000000025h", 9),
            ("1h0.5us", 3_600_000_000_500),
        ] {
            assert_eq!(
                parse_duration(text),
                Ok(Duration::from_nanos(nanos)),
                "{text}"
            );
        }
        for text in ["0.5ns", "0.0000000000001h", "0.00000000000001h"] {
            assert_eq!(
                parse_duration(text),
                Err(ParseDurationError::TooFine),
                "{text}"
            );
        }
        assert_eq!(
            parse_duration("18446744073709551615s"),
            Ok(Duration::from_secs(u64::MAX))
        );
        assert_eq!(
            parse_duration("18446744073709551616s"),
            Err(ParseDurationError::TooLong)
        );
        assert_eq!(
            parse_duration("18446744073709551615s1s"),
            Err(ParseDurationError::TooLong)
        );
    }

    #[test]
    fn a_span_is_printed_as_people_write_it() {
        for (micros, text) in [
            (0, "0s"),
            (7, "7us"),
            (1_500, "1.5ms"),
            (250_000, "250ms"),
            (1_000_001, "1.000001s"),
            (20_500_000, "20.5s"),
            (90_000_000, "90s"),
            (119_999_999, "119.999999s"),
            (120_000_000, "2m"),
            (300_250_000, "5m250ms"),
            (3_600_000_000, "1h"),
            (5_400_000_000, "1h30m"),
            (3_660_001_000, "1h1m1ms"),
            (2_592_000_000_000, "720h"),
            (u64::MAX, "5124095576h1m49.551615s"),
        ] {
            let span = Span::from_micros(micros);
            assert_eq!(span.to_string(), text);
            assert_eq!(text.parse(), Ok(span));
        }
    }
}
