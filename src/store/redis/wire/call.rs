//! The encoder of a call of the script: the keys and arguments for the checks of many requests.
//! `call/read.rs` reads the reply.
//!
//! `lua/frame.lua` is the other end of this wire format, and describes its keys, arguments and
//! reply. Numbers are packed as binary doubles, because Lua takes longer to read a number as text
//! than Redis takes to look a key up. Consecutive checks that differ only in their keys are
//! run-length encoded, and each limit is sent once.
//!
//! Nothing here decides a check, and nothing here may depend on a script other than the one of
//! `script.rs`.
//!
//! Source: redis.io, command pages of EVAL and EVALSHA; Lua's struct library as Redis documents it
//! in "Redis Lua API reference".
//!
//! Tracked checks are not merged to runs, because the step of a run says only of its last check
//! whether it is allowed. `lua/usage.lua` wraps the steps that occur, so that calls without usage
//! run the same code as without it. A state holds its expiry, so that it is overwritten in place
//! until that instant comes near.

mod read;

use std::hash::BuildHasher;
use std::sync::Arc;

use bb8_redis::redis::Cmd;
use hashbrown::{DefaultHashBuilder, HashMap};
use smallvec::SmallVec;

use super::script;
use crate::core::algorithm::concurrency::HolderId;
use crate::core::algorithm::{Algorithm, FixedWindow, LARGEST_COUNT, SCRIPT_PARAMETERS};
use crate::core::time::{MAX_SAFE_INTEGER, Micros, Span};
use crate::core::usage::{Settings, Tracking};
use crate::limits::plan::{Check, CheckIndex, CheckIndices, Checks, key};
use crate::limits::rules::Commit;

/// The largest integer up to which Lua's numbers, which are doubles, hold every integer exactly:
/// 2^53 - 1.
const MAX_INTEGER: i64 = MAX_SAFE_INTEGER.cast_signed();

/// Bytes of a packed number.
const NUMBER_BYTES: usize = 8;

/// Bytes of a packed limit: the algorithm's code, the tick and the parameters.
const LIMIT_BYTES: usize = 1 + (1 + SCRIPT_PARAMETERS) * NUMBER_BYTES;

/// Bytes of a packed request: whether it commits all or none, its checks, its passing quotas and
/// its deadline.
const REQUEST_BYTES: usize = 1 + 2 * 2 + NUMBER_BYTES;

/// A call of the script, which decides checks of one or more requests in one atomic step.
#[derive(Clone, Debug)]
pub struct Call<'p> {
    /// The requests, in order.
    pub requests: SmallVec<[CallRequest<'p>; 1]>,
    /// Hits to record that no check of this call asks for.
    pub refused: Vec<RefusedHits<'p>>,
    /// The time of Redis's clock, by estimate. It numbers the windows of fixed windows.
    pub now: Micros,
    /// For tests: the script uses `now` in place of Redis's clock, keeps keys for years, and
    /// answers how long each has to be kept.
    pub is_time_given: bool,
    /// The TTL of a fixed window's counter is longer by a random time of at most this many seconds,
    /// and of at most the window.
    pub jitter_secs: u32,
}

/// The checks of one request that a call decides.
#[derive(Clone, Debug)]
pub struct CallRequest<'p> {
    /// All checks of the request.
    pub checks: &'p Checks,
    /// The checks to decide. Of checks that commit all or none all have to be picked.
    pub picked: CheckIndices,
    /// The script counts nothing of this request after this time of Redis's clock.
    pub deadline: Micros,
    /// How long a shaper may hold the request.
    pub max_hold: Span,
}

impl<'p> CallRequest<'p> {
    /// Each picked check with this request.
    fn checks(&self) -> impl Iterator<Item = (&Self, &'p Check)> {
        self.picked
            .iter()
            .map(move |&index| (self, &self.checks[index]))
    }
}

/// How a command names the script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScriptRef {
    /// EVALSHA with the script's SHA-1 digest. Redis answers NOSCRIPT when the script is not in its
    /// cache.
    ByHash,
    /// EVAL with the script's text, which also puts it into Redis's cache.
    ByText,
}

