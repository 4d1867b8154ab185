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
    #[must_use]
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

    const THREE: NonZeroU32 = NonZeroU32::new(3).expect("not 0");

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
        let by_setting = Options {
            calendar_months: true,
            ..Options::default()
        };
        assert_eq!(
            period(Unit::Month, calendar()),
            period(Unit::Month, by_setting)
        );
        let (first, second) = ("2026-01-01".parse().ok(), "2026-01-02".parse().ok());
        assert_eq!(
            period(
                Unit::Month,
                Options {
                    anchor: first,
                    ..calendar()
                }
            ),
            period(Unit::Month, by_setting)
        );
        assert!(matches!(
            period(
                Unit::Month,
                Options {
                    anchor: second,
                    ..calendar()
                }
            ),
            Period::Calendar(_)
        ));
        assert!(
            matches!(period(Unit::Year, Options { anchor: first, ..calendar() }), Period::Months(months) if months.get() == 12)
        );
        assert!(matches!(
            period(
                Unit::Month,
                Options {
                    timezone: Zone::named("Europe/London"),
                    ..calendar()
                }
            ),
            Period::Calendar(_)
        ));
        // What a limit says of itself wins over the setting.
        let fixed = Options {
            period: Some(PeriodKind::Fixed),
            calendar_months: true,
            ..Options::default()
        };
        assert!(matches!(period(Unit::Month, fixed), Period::Even(_)));
    }

    #[test]
    fn a_quarter_is_three_months() {
        let by_setting = Options {
            calendar_months: true,
            ..Options::default()
        };
        let quarter = |options| period(Unit::Quarter, options);
        assert_eq!(
            (quarter(calendar()), quarter(by_setting)),
            (Period::Months(THREE), Period::Months(THREE))
        );
        assert_eq!(
            quarter(Options {
                anchor: "2026-10-01".parse().ok(),
                ..calendar()
            }),
            Period::Months(THREE)
        );
        assert!(matches!(
            quarter(Options {
                anchor: "2026-02-01".parse().ok(),
                ..calendar()
            }),
            Period::Calendar(_)
        ));
        assert_eq!(
            quarter(Options::default()),
            Period::Even(Span::from_secs(90 * 86_400))
        );
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
        assert_eq!(applied(Unit::Hour, 1, none), none);
        assert_eq!(applied(Unit::Month, 3, none), none);
        assert_eq!(
            applied(
                Unit::Month,
                1,
                Options {
                    period: Some(PeriodKind::Fixed),
                    ..none
                }
            )
            .timezone,
            None
        );
        assert_eq!(
            applied(Unit::Month, 1, none),
            Options {
                week_starts: None,
                ..all
            }
        );
        assert_eq!(
            applied(Unit::Week, 1, none),
            Options {
                anchor: None,
                ..all
            }
        );
        let anchored = Options {
            anchor: "2026-01-01".parse().ok(),
            ..none
        };
        assert_eq!(
            applied(Unit::Week, 1, anchored),
            Options {
                week_starts: None,
                anchor: anchored.anchor,
                ..all
            }
        );
    }
}
