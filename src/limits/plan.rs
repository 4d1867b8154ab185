//! A plan: the checks of one request, and which descriptor status of the response each one fills.
//!
//! Everything that depends on the rules is decided here, before a store is queried. A plan without
//! checks needs no store.
//!
//! If an `all_or_none` request has a blocked descriptor, its checks become peeks: they write
//! nothing and report the remaining hits, and the scripts need no knowledge of overrides.

mod all_or_none;
mod checks;
mod explain;
pub(crate) mod features;
pub(crate) mod key;
mod outcome;
mod subject;

pub use all_or_none::AllOrNone;
pub use checks::{Check, CheckIndex, CheckIndices, Checks, Modes};
pub use explain::Explanation;
pub use outcome::{DecidedBy, Outcome, Outcomes};
pub(crate) use subject::PlanError;
#[cfg(test)]
pub(crate) use subject::request_of;

use std::num::NonZeroU64;
use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::core::algorithm::{self, Algorithm};
use crate::core::request::{DecodedRequest, Descriptor, Entry};
use crate::core::time::{MAX_SAFE_INTEGER, Rate, Span};
use crate::limits::overrides::{Applied, InForce};
use crate::limits::rules::limit::{self, Amount, LimitId, LimitInForce, OnStoreFailure, Scale};
use crate::limits::rules::table::RowNumber;
use crate::limits::rules::{Domain, Rules};

/// The plan of one request: the checks for the store, and how their decisions fill the response.
#[derive(Debug)]
pub struct Plan {
    /// The rules that the plan was made from.
    pub rules: Arc<Rules>,
    /// One per descriptor of the request, in its order.
    pub slots: SmallVec<[Slot; 4]>,
    /// The rules have no such domain.
    pub unknown_domain: bool,
    /// The checks. Shared, because a store may still work on them after the request was cancelled.
    pub checks: Arc<Checks>,
}

/// Plan of one descriptor status of the response.
#[derive(Debug)]
pub struct Slot {
    /// The limit that the look-up found, even if something else decides; `None` also if the
    /// descriptor has a limit of its own.
    pub limit: Option<LimitId>,
    /// The row of the limit's table.
    pub row: Option<RowNumber>,
    pub disposition: Disposition,
}

/// How a descriptor is decided.
#[derive(Debug)]
pub enum Disposition {
    /// Nothing: no limit applies, or others replace it.
    Free,
    /// Nothing: the limit is `unlimited`.
    Unlimited,
    /// An override that exempts it.
    Exempt,
    /// An override that blocks it.
    Blocked(Block),
    /// A store.
    Checked(Checked),
}

/// A descriptor that an override blocks.
#[derive(Debug)]
pub struct Block {
    /// The amount that would be shown; `None` without a limit.
    pub rate: Option<Rate>,
    /// The time to the end of the block; `None`: it has none.
    pub ends_in: Option<Span>,
    /// The requested hits.
    pub hits: i64,
    /// Position of the key of the counter that it would have, among the keys of [`Plan::checks`].
    /// 32 bits are enough, because a request has less than 4 GiB, and keep slots small.
    pub key: Range<u32>,
}

/// A descriptor that a store decides.
#[derive(Debug)]
pub struct Checked {
    /// The check, in [`Plan::checks`].
    pub check: CheckIndex,
    /// The amount, as the response shows it.
    pub rate: Rate,
    /// The hits of a unit of that amount.
    pub scale: Scale,
    /// The names of the metric's levels, if they depend on the request.
    pub metric: Option<Box<[String]>>,
    /// The hits are the limit's `default_cost`, because the request names none.
    pub is_default_cost: bool,
    /// Whether an override raised the amount.
    pub is_raised: bool,
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
    /// Matches the descriptors of a request against `rules`, without overrides.
    pub fn new(rules: &Arc<Rules>, request: &DecodedRequest<'_>, options: &Options) -> Self {
        Self::with_overrides(rules, None, request, options)
    }

