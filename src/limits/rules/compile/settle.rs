//! Makes the limits of a domain once all its files are read: each of the layers that stand above
//! each other, its trial, and its rows.
//!
//! All files of a domain share its defaults and plans, in whatever order they are read. So no limit
//! gets into the rules before all are read.
//!
//! The settled options of a limit are the defaults of its trial, so that one rule says what applies
//! to another algorithm or unit.

use std::num::NonZeroU64;
use std::sync::Arc;

use super::data::Data;
use super::defaults::Defaults;
use super::options::checked_window;
use super::partial::{LayerSource, PartialLimit};
use super::pending_table::PendingTable;
use super::plans::{NamedPlan, Plans};
use super::problem::{Location, Problems, quoted};
use super::{Compiler, Domain, ProcessDefaults};
use crate::core::algorithm::{Algorithm, AlgorithmKind, OptionError, Options};
use crate::core::time::{PeriodKind, Rate, Unit};
use crate::core::usage::{self, Tracking};
use crate::limits::rules::Commit;
use crate::limits::rules::limit::{Amount, Level, Limit, Scale, Trial};
use crate::limits::rules::region::{RegionShare, RegionShares};

/// A limit that waits for the defaults and the plans of its domain.
pub(super) struct PendingLimit {
    /// All of it but what its layers say.
    pub(super) limit: Limit,
    /// Its `rate_limit`.
    pub(super) written: PartialLimit,
    /// The plan below it.
    pub(super) plan: Option<(Location, Box<str>)>,
    pub(super) table: Option<PendingTable>,
    /// What the overlay and the defaults of the process add, the strongest first.
    pub(super) added: Vec<Arc<PartialLimit>>,
}

/// The layers of a limit.
#[derive(Clone, Copy)]
pub(super) struct Stack<'l> {
    /// What its author wrote for it, the strongest first: a row, a plan, the `rate_limit`.
    pub(super) own: &'l [&'l PartialLimit],
    /// What holds for more limits. What comes from outside of the files is left out where it does
    /// not suit this one.
    pub(super) below: &'l [Arc<PartialLimit>],
    /// The last descriptor of the limit has one value, so that it is no request's id.
    pub(super) ends_with_value: bool,
}

/// What a stack comes to.
#[derive(Default)]
pub(super) struct Settled {
    /// `None`: unlimited, or only rows have amounts.
    pub(super) amount: Option<Amount>,
    /// Rows have to complete it.
    pub(super) is_by_rows: bool,
    /// Those of its algorithm.
    options: Options,
    usage: Option<usage::Settings>,
}

impl Settled {
    fn by_rows() -> Self {
        Self {
            is_by_rows: true,
            ..Self::default()
        }
    }
}

/// What the rates of layers come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StackRate {
    /// A layer above `unlimited` says something that only a limit has: this key, and where it is if
    /// the topmost one says it.
    Unlimited {
        beside: Option<(&'static str, Option<Location>)>,
    },
    Limited(Rate),
    /// This key is nowhere.
    Lacks(&'static str),
}

/// Whose amount a stack comes to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Whole {
    Row,
    RateLimit,
    /// A `rate_limit` that stands below rows too.
    AboveRows,
    /// Rows may complete it.
    Plan,
}

