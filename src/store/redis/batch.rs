//! What is sent to Redis for the checks of a plan, and what its replies mean.
//!
//! Hits and looks of fixed windows that count what they refuse go as one transaction (`MULTI`, `TIME`, `INCRBY` and `EXPIRE` or `GET`,
//! `EXEC`), all else as calls of the script; runs of the one and of the other keep the order of the checks. Reads replies strictly: what is
//! not exactly an answer to what was asked is no answer, and nothing is ever counted as allowed without one.

use std::ops::Range;

use bb8_redis::redis::Value;
use smallvec::SmallVec;

use super::call::{Call, Named, When, longest_jitter, write_key};
use super::error;
use super::link::{Outgoing, time, whole};
use crate::algorithm::{Algorithm, FixedWindow};
use crate::plan::{Check, Plan};
use crate::rules::Commit;
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

/// Checks next to each other that take the same way.
#[derive(Clone, Debug)]
struct Run {
    way: Way,
    checks: Range<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Transaction,
    Script(Named),
}

impl<'p> Batch<'p> {
    /// All checks of `plan`.
    pub(super) fn new(plan: &'p Plan, when: When, expiry_jitter_secs: u32) -> Self {
        let mut runs: SmallVec<[Run; 1]> = SmallVec::new();
        for (index, check) in plan.checks.iter().enumerate() {
            let way = if counted(plan, check).is_some() { Way::Transaction } else { Way::Script(Named::ByHash) };
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
        let mut runs: SmallVec<[Run; 1]> = SmallVec::new();
        for run in &self.runs {
            if run.way == Way::Script(Named::ByHash) && answers.checks[run.checks.start] == lacking {
                // Once it has come, Redis knows it.
                let named = if runs.is_empty() { Named::ByText } else { Named::ByHash };
                runs.push(Run { way: Way::Script(named), ..run.clone() });
            }
        }
        (!runs.is_empty()).then_some(Self { runs, ..*self })
    }

    /// Packs the commands.
    pub(super) fn write(&self, out: &mut Outgoing) {
        for run in &self.runs {
            match run.way {
                Way::Transaction => self.write_transaction(run, out),
                Way::Script(named) => {
                    self.call(run).write(named, out.begin());
                    out.end();
                }
            }
        }
    }

    fn write_transaction(&self, run: &Run, out: &mut Outgoing) {
        let mut key = Vec::new();
        out.command("MULTI");
        out.end();
        out.command("TIME");
        out.end();
        for (check, fixed) in self.counted(run) {
            write_key(self.plan, check, self.when.now, &mut key);
            if check.hits == 0 {
                out.command("GET").arg(&key[..]);
                out.end();
            } else {
                // A key that holds something else gets an expiry all the same: under our names it can only be an accident, and ends so.
                out.command("INCRBY").arg(&key[..]).arg(fixed.clamp(check.hits));
                out.end();
                out.command("EXPIRE").arg(&key[..]).arg(self.keep_secs(fixed));
                out.end();
            }
        }
        out.command("EXEC");
        out.end();
    }

    fn call(&self, run: &Run) -> Call<'_> {
        let (checks, jitter_secs) = (run.checks.clone(), self.expiry_jitter_secs);
        Call { plan: self.plan, checks, when: self.when, is_time_given: false, jitter_secs }
    }

    /// The checks of a transaction.
    fn counted(&self, run: &Run) -> impl Iterator<Item = (&Check, &FixedWindow)> {
        self.plan.checks[run.checks.clone()].iter().filter_map(|check| Some((check, counted(self.plan, check)?)))
    }

    /// The answers to the checks of this batch, written to their places.
    pub(super) fn read(&self, mut replies: &[Value], answers: &mut Answers) {
        for run in &self.runs {
            let (own, rest) = replies.split_at(self.commands(run).min(replies.len()));
            replies = rest;
            let places = &mut answers.checks[run.checks.clone()];
            let outcome = match (run.way, own) {
                (Way::Transaction, _) => executed(own).and_then(|values| self.read_transaction(run, values, places)),
                (Way::Script(_), [reply]) => self.call(run).read(reply, places),
                (Way::Script(_), _) => Err(StoreError::Unknown(error::PROTOCOL)),
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
            Way::Script(_) => 1,
        }
    }

    fn read_transaction(&self, run: &Run, values: &[Value], places: &mut [Answer]) -> Result<Micros, StoreError> {
        let now = values.first().and_then(time).ok_or(StoreError::Unknown(error::PROTOCOL))?;
        let mut values = &values[1..];
        for ((check, fixed), place) in self.counted(run).zip(places) {
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
            .map(|count| fixed.judge(fixed.number(self.when.now), count, now, check.hits));
        }
        Ok(now)
    }

    fn keep_secs(&self, fixed: &FixedWindow) -> u64 {
        let left = fixed.end(fixed.number(self.when.now)).since(self.when.now).secs_rounded_up();
        left + GRACE_SECS + fastrand::u64(..=longest_jitter(fixed, self.expiry_jitter_secs))
    }
}

type Answer = Result<Verdict, StoreError>;

/// The window of a check that a transaction can decide: one that counts ahead of the answer, for itself alone.
fn counted<'c>(plan: &Plan, check: &'c Check) -> Option<&'c FixedWindow> {
    match &check.algorithm {
        Algorithm::FixedWindow(fixed) if fixed.count_denied && check.hits >= 0 && plan.commit == Commit::Each => Some(fixed),
        _ => None,
    }
}

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
        Batch::new(plan, When { now: NOW, deadline: NOW, patience: Span::ZERO }, 0)
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
        let mixed =
            format!("+OK|+QUEUED|+QUEUED|+QUEUED|*3 {TIME} :7 :1|*6 $10 1800000000 $1 0 :1 :4 :0 :0|+OK|+QUEUED|+QUEUED|*2 {TIME} $-1");
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
        for replies in [
            "*2 $1 1 $1 0",
            "*6 $1 x $1 0 :1 :4 :0 :0",
            "*6 $1 1 $1 0 :2 :4 :0 :0",
            "*6 $1 1 $1 0 :1 :-4 :0 :0",
            "*7 $1 1 $1 0 :1 :4 :0 :0 :0",
            "*5 $1 1 $1 0 :1 :4 :0",
            "$1 4",
            "*3 $1 1 $1 0 *0",
        ] {
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
            let batch = Batch::new(&plan, When { now: NOW, deadline: NOW, patience: Span::ZERO }, jitter);
            let fixed = counted(&plan, &plan.checks[0]).expect("it takes the transaction");
            let lives: Vec<u64> = (0..2_000).map(|_| batch.keep_secs(fixed)).collect();
            assert_eq!((lives.iter().min(), lives.iter().max()), (Some(&65), Some(&longest)), "jitter {jitter}");
        }
    }
}
