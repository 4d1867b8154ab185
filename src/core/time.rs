//! Instants, spans and the units of limits, in whole microseconds.
//!
//! Whole numbers below 2^53 are exact in Lua too: Rust and Lua decide the same. Nothing here reads
//! a clock: the stores do, and pass the instant on.

mod anchor;
pub(crate) mod calendar;
mod duration;
pub mod people;
mod period;
mod zone;

use std::fmt;
use std::num::NonZeroU32;
use std::ops::Add;
use std::time::Duration;

use super::text::name_of;

pub use anchor::Anchor;
pub use calendar::Calendar;
pub use duration::{ParseDurationError, parse_duration};
pub use jiff::civil::Weekday;
pub use period::Period;
pub use zone::Zone;

const MICROS_PER_SECOND: u64 = 1_000_000;

/// 2^53 - 1: up to here every whole number is exact as a Lua number, an IEEE 754 double. JavaScript
/// calls it `Number.MAX_SAFE_INTEGER`.
pub const MAX_SAFE_INTEGER: u64 = (1 << 53) - 1;

/// An instant: microseconds since 1970-01-01 00:00 UTC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Micros(pub u64);

/// A length of time in whole microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span(u64);

impl Span {
    pub const ZERO: Self = Self(0);

    /// The longest span.
    pub const MAX: Self = Self(u64::MAX);

    /// A span of whole seconds; saturates.
    pub const fn from_secs(secs: u64) -> Self {
        Self(secs.saturating_mul(MICROS_PER_SECOND))
    }

    /// A span of microseconds.
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros)
    }

    /// The whole span in microseconds.
    pub const fn micros(self) -> u64 {
        self.0
    }

    /// Seconds, rounded up, for readers that truncate fractions.
    pub const fn secs_rounded_up(self) -> u64 {
        self.0.div_ceil(MICROS_PER_SECOND)
    }
}

impl From<Duration> for Span {
    /// Cut to whole microseconds; saturates.
    fn from(duration: Duration) -> Self {
        Self(u64::try_from(duration.as_micros()).unwrap_or(u64::MAX))
    }
}

impl From<Span> for Duration {
    fn from(span: Span) -> Self {
        Self::from_micros(span.0)
    }
}

impl Add<Span> for Micros {
    type Output = Self;

    fn add(self, span: Span) -> Self {
        Self(self.0.saturating_add(span.0))
    }
}

impl Micros {
    /// The time since `earlier`; zero if `earlier` is later, as after a clock went back.
    pub const fn since(self, earlier: Self) -> Span {
        Span(self.0.saturating_sub(earlier.0))
    }
}

/// The resolution of an algorithm's times: a power of ten of microseconds, coarser for larger
/// limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Tick(u8);

impl Tick {
    /// One microsecond.
    pub const FINEST: Self = Self(0);

    /// 10^12 microseconds: coarser than any limit needs.
    pub const COARSEST: Self = Self(12);

    /// A tick of 10^`exponent` microseconds, at most the coarsest.
    pub const fn new(exponent: u8) -> Self {
        if exponent < Self::COARSEST.0 {
            Self(exponent)
        } else {
            Self::COARSEST
        }
    }

    /// All ticks, finest first.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..=Self::COARSEST.0).map(Self)
    }

    /// Number of microseconds in one tick.
    pub const fn micros(self) -> u64 {
        10_u64.pow(self.0 as u32)
    }

    /// The span of so many ticks; saturates.
    pub const fn span(self, ticks: u64) -> Span {
        Span(ticks.saturating_mul(self.micros()))
    }

    /// The whole ticks of a span.
    pub const fn floor(self, span: Span) -> u64 {
        span.0 / self.micros()
    }

    /// The ticks of a span, rounded up.
    pub const fn ceil(self, span: Span) -> u64 {
        span.0.div_ceil(self.micros())
    }

    /// The factor and the divisor that turn a number of ticks of `other` into ticks of this length;
    /// one of them is 1.
    pub const fn ratio(self, other: Self) -> (u64, u64) {
        (
            10_u64.pow(other.0.saturating_sub(self.0) as u32),
            10_u64.pow(self.0.saturating_sub(other.0) as u32),
        )
    }

    /// The tick that contains an instant. It stops in the year 2255, because sums of ticks must
    /// never overflow.
    pub fn at(self, now: Micros) -> u64 {
        (now.0 / self.micros()).min(MAX_SAFE_INTEGER)
    }
}

