//! The Redis store against a real redis-server: exact counts, one answer per check, named errors,
//! recovery from them, and the answers during an outage.

mod algorithms;
mod clock_jumps;
mod cluster;
mod command_counts;
mod counters;
mod denial_cache;
pub mod differential;
mod failures;
mod faults;
mod leases;
mod markers;
mod monitor;
mod one_address;
mod outages;
mod scripts;
mod security;

use std::sync::Arc;
use std::time::Duration;

use bb8_redis::redis::{Cmd, Value};
use tokio::time::Instant;
use weir::core::algorithm::{Algorithm, FixedWindow};
use weir::core::answer::{Answer, Answers, Effect};
use weir::core::time::{Micros, Period, Span};
use weir::core::usage::Summary;
use weir::core::verdict::Verdict;
use weir::limits::plan::{Check, Checks, Modes};
use weir::store::redis::{
    Call, CheckPosition, ClockReading, Notes, RefusedHits, Request, ScriptRef,
};
use weir::store::{Budget, Redis, StoreError};

/// A deadline that is long enough for a busy machine; tests of deadlines set shorter ones.
const TIMEOUT: Duration = Duration::from_secs(5);

/// A window so long that none ends during a test.
const WEEK: Span = Span::from_secs(7 * 86_400);

fn fixed(limit: u64, window: Span) -> FixedWindow {
    FixedWindow {
        limit,
        window: Period::Even(window),
        count_denied: true,
    }
}

pub fn check(limit: u64, hits: i64) -> Check {
    Check::new(
        Algorithm::FixedWindow(fixed(limit, WEEK)),
        hits,
        Modes::default(),
    )
}

pub fn checks_of(checks: &[(&str, Check)]) -> Checks {
    Checks::of(
        checks
            .iter()
            .map(|(key, check)| (key.as_bytes(), check.clone())),
    )
}

/// Decides all checks of a request.
async fn decide_within(redis: &Redis, checks: Checks, budget: Budget) -> Answers {
    let checks = Arc::new(checks);
    redis.decide(&checks, &checks.indices(), &budget).await
}

/// Times by Redis's clock.
#[derive(Clone, Copy, Debug)]
pub struct When {
    /// The time at which the script runs.
    pub now: Micros,
    /// The time after which the script counts nothing.
    pub deadline: Micros,
    /// The longest time that a shaper may delay the caller.
    pub max_wait: Span,
}

/// One script call, with the requests that it decides.
pub struct ScriptCall {
    requests: Vec<Request>,
    /// Redis's clock.
    pub now: ClockReading,
    pub refused: Vec<RefusedHits>,
    /// See [`Call::crosses_slots`].
    pub crosses_slots: bool,
    /// See [`Call::is_time_given`].
    pub is_time_given: bool,
}

/// One script call for these requests at their time, each with its own deadline and `max_wait`.
pub fn call<'c>(requests: impl IntoIterator<Item = (&'c Checks, When)>) -> ScriptCall {
    let mut now = ClockReading {
        time: Micros::default(),
        at: Instant::now(),
    };
    let request = |(checks, when): (&Checks, When)| {
        now.time = when.now;
        let left = Duration::from(when.deadline.since(when.now));
        let past = Duration::from(when.now.since(when.deadline));
        let budget = Budget {
            max_wait: when.max_wait,
            ..Budget::until(now.at + left - past)
        };
        Request::unawaited(checks.clone(), budget)
    };
    ScriptCall {
        requests: requests.into_iter().map(request).collect(),
        now,
        refused: Vec::new(),
        crosses_slots: false,
        is_time_given: true,
    }
}

impl ScriptCall {
    fn with<T>(&self, run: impl FnOnce(&Call<'_>) -> T) -> T {
        let requests: Vec<_> = self.requests.iter().collect();
        run(&Call {
            requests: &requests,
            checks: &CheckPosition::all(&requests),
            refused: &self.refused,
            now: self.now,
            is_time_given: self.is_time_given,
            crosses_slots: self.crosses_slots,
            jitter_secs: 0,
        })
    }

    pub fn command(&self, script_ref: ScriptRef) -> Cmd {
        self.with(|call| call.command(script_ref))
    }

    pub fn len(&self) -> usize {
        self.with(|call| call.checks.len())
    }

    pub fn read(
        &self,
        reply: &Value,
        verdicts: &mut [Result<Verdict, StoreError>],
    ) -> Result<Micros, StoreError> {
        let (now, answers, _) = self.answers(reply, verdicts.len())?;
        for (verdict, answer) in verdicts.iter_mut().zip(answers) {
            *verdict = answer.verdict;
        }
        Ok(now)
    }

    /// Reads a reply into this many answers.
    fn answers(
        &self,
        reply: &Value,
        count: usize,
    ) -> Result<(Micros, Vec<Answer>, Notes), StoreError> {
        let unanswered = Answer::from(StoreError::Unknown("unanswered"));
        let (mut answers, mut notes) = (vec![unanswered; count], Notes::default());
        let now = self.with(|call| call.read(reply, &mut answers, &mut notes))?;
        Ok((now, answers, notes))
    }

    /// The effects of checks, by their positions.
    pub fn effects(&self, reply: &Value) -> Vec<Effect> {
        let (_, answers, _) = self.answers(reply, self.len()).expect("a good reply");
        answers.into_iter().map(|answer| answer.effect).collect()
    }

    /// How long each check's state has to be kept, which the script says behind the rows; `None`
    /// where it did not change.
    pub fn keep_for(&self, reply: &Value) -> Vec<Option<Span>> {
        let Value::Array(values) = reply else {
            return Vec::new();
        };
        let Some(Value::BulkString(packed)) = values.get(2) else {
            return Vec::new();
        };
        let checks: Vec<_> = self
            .requests
            .iter()
            .flat_map(|request| request.checks.iter())
            .collect();
        let row_bytes = |check: &&Check| 8 * check.algorithm.spec().reply_numbers;
        let rows: usize = checks.iter().map(row_bytes).sum();
        let kept = |(check, ticks): (&Check, &[u8; 8])| {
            let ticks = f64::from_le_bytes(*ticks);
            (ticks >= 0.0).then(|| check.algorithm.tick().span(ticks as u64))
        };
        let ticks = packed[rows..].as_chunks().0;
        checks.into_iter().zip(ticks).map(kept).collect()
    }

    pub fn usage(&self, reply: &Value) -> Vec<Option<Summary>> {
        let (_, _, notes) = self.answers(reply, self.len()).expect("a good reply");
        let tracked = notes.usage.into_iter().map(|(_, summary)| summary);
        tracked.chain(notes.refused).collect()
    }
}

pub async fn decide_all(redis: &Redis, checks: &[(&str, Check)]) -> Answers {
    decide_within(
        redis,
        checks_of(checks),
        Budget::until(Instant::now() + TIMEOUT),
    )
    .await
}

pub async fn decide_one(
    redis: &Redis,
    key: &str,
    limit: u64,
    hits: i64,
) -> Result<Verdict, StoreError> {
    let answers = decide_all(redis, &[(key, check(limit, hits))]).await;
    assert_eq!(answers.verdicts().len(), 1);
    answers.verdicts()[0]
}

/// The name in Redis of the counter of `key` in the current window.
fn stored_key(key: &str, answers: &Answers) -> String {
    format!("{key}:{}", answers.now.0 / WEEK.micros())
}
