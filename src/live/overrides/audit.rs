//! The audit lines: what operators change, and what ends by itself. They are written at every level
//! of the log.

use crate::limits::overrides::{Kind, Override, instant};
use crate::observe::telemetry::AUDIT;

/// Writes an audit line, about an override if one stands in front of its fields.
macro_rules! audit {
    ($one:expr; $($field:tt)*) => {{
        let one: &Override = $one;
        let to = match &one.kind {
            Kind::Raise(rate) => Some(rate.to_string()),
            Kind::Block | Kind::Exempt => None,
        };
        let entries: Vec<_> = one.entries.iter().map(ToString::to_string).collect();
        audit!(
            id = &*one.id, kind = one.kind.name(), to, domain = &*one.domain,
            entries = entries.join(" "), until = one.until.map(instant), $($field)*
        );
    }};
    ($($field:tt)*) => { tracing::info!(target: AUDIT, $($field)*) };
}

pub(super) fn set(one: &Override, before: Option<&Override>) {
    let replaced_until =
        before.map(|before| before.until.map_or_else(|| "removed".to_owned(), instant));
    audit!(one; by = %one.by, reason = %one.reason, replaced_until, "override set");
}

pub(super) fn removed(one: &Override, by: &str) {
    audit!(one; by, set_by = %one.by, reason = %one.reason, "override removed");
}

pub(super) fn ended(one: &Override) {
    audit!(one; set_by = %one.by, reason = %one.reason, "override ended");
}

pub(super) fn reset(domain: &str, entries: &str, limit: &str, existed: bool, by: &str) {
    audit!(domain, entries, limit, existed, by, "counter reset");
}
