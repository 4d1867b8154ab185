//! What a file says about its whole domain, `commit` and `defaults`, and the limits that wait for
//! it.
//!
//! All files of a domain share its defaults, in whatever order they are read. So a limit is
//! settled, its algorithm made and its defaults applied, once all files are read, and no unsettled
//! limit gets into the rules.
//!
//! `STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT` is a default of `commit`, an option of compiling, so
//! that it holds wherever limits come from. envoyproxy/ratelimit reads all counters first and then
//! counts, which races; the atomic step exists here already.

use std::num::NonZeroU64;
use std::sync::Arc;

use super::algorithm_fields::{self, AlgorithmFields};
use super::fields::{self, Fields, Section};
use super::plans;
use super::problem::{Location, Problems};
use super::trial::TrialFields;
use super::{Domain, ProcessDefaults};
use crate::core::algorithm::{Algorithm, AlgorithmKind, OptionError, Options};
use crate::core::time::{PeriodKind, Rate, Unit};
use crate::core::usage;
use crate::limits::rules::Commit;
use crate::limits::rules::limit::{Amount, Limit, OnStoreFailure, Scale};

/// The values of `commit` in a file.
pub(super) const COMMITS: [(&str, Commit); 2] =
    [("each", Commit::Each), ("all_or_none", Commit::AllOrNone)];

/// A value that a domain gives once, or several times alike.
pub(super) struct Declared<T> {
    pub(super) value: T,
    first: Location,
}

/// The `defaults` of a domain.
#[derive(Default)]
pub(super) struct Defaults {
    fields: Option<Declared<AlgorithmFields>>,
    /// The locations of their keys.
    keys: Vec<(&'static str, Location)>,
    /// They are wrong, which is reported.
    pub(super) is_invalid: bool,
}

impl Defaults {
    /// A limit as the only default of its trial.
    fn of_limit(fields: AlgorithmFields, at: Location) -> Self {
        let fields = Some(Declared {
            value: fields,
            first: at,
        });
        Self {
            fields,
            ..Self::default()
        }
    }

