//! What is sent to one Redis server for the checks of many requests, and what its replies mean.
//!
//! Hits of fixed windows that count what they refuse go as a transaction (`MULTI`, `TIME`, `INCRBY` and `EXPIRE`, `EXEC`); but those whose
//! counter is known to expire, and looks, need nothing beside them, and go as plain commands (`TIME`, `INCRBY` or `GET`). All else goes as a
//! call of the script. A single server gets one of each for all requests together; a node of a cluster one transaction and one call for every
//! slot, because neither may reach over two. Reads replies strictly: what is not exactly an answer to what was asked is no answer, and
//! nothing is ever counted as allowed without one. Every request gets its own answers, whatever became of its neighbours.

use std::sync::Arc;

use smallvec::SmallVec;
use tokio::time::Instant;

use super::call::{Call, Named, Part, longest_jitter, write_key};
use super::error;
use super::expiring::{Counter, Expiring};
use super::link::Outgoing;
use super::replies::{Word, Words, time};
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

/// Room for a key; a longer one takes more.
const USUAL_KEY: usize = 256;

const STRANGE: StoreError = StoreError::Unknown(error::PROTOCOL);

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
    /// Commands that stand for themselves, on any slots.
    Plain,
    Transaction,
    Script(Named),
}

impl<'w> Batch<'w> {
    /// All of `work`, for a server whose counters are known to expire as far as `expiring` tells.
    pub(super) fn new(work: impl IntoIterator<Item = &'w Work>, manner: Manner, now: Now, expiring: &mut Expiring) -> Self {
        let mut batch = Self { work: work.into_iter().collect(), manner, now, runs: SmallVec::new() };
        for (index, work) in batch.work.iter().enumerate() {
            // A request that gives back goes one way, so that its checks on one key keep their order.
            let by_script = manner.fixed_windows_by_script || work.plan.checks.iter().any(|check| check.hits < 0);
            for (at, &place) in work.places.iter().enumerate() {
                let check = &work.plan.checks[place];
                let way = match counted(&work.plan, check) {
                    Some(fixed) if !by_script => {
                        // Where a slot arrives, whatever is said to the keys on their way has to be said together.
                        let is_plain = !work.is_asking && (check.hits == 0 || expiring.knows(batch.counter(work, check, fixed)));
                        if is_plain { Way::Plain } else { Way::Transaction }
                    }
                    _ => Way::Script(Named::ByHash),
                };
                let slot = if manner.by_slot && way != Way::Plain { slots::of(work.plan.key(check)) } else { 0 };
                let item = Item { work: index, at };
                // Of a slot that is on its way some keys may be there and others not: together they would be refused.
                let is_alone = work.is_asking && work.plan.commit == Commit::Each;
                let belongs = |run: &&mut Run| run.way == way && run.slot == slot && run.is_asking == work.is_asking && !is_alone;
                match batch.runs.iter_mut().find(belongs) {
                    Some(run) => run.items.push(item),
                    None => {
                        let mut items = Vec::with_capacity(if manner.by_slot { 1 } else { batch.work.len() });
                        items.push(item);
                        batch.runs.push(Run { way, slot, is_asking: work.is_asking, items });
                    }
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
                out.words([b"ASKING"]);
            }
            match run.way {
                Way::Plain => {
                    out.words([b"TIME"]);
                    self.write_counts(run, out);
                }
                Way::Transaction => {
                    out.words([b"MULTI"]);
                    out.words([b"TIME"]);
                    self.write_counts(run, out);
                    out.words([b"EXEC"]);
                }
                Way::Script(named) => {
                    self.call(run).write(named, out.begin());
                    out.end();
                }
            }
        }
    }

    /// Packs what counts: of a transaction each hit with its expiry.
    fn write_counts(&self, run: &Run, out: &mut Outgoing) {
        let mut key = Vec::with_capacity(USUAL_KEY);
        for (plan, check, fixed) in self.counted(run) {
            write_key(plan, check, self.now.time, &mut key);
            if check.hits == 0 {
                out.words([b"GET", &key]);
                continue;
            }
            out.words([b"INCRBY", &key, itoa::Buffer::new().format(fixed.clamp(check.hits)).as_bytes()]);
            if run.way == Way::Transaction {
                // A key that holds something else gets an expiry all the same: under our names it can only be an accident, and ends so.
                self.write_expiry(&key, fixed, out);
            }
        }
    }

    fn write_expiry(&self, key: &[u8], fixed: &FixedWindow, out: &mut Outgoing) {
        out.words([b"EXPIRE", key, itoa::Buffer::new().format(self.keep_secs(fixed)).as_bytes()]);
    }

    /// Takes in which counters expire from now on, and packs an expiry for those that turn out to have none: they were gone, and a plain hit
    /// made them again. Returns how many those are.
    pub(super) fn learn(&self, replies: &[Reply], expiring: &mut Expiring, out: &mut Outgoing) -> usize {
        let mut bare = 0;
        for run in self.runs.iter().filter(|run| run.way == Way::Transaction || run.way == Way::Plain) {
            for (item, (plan, check, fixed)) in run.items.iter().zip(self.counted(run)).filter(|(_, (_, check, _))| check.hits > 0) {
                let work = self.work[item.work];
                let counter = self.counter(work, check, fixed);
                let Ok(verdict) = replies[item.work].answers[item.at] else {
                    expiring.forget(counter);
                    continue;
                };
                if run.way == Way::Transaction {
                    expiring.learn(counter);
                } else if verdict.used == fixed.clamp(check.hits).unsigned_abs() {
                    expiring.forget(counter);
                    let mut key = Vec::with_capacity(USUAL_KEY);
                    write_key(plan, check, self.now.time, &mut key);
                    self.write_expiry(&key, fixed, out);
                    bare += 1;
                }
            }
        }
        bare
    }

    fn counter<'c>(&self, work: &'c Work, check: &Check, fixed: &FixedWindow) -> Counter<'c> {
        Counter { key: work.plan.key(check), window: fixed.number(self.now.time) }
    }

    fn call(&self, run: &Run) -> Call<'_> {
        let mut parts: SmallVec<[Part<'_>; 1]> = SmallVec::with_capacity(run.items.len().min(self.work.len()));
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
    pub(super) fn read(&self, mut words: Words<'_>, replies: &mut [Reply]) {
        let mut answers: SmallVec<[Answer; 16]> = SmallVec::new();
        let mut elsewhere: Elsewhere = SmallVec::new();
        let mut is_in_step = true;
        for run in &self.runs {
            let own = words.clone();
            answers.clear();
            answers.resize(run.items.len(), Err(STRANGE));
            let outcome = if is_in_step { self.read_run(run, &mut words, &mut answers, &mut elsewhere) } else { Err(STRANGE.into()) };
            // Behind what is no answer to its commands, an answer or an error may belong to others.
            is_in_step &= !matches!(outcome, Err(Failed { error: STRANGE, .. }));
            match outcome {
                Ok(now) => {
                    for (&Item { work, at }, answer) in run.items.iter().zip(&answers) {
                        replies[work].answers[at] = *answer;
                        replies[work].now = now;
                    }
                    for (index, redirect) in elsewhere.drain(..) {
                        let Item { work, at } = run.items[index];
                        replies[work].redirects.push((at, redirect));
                    }
                }
                Err(Failed { error, cause }) => match cause.filter(|_| self.manner.by_slot).and_then(Redirect::read) {
                    None => run.items.iter().for_each(|&Item { work, at }| replies[work].answers[at] = Err(error)),
                    Some(redirect) => self.turn_away(run, own, error, &redirect, replies),
                },
            }
        }
    }

    /// Sends the checks of a run elsewhere. Of a transaction only those whose own key is not there; the others just stood beside them, and are
    /// to be asked once more where they are.
    fn turn_away(&self, run: &Run, own: Words<'_>, error: StoreError, redirect: &Redirect, replies: &mut [Reply]) {
        // Behind the replies to ASKING, MULTI and TIME.
        let mut own = own.skip(2 + usize::from(run.is_asking));
        let mut own_redirect = |item: Item| {
            let commands = own.by_ref().take(self.commands(item));
            commands.fold(None, |found: Option<Redirect>, word| found.or_else(|| server_error(word).and_then(Redirect::read)))
        };
        let mut redirects: SmallVec<[Option<Redirect>; 4]> = match run.way {
            Way::Transaction => run.items.iter().map(|&item| own_redirect(item)).collect(),
            Way::Plain | Way::Script(_) => SmallVec::new(),
        };
        if redirects.iter().all(Option::is_none) {
            redirects = SmallVec::from_elem(Some(redirect.clone()), run.items.len());
        }
        for (&Item { work, at }, redirect) in run.items.iter().zip(redirects) {
            replies[work].answers[at] = Err(if redirect.is_some() { error } else { StoreError::NotExecuted(error::EXEC_ABORT) });
            replies[work].redirects.extend(redirect.map(|redirect| (at, redirect)));
        }
    }

    fn read_run<'r>(
        &self,
        run: &Run,
        words: &mut Words<'r>,
        answers: &mut [Answer],
        elsewhere: &mut Elsewhere,
    ) -> Result<Micros, Failed<'r>> {
        // ASKING is answered on its own; what follows tells what came of it.
        if run.is_asking && !matches!(words.next(), Some(Word::Status(_) | Word::Error(_))) {
            return Err(STRANGE.into());
        }
        match run.way {
            Way::Plain => Ok(self.read_plain(run, words, answers, elsewhere)?),
            Way::Transaction => {
                executed(words, self.queued(run))?;
                Ok(self.read_transaction(run, words, answers)?)
            }
            Way::Script(_) => {
                let cause = words.peek().and_then(server_error);
                self.call(run).read_words(words, answers).map_err(|error| Failed { error, cause })
            }
        }
    }

    /// The same error for all checks of this batch.
    pub(super) fn fail(&self, error: StoreError, replies: &mut [Reply]) {
        for item in self.runs.iter().flat_map(|run| &run.items) {
            replies[item.work].answers[item.at] = Err(error);
        }
    }

    /// The commands between MULTI and EXEC: TIME, and GET for a look, INCRBY and EXPIRE for hits.
    fn queued(&self, run: &Run) -> usize {
        run.items.iter().fold(1, |sum, &item| sum + self.commands(item))
    }

    fn commands(&self, item: Item) -> usize {
        if self.check(item).1.hits == 0 { 1 } else { 2 }
    }

    fn read_transaction(&self, run: &Run, words: &mut Words<'_>, answers: &mut [Answer]) -> Result<Micros, StoreError> {
        let now = words.next().filter(|word| *word == Word::Array(2)).and_then(|_| time(words)).ok_or(STRANGE)?;
        for ((_, check, fixed), place) in self.counted(run).zip(answers) {
            let counted = counted_value(check, value(words)?);
            if check.hits != 0 {
                // The reply to EXPIRE tells nothing: the key is there, the line before made it.
                value(words)?;
            }
            *place = counted.map(|count| self.judge(fixed, check, count, now));
        }
        Ok(now)
    }

    /// Each command was taken or refused on its own.
    fn read_plain(
        &self,
        run: &Run,
        words: &mut Words<'_>,
        answers: &mut [Answer],
        elsewhere: &mut Elsewhere,
    ) -> Result<Micros, StoreError> {
        let now = match words.next() {
            Some(Word::Array(2)) => Ok(time(words).ok_or(STRANGE)?),
            Some(Word::Error(line)) => Err(StoreError::Unknown(error::classify_line(line).name)),
            _ => return Err(STRANGE),
        };
        for (index, ((_, check, fixed), place)) in self.counted(run).zip(answers).enumerate() {
            let said = value(words)?;
            if let (true, Some(redirect)) = (self.manner.by_slot, server_error(said).and_then(Redirect::read)) {
                elsewhere.push((index, redirect));
            }
            *place = counted_value(check, said).and_then(|count| now.map(|now| self.judge(fixed, check, count, now)));
        }
        Ok(now.unwrap_or_default())
    }

    fn judge(&self, fixed: &FixedWindow, check: &Check, count: u64, now: Micros) -> Verdict {
        fixed.judge(fixed.number(self.now.time), count, now, check.hits)
    }

    fn keep_secs(&self, fixed: &FixedWindow) -> u64 {
        let left = fixed.end(fixed.number(self.now.time)).since(self.now.time).secs_rounded_up();
        left + GRACE_SECS + fastrand::u64(..=longest_jitter(fixed, self.manner.expiry_jitter_secs))
    }
}

