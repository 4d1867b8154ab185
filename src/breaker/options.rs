//! The breaker's figures and their reasons: the loads and goals that they were chosen for are tests in `tests/goals.rs`.

use crate::time::Span;

/// When the breaker opens, probes and closes. Any figures are safe.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// So many calls in a row without an answer open it. 5 calls are a millisecond of 5,000 a second, and their deadlines (20 ms with
    /// Envoy's default) pass together: an outage is noticed well within the 100 ms that it may take ...
    pub consecutive_failures: u32,
    /// ... if the row is at least this long. 10 ms: connections that break together while the node lives are made anew by then, and opening
    /// would cost a hundred times as many requests their answer; of the 100 ms it is a tenth.
    pub shortest_row: Span,
    /// What is counted is of the last second. Failures in a row that are further apart than this are not of one outage: at one request in
    /// 10 s the breaker stays closed, and each request finds out for itself, which costs nobody but itself.
    pub window: Span,
    /// Shares are taken of at least so many calls: half of fewer is chance.
    pub min_calls: u32,
    /// It opens when this share of the window's calls failed. 50 %: below, more requests are helped by asking than are kept waiting ...
    pub failure_percent: u32,
    /// ... and at least so many of its buckets hold failures. 2: one batch, of however many calls, is no outage.
    pub failing_buckets: u32,
    /// It opens when this share of the window's calls was slow and this share of its buckets held a slow call. 80 % of both: nearly all, for
    /// about a second; a hiccup of some milliseconds after a quiet time is neither.
    pub slow_percent: u32,
    /// From opening to the first probe. 100 ms: a hiccup is over by then, and a failover is not.
    pub first_probe: Span,
    /// The longest wait between probes of an outage that is younger than [`Options::early`]. 200 ms are at most 250 with jitter; with the
    /// second probe and two steps of the ramp half of all requests are let in within 500 ms of the node's return.
    pub longest_early_probe: Span,
    /// How long an outage is young. 10 s: restarts, pauses and failovers are shorter.
    pub early: Span,
    /// The longest wait afterwards. 700 ms are at most 875 with jitter, which leaves a tenth of a second for the two probes: requests are let
    /// in within a second of the node's return, however long it was away.
    pub longest_probe: Span,
    /// The wait after a configuration error. Nobody repairs a password within milliseconds, and each try is a line in somebody's log; 4.5 s
    /// are at most 5.7 with jitter, so that the repair is seen within 6 s.
    pub config_probe: Span,
    /// Good probes in a row that let requests in. 2: a node that is just going down may answer one.
    pub good_probes: u32,
    /// From a good probe to the next. 10 ms: it only has to be another moment.
    pub repeat_probe: Span,
    /// The share of requests that each step of the ramp lets in. Not all at once: connections are new, scripts unknown, and a node that has
    /// just started would meet its full load cold.
    pub ramp_percent: [u32; 4],
    /// How long a step takes. 100 ms: several deadlines of 20 ms, so that a step knows how its calls fared before the next one.
    pub ramp_step: Span,
    /// So many failures in the ramp open it again, however short: the node has just been away ...
    pub ramp_failures: u32,
    /// ... if they are at least this share of the ramp's calls. 10 %: without it, some deadlines missed in a thousand, which is any busy day,
    /// would keep the breaker of a busy service open for ever.
    pub ramp_failure_percent: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            consecutive_failures: 5,
            shortest_row: Span::from_micros(10_000),
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
    /// The share of the step that the ramp is in after `passed`; `None` after the last.
    pub(super) fn ramp_percent_at(&self, passed: Span) -> Option<u32> {
        let step = usize::try_from(passed.micros() / self.ramp_step.micros().max(1)).ok()?;
        self.ramp_percent.get(step).map(|&percent| percent.min(100))
    }
}
