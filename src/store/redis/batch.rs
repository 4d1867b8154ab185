//! What is sent to Redis for the checks of a plan, and what its replies mean.
//!
//! Hits and looks of fixed windows go as one transaction (`MULTI`, `TIME`, `INCRBY` and `EXPIRE` or `GET`, `EXEC`), give-backs as a script;
//! runs of the one and of the other keep the order of the checks. Reads replies strictly: what is not exactly an answer to what was asked
//! is no answer, and nothing is ever counted as allowed without one.

use std::io::Write;
use std::ops::Range;

use bb8_redis::redis::Value;
use smallvec::SmallVec;

use super::error;
use super::link::{Outgoing, time, whole};
use super::script;
use crate::algorithm::{Algorithm, FixedWindow};
use crate::plan::{Check, Plan};
use crate::time::{Micros, Span};
use crate::verdict::{Answers, StoreError, Verdict};

/// Keys outlive their window by this much, because the estimate that numbers the windows may lag behind the clock that expires keys.
const GRACE_SECS: u64 = 5;

/// A script may come this much later than its caller's deadline and still count; the estimate of Redis's clock is not sharper.
pub(super) const SLACK: Span = Span::from_micros(5_000);

/// The commands for some checks of a plan.
#[derive(Debug)]
pub(super) struct Batch<'p> {
    plan: &'p Plan,
    when: When,
    expiry_jitter_secs: u32,
    runs: SmallVec<[Run; 1]>,
}

/// By Redis's clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct When {
    pub(super) now: Micros,
    /// After it scripts count nothing.
    pub(super) deadline: Micros,
}

/// Checks next to each other that take the same way.
#[derive(Clone, Debug)]
struct Run {
    way: Way,
    checks: Range<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Transaction,
    ScriptByHash,
    ScriptByText,
}

impl<'p> Batch<'p> {
    /// All checks of `plan`.
    pub(super) fn new(plan: &'p Plan, when: When, expiry_jitter_secs: u32) -> Self {
        let mut runs: SmallVec<[Run; 1]> = SmallVec::new();
        for (index, check) in plan.checks.iter().enumerate() {
            let way = if check.hits < 0 { Way::ScriptByHash } else { Way::Transaction };
            match runs.last_mut() {
                Some(run) if run.way == way => run.checks.end = index + 1,
                _ => runs.push(Run { way, checks: index..index + 1 }),
            }
        }
        Self { plan, when, expiry_jitter_secs, runs }
    }

    /// What has to be sent again because Redis did not know the script: with its text this time.
    pub(super) fn without_script(&self, answers: &Answers) -> Option<Self> {
        let lacking = Err(StoreError::NotExecuted(error::NO_SCRIPT));
        let runs: SmallVec<[Run; 1]> = self
            .runs
            .iter()
            .filter(|run| run.way == Way::ScriptByHash && answers.checks[run.checks.start] == lacking)
            .map(|run| Run { way: Way::ScriptByText, ..run.clone() })
            .collect();
        (!runs.is_empty()).then_some(Self { runs, ..*self })
    }

    /// Packs the commands.
    pub(super) fn write(&self, out: &mut Outgoing) {
        let mut key = Vec::new();
        for run in &self.runs {
            match run.way {
                Way::Transaction => self.write_transaction(run, &mut key, out),
                Way::ScriptByHash | Way::ScriptByText => self.write_script(run, &mut key, out),
            }
        }
    }

    fn write_transaction(&self, run: &Run, key: &mut Vec<u8>, out: &mut Outgoing) {
        out.command("MULTI");
        out.end();
        out.command("TIME");
        out.end();
        for check in &self.plan.checks[run.checks.clone()] {
            let (fixed, number) = self.window(check);
            self.write_key(check, number, key);
            if check.hits == 0 {
                out.command("GET").arg(&key[..]);
                out.end();
            } else {
                // A key that holds something else gets an expiry all the same: under our names it can only be an accident, and ends so.
                out.command("INCRBY").arg(&key[..]).arg(fixed.clamp(check.hits));
                out.end();
                out.command("EXPIRE").arg(&key[..]).arg(self.keep_secs(&fixed, number));
                out.end();
            }
        }
        out.command("EXEC");
        out.end();
    }

