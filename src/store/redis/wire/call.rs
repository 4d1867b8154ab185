//! A call of the script: `call/write.rs` encodes the keys and arguments for the checks of many
//! requests, and `call/read.rs` reads the reply.
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
//! What only some limits need is in `sections`: their rows follow the rows of the checks in the
//! arguments and in the reply.

mod read;
mod row;
pub(super) mod sections;
mod write;

use smallvec::SmallVec;
use tokio::time::Instant;

pub use self::sections::RefusedHits;
use super::request::{CheckPosition, Request};
use crate::core::algorithm::{Algorithm, FixedWindow, LARGEST_COUNT};
use crate::core::time::{MAX_SAFE_INTEGER, Micros, Span};
use crate::core::usage::Summary;
use crate::core::verdict::StoreError;
use crate::limits::plan::{Check, Checks};
use crate::limits::rules::Commit;
use crate::store::redis::error;

/// The largest integer up to which Lua's numbers, which are doubles, hold every integer exactly:
/// 2^53 - 1.
const MAX_INTEGER: i64 = MAX_SAFE_INTEGER.cast_signed();

/// Bytes of a packed number.
const NUMBER_BYTES: usize = 8;

const PROTOCOL_ERROR: StoreError = StoreError::Unknown(error::PROTOCOL);

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
    /// Each request with its checks.
    fn parts(&self) -> impl Iterator<Item = (&Request, &[CheckPosition])> {
        let parts = self
            .checks
            .chunk_by(|left, right| left.request == right.request);
        parts.map(|part| (self.requests[part[0].request], part))
    }

    /// Each check by its position in the call, with its request.
    fn indexed(&self) -> impl Iterator<Item = (usize, &Request, &Check)> {
        self.checks.iter().enumerate().map(|(position, at)| {
            let request = self.requests[at.request];
            (position, request, request.check(at.pick))
        })
    }

    /// Whether a request commits all or none: only there can a check be refused because of another.
    fn has_groups(&self) -> bool {
        self.parts()
            .any(|(request, _)| request.checks.commit == Commit::AllOrNone)
    }
}

/// Summaries in a reply in addition to the answers.
#[derive(Debug, Default)]
pub struct Notes {
    /// The totals of each tracked check, with its position in the call; `None` where nothing was
    /// recorded.
    pub usage: Vec<(usize, Option<Summary>)>,
    /// The totals of each of [`Call::refused`].
    pub refused: Vec<Option<Summary>>,
    /// The times until holds make room for refused checks, by their positions in the call.
    pub rooms: Vec<(usize, Span)>,
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
    for &number in numbers {
        out.extend((number as f64).to_le_bytes());
    }
}

/// The numbers of packed bytes.
fn numbers(packed: &[u8]) -> impl Iterator<Item = f64> {
    let numbers = packed.as_chunks::<NUMBER_BYTES>().0.iter();
    numbers.map(|&bytes| f64::from_le_bytes(bytes))
}

/// The number as an integer; `None` for a fraction, and for a number that no step makes.
fn integer(number: f64) -> Option<i64> {
    (number.fract() == 0.0 && number.abs() <= LARGEST_COUNT as f64).then_some(number as i64)
}
