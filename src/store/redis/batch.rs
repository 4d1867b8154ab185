//! What is sent to one Redis server for the checks of many requests, and what its replies mean.
//!
//! Hits and looks of fixed windows that count what they refuse go as a transaction (`MULTI`, `TIME`, `INCRBY` and `EXPIRE` or `GET`, `EXEC`),
//! all else as a call of the script. A single server gets one of each for all requests together; a node of a cluster one of each for every
//! slot, because neither may reach over two. Reads replies strictly: what is not exactly an answer to what was asked is no answer, and
//! nothing is ever counted as allowed without one. Every request gets its own answers, whatever became of its neighbours.

use std::sync::Arc;

use bb8_redis::redis::{ServerError, Value};
use smallvec::SmallVec;
use tokio::time::Instant;

use super::call::{Call, Named, Part, longest_jitter, write_key};
use super::error;
use super::link::{Outgoing, time, whole};
use super::slots::{self, Redirect, Slot};
use crate::algorithm::{Algorithm, FixedWindow};
use crate::plan::{Check, Plan};
use crate::rules::Commit;
use crate::store::Within;
use crate::time::{Micros, Span};
use crate::verdict::{StoreError, Verdict};

/// Keys outlive their window by this much, because the estimate that numbers the windows may lag behind the clock that expires keys.
const GRACE_SECS: u64 = 5;

/// A script may come this much later than its caller's deadline and still count; the estimate of Redis's clock is not sharper.
const SLACK: Span = Span::from_micros(5_000);

pub(super) type Answer = Result<Verdict, StoreError>;

/// Checks of one request that go to one server.
#[derive(Clone, Debug)]
pub(super) struct Work {
    pub(super) plan: Arc<Plan>,
    /// The places of the checks in the plan.
    pub(super) places: SmallVec<[usize; 4]>,
    pub(super) within: Within,
    /// The server gave the slot away, or is about to get it, and has to be told that we know.
    pub(super) is_asking: bool,
}

/// What came of the work of one request.
#[derive(Clone, Debug)]
pub(super) struct Reply {
    /// The server's time; 0 when it did not tell.
    pub(super) now: Micros,
    /// One per place, in order.
    pub(super) answers: SmallVec<[Answer; 4]>,
    /// Where else some of it has to go: the index into `answers`, and where.
    pub(super) redirects: Vec<(usize, Redirect)>,
}

impl Reply {
    /// The same error for all of `count` answers.
    pub(super) fn failed(count: usize, error: StoreError) -> Self {
        Self { now: Micros::default(), answers: SmallVec::from_elem(Err(error), count), redirects: Vec::new() }
    }
}

/// How a batch is made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Manner {
    /// Nothing may reach over two slots.
    pub(super) by_slot: bool,
    /// Fixed windows take the script too, which counts nothing that comes too late.
    pub(super) fixed_windows_by_script: bool,
    /// See [`super::Options::expiry_jitter_secs`].
    pub(super) expiry_jitter_secs: u32,
}

/// The server's time, by estimate, at an instant.
#[derive(Clone, Copy, Debug)]
pub(super) struct Now {
    pub(super) time: Micros,
    pub(super) at: Instant,
}

/// The commands for the work of some requests.
#[derive(Debug)]
pub(super) struct Batch<'w> {
    work: SmallVec<[&'w Work; 16]>,
    manner: Manner,
    now: Now,
    runs: SmallVec<[Run; 2]>,
}

/// What goes in one transaction or one call.
#[derive(Clone, Debug)]
struct Run {
    way: Way,
    slot: Slot,
    is_asking: bool,
    /// In the order of the work, so that what belongs to one request stands together.
    items: Vec<Item>,
}

/// A check: the index into the batch's work, and the index into its places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Item {
    work: usize,
    at: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Transaction,
    Script(Named),
}

