//! The audit lines: what operators change, and what ends by itself. They are written at every level
//! of the log.

use std::fmt::Write;

use crate::limits::overrides::{Kind, Override, instant};
use crate::observe::telemetry::AUDIT;

/// Writes an audit line.
macro_rules! audit {
    ($($field:tt)*) => { tracing::info!(target: AUDIT, $($field)*) };
}

pub(super) fn set(one: &Override, before: Option<&Override>) {
    let Fields {
        id,
        kind,
        to,
        domain,
        entries,
        until,
    } = fields(one);
    let replaced_until =
        before.map(|before| before.until.map_or_else(|| "removed".to_owned(), instant));
    audit!(id, kind, to, domain, entries, until, by = %one.by, reason = %one.reason, replaced_until, "override set");
}

pub(super) fn removed(one: &Override, by: &str) {
    let Fields {
        id,
        kind,
        to,
        domain,
        entries,
        until,
    } = fields(one);
    audit!(id, kind, to, domain, entries, until, by, set_by = %one.by, reason = %one.reason, "override removed");
}

pub(super) fn ended(one: &Override) {
    let Fields {
        id,
        kind,
        to,
        domain,
        entries,
        until,
    } = fields(one);
    audit!(id, kind, to, domain, entries, until, set_by = %one.by, reason = %one.reason, "override \
        ended");
}

pub(super) fn reset(domain: &str, entries: &str, limit: &str, existed: bool, by: &str) {
    audit!(domain, entries, limit, existed, by, "counter reset");
}

struct Fields<'o> {
    id: &'o str,
    kind: &'static str,
    to: Option<String>,
    domain: &'o str,
    entries: String,
    until: Option<String>,
}

fn fields(one: &Override) -> Fields<'_> {
    let mut entries = String::new();
    for entry in &one.entries {
        let space = if entries.is_empty() { "" } else { " " };
        // Writing to a string does not fail.
        let _ = write!(entries, "{space}{entry}");
    }
    let to = match &one.kind {
        Kind::Raise(rate) => Some(rate.to_string()),
        Kind::Block | Kind::Exempt => None,
    };
    Fields {
        id: &one.id,
        kind: one.kind.name(),
        to,
        domain: &one.domain,
        entries,
        until: one.until.map(instant),
    }
}
