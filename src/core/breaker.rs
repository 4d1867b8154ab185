//! The circuit breaker in front of one Redis node, as a pure state machine.
//!
//! While a node does not answer, every request would wait for its whole deadline in vain. The
//! breaker detects that and rejects requests at once, so that the failure policies decide them. It
//! says when to probe the node, and admits a growing share of the requests after the node's return.
//!
//! ```text
//!   Closed --5 consecutive failures over 10 ms, half of 20 or more calls of a second, slow for a second, or a configuration error--> Open
//!   Open   --2 consecutive successful probes--> Ramp
//!   Ramp   --3 failures that are a tenth of its calls, or anything that opens a closed breaker--> Open, with twice the wait
//!   Ramp   --400 ms--> Closed
//! ```
//!
//! It has no clock, no socket and no lock. Its caller passes in the time (microseconds of a
//! monotonic clock of any origin), reports the outcomes of calls, keeps it behind a mutex and sends
//! the probes. Outcomes are reported per batch of calls.
//!
//! The caller reports only outcomes that depend on the node's health. It does not report data
//! errors of one key, cancelled requests, calls that were shed or had hardly any time left, or
//! calls that succeeded on another node.
//!
//! An open breaker lets only probes through: the first 100 ms after opening, then up to 200 ms
//! apart (700 ms after ten seconds of outage, about 4.5 s for a configuration error), with jitter.
//! A ramp admits 10, 25, 50 and 100 % of the requests for 100 ms each, spread evenly. A single
//! batch never opens a breaker for an outage; neither do connections that break together and can be
//! reopened, nor failures more than a second apart. An answer in time is not slow: slowness is when
//! nearly all answers take four fifths of their deadline.
//!
//! So an outage is noticed within 100 ms, and requests are sent again within 400 ms of the return
//! after a short outage, within a second after any, and within 6 s after a configuration error.
//! `breaker/tests/goals.rs` checks these figures.

mod options;
mod window;

pub use options::Options;

use crate::core::time::{Micros, Span};
use window::{BUCKETS, CallWindow, Tally};

/// Why calls fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The node is down, hangs, or rejects all calls. It may be back at any moment.
    Outage,
    /// A configuration error: password, certificate or permissions. One failure is enough to know,
    /// and a person has to repair it.
    Config,
}

/// What the breaker does with requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CircuitState {
    /// Admits all requests.
    Closed,
    /// Admits none.
    Open,
    /// Admits a share, after an outage.
    Ramp {
        /// The share in percent.
        percent: u32,
    },
}

impl CircuitState {
    /// Its name, for people and programs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Open => "open",
            Self::Ramp { .. } => "ramp",
        }
    }
}

/// How often the breaker changed its state since it was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Transitions {
    /// Opened because calls failed, also from the ramp.
    pub opened_by_outage: u64,
    /// Opened because of a configuration error, also from the ramp.
    pub opened_by_config: u64,
    /// Opened because answers were slow, also from the ramp.
    pub opened_by_slowness: u64,
    /// Successful probes began a ramp.
    pub ramped: u64,
    /// A ramp was completed.
    pub closed: u64,
}

/// The breaker of one node.
#[derive(Clone, Debug)]
pub struct Breaker {
    options: Options,
    phase: Phase,
    window: CallWindow,
    streak: FailureStreak,
    transitions: Transitions,
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    Closed,
    Open {
        outage: Outage,
        next_probe: Micros,
        good_probes: u32,
    },
    Ramp {
        outage: Outage,
        began: Micros,
        percent: u32,
        credit: u32,
    },
}

/// The time from opening to closing, with failed ramps in between.
#[derive(Clone, Copy, Debug)]
struct Outage {
    began: Micros,
    why: Why,
    /// The wait before the next probe, without jitter.
    wait: Span,
}

impl Outage {
    /// Multiplies the wait by `factor` percent, up to its bound.
    fn back_off(&mut self, factor: u64, now: Micros, options: &Options) {
        let longest = if now.since(self.began) < options.early {
            options.longest_early_probe
        } else {
            options.longest_probe
        };
        self.wait = Span::from_micros(self.wait.micros().saturating_mul(factor) / 100).min(longest);
    }

