//! `table`: reads rows, and makes the limits of a descriptor with a table, or with a plan.
//!
//! A table is read when its domain is complete, because rows are layers above the domain's defaults
//! and plans. Equal rows are compiled once.

pub(crate) mod rows;

use std::sync::Arc;

use csv::{ByteRecord, Reader, ReaderBuilder};

use super::Compiler;
use super::build::Builder;
use super::data;
use super::domain::PendingTable;
use super::fields::{self, Fields};
use super::layers::Layers;
use super::problem::{Problems, quoted};
use crate::core::message::Message;
use crate::limits::rules::limit::{Level, Limit, LimitTable, Matching};
use crate::limits::rules::messages;
use crate::limits::rules::place::Place;
use crate::limits::rules::source::Node;

/// Reads the table of a descriptor; `Err` if the descriptor cannot have it, which is reported.
pub(super) fn read(
    compiler: &Compiler<'_>,
    fields: &Fields<'_>,
    path: &[Level],
) -> Result<Option<PendingTable>, ()> {
    match (fields.get("table"), fields.get("table_key")) {
        (Some(node), _) => read_named(compiler, fields, path, node).map(Some).ok_or(()),
        (None, Some(node)) => {
            compiler
                .problems
                .error(&node.at, messages::table_key_without_table());
            Err(())
        }
        (None, None) if fields.meant("table") => Err(()),
        (None, None) => Ok(None),
    }
}

fn read_named(
    compiler: &Compiler<'_>,
    fields: &Fields<'_>,
    path: &[Level],
    node: &Node,
) -> Option<PendingTable> {
    let problems = compiler.problems;
    let name = fields.text("table")?;
    let shown = quoted(name);
    if !data::is_table(name) {
        return problems.fail(&node.at, messages::table_not_csv(shown));
    }
    let has_file = compiler.data.table(&node.at, name).is_some();
    if !has_file {
        problems.error(&node.at, messages::no_table_file(shown));
    }
    let last = path.len().saturating_sub(1);
    let level = match fields.get("table_key") {
        Some(key) => level_of_key(problems, path, key),
        None => Some(last),
    };
    if let Some(message) = path.get(level.unwrap_or(last)).and_then(why_no_rows) {
        return problems.fail(&node.at, message);
    }
    has_file.then_some(())?;
    Some(PendingTable {
        name: name.into(),
        level: level?,
        has_default: fields.get("rate_limit").is_some(),
        at: node.at.clone(),
    })
}

/// The level with a `table_key`; `None`, with an error, if no level has it.
fn level_of_key(problems: &Problems, path: &[Level], node: &Node) -> Option<usize> {
    let key = fields::text(problems, node, "table_key")?;
    let found = path.iter().rposition(|level| *level.key == *key);
    if found.is_none() {
        problems.error(&node.at, messages::unknown_table_key(quoted(key)));
    }
    found
}

/// Why a level's values cannot have rows.
fn why_no_rows(level: &Level) -> Option<Message> {
    if level.is_shared {
        return Some(messages::table_with_share_threshold());
    }
    if level.matching.counts_addresses() {
        return Some(messages::table_of_addresses());
    }
    let is_one = level.matching == Matching::Text && level.is_one_value();
    is_one.then(messages::table_of_one_value)
}

impl Builder<'_, '_> {
    /// A limit with its table, and the limits of the plans that its rows use. `shadow_mode` is the
    /// setting of the descriptor.
    pub(super) fn with_rows(
        &mut self,
        mut limit: Limit,
        shadow_mode: bool,
        layers: &Layers<'_>,
        named: &PendingTable,
    ) -> Option<(Limit, Vec<Limit>)> {
        let file = self.data.table(&named.at, &named.name)?;
        let (rows, mut of_plans) = rows::read(self, (&limit, shadow_mode), layers, file)?;
        if rows.is_empty() && !named.has_default {
            let message = messages::table_without_rows(quoted(&named.name));
            self.problems.warning(&named.at, message);
        }
        let table = LimitTable::new(rows, named.level, limit.id.limit, named.has_default);
        limit.table = Some(Arc::new(table));
        for of_plan in &mut of_plans {
            of_plan.table = limit.table.clone();
        }
        Some((limit, of_plans))
    }
}

/// The byte with which a comment begins.
const COMMENT: u8 = b'#';

/// The records of a CSV file (RFC 4180) with the places of their cells, one after the other. The
/// crate `csv` reports its position before it skips empty lines and comments, and no positions of
/// cells; both are found again in the text.
pub(super) struct Records<'t> {
    text: &'t [u8],
    reader: Reader<&'t [u8]>,
    file: &'t Place,
    /// The cells of the current record.
    pub(super) cells: ByteRecord,
    /// The line where it begins, from 1 on.
    pub(super) line: u32,
    /// Where it begins in the text.
    byte: usize,
}

impl<'t> Records<'t> {
    /// The records of a file, without its byte order mark.
    pub(super) fn new(text: &'t [u8], file: &'t Place) -> Self {
        let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
        let reader = ReaderBuilder::new()
            .has_headers(false)
            .flexible(true)
            .comment(Some(COMMENT))
            .from_reader(text);
        Self {
            text,
            reader,
            file,
            cells: ByteRecord::new(),
            line: 1,
            byte: 0,
        }
    }

