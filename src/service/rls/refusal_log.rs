//! Lines about refused descriptors: at most so many in a second for each limit (`LOG_REFUSALS`),
//! with how many were left out.
//!
//! Without the setting nothing here runs. A request that is allowed reads its decisions and nothing
//! else. One that is refused takes the lock of a part of the limits, for the length of a look-up;
//! most refusals of a busy limit end there.

use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use hashbrown::HashMap;

use super::log_text::{LoggedValues, cut, shown, source};
use crate::core::ask::{Ask, Entry};
use crate::core::verdict::{Decision, Decisions, Wait};
use crate::limits::plan::{Plan, Slot};
use crate::limits::rules::limit::LimitId;
use crate::observe::subjects::REQUEST_LIMIT;

/// The number of locks.
const SHARDS: usize = 16;

/// The lines of each limit.
pub struct RefusalLog {
    /// At most, of one limit in a second.
    lines: u32,
    values: LoggedValues,
    shards: [Mutex<Limits>; SHARDS],
    started: Instant,
}

/// The limits of one configuration that have refused something: as many as the configuration has at
/// most.
#[derive(Debug, Default)]
struct Limits {
    generation: u64,
    /// `None` is all limits that requests bring along.
    written: HashMap<Option<LimitId>, Written>,
}

/// What was written of one limit.
#[derive(Clone, Copy, Debug, Default)]
struct Written {
    /// The second of the last line, and the lines in it.
    second: u64,
    lines: u32,
    /// Refusals since the last line.
    left_out: u64,
}

impl Written {
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
    /// At most so many lines of one limit in a second, which show values like this.
    #[must_use]
    pub fn new(lines: u32, values: LoggedValues) -> Self {
        Self {
            lines,
            values,
            shards: Default::default(),
            started: Instant::now(),
        }
    }

    /// Whether its lines are written at the level of the log.
    #[must_use]
    pub fn is_logged() -> bool {
        tracing::enabled!(tracing::Level::INFO)
    }

    /// Writes lines about the descriptors of a request that are over their limits.
    pub(super) fn observe(
        &self,
        ask: &Ask<'_>,
        plan: &Plan,
        decisions: &Decisions,
        generation: u64,
    ) {
        if decisions.iter().any(|decision| !decision.allows()) && Self::is_logged() {
            self.log(ask, plan, decisions, generation);
        }
    }

    #[cold]
    fn log(&self, ask: &Ask<'_>, plan: &Plan, decisions: &Decisions, generation: u64) {
        let second = self.started.elapsed().as_secs();
        for ((_, entries), slot) in ask.descriptors().zip(&plan.slots) {
            let Slot::Checked { check, limit, .. } = slot else {
                continue;
            };
            let decision = &decisions[check.0];
            // A limit in shadow mode refuses nothing.
            if decision.allows() || plan.checks[*check].modes.shadow {
                continue;
            }
            if let Some(left_out) = self.take(*limit, generation, second) {
                self.write(
                    ask.domain,
                    entries,
                    plan.checks[*check].hits,
                    plan,
                    *limit,
                    decision,
                    left_out,
                );
            }
        }
    }

    fn take(&self, limit: Option<LimitId>, generation: u64, second: u64) -> Option<u64> {
        let shard = limit.map_or(0, |id| (id.domain.wrapping_add(id.limit)) as usize % SHARDS);
        let mut limits = self.shards[shard]
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        // A reload gives the numbers of limits to others.
        if limits.generation != generation {
            *limits = Limits {
                generation,
                written: HashMap::new(),
            };
        }
        limits
            .written
            .entry(limit)
            .or_default()
            .take(second, self.lines)
    }

    #[expect(clippy::too_many_arguments, reason = "the fields of one line")]
    fn write(
        &self,
        domain: &[u8],
        entries: &[Entry<'_>],
        hits: i64,
        plan: &Plan,
        limit: Option<LimitId>,
        decision: &Decision,
        left_out: u64,
    ) {
        let limit = limit.map(|id| plan.rules.limit(id));
        let path = limit.map_or_else(
            || REQUEST_LIMIT.to_owned(),
            crate::limits::rules::limit::Limit::path,
        );
        let from = limit.map(|limit| limit.origin.to_string());
        let retry_after = decision.retry_after().map(|wait| match wait {
            Wait::For(span) => span.to_string(),
            Wait::Never => "never".to_owned(),
        });
        let left_out = Some(left_out).filter(|&count| count > 0);
        let (domain, descriptor, by) =
            (cut(domain), shown(entries, &self.values), source(decision));
        tracing::info!(
            domain,
            descriptor,
            hits,
            limit = path,
            from,
            by,
            retry_after,
            left_out,
            "refused"
        );
    }
}

impl fmt::Debug for RefusalLog {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("RefusalLog")
            .field("lines", &self.lines)
            .field("values", &self.values)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
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