    /// Matches the descriptors of a request against `rules`, and against the overrides in force if
    /// there are any.
    pub fn with_overrides(
        rules: &Arc<Rules>,
        overrides: Option<InForce<'_>>,
        request: &DecodedRequest<'_>,
        options: &Options,
    ) -> Self {
        let domain = rules.domain(request.domain);
        let mut found: Found<'_> = SmallVec::with_capacity(request.len());
        for (descriptor, entries) in request.descriptors() {
            found.push(match (descriptor.limit, domain) {
                (None, Some(domain)) => domain.find(entries),
                (Some(_), _) | (None, None) => None,
            });
        }
        let mut checks = Checks {
            commit: domain.map(|domain| domain.commit).unwrap_or_default(),
            ..Checks::default()
        };
        let mut matching = Matcher {
            domain,
            overrides,
            request,
            options,
            found: &found,
            checks: &mut checks,
            is_cancelled: false,
        };
        let slots = matching.slots();
        matching.complete(rules, &slots);
        if options.quota_mode {
            let is_free = |slot: &&Slot| matches!(slot.disposition, Disposition::Free);
            checks.passing_quotas += slots.iter().filter(is_free).count();
        }
        if checks.are_peeks() {
            checks.peek_only(checks.len());
        }
        Self {
            rules: Arc::clone(rules),
            slots,
            unknown_domain: domain.is_none(),
            checks: Arc::new(checks),
        }
    }

    /// Turns all checks into peeks, which write nothing.
    pub fn peek(&mut self) {
        let checks = Arc::make_mut(&mut self.checks);
        checks.peek_only(checks.total());
    }

    pub fn limit(&self, slot: &Slot) -> Option<LimitInForce<'_>> {
        slot.limit.map(|id| LimitInForce {
            limit: self.rules.limit(id),
            row: slot.row,
        })
    }
}

/// The limit of each descriptor, if it has one.
type Found<'r> = SmallVec<[Option<LimitInForce<'r>>; 4]>;

/// One request while its descriptors become slots.
struct Matcher<'a, 'q> {
    /// `None`: the rules have no such domain.
    domain: Option<&'a Domain>,
    overrides: Option<InForce<'a>>,
    request: &'a DecodedRequest<'q>,
    options: &'a Options,
    found: &'a [Option<LimitInForce<'a>>],
    checks: &'a mut Checks,
    /// An override exempts the descriptor, which settles a hold: that is a cancel.
    is_cancelled: bool,
}

/// One descriptor of it.
#[derive(Clone, Copy)]
struct PlannedDescriptor<'a> {
    descriptor: &'a Descriptor,
    /// Without an id at the end.
    entries: &'a [Entry<'a>],
    limit: Option<LimitInForce<'a>>,
    /// It settles a hold.
    is_settlement: bool,
}

