//! One call of the script: how the checks of some requests are told to it. What its reply means stands in `call/read.rs`.
//!
//! The twin of `lua/frame.lua`, which describes both. Numbers go back and forth packed, because that is what Lua reads and writes fastest;
//! what many checks have in common is told once.

mod read;

use std::hash::BuildHasher;

use bb8_redis::redis::Cmd;
use hashbrown::DefaultHashBuilder;
use smallvec::SmallVec;

use super::script;
use crate::algorithm::{Algorithm, FixedWindow, SCRIPT_PARAMETERS};
use crate::plan::{Check, CheckIndices, Checks};
use crate::rules::Commit;
use crate::time::{MAX_SAFE_INTEGER, Micros, Span};

/// Whole numbers up to this one are exact in Lua.
const MOST: i64 = MAX_SAFE_INTEGER.cast_signed();

/// Bytes of a number.
const NUMBER: usize = 8;

/// Bytes that tell a limit, and a request.
const LIMIT: usize = 1 + (1 + SCRIPT_PARAMETERS) * NUMBER;
const REQUEST: usize = 1 + 2 * 2 + NUMBER;

/// A call that decides some checks of some requests.
#[derive(Clone, Debug)]
pub struct Call<'p> {
    /// The requests, in order.
    pub requests: SmallVec<[CallRequest<'p>; 1]>,
    /// What Redis's clock shows, by estimate.
    pub now: Micros,
    /// Redis takes `now` for its clock, keeps keys for years, and says for how long each had to be kept. For tests.
    pub is_time_given: bool,
    /// Counters of fixed windows live for a random time of at most so many seconds longer.
    pub jitter_secs: u32,
}

/// What a call decides of one request.
#[derive(Clone, Debug)]
pub struct CallRequest<'p> {
    /// The request.
    pub checks: &'p Checks,
    /// Which of its checks; of checks that commit all or none all of them.
    pub picked: CheckIndices,
    /// Nothing is counted after this time of Redis's clock.
    pub deadline: Micros,
    /// How long the caller can be held by a shaper.
    pub max_hold: Span,
}

impl<'p> CallRequest<'p> {
    /// Each check, and its part.
    fn checks(&self) -> impl Iterator<Item = (&Self, &'p Check)> {
        self.picked.iter().map(move |&index| (self, &self.checks[index]))
    }
}

/// How the script is named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScriptRef {
    /// As Redis knows it.
    ByHash,
    /// For a Redis that does not.
    ByText,
}

