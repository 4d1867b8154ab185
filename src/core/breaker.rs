//! The circuit breaker in front of one Redis node, as a pure state machine.
//!
//! While a node does not answer, every request would wait for its whole deadline in vain. The
//! breaker detects that and rejects requests at once, and the failure policies decide them. It
//! determines when to probe the node, and admits a growing share of the requests after the node's
//! return.
//!
//! ```text
//!   Closed --5 consecutive failures over 10 ms, half of 20 or more calls of a second,
//!            slow for a second, or a configuration error--> Open
//!   Open   --2 consecutive successful probes--> Ramp
//!   Ramp   --3 failures that are a tenth of its calls,
//!            or anything that opens a closed breaker--> Open, with twice the wait
//!   Ramp   --400 ms--> Closed
//! ```
//!
//! It has no clock, no socket and no lock. Its caller passes in the time (microseconds of a
//! monotonic clock of any origin), reports the outcomes of calls, keeps it in a mutex and sends the
//! probes. Outcomes are reported per batch of calls.
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
//! `breaker/tests/goals.rs` checks these figures, with the loads that the constants were chosen
//! for.

use crate::core::time::{Micros, Span};

/// This number of consecutive failures opens it. 5: a millisecond of 5,000 calls a second, whose
/// deadlines (20 ms by Envoy's default) pass together. So an outage is detected well within the
/// goal of 100 ms ...
const CONSECUTIVE_FAILURES: u32 = 5;
/// ... if they last for at least this time. 10 ms: connections that break together
/// while the node is healthy are replaced by then, and opening would reject a hundred times as
/// many requests. It is a tenth of the goal of 100 ms.
const MIN_STREAK: Span = Span::from_micros(10_000);
/// The length of the window. 1 s. Consecutive failures that are further apart than this
/// do not belong to one outage: at one request in 10 s the breaker stays closed, and each
/// request waits for its own deadline only.
const WINDOW: Span = Span::from_secs(1);
/// The fewest calls of the window for a decision by their shares. 20: half of fewer is
/// chance.
const MIN_CALLS: u32 = 20;
/// This share of failed calls in the window opens it. 50 %: below, trying helps more
/// requests than it delays ...
const FAILURE_PERCENT: u32 = 50;
/// ... if at least so many of its buckets have failures. 2: a single batch is no
/// outage, however many calls it has.
const FAILING_BUCKETS: u32 = 2;
/// It opens if this share of the window's calls was slow and this share of its buckets has slow
/// calls. 80 %: nearly all calls of about a second. A hiccup of some milliseconds after
/// a quiet time is neither.
const SLOW_PERCENT: u32 = 80;
/// The time from opening to the first probe. 100 ms: a hiccup is over by then, a
/// failover is not.
const FIRST_PROBE: Span = Span::from_micros(100_000);
/// The longest wait between probes in the first [`EARLY`] of an outage. 200 ms,
/// 250 with jitter: with the second probe and two steps of the ramp, half of all requests
/// are admitted within 500 ms of the node's return.
const LONGEST_EARLY_PROBE: Span = Span::from_micros(200_000);
/// How long [`LONGEST_EARLY_PROBE`] applies. 10 s: restarts, pauses and
/// failovers are shorter.
const EARLY: Span = Span::from_secs(10);
/// The longest wait between probes afterwards. 700 ms, 875 with jitter, which leaves
/// 100 ms for the two probes: requests are admitted within a second of the node's return,
/// however long the outage was.
const LONGEST_PROBE: Span = Span::from_micros(700_000);
/// The wait between probes after a configuration error. A person has to repair it, and each attempt
/// is a line in the log of Redis. 4.5 s, 5.7 with jitter: the repair is detected within 6 s.
const CONFIG_PROBE: Span = Span::from_micros(4_500_000);
/// Consecutive successful probes that begin the ramp. 2: a node that is going down may
/// answer one.
const GOOD_PROBES: u32 = 2;
/// The time from a successful probe to the next. 10 ms.
const REPEAT_PROBE: Span = Span::from_micros(10_000);
/// The share of requests in percent that each step of the ramp admits. Not all at once: a node
/// that has just started has new connections and no cached scripts.
const RAMP_PERCENT: [u32; 4] = [10, 25, 50, 100];
/// The length of a step. 100 ms: several deadlines of 20 ms, because the outcomes of a step's calls
/// have to be there before the next one.
const RAMP_STEP: Span = Span::from_micros(100_000);
/// This number of failures in the ramp opens it again ...
const RAMP_FAILURES: u32 = 3;
/// ... if they are at least this share of the ramp's calls. 10 %: a busy service always
/// misses a few deadlines in a thousand, which must not keep its breaker open for ever.
const RAMP_FAILURE_PERCENT: u32 = 10;

/// Why calls fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The node is down, hangs, or rejects all calls. It may be back at any moment.
    Outage,
    /// A configuration error: password, certificate or permissions. One failure is enough to know,
    /// and a person has to repair it.
    Config,
}

