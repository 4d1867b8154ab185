//! The commands for the checks of many requests to one Redis server; `batch/read.rs` reads the replies to them.
//!
//! A check is encoded in one of three ways. A look at a fixed window that counts refused hits, and a hit on one whose counter is known to
//! expire, are plain commands (`TIME`, `GET` or `INCRBY`). A hit on another such window goes in a transaction (`MULTI`, `TIME`, `INCRBY` and
//! `EXPIRE`, `EXEC`). All other checks go in a call of the script. A single server gets at most one group of each encoding. A node of a cluster
//! gets one transaction and one call per slot, because neither may use keys of two slots. Every request gets its own answers, whatever became
//! of the others in the batch.

mod read;

use std::sync::Arc;

use smallvec::SmallVec;
use tokio::time::Instant;

use super::call::{Call, CallRequest, ScriptRef, longest_jitter, write_key};
use super::commands::CommandBuffer;
use super::hash_slot::{self, Redirect, Slot};
use super::known_ttls::{CounterKey, KnownTtls};
use crate::algorithm::{Algorithm, FixedWindow};
use crate::plan::{Check, CheckIndex, CheckIndices, Checks};
use crate::rules::Commit;
use crate::store::Budget;
use crate::store::redis::error;
use crate::time::{Micros, Span};
use crate::verdict::{StoreError, Verdict};

/// Keys outlive their window by this much, because the estimate that numbers the windows may lag behind the clock that expires keys.
const GRACE_SECS: u64 = 5;

/// A script may come this much later than its caller's deadline and still count; the estimate of Redis's clock is not sharper.
const SLACK: Span = Span::from_micros(5_000);

/// Room for a key; a longer one takes more.
const USUAL_KEY: usize = 256;

pub(crate) type Answer = Result<Verdict, StoreError>;

/// Checks of one request that go to one server.
#[derive(Clone, Debug)]
pub(crate) struct Work {
    pub(crate) checks: Arc<Checks>,
    pub(crate) picked: CheckIndices,
    pub(crate) budget: Budget,
    /// The server gave the slot away, or is about to get it, and has to be told that we know.
    pub(crate) is_asking: bool,
}

/// What came of the work of one request.
#[derive(Clone, Debug)]
pub(crate) struct WorkReply {
    /// The server's time; 0 when it did not tell.
    pub(crate) now: Micros,
    /// One per picked check, in order.
    pub(crate) answers: SmallVec<[Answer; 4]>,
    /// Checks that have to go elsewhere, and where.
    pub(crate) redirects: Vec<(CheckIndex, Redirect)>,
}

impl WorkReply {
    /// The same error for all of `count` answers.
    pub(crate) fn failed(count: usize, error: StoreError) -> Self {
        Self { now: Micros::default(), answers: SmallVec::from_elem(Err(error), count), redirects: Vec::new() }
    }
}

/// How a batch is made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BatchOptions {
    /// Nothing may reach over two slots.
    pub(crate) by_slot: bool,
    /// Fixed windows take the script too, which counts nothing that comes too late.
    pub(crate) fixed_windows_by_script: bool,
    /// See [`crate::store::redis::Options::expiry_jitter_secs`].
    pub(crate) expiry_jitter_secs: u32,
}

/// The server's time, by estimate, at an instant.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClockReading {
    pub(crate) time: Micros,
    pub(crate) at: Instant,
}

/// The commands for the work of some requests.
#[derive(Debug)]
pub(crate) struct Batch<'w> {
    work: SmallVec<[&'w Work; 16]>,
    batch_options: BatchOptions,
    now: ClockReading,
    groups: SmallVec<[CommandGroup; 2]>,
}

/// Checks that are sent together: as plain commands, as one transaction, or as one call of the script.
#[derive(Clone, Debug)]
struct CommandGroup {
    encoding: Encoding,
    slot: Slot,
    is_asking: bool,
    /// In the order of the work, so that what belongs to one request stands together.
    items: Vec<CheckRef>,
}

/// A check: the index into the batch's work, and the index into its picked checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CheckRef {
    work: usize,
    at: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Encoding {
    /// Commands that stand for themselves, on any slots.
    Plain,
    Transaction,
    Script(ScriptRef),
}

