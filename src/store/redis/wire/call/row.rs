//! The rows of checks in the packed text of a reply.

use super::{Call, NUMBER_BYTES, PROTOCOL_ERROR, integer, numbers};
use crate::core::algorithm::{Algorithm, Arrival, State};
use crate::core::time::Span;
use crate::core::verdict::{StoreError, Verdict, Wait};
use crate::limits::plan::Check;

/// The row of one check.
pub(super) enum CheckRow {
    /// The state that the script found and stepped; `None` for a missing key.
    Found(Option<State>),
    /// The result of the script's step: hits that count now, ticks until the limit has recovered,
    /// and the ticks until a retry can succeed: 0 when the check is allowed, -1 for never.
    Decided { used: u64, reset: u64, retry: i64 },
    /// The number of an error line, counted from 1.
    Failed(usize),
}

/// Bytes of the row of a check.
pub(super) fn row_size(algorithm: &Algorithm) -> usize {
    algorithm.spec().reply_numbers * NUMBER_BYTES
}

/// Takes the row of a check. `None` for a row that the script never writes.
pub(super) fn take_row(rows: &mut &[u8], algorithm: &Algorithm) -> Option<CheckRow> {
    let row = rows.split_off(..row_size(algorithm))?;
    let mut rest = numbers(row);
    let mut number = || rest.next();
    let (first, second, third) = (number()?, number()?, number()?);
    if first < 0.0 {
        return Some(CheckRow::Failed(usize::try_from(integer(-first)?).ok()?));
    }
    // The script accepts any whole numbers as a state and clamps them, and so do the steps.
    let Some(state) = algorithm.state_of_row([first, second, third, number().unwrap_or_default()])
    else {
        let count = |number| u64::try_from(integer(number)?).ok();
        return Some(CheckRow::Decided {
            used: count(first)?,
            reset: count(second)?,
            retry: integer(third)?,
        });
    };
    Some(CheckRow::Found((first > 0.0).then_some(state)))
}

impl Call<'_> {
    /// The verdict of a row on `hits` hits of a check.
    pub(super) fn verdict(
        &self,
        row: CheckRow,
        check: &Check,
        hits: i64,
        at: Arrival,
    ) -> Result<Verdict, StoreError> {
        let (used, reset, retry) = match row {
            CheckRow::Found(state) => return Ok(check.algorithm.step(state, at, hits).verdict),
            CheckRow::Decided { used, reset, retry } => (used, reset, retry),
            CheckRow::Failed(_) => return Err(PROTOCOL_ERROR),
        };
        let allowed = retry == 0;
        if let Algorithm::FixedWindow(fixed) = &check.algorithm {
            let window = fixed.number(self.now.time);
            return Ok(Verdict {
                allowed,
                ..fixed.judge(window, used, at.now, check.hits)
            });
        }
        let tick = check.algorithm.tick();
        Ok(Verdict {
            allowed,
            remaining: check.algorithm.capacity().saturating_sub(used),
            used,
            // A limit of requests in flight has none: the number is the change of its places.
            reset_after: if check.algorithm.counts_in_flight() {
                Span::ZERO
            } else {
                tick.span(reset)
            },
            retry_after: u64::try_from(retry)
                .map_or(Wait::Never, |ticks| Wait::For(tick.span(ticks))),
            delay: Span::ZERO,
        })
    }
}