impl<'l> Stack<'l> {
    /// With other layers of the author.
    pub(super) fn with_own<'o>(&self, own: &'o [&'o PartialLimit]) -> Stack<'o>
    where
        'l: 'o,
    {
        Stack { own, ..*self }
    }

    fn all(&self) -> impl Iterator<Item = &'l PartialLimit> + Clone + use<'l> {
        let below = self.below.iter().map(AsRef::as_ref);
        self.own.iter().copied().chain(below)
    }

    /// What the strongest layer says that says it.
    fn find<T>(&self, value: impl Fn(&'l PartialLimit) -> Option<T>) -> Option<T> {
        self.all().find_map(value)
    }

    fn rate(&self) -> StackRate {
        // A number means that there is a limit; a unit alone does not.
        let decides = self
            .all()
            .position(|layer| layer.unlimited.is_some() || layer.requests_per_unit.is_some());
        let Some(decides) = decides else {
            return StackRate::Lacks("requests_per_unit");
        };
        if self.all().nth(decides).and_then(|layer| layer.unlimited) == Some(true) {
            let mut above = self.all().take(decides).enumerate();
            let beside = above.find_map(|(index, layer)| {
                let (key, at) = layer.of_a_limit()?;
                Some((key, (index == 0).then_some(at)))
            });
            return StackRate::Unlimited { beside };
        }
        let Some(requests_per_unit) = self.find(|layer| layer.requests_per_unit) else {
            return StackRate::Lacks("requests_per_unit");
        };
        let Some(unit) = self.find(|layer| layer.unit) else {
            return StackRate::Lacks("unit");
        };
        let unit_multiplier = self
            .down_to_unit()
            .find_map(|layer| layer.unit_multiplier)
            .unwrap_or(1);
        StackRate::Limited(Rate {
            requests_per_unit,
            unit,
            unit_multiplier,
        })
    }

    /// The layers whose multiples are those of its unit: of another unit they have no meaning.
    fn down_to_unit(&self) -> impl Iterator<Item = &'l PartialLimit> + use<'l> {
        let of_unit = self.all().position(|layer| layer.unit.is_some());
        self.all()
            .take(of_unit.map_or(usize::MAX, |index| index + 1))
    }

    /// Where its author wrote a key.
    fn place(&self, key: &str) -> Option<Location> {
        if key == "unit_multiplier" {
            return self
                .down_to_unit()
                .take(self.own.len())
                .find_map(|layer| layer.place(key));
        }
        self.own.iter().find_map(|layer| layer.place(key))
    }

    /// The options of its algorithm, and those of them that are meant for this limit: from the
    /// layers below the one that names the algorithm, it takes its own options only.
    fn options(&self) -> (Options, Options) {
        let kind = self.find(|layer| layer.algorithm).unwrap_or_default();
        let named = self.own.iter().position(|layer| layer.algorithm.is_some());
        let (head, tail) = self
            .own
            .split_at(named.map_or(self.own.len(), |index| index + 1));
        let none = Options {
            kind,
            ..Options::default()
        };
        let head = head
            .iter()
            .fold(none, |options, layer| options.over(&layer.options));
        let meant = tail.iter().fold(head, |options, layer| {
            options.apply_defaults(&layer.options)
        });
        let below = |is_used: fn(&LayerSource) -> bool| {
            let layers = self
                .below
                .iter()
                .filter(move |layer| is_used(&layer.source));
            layers.fold(meant, |options, layer| {
                options.apply_defaults(&layer.options)
            })
        };
        (
            below(|_| true),
            below(|source| matches!(source, LayerSource::Overlay(_))),
        )
    }

    fn usage(&self) -> Result<Option<usage::Settings>, OptionError> {
        let options = self.all().fold(usage::Options::default(), |usage, layer| {
            usage.apply_defaults(&layer.usage)
        });
        let without_effect = options
            .without_effect()
            .filter(|error| self.place(error.option).is_some());
        without_effect.map_or_else(|| options.settings(), Err)
    }

    /// What divides it among regions, and the layer that says so.
    fn region_shares(&self) -> Option<(&'l PartialLimit, &'l Arc<RegionShares>)> {
        self.find(|layer| Some((layer, layer.region_shares.as_ref()?)))
    }

    /// Makes a limit of these layers; all that is wrong if they make none.
    fn settle(
        &self,
        mut rate: Rate,
        process: &ProcessDefaults,
        declares_commit: bool,
        share: RegionShare,
    ) -> Result<Settled, Vec<OptionError>> {
        let (mut options, meant) = self.options();
        // Without the options of other algorithms, the next error shows too.
        let mut errors = options.remove_foreign();
        options.leave_out_defaults(&meant, &rate);
        let is_multiplied =
            meant.period == Some(PeriodKind::Calendar) && self.place("unit_multiplier").is_some();
        errors.extend(options.remove_wrong_calendar(&rate, is_multiplied));
        options.calendar_months = process.calendar_months;
        let is_concurrency = options.kind == AlgorithmKind::Concurrency;
        // A control plane sends a unit with each limit.
        if is_concurrency {
            (rate.unit, rate.unit_multiplier) = (Unit::None, 1);
        }
        let misplaced = self.misplaced_concurrency().filter(|_| is_concurrency);
        // An error names the numbers of the file, in all regions alike.
        let whole = misplaced.map_or_else(|| Algorithm::try_new(&rate, &options), Err);
        let (own, limit) = (share.of_rate(rate), rate.requests_per_unit);
        let burst = options.burst.map(|burst| share.of(burst));
        let algorithm = whole.and_then(|_| Algorithm::try_new(&own, &Options { burst, ..options }));
        let usage = self.usage();
        let is_tracked = matches!(usage, Ok(Some(_)));
        if let Some(error) = misplaced_lease(is_tracked, process.commit, declares_commit)
            .filter(|_| options.lease == Some(true))
        {
            options.lease = None;
            errors.extend((meant.lease == Some(true)).then_some(error));
        }
        match (algorithm, usage) {
            (Ok(algorithm), Ok(usage)) if errors.is_empty() => {
                let amount = Amount {
                    whole: limit,
                    share,
                    has_own_burst: options.burst.is_some_and(|burst| burst != limit),
                    default_cost: options.default_cost.and_then(NonZeroU64::new),
                    lease: options.lease == Some(true),
                    ..Amount::new(own, Scale::new(options.scale), algorithm)
                };
                Ok(Settled {
                    amount: Some(amount),
                    is_by_rows: false,
                    options,
                    usage,
                })
            }
            (algorithm, usage) => {
                errors.extend(algorithm.err());
                errors.extend(usage.err());
                Err(errors)
            }
        }
    }

    /// Why requests in flight cannot be limited by it: the last descriptor of such a limit is the
    /// request's id.
    fn misplaced_concurrency(&self) -> Option<OptionError> {
        let is_default = |layer: &PartialLimit| matches!(layer.source, LayerSource::Defaults(_));
        let is_meant = self
            .all()
            .any(|layer| layer.is_concurrency() && !is_default(layer));
        let (what, remedy) = if !is_meant {
            (
                "'algorithm: concurrency' is no default",
                "write it for the limits whose last descriptor is the request's id",
            )
        } else if self.ends_with_value {
            (
                "the last descriptor of a concurrency limit has a value, which would be the id of \
                 one request",
                "remove its 'value', or write a descriptor for the id below it, such as 'key: \
                 request', and the limit there",
            )
        } else {
            return None;
        };
        Some(OptionError::new("algorithm", what, remedy))
    }
}

/// Why hits of a limit cannot be drawn ahead of its requests, whatever its algorithm is.
fn misplaced_lease(is_tracked: bool, commit: Commit, declares_commit: bool) -> Option<OptionError> {
    let (what, remedy) = if is_tracked {
        (
            "a limit with 'track_usage' has no 'lease': its usage is recorded with each decision \
             of the store",
            "remove one of the two",
        )
    } else if commit == Commit::AllOrNone {
        let what = if declares_commit {
            "a domain with 'commit: all_or_none' has no 'lease': its requests are decided in one \
             step of the store"
        } else {
            "with STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT=true a domain that does not declare \
             'commit' is 'commit: all_or_none', which has no 'lease': its requests are decided in \
             one step of the store"
        };
        (
            what,
            "remove 'lease', or write 'commit: each' for the domain",
        )
    } else {
        return None;
    };
    Some(OptionError::new("lease", what, remedy))
}

/// Settles the limits of the domain. A limit whose options make no algorithm is reported, and is
/// not among the result.
pub(super) fn settle(
    compiler: &mut Compiler<'_>,
    domain: &mut Domain,
    process: &ProcessDefaults,
) -> Vec<Limit> {
    let pending = std::mem::take(&mut domain.pending);
    if domain.defaults.is_invalid {
        // The defaults are reported. Without them, errors of the limits would be guesses.
        return Vec::new();
    }
    let process = ProcessDefaults {
        commit: domain.commit.map_or(process.commit, |(commit, _)| commit),
        ..process.clone()
    };
    let mut settling = Settling {
        problems: compiler.problems,
        data: &compiler.data,
        rows: &mut compiler.rows,
        defaults: &domain.defaults,
        plans: &domain.plans,
        process: &process,
        declares_commit: domain.commit.is_some(),
        next_limit: &mut domain.next_limit,
    };
    let defaults = domain.defaults.layer.iter().chain(compiler.overlay.base());
    let defaults: Vec<_> = defaults.cloned().collect();
    let of_domain = Stack {
        own: &[],
        below: &defaults,
        ends_with_value: false,
    };
    let Some(share) = settling.share(&of_domain, domain.first) else {
        return Vec::new();
    };
    domain.share = share;
    let (mut settled, mut of_plans) = (Vec::with_capacity(pending.len()), Vec::new());
    for pending in pending {
        if let Some((limit, more)) = settling.limits(pending) {
            settled.push(limit);
            of_plans.extend(more);
        }
    }
    settled.extend(of_plans);
    if !domain.replaced.is_empty() {
        let names = settled.iter().filter_map(|limit| limit.name.as_deref());
        let of_rows = settled
            .iter()
            .filter_map(Limit::own_table)
            .flat_map(|table| table.rows.names());
        domain.names.extend(names.chain(of_rows).map(Box::from));
    }
    settled
}

/// What the limits of a domain are made with.
pub(super) struct Settling<'a, 'f> {
    pub(super) problems: &'a Problems,
    pub(super) data: &'a Data<'f>,
    /// Rows of all tables so far.
    pub(super) rows: &'a mut usize,
    pub(super) defaults: &'a Defaults,
    plans: &'a Plans,
    process: &'a ProcessDefaults,
    /// `commit` is written for the domain; otherwise a setting of the process decides it.
    declares_commit: bool,
    /// The number of the domain's next limit.
    pub(super) next_limit: &'a mut u32,
}

impl<'a> Settling<'a, '_> {
    /// A limit with `track_usage`, or its trial.
    fn tracking(&self, settings: usage::Settings, limit: &Limit, is_trial: bool) -> Arc<Tracking> {
        let levels = limit.levels.iter();
        let levels = levels.map(|level| (level.key.clone(), level.value.clone()));
        Arc::new(Tracking {
            settings,
            domain: limit.domain.clone(),
            levels: levels.collect(),
            is_trial,
            is_in_slot_of_domain: self.process.commit == Commit::AllOrNone,
        })
    }

    /// The limit of a descriptor: that of its `rate_limit` or, in its place, of rows without a
    /// plan; and those of the plans that rows use.
    fn limits(&mut self, pending: PendingLimit) -> Option<(Limit, Vec<Limit>)> {
        let PendingLimit {
            mut limit,
            written,
            plan,
            table,
            mut added,
        } = pending;
        added.extend(self.defaults.layer.clone());
        let mut own = vec![&written];
        if let Some((at, name)) = &plan {
            own.push(self.plan(name, *at)?.layer.as_ref()?);
        }
        let at = written.places.at;
        if written.is_concurrency() && (plan.is_some() || table.is_some()) {
            let what = "a concurrency limit has no table and no plan";
            let remedy = "write the number in 'rate_limit', or another 'algorithm'";
            return self.problems.fail(at, what, remedy);
        }
        let stack = Stack {
            own: &own,
            below: &added,
            ends_with_value: limit.levels.last().is_some_and(Level::is_one_value),
        };
        let mut settled = match &table {
            Some(table) if !table.has_default => Settled::by_rows(),
            Some(_) => self.settle(&stack, at, Whole::AboveRows)?,
            None => self.settle(&stack, at, Whole::RateLimit)?,
        };
        if settled.amount.is_none() && table.is_some() {
            let usage = stack.usage();
            settled.usage = usage
                .map_err(|error| self.report(&stack, at, &error))
                .ok()?;
        }
        let trial = self.trial(&stack, &settled, at)?;
        let has_lease = settled.amount.as_ref().is_some_and(|amount| amount.lease);
        if let Some(at) = stack
            .place("lease")
            .filter(|_| has_lease && trial.is_some())
        {
            let what = "'lease' saves nothing beside 'trial', which asks the store for each hit";
            self.problems.warning(
                at,
                what,
                "remove 'trial' once it has told enough, or 'lease'",
            );
        }
        let name = plan.map(|(_, name)| name);
        let trial = trial.and_then(|trial| {
            let usage = trial.usage.map(|usage| self.tracking(usage, &limit, true));
            Some(Box::new(Trial {
                amount: trial.amount?,
                usage,
            }))
        });
        limit.trial = trial;
        limit.usage = settled
            .usage
            .map(|usage| self.tracking(usage, &limit, false));
        let shadow_mode = limit.shadow_mode;
        let is_plain = table.is_none() && name.is_none();
        let mut limit = fill(limit, &settled, name, &stack);
        if is_plain && limit.is_unlimited() {
            limit.on_store_failure = None;
        }
        match table {
            Some(table) => self.with_rows(limit, shadow_mode, &stack, &table),
            None => Some((limit, Vec::new())),
        }
    }

    /// What a limit tries: what it writes or, without that, what the overlay says, which is left out
    /// where it makes no trial. `None`, with an error, if what it writes makes none.
    #[expect(clippy::option_option, reason = "an error, no trial, or a trial")]
    fn trial(
        &mut self,
        stack: &Stack<'_>,
        real: &Settled,
        at: Location,
    ) -> Option<Option<Settled>> {
        let Some((layer, trial)) = stack.find(|layer| Some((layer, layer.trial.as_deref()?)))
        else {
            return Some(None);
        };
        let Some(source) = layer.source.name() else {
            return self.settle_trial(trial, stack, real).map(Some);
        };
        self.problems.warn_only(Some((at, source.into())));
        let settled = self.settle_trial(trial, stack, real);
        self.problems.warn_only(None);
        Some(settled)
    }

    /// What a trial does not write is the real limit's, as far as that has a meaning for the
    /// algorithm and the unit of the trial. Where the limit is unlimited, it is that of the domain.
    fn settle_trial(
        &mut self,
        trial: &PartialLimit,
        stack: &Stack<'_>,
        real: &Settled,
    ) -> Option<Settled> {
        let at = trial.places.at;
        let has_holders = |amount: &Amount| amount.algorithm.has_holders();
        if trial.is_concurrency() || real.amount.as_ref().is_some_and(has_holders) {
            let what =
                "a concurrency limit has no trial: its requests take places and give them back";
            let remedy = "remove 'trial', or write another 'algorithm' for both";
            return self.problems.fail(at, what, remedy);
        }
        if let Some(at) = trial.place("lease") {
            let what = "a trial has no 'lease': the store is asked for each of its hits";
            return self.problems.fail(at, what, "remove 'lease'");
        }
        let Some(amount) = &real.amount else {
            self.require_amount(trial)?;
            let own = [trial, *stack.own.first()?];
            return self.settle(&stack.with_own(&own), at, Whole::RateLimit);
        };
        let real_layer = Arc::new(PartialLimit {
            region_shares: stack.region_shares().map(|(_, shares)| Arc::clone(shares)),
            ..PartialLimit::of(&amount.whole_rate(), &real.options)
        });
        let stack = Stack {
            own: &[trial],
            below: &[real_layer],
            ends_with_value: false,
        };
        let settled = self.settle(&stack, at, Whole::RateLimit)?;
        if settled.amount == real.amount {
            let what =
                "the trial is the same as the limit, so that it counts what the limit counts";
            let remedy = "write another 'requests_per_unit' in the trial, or remove 'trial'";
            self.problems.warning(at, what, remedy);
        }
        let without_lease = |amount| Amount {
            lease: false,
            ..amount
        };
        Some(Settled {
            amount: settled.amount.map(without_lease),
            usage: real.usage,
            ..settled
        })
    }

    /// Requires what a trial cannot take from a limit that is unlimited.
    fn require_amount(&mut self, trial: &PartialLimit) -> Option<()> {
        let lacking = [
            ("requests_per_unit", trial.requests_per_unit.is_none()),
            ("unit", trial.unit.is_none()),
        ];
        for (key, _) in lacking.iter().filter(|(_, is_lacking)| *is_lacking) {
            let what = format!("the trial has no '{key}', and the limit beside it is unlimited");
            let remedy = format!("write '{key}: ' in the trial");
            self.problems.error(trial.places.at, what, remedy);
        }
        trial.requests_per_unit.and(trial.unit).map(drop)
    }

    /// The plan of that name. An error if there is none, unless plans are wrong anyway.
    pub(super) fn plan(&mut self, name: &str, at: Location) -> Option<&'a NamedPlan> {
        let plan = self.plans.find(name);
        if self.plans.is_invalid {
            return plan.ok();
        }
        self.problems.accept(at, plan)
    }

