//! The encoder of a call of the script: the keys and arguments for the checks of many requests.
//! `call/read.rs` reads the reply.
//!
//! `lua/frame.lua` is the other end of this wire format, and describes its keys, arguments and
//! reply. Numbers are packed as binary doubles, because Lua takes longer to read a number as text
//! than Redis takes for the lookup of a key. Consecutive checks that differ only in their keys are
//! run-length encoded, and each limit is sent once.
//!
//! Nothing here decides a check, and nothing here may depend on a script other than the one of
//! `script.rs`.
//!
//! Source: redis.io, command pages of EVAL and EVALSHA; Lua's struct library as Redis documents it
//! in "Redis Lua API reference".
//!
//! Tracked checks are not merged to runs, because the step of a run returns only for its last check
//! whether it is allowed. `lua/usage.lua` wraps the steps that occur; calls without usage therefore
//! run the same code as without it. A state holds its expiry, and is overwritten in place until
//! that instant comes near.

mod read;

use std::sync::Arc;

use bb8_redis::redis::Cmd;
use smallvec::SmallVec;
use tokio::time::Instant;

use super::request::{CheckPosition, Request};
use super::script;
use crate::core::algorithm::concurrency::{HolderId, TAKE_BACK};
use crate::core::algorithm::reservations::{self, Purpose};
use crate::core::algorithm::{Algorithm, FixedWindow, LARGEST_COUNT, OnExpiry};
use crate::core::fingerprint::Fingerprint;
use crate::core::time::{MAX_SAFE_INTEGER, Micros, Span};
use crate::core::usage::{Settings, Summary, Tracking};
use crate::limits::plan::{Check, CheckIndex, Checks, Reservation, key};
use crate::limits::rules::Commit;

/// The largest integer up to which Lua's numbers, which are doubles, hold every integer exactly:
/// 2^53 - 1.
const MAX_INTEGER: i64 = MAX_SAFE_INTEGER.cast_signed();

/// Bytes of a packed number.
const NUMBER_BYTES: usize = 8;

/// A script that runs at most this much later than its caller's deadline still counts, because the
/// estimate of Redis's clock is not more exact.
const SLACK: Span = Span::from_micros(5_000);

/// Estimated time of the server's clock at an instant.
#[derive(Clone, Copy, Debug)]
pub struct ClockReading {
    /// The time that it showed.
    pub time: Micros,
    /// The instant of the estimate.
    pub at: Instant,
}

/// A call of the script, which decides checks of one or more requests in one atomic step.
#[derive(Clone, Debug)]
pub struct Call<'p> {
    /// The requests, in order.
    pub requests: &'p [&'p Request],
    /// The checks that it decides, in the order of their requests. Of checks that commit all or
    /// none all have to be there.
    pub checks: &'p [CheckPosition],
    /// Hits to record that belong to no check of this call.
    pub refused: &'p [RefusedHits],
    /// Redis's clock. It numbers the windows of fixed windows.
    pub now: ClockReading,
    /// For tests: the script uses `now` instead of Redis's clock, keeps keys for years, answers how
    /// long each has to be kept, and takes deadlines exactly.
    pub is_time_given: bool,
    /// The keys belong to several hash slots of a cluster's node, and are not declared.
    pub crosses_slots: bool,
    /// The TTL of a fixed window's counter is longer by a random time of at most this many seconds,
    /// and of at most the window.
    pub jitter_secs: u32,
}

