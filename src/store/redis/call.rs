//! One call of the script: how the checks of some requests are told to it, and what its reply means.
//!
//! The twin of `lua/frame.lua`, which describes both. Numbers go back and forth packed, because that is what Lua reads and writes fastest;
//! what many checks have in common is told once. Lua decides, and answers in ticks.

use std::hash::BuildHasher;

use bb8_redis::redis::{Cmd, Value};
use hashbrown::DefaultHashBuilder;
use smallvec::SmallVec;

use super::replies::{Word, time};
use super::{error, script};
use crate::algorithm::{Algorithm, FixedWindow};
use crate::plan::{Check, Plan};
use crate::rules::Commit;
use crate::time::{Micros, Span};
use crate::verdict::{StoreError, Verdict, Wait};

/// Whole numbers up to this one are exact in Lua.
const MOST: i64 = (1 << 53) - 1;

/// Values of a reply before the lines of errors: the two of TIME, and the rows.
const FIXED: usize = 3;

/// Bytes of a number.
const NUMBER: usize = 8;

/// Bytes of a row of the reply: its kind and three numbers.
const ROW: usize = 1 + 3 * NUMBER;

/// Numbers of a limit besides its tick; those that an algorithm has no use for are 0.
const NUMBERS: usize = 6;

/// Bytes that tell a limit, a check, and a request.
const LIMIT: usize = 1 + (1 + NUMBERS) * NUMBER;
const CHECK: usize = 2 * 2 + 2 * NUMBER;
const REQUEST: usize = 1 + 2 * 2 + NUMBER;

const STRANGE: StoreError = StoreError::Unknown(error::PROTOCOL);

/// A call that decides some checks of some requests.
#[derive(Clone, Debug)]
pub struct Call<'p> {
    /// The requests, in order.
    pub parts: SmallVec<[Part<'p>; 1]>,
    /// What Redis's clock shows, by estimate.
    pub now: Micros,
    /// Redis takes `now` for its clock, keeps keys for years, and says for how long each had to be kept. For tests.
    pub is_time_given: bool,
    /// Counters of fixed windows live for a random time of at most so many seconds longer.
    pub jitter_secs: u32,
}

/// What a call decides of one request.
#[derive(Clone, Debug)]
pub struct Part<'p> {
    /// The request.
    pub plan: &'p Plan,
    /// The places of its checks; of a plan that commits all or none all of them.
    pub places: SmallVec<[usize; 4]>,
    /// Nothing is counted after this time of Redis's clock.
    pub deadline: Micros,
    /// How long the caller can be held by a shaper.
    pub patience: Span,
}

impl<'p> Part<'p> {
    /// Each check, and its part.
    fn checks(&self) -> impl Iterator<Item = (&Self, &'p Check)> {
        self.places.iter().map(move |&place| (self, &self.plan.checks[place]))
    }
}

/// How the script is named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Named {
    /// As Redis knows it.
    ByHash,
    /// For a Redis that does not.
    ByText,
}

