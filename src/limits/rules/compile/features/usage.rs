//! `track_usage`: records of the usage of each subject.

use std::sync::Arc;

use super::{
    Builder, Commit, FieldTexts, Fields, Layers, Limit, OptionError, PartialLimit, Place, Resolved,
};
use crate::core::time::{Span, Unit};
use crate::core::usage::{Options, Settings, Tracking};

impl Fields<'_> {
    /// The options of usage.
    pub(crate) fn usage(&self) -> Options {
        Options {
            track: self.read("track_usage"),
            interval: self.read("usage_interval"),
            buckets: self.read("usage_buckets"),
            expiry: self.read("usage_expiry"),
            subjects: self.read("usage_subjects"),
        }
    }
}

impl Layers<'_> {
    /// The settings of a limit with periods that are not longer.
    pub(crate) fn usage(&self, period: Span) -> Result<Option<Settings>, OptionError> {
        let add = |usage: Options, layer: &PartialLimit| usage.apply_defaults(&layer.usage);
        let options = self.all().fold(Options::default(), add);
        match options.without_effect() {
            Some(error) if self.place(error.option).is_some() => Err(error),
            _ => options.settings(period),
        }
    }
}

impl Builder<'_, '_> {
    /// Resolves the usage of a limit with rows, which have periods of their own; `None`, with an
    /// error, if it is wrong.
    pub(super) fn resolve_usage_of_rows(
        &self,
        resolved: &mut Resolved,
        layers: &Layers<'_>,
        at: &Place,
    ) -> Option<()> {
        let usage = layers.usage(Span::from_secs(Unit::Year.secs()));
        let report = |error| self.report(layers, at, error);
        resolved.usage = usage.map_err(report).ok()?;
        Some(())
    }

    /// The records of a limit, or of its trial.
    pub(super) fn records(
        &self,
        settings: Settings,
        limit: &Limit,
        is_trial: bool,
    ) -> Arc<Tracking> {
        let levels = limit.levels.iter();
        let levels = levels.map(|level| (level.key.clone(), level.value.clone()));
        Arc::new(Tracking {
            settings,
            domain: limit.domain.clone(),
            levels: levels.collect(),
            is_trial,
            is_in_slot_of_domain: self.terms.commit == Commit::AllOrNone,
        })
    }
}

impl FieldTexts {
    pub(super) fn add_usage(&mut self, limit: &Limit) {
        let usage = limit.usage.as_ref().map(|usage| usage.settings);
        self.add("track_usage", usage.map(|_| true));
        self.add("usage_interval", usage.map(|usage| usage.interval));
        self.add("usage_buckets", usage.map(|usage| usage.buckets));
        self.add("usage_expiry", usage.map(|usage| usage.expiry));
        self.add("usage_subjects", usage.map(|usage| usage.subjects));
    }
}
