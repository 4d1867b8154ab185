//! The breaker's parameters and the reasons for their defaults. `tests/goals.rs` tests the loads
//! and goals that they were chosen for.

use crate::core::time::Span;

/// When the breaker opens, probes and closes. Any values are safe.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// This number of consecutive failures opens it. Default 5: a millisecond of 5,000 calls a
    /// second, whose deadlines (20 ms by Envoy's default) pass together, so that an outage is
    /// detected well within the goal of 100 ms ...
    pub consecutive_failures: u32,
    /// ... if they last for at least this time. Default 10 ms: connections that break together
    /// while the node is healthy are replaced by then, and opening would reject a hundred times as
    /// many requests. It is a tenth of the goal of 100 ms.
    pub min_streak: Span,
    /// The length of the window. Default 1 s. Consecutive failures that are further apart than this
    /// do not belong to one outage: at one request in 10 s the breaker stays closed, and each
    /// request waits for its own deadline only.
    pub window: Span,
    /// The fewest calls of the window for a decision by their shares. Default 20: half of fewer is
    /// chance.
    pub min_calls: u32,
    /// This share of failed calls in the window opens it. Default 50 %: below, trying helps more
    /// requests than it delays ...
    pub failure_percent: u32,
    /// ... if at least so many of its buckets have failures. Default 2: a single batch is no
    /// outage, however many calls it has.
    pub failing_buckets: u32,
    /// It opens if this share of the window's calls was slow and this share of its buckets has slow
    /// calls. Default 80 %: nearly all calls of about a second. A hiccup of some milliseconds after
    /// a quiet time is neither.
    pub slow_percent: u32,
    /// The time from opening to the first probe. Default 100 ms: a hiccup is over by then, a
    /// failover is not.
    pub first_probe: Span,
    /// The longest wait between probes in the first [`Options::early`] of an outage. Default 200
    /// ms, 250 with jitter: with the second probe and two steps of the ramp, half of all requests
    /// are admitted within 500 ms of the node's return.
    pub longest_early_probe: Span,
    /// How long [`Options::longest_early_probe`] applies. Default 10 s: restarts, pauses and
    /// failovers are shorter.
    pub early: Span,
    /// The longest wait between probes afterwards. Default 700 ms, 875 with jitter, which leaves
    /// 100 ms for the two probes: requests are admitted within a second of the node's return,
    /// however long the outage was.
    pub longest_probe: Span,
    /// The wait between probes after a configuration error. A person has to repair it, and each
    /// attempt is a line in the log of Redis. Default 4.5 s, 5.7 with jitter, so that the repair is
    /// detected within 6 s.
    pub config_probe: Span,
    /// Consecutive successful probes that begin the ramp. Default 2: a node that is going down may
    /// answer one.
    pub good_probes: u32,
    /// The time from a successful probe to the next. Default 10 ms.
    pub repeat_probe: Span,
    /// The share of requests in percent that each step of the ramp admits. Not all at once: a node
    /// that has just started has new connections and no cached scripts.
    pub ramp_percent: [u32; 4],
    /// The length of a step. Default 100 ms: several deadlines of 20 ms, so that the outcomes of a
    /// step's calls are known before the next one.
    pub ramp_step: Span,
    /// This number of failures in the ramp opens it again ...
    pub ramp_failures: u32,
    /// ... if they are at least this share of the ramp's calls. Default 10 %: a busy service always
    /// misses a few deadlines in a thousand, which must not keep its breaker open for ever.
    pub ramp_failure_percent: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            consecutive_failures: 5,
            min_streak: Span::from_micros(10_000),
            window: Span::from_secs(1),
            min_calls: 20,
            failure_percent: 50,
            failing_buckets: 2,
            slow_percent: 80,
            first_probe: Span::from_micros(100_000),
            longest_early_probe: Span::from_micros(200_000),
            early: Span::from_secs(10),
            longest_probe: Span::from_micros(700_000),
            config_probe: Span::from_micros(4_500_000),
            good_probes: 2,
            repeat_probe: Span::from_micros(10_000),
            ramp_percent: [10, 25, 50, 100],
            ramp_step: Span::from_micros(100_000),
            ramp_failures: 3,
            ramp_failure_percent: 10,
        }
    }
}

impl Options {
    /// The share of the ramp's step at `passed` after its beginning; `None` after the last step.
    pub(super) fn ramp_percent_at(&self, passed: Span) -> Option<u32> {
        let step = usize::try_from(passed.micros() / self.ramp_step.micros().max(1)).ok()?;
        self.ramp_percent.get(step).map(|&percent| percent.min(100))
    }
}
