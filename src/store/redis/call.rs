//! One call of the script: how the checks of some requests are told to it, and what its reply means.
//!
//! The twin of `lua/frame.lua`, which describes both. Everything that an algorithm needs goes along as packed numbers, because that is what
//! Lua reads fastest; Lua decides, and answers in ticks.

use bb8_redis::redis::{Cmd, Value};
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

/// Values of a reply before those of the checks: the two of TIME.
const TIME: usize = 2;

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
        command.arg(self.len());
        let mut bytes = Vec::new();
        let mut uses: SmallVec<[u8; 8]> = SmallVec::new();
        for (part, check) in self.checks() {
            write_key(part.plan, check, self.now, &mut bytes);
            command.arg(&bytes[..]);
            use_also(&mut uses, code(&check.algorithm));
        }
        if self.is_time_given {
            command.arg(self.now.0);
        } else {
            command.arg("");
        }
        if self.parts.iter().any(|part| part.plan.commit == Commit::AllOrNone) {
            uses.push(b'A');
        }
        command.arg(&uses[..]);
        for part in &self.parts {
            let is_whole = u64::from(part.plan.commit == Commit::AllOrNone);
            let deadline = part.deadline.0.min(MOST.unsigned_abs());
            bytes.clear();
            pack(&mut bytes, &[is_whole, part.places.len() as u64, part.plan.passing_quotas() as u64, deadline]);
            command.arg(&bytes[..]);
            for (_, check) in part.checks() {
                self.describe(check, part.patience, &mut bytes);
                command.arg(&bytes[..]);
            }
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

    /// What the script is told of a check.
    fn describe(&self, check: &Check, patience: Span, out: &mut Vec<u8>) {
        let hits = check.hits.clamp(-MOST, i64::from(check.algorithm.capacity()) + 1);
        out.clear();
        out.extend([code(&check.algorithm), u8::from(check.role.quota) + 2 * u8::from(check.role.shadow)]);
        out.extend((hits as f64).to_le_bytes());
        pack(out, &[check.algorithm.tick().micros()]);
        match &check.algorithm {
            Algorithm::FixedWindow(fixed) => {
                let jitter = fastrand::u64(..=longest_jitter(fixed, self.jitter_secs)) * 1_000_000;
                let keep = fixed.end(fixed.number(self.now)).since(self.now).micros() + jitter;
                pack(out, &[fixed.limit.into(), fixed.count_denied.into(), keep]);
            }
            Algorithm::SlidingWindowLog(log) => pack(out, &[log.limit.into(), log.window, log.count_denied.into()]),
            Algorithm::SlidingWindowCounter(counter) => pack(out, &[counter.limit.into(), counter.window, counter.count_denied.into()]),
            Algorithm::SlidingWindowBuckets(buckets) => pack(
                out,
                &[
                    buckets.limit.into(),
                    buckets.window,
                    buckets.count_denied.into(),
                    buckets.interval,
                    buckets.buckets.into(),
                    buckets.expiry,
                ],
            ),
            Algorithm::TokenBucket(token) => {
                pack(out, &[token.limit.into(), token.window, token.burst.into(), token.count_denied.into()]);
            }
            Algorithm::LeakyBucket(leaky) => {
                let patience = leaky.tick.floor(patience).min(leaky.max_delay);
                pack(out, &[leaky.limit.into(), leaky.window, leaky.max_delay, leaky.count_denied.into(), patience]);
            }
        }
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
        let now = self.begin(words)?;
        for ((_, check), place) in self.checks().zip(places) {
            let [outcome, used, reset, extra] = row(words)?;
            *place = self.verdict(check, [outcome, used, reset, extra], now);
            if self.is_time_given {
                let [_kept] = row(words)?;
            }
        }
        Ok(now)
    }

    /// For how long each check's state had to be kept, where it changed; of a call at a given time.
    #[must_use]
    pub fn kept(&self, reply: &Value) -> Vec<Option<Span>> {
        let mut words = words(reply).into_iter();
        if self.begin(&mut words).is_err() {
            return Vec::new();
        }
        let mut kept = |(_, check): (&Part<'_>, &Check)| {
            let [.., ticks]: [_; 5] = row(&mut words).ok()?;
            Some(check.algorithm.tick().span(u64::try_from(ticks.whole()?).ok()?))
        };
        self.checks().map(&mut kept).collect()
    }

    /// Reads up to what is said of the checks: the server's time.
    fn begin<'w>(&self, words: &mut impl Iterator<Item = Word<'w>>) -> Result<Micros, StoreError> {
        let width = if self.is_time_given { 5 } else { 4 };
        match words.next() {
            Some(Word::Array(values)) if values == TIME + width * self.len() => time(words).ok_or(STRANGE),
            Some(Word::Error(line)) => Err(error::classify_line(line).error()),
            _ => Err(STRANGE),
        }
    }

    fn verdict(&self, check: &Check, row: [Word<'_>; 4], now: Micros) -> Result<Verdict, StoreError> {
        let [outcome, used, reset, extra] = row;
        let allowed = match outcome {
            Word::Number(1) => true,
            Word::Number(0) => false,
            Word::Text(line) => return Err(error::classify_line(line).error()),
            _ => return Err(STRANGE),
        };
        let number = |word: Word<'_>| word.whole().and_then(|number| u64::try_from(number).ok()).ok_or(STRANGE);
        let (used, reset) = (number(used)?, number(reset)?);
        if let Algorithm::FixedWindow(fixed) = &check.algorithm {
            return Ok(Verdict { allowed, ..fixed.judge(fixed.number(self.now), used, now, check.hits) });
        }
        let tick = check.algorithm.tick();
        let (retry_after, delay) = match (allowed, extra) {
            (true, extra) => (Wait::For(Span::ZERO), tick.span(number(extra)?)),
            (false, Word::Number(-1)) => (Wait::Never, Span::ZERO),
            (false, extra) => (Wait::For(tick.span(number(extra)?)), Span::ZERO),
        };
        let remaining = u32::try_from(u64::from(check.algorithm.capacity()).saturating_sub(used)).unwrap_or(u32::MAX);
        Ok(Verdict { allowed, remaining, used, reset_after: tick.span(reset), retry_after, delay })
    }
}

/// Takes `N` plain values.
fn row<'w, const N: usize>(words: &mut impl Iterator<Item = Word<'w>>) -> Result<[Word<'w>; N], StoreError> {
    let mut row = [Word::Nil; N];
    for word in &mut row {
        *word = words.next().filter(|word| !matches!(word, Word::Array(_))).ok_or(STRANGE)?;
    }
    Ok(row)
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

fn use_also(uses: &mut SmallVec<[u8; 8]>, code: u8) {
    if !uses.contains(&code) {
        uses.push(code);
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

/// Numbers as `struct.unpack('<d...')` reads them; all are below 2^53.
fn pack(out: &mut Vec<u8>, numbers: &[u64]) {
    out.extend(numbers.iter().flat_map(|&number| (number as f64).to_le_bytes()));
}
