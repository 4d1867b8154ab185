//! Reports of limits with `notify`: a log line and a count for each threshold that a hit crosses.
//!
//! A store gives each position of a count to one request. The count of a `fixed_window` does not
//! fall by itself, so each of its thresholds is crossed once in a window, by one replica, and no
//! state is needed; hits can cross it again only after a refund or a reset. Hits of holds do not
//! count: they are used when they are settled, or stay charged. Counts of sliding windows and
//! buckets fall by themselves and may oscillate around a threshold: this process is silent about
//! such a threshold of a subject for the length of a window.
//!
//! Clients choose subjects, so both the lines and the memory of what is silent have a bound. The
//! metric counts all reports.

use std::sync::Mutex;

use hashbrown::HashMap;

use super::logs::{RefusalLog, display_entries};
use crate::core::algorithm::{Algorithm, LARGEST_COUNT};
use crate::core::answer::Effect;
use crate::core::fingerprint::Fingerprint;
use crate::core::lock;
use crate::core::request::DecodedRequest;
use crate::core::time::{Micros, Span};
use crate::limits::overrides::instant;
use crate::limits::plan::{Check, DecidedBy, Outcomes, Plan};
use crate::live::Snapshot;
use crate::net::clock;
use crate::observe::logged_values::{LoggedValues, cut};
use crate::observe::telemetry::BUDGET;

/// Maximum number of lines of one limit in a second: as many as a program that sends messages about
/// them can handle, and few among the 8,192 that may wait for the reader of stderr.
pub(crate) const MAX_LINES: u32 = 100;

/// Maximum number of thresholds of subjects about which this process is silent, some 0.5 MB.
pub(crate) const MAX_SILENT: usize = 10_000;

/// The reports of all workers of a process.
#[derive(Debug)]
pub struct ThresholdLog {
    /// The lines have the same bound as those about refusals.
    lines: RefusalLog,
    /// By counter, numbers of its limit and threshold: the instant until which it is silent.
    silent: Mutex<HashMap<Fingerprint, Micros>>,
}

impl Default for ThresholdLog {
    fn default() -> Self {
        Self {
            lines: RefusalLog::new(MAX_LINES, LoggedValues::Off),
            silent: Mutex::default(),
        }
    }
}

impl ThresholdLog {
    /// Reports the thresholds that a request crosses. A request that is refused as a whole crosses
    /// none.
    pub(super) fn observe(
        &self,
        request: &DecodedRequest<'_>,
        plan: &Plan,
        outcomes: &Outcomes<'_>,
        live: &Snapshot,
        values: &LoggedValues,
    ) {
        if !plan.checks.has_thresholds() || outcomes.is_undone {
            return;
        }
        for ((_, entries), outcome) in request.descriptors().zip(&outcomes.each) {
            if let DecidedBy::Check {
                planned,
                check,
                decision,
                effect,
            } = outcome.by
                && let Some(found) = outcome.limit
                && let Some((all, counted)) = check.counted(decision, effect)
            {
                // Without the id of a hold.
                let entries = &entries[..entries.len().min(found.limit.levels.len())];
                let (id, used) = (found.limit.id, counted.end);
                let amount = check.algorithm.capacity();
                for threshold in all.crossed(amount, &counted) {
                    let now = clock::now();
                    let falls = !matches!(check.algorithm, Algorithm::FixedWindow(_));
                    if (falls || used == LARGEST_COUNT) && !self.is_due(check, threshold, now) {
                        continue;
                    }
                    live.tallies.crossed(id, threshold);
                    let second = now.0 / 1_000_000;
                    let line = self.lines.take(Some(id), live.generation, second);
                    let Some(left_out) = line else { continue };
                    tracing::info!(
                        target: BUDGET,
                        domain = cut(request.domain),
                        limit = found.display_name(),
                        subject = display_entries(entries, values),
                        used = planned.scale.units(used),
                        held = held(check, effect).map(|hits| planned.scale.units(hits)),
                        amount = planned.scale.units(amount),
                        share = used.saturating_mul(100) / amount.max(1),
                        threshold,
                        period_end = period_end(check, decision.until_reset(), now),
                        left_out = Some(left_out).filter(|&count| count > 0),
                        "{threshold} % of a limit are used"
                    );
                }
            }
        }
    }

