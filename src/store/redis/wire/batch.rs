//! The commands for the checks of many requests to one Redis server; `batch/read.rs` reads the
//! replies to them.
//!
//! A check is encoded in one of three ways. A peek at a fixed window that counts refused hits, and
//! a hit on one whose counter certainly expires, are plain commands (`TIME`, `GET` or `INCRBY`). A
//! hit on another such window goes in a transaction (`MULTI`, `TIME`, `INCRBY` and `EXPIRE`,
//! `EXEC`), with the peeks of its request at the same window. All other checks go in a call of the
//! script. Hits of a batch on one counter are one `INCRBY` of their sum: its reply yields for each
//! of them the position that separate `INCRBY`s would return. The keys that a server accepts
//! together ([`KeyScope`]) decide how many transactions and calls it gets. A server may begin to
//! refuse them at any time: what it refused is then sent again, slot by slot ([`Retry`]). Every
//! request gets its own answers, even if others in the batch fail.

mod read;
mod retries;

use std::ops::Range;

use smallvec::SmallVec;

use super::call::{Call, ClockReading, ScriptRef, longest_jitter, write_key};
use super::commands::CommandBuffer;
use super::hash_slot::{self, Slot};
use super::known_ttls::{CounterKey, KnownTtls};
use super::request::{CheckPosition, Picked, Reply, Request};
use crate::core::algorithm::{Algorithm, FixedWindow};
use crate::core::time::Micros;
use crate::core::verdict::StoreError;
use crate::limits::plan::{Check, CheckIndex, Checks};
use crate::limits::rules::Commit;
use crate::store::redis::error;

/// Seconds by which the key of a window outlives the window, because the estimate that numbers
/// windows may lag the clock that expires keys.
const GRACE_SECS: u64 = 5;

/// Keys that a transaction or a call of the script may use together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyScope {
    /// Any keys: a single server.
    Any,
    /// A transaction may use keys of one hash slot, a call keys of all slots of the node, which it
    /// does not declare: a node of a cluster.
    Node,
    /// Keys of one hash slot: a node that refuses undeclared keys, or an address in front of
    /// several shards.
    Slot,
}

/// Options for the encoding of the checks of a batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BatchOptions {
    pub(crate) scope: KeyScope,
    /// The server is a node of a cluster, and may name another node in its replies.
    pub(crate) follows_redirects: bool,
    /// Fixed windows are decided by the script too, which counts nothing after the caller's
    /// deadline.
    pub(crate) fixed_windows_by_script: bool,
    /// See [`crate::store::redis::Options::expiry_jitter_secs`].
    pub(crate) expiry_jitter_secs: u32,
}

/// The commands for many requests.
#[derive(Debug)]
pub(crate) struct Batch<'r> {
    requests: SmallVec<[&'r Request; 16]>,
    options: BatchOptions,
    now: ClockReading,
    groups: SmallVec<[CommandGroup<'r>; 2]>,
}

/// Checks that are sent together: as plain commands, as one transaction, or as one call of the
/// script.
#[derive(Clone, Debug)]
struct CommandGroup<'r> {
    way: Way,
    /// Checks of a call are in the order of the requests, which keeps the checks of one request
    /// together. Others are sorted by counter, which keeps hits on one counter together.
    checks: SmallVec<[CheckPosition; 16]>,
    /// The commands on counters of plain commands or of a transaction; none of a call.
    commands: Vec<CounterCommand<'r>>,
}

/// Way in which checks are sent. Checks that are sent in the same way may be in one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Way {
    encoding: GroupEncoding,
    /// The keys that they may use together; plain commands may use any.
    scope: KeyScope,
    /// The hash slot of their keys, if they may be of one slot only.
    slot: Slot,
    is_asking: bool,
}

/// A command on a counter: one peek, or one INCRBY for hits that follow each other on it.
#[derive(Clone, Debug)]
struct CounterCommand<'r> {
    counter: CounterKey,
    /// The checks of the group that it answers: all of them are hits, or it is one peek.
    answers: Range<usize>,
    /// The sum of their hits.
    hits: i64,
    fixed: &'r FixedWindow,
}

/// Encoding of a group of checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GroupEncoding {
    /// Single commands, whose keys may belong to any slots.
    Plain,
    /// Commands between MULTI and EXEC.
    Transaction,
    /// One call of the script.
    Script(ScriptRef),
}

