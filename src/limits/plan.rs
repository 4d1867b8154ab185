//! A plan: the checks of one request, and which descriptor status of the response each one fills.
//!
//! Everything that depends on the rules is decided here, before the store is asked. A plan without
//! checks asks no store.
//!
//! Of an `all_or_none` request with a blocked descriptor the checks become looks: nothing is
//! written, the statuses say what is left, and the scripts know nothing of overrides.

mod all_or_none;
mod checks;
mod explain;
mod holder;
pub(crate) mod key;
mod subject;
mod trials;

pub use all_or_none::AllOrNone;
pub use checks::{BlockedKey, Check, CheckIndex, CheckIndices, Checks, Modes};
pub use explain::{Explanation, Outcome};
pub(crate) use subject::{NoPlan, ask as ask_of};
pub use trials::{Trial, Trials};

use std::num::NonZeroU64;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::core::algorithm::{self, Algorithm};
use crate::core::ask::{Ask, Descriptor, Entry};
use crate::core::time::{MAX_SAFE_INTEGER, Rate, Span, Unit};
use crate::core::verdict::{Decision, Decisions};
use crate::limits::overrides::{Applied, InForce};
use crate::limits::rules::limit::{self, Amount, LimitId, LimitInForce, OnStoreFailure, Scale};
use crate::limits::rules::table::RowNumber;
use crate::limits::rules::{Commit, Lookup, Rules};
use holder::Holder;

/// What the rules say about one request: the checks for the store, and how their decisions fill the
/// response.
#[derive(Debug)]
pub struct Plan {
    /// The rules that the plan was made from.
    pub rules: Arc<Rules>,
    /// One per descriptor of the request, in its order.
    pub slots: SmallVec<[Slot; 4]>,
    /// The rules do not know the domain.
    pub unknown_domain: bool,
    /// The checks. Shared, because a store may still work on them after the request was cancelled.
    pub checks: Arc<Checks>,
    /// Checks of limits with `trial`, which decide nothing; `None` if there are none.
    pub trials: Option<Box<Trials>>,
}

/// What fills one descriptor status of the response.
#[derive(Debug)]
pub enum Slot {
    /// No limit applies to the descriptor.
    Free,
    /// A limit that is `unlimited`.
    Unlimited(LimitId),
    /// An override exempts the descriptor.
    Exempt {
        /// The limit that would apply.
        limit: Option<LimitId>,
    },
    /// An override blocks the descriptor.
    Blocked {
        /// The limit that would apply.
        limit: Option<LimitId>,
        /// The row of its table.
        row: Option<RowNumber>,
        /// The amount that would be shown; `None` without a limit.
        shown: Option<Rate>,
        /// The time to the end of the block; `None`: it has none.
        ends_in: Option<Span>,
        /// The key of the counter that it would have, in [`Plan::checks`].
        key: BlockedKey,
    },
    /// The decision on a check.
    Checked {
        /// The check, in [`Plan::checks`].
        check: CheckIndex,
        /// The configured limit; `None` if the descriptor has a limit of its own.
        limit: Option<LimitId>,
        /// The row of the limit's table.
        row: Option<RowNumber>,
        /// The amount, as the response shows it.
        shown: Rate,
        /// The hits of a unit of that amount.
        scale: Scale,
        /// The names of the metric's levels, if they depend on the request.
        metric: Option<Box<[String]>>,
        /// The hits are the limit's `default_cost`, because the request names none.
        is_default_cost: bool,
        /// The amount is that of an override.
        is_raised: bool,
    },
}

/// Options of all plans.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The prefix of every counter key. It must not contain braces, which would change the hash
    /// slot of the key in a Redis Cluster.
    pub key_prefix: String,
    /// `ON_STORE_FAILURE`: the failure policy of limits without one, in domains without one.
    pub on_store_failure: OnStoreFailure,
    /// `USE_CALENDAR_MONTH_RATE_LIMIT`: limits per month that requests bring along follow the
    /// calendar.
    pub calendar_months: bool,
    /// `QUOTA_MODE`: every descriptor that is not unlimited is a quota descriptor.
    pub quota_mode: bool,
}

impl Plan {
    /// Matches the descriptors of `ask` against `rules`, without overrides.
    #[must_use]
    pub fn new(rules: &Arc<Rules>, ask: &Ask<'_>, options: &Options) -> Self {
        Self::with_overrides(rules, None, ask, options)
    }

