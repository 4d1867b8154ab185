//! `/api/v1/overrides` and `/api/v1/reset`: operators' overrides for some descriptors, and counters
//! that start from zero.

use std::sync::Arc;

use hyper::StatusCode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::access::Right;
use super::query::{Query, next};
use super::reply::{Failure, blocking, with_status};
use super::{Call, Parts, names, subject};
use crate::core::algorithm::{Algorithm, FixedWindow};
use crate::core::request::Entry;
use crate::core::request::notation::shell_word;
use crate::core::time::{Micros, Span, Unit};
use crate::limits::overrides::{
    EntryRecord, Invalid, Kind, Override, Pattern, RateRecord, Reach, Record, Unfit, above,
    instant, raised,
};
use crate::limits::plan::key::{EntryText, Subject};
use crate::limits::plan::{Disposition, Plan};
use crate::limits::rules::Rules;
use crate::limits::rules::compile::OneLine;
use crate::limits::rules::limit::{Limit, LimitInForce, OnStoreFailure, Scale};
use crate::live::overrides::ChangeError;
use crate::net::clock;
use crate::net::http::Page;

/// Number of overrides in an answer without `count`.
const USUAL_COUNT: usize = 100;

/// The `until` of an override that ends with the current period of its limit.
pub const RESET: &str = "reset";

const NO_PERIOD: &str = "until: `reset` needs limits of the algorithm fixed_window whose periods \
    end together; write a time";

/// Limits that a warning names.
const MAX_NAMED: usize = 5;

/// Overrides in force, or ended overrides.
#[derive(Debug, JsonSchema, Serialize, Deserialize)]
pub struct Overrides {
    /// Overrides in the order in which they apply; ended ones latest first.
    pub overrides: Vec<Record>,
    /// The cursor of the next answer; null after the last.
    pub next: Option<String>,
}

/// A new override: a record without the fields that Weir adds.
#[derive(Debug, Default, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Order {
    /// block, exempt or raise.
    #[schemars(extend("enum" = ["block", "exempt", "raise"]))]
    pub kind: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub domain: String,
    /// Entries in the order of the descriptor.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub entries: Vec<EntryRecord>,
    /// The exact name of a subject, instead of domain and entries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    /// The amount of a raise.
    #[serde(default)]
    pub to: Option<RateRecord>,
    /// The amount that a raise adds to the amount of the limit, instead of `to`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub add: Option<RateRecord>,
    /// With `add`: replace an addition to the same descriptors, instead of adding to it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub replace: bool,
    /// Expiry as in RFC 3339; null: until removed; `reset`: the end of the current period of the
    /// limit.
    #[serde(default)]
    pub until: Option<String>,
    /// A human-readable reason.
    #[serde(default)]
    pub reason: String,
    /// Set the override even if no limit in force has this domain or these keys.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub force: bool,
}

/// An override that was set.
#[derive(Debug, JsonSchema, Serialize, Deserialize)]
pub struct Ordered {
    /// The override as it is in force.
    pub r#override: Record,
    /// Paths of at most 100 limits whose descriptors it may match.
    pub limits: Vec<String>,
    /// Whether these limits keep their counters.
    pub keeps_count: bool,
    /// The periods of the limit that a raise of one descriptor covers, if they are days or longer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub periods: Option<Periods>,
    /// The override that the new one replaced.
    pub replaced: Option<Record>,
    /// Whether the new one is the sum of both.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_sum: bool,
    /// Side effects that the operator may not expect, one sentence each.
    pub warnings: Vec<String>,
}

/// The current period and those after it.
#[derive(Debug, JsonSchema, Serialize, Deserialize)]
pub struct Periods {
    /// The end of the current one as in RFC 3339.
    pub end: String,
    /// Their number; null: no end.
    pub count: Option<u64>,
}

/// An override that was removed.
#[derive(Debug, JsonSchema, Serialize, Deserialize)]
pub struct Removed {
    /// The override as it was in force.
    pub removed: Record,
}

/// The descriptor of a counter.
#[derive(Debug, Default, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResetOrder {
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub domain: String,
    /// Entries in the order of the descriptor.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub entries: Vec<EntryRecord>,
    /// The exact name of the subject, instead of domain and entries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    /// Path of the limit; needed if several limits may count the subject.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<String>,
}

