//! Reasons of an explanation: one line that explains why a descriptor is limited as it is, or not.

use crate::admin::api::names;
use crate::core::text::{first_names, list};
use crate::core::time::people;
use crate::limits::overrides::{Applied, Kind, Override};
use crate::limits::plan::{Disposition, Explanation, Plan, Slot};
use crate::limits::rules::compile::OneLine;
use crate::limits::rules::limit::{Limit, LimitInForce};
use crate::limits::rules::trace::{End, Trace};
use crate::limits::rules::{Rules, diff};

/// Domains that are named where the domain of a request is unknown.
const MAX_DOMAINS: usize = 20;

/// The outcome of a descriptor, and why it is limited as it is. `unknown` is the sentence about a
/// domain that no file defines.
pub(super) fn reason(
    plan: &Plan,
    slot: &Slot,
    explanation: &Explanation<'_>,
    entries: &[String],
    unknown: Option<&str>,
) -> (&'static str, String) {
    let rules = &*plan.rules;
    match (&slot.disposition, plan.limit(slot), unknown) {
        (Disposition::Free, _, Some(unknown)) => {
            ("unknown_domain", format!("not limited: {unknown}"))
        }
        (Disposition::Free, None, None) => {
            let trace = explanation.trace.as_ref();
            let why = trace.map_or_else(String::new, |it| no_limit(rules, it, entries));
            ("no_limit", format!("not limited: {why}"))
        }
        (Disposition::Free, Some(_), None) => {
            let name = |limit: &Limit| {
                format!("{} ({})", one_line(&limit.path()), one_line(&limit.origin))
            };
            let by = explanation.replaced_by.iter().map(|by| name(by.limit));
            let by = by.collect::<Vec<_>>().join(", ");
            ("replaced", format!("not limited: replaced by {by}"))
        }
        (Disposition::Exempt, ..) => ("exempt", "exempt by an operator's override".to_owned()),
        (Disposition::Blocked(_), ..) => {
            ("blocked", "blocked by an operator's override".to_owned())
        }
        (Disposition::Unlimited, Some(limit), _) => ("unlimited", rate(rules, limit)),
        (Disposition::Unlimited | Disposition::Checked(_), None, _) => {
            ("checked", "the request has its own limit".to_owned())
        }
        (Disposition::Checked(_), Some(limit), _) => {
            let shadow = match limit.shadow_mode() {
                true => ", never refused (shadow_mode)",
                false => "",
            };
            ("checked", rate(rules, limit) + shadow)
        }
    }
}

/// The rate of a limit, and its source.
fn rate(rules: &Rules, limit: LimitInForce<'_>) -> String {
    let fields = diff::fields(rules, limit);
    let mut rate = field(&fields, "rate").unwrap_or_default().to_owned();
    for name in ["share", "plan", "row"] {
        if let Some(value) = field(&fields, name) {
            rate += &format!(", {name} {}", OneLine(value));
        }
    }
    rate
}

/// The sentence about a domain that no file defines.
pub(super) fn unknown_domain(rules: &Rules, domain: &[u8]) -> String {
    let mut domains: Vec<_> = rules.domains().map(String::from_utf8_lossy).collect();
    domains.sort_unstable();
    let domains: Vec<_> = domains.iter().map(one_line).collect();
    let domain = String::from_utf8_lossy(domain);
    let (names, near) = (
        first_names(&domains, MAX_DOMAINS),
        names::near_domain(rules, &domain),
    );
    let domain = OneLine(&domain);
    format!("no file defines the domain {domain}; there are: {names}{near}")
}

/// Explains why a lookup found no limit.
fn no_limit(rules: &Rules, trace: &Trace<'_>, entries: &[String]) -> String {
    let entry = |level: usize| one_line(entries.get(level).map_or("", String::as_str));
    // The last level is the one whose entry failed.
    let failed = entry(trace.levels.len().saturating_sub(1));
    match &trace.end {
        End::NoBranch(keys) if keys.first.is_empty() => {
            format!("the descriptor has the entry {failed} after the last level of the limit files")
        }
        End::NoBranch(keys) => {
            let names: Vec<_> = keys.first.iter().map(one_line).collect();
            let key = failed.split('=').next().unwrap_or_default();
            let near = names.iter().filter(|name| **name != key);
            let near = names::did_you_mean(key, near.map(String::as_str));
            let names = list(&names, keys.more);
            format!("no branch matches the entry {failed}; its level has the keys {names}{near}")
        }
        End::NoLimit(below) => {
            let mut text = "the matching branch has no rate_limit".to_owned();
            if !below.first.is_empty() {
                let names: Vec<_> = below.first.iter().map(one_line).collect();
                text += &format!("; the next level has {}", list(&names, below.more));
            }
            text
        }
        End::Limit(id) => {
            let table = rules.limit(*id).table.as_ref();
            let row =
                table.map(|table| (one_line(&table.rows.file.document.name), entry(table.level)));
            let (file, entry) = row.unwrap_or_default();
            format!("the table {file} has no row for {entry}, and there is no 'rate_limit'")
        }
    }
}

/// The reason of a descriptor that an override decides, which had this one before.
pub(super) fn by_override(before: &str, one: &Override, applied: &Applied) -> String {
    let before = match applied {
        Applied::Raise(amount) => {
            let by = match one.kind {
                Kind::Raise(raise) if raise.is_added => format!(" by {}", raise.rate),
                _ => String::new(),
            };
            format!("{before}, raised{by} to {}", amount.rate)
        }
        Applied::Block { .. } => "blocked".to_owned(),
        Applied::Exempt => "exempt".to_owned(),
    };
    let mut text = format!("{before} by the override {}", one.id);
    if !one.by.is_empty() {
        text += &format!(" of {}", one.by);
    }
    if let Some(until) = one.until.map(people::timestamp) {
        text += &format!(" until {}", people::instant(until));
    }
    if !one.reason.is_empty() {
        text += &format!(": {}", one.reason);
    }
    one_line(&text)
}

/// The value of a field of a limit.
pub(super) fn field<'f>(fields: &'f [(&str, String)], sought: &str) -> Option<&'f str> {
    let mut named = fields.iter().filter(|(name, _)| *name == sought);
    named.next().map(|(_, value)| &**value)
}

pub(super) fn one_line(text: &(impl ToString + ?Sized)) -> String {
    OneLine(&text.to_string()).to_string()
}
