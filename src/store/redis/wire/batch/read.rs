//! What the replies to a batch mean.
//!
//! Reads them strictly: what is not exactly an answer to what was asked is no answer, and nothing is ever counted as allowed without one.

use smallvec::SmallVec;

use super::{Answer, Batch, CheckRef, CommandGroup, Encoding, WorkReply};
use crate::algorithm::FixedWindow;
use crate::plan::Check;
use crate::store::redis::error;
use crate::store::redis::wire::hash_slot::Redirect;
use crate::store::redis::wire::replies::{Parser, Token, time};
use crate::time::Micros;
use crate::verdict::{StoreError, Verdict};

const PROTOCOL_ERROR: StoreError = StoreError::Unknown(error::PROTOCOL);

/// Checks of a run that have to go elsewhere: the index into its items, and where.
type Elsewhere = SmallVec<[(usize, Redirect); 1]>;

/// Why a whole run has no answers, and the server's line if it is it who says so.
struct Failed<'w> {
    error: StoreError,
    cause: Option<&'w [u8]>,
}

impl From<StoreError> for Failed<'_> {
    fn from(error: StoreError) -> Self {
        Self { error, cause: None }
    }
}

impl Batch<'_> {
    /// The answers of this batch, written to their places among the replies to its work.
    pub(crate) fn read(&self, mut tokens: Parser<'_>, replies: &mut [WorkReply]) {
        let mut answers: SmallVec<[Answer; 16]> = SmallVec::new();
        let mut elsewhere: Elsewhere = SmallVec::new();
        let mut is_in_step = true;
        for group in &self.groups {
            let own = tokens.clone();
            answers.clear();
            answers.resize(group.items.len(), Err(PROTOCOL_ERROR));
            let outcome =
                if is_in_step { self.read_group(group, &mut tokens, &mut answers, &mut elsewhere) } else { Err(PROTOCOL_ERROR.into()) };
            // Behind what is no answer to its commands, an answer or an error may belong to others.
            is_in_step &= !matches!(outcome, Err(Failed { error: PROTOCOL_ERROR, .. }));
            match outcome {
                Ok(now) => {
                    for (&CheckRef { work, at }, answer) in group.items.iter().zip(&answers) {
                        replies[work].answers[at] = *answer;
                        replies[work].now = now;
                    }
                    for (index, redirect) in elsewhere.drain(..) {
                        let CheckRef { work, at } = group.items[index];
                        replies[work].redirects.push((self.work[work].picked[at], redirect));
                    }
                }
                Err(Failed { error, cause }) => match cause.filter(|_| self.batch_options.by_slot).and_then(Redirect::read) {
                    None => group.items.iter().for_each(|&CheckRef { work, at }| replies[work].answers[at] = Err(error)),
                    Some(redirect) => self.turn_away(group, own, error, &redirect, replies),
                },
            }
        }
    }

    /// Sends the checks of a run elsewhere. Of a transaction only those whose own key is not there; the others just stood beside them, and are
    /// to be asked once more where they are.
    fn turn_away(&self, group: &CommandGroup, own: Parser<'_>, error: StoreError, redirect: &Redirect, replies: &mut [WorkReply]) {
        // Behind the replies to ASKING, MULTI and TIME.
        let mut own = own.skip(2 + usize::from(group.is_asking));
        let mut own_redirect = |item: CheckRef| {
            let commands = own.by_ref().take(self.commands(item));
            commands.fold(None, |found: Option<Redirect>, token| found.or_else(|| server_error(token).and_then(Redirect::read)))
        };
        let mut redirects: SmallVec<[Option<Redirect>; 4]> = match group.encoding {
            Encoding::Transaction => group.items.iter().map(|&item| own_redirect(item)).collect(),
            Encoding::Plain | Encoding::Script(_) => SmallVec::new(),
        };
        if redirects.iter().all(Option::is_none) {
            redirects = SmallVec::from_elem(Some(redirect.clone()), group.items.len());
        }
        for (&CheckRef { work, at }, redirect) in group.items.iter().zip(redirects) {
            replies[work].answers[at] = Err(if redirect.is_some() { error } else { StoreError::NotExecuted(error::EXEC_ABORT) });
            replies[work].redirects.extend(redirect.map(|redirect| (self.work[work].picked[at], redirect)));
        }
    }

    fn read_group<'r>(
        &self,
        group: &CommandGroup,
        tokens: &mut Parser<'r>,
        answers: &mut [Answer],
        elsewhere: &mut Elsewhere,
    ) -> Result<Micros, Failed<'r>> {
        // ASKING is answered on its own; what follows tells what came of it.
        if group.is_asking && !matches!(tokens.next(), Some(Token::SimpleString(_) | Token::Error(_))) {
            return Err(PROTOCOL_ERROR.into());
        }
        match group.encoding {
            Encoding::Plain => Ok(self.read_plain(group, tokens, answers, elsewhere)?),
            Encoding::Transaction => {
                executed(tokens, self.queued(group))?;
                Ok(self.read_transaction(group, tokens, answers)?)
            }
            Encoding::Script(_) => {
                let cause = tokens.peek().and_then(server_error);
                self.call(group).read_tokens(tokens, answers).map_err(|error| Failed { error, cause })
            }
        }
    }

    /// The commands between MULTI and EXEC: TIME, and GET for a look, INCRBY and EXPIRE for hits.
    fn queued(&self, group: &CommandGroup) -> usize {
        group.items.iter().fold(1, |sum, &item| sum + self.commands(item))
    }

    fn commands(&self, item: CheckRef) -> usize {
        if self.check(item).1.hits == 0 { 1 } else { 2 }
    }

    fn read_transaction(&self, group: &CommandGroup, tokens: &mut Parser<'_>, answers: &mut [Answer]) -> Result<Micros, StoreError> {
        let now = tokens.next().filter(|token| *token == Token::Array(2)).and_then(|_| time(tokens)).ok_or(PROTOCOL_ERROR)?;
        for ((_, check, fixed), place) in self.counted(group).zip(answers) {
            let counted = counted_value(check, value(tokens)?);
            if check.hits != 0 {
                // The reply to EXPIRE tells nothing: the key is there, the line before made it.
                value(tokens)?;
            }
            *place = counted.map(|count| self.judge(fixed, check, count, now));
        }
        Ok(now)
    }

    /// Each command was taken or refused on its own.
    fn read_plain(
        &self,
        group: &CommandGroup,
        tokens: &mut Parser<'_>,
        answers: &mut [Answer],
        elsewhere: &mut Elsewhere,
    ) -> Result<Micros, StoreError> {
        let now = match tokens.next() {
            Some(Token::Array(2)) => Ok(time(tokens).ok_or(PROTOCOL_ERROR)?),
            Some(Token::Error(line)) => Err(StoreError::Unknown(error::classify_line(line).name)),
            _ => return Err(PROTOCOL_ERROR),
        };
        for (index, ((_, check, fixed), place)) in self.counted(group).zip(answers).enumerate() {
            let said = value(tokens)?;
            if let (true, Some(redirect)) = (self.batch_options.by_slot, server_error(said).and_then(Redirect::read)) {
                elsewhere.push((index, redirect));
            }
            *place = counted_value(check, said).and_then(|count| now.map(|now| self.judge(fixed, check, count, now)));
        }
        Ok(now.unwrap_or_default())
    }

    fn judge(&self, fixed: &FixedWindow, check: &Check, count: u64, now: Micros) -> Verdict {
        fixed.judge(fixed.number(self.now.time), count, now, check.hits)
    }
}