    fn write_script(&self, run: &Run, key: &mut Vec<u8>, out: &mut Outgoing) {
        let checks = &self.plan.checks[run.checks.clone()];
        let command = match run.way {
            Way::ScriptByText => out.command("EVAL").arg(script::FIXED_WINDOW.text),
            _ => out.command("EVALSHA").arg(&script::FIXED_WINDOW.hash),
        };
        command.arg(checks.len());
        for check in checks {
            self.write_key(check, self.window(check).1, key);
            command.arg(&key[..]);
        }
        command.arg(self.when.deadline.0);
        for check in checks {
            let (fixed, number) = self.window(check);
            // Redis counts to i64::MAX; more cannot be stored, so more cannot be given back.
            let hits = check.hits.unsigned_abs().min(i64::MAX.unsigned_abs());
            command.arg(hits).arg(self.keep_secs(&fixed, number));
        }
        out.end();
    }

    /// The answers to the checks of this batch, written to their places.
    pub(super) fn read(&self, mut replies: &[Value], answers: &mut Answers) {
        for run in &self.runs {
            let (own, rest) = replies.split_at(self.commands(run).min(replies.len()));
            replies = rest;
            let checks = &self.plan.checks[run.checks.clone()];
            let places = &mut answers.checks[run.checks.clone()];
            let outcome = match run.way {
                Way::Transaction => executed(own).and_then(|values| self.read_transaction(checks, values, places)),
                Way::ScriptByHash | Way::ScriptByText => self.read_script(checks, own, places),
            };
            match outcome {
                Ok(now) => answers.now = answers.now.max(now),
                Err(error) => places.fill(Err(error)),
            }
        }
    }

    /// The same error for all checks of this batch.
    pub(super) fn fail(&self, error: StoreError, answers: &mut Answers) {
        for run in &self.runs {
            answers.checks[run.checks.clone()].fill(Err(error));
        }
    }

    fn commands(&self, run: &Run) -> usize {
        match run.way {
            // MULTI, TIME, EXEC; GET for a look, INCRBY and EXPIRE for hits.
            Way::Transaction => self.plan.checks[run.checks.clone()].iter().fold(3, |sum, check| sum + commands_in_transaction(check)),
            Way::ScriptByHash | Way::ScriptByText => 1,
        }
    }

    fn read_transaction(&self, checks: &[Check], values: &[Value], places: &mut [Answer]) -> Result<Micros, StoreError> {
        let now = values.first().and_then(time).ok_or(StoreError::Unknown(error::PROTOCOL))?;
        let mut values = &values[1..];
        for (check, place) in checks.iter().zip(places) {
            let (value, rest) = values.split_first().ok_or(StoreError::Unknown(error::PROTOCOL))?;
            // The reply to EXPIRE tells nothing: the key is there, the line before made it.
            values = &rest[commands_in_transaction(check) - 1..];
            *place = match value {
                Value::Nil if check.hits == 0 => Ok(0),
                Value::ServerError(error) => match error::classify(error) {
                    kind if kind.name == error::OVERFLOW => Ok(i64::MAX.unsigned_abs()),
                    kind => Err(kind.error()),
                },
                value => whole(value).ok_or(StoreError::Data(error::NOT_AN_INTEGER)).and_then(count),
            }
            .map(|count| self.judge(check, count, now));
        }
        Ok(now)
    }

    fn read_script(&self, checks: &[Check], replies: &[Value], places: &mut [Answer]) -> Result<Micros, StoreError> {
        let values = match replies {
            [Value::Array(values)] if values.len() == 2 + checks.len() => values,
            [Value::ServerError(error)] => return Err(error::classify(error).error()),
            _ => return Err(StoreError::Unknown(error::PROTOCOL)),
        };
        let now = time(&replies[0]).ok_or(StoreError::Unknown(error::PROTOCOL))?;
        for ((check, value), place) in checks.iter().zip(&values[2..]).zip(places) {
            *place = match (whole(value), value) {
                (Some(number), _) => count(number),
                (None, Value::BulkString(text)) => Err(error::classify_line(&String::from_utf8_lossy(text)).error()),
                _ => Err(StoreError::Unknown(error::PROTOCOL)),
            }
            .map(|count| self.judge(check, count, now));
        }
        Ok(now)
    }

