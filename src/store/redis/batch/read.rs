//! What the replies to a batch mean.
//!
//! Reads them strictly: what is not exactly an answer to what was asked is no answer, and nothing is ever counted as allowed without one.

use smallvec::SmallVec;

use super::{Answer, Batch, Item, Reply, Run, Way};
use crate::algorithm::FixedWindow;
use crate::plan::Check;
use crate::store::redis::error;
use crate::store::redis::replies::{Word, Words, time};
use crate::store::redis::slots::Redirect;
use crate::time::Micros;
use crate::verdict::{StoreError, Verdict};

const STRANGE: StoreError = StoreError::Unknown(error::PROTOCOL);

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
    pub(in crate::store::redis) fn read(&self, mut words: Words<'_>, replies: &mut [Reply]) {
        let mut answers: SmallVec<[Answer; 16]> = SmallVec::new();
        let mut elsewhere: Elsewhere = SmallVec::new();
        let mut is_in_step = true;
        for run in &self.runs {
            let own = words.clone();
            answers.clear();
            answers.resize(run.items.len(), Err(STRANGE));
            let outcome = if is_in_step { self.read_run(run, &mut words, &mut answers, &mut elsewhere) } else { Err(STRANGE.into()) };
            // Behind what is no answer to its commands, an answer or an error may belong to others.
            is_in_step &= !matches!(outcome, Err(Failed { error: STRANGE, .. }));
            match outcome {
                Ok(now) => {
                    for (&Item { work, at }, answer) in run.items.iter().zip(&answers) {
                        replies[work].answers[at] = *answer;
                        replies[work].now = now;
                    }
                    for (index, redirect) in elsewhere.drain(..) {
                        let Item { work, at } = run.items[index];
                        replies[work].redirects.push((at, redirect));
                    }
                }
                Err(Failed { error, cause }) => match cause.filter(|_| self.manner.by_slot).and_then(Redirect::read) {
                    None => run.items.iter().for_each(|&Item { work, at }| replies[work].answers[at] = Err(error)),
                    Some(redirect) => self.turn_away(run, own, error, &redirect, replies),
                },
            }
        }
    }

    /// Sends the checks of a run elsewhere. Of a transaction only those whose own key is not there; the others just stood beside them, and are
    /// to be asked once more where they are.
    fn turn_away(&self, run: &Run, own: Words<'_>, error: StoreError, redirect: &Redirect, replies: &mut [Reply]) {
        // Behind the replies to ASKING, MULTI and TIME.
        let mut own = own.skip(2 + usize::from(run.is_asking));
        let mut own_redirect = |item: Item| {
            let commands = own.by_ref().take(self.commands(item));
            commands.fold(None, |found: Option<Redirect>, word| found.or_else(|| server_error(word).and_then(Redirect::read)))
        };
        let mut redirects: SmallVec<[Option<Redirect>; 4]> = match run.way {
            Way::Transaction => run.items.iter().map(|&item| own_redirect(item)).collect(),
            Way::Plain | Way::Script(_) => SmallVec::new(),
        };
        if redirects.iter().all(Option::is_none) {
            redirects = SmallVec::from_elem(Some(redirect.clone()), run.items.len());
        }
        for (&Item { work, at }, redirect) in run.items.iter().zip(redirects) {
            replies[work].answers[at] = Err(if redirect.is_some() { error } else { StoreError::NotExecuted(error::EXEC_ABORT) });
            replies[work].redirects.extend(redirect.map(|redirect| (at, redirect)));
        }
    }

    fn read_run<'r>(
        &self,
        run: &Run,
        words: &mut Words<'r>,
        answers: &mut [Answer],
        elsewhere: &mut Elsewhere,
    ) -> Result<Micros, Failed<'r>> {
        // ASKING is answered on its own; what follows tells what came of it.
        if run.is_asking && !matches!(words.next(), Some(Word::Status(_) | Word::Error(_))) {
            return Err(STRANGE.into());
        }
        match run.way {
            Way::Plain => Ok(self.read_plain(run, words, answers, elsewhere)?),
            Way::Transaction => {
                executed(words, self.queued(run))?;
                Ok(self.read_transaction(run, words, answers)?)
            }
            Way::Script(_) => {
                let cause = words.peek().and_then(server_error);
                self.call(run).read_words(words, answers).map_err(|error| Failed { error, cause })
            }
        }
    }

    /// The commands between MULTI and EXEC: TIME, and GET for a look, INCRBY and EXPIRE for hits.
    fn queued(&self, run: &Run) -> usize {
        run.items.iter().fold(1, |sum, &item| sum + self.commands(item))
    }

    fn commands(&self, item: Item) -> usize {
        if self.check(item).1.hits == 0 { 1 } else { 2 }
    }

    fn read_transaction(&self, run: &Run, words: &mut Words<'_>, answers: &mut [Answer]) -> Result<Micros, StoreError> {
        let now = words.next().filter(|word| *word == Word::Array(2)).and_then(|_| time(words)).ok_or(STRANGE)?;
        for ((_, check, fixed), place) in self.counted(run).zip(answers) {
            let counted = counted_value(check, value(words)?);
            if check.hits != 0 {
                // The reply to EXPIRE tells nothing: the key is there, the line before made it.
                value(words)?;
            }
            *place = counted.map(|count| self.judge(fixed, check, count, now));
        }
        Ok(now)
    }

    /// Each command was taken or refused on its own.
    fn read_plain(
        &self,
        run: &Run,
        words: &mut Words<'_>,
        answers: &mut [Answer],
        elsewhere: &mut Elsewhere,
    ) -> Result<Micros, StoreError> {
        let now = match words.next() {
            Some(Word::Array(2)) => Ok(time(words).ok_or(STRANGE)?),
            Some(Word::Error(line)) => Err(StoreError::Unknown(error::classify_line(line).name)),
            _ => return Err(STRANGE),
        };
        for (index, ((_, check, fixed), place)) in self.counted(run).zip(answers).enumerate() {
            let said = value(words)?;
            if let (true, Some(redirect)) = (self.manner.by_slot, server_error(said).and_then(Redirect::read)) {
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
fn value<'w>(words: &mut Words<'w>) -> Result<Word<'w>, StoreError> {
    words.next().filter(|word| !matches!(word, Word::Array(_) | Word::Status(_))).ok_or(STRANGE)
}

/// What a counter stands at, by the reply to its INCRBY or GET.
fn counted_value(check: &Check, said: Word<'_>) -> Result<u64, StoreError> {
    match said {
        Word::Nil if check.hits == 0 => Ok(0),
        Word::Error(line) => match error::classify_line(line) {
            kind if kind.name == error::OVERFLOW => Ok(i64::MAX.unsigned_abs()),
            kind => Err(kind.error()),
        },
        value => value.whole().ok_or(StoreError::Data(error::NOT_AN_INTEGER)).and_then(count),
    }
}

fn count(number: i64) -> Result<u64, StoreError> {
    u64::try_from(number).map_err(|_| StoreError::Data(error::RANGE))
}

fn server_error(word: Word<'_>) -> Option<&[u8]> {
    if let Word::Error(line) = word { Some(line) } else { None }
}

/// Takes the replies to a transaction up to its values, as many as there are commands `queued`.
fn executed<'w>(words: &mut Words<'w>, queued: usize) -> Result<(), Failed<'w>> {
    let begun = words.next().ok_or(STRANGE)?;
    let mut cause = server_error(begun);
    let mut are_taken = begun == Word::Status(b"OK");
    if !are_taken && cause.is_none() {
        return Err(STRANGE.into());
    }
    for _ in 0..queued {
        match words.next() {
            Some(Word::Status(b"QUEUED")) => {}
            Some(Word::Error(line)) => {
                are_taken = false;
                cause = cause.or(Some(line));
            }
            _ => return Err(STRANGE.into()),
        }
    }
    match words.next() {
        Some(Word::Array(values)) if are_taken && values == queued => Ok(()),
        // Nothing ran if the transaction was refused and no command was answered on its own.
        Some(Word::Error(line)) => {
            let cause = cause.unwrap_or(line);
            Err(Failed { error: StoreError::NotExecuted(error::classify_line(cause).name), cause: Some(cause) })
        }
        _ => Err(STRANGE.into()),
    }
}
