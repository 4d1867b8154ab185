//! A layer of a limit: what a `rate_limit`, a plan, a row, a trial, an entry of an overlay or
//! `defaults` say of it. All are read here, and `settle.rs` makes a limit of those that stand above
//! each other.
//!
//! Each value is checked for itself here. Which options belong to which algorithm, and their
//! bounds, is the algorithms' own knowledge.

use std::sync::Arc;

use super::fields::{self, Fields, Section};
use super::options;
use super::problem::{Location, Problems};
use crate::core::algorithm::{AlgorithmKind, OPTIONS, OptionError, OptionField, Options};
use crate::core::time::{PeriodKind, Rate, Unit, WEEKDAYS};
use crate::core::usage;
use crate::limits::rules::limit::OnStoreFailure;
use crate::limits::rules::region::RegionShares;
use crate::limits::rules::source::{Node, ValueType};

/// What one layer says; `None` = it leaves that to the layers below.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct PartialLimit {
    pub(super) requests_per_unit: Option<u64>,
    pub(super) unit: Option<Unit>,
    pub(super) unit_multiplier: Option<u32>,
    pub(super) unlimited: Option<bool>,
    pub(super) algorithm: Option<AlgorithmKind>,
    /// All but `kind`, which is `algorithm` here.
    pub(super) options: Options,
    pub(super) on_store_failure: Option<OnStoreFailure>,
    pub(super) region_shares: Option<Arc<RegionShares>>,
    pub(super) usage: usage::Options,
    /// The name that responses show. A table has those of its rows: few share one.
    pub(super) name: Option<Box<str>>,
    pub(super) shadow_mode: Option<bool>,
    pub(super) trial: Option<Box<PartialLimit>>,
    pub(super) source: LayerSource,
    pub(super) places: Places,
}

/// Whose a layer is.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) enum LayerSource {
    /// The author's of the limit.
    #[default]
    Own,
    /// An entry of the overlay for this limit, by its name in messages.
    Overlay(Arc<str>),
    /// Defaults of many limits. Those from outside of their files have a name in messages.
    Defaults(Option<Arc<str>>),
}

/// Where a layer is written, which is no part of what it says.
#[derive(Clone, Debug, Default)]
pub(super) struct Places {
    pub(super) at: Location,
    /// Of each value by its key.
    pub(super) keys: Vec<(&'static str, Location)>,
}

impl PartialEq for Places {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

/// `track_usage` and its options.
const USAGE: [&str; 5] = [
    "track_usage",
    "usage_interval",
    "usage_buckets",
    "usage_expiry",
    "usage_subjects",
];

/// The keys of options that an unlimited limit does not have, nor another one above `unlimited`.
fn options_of_limits() -> impl Iterator<Item = &'static str> {
    ["unit_multiplier", "algorithm", "on_store_failure"]
        .into_iter()
        .chain(["region_shares"])
        .chain(OPTIONS.iter().map(|&(name, _)| name))
}

impl PartialLimit {
    /// Reads a layer; `None` if something in it is wrong, which is reported.
    pub(super) fn read(problems: &Problems, fields: &Fields<'_>) -> Option<Self> {
        let name = fields.name();
        let mut reader = LayerReader {
            problems,
            fields,
            // A misspelled key is reported already.
            is_valid: !fields.has_meant(),
        };
        let mut read = Self {
            name: name.map(Into::into),
            shadow_mode: reader.value("shadow_mode", fields::bool),
            unlimited: reader.value("unlimited", fields::bool),
            ..Self::default()
        };
        if read.unlimited == Some(true) {
            refuse_beside_unlimited(reader.problems, fields);
            if fields.written("trial").is_some() {
                read.usage = reader.usage();
            }
        } else {
            read.requests_per_unit = reader.value("requests_per_unit", fields::amount);
            read.unit = reader.value("unit", options::unit);
            read.unit_multiplier = reader.value("unit_multiplier", options::multiplier);
            read.algorithm = reader.value("algorithm", options::algorithm);
            read.options = reader.options();
            read.region_shares = reader.value("region_shares", options::region_shares);
            read.usage = reader.usage();
            let policy = options::named(&OnStoreFailure::NAMED);
            read.on_store_failure = reader.value("on_store_failure", policy);
        }
        if let Some(node) = fields.written("trial") {
            let trial = Self::read_trial(reader.problems, node);
            reader.is_valid &= trial.is_some();
            read.trial = trial.map(Box::new);
        }
        let is_valid = reader.is_valid;
        read.places = Places {
            at: problems.here(fields.node().at),
            keys: fields
                .locations()
                .filter(|(key, _)| fields.get(key).is_some())
                .map(|(key, at)| (key, problems.here(at)))
                .collect(),
        };
        is_valid.then_some(read)
    }

