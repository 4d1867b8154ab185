//! The options of a `fixed_window` that follows the calendar: `period`, `timezone`, `week_starts`
//! and `anchor`, and what belongs together of them.

use super::{AlgorithmKind, OptionError, Options};
use crate::core::time::{Calendar, Period, PeriodKind, Rate, Unit, Weekday, Zone};

impl Options {
    /// The windows of the calendar that these options describe; `None` if windows have one length.
    pub(super) fn calendar(&self, rate: &Rate) -> Option<Period> {
        match self.period {
            Some(PeriodKind::Calendar) => {
                let (zone, week_starts) = (
                    self.timezone.unwrap_or_else(Zone::utc),
                    self.week_starts.unwrap_or(Weekday::Monday),
                );
                Calendar::new(rate.unit, zone, week_starts, self.anchor).map(Period::of_calendar)
            }
            Some(PeriodKind::Fixed) => None,
            None => rate.calendar_months().filter(|_| self.calendar_months),
        }
    }

    /// Removes the options of a calendar if they make none of this rate, and returns an error for
    /// each that is wrong. `is_multiplied`: the limit that says `period` says `unit_multiplier`
    /// too, if only 1.
    pub fn remove_wrong_calendar(&mut self, rate: &Rate, is_multiplied: bool) -> Vec<OptionError> {
        let errors = self.calendar_errors(rate, is_multiplied);
        if !errors.is_empty() {
            *self = Self {
                period: None,
                timezone: None,
                week_starts: None,
                anchor: None,
                ..*self
            };
        }
        errors
    }

    fn calendar_errors(&self, rate: &Rate, is_multiplied: bool) -> Vec<OptionError> {
        if self.period != Some(PeriodKind::Calendar) {
            let written = [
                ("timezone", self.timezone.is_some()),
                ("week_starts", self.week_starts.is_some()),
                ("anchor", self.anchor.is_some()),
            ];
            let error = |option| {
                let what = format!("'{option}' has no meaning without 'period: calendar'");
                OptionError::new(option, what, "write 'period: calendar', or remove it")
            };
            return written
                .into_iter()
                .filter(|(_, is_written)| *is_written)
                .map(|(option, _)| error(option))
                .collect();
        }
        let mut errors = Vec::new();
        if !has_calendar(rate.unit) {
            let what = format!(
                "'period: calendar' has no meaning for 'unit: {}'",
                rate.unit.name()
            );
            errors.push(OptionError::new(
                "period",
                what,
                "write 'unit: day', week, month, quarter or year, or remove 'period'",
            ));
        }
        if is_multiplied || rate.unit_multiplier != 1 {
            let what =
                "'unit_multiplier' has no meaning beside 'period: calendar': a window is one unit";
            errors.push(OptionError::new(
                "unit_multiplier",
                what,
                "remove it, or remove 'period'",
            ));
        }
        if self.week_starts.is_some() {
            let (what, remedy) = match (rate.unit, self.anchor) {
                (Unit::Week, None) => return errors,
                (Unit::Week, Some(_)) => (
                    "'week_starts' and 'anchor' both say on which day a week begins".to_owned(),
                    "remove one of them",
                ),
                (unit, _) => {
                    let what = format!("'week_starts' has no meaning for 'unit: {}'", unit.name());
                    (what, "write 'unit: week', or remove it")
                }
            };
            errors.push(OptionError::new("week_starts", what, remedy));
        }
        errors
    }

    /// [`Options::leave_out_defaults`], of a calendar.
    pub(super) fn leave_out_calendar(&mut self, written: &Self, rate: &Rate) {
        if self.kind != AlgorithmKind::FixedWindow {
            return;
        }
        if !has_calendar(rate.unit) || rate.unit_multiplier != 1 {
            self.period = written.period;
        }
        let is_calendar = self.period == Some(PeriodKind::Calendar);
        let is_week = is_calendar && rate.unit == Unit::Week;
        if !is_calendar {
            self.timezone = written.timezone;
        }
        if !is_week || written.anchor.is_some() {
            self.week_starts = written.week_starts;
        }
        if !is_calendar || (is_week && self.week_starts.is_some()) {
            self.anchor = written.anchor;
        }
    }

