//! Compiles the options of a limit to its algorithm, or reports why they make none. A
//! `fixed_window` that follows the calendar has `period`, `timezone`, `week_starts` and `anchor`.

use super::ticks::largest;
use super::{
    Algorithm, AlgorithmKind, CALENDAR, LARGEST_COUNT, OPTIONS, OptionRow, Options, Reservations,
    TABLE, Terms, messages,
};
use crate::core::message::Message;
use crate::core::time::{Anchor, Calendar, Period, PeriodKind, Rate, Span, Unit, Weekday, Zone};

/// The field of [`Options`] that an option is read into, by its type.
#[derive(Clone, Copy, Debug)]
pub enum OptionField {
    /// A whole number from 0 to 2^32 - 1.
    Number(fn(&mut Options) -> &mut Option<u32>),
    /// A number of hits, from 0 to 2^53 - 1.
    Amount(fn(&mut Options) -> &mut Option<u64>),
    Duration(fn(&mut Options) -> &mut Option<Span>),
    /// True or false.
    Bool(fn(&mut Options) -> &mut Option<bool>),
    /// A map of its own.
    Reservations(fn(&mut Options) -> &mut Option<Reservations>),
    /// `fixed` or `calendar`.
    Period(fn(&mut Options) -> &mut Option<PeriodKind>),
    /// The name of a time zone.
    Zone(fn(&mut Options) -> &mut Option<Zone>),
    /// A day of the week.
    Weekday(fn(&mut Options) -> &mut Option<Weekday>),
    /// A date with or without a time of day.
    Anchor(fn(&mut Options) -> &mut Option<Anchor>),
}

/// Evaluates an expression with the field of an option, whatever its type.
macro_rules! with_field {
    ($option:expr, $field:ident => $body:expr) => {
        match $option {
            $crate::core::algorithm::OptionField::Number($field) => $body,
            $crate::core::algorithm::OptionField::Amount($field) => $body,
            $crate::core::algorithm::OptionField::Duration($field) => $body,
            $crate::core::algorithm::OptionField::Bool($field) => $body,
            $crate::core::algorithm::OptionField::Reservations($field) => $body,
            $crate::core::algorithm::OptionField::Period($field) => $body,
            $crate::core::algorithm::OptionField::Zone($field) => $body,
            $crate::core::algorithm::OptionField::Weekday($field) => $body,
            $crate::core::algorithm::OptionField::Anchor($field) => $body,
        }
    };
}
pub(crate) use with_field;

impl OptionField {
    fn take(self, options: &mut Options) -> bool {
        with_field!(self, field => field(options).take().is_some())
    }

    fn fill(self, options: &mut Options, mut defaults: Options) {
        with_field!(self, field => *field(options) = field(options).or(*field(&mut defaults)));
    }
}

impl Options {
    /// These options, completed with the defaults for its own algorithm. So a domain may give
    /// defaults for several algorithms.
    #[must_use]
    pub fn apply_defaults(mut self, defaults: &Self) -> Self {
        let own = self.kind.spec();
        for option in OPTIONS.iter().filter(|option| own.takes(option.name)) {
            option.field.fill(&mut self, *defaults);
        }
        self
    }

    /// Removes defaults that this limit cannot use. `written` are the options that are meant for
    /// this limit alone.
    pub fn leave_out_defaults(&mut self, written: &Self, rate: &Rate) {
        if !self.counts_denied() {
            self.max_debt = written.max_debt;
        }
        self.leave_out_holds(written);
        self.leave_out_calendar(written, rate);
    }

    /// These options, completed with the options of `below`, whatever its algorithm is.
    #[must_use]
    pub fn over(mut self, below: &Self) -> Self {
        for option in OPTIONS {
            option.field.fill(&mut self, *below);
        }
        self
    }

    /// Whether refused hits count.
    pub(super) fn counts_denied(&self) -> bool {
        self.count_denied
            .unwrap_or(self.kind == AlgorithmKind::FixedWindow || self.has_holds())
    }