    /// Reads a `trial`: an amount that is counted beside the real one and refuses nothing.
    fn read_trial(problems: &Problems, node: &Node) -> Option<Self> {
        let fields = match node.value_type() {
            ValueType::Nothing => None,
            _ => Some(fields::read(problems, node, Section::Trial)?),
        };
        let Some(fields) = fields.filter(|fields| !fields.is_empty()) else {
            let what = "the trial says nothing";
            let remedy = "write 'requests_per_unit: ' and a number below it, or remove 'trial'";
            return problems.fail(node, what, remedy);
        };
        Self::read(problems, &fields).filter(|_| !fields.has_misplaced())
    }

    /// The same, from outside of the files of limits, where it cannot stand.
    pub(super) fn moved_outside(mut self, source: LayerSource) -> Self {
        if let Some(trial) = &mut self.trial {
            trial.places = Places::default();
        }
        (self.source, self.places) = (source, Places::default());
        self
    }

    /// An amount and its options as the defaults of a trial.
    pub(super) fn of(rate: &Rate, options: &Options) -> Self {
        Self {
            requests_per_unit: Some(rate.requests_per_unit),
            unit: Some(rate.unit),
            unit_multiplier: Some(rate.unit_multiplier),
            algorithm: Some(options.kind),
            options: *options,
            source: LayerSource::Defaults(None),
            ..Self::default()
        }
    }

    /// Where a key is written.
    pub(super) fn place(&self, key: &str) -> Option<Location> {
        let mut keys = self.places.keys.iter();
        keys.find(|(known, _)| *known == key).map(|&(_, at)| at)
    }

    /// Whether it leaves the amount to what stands below.
    pub(super) fn has_no_amount(&self) -> bool {
        let beside = Self {
            on_store_failure: self.on_store_failure,
            name: self.name.clone(),
            shadow_mode: self.shadow_mode,
            ..Self::default()
        };
        *self == beside
    }

    /// Whether it says how a limit is decided or recorded.
    pub(super) fn has_options(&self) -> bool {
        let options = Self {
            algorithm: self.algorithm,
            options: self.options,
            on_store_failure: self.on_store_failure,
            usage: self.usage,
            ..Self::default()
        };
        options != Self::default()
    }

    /// A key of what only a limit has, but for its number.
    pub(super) fn of_a_limit(&self) -> Option<(&'static str, Location)> {
        let is_one = |key: &str| key == "unit" || options_of_limits().any(|known| known == key);
        self.places
            .keys
            .iter()
            .copied()
            .find(|(key, _)| is_one(key))
    }

    /// The errors of options that are not those of the algorithm beside them.
    pub(super) fn foreign(&self) -> Vec<OptionError> {
        let of_kind = |kind| Options {
            kind,
            ..self.options
        };
        self.algorithm
            .map(|kind| of_kind(kind).remove_foreign())
            .unwrap_or_default()
    }

    /// Whether it makes limits of requests in flight.
    pub(super) fn is_concurrency(&self) -> bool {
        self.algorithm == Some(AlgorithmKind::Concurrency)
    }

