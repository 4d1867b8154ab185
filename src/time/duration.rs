//! Durations as people write them: `250ms`, `10s`, `1m30s`, `24h`.
//!
//! The notation is Go's, which Envoy's users know from the service that Weir replaces, without signs. Whole numbers all the way: what is no
//! whole number of microseconds is refused rather than rounded.

use std::str::FromStr;

use super::Span;

/// The units with their microseconds; the names of two letters stand before those that end them.
const UNITS: [(&str, u64); 7] = [("us", 1), ("µs", 1), ("μs", 1), ("ms", 1_000), ("s", 1_000_000), ("m", 60_000_000), ("h", 3_600_000_000)];

/// Why a text is no duration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ParseDurationError {
    /// A number without a unit.
    NoUnit,
    /// A unit that there is not.
    Unit(String),
    /// Less than nothing.
    Negative,
    /// Finer than a microsecond.
    TooFine,
    /// More microseconds than 64 bits hold.
    TooLong,
    /// Anything else.
    Other,
}

impl ParseDurationError {
    /// What is wrong with it, and how to write it.
    #[must_use]
    pub fn report(&self) -> (&'static str, &'static str) {
        match self {
            Self::NoUnit => ("a number without a unit", "write h, m, s, ms or us behind the number"),
            Self::Unit(unit) if matches!(unit.as_str(), "d" | "day" | "days") => ("which counts days", "write hours, as in 24h"),
            Self::Unit(unit) if matches!(unit.as_str(), "w" | "week" | "weeks") => ("which counts weeks", "write hours, as in 168h"),
            Self::Unit(_) => ("whose unit is unknown", "write h, m, s, ms or us behind the number"),
            Self::Negative => ("which is negative", "leave the minus out"),
            Self::TooFine => ("which is finer than a microsecond", "write whole microseconds, as in 10us"),
            Self::TooLong => ("which is too long", "write a shorter one"),
            Self::Other => ("which is no duration", "write a number and a unit, such as 250ms, 10s, 1m30s or 24h"),
        }
    }
}

impl FromStr for Span {
    type Err = ParseDurationError;

    /// Reads `1m30s`: one or more numbers, each with its unit behind it, and a fraction where it comes out even.
    fn from_str(text: &str) -> Result<Self, ParseDurationError> {
        match text.as_bytes() {
            [] => return Err(ParseDurationError::Other),
            [b'-', b'0'..=b'9' | b'.', ..] => return Err(ParseDurationError::Negative),
            _ => {}
        }
        let mut total: u64 = 0;
        let mut rest = text;
        while !rest.is_empty() {
            let is_number = |letter: char| letter.is_ascii_digit() || letter == '.';
            let (number, behind) = rest.split_at(rest.find(|letter| !is_number(letter)).unwrap_or(rest.len()));
            let (unit, behind) = behind.split_at(behind.find(is_number).unwrap_or(behind.len()));
            let micros = part(number, unit)?;
            total = total.checked_add(micros).ok_or(ParseDurationError::TooLong)?;
            rest = behind;
        }
        Ok(Self::from_micros(total))
    }
}

/// One number with its unit, in microseconds.
fn part(number: &str, unit: &str) -> Result<u64, ParseDurationError> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return Err(ParseDurationError::Other);
    }
    if unit.is_empty() {
        return Err(ParseDurationError::NoUnit);
    }
    if unit == "ns" {
        return Err(ParseDurationError::TooFine);
    }
    let letters = unit.chars().all(char::is_alphabetic);
    let Some(&(_, micros)) = UNITS.iter().find(|(known, _)| *known == unit) else {
        return Err(if letters { ParseDurationError::Unit(unit.to_owned()) } else { ParseDurationError::Other });
    };
    let fraction = fraction.trim_end_matches('0');
    let digits = |text: &str| if text.is_empty() { Some(0) } else { text.parse::<u64>().ok() };
    let whole = digits(whole).and_then(|whole| whole.checked_mul(micros)).ok_or(ParseDurationError::TooLong)?;
    // No fraction of an hour that is a whole number of microseconds has more than 10 digits, and none of a shorter unit.
    let scale = u32::try_from(fraction.len()).ok().filter(|&digits| digits <= 10).map(|digits| 10u128.pow(digits));
    let (Some(scale), Some(fraction)) = (scale, digits(fraction)) else { return Err(ParseDurationError::TooFine) };
    let parts = u128::from(fraction) * u128::from(micros);
    if parts % scale != 0 {
        return Err(ParseDurationError::TooFine);
    }
    u64::try_from(parts / scale).ok().and_then(|parts| whole.checked_add(parts)).ok_or(ParseDurationError::TooLong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_whole_microseconds() {
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
            ("24h", 86_400_000_000),
            ("18446744073709551615us", u64::MAX),
        ] {
            assert_eq!(text.parse(), Ok(Span::from_micros(micros)), "{text}");
        }
    }

    #[test]
    fn what_is_wrong_is_told() {
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
}