    fn window(&self, check: &Check) -> (FixedWindow, u64) {
        let Algorithm::FixedWindow(fixed) = check.algorithm else { unreachable!("only fixed windows are counted by commands") };
        (fixed, fixed.number(self.when.now))
    }

    fn judge(&self, check: &Check, count: u64, now: Micros) -> Verdict {
        let (fixed, number) = self.window(check);
        fixed.judge(number, count, now, check.hits)
    }

    fn write_key(&self, check: &Check, number: u64, key: &mut Vec<u8>) {
        key.clear();
        key.extend_from_slice(self.plan.key(check));
        write!(key, ":{number}").expect("writing to a vector does not fail");
    }

    fn keep_secs(&self, fixed: &FixedWindow, number: u64) -> u64 {
        let left = fixed.end(number).since(self.when.now).secs_rounded_up();
        let jitter = u64::from(self.expiry_jitter_secs).min(fixed.window.secs_rounded_up());
        left + GRACE_SECS + fastrand::u64(..=jitter)
    }
}

type Answer = Result<Verdict, StoreError>;

fn commands_in_transaction(check: &Check) -> usize {
    if check.hits == 0 { 1 } else { 2 }
}

fn count(number: i64) -> Result<u64, StoreError> {
    u64::try_from(number).map_err(|_| StoreError::Data(error::RANGE))
}

/// The values of a transaction out of the replies to all of its commands.
fn executed(replies: &[Value]) -> Result<&[Value], StoreError> {
    let [begun, taken @ .., exec] = replies else { return Err(StoreError::Unknown(error::PROTOCOL)) };
    let is_queued = |reply: &Value| matches!(reply, Value::SimpleString(text) if text == "QUEUED");
    let is_error = |reply: &Value| matches!(reply, Value::ServerError(_));
    match (begun, exec) {
        (Value::Okay, Value::Array(values)) if values.len() == taken.len() && taken.iter().all(is_queued) => Ok(values),
        // Nothing ran if the transaction was refused and no command was answered on its own.
        (Value::Okay | Value::ServerError(_), Value::ServerError(_)) if taken.iter().all(|reply| is_queued(reply) || is_error(reply)) => {
            let first = replies.iter().find_map(|reply| if let Value::ServerError(error) = reply { Some(error) } else { None });
            Err(StoreError::NotExecuted(first.map_or(error::PROTOCOL, |error| error::classify(error).name)))
        }
        _ => Err(StoreError::Unknown(error::PROTOCOL)),
    }
}

#[cfg(test)]
mod tests {
    use bb8_redis::redis::parse_redis_value;

    use super::*;
    use crate::plan::Role;

    const NOW: Micros = Micros(1_800_000_000_000_000);

    fn plan(hits: &[i64]) -> Plan {
        let fixed = FixedWindow { limit: 10, window: Span::from_secs(60), count_denied: true };
        let check = |&hits| (&b"k"[..], Check::new(Algorithm::FixedWindow(fixed), hits, Role::default()));
        Plan::of_checks(hits.iter().map(check))
    }