    /// Whether the anchor changes nothing: a day begins on any date.
    pub fn has_idle_anchor(&self, rate: &Rate) -> bool {
        rate.unit == Unit::Day
            && self
                .anchor
                .is_some_and(|anchor| anchor.time_secs().is_none())
    }
}

fn has_calendar(unit: Unit) -> bool {
    match unit {
        Unit::None | Unit::Second | Unit::Minute | Unit::Hour => false,
        Unit::Day | Unit::Week | Unit::Month | Unit::Quarter | Unit::Year => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::num::NonZeroU32;

    use crate::core::algorithm::{Algorithm, FixedWindow};
    use crate::core::time::Span;

    fn calendar() -> Options {
        Options {
            period: Some(PeriodKind::Calendar),
            ..Options::default()
        }
    }

    const fn rate(unit: Unit) -> Rate {
        Rate {
            requests_per_unit: 1,
            unit,
            unit_multiplier: 1,
        }
    }

    fn period(unit: Unit, options: Options) -> Period {
        let Ok(Algorithm::FixedWindow(FixedWindow { window, .. })) =
            Algorithm::try_new(&rate(unit), &options)
        else {
            panic!("{options:?}")
        };
        window
    }

    #[test]
    fn months_and_years_in_utc_are_those_of_the_setting() {
        let setting = Options {
            calendar_months: true,
            ..Options::default()
        };
        // What a limit says of itself wins over the setting.
        let fixed = Options {
            period: Some(PeriodKind::Fixed),
            ..setting
        };
        let from = |anchor: &str| Options {
            anchor: Some(anchor.parse().expect("an anchor")),
            ..calendar()
        };
        let in_london = Options {
            timezone: Zone::named("Europe/London"),
            ..calendar()
        };
        let months = |months| Some(Period::Months(NonZeroU32::new(months).expect("not 0")));
        let days = |days: u64| Some(Period::Even(Span::from_secs(days * 86_400)));
        // None: a calendar of its own.
        for (unit, options, expected) in [
            (Unit::Month, setting, months(1)),
            (Unit::Month, calendar(), months(1)),
            (Unit::Month, from("2026-01-01"), months(1)),
            (Unit::Month, from("2026-01-02"), None),
            (Unit::Year, from("2026-01-01"), months(12)),
            (Unit::Month, in_london, None),
            (Unit::Month, fixed, days(30)),
            (Unit::Quarter, setting, months(3)),
            (Unit::Quarter, calendar(), months(3)),
            (Unit::Quarter, from("2026-10-01"), months(3)),
            (Unit::Quarter, from("2026-02-01"), None),
            (Unit::Quarter, Options::default(), days(90)),
        ] {
            let found = Some(period(unit, options));
            let found = found.filter(|found| !matches!(found, Period::Calendar(_)));
            assert_eq!(found, expected, "{unit:?} {options:?}");
        }
    }

    #[test]
    fn defaults_apply_where_they_have_a_meaning() {
        let all = Options {
            timezone: Zone::named("Asia/Tokyo"),
            week_starts: Some(Weekday::Sunday),
            anchor: "2026-03-31".parse().ok(),
            ..calendar()
        };
        let applied = |unit, unit_multiplier, written: Options| {
            let rate = Rate {
                unit_multiplier,
                ..rate(unit)
            };
            let mut options = written.apply_defaults(&all);
            options.leave_out_defaults(&written, &rate);
            assert_eq!(
                options.remove_wrong_calendar(&rate, false),
                [],
                "{options:?}"
            );
            options
        };
        let none = Options::default();
        let fixed = Options {
            period: Some(PeriodKind::Fixed),
            ..none
        };
        let anchored = Options {
            anchor: "2026-01-01".parse().ok(),
            ..none
        };
        let but_week = Options {
            week_starts: None,
            ..all
        };
        let week = |week_starts, anchor| Options {
            week_starts,
            anchor,
            ..all
        };
        for (unit, multiplier, written, expected) in [
            (Unit::Hour, 1, none, none),
            (Unit::Month, 3, none, none),
            (Unit::Month, 1, none, but_week),
            (Unit::Week, 1, none, week(all.week_starts, None)),
            (Unit::Week, 1, anchored, week(None, anchored.anchor)),
        ] {
            assert_eq!(applied(unit, multiplier, written), expected, "{unit:?}");
        }
        assert_eq!(applied(Unit::Month, 1, fixed).timezone, None);
    }
}