/// The counters that were reset.
#[derive(Debug, JsonSchema, Serialize, Deserialize)]
pub struct Reset {
    /// The counter of the limit, and the counter of its trial.
    pub reset: Vec<ResetCounter>,
    /// Side effects that the operator may not expect, one sentence each.
    pub warnings: Vec<String>,
}

/// A counter that was reset.
#[derive(Debug, JsonSchema, Serialize, Deserialize)]
pub struct ResetCounter {
    /// Path of the limit.
    pub limit: String,
    /// Key of the counter, without the number of a window.
    pub counter: String,
    /// Exact name of the subject.
    pub subject: String,
    /// Whether the counter had counted anything.
    pub existed: bool,
}

impl From<ChangeError> for Failure {
    fn from(error: ChangeError) -> Self {
        let text = error.to_string();
        match error {
            ChangeError::Invalid(_) => Self::bad_request(&text),
            ChangeError::Unknown(_) => Self::not_found(&text),
            ChangeError::Unavailable(_) => Self::unavailable(&text),
        }
    }
}

impl From<Invalid> for Failure {
    fn from(error: Invalid) -> Self {
        Self::bad_request(&error.0)
    }
}

/// GET: the overrides in force, or those that ended lately, of all domains or of one.
pub(super) fn list(parts: &Parts, query: &Query) -> Result<Overrides, Failure> {
    let page = query.page(USUAL_COUNT)?;
    let domain = query.get("domain");
    let mut all = match query.is("ended")? {
        true => parts.overrides.list_ended(),
        false => {
            let (rules, list) = (names::rules(parts), parts.overrides.list());
            list.iter().map(|one| record(&rules, one)).collect()
        }
    };
    all.retain(|one| domain.is_none_or(|domain| one.domain == domain));
    if all.is_empty() {
        names::domain(&names::rules(parts), domain)?;
    }
    Ok(Overrides {
        next: next(page, all.len()),
        overrides: all.into_iter().skip(page.offset).take(page.count).collect(),
    })
}

/// POST: sets an override.
pub(super) async fn set(parts: Arc<Parts>, call: Call) -> Result<Page, Failure> {
    let mut order: Order = call.body()?;
    if let Some(name) = &order.subject {
        let subject = named(name, &order.domain, &order.entries)?;
        let (domain, entries) = subject::order_of(&subject)?;
        order.domain = domain;
        order.entries = entries.iter().map(EntryRecord::from).collect();
    }
    let ends_at_reset = order.until.as_deref() == Some(RESET);
    let record = Record {
        kind: order.kind,
        domain: order.domain,
        entries: order.entries.into_iter().map(by_digest).collect(),
        to: order.to,
        add: order.add,
        until: order.until.filter(|_| !ends_at_reset),
        reason: order.reason,
        by: call.by().to_owned(),
        ..Record::default()
    };
    let mut one = Override {
        created_at: clock::now(),
        ..record.read()?
    };
    call.caller.check(right_of(&one))?;
    let mut base = match one.kind {
        Kind::Raise(raise) if raise.is_added && !order.replace => {
            parts.overrides.current(&one.id).await?
        }
        _ => None,
    };
    base = base.filter(|base| one.add_to(base));
    // There may be many limits.
    let (rules, list) = (names::rules(&parts), parts.overrides.list());
    let ordered = blocking(move || {
        if !order.force {
            is_known(&rules, &one)?;
        }
        if ends_at_reset {
            let period = period(&Reach::new(&rules, &one).limits, one.created_at);
            one.until = Some(period.ok_or_else(|| Failure::bad_request(NO_PERIOD))?.1);
        }
        Ok((reached(&rules, &one, &list)?, one))
    });
    let (mut ordered, one) = ordered.await?;
    if parts.overrides.is_for_this_process_only() {
        let what = "it is kept in this process only: it ends with the process, and other replicas \
            do not know it; set OVERRIDES_FILE, or keep counters in Redis";
        ordered.warnings.push(what.to_owned());
    }
    ordered.is_sum = base.is_some();
    let before = parts.overrides.set(one, base.as_deref()).await?;
    ordered.replaced = before.as_deref().map(Record::from);
    Ok(with_status(StatusCode::CREATED, &ordered))
}

/// DELETE: ends an override.
pub(super) async fn remove(parts: Arc<Parts>, call: Call) -> Result<Removed, Failure> {
    if let Some(one) = parts.overrides.current(&call.id).await? {
        call.caller.check(right_of(&one))?;
    }
    let removed = parts.overrides.remove(&call.id, call.by()).await?;
    Ok(Removed {
        removed: Record::from(&*removed),
    })
}

