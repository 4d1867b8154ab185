//! A plan: the checks of one request, and which slot of the answer each one fills.
//!
//! Everything that depends on the rules is settled here, before any store is asked; a plan without checks never leaves the process.

mod all_or_none;
mod checks;
mod key;

pub use all_or_none::AllOrNone;
pub use checks::{Check, CheckIndex, CheckIndices, Checks, Modes};

use std::sync::Arc;

use smallvec::SmallVec;

use crate::algorithm::{self, Algorithm};
use crate::ask::{Ask, Descriptor, Entry};
use crate::rules::limit::{self, Amount, Limit, LimitId, OnStoreFailure};
use crate::rules::{Lookup, Rules};
use crate::time::{Rate, Unit};

/// What the rules say about one request: what stores are asked to decide, and how the response is filled with it.
#[derive(Debug)]
pub struct Plan {
    /// The rules that it was made from.
    pub rules: Arc<Rules>,
    /// One per descriptor of the request, in its order.
    pub slots: SmallVec<[Slot; 4]>,
    /// The rules do not know the domain.
    pub unknown_domain: bool,
    /// What to decide. Shared, because a store may go on with it when the request has left.
    pub checks: Arc<Checks>,
}

/// What fills one place of the answer.
#[derive(Debug)]
pub enum Slot {
    /// Nothing limits the descriptor.
    Free,
    /// A limit without an amount.
    Unlimited(LimitId),
    /// The answer to a check.
    Checked {
        /// Which of [`Plan::checks`].
        check: CheckIndex,
        /// The configured limit; `None` when the request brought its own.
        limit: Option<LimitId>,
        /// The amount, as the answer shows it.
        rate: Rate,
        /// Names of the metric's levels when they depend on the request.
        metric: Option<Box<[String]>>,
    },
}

/// What a plan needs to know besides rules and request.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Goes in front of every counter key. Holds no braces: they would move the key to another slot of a Redis Cluster.
    pub key_prefix: String,
    /// `ON_STORE_FAILURE`: what answers, while the store cannot, for limits that say nothing, in domains that say nothing.
    pub on_store_failure: OnStoreFailure,
    /// `QUOTA_MODE`: every descriptor that is not unlimited is a quota descriptor.
    pub quota_mode: bool,
}

impl Plan {
    /// Matches the descriptors of `ask`.
    #[must_use]
    pub fn new(rules: &Arc<Rules>, ask: &Ask<'_>, options: &Options) -> Self {
        let commit = rules.commit(ask.domain);
        let mut checks = Checks { commit: commit.unwrap_or_default(), ..Checks::default() };
        let slots =
            if commit.is_some() { match_all(rules, ask, options, &mut checks) } else { ask.descriptors().map(|_| Slot::Free).collect() };
        if options.quota_mode {
            checks.passing_quotas = slots.iter().filter(|slot| matches!(slot, Slot::Free)).count();
        }
        Self { rules: Arc::clone(rules), slots, unknown_domain: commit.is_none(), checks: Arc::new(checks) }
    }
}

fn match_all(rules: &Rules, ask: &Ask<'_>, options: &Options, checks: &mut Checks) -> SmallVec<[Slot; 4]> {
    let found: SmallVec<[Option<&Limit>; 4]> =
        ask.descriptors().map(|(descriptor, entries)| find(rules, ask.domain, descriptor, entries)).collect();
    checks.checks.reserve(ask.len());
    checks.keys.reserve(ask.descriptors().map(|(_, entries)| key::room(&options.key_prefix, ask.domain, entries)).sum());
    let mut slots = SmallVec::with_capacity(ask.len());
    for ((descriptor, entries), limit) in ask.descriptors().zip(&found) {
        let mut check = |limit, amount| add_check(checks, (rules, ask, options), (descriptor, entries), limit, amount);
        let slot = match (*limit, descriptor.limit) {
            // The decoder refuses rates without a possible window.
            (_, Some(rate)) => match Algorithm::try_new(&rate, &algorithm::Options::default()) {
                Ok(algorithm) => check(None, Amount { rate, algorithm }),
                Err(_) => Slot::Free,
            },
            (None, None) => Slot::Free,
            (Some(limit), None) => match limit.amount {
                None => Slot::Unlimited(limit.id),
                Some(_) if is_replaced(limit, &found) => Slot::Free,
                Some(amount) => check(Some(limit), amount),
            },
        };
        slots.push(slot);
    }
    slots
}

fn add_check(
    checks: &mut Checks,
    (rules, ask, options): (&Rules, &Ask<'_>, &Options),
    (descriptor, entries): (&Descriptor, &[Entry<'_>]),
    limit: Option<&Limit>,
    Amount { rate, algorithm }: Amount,
) -> Slot {
    let start = checks.keys.len();
    let levels = limit.map_or(&[][..], |limit| &limit.levels);
    key::write(&mut checks.keys, &options.key_prefix, ask.domain, entries, levels, &algorithm);
    let (shadow, quota) = limit.map_or((false, false), |limit| (limit.shadow_mode, limit.quota_mode));
    let on_store_failure = limit.map_or_else(|| rules.on_store_failure(ask.domain), |limit| limit.on_store_failure);
    let check = CheckIndex(checks.len());
    checks.checks.push(Check {
        key: start..checks.keys.len(),
        algorithm,
        hits: ask.hits(descriptor),
        modes: Modes { shadow, quota: quota || options.quota_mode },
        on_store_failure: on_store_failure.unwrap_or(options.on_store_failure),
        per_second: rate.unit == Unit::Second,
    });
    Slot::Checked { check, limit: limit.map(|limit| limit.id), rate, metric: metric_levels(limit, entries) }
}

fn find<'r>(rules: &'r Rules, domain: &[u8], descriptor: &Descriptor, entries: &[Entry<'_>]) -> Option<&'r Limit> {
    match descriptor.limit {
        Some(_) => None,
        None => match rules.find(domain, entries) {
            Lookup::Limit(limit) => Some(limit),
            Lookup::NoLimit | Lookup::UnknownDomain => None,
        },
    }
}

/// Any matched limit of the request, replaced itself or unlimited, may switch off others by name.
fn is_replaced(limit: &Limit, found: &[Option<&Limit>]) -> bool {
    limit.name.as_ref().is_some_and(|name| found.iter().flatten().any(|other| other.replaces.contains(name)))
}

/// Names of the levels of a metric that depends on the request: those of a limit that the request brought along, of `detailed_metric` and of
/// `value_to_metric`. A shared threshold keeps its pattern.
fn metric_levels(limit: Option<&Limit>, entries: &[Entry<'_>]) -> Option<Box<[String]>> {
    let text = |entry: &Entry<'_>| {
        let (key, value) = (String::from_utf8_lossy(entry.key), String::from_utf8_lossy(entry.value));
        format!("{key}_{value}")
    };
    let Some(limit) = limit else { return Some(entries.iter().map(text).collect()) };
    if !limit.detailed_metric && !limit.levels.iter().any(|level| level.value_to_metric) {
        return None;
    }
    let level_text = |(level, entry): (&limit::Level, &Entry<'_>)| match level {
        level if level.share_threshold => level.text(),
        _ if limit.detailed_metric => text(entry),
        level if level.value_to_metric && entry.value.is_empty() => level.key.to_string(),
        level if level.value_to_metric => text(entry),
        level => level.text(),
    };
    Some(limit.levels.iter().zip(entries).map(level_text).collect())
}