impl<'w> Batch<'w> {
    /// All of `work`.
    pub(super) fn new(work: impl IntoIterator<Item = &'w Work>, manner: Manner, now: Now) -> Self {
        let mut batch = Self { work: work.into_iter().collect(), manner, now, runs: SmallVec::new() };
        for (index, work) in batch.work.iter().enumerate() {
            // A request that gives back goes one way, so that its checks on one key keep their order.
            let by_script = manner.fixed_windows_by_script || work.plan.checks.iter().any(|check| check.hits < 0);
            for (at, &place) in work.places.iter().enumerate() {
                let check = &work.plan.checks[place];
                let way = if by_script || counted(&work.plan, check).is_none() { Way::Script(Named::ByHash) } else { Way::Transaction };
                let slot = if manner.by_slot { slots::of(work.plan.key(check)) } else { 0 };
                let item = Item { work: index, at };
                let belongs = |run: &&mut Run| run.way == way && run.slot == slot && run.is_asking == work.is_asking;
                match batch.runs.iter_mut().find(belongs) {
                    Some(run) => run.items.push(item),
                    None => batch.runs.push(Run { way, slot, is_asking: work.is_asking, items: vec![item] }),
                }
            }
        }
        batch
    }

    /// Nothing but errors, to be filled by [`Batch::read`].
    pub(super) fn unanswered(&self) -> Vec<Reply> {
        let nothing = StoreError::Unknown(error::PROTOCOL);
        self.work.iter().map(|work| Reply::failed(work.places.len(), nothing)).collect()
    }

    /// What has to be sent again because Redis did not know the script: with its text this time. Nothing on a link that is out of step,
    /// where it would be answered by what others are still to get.
    pub(super) fn without_script(&self, replies: &[Reply]) -> Option<Self> {
        if replies.iter().flat_map(|reply| &reply.answers).any(|answer| *answer == Err(StoreError::Unknown(error::PROTOCOL))) {
            return None;
        }
        let lacking = Err(StoreError::NotExecuted(error::NO_SCRIPT));
        let mut runs: SmallVec<[Run; 2]> = SmallVec::new();
        for run in &self.runs {
            let Item { work, at } = run.items[0];
            if run.way == Way::Script(Named::ByHash) && replies[work].answers[at] == lacking {
                // Once it has come, Redis knows it.
                let named = if runs.is_empty() { Named::ByText } else { Named::ByHash };
                runs.push(Run { way: Way::Script(named), ..run.clone() });
            }
        }
        (!runs.is_empty()).then(|| Self { work: self.work.clone(), runs, ..*self })
    }

