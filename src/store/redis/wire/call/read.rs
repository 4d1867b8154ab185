//! The reader of the reply to a call of the script: it turns the packed rows into an answer for
//! every check.
//!
//! For an algorithm whose whole state is one small value (token bucket, leaky bucket, sliding
//! window counter) the row holds the state that the script found. The reader takes the algorithm's
//! own step on that state, which is the same step that the script has taken, and so computes the
//! verdict in Rust. For the other algorithms the row holds the result of the script's step.
//!
//! It is strict: a reply of another shape makes the outcome unknown, and no check is answered as
//! allowed without a row of its own.
//!
//! `lua/frame.lua` describes the reply.
//!
//! For these small states Lua, which is slow, computes neither the remaining hits nor the time of a
//! retry. This depends on equal steps in Lua and Rust, which the differential test checks state by
//! state.

use bb8_redis::redis::Value;
use smallvec::SmallVec;

use super::row::{CheckRow, ErrorLine, row_size, take_row};
use super::sections::{self, SECTIONS};
use super::{Call, NUMBER_BYTES, Notes, PROTOCOL_ERROR};
use crate::core::algorithm::Arrival;
use crate::core::answer::{Answer, Effect};
use crate::core::time::Micros;
use crate::core::verdict::{StoreError, Verdict};
use crate::limits::plan::Check;
use crate::limits::rules::Commit;
use crate::store::redis::error;
use crate::store::redis::wire::replies::{Token, time};
use crate::store::redis::wire::request::{CheckPosition, Request};

/// Elements of a reply before the error lines: the two of TIME, and the packed text.
const HEADER_VALUES: usize = 3;

/// Bytes of a packed position of a check.
const POSITION_BYTES: usize = 2;

/// A reply before its error lines.
struct ReplyHead<'r> {
    now: Micros,
    /// The rows of the checks.
    rows: &'r [u8],
    /// The bytes after these.
    rest: &'r [u8],
    error_lines: usize,
}

