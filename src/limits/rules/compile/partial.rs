//! A layer of a limit: the fields in a `rate_limit`, a plan, a row, a trial, an entry of an overlay
//! or `defaults`. All are read here, and `layers.rs` resolves several layers to one limit.
//!
//! Each value is checked by itself here. Which options belong to which algorithm, and their bounds,
//! is defined by the algorithms.

use std::sync::Arc;

use super::fields::{self, Fields, Section};
use super::options;
use super::problem::Problems;
use crate::core::algorithm::{AlgorithmKind, OPTIONS, OptionError, Options, with_field};
use crate::core::time::{PeriodKind, Unit};
use crate::core::usage;
use crate::limits::rules::limit::OnStoreFailure;
use crate::limits::rules::messages;
use crate::limits::rules::place::Place;
use crate::limits::rules::region::RegionShares;
use crate::limits::rules::source::Node;
use crate::limits::rules::thresholds::Thresholds;

/// The fields of one layer; `None`: the layers below decide.
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
    pub(super) notify: Option<Thresholds>,
    pub(super) usage: usage::Options,
    /// The name that responses show. For rows it is in the table, because few rows share one.
    pub(super) name: Option<Box<str>>,
    pub(super) shadow_mode: Option<bool>,
    pub(super) trial: Option<Box<PartialLimit>>,
    /// The plan below it.
    pub(super) plan: Option<Box<str>>,
    /// Names of other limits.
    pub(super) replaces: Box<[Box<str>]>,
    pub(super) source: LayerSource,
    pub(super) places: Places,
}

/// The source of a layer.
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

/// Where a layer is written. Two layers that differ only in this are equal.
#[derive(Clone, Debug, Default)]
pub(super) struct Places {
    pub(super) at: Place,
    /// Of each value by its key.
    pub(super) keys: Vec<(&'static str, Place)>,
}

impl PartialEq for Places {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

/// The keys that only a limit has, except its number and its unit.
fn options_of_limits() -> impl Iterator<Item = &'static str> {
    let keys = Section::OverlayLimit.keys();
    keys.filter(|key| !matches!(*key, "name" | "trial"))
}

fn is_of_usage(key: &str) -> bool {
    key == "track_usage" || key.starts_with("usage_")
}

impl PartialLimit {
    /// Reads a layer; `None` if something in it is wrong, which is reported.
    pub(super) fn read(problems: &Problems, fields: &Fields<'_>) -> Option<Self> {
        let mut read = Self {
            name: fields.name().map(Into::into),
            plan: fields.value("plan", |problems, node, key| {
                fields::text(problems, node, key).map(Into::into)
            }),
            shadow_mode: fields.read("shadow_mode"),
            unlimited: fields.read("unlimited"),
            ..Self::default()
        };
        let trial = fields.get_nullable("trial");
        if read.unlimited == Some(true) {
            refuse_beside_unlimited(problems, fields);
        } else {
            read.requests_per_unit = fields.read("requests_per_unit");
            read.unit = fields.read("unit");
            read.unit_multiplier = fields.value("unit_multiplier", options::multiplier);
            read.algorithm = fields.read("algorithm");
            for option in OPTIONS {
                with_field!(option.field, field => {
                    *field(&mut read.options) = fields.read(option.name);
                });
            }
            read.region_shares = fields.read("region_shares");
            read.notify = fields.read("notify");
            read.on_store_failure = fields.read("on_store_failure");
        }
        if read.unlimited != Some(true) || trial.is_some() {
            read.usage = fields.usage();
        }
        if let Some(node) = trial {
            read.trial = Self::read_trial(problems, node);
        }
        let keys = fields.present(fields.locations().map(|(key, _)| key));
        read.places = Places {
            at: fields.node.at.clone(),
            keys: keys.map(|(key, node)| (key, node.at.clone())).collect(),
        };
        // A misspelled key is reported already.
        let is_valid = fields.is_valid.get()
            && fields.meant.is_empty()
            && read.trial.is_some() == trial.is_some();
        is_valid.then_some(read)
    }

