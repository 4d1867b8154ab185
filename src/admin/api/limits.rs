//! `/api/v1/limits`: the limits in force, and where each is written.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::query::{Query, next};
use super::reply::Failure;
use super::{Parts, names};
use crate::core::time::Unit;
use crate::limits::rules::limit::{Level, Limit};
use crate::limits::rules::{Rules, diff};

/// Number of limits in an answer without `count`.
const USUAL_COUNT: usize = 100;

/// Response of `/api/v1/limits`.
#[derive(Debug, JsonSchema, Serialize, Deserialize)]
pub struct Limits {
    /// In the format of `/rlconfig?format=json`.
    #[schemars(extend("items" = { "$ref": "#/components/schemas/Limit" }))]
    pub limits: Vec<Value>,
    /// Number of all matching limits, on all pages.
    pub total: usize,
    /// The cursor of the next answer; null after the last.
    pub next: Option<String>,
}

pub(super) fn page(parts: &Parts, query: &Query) -> Result<Limits, Failure> {
    let page = query.page(USUAL_COUNT)?;
    let rules = &names::rules(parts);
    let search = query.get("search").unwrap_or_default().to_lowercase();
    let has = |text: &str| text.to_lowercase().contains(&search);
    names::domain(rules, query.get("domain"))?;
    let is_sought = |limit: &&Limit| {
        search.is_empty()
            || has(&limit.path())
            || has(&limit.origin.to_string())
            || limit.name.as_deref().is_some_and(has)
    };
    let of_domains = in_order(rules, query.get("domain")).into_iter();
    let of_domains = of_domains.flat_map(|(_, limits)| limits);
    let found: Vec<_> = of_domains.filter(is_sought).collect();
    let limits = found.iter().skip(page.offset).take(page.count);
    Ok(Limits {
        limits: limits.map(|limit| object(rules, limit)).collect(),
        total: found.len(),
        next: next(page, found.len()),
    })
}

/// All limits by domain, or the limits of one domain, in the order of the names.
pub(crate) fn in_order<'r>(rules: &'r Rules, domain: Option<&str>) -> Vec<(&'r str, &'r [Limit])> {
    let domains = rules.by_number.iter().filter(|one| !one.name.is_empty());
    let domains = domains.filter(|one| domain.is_none_or(|domain| *domain == *one.name));
    let all = domains.map(|one| (&*one.name, &*one.limits));
    let mut all: Vec<_> = all.collect();
    all.sort_unstable_by_key(|(name, _)| *name);
    all
}

/// The fields of a limit except its rate and modes. Metadata is left out: it may be long, and is
/// meant for Envoy only.
pub(crate) fn further_fields(
    rules: &Rules,
    limit: &Limit,
) -> impl Iterator<Item = (&'static str, String)> {
    const SHOWN_ANYWAY: [&str; 4] = ["rate", "shadow_mode", "quota_mode", "metadata"];
    let fields = diff::fields(rules, limit).into_iter();
    fields.filter(|(name, _)| !SHOWN_ANYWAY.contains(name))
}

/// A limit as JSON.
pub(crate) fn object(rules: &Rules, limit: &Limit) -> Value {
    let level = |level: &Level| json!({ "key": &*level.key, "value": level.value.as_deref() });
    let mut object = json!({
        "limit": limit.path(),
        "domain": &*limit.domain,
        "path": limit.levels.iter().map(level).collect::<Vec<_>>(),
        "unlimited": limit.is_unlimited(),
        "shadow_mode": limit.shadow_mode,
        "quota_mode": limit.quota_mode,
        "from": {
            "document": *limit.origin.document.name,
            "line": Some(limit.origin.line).filter(|&line| line > 0),
        },
    });
    if let Some(rate) = limit.amount.as_ref().map(|amount| amount.rate) {
        if rate.unit != Unit::None {
            object["unit"] = rate.unit.name().into();
            object["unit_multiplier"] = rate.unit_multiplier.into();
        }
        object["requests_per_unit"] = rate.requests_per_unit.into();
    }
    object["further"] = further_fields(rules, limit).collect();
    object
}