/// A reason to send a part of a batch again.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Retry {
    /// Redis does not have the script. The first of the calls has its text: EVAL puts it into the
    /// cache, where the others find it.
    NoScript,
    /// It still does not have it: shards with one address do not share a cache. All calls have
    /// the text.
    NoSharedScript,
    /// The server does not accept keys of several slots, or undeclared ones. What a transaction or
    /// a call with such keys did not execute is sent in groups of one slot with declared keys; by
    /// itself if that was not because of the slots.
    Slots,
    /// The script refused checks as late although their callers still have time, by this new
    /// reading of the clock: Redis's clock has jumped.
    Late(ClockReading),
}

impl BatchOptions {
    fn way(&self, encoding: GroupEncoding, request: &Request, pick: usize) -> Way {
        let is_asking = request.is_asking;
        let scope = match (self.scope, encoding) {
            (KeyScope::Any, _) | (_, GroupEncoding::Plain) => KeyScope::Any,
            (KeyScope::Node, GroupEncoding::Script(_)) if !is_asking => KeyScope::Node,
            _ => KeyScope::Slot,
        };
        let slot = match (scope, request.picked[pick].slot) {
            (KeyScope::Slot, Some(slot)) => slot,
            (KeyScope::Slot, None) => hash_slot::of(request.checks.key(request.check(pick))),
            _ => 0,
        };
        Way {
            encoding,
            scope,
            slot,
            is_asking,
        }
    }
}

impl<'r> Batch<'r> {
    /// The commands for all of `requests`. `now` numbers the windows; the counters in `known_ttls`
    /// take plain commands.
    pub(crate) fn new(
        requests: impl IntoIterator<Item = &'r Request>,
        batch_options: BatchOptions,
        now: ClockReading,
        known_ttls: &mut KnownTtls,
    ) -> Self {
        let mut batch = Self {
            requests: requests.into_iter().collect(),
            options: batch_options,
            now,
            groups: SmallVec::new(),
        };
        for index in 0..batch.requests.len() {
            let request = batch.requests[index];
            // All checks of a request with a refund go by script, to keep the order of its checks
            // on one key.
            let by_script = batch_options.fixed_windows_by_script || request.checks.has_refund();
            // Of a slot that is being migrated the node may have some keys and not others, and
            // would refuse all of a group with TRYAGAIN.
            let is_alone = request.is_asking && request.checks.commit == Commit::Each;
            for (pick, &picked) in request.picked.iter().enumerate() {
                let encoding = if by_script {
                    GroupEncoding::Script(ScriptRef::ByHash)
                } else {
                    encoding(request, picked.index, now.time, known_ttls)
                };
                let position = CheckPosition {
                    request: index,
                    pick,
                };
                batch.add(position, encoding, is_alone);
            }
        }
        batch.make_commands();
        batch
    }

    /// Adds a check to the latest group that is sent in the same way, or to a new group: always if
    /// it `is_alone`.
    fn add(&mut self, at: CheckPosition, encoding: GroupEncoding, is_alone: bool) {
        let way = self
            .options
            .way(encoding, self.requests[at.request], at.pick);
        let mut groups = self.groups.iter_mut();
        match groups.rfind(|group| group.way == way && !is_alone) {
            Some(group) => group.checks.push(at),
            None => {
                let likely = match way.scope {
                    KeyScope::Any | KeyScope::Node => self.requests.len(),
                    KeyScope::Slot => 1,
                };
                let mut checks = SmallVec::with_capacity(likely);
                checks.push(at);
                self.groups.push(CommandGroup {
                    way,
                    checks,
                    commands: Vec::new(),
                });
            }
        }
    }

    /// Sorts the checks of plain commands and transactions by their counters, and makes the commands
    /// on these. Checks of one counter keep their order.
    fn make_commands(&mut self) {
        let requests = &self.requests;
        let key = |at: &CheckPosition| {
            let request = requests[at.request];
            (request.checks.key(request.check(at.pick)), *at)
        };
        for group in &mut self.groups {
            if !matches!(group.way.encoding, GroupEncoding::Script(_)) {
                group
                    .checks
                    .sort_unstable_by(|one, other| key(one).cmp(&key(other)));
                group.commands = counter_commands(requests, &group.checks, self.now.time);
            }
        }
    }

