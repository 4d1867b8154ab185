//! The log lines about limits of the control plane. It may change them several times a second, and
//! the log must stay readable.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::limits::rules::Rules;
use crate::limits::rules::compile::Problem;
use crate::limits::rules::diff::Difference;
use crate::live::Snapshot;
use crate::live::files::{MAX_LOGGED, log_loaded, log_problems};
use crate::net::throttle::Throttle;

/// At most one line about loaded limits in this time.
const INTERVAL: Duration = Duration::from_secs(10);

/// Configurations with more limits are not compared with the one before.
const MAX_COMPARED_LIMITS: usize = 5_000;

/// The last lines about limits of the control plane, which later ones are compared with.
#[derive(Debug, Default)]
pub(super) struct Report {
    /// The memory that limits may take.
    share: u64,
    /// The lines about loaded limits.
    lines: Throttle,
    /// The limits of that line, to be compared with the next ones.
    reported: Option<Arc<Rules>>,
    /// Loads since then: their number, and the version and the limits of the last.
    unreported: Option<(u32, String, Arc<Rules>, u64)>,
    refused: Vec<Problem>,
    warnings: Vec<Problem>,
}

fn is_compared(rules: &Arc<Rules>) -> bool {
    rules.limit_count() <= MAX_COMPARED_LIMITS
}

impl Report {
    /// Without lines so far.
    pub(super) fn new(share: u64) -> Self {
        Self {
            share,
            lines: Throttle::new(INTERVAL),
            ..Self::default()
        }
    }

    /// Reports that limits are in force.
    pub(super) fn loaded(
        &mut self,
        old: Option<&Snapshot>,
        new: &Snapshot,
        version: &[u8],
        now: Instant,
    ) {
        let version: String = String::from_utf8_lossy(version).chars().take(100).collect();
        let has_limits = |of: &Snapshot| of.rules.domains().next().is_some();
        if !has_limits(new) && old.is_none_or(has_limits) {
            let expected = "expected if the last policy was deleted";
            tracing::warn!(
                version,
                "the control plane sent no limits: all requests pass; {expected}"
            );
        }
        if self.reported.is_none() && self.unreported.is_none() {
            self.reported = old.map(|old| Arc::clone(&old.rules)).filter(is_compared);
        }
        let loads = self.unreported.as_ref().map_or(0, |(loads, ..)| *loads) + 1;
        self.unreported = Some((loads, version, Arc::clone(&new.rules), new.generation));
        self.idle(now);
    }

    /// Writes one line about all loads since the last, once it is time: their changes together.
    pub(super) fn idle(&mut self, now: Instant) {
        if !self.lines.is_due(now) {
            return;
        }
        let Some((loads, version, rules, generation)) = self.unreported.take() else {
            return;
        };
        self.lines.admit(now);
        // Rules that are not compared are not kept.
        let new = Some(Arc::clone(&rules)).filter(is_compared);
        let old = std::mem::replace(&mut self.reported, new.clone());
        let difference = old.zip(new).map(|(old, new)| Difference::new(&old, &new));
        let loads = (loads > 1).then_some(loads);
        log_loaded(
            &rules,
            generation,
            difference.as_ref(),
            None,
            Some(&version),
            loads,
            Some(self.share),
        );
    }

    /// Reports warnings about limits that are in force, except warnings that the last configuration
    /// had too.
    pub(super) fn warnings(&mut self, warnings: Vec<Problem>) {
        let is_new = |warning: &&Problem| !self.warnings.contains(warning);
        for warning in warnings.iter().filter(is_new).take(MAX_LOGGED) {
            tracing::warn!("{warning}");
        }
        self.warnings = warnings;
    }

    /// Reports refusals, unless they are the same as last time.
    pub(super) fn refused(
        &mut self,
        problems: Vec<Problem>,
        (kept, absent): (usize, usize),
        has_none: bool,
    ) {
        if self.refused == problems {
            return;
        }
        if problems.is_empty() {
            tracing::info!("all limits of the control plane are in force again");
        } else {
            let none = match has_none {
                true => "; no limits yet: answering every request with UNAVAILABLE",
                false => "",
            };
            let (count, what) = (problems.len(), "limits of the control plane rejected");
            tracing::error!(problems = count, kept, absent, "{what}{none}");
            log_problems(&problems, "");
        }
        self.refused = problems;
    }
}