    fn wait(&self, options: &Options) -> Span {
        match self.why {
            Why::Outage => self.wait,
            Why::Config => options.config_probe,
        }
    }
}

/// Consecutive failed calls.
#[derive(Clone, Copy, Debug, Default)]
struct FailureStreak {
    calls: u32,
    first: Micros,
    last: Micros,
}

impl FailureStreak {
    fn grow(&mut self, now: Micros, calls: u32, longest_gap: Span) {
        if self.calls == 0 || now.since(self.last) > longest_gap {
            *self = Self {
                calls: 0,
                first: now,
                last: now,
            };
        }
        self.calls = self.calls.saturating_add(calls);
        self.last = now.max(self.last);
    }
}

impl Breaker {
    /// A closed breaker: after a start, the first calls show whether the node is healthy.
    pub fn new(options: Options) -> Self {
        let window = CallWindow::new(options.window);
        Self {
            options,
            phase: Phase::Closed,
            window,
            streak: FailureStreak::default(),
            transitions: Transitions::default(),
        }
    }

    /// Whether one more request may go to the node. Each step of the ramp spreads its share evenly
    /// and admits its first request.
    pub fn admits(&mut self, now: Micros) -> bool {
        self.advance(now);
        match &mut self.phase {
            Phase::Closed => true,
            Phase::Open { .. } => false,
            Phase::Ramp {
                percent, credit, ..
            } => {
                *credit += *percent;
                let is_admitted = *credit >= 100;
                *credit -= if is_admitted { 100 } else { 0 };
                is_admitted
            }
        }
    }

    /// Reports `calls` that were answered, `slow` of them just before their deadline. Ignored while
    /// open, because they were sent before.
    pub fn succeeded(&mut self, now: Micros, calls: u32, slow: u32) {
        self.advance(now);
        if calls == 0 || matches!(self.phase, Phase::Open { .. }) {
            return;
        }
        self.streak = FailureStreak::default();
        let slow = u64::from(slow.min(calls));
        self.window.add(
            now,
            Tally {
                calls: calls.into(),
                slow,
                ..Tally::default()
            },
        );
        if slow > 0 && self.is_slow() {
            self.transitions.opened_by_slowness += 1;
            self.trip(now, Why::Outage);
        }
    }

    /// Reports `calls` that got no answer in time, no connection, or an error by which the node
    /// rejects all calls. A single report of an outage does not open a closed breaker, however many
    /// calls it has; one of a configuration error does. Ignored while open.
    pub fn failed(&mut self, now: Micros, calls: u32, why: Why) {
        self.advance(now);
        if calls == 0 || matches!(self.phase, Phase::Open { .. }) {
            return;
        }
        self.streak.grow(now, calls, self.options.window);
        let failed = u64::from(calls);
        self.window.add(
            now,
            Tally {
                calls: failed,
                failed,
                ..Tally::default()
            },
        );
        if why == Why::Config
            || self.is_streak_long()
            || self.is_failing()
            || self.is_ramp_failing()
        {
            self.open(now, why);
        }
    }

    /// Opens regardless of the counts, because the caller knows that the node is down. Ignored
    /// while open.
    pub fn open(&mut self, now: Micros, why: Why) {
        self.advance(now);
        if matches!(self.phase, Phase::Open { .. }) {
            return;
        }
        match why {
            Why::Outage => self.transitions.opened_by_outage += 1,
            Why::Config => self.transitions.opened_by_config += 1,
        }
        self.trip(now, why);
    }

    /// When the next probe is due; `None` if none is needed. Not meaningful between sending a probe
    /// and reporting its result.
    pub fn next_probe(&self) -> Option<Micros> {
        match self.phase {
            Phase::Open { next_probe, .. } => Some(next_probe),
            Phase::Closed | Phase::Ramp { .. } => None,
        }
    }

