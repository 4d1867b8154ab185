//! What changes from one configuration to another: which requests are refused that were admitted,
//! which are admitted that were refused, and whose they are.

use super::tally::{Ranked, Series};
use crate::core::time::Micros;
use crate::limits::plan::Outcomes;

/// The difference between two configurations.
#[derive(Debug, Default)]
pub(super) struct Compare {
    pub(super) newly_refused: Changed,
    pub(super) newly_admitted: Changed,
}

/// Requests whose answers differ.
#[derive(Debug, Default)]
pub(super) struct Changed {
    pub(super) requests: u64,
    /// The subjects of the limits that refuse them in one of the configurations.
    pub(super) subjects: Ranked,
    pub(super) over_time: Series,
}

impl Compare {
    /// Compares the outcomes of a request that was sent `at`.
    pub(super) fn observe<'o>(&mut self, at: Micros, was: &Outcomes<'o>, is: &Outcomes<'o>) {
        let (changed, refusing) = match (was.is_over_limit, is.is_over_limit) {
            (false, true) => (&mut self.newly_refused, is),
            (true, false) => (&mut self.newly_admitted, was),
            _ => return,
        };
        changed.requests += 1;
        changed.over_time.add(at);
        for index in refusing.violated() {
            if let Some(key) = refusing.each[index].counter {
                changed.subjects.add(key);
            }
        }
    }
}
