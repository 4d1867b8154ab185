//! Compiles the options of a limit to its algorithm, or reports why they make none.

use super::{Algorithm, OPTIONS, Options, TABLE};
use crate::time::{Rate, Span};

/// The field of [`Options`] that an option is read into, by its type.
#[derive(Clone, Copy, Debug)]
pub enum OptionField {
    /// A whole number from 0 to 2^32 - 1.
    Number(fn(&mut Options) -> &mut Option<u32>),
    /// A duration.
    Duration(fn(&mut Options) -> &mut Option<Span>),
    /// True or false.
    Bool(fn(&mut Options) -> &mut Option<bool>),
}

impl OptionField {
    fn take(self, options: &mut Options) -> bool {
        match self {
            Self::Number(field) => field(options).take().is_some(),
            Self::Duration(field) => field(options).take().is_some(),
            Self::Bool(field) => field(options).take().is_some(),
        }
    }

    fn fill(self, options: &mut Options, mut defaults: Options) {
        match self {
            Self::Number(field) => *field(options) = field(options).or(*field(&mut defaults)),
            Self::Duration(field) => *field(options) = field(options).or(*field(&mut defaults)),
            Self::Bool(field) => *field(options) = field(options).or(*field(&mut defaults)),
        }
    }
}

impl Options {
    /// These options, and for those of its own algorithm that are not written, the defaults. A domain may so give defaults for several
    /// algorithms.
    #[must_use]
    pub fn apply_defaults(mut self, defaults: &Self) -> Self {
        let own = self.kind.spec();
        for (_, field) in OPTIONS.iter().filter(|(name, _)| own.options.contains(name)) {
            field.fill(&mut self, *defaults);
        }
        self
    }

    /// Removes the options that have no meaning for the algorithm, and returns an error for each.
    pub fn remove_foreign(&mut self) -> Vec<OptionError> {
        let own = self.kind.spec();
        let mut errors = Vec::new();
        for &(option, field) in OPTIONS.iter().filter(|(name, _)| !own.options.contains(name)) {
            if field.take(self) {
                let owners: Vec<_> = TABLE.iter().filter(|spec| spec.options.contains(&option)).map(|spec| spec.name).collect();
                let what = format!("'{option}' has no meaning for a {}", own.name);
                errors.push(OptionError::new(
                    option,
                    what,
                    format!("remove it, or write 'algorithm: {}'", owners.join("' or 'algorithm: ")),
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
    pub(super) fn new(option: &'static str, what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { option, what: what.into(), remedy: remedy.into() }
    }
}

impl Algorithm {
    /// The algorithm of a rate with these options. At a rate of 0 every algorithm refuses everything.
    ///
    /// # Errors
    /// The first [`OptionError`].
    pub fn try_new(rate: &Rate, options: &Options) -> Result<Self, OptionError> {
        let window = rate.window().ok_or_else(|| {
            let what = "the window is zero or longer than 100 years";
            OptionError::new("unit_multiplier", what, "write a unit_multiplier from 1 on that makes the window shorter")
        })?;
        let mut options = *options;
        if let Some(error) = options.remove_foreign().into_iter().next() {
            return Err(error);
        }
        let count_denied = options.count_denied.unwrap_or(options.kind.spec().counts_denied);
        let mut algorithm = Self::define(rate.requests_per_unit, window, &options, count_denied)?;
        if let Self::FixedWindow(fixed) = &mut algorithm
            && let Some(months) = rate.calendar_months().filter(|_| options.calendar_months)
        {
            fixed.window = months;
        }
        Ok(algorithm)
    }
}
