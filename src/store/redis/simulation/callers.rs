//! Requests of a simulation: what they ask, and what has to be true of the answers.

use std::fmt;
use std::sync::Arc;

use fastrand::Rng;
use tokio::time::{Duration, Instant, sleep_until, timeout};

use super::super::Redis;
use super::counters::{Execution, FakeCounters, WRONG_TYPE_PREFIX};
use crate::algorithm::{Algorithm, FixedWindow, TokenBucket};
use crate::plan::{Check, CheckIndex, CheckIndices, Checks, Modes};
use crate::rules::Commit;
use crate::store::{Budget, Store};
use crate::time::Span;
use crate::verdict::{Answers, StoreError, Verdict};

/// No window ends during a simulation, unless the clock jumps.
const WINDOW: Span = Span::from_secs(3_600);

/// The timer's grain, and what it takes to notice.
pub(super) const TIMER_TOLERANCE: Duration = Duration::from_millis(2);

/// A script may come this much later than its deadline and still count.
const SLACK: Duration = Duration::from_millis(6);

/// One check of a request.
#[derive(Clone, Debug)]
struct RequestedCheck {
    name: String,
    algorithm: Algorithm,
    /// No other check of a simulation asks for as many, except looks.
    hits: i64,
}

/// One request.
#[derive(Clone)]
pub(super) struct Request {
    asked: Vec<RequestedCheck>,
    checks: Arc<Checks>,
    picked: CheckIndices,
    starts: Instant,
    timeout: Duration,
    /// The caller leaves after this long.
    cancel_after: Option<Duration>,
}

impl fmt::Debug for Request {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { asked, picked, timeout, cancel_after, checks, .. } = self;
        write!(out, "{picked:?} of {asked:?}, {:?} within {timeout:?}, cancel_after after {cancel_after:?}", checks.commit)
    }
}

/// What came of a request.
#[derive(Debug)]
pub(super) struct RequestOutcome {
    pub(super) request: Request,
    pub(super) began: Instant,
    pub(super) ended: Instant,
    /// `None` when the caller left.
    pub(super) answers: Option<Answers>,
}

/// How many answers there were of each kind.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct AnswerCounts {
    pub(super) allowed: u64,
    pub(super) refused: u64,
    pub(super) not_executed: u64,
    pub(super) unknown: u64,
    pub(super) counted_and_unknown: u64,
    pub(super) data: u64,
    pub(super) left: u64,
}

/// Makes requests.
#[derive(Debug)]
pub(super) struct RequestGenerator {
    random: Rng,
    hits: i64,
}

impl RequestGenerator {
    pub(super) fn new(random: Rng) -> Self {
        // A probe asks for 1.
        Self { random, hits: 1 }
    }

    /// A request of any kind.
    pub(super) fn any_request(&mut self, starts: Instant) -> Request {
        let is_group = self.random.u32(..8) == 0;
        let count = [1, 1, 1, 2, 2, 3, 4][self.random.usize(..7)];
        let checks: Vec<RequestedCheck> = (0..count).map(|_| self.check(is_group)).collect();
        let timeout = Duration::from_millis(self.random.u64(5..=100));
        let cancel_after = (self.random.u32(..8) == 0).then(|| timeout.mul_f64(self.random.f64()));
        let mut request = Request::new(checks, starts, timeout);
        if is_group {
            let checks = Arc::get_mut(&mut request.checks).expect("nobody else has it yet");
            checks.commit = Commit::AllOrNone;
        } else if count > 1 && self.random.u32(..4) == 0 {
            let left_out = self.random.usize(..count);
            request.picked.remove(left_out);
        }
        Request { cancel_after, ..request }
    }

    /// A hit that nothing but an outage keeps from being counted.
    pub(super) fn simple_request(&mut self, starts: Instant, timeout: Duration) -> Request {
        let algorithm = Algorithm::FixedWindow(FixedWindow { limit: 1_000_000, window: WINDOW, count_denied: self.random.u32(..4) > 0 });
        let asked = RequestedCheck { name: "{plain}".to_owned(), algorithm, hits: self.next() };
        Request::new(vec![asked], starts, timeout)
    }