/// How the breaker treats requests.
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

/// Number of changes of the breaker's state since it was created.
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

/// The breaker of one node. At first it is closed: the first calls show whether the node is
/// healthy.
#[derive(Clone, Debug, Default)]
pub struct Breaker {
    phase: Phase,
    window: CallWindow,
    streak: FailureStreak,
    transitions: Transitions,
}

#[derive(Clone, Copy, Debug, Default)]
enum Phase {
    #[default]
    Closed,
    Open {
        outage: CircuitOutage,
        next_probe: Micros,
        good_probes: u32,
    },
    Ramp {
        outage: CircuitOutage,
        began: Micros,
        percent: u32,
        credit: u32,
    },
}

/// The time from opening to closing, with failed ramps in between.
#[derive(Clone, Copy, Debug)]
struct CircuitOutage {
    began: Micros,
    why: Why,
    /// The wait before the next probe, without jitter.
    wait: Span,
}

impl CircuitOutage {
    /// Multiplies the wait by `factor` percent, up to its bound.
    fn back_off(&mut self, factor: u64, now: Micros) {
        let longest = if now.since(self.began) < EARLY {
            LONGEST_EARLY_PROBE
        } else {
            LONGEST_PROBE
        };
        self.wait = Span::from_micros(self.wait.micros().saturating_mul(factor) / 100).min(longest);
    }

