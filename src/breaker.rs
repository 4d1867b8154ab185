//! The circuit breaker in front of one Redis node, as a pure state machine.
//!
//! While a node does not answer, every caller would wait for its whole deadline only to be told what could be told at once. The breaker
//! notices that, keeps requests away (the outage policy answers them), says when to probe, and lets requests back in little by little.
//!
//! ```text
//!   Closed --5 failures in a row for 10 ms, half of a second's 20 calls or more, slow for a second, or a configuration error--> Open
//!   Open   --2 good probes in a row--> Ramp
//!   Ramp   --3 failures that are a tenth of its calls, or anything that opens a closed breaker--> Open, waiting twice as long
//!   Ramp   --400 ms--> Closed
//! ```
//!
//! It knows no clock, no socket and no lock: it is told the time (microseconds of a monotonic clock, from any origin) and what became of
//! calls, and its caller puts it behind a mutex and does the probing. It is told of calls a batch at a time, and must stay that cheap.
//!
//! Only what speaks for the node's health is to be told: not data errors of one key, callers that left, calls that were shed or came with
//! next to no time left, nor what was tried again elsewhere and answered.

mod options;
mod window;

pub use options::Options;

use crate::time::{Micros, Span};
use window::{BUCKETS, Tally, Window};

/// Why calls get no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The node is away, hangs, or refuses everybody: it may be back any moment.
    Outage,
    /// Somebody has to repair something: password, certificate, rights. One failure tells; it does not go away by itself.
    Config,
}

/// What the breaker does with requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Lets all in.
    Closed,
    /// Lets none in.
    Open,
    /// Lets some in, after an outage.
    Ramp {
        /// Of a hundred requests.
        percent: u32,
    },
}

/// How often the breaker changed its state, since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Transitions {
    /// Opened because calls got no answer; from the ramp too.
    pub opened_by_outage: u64,
    /// Opened because of a configuration error; from the ramp too.
    pub opened_by_config: u64,
    /// Opened because answers were slow; from the ramp too.
    pub opened_by_slowness: u64,
    /// Good probes led to a ramp.
    pub ramped: u64,
    /// A ramp went well.
    pub closed: u64,
}

/// The breaker of one node.
#[derive(Clone, Debug)]
pub struct Breaker {
    options: Options,
    phase: Phase,
    window: Window,
    row: Row,
    transitions: Transitions,
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    Closed,
    Open { outage: Outage, next_probe: Micros, good_probes: u32 },
    Ramp { outage: Outage, began: Micros, percent: u32, credit: u32 },
}

/// From opening to closing, ramps that failed included.
#[derive(Clone, Copy, Debug)]
struct Outage {
    began: Micros,
    why: Why,
    /// The wait before the next probe, without jitter.
    wait: Span,
}

impl Outage {
    /// Waits longer, by `factor` percent.
    fn back_off(&mut self, factor: u64, now: Micros, options: &Options) {
        let longest = if now.since(self.began) < options.early { options.longest_early_probe } else { options.longest_probe };
        self.wait = Span::from_micros(self.wait.micros().saturating_mul(factor) / 100).min(longest);
    }

    fn wait(&self, options: &Options) -> Span {
        match self.why {
            Why::Outage => self.wait,
            Why::Config => options.config_probe,
        }
    }
}

/// Calls in a row without an answer.
#[derive(Clone, Copy, Debug, Default)]
struct Row {
    calls: u32,
    first: Micros,
    last: Micros,
}

impl Row {
    fn grow(&mut self, now: Micros, calls: u32, longest_gap: Span) {
        if self.calls == 0 || now.since(self.last) > longest_gap {
            *self = Self { calls: 0, first: now, last: now };
        }
        self.calls = self.calls.saturating_add(calls);
        self.last = now.max(self.last);
    }
}

impl Breaker {
    /// A closed breaker: whoever starts finds out by trying.
    #[must_use]
    pub fn new(options: Options) -> Self {
        let window = Window::new(options.window);
        Self { options, phase: Phase::Closed, window, row: Row::default(), transitions: Transitions::default() }
    }

    /// Whether one more request may go to the node. In the ramp each step spreads its share evenly, and the first request is let in.
    #[must_use]
    pub fn admits(&mut self, now: Micros) -> bool {
        self.advance(now);
        match &mut self.phase {
            Phase::Closed => true,
            Phase::Open { .. } => false,
            Phase::Ramp { percent, credit, .. } => {
                *credit += *percent;
                let is_admitted = *credit >= 100;
                *credit -= if is_admitted { 100 } else { 0 };
                is_admitted
            }
        }
    }

    /// `calls` were answered, `slow` of them after more than half of their time. Changes nothing while open: those were sent before.
    pub fn succeeded(&mut self, now: Micros, calls: u32, slow: u32) {
        self.advance(now);
        if calls == 0 || matches!(self.phase, Phase::Open { .. }) {
            return;
        }
        self.row = Row::default();
        let slow = u64::from(slow.min(calls));
        self.window.add(now, Tally { calls: calls.into(), slow, ..Tally::default() });
        if slow > 0 && self.is_slow() {
            self.transitions.opened_by_slowness += 1;
            self.shut(now, Why::Outage);
        }
    }

    /// `calls` got no answer in time, no connection, or the answer that the node serves nobody. One report of an outage, of however many
    /// calls, does not open a closed breaker; one of a configuration error does. Changes nothing while open.
    pub fn failed(&mut self, now: Micros, calls: u32, why: Why) {
        self.advance(now);
        if calls == 0 || matches!(self.phase, Phase::Open { .. }) {
            return;
        }
        self.row.grow(now, calls, self.options.window);
        let failed = u64::from(calls);
        self.window.add(now, Tally { calls: failed, failed, ..Tally::default() });
        if why == Why::Config || self.is_in_a_row() || self.fails_often() || self.ramp_fails() {
            self.open(now, why);
        }
    }