    /// Whether a crossed threshold of a count that falls by itself, or that has met its bound, is
    /// reported: not if the last report of this one is less than a window ago.
    fn is_due(&self, check: &Check, threshold: u8, now: Micros) -> bool {
        let key = check.fingerprint.with(&(check.algorithm, threshold));
        let mut silent = lock(&self.silent);
        if silent.get(&key).is_some_and(|until| now < *until) {
            return false;
        }
        if silent.len() >= MAX_SILENT {
            silent.retain(|_, until| now < *until);
            // Otherwise each further report might search all of them.
            if silent.len() > MAX_SILENT / 2 {
                silent.clear();
            }
        }
        let window = check.algorithm.window().shortest();
        silent.insert(key, now + window);
        true
    }
}

/// The hits that requests hold, in addition to the used ones; `None` if the limit has no holds.
fn held(check: &Check, effect: &Effect) -> Option<u64> {
    check.has_holds().then(|| effect.hold().open)
}

/// The end of the window of a check that resets after `left`, in RFC 3339; `None` for an algorithm
/// without windows. Exact, although the clocks of this process and of the store may differ by up to
/// half a window.
fn period_end(check: &Check, left: Option<Span>, now: Micros) -> Option<String> {
    let (Algorithm::FixedWindow(fixed), Some(left)) = (check.algorithm, left) else {
        return None;
    };
    let half = fixed.window.shortest().micros() / 2;
    let inside = Micros(now.0.saturating_add(left.micros()).saturating_sub(half));
    Some(instant(fixed.end(fixed.number(inside))))
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;
    use crate::core::algorithm::{Debt, FixedWindow, TokenBucket};
    use crate::core::time::Period;
    use crate::limits::plan::{CheckIndex, Checks, Modes};

    const MINUTE: Span = Span::from_secs(60);

    fn fixed(window: Period) -> Algorithm {
        Algorithm::FixedWindow(FixedWindow {
            limit: 10,
            window,
            count_denied: true,
        })
    }

    fn bucket(limit: u64) -> Algorithm {
        Algorithm::TokenBucket(TokenBucket::new(limit, limit, MINUTE, Debt::NONE))
    }

    fn check(key: &str, algorithm: Algorithm) -> Check {
        let check = Check::new(algorithm, 1, Modes::default());
        Checks::of([(key.as_bytes(), check)])[CheckIndex(0)].clone()
    }

    #[test]
    fn a_count_that_falls_by_itself_is_reported_once_in_a_window() {
        let log = ThresholdLog::default();
        let due = |check: &Check, threshold, secs: u64| {
            log.is_due(check, threshold, Micros(secs * 1_000_000))
        };
        let one = check("one", bucket(10));
        assert_eq!(
            [0, 1, 59, 60, 61].map(|secs| due(&one, 80, secs)),
            [true, false, false, true, false]
        );
        assert!(due(&one, 100, 61), "another threshold");
        assert!(due(&check("other", bucket(10)), 80, 61), "another subject");
        assert!(due(&check("one", bucket(20)), 80, 61), "a raised amount");
    }

    #[test]
    fn what_is_silent_has_a_bound() {
        let log = ThresholdLog::default();
        let len = || lock(&log.silent).len();
        let checks: Vec<_> = (0..=MAX_SILENT)
            .map(|key| check(&key.to_string(), bucket(10)))
            .collect();
        let fill = |secs: u64| {
            for (index, check) in checks[..MAX_SILENT].iter().enumerate() {
                // The first half is reported a minute before the other one.
                let later = if index < MAX_SILENT / 2 { 0 } else { 60 };
                assert!(log.is_due(check, 80, Micros((secs + later) * 1_000_000)));
            }
        };
        let last = |secs: u64| log.is_due(&checks[MAX_SILENT], 80, Micros(secs * 1_000_000));
        fill(0);
        assert_eq!(len(), MAX_SILENT);
        assert!(last(60), "those whose time has passed make room");
        assert_eq!(len(), MAX_SILENT / 2 + 1);
        lock(&log.silent).clear();
        fill(1_000);
        assert!(last(1_001), "none has passed");
        assert_eq!(len(), 1);
    }

    #[test]
    fn a_window_ends_at_its_boundary_by_any_clock() {
        let end = |algorithm, now| {
            let left = Some(Span::from_secs(10));
            period_end(&check("key", algorithm), left, Micros(now))
        };
        // 2028-02-29 23:59:50 UTC.
        let now = 1_835_481_590_000_000_u64;
        for late in [-20_000_000, 0, 1, 20_000_000] {
            let now = now.saturating_add_signed(late);
            for window in [Period::Months(NonZeroU32::MIN), Period::Even(MINUTE)] {
                let end = end(fixed(window), now);
                assert_eq!(end.as_deref(), Some("2028-03-01T00:00:00Z"), "{window:?}");
            }
            assert_eq!(end(bucket(10), now), None);
        }
    }
}
