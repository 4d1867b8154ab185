//! Calendars: days, weeks, months, quarters and years by the clocks of a time zone, from midnight
//! or from an anchor.
//!
//! A window begins at the first instant at which the clocks show its begin or a later time. So a
//! day has 23 or 25 hours when the clocks change, begins at 01:00 where they skip midnight, and has
//! no instant where they skip the whole day, as in Samoa on 30 December 2011. Numbers count from
//! the year 0: the number of a year is the year, and a change of a zone's rules does not change it.
//!
//! The windows that a thread has found last, which save most requests a look-up in a time zone.
//!
//! A window that was found before is the same as one that is found again: [`super::Calendar`] stays
//! a pure function.
//!
//! To find a window costs 5,000 instructions, and a step 500 (200 for windows of one length).

use std::cell::Cell;

use jiff::Timestamp;
use jiff::civil::{Date, DateTime, Weekday};
use jiff::tz::AmbiguousOffset;

use super::anchor::TimeOfDay;
use super::{Anchor, Micros, Span, Unit, Window, Zone};

/// A division of time into windows by a calendar. Two calendars with the same windows under the
/// same zone are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Calendar {
    /// The local time at which windows begin, in seconds since midnight.
    time_secs: u32,
    zone: Zone,
    days: Days,
}

/// The days on which windows begin. A day of the month that a month does not have is its last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Days {
    Every,
    /// Days after Monday.
    Weekly(u8),
    /// Of each so many months of a year, the `first`, from 0 on.
    Months {
        count: u8,
        first: u8,
        day: u8,
    },
}

/// The first day of the calendar that is counted.
const DAY_0: Date = Date::constant(0, 1, 1);

/// Days after Monday of that day, a Saturday.
const WEEKDAY_0: i64 = 5;

/// 400 years, after which the days, the weekdays and the rules of zones repeat.
const CYCLE_SECS: i64 = 146_097 * 86_400;

const MICROS_PER_SECOND: u64 = 1_000_000;

impl Calendar {
    /// The days, weeks, months, quarters or years of a zone; `None` for a shorter unit. They begin
    /// on the day and at the time of an anchor, or else on the first day at midnight. A week
    /// without an anchor begins on `week_starts`.
    pub fn new(
        unit: Unit,
        zone: Zone,
        week_starts: Weekday,
        anchor: Option<Anchor>,
    ) -> Option<Self> {
        let date = anchor.map(Anchor::date);
        let (month, day) = date.map_or((1, 1), |date| {
            (date.month().unsigned_abs(), date.day().unsigned_abs())
        });
        let weekday = anchor.map_or(week_starts, Anchor::weekday);
        let months = |count, first| Days::Months { count, first, day };
        let days = match unit {
            Unit::None | Unit::Second | Unit::Minute | Unit::Hour => return None,
            Unit::Day => Days::Every,
            Unit::Week => Days::Weekly(weekday.to_monday_zero_offset().unsigned_abs()),
            Unit::Month => months(1, 0),
            Unit::Quarter => months(3, (month - 1) % 3),
            Unit::Year => months(12, month - 1),
        };
        Some(Self {
            time_secs: anchor.and_then(Anchor::time_secs).unwrap_or(0),
            zone,
            days,
        })
    }

    /// The whole months of a window that is one of the first of a month in UTC; `None` for any
    /// other calendar.
    pub(super) fn utc_months(self) -> Option<u32> {
        match self.days {
            _ if self.zone != Zone::utc() || self.time_secs > 0 => None,
            Days::Months {
                count,
                first: 0,
                day: 1,
            } => Some(count.into()),
            _ => None,
        }
    }

    /// The window that `now` lies in.
    pub fn window_at(self, now: Micros) -> Window {
        window(
            self,
            |window| window.begin <= now && now < window.end,
            || self.find(now),
        )
    }

    /// The window of that number. Before 1970 and after the last instant there are only empty ones.
    pub fn window(self, number: u64) -> Window {
        window(
            self,
            |window| window.number == number,
            || self.numbered(number),
        )
    }

    /// A length that no window falls below, except for days that a zone has skipped in whole or in
    /// part.
    pub const fn shortest(self) -> Span {
        // Clocks have changed by up to three hours.
        let hours = match self.days {
            Days::Every => 24,
            Days::Weekly(_) => 7 * 24,
            Days::Months { count: 1, .. } => 28 * 24,
            // From 31 January to 30 April.
            Days::Months { count: 3, .. } => 89 * 24,
            Days::Months { .. } => 365 * 24,
        } - 3;
        Span::from_secs(hours * 3_600)
    }