    /// Whether it makes windows of the calendar.
    pub(super) fn has_calendar(&self) -> bool {
        self.options.period == Some(PeriodKind::Calendar)
    }
}

impl LayerSource {
    /// The name in messages of what may be left out of a limit.
    pub(super) fn name(&self) -> Option<&str> {
        match self {
            Self::Own => None,
            Self::Overlay(name) => Some(name),
            Self::Defaults(name) => name.as_deref(),
        }
    }
}

/// Reads the values of a map.
struct LayerReader<'r, 'n> {
    problems: &'r Problems,
    fields: &'r Fields<'n>,
    /// Nothing was wrong so far.
    is_valid: bool,
}

impl LayerReader<'_, '_> {
    fn value<T>(
        &mut self,
        key: &str,
        read: impl FnOnce(&Problems, &Node, &str) -> Option<T>,
    ) -> Option<T> {
        let value = read(self.problems, self.fields.get(key)?, key);
        self.is_valid &= value.is_some();
        value
    }

    fn options(&mut self) -> Options {
        let mut read = Options::default();
        for (name, field) in OPTIONS {
            match field {
                OptionField::Number(field) => *field(&mut read) = self.value(name, fields::number),
                OptionField::Amount(field) => *field(&mut read) = self.value(name, fields::amount),
                OptionField::Duration(field) => {
                    *field(&mut read) = self.value(name, options::duration);
                }
                OptionField::Bool(field) => *field(&mut read) = self.value(name, fields::bool),
                OptionField::Period(field) => {
                    *field(&mut read) = self.value(name, options::named(&PeriodKind::NAMED));
                }
                OptionField::Zone(field) => *field(&mut read) = self.value(name, options::zone),
                OptionField::Weekday(field) => {
                    *field(&mut read) = self.value(name, options::named(&WEEKDAYS));
                }
                OptionField::Anchor(field) => {
                    *field(&mut read) = self.value(name, options::anchor);
                }
            }
        }
        read
    }

    fn usage(&mut self) -> usage::Options {
        usage::Options {
            track: self.value("track_usage", fields::bool),
            interval: self.value("usage_interval", options::duration),
            buckets: self.value("usage_buckets", fields::number),
            expiry: self.value("usage_expiry", options::duration),
            subjects: self.value("usage_subjects", fields::number),
        }
    }
}

/// An unlimited limit has no window. The Go service refuses a unit that it knows and ignores one
/// that it does not. Only its trial has usage.
fn refuse_beside_unlimited(problems: &Problems, fields: &Fields<'_>) {
    if let (Some(node), Some(text)) = (fields.get("unit"), fields.text("unit")) {
        let what = "an unlimited limit has no unit";
        if Unit::named(text).is_some() {
            problems.error(node, what, "remove 'unit', or remove 'unlimited'");
        } else {
            problems.warning(node, format!("{what}; it is ignored"), "remove 'unit'");
        }
    }
    let of_usage = USAGE
        .into_iter()
        .filter(|_| fields.written("trial").is_none());
    for key in options_of_limits().chain(of_usage) {
        let Some(node) = fields.get(key) else {
            continue;
        };
        let remedy = match key {
            // No store is asked about it.
            "track_usage" => {
                "remove 'track_usage', or write a large 'requests_per_unit' and \
                 'on_store_failure: allow' in place of 'unlimited'"
            }
            _ => &format!("remove '{key}', or remove 'unlimited'"),
        };
        problems.error(node, format!("an unlimited limit has no {key}"), remedy);
    }
    if let Some(node) = fields.get("requests_per_unit")
        && fields::amount(problems, node, "requests_per_unit").is_some()
    {
        let what = "'requests_per_unit' has no meaning beside 'unlimited' and is ignored";
        problems.warning(node, what, "remove one of them");
    }
}