/// The unit of a limit, as in `envoy.service.ratelimit.v3.RateLimitResponse.RateLimit.Unit`.
///
/// All are fixed lengths aligned to the epoch, as in envoyproxy/ratelimit: a week begins on
/// Thursday, a month has 30 days, a quarter 90, a year 365. A fixed window can follow a
/// [`Calendar`] instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unit {
    /// 1 s.
    Second,
    /// 60 s.
    Minute,
    /// 3,600 s.
    Hour,
    /// 86,400 s, a UTC day.
    Day,
    /// 7 days.
    Week,
    /// 30 days.
    Month,
    /// Three months. Envoy's protocol has no such unit: there it is a multiple of months.
    Quarter,
    /// 365 days.
    Year,
    /// None: the amount of a limit of requests in flight is of no time. No file and no request
    /// names it.
    None,
}

impl Unit {
    /// All units, shortest first, with the names that configuration files use.
    pub const NAMED: [(&'static str, Self); 8] = [
        ("second", Self::Second),
        ("minute", Self::Minute),
        ("hour", Self::Hour),
        ("day", Self::Day),
        ("week", Self::Week),
        ("month", Self::Month),
        ("quarter", Self::Quarter),
        ("year", Self::Year),
    ];

    /// The unit of that name in any letter case.
    pub fn named(name: &str) -> Option<Self> {
        Self::NAMED
            .iter()
            .find(|(known, _)| known.eq_ignore_ascii_case(name))
            .map(|&(_, unit)| unit)
    }

    /// The name in a configuration file.
    pub fn name(self) -> &'static str {
        name_of(&Self::NAMED, &self).unwrap_or("none")
    }

    /// The number of the unit on the wire, of which a [`Rate`] has [a multiple](Rate::on_wire).
    pub const fn number(self) -> i32 {
        match self {
            Self::None => 0,
            Self::Second => 1,
            Self::Minute => 2,
            Self::Hour => 3,
            Self::Day => 4,
            Self::Month | Self::Quarter => 5,
            Self::Year => 6,
            Self::Week => 7,
        }
    }

    /// The unit of that number on the wire; `None` for 0 (unknown) and numbers of the future.
    pub fn from_number(number: u64) -> Option<Self> {
        Self::NAMED
            .iter()
            .map(|&(_, unit)| unit)
            .find(|unit| u64::try_from(unit.number()) == Ok(number))
    }

    /// Number of seconds in one unit.
    pub const fn secs(self) -> u64 {
        match self {
            Self::None => 0,
            Self::Second => 1,
            Self::Minute => 60,
            Self::Hour => 3_600,
            Self::Day => 86_400,
            Self::Week => 7 * 86_400,
            Self::Month => 30 * 86_400,
            Self::Quarter => 3 * 30 * 86_400,
            Self::Year => 365 * 86_400,
        }
    }
}

/// One window of a period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Its number: from 0 at the epoch on, or of a [`Calendar`].
    pub number: u64,
    /// Its first instant.
    pub begin: Micros,
    /// The first instant after it.
    pub end: Micros,
}

/// `period` of a limit: how its windows are aligned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeriodKind {
    /// Windows of one length; a month is 30 days.
    Fixed,
    /// Days, weeks, months, quarters and years as they are in a time zone.
    Calendar,
}