    /// The zone in which its windows begin.
    pub fn zone(self) -> Zone {
        self.zone
    }

    /// The day on which a week begins; `None` for another unit.
    pub fn week_starts(self) -> Option<&'static str> {
        let Days::Weekly(days) = self.days else {
            return None;
        };
        super::WEEKDAYS
            .get(usize::from(days))
            .map(|(name, _)| *name)
    }

    /// The day and the time at which a window begins, if they differ from a calendar without an
    /// anchor: `day 31`, `12-24 at 06:00`, `06:00`. For a quarter, the day is in the first quarter
    /// of a year.
    pub fn anchor(self) -> Option<String> {
        let day = match self.days {
            Days::Every
            | Days::Weekly(_)
            | Days::Months {
                first: 0, day: 1, ..
            } => None,
            Days::Months { count: 1, day, .. } => Some(format!("day {day}")),
            Days::Months { first, day, .. } => Some(format!("{:02}-{day:02}", first + 1)),
        };
        let time = (self.time_secs > 0).then(|| TimeOfDay(self.time_secs).to_string());
        match (day, time) {
            (Some(day), Some(time)) => Some(format!("{day} at {time}")),
            (day, time) => day.or(time),
        }
    }

    /// Appends what distinguishes its windows from windows of any other period, in the characters
    /// of zone names: `month-31@Europe/Berlin`, `quarter-0215@UTC`, `day-0600@UTC`,
    /// `week-mon@Asia/Kolkata`.
    pub(crate) fn write_tag(self, out: &mut Vec<u8>) {
        let two = |out: &mut Vec<u8>, number: u32| {
            out.extend([b'0' + (number / 10) as u8, b'0' + (number % 10) as u8]);
        };
        match self.days {
            Days::Every => out.extend_from_slice(b"day"),
            Days::Weekly(_) => {
                out.extend_from_slice(b"week-");
                out.extend(self.week_starts().unwrap_or_default().bytes().take(3));
            }
            Days::Months { count: 1, day, .. } => {
                out.extend_from_slice(b"month-");
                two(out, day.into());
            }
            Days::Months { count, first, day } => {
                out.extend_from_slice(if count == 3 { b"quarter-" } else { b"year-" });
                two(out, u32::from(first) + 1);
                two(out, day.into());
            }
        }
        if self.time_secs > 0 {
            out.push(b'-');
            two(out, self.time_secs / 3_600);
            two(out, self.time_secs / 60 % 60);
            if !self.time_secs.is_multiple_of(60) {
                two(out, self.time_secs % 60);
            }
        }
        out.push(b'@');
        out.extend_from_slice(self.zone.name().as_bytes());
    }

    fn find(self, now: Micros) -> Window {
        let secs = (now.0 / MICROS_PER_SECOND).cast_signed();
        // Later instants are moved back to the second cycle from 1970 on, the years 2370 to 2769.
        let cycles = (secs / CYCLE_SECS - 1).max(0);
        let at = secs - cycles * CYCLE_SECS;
        let local = self
            .zone
            .rules()
            .to_datetime(Timestamp::from_second(at).unwrap_or_default());
        let mut number = self.number_by_clock(local);
        // Clocks that were set back show a time before the begin of the window that they have shown
        // before.
        while at >= self.begin_secs(number + 1) {
            number += 1;
        }
        self.numbered((number + cycles * self.windows_per_cycle()).unsigned_abs())
    }

    fn numbered(self, number: u64) -> Window {
        Window {
            number,
            begin: self.begin(number),
            end: self.begin(number.saturating_add(1)),
        }
    }

    fn begin(self, number: u64) -> Micros {
        let per_cycle = self.windows_per_cycle().unsigned_abs();
        // Later years are moved back to 2400 to 2799. Until then all zones change by rules that
        // repeat.
        let cycles = (number / per_cycle).saturating_sub(6);
        let begin = self.begin_secs((number - cycles * per_cycle).cast_signed());
        let begin = u64::try_from(begin)
            .unwrap_or(0)
            .saturating_add(cycles.saturating_mul(CYCLE_SECS.unsigned_abs()));
        Micros(begin.saturating_mul(MICROS_PER_SECOND))
    }

    const fn windows_per_cycle(self) -> i64 {
        match self.days {
            Days::Every => 146_097,
            Days::Weekly(_) => 146_097 / 7,
            Days::Months { count, .. } => 4_800 / count as i64,
        }
    }

    /// The number of the last window whose begin is not after a local time.
    fn number_by_clock(self, local: DateTime) -> i64 {
        let time = local.time();
        let is_before = i64::from(time.hour()) * 3_600
            + i64::from(time.minute()) * 60
            + i64::from(time.second())
            < self.time_secs.into();
        let date = if is_before {
            local.date().yesterday().unwrap_or(DAY_0)
        } else {
            local.date()
        };
        let year = i64::from(date.year());
        match self.days {
            Days::Every => days_to(date),
            Days::Weekly(first) => {
                (days_to(date) - i64::from(days_since(first, date.weekday()))).div_euclid(7)
            }
            Days::Months { count, first, .. } => {
                let month = 12 * year + i64::from(date.month()) - 1;
                let number = (month - i64::from(first)).div_euclid(count.into());
                number - i64::from(date < self.first_date(number))
            }
        }
    }

    /// The date on which the window of a number begins.
    fn first_date(self, number: i64) -> Date {
        let clamped = |year: i64, month: i64, day: u8| {
            let first = Date::new(year as i16, month as i8, 1).unwrap_or(DAY_0);
            first
                .with()
                .day((day as i8).min(first.days_in_month()))
                .build()
                .unwrap_or(first)
        };
        match self.days {
            Days::Every => day(number),
            Days::Weekly(first) => day(7 * number + (i64::from(first) - WEEKDAY_0).rem_euclid(7)),
            Days::Months { count, first, day } => {
                let month = number * i64::from(count) + i64::from(first);
                clamped(month.div_euclid(12), month.rem_euclid(12) + 1, day)
            }
        }
    }

    /// The first second at which the clocks show the begin of a window or a later time.
    fn begin_secs(self, number: i64) -> i64 {
        let secs = self.time_secs as i32;
        let [hour, minute, second] =
            [secs / 3_600, secs / 60 % 60, secs % 60].map(|part| part as i8);
        let local = self.first_date(number).at(hour, minute, second, 0);
        let rules = self.zone.rules();
        let instant = match rules.to_ambiguous_timestamp(local).offset() {
            AmbiguousOffset::Unambiguous { offset } => offset.to_timestamp(local),
            // Shown twice: the first time.
            AmbiguousOffset::Fold { before, .. } => before.to_timestamp(local),
            // Skipped: the instant of the change.
            AmbiguousOffset::Gap { before, after } => match after.to_timestamp(local) {
                Ok(earlier) => rules
                    .following(earlier)
                    .map(|change| (change.timestamp(), change.offset()))
                    .find(|(at, offset)| offset.to_datetime(*at) > local)
                    .map_or_else(|| before.to_timestamp(local), |(at, _)| Ok(at)),
                Err(error) => Err(error),
            },
        };
        instant.unwrap_or_default().as_second()
    }
}