impl Call<'_> {
    /// The whole command.
    #[must_use]
    pub fn command(&self, script_ref: ScriptRef) -> Cmd {
        let mut command = Cmd::new();
        self.write(script_ref, &mut command);
        command
    }

    /// Writes the whole command into an empty one.
    pub(crate) fn write(&self, script_ref: ScriptRef, command: &mut Cmd) {
        match script_ref {
            ScriptRef::ByHash => command.arg("EVALSHA").arg(&*script::HASH),
            ScriptRef::ByText => command.arg("EVAL").arg(&*script::TEXT),
        };
        let checks = self.len();
        let usage = if self.is_tracked() {
            Some(UsageArguments::new(self))
        } else {
            None
        };
        command.arg(checks + usage.as_ref().map_or(0, |usage| usage.keys.len()));
        // Keys are compared by hash first, because there may be many, and long ones.
        let hasher = DefaultHashBuilder::default();
        let mut keys: SmallVec<[(u64, &[u8], u8); 16]> = SmallVec::with_capacity(checks);
        let mut limits: SmallVec<[&Algorithm; 16]> = SmallVec::new();
        let mut runs: SmallVec<[Run; 8]> = SmallVec::new();
        let mut firsts: SmallVec<[usize; 16]> = SmallVec::with_capacity(checks);
        let mut key = Vec::new();
        let mut was_tracked = false;
        let mut holders: Vec<u8> = Vec::new();
        for (position, (request, index)) in self.indexed().enumerate() {
            let check = &request.checks[index];
            write_key(request.checks, check, self.now, &mut key);
            command.arg(&key[..]);
            let plain_key = request.checks.key(check);
            let hashed_key = (
                hasher.hash_one(plain_key),
                plain_key,
                check.algorithm.spec().wire_code,
            );
            firsts.push(
                keys.iter()
                    .position(|key| *key == hashed_key)
                    .unwrap_or(position),
            );
            keys.push(hashed_key);
            let limit = limits
                .iter()
                .position(|limit| **limit == check.algorithm)
                .unwrap_or_else(|| {
                    limits.push(&check.algorithm);
                    limits.len() - 1
                });
            let mut run = self.run(request, check, limit);
            if let Algorithm::Concurrency(concurrency) = &check.algorithm {
                run.check_number = (position - holders.len() / HolderId::BYTES) as u64;
                holders.extend_from_slice(&concurrency.holder.0);
            }
            // The step of a run tells only of its last check whether it is allowed.
            let is_tracked = usage.is_some() && request.checks.tracking(index).is_some();
            match runs.last_mut() {
                Some(last)
                    if run == (Run { checks: 1, ..*last }) && !is_tracked && !was_tracked =>
                {
                    last.checks += 1;
                }
                _ => runs.push(run),
            }
            was_tracked = is_tracked;
        }
        if let Some(usage) = &usage {
            command.arg(&usage.keys);
        }
        if self.is_time_given {
            command.arg(self.now.0);
        } else {
            command.arg("");
        }
        command.arg(&self.uses(&limits)[..]);
        let mut packed = Vec::with_capacity(limits.len() * LIMIT_BYTES);
        limits
            .iter()
            .for_each(|limit| pack_limit(limit, &mut packed));
        command.arg(&packed[..]);
        packed.clear();
        for run in &runs {
            pack_short(&mut packed, run.limit_and_modes);
            pack_short(&mut packed, run.checks);
            packed.extend((run.hits as f64).to_le_bytes());
            pack(&mut packed, &[run.check_number]);
        }
        command.arg(&packed[..]);
        packed.clear();
        self.write_requests(&mut packed);
        command.arg(&packed[..]);
        packed.clear();
        if firsts
            .iter()
            .enumerate()
            .any(|(position, &first)| first != position)
        {
            firsts
                .iter()
                .for_each(|first| pack_short(&mut packed, first + 1));
        }
        if !packed.is_empty() || usage.is_some() || !holders.is_empty() {
            command.arg(&packed[..]);
        }
        if let Some(UsageArguments { rows, limits, .. }) = &usage {
            command.arg(&rows[..]).arg(&limits[..]);
        }
        if !holders.is_empty() {
            if usage.is_none() {
                command.arg("").arg("");
            }
            command.arg(&holders[..]);
        }
    }

    fn write_requests(&self, out: &mut Vec<u8>) {
        let deadline =
            |request: &CallRequest<'_>| request.deadline.0.min(MAX_INTEGER.unsigned_abs());
        out.reserve(NUMBER_BYTES + self.requests.len() * REQUEST_BYTES);
        pack(
            out,
            &[self
                .requests
                .iter()
                .map(deadline)
                .min()
                .unwrap_or(MAX_INTEGER.unsigned_abs())],
        );
        for request in &self.requests {
            out.push((request.checks.commit == Commit::AllOrNone).into());
            pack_short(out, request.picked.len());
            pack_short(out, request.checks.passing_quotas());
            pack(out, &[deadline(request)]);
        }
    }

    /// The codes of the algorithms that this call needs, and `A` if a request commits all or none.
    fn uses(&self, limits: &[&Algorithm]) -> SmallVec<[u8; 8]> {
        let mut uses: SmallVec<[u8; 8]> = SmallVec::new();
        for code in limits.iter().map(|limit| limit.spec().wire_code) {
            if !uses.contains(&code) {
                uses.push(code);
            }
        }
        if self
            .requests
            .iter()
            .any(|request| request.checks.commit == Commit::AllOrNone)
        {
            uses.push(b'A');
        }
        if self.is_tracked() {
            uses.push(b'U');
        }
        uses
    }

    /// A run of this check alone. The modes of a check matter to the script only in a request that
    /// commits all or none.
    fn run(&self, request: &CallRequest<'_>, check: &Check, limit: usize) -> Run {
        let modes = match request.checks.commit {
            Commit::Each => 0,
            Commit::AllOrNone => {
                usize::from(check.modes.quota) + 2 * usize::from(check.modes.shadow)
            }
        };
        let hits = check.hits.clamp(
            -LARGEST_COUNT.cast_signed(),
            check.algorithm.largest_charge().cast_signed(),
        );
        Run {
            limit_and_modes: 4 * limit + modes,
            checks: 1,
            hits,
            check_number: self.check_number(check, request.max_hold),
        }
    }

    /// The number of a packed run that belongs to the checks and not to their limit. Fixed windows:
    /// microseconds until the counter may expire, jitter included. Leaky buckets: the longest delay
    /// in ticks. Limits of requests in flight: the checks of other algorithms before it.
    fn check_number(&self, check: &Check, max_hold: Span) -> u64 {
        match &check.algorithm {
            Algorithm::FixedWindow(fixed) => {
                let jitter = fastrand::u64(..=longest_jitter(fixed, self.jitter_secs)) * 1_000_000;
                fixed.end(fixed.number(self.now)).since(self.now).micros() + jitter
            }
            algorithm => algorithm.check_parameter(max_hold),
        }
    }

    /// The number of checks that the call decides.
    #[must_use]
    pub fn len(&self) -> usize {
        self.requests
            .iter()
            .map(|request| request.picked.len())
            .sum()
    }

    /// Whether the call decides no check.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.requests
            .iter()
            .all(|request| request.picked.is_empty())
    }

    fn checks(&self) -> impl Iterator<Item = (&CallRequest<'_>, &Check)> {
        self.requests.iter().flat_map(CallRequest::checks)
    }

    /// Each check by its index, with its request.
    fn indexed(&self) -> impl Iterator<Item = (&CallRequest<'_>, CheckIndex)> {
        self.requests
            .iter()
            .flat_map(|request| request.picked.iter().map(move |&index| (request, index)))
    }

    /// Whether it records the usage of a subject.
    fn is_tracked(&self) -> bool {
        !self.refused.is_empty()
            || self
                .requests
                .iter()
                .any(|request| request.checks.is_tracked())
    }

    /// How often the call adds to a record.
    fn usage_rows(&self) -> usize {
        self.refused.len()
            + if self.is_tracked() {
                self.tracked().count()
            } else {
                0
            }
    }

    /// The tracked checks by their positions in the call.
    fn tracked(
        &self,
    ) -> impl Iterator<Item = (usize, &CallRequest<'_>, CheckIndex, &Arc<Tracking>)> {
        let all = self.indexed().enumerate();
        all.filter_map(|(position, (request, index))| {
            Some((position, request, index, request.checks.tracking(index)?))
        })
    }
}