impl Matcher<'_, '_> {
    fn slots(&mut self) -> SmallVec<[Slot; 4]> {
        let Self { request, found, .. } = *self;
        let mut slots = SmallVec::with_capacity(request.len());
        if self.domain.is_some() {
            let key_bytes =
                |entries| key::capacity(&self.options.key_prefix, request.domain, entries);
            let bytes = request.descriptors().map(|(_, entries)| key_bytes(entries));
            self.checks.keys.reserve(bytes.sum());
            self.checks.list.reserve(request.len());
        }
        for ((descriptor, entries), &limit) in request.descriptors().zip(found) {
            let planned = PlannedDescriptor {
                descriptor,
                entries,
                limit,
                is_settlement: false,
            };
            let has_id = |found: LimitInForce<'_>| {
                found.limit.counts_in_flight() || found.limit.levels.len() < entries.len()
            };
            let disposition = match limit.is_some_and(has_id) {
                true => self.disposition_by_id(planned),
                false => self.disposition(planned),
            };
            slots.push(Slot {
                limit: limit.map(|found| found.limit.id),
                row: limit.and_then(|found| found.row),
                disposition,
            });
        }
        slots
    }

    #[inline]
    fn disposition(&mut self, planned: PlannedDescriptor<'_>) -> Disposition {
        let limit = planned.limit;
        let own = match planned.descriptor.limit {
            Some(rate) => self.own_amount(rate, planned.entries),
            None => None,
        };
        let amount = own.as_ref().or_else(|| {
            limit
                .filter(|limit| !is_replaced(*limit, self.found))
                .and_then(LimitInForce::amount)
        });
        if self.overrides.is_some()
            && let Some(disposition) = self.overridden(planned, amount)
        {
            return disposition;
        }
        match amount {
            Some(amount) => Disposition::Checked(self.check(planned, amount)),
            None if limit.is_some_and(|limit| limit.amount().is_none()) => Disposition::Unlimited,
            None => Disposition::Free,
        }
    }

    /// The effect of an override on a descriptor with this amount, if one applies to it.
    fn overridden(
        &mut self,
        planned: PlannedDescriptor<'_>,
        amount: Option<&Amount>,
    ) -> Option<Disposition> {
        let hits = self.request.hits(planned.descriptor);
        let overrides = self.overrides.as_ref()?.for_hits(hits);
        let domain = self.request.domain;
        let find = |overrides: InForce<'_>| {
            let found = overrides.find(domain, planned.entries, amount);
            found.map(|(_, applied)| applied)
        };
        let mut applied = find(overrides)?;
        if planned.is_settlement && !matches!(applied, Applied::Raise(_)) {
            // An earlier hold ends. A block does not undo the cost; what is exempt costs nothing.
            self.is_cancelled = applied == Applied::Exempt;
            applied = find(overrides.for_hits(-1))?;
        }
        Some(match applied {
            Applied::Block { ends_in } => Disposition::Blocked(Block {
                rate: amount.map(|amount| amount.display_rate),
                ends_in,
                hits,
                key: self.add_blocked_key(planned, amount),
            }),
            Applied::Exempt => {
                // An exempt quota stays a quota, of which some hits are always left: otherwise
                // an exemption could make the request fail for its other quotas.
                let is_quota =
                    |it: LimitInForce<'_>| it.limit.quota_mode && !is_replaced(it, self.found);
                let is_quota = self.options.quota_mode || planned.limit.is_some_and(is_quota);
                let is_unlimited = planned.limit.is_some_and(|limit| limit.amount().is_none());
                let passes = self.domain.is_some() && !is_unlimited && is_quota;
                self.checks.passing_quotas += usize::from(passes);
                Disposition::Exempt
            }
            Applied::Raise(_) if self.domain.is_none() => return None,
            Applied::Raise(amount) => Disposition::Checked(Checked {
                is_raised: true,
                ..self.check(planned, &amount)
            }),
        })
    }

    /// Writes the key of a counter that is not queried: a blocked subject has the same name as
    /// before the block.
    #[cold]
    fn add_blocked_key(
        &mut self,
        planned: PlannedDescriptor<'_>,
        amount: Option<&Amount>,
    ) -> Range<u32> {
        self.checks.is_blocked = true;
        let Range { start, end } = self.add_key(planned, amount.map(|amount| &amount.algorithm));
        start as u32..end as u32
    }

    /// Writes the key of a counter, and returns where.
    #[inline]
    fn add_key(
        &mut self,
        planned: PlannedDescriptor<'_>,
        algorithm: Option<&Algorithm>,
    ) -> Range<usize> {
        let start = self.checks.keys.len();
        key::write(
            &mut self.checks.keys,
            &self.options.key_prefix,
            self.request.domain,
            planned.entries,
            planned.limit.map_or(&[], |found| &found.limit.levels),
            algorithm,
            self.checks.commit,
        );
        start..self.checks.keys.len()
    }

    /// The amount of a request's own limit, in units of the limit that it replaces; `None` in an
    /// unknown domain. There are no other errors: the decoder rejects rates without a valid window,
    /// and amounts above the countable maximum (up to 2^32 - 1 units of 2^32 - 1 hits) are cut to
    /// it.
    fn own_amount(&self, rate: Rate, entries: &[Entry<'_>]) -> Option<Amount> {
        let domain = self.domain?;
        let replaced = domain.find(entries).and_then(LimitInForce::amount);
        let (scale, share) = replaced.map_or((Scale::ONE, domain.share), |amount| {
            (amount.scale, amount.share)
        });
        let (whole, rate) = (rate.requests_per_unit, share.of_rate(rate));
        let of_hits = Rate {
            requests_per_unit: scale.hits(rate.requests_per_unit).min(MAX_SAFE_INTEGER),
            ..rate
        };
        let own_limit = algorithm::Options {
            calendar_months: self.options.calendar_months,
            ..Default::default()
        };
        let algorithm = Algorithm::try_new(&of_hits, &own_limit).ok()?;
        Some(Amount {
            whole,
            share,
            ..Amount::new(rate, scale, algorithm)
        })
    }

    /// Adds the check of a descriptor for this amount.
    fn check(&mut self, planned: PlannedDescriptor<'_>, amount: &Amount) -> Checked {
        let (descriptor, entries, limit) = (planned.descriptor, planned.entries, planned.limit);
        let (request, options) = (self.request, self.options);
        let key = self.add_key(planned, Some(&amount.algorithm));
        let hits = request.hits_or(descriptor, amount.default_cost.map_or(1, NonZeroU64::get));
        let check = self.checks.add(key, limit, amount, hits, options);
        if limit.is_none()
            && let Some(of_domain) = self.domain.and_then(|domain| domain.on_store_failure)
        {
            self.checks.list[check.0].on_store_failure = of_domain;
        }
        Checked {
            metric: metric_levels(limit.map(|found| found.limit), entries),
            is_default_cost: amount.default_cost.is_some() && request.names_no_hits(descriptor),
            ..Checked::new(check, amount)
        }
    }
}