    /// Opens, whatever was counted: somebody knows that the node is away. Changes nothing while open.
    pub fn open(&mut self, now: Micros, why: Why) {
        self.advance(now);
        if matches!(self.phase, Phase::Open { .. }) {
            return;
        }
        match why {
            Why::Outage => self.transitions.opened_by_outage += 1,
            Why::Config => self.transitions.opened_by_config += 1,
        }
        self.shut(now, why);
    }

    /// When the next probe is due; `None` when none is needed. A probe under way is not known here: ask again when it was told.
    #[must_use]
    pub fn next_probe(&self) -> Option<Micros> {
        match self.phase {
            Phase::Open { next_probe, .. } => Some(next_probe),
            Phase::Closed | Phase::Ramp { .. } => None,
        }
    }

    /// What a probe found. `jitter` is any number from 0 to 1000: it makes the wait up to a quarter shorter (0) or longer (1000), so that
    /// replicas do not probe in step. Changes nothing unless open.
    pub fn probed(&mut self, now: Micros, found: Result<(), Why>, jitter: u32) {
        let Phase::Open { outage, next_probe, good_probes } = &mut self.phase else { return };
        match found {
            Ok(()) => {
                *good_probes += 1;
                *next_probe = now + self.options.repeat_probe;
                if *good_probes >= self.options.good_probes {
                    let outage = *outage;
                    self.ramp(now, outage);
                }
            }
            Err(why) => {
                *good_probes = 0;
                outage.why = why;
                if why == Why::Outage {
                    outage.back_off(160, now, &self.options);
                }
                *next_probe = now + spread(outage.wait(&self.options), jitter);
            }
        }
    }

    /// Moves on to where time alone leads: through the ramp. All others do it too; this is for whoever looks while no requests come.
    pub fn advance(&mut self, now: Micros) {
        let Phase::Ramp { began, percent, .. } = &mut self.phase else { return };
        if let Some(step) = self.options.ramp_percent_at(now.since(*began)) {
            *percent = step;
        } else {
            self.phase = Phase::Closed;
            self.transitions.closed += 1;
        }
    }

    /// The state as of the last call.
    #[must_use]
    pub fn state(&self) -> State {
        match self.phase {
            Phase::Closed => State::Closed,
            Phase::Open { .. } => State::Open,
            Phase::Ramp { percent, .. } => State::Ramp { percent },
        }
    }

    /// Why it is not closed, as of the last probe; in the ramp, why it was open. Slowness is an outage.
    #[must_use]
    pub fn why(&self) -> Option<Why> {
        match self.phase {
            Phase::Closed => None,
            Phase::Open { outage, .. } | Phase::Ramp { outage, .. } => Some(outage.why),
        }
    }

    /// What happened so far, for metrics.
    #[must_use]
    pub fn transitions(&self) -> Transitions {
        self.transitions
    }

    fn is_in_a_row(&self) -> bool {
        self.row.calls >= self.options.consecutive_failures && self.row.last.since(self.row.first) >= self.options.shortest_row
    }

    fn fails_often(&self) -> bool {
        let (total, options) = (self.window.total(), &self.options);
        total.calls >= options.min_calls.into()
            && is_share(total.failed, options.failure_percent, total.calls)
            && self.window.buckets_with(|bucket| bucket.failed) >= options.failing_buckets.into()
    }

    fn is_slow(&self) -> bool {
        let (total, options) = (self.window.total(), &self.options);
        total.calls >= options.min_calls.into()
            && is_share(total.slow, options.slow_percent, total.calls)
            && is_share(self.window.buckets_with(|bucket| bucket.slow), options.slow_percent, BUCKETS as u64)
    }

    /// The window was empty when the ramp began, so that it holds the ramp's calls.
    fn ramp_fails(&self) -> bool {
        let (total, options) = (self.window.total(), &self.options);
        matches!(self.phase, Phase::Ramp { .. })
            && total.failed >= options.ramp_failures.into()
            && is_share(total.failed, options.ramp_failure_percent, total.calls)
    }

    /// From closed or from the ramp to open. A ramp that failed is the same outage, and is waited for twice as long.
    fn shut(&mut self, now: Micros, why: Why) {
        let outage = match self.phase {
            Phase::Ramp { mut outage, .. } => {
                outage.back_off(200, now, &self.options);
                Outage { why, ..outage }
            }
            Phase::Closed | Phase::Open { .. } => Outage { began: now, why, wait: self.options.first_probe },
        };
        self.phase = Phase::Open { outage, next_probe: now + outage.wait(&self.options), good_probes: 0 };
    }

    /// From open to the ramp; what was counted before the outage says nothing any more.
    fn ramp(&mut self, now: Micros, outage: Outage) {
        self.window = Window::new(self.options.window);
        self.row = Row::default();
        let percent = self.options.ramp_percent_at(Span::ZERO).unwrap_or(100);
        self.phase = Phase::Ramp { outage, began: now, percent, credit: 99 };
        self.transitions.ramped += 1;
    }
}

/// Whether `part` is at least `percent` of `whole`.
fn is_share(part: u64, percent: u32, whole: u64) -> bool {
    part.saturating_mul(100) >= whole.saturating_mul(percent.into())
}

/// Three to five quarters of `wait`.
fn spread(wait: Span, jitter: u32) -> Span {
    let per_mille = 750 + u64::from(jitter.min(1_000)) / 2;
    Span::from_micros(wait.micros().saturating_mul(per_mille) / 1_000)
}

#[cfg(test)]
mod tests;