/// Hits that were refused without the script, by the denial cache.
#[derive(Clone, Debug)]
pub struct RefusedHits<'p> {
    /// The key of the usage record.
    pub key: &'p [u8],
    /// The limit.
    pub settings: Settings,
    /// How many.
    pub hits: u64,
}

/// The arguments of `lua/usage.lua`.
#[derive(Default)]
struct UsageArguments {
    /// The keys of the records, each once.
    keys: Vec<Vec<u8>>,
    rows: Vec<u8>,
    limits: Vec<u8>,
}

impl UsageArguments {
    fn new(call: &Call<'_>) -> Self {
        let (mut arguments, mut key) = (Self::default(), Vec::new());
        let mut numbers: HashMap<Vec<u8>, usize> = HashMap::new();
        let mut limits: SmallVec<[Settings; 4]> = SmallVec::new();
        let mut add =
            |key: &[u8], settings: &Settings, position: usize, hits: i64, refused: u64| {
                let next = numbers.len() + 1;
                let number = *numbers.entry_ref(key).or_insert_with(|| {
                    arguments.keys.push(key.to_vec());
                    next
                });
                let limit = limits
                    .iter()
                    .position(|known| known == settings)
                    .unwrap_or_else(|| {
                        limits.push(*settings);
                        limits.len() - 1
                    });
                pack_short(&mut arguments.rows, position);
                pack_short(&mut arguments.rows, number);
                pack_short(&mut arguments.rows, limit + 1);
                arguments
                    .rows
                    .extend((hits.clamp(-MAX_INTEGER, MAX_INTEGER) as f64).to_le_bytes());
                pack(&mut arguments.rows, &[refused]);
            };
        for (position, request, index, tracking) in call.tracked() {
            let check = &request.checks[index];
            key::write_usage(request.checks.key(check), &mut key);
            add(&key, &tracking.settings, position + 1, check.hits, 0);
        }
        for refused in &call.refused {
            let hits = refused.hits.min(MAX_SAFE_INTEGER);
            add(refused.key, &refused.settings, 0, hits.cast_signed(), hits);
        }
        for Settings {
            interval,
            buckets,
            expiry,
            ..
        } in limits
        {
            pack(
                &mut arguments.limits,
                &[
                    interval.micros(),
                    buckets.into(),
                    expiry.micros().div_ceil(1_000),
                ],
            );
        }
        arguments
    }
}