impl Call<'_> {
    /// Packs the whole command.
    #[must_use]
    pub fn command(&self, named: Named) -> Cmd {
        let mut command = Cmd::new();
        self.write(named, &mut command);
        command
    }

    /// Packs the whole command into an empty one.
    pub(super) fn write(&self, named: Named, command: &mut Cmd) {
        match named {
            Named::ByHash => command.arg("EVALSHA").arg(&*script::HASH),
            Named::ByText => command.arg("EVAL").arg(script::TEXT),
        };
        let checks = self.len();
        command.arg(checks);
        // Keys are found by their hashes, because there may be many of them, and long ones.
        let hasher = DefaultHashBuilder::default();
        let mut keys: SmallVec<[(u64, &[u8], u8); 16]> = SmallVec::with_capacity(checks);
        let mut limits: SmallVec<[&Algorithm; 16]> = SmallVec::new();
        let mut told = Vec::with_capacity(checks * CHECK);
        let mut key = Vec::new();
        for (place, (part, check)) in self.checks().enumerate() {
            write_key(part.plan, check, self.now, &mut key);
            command.arg(&key[..]);
            let own = part.plan.key(check);
            let own = (hasher.hash_one(own), own, code(&check.algorithm));
            let first = keys.iter().position(|key| *key == own).unwrap_or(place);
            keys.push(own);
            let limit = limits.iter().position(|limit| **limit == check.algorithm).unwrap_or_else(|| {
                limits.push(&check.algorithm);
                limits.len() - 1
            });
            self.tell(part, check, Position { limit, first }, &mut told);
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
        command.arg(&told[..]);
        packed.clear();
        packed.reserve(self.parts.len() * REQUEST);
        for part in &self.parts {
            packed.push((part.plan.commit == Commit::AllOrNone).into());
            pack_short(&mut packed, part.places.len());
            pack_short(&mut packed, part.plan.passing_quotas());
            pack(&mut packed, &[part.deadline.0.min(MOST.unsigned_abs())]);
        }
        command.arg(&packed[..]);
    }

    /// The letters of what this call needs.
    fn uses(&self, limits: &[&Algorithm]) -> SmallVec<[u8; 8]> {
        let mut uses: SmallVec<[u8; 8]> = SmallVec::new();
        for code in limits.iter().map(|limit| code(limit)) {
            if !uses.contains(&code) {
                uses.push(code);
            }
        }
        if self.parts.iter().any(|part| part.plan.commit == Commit::AllOrNone) {
            uses.push(b'A');
        }
        uses
    }

    fn tell(&self, part: &Part<'_>, check: &Check, at: Position, out: &mut Vec<u8>) {
        let hits = check.hits.clamp(-MOST, i64::from(check.algorithm.capacity()) + 1);
        pack_short(out, 4 * at.limit + usize::from(check.role.quota) + 2 * usize::from(check.role.shadow));
        pack_short(out, at.first + 1);
        out.extend((hits as f64).to_le_bytes());
        pack(out, &[self.own_number(check, part.patience)]);
    }

    /// What belongs to a check and not to its limit: for how long the counter of a window is kept, and how long a caller can be held.
    fn own_number(&self, check: &Check, patience: Span) -> u64 {
        match &check.algorithm {
            Algorithm::FixedWindow(fixed) => {
                let jitter = fastrand::u64(..=longest_jitter(fixed, self.jitter_secs)) * 1_000_000;
                fixed.end(fixed.number(self.now)).since(self.now).micros() + jitter
            }
            Algorithm::LeakyBucket(leaky) => leaky.tick.floor(patience).min(leaky.max_delay),
            _ => 0,
        }
    }

    /// How many checks it decides.
    #[must_use]
    pub fn len(&self) -> usize {
        self.parts.iter().map(|part| part.places.len()).sum()
    }

    /// Whether it decides none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.parts.iter().all(|part| part.places.is_empty())
    }

    fn checks(&self) -> impl Iterator<Item = (&Part<'_>, &Check)> {
        self.parts.iter().flat_map(Part::checks)
    }

    /// Reads the reply: each check's answer goes to its place, in the order of the parts. Returns Redis's time.
    ///
    /// # Errors
    /// What made the whole call fail; what stands at the places then means nothing.
    pub fn read(&self, reply: &Value, places: &mut [Result<Verdict, StoreError>]) -> Result<Micros, StoreError> {
        if let Value::ServerError(error) = reply {
            return Err(error::classify(error).error());
        }
        self.read_words(&mut words(reply).into_iter(), places)
    }

    /// The same, out of the words of the reply.
    pub(super) fn read_words<'w>(
        &self,
        words: &mut impl Iterator<Item = Word<'w>>,
        places: &mut [Result<Verdict, StoreError>],
    ) -> Result<Micros, StoreError> {
        let said = self.begin(words)?;
        let mut lines: SmallVec<[&[u8]; 4]> = SmallVec::new();
        for _ in 0..said.lines {
            let Some(Word::Text(line)) = words.next() else { return Err(STRANGE) };
            lines.push(line);
        }
        for (((_, check), row), place) in self.checks().zip(said.rows.chunks_exact(ROW)).zip(places) {
            *place = self.verdict(check, row, &lines, said.now);
        }
        Ok(said.now)
    }

    /// For how long each check's state had to be kept, where it changed; of a call at a given time.
    #[must_use]
    pub fn kept(&self, reply: &Value) -> Vec<Option<Span>> {
        let words = words(reply);
        let Ok(said) = self.begin(&mut words.iter().copied()) else { return Vec::new() };
        let kept = |((_, check), ticks): ((&Part<'_>, &Check), Option<i64>)| Some(check.algorithm.tick().span(u64::try_from(ticks?).ok()?));
        self.checks().zip(numbers(said.kept)).map(kept).collect()
    }

    /// Reads up to the lines of errors.
    fn begin<'w>(&self, words: &mut impl Iterator<Item = Word<'w>>) -> Result<Said<'w>, StoreError> {
        let values = match words.next() {
            Some(Word::Array(values)) if values >= FIXED => values,
            Some(Word::Error(line)) => return Err(error::classify_line(line).error()),
            _ => return Err(STRANGE),
        };
        let now = time(words).ok_or(STRANGE)?;
        let Some(Word::Text(bytes)) = words.next() else { return Err(STRANGE) };
        let (rows, kept) = bytes.split_at_checked(ROW * self.len()).ok_or(STRANGE)?;
        if kept.len() != if self.is_time_given { NUMBER * self.len() } else { 0 } {
            return Err(STRANGE);
        }
        Ok(Said { now, rows, kept, lines: values - FIXED })
    }

    fn verdict(&self, check: &Check, row: &[u8], lines: &[&[u8]], now: Micros) -> Result<Verdict, StoreError> {
        let (&outcome, rest) = row.split_first().ok_or(STRANGE)?;
        let mut rest = numbers(rest);
        let mut number = || rest.next().flatten().ok_or(STRANGE);
        let (used, reset, extra) = (number()?, number()?, number()?);
        let whole = |number: i64| u64::try_from(number).map_err(|_| STRANGE);
        let (used, reset) = (whole(used)?, whole(reset)?);
        let allowed = match outcome {
            0 => false,
            1 => true,
            2 => {
                let line = (used as usize).checked_sub(1).and_then(|place| lines.get(place)).ok_or(STRANGE)?;
                return Err(error::classify_line(line).error());
            }
            _ => return Err(STRANGE),
        };
        if let Algorithm::FixedWindow(fixed) = &check.algorithm {
            return Ok(Verdict { allowed, ..fixed.judge(fixed.number(self.now), used, now, check.hits) });
        }
        let tick = check.algorithm.tick();
        let (retry_after, delay) = match (allowed, extra) {
            (true, extra) => (Wait::For(Span::ZERO), tick.span(whole(extra)?)),
            (false, -1) => (Wait::Never, Span::ZERO),
            (false, extra) => (Wait::For(tick.span(whole(extra)?)), Span::ZERO),
        };
        let remaining = u32::try_from(u64::from(check.algorithm.capacity()).saturating_sub(used)).unwrap_or(u32::MAX);
        Ok(Verdict { allowed, remaining, used, reset_after: tick.span(reset), retry_after, delay })
    }
}