    /// The window of a limit with this rate; `None` if it is zero or too long.
    fn window(&self, rate: &Rate) -> Option<Span> {
        match self.kind {
            AlgorithmKind::Concurrency => Some(Span::ZERO),
            _ => rate.window(),
        }
    }

    fn debt(&self) -> Result<Debt, OptionError> {
        match (self.max_debt, self.counts_denied()) {
            (None, true) => Ok(Debt::ONE),
            (None, false) => Ok(Debt::NONE),
            (Some(limits), true) => Debt::of(limits)
                .ok_or_else(|| messages::max_debt_out_of_range(limits, Debt::MOST).of("max_debt")),
            (Some(_), false) => Err(messages::max_debt_without_count_denied().of("max_debt")),
        }
    }

    /// Neither a unit nor a request may be of no hits.
    fn check_zeros(&self) -> Result<(), OptionError> {
        match (self.scale, self.default_cost) {
            (Some(0), _) => Err(messages::scale_is_zero().of("scale")),
            (_, Some(0)) => Err(messages::default_cost_is_zero().of("default_cost")),
            _ => Ok(()),
        }
    }

    /// Removes the options that have no meaning for the algorithm, and returns an error for each.
    pub fn remove_foreign(&mut self) -> Vec<OptionError> {
        let own = self.kind.spec();
        let mut errors = Vec::new();
        let foreign = OPTIONS.iter().filter(|option| !own.takes(option.name));
        for &OptionRow { name, field, .. } in foreign {
            if !field.take(self) {
                continue;
            }
            if let Some(error) = own.kind.refusal(name) {
                errors.push(error);
                continue;
            }
            let owners = TABLE.iter().filter(|spec| spec.takes(name));
            let owners: Vec<_> = owners.map(|spec| spec.name).collect();
            let owners = owners.join("' or 'algorithm: ");
            let message = messages::option_of_other_algorithm(name, own.name, owners);
            errors.push(message.of(name));
        }
        errors
    }
}

/// Whether refused hits count, and how many full limits below zero they may take a key.
///
/// A key may be in debt although its limit no longer counts refused hits: they were counted before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Debt {
    counts: bool,
    limits: u8,
}

impl Debt {
    /// The largest `max_debt`. With it, the numbers of a limit of 2^32 - 1 are exact.
    pub const MOST: u8 = 100;

    /// Refused hits do not count.
    pub const NONE: Self = Self {
        counts: false,
        limits: 1,
    };

    /// Refused hits count, up to one full limit.
    pub const ONE: Self = Self {
        counts: true,
        limits: 1,
    };

    /// Refused hits count, up to this number of full limits; `None` if it is not 1 to [`Debt::MOST`].
    pub fn of(limits: u32) -> Option<Self> {
        let limits = u8::try_from(limits)
            .ok()
            .filter(|limits| (1..=Self::MOST).contains(limits))?;
        Some(Self {
            counts: true,
            limits,
        })
    }

    /// Whether refused hits count.
    pub const fn counts(self) -> bool {
        self.counts
    }

    /// The number of full limits that a key may be below zero.
    pub const fn limits(self) -> u64 {
        self.limits as u64
    }

    /// The same debt of stored states, with refused hits that do not count.
    #[must_use]
    pub const fn uncounted(self) -> Self {
        Self {
            counts: false,
            ..self
        }
    }

    /// The parameter of the steps in `lua/`: twice the limits, plus 1 if refused hits count.
    pub(super) const fn script_parameter(self) -> u64 {
        2 * self.limits() + self.counts as u64
    }
}

/// An option that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OptionError {
    /// Its name in a file.
    pub option: &'static str,
    pub message: Message,
}

impl Message {
    /// The error of an option.
    pub(crate) fn of(self, option: &'static str) -> OptionError {
        let message = self;
        OptionError { option, message }
    }
}

/// The error of an amount of so many units, of which at most `largest` hits fit.
fn too_large(
    option: &'static str,
    units: u64,
    scale: u32,
    largest: u64,
    kind: AlgorithmKind,
) -> OptionError {
    let (largest, name) = (largest / u64::from(scale), kind.name());
    let message = match (kind, scale) {
        (AlgorithmKind::Concurrency, _) => messages::too_many_places(option, units, largest),
        (_, 1) => messages::amount_too_large(option, units, name, largest),
        (_, scale) => messages::amount_of_units_too_large(option, units, scale, name, largest),
    };
    message.of(option)
}