    fn next(&mut self) -> i64 {
        self.hits += 1;
        self.hits
    }

    fn check(&mut self, is_group: bool) -> RequestedCheck {
        let next = self.next();
        // Above the largest number of hits that a simulation comes to, so that none is clamped.
        let limit = [4_000, 20_000, 1_000_000][self.random.usize(..3)];
        let fixed = |count_denied| Algorithm::FixedWindow(FixedWindow { limit, window: WINDOW, count_denied });
        let (algorithm, hits) = match self.random.u32(..10) {
            0 if !is_group => (fixed(true), 0),
            1 => (fixed(true), -next),
            2 | 3 => (fixed(false), next),
            4 if !is_group => (Algorithm::TokenBucket(TokenBucket::new(limit, limit, WINDOW, false)), next),
            _ => (fixed(true), next),
        };
        let kind = if matches!(algorithm, Algorithm::TokenBucket(_)) { "bucket" } else { "window" };
        let name = match self.random.u32(..30) {
            0 => format!("{WRONG_TYPE_PREFIX}{{{kind}}}"),
            number => format!("{{{kind}|{}}}", number % 4),
        };
        RequestedCheck { name, algorithm, hits }
    }
}

impl Request {
    fn new(asked: Vec<RequestedCheck>, starts: Instant, timeout: Duration) -> Self {
        let of = |asked: &RequestedCheck| Check::new(asked.algorithm, asked.hits, Modes::default());
        let checks = Checks::of(asked.iter().map(|asked| (asked.name.as_bytes(), of(asked))));
        let picked = checks.indices();
        Self { asked, checks: Arc::new(checks), picked, starts, timeout, cancel_after: None }
    }

    /// Waits for its time, asks, and waits for the answers, or leaves.
    pub(super) async fn run(self, redis: Redis) -> RequestOutcome {
        sleep_until(self.starts).await;
        let began = Instant::now();
        let decide = redis.decide(&self.checks, &self.picked, Budget::until(began + self.timeout));
        let answers = match self.cancel_after {
            Some(after) => timeout(after, decide).await.ok(),
            None => Some(decide.await),
        };
        RequestOutcome { began, ended: Instant::now(), answers, request: self }
    }
}

impl RequestOutcome {
    fn deadline(&self) -> Instant {
        self.began + self.request.timeout
    }

    /// Whether all is answered.
    pub(super) fn is_answered(&self) -> bool {
        self.answers.is_some() && self.errors().next().is_none()
    }

    /// The answers to the picked checks; none when the caller left.
    fn picked(&self) -> impl Iterator<Item = (CheckIndex, &Result<Verdict, StoreError>)> {
        let answers = self.answers.as_ref();
        self.request.picked.iter().filter_map(move |&index| Some((index, &answers?.checks[index.0])))
    }

    /// Whether the server ever got to hear of it.
    pub(super) fn was_received(&self, counters: &FakeCounters) -> bool {
        self.request.asked.iter().any(|asked| counters.heard.contains_key(&asked.hits))
    }

    /// Whether the server counted any of it.
    pub(super) fn was_counted(&self, counters: &FakeCounters) -> bool {
        self.request.asked.iter().any(|asked| counters.ran.contains_key(&asked.hits))
    }

    pub(super) fn errors(&self) -> impl Iterator<Item = StoreError> {
        self.picked().filter_map(|(_, answer)| answer.err())
    }