/// Reference to the script in a command.
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
    pub fn command(&self, script_ref: ScriptRef) -> Cmd {
        let mut command = Cmd::new();
        self.write(script_ref, &mut command);
        command
    }

    /// Writes the whole command into an empty one.
    pub(crate) fn write(&self, script_ref: ScriptRef, command: &mut Cmd) {
        let script = if self.crosses_slots {
            &script::CROSS_SLOT_SCRIPT
        } else {
            &script::SCRIPT
        };
        match script_ref {
            ScriptRef::ByHash => command.arg("EVALSHA").arg(&script.hash),
            ScriptRef::ByText => command.arg("EVAL").arg(&script.text),
        };
        if self.crosses_slots {
            command.arg(0);
        }
        let usage = UsageRows::new(self);
        let reservations = ReservationRows::new(self);
        command.arg(self.checks.len() + usage.keys.len() + reservations.keys.len());
        let rows = self.write_keys(command);
        command.arg(&usage.keys).arg(&reservations.keys);
        let rows_of_32 = rows.runs.len() + self.requests.len() + 1;
        let mut arguments = Arguments {
            packed: Vec::with_capacity(64 * rows.limits.len() + 32 * rows_of_32),
            ends: SmallVec::new(),
        };
        if self.is_time_given {
            let mut time = itoa::Buffer::new();
            let time = time.format(self.now.time.0);
            arguments.packed.extend_from_slice(time.as_bytes());
        }
        arguments.end();
        let further = [(b'R', &reservations.rows), (b'U', &usage.rows)];
        self.write_codes(&rows.limits, further, &mut arguments.packed);
        arguments.end();
        for limit in &rows.limits {
            // The code of its algorithm, its tick in microseconds, and its parameters.
            arguments.packed.push(limit.spec().wire_code);
            pack(&mut arguments.packed, &[limit.tick().micros()]);
            pack(&mut arguments.packed, &limit.script_parameters());
        }
        arguments.end();
        for run in &rows.runs {
            run.pack(&mut arguments.packed);
        }
        arguments.end();
        self.write_requests(&mut arguments.packed);
        arguments.end();
        if (0..)
            .zip(&rows.firsts)
            .any(|(position, &first)| first != position)
        {
            for first in &rows.firsts {
                pack_short(&mut arguments.packed, first + 1);
            }
        }
        arguments.end();
        for further in [
            &usage.rows,
            &usage.limits,
            &rows.holders,
            &reservations.rows,
        ] {
            arguments.packed.extend_from_slice(further);
            arguments.end();
        }
        arguments.write(command);
    }

    /// Writes the keys of all checks, and makes the rows of the arguments that follow them.
    fn write_keys(&self, command: &mut Cmd) -> CheckRows<'_> {
        let mut rows = CheckRows {
            firsts: SmallVec::with_capacity(self.checks.len()),
            ..CheckRows::default()
        };
        let mut keys: SmallVec<[(Fingerprint, u8); 16]> =
            SmallVec::with_capacity(self.checks.len());
        let mut key = Vec::new();
        let mut was_alone = false;
        for (position, (request, index)) in self.indexed().enumerate() {
            let check = &request.checks[index];
            write_key(&request.checks, check, self.now.time, &mut key);
            command.arg(&key[..]);
            let of_check = (check.fingerprint, check.algorithm.spec().wire_code);
            let first = keys.iter().position(|key| *key == of_check);
            rows.firsts.push(first.unwrap_or(position));
            keys.push(of_check);
            let mut run = self.run(request, check, number(&mut rows.limits, &&check.algorithm));
            if check.algorithm.has_holders() {
                run.check_number = (position - rows.holders.len() / HolderId::BYTES) as u64;
                rows.holders
                    .extend_from_slice(&check.holder().unwrap_or_default().0);
            }
            // The step of a run returns only for its last check whether it is allowed.
            let is_alone = check.has_holds() || check.tracking().is_some();
            match rows.runs.last_mut() {
                Some(last) if run == (Run { checks: 1, ..*last }) && !is_alone && !was_alone => {
                    last.checks += 1;
                }
                _ => rows.runs.push(run),
            }
            was_alone = is_alone;
        }
        rows
    }

    fn write_requests(&self, out: &mut Vec<u8>) {
        let deadlines = self.parts().map(|(request, _)| self.deadline(request));
        pack(
            out,
            &[deadlines.min().unwrap_or(MAX_INTEGER.unsigned_abs())],
        );
        for (request, checks) in self.parts() {
            out.push((request.checks.commit == Commit::AllOrNone).into());
            pack_short(out, checks.len());
            pack_short(out, request.checks.passing_quotas());
            pack(out, &[self.deadline(request)]);
        }
    }

    /// The time of Redis's clock after which the script counts nothing of a request.
    fn deadline(&self, request: &Request) -> u64 {
        let (deadline, ClockReading { time, at }) = (request.budget.deadline, self.now);
        let slack = if self.is_time_given {
            Span::ZERO
        } else {
            SLACK
        };
        let past = Span::from(at.saturating_duration_since(deadline));
        let left = Span::from(deadline.saturating_duration_since(at));
        let deadline = (time + slack + left).0.saturating_sub(past.micros());
        deadline.min(MAX_INTEGER.unsigned_abs())
    }

    /// Writes the codes of the algorithms that this call needs, `A` if a request commits all or
    /// none, and the codes of further parts that have rows.
    fn write_codes(&self, limits: &[&Algorithm], further: [(u8, &Vec<u8>); 2], out: &mut Vec<u8>) {
        let begin = out.len();
        for code in limits.iter().map(|limit| limit.spec().wire_code) {
            if !out[begin..].contains(&code) {
                out.push(code);
            }
        }
        if self.has_groups() {
            out.push(b'A');
        }
        out.extend(
            further
                .iter()
                .filter(|(_, rows)| !rows.is_empty())
                .map(|(code, _)| *code),
        );
    }

    /// A run of this check alone. The modes of a check matter to the script only in a request that
    /// commits all or none.
    fn run(&self, request: &Request, check: &Check, limit: usize) -> Run {
        let modes = match request.checks.commit {
            Commit::Each => 0,
            Commit::AllOrNone => {
                usize::from(check.modes.quota) + 2 * usize::from(check.modes.shadow)
            }
        };
        let hits = match check.hits {
            ..0 if check.algorithm.has_holders() => -1 - i64::from(check.hits == TAKE_BACK),
            hits => hits.clamp(
                -LARGEST_COUNT.cast_signed(),
                check.algorithm.largest_charge().cast_signed(),
            ),
        };
        Run {
            limit_and_modes: 4 * limit + modes,
            checks: 1,
            hits,
            check_number: self.check_number(check, request.budget.max_hold),
        }
    }

    /// The number of a packed run that belongs to the checks and not to their limit. Fixed windows:
    /// microseconds until the counter may expire, jitter included. Leaky buckets: the longest delay
    /// in ticks. Limits of requests in flight: the checks of other algorithms before it.
    fn check_number(&self, check: &Check, max_hold: Span) -> u64 {
        match &check.algorithm {
            Algorithm::FixedWindow(fixed) => {
                let jitter = fastrand::u64(..=longest_jitter(fixed, self.jitter_secs)) * 1_000_000;
                let now = self.now.time;
                fixed.end(fixed.number(now)).since(now).micros() + jitter
            }
            algorithm => algorithm.check_parameter(max_hold),
        }
    }

    /// Each request with its checks.
    fn parts(&self) -> impl Iterator<Item = (&Request, &[CheckPosition])> {
        let parts = self
            .checks
            .chunk_by(|left, right| left.request == right.request);
        parts.map(|part| (self.requests[part[0].request], part))
    }

    /// Each check by its index, with its request.
    fn indexed(&self) -> impl Iterator<Item = (&Request, CheckIndex)> {
        self.checks.iter().map(|check| {
            let request = self.requests[check.request];
            (request, request.picked[check.pick].index)
        })
    }

    /// Whether a request commits all or none: only there can a check be refused because of another.
    fn has_groups(&self) -> bool {
        self.parts()
            .any(|(request, _)| request.checks.commit == Commit::AllOrNone)
    }

    /// The tracked checks by their positions in the call. The tracked check of a request may be
    /// decided without the script.
    fn tracked(&self) -> impl Iterator<Item = (usize, &Request, CheckIndex, &Arc<Tracking>)> {
        let all = self.indexed().enumerate();
        all.filter_map(|(position, (request, index))| {
            Some((position, request, index, request.checks[index].tracking()?))
        })
    }

    /// The checks of limits with `reservations` by their positions in the call.
    fn reservations(&self) -> impl Iterator<Item = (usize, &Request, CheckIndex, &Reservation)> {
        let all = self.indexed().enumerate();
        all.filter_map(|(position, (request, index))| {
            Some((
                position,
                request,
                index,
                request.checks[index].reservation()?,
            ))
        })
    }
}