    /// Matches the descriptors of `ask` against `rules`, and against the overrides in force if
    /// there are any.
    #[must_use]
    pub fn with_overrides(
        rules: &Arc<Rules>,
        overrides: Option<InForce<'_>>,
        ask: &Ask<'_>,
        options: &Options,
    ) -> Self {
        let commit = rules.commit(ask.domain);
        let mut checks = Checks {
            commit: commit.unwrap_or_default(),
            ..Checks::default()
        };
        let mut trials = None;
        let slots = match (commit, &overrides) {
            (Some(_), overrides) => match_all(
                rules,
                overrides.as_ref(),
                ask,
                options,
                (&mut checks, &mut trials),
            ),
            (None, Some(overrides)) => ask
                .descriptors()
                .map(|asked| unlimited_slot(overrides, (ask, options), asked, &mut checks))
                .collect(),
            (None, None) => ask.descriptors().map(|_| Slot::Free).collect(),
        };
        if options.quota_mode {
            checks.passing_quotas += slots
                .iter()
                .filter(|slot| matches!(slot, Slot::Free))
                .count();
        }
        if checks.is_blocked && checks.commit == Commit::AllOrNone {
            checks.look_only();
            trials = None;
        }
        Self {
            rules: Arc::clone(rules),
            slots,
            unknown_domain: commit.is_none(),
            checks: Arc::new(checks),
            trials,
        }
    }

    /// Whether nothing of the request was counted or given back, because it was refused.
    #[must_use]
    pub fn is_refused_as_a_whole(&self, decisions: &Decisions) -> bool {
        self.checks.commit == Commit::AllOrNone
            && self
                .checks
                .is_over_limit(decisions.iter().map(Decision::allows))
    }
}