impl<'w> Batch<'w> {
    /// All of `work`, for a server whose counters are known to expire as far as `known_ttls` tells.
    pub(crate) fn new(
        work: impl IntoIterator<Item = &'w Work>,
        batch_options: BatchOptions,
        now: ClockReading,
        known_ttls: &mut KnownTtls,
    ) -> Self {
        let mut batch = Self { work: work.into_iter().collect(), batch_options, now, groups: SmallVec::new() };
        for (index, work) in batch.work.iter().enumerate() {
            // A request that gives back goes one way, so that its checks on one key keep their order.
            let by_script = batch_options.fixed_windows_by_script || work.checks.iter().any(|check| check.hits < 0);
            for (at, &picked) in work.picked.iter().enumerate() {
                let check = &work.checks[picked];
                let encoding = match counted(&work.checks, check) {
                    Some(fixed) if !by_script => {
                        // Where a slot arrives, whatever is said to the keys on their way has to be said together.
                        let is_plain = !work.is_asking && (check.hits == 0 || known_ttls.knows(batch.counter(&work.checks, check, fixed)));
                        if is_plain { Encoding::Plain } else { Encoding::Transaction }
                    }
                    _ => Encoding::Script(ScriptRef::ByHash),
                };
                let slot = if batch_options.by_slot && encoding != Encoding::Plain { hash_slot::of(work.checks.key(check)) } else { 0 };
                let item = CheckRef { work: index, at };
                // Of a slot that is on its way some keys may be there and others not: together they would be refused.
                let is_alone = work.is_asking && work.checks.commit == Commit::Each;
                let belongs = |group: &&mut CommandGroup| {
                    group.encoding == encoding && group.slot == slot && group.is_asking == work.is_asking && !is_alone
                };
                match batch.groups.iter_mut().find(belongs) {
                    Some(group) => group.items.push(item),
                    None => {
                        let mut items = Vec::with_capacity(if batch_options.by_slot { 1 } else { batch.work.len() });
                        items.push(item);
                        batch.groups.push(CommandGroup { encoding, slot, is_asking: work.is_asking, items });
                    }
                }
            }
        }
        batch
    }

    /// Nothing but errors, to be filled by [`Batch::read`].
    pub(crate) fn unanswered(&self) -> Vec<WorkReply> {
        let nothing = StoreError::Unknown(error::PROTOCOL);
        self.work.iter().map(|work| WorkReply::failed(work.picked.len(), nothing)).collect()
    }

    /// What has to be sent again because Redis did not know the script: with its text this time. Nothing on a connection that is out of step,
    /// where it would be answered by what others are still to get.
    pub(crate) fn without_script(&self, replies: &[WorkReply]) -> Option<Self> {
        if replies.iter().flat_map(|reply| &reply.answers).any(|answer| *answer == Err(StoreError::Unknown(error::PROTOCOL))) {
            return None;
        }
        let lacking = Err(StoreError::NotExecuted(error::NO_SCRIPT));
        let mut groups: SmallVec<[CommandGroup; 2]> = SmallVec::new();
        for group in &self.groups {
            let CheckRef { work, at } = group.items[0];
            if group.encoding == Encoding::Script(ScriptRef::ByHash) && replies[work].answers[at] == lacking {
                // Once it has come, Redis knows it.
                let script_ref = if groups.is_empty() { ScriptRef::ByText } else { ScriptRef::ByHash };
                groups.push(CommandGroup { encoding: Encoding::Script(script_ref), ..group.clone() });
            }
        }
        (!groups.is_empty()).then(|| Self { work: self.work.clone(), groups, ..*self })
    }

    /// Packs the commands.
    pub(crate) fn write(&self, out: &mut CommandBuffer) {
        for group in &self.groups {
            if group.is_asking {
                out.push([b"ASKING"]);
            }
            match group.encoding {
                Encoding::Plain => {
                    out.push([b"TIME"]);
                    self.write_counts(group, out);
                }
                Encoding::Transaction => {
                    out.push([b"MULTI"]);
                    out.push([b"TIME"]);
                    self.write_counts(group, out);
                    out.push([b"EXEC"]);
                }
                Encoding::Script(script_ref) => {
                    self.call(group).write(script_ref, out.begin());
                    out.end();
                }
            }
        }
    }

    /// Packs the hits and looks of plain commands or of a transaction. In a transaction `EXPIRE` follows each hit.
    fn write_counts(&self, group: &CommandGroup, out: &mut CommandBuffer) {
        let mut key = Vec::with_capacity(USUAL_KEY);
        for (checks, check, fixed) in self.counted(group) {
            write_key(checks, check, self.now.time, &mut key);
            if check.hits == 0 {
                out.push([b"GET", &key]);
                continue;
            }
            out.push([b"INCRBY", &key, itoa::Buffer::new().format(fixed.clamp(check.hits)).as_bytes()]);
            if group.encoding == Encoding::Transaction {
                // A key that holds something else gets an expiry all the same: under our names it can only be an accident, and ends so.
                self.write_expiry(&key, fixed, out);
            }
        }
    }