    /// One reply per request in which every answer is an error, for [`Batch::read`] to fill.
    pub(crate) fn unanswered(&self) -> impl Iterator<Item = Reply> {
        let unanswered = StoreError::Unknown(error::PROTOCOL);
        let requests = self.requests.iter();
        requests.map(move |request| Reply::failed(request.picked.len(), unanswered))
    }

    /// Encodes all commands.
    pub(crate) fn write(&self, out: &mut CommandBuffer) {
        for group in &self.groups {
            if group.way.is_asking {
                out.push([b"ASKING"]);
            }
            match group.way.encoding {
                GroupEncoding::Plain => {
                    out.push([b"TIME"]);
                    self.write_counts(group, out);
                }
                GroupEncoding::Transaction => {
                    out.push([b"MULTI"]);
                    out.push([b"TIME"]);
                    self.write_counts(group, out);
                    out.push([b"EXEC"]);
                }
                GroupEncoding::Script(script_ref) => {
                    self.call(group).write(script_ref, out.begin());
                    out.end();
                }
            }
        }
    }

    /// Encodes the hits and peeks of plain commands or of a transaction. In a transaction `EXPIRE`
    /// follows each counter's hits.
    fn write_counts(&self, group: &CommandGroup<'_>, out: &mut CommandBuffer) {
        let mut key = std::mem::take(&mut out.key);
        for command in &group.commands {
            let (checks, check) = self.check(group.checks[command.answers.start]);
            write_key(checks, check, self.now.time, &mut key);
            if command.hits == 0 {
                out.push([b"GET", &key]);
                continue;
            }
            let mut hits = itoa::Buffer::new();
            out.push([b"INCRBY", &key, hits.format(command.hits).as_bytes()]);
            if group.way.encoding == GroupEncoding::Transaction {
                // A key that holds no counter gets a TTL all the same: under Weir's prefix it can
                // only be there by accident.
                self.write_expiry(&key, command.fixed, out);
            }
        }
        out.key = key;
    }

    fn write_expiry(&self, key: &[u8], fixed: &FixedWindow, out: &mut CommandBuffer) {
        let mut ttl_secs = itoa::Buffer::new();
        let ttl_secs = ttl_secs.format(self.ttl_secs(fixed));
        out.push([b"EXPIRE", key, ttl_secs.as_bytes()]);
    }

    /// Records in `known_ttls` which counters have a TTL by now. Returns a plain hit of each
    /// counter that has none: Redis had lost it, and INCRBY created it again. Such a counter shows
    /// by the count of its first hit, which is the hits of that one check.
    pub(crate) fn learn(
        &self,
        replies: &[Reply],
        known_ttls: &mut KnownTtls,
    ) -> SmallVec<[CheckPosition; 1]> {
        let mut without_ttl = SmallVec::new();
        for group in &self.groups {
            for command in group.commands.iter().filter(|command| command.hits > 0) {
                let (first, counter) = (group.checks[command.answers.start], command.counter);
                let own_hits = FixedWindow::clamp(self.check(first).1.hits).unsigned_abs();
                match first.verdict(replies) {
                    Err(_) => known_ttls.forget(counter),
                    Ok(_) if group.way.encoding == GroupEncoding::Transaction => {
                        known_ttls.learn(counter);
                    }
                    Ok(verdict) if verdict.used == own_hits => {
                        known_ttls.forget(counter);
                        without_ttl.push(first);
                    }
                    Ok(_) => {}
                }
            }
        }
        without_ttl
    }

    /// Encodes an EXPIRE for each of the counters that [`Batch::learn`] returned.
    pub(crate) fn write_expiries(&self, without_ttl: &[CheckPosition], out: &mut CommandBuffer) {
        let mut key = std::mem::take(&mut out.key);
        for (checks, check) in without_ttl.iter().map(|&at| self.check(at)) {
            if let Some(fixed) = window_without_script(checks, check) {
                write_key(checks, check, self.now.time, &mut key);
                self.write_expiry(&key, fixed, out);
            }
        }
        out.key = key;
    }

