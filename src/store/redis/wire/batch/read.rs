//! The reader of the replies to a batch: it turns the tokens into an answer for every check.
//!
//! It is strict, because a wrong answer could let a request pass. A reply that is not exactly one
//! to the command that was sent makes the outcome unknown, and with it all later replies on that
//! connection. No check is ever answered as allowed without its own reply.
//!
//! Source: redis.io, command pages of MULTI, EXEC, INCRBY and GET; "Transactions"; Redis Cluster
//! specification, "Redirection and resharding".

use smallvec::SmallVec;

use super::{Batch, CommandGroup, CounterCommand, GroupEncoding, Reply, window_without_script};
use crate::core::algorithm::FixedWindow;
use crate::core::answer::Answer;
use crate::core::time::Micros;
use crate::core::verdict::StoreError;
use crate::store::redis::error;
use crate::store::redis::wire::call::Notes;
use crate::store::redis::wire::hash_slot::Redirect;
use crate::store::redis::wire::replies::{Parser, Token, time};

const PROTOCOL_ERROR: StoreError = StoreError::Unknown(error::PROTOCOL);

/// Why a whole group has no answers, and the server's error line if it sent one.
struct GroupError<'r> {
    error: StoreError,
    cause: Option<&'r [u8]>,
}

impl From<StoreError> for GroupError<'_> {
    fn from(error: StoreError) -> Self {
        Self { error, cause: None }
    }
}

impl Batch<'_> {
    /// Reads the replies to this batch, and writes each answer into the reply to its request.
    /// `tokens` are the replies to all commands of the batch.
    pub(crate) fn read(&self, mut tokens: Parser<'_>, replies: &mut [Reply]) {
        let mut is_in_sync = true;
        for group in &self.groups {
            let group_tokens = tokens.clone();
            let outcome = if is_in_sync {
                self.read_group(group, &mut tokens, replies)
            } else {
                Err(PROTOCOL_ERROR.into())
            };
            let GroupError { error, cause } = match outcome {
                Ok(now) => {
                    for at in &group.checks {
                        replies[at.request].now = now;
                    }
                    continue;
                }
                Err(failed) => failed,
            };
            // After a reply that does not fit its command, a reply may belong to another command.
            is_in_sync &= error != PROTOCOL_ERROR;
            let cause = cause.filter(|_| self.options.follows_redirects);
            if let Some(redirect) = cause.and_then(Redirect::read) {
                self.redirect_group(group, group_tokens, error, &redirect, replies);
                continue;
            }
            for at in &group.checks {
                replies[at.request].answers[at.pick] = error.into();
            }
        }
    }

    /// Redirects the checks of a group that the node refused. Of a transaction only the checks
    /// whose own commands were redirected go to the other node. The others were only discarded with
    /// the transaction, and are retried by key.
    fn redirect_group(
        &self,
        group: &CommandGroup<'_>,
        tokens: Parser<'_>,
        error: StoreError,
        redirect: &Redirect,
        replies: &mut [Reply],
    ) {
        // After the replies to ASKING, MULTI and TIME.
        let mut tokens = tokens.skip(2 + usize::from(group.way.is_asking));
        let mut redirects: SmallVec<[Option<Redirect>; 4]> = SmallVec::new();
        if group.way.encoding == GroupEncoding::Transaction {
            for command in &group.commands {
                let own = tokens.by_ref().take(command.in_transaction());
                let own = own.fold(None, |found: Option<Redirect>, token| {
                    found.or_else(|| server_error(token).and_then(Redirect::read))
                });
                redirects.extend(command.answers.clone().map(|_| own.clone()));
            }
        }
        if redirects.iter().all(Option::is_none) {
            redirects = SmallVec::from_elem(Some(redirect.clone()), group.checks.len());
        }
        for (&at, redirect) in group.checks.iter().zip(redirects) {
            let reply = &mut replies[at.request];
            let error = match redirect {
                Some(_) => error,
                None => StoreError::NotExecuted(error::EXEC_ABORT),
            };
            reply.answers[at.pick] = error.into();
            let redirect = redirect.map(|redirect| (self.index(at), redirect));
            reply.redirects.extend(redirect);
        }
    }

    fn read_group<'r>(
        &self,
        group: &CommandGroup<'_>,
        tokens: &mut Parser<'r>,
        replies: &mut [Reply],
    ) -> Result<Micros, GroupError<'r>> {
        // A refused ASKING needs no handling: the reply to the next command shows the result.
        if group.way.is_asking
            && !matches!(
                tokens.next(),
                Some(Token::SimpleString(_) | Token::Error(_))
            )
        {
            return Err(PROTOCOL_ERROR.into());
        }
        match group.way.encoding {
            GroupEncoding::Plain => Ok(self.read_commands(group, tokens, replies)?),
            GroupEncoding::Transaction => {
                let commands = group.commands.iter();
                let counted: usize = commands.map(CounterCommand::in_transaction).sum();
                // After the reply to TIME.
                executed(tokens, 1 + counted)?;
                Ok(self.read_commands(group, tokens, replies)?)
            }
            GroupEncoding::Script(_) => {
                let cause = tokens.peek().and_then(server_error);
                let read = self.read_call(group, tokens, replies);
                read.map_err(|error| GroupError { error, cause })
            }
        }
    }

    fn read_call(
        &self,
        group: &CommandGroup<'_>,
        tokens: &mut Parser<'_>,
        replies: &mut [Reply],
    ) -> Result<Micros, StoreError> {
        let mut answers: SmallVec<[Answer; 16]> =
            SmallVec::from_elem(PROTOCOL_ERROR.into(), group.checks.len());
        let mut notes = Notes::default();
        let call = self.call(group);
        let now = call.read_tokens(tokens, &mut answers, &mut notes)?;
        for (at, answer) in group.checks.iter().zip(answers) {
            replies[at.request].answers[at.pick] = answer;
        }
        for (position, summary) in notes.usage {
            let at = group.checks[position];
            let summary = summary.map(|summary| (self.index(at), summary));
            replies[at.request].usage.extend(summary);
        }
        Ok(now)
    }

    /// Reads the replies to plain commands, each of which was executed or refused by itself, or to
    /// the commands of a transaction that was executed.
    fn read_commands(
        &self,
        group: &CommandGroup<'_>,
        tokens: &mut Parser<'_>,
        replies: &mut [Reply],
    ) -> Result<Micros, StoreError> {
        let is_plain = group.way.encoding == GroupEncoding::Plain;
        let now = match tokens.next() {
            Some(Token::Array(2)) => Ok(time(tokens).ok_or(PROTOCOL_ERROR)?),
            Some(Token::Error(line)) if is_plain => {
                Err(StoreError::Unknown(error::name(error::classify_line(line))))
            }
            _ => return Err(PROTOCOL_ERROR),
        };
        for command in &group.commands {
            let reply = value(tokens)?;
            let error = server_error(reply).filter(|_| self.options.follows_redirects);
            if !is_plain && command.hits != 0 {
                // The reply to EXPIRE is not needed: INCRBY before it made sure that the key
                // exists.
                value(tokens)?;
            } else if let Some(redirect) = error.filter(|_| is_plain).and_then(Redirect::read) {
                for &at in &group.checks[command.answers.clone()] {
                    let redirects = &mut replies[at.request].redirects;
                    redirects.push((self.index(at), redirect.clone()));
                }
            }
            self.judge(group, command, reply, now, replies);
        }
        Ok(now.unwrap_or_default())
    }

    /// Answers the checks of a command. Each hit gets its own position, as separate INCRBYs would
    /// have returned it.
    fn judge(
        &self,
        group: &CommandGroup<'_>,
        command: &CounterCommand<'_>,
        reply: Token<'_>,
        now: Result<Micros, StoreError>,
        replies: &mut [Reply],
    ) {
        let mut position =
            counter_value(command, reply).map(|after| after.saturating_sub(command.hits));
        for &at in &group.checks[command.answers.clone()] {
            let (checks, check) = self.check(at);
            position = position.map(|before| before + FixedWindow::clamp(check.hits));
            // Limits of different amounts may share a counter.
            if let Some(fixed) = window_without_script(checks, check) {
                replies[at.request].answers[at.pick].verdict = position.and_then(|position| {
                    let count = u64::try_from(position);
                    let count = count.map_err(|_| StoreError::Data(error::RANGE))?;
                    Ok(fixed.judge(command.counter.window, count, now?, check.hits))
                });
            }
        }
    }
}