impl PeriodKind {
    /// All of them with their names in a file.
    pub const NAMED: [(&'static str, Self); 2] =
        [("fixed", Self::Fixed), ("calendar", Self::Calendar)];
}

/// The days of the week with the names that configuration files use, from Monday on.
pub const WEEKDAYS: [(&str, Weekday); 7] = [
    ("monday", Weekday::Monday),
    ("tuesday", Weekday::Tuesday),
    ("wednesday", Weekday::Wednesday),
    ("thursday", Weekday::Thursday),
    ("friday", Weekday::Friday),
    ("saturday", Weekday::Saturday),
    ("sunday", Weekday::Sunday),
];

/// The longest window: 100 years. Beyond it sums of instants and windows would leave the 2^53 that
/// Lua can count.
pub const LONGEST_WINDOW: Span = Span::from_secs(100 * 365 * 86_400);

/// A number of hits per window, as it is written in a file or sent with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Hits per window.
    pub requests_per_unit: u64,
    /// The unit of the window.
    pub unit: Unit,
    /// The window is this many units; at least 1.
    pub unit_multiplier: u32,
}

impl fmt::Display for Rate {
    /// As operators write it: `500/minute`, `5/30 seconds`. Of a limit of requests in flight:
    /// `10 in flight`.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.unit_multiplier {
            _ if self.unit == Unit::None => write!(out, "{} in flight", self.requests_per_unit),
            1 => write!(out, "{}/{}", self.requests_per_unit, self.unit.name()),
            multiplier => write!(
                out,
                "{}/{multiplier} {}s",
                self.requests_per_unit,
                self.unit.name()
            ),
        }
    }
}

impl Rate {
    /// The window; `None` when it is zero or longer than [`LONGEST_WINDOW`].
    pub fn window(&self) -> Option<Span> {
        let multiplier = self.unit_multiplier.into();
        let window = Span::from_secs(self.unit.secs().checked_mul(multiplier)?);
        (Span::ZERO < window && window <= LONGEST_WINDOW).then_some(window)
    }

    /// The window as months of the calendar; `None` if its unit is another.
    pub fn calendar_months(&self) -> Option<Period> {
        let is_of_months = matches!(self.unit, Unit::Month | Unit::Quarter);
        NonZeroU32::new(self.on_wire().1)
            .filter(|_| is_of_months)
            .map(Period::Months)
    }

    /// The number of its unit on the wire, and how many of that unit the window is.
    pub const fn on_wire(&self) -> (i32, u32) {
        let per_unit = match self.unit {
            Unit::Quarter => 3,
            _ => 1,
        };
        let units = self.unit_multiplier.saturating_mul(per_unit);
        (self.unit.number(), units)
    }

