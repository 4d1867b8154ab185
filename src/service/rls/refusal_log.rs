//! Lines about refused descriptors: at most so many in a second for each limit (`LOG_REFUSALS`),
//! with how many were left out.
//!
//! Without the setting nothing here runs. A request that is allowed reads its decisions and nothing
//! else. One that is refused takes the lock of a part of the limits, for the length of a look-up;
//! most refusals of a busy limit end there.

use std::sync::Mutex;
use std::time::Instant;

use hashbrown::HashMap;

use super::log_text::{self, LoggedValues, by, cut, shown};
use crate::core::ask::Ask;
use crate::core::lock;
use crate::limits::plan::{By, Outcomes};
use crate::limits::rules::limit::{Limit, LimitId};
use crate::observe::subjects::REQUEST_LIMIT;

/// The number of locks.
const SHARDS: usize = 16;

/// The lines of each limit.
#[derive(Debug)]
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
    pub(super) fn observe(&self, ask: &Ask<'_>, outcomes: &Outcomes<'_>, generation: u64) {
        if outcomes.each.iter().any(|outcome| outcome.refuses) && Self::is_logged() {
            self.log(ask, outcomes, generation);
        }
    }

    #[cold]
    fn log(&self, ask: &Ask<'_>, outcomes: &Outcomes<'_>, generation: u64) {
        let second = self.started.elapsed().as_secs();
        for ((_, entries), outcome) in ask.descriptors().zip(&outcomes.each) {
            let By::Check { decision, .. } = outcome.by else {
                continue;
            };
            let limit = outcome.limit.map(|found| found.limit);
            if outcome.refuses
                && let Some(left_out) = self.take(limit.map(|limit| limit.id), generation, second)
            {
                tracing::info!(
                    domain = cut(ask.domain),
                    descriptor = shown(entries, &self.values),
                    hits = outcome.hits(),
                    limit = limit.map_or_else(|| REQUEST_LIMIT.to_owned(), Limit::path),
                    from = limit.map(|limit| limit.origin.to_string()),
                    by = by(outcome),
                    retry_after = log_text::retry_after(decision),
                    left_out = Some(left_out).filter(|&count| count > 0),
                    "refused"
                );
            }
        }
    }

    fn take(&self, limit: Option<LimitId>, generation: u64, second: u64) -> Option<u64> {
        let shard = limit.map_or(0, |id| (id.domain.wrapping_add(id.limit)) as usize % SHARDS);
        let mut limits = lock(&self.shards[shard]);
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
