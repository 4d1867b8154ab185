//! Puts rows in the order of their times. Several Envoys write one log, and each writes a line when
//! a request ends: rows are seldom more than seconds out of order.

use std::collections::BTreeMap;

use super::TraceRow;
use crate::core::time::{Micros, Span, people};

/// How far out of order a row may be. So much of the trace is in memory.
const WINDOW: Span = Span::from_secs(60);

/// The most bytes of rows in the window: a minute of some hundred thousand requests a second. When
/// it is full, the oldest row leaves it early.
const MAX_BYTES: usize = 256 << 20;

/// The most bytes of rows that are sorted as a whole.
const MAX_SORTED_BYTES: usize = 4 << 30;

/// Bytes of a row without its message, in a map whose nodes are half full.
const ROW_BYTES: usize = 2 * size_of::<((Micros, u64), TraceRow)>();

/// Rows that wait for others before them.
#[derive(Debug, Default)]
pub(super) struct RowOrder {
    /// Whether all rows wait for the last one.
    sorts_all: bool,
    /// By their times and lines.
    rows: BTreeMap<(Micros, u64), TraceRow>,
    bytes: usize,
    /// The time and the line of the row with the latest time.
    latest: (Micros, u64),
    /// The time of the last row that left.
    left: Micros,
}

impl RowOrder {
    pub(super) fn new(sorts_all: bool) -> Self {
        Self {
            sorts_all,
            ..Self::default()
        }
    }

    /// Adds a row.
    ///
    /// # Errors
    /// It is too late, or there are too many.
    pub(super) fn push(&mut self, row: TraceRow) -> Result<(), String> {
        let (latest, line) = self.latest;
        let (is_late, number) = (row.at < self.left, row.line);
        if is_late || !self.sorts_all && row.at + WINDOW < latest {
            let by = people::span(latest.since(row.at).micros() as f64 / 1e6);
            return Err(format!(
                "line {number} is {by} before line {line}; rows may be a minute out of order: sort \
                 the trace by time, or use --sort, which holds it in memory"
            ));
        }
        self.bytes += ROW_BYTES + row.message.len();
        if self.sorts_all && self.bytes > MAX_SORTED_BYTES {
            let what = "--sort holds at most 4 GiB of rows; sort the trace by time before";
            return Err(format!("line {number}: {what}"));
        }
        if row.at >= latest {
            self.latest = (row.at, row.line);
        }
        self.rows.insert((row.at, row.line), row);
        Ok(())
    }

    /// The next row in the order of times, then of lines, if no earlier one can follow. `ended`: no
    /// row follows.
    pub(super) fn pop(&mut self, ended: bool) -> Option<TraceRow> {
        let first = self.rows.first_entry()?;
        let is_full = !self.sorts_all && self.bytes > MAX_BYTES;
        let may_leave = !self.sorts_all && first.key().0 + WINDOW < self.latest.0;
        if !(ended || is_full || may_leave) {
            return None;
        }
        let next = first.remove();
        self.bytes -= ROW_BYTES + next.message.len();
        self.left = next.at;
        Some(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(line: u64, secs: u64) -> TraceRow {
        TraceRow {
            at: Micros(secs * 1_000_000),
            line,
            duration: None,
            message: Vec::new(),
        }
    }

    fn lines(order: &mut RowOrder, ended: bool) -> Vec<u64> {
        std::iter::from_fn(|| order.pop(ended).map(|row| row.line)).collect()
    }

    #[test]
    fn rows_of_a_minute_are_sorted() {
        let mut order = RowOrder::new(false);
        for (line, secs) in [(1, 100), (2, 130), (3, 70), (4, 130), (5, 90)] {
            order.push(row(line, secs)).expect("in time");
        }
        assert_eq!(
            lines(&mut order, false),
            [0_u64; 0],
            "a minute has not passed"
        );
        order.push(row(6, 151)).expect("in time");
        assert_eq!(lines(&mut order, false), [3, 5]);
        order.push(row(7, 91)).expect("a minute before the latest");
        let error = order.push(row(8, 90)).expect_err("more than a minute");
        assert!(
            error.starts_with("line 8 is 1m 1s before line 6"),
            "{error}"
        );
        assert_eq!(lines(&mut order, true), [7, 1, 2, 4, 6]);
        assert_eq!(order.bytes, 0);
    }

    #[test]
    fn sorting_waits_for_the_last_row() {
        let mut order = RowOrder::new(true);
        for (line, secs) in [(1, 1_000), (2, 5), (3, 500), (4, 5)] {
            order.push(row(line, secs)).expect("sorted");
        }
        assert_eq!(lines(&mut order, false), [0_u64; 0]);
        assert_eq!(lines(&mut order, true), [2, 4, 3, 1]);
    }
}