    /// Reports the result of a probe. `jitter`, a random number from 0 to 1000, makes the next wait
    /// up to a quarter shorter (0) or longer (1000), so that replicas do not probe in step. Ignored
    /// unless open.
    pub fn probed(&mut self, now: Micros, found: Result<(), Why>, jitter: u32) {
        let Phase::Open {
            outage,
            next_probe,
            good_probes,
        } = &mut self.phase
        else {
            return;
        };
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

    /// Advances through the ramp, which depends on the time alone. All other methods do so as well;
    /// this one is for reading the state while no requests come.
    pub fn advance(&mut self, now: Micros) {
        let Phase::Ramp { began, percent, .. } = &mut self.phase else {
            return;
        };
        if let Some(step) = self.options.ramp_percent_at(now.since(*began)) {
            *percent = step;
        } else {
            self.phase = Phase::Closed;
            self.transitions.closed += 1;
        }
    }

    /// The state as of the last call.
    pub fn state(&self) -> CircuitState {
        match self.phase {
            Phase::Closed => CircuitState::Closed,
            Phase::Open { .. } => CircuitState::Open,
            Phase::Ramp { percent, .. } => CircuitState::Ramp { percent },
        }
    }

    /// Why it is not closed, by the last probe; in the ramp, why it was open; `None` if closed.
    /// Slowness is an outage.
    #[cfg(test)]
    fn why(&self) -> Option<Why> {
        match self.phase {
            Phase::Closed => None,
            Phase::Open { outage, .. } | Phase::Ramp { outage, .. } => Some(outage.why),
        }
    }

    /// The transitions so far, for metrics.
    pub fn transitions(&self) -> Transitions {
        self.transitions
    }

    fn is_streak_long(&self) -> bool {
        self.streak.calls >= self.options.consecutive_failures
            && self.streak.last.since(self.streak.first) >= self.options.min_streak
    }

    fn is_failing(&self) -> bool {
        let (total, options) = (self.window.total(), &self.options);
        total.calls >= options.min_calls.into()
            && is_share(total.failed, options.failure_percent, total.calls)
            && self.window.buckets_with(|bucket| bucket.failed) >= options.failing_buckets.into()
    }

    fn is_slow(&self) -> bool {
        let (total, options) = (self.window.total(), &self.options);
        total.calls >= options.min_calls.into()
            && is_share(total.slow, options.slow_percent, total.calls)
            && is_share(
                self.window.buckets_with(|bucket| bucket.slow),
                options.slow_percent,
                BUCKETS as u64,
            )
    }

    /// The window was cleared when the ramp began, so that it holds only calls of the ramp.
    fn is_ramp_failing(&self) -> bool {
        let (total, options) = (self.window.total(), &self.options);
        matches!(self.phase, Phase::Ramp { .. })
            && total.failed >= options.ramp_failures.into()
            && is_share(total.failed, options.ramp_failure_percent, total.calls)
    }

    /// Opens from closed or from the ramp. A failed ramp continues the same outage with twice the
    /// wait.
    fn trip(&mut self, now: Micros, why: Why) {
        let outage = match self.phase {
            Phase::Ramp { mut outage, .. } => {
                outage.back_off(200, now, &self.options);
                Outage { why, ..outage }
            }
            Phase::Closed | Phase::Open { .. } => Outage {
                began: now,
                why,
                wait: self.options.first_probe,
            },
        };
        self.phase = Phase::Open {
            outage,
            next_probe: now + outage.wait(&self.options),
            good_probes: 0,
        };
    }

    /// Begins the ramp, without the counts from before the outage.
    fn ramp(&mut self, now: Micros, outage: Outage) {
        self.window = CallWindow::new(self.options.window);
        self.streak = FailureStreak::default();
        let percent = self.options.ramp_percent_at(Span::ZERO).unwrap_or(100);
        self.phase = Phase::Ramp {
            outage,
            began: now,
            percent,
            credit: 99,
        };
        self.transitions.ramped += 1;
    }
}

/// Whether `part` is at least `percent` of `whole`.
fn is_share(part: u64, percent: u32, whole: u64) -> bool {
    part.saturating_mul(100) >= whole.saturating_mul(percent.into())
}

/// `wait` with jitter: from three to five quarters of it.
fn spread(wait: Span, jitter: u32) -> Span {
    let per_mille = 750 + u64::from(jitter.min(1_000)) / 2;
    Span::from_micros(wait.micros().saturating_mul(per_mille) / 1_000)
}

#[cfg(test)]
mod tests;