/// The right that setting and ending an override need.
fn right_of(one: &Override) -> Right {
    match one.has_value() {
        true => Right::Change,
        false => Right::ChangeAll,
    }
}

/// The entry with the digest of a long value.
fn by_digest(entry: EntryRecord) -> EntryRecord {
    match entry.pattern() {
        Ok(pattern) => EntryRecord::from(&pattern.by_digest()),
        Err(_) => entry,
    }
}

/// Checks the names of an override.
fn is_known(rules: &Rules, one: &Override) -> Result<(), Failure> {
    let entries = one.entries.iter().filter_map(|entry| {
        let value = entry.exact().map_or("", |(_, value)| value);
        Some((entry.key.as_literal()?, value))
    });
    names::entries(rules, &one.domain, entries).map_err(|Failure { status, error }| Failure {
        status,
        error: format!("{error}; to set it anyway, write force: true (the command's --force)"),
    })
}

/// The record of an override in force.
fn record(rules: &Rules, one: &Override) -> Record {
    let raised = match one.kind {
        Kind::Raise(raise) if raise.is_added && one.is_exact() => {
            let limits = Reach::new(rules, one).limits;
            let amount = limits.first().and_then(|limit| limit.amount());
            amount.and_then(|amount| raised(amount, &raise).ok())
        }
        _ => None,
    };
    Record::from(one).with_total(raised.as_ref())
}

/// The warning about another override that conflicts with a raise.
fn above_text(other: &Override) -> String {
    let (id, kind) = (&other.id, other.kind.name());
    match other.kind {
        Kind::Raise(to) => format!(
            "the raise {id} to {to} no longer has an effect here: this lower raise is more \
             specific, and takes precedence"
        ),
        _ => format!(
            "it has no effect while the {kind} {id} is in force; `weir un{kind} {id}` removes that"
        ),
    }
}

/// The effect of an override on the limits in force.
fn reached(rules: &Rules, one: &Override, all: &[Arc<Override>]) -> Result<Ordered, Failure> {
    let reach = Reach::new(rules, one);
    if let (Kind::Raise(_), true) = (one.kind, reach.limits.is_empty()) {
        if let Some((limit, unfit)) = reach.unfit.first() {
            return Err(Failure::bad_request(&unfit_text(limit, unfit, one.kind)));
        }
        if reach.unlimited > 0 {
            let why = "to: the limit of these descriptors is unlimited: there is nothing to raise";
            return Err(Failure::bad_request(why));
        }
    }
    let mut warnings = Vec::new();
    if reach.limits.is_empty() {
        let what = match reach.unknown_domain {
            true => "no limit in force has this domain",
            false => "no limit in force matches these entries",
        };
        warnings.push(match one.kind {
            Kind::Block => format!("{what}; the block works anyway"),
            Kind::Exempt | Kind::Raise(_) => format!(
                "{what}: it changes nothing yet; `weir explain` shows which limits there are"
            ),
        });
    }
    for (limit, unfit) in reach.unfit.iter().take(MAX_NAMED) {
        let (path, why) = (path(limit), unfit_text(limit, unfit, one.kind));
        warnings.push(format!("it does not apply to {path}: {why}"));
    }
    let more = reach.unfit.len().saturating_sub(MAX_NAMED);
    if more > 0 {
        warnings.push(format!("it does not apply to {more} more limits"));
    }
    let conflicts = above(all, one, &reach.limits).take(MAX_NAMED);
    warnings.extend(conflicts.map(above_text));
    let without_row = |limit: &LimitInForce<'_>| {
        let table = limit.limit.table.as_ref().filter(|_| limit.row.is_none())?;
        let plan = limit.limit.plan.iter().map(|plan| format!(", plan {plan}"));
        let plan: String = plan.collect();
        Some(format!("no row of {}{plan}", table.rows.file.document.name))
    };
    let is_raise = matches!(one.kind, Kind::Raise(_)) && one.is_exact();
    if is_raise {
        warnings.extend(reach.limits.iter().filter_map(without_row));
    }
    let mut limits = reach.limits.iter();
    Ok(Ordered {
        r#override: record(rules, one),
        limits: paths(&reach.limits),
        keeps_count: limits.all(|limit| keeps_counter(*limit, one.kind)),
        periods: periods(&reach.limits, one).filter(|_| is_raise),
        replaced: None,
        is_sum: false,
        warnings,
    })
}