    /// The failure policy of limits without one of their own.
    pub(super) fn on_store_failure(&self) -> Option<OnStoreFailure> {
        self.fields
            .as_ref()
            .and_then(|fields| fields.value.on_store_failure)
    }
}

/// Makes a limit of what it has become.
pub(super) type MakeLimit = dyn FnOnce(OfLimit) -> Limit;

/// What a limit has become once all files are read.
#[derive(Default)]
pub(super) struct OfLimit {
    /// `None`: unlimited, or its rows have amounts.
    pub(super) amount: Option<Amount>,
    /// What is recorded of it.
    pub(super) usage: Option<usage::Settings>,
    /// What it tries.
    pub(super) trial: Option<Settled>,
    pub(super) on_store_failure: Option<OnStoreFailure>,
}

/// An amount with all defaults applied.
pub(super) struct Settled {
    pub(super) amount: Amount,
    /// Those of its algorithm.
    pub(super) options: Options,
    /// What is recorded of it.
    pub(super) usage: Option<usage::Settings>,
}

/// The `rate_limit` of a pending limit.
pub(super) struct PendingAmount {
    pub(super) rate: Rate,
    pub(super) fields: AlgorithmFields,
    /// What is written for this limit below them: of a plan, or of the `rate_limit` of a row. The
    /// strongest first.
    pub(super) below: Vec<AlgorithmFields>,
    /// The `rate_limit`.
    pub(super) at: Location,
    /// The locations of its keys.
    pub(super) keys: Vec<(&'static str, Location)>,
    /// What the overlay and the defaults of the process add, the strongest first.
    pub(super) layers: Vec<Layer>,
    /// The last descriptor of its path has a value that is no pattern, or a list of values.
    pub(super) has_last_value: bool,
}

/// A `trial` that waits for its real limit.
pub(super) struct PendingTrial {
    pub(super) written: TrialFields,
    pub(super) at: Location,
    /// The locations of its keys.
    pub(super) keys: Vec<(&'static str, Location)>,
    /// What the overlay and the defaults of the process add where the real limit is unlimited.
    pub(super) layers: Vec<Layer>,
}

/// Options for limits that do not set them, from outside of their file or resource.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Layer {
    pub(super) fields: AlgorithmFields,
    /// Where it is written, for messages.
    pub(super) source: Arc<str>,
    /// Written for these limits, and not a default of many.
    pub(super) of_limit: bool,
}

/// Reads the keys of a file that concern its whole domain.
pub(super) fn read(problems: &mut Problems, fields: &Fields<'_>, domain: &mut Domain) {
    if let Some(node) = fields.get("commit")
        && let Some(text) = fields::text(problems, node, "commit")
        && let Some(commit) = fields::one_of(problems, node, text, "value of 'commit'", &COMMITS)
    {
        let location = problems.here(node.at);
        declare(
            problems,
            &mut domain.commit,
            "commit",
            Declared {
                value: commit,
                first: location,
            },
        );
    }
    plans::read(problems, fields, &mut domain.plans);
    domain.defaults.is_invalid |= fields.meant("defaults");
    let Some(node) = fields.get("defaults") else {
        return;
    };
    let read = fields::read(problems, node, Section::Defaults);
    let Some((keys, read)) =
        read.and_then(|keys| algorithm_fields::read(problems, &keys).map(|read| (keys, read)))
    else {
        domain.defaults.is_invalid = true;
        return;
    };
    let location = problems.here(node.at);
    if read.is_concurrency() {
        let what = "'algorithm: concurrency' is no default: the last descriptor of such a limit is \
            the request's id";
        problems.error_at(
            keys.lack("algorithm"),
            what,
            "write it in the 'rate_limit' of these limits",
        );
        domain.defaults.is_invalid = true;
        return;
    }
    domain
        .defaults
        .keys
        .extend(keys.locations().map(|(key, at)| (key, problems.here(at))));
    domain.defaults.is_invalid |= !declare(
        problems,
        &mut domain.defaults.fields,
        "defaults",
        Declared {
            value: read,
            first: location,
        },
    );
}

/// Sets the value of a domain. Returns false, and reports an error, if another file gives a
/// different one.
fn declare<T: PartialEq>(
    problems: &mut Problems,
    known: &mut Option<Declared<T>>,
    key: &str,
    new: Declared<T>,
) -> bool {
    match known {
        None => *known = Some(new),
        Some(known) if known.value == new.value => {}
        Some(known) => {
            let what = format!(
                "'{key}' differs from the one in {}, for the same domain",
                problems.show(known.first)
            );
            problems.error_in(
                new.first,
                what,
                "write the same in both files, or remove one of them",
            );
            return false;
        }
    }
    true
}

/// What is recorded of a limit whose amounts are those of rows; `None`, with an error, if the
/// options are wrong.
#[expect(clippy::option_option, reason = "an error, no usage, or usage")]
pub(super) fn settle_usage(
    problems: &mut Problems,
    (fields, keys, at): (&AlgorithmFields, &[(&'static str, Location)], Location),
    defaults: &Defaults,
) -> Option<Option<usage::Settings>> {
    let of_domain = defaults.fields.iter().map(|defaults| &defaults.value);
    let options = of_domain.fold(fields.usage, |usage, defaults| {
        usage.apply_defaults(&defaults.usage)
    });
    let without_effect = options
        .without_effect()
        .filter(|error| keys.iter().any(|(key, _)| *key == error.option));
    match without_effect.map_or_else(|| options.settings(), Err) {
        Ok(usage) => Some(usage),
        Err(error) => {
            report(problems, (keys, at), defaults, &error);
            None
        }
    }
}

/// Settles the trial of a limit. `real` is the rate of the limit and what it has become; `None`: it
/// is unlimited.
///
/// What the trial does not write is the real limit's, as far as that has a meaning for the
/// algorithm and the unit of the trial. Where the limit is unlimited, it is that of the domain.
pub(super) fn settle_trial(
    problems: &mut Problems,
    trial: PendingTrial,
    real: Option<(Rate, &Settled)>,
    defaults: &Defaults,
    process: ProcessDefaults,
) -> Option<Settled> {
    let PendingTrial {
        written,
        at,
        keys,
        layers,
    } = trial;
    if written.fields.is_concurrency()
        || real.is_some_and(|(_, settled)| settled.amount.algorithm.has_holders())
    {
        let what = "a concurrency limit has no trial: its requests take places and give them back";
        problems.error_in(
            at,
            what,
            "remove 'trial', or write another 'algorithm' for both",
        );
        return None;
    }
    let rate = written.rate(real.map(|(rate, _)| rate))?;
    if rate.window().is_none() {
        let what = format!(
            "a window of {} {}s is longer than 100 years",
            rate.unit_multiplier,
            rate.unit.name()
        );
        problems.error_in(at, what, "write a smaller 'unit_multiplier'");
        return None;
    }
    let pending = PendingAmount {
        rate,
        fields: written.fields,
        below: Vec::new(),
        at,
        keys,
        layers,
        has_last_value: false,
    };
    let Some((_, of_limit)) = real else {
        return settle_amount(problems, &pending, defaults, process);
    };
    let of_limit_alone = Defaults::of_limit(AlgorithmFields::of(&of_limit.options), at);
    let settled = settle_amount(problems, &pending, &of_limit_alone, process)?;
    if settled.amount == of_limit.amount {
        let what = "the trial is the same as the limit, so that it counts what the limit counts";
        problems.warning_in(
            at,
            what,
            "write another 'requests_per_unit' in the trial, or remove 'trial'",
        );
    }
    Some(Settled {
        usage: of_limit.usage,
        ..settled
    })
}

/// Applies the defaults to an amount; `None`, with an error, if its options make no algorithm.
pub(super) fn settle_amount(
    problems: &mut Problems,
    pending: &PendingAmount,
    defaults: &Defaults,
    process: ProcessDefaults,
) -> Option<Settled> {
    let of_domain = defaults.fields.iter().map(|defaults| defaults.value);
    let of_layers = pending.layers.iter().map(|layer| layer.fields);
    let all: Vec<AlgorithmFields> = pending
        .below
        .iter()
        .copied()
        .chain(of_layers)
        .chain(of_domain)
        .collect();
    debug_assert!(
        pending.below.is_empty() || pending.layers.is_empty(),
        "plans are of files, and layers of a control plane"
    );
    // A layer that makes no algorithm of this limit is left out: its author did not have this limit
    // in mind, and no limit would be worse.
    for left_out in 0..=pending.layers.len() {
        let mut options = pending.fields.apply_defaults(&all[left_out..]);
        // Without the options of other algorithms, the next error shows too.
        let mut foreign = options.remove_foreign();
        let of_limit = pending.layers[left_out..]
            .iter()
            .filter(|layer| layer.of_limit)
            .map(|layer| layer.fields);
        let of_limit = pending.below.iter().copied().chain(of_limit);
        let written = pending.fields.written(options.kind, of_limit);
        options.leave_out_defaults(&written, &pending.rate);
        let is_multiplied = written.period == Some(PeriodKind::Calendar)
            && pending
                .keys
                .iter()
                .any(|(key, _)| *key == "unit_multiplier");
        foreign.extend(options.remove_wrong_calendar(&pending.rate, is_multiplied));
        options.calendar_months = process.calendar_months;
        // A control plane sends a unit with each limit.
        let is_concurrency = options.kind == AlgorithmKind::Concurrency;
        let rate = if is_concurrency {
            Rate {
                unit: Unit::None,
                unit_multiplier: 1,
                ..pending.rate
            }
        } else {
            pending.rate
        };
        let misplaced = if is_concurrency {
            misplaced_concurrency(pending, &pending.layers[left_out..])
        } else {
            None
        };
        let algorithm = misplaced.map_or_else(|| Algorithm::try_new(&rate, &options), Err);
        let usage_options = all[left_out..]
            .iter()
            .fold(pending.fields.usage, |usage, defaults| {
                usage.apply_defaults(&defaults.usage)
            });
        let usage = match usage_options
            .without_effect()
            .filter(|error| pending.keys.iter().any(|(key, _)| *key == error.option))
        {
            Some(error) => Err(error),
            None => usage_options.settings(),
        };
        let error = match (foreign.first(), &algorithm, &usage) {
            (None, Ok(algorithm), Ok(usage)) => {
                if let Some(warning) = pending.fields.idle_anchor(&pending.rate) {
                    let at = pending
                        .keys
                        .iter()
                        .find(|(key, _)| *key == warning.option)
                        .map_or(pending.at, |&(_, at)| at);
                    problems.warning_in(at, warning.what, warning.remedy);
                }
                let default_cost = options.default_cost.and_then(NonZeroU64::new);
                let amount = Amount {
                    default_cost,
                    ..Amount::new(rate, Scale::new(options.scale), *algorithm)
                };
                return Some(Settled {
                    amount,
                    options,
                    usage: *usage,
                });
            }
            (Some(error), ..) | (None, Err(error), _) | (None, Ok(_), Err(error)) => error,
        };
        match pending.layers.get(left_out) {
            Some(layer) => {
                let what = format!(
                    "{}: {} is not used for this limit",
                    error.what, layer.source
                );
                problems.warning_in(pending.at, what, error.remedy.as_str());
            }
            None => {
                for error in foreign
                    .iter()
                    .chain(algorithm.as_ref().err())
                    .chain(usage.as_ref().err())
                {
                    report(problems, (&pending.keys, pending.at), defaults, error);
                }
            }
        }
    }
    None
}

/// Why a limit is none of requests in flight, whose last descriptor is the request's id.
fn misplaced_concurrency(pending: &PendingAmount, layers: &[Layer]) -> Option<OptionError> {
    let error = |what: &str, remedy: &str| {
        Some(OptionError {
            option: "algorithm",
            what: what.to_owned(),
            remedy: remedy.to_owned(),
        })
    };
    if !pending.fields.is_concurrency()
        && !layers
            .iter()
            .any(|layer| layer.of_limit && layer.fields.is_concurrency())
    {
        return error(
            "'algorithm: concurrency' is no default",
            "write it for the limits whose last descriptor is the request's id",
        );
    }
    if pending.has_last_value {
        let what = "the last descriptor of a concurrency limit has a value, which would be the id \
            of one request";
        return error(
            what,
            "remove its 'value', or write a descriptor for the id below it, such as 'key: \
             request', and the limit there",
        );
    }
    None
}

fn report(
    problems: &mut Problems,
    (keys, at): (&[(&'static str, Location)], Location),
    defaults: &Defaults,
    error: &OptionError,
) {
    let location_in = |keys: &[(&'static str, Location)]| {
        keys.iter()
            .find(|(key, _)| *key == error.option)
            .map(|&(_, location)| location)
    };
    match (location_in(keys), location_in(&defaults.keys)) {
        (Some(location), _) => {
            problems.error_in(location, error.what.as_str(), error.remedy.as_str());
        }
        (None, Some(location)) => {
            let what = format!(
                "{} ('{}' is the default in {})",
                error.what,
                error.option,
                problems.show(location)
            );
            problems.error_in(at, what, error.remedy.as_str());
        }
        (None, None) => problems.error_in(at, error.what.as_str(), error.remedy.as_str()),
    }
}
