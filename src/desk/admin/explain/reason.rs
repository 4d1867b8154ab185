//! Why a descriptor is limited as it is, or not at all; what is said of it in one line.

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
    /// No file defines the domain.
    UnknownDomain(&'e UnknownDomain),
    NoLimit(NoLimit<'e>),
    /// These limits of the request name its own in `replaces`.
    Replaced(&'e [LimitInForce<'e>]),
    Unlimited(Rate<'e>),
    Exempt,
    Blocked,
    /// The limit is one that the request brings along.
    OfRequest,
    Checked {
        rate: Rate<'e>,
        shadow_mode: bool,
    },
}

/// The rate of a limit, and what says so.
pub(super) struct Rate<'e>(&'e Rules, LimitInForce<'e>);

/// A look-up that found no limit.
pub(super) struct NoLimit<'e> {
    rules: &'e Rules,
    trace: Option<&'e Trace>,
    /// As operators write them.
    entries: &'e [String],
}

/// A domain that no file defines.
pub(super) struct UnknownDomain {
    domain: String,
    /// Some of those that there are.
    known: Vec<String>,
    more: usize,
    near: String,
}

impl<'e> Reason<'e> {
    pub(super) fn new(
        plan: &'e Plan,
        slot: &Slot,
        explanation: &'e Explanation<'_>,
        entries: &'e [String],
        unknown: Option<&'e UnknownDomain>,
    ) -> Self {
        let rules = &*plan.rules;
        match (&slot.fate, plan.limit(slot), unknown) {
            (Fate::Free, _, Some(unknown)) => Self::UnknownDomain(unknown),
            (Fate::Free, None, None) => Self::NoLimit(NoLimit {
                rules,
                trace: explanation.trace.as_ref(),
                entries,
            }),
            (Fate::Free, Some(_), None) => Self::Replaced(&explanation.replaced_by),
            (Fate::Exempt, ..) => Self::Exempt,
            (Fate::Blocked(_), ..) => Self::Blocked,
            (Fate::Unlimited, Some(limit), _) => Self::Unlimited(Rate(rules, limit)),
            (Fate::Unlimited | Fate::Checked(_), None, _) => Self::OfRequest,
            (Fate::Checked(_), Some(limit), _) => Self::Checked {
                shadow_mode: limit.shadow_mode(),
                rate: Rate(rules, limit),
            },
        }
    }

    /// Its name in answers.
    pub(super) const fn outcome(&self) -> &'static str {
        match self {
            Self::UnknownDomain(_) => "unknown_domain",
            Self::NoLimit { .. } => "no_limit",
            Self::Replaced(_) => "replaced",
            Self::Unlimited(_) => "unlimited",
            Self::Exempt => "exempt",
            Self::Blocked => "blocked",
            Self::OfRequest | Self::Checked { .. } => "checked",
        }
    }
}

impl fmt::Display for Reason<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownDomain(unknown) => unknown.fmt(out),
            Self::NoLimit(why) => write!(out, "not limited: {why}"),
            Self::Replaced(by) => {
                let by = by.iter().map(|by| {
                    let (path, origin) = (by.limit.path(), by.limit.origin.to_string());
                    format!("{} ({})", OneLine(&path), OneLine(&origin))
                });
                let by: Vec<_> = by.collect();
                write!(out, "not limited: replaced by {}", by.join(", "))
            }
            Self::Unlimited(rate) => rate.fmt(out),
            Self::Exempt => out.write_str("exempt by an override of an operator"),
            Self::Blocked => out.write_str("blocked by an override of an operator"),
            Self::OfRequest => out.write_str("the request brings a limit along"),
            Self::Checked { rate, shadow_mode } => match shadow_mode {
                true => write!(out, "{rate}, never refused (shadow_mode)"),
                false => rate.fmt(out),
            },
        }
    }
}

impl fmt::Display for Rate<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fields = diff::fields(self.0, self.1);
        out.write_str(field(&fields, "rate").unwrap_or_default())?;
        for name in ["share", "plan", "row"] {
            if let Some(value) = field(&fields, name) {
                write!(out, ", {name} {}", OneLine(value))?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for NoLimit<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(trace) = self.trace else {
            return Ok(());
        };
        let entry = |level: usize| self.entries.get(level).map_or("", String::as_str);
        // The last level is the one whose entry failed.
        let failed = entry(trace.levels.len().saturating_sub(1));
        match &trace.end {
            End::NoBranch(keys) if keys.first.is_empty() => write!(
                out,
                "the descriptor goes on with {} where the files have no further level",
                OneLine(failed)
            ),
            End::NoBranch(keys) => {
                let names: Vec<_> = keys.first.iter().map(one_line).collect();
                let entry = OneLine(failed).to_string();
                let key = entry.split('=').next().unwrap_or_default();
                let near = names.iter().filter(|name| **name != key);
                write!(
                    out,
                    "no branch matches the entry {entry}; its level has the keys {}{}",
                    list(&names, keys.more),
                    known::did_you_mean(key, near.map(String::as_str))
                )
            }
            End::NoLimit(below) => {
                out.write_str("what it matches has no rate_limit")?;
                if below.first.is_empty() {
                    return Ok(());
                }
                let names: Vec<_> = below.first.iter().map(one_line).collect();
                write!(out, "; the files go on with {}", list(&names, below.more))
            }
            End::Limit(id) => {
                let table = self.rules.limit(*id).table.as_ref();
                let (file, level) =
                    table.map_or(("", usize::MAX), |table| (table.rows.file(), table.level));
                write!(
                    out,
                    "the table {} has no row for {}, and there is no 'rate_limit'",
                    OneLine(file),
                    OneLine(entry(level))
                )
            }
        }
    }
}

impl UnknownDomain {
    pub(super) fn new(rules: &Rules, domain: &[u8]) -> Self {
        let domain = String::from_utf8_lossy(domain);
        let mut known: Vec<&[u8]> = rules.domains().collect();
        known.sort_unstable();
        let named = known.iter().take(MAX_DOMAINS);
        Self {
            near: known::near_domain(rules, &domain),
            domain: OneLine(&domain).to_string(),
            more: known.len().saturating_sub(MAX_DOMAINS),
            known: named
                .map(|name| one_line(&String::from_utf8_lossy(name)))
                .collect(),
        }
    }
}

impl fmt::Display for UnknownDomain {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            out,
            "not limited: no file defines the domain {}; there are: {}{}",
            self.domain,
            list(&self.known, self.more),
            self.near
        )
    }
}

/// The reason of a descriptor in a running process.
pub(super) struct ReasonNow<'e> {
    pub(super) reason: &'e Reason<'e>,
    /// It asks for more than its limit.
    pub(super) never_passes: bool,
    /// What decides it, and what that makes of it.
    pub(super) by: Option<&'e (&'e Override, Applied)>,
}

impl fmt::Display for ReasonNow<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let never = match self.never_passes {
            true => ", never passes: asks for more than the limit",
            false => "",
        };
        let Some((one, applied)) = self.by else {
            return write!(out, "{}{never}", self.reason);
        };
        let before = match applied {
            Applied::Raise(amount) => format!("{}{never}, raised to {}", self.reason, amount.rate),
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
        let line = format!("{before} by the override {}{by}{until}{why}", one.id);
        OneLine(&line).fmt(out)
    }
}

/// The value of a field of a limit.
pub(super) fn field<'f>(fields: &'f [(&str, String)], sought: &str) -> Option<&'f str> {
    let mut named = fields.iter().filter(|(name, _)| *name == sought);
    named.next().map(|(_, value)| &**value)
}

/// Names, and how many more there are.
#[must_use]
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