    /// What a stack comes to; `None` if it makes no limit, which is reported.
    pub(super) fn settle(
        &mut self,
        stack: &Stack<'_>,
        at: Location,
        whole: Whole,
    ) -> Option<Settled> {
        match stack.rate() {
            StackRate::Limited(rate) => self.settle_rate(stack, rate, at),
            StackRate::Unlimited { beside: Some(_) } | StackRate::Lacks(_)
                if whole == Whole::Plan =>
            {
                Some(Settled::by_rows())
            }
            StackRate::Unlimited {
                beside: Some((key, key_at)),
            } if whole != Whole::AboveRows => {
                let (own, below) = match (whole, key_at) {
                    (Whole::RateLimit, _) => ("rate_limit", "its plan is"),
                    (_, Some(_)) => ("row", "its plan or the rate_limit is"),
                    (_, None) => ("plan of the row", "the rate_limit is"),
                };
                let what = format!(
                    "the {own} has '{key}' and no 'requests_per_unit', and {below} unlimited"
                );
                let remedy = format!("write 'requests_per_unit' for a limit, or remove '{key}'");
                self.problems.fail(key_at.unwrap_or(at), what, remedy)
            }
            StackRate::Unlimited { .. } => {
                self.warn_of_unlimited(stack, at);
                Some(Settled::default())
            }
            StackRate::Lacks(key) => {
                let own = if whole == Whole::Row {
                    "the row"
                } else {
                    "the rate_limit"
                };
                let what =
                    format!("{own} has no '{key}', and neither has its plan or the descriptor");
                let remedy = format!("write '{key}' here, in a plan or in 'rate_limit'");
                self.problems.fail(at, what, remedy)
            }
        }
    }

