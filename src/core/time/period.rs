//! Periods: how time is divided into windows that are aligned to the clock.
//!
//! A period is a pure function from an instant to its window: a number, a begin and an end. Stores
//! count in a window and know no calendar. Windows follow each other without a gap, and their
//! numbers ascend by one. A window is empty only where a zone has skipped all of it.
//!
//! The period is part of the key: windows of 30 days and calendar months of two replicas never meet
//! in one counter.

use std::num::NonZeroU32;

use super::{Calendar, Micros, Span, Window};

const MICROS_PER_DAY: u64 = 86_400_000_000;

/// A division of time into windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Period {
    /// Windows of this length; the first one begins at the epoch.
    Even(Span),
    /// Windows of so many months of the Gregorian calendar, in UTC; the first one begins in
    /// January 1970. Three months are a quarter, twelve a year.
    Months(NonZeroU32),
    /// The calendar of a time zone.
    Calendar(Calendar),
}

/// Periods are copied into each check.
const _: () = assert!(size_of::<Period>() == 16);

impl Period {
    /// The windows of a calendar. Months, quarters and years in UTC are [`Period::Months`].
    pub fn of_calendar(calendar: Calendar) -> Self {
        calendar
            .utc_months()
            .and_then(NonZeroU32::new)
            .map_or(Self::Calendar(calendar), Self::Months)
    }

    /// The window that `now` lies in.
    pub fn window_at(self, now: Micros) -> Window {
        match self {
            Self::Calendar(calendar) => calendar.window_at(now),
            Self::Even(_) | Self::Months(_) => self.window(self.number_at(now)),
        }
    }

    /// The window of that number. Beyond the last instant there are only empty ones.
    pub fn window(self, number: u64) -> Window {
        match self {
            Self::Calendar(calendar) => calendar.window(number),
            Self::Even(_) | Self::Months(_) => Window {
                number,
                begin: self.begin(number),
                end: self.end(number),
            },
        }
    }

    /// The number of the window that `now` lies in.
    #[inline]
    pub fn number_at(self, now: Micros) -> u64 {
        match self {
            Self::Even(length) => now.0 / length.0,
            other => other.uneven_number_at(now),
        }
    }

    /// The end of the window of that number.
    #[inline]
    pub fn end(self, number: u64) -> Micros {
        match self {
            Self::Even(length) => Micros(number.saturating_add(1).saturating_mul(length.0)),
            other => other.uneven_end(number),
        }
    }

    // A function of its own: windows of one length cost no more than a division and a
    // multiplication.

    #[cold]
    #[inline(never)]
    fn uneven_number_at(self, now: Micros) -> u64 {
        match self {
            Self::Even(length) => now.0 / length.0,
            Self::Months(months) => month_of(now.0 / MICROS_PER_DAY) / u64::from(months.get()),
            Self::Calendar(calendar) => calendar.window_at(now).number,
        }
    }

    #[cold]
    #[inline(never)]
    fn uneven_end(self, number: u64) -> Micros {
        match self {
            Self::Calendar(calendar) => calendar.window(number).end,
            Self::Even(_) | Self::Months(_) => self.begin(number.saturating_add(1)),
        }
    }

    /// The length of its shortest window, or of a calendar [a little less](Calendar::shortest).
    pub const fn shortest(self) -> Span {
        match self {
            Self::Even(length) => length,
            Self::Months(months) => Span(28 * MICROS_PER_DAY * months.get() as u64),
            Self::Calendar(calendar) => calendar.shortest(),
        }
    }

    fn begin(self, number: u64) -> Micros {
        match self {
            Self::Even(length) => Micros(number.saturating_mul(length.0)),
            Self::Months(months) => Micros(
                first_day(number.saturating_mul(months.get().into()))
                    .saturating_mul(MICROS_PER_DAY),
            ),
            Self::Calendar(calendar) => calendar.window(number).begin,
        }
    }
}

// Months are counted from March of the year 0: a leap day is the last day of a year of twelve
// months. Then the days before a year follow from the leap years up to it, and the days before a
// month from the lengths 31, 30, 31, 30, 31 of March to July, which repeat from August and from
// January.

/// From March of the year 0 to January 1970.
const MONTHS_TO_EPOCH: u64 = 12 * 1970 - 2;
const DAYS_TO_EPOCH: u64 = days_before(MONTHS_TO_EPOCH);

