//! Anchors: the day, and the time of day, at which windows of a calendar begin.

use std::fmt;
use std::str::FromStr;

use jiff::civil::{Date, DateTime, Weekday};

/// A local date with or without a time of day: `2026-03-31`, `2026-03-31T06:00`. The year only
/// makes it a date: windows reach back before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Anchor {
    date: Date,
    /// Seconds since midnight.
    time_secs: Option<u32>,
}

/// The problem with a text that is no anchor, as the end of a sentence about the text, and how to
/// correct it.
type AnchorError = (&'static str, &'static str);

const HAS_OFFSET: AnchorError = (
    "which has an offset",
    "remove the offset: the time of day is that of 'timezone'",
);
const NO_SUCH_TIME: AnchorError = (
    "which does not exist",
    "write a day of the calendar such as 2026-03-31, and a time from 00:00 to 23:59:59",
);
const NO_DATE: AnchorError = (
    "which is not a date",
    "write a date such as 2026-03-31, or one with a time of day such as 2026-03-31T06:00",
);

impl Anchor {
    pub(super) fn date(self) -> Date {
        self.date
    }

    pub(super) fn weekday(self) -> Weekday {
        self.date.weekday()
    }

    /// The time of day in seconds since midnight; `None`: not written.
    pub fn time_secs(self) -> Option<u32> {
        self.time_secs
    }
}

/// The characters of a date with a time; `0` is a digit. The first 10 are a date, the first 16 have
/// no seconds.
const FORM: &[u8] = b"0000-00-00T00:00:00";

impl FromStr for Anchor {
    type Err = AnchorError;

    fn from_str(text: &str) -> Result<Self, AnchorError> {
        let is_formed = |text: &str| {
            text.bytes().zip(FORM).all(|(byte, form)| match form {
                b'0' => byte.is_ascii_digit(),
                b'T' => matches!(byte, b'T' | b't' | b' '),
                form => byte == *form,
            })
        };
        if ![10, 16, 19].contains(&text.len()) || !is_formed(text) {
            // Only an offset can follow a date or a time.
            let is_offset = |(date, rest): (&str, &str)| {
                is_formed(date) && rest.starts_with(['Z', 'z', '+', '-', '['])
            };
            let mut lengths = [19, 16, 10].iter();
            let has_offset =
                lengths.any(|&length| text.split_at_checked(length).is_some_and(is_offset));
            return Err(if has_offset { HAS_OFFSET } else { NO_DATE });
        }
        let at: DateTime = text.parse().map_err(|_| NO_SUCH_TIME)?;
        let time = at.time();
        let secs = |number: i8| u32::from(number.unsigned_abs());
        let time_secs = (text.len() > 10)
            .then(|| secs(time.hour()) * 3_600 + secs(time.minute()) * 60 + secs(time.second()));
        Ok(Self {
            date: at.date(),
            time_secs,
        })
    }
}

impl fmt::Display for Anchor {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}", self.date)?;
        self.time_secs
            .map_or(Ok(()), |secs| write!(out, "T{}", TimeOfDay(secs)))
    }
}

/// Seconds since midnight, as `06:00` or `06:00:30`.
pub(super) struct TimeOfDay(pub(super) u32);

impl fmt::Display for TimeOfDay {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(secs) = *self;
        write!(out, "{:02}:{:02}", secs / 3_600, secs / 60 % 60)?;
        if secs % 60 == 0 {
            Ok(())
        } else {
            write!(out, ":{:02}", secs % 60)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_anchor_is_a_date_with_or_without_a_time() {
        for (text, shown) in [
            ("2026-03-31", "2026-03-31"),
            ("2024-02-29", "2024-02-29"),
            ("2026-03-31T06:00", "2026-03-31T06:00"),
            ("2026-03-31 06:00:30", "2026-03-31T06:00:30"),
            ("2026-03-31t23:59:59", "2026-03-31T23:59:59"),
            ("2026-03-31T00:00", "2026-03-31T00:00"),
        ] {
            assert_eq!(
                text.parse::<Anchor>().map(|anchor| anchor.to_string()),
                Ok(shown.to_owned())
            );
        }
        assert_eq!(
            "2026-03-31T06:00:30"
                .parse::<Anchor>()
                .map(Anchor::time_secs),
            Ok(Some(21_630))
        );
    }

    #[test]
    fn what_is_no_anchor_is_refused_with_its_reason() {
        for (text, error) in [
            ("", NO_DATE),
            ("31", NO_DATE),
            ("31.03.2026", NO_DATE),
            ("2026-3-31", NO_DATE),
            ("2026-03-31T", NO_DATE),
            ("2026-03-31T06", NO_DATE),
            ("2026-03-31T06:00:00.5", NO_DATE),
            ("2026-03-31T0600+02", NO_DATE),
            ("２０２６-03-31", NO_DATE),
            ("2026-02-30", NO_SUCH_TIME),
            ("2025-02-29", NO_SUCH_TIME),
            ("2026-13-01", NO_SUCH_TIME),
            ("2026-03-31T24:00", NO_SUCH_TIME),
            ("2026-03-31T06:60", NO_SUCH_TIME),
            ("2026-03-31T06:00Z", HAS_OFFSET),
            ("2026-03-31T06:00-04", HAS_OFFSET),
            ("2026-03-31T06:00:00+02:00", HAS_OFFSET),
            ("2026-03-31T06:00[Europe/Berlin]", HAS_OFFSET),
        ] {
            assert_eq!(text.parse::<Anchor>(), Err(error), "{text}");
        }
    }
}