    /// Holds the answers to what the server did.
    pub(super) fn judge(&self, counters: &FakeCounters, clock_moves: bool, tally: &mut AnswerCounts) {
        let late = self.ended.saturating_duration_since(self.deadline());
        assert!(late <= TIMER_TOLERANCE, "answered {late:?} after the deadline: {self:?}");
        for (index, asked) in self.request.asked.iter().enumerate() {
            let ran = counters.ran.get(&asked.hits).map_or(&[][..], Vec::as_slice);
            assert!(ran.len() <= 1, "counted {} times: {asked:?}, {ran:?} {self:?}", ran.len());
            assert!(
                ran.is_empty() || self.request.picked.contains(&CheckIndex(index)),
                "counted, and nobody asked: {asked:?} {ran:?} {self:?}"
            );
            for ran in ran {
                assert!(ran.key.starts_with(asked.name.as_bytes()), "counted under another key: {asked:?} {ran:?}");
                let is_late = ran.allowed.is_some() && ran.at > self.deadline() + SLACK;
                assert!(clock_moves || !is_late, "a script counted after its deadline: {asked:?} {ran:?} {self:?}");
            }
        }
        let Some(answers) = &self.answers else {
            tally.left += 1;
            return;
        };
        assert_eq!(answers.checks.len(), self.request.checks.len(), "one answer per check");
        for (index, answer) in self.picked() {
            let asked = &self.request.asked[index.0];
            let ran = counters.ran.get(&asked.hits).and_then(|ran| ran.first());
            let shown = || format!("{asked:?}: {answer:?}, {ran:?}, {self:?}");
            match answer {
                Ok(verdict) if asked.hits == 0 => {
                    let seen = counters.seen(asked.name.as_bytes(), self.began, self.ended);
                    assert!(clock_moves || seen.contains(&(verdict.used as i64)), "nobody ever counted so far: {seen:?} {}", shown());
                }
                Ok(verdict) => {
                    let ran = ran.unwrap_or_else(|| panic!("an answer, and nothing was counted: {}", shown()));
                    assert_eq!(Ok(ran.used), i64::try_from(verdict.used), "another count: {}", shown());
                    assert_eq!(verdict.allowed, asked.is_allowed(ran), "{}", shown());
                    assert!(ran.at >= self.began && ran.at <= self.ended, "counted at another time: {}", shown());
                }
                Err(StoreError::NotExecuted(_) | StoreError::Data(_)) => {
                    assert!(ran.is_none(), "counted, and said not to be: {}", shown());
                }
                Err(StoreError::Unknown(_)) => tally.counted_and_unknown += u64::from(ran.is_some()),
            }
            if let Err(StoreError::Data(_)) = answer {
                let strange = |asked: &RequestedCheck| asked.name.starts_with(WRONG_TYPE_PREFIX);
                let is_shared = self.request.checks.commit == Commit::AllOrNone && self.request.asked.iter().any(strange);
                assert!(strange(asked) || is_shared, "nothing is wrong with this key: {}", shown());
            }
            tally.add(answer);
        }
    }
}

impl RequestedCheck {
    fn is_allowed(&self, ran: &Execution) -> bool {
        match &self.algorithm {
            _ if self.hits < 0 => true,
            Algorithm::FixedWindow(fixed) => ran.allowed.unwrap_or(ran.used <= i64::from(fixed.limit)),
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
    /// Every count that a key of this name showed at any time between two instants.
    fn seen(&self, name: &[u8], from: Instant, until: Instant) -> Vec<i64> {
        let histories = self.history.iter().filter(|(key, _)| key.starts_with(name));
        let mut seen: Vec<i64> = histories
            .flat_map(|(_, history)| {
                let before = history.iter().rev().find(|(at, _)| *at < from);
                let during = history.iter().filter(move |(at, _)| *at >= from && *at <= until);
                before.into_iter().chain(during).map(|(_, value)| *value)
            })
            .collect();
        let is_older = |history: &Vec<(Instant, i64)>| history.first().is_some_and(|(at, _)| *at < from);
        if !self.history.iter().any(|(key, history)| key.starts_with(name) && is_older(history)) {
            seen.push(0);
        }
        seen
    }
}