/// The months and the days of 400 years, after which the Gregorian calendar repeats.
const CYCLE_MONTHS: u64 = 4_800;
const CYCLE_DAYS: u64 = 146_097;

/// Later than the last instant; no sum up to it overflows.
const LAST_MONTH: u64 = 12 * 600_000;

/// The days from March of the year 0 to the first day of a month, which is counted from there.
const fn days_before(month: u64) -> u64 {
    let (year, month) = (month / 12, month % 12);
    365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5
}

/// The first day of a month, both counted from January 1970.
const fn first_day(month: u64) -> u64 {
    let month = if month < LAST_MONTH {
        month
    } else {
        LAST_MONTH
    };
    days_before(month + MONTHS_TO_EPOCH) - DAYS_TO_EPOCH
}

/// The month that a day is in, both counted from January 1970.
const fn month_of(day: u64) -> u64 {
    let day = day + DAYS_TO_EPOCH;
    // A month begins at most some days before or after a multiple of the mean length. So this is
    // right or off by one.
    let month = day * CYCLE_MONTHS / CYCLE_DAYS;
    let month = if days_before(month) > day {
        month - 1
    } else if days_before(month + 1) <= day {
        month + 1
    } else {
        month
    };
    month - MONTHS_TO_EPOCH
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use time::{Date, Month, OffsetDateTime};

    use super::*;

    const fn months(months: u32) -> Period {
        Period::Months(NonZeroU32::new(months).expect("not 0"))
    }

    fn midnight(year: i32, month: Month) -> Micros {
        let first = Date::from_calendar_date(year, month, 1)
            .expect("a date")
            .midnight()
            .assume_utc();
        Micros(u64::try_from(first.unix_timestamp()).expect("since 1970") * 1_000_000)
    }

    /// The window by the calendar of another implementation, the crate `time`.
    fn by_calendar(now: Micros, months: u32) -> Window {
        let at = OffsetDateTime::from_unix_timestamp(
            i64::try_from(now.0 / 1_000_000).expect("in range"),
        )
        .expect("in range");
        let index = u64::try_from(at.year() - 1970).expect("since 1970") * 12
            + u64::from(u8::from(at.month()))
            - 1;
        let number = index / u64::from(months);
        let begin = |number: u64| {
            let index = number * u64::from(months);
            let month =
                Month::try_from(u8::try_from(index % 12 + 1).expect("a month")).expect("a month");
            midnight(1970 + i32::try_from(index / 12).expect("a year"), month)
        };
        Window {
            number,
            begin: begin(number),
            end: begin(number + 1),
        }
    }

    #[test]
    fn even_windows_are_multiples_of_their_length() {
        let minute = Period::Even(Span::from_secs(60));
        assert_eq!(
            minute.window_at(Micros(119_999_999)),
            Window {
                number: 1,
                begin: Micros(60_000_000),
                end: Micros(120_000_000)
            }
        );
        assert_eq!(
            (minute.shortest(), months(2).shortest()),
            (Span::from_secs(60), Span::from_secs(56 * 86_400))
        );
    }

    proptest! {
        #![proptest_config(crate::testing::property(256))]

        #[test]
        fn any_instant_is_in_the_month_of_the_calendar(
            secs in 0..253_370_764_800_u64,
            micros in 0..1_000_000_u64,
            count in 1..=120_u32,
        ) {
            let now = Micros(secs * 1_000_000 + micros);
            let window = months(count).window_at(now);
            // The end of the last window that the other calendar knows is in its range too.
            if window.end < midnight(9_999, Month::December) {
                prop_assert_eq!(window, by_calendar(now, count));
            }
            prop_assert!(window.begin <= now && now < window.end);
            prop_assert!(window.end.since(window.begin) >= months(count).shortest());
        }

        #[test]
        fn nothing_overflows(
            now in any::<u64>(),
            number in any::<u64>(),
            count in 1..=u32::MAX,
            length in 1..=u64::MAX,
        ) {
            for period in [months(count), Period::Even(Span(length))] {
                let window = period.window_at(Micros(now));
                prop_assert!(window.begin.0 <= now && now <= window.end.0);
                let any = period.window(number);
                prop_assert!(any.begin <= any.end && any.end == period.end(number));
            }
        }
    }
}