impl Checked {
    fn new(check: CheckIndex, amount: &Amount) -> Self {
        Self {
            check,
            rate: amount.display_rate,
            scale: amount.scale,
            metric: None,
            is_default_cost: false,
            is_raised: false,
        }
    }
}

/// Whether a matched limit of the request names `limit` in its `replaces`. A limit that is replaced
/// itself, or unlimited, replaces others too.
fn is_replaced(limit: LimitInForce<'_>, found: &[Option<LimitInForce<'_>>]) -> bool {
    limit.name().is_some_and(|name| {
        let found = found.iter().flatten();
        let mut replaced = found.flat_map(|other| &other.limit.replaces);
        replaced.any(|replaced| **replaced == *name)
    })
}

/// The names of the metric's levels, if they depend on the request: for a limit of the request's
/// own, `detailed_metric` or `value_to_metric`. A level that values share keeps its pattern,
/// and addresses are those that are counted. An empty value is left out, except that
/// `detailed_metric` without a shared pattern leaves `key_`, as in envoyproxy/ratelimit.
fn metric_levels(limit: Option<&limit::Limit>, entries: &[Entry<'_>]) -> Option<Box<[String]>> {
    let has_empty_values = limit.is_some_and(|limit| {
        limit.detailed_metric && !limit.levels.iter().any(|level| level.is_shared)
    });
    let text = |entry: &Entry<'_>, value: &[u8]| {
        let key = String::from_utf8_lossy(entry.key);
        if value.is_empty() && !has_empty_values {
            return key.into_owned();
        }
        format!("{key}_{}", String::from_utf8_lossy(value))
    };
    let Some(limit) = limit else {
        let texts = entries.iter().map(|entry| text(entry, entry.value));
        return Some(texts.collect());
    };
    if !limit.detailed_metric && !limit.levels.iter().any(|level| level.value_to_metric) {
        return None;
    }
    let level_text = |(level, entry): (&limit::Level, &Entry<'_>)| match level {
        // Its value is the id of the request.
        level
            if limit.counts_in_flight()
                && std::ptr::eq(level, &raw const limit.levels[limit.levels.len() - 1]) =>
        {
            level.key.to_string()
        }
        level if level.is_shared => level.text(),
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