    /// Marks the layer as one from outside of the limit files, where it has no places.
    pub(super) fn moved_outside(mut self, source: LayerSource) -> Self {
        if let Some(trial) = &mut self.trial {
            trial.places = Places::default();
        }
        (self.source, self.places) = (source, Places::default());
        self
    }

    /// The layer of a descriptor whose table has all fields.
    pub(super) fn without_keys(descriptor: &Node) -> Self {
        let mut layer = Self::default();
        layer.places.at = descriptor.at.clone();
        layer
    }

    /// Where a key is written.
    pub(super) fn place(&self, key: &str) -> Option<&Place> {
        let mut keys = self.places.keys.iter();
        keys.find(|(known, _)| *known == key).map(|(_, at)| at)
    }

    /// Whether it leaves the amount to the layers below.
    pub(super) fn has_no_amount(&self) -> bool {
        let beside = Self {
            on_store_failure: self.on_store_failure,
            name: self.name.clone(),
            shadow_mode: self.shadow_mode,
            plan: self.plan.clone(),
            ..Self::default()
        };
        *self == beside
    }

    /// Whether it has an option that changes how a limit is decided, recorded or reported.
    pub(super) fn has_options(&self) -> bool {
        let options = Self {
            algorithm: self.algorithm,
            options: self.options,
            on_store_failure: self.on_store_failure,
            notify: self.notify,
            usage: self.usage,
            ..Self::default()
        };
        options != Self::default()
    }

    /// A key that only a limit has, except its number.
    pub(super) fn of_a_limit(&self) -> Option<&(&'static str, Place)> {
        let is_one = |key: &str| {
            key == "unit" || options_of_limits().any(|known| known == key && !is_of_usage(key))
        };
        let mut keys = self.places.keys.iter();
        keys.find(|(key, _)| is_one(key))
    }

    /// Errors of options that do not belong to the algorithm of the same layer.
    pub(super) fn foreign(&self) -> Vec<OptionError> {
        let mut options = self.options;
        let foreign = self.algorithm.map(|kind| {
            options.kind = kind;
            options.remove_foreign()
        });
        foreign.unwrap_or_default()
    }

    /// Whether it makes windows of the calendar.
    pub(super) fn has_calendar(&self) -> bool {
        self.options.period == Some(PeriodKind::Calendar)
    }
}

impl LayerSource {
    /// Whether it is an entry of the overlay for one limit.
    pub(super) const fn is_overlay(&self) -> bool {
        matches!(self, Self::Overlay(_))
    }

    /// Its name in messages, if the layer may be left out of a limit.
    pub(super) fn name(&self) -> Option<&str> {
        match self {
            Self::Own => None,
            Self::Overlay(name) => Some(name),
            Self::Defaults(name) => name.as_deref(),
        }
    }
}

/// An unlimited limit has no window. The Go service refuses a valid unit next to `unlimited` and
/// ignores an unknown one. Only the trial of such a limit has usage.
fn refuse_beside_unlimited(problems: &Problems, fields: &Fields<'_>) {
    if let (Some(node), Some(text)) = (fields.get("unit"), fields.text("unit")) {
        match Unit::named(text) {
            Some(_) => problems.error(&node.at, messages::unlimited_with("unit")),
            None => problems.warning(&node.at, messages::ignored_unit_of_unlimited()),
        }
    }
    let has_trial = fields.get_nullable("trial").is_some();
    let refused = options_of_limits().filter(|key| !(has_trial && is_of_usage(key)));
    for (key, node) in fields.present(refused) {
        let message = match key {
            // No store counts it.
            "track_usage" => messages::unlimited_with_usage(),
            _ => messages::unlimited_with(key),
        };
        problems.error(&node.at, message);
    }
    if let Some(node) = fields.get("requests_per_unit")
        && fields::amount(problems, node, "requests_per_unit").is_some()
    {
        problems.warning(&node.at, messages::ignored_requests_of_unlimited());
    }
}