    /// A layer from outside of the files that makes no algorithm of this limit is left out: its
    /// author did not have this limit in mind, and no limit would be worse.
    fn settle_rate(&mut self, stack: &Stack<'_>, rate: Rate, at: Location) -> Option<Settled> {
        if rate.unit != Unit::None {
            self.problems.accept(at, checked_window(&rate))?;
        }
        let rate = self.multiplied(stack, rate, at);
        let share = self.share(stack, at)?;
        for left_out in 0..=stack.below.len() {
            let rest = Stack {
                below: &stack.below[left_out..],
                ..*stack
            };
            let errors = match rest.settle(rate, self.process, self.declares_commit, share) {
                Ok(settled) => {
                    self.warn_of_anchor(stack, &rate, at);
                    let burst = settled.options.burst.unwrap_or(0);
                    self.warn_of_ones(stack, ("requests_per_unit", rate.requests_per_unit), at);
                    self.warn_of_ones(stack, ("burst", burst), at);
                    return Some(settled);
                }
                Err(errors) => errors,
            };
            let source = rest.below.first().and_then(|layer| layer.source.name());
            let Some(source) = source else {
                for error in &errors {
                    self.report(stack, at, error);
                }
                return None;
            };
            if let Some(error) = errors.first() {
                let what = format!("{}: {source} is not used for this limit", error.what);
                self.problems.warning(at, what, error.remedy.as_str());
            }
        }
        None
    }

