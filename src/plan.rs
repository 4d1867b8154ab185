//! A plan: the checks of one request, and which slot of the answer each one fills.
//!
//! Everything that depends on the rules is settled here, before any store is asked; a plan without checks never leaves the process.

mod group;
mod key;
mod part;

pub use group::Group;

use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::algorithm::{self, Algorithm};
use crate::ask::{Ask, Descriptor, Entry};
use crate::rules::limit::{self, Amount, Limit, LimitId, OnStoreFailure};
use crate::rules::{Commit, Lookup, Rules};
use crate::time::{Rate, Unit};

/// The checks of one request.
#[derive(Debug)]
pub struct Plan {
    /// The rules that it was made from.
    pub rules: Arc<Rules>,
    /// What to decide, in the order of the descriptors.
    pub checks: SmallVec<[Check; 4]>,
    /// One per descriptor of the request, in its order.
    pub slots: SmallVec<[Slot; 4]>,
    /// The rules do not know the domain.
    pub unknown_domain: bool,
    /// What becomes of the other checks when one refuses.
    pub commit: Commit,
    /// Descriptors without a check that count as quotas, and as such always pass.
    passing_quotas: usize,
    keys: Vec<u8>,
}

/// One thing to decide.
#[derive(Clone, Debug)]
pub struct Check {
    key: Range<usize>,
    /// How.
    pub algorithm: Algorithm,
    /// Hits asked for: 0 looks, below 0 gives back.
    pub hits: i64,
    /// What being over means.
    pub role: Role,
    /// What answers while the store cannot.
    pub on_store_failure: OnStoreFailure,
    /// The limit's unit is a second: a separate Redis may count it.
    pub per_second: bool,
}

impl Check {
    /// A check whose key is none of a plan's.
    #[must_use]
    pub fn new(algorithm: Algorithm, hits: i64, role: Role) -> Self {
        Self { key: 0..0, algorithm, hits, role, on_store_failure: OnStoreFailure::default(), per_second: false }
    }
}

/// What being over a limit means for its request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Role {
    /// The status says OK all the same.
    pub shadow: bool,
    /// The request fails only if all quota descriptors are over.
    pub quota: bool,
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
        /// Index into [`Plan::checks`].
        check: usize,
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
        let mut plan = Self {
            unknown_domain: commit.is_none(),
            commit: commit.unwrap_or_default(),
            passing_quotas: 0,
            rules: Arc::clone(rules),
            checks: SmallVec::new(),
            slots: SmallVec::with_capacity(ask.len()),
            keys: Vec::new(),
        };
        if plan.unknown_domain {
            plan.slots.extend(ask.descriptors().map(|_| Slot::Free));
            plan.count_passing_quotas(options);
            return plan;
        }
        let found: SmallVec<[Option<&Limit>; 4]> =
            ask.descriptors().map(|(descriptor, entries)| find(rules, ask.domain, descriptor, entries)).collect();
        plan.checks.reserve(ask.len());
        plan.keys.reserve(ask.descriptors().map(|(_, entries)| key::room(&options.key_prefix, ask.domain, entries)).sum());
        for ((descriptor, entries), limit) in ask.descriptors().zip(&found) {
            let slot = match (*limit, descriptor.limit) {
                // The decoder refuses rates without a possible window.
                (_, Some(rate)) => match Algorithm::try_new(&rate, &algorithm::Options::default()) {
                    Ok(algorithm) => plan.check(ask, descriptor, entries, None, Amount { rate, algorithm }, options),
                    Err(_) => Slot::Free,
                },
                (None, None) => Slot::Free,
                (Some(limit), None) => match limit.amount {
                    None => Slot::Unlimited(limit.id),
                    Some(_) if is_replaced(limit, &found) => Slot::Free,
                    Some(amount) => plan.check(ask, descriptor, entries, Some(limit), amount, options),
                },
            };
            plan.slots.push(slot);
        }
        plan.count_passing_quotas(options);
        plan
    }

    fn count_passing_quotas(&mut self, options: &Options) {
        if options.quota_mode {
            self.passing_quotas = self.slots.iter().filter(|slot| matches!(slot, Slot::Free)).count();
        }
    }

    /// Whether the request is refused when each check is allowed or not: any check over its limit refuses; of quotas only all together do;
    /// a check in shadow mode never does. Source: envoyproxy/ratelimit.
    #[must_use]
    pub fn refuses(&self, allowed: impl Iterator<Item = bool>) -> bool {
        let (mut quotas, mut quotas_over, mut over) = (self.passing_quotas, 0, false);
        for (check, allowed) in self.checks.iter().zip(allowed) {
            let is_over = !allowed && !check.role.shadow;
            quotas += usize::from(check.role.quota);
            quotas_over += usize::from(check.role.quota && is_over);
            over |= is_over && !check.role.quota;
        }
        over || (quotas > 0 && quotas == quotas_over)
    }

    /// Descriptors without a check that count as quotas, and as such always pass.
    #[must_use]
    pub const fn passing_quotas(&self) -> usize {
        self.passing_quotas
    }

    /// A plan of checks that no rules stand behind and no slot shows: for probes, and for tests of stores. Each comes with its key.
    #[must_use]
    pub fn of_checks<'k>(checks: impl IntoIterator<Item = (&'k [u8], Check)>) -> Self {
        let mut plan = Self {
            rules: Arc::default(),
            checks: SmallVec::new(),
            slots: SmallVec::new(),
            unknown_domain: false,
            commit: Commit::Each,
            passing_quotas: 0,
            keys: Vec::new(),
        };
        for (key, check) in checks {
            let start = plan.keys.len();
            plan.keys.extend_from_slice(key);
            plan.checks.push(Check { key: start..plan.keys.len(), ..check });
        }
        plan
    }

    /// The places of all checks.
    #[must_use]
    pub fn all(&self) -> SmallVec<[usize; 4]> {
        (0..self.checks.len()).collect()
    }

    /// The key of a check, without the window that a store may append.
    #[must_use]
    pub fn key(&self, check: &Check) -> &[u8] {
        &self.keys[check.key.clone()]
    }

    fn check(
        &mut self,
        ask: &Ask<'_>,
        descriptor: &Descriptor,
        entries: &[Entry<'_>],
        limit: Option<&Limit>,
        amount: Amount,
        options: &Options,
    ) -> Slot {
        let Amount { rate, algorithm } = amount;
        let start = self.keys.len();
        let levels = limit.map_or(&[][..], |limit| &limit.levels);
        key::write(&mut self.keys, &options.key_prefix, ask.domain, entries, levels, &algorithm);
        let role = limit.map_or(Role::default(), |limit| Role { shadow: limit.shadow_mode, quota: limit.quota_mode });
        let role = Role { quota: role.quota || options.quota_mode, ..role };
        let said = limit.map_or_else(|| self.rules.on_store_failure(ask.domain), |limit| limit.on_store_failure);
        self.checks.push(Check {
            key: start..self.keys.len(),
            algorithm,
            hits: ask.hits(descriptor),
            role,
            on_store_failure: said.unwrap_or(options.on_store_failure),
            per_second: rate.unit == Unit::Second,
        });
        Slot::Checked { check: self.checks.len() - 1, limit: limit.map(|limit| limit.id), rate, metric: metric_levels(limit, entries) }
    }
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