    fn wait(&self) -> Span {
        match self.why {
            Why::Outage => self.wait,
            Why::Config => CONFIG_PROBE,
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
        let tally = self.window.at(now);
        tally.calls += u64::from(calls);
        tally.slow += slow;
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
        self.streak.grow(now, calls, WINDOW);
        let tally = self.window.at(now);
        tally.calls += u64::from(calls);
        tally.failed += u64::from(calls);
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

    /// The time of the next probe; `None` if none is needed. Not meaningful between sending a probe
    /// and reporting its result.
    pub fn next_probe(&self) -> Option<Micros> {
        match self.phase {
            Phase::Open { next_probe, .. } => Some(next_probe),
            Phase::Closed | Phase::Ramp { .. } => None,
        }
    }

    /// Reports the result of a probe. `jitter`, a random number from 0 to 1000, makes the next wait
    /// up to a quarter shorter (0) or longer (1000), to keep replicas from probing in step. Ignored
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
                *next_probe = now + REPEAT_PROBE;
                if *good_probes >= GOOD_PROBES {
                    let outage = *outage;
                    self.ramp(now, outage);
                }
            }
            Err(why) => {
                *good_probes = 0;
                outage.why = why;
                if why == Why::Outage {
                    outage.back_off(160, now);
                }
                *next_probe = now + spread(outage.wait(), jitter);
            }
        }
    }

    /// Advances through the ramp, which depends on the time alone. All other methods do so as well;
    /// this one is for reading the state while no requests come.
    pub fn advance(&mut self, now: Micros) {
        let Phase::Ramp { began, percent, .. } = &mut self.phase else {
            return;
        };
        if let Some(step) = ramp_percent_at(now.since(*began)) {
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

    /// The reason why it is not closed, by the last probe; in the ramp, the reason why it was open;
    /// `None` if closed. Slowness is an outage.
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
        self.streak.calls >= CONSECUTIVE_FAILURES
            && self.streak.last.since(self.streak.first) >= MIN_STREAK
    }

    fn is_failing(&self) -> bool {
        let total = self.window.total();
        total.calls >= MIN_CALLS.into()
            && is_share(total.failed, FAILURE_PERCENT, total.calls)
            && self.window.buckets_with(|bucket| bucket.failed) >= FAILING_BUCKETS.into()
    }

    fn is_slow(&self) -> bool {
        let total = self.window.total();
        total.calls >= MIN_CALLS.into()
            && is_share(total.slow, SLOW_PERCENT, total.calls)
            && is_share(
                self.window.buckets_with(|bucket| bucket.slow),
                SLOW_PERCENT,
                BUCKETS as u64,
            )
    }

    /// The window was cleared when the ramp began, and holds only calls of the ramp.
    fn is_ramp_failing(&self) -> bool {
        let total = self.window.total();
        matches!(self.phase, Phase::Ramp { .. })
            && total.failed >= RAMP_FAILURES.into()
            && is_share(total.failed, RAMP_FAILURE_PERCENT, total.calls)
    }

    /// Opens from closed or from the ramp. A failed ramp continues the same outage with twice the
    /// wait.
    fn trip(&mut self, now: Micros, why: Why) {
        let outage = match self.phase {
            Phase::Ramp { mut outage, .. } => {
                outage.back_off(200, now);
                CircuitOutage { why, ..outage }
            }
            Phase::Closed | Phase::Open { .. } => CircuitOutage {
                began: now,
                why,
                wait: FIRST_PROBE,
            },
        };
        self.phase = Phase::Open {
            outage,
            next_probe: now + outage.wait(),
            good_probes: 0,
        };
    }

    /// Begins the ramp, without the counts from before the outage.
    fn ramp(&mut self, now: Micros, outage: CircuitOutage) {
        self.window = CallWindow::default();
        self.streak = FailureStreak::default();
        let percent = RAMP_PERCENT[0];
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

/// The share of the ramp's step at `passed` after its beginning; `None` after the last step.
fn ramp_percent_at(passed: Span) -> Option<u32> {
    let step = usize::try_from(passed.micros() / RAMP_STEP.micros()).ok()?;
    RAMP_PERCENT.get(step).copied()
}

/// `wait` with jitter: from three to five quarters of it.
fn spread(wait: Span, jitter: u32) -> Span {
    let per_mille = 750 + u64::from(jitter.min(1_000)) / 2;
    Span::from_micros(wait.micros().saturating_mul(per_mille) / 1_000)
}

/// The number of buckets; the oldest one is dropped at a time.
const BUCKETS: usize = 10;
const BUCKET_MICROS: u64 = WINDOW.micros() / BUCKETS as u64;

/// Counts of calls by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct CallTally {
    /// All reported calls.
    calls: u64,
    /// Calls without an answer.
    failed: u64,
    /// Calls that were answered just before their deadline.
    slow: u64,
}

impl CallTally {
    fn add(&mut self, other: Self) {
        self.calls += other.calls;
        self.failed += other.failed;
        self.slow += other.slow;
    }
}

/// The last [`BUCKETS`] intervals, the current one included.
#[derive(Clone, Debug, Default)]
struct CallWindow {
    /// The number of the current bucket, counted from the origin of the caller's time.
    current: u64,
    buckets: [CallTally; BUCKETS],
}

impl CallWindow {
    /// The bucket to count a report in, which does not overflow: a report has at most 2^32 calls.
    /// One with an earlier time than the last counts at the time of the last.
    fn at(&mut self, now: Micros) -> &mut CallTally {
        self.move_to(now);
        &mut self.buckets[index(self.current)]
    }

    /// The counts of the whole window.
    fn total(&self) -> CallTally {
        let mut total = CallTally::default();
        for bucket in &self.buckets {
            total.add(*bucket);
        }
        total
    }

    /// The number of buckets in which `what` is not 0.
    fn buckets_with(&self, what: fn(&CallTally) -> u64) -> u64 {
        let buckets = self.buckets.iter().filter(|bucket| what(bucket) > 0);
        buckets.count() as u64
    }

    fn move_to(&mut self, now: Micros) {
        let current = (now.0 / BUCKET_MICROS).max(self.current);
        for passed in (self.current..current).rev().take(BUCKETS) {
            self.buckets[index(passed + 1)] = CallTally::default();
        }
        self.current = current;
    }
}

const fn index(bucket: u64) -> usize {
    (bucket % BUCKETS as u64) as usize
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod window_tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn report(calls: u64) -> CallTally {
        CallTally {
            calls,
            failed: calls / 2,
            slow: calls / 3,
        }
    }

    #[test]
    fn reports_older_than_the_window_are_dropped() {
        for (later_micros, calls) in [
            (0, 12),
            (999_999, 12),
            (1_000_000, 6),
            (2_000_000, 6),
            (u64::MAX, 6),
        ] {
            let mut window = CallWindow::default();
            let later = Micros(7_000_000_u64.saturating_add(later_micros));
            window.at(Micros(7_000_000)).add(report(6));
            window.at(later).add(report(6));
            assert_eq!(
                window.total().calls,
                calls,
                "{later_micros} microseconds later"
            );
        }
    }

    proptest! {
        #![proptest_config(crate::testing::property(1_000))]

        #[test]
        fn it_equals_a_list_of_all_reports(
            reports in prop::collection::vec((0_u64..1_500_000, 1_u64..9), 1..60),
        ) {
            let (mut window, mut now, mut list) = (CallWindow::default(), 0, Vec::new());
            for (pause, calls) in reports {
                // Most pauses are short: many reports fit in one window.
                now += if calls == 1 { pause } else { pause / 20 };
                window.at(Micros(now)).add(report(calls));
                list.push((now / 100_000, report(calls)));
                let is_new = |slot: u64| slot + 10 > now / 100_000;
                let mut naive = CallTally::default();
                list.iter()
                    .filter(|(slot, _)| is_new(*slot))
                    .for_each(|(_, tally)| naive.add(*tally));
                prop_assert_eq!(window.total(), naive);
                let slow: BTreeSet<_> = list
                    .iter()
                    .filter(|(slot, tally)| is_new(*slot) && tally.slow > 0)
                    .map(|(slot, _)| slot)
                    .collect();
                prop_assert_eq!(window.buckets_with(|bucket| bucket.slow), slow.len() as u64);
            }
        }
    }
}