    /// The rate with the `unit_multiplier` that the overlay adds, unless it makes no window.
    fn multiplied(&mut self, stack: &Stack<'_>, rate: Rate, at: Location) -> Rate {
        let of_overlay = stack
            .below
            .iter()
            .find_map(|layer| Some((layer.unit_multiplier?, layer.source.name()?)));
        // A trial has a unit of its own.
        let is_trial = stack.own.len() > 1;
        let Some((unit_multiplier, source)) = of_overlay.filter(|_| !is_trial) else {
            return rate;
        };
        let multiplied = Rate {
            unit_multiplier,
            ..rate
        };
        let mut for_limit = stack
            .below
            .iter()
            .filter(|layer| matches!(layer.source, LayerSource::Overlay(_)));
        let (what, remedy) = if for_limit.any(|layer| layer.has_calendar()) {
            let what = format!(
                "the limit has 'period: calendar': the 'unit_multiplier' of {source} is not used \
                 for this limit"
            );
            (what, "remove it, or remove 'period'")
        } else if let Err((what, remedy)) = checked_window(&multiplied) {
            let what = format!("{what}: {source} is not used for this limit");
            (what, remedy)
        } else {
            return multiplied;
        };
        self.problems.warning(at, what, remedy);
        rate
    }

    /// The share of this region; `None`, with an error, if the shares of the limit give it none.
    fn share(&self, stack: &Stack<'_>, at: Location) -> Option<RegionShare> {
        let Some((layer, shares)) = stack.region_shares() else {
            return Some(self.process.region_share);
        };
        let share = match &self.process.region {
            Some(region) => shares.of_region(region).ok_or_else(|| {
                let what = format!("the region {} has no share", quoted(region));
                (what, "add it to 'region_shares', or correct REGION")
            }),
            None => {
                let what = "the limit is divided by 'region_shares', and REGION is not set";
                Err((what.to_owned(), "write the name of this region in REGION"))
            }
        };
        let at = layer.place("region_shares").unwrap_or(at);
        self.problems.accept(at, share)
    }