/// The days from [`DAY_0`] to a date.
fn days_to(date: Date) -> i64 {
    date.duration_since(DAY_0).as_hours() / 24
}

/// The date so many days after [`DAY_0`].
fn day(number: i64) -> Date {
    DAY_0
        .checked_add(jiff::SignedDuration::from_hours(24 * number))
        .unwrap_or(DAY_0)
}

/// The days from the last `first`, counted from Monday, to a weekday.
fn days_since(first: u8, weekday: Weekday) -> u8 {
    (7 + weekday.to_monday_zero_offset().unsigned_abs() - first) % 7
}

/// Windows of one thread, 2.5 KiB: one for each calendar of most configurations. Two that share a
/// slot take turns in it.
pub(crate) const SLOTS: usize = 64;

type WindowSlot = Cell<Option<(Calendar, Window)>>;

thread_local! {
    static RECENT: [WindowSlot; SLOTS] = const { [const { Cell::new(None) }; SLOTS] };
}

/// The last window of a calendar if it is the sought one, or else the result of `find`.
fn window(
    calendar: Calendar,
    is_sought: impl Fn(&Window) -> bool,
    find: impl FnOnce() -> Window,
) -> Window {
    RECENT.with(|slots| {
        let slot = &slots[slot(calendar)];
        match slot.get() {
            Some((known, window)) if known == calendar && is_sought(&window) => window,
            _ => {
                let window = find();
                slot.set(Some((calendar, window)));
                window
            }
        }
    })
}

fn slot(calendar: Calendar) -> usize {
    let days = match calendar.days {
        Days::Every => 0,
        Days::Weekly(days) => 1 + u64::from(days),
        Days::Months { count, first, day } => {
            512 * u64::from(count) + 32 * u64::from(first) + u64::from(day)
        }
    };
    let bits = u64::from(calendar.time_secs) << 32 | days << 16 | calendar.zone.index();
    // The upper bits of a product depend on all bits (Knuth, The Art of Computer Programming,
    // volume 3, section 6.4).
    (bits.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - SLOTS.ilog2())) as usize
}

#[cfg(test)]
mod tests;
