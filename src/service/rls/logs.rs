//! Logs about decisions: the debug lines of descriptors that `LOG_DECISIONS` selects, and the lines
//! about refused descriptors. `LOG_REFUSALS` bounds the lines of each limit in a second; the next
//! line has the number of omitted ones.
//!
//! Without these settings nothing here runs. An allowed request only reads its decisions. A refused
//! one takes the lock of a part of the limits, for the length of a look-up; most refusals of a busy
//! limit end there.
//!
//! Clients choose domains, keys and values: lines show them escaped, cut, and in the form that
//! `LOG_SUBJECTS` selects. A request writes a bounded number of lines.

use std::borrow::Cow;
use std::fmt::Write;
use std::sync::Mutex;
use std::time::Instant;

use crate::core::answer::Decision;
use crate::core::lock;
use crate::core::request::{DecodedRequest, Entry};
use crate::core::verdict::Wait;
use crate::limits::plan::{DecidedBy, Outcome, Outcomes, Plan};
use crate::limits::rules::limit::{Limit, LimitId};
use crate::observe::logged_values::{LoggedValues, cut};
use crate::observe::subjects::REQUEST_LIMIT;
use hashbrown::HashMap;

/// Entries of a descriptor that a line shows.
const MAX_ENTRIES: usize = 8;
/// The component that decided, if any did.
pub(super) const fn by(outcome: &Outcome<'_>) -> Option<&'static str> {
    match outcome.by {
        DecidedBy::NoLimit | DecidedBy::Unlimited => None,
        DecidedBy::Exempt | DecidedBy::Block(_) => Some("override"),
        DecidedBy::Check { decision, .. } => match decision {
            Decision::Store(_) => Some("store"),
            Decision::Lease(_) => Some("lease"),
            Decision::DenialCache(_) => Some("denial_cache"),
            failed => failed.policy(),
        },
    }
}

/// When a refused check would be allowed.
pub(super) fn retry_after(decision: &Decision) -> Option<String> {
    decision.retry_after().map(|wait| match wait {
        Wait::For(span) => span.to_string(),
        Wait::Never => "never".to_owned(),
    })
}

/// The entries, values and unusual keys in Rust's notation of strings, so no entry can look like
/// another one.
pub(super) fn display_entries(entries: &[Entry<'_>], values: &LoggedValues) -> String {
    let mut text = String::new();
    for (index, entry) in entries.iter().take(MAX_ENTRIES).enumerate() {
        let comma = if index == 0 { "" } else { ", " };
        let (equals, value) = values
            .display(entry.value)
            .map_or(("", Cow::default()), |value| ("=", value));
        let key = cut(entry.key);
        let is_usual = |char: char| char.is_alphanumeric() || "_-.:/@".contains(char);
        let is_plain = !key.is_empty() && key.chars().all(is_usual);
        let key = if is_plain { key } else { format!("{key:?}") };
        // Writing to a string does not fail.
        let _ = write!(text, "{comma}{key}{equals}{value}");
    }
    if let Some(more @ 1..) = entries.len().checked_sub(MAX_ENTRIES) {
        let _ = write!(text, " and {more} more");
    }
    text
}

/// Maximum number of lines of one request.
const MAX_LINES: usize = 16;

/// Selects the descriptors whose decisions are logged: descriptors of a domain, with certain
/// entries.
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
        let is_value = |value: &[u8]| *entry.value == *value;
        *entry.key == *self.key && self.value.as_deref().is_none_or(is_value)
    }
}

impl DecisionFilter {
    /// Reads `DOMAIN`, `DOMAIN,KEY` or `DOMAIN,KEY=VALUE`, with any number of keys; `*` as the
    /// domain means all domains.
    ///
    /// # Errors
    /// A message with the valid form.
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
        request: &DecodedRequest<'_>,
        plan: &Plan,
        outcomes: &Outcomes<'_>,
        values: &LoggedValues,
    ) {
        let is_of = |domain: &[u8]| domain == request.domain;
        if !Self::is_logged() || !self.domain.as_deref().is_none_or(is_of) {
            return;
        }
        let all = request.descriptors().zip(&outcomes.each);
        let selected = all.filter(|((_, entries), _)| self.selects(entries));
        for ((descriptor, entries), outcome) in selected.take(MAX_LINES) {
            let (mut hits, mut ends_in, mut decided) = (request.hits(descriptor), None, None);
            let mut limit = outcome.limit.map(|found| found.limit.path());
            match outcome.by {
                DecidedBy::NoLimit => limit = None,
                DecidedBy::Unlimited | DecidedBy::Exempt => {}
                DecidedBy::Block(block) => ends_in = block.ends_in.map(|span| span.to_string()),
                DecidedBy::Check {
                    check, decision, ..
                } => {
                    (hits, decided) = (check.hits, Some(decision));
                    limit = limit.or_else(|| Some(REQUEST_LIMIT.to_owned()));
                }
            }
            let verdict = decided.and_then(|decision| decision.verdict());
            let error = decided.and_then(Decision::store_error);
            tracing::debug!(
                domain = cut(request.domain),
                descriptor = display_entries(entries, values),
                hits,
                limit,
                code = code(outcome),
                by = by(outcome),
                remaining = verdict.map(|_| outcome.remaining),
                retry_after = decided.and_then(retry_after),
                error = error.map(|error| error.to_string()),
                ends_in,
                "decision{}",
                what(outcome, plan)
            );
        }
    }
}