    /// Packs the commands.
    pub(super) fn write(&self, out: &mut Outgoing) {
        for run in &self.runs {
            if run.is_asking {
                out.command("ASKING");
                out.end();
            }
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
        for (plan, check, fixed) in self.counted(run) {
            write_key(plan, check, self.now.time, &mut key);
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
        let mut parts: SmallVec<[Part<'_>; 1]> = SmallVec::new();
        for items in run.items.chunk_by(|left, right| left.work == right.work) {
            let work = self.work[items[0].work];
            let left = u64::try_from(work.within.deadline.saturating_duration_since(self.now.at).as_micros()).unwrap_or(u64::MAX);
            parts.push(Part {
                plan: &work.plan,
                places: items.iter().map(|item| work.places[item.at]).collect(),
                deadline: self.now.time + Span::from_micros(left) + SLACK,
                patience: work.within.patience,
            });
        }
        Call { parts, now: self.now.time, is_time_given: false, jitter_secs: self.manner.expiry_jitter_secs }
    }

    fn check(&self, item: Item) -> (&Plan, &Check) {
        let work = self.work[item.work];
        (&work.plan, &work.plan.checks[work.places[item.at]])
    }

    /// The checks of a transaction.
    fn counted<'b>(&'b self, run: &'b Run) -> impl Iterator<Item = (&'b Plan, &'b Check, &'b FixedWindow)> {
        run.items.iter().filter_map(|&item| {
            let (plan, check) = self.check(item);
            Some((plan, check, counted(plan, check)?))
        })
    }

    /// The answers of this batch, written to their places among the replies to its work.
    pub(super) fn read(&self, mut values: &[Value], replies: &mut [Reply]) {
        let mut answers: SmallVec<[Answer; 16]> = SmallVec::new();
        let mut is_in_step = true;
        for run in &self.runs {
            let (own, rest) = values.split_at(self.commands(run).min(values.len()));
            values = rest;
            answers.clear();
            answers.resize(run.items.len(), Err(StoreError::Unknown(error::PROTOCOL)));
            // ASKING is answered on its own; what follows tells what came of it.
            let own = if run.is_asking { own.get(1..).unwrap_or_default() } else { own };
            let outcome = match (run.way, own) {
                _ if !is_in_step => Err(StoreError::Unknown(error::PROTOCOL).into()),
                (Way::Transaction, _) => executed(own).and_then(|values| Ok(self.read_transaction(run, values, &mut answers)?)),
                (Way::Script(_), [reply]) => {
                    self.call(run).read(reply, &mut answers).map_err(|error| Failed { error, cause: server_error(reply) })
                }
                (Way::Script(_), _) => Err(StoreError::Unknown(error::PROTOCOL).into()),
            };
            // Behind what is no answer to its commands, an answer or an error may belong to others.
            is_in_step &= !matches!(outcome, Err(Failed { error: StoreError::Unknown(error::PROTOCOL), .. }));
            match outcome {
                Ok(now) => {
                    for (&Item { work, at }, answer) in run.items.iter().zip(&answers) {
                        replies[work].answers[at] = *answer;
                        replies[work].now = now;
                    }
                }
                Err(Failed { error, cause }) => {
                    let redirect = cause.filter(|_| self.manner.by_slot).and_then(Redirect::read);
                    for &Item { work, at } in &run.items {
                        replies[work].answers[at] = Err(error);
                        if let Some(redirect) = &redirect {
                            replies[work].redirects.push((at, redirect.clone()));
                        }
                    }
                }
            }
        }
    }

    /// The same error for all checks of this batch.
    pub(super) fn fail(&self, error: StoreError, replies: &mut [Reply]) {
        for item in self.runs.iter().flat_map(|run| &run.items) {
            replies[item.work].answers[item.at] = Err(error);
        }
    }

    fn commands(&self, run: &Run) -> usize {
        let own = match run.way {
            // MULTI, TIME, EXEC; GET for a look, INCRBY and EXPIRE for hits.
            Way::Transaction => run.items.iter().fold(3, |sum, &item| sum + commands_in_transaction(self.check(item).1)),
            Way::Script(_) => 1,
        };
        own + usize::from(run.is_asking)
    }

    fn read_transaction(&self, run: &Run, values: &[Value], answers: &mut [Answer]) -> Result<Micros, StoreError> {
        let now = values.first().and_then(time).ok_or(StoreError::Unknown(error::PROTOCOL))?;
        let mut values = &values[1..];
        for ((_, check, fixed), place) in self.counted(run).zip(answers) {
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
            .map(|count| fixed.judge(fixed.number(self.now.time), count, now, check.hits));
        }
        Ok(now)
    }

    fn keep_secs(&self, fixed: &FixedWindow) -> u64 {
        let left = fixed.end(fixed.number(self.now.time)).since(self.now.time).secs_rounded_up();
        left + GRACE_SECS + fastrand::u64(..=longest_jitter(fixed, self.manner.expiry_jitter_secs))
    }
}

/// Why a whole run has no answers, and the server's words if it is it who says so.
struct Failed<'v> {
    error: StoreError,
    cause: Option<&'v ServerError>,
}

impl From<StoreError> for Failed<'_> {
    fn from(error: StoreError) -> Self {
        Self { error, cause: None }
    }
}

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

fn server_error(reply: &Value) -> Option<&ServerError> {
    if let Value::ServerError(error) = reply { Some(error) } else { None }
}

