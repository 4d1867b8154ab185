//! The requests of a simulation, and the assertions about their answers.
//!
//! An answer is compared with what the fake server recorded, never with what the store believes.

use std::fmt;
use std::sync::Arc;

use fastrand::Rng;
use tokio::time::{Duration, Instant, sleep_until, timeout};

use super::super::Redis;
use super::counters::{Execution, FakeCounters, SHARED_KEY_PREFIX, WRONG_TYPE_PREFIX};
use crate::core::algorithm::{Algorithm, Debt, FixedWindow, TokenBucket};
use crate::core::answer::Answers;
use crate::core::time::{Period, Span};
use crate::core::verdict::{StoreError, Verdict};
use crate::limits::plan::{Check, CheckIndex, CheckIndices, Checks, Modes};
use crate::limits::rules::Commit;
use crate::store::Budget;

/// No window ends during a simulation, unless the clock jumps.
const WINDOW: Span = Span::from_secs(3_600);

/// The timer's resolution, and the time that tasks need to run after it.
pub(super) const TIMER_TOLERANCE: Duration = Duration::from_millis(2);

/// A script that is executed at most this much after its deadline may still count.
const SLACK: Duration = Duration::from_millis(6);

/// One check of a request.
#[derive(Clone, Debug)]
struct RequestedCheck {
    name: String,
    algorithm: Algorithm,
    /// No other check of the simulation has as many, except peeks.
    hits: i64,
}

/// One request.
#[derive(Clone)]
pub(super) struct Request {
    requested: Vec<RequestedCheck>,
    checks: Arc<Checks>,
    picked: CheckIndices,
    start: Instant,
    timeout: Duration,
    /// The caller drops the future after this time.
    cancel_after: Option<Duration>,
}

impl fmt::Debug for Request {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            requested,
            picked,
            timeout,
            cancel_after,
            checks,
            ..
        } = self;
        write!(
            out,
            "{picked:?} of {requested:?}, {:?} within {timeout:?}, cancelled after \
             {cancel_after:?}",
            checks.commit
        )
    }
}

/// The result of a request.
#[derive(Debug)]
pub(super) struct RequestOutcome {
    pub(super) request: Request,
    pub(super) began: Instant,
    pub(super) ended: Instant,
    /// `None` when the request was cancelled.
    pub(super) answers: Option<Answers>,
}

/// The number of answers of each kind.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct AnswerCounts {
    pub(super) allowed: u64,
    pub(super) refused: u64,
    pub(super) not_executed: u64,
    pub(super) unknown: u64,
    pub(super) counted_and_unknown: u64,
    pub(super) data: u64,
    pub(super) cancelled: u64,
}

/// Draws random requests.
#[derive(Debug)]
pub(super) struct RequestGenerator {
    random: Rng,
    hits: i64,
}

impl RequestGenerator {
    pub(super) fn new(random: Rng) -> Self {
        // A probe has 1 hit.
        Self { random, hits: 1 }
    }

    /// A random request of any kind.
    pub(super) fn any_request(&mut self, start: Instant) -> Request {
        let is_group = self.random.u32(..8) == 0;
        let count = [1, 1, 1, 2, 2, 3, 4][self.random.usize(..7)];
        let checks: Vec<RequestedCheck> = (0..count).map(|_| self.check(is_group)).collect();
        let timeout = Duration::from_millis(self.random.u64(5..=100));
        let cancel_after = (self.random.u32(..8) == 0).then(|| timeout.mul_f64(self.random.f64()));
        let mut request = Request::new(checks, start, timeout);
        if is_group {
            let checks = Arc::get_mut(&mut request.checks).expect("the request is its only owner");
            checks.commit = Commit::AllOrNone;
        } else if count > 1 && self.random.u32(..4) == 0 {
            let skipped = self.random.usize(..count);
            request.picked.remove(skipped);
        }
        Request {
            cancel_after,
            ..request
        }
    }

    /// A request with one check that is always allowed: only an outage can keep it from being
    /// counted.
    pub(super) fn simple_request(&mut self, start: Instant, timeout: Duration) -> Request {
        let algorithm = Algorithm::FixedWindow(FixedWindow {
            limit: 1_000_000,
            window: Period::Even(WINDOW),
            count_denied: self.random.u32(..4) > 0,
        });
        let hits = self.next();
        let check = RequestedCheck {
            // A counter of its own, because no INCRBY should count others too.
            name: format!("own{{{hits}}}"),
            algorithm,
            hits,
        };
        Request::new(vec![check], start, timeout)
    }

    fn next(&mut self) -> i64 {
        self.hits += 1;
        self.hits
    }