    fn batch(plan: &Plan) -> Batch<'_> {
        Batch::new(plan, When { now: NOW, deadline: NOW }, 0)
    }

    /// Reads replies that stand here as lines: what is between two bars is one reply.
    fn read(hits: &[i64], replies: &str) -> Vec<Result<u64, StoreError>> {
        let plan = plan(hits);
        let mut answers = Answers::failed(hits.len(), StoreError::Unknown("unanswered"));
        let parse = |text: &str| parse_redis_value(format!("{}\r\n", text.trim().replace(' ', "\r\n")).as_bytes());
        let replies: Vec<Value> = replies.split('|').map(|text| parse(text).expect("a good reply")).collect();
        batch(&plan).read(&replies, &mut answers);
        answers.checks.iter().map(|answer| answer.map(|verdict| verdict.used)).collect()
    }

    const TIME: &str = "*2 $10 1800000000 $1 0";

    #[test]
    fn a_whole_transaction_is_read() {
        let exec = format!("+OK|+QUEUED|+QUEUED|+QUEUED|+QUEUED|*4 {TIME} :7 :1 $1 9");
        assert_eq!(read(&[1, 0], &exec), [Ok(7), Ok(9)]);
        let mixed = format!("+OK|+QUEUED|+QUEUED|+QUEUED|*3 {TIME} :7 :1|*3 $10 1800000000 $1 0 $1 4|+OK|+QUEUED|+QUEUED|*2 {TIME} $-1");
        assert_eq!(read(&[1, -3, 0], &mixed), [Ok(7), Ok(4), Ok(0)]);
    }

    #[test]
    fn what_is_no_whole_answer_is_unknown_and_never_allowed() {
        let unknown = [Err(StoreError::Unknown("protocol"))];
        for replies in [
            // Another transaction's, one value short, one too many, no time, no transaction at all.
            format!("+OK|+QUEUED|+QUEUED|+QUEUED|*4 {TIME} :7 :1 :7"),
            format!("+OK|+QUEUED|+QUEUED|+QUEUED|*2 {TIME} :7"),
            "+OK|+QUEUED|+QUEUED|+QUEUED|*3 :1 :7 :1".to_owned(),
            "+OK|+QUEUED|+QUEUED|+QUEUED|$-1".to_owned(),
            "+OK|+QUEUED|+QUEUED|+QUEUED|+OK".to_owned(),
            format!("+QUEUED|+OK|+QUEUED|+QUEUED|*3 {TIME} :7 :1"),
            format!("+OK|+QUEUED|+QUEUED|:7|*3 {TIME} :7 :1"),
            "+OK|+QUEUED".to_owned(),
            "+OK".to_owned(),
        ] {
            assert_eq!(read(&[1], &replies), unknown, "{replies}");
        }
        for replies in ["*2 $1 1 $1 0", "*3 $1 x $1 0 $1 4", "$1 4", "*3 $1 1 $1 0 *0"] {
            assert_eq!(read(&[-1], replies), unknown, "{replies}");
        }
    }

    #[test]
    fn a_refused_transaction_ran_only_if_a_command_was_answered_on_its_own() {
        let refused = "+OK|+QUEUED|-OOM|-OOM|-EXECABORT";
        assert_eq!(read(&[1], refused), [Err(StoreError::NotExecuted("oom"))]);
        assert_eq!(read(&[1], "-NOAUTH|-NOAUTH|-NOAUTH|-NOAUTH|-NOAUTH"), [Err(StoreError::NotExecuted("auth"))]);
        let outside = format!("-NOPERM|{TIME}|:7|:1|-ERR");
        assert_eq!(read(&[1], &outside), [Err(StoreError::Unknown("protocol"))], "INCRBY ran without MULTI");
    }

    #[test]
    fn only_what_lacked_the_script_is_sent_again() {
        let plan = plan(&[-1, 1, -1, -1]);
        let first = batch(&plan);
        let mut answers = Answers::failed(4, StoreError::NotExecuted(error::NO_SCRIPT));
        answers.checks[0] = Err(StoreError::NotExecuted("late"));
        let again = first.without_script(&answers).expect("one run lacks it");
        assert_eq!((again.runs.len(), again.runs[0].checks.clone()), (1, 2..4));
        assert!(again.without_script(&answers).is_none(), "once, not for ever");
    }

    #[test]
    fn keys_outlive_their_window_by_the_grace_and_at_most_the_jitter_or_a_window() {
        let plan = plan(&[1]);
        for (jitter, longest) in [(0, 65), (20, 85), (300, 125)] {
            let batch = Batch::new(&plan, When { now: NOW, deadline: NOW }, jitter);
            let (fixed, number) = batch.window(&plan.checks[0]);
            let lives: Vec<u64> = (0..2_000).map(|_| batch.keep_secs(&fixed, number)).collect();
            assert_eq!((lives.iter().min(), lives.iter().max()), (Some(&65), Some(&longest)), "jitter {jitter}");
        }
    }
}