/// Consecutive checks that differ only in their keys, and are packed as one row.
#[derive(Clone, Copy, PartialEq)]
struct Run {
    /// Four times the index of the limit among the packed limits, plus 1 for quota mode and 2 for
    /// shadow mode.
    limit_and_modes: usize,
    /// How many checks the run has.
    checks: usize,
    /// The hits of each check.
    hits: i64,
    /// See [`Call::check_number`].
    check_number: u64,
}

/// Packs a limit: the code of its algorithm, its tick in microseconds, and its parameters.
fn pack_limit(limit: &Algorithm, out: &mut Vec<u8>) {
    out.push(limit.spec().wire_code);
    pack(out, &[limit.tick().micros()]);
    pack(out, &limit.script_parameters());
}

/// Writes the Redis key of a check into `out`, whose contents it replaces. The key of a fixed
/// window ends with the number of the window that contains `now`.
pub(crate) fn write_key(checks: &Checks, check: &Check, now: Micros, out: &mut Vec<u8>) {
    out.clear();
    out.extend_from_slice(checks.key(check));
    if let Algorithm::FixedWindow(fixed) = &check.algorithm {
        out.push(b':');
        out.extend_from_slice(itoa::Buffer::new().format(fixed.number(now)).as_bytes());
    }
}

/// The longest jitter of the TTL of a window's counter in seconds: `jitter_secs`, at most one
/// window. It keeps the counters of a window from expiring all at the same time.
pub(crate) fn longest_jitter(fixed: &FixedWindow, jitter_secs: u32) -> u64 {
    u64::from(jitter_secs).min(fixed.window.shortest().secs_rounded_up())
}

/// Packs a number for `struct.unpack('<H')`: 16 bits, little-endian. A request has at most some
/// hundred checks, and a batch not many more.
fn pack_short(out: &mut Vec<u8>, number: usize) {
    out.extend(u16::try_from(number).unwrap_or(u16::MAX).to_le_bytes());
}

/// Packs numbers for `struct.unpack('<d...')`: doubles, little-endian. All numbers are below 2^53,
/// and therefore exact.
fn pack(out: &mut Vec<u8>, numbers: &[u64]) {
    out.extend(
        numbers
            .iter()
            .flat_map(|&number| (number as f64).to_le_bytes()),
    );
}
