//! Reasons of an explanation: one line that says why a descriptor is limited as it is, or not.

use std::fmt;

use crate::core::time::people;
use crate::desk::admin::known;
use crate::limits::overrides::{Applied, Override};
use crate::limits::plan::{Explanation, Fate, Plan, Slot};
use crate::limits::rules::compile::OneLine;
use crate::limits::rules::limit::LimitInForce;
use crate::limits::rules::trace::{End, Trace};
use crate::limits::rules::{Rules, diff};

/// Domains that are named where the domain of a request is unknown.
const MAX_DOMAINS: usize = 20;

/// Why a descriptor is limited as it is.
pub(super) enum Reason<'e> {
    /// With the sentence about its domain.
    UnknownDomain(&'e str),
    /// Why the look-up found none.
    NoLimit(String),
    /// These limits of the request name its own in `replaces`.
    Replaced(&'e [LimitInForce<'e>]),
    /// By a limit of the files, with its rate.
    Unlimited(String),
    Exempt,
    Blocked,
    /// The limit is one that the request brings along.
    OfRequest,
    /// By a limit of the files, with its rate.
    Checked(String),
    Shadow(String),
}

impl<'e> Reason<'e> {
    pub(super) fn new(
        plan: &Plan,
        slot: &Slot,
        explanation: &'e Explanation<'_>,
        entries: &[String],
        unknown: Option<&'e str>,
    ) -> Self {
        let rules = &*plan.rules;
        match (&slot.fate, plan.limit(slot), unknown) {
            (Fate::Free, _, Some(unknown)) => Self::UnknownDomain(unknown),
            (Fate::Free, None, None) => {
                let trace = explanation.trace.as_ref();
                Self::NoLimit(trace.map_or_else(String::new, |it| no_limit(rules, it, entries)))
            }
            (Fate::Free, Some(_), None) => Self::Replaced(&explanation.replaced_by),
            (Fate::Exempt, ..) => Self::Exempt,
            (Fate::Blocked(_), ..) => Self::Blocked,
            (Fate::Unlimited, Some(limit), _) => Self::Unlimited(rate(rules, limit)),
            (Fate::Unlimited | Fate::Checked(_), None, _) => Self::OfRequest,
            (Fate::Checked(_), Some(limit), _) if limit.shadow_mode() => {
                Self::Shadow(rate(rules, limit))
            }
            (Fate::Checked(_), Some(limit), _) => Self::Checked(rate(rules, limit)),
        }
    }

    /// Its name in answers.
    pub(super) const fn outcome(&self) -> &'static str {
        match self {
            Self::UnknownDomain(_) => "unknown_domain",
            Self::NoLimit(_) => "no_limit",
            Self::Replaced(_) => "replaced",
            Self::Unlimited(_) => "unlimited",
            Self::Exempt => "exempt",
            Self::Blocked => "blocked",
            Self::OfRequest | Self::Checked(_) | Self::Shadow(_) => "checked",
        }
    }
}

impl fmt::Display for Reason<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownDomain(why) => write!(out, "not limited: {why}"),
            Self::NoLimit(why) => write!(out, "not limited: {why}"),
            Self::Replaced(by) => {
                let by = by.iter().map(|by| {
                    let (path, origin) = (by.limit.path(), by.limit.origin.to_string());
                    format!("{} ({})", OneLine(&path), OneLine(&origin))
                });
                let by: Vec<_> = by.collect();
                write!(out, "not limited: replaced by {}", by.join(", "))
            }
            Self::Unlimited(rate) | Self::Checked(rate) => out.write_str(rate),
            Self::Exempt => out.write_str("exempt by an override of an operator"),
            Self::Blocked => out.write_str("blocked by an override of an operator"),
            Self::OfRequest => out.write_str("the request brings a limit along"),
            Self::Shadow(rate) => write!(out, "{rate}, never refused (shadow_mode)"),
        }
    }
}

/// The rate of a limit, and what says so.
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
    let more = domains.len().saturating_sub(MAX_DOMAINS);
    let domains: Vec<_> = domains.iter().take(MAX_DOMAINS).map(one_line).collect();
    let domain = String::from_utf8_lossy(domain);
    format!(
        "no file defines the domain {}; there are: {}{}",
        OneLine(&domain),
        list(&domains, more),
        known::near_domain(rules, &domain)
    )
}

/// Why a look-up found no limit.
fn no_limit(rules: &Rules, trace: &Trace<'_>, entries: &[String]) -> String {
    let entry = |level: usize| one_line(entries.get(level).map_or("", String::as_str));
    // The last level is the one whose entry failed.
    let failed = entry(trace.levels.len().saturating_sub(1));
    match &trace.end {
        End::NoBranch(keys) if keys.first.is_empty() => {
            format!("the descriptor goes on with {failed} where the files have no further level")
        }
        End::NoBranch(keys) => {
            let names: Vec<_> = keys.first.iter().map(one_line).collect();
            let key = failed.split('=').next().unwrap_or_default();
            let near = names.iter().filter(|name| **name != key);
            format!(
                "no branch matches the entry {failed}; its level has the keys {}{}",
                list(&names, keys.more),
                known::did_you_mean(key, near.map(String::as_str))
            )
        }
        End::NoLimit(below) => {
            let names: Vec<_> = below.first.iter().map(one_line).collect();
            let names = match below.first.is_empty() {
                true => String::new(),
                false => format!("; the files go on with {}", list(&names, below.more)),
            };
            format!("what it matches has no rate_limit{names}")
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
        Applied::Raise(amount) => format!("{before}, raised to {}", amount.rate),
        Applied::Block { .. } => "blocked".to_owned(),
        Applied::Exempt => "exempt".to_owned(),
    };
    let until = one.until.map_or_else(String::new, |until| {
        format!(" until {}", people::instant(people::timestamp(until)))
    });
    let behind = |mark: &str, text: &str| match text {
        "" => String::new(),
        text => format!("{mark}{text}"),
    };
    let (by, why) = (behind(" of ", &one.by), behind(": ", &one.reason));
    one_line(&format!(
        "{before} by the override {}{by}{until}{why}",
        one.id
    ))
}

/// The value of a field of a limit.
pub(super) fn field<'f>(fields: &'f [(&str, String)], sought: &str) -> Option<&'f str> {
    let mut named = fields.iter().filter(|(name, _)| *name == sought);
    named.next().map(|(_, value)| &**value)
}

/// Names, and how many more there are.
pub fn list(names: &[String], more: usize) -> String {
    let more = match more {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("{}{more}", names.join(", "))
}

pub(super) fn one_line(text: &(impl ToString + ?Sized)) -> String {
    OneLine(&text.to_string()).to_string()
}
