//! Builds the limits of a domain after all its files are read: each with its layers, its features,
//! and its rows. Reports errors in them.
//!
//! All files of a domain share its defaults and plans, in any order of reading. A limit may need a
//! default or a plan of a later file, so limits wait as `PendingLimit` until all files are read.

use std::sync::Arc;

use super::data::Data;
use super::domain::{Domain, NamedPlan, PendingLimit, Plans};
use super::layers::{Layers, NoRate, Resolved, Terms};
use super::memory::{self, Memory};
use super::options::checked_window;
use super::partial::PartialLimit;
use super::problem::{Problems, quoted};
use super::{Compiler, ProcessDefaults};
use crate::core::algorithm::OptionError;
use crate::core::time::Rate;
use crate::limits::rules::limit::{Level, Limit};
use crate::limits::rules::messages;
use crate::limits::rules::place::Place;
use crate::limits::rules::region::RegionShare;

/// Builds the limits of the domain, and returns the domain without its tree. A limit with invalid
/// options is reported and left out.
pub(super) fn build(
    compiler: &mut Compiler<'_>,
    domain: &mut Domain,
    process: &ProcessDefaults,
) -> crate::limits::rules::Domain {
    let on_store_failure = (domain.defaults.iter())
        .chain(compiler.overlay.base())
        .find_map(|layer| layer.on_store_failure);
    let commit = domain.commit.as_ref();
    let mut built = crate::limits::rules::Domain {
        name: domain.name.clone(),
        commit: commit.map_or(process.commit, |(commit, _)| *commit),
        on_store_failure,
        region: process.region.clone(),
        ..Default::default()
    };
    let Some(share) = share_of_domain(compiler, domain, process) else {
        return built;
    };
    let problems = compiler.problems;
    let pending = std::mem::take(&mut domain.pending);
    built.limits = std::mem::take(&mut domain.limits);
    built.limits.reserve_exact(pending.len());
    let mut builder = Builder::new(compiler, domain, process);
    built.share = share;
    let mut of_plans = Vec::new();
    for pending in pending {
        if let Some((limit, more)) = builder.limits(*pending) {
            built.limits.push(limit);
            of_plans.extend(more);
        }
    }
    built.limits.extend(of_plans);
    built.limits.sort_by_key(|limit| limit.id.limit);
    built.limits.shrink_to_fit();
    domain.check_keys_of_holds(problems, &built.limits);
    if !domain.replaced.is_empty() {
        for limit in &built.limits {
            domain.names.extend(limit.name.clone());
            let table = limit.own_table().into_iter();
            let of_rows = table.flat_map(|table| table.rows.names());
            domain.names.extend(of_rows.map(Box::from));
        }
    }
    built
}

/// The region's share of limits that requests bring along; `None`, with an error, if the domain's
/// defaults give it none, or are wrong: errors of its limits would be guesses.
pub(super) fn share_of_domain(
    compiler: &mut Compiler<'_>,
    domain: &mut Domain,
    process: &ProcessDefaults,
) -> Option<RegionShare> {
    let defaults = domain.defaults.iter().chain(compiler.overlay.base());
    let defaults: Vec<_> = defaults.cloned().collect();
    let of_domain = Layers {
        below: &defaults,
        ..Layers::default()
    };
    let first = domain.first.clone();
    if domain.has_wrong_defaults {
        return None;
    }
    Builder::new(compiler, domain, process).share(&of_domain, &first)
}

/// Inputs for the limits of a domain.
pub(super) struct Builder<'a, 'f> {
    pub(super) problems: &'a Problems,
    pub(super) data: &'a Data<'f>,
    /// Rows of all tables so far.
    pub(super) rows: &'a mut usize,
    pub(super) memory: &'a mut Memory,
    defaults: Option<&'a Arc<PartialLimit>>,
    plans: &'a Plans,
    process: &'a ProcessDefaults,
    /// With the share of the process.
    pub(super) terms: Terms,
    /// The number of the domain's next limit.
    pub(super) next_limit: &'a mut u32,
}

impl<'a, 'f> Builder<'a, 'f> {
    /// For limits of a domain of which all defaults and plans are read.
    pub(super) fn new(
        compiler: &'a mut Compiler<'f>,
        domain: &'a mut Domain,
        process: &'a ProcessDefaults,
    ) -> Self {
        let commit = domain.commit.as_ref().map(|(commit, _)| *commit);
        Self {
            problems: compiler.problems,
            data: &compiler.data,
            rows: &mut compiler.rows,
            memory: &mut compiler.memory,
            defaults: domain.defaults.as_ref(),
            plans: &domain.plans,
            process,
            terms: Terms {
                share: process.region_share,
                calendar_months: process.calendar_months,
                commit: commit.unwrap_or(process.commit),
                declares_commit: commit.is_some(),
            },
            next_limit: &mut domain.next_limit,
        }
    }