/// The slot of a descriptor in a domain that the rules do not know.
fn unlimited_slot(
    overrides: &InForce<'_>,
    (ask, options): (&Ask<'_>, &Options),
    (descriptor, entries): (&Descriptor, &[Entry<'_>]),
    checks: &mut Checks,
) -> Slot {
    match overrides
        .for_hits(ask.hits(descriptor))
        .find(ask.domain, entries, None)
    {
        Some(Applied::Block { ends_in }) => {
            checks.is_blocked = true;
            let key = add_blocked_key(checks, (ask, options), entries, None, None);
            Slot::Blocked {
                limit: None,
                row: None,
                shown: None,
                ends_in,
                key,
            }
        }
        Some(Applied::Exempt) => Slot::Exempt { limit: None },
        Some(Applied::Raise(_)) | None => Slot::Free,
    }
}

fn match_all(
    rules: &Rules,
    overrides: Option<&InForce<'_>>,
    ask: &Ask<'_>,
    options: &Options,
    (checks, trials): (&mut Checks, &mut Option<Box<Trials>>),
) -> SmallVec<[Slot; 4]> {
    let found: SmallVec<[Option<LimitInForce<'_>>; 4]> = ask
        .descriptors()
        .map(|(descriptor, entries)| find(rules, ask.domain, descriptor, entries))
        .collect();
    checks.list.reserve(ask.len());
    checks.keys.reserve(
        ask.descriptors()
            .map(|(_, entries)| key::capacity(&options.key_prefix, ask.domain, entries))
            .sum(),
    );
    let mut slots = SmallVec::with_capacity(ask.len());
    for ((descriptor, entries), limit) in ask.descriptors().zip(&found) {
        let is_in_flight = limit.is_some_and(|found| found.limit.gauge.is_some());
        let (of_request, asked, matched) = (
            (rules, ask, options),
            (descriptor, entries),
            (*limit, &found[..]),
        );
        slots.push(match is_in_flight {
            true => slot_of_holder(overrides, checks, of_request, asked, matched),
            false => slot(overrides, checks, of_request, asked, matched),
        });
    }
    if found
        .iter()
        .flatten()
        .any(|in_force| in_force.limit.trial.is_some())
    {
        *trials = Trials::new(ask, options, checks, &slots, &found);
    }
    slots
}

/// The slot of a descriptor.
#[inline]
fn slot(
    overrides: Option<&InForce<'_>>,
    checks: &mut Checks,
    (rules, ask, options): (&Rules, &Ask<'_>, &Options),
    (descriptor, entries): (&Descriptor, &[Entry<'_>]),
    (limit, found): (Option<LimitInForce<'_>>, &[Option<LimitInForce<'_>>]),
) -> Slot {
    if let Some(overrides) = overrides
        && let Some(slot) = overridden(
            overrides,
            checks,
            (rules, ask, options),
            (descriptor, entries),
            (limit, found),
        )
    {
        return slot;
    }
    let mut check = |limit: Option<LimitInForce<'_>>, amount: &Amount| {
        add_check(
            checks,
            (rules, ask, options),
            (descriptor, entries),
            limit,
            amount,
        )
    };
    match (limit, descriptor.limit) {
        (_, Some(rate)) => own_amount(rate, (rules, ask, options), entries)
            .map_or(Slot::Free, |amount| check(None, &amount)),
        (None, None) => Slot::Free,
        (Some(limit), None) => match limit.amount() {
            None => Slot::Unlimited(limit.limit.id),
            Some(_) if is_replaced(limit, found) => Slot::Free,
            Some(amount) => check(Some(limit), amount),
        },
    }
}

/// The same for a limit of requests in flight. Apart, so that others do not pay for it.
#[inline(never)]
fn slot_of_holder(
    overrides: Option<&InForce<'_>>,
    checks: &mut Checks,
    of_request: (&Rules, &Ask<'_>, &Options),
    (descriptor, entries): (&Descriptor, &[Entry<'_>]),
    (limit, found): (Option<LimitInForce<'_>>, &[Option<LimitInForce<'_>>]),
) -> Slot {
    let Some(holder) = limit.and_then(|found| Holder::new(found.limit, entries)) else {
        return slot(
            overrides,
            checks,
            of_request,
            (descriptor, entries),
            (limit, found),
        );
    };
    let slot = slot(
        overrides,
        checks,
        of_request,
        (descriptor, &holder.subject),
        (limit, found),
    );
    holder.ask(&slot, checks);
    slot
}

/// The slot of a descriptor to which an override applies.
fn overridden(
    overrides: &InForce<'_>,
    checks: &mut Checks,
    (rules, ask, options): (&Rules, &Ask<'_>, &Options),
    (descriptor, entries): (&Descriptor, &[Entry<'_>]),
    (limit, found): (Option<LimitInForce<'_>>, &[Option<LimitInForce<'_>>]),
) -> Option<Slot> {
    let is_replaced = limit.is_some_and(|limit| is_replaced(limit, found));
    let amount = match descriptor.limit {
        Some(rate) => own_amount(rate, (rules, ask, options), entries),
        None => limit
            .filter(|_| !is_replaced)
            .and_then(|limit| limit.amount().copied()),
    };
    let id = limit.map(|limit| limit.limit.id);
    Some(
        match overrides
            .for_hits(ask.hits(descriptor))
            .find(ask.domain, entries, amount.as_ref())?
        {
            Applied::Block { ends_in } => {
                checks.is_blocked = true;
                let key = add_blocked_key(checks, (ask, options), entries, limit, amount.as_ref());
                let row = limit.and_then(|limit| limit.row);
                Slot::Blocked {
                    limit: id,
                    row,
                    shown: amount.map(|amount| amount.shown),
                    ends_in,
                    key,
                }
            }
            Applied::Exempt => {
                // It stays a quota, of which there is always some left: otherwise an exemption
                // could make the request fail for its other quotas.
                let is_unlimited = limit.is_some_and(|limit| limit.amount().is_none());
                let is_quota = limit.is_some_and(|limit| limit.limit.quota_mode && !is_replaced);
                checks.passing_quotas +=
                    usize::from(!is_unlimited && (is_quota || options.quota_mode));
                Slot::Exempt { limit: id }
            }
            Applied::Raise(amount) => {
                let mut slot = add_check(
                    checks,
                    (rules, ask, options),
                    (descriptor, entries),
                    limit,
                    &amount,
                );
                if let Slot::Checked { is_raised, .. } = &mut slot {
                    *is_raised = true;
                }
                slot
            }
        },
    )
}

/// Writes the key of a counter that is not asked for, so that a blocked subject is the one that it
/// was before.
#[cold]
fn add_blocked_key(
    checks: &mut Checks,
    (ask, options): (&Ask<'_>, &Options),
    entries: &[Entry<'_>],
    limit: Option<LimitInForce<'_>>,
    amount: Option<&Amount>,
) -> BlockedKey {
    let start = checks.keys.len();
    let levels = limit.map_or(&[][..], |limit| &limit.limit.levels);
    key::write_any(
        &mut checks.keys,
        &options.key_prefix,
        ask.domain,
        entries,
        levels,
        amount.map(|amount| &amount.algorithm),
    );
    BlockedKey::new(start..checks.keys.len())
}

/// The amount of a limit that the request brings along, in units of the limit that it replaces.
/// `None` cannot be: the decoder rejects rates without a valid window, and 2^32 - 1 units of 2^32 -
/// 1 hits are cut to the most that is counted.
fn own_amount(
    rate: Rate,
    (rules, ask, options): (&Rules, &Ask<'_>, &Options),
    entries: &[Entry<'_>],
) -> Option<Amount> {
    let scale = match rules.find(ask.domain, entries) {
        Lookup::Limit(limit) => limit.amount().map_or(Scale::ONE, |amount| amount.scale),
        Lookup::NoLimit | Lookup::UnknownDomain => Scale::ONE,
    };
    let of_hits = Rate {
        requests_per_unit: scale.hits(rate.requests_per_unit).min(MAX_SAFE_INTEGER),
        ..rate
    };
    let own_limit = algorithm::Options {
        calendar_months: options.calendar_months,
        ..Default::default()
    };
    Algorithm::try_new(&of_hits, &own_limit)
        .ok()
        .map(|algorithm| Amount {
            rate,
            scale,
            default_cost: None,
            shown: rate,
            algorithm,
        })
}

fn add_check(
    checks: &mut Checks,
    (rules, ask, options): (&Rules, &Ask<'_>, &Options),
    (descriptor, entries): (&Descriptor, &[Entry<'_>]),
    in_force: Option<LimitInForce<'_>>,
    amount: &Amount,
) -> Slot {
    let limit = in_force.map(|in_force| in_force.limit);
    let Amount {
        rate,
        scale,
        default_cost,
        shown,
        algorithm,
    } = amount;
    let is_default_cost = default_cost.is_some() && ask.names_no_hits(descriptor);
    let start = checks.keys.len();
    let levels = limit.map_or(&[][..], |limit| &limit.levels);
    key::write(
        &mut checks.keys,
        &options.key_prefix,
        ask.domain,
        entries,
        levels,
        algorithm,
    );
    let (shadow, quota) = in_force.map_or((false, false), |in_force| {
        (in_force.shadow_mode(), in_force.limit.quota_mode)
    });
    let on_store_failure = in_force.map_or_else(
        || rules.on_store_failure(ask.domain),
        LimitInForce::on_store_failure,
    );
    let check = CheckIndex(checks.len());
    if let Some(tracking) = limit.and_then(|limit| limit.usage.as_ref()) {
        checks.tracked.push((check, Arc::clone(tracking)));
    }
    checks.list.push(Check {
        key: start..checks.keys.len(),
        algorithm: *algorithm,
        hits: ask.hits_or(descriptor, default_cost.map_or(1, NonZeroU64::get)),
        modes: Modes {
            shadow,
            quota: quota || options.quota_mode,
        },
        on_store_failure: on_store_failure.unwrap_or(options.on_store_failure),
        per_second: rate.unit == Unit::Second,
    });
    Slot::Checked {
        check,
        limit: limit.map(|limit| limit.id),
        row: in_force.and_then(|in_force| in_force.row),
        shown: *shown,
        scale: *scale,
        metric: metric_levels(limit, entries),
        is_default_cost,
        is_raised: false,
    }
}

fn find<'r>(
    rules: &'r Rules,
    domain: &[u8],
    descriptor: &Descriptor,
    entries: &[Entry<'_>],
) -> Option<LimitInForce<'r>> {
    match descriptor.limit {
        Some(_) => None,
        None => match rules.find(domain, entries) {
            Lookup::Limit(limit) => Some(limit),
            Lookup::NoLimit | Lookup::UnknownDomain => None,
        },
    }
}

/// Whether a matched limit of the request names `limit` in its `replaces`. A limit that is replaced
/// itself, or unlimited, replaces others too.
fn is_replaced(limit: LimitInForce<'_>, found: &[Option<LimitInForce<'_>>]) -> bool {
    let replaces = |name: &str| {
        found.iter().flatten().any(|other| {
            other
                .limit
                .replaces
                .iter()
                .any(|replaced| **replaced == *name)
        })
    };
    limit.name().is_some_and(replaces)
}

/// The names of the metric's levels, if they depend on the request: for a limit of the request's
/// own, `detailed_metric` or `value_to_metric`. A level with `share_threshold` keeps its pattern,
/// and addresses are those that are counted.
fn metric_levels(limit: Option<&limit::Limit>, entries: &[Entry<'_>]) -> Option<Box<[String]>> {
    let text = |entry: &Entry<'_>, value: &[u8]| {
        let (key, value) = (
            String::from_utf8_lossy(entry.key),
            String::from_utf8_lossy(value),
        );
        format!("{key}_{value}")
    };
    let Some(limit) = limit else {
        return Some(
            entries
                .iter()
                .map(|entry| text(entry, entry.value))
                .collect(),
        );
    };
    if !limit.detailed_metric && !limit.levels.iter().any(|level| level.value_to_metric) {
        return None;
    }
    let level_text = |(level, entry): (&limit::Level, &Entry<'_>)| match level {
        // Its value is the id of the request.
        level
            if limit.gauge.is_some()
                && std::ptr::eq(level, &raw const limit.levels[limit.levels.len() - 1]) =>
        {
            level.key.to_string()
        }
        level if level.share_threshold => level.text(),
        level if level.value_to_metric && !limit.detailed_metric && entry.value.is_empty() => {
            level.key.to_string()
        }
        level if limit.detailed_metric || level.value_to_metric => {
            text(entry, key::Counted::new(entry.value, level).bytes())
        }
        level => level.text(),
    };
    Some(limit.levels.iter().zip(entries).map(level_text).collect())
}

#[cfg(test)]
mod matching_tests;
#[cfg(test)]
mod override_tests;
#[cfg(test)]
mod trial_tests;