/// Hits that were refused without the script, by the denial cache.
#[derive(Clone, Debug)]
pub struct RefusedHits {
    /// The key of the usage record.
    pub record: Vec<u8>,
    /// The limit.
    pub tracking: Arc<Tracking>,
    /// Number of refused hits.
    pub hits: u64,
}

/// Summaries in a reply in addition to the answers.
#[derive(Debug, Default)]
pub struct Notes {
    /// The totals of each tracked check, with its position in the call; `None` where nothing was
    /// recorded.
    pub usage: Vec<(usize, Option<Summary>)>,
    /// The same of each of [`Call::refused`].
    pub refused: Vec<Option<Summary>>,
}

/// The ten arguments after the keys, packed one after the other; see `lua/frame.lua`.
struct Arguments {
    packed: Vec<u8>,
    /// The end of each argument.
    ends: SmallVec<[usize; 10]>,
}

impl Arguments {
    fn end(&mut self) {
        self.ends.push(self.packed.len());
    }

    /// Writes them without the empty ones at the end, which the script takes for missing.
    fn write(&self, command: &mut Cmd) {
        let mut begin = 0;
        for &end in &self.ends {
            if begin == self.packed.len() {
                return;
            }
            command.arg(&self.packed[begin..end]);
            begin = end;
        }
    }
}

/// The arguments of `lua/usage.lua`.
#[derive(Default)]
struct UsageRows {
    /// The keys of the records, each once.
    keys: Vec<Vec<u8>>,
    rows: Vec<u8>,
    limits: Vec<u8>,
}