/// The windows of these limits, and the end of the current one, if they have one end.
fn period(limits: &[LimitInForce<'_>], now: Micros) -> Option<(FixedWindow, Micros)> {
    let mut all = limits.iter().map(|limit| match limit.amount()?.algorithm {
        Algorithm::FixedWindow(fixed) => Some((fixed, fixed.end(fixed.number(now)))),
        _ => None,
    });
    let first = all.next()??;
    let have_one = all.all(|other| other.is_some_and(|(_, end)| end == first.1));
    have_one.then_some(first)
}

/// The periods of these limits that an override covers, if they are days or longer.
fn periods(limits: &[LimitInForce<'_>], one: &Override) -> Option<Periods> {
    let (fixed, end) = period(limits, one.created_at)?;
    let first = fixed.number(one.created_at);
    let last = |until: Micros| fixed.number(Micros(until.0.saturating_sub(1)));
    let count = one.until.map(|until| last(until).saturating_sub(first) + 1);
    let end = instant(end);
    (fixed.window.shortest() >= Span::from_secs(86_400)).then_some(Periods { end, count })
}

/// The paths of limits, each once: the limits of a table's plans have one path.
fn paths(limits: &[LimitInForce<'_>]) -> Vec<String> {
    let mut paths: Vec<_> = limits.iter().map(|limit| path(limit.limit)).collect();
    paths.dedup();
    paths
}

fn path(limit: &Limit) -> String {
    OneLine(&limit.path()).to_string()
}

fn unfit_text(limit: &Limit, unfit: &Unfit, kind: Kind) -> String {
    let path = path(limit);
    let is_added = matches!(kind, Kind::Raise(raise) if raise.is_added);
    let (field, sign) = if is_added { ("add", "+") } else { ("to", "") };
    match unfit {
        Unfit::OtherUnit(rate) if rate.unit == Unit::None => {
            let above = (!is_added).then(|| format!(", above {}", rate.requests_per_unit));
            let fix = format!("write a number alone{}", above.unwrap_or_default());
            format!("{field}: the limit {path} is {rate}, which has no unit; {fix}")
        }
        Unfit::OtherUnit(rate) => {
            let unit = rate.to_string();
            let unit = unit.split_once('/').map_or(&*unit, |(_, unit)| unit);
            format!(
                "{field}: the limit {path} is {rate}, and can be raised in its own unit only; \
                 write an amount per {unit}, such as {sign}{rate}"
            )
        }
        Unfit::NotAbove(rate) => {
            format!("{field}: the limit {path} is {rate} already; write a larger amount")
        }
        Unfit::Decimals(scale, units) => {
            let fix = match *scale == Scale::ONE {
                true => "has no `scale`; write a whole number".to_owned(),
                false => format!("has a `scale` of {scale}; write a multiple of 1/{scale}"),
            };
            format!("{field}: {units} is not a whole number of hits: the limit {path} {fix}")
        }
        Unfit::AtMost(largest) => {
            let amount = limit.amount;
            let algorithm = amount.map_or("", |amount| amount.algorithm.kind().name());
            let most = match is_added {
                true => format!("{largest} in all; add less"),
                false => format!("{largest}; write {largest} or less"),
            };
            format!("{field}: the limit {path} is a {algorithm}, which holds at most {most}")
        }
    }
}

/// Whether a raised limit counts under the key of before.
fn keeps_counter(limit: LimitInForce<'_>, kind: Kind) -> bool {
    let (Some(amount), Kind::Raise(raise)) = (limit.amount(), kind) else {
        return true;
    };
    let suffix = |algorithm: &Algorithm| {
        let mut suffix = Vec::new();
        algorithm.write_key_suffix(&mut suffix);
        (algorithm.kind(), algorithm.window(), suffix)
    };
    let raised = raised(amount, &raise);
    raised.is_ok_and(|raised| suffix(&raised.algorithm) == suffix(&amount.algorithm))
}

/// The subject with this exact name, which comes without domain and entries.
fn named(name: &str, domain: &str, entries: &[EntryRecord]) -> Result<Subject, Failure> {
    let why = "subject: it contains the domain and the entries; leave out domain and entries";
    match domain.is_empty() && entries.is_empty() {
        true => subject::read(name),
        false => Err(Failure::bad_request(why)),
    }
}

/// POST: resets the counters of one subject.
pub(super) async fn reset(parts: Arc<Parts>, call: Call) -> Result<Reset, Failure> {
    let order: ResetOrder = call.body()?;
    let subject = match &order.subject {
        Some(name) => named(name, &order.domain, &order.entries)?,
        None => exact(&order)?,
    };
    let (plan, counters) = parts.reset(&subject, order.limit.as_deref()).await?;
    let (domain, entries) = (subject.domain.to_string(), subject.texts());
    let found = match plan.limit(&plan.slots[0]) {
        Some(found) if !counters.is_empty() => found.limit,
        found => {
            let texts = entries.iter().map(|entry| (&*entry.key, &*entry.value));
            names::entries(&plan.rules, &domain, texts)?;
            return Err(counts_nothing(&plan, found, &domain, &entries));
        }
    };
    let limit = path(found);
    let counter = |(key, existed): (Vec<u8>, bool)| ResetCounter {
        limit: limit.clone(),
        subject: Subject::of_key(&key).to_string(),
        counter: String::from_utf8_lossy(&key).into_owned(),
        existed,
    };
    let reset: Vec<_> = counters.into_iter().map(counter).collect();
    let existed = reset.iter().any(|counter| counter.existed);
    let (domain, by) = (OneLine(&domain).to_string(), call.by());
    let recorded = (parts.overrides).record_reset(&domain, &entries, &limit, existed, by);
    recorded.await;
    Ok(Reset {
        reset,
        warnings: reset_warnings(&parts, &plan, found),
    })
}

/// The subject of domain and entries. It has the bounds of overrides; the values are as they were
/// written, because a limit without networks counts each spelling of an address.
fn exact(order: &ResetOrder) -> Result<Subject, Failure> {
    let record = Record {
        kind: Kind::NAMES[0].to_owned(),
        domain: order.domain.clone(),
        entries: order.entries.clone(),
        ..Record::default()
    };
    record.read()?;
    let patterns = record.entries.iter().map(EntryRecord::pattern);
    let patterns: Vec<_> = patterns.collect::<Result<_, _>>()?;
    let entry = |entry| {
        let (key, value) = Pattern::exact(entry).ok_or_else(|| {
            Failure::bad_request(&format!(
                "entries: a reset takes one exact descriptor; write a key and its whole value \
                 instead of `{entry}`, with each literal star as \\*"
            ))
        })?;
        let (key, value) = (key.as_bytes(), value.as_bytes());
        Ok(Entry { key, value })
    };
    let entries: Vec<_> = patterns.iter().map(entry).collect::<Result<_, Failure>>()?;
    Ok(Subject::new(record.domain.as_bytes(), entries))
}

fn counts_nothing(
    plan: &Plan,
    found: Option<LimitInForce<'_>>,
    domain: &str,
    entries: &[EntryText],
) -> Failure {
    if let (Disposition::Unlimited, Some(found)) = (&plan.slots[0].disposition, found) {
        let path = path(found.limit);
        return Failure::not_found(&format!("the limit {path} is unlimited: it counts nothing"));
    }
    let domain = OneLine(domain).to_string();
    let words: Vec<_> = entries.iter().map(EntryText::to_string).collect();
    let for_shell: Vec<_> = words.iter().map(|word| shell_word(word)).collect();
    Failure::not_found(&format!(
        "no limit applies to {} in the domain {domain}; `weir explain --domain {} {}` shows why",
        words.join(" "),
        shell_word(&domain),
        for_shell.join(" ")
    ))
}

fn reset_warnings(parts: &Parts, plan: &Plan, limit: &Limit) -> Vec<String> {
    const SHARED: &str = "the limit has share_threshold: all matching values share the counter, \
        and it is reset for all of them";
    const LOCAL: &str = "on_store_failure is local: hits that other replicas counted in memory \
        during an outage of Redis stay until they expire";
    let is_shared = limit.levels.iter().any(|level| level.is_shared);
    let mut checks = plan.checks.iter();
    let is_local = !parts.deployments.is_empty()
        && checks.any(|check| check.on_store_failure == OnStoreFailure::Local);
    let warnings = [(is_shared, SHARED), (is_local, LOCAL)].into_iter();
    let warnings = warnings.filter(|(applies, _)| *applies);
    warnings.map(|(_, what)| what.to_owned()).collect()
}
