//! Compiles the options of a limit to its algorithm, or reports why they make none.

use super::ticks::largest;
use super::{Algorithm, AlgorithmKind, Debt, LARGEST_COUNT, OPTIONS, Options, TABLE, Terms};
use crate::core::time::{Anchor, PeriodKind, Rate, Span, Weekday, Zone};

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
    /// `fixed` or `calendar`.
    Period(fn(&mut Options) -> &mut Option<PeriodKind>),
    /// The name of a time zone.
    Zone(fn(&mut Options) -> &mut Option<Zone>),
    /// A day of the week.
    Weekday(fn(&mut Options) -> &mut Option<Weekday>),
    /// A date with or without a time of day.
    Anchor(fn(&mut Options) -> &mut Option<Anchor>),
}

/// Does the same with the field of an option, whatever its type.
macro_rules! with_field {
    ($option:expr, $field:ident => $body:expr) => {
        match $option {
            OptionField::Number($field) => $body,
            OptionField::Amount($field) => $body,
            OptionField::Duration($field) => $body,
            OptionField::Bool($field) => $body,
            OptionField::Period($field) => $body,
            OptionField::Zone($field) => $body,
            OptionField::Weekday($field) => $body,
            OptionField::Anchor($field) => $body,
        }
    };
}

impl OptionField {
    fn take(self, options: &mut Options) -> bool {
        with_field!(self, field => field(options).take().is_some())
    }

    fn fill(self, options: &mut Options, mut defaults: Options) {
        with_field!(self, field => *field(options) = field(options).or(*field(&mut defaults)));
    }
}

impl Options {
    /// These options, and for those of its own algorithm that are not written, the defaults. A
    /// domain may so give defaults for several algorithms.
    #[must_use]
    pub fn apply_defaults(mut self, defaults: &Self) -> Self {
        let own = self.kind.spec();
        for (_, field) in OPTIONS
            .iter()
            .filter(|(name, _)| own.options.contains(name))
        {
            field.fill(&mut self, *defaults);
        }
        self
    }

    /// Leaves out what defaults say and this limit cannot use. `written` are the options that are
    /// meant for this limit alone.
    pub fn leave_out_defaults(&mut self, written: &Self, rate: &Rate) {
        if !self.counts_denied() {
            self.max_debt = written.max_debt;
        }
        self.leave_out_calendar(written, rate);
    }

    /// These options, and for those that are not written those of `below`, of whatever algorithm.
    #[must_use]
    pub fn over(mut self, below: &Self) -> Self {
        for (_, field) in OPTIONS {
            field.fill(&mut self, *below);
        }
        self
    }

    /// Whether refused hits count.
    fn counts_denied(&self) -> bool {
        self.count_denied.unwrap_or(self.kind.spec().counts_denied)
    }

    /// The window of a limit with this rate; `None` if it is none.
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
            (Some(limits), true) => Debt::of(limits).ok_or_else(|| {
                let what = format!("'max_debt' is {limits}, not 1 to {}", Debt::MOST);
                let remedy = "write how many full limits a key may be in debt";
                OptionError::new("max_debt", what, remedy)
            }),
            (Some(_), false) => {
                let what = "'max_debt' has no meaning where refused hits do not count";
                let remedy = "write 'count_denied: true', or remove 'max_debt'";
                Err(OptionError::new("max_debt", what, remedy))
            }
        }
    }

    /// Neither a unit nor a request may be of no hits.
    fn check_zeros(&self) -> Result<(), OptionError> {
        let (option, what) = if self.scale == Some(0) {
            ("scale", "'scale' is 0, of which no limit can be made")
        } else if self.default_cost == Some(0) {
            let what =
                "'default_cost' is 0, with which a request that names no hits would count nothing";
            ("default_cost", what)
        } else {
            return Ok(());
        };
        let remedy = format!("write 1 or more, or remove '{option}'");
        Err(OptionError::new(option, what, remedy))
    }

    /// Removes the options that have no meaning for the algorithm, and returns an error for each.
    pub fn remove_foreign(&mut self) -> Vec<OptionError> {
        let own = self.kind.spec();
        let mut errors = Vec::new();
        for &(option, field) in OPTIONS
            .iter()
            .filter(|(name, _)| !own.options.contains(name))
        {
            if field.take(self) {
                if option == "lease" {
                    errors.push(own.kind.lease_refusal());
                    continue;
                }
                let owners: Vec<_> = TABLE
                    .iter()
                    .filter(|spec| spec.options.contains(&option))
                    .map(|spec| spec.name)
                    .collect();
                let what = format!("'{option}' has no meaning for a {}", own.name);
                errors.push(OptionError::new(
                    option,
                    what,
                    format!(
                        "remove it, or write 'algorithm: {}'",
                        owners.join("' or 'algorithm: ")
                    ),
                ));
            }
        }
        errors
    }
}

/// Why options make no algorithm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OptionError {
    /// The option that is wrong, by its name in a file.
    pub option: &'static str,
    /// What is wrong.
    pub what: String,
    /// How to correct it.
    pub remedy: String,
}

impl OptionError {
    pub(crate) fn new(
        option: &'static str,
        what: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self {
            option,
            what: what.into(),
            remedy: remedy.into(),
        }
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
    let largest = largest / u64::from(scale);
    let (each, smaller) = match scale {
        1 => (String::new(), ""),
        scale => (format!(" of {scale} hits each"), ", or a smaller 'scale'"),
    };
    let what = match kind {
        AlgorithmKind::Concurrency => {
            format!("'{option}' is {units}, and a concurrency limit has at most {largest} places")
        }
        _ => format!(
            "'{option}' is {units}{each}, which is more than a {} counts exactly in this window",
            kind.name()
        ),
    };
    OptionError::new(option, what, format!("write at most {largest}{smaller}"))
}

impl Algorithm {
    /// The algorithm of a rate with these options. At a rate of 0 every algorithm refuses
    /// everything.
    ///
    /// # Errors
    /// The first [`OptionError`].
    pub fn try_new(rate: &Rate, options: &Options) -> Result<Self, OptionError> {
        let window = options.window(rate).ok_or_else(|| {
            let what = "the window is zero or longer than 100 years";
            OptionError::new(
                "unit_multiplier",
                what,
                "write a unit_multiplier from 1 on that makes the window shorter",
            )
        })?;
        let mut options = *options;
        let mut errors = options.remove_foreign();
        errors.extend(options.remove_wrong_calendar(rate, false));
        if let Some(error) = errors.into_iter().next() {
            return Err(error);
        }
        let debt = options.debt()?;
        let scale = options.scale.unwrap_or(1);
        options.check_zeros()?;
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