impl Algorithm {
    /// The algorithm of a rate with these options. At a rate of 0 every algorithm refuses
    /// everything.
    ///
    /// # Errors
    /// The first [`OptionError`].
    pub fn try_new(rate: &Rate, options: &Options) -> Result<Self, OptionError> {
        let window = options
            .window(rate)
            .ok_or_else(|| messages::window_out_of_range().of("unit_multiplier"))?;
        let mut options = *options;
        let mut errors = options.remove_foreign();
        errors.extend(options.remove_wrong_calendar(rate, false));
        if let Some(error) = errors.into_iter().next() {
            return Err(error);
        }
        let debt = options.debt()?;
        let scale = options.scale.unwrap_or(1);
        options.check_zeros()?;
        options.check_holds()?;
        // More than any algorithm counts is not exact either.
        let hits = |units: u64| units.saturating_mul(scale.into()).min(LARGEST_COUNT);
        let (limit, burst) = (hits(rate.requests_per_unit), options.burst);
        options.burst = burst.map(hits);
        let define = |limit, options: &Options| {
            (options.kind.spec().define)(&Terms {
                limit,
                window,
                options,
                debt,
            })
        };
        let mut algorithm = define(limit, &options)?;
        if !algorithm.is_exact() {
            let is_exact = |limit, burst| {
                define(limit, &Options { burst, ..options })
                    .is_ok_and(|algorithm| algorithm.is_exact())
            };
            return Err(match burst {
                Some(units) if is_exact(limit, Some(1)) => {
                    let most = largest(|hits| hits == 0 || is_exact(limit, Some(hits)));
                    too_large("burst", units, scale, most, options.kind)
                }
                _ => too_large(
                    "requests_per_unit",
                    rate.requests_per_unit,
                    scale,
                    largest(|hits| is_exact(hits, burst.map(|_| 1))),
                    options.kind,
                ),
            });
        }
        if let Self::FixedWindow(fixed) = &mut algorithm
            && let Some(calendar) = options.calendar(rate)
        {
            fixed.window = calendar;
        }
        Ok(algorithm)
    }
}

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
    /// each that is wrong. `is_multiplied`: the limit has `unit_multiplier` in addition to
    /// `period`, even if it is 1.
    pub fn remove_wrong_calendar(&mut self, rate: &Rate, is_multiplied: bool) -> Vec<OptionError> {
        let errors = self.calendar_errors(rate, is_multiplied);
        if !errors.is_empty() {
            let calendar = OPTIONS.iter().filter(|row| CALENDAR.contains(&row.name));
            for row in calendar {
                row.field.take(self);
            }
        }
        errors
    }

    fn calendar_errors(&self, rate: &Rate, is_multiplied: bool) -> Vec<OptionError> {
        if self.period != Some(PeriodKind::Calendar) {
            let is_other = |name| CALENDAR.contains(&name) && name != "period";
            let written = OPTIONS.iter().filter(|row| is_other(row.name));
            let written = written.filter(|row| row.field.take(&mut { *self }));
            let error = |row: &OptionRow| messages::calendar_without_period(row.name).of(row.name);
            return written.map(error).collect();
        }
        let mut errors = Vec::new();
        if !has_calendar(rate.unit) {
            errors.push(messages::calendar_of_short_unit(rate.unit.name()).of("period"));
        }
        if is_multiplied || rate.unit_multiplier != 1 {
            errors.push(messages::calendar_with_multiplier().of("unit_multiplier"));
        }
        if self.week_starts.is_some() {
            let message = match (rate.unit, self.anchor) {
                (Unit::Week, None) => return errors,
                (Unit::Week, Some(_)) => messages::week_starts_with_anchor(),
                (unit, _) => messages::week_starts_without_week(unit.name()),
            };
            errors.push(message.of("week_starts"));
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
        // A limit's own option wins over the setting.
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
