//! `/api/v1/decisions`: number of decisions of each limit by outcome, since start. For rates, take
//! the differences of two responses.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Parts;
use super::query::Query;
use super::reply::Failure;
use super::status::now;

/// Number of limits in an answer without `count`.
const USUAL_COUNT: usize = 50;

/// Decisions by outcome, as the label `outcome` of `weir_decisions_total` names it. Outcomes that
/// did not happen are left out.
pub type Outcomes = BTreeMap<String, u64>;

/// Response of `/api/v1/decisions`.
#[derive(Debug, JsonSchema, Serialize, Deserialize)]
pub struct Decisions {
    /// Time of the counters.
    pub now: Timestamp,
    /// Decisions of all limits.
    pub totals: Outcomes,
    /// Descriptors to which no limit applied.
    pub free: u64,
    /// The limits with the most decisions.
    pub limits: Vec<OfLimit>,
}

/// The decisions of one limit.
#[derive(Debug, JsonSchema, Serialize, Deserialize)]
pub struct OfLimit {
    /// Full key of the limit: domain and levels, joined by dots.
    pub limit: String,
    pub domain: String,
    /// Decisions of the limit by outcome.
    pub outcomes: Outcomes,
    /// Decisions on 0 hits, which read the limit and counted nothing.
    #[serde(default)]
    pub peeks: u64,
}

pub(super) fn report(parts: &Parts, query: &Query) -> Result<Decisions, Failure> {
    let (count, domain) = (query.count(USUAL_COUNT)?, query.get("domain"));
    let metrics = &parts.metrics;
    let mut report = Decisions {
        now: now(),
        totals: Outcomes::new(),
        free: metrics.free_descriptors(),
        limits: Vec::new(),
    };
    let mut by_limit: BTreeMap<(String, String), (Outcomes, u64)> = BTreeMap::new();
    metrics.read_decisions(|of_limit, path, peeks, counts| {
        let mut counts = counts.filter(|(_, count)| *count > 0).peekable();
        if counts.peek().is_none() {
            return;
        }
        // The plans of a table are one limit here.
        let limit = (of_limit.to_owned(), path.to_owned());
        let (sum, all_peeks) = by_limit.entry(limit).or_default();
        *all_peeks += peeks;
        for (outcome, count) in counts {
            *sum.entry(outcome.to_owned()).or_default() += count;
            *report.totals.entry(outcome.to_owned()).or_default() += count;
        }
    });
    let limit = |((domain, path), (outcomes, peeks))| OfLimit {
        limit: format!("{domain}.{path}"),
        domain,
        outcomes,
        peeks,
    };
    let limits = by_limit.into_iter().map(limit);
    let limits = limits.filter(|one| domain.is_none_or(|domain| one.domain == *domain));
    report.limits = limits.collect();
    // Limits with equal sums stay in the order of their names.
    let sum = |limit: &OfLimit| Reverse(limit.outcomes.values().sum::<u64>());
    report.limits.sort_by_key(sum);
    report.limits.truncate(count);
    Ok(report)
}
