//! The debug lines of decisions: one for each descriptor that the setting `LOG_DECISIONS` selects.
//!
//! Without the setting nothing here runs. Keys and values of requests are escaped and cut, and a
//! request writes a bounded number of lines, because clients choose them.

use super::log_text::{LoggedValues, cut, shown, source};
use crate::core::ask::{Ask, Entry};
use crate::core::verdict::{Decision, Decisions, Wait};
use crate::limits::plan::{Plan, Slot};

/// Lines of one request at most.
const MAX_LINES: usize = 16;

/// Selects the descriptors whose decisions are logged: those of a domain, with certain entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecisionFilter {
    /// `None`: any.
    domain: Option<Box<[u8]>>,
    /// The descriptor has an entry for each of these.
    entries: Vec<Selected>,
}

/// An entry that a descriptor has.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Selected {
    key: Box<[u8]>,
    /// `None`: any.
    value: Option<Box<[u8]>>,
}

impl Selected {
    fn is(&self, entry: &Entry<'_>) -> bool {
        *entry.key == *self.key
            && self
                .value
                .as_ref()
                .is_none_or(|value| *entry.value == **value)
    }
}

impl DecisionFilter {
    /// Reads `DOMAIN`, `DOMAIN,KEY` or `DOMAIN,KEY=VALUE`, with any number of keys; `*` as the
    /// domain means all domains.
    ///
    /// # Errors
    /// What to write instead.
    pub fn try_new(text: &str) -> Result<Self, String> {
        let mut parts = text.split(',').map(str::trim);
        let domain = parts.next().unwrap_or_default();
        let entry = |part: &str| match part.split_once('=') {
            Some((key, value)) => Selected {
                key: key.as_bytes().into(),
                value: Some(value.as_bytes().into()),
            },
            None => Selected {
                key: part.as_bytes().into(),
                value: None,
            },
        };
        let entries: Vec<_> = parts.map(entry).collect();
        if domain.is_empty() || entries.iter().any(|entry| entry.key.is_empty()) {
            return Err(
                "write DOMAIN, DOMAIN,KEY or DOMAIN,KEY=VALUE, with * for any domain".to_owned(),
            );
        }
        Ok(Self {
            domain: (domain != "*").then(|| domain.as_bytes().into()),
            entries,
        })
    }

    fn selects(&self, entries: &[Entry<'_>]) -> bool {
        self.entries
            .iter()
            .all(|selected| entries.iter().any(|entry| selected.is(entry)))
    }

    /// Whether lines of decisions are written at the level of the log.
    #[must_use]
    pub fn is_logged() -> bool {
        tracing::enabled!(tracing::Level::DEBUG)
    }

    /// Writes a line for each selected descriptor of a request.
    pub(super) fn log(
        &self,
        ask: &Ask<'_>,
        plan: &Plan,
        decisions: &Decisions,
        values: &LoggedValues,
    ) {
        if !Self::is_logged()
            || self
                .domain
                .as_ref()
                .is_some_and(|domain| **domain != *ask.domain)
        {
            return;
        }
        let domain = cut(ask.domain);
        let selected = ask
            .descriptors()
            .zip(&plan.slots)
            .filter(|((_, entries), _)| self.selects(entries));
        for ((descriptor, entries), slot) in selected.take(MAX_LINES) {
            let (entries, hits) = (shown(entries, values), ask.hits(descriptor));
            let (check, limit, scale) = match slot {
                Slot::Free => {
                    let why = if plan.unknown_domain {
                        "no file has this domain"
                    } else {
                        "no limit applies"
                    };
                    tracing::debug!(
                        domain,
                        descriptor = entries,
                        hits,
                        code = "OK",
                        "decision: {why}"
                    );
                    continue;
                }
                Slot::Unlimited(limit) => {
                    let limit = plan.rules.limit(*limit).path();
                    tracing::debug!(
                        domain,
                        descriptor = entries,
                        hits,
                        limit,
                        code = "OK",
                        "decision: unlimited"
                    );
                    continue;
                }
                Slot::Exempt { limit } => {
                    let limit = limit.map(|limit| plan.rules.limit(limit).path());
                    tracing::debug!(
                        domain,
                        descriptor = entries,
                        hits,
                        limit,
                        code = "OK",
                        by = "override",
                        "decision: exempt"
                    );
                    continue;
                }
                Slot::Blocked { limit, ends_in, .. } => {
                    let (limit, ends_in) = (
                        limit.map(|limit| plan.rules.limit(limit).path()),
                        ends_in.map(|span| span.to_string()),
                    );
                    tracing::debug!(
                        domain,
                        descriptor = entries,
                        hits,
                        limit,
                        code = "OVER_LIMIT",
                        by = "override",
                        ends_in,
                        "decision: blocked"
                    );
                    continue;
                }
                Slot::Checked {
                    check,
                    limit,
                    scale,
                    ..
                } => (*check, *limit, *scale),
            };
            let limit = limit.map_or_else(
                || "(request)".to_owned(),
                |limit| plan.rules.limit(limit).path(),
            );
            let (decision, shadow, hits) = (
                &decisions[check.0],
                plan.checks[check].modes.shadow,
                plan.checks[check].hits,
            );
            let code = match decision {
                Decision::Fails(_) => "UNAVAILABLE",
                decision if decision.allows() => "OK",
                _ if shadow => "OK (shadow mode)",
                _ => "OVER_LIMIT",
            };
            let remaining = decision
                .verdict()
                .map(|verdict| scale.units(verdict.remaining));
            let retry_after = decision.retry_after().map(|wait| match wait {
                Wait::For(span) => span.to_string(),
                Wait::Never => "never".to_owned(),
            });
            let error = decision.store_error().map(|error| error.to_string());
            let by = source(decision);
            tracing::debug!(
                domain,
                descriptor = entries,
                hits,
                limit,
                code,
                by,
                remaining,
                retry_after,
                error,
                "decision"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry<'a>(key: &'a str, value: &'a str) -> Entry<'a> {
        Entry {
            key: key.as_bytes(),
            value: value.as_bytes(),
        }
    }

    #[test]
    fn a_filter_selects_by_domain_keys_and_values() {
        let selects = |filter: &str, entries: &[Entry<'_>]| {
            DecisionFilter::try_new(filter)
                .expect("valid")
                .selects(entries)
        };
        let entries = [entry("user", "alice"), entry("path", "/a=b")];
        for filter in ["d", "*", "d,user", "d, user=alice", "d,path=/a=b,user"] {
            assert!(selects(filter, &entries), "{filter}");
        }
        for filter in ["d,group", "d,user=bob", "d,user,group", "d,user="] {
            assert!(!selects(filter, &entries), "{filter}");
        }
        for filter in ["", ",user", "d,", "d,=x"] {
            assert!(DecisionFilter::try_new(filter).is_err(), "{filter:?}");
        }
    }
}