impl Call<'_> {
    /// Reads a parsed reply into `answers`, one per check in the order of the requests, and into
    /// `notes`. Returns Redis's time.
    ///
    /// # Errors
    /// The error of the whole call. `answers` and `notes` are meaningless then.
    pub fn read(
        &self,
        reply: &Value,
        answers: &mut [Answer],
        notes: &mut Notes,
    ) -> Result<Micros, StoreError> {
        if let Value::ServerError(error) = reply {
            return Err(error::classify(error));
        }
        self.read_tokens(&mut tokens(reply).into_iter(), answers, notes)
    }

    /// Reads a reply from its tokens, like [`Call::read`].
    pub(crate) fn read_tokens<'r>(
        &self,
        tokens: &mut impl Iterator<Item = Token<'r>>,
        answers: &mut [Answer],
        notes: &mut Notes,
    ) -> Result<Micros, StoreError> {
        let mut head = self.head(tokens)?;
        let now = head.now;
        let mut lines: SmallVec<[&[u8]; 4]> = SmallVec::new();
        for _ in 0..head.error_lines {
            let Some(Token::BulkString(line)) = tokens.next() else {
                return Err(PROTOCOL_ERROR);
            };
            lines.push(line);
        }
        for section in &SECTIONS {
            (section.read)(self, &mut head.rest, answers, notes)?;
        }
        // Positions, counted from 1, of the checks that were allowed in a request that was refused:
        // the script changed nothing for them. Only one that commits all or none has such peeks.
        let (peeks, []) = head.rest.as_chunks::<POSITION_BYTES>() else {
            return Err(PROTOCOL_ERROR);
        };
        if !(peeks.is_empty() || self.has_groups()) {
            return Err(PROTOCOL_ERROR);
        }
        let peeks = peeks.iter().map(|&position| u16::from_le_bytes(position));
        let mut peeks = peeks.map(usize::from).peekable();
        let mut begin = 0;
        for (request, checks) in self.parts() {
            let (own_rows, end) = (head.rows, begin + checks.len());
            let own = answers.get_mut(begin..end).ok_or(PROTOCOL_ERROR)?;
            let arrival = Arrival {
                now,
                max_wait: request.budget.max_wait,
            };
            for (position, (at, answer)) in (begin..).zip(checks.iter().zip(&mut *own)) {
                let check = request.check(at.pick);
                let row = take_row(&mut head.rows, &check.algorithm);
                let is_peek = peeks.next_if_eq(&(position + 1)).is_some();
                if let Some(Ok(CheckRow::Decided { reset, .. })) = row
                    && answer.effect == Effect::None
                {
                    answer.effect = sections::effect(check, reset);
                }
                answer.verdict = match row {
                    Some(Err(ErrorLine(line))) => Err(lines
                        .get(line.wrapping_sub(1))
                        .map_or(PROTOCOL_ERROR, |line| error::classify_failed_check(line))),
                    Some(Ok(row)) if is_peek => Ok(self.peek(row, check, arrival)),
                    Some(Ok(row)) => {
                        let (of, effect) = ((position, check), answer.effect);
                        Ok(sections::verdict(self, row, of, effect, notes, arrival))
                    }
                    None => Err(PROTOCOL_ERROR),
                };
            }
            if request.checks.commit == Commit::AllOrNone {
                read_without_debt(request, checks, own_rows, arrival, own);
            }
            begin = end;
        }
        if peeks.next().is_some() {
            return Err(PROTOCOL_ERROR);
        }
        Ok(now)
    }

    /// The answer to a check that would have been allowed in a request that was refused. Its row is
    /// the result of a peek.
    fn peek(&self, mut row: CheckRow, check: &Check, arrival: Arrival) -> Verdict {
        if let CheckRow::Decided { retry, .. } = &mut row {
            *retry = 0;
        }
        Verdict {
            allowed: true,
            ..self.verdict(row, &check.algorithm, 0, arrival)
        }
    }

    /// Reads everything before the error lines.
    fn head<'r>(
        &self,
        tokens: &mut impl Iterator<Item = Token<'r>>,
    ) -> Result<ReplyHead<'r>, StoreError> {
        let values = match tokens.next() {
            Some(Token::Array(values)) if values >= HEADER_VALUES => values,
            Some(Token::Error(line)) => return Err(error::classify_line(line)),
            _ => return Err(PROTOCOL_ERROR),
        };
        let now = time(tokens).ok_or(PROTOCOL_ERROR)?;
        let Some(Token::BulkString(bytes)) = tokens.next() else {
            return Err(PROTOCOL_ERROR);
        };
        let algorithms = self.indexed().map(|(.., check)| &check.algorithm);
        let size = algorithms.map(row_size).sum();
        let (rows, rest) = bytes.split_at_checked(size).ok_or(PROTOCOL_ERROR)?;
        // The reply to a call with `is_time_given` also has the time that each state is kept.
        let kept_numbers = usize::from(self.is_time_given) * self.checks.len();
        let rest = rest.get(kept_numbers * NUMBER_BYTES..);
        let rest = rest.ok_or(PROTOCOL_ERROR)?;
        Ok(ReplyHead {
            now,
            rows,
            rest,
            error_lines: values - HEADER_VALUES,
        })
    }
}

/// Computes the answers of the refused checks again, without debt, if the request was refused as a
/// whole: none of its hits became debt.
fn read_without_debt(
    request: &Request,
    checks: &[CheckPosition],
    mut rows: &[u8],
    arrival: Arrival,
    answers: &mut [Answer],
) {
    let verdicts = answers.iter().map(|answer| answer.verdict);
    let allowed = verdicts.clone().flatten().map(|verdict| verdict.allowed);
    if verdicts.clone().any(|verdict| verdict.is_err()) || !request.checks.is_over_limit(allowed) {
        return;
    }
    for (at, answer) in checks.iter().zip(answers) {
        let check = request.check(at.pick);
        if let Some(Ok(CheckRow::Found(state))) = take_row(&mut rows, &check.algorithm)
            && answer.verdict.is_ok_and(|verdict| !verdict.allowed)
            && check.algorithm.counts_denied()
        {
            let free = check.algorithm.without_debt();
            answer.verdict = Ok(free.step(state, arrival, check.hits).verdict);
        }
    }
}

/// The tokens of a value that the redis crate has parsed. Types that the script never answers
/// become null, which no reader accepts.
fn tokens(reply: &Value) -> Vec<Token<'_>> {
    match reply {
        Value::Array(values) => std::iter::once(Token::Array(values.len()))
            .chain(values.iter().flat_map(tokens))
            .collect(),
        Value::Int(number) => vec![Token::Integer(*number)],
        Value::BulkString(text) => vec![Token::BulkString(text)],
        Value::SimpleString(text) => vec![Token::SimpleString(text.as_bytes())],
        Value::Okay => vec![Token::SimpleString(b"OK")],
        _ => vec![Token::Null],
    }
}