/// Where a check's limit stands among the limits, and the first check with the same key among the checks.
#[derive(Clone, Copy)]
struct Position {
    limit: usize,
    first: usize,
}

/// What a reply says, but for the lines of errors.
struct Said<'w> {
    now: Micros,
    rows: &'w [u8],
    kept: &'w [u8],
    /// So many lines of errors follow.
    lines: usize,
}

/// Packed numbers; `None` for what is no whole number that Lua knows exactly.
fn numbers(packed: &[u8]) -> impl Iterator<Item = Option<i64>> {
    packed.as_chunks::<NUMBER>().0.iter().map(|&bytes| {
        let number = f64::from_le_bytes(bytes);
        (number.fract() == 0.0 && number.abs() <= MOST as f64).then_some(number as i64)
    })
}

/// What the script is told of a limit.
fn describe(limit: &Algorithm, out: &mut Vec<u8>) {
    out.push(code(limit));
    pack(out, &[limit.tick().micros()]);
    let numbers: [u64; NUMBERS] = match limit {
        Algorithm::FixedWindow(fixed) => [fixed.limit.into(), fixed.count_denied.into(), 0, 0, 0, 0],
        Algorithm::SlidingWindowLog(log) => [log.limit.into(), log.window, log.count_denied.into(), 0, 0, 0],
        Algorithm::SlidingWindowCounter(counter) => [counter.limit.into(), counter.window, counter.count_denied.into(), 0, 0, 0],
        Algorithm::SlidingWindowBuckets(buckets) => {
            let count_denied = buckets.count_denied.into();
            [buckets.limit.into(), buckets.window, count_denied, buckets.interval, buckets.buckets.into(), buckets.expiry]
        }
        Algorithm::TokenBucket(token) => [token.limit.into(), token.window, token.burst.into(), token.count_denied.into(), 0, 0],
        Algorithm::LeakyBucket(leaky) => [leaky.limit.into(), leaky.window, leaky.max_delay, leaky.count_denied.into(), 0, 0],
    };
    pack(out, &numbers);
}