    fn check(&mut self, is_group: bool) -> RequestedCheck {
        let next = self.next();
        // Above the largest number of hits of a simulation: no check is clamped.
        let limit = [4_000, 20_000, 1_000_000][self.random.usize(..3)];
        let fixed = |count_denied| {
            Algorithm::FixedWindow(FixedWindow {
                limit,
                window: Period::Even(WINDOW),
                count_denied,
            })
        };
        let (algorithm, hits) = match self.random.u32(..10) {
            0 if !is_group => (fixed(true), 0),
            1 => (fixed(true), -next),
            2 | 3 => (fixed(false), next),
            4 if !is_group => (
                Algorithm::TokenBucket(TokenBucket::new(limit, limit, WINDOW, Debt::NONE)),
                next,
            ),
            _ => (fixed(true), next),
        };
        // A counter with refunds belongs to the script alone: counters of INCRBY only grow.
        let kind = match algorithm {
            Algorithm::TokenBucket(_) => "{bucket",
            _ if hits < 0 || (next % 2 == 0 && !algorithm.counts_denied()) => "{returned",
            _ => SHARED_KEY_PREFIX,
        };
        let name = match self.random.u32(..30) {
            0 => format!("{WRONG_TYPE_PREFIX}{kind}}}"),
            number => format!("{kind}|{}}}", number % 4),
        };
        RequestedCheck {
            name,
            algorithm,
            hits,
        }
    }
}

impl Request {
    fn new(requested: Vec<RequestedCheck>, start: Instant, timeout: Duration) -> Self {
        let of = |check: &RequestedCheck| Check::new(check.algorithm, check.hits, Modes::default());
        let checks = Checks::of(
            requested
                .iter()
                .map(|check| (check.name.as_bytes(), of(check))),
        );
        let picked = checks.indices();
        Self {
            requested,
            checks: Arc::new(checks),
            picked,
            start,
            timeout,
            cancel_after: None,
        }
    }

    /// Waits for the start, sends the request, and waits for the answers or cancels it.
    pub(super) async fn run(self, redis: Redis) -> RequestOutcome {
        sleep_until(self.start).await;
        let began = Instant::now();
        let budget = Budget::until(began + self.timeout);
        let decide = redis.decide(&self.checks, &self.picked, &budget);
        let answers = match self.cancel_after {
            Some(after) => timeout(after, decide).await.ok(),
            None => Some(decide.await),
        };
        RequestOutcome {
            began,
            ended: Instant::now(),
            answers,
            request: self,
        }
    }
}

impl RequestOutcome {
    fn deadline(&self) -> Instant {
        self.began + self.request.timeout
    }

    /// Whether every check has a verdict.
    pub(super) fn is_answered(&self) -> bool {
        self.answers.is_some() && self.errors().next().is_none()
    }

    /// The answers to the picked checks; none when the request was cancelled.
    fn picked(&self) -> impl Iterator<Item = (CheckIndex, &Result<Verdict, StoreError>)> {
        let answers = self.answers.as_ref();
        self.request
            .picked
            .iter()
            .filter_map(move |&index| Some((index, &answers?.each[index.0].verdict)))
    }

    /// Whether the server received any of its checks.
    pub(super) fn was_received(&self, counters: &FakeCounters) -> bool {
        self.request
            .requested
            .iter()
            .any(|check| counters.received.contains_key(&check.hits))
    }

    /// Whether the server counted any of its checks.
    pub(super) fn was_counted(&self, counters: &FakeCounters) -> bool {
        self.request
            .requested
            .iter()
            .any(|check| counters.executed.contains_key(&check.hits))
    }

    pub(super) fn errors(&self) -> impl Iterator<Item = StoreError> {
        self.picked().filter_map(|(_, answer)| answer.err())
    }

    /// Has the checks found that one INCRBY counted, perhaps with others.
    pub(super) fn find_counted(&self, counters: &mut FakeCounters) {
        for (index, answer) in self.picked() {
            let RequestedCheck { name, hits, .. } = &self.request.requested[index.0];
            if let Ok(verdict) = answer
                && *hits > 0
                && !counters.executed.contains_key(hits)
            {
                counters.find(name, *hits, verdict.used as i64, self.began..=self.ended);
            }
        }
    }

    /// The names and hits of checks that may be counted although no answer contains them.
    pub(super) fn perhaps_counted(&self) -> impl Iterator<Item = (&str, i64, Instant)> {
        let is_open = |index: &&CheckIndex| {
            let answers = self.answers.as_ref();
            answers.is_none_or(|answers| {
                matches!(answers.verdicts()[index.0], Err(StoreError::Unknown(_)))
            })
        };
        let open = self.request.picked.iter().filter(is_open);
        open.map(|index| &self.request.requested[index.0])
            .filter(|check| check.hits > 0)
            .map(|check| (check.name.as_str(), check.hits, self.began))
    }

    /// Asserts that the answers agree with what the server executed.
    pub(super) fn verify(
        &self,
        counters: &FakeCounters,
        clock_moves: bool,
        counts: &mut AnswerCounts,
    ) {
        let late = self.ended.saturating_duration_since(self.deadline());
        assert!(
            late <= TIMER_TOLERANCE,
            "answered {late:?} after the deadline: {self:?}"
        );
        self.verify_executed(counters, clock_moves);
        match &self.answers {
            None => counts.cancelled += 1,
            Some(answers) => self.verify_answers(answers, counters, clock_moves, counts),
        }
    }