    /// Reads the next record; `None` after the last.
    pub(super) fn next(&mut self) -> Option<()> {
        // Reading from memory does not fail, and records may be of different lengths.
        let read = self.reader.read_byte_record(&mut self.cells);
        read.is_ok_and(|is_one| is_one).then_some(())?;
        let before = self.cells.position()?;
        let mut byte = usize::try_from(before.byte()).ok()?;
        let mut line = u32::try_from(before.line()).ok()?;
        while let Some(&first) = self.text.get(byte) {
            let skipped = match first {
                b'\r' | b'\n' => 1,
                COMMENT => {
                    let rest = self.text.get(byte..)?;
                    let end = rest.iter().position(|&byte| byte == b'\n');
                    end.map_or(rest.len(), |end| end + 1)
                }
                _ => break,
            };
            line += u32::from(self.text.get(byte + skipped - 1) == Some(&b'\n'));
            byte += skipped;
        }
        // A comment that ends the text without a line break is a record without text for the crate.
        (self.line, self.byte) = (line, byte);
        (byte < self.text.len()).then_some(())
    }

    /// Where the record begins.
    pub(super) fn begin(&self) -> Place {
        self.file.at((self.line, 1))
    }

    /// The place of the cell with this index.
    pub(super) fn at(&self, cell: usize) -> Place {
        self.file.at(self.cell(cell).0)
    }

    /// Whether a cell ends where its quotes do, if it has some.
    pub(super) fn ends_with_quotes(&self, cell: usize) -> bool {
        self.cell(cell).1
    }

    fn cell(&self, cell: usize) -> ((u32, u32), bool) {
        let text = self.text.get(self.byte..).unwrap_or_default();
        let (mut at, mut cells, mut state) = ((self.line, 1), 0, CellState::Begins);
        let mut first = at;
        for &byte in text {
            state = match (state, byte) {
                (CellState::Begins | CellState::Closed, b'"') => CellState::Quoted,
                (CellState::Quoted, b'"') => CellState::Closed,
                (CellState::Quoted, _) => CellState::Quoted,
                (_, b',') if cells < cell => CellState::Begins,
                (_, b',' | b'\r' | b'\n') => break,
                (CellState::Closed | CellState::GoesOn, _) => CellState::GoesOn,
                (CellState::Begins | CellState::Plain, _) => CellState::Plain,
            };
            at = match byte {
                b'\n' => (at.0 + 1, 1),
                // A character counts once, however many bytes it has.
                _ => (at.0, at.1 + u32::from(byte & 0xc0 != 0x80)),
            };
            if matches!(state, CellState::Begins) {
                (first, cells) = (at, cells + 1);
            }
        }
        let is_open = matches!(state, CellState::Quoted | CellState::GoesOn);
        (first, !is_open)
    }
}

/// State of reading a cell. A quote is special only at the begin of the cell.
#[derive(Clone, Copy)]
enum CellState {
    Begins,
    Plain,
    Quoted,
    /// After its last quote, which may be the first of two.
    Closed,
    /// After text that follows its last quote.
    GoesOn,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_have_their_lines_and_cells_their_columns() {
        let text = b"\xef\xbb\xbf# customers\r\n\r\nvalue,plan\r\n\r\n# \
            one\n\"a,\"\"b\",pro\n\n\n\xc3\xa9,\"x\ny\",z\n5\" \
            disk,\"\r\n\r\n\"\"\r\n\",z\r\nlast,z,z\n#last";
        let file = Place::default();
        let mut records = Records::new(text, &file);
        let mut all = Vec::new();
        while records.next().is_some() {
            let at = |cell| records.cell(cell).0;
            all.push((
                records.line,
                records.cells.iter().map(<[u8]>::to_vec).collect::<Vec<_>>(),
                (0..records.cells.len()).map(at).collect::<Vec<_>>(),
            ));
        }
        let cells = |cells: &[&[u8]]| cells.iter().map(|cell| cell.to_vec()).collect::<Vec<_>>();
        assert_eq!(
            all,
            [
                (3, cells(&[b"value", b"plan"]), vec![(3, 1), (3, 7)]),
                (6, cells(&[b"a,\"b", b"pro"]), vec![(6, 1), (6, 9)]),
                (
                    9,
                    cells(&[b"\xc3\xa9", b"x\ny", b"z"]),
                    vec![(9, 1), (9, 3), (10, 4)]
                ),
                (
                    11,
                    cells(&[b"5\" disk", b"\r\n\r\n\"\r\n", b"z"]),
                    vec![(11, 1), (11, 9), (14, 3)]
                ),
                (
                    15,
                    cells(&[b"last", b"z", b"z"]),
                    vec![(15, 1), (15, 6), (15, 8)]
                ),
            ]
        );
    }

    #[test]
    fn a_cell_ends_where_its_quotes_do() {
        for (text, expected) in [
            ("a,b", [true, true]),
            ("\"a\",\"b\n\"\"\"", [true, true]),
            ("\"a,b\n", [false, false]),
            ("\"a\n\"b,c\"\"", [false, true]),
            ("a,\"b\n\"c", [true, false]),
            ("a,\"b\"\"\n", [true, false]),
        ] {
            let file = Place::default();
            let mut records = Records::new(text.as_bytes(), &file);
            records.next().expect("a record");
            assert_eq!(
                [0, 1].map(|cell| records.ends_with_quotes(cell)),
                expected,
                "{text:?}"
            );
        }
    }
}