    /// Warns of a number of which a share is 1 only because it would be 0.
    fn warn_of_ones(&self, stack: &Stack<'_>, number: (&str, u64), at: Location) {
        let (key, amount) = number;
        let map = stack.region_shares();
        let mut shares = vec![self.process.region_share];
        map.inspect(|(_, map)| shares = map.0.iter().map(|(_, share)| *share).collect());
        if shares.iter().any(|share| share.is_raised_to_one(amount)) {
            let sum: u64 = shares.iter().map(|share| share.of(amount)).sum();
            let sum = map.map_or("1 each".to_owned(), |_| format!("{sum} together"));
            let what = format!("a share of {amount} is below 1 and is 1: the regions admit {sum}");
            let remedy = "write a larger number, or larger shares";
            let at = stack.place(key).unwrap_or(at);
            self.problems.warning(at, what, remedy);
        }
    }

    fn warn_of_anchor(&mut self, stack: &Stack<'_>, rate: &Rate, at: Location) {
        let has_anchor = |layer: &&&PartialLimit| layer.options.anchor.is_some();
        let own = stack.own.iter().find(has_anchor);
        if own.is_some_and(|layer| layer.options.has_idle_anchor(rate)) {
            let at = stack.place("anchor").unwrap_or(at);
            let what = "'anchor' changes nothing: a day begins at midnight on every date";
            let remedy = "write a time of day, such as 2026-03-31T06:00, or remove it";
            self.problems.warning(at, what, remedy);
        }
    }

    /// Nothing asks a store about an unlimited limit, so that it has no options.
    fn warn_of_unlimited(&mut self, stack: &Stack<'_>, at: Location) {
        if stack.all().any(|layer| layer.trial.is_some()) {
            return;
        }
        let is_unused = |layer: &&Arc<PartialLimit>| {
            matches!(layer.source, LayerSource::Overlay(_)) && layer.has_options()
        };
        for source in stack.below.iter().filter(is_unused) {
            let what = format!(
                "an unlimited limit has no options: {} is not used for this limit",
                source.source.name().unwrap_or_default()
            );
            self.problems
                .warning(at, what, "remove them, or set an amount");
        }
    }

    fn report(&mut self, stack: &Stack<'_>, at: Location, error: &OptionError) {
        let mut what = error.what.clone();
        let place = stack.place(error.option);
        let of_default = stack
            .below
            .iter()
            .find_map(|layer| layer.place(error.option));
        if let (None, Some(default)) = (place, of_default) {
            what += &format!(
                " ('{}' is the default in {})",
                error.option,
                self.problems.show(default)
            );
        }
        self.problems
            .error(place.unwrap_or(at), what, error.remedy.as_str());
    }
}