impl Call<'_> {
    /// Packs the whole command.
    #[must_use]
    pub fn command(&self, script_ref: ScriptRef) -> Cmd {
        let mut command = Cmd::new();
        self.write(script_ref, &mut command);
        command
    }

    /// Packs the whole command into an empty one.
    pub(crate) fn write(&self, script_ref: ScriptRef, command: &mut Cmd) {
        match script_ref {
            ScriptRef::ByHash => command.arg("EVALSHA").arg(&*script::HASH),
            ScriptRef::ByText => command.arg("EVAL").arg(&*script::TEXT),
        };
        let checks = self.len();
        command.arg(checks);
        // Keys are found by their hashes, because there may be many of them, and long ones.
        let hasher = DefaultHashBuilder::default();
        let mut keys: SmallVec<[(u64, &[u8], u8); 16]> = SmallVec::with_capacity(checks);
        let mut limits: SmallVec<[&Algorithm; 16]> = SmallVec::new();
        let mut runs: SmallVec<[Run; 8]> = SmallVec::new();
        let mut firsts: SmallVec<[usize; 16]> = SmallVec::with_capacity(checks);
        let mut key = Vec::new();
        for (place, (request, check)) in self.checks().enumerate() {
            write_key(request.checks, check, self.now, &mut key);
            command.arg(&key[..]);
            let own = request.checks.key(check);
            let own = (hasher.hash_one(own), own, check.algorithm.spec().wire_code);
            firsts.push(keys.iter().position(|key| *key == own).unwrap_or(place));
            keys.push(own);
            let limit = limits.iter().position(|limit| **limit == check.algorithm).unwrap_or_else(|| {
                limits.push(&check.algorithm);
                limits.len() - 1
            });
            let run = self.run(request, check, limit);
            match runs.last_mut() {
                Some(last) if run == (Run { checks: 1, ..*last }) => last.checks += 1,
                _ => runs.push(run),
            }
        }
        if self.is_time_given {
            command.arg(self.now.0);
        } else {
            command.arg("");
        }
        command.arg(&self.uses(&limits)[..]);
        let mut packed = Vec::with_capacity(limits.len() * LIMIT);
        limits.iter().for_each(|limit| describe(limit, &mut packed));
        command.arg(&packed[..]);
        packed.clear();
        for run in &runs {
            pack_short(&mut packed, run.limit);
            pack_short(&mut packed, run.checks);
            packed.extend((run.hits as f64).to_le_bytes());
            pack(&mut packed, &[run.own]);
        }
        command.arg(&packed[..]);
        packed.clear();
        self.write_requests(&mut packed);
        command.arg(&packed[..]);
        if firsts.iter().enumerate().any(|(place, &first)| first != place) {
            packed.clear();
            firsts.iter().for_each(|first| pack_short(&mut packed, first + 1));
            command.arg(&packed[..]);
        }
    }

    fn write_requests(&self, out: &mut Vec<u8>) {
        let deadline = |request: &CallRequest<'_>| request.deadline.0.min(MOST.unsigned_abs());
        out.reserve(NUMBER + self.requests.len() * REQUEST);
        pack(out, &[self.requests.iter().map(deadline).min().unwrap_or(MOST.unsigned_abs())]);
        for request in &self.requests {
            out.push((request.checks.commit == Commit::AllOrNone).into());
            pack_short(out, request.picked.len());
            pack_short(out, request.checks.passing_quotas());
            pack(out, &[deadline(request)]);
        }
    }

    /// The letters of what this call needs.
    fn uses(&self, limits: &[&Algorithm]) -> SmallVec<[u8; 8]> {
        let mut uses: SmallVec<[u8; 8]> = SmallVec::new();
        for code in limits.iter().map(|limit| limit.spec().wire_code) {
            if !uses.contains(&code) {
                uses.push(code);
            }
        }
        if self.requests.iter().any(|request| request.checks.commit == Commit::AllOrNone) {
            uses.push(b'A');
        }
        uses
    }

    /// A run of this check alone. Roles matter only to requests that commit all or none.
    fn run(&self, request: &CallRequest<'_>, check: &Check, limit: usize) -> Run {
        let role = match request.checks.commit {
            Commit::Each => 0,
            Commit::AllOrNone => usize::from(check.modes.quota) + 2 * usize::from(check.modes.shadow),
        };
        let hits = check.hits.clamp(-MOST, i64::from(check.algorithm.capacity()) + 1);
        Run { limit: 4 * limit + role, checks: 1, hits, own: self.own_number(check, request.max_hold) }
    }

    /// What belongs to a check and not to its limit: for how long the counter of a window is kept, and how long a caller can be held.
    fn own_number(&self, check: &Check, max_hold: Span) -> u64 {
        match &check.algorithm {
            Algorithm::FixedWindow(fixed) => {
                let jitter = fastrand::u64(..=longest_jitter(fixed, self.jitter_secs)) * 1_000_000;
                fixed.end(fixed.number(self.now)).since(self.now).micros() + jitter
            }
            algorithm => algorithm.check_parameter(max_hold),
        }
    }

    /// How many checks it decides.
    #[must_use]
    pub fn len(&self) -> usize {
        self.requests.iter().map(|request| request.picked.len()).sum()
    }

    /// Whether it decides none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.requests.iter().all(|request| request.picked.is_empty())
    }

    fn checks(&self) -> impl Iterator<Item = (&CallRequest<'_>, &Check)> {
        self.requests.iter().flat_map(CallRequest::checks)
    }
}

/// Neighbours that are told at once.
#[derive(Clone, Copy, PartialEq)]
struct Run {
    /// Where their limit stands among the limits, times four, and their role.
    limit: usize,
    checks: usize,
    hits: i64,
    own: u64,
}

/// What the script is told of a limit.
fn describe(limit: &Algorithm, out: &mut Vec<u8>) {
    out.push(limit.spec().wire_code);
    pack(out, &[limit.tick().micros()]);
    pack(out, &limit.script_parameters());
}

/// Writes the key of a check as it stands in Redis. The counter of a fixed window is named for the window that `now` lies in.
pub(crate) fn write_key(checks: &Checks, check: &Check, now: Micros, out: &mut Vec<u8>) {
    out.clear();
    out.extend_from_slice(checks.key(check));
    if let Algorithm::FixedWindow(fixed) = &check.algorithm {
        out.push(b':');
        out.extend_from_slice(itoa::Buffer::new().format(fixed.number(now)).as_bytes());
    }
}

/// Seconds by which keys of a window may live longer at most, so that they do not all expire together.
pub(crate) fn longest_jitter(fixed: &FixedWindow, jitter_secs: u32) -> u64 {
    u64::from(jitter_secs).min(fixed.window.secs_rounded_up())
}

/// A number as `struct.unpack('<H')` reads it. A request has some hundred descriptors at most, and a batch not many more.
fn pack_short(out: &mut Vec<u8>, number: usize) {
    out.extend(u16::try_from(number).unwrap_or(u16::MAX).to_le_bytes());
}

/// Numbers as `struct.unpack('<d...')` reads them; all are below 2^53.
fn pack(out: &mut Vec<u8>, numbers: &[u64]) {
    out.extend(numbers.iter().flat_map(|&number| (number as f64).to_le_bytes()));
}