/// Takes a plain value.
fn value<'w>(tokens: &mut Parser<'w>) -> Result<Token<'w>, StoreError> {
    tokens.next().filter(|token| !matches!(token, Token::Array(_) | Token::SimpleString(_))).ok_or(PROTOCOL_ERROR)
}

/// What a counter stands at, by the reply to its INCRBY or GET.
fn counted_value(check: &Check, said: Token<'_>) -> Result<u64, StoreError> {
    match said {
        Token::Null if check.hits == 0 => Ok(0),
        Token::Error(line) => match error::classify_line(line) {
            kind if kind.name == error::OVERFLOW => Ok(i64::MAX.unsigned_abs()),
            kind => Err(kind.error()),
        },
        value => value.integer().ok_or(StoreError::Data(error::NOT_AN_INTEGER)).and_then(count),
    }
}

fn count(number: i64) -> Result<u64, StoreError> {
    u64::try_from(number).map_err(|_| StoreError::Data(error::RANGE))
}

fn server_error(token: Token<'_>) -> Option<&[u8]> {
    if let Token::Error(line) = token { Some(line) } else { None }
}

/// Takes the replies to a transaction up to its values, as many as there are commands `queued`.
fn executed<'w>(tokens: &mut Parser<'w>, queued: usize) -> Result<(), Failed<'w>> {
    let begun = tokens.next().ok_or(PROTOCOL_ERROR)?;
    let mut cause = server_error(begun);
    let mut are_taken = begun == Token::SimpleString(b"OK");
    if !are_taken && cause.is_none() {
        return Err(PROTOCOL_ERROR.into());
    }
    for _ in 0..queued {
        match tokens.next() {
            Some(Token::SimpleString(b"QUEUED")) => {}
            Some(Token::Error(line)) => {
                are_taken = false;
                cause = cause.or(Some(line));
            }
            _ => return Err(PROTOCOL_ERROR.into()),
        }
    }
    match tokens.next() {
        Some(Token::Array(values)) if are_taken && values == queued => Ok(()),
        // Nothing ran if the transaction was refused and no command was answered on its own.
        Some(Token::Error(line)) => {
            let cause = cause.unwrap_or(line);
            Err(Failed { error: StoreError::NotExecuted(error::classify_line(cause).name), cause: Some(cause) })
        }
        _ => Err(PROTOCOL_ERROR.into()),
    }
}