/// Checks of a run that have to go elsewhere: the index into its items, and where.
type Elsewhere = SmallVec<[(usize, Redirect); 1]>;

/// Why a whole run has no answers, and the server's line if it is it who says so.
struct Failed<'w> {
    error: StoreError,
    cause: Option<&'w [u8]>,
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

/// Takes a plain value.
fn value<'w>(words: &mut Words<'w>) -> Result<Word<'w>, StoreError> {
    words.next().filter(|word| !matches!(word, Word::Array(_) | Word::Status(_))).ok_or(STRANGE)
}

/// What a counter stands at, by the reply to its INCRBY or GET.
fn counted_value(check: &Check, said: Word<'_>) -> Result<u64, StoreError> {
    match said {
        Word::Nil if check.hits == 0 => Ok(0),
        Word::Error(line) => match error::classify_line(line) {
            kind if kind.name == error::OVERFLOW => Ok(i64::MAX.unsigned_abs()),
            kind => Err(kind.error()),
        },
        value => value.whole().ok_or(StoreError::Data(error::NOT_AN_INTEGER)).and_then(count),
    }
}

fn count(number: i64) -> Result<u64, StoreError> {
    u64::try_from(number).map_err(|_| StoreError::Data(error::RANGE))
}

fn server_error(word: Word<'_>) -> Option<&[u8]> {
    if let Word::Error(line) = word { Some(line) } else { None }
}

/// Takes the replies to a transaction up to its values, as many as there are commands `queued`.
fn executed<'w>(words: &mut Words<'w>, queued: usize) -> Result<(), Failed<'w>> {
    let begun = words.next().ok_or(STRANGE)?;
    let mut cause = server_error(begun);
    let mut are_taken = begun == Word::Status(b"OK");
    if !are_taken && cause.is_none() {
        return Err(STRANGE.into());
    }
    for _ in 0..queued {
        match words.next() {
            Some(Word::Status(b"QUEUED")) => {}
            Some(Word::Error(line)) => {
                are_taken = false;
                cause = cause.or(Some(line));
            }
            _ => return Err(STRANGE.into()),
        }
    }
    match words.next() {
        Some(Word::Array(values)) if are_taken && values == queued => Ok(()),
        // Nothing ran if the transaction was refused and no command was answered on its own.
        Some(Word::Error(line)) => {
            let cause = cause.unwrap_or(line);
            Err(Failed { error: StoreError::NotExecuted(error::classify_line(cause).name), cause: Some(cause) })
        }
        _ => Err(STRANGE.into()),
    }
}

#[cfg(test)]
mod tests;
