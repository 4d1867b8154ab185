//! The debug lines of decisions: one for each descriptor that the setting `LOG_DECISIONS` selects.
//!
//! Without the setting nothing here runs. Keys and values of requests are escaped and cut, and a
//! request writes a bounded number of lines, because clients choose them.

use super::log_text::{self, LoggedValues, by, cut, shown};
use crate::core::ask::{Ask, Entry};
use crate::core::verdict::Decision;
use crate::limits::plan::{By, Outcome, Outcomes, Plan};
use crate::observe::subjects::REQUEST_LIMIT;

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
        let entry = |part: &str| {
            let (key, value) = part.split_once('=').unzip();
            Selected {
                key: key.unwrap_or(part).as_bytes().into(),
                value: value.map(|value: &str| value.as_bytes().into()),
            }
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
    pub fn is_logged() -> bool {
        tracing::enabled!(tracing::Level::DEBUG)
    }

    /// Writes a line for each selected descriptor of a request.
    pub(super) fn log(
        &self,
        ask: &Ask<'_>,
        plan: &Plan,
        outcomes: &Outcomes<'_>,
        values: &LoggedValues,
    ) {
        let is_of = |domain: &[u8]| domain == ask.domain;
        if !Self::is_logged() || !self.domain.as_deref().is_none_or(is_of) {
            return;
        }
        let all = ask.descriptors().zip(&outcomes.each);
        let selected = all.filter(|((_, entries), _)| self.selects(entries));
        for ((descriptor, entries), outcome) in selected.take(MAX_LINES) {
            let (mut hits, mut ends_in, mut decided) = (ask.hits(descriptor), None, None);
            let mut limit = outcome.limit.map(|found| found.limit.path());
            match outcome.by {
                By::NoLimit => limit = None,
                By::Unlimited | By::Exempt => {}
                By::Block(block) => ends_in = block.ends_in.map(|span| span.to_string()),
                By::Check {
                    check, decision, ..
                } => {
                    (hits, decided) = (check.hits, Some(decision));
                    limit = limit.or_else(|| Some(REQUEST_LIMIT.to_owned()));
                }
            }
            let verdict = decided.and_then(|decision| decision.verdict());
            let error = decided.and_then(Decision::store_error);
            tracing::debug!(
                domain = cut(ask.domain),
                descriptor = shown(entries, values),
                hits,
                limit,
                code = code(outcome),
                by = by(outcome),
                remaining = verdict.map(|_| outcome.remaining),
                retry_after = decided.and_then(log_text::retry_after),
                error = error.map(|error| error.to_string()),
                ends_in,
                "decision{}",
                what(outcome, plan)
            );
        }
    }
}

/// What stands in the line behind "decision" of a descriptor that no store decided.
const fn what(outcome: &Outcome<'_>, plan: &Plan) -> &'static str {
    match outcome.by {
        By::NoLimit if plan.unknown_domain => ": no file has this domain",
        By::NoLimit => ": no limit applies",
        By::Unlimited => ": unlimited",
        By::Exempt => ": exempt",
        By::Block(_) => ": blocked",
        By::Check { .. } => "",
    }
}

const fn code(outcome: &Outcome<'_>) -> &'static str {
    match outcome.by {
        _ if outcome.refuses => "OVER_LIMIT",
        By::Check { decision, .. } if decision.failure().is_some() => "UNAVAILABLE",
        By::Check { decision, .. } if !decision.allows() => "OK (shadow mode)",
        _ => "OK",
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