impl CounterCommand<'_> {
    /// The number of commands in a transaction: GET, or INCRBY and EXPIRE.
    const fn in_transaction(&self) -> usize {
        if self.hits == 0 { 1 } else { 2 }
    }
}

/// Takes a reply that is an integer, a bulk string, null or an error.
fn value<'r>(tokens: &mut Parser<'r>) -> Result<Token<'r>, StoreError> {
    tokens
        .next()
        .filter(|token| !matches!(token, Token::Array(_) | Token::SimpleString(_)))
        .ok_or(PROTOCOL_ERROR)
}

/// The value of a counter, from the reply to its INCRBY or GET. An INCRBY that would overflow 64
/// bits means that the counter is at its maximum.
fn counter_value(command: &CounterCommand<'_>, reply: Token<'_>) -> Result<i64, StoreError> {
    match reply {
        Token::Null if command.hits == 0 => Ok(0),
        Token::Error(line) => match error::classify_line(line) {
            StoreError::Data(error::OVERFLOW) => Ok(i64::MAX),
            error => Err(error),
        },
        value => value
            .integer()
            .ok_or(StoreError::Data(error::NOT_AN_INTEGER)),
    }
}

fn server_error(token: Token<'_>) -> Option<&[u8]> {
    if let Token::Error(line) = token {
        Some(line)
    } else {
        None
    }
}

/// Takes the replies to a transaction up to the elements of EXEC's array, which has to have one
/// element per queued command.
fn executed<'r>(tokens: &mut Parser<'r>, queued: usize) -> Result<(), GroupError<'r>> {
    let multi = tokens.next().ok_or(PROTOCOL_ERROR)?;
    let mut cause = server_error(multi);
    let mut are_queued = multi == Token::SimpleString(b"OK");
    if !are_queued && cause.is_none() {
        return Err(PROTOCOL_ERROR.into());
    }
    for _ in 0..queued {
        match tokens.next() {
            Some(Token::SimpleString(b"QUEUED")) => {}
            Some(Token::Error(line)) => {
                are_queued = false;
                cause = cause.or(Some(line));
            }
            _ => return Err(PROTOCOL_ERROR.into()),
        }
    }
    match tokens.next() {
        Some(Token::Array(values)) if are_queued && values == queued => Ok(()),
        // EXEC was refused, and every command was queued or refused: none was executed.
        Some(Token::Error(line)) => {
            let cause = cause.unwrap_or(line);
            Err(GroupError {
                error: StoreError::NotExecuted(error::name(error::classify_line(cause))),
                cause: Some(cause),
            })
        }
        _ => Err(PROTOCOL_ERROR.into()),
    }
}