    /// Asserts that callers sent all that the server executed, and in time.
    fn verify_executed(&self, counters: &FakeCounters, clock_moves: bool) {
        for (index, check) in self.request.requested.iter().enumerate() {
            let executed = counters
                .executed
                .get(&check.hits)
                .map_or(&[][..], Vec::as_slice);
            assert!(
                executed.len() <= 1,
                "counted {} times: {check:?}, {executed:?} {self:?}",
                executed.len()
            );
            assert!(
                executed.is_empty() || self.request.picked.contains(&CheckIndex(index)),
                "counted without being picked: {check:?} {executed:?} {self:?}"
            );
            for executed in executed {
                assert!(
                    executed.key.starts_with(check.name.as_bytes()),
                    "counted under another key: {check:?} {executed:?}"
                );
                let is_too_late =
                    executed.allowed.is_some() && executed.at > self.deadline() + SLACK;
                assert!(
                    clock_moves || !is_too_late,
                    "a script counted after its deadline: {check:?} {executed:?} {self:?}"
                );
            }
        }
    }

    fn verify_answers(
        &self,
        answers: &Answers,
        counters: &FakeCounters,
        clock_moves: bool,
        counts: &mut AnswerCounts,
    ) {
        assert_eq!(
            answers.verdicts().len(),
            self.request.checks.len(),
            "one answer per check"
        );
        for (index, answer) in self.picked() {
            let check = &self.request.requested[index.0];
            let executed = counters
                .executed
                .get(&check.hits)
                .and_then(|executed| executed.first());
            let details = || format!("{check:?}: {answer:?}, {executed:?}, {self:?}");
            match answer {
                Ok(verdict) if check.hits == 0 => {
                    let observable =
                        counters.observable(check.name.as_bytes(), self.began, self.ended);
                    assert!(
                        clock_moves || observable.contains(&(verdict.used as i64)),
                        "the counter never had this value: {observable:?} {}",
                        details()
                    );
                }
                Ok(verdict) => {
                    let executed = executed
                        .unwrap_or_else(|| panic!("answered, and not counted: {}", details()));
                    assert_eq!(
                        Ok(executed.used),
                        i64::try_from(verdict.used),
                        "another count: {}",
                        details()
                    );
                    assert_eq!(verdict.allowed, check.is_allowed(executed), "{}", details());
                    assert!(
                        executed.at >= self.began && executed.at <= self.ended,
                        "counted at another time: {}",
                        details()
                    );
                }
                Err(StoreError::NotExecuted(_) | StoreError::Data(_)) => {
                    assert!(
                        executed.is_none(),
                        "counted, and answered as not executed: {}",
                        details()
                    );
                }
                Err(StoreError::Unknown(_)) => {
                    counts.counted_and_unknown += u64::from(executed.is_some());
                }
            }
            if let Err(StoreError::Data(_)) = answer {
                let has_wrong_type =
                    |check: &RequestedCheck| check.name.starts_with(WRONG_TYPE_PREFIX);
                let is_shared = self.request.checks.commit == Commit::AllOrNone
                    && self.request.requested.iter().any(has_wrong_type);
                assert!(
                    has_wrong_type(check) || is_shared,
                    "the value of this key is a counter: {}",
                    details()
                );
            }
            counts.add(answer);
        }
    }
}

impl RequestedCheck {
    fn is_allowed(&self, executed: &Execution) -> bool {
        match &self.algorithm {
            _ if self.hits < 0 => true,
            Algorithm::FixedWindow(fixed) => executed
                .allowed
                .unwrap_or(executed.used <= fixed.limit.cast_signed()),
            _ => true,
        }
    }
}

impl AnswerCounts {
    fn add(&mut self, answer: &Result<Verdict, StoreError>) {
        let count = match answer {
            Ok(verdict) if verdict.allowed => &mut self.allowed,
            Ok(_) => &mut self.refused,
            Err(StoreError::NotExecuted(_)) => &mut self.not_executed,
            Err(StoreError::Unknown(_)) => &mut self.unknown,
            Err(StoreError::Data(_)) => &mut self.data,
        };
        *count += 1;
    }
}

impl FakeCounters {
    /// Every value that keys with this prefix had at any time between two instants.
    fn observable(&self, name: &[u8], from: Instant, until: Instant) -> Vec<i64> {
        let histories = self.history.iter().filter(|(key, _)| key.starts_with(name));
        let mut observable: Vec<i64> = histories
            .flat_map(|(_, history)| {
                let before = history.iter().rev().find(|(at, _)| *at < from);
                let during = history
                    .iter()
                    .filter(move |(at, _)| *at >= from && *at <= until);
                before.into_iter().chain(during).map(|(_, value)| *value)
            })
            .collect();
        let is_older =
            |history: &Vec<(Instant, i64)>| history.first().is_some_and(|(at, _)| *at < from);
        if !self
            .history
            .iter()
            .any(|(key, history)| key.starts_with(name) && is_older(history))
        {
            observable.push(0);
        }
        observable
    }
}