    fn call<'b>(&'b self, group: &'b CommandGroup<'_>) -> Call<'b> {
        Call {
            requests: &self.requests,
            checks: &group.checks,
            refused: &[],
            now: self.now,
            is_time_given: false,
            crosses_slots: group.way.scope == KeyScope::Node,
            jitter_secs: self.options.expiry_jitter_secs,
        }
    }

    fn index(&self, at: CheckPosition) -> CheckIndex {
        self.requests[at.request].picked[at.pick].index
    }

    fn check(&self, at: CheckPosition) -> (&Checks, &Check) {
        let request = self.requests[at.request];
        (&request.checks, request.check(at.pick))
    }

    /// Answers all checks of this batch with the same error.
    pub(crate) fn fail(&self, error: StoreError, replies: &mut [Reply]) {
        for at in self.groups.iter().flat_map(|group| &group.checks) {
            replies[at.request].answers[at.pick] = error.into();
        }
    }

    /// The TTL of the counter of the current window in seconds: the rest of the window, the grace,
    /// and the jitter.
    fn ttl_secs(&self, fixed: &FixedWindow) -> u64 {
        let end = fixed.end(fixed.number(self.now.time));
        let left = end.since(self.now.time).secs_rounded_up();
        left + GRACE_SECS + fastrand::u64(..=longest_jitter(fixed, self.options.expiry_jitter_secs))
    }
}

/// The commands on the counters of these checks, which are sorted by counter.
fn counter_commands<'r>(
    requests: &[&'r Request],
    checks: &[CheckPosition],
    now: Micros,
) -> Vec<CounterCommand<'r>> {
    let check = |at: &CheckPosition| {
        let request: &'r Request = requests[at.request];
        (&*request.checks, request.check(at.pick))
    };
    let is_one_command = |one: &CheckPosition, other: &CheckPosition| {
        let ((checks, one), (others, other)) = (check(one), check(other));
        one.hits > 0 && other.hits > 0 && checks.key(one) == others.key(other)
    };
    let mut commands = Vec::with_capacity(checks.len());
    let mut start = 0;
    for answers in checks.chunk_by(is_one_command) {
        let range = start..start + answers.len();
        start = range.end;
        let (checks, first) = check(&answers[0]);
        // All checks of these groups have one.
        if let Some(fixed) = window_without_script(checks, first) {
            // Sums do not overflow: a batch has at most some hundred checks, of at most 2^53 hits.
            let hits = |at: &CheckPosition| FixedWindow::clamp(check(at).1.hits);
            commands.push(CounterCommand {
                counter: counter(first, fixed, now),
                answers: range,
                hits: answers.iter().map(hits).sum(),
                fixed,
            });
        }
    }
    commands
}

/// The window of a check that plain commands or a transaction can decide: one that counts whatever
/// the answer is, and for itself alone.
fn window_without_script<'c>(checks: &Checks, check: &'c Check) -> Option<&'c FixedWindow> {
    match &check.algorithm {
        Algorithm::FixedWindow(fixed)
            if fixed.count_denied
                && check.hits >= 0
                && !check.has_holds()
                && checks.commit == Commit::Each =>
        {
            Some(fixed)
        }
        _ => None,
    }
}

/// The encoding of a check of a request that need not go by script.
fn encoding(
    request: &Request,
    index: CheckIndex,
    now: Micros,
    known_ttls: &mut KnownTtls,
) -> GroupEncoding {
    let (checks, check) = (&request.checks, &request.checks[index]);
    let fixed = window_without_script(checks, check).filter(|_| !check.is_tracked());
    let Some(fixed) = fixed else {
        return GroupEncoding::Script(ScriptRef::ByHash);
    };
    // ASKING covers one command or one transaction: in a slot that is being migrated INCRBY and
    // EXPIRE have to go together. A peek has to keep its place among the hits of its request on the
    // same counter, and so takes their encoding.
    let is_hit = |picked: &Picked| {
        let other = &checks[picked.index];
        other.hits > 0 && checks.key(other) == checks.key(check)
    };
    let is_lone_peek = check.hits == 0 && !request.picked.iter().any(is_hit);
    if !request.is_asking && (is_lone_peek || known_ttls.knows(counter(check, fixed, now))) {
        GroupEncoding::Plain
    } else {
        GroupEncoding::Transaction
    }
}

/// The counter of a check in the window that contains `now`.
fn counter(check: &Check, fixed: &FixedWindow, now: Micros) -> CounterKey {
    CounterKey {
        key: check.fingerprint,
        window: fixed.number(now),
    }
}

#[cfg(test)]
mod tests;
