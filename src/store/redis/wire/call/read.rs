//! What the reply to a call means.
//!
//! Where a state tells all, the script answers what it found, and the algorithm's own step says what that means: it has just taken the same
//! step. Reads strictly: what is not exactly an answer to what was asked is no answer.

use bb8_redis::redis::Value;
use smallvec::SmallVec;

use super::{Call, CallRequest, MOST, NUMBER};
use crate::algorithm::{Algorithm, Arrival, State};
use crate::plan::Check;
use crate::rules::Commit;
use crate::store::redis::error;
use crate::store::redis::wire::replies::{Token, time};
use crate::time::{Micros, Span};
use crate::verdict::{StoreError, Verdict, Wait};

/// Values of a reply before the lines of errors: the two of TIME, and the rows.
const FIXED: usize = 3;

/// Bytes of a place.
const PLACE: usize = 2;

const PROTOCOL_ERROR: StoreError = StoreError::Unknown(error::PROTOCOL);

/// What a reply says, but for the lines of errors.
struct Said<'w> {
    now: Micros,
    rows: &'w [u8],
    kept: &'w [u8],
    /// Places from 1 on of checks that were looks only.
    looks: &'w [u8],
    /// So many lines of errors follow.
    lines: usize,
}

/// What a row says of one check.
enum Row {
    /// This stood there, and was stepped.
    Found(Option<State>),
    /// What it came to: 0 as `extra` when allowed, else the retry in ticks, -1 for never.
    Decided { used: u64, reset: u64, extra: i64 },
    /// A line of an error, from 1 on.
    Failed(usize),
}

impl Call<'_> {
    /// Reads the reply: each check's answer goes to its place, in the order of the parts. Returns Redis's time.
    ///
    /// # Errors
    /// What made the whole call fail; what stands at the places then means nothing.
    pub fn read(&self, reply: &Value, places: &mut [Result<Verdict, StoreError>]) -> Result<Micros, StoreError> {
        if let Value::ServerError(error) = reply {
            return Err(error::classify(error).error());
        }
        self.read_tokens(&mut tokens(reply).into_iter(), places)
    }

    /// The same, out of the words of the reply.
    pub(crate) fn read_tokens<'w>(
        &self,
        tokens: &mut impl Iterator<Item = Token<'w>>,
        places: &mut [Result<Verdict, StoreError>],
    ) -> Result<Micros, StoreError> {
        let said = self.begin(tokens)?;
        let mut lines: SmallVec<[&[u8]; 4]> = SmallVec::new();
        for _ in 0..said.lines {
            let Some(Token::BulkString(line)) = tokens.next() else { return Err(PROTOCOL_ERROR) };
            lines.push(line);
        }
        let mut rest = said.rows;
        for ((request, check), place) in self.checks().zip(places.iter_mut()) {
            let (row, others) = rest.split_at_checked(row_size(&check.algorithm)).ok_or(PROTOCOL_ERROR)?;
            *place = match read_row(&check.algorithm, row) {
                Some(Row::Failed(line)) => {
                    Err(lines.get(line.wrapping_sub(1)).map_or(PROTOCOL_ERROR, |line| error::classify_line(line).error()))
                }
                Some(row) => self.verdict(request, check, (row, check.hits), said.now),
                None => Err(PROTOCOL_ERROR),
            };
            rest = others;
        }
        self.look(&said, places)?;
        Ok(said.now)
    }

    /// Reads again what was a look only: allowed, but the request was not.
    fn look(&self, said: &Said<'_>, places: &mut [Result<Verdict, StoreError>]) -> Result<(), StoreError> {
        for place in said.looks.as_chunks::<PLACE>().0 {
            let at = usize::from(u16::from_le_bytes(*place)).wrapping_sub(1);
            let (request, check) = self.checks().nth(at).ok_or(PROTOCOL_ERROR)?;
            let begin: usize = self.checks().take(at).map(|(_, check)| row_size(&check.algorithm)).sum();
            let row = said.rows.get(begin..).and_then(|rows| rows.get(..row_size(&check.algorithm))).ok_or(PROTOCOL_ERROR)?;
            let row = match read_row(&check.algorithm, row).ok_or(PROTOCOL_ERROR)? {
                Row::Decided { used, reset, .. } => Row::Decided { used, reset, extra: 0 },
                found => found,
            };
            let verdict = self.verdict(request, check, (row, 0), said.now);
            *places.get_mut(at).ok_or(PROTOCOL_ERROR)? = verdict.map(|verdict| Verdict { allowed: true, ..verdict });
        }
        Ok(())
    }

    /// For how long each check's state had to be kept, where it changed; of a call at a given time.
    #[must_use]
    pub fn keep_for(&self, reply: &Value) -> Vec<Option<Span>> {
        let tokens = tokens(reply);
        let Ok(said) = self.begin(&mut tokens.iter().copied()) else { return Vec::new() };
        let kept =
            |((_, check), ticks): ((&CallRequest<'_>, &Check), f64)| Some(check.algorithm.tick().span(u64::try_from(whole(ticks)?).ok()?));
        self.checks().zip(numbers(said.kept)).map(kept).collect()
    }

    /// Reads up to the lines of errors.
    fn begin<'w>(&self, tokens: &mut impl Iterator<Item = Token<'w>>) -> Result<Said<'w>, StoreError> {
        let values = match tokens.next() {
            Some(Token::Array(values)) if values >= FIXED => values,
            Some(Token::Error(line)) => return Err(error::classify_line(line).error()),
            _ => return Err(PROTOCOL_ERROR),
        };
        let now = time(tokens).ok_or(PROTOCOL_ERROR)?;
        let Some(Token::BulkString(bytes)) = tokens.next() else { return Err(PROTOCOL_ERROR) };
        let size = self.checks().map(|(_, check)| row_size(&check.algorithm)).sum();
        let (rows, rest) = bytes.split_at_checked(size).ok_or(PROTOCOL_ERROR)?;
        let (kept, looks) = rest.split_at_checked(if self.is_time_given { NUMBER * self.len() } else { 0 }).ok_or(PROTOCOL_ERROR)?;
        // Only a request that commits all or none can be refused for another of its checks.
        let has_groups = self.requests.iter().any(|request| request.checks.commit == Commit::AllOrNone);
        if looks.len() % PLACE > 0 || looks.len() > if has_groups { PLACE * self.len() } else { 0 } {
            return Err(PROTOCOL_ERROR);
        }
        Ok(Said { now, rows, kept, looks, lines: values - FIXED })
    }

    fn verdict(&self, request: &CallRequest<'_>, check: &Check, (row, hits): (Row, i64), now: Micros) -> Result<Verdict, StoreError> {
        let (used, reset, extra) = match row {
            Row::Found(state) => return Ok(check.algorithm.step(state, Arrival { now, max_hold: request.max_hold }, hits).verdict),
            Row::Decided { used, reset, extra } => (used, reset, extra),
            Row::Failed(_) => return Err(PROTOCOL_ERROR),
        };
        let allowed = extra == 0;
        if let Algorithm::FixedWindow(fixed) = &check.algorithm {
            return Ok(Verdict { allowed, ..fixed.judge(fixed.number(self.now), used, now, check.hits) });
        }
        let tick = check.algorithm.tick();
        let retry_after = u64::try_from(extra).map_or(Wait::Never, |ticks| Wait::For(tick.span(ticks)));
        let remaining = u32::try_from(u64::from(check.algorithm.capacity()).saturating_sub(used)).unwrap_or(u32::MAX);
        Ok(Verdict { allowed, remaining, used, reset_after: tick.span(reset), retry_after, delay: Span::ZERO })
    }
}