    /// The same rate for more hits, in a window that is longer by as much: 50 hits of 10 per second
    /// are 50 per 5 seconds. The window keeps its unit, or else gets the longest shorter one that
    /// makes it whole; a window with a fraction of a second becomes the nearest second. A rate
    /// whose window has that many hits already stays as it is.
    #[must_use]
    pub fn widened(self, hits: u64) -> Self {
        let is_wide = hits <= self.requests_per_unit || self.requests_per_unit == 0;
        if is_wide || self.unit == Unit::None {
            return self;
        }
        let per = u128::from(self.requests_per_unit);
        // In the seconds that `per` such windows have.
        let seconds =
            u128::from(self.unit.secs()) * u128::from(self.unit_multiplier) * u128::from(hits);
        let in_unit = |unit: Unit| {
            let divisor = per * u128::from(unit.secs());
            let is_whole = unit.secs() <= self.unit.secs() && seconds.is_multiple_of(divisor);
            is_whole.then_some((unit, seconds / divisor))
        };
        let nearest = (seconds + per / 2) / per;
        // Envoy computes the window in seconds, in 32 bits.
        let mut units = Unit::NAMED.iter().rev().map(|&(_, unit)| unit);
        let whole = units.find_map(in_unit);
        let whole = whole.filter(|_| nearest <= u128::from(u32::MAX));
        let (unit, multiplier) = whole.unwrap_or((Unit::Second, nearest));
        Self {
            requests_per_unit: hits,
            unit,
            unit_multiplier: u32::try_from(multiplier).unwrap_or(u32::MAX),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_rounded_up() {
        for (micros, secs) in [(0, 0), (1, 1), (999_999, 1), (1_000_000, 1), (1_000_001, 2)] {
            assert_eq!(
                Span::from_micros(micros).secs_rounded_up(),
                secs,
                "{micros}"
            );
        }
    }

    #[test]
    fn units_keep_their_numbers_and_names() {
        for (name, unit) in Unit::NAMED {
            assert_eq!(Unit::named(&name.to_uppercase()), Some(unit));
            let on_wire = if unit == Unit::Quarter {
                Unit::Month
            } else {
                unit
            };
            assert_eq!(
                Unit::from_number(u64::try_from(unit.number()).expect("above 0")),
                Some(on_wire)
            );
            assert_eq!(unit.name(), name);
        }
        assert_eq!((Unit::from_number(0), Unit::from_number(8)), (None, None));
    }

    #[test]
    fn a_widened_rate_is_the_same_rate_for_more_hits() {
        let rate = |requests_per_unit, unit, unit_multiplier| Rate {
            requests_per_unit,
            unit,
            unit_multiplier,
        };
        for (written, hits, widened) in [
            (rate(10, Unit::Second, 1), 50, rate(50, Unit::Second, 5)),
            (rate(10, Unit::Minute, 1), 20, rate(20, Unit::Minute, 2)),
            (rate(10, Unit::Day, 2), 70, rate(70, Unit::Day, 14)),
            // The longest unit that counts the window.
            (rate(10, Unit::Minute, 1), 15, rate(15, Unit::Second, 90)),
            (rate(10, Unit::Hour, 1), 51, rate(51, Unit::Minute, 306)),
            (rate(2, Unit::Month, 1), 3, rate(3, Unit::Day, 45)),
            // The nearest second.
            (rate(10, Unit::Second, 1), 11, rate(11, Unit::Second, 1)),
            (rate(10, Unit::Second, 1), 16, rate(16, Unit::Second, 2)),
            (rate(3, Unit::Second, 10), 4, rate(4, Unit::Second, 13)),
            // Nothing to widen.
            (rate(10, Unit::Second, 1), 10, rate(10, Unit::Second, 1)),
            (rate(600, Unit::Minute, 1), 10, rate(600, Unit::Minute, 1)),
            (rate(0, Unit::Minute, 1), 10, rate(0, Unit::Minute, 1)),
            // No window is longer than 2^32 - 1 seconds.
            (rate(1, Unit::Year, 100), 2, rate(2, Unit::Second, u32::MAX)),
            (
                rate(1, Unit::Year, 100),
                u32::MAX.into(),
                rate(u32::MAX.into(), Unit::Second, u32::MAX),
            ),
            (rate(1, Unit::Year, 1), 136, rate(136, Unit::Year, 136)),
        ] {
            assert_eq!(
                written.widened(hits),
                widened,
                "{written:?} for {hits} hits"
            );
        }
    }

    #[test]
    fn windows_last_from_a_second_to_a_hundred_years() {
        let window = |unit, unit_multiplier| {
            Rate {
                requests_per_unit: 1,
                unit,
                unit_multiplier,
            }
            .window()
        };
        assert_eq!(window(Unit::Second, 30), Some(Span::from_secs(30)));
        assert_eq!(window(Unit::Year, 100), Some(LONGEST_WINDOW));
        assert_eq!(
            (
                window(Unit::Year, 101),
                window(Unit::Day, 0),
                window(Unit::Year, u32::MAX)
            ),
            (None, None, None)
        );
    }

    #[test]
    fn only_months_follow_the_calendar() {
        let period = |unit, unit_multiplier| {
            Rate {
                requests_per_unit: 1,
                unit,
                unit_multiplier,
            }
            .calendar_months()
        };
        assert_eq!(
            period(Unit::Month, 3),
            NonZeroU32::new(3).map(Period::Months)
        );
        assert_eq!(
            period(Unit::Quarter, 2),
            NonZeroU32::new(6).map(Period::Months)
        );
        assert_eq!(
            (
                period(Unit::Month, 0),
                period(Unit::Year, 1),
                period(Unit::Day, 30)
            ),
            (None, None, None)
        );
    }
}