/// Fills a limit with what its layers come to.
pub(super) fn fill(
    mut limit: Limit,
    settled: &Settled,
    plan: Option<Box<str>>,
    stack: &Stack<'_>,
) -> Limit {
    limit.amount = settled.amount;
    limit.is_by_rows = settled.is_by_rows;
    limit.plan = plan;
    limit.name = stack.find(|layer| layer.name.clone());
    limit.shown = Limit::shown(limit.name.as_deref(), &limit.levels);
    let shadow_mode = stack.find(|layer| layer.shadow_mode);
    limit.shadow_mode = shadow_mode.unwrap_or(limit.shadow_mode);
    limit.on_store_failure = stack.find(|layer| layer.on_store_failure);
    limit
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::partial::Places;
    use super::*;
    use crate::core::time::Span;
    use crate::core::time::{Weekday, Zone};
    use crate::limits::rules::limit::OnStoreFailure;

    const SECOND: Span = Span::from_secs(1);

    /// The options of a limit with these defaults.
    fn settled_options(own: &PartialLimit, defaults: &[PartialLimit]) -> Options {
        let below: Vec<_> = defaults.iter().cloned().map(Arc::new).collect();
        let stack = Stack {
            own: &[own],
            below: &below,
            ends_with_value: false,
        };
        stack.options().0
    }

    fn full() -> PartialLimit {
        let options = Options {
            kind: AlgorithmKind::default(),
            burst: Some(10),
            scale: Some(1),
            default_cost: Some(7),
            bucket_interval: Some(SECOND),
            bucket_span: Some(SECOND),
            subject_expiry: Some(SECOND),
            max_delay: Some(SECOND),
            max_duration: Some(SECOND),
            count_denied: Some(true),
            lease: Some(true),
            max_debt: Some(2),
            period: Some(PeriodKind::Calendar),
            timezone: Zone::named("Europe/Berlin"),
            week_starts: Some(Weekday::Sunday),
            anchor: "2026-03-31".parse().ok(),
            calendar_months: false,
        };
        PartialLimit {
            algorithm: Some(AlgorithmKind::TokenBucket),
            options,
            on_store_failure: Some(OnStoreFailure::Deny),
            ..Default::default()
        }
    }

    #[test]
    fn only_defaults_of_the_limits_own_algorithm_apply() {
        let buckets = Options {
            bucket_interval: Some(SECOND),
            bucket_span: Some(SECOND),
            subject_expiry: Some(SECOND),
            ..Options::default()
        };
        let Options {
            period,
            timezone,
            week_starts,
            anchor,
            ..
        } = full().options;
        let calendar = Options {
            period,
            timezone,
            week_starts,
            anchor,
            ..Options::default()
        };
        for (kind, options) in [
            (AlgorithmKind::FixedWindow, calendar),
            (AlgorithmKind::SlidingWindowLog, Options::default()),
            (AlgorithmKind::SlidingWindowCounter, Options::default()),
            (AlgorithmKind::SlidingWindowBuckets, buckets),
            (
                AlgorithmKind::TokenBucket,
                Options {
                    burst: Some(10),
                    ..Options::default()
                },
            ),
            (
                AlgorithmKind::LeakyBucket,
                Options {
                    max_delay: Some(SECOND),
                    ..Options::default()
                },
            ),
        ] {
            let max_debt = (kind != AlgorithmKind::FixedWindow).then_some(2);
            let lease = kind.spec().options.contains(&"lease").then_some(true);
            let expected = Options {
                kind,
                scale: Some(1),
                default_cost: Some(7),
                count_denied: Some(true),
                lease,
                max_debt,
                ..options
            };
            let own = PartialLimit {
                algorithm: Some(kind),
                ..PartialLimit::default()
            };
            assert_eq!(settled_options(&own, &[full()]), expected);
        }
    }

    #[test]
    fn a_limit_without_options_has_those_of_the_defaults_algorithm() {
        assert_eq!(
            settled_options(&PartialLimit::default(), &[full()]),
            Options {
                burst: Some(10),
                max_debt: Some(2),
                ..Options {
                    kind: AlgorithmKind::TokenBucket,
                    scale: Some(1),
                    default_cost: Some(7),
                    count_denied: Some(true),
                    ..Options::default()
                }
            }
        );
        assert_eq!(
            settled_options(&PartialLimit::default(), &[]),
            Options::default()
        );
    }

    #[test]
    fn a_limits_own_options_win_over_defaults() {
        let own = Options {
            burst: Some(3),
            count_denied: Some(false),
            ..Options::default()
        };
        let of_limit = PartialLimit {
            options: own,
            ..PartialLimit::default()
        };
        let options_of_limit = settled_options(&of_limit, &[full()]);
        assert_eq!(
            (
                options_of_limit.kind,
                options_of_limit.burst,
                options_of_limit.count_denied
            ),
            (AlgorithmKind::TokenBucket, Some(3), Some(false))
        );
        // This includes an option of another algorithm, which is an error and must not disappear.
        let own = Options {
            burst: Some(3),
            ..Options::default()
        };
        let leaky = PartialLimit {
            algorithm: Some(AlgorithmKind::LeakyBucket),
            options: own,
            ..PartialLimit::default()
        };
        assert_eq!(settled_options(&leaky, &[full()]).burst, Some(3));
    }
    #[test]
    fn the_default_of_max_debt_applies_where_refused_hits_count() {
        let per_hour = Rate {
            requests_per_unit: 10,
            unit: Unit::Hour,
            unit_multiplier: 1,
        };
        let max_debt = |own: Options, defaults: &[Options]| {
            let of = |options| PartialLimit {
                algorithm: Some(AlgorithmKind::TokenBucket),
                options,
                ..PartialLimit::default()
            };
            let defaults: Vec<_> = defaults.iter().copied().map(of).collect();
            let mut options = settled_options(&of(own), &defaults);
            options.leave_out_defaults(&own, &per_hour);
            options.max_debt
        };
        let counted = |count_denied| Options {
            count_denied: Some(count_denied),
            ..Options::default()
        };
        let debt = |limits| Options {
            max_debt: Some(limits),
            ..Options::default()
        };
        assert_eq!(max_debt(counted(false), &[debt(2)]), None);
        assert_eq!(max_debt(counted(true), &[debt(2)]), Some(2));
        // Whichever of several defaults says that they count.
        assert_eq!(
            max_debt(Options::default(), &[debt(3), counted(true)]),
            Some(3)
        );
        assert_eq!(
            max_debt(Options::default(), &[counted(true), debt(3)]),
            Some(3)
        );
        // What the limit says of itself stays, and is an error.
        assert_eq!(max_debt(debt(2), &[]), Some(2));
    }

    fn layer() -> impl Strategy<Value = PartialLimit> {
        let unit = prop::option::of(prop::sample::select(vec![Unit::Second, Unit::Day]));
        (
            prop::option::of(0..9_u64),
            unit,
            prop::option::of(1..9_u32),
            prop::option::of(any::<bool>()),
        )
            .prop_map(|(requests_per_unit, unit, unit_multiplier, unlimited)| {
                PartialLimit {
                    requests_per_unit,
                    unit,
                    unit_multiplier,
                    unlimited,
                    places: Places {
                        at: Location::default(),
                        keys: [
                            ("unit", unit.is_some()),
                            ("unit_multiplier", unit_multiplier.is_some()),
                        ]
                        .into_iter()
                        .filter_map(|(key, is_written)| {
                            is_written.then_some((key, Location::default()))
                        })
                        .collect(),
                    },
                    ..PartialLimit::default()
                }
            })
    }

    proptest! {
        #![proptest_config(crate::testing::property(256))]

        /// What stands further up decides, and what it does not say is as if it were not there.
        #[test]
        fn what_stands_above_decides(row in layer(), plan in layer(), limit in layer()) {
            let all = [&row, &plan, &limit];
            // One by one, from the weakest on.
            let (mut requests, mut unit, mut unlimited, mut beside) = (None, None, false, None);
            for (is_row, one) in [(false, &limit), (false, &plan), (true, &row)] {
                requests = one.requests_per_unit.or(requests);
                unit = match (one.unit, unit) {
                    (Some(own), _) => Some((own, one.unit_multiplier.unwrap_or(1))),
                    (None, Some((unit, multiplier))) => Some((unit, one.unit_multiplier.unwrap_or(multiplier))),
                    // A multiple of a unit that stands below nothing.
                    (None, None) => None,
                };
                beside = match (one.unlimited, one.places.keys.first()) {
                    (None, Some(&(key, at))) => Some((key, is_row.then_some(at))),
                    (None, None) => beside,
                    (Some(_), _) => None,
                };
                unlimited = one.unlimited.unwrap_or(unlimited && one.requests_per_unit.is_none());
            }
            let expected = match (unlimited, requests, unit) {
                (true, ..) => StackRate::Unlimited { beside },
                (false, None, _) => StackRate::Lacks("requests_per_unit"),
                (false, Some(_), None) => StackRate::Lacks("unit"),
                (false, Some(requests_per_unit), Some((unit, unit_multiplier))) => StackRate::Limited(Rate { requests_per_unit, unit, unit_multiplier }),
            };
            let rate = |own: &[&PartialLimit]| Stack { own, below: &[], ends_with_value: false }.rate();
            prop_assert_eq!(rate(&all), expected);
            // What says nothing changes nothing.
            prop_assert_eq!(rate(&[&row, &PartialLimit::default(), &plan, &limit]), expected);
        }
    }
}