    fn write_expiry(&self, key: &[u8], fixed: &FixedWindow, out: &mut CommandBuffer) {
        out.push([b"EXPIRE", key, itoa::Buffer::new().format(self.keep_secs(fixed)).as_bytes()]);
    }

    /// Takes in which counters expire from now on. Returns the hits whose counters turn out not to: they were gone, and a plain hit made them
    /// again.
    pub(crate) fn learn(&self, replies: &[WorkReply], known_ttls: &mut KnownTtls) -> SmallVec<[CheckRef; 1]> {
        let mut bare = SmallVec::new();
        for group in self.groups.iter().filter(|group| group.encoding == Encoding::Transaction || group.encoding == Encoding::Plain) {
            for (&item, (checks, check, fixed)) in group.items.iter().zip(self.counted(group)).filter(|(_, (_, check, _))| check.hits > 0) {
                let counter = self.counter(checks, check, fixed);
                match replies[item.work].answers[item.at] {
                    Err(_) => known_ttls.forget(counter),
                    Ok(_) if group.encoding == Encoding::Transaction => known_ttls.learn(counter),
                    Ok(verdict) if verdict.used == fixed.clamp(check.hits).unsigned_abs() => {
                        known_ttls.forget(counter);
                        bare.push(item);
                    }
                    Ok(_) => {}
                }
            }
        }
        bare
    }

    /// Packs the expiries of counters that have none.
    pub(crate) fn write_expiries(&self, bare: &[CheckRef], out: &mut CommandBuffer) {
        let mut key = Vec::with_capacity(USUAL_KEY);
        for (checks, check) in bare.iter().map(|&item| self.check(item)) {
            if let Some(fixed) = counted(checks, check) {
                write_key(checks, check, self.now.time, &mut key);
                self.write_expiry(&key, fixed, out);
            }
        }
    }

    fn counter<'c>(&self, checks: &'c Checks, check: &Check, fixed: &FixedWindow) -> CounterKey<'c> {
        CounterKey { key: checks.key(check), window: fixed.number(self.now.time) }
    }

    fn call(&self, group: &CommandGroup) -> Call<'_> {
        let mut requests: SmallVec<[CallRequest<'_>; 1]> = SmallVec::with_capacity(group.items.len().min(self.work.len()));
        for items in group.items.chunk_by(|left, right| left.work == right.work) {
            let work = self.work[items[0].work];
            let left = u64::try_from(work.budget.deadline.saturating_duration_since(self.now.at).as_micros()).unwrap_or(u64::MAX);
            requests.push(CallRequest {
                checks: &work.checks,
                picked: items.iter().map(|item| work.picked[item.at]).collect(),
                deadline: self.now.time + Span::from_micros(left) + SLACK,
                max_hold: work.budget.max_hold,
            });
        }
        Call { requests, now: self.now.time, is_time_given: false, jitter_secs: self.batch_options.expiry_jitter_secs }
    }

    fn check(&self, item: CheckRef) -> (&Checks, &Check) {
        let work = self.work[item.work];
        (&work.checks, &work.checks[work.picked[item.at]])
    }

    /// The checks of plain commands or of a transaction.
    fn counted<'b>(&'b self, group: &'b CommandGroup) -> impl Iterator<Item = (&'b Checks, &'b Check, &'b FixedWindow)> {
        group.items.iter().filter_map(|&item| {
            let (checks, check) = self.check(item);
            Some((checks, check, counted(checks, check)?))
        })
    }

    /// The same error for all checks of this batch.
    pub(crate) fn fail(&self, error: StoreError, replies: &mut [WorkReply]) {
        for item in self.groups.iter().flat_map(|group| &group.items) {
            replies[item.work].answers[item.at] = Err(error);
        }
    }

    fn keep_secs(&self, fixed: &FixedWindow) -> u64 {
        let left = fixed.end(fixed.number(self.now.time)).since(self.now.time).secs_rounded_up();
        left + GRACE_SECS + fastrand::u64(..=longest_jitter(fixed, self.batch_options.expiry_jitter_secs))
    }
}

/// The window of a check that plain commands or a transaction can decide: one that counts before the answer is known, for itself alone.
fn counted<'c>(checks: &Checks, check: &'c Check) -> Option<&'c FixedWindow> {
    match &check.algorithm {
        Algorithm::FixedWindow(fixed) if fixed.count_denied && check.hits >= 0 && checks.commit == Commit::Each => Some(fixed),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
