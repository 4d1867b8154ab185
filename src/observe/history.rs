//! The decisions of the last fifteen minutes by outcome, for the plot of the admin page.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

use schemars::JsonSchema;
use serde::Serialize;
use tokio::time::{Duration, interval};

use super::metrics::Metrics;
use crate::core::lock;

/// The time that a point covers.
const EVERY: Duration = Duration::from_secs(5);

/// Maximum number of points: fifteen minutes.
const MAX_POINTS: usize = 180;

/// Decisions by outcome, as the label `outcome` of `weir_decisions_total` names it; `free` are
/// descriptors that no limit applied to.
type OutcomeCounts = BTreeMap<&'static str, u64>;

/// Response of `/api/v1/history`.
#[derive(Debug, JsonSchema, Serialize)]
pub struct Series {
    /// Interval of each count in seconds.
    pub every_seconds: u64,
    /// The counts of each outcome, oldest first; all lists have the same length, at most 180.
    pub outcomes: BTreeMap<&'static str, Vec<u64>>,
}

/// The points, which one task adds.
#[derive(Debug, Default)]
pub struct History {
    points: Mutex<VecDeque<OutcomeCounts>>,
}

impl History {
    /// Adds a point at each interval; never returns.
    pub async fn follow(self: Arc<Self>, metrics: Arc<Metrics>) {
        let (mut before, mut turns) = (OutcomeCounts::new(), interval(EVERY));
        turns.tick().await;
        loop {
            turns.tick().await;
            let metrics = Arc::clone(&metrics);
            // There may be many limits.
            if let Ok(now) = tokio::task::spawn_blocking(move || totals(&metrics)).await {
                self.add(&before, &now);
                before = now;
            }
        }
    }

    fn add(&self, before: &OutcomeCounts, now: &OutcomeCounts) {
        // The counts of a limit that was removed are missing now.
        let since = |(name, count): (&&'static str, &u64)| {
            let earlier = before.get(name).copied().unwrap_or_default();
            (*name, count.saturating_sub(earlier))
        };
        let mut points = lock(&self.points);
        points.truncate(MAX_POINTS - 1);
        points.push_front(now.iter().map(since).collect());
    }

    /// The points as series.
    pub fn read(&self) -> Series {
        let points = lock(&self.points);
        let mut outcomes = BTreeMap::new();
        for (index, point) in points.iter().rev().enumerate() {
            for (name, count) in point {
                let of_name = outcomes.entry(*name);
                of_name.or_insert_with(|| vec![0; points.len()])[index] = *count;
            }
        }
        Series {
            every_seconds: EVERY.as_secs(),
            outcomes,
        }
    }
}

fn totals(metrics: &Metrics) -> OutcomeCounts {
    let mut totals = OutcomeCounts::from([("free", metrics.free_descriptors())]);
    metrics.read_decisions(|_, _, _, counts| {
        for (outcome, count) in counts.filter(|(_, count)| *count > 0) {
            *totals.entry(outcome).or_default() += count;
        }
    });
    totals
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_history_is_bounded_and_has_what_was_counted_between_two_points() {
        let history = History::default();
        let at = |ok: u64| OutcomeCounts::from([("ok", ok)]);
        for total in 0..1_000 {
            history.add(&at(total), &at(total + total % 7));
        }
        history.add(&at(9), &at(2));
        let ok = history.read().outcomes.remove("ok").expect("a series");
        assert_eq!(ok.len(), MAX_POINTS);
        assert_eq!(ok[MAX_POINTS - 3..], [998 % 7, 999 % 7, 0]);
    }
}
