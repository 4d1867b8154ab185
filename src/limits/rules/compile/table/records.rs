//! The records of a CSV file (RFC 4180) with the places of their cells.
//!
//! The crate `csv` reads them. It says where it was before it skipped empty lines and comments, and
//! not where a cell is; both are found again in the text.

use csv::{ByteRecord, Reader, ReaderBuilder};

/// The byte with which a comment begins.
const COMMENT: u8 = b'#';

/// All records of a text.
pub(super) struct Records<'t> {
    text: &'t [u8],
    reader: Reader<&'t [u8]>,
}

/// Where a record begins.
#[derive(Clone, Copy, Debug)]
pub(super) struct Begin {
    /// From 1 on.
    pub(super) line: u32,
    /// In the text.
    byte: usize,
}

impl<'t> Records<'t> {
    /// Those of a text, without its byte order mark.
    pub(super) fn new(text: &'t [u8]) -> Self {
        let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
        let reader = ReaderBuilder::new()
            .has_headers(false)
            .flexible(true)
            .comment(Some(COMMENT))
            .from_reader(text);
        Self { text, reader }
    }

    /// Reads the next record, and returns where it begins; `None` behind the last.
    pub(super) fn next(&mut self, record: &mut ByteRecord) -> Option<Begin> {
        // Reading from memory does not fail, and records may be of different lengths.
        if !self.reader.read_byte_record(record).unwrap_or(false) {
            return None;
        }
        let before = record.position()?;
        let (mut byte, mut line) = (
            usize::try_from(before.byte()).ok()?,
            u32::try_from(before.line()).ok()?,
        );
        while let Some(&first) = self.text.get(byte) {
            let skipped = match first {
                b'\r' | b'\n' => 1,
                COMMENT => {
                    let rest = self.text.get(byte..)?;
                    rest.iter()
                        .position(|&byte| byte == b'\n')
                        .map_or(rest.len(), |end| end + 1)
                }
                _ => break,
            };
            line += u32::from(self.text.get(byte + skipped - 1) == Some(&b'\n'));
            byte += skipped;
        }
        // A comment that ends the text without a line break is a record without text for the crate.
        (byte < self.text.len()).then_some(Begin { line, byte })
    }

    /// The line and column of the cell of that index in the record that begins there, and whether
    /// it ends where its quotes do, if it has some.
    pub(super) fn cell(&self, begin: Begin, cell: usize) -> ((u32, u32), bool) {
        let text = self.text.get(begin.byte..).unwrap_or_default();
        let (mut at, mut cells, mut state) = ((begin.line, 1), 0, Cell::Begins);
        let mut first = at;
        for &byte in text {
            state = match (state, byte) {
                (Cell::Begins | Cell::Closed, b'"') => Cell::Quoted,
                (Cell::Quoted, b'"') => Cell::Closed,
                (Cell::Quoted, _) => Cell::Quoted,
                (_, b',') if cells < cell => Cell::Begins,
                (_, b',' | b'\r' | b'\n') => break,
                (Cell::Closed | Cell::GoesOn, _) => Cell::GoesOn,
                (Cell::Begins | Cell::Plain, _) => Cell::Plain,
            };
            at = match byte {
                b'\n' => (at.0 + 1, 1),
                // A character counts once, whatever its bytes.
                _ => (at.0, at.1 + u32::from(byte & 0xc0 != 0x80)),
            };
            if matches!(state, Cell::Begins) {
                (first, cells) = (at, cells + 1);
            }
        }
        (first, !matches!(state, Cell::Quoted | Cell::GoesOn))
    }
}

/// How far a cell is read. A quote is one only where the cell begins with one.
#[derive(Clone, Copy)]
enum Cell {
    Begins,
    Plain,
    Quoted,
    /// Behind its last quote, which may be the first of two.
    Closed,
    /// With text behind its last quote.
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
        let mut records = Records::new(text);
        let mut record = ByteRecord::new();
        let mut all = Vec::new();
        while let Some(begin) = records.next(&mut record) {
            let at = |cell| records.cell(begin, cell).0;
            all.push((
                begin.line,
                record.iter().map(<[u8]>::to_vec).collect::<Vec<_>>(),
                (0..record.len()).map(at).collect::<Vec<_>>(),
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
            let mut records = Records::new(text.as_bytes());
            let begin = records.next(&mut ByteRecord::new()).expect("a record");
            assert_eq!(
                [0, 1].map(|cell| records.cell(begin, cell).1),
                expected,
                "{text:?}"
            );
        }
    }
}