impl UsageRows {
    fn new(call: &Call<'_>) -> Self {
        let (mut usage, mut key) = (Self::default(), Vec::new());
        let mut limits: SmallVec<[Settings; 4]> = SmallVec::new();
        for (position, request, index, tracking) in call.tracked() {
            let check = &request.checks[index];
            key::write_usage(request.checks.key(check), &mut key);
            let limit = number(&mut limits, &tracking.settings);
            usage.add(&key, limit, position + 1, check.hits, 0);
        }
        for refused in call.refused {
            let hits = refused.hits.min(MAX_SAFE_INTEGER);
            let limit = number(&mut limits, &refused.tracking.settings);
            usage.add(&refused.record, limit, 0, hits.cast_signed(), hits);
        }
        for settings in limits {
            let expiry_ms = settings.expiry.micros().div_ceil(1_000);
            let numbers = [
                settings.interval.micros(),
                settings.buckets.into(),
                expiry_ms,
            ];
            pack(&mut usage.limits, &numbers);
        }
        usage
    }

    fn add(&mut self, key: &[u8], limit: usize, position: usize, hits: i64, refused: u64) {
        let known = self.keys.iter().position(|known| known == key);
        let record = known.unwrap_or_else(|| {
            self.keys.push(key.to_vec());
            self.keys.len() - 1
        });
        for number in [position, record + 1, limit + 1] {
            pack_short(&mut self.rows, number);
        }
        let hits = hits.clamp(-MAX_INTEGER, MAX_INTEGER) as f64;
        self.rows.extend(hits.to_le_bytes());
        pack(&mut self.rows, &[refused]);
    }
}

/// The arguments of `lua/reservations.lua`.
#[derive(Default)]
struct ReservationRows {
    /// Two for each counter, each pair once.
    keys: Vec<Vec<u8>>,
    rows: Vec<u8>,
}

impl ReservationRows {
    fn new(call: &Call<'_>) -> Self {
        let mut all = Self::default();
        for (position, request, index, reservation) in call.reservations() {
            let check = &request.checks[index];
            let keys = key::ReservationKey::ALL.map(|part| {
                let mut key = Vec::new();
                key::write_reservations(request.checks.key(check), part, &mut key);
                key
            });
            let known = all.keys.iter().position(|known| *known == keys[0]);
            let first = known.unwrap_or_else(|| {
                all.keys.extend(keys);
                all.keys.len() - 2
            });
            for number in [position + 1, first / 2 + 1] {
                pack_short(&mut all.rows, number);
            }
            let (terms, limit) = (&reservation.terms, &check.algorithm);
            let (code, id) = match reservation.purpose {
                Purpose::Plain => (0, HolderId::default()),
                Purpose::Reserve(id) => (1, id),
                Purpose::Settle(id) => (2, id),
            };
            let keeps = terms.on_expiry == OnExpiry::Keep;
            all.rows.extend([code, u8::from(keeps)]);
            let numbers = [
                terms.ttl.micros(),
                terms.most_held(limit),
                reservations::window_number(limit, call.now.time),
                limit.largest_charge(),
            ];
            pack(&mut all.rows, &numbers);
            let hits = check.hits.clamp(-MAX_INTEGER, MAX_INTEGER) as f64;
            all.rows.extend(hits.to_le_bytes());
            all.rows.extend(id.0);
        }
        all
    }
}

/// The index of an element in a list that has each once.
fn number<T: PartialEq + Copy, A: smallvec::Array<Item = T>>(
    list: &mut SmallVec<A>,
    element: &T,
) -> usize {
    let known = list.iter().position(|known| known == element);
    known.unwrap_or_else(|| {
        list.push(*element);
        list.len() - 1
    })
}

/// Description of the checks in the arguments of a call.
#[derive(Default)]
struct CheckRows<'c> {
    /// Each once.
    limits: SmallVec<[&'c Algorithm; 16]>,
    runs: SmallVec<[Run; 8]>,
    /// For each check the first one with its key.
    firsts: SmallVec<[usize; 16]>,
    /// The ids of checks of a limit of requests in flight.
    holders: Vec<u8>,
}

/// Consecutive checks that differ only in their keys, and are packed as one row.
#[derive(Clone, Copy, PartialEq)]
struct Run {
    /// Four times the index of the limit among the packed limits, plus 1 for quota mode and 2 for
    /// shadow mode.
    limit_and_modes: usize,
    /// Number of checks in the run.
    checks: usize,
    /// The hits of each check.
    hits: i64,
    /// See [`Call::check_number`].
    check_number: u64,
}

impl Run {
    fn pack(&self, out: &mut Vec<u8>) {
        pack_short(out, self.limit_and_modes);
        pack_short(out, self.checks);
        out.extend((self.hits as f64).to_le_bytes());
        pack(out, &[self.check_number]);
    }
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