/// A value that the redis crate read, as words. Nothing of ours is answered by what stands here as Nil without being it.
fn words(reply: &Value) -> Vec<Word<'_>> {
    match reply {
        Value::Array(values) => std::iter::once(Word::Array(values.len())).chain(values.iter().flat_map(words)).collect(),
        Value::Int(number) => vec![Word::Number(*number)],
        Value::BulkString(text) => vec![Word::Text(text)],
        Value::SimpleString(text) => vec![Word::Status(text.as_bytes())],
        Value::Okay => vec![Word::Status(b"OK")],
        _ => vec![Word::Nil],
    }
}

/// Writes the key of a check as it stands in Redis. The counter of a fixed window is named for the window that `now` lies in.
pub(super) fn write_key(plan: &Plan, check: &Check, now: Micros, out: &mut Vec<u8>) {
    out.clear();
    out.extend_from_slice(plan.key(check));
    if let Algorithm::FixedWindow(fixed) = &check.algorithm {
        out.push(b':');
        out.extend_from_slice(itoa::Buffer::new().format(fixed.number(now)).as_bytes());
    }
}

/// Seconds by which keys of a window may live longer at most, so that they do not all expire together.
pub(super) fn longest_jitter(fixed: &FixedWindow, jitter_secs: u32) -> u64 {
    u64::from(jitter_secs).min(fixed.window.secs_rounded_up())
}

/// The algorithm's letter: the number under which its step stands in `lua/`.
const fn code(algorithm: &Algorithm) -> u8 {
    match algorithm {
        Algorithm::FixedWindow(_) => b'F',
        Algorithm::SlidingWindowLog(_) => b'L',
        Algorithm::SlidingWindowCounter(_) => b'C',
        Algorithm::SlidingWindowBuckets(_) => b'B',
        Algorithm::TokenBucket(_) => b'T',
        Algorithm::LeakyBucket(_) => b'Q',
    }
}

/// A number as `struct.unpack('<H')` reads it. A request has some hundred descriptors at most, and a batch not many more.
fn pack_short(out: &mut Vec<u8>, number: usize) {
    out.extend(u16::try_from(number).unwrap_or(u16::MAX).to_le_bytes());
}

/// Numbers as `struct.unpack('<d...')` reads them; all are below 2^53.
fn pack(out: &mut Vec<u8>, numbers: &[u64]) {
    out.extend(numbers.iter().flat_map(|&number| (number as f64).to_le_bytes()));
}