/// The values of a transaction out of the replies to all of its commands.
fn executed(replies: &[Value]) -> Result<&[Value], Failed<'_>> {
    let [begun, taken @ .., exec] = replies else { return Err(StoreError::Unknown(error::PROTOCOL).into()) };
    let is_queued = |reply: &Value| matches!(reply, Value::SimpleString(text) if text == "QUEUED");
    match (begun, exec) {
        (Value::Okay, Value::Array(values)) if values.len() == taken.len() && taken.iter().all(is_queued) => Ok(values),
        // Nothing ran if the transaction was refused and no command was answered on its own.
        (Value::Okay | Value::ServerError(_), Value::ServerError(_))
            if taken.iter().all(|reply| is_queued(reply) || server_error(reply).is_some()) =>
        {
            let cause = replies.iter().find_map(server_error);
            let name = cause.map_or(error::PROTOCOL, |error| error::classify(error).name);
            Err(Failed { error: StoreError::NotExecuted(name), cause })
        }
        _ => Err(StoreError::Unknown(error::PROTOCOL).into()),
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

    fn work(plan: Plan) -> Work {
        let (places, plan) = (plan.all(), Arc::new(plan));
        Work { plan, places, within: Within::until(Instant::now()), is_asking: false }
    }

    fn batch(work: &[Work], expiry_jitter_secs: u32) -> Batch<'_> {
        let manner = Manner { by_slot: false, fixed_windows_by_script: false, expiry_jitter_secs };
        Batch::new(work, manner, Now { time: NOW, at: Instant::now() })
    }

    /// Reads replies that stand here as lines: what is between two bars is one reply.
    fn read(hits: &[i64], replies: &str) -> Vec<Result<u64, StoreError>> {
        let work = [work(plan(hits))];
        let mut answers = [Reply::failed(hits.len(), StoreError::Unknown("unanswered"))];
        let parse = |text: &str| parse_redis_value(format!("{}\r\n", text.trim().replace(' ', "\r\n")).as_bytes());
        let replies: Vec<Value> = replies.split('|').map(|text| parse(text).expect("a good reply")).collect();
        batch(&work, 0).read(&replies, &mut answers);
        answers[0].answers.iter().map(|answer| answer.map(|verdict| verdict.used)).collect()
    }

    const TIME: &str = "*2 $10 1800000000 $1 0";

    #[test]
    fn a_whole_transaction_is_read() {
        let exec = format!("+OK|+QUEUED|+QUEUED|+QUEUED|+QUEUED|*4 {TIME} :7 :1 $1 9");
        assert_eq!(read(&[1, 0], &exec), [Ok(7), Ok(9)]);
        let script = "*14 $10 1800000000 $1 0 :1 :7 :0 :0 :1 :4 :0 :0 :1 :4 :0 :0";
        assert_eq!(read(&[1, -3, 0], script), [Ok(7), Ok(4), Ok(4)], "with a give-back all goes by script, in its order");
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
        let all = [work(plan(&[1, 0])), work(plan(&[-1])), work(plan(&[2])), work(plan(&[-1, 1]))];
        let first = batch(&all, 0);
        assert_eq!(first.runs.iter().map(|run| run.items.len()).collect::<Vec<_>>(), [3, 3], "one transaction and one call");
        let mut replies = first.unanswered();
        first.fail(StoreError::NotExecuted(error::NO_SCRIPT), &mut replies);
        let again = first.without_script(&replies).expect("a call lacks it");
        assert_eq!((again.runs.len(), again.runs[0].way), (1, Way::Script(Named::ByText)));
        assert!(again.without_script(&replies).is_none(), "once, not for ever");
        replies[1].answers[0] = Err(StoreError::NotExecuted("late"));
        assert!(first.without_script(&replies).is_none());
        replies[1].answers[0] = Err(StoreError::NotExecuted(error::NO_SCRIPT));
        assert!(first.without_script(&replies).is_some());
        replies[0].answers[0] = Err(StoreError::Unknown(error::PROTOCOL));
        assert!(first.without_script(&replies).is_none(), "replies are out of step");
    }

    #[test]
    fn requests_share_a_batch_and_each_has_its_own_answers() {
        let all = [work(plan(&[1, 0])), work(plan(&[-1])), work(plan(&[2]))];
        let batch = batch(&all, 0);
        let mut replies = batch.unanswered();
        let text =
            format!("+OK|+QUEUED|+QUEUED|+QUEUED|+QUEUED|+QUEUED|+QUEUED|*6 {TIME} :7 :1 $1 9 -WRONGTYPE :0|*6 $1 1 $1 0 :1 :4 :0 :0");
        let parse = |text: &str| parse_redis_value(format!("{}\r\n", text.trim().replace(' ', "\r\n")).as_bytes());
        let values: Vec<Value> = text.split('|').map(|text| parse(text).expect("a good reply")).collect();
        batch.read(&values, &mut replies);
        let used = |index: usize| replies[index].answers.iter().map(|answer| answer.map(|verdict| verdict.used)).collect::<Vec<_>>();
        assert_eq!(used(0), [Ok(7), Ok(9)]);
        assert_eq!(used(1), [Ok(4)]);
        assert_eq!(used(2), [Err(StoreError::Data("wrongtype"))], "one bad key fails one check");
    }

    #[test]
    fn behind_a_reply_too_many_nothing_is_believed() {
        let all = [work(plan(&[1])), work(plan(&[-1]))];
        let batch = batch(&all, 0);
        let mut replies = batch.unanswered();
        let parse = |text: &str| parse_redis_value(format!("{text}\r\n").as_bytes()).expect("a good reply");
        // The last one is what the transaction came to; the call's own reply is still to come.
        let values = ["+OK", "+OK", "+QUEUED", "+QUEUED", "+QUEUED", "-EXECABORT x"].map(parse);
        batch.read(&values, &mut replies);
        for reply in &replies {
            assert_eq!(reply.answers[..], [Err(StoreError::Unknown("protocol"))], "{replies:?}");
        }
    }

    #[test]
    fn a_cluster_gets_a_transaction_and_a_call_per_slot() {
        let fixed = Algorithm::FixedWindow(FixedWindow { limit: 10, window: Span::from_secs(60), count_denied: true });
        let keys = [&b"{a}1"[..], b"{b}1", b"{a}2"];
        let plan = Plan::of_checks(keys.map(|key| (key, Check::new(fixed, 1, Role::default()))));
        let all = [work(plan)];
        let manner = Manner { by_slot: true, fixed_windows_by_script: false, expiry_jitter_secs: 0 };
        let batch = Batch::new(&all, manner, Now { time: NOW, at: Instant::now() });
        let places: Vec<Vec<usize>> = batch.runs.iter().map(|run| run.items.iter().map(|item| item.at).collect()).collect();
        assert_eq!(places, [vec![0, 2], vec![1]]);
        let mut replies = batch.unanswered();
        let text = format!(
            "+OK|+QUEUED|+QUEUED|+QUEUED|+QUEUED|+QUEUED|*5 {TIME} :1 :1 :2 :1|+OK|+QUEUED|-MOVED 3300 h:7|-MOVED 3300 h:7|-EXECABORT x"
        );
        let parse = |text: &str| match text.starts_with('-') {
            true => parse_redis_value(format!("{text}\r\n").as_bytes()),
            false => parse_redis_value(format!("{}\r\n", text.trim().replace(' ', "\r\n")).as_bytes()),
        };
        let values: Vec<Value> = text.split('|').map(|text| parse(text).expect("a good reply")).collect();
        batch.read(&values, &mut replies);
        let used: Vec<_> = replies[0].answers.iter().map(|answer| answer.map(|verdict| verdict.used)).collect();
        assert_eq!(used, [Ok(1), Err(StoreError::NotExecuted("moved")), Ok(2)]);
        let [(1, redirect)] = &replies[0].redirects[..] else { panic!("one redirect: {:?}", replies[0].redirects) };
        assert_eq!((redirect.slot, redirect.is_ask), (3_300, false));
    }

    #[test]
    fn keys_outlive_their_window_by_the_grace_and_at_most_the_jitter_or_a_window() {
        let all = [work(plan(&[1]))];
        for (jitter, longest) in [(0, 65), (20, 85), (300, 125)] {
            let batch = batch(&all, jitter);
            let fixed = counted(&all[0].plan, &all[0].plan.checks[0]).expect("it takes the transaction");
            let lives: Vec<u64> = (0..2_000).map(|_| batch.keep_secs(fixed)).collect();
            assert_eq!((lives.iter().min(), lives.iter().max()), (Some(&65), Some(&longest)), "jitter {jitter}");
        }
    }
}
