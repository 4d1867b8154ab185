//! The rows of checks in the packed text of a reply.

use super::{Call, NUMBER_BYTES, integer, numbers};
use crate::core::algorithm::{Algorithm, Arrival, State};
use crate::core::time::Span;
use crate::core::verdict::{Verdict, Wait};

/// The row of one check.
pub(super) enum CheckRow {
    /// The state that the script found and stepped; `None` for a missing key.
    Found(Option<State>),
    /// The result of the script's step: hits that count now, ticks until the limit has recovered,
    /// and the ticks until a retry can succeed: 0 when the check is allowed, -1 for never.
    Decided { used: u64, reset: u64, retry: i64 },
}

/// The number of the error line of a check that failed, counted from 1.
pub(super) struct ErrorLine(pub(super) usize);

/// Bytes of the row of a check.
pub(super) fn row_size(algorithm: &Algorithm) -> usize {
    algorithm.spec().reply_numbers * NUMBER_BYTES
}

/// Takes the row of a check. `None` for a row that the script never writes.
pub(super) fn take_row(
    rows: &mut &[u8],
    algorithm: &Algorithm,
) -> Option<Result<CheckRow, ErrorLine>> {
    let row = rows.split_off(..row_size(algorithm))?;
    let mut rest = numbers(row);
    let mut number = || rest.next();
    let (first, second, third) = (number()?, number()?, number()?);
    if first < 0.0 {
        let line = usize::try_from(integer(-first)?).ok()?;
        return Some(Err(ErrorLine(line)));
    }
    // The script accepts any whole numbers as a state and clamps them, and so do the steps.
    let Some(state) = algorithm.state_of_row([first, second, third, number().unwrap_or_default()])
    else {
        let count = |number| u64::try_from(integer(number)?).ok();
        return Some(Ok(CheckRow::Decided {
            used: count(first)?,
            reset: count(second)?,
            retry: integer(third)?,
        }));
    };
    Some(Ok(CheckRow::Found((first > 0.0).then_some(state))))
}

impl Call<'_> {
    /// The verdict of a row on so many hits.
    pub(super) fn verdict(
        &self,
        row: CheckRow,
        algorithm: &Algorithm,
        hits: i64,
        at: Arrival,
    ) -> Verdict {
        let (used, reset, retry) = match row {
            CheckRow::Found(state) => return algorithm.step(state, at, hits).verdict,
            CheckRow::Decided { used, reset, retry } => (used, reset, retry),
        };
        let allowed = retry == 0;
        if let Algorithm::FixedWindow(fixed) = algorithm {
            let window = fixed.number(self.now.time);
            return Verdict {
                allowed,
                ..fixed.judge(window, used, at.now, hits)
            };
        }
        let tick = algorithm.tick();
        Verdict {
            allowed,
            remaining: algorithm.capacity().saturating_sub(used),
            used,
            // A limit of requests in flight has none: the number is the change of its places.
            reset_after: if algorithm.counts_in_flight() {
                Span::ZERO
            } else {
                tick.span(reset)
            },
            retry_after: u64::try_from(retry)
                .map_or(Wait::Never, |ticks| Wait::For(tick.span(ticks))),
            delay: Span::ZERO,
        }
    }
}