    /// The same, which reports to `problems`.
    pub(super) fn with_problems<'p>(&'p mut self, problems: &'p Problems) -> Builder<'p, 'f> {
        Builder {
            problems,
            rows: &mut *self.rows,
            memory: &mut *self.memory,
            next_limit: &mut *self.next_limit,
            ..*self
        }
    }

    /// The limit of a descriptor, from its `rate_limit` or else from rows without a plan; and the
    /// limits of the plans that rows use.
    pub(super) fn limits(&mut self, pending: PendingLimit) -> Option<(Limit, Vec<Limit>)> {
        let (mut limit, partial) = (pending.limit, pending.partial);
        let (table, mut added) = (pending.table, pending.added);
        added.extend(self.defaults.cloned());
        let mut own = vec![&partial];
        if let Some(name) = &partial.plan {
            own.push(self.plan(name, partial.place("plan")?)?.layer.as_ref()?);
        }
        let at = &partial.places.at;
        if partial.counts_in_flight() && (partial.plan.is_some() || table.is_some()) {
            return self.problems.fail(at, messages::concurrency_with_table());
        }
        let layers = Layers {
            own: &own,
            below: &added,
            ends_with_value: limit.levels.last().is_some_and(Level::is_one_value),
        };
        let mut resolved = match (&table, layers.rate()) {
            (Some(table), _) if !table.has_default => Resolved::by_rows(),
            // Rows may complete it.
            (Some(_), Err(NoRate::BesideUnlimited(..))) => self.resolve(&layers, None, at)?,
            _ => self.complete(&layers, at, "rate_limit")?,
        };
        self.add_features(&mut limit, &layers, &mut resolved, table.is_some(), at)?;
        let shadow_mode = limit.shadow_mode;
        resolved.fill(&mut limit, &layers);
        // Stores never check it. With a table or a plan, rows may have amounts.
        if table.is_none() && partial.plan.is_none() && limit.is_unlimited() {
            limit.on_store_failure = None;
        }
        let Some(table) = table else {
            let bytes = limit.memory_of_features();
            self.memory.take(self.problems, at, bytes)?;
            return Some((limit, Vec::new()));
        };
        let (limit, of_plans) = self.with_rows(limit, shadow_mode, &layers, &table)?;
        for limit in of_plans.iter().chain([&limit]) {
            let bytes = memory::of_limit(limit, 128) + limit.memory_of_features();
            self.memory.take(self.problems, at, bytes)?;
        }
        Some((limit, of_plans))
    }

    /// The plan with this name. A missing plan is an error, unless plans are wrong anyway.
    pub(super) fn plan(&self, name: &str, at: &Place) -> Option<&'a NamedPlan> {
        let plan = self.plans.find(name);
        if self.plans.is_invalid {
            return plan.ok();
        }
        self.problems.accept(at, plan)
    }

    /// Resolves the layers of a `row` or a `rate_limit`, which have to make a complete limit;
    /// `None` if they do not, which is reported.
    pub(super) fn complete(
        &mut self,
        layers: &Layers<'_>,
        at: &Place,
        whose: &str,
    ) -> Option<Resolved> {
        let (at, message) = match layers.rate() {
            Ok(rate) => return self.resolve(layers, rate, at),
            Err(NoRate::Missing(key)) => (at, messages::incomplete_limit(whose, key)),
            Err(NoRate::BesideUnlimited(key, key_at)) => {
                let (own, below) = match (whose, key_at) {
                    ("rate_limit", _) => (whose, "its plan"),
                    (_, Some(_)) => (whose, "its plan or the rate_limit"),
                    (_, None) => ("plan of the row", "the rate_limit"),
                };
                let message = messages::key_above_unlimited(own, key, below);
                (key_at.unwrap_or(at), message)
            }
        };
        self.problems.fail(at, message)
    }

    /// Resolves layers with this rate; `None` is unlimited. A layer from outside of the files is
    /// left out if this limit has no valid algorithm with it: its author did not have this limit in
    /// mind, and no limit would be worse.
    pub(super) fn resolve(
        &mut self,
        layers: &Layers<'_>,
        rate: Option<Rate>,
        at: &Place,
    ) -> Option<Resolved> {
        let Some(rate) = rate else {
            self.warn_of_unlimited(layers, at);
            return Some(Resolved::default());
        };
        self.problems.accept(at, checked_window(&rate))?;
        let rate = self.multiplied(layers, rate, at);
        let terms = Terms {
            share: self.share(layers, at)?,
            ..self.terms
        };
        // Leaves out one more layer per step, the strongest first, until the rest is valid. An
        // invalid layer of the files ends this with errors.
        for left_out in 0..=layers.below.len() {
            let rest = Layers {
                below: &layers.below[left_out..],
                ..*layers
            };
            let errors = match rest.resolve(rate, &terms) {
                Ok(resolved) => {
                    self.warn_of_anchor(layers, &rate, at);
                    let burst = resolved.options.burst.unwrap_or(0);
                    self.warn_of_ones(layers, ("requests_per_unit", rate.requests_per_unit), at);
                    self.warn_of_ones(layers, ("burst", burst), at);
                    return Some(resolved);
                }
                Err(errors) => errors,
            };
            let source = rest.below.first().and_then(|layer| layer.source.name());
            let Some(source) = source else {
                for error in errors {
                    self.report(layers, at, error);
                }
                return None;
            };
            if let Some(error) = errors.into_iter().next() {
                let message = messages::with_layer_left_out(error.message, source);
                self.problems.warning(at, message);
            }
        }
        None
    }

    /// The rate with the `unit_multiplier` that the overlay adds, unless it makes no window.
    fn multiplied(&self, layers: &Layers<'_>, rate: Rate, at: &Place) -> Rate {
        let mut below = layers.below.iter();
        let of_overlay =
            below.find_map(|layer| Some((layer.unit_multiplier?, layer.source.name()?)));
        // A trial has a unit of its own.
        let is_trial = layers.own.len() > 1;
        let Some((unit_multiplier, source)) = of_overlay.filter(|_| !is_trial) else {
            return rate;
        };
        let mut multiplied = rate;
        multiplied.unit_multiplier = unit_multiplier;
        let makes_calendar = |it: &Arc<PartialLimit>| it.source.is_overlay() && it.has_calendar();
        let message = if layers.below.iter().any(makes_calendar) {
            messages::multiplier_left_out(source)
        } else if let Err(message) = checked_window(&multiplied) {
            messages::with_layer_left_out(message, source)
        } else {
            return multiplied;
        };
        self.problems.warning(at, message);
        rate
    }

    /// The share of this region; `None`, with an error, if the shares of the limit give it none.
    fn share(&self, layers: &Layers<'_>, at: &Place) -> Option<RegionShare> {
        let Some((layer, shares)) = layers.region_shares() else {
            return Some(self.process.region_share);
        };
        let share = match &self.process.region {
            Some(region) => shares
                .of_region(region)
                .ok_or_else(|| messages::region_without_share(quoted(region))),
            None => Err(messages::shares_without_region()),
        };
        let at = layer.place("region_shares").unwrap_or(at);
        self.problems.accept(at, share)
    }

    /// Warns of a number of which a share is 1 only because it would be 0.
    fn warn_of_ones(&self, layers: &Layers<'_>, number: (&str, u64), at: &Place) {
        let (key, amount) = number;
        let map = layers.region_shares();
        let mut shares = vec![self.process.region_share];
        map.inspect(|(_, map)| shares = map.0.iter().map(|(_, share)| *share).collect());
        if shares.iter().any(|share| share.is_raised_to_one(amount)) {
            let sum: u64 = shares.iter().map(|share| share.of(amount)).sum();
            let sum = map.map_or("1 each".to_owned(), |_| format!("{sum} together"));
            let at = layers.place(key).unwrap_or(at);
            self.problems
                .warning(at, messages::share_below_one(amount, sum));
        }
    }

    fn warn_of_anchor(&self, layers: &Layers<'_>, rate: &Rate, at: &Place) {
        let has_anchor = |layer: &&&PartialLimit| layer.options.anchor.is_some();
        let own = layers.own.iter().find(has_anchor);
        if own.is_some_and(|layer| layer.options.has_idle_anchor(rate)) {
            let at = layers.place("anchor").unwrap_or(at);
            self.problems.warning(at, messages::anchor_without_effect());
        }
    }

    /// Unlimited limits have no options, because stores never check them.
    fn warn_of_unlimited(&self, layers: &Layers<'_>, at: &Place) {
        if layers.has_trial() {
            return;
        }
        let is_unused = |it: &&Arc<PartialLimit>| it.source.is_overlay() && it.has_options();
        for layer in layers.below.iter().filter(is_unused) {
            let source = layer.source.name().unwrap_or_default();
            let message = messages::with_layer_left_out(messages::unlimited_with_options(), source);
            self.problems.warning(at, message);
        }
    }

    pub(super) fn report(
        &self,
        layers: &Layers<'_>,
        at: &Place,
        OptionError { option, message }: OptionError,
    ) {
        let place = layers.place(option);
        let mut below = layers.below.iter();
        let of_default = below.find_map(|layer| layer.place(option));
        let message = match (place, of_default) {
            (None, Some(default)) => messages::with_default(message, option, default),
            _ => message,
        };
        self.problems.error(place.unwrap_or(at), message);
    }
}