/// The text after "decision" in the line of a descriptor that no store decided.
const fn what(outcome: &Outcome<'_>, plan: &Plan) -> &'static str {
    match outcome.by {
        DecidedBy::NoLimit if plan.unknown_domain => ": no file has this domain",
        DecidedBy::NoLimit => ": no limit applies",
        DecidedBy::Unlimited => ": unlimited",
        DecidedBy::Exempt => ": exempt",
        DecidedBy::Block(_) => ": blocked",
        DecidedBy::Check { .. } => "",
    }
}

const fn code(outcome: &Outcome<'_>) -> &'static str {
    match outcome.by {
        _ if outcome.refuses => "OVER_LIMIT",
        DecidedBy::Check { decision, .. } if decision.failure().is_some() => "UNAVAILABLE",
        DecidedBy::Check { decision, .. } if !decision.allows() => "OK (shadow mode)",
        _ => "OK",
    }
}

/// The number of locks.
const SHARDS: usize = 16;

/// The lines of each limit.
#[derive(Debug)]
pub struct RefusalLog {
    /// Maximum number of lines of one limit in a second.
    lines: u32,
    values: LoggedValues,
    shards: [Mutex<LoggedLimits>; SHARDS],
    started: Instant,
}

/// The limits of one configuration that have refused something. The configuration bounds their
/// number.
#[derive(Debug, Default)]
struct LoggedLimits {
    generation: u64,
    /// `None` is all limits that requests bring along.
    logged: HashMap<Option<LimitId>, LoggedLimit>,
}

/// The lines about one limit that were written and omitted.
#[derive(Clone, Copy, Debug, Default)]
struct LoggedLimit {
    /// The second of the last line, and the lines in it.
    second: u64,
    lines: u32,
    /// Refusals since the last line.
    left_out: u64,
}

impl LoggedLimit {
    /// Takes one of `lines` in a second. Some: a line, and how many were left out before it.
    fn take(&mut self, second: u64, lines: u32) -> Option<u64> {
        if self.second != second {
            (self.second, self.lines) = (second, 0);
        }
        if self.lines >= lines {
            self.left_out += 1;
            return None;
        }
        self.lines += 1;
        Some(std::mem::take(&mut self.left_out))
    }
}

impl RefusalLog {
    /// A log of at most `lines` per limit and second, which shows values as `values`.
    pub fn new(lines: u32, values: LoggedValues) -> Self {
        Self {
            lines,
            values,
            shards: Default::default(),
            started: Instant::now(),
        }
    }

    /// Whether its lines are written at the level of the log.
    pub fn is_logged() -> bool {
        tracing::enabled!(tracing::Level::INFO)
    }

    /// Writes lines about the descriptors of a request that are over their limits.
    pub(super) fn observe(
        &self,
        request: &DecodedRequest<'_>,
        outcomes: &Outcomes<'_>,
        generation: u64,
    ) {
        if outcomes.each.iter().any(|outcome| outcome.refuses) && Self::is_logged() {
            self.log(request, outcomes, generation);
        }
    }

    #[cold]
    fn log(&self, request: &DecodedRequest<'_>, outcomes: &Outcomes<'_>, generation: u64) {
        let second = self.started.elapsed().as_secs();
        for ((_, entries), outcome) in request.descriptors().zip(&outcomes.each) {
            let DecidedBy::Check { decision, .. } = outcome.by else {
                continue;
            };
            let limit = outcome.limit.map(|found| found.limit);
            if outcome.refuses
                && let Some(left_out) = self.take(limit.map(|limit| limit.id), generation, second)
            {
                tracing::info!(
                    domain = cut(request.domain),
                    descriptor = display_entries(entries, &self.values),
                    hits = outcome.hits(),
                    limit = limit.map_or_else(|| REQUEST_LIMIT.to_owned(), Limit::path),
                    from = limit.map(|limit| limit.origin.to_string()),
                    by = by(outcome),
                    retry_after = retry_after(decision),
                    left_out = Some(left_out).filter(|&count| count > 0),
                    "refused"
                );
            }
        }
    }

    /// Takes a line about a limit. Some: how many were left out before it.
    pub(super) fn take(&self, limit: Option<LimitId>, generation: u64, second: u64) -> Option<u64> {
        let shard = limit.map_or(0, |id| (id.domain.wrapping_add(id.limit)) as usize % SHARDS);
        let mut limits = lock(&self.shards[shard]);
        // A reload gives the numbers of limits to others.
        if limits.generation != generation {
            (limits.generation, limits.logged) = (generation, HashMap::new());
        }
        let logged = limits.logged.entry(limit).or_default();
        logged.take(second, self.lines)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::logged_values::LONGEST_TEXT;

    fn entry<'a>(key: &'a str, value: &'a str) -> Entry<'a> {
        Entry {
            key: key.as_bytes(),
            value: value.as_bytes(),
        }
    }

    #[test]
    fn keys_and_values_are_escaped_and_cut() {
        let plain = |entries: &[Entry<'_>]| display_entries(entries, &LoggedValues::Plain);
        let long = "é".repeat(10_000);
        let text = plain(&[entry("k", "a\", forged=\"b\n"), entry("long", &long)]);
        let expected = format!(
            "k=\"a\\\", forged=\\\"b\\n\", long=\"{}...\"",
            "é".repeat(LONGEST_TEXT)
        );
        assert_eq!(text, expected);
        assert_eq!(
            plain(&[Entry {
                key: b"k",
                value: b"\xff"
            }]),
            "k=\"\u{fffd}\""
        );
        assert_eq!(
            plain(&[entry("a, b=\"c\"", "v"), entry("", "")]),
            "\"a, b=\\\"c\\\"\"=\"v\", \"\"=\"\""
        );
        let many = vec![entry("k", "v"); 64];
        assert!(plain(&many).ends_with("k=\"v\" and 56 more"));
    }

    /// The digest is from RFC 4231, test case 2: other programs compute it too.
    #[test]
    fn values_are_hashed_or_left_out() {
        let entries = [
            entry("user", "what do ya want for nothing?"),
            entry("path", ""),
        ];
        assert_eq!(
            display_entries(&entries, &LoggedValues::hashed_with(b"Jefe")),
            "user=5bdcc146bf60754e, path=923598ca6d64af2a"
        );
        assert_eq!(display_entries(&entries, &LoggedValues::Off), "user, path");
        let (one, other) = (
            LoggedValues::hashed().expect("random numbers"),
            LoggedValues::hashed().expect("random numbers"),
        );
        assert_eq!(
            display_entries(&entries, &one),
            display_entries(&entries, &one.clone())
        );
        assert_ne!(
            display_entries(&entries, &one),
            display_entries(&entries, &other)
        );
        assert_eq!(format!("{one:?}"), "Hashed(Key { algorithm: SHA256 })");
    }
}

#[cfg(test)]
mod decision_log_tests {
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

#[cfg(test)]
mod refusal_log_tests {
    use super::*;

    #[test]
    fn a_limit_has_its_lines_in_each_second_and_they_count_what_was_left_out() {
        let log = RefusalLog::new(2, LoggedValues::Plain);
        let (one, other) = (Some(LimitId::new(0, 1)), Some(LimitId::new(0, 17)));
        let take = |limit, second| log.take(limit, 1, second);
        assert_eq!(
            [take(one, 0), take(one, 0), take(one, 0), take(one, 0)],
            [Some(0), Some(0), None, None]
        );
        assert_eq!(
            take(other, 0),
            Some(0),
            "in the same shard, with lines of its own"
        );
        assert_eq!(
            [take(one, 1), take(one, 1), take(one, 1)],
            [Some(2), Some(0), None]
        );
        assert_eq!(take(None, 1), Some(0), "limits of requests");
        // After a reload the same number is another limit.
        assert_eq!(
            [
                log.take(one, 2, 1),
                log.take(one, 2, 1),
                log.take(one, 2, 1)
            ],
            [Some(0), Some(0), None]
        );
    }
}