/// Bytes of a row of the reply.
fn row_size(algorithm: &Algorithm) -> usize {
    algorithm.spec().reply_numbers * NUMBER
}

/// `None` for what the script never says.
fn read_row(algorithm: &Algorithm, row: &[u8]) -> Option<Row> {
    let mut rest = numbers(row);
    let mut number = || rest.next();
    let (first, second, third) = (number()?, number()?, number()?);
    if first < 0.0 {
        return Some(Row::Failed(usize::try_from(whole(-first)?).ok()?));
    }
    // The script takes any whole numbers for a state and clamps them, and so do the steps.
    let Some(state) = algorithm.state_of_row([second, third, number().unwrap_or_default()]) else {
        let count = |number| u64::try_from(whole(number)?).ok();
        return Some(Row::Decided { used: count(first)?, reset: count(second)?, extra: whole(third)? });
    };
    Some(Row::Found((first > 0.0).then_some(state)))
}

/// Packed numbers.
fn numbers(packed: &[u8]) -> impl Iterator<Item = f64> {
    packed.as_chunks::<NUMBER>().0.iter().map(|&bytes| f64::from_le_bytes(bytes))
}

/// `None` for what is no whole number that Lua knows exactly.
fn whole(number: f64) -> Option<i64> {
    (number.fract() == 0.0 && number.abs() <= MOST as f64).then_some(number as i64)
}

/// A value that the redis crate read, as words. Nothing of ours is answered by what stands here as Nil without being it.
fn tokens(reply: &Value) -> Vec<Token<'_>> {
    match reply {
        Value::Array(values) => std::iter::once(Token::Array(values.len())).chain(values.iter().flat_map(tokens)).collect(),
        Value::Int(number) => vec![Token::Integer(*number)],
        Value::BulkString(text) => vec![Token::BulkString(text)],
        Value::SimpleString(text) => vec![Token::SimpleString(text.as_bytes())],
        Value::Okay => vec![Token::SimpleString(b"OK")],
        _ => vec![Token::Null],
    }
}
