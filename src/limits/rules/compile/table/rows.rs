//! The rows of a table: what each says, checked as a `rate_limit` is, and what it comes to above
//! its plan and the descriptor's own numbers.
//!
//! Rows become the nodes that a `rate_limit` in YAML becomes, so that one reader checks both.

use std::hash::BuildHasher;

use csv::ByteRecord;
use hashbrown::{DefaultHashBuilder, HashMap, HashTable};

use super::records::{Begin, Records};
use crate::limits::rules::compile::data::{LONGEST_VALUE, TableFile};
use crate::limits::rules::compile::fields::{self, Section};
use crate::limits::rules::compile::partial::PartialLimit;
use crate::limits::rules::compile::problem::{Location, Problems, quoted};
use crate::limits::rules::compile::rate;
use crate::limits::rules::compile::settle::{Settled, Settling, Stack, Whole};
use crate::limits::rules::limit::{Limit, RowAmount, RowMeaning};
use crate::limits::rules::source::{Node, Position};
use crate::limits::rules::table::{NotAdded, Table};

/// Rows of all tables. A row takes at most 40 bytes beside its value, its name, and numbers that no
/// other row has.
pub(crate) const MOST_ROWS: usize = 2_000_000;

/// Texts of rows whose meaning is kept while a table is read.
pub(crate) const MOST_KNOWN: usize = 100_000;

/// A plan that rows of a table use, as a limit of the descriptor.
pub(super) struct UsedPlan<'p> {
    pub(super) name: Box<str>,
    pub(super) layer: &'p PartialLimit,
    pub(super) settled: Settled,
    /// The number of the limit in its domain.
    pub(super) limit: u32,
}

/// A table that is being read.
struct Reading<'r, 'a, 'f> {
    settling: &'r mut Settling<'a, 'f>,
    /// The limit of the descriptor.
    base: &'r Limit,
    /// Its layers.
    stack: &'r Stack<'r>,
    file: TableFile<'f>,
    columns: Vec<&'static str>,
    used: Vec<UsedPlan<'a>>,
    table: Table<RowMeaning>,
    /// What rows stand for, by the texts of all their cells but value and name. `None`: they are
    /// wrong.
    known: HashMap<Box<[u8]>, Option<u32>>,
    /// The numbers of names, by the name.
    names: HashTable<u32>,
    hasher: DefaultHashBuilder,
}

/// Reads a table, and returns its rows and the plans that they use; `None` if it has no usable
/// header, which is reported.
pub(super) fn read<'a, 'f>(
    settling: &mut Settling<'a, 'f>,
    (base, stack): (&Limit, &Stack<'_>),
    file: TableFile<'f>,
) -> Option<(Table<RowMeaning>, Vec<UsedPlan<'a>>)> {
    let mut records = Records::new(file.text);
    let mut record = ByteRecord::new();
    let Some(begin) = records.next(&mut record) else {
        settling.problems.error_in(
            file.at,
            "the table is empty",
            "write the names of its columns in the first line, such as 'value,plan'",
        );
        return None;
    };
    let columns = header(settling.problems, file.at, &records, begin, &record)?;
    let value = columns.iter().position(|&column| column == "value")?;
    let name = columns.iter().position(|&column| column == "name");
    let table = Table::new(file.name.into());
    let (known, names, hasher) = (
        HashMap::new(),
        HashTable::new(),
        DefaultHashBuilder::default(),
    );
    let mut reading = Reading {
        settling,
        base,
        stack,
        file,
        columns,
        used: Vec::new(),
        table,
        known,
        names,
        hasher,
    };
    let mut cells = Vec::new();
    while let Some(begin) = records.next(&mut record) {
        *reading.settling.rows += 1;
        if *reading.settling.rows > MOST_ROWS {
            let what = format!("all tables together have more than {MOST_ROWS} rows");
            reading.settling.problems.error_in(
                file.at.line(begin.line),
                what,
                "write fewer rows, or a pattern",
            );
            break;
        }
        reading.row(&records, begin, &record, (value, name), &mut cells);
    }
    let Reading {
        mut table, used, ..
    } = reading;
    table.complete();
    Some((table, used))
}

/// The names of the columns; `None` if there is none of values. An unknown column is one without a
/// name.
fn header(
    problems: &mut Problems,
    file: Location,
    records: &Records<'_>,
    begin: Begin,
    record: &ByteRecord,
) -> Option<Vec<&'static str>> {
    let mut columns: Vec<&'static str> = Vec::with_capacity(record.len());
    for (index, cell) in record.iter().enumerate() {
        let text = String::from_utf8_lossy(cell.trim_ascii()).into_owned();
        let at = file.at(records.at(begin, index));
        let known = Section::Row.keys().find(|known| *known == text);
        match known {
            Some(known) if columns.contains(&known) => {
                problems.error_in(
                    at,
                    format!("the table has two columns {}", quoted(known)),
                    "remove one of them",
                );
                columns.push("");
            }
            Some(known) => columns.push(known),
            None => {
                let remedy = match fields::nearest(&text, Section::Row.keys()) {
                    Some(near) => format!("write '{near}'"),
                    None => format!(
                        "remove it, or write one of {}",
                        Section::Row.keys().collect::<Vec<_>>().join(", ")
                    ),
                };
                problems.error_in(at, format!("unknown column {}", quoted(&text)), remedy);
                columns.push("");
            }
        }
    }
    if !columns.contains(&"value") {
        let what = "the table has no column 'value'";
        problems.error_in(
            file.line(begin.line),
            what,
            "write the names of the columns in the first line, such as 'value,plan'",
        );
        return None;
    }
    Some(columns)
}

impl Reading<'_, '_, '_> {
    fn row(
        &mut self,
        records: &Records<'_>,
        begin: Begin,
        record: &ByteRecord,
        (value, name): (usize, Option<usize>),
        cells: &mut Vec<u8>,
    ) {
        let file = self.file.at;
        if record.len() != self.columns.len() {
            let cells = if record.len() == 1 { "cell" } else { "cells" };
            let what = format!(
                "the row has {} {cells}, and the first line {}",
                record.len(),
                self.columns.len()
            );
            let remedy = "write a cell for each column, also an empty one, and a cell with a comma \
                in quotes";
            return self
                .settling
                .problems
                .error_in(file.line(begin.line), what, remedy);
        }
        if let Some((cell, what, remedy)) = record.iter().enumerate().find_map(|(index, cell)| {
            let (what, remedy) = wrong_cell(cell, || records.cell(begin, index).1)?;
            Some((index, what, remedy))
        }) {
            return self
                .settling
                .problems
                .error_in(file.at(records.at(begin, cell)), what, remedy);
        }
        let name = self.name(records, begin, record, name);
        let meaning = self.meaning(records, begin, record, cells);
        let text = record.get(value).unwrap_or_default();
        if text.is_empty() {
            let at = file.at(records.at(begin, value));
            return self.settling.problems.error_in(
                at,
                "the row has no value",
                "write the value that it is for, or remove the row",
            );
        }
        if text.trim_ascii() != text {
            let what = "the value begins or ends with a blank, and is only found with it";
            self.settling.problems.warning_in(
                file.at(records.at(begin, value)),
                what,
                "remove the blank if it is not meant",
            );
        }
        // The value is added also if the rest is wrong, so that it is compared with all others.
        match self
            .table
            .add(text, begin.line, meaning.unwrap_or_default(), name)
        {
            Ok(()) => {}
            Err(NotAdded::Repeated { line }) => {
                let what = format!(
                    "the value {} has a row already, in line {line}",
                    quoted(&String::from_utf8_lossy(text))
                );
                self.settling.problems.error_in(
                    file.at(records.at(begin, value)),
                    what,
                    "remove one of the two",
                );
            }
            Err(NotAdded::Full) => {
                self.settling.problems.error_in(
                    file.line(begin.line),
                    "the values of the table have more than 4 GiB",
                    "write shorter ones",
                );
            }
        }
    }

    /// The number of the row's name.
    fn name(
        &mut self,
        records: &Records<'_>,
        begin: Begin,
        record: &ByteRecord,
        column: Option<usize>,
    ) -> Option<u32> {
        let column = column?;
        let name = str::from_utf8(record.get(column)?).ok()?.trim();
        if name.is_empty() {
            return None;
        }
        let hash = self.hasher.hash_one(name);
        if let Some(known) = self
            .names
            .find(hash, |&number| self.table.name_of(number) == Some(name))
        {
            return Some(*known);
        }
        let at = || self.file.at.at(records.at(begin, column));
        if let Some((what, remedy)) = fields::wrong_name(name) {
            self.settling.problems.error_in(at(), what, remedy);
            return None;
        }
        if self
            .base
            .replaces
            .iter()
            .any(|replaced| **replaced == *name)
        {
            let what = format!(
                "the limit replaces {}, which would be this row itself",
                quoted(name)
            );
            self.settling.problems.error_in(
                at(),
                what,
                "write another name, or remove it from 'replaces'",
            );
        }
        let number = self.table.add_name(name)?;
        let (table, hasher) = (&self.table, &self.hasher);
        self.names.insert_unique(hash, number, |&number| {
            hasher.hash_one(table.name_of(number).unwrap_or_default())
        });
        Some(number)
    }

    /// What the row stands for; `None` if it is wrong, which is reported.
    fn meaning(
        &mut self,
        records: &Records<'_>,
        begin: Begin,
        record: &ByteRecord,
        cells: &mut Vec<u8>,
    ) -> Option<u32> {
        cells.clear();
        for (column, cell) in self.columns.iter().zip(record) {
            if !matches!(*column, "value" | "name" | "") {
                cells.extend_from_slice(&(cell.len() as u64).to_le_bytes());
                cells.extend_from_slice(cell);
            }
        }
        if let Some(Some(known)) = self.known.get(&**cells) {
            return Some(*known);
        }
        let meaning = self
            .compile(records, begin, record)
            .map(|meaning| self.table.add_meaning(meaning));
        if self.known.len() >= MOST_KNOWN {
            self.known.clear();
        }
        self.known.insert(cells.as_slice().into(), meaning);
        meaning
    }

    fn compile(
        &mut self,
        records: &Records<'_>,
        begin: Begin,
        record: &ByteRecord,
    ) -> Option<RowMeaning> {
        let (file, base) = (self.file.at, self.base);
        let mut problems = Problems::default();
        problems.open("");
        let mut entries = Vec::new();
        for (index, (&column, cell)) in self.columns.iter().zip(record).enumerate() {
            let Ok(text) = str::from_utf8(cell) else {
                continue;
            };
            let text = text.trim();
            if matches!(column, "value" | "name" | "") || text.is_empty() {
                continue;
            }
            let at = records.at(begin, index);
            let node = if column == "plan" {
                Node::of_text(at, text)
            } else {
                Node::of_plain(at, text)
            };
            entries.push((Node::of_text(at, column), node));
        }
        let all = Node::of_map(
            Position {
                line: begin.line,
                column: 1,
            },
            entries,
        );
        let read = fields::read(&mut problems, &all, Section::Row).and_then(|fields| {
            let mut layer = PartialLimit::read(&mut problems, &fields)
                .filter(|layer| rate::is_of_many(&mut problems, &fields, layer))?;
            for (_, at) in &mut layer.places.keys {
                *at = at.in_file_of(file);
            }
            let plan = fields.get("plan");
            Some((
                layer,
                plan.and_then(|node| Some((node.text()?.to_owned(), node.at))),
            ))
        });
        // Remedies for files of limits name the key in front of a value.
        let word = |remedy: String| {
            self.columns.iter().fold(remedy, |remedy, column| {
                remedy.replace(&format!("'{column}: "), "'")
            })
        };
        self.settling.problems.adopt(file, problems, word);
        let (layer, plan) = read?;
        let here = file.at(Position {
            line: begin.line,
            column: 1,
        });
        let of_plan = match plan {
            Some((name, at)) => Some(self.used_plan(&name, file.at(at))?),
            None => None,
        };
        let used = of_plan.and_then(|index| self.used.get(index));
        let meaning = |amount| RowMeaning {
            limit: used.map_or(base.id.limit, |used| used.limit),
            amount,
            shadow_mode: layer.shadow_mode,
            on_store_failure: layer.on_store_failure,
        };
        let (amount, is_by_rows) = used.map_or((base.amount, base.is_by_rows), |used| {
            (used.settled.amount, used.settled.is_by_rows)
        });
        let is_policy_of_nothing = amount.is_none() && layer.on_store_failure.is_some();
        if layer.has_no_amount() && !is_by_rows && !is_policy_of_nothing {
            return Some(meaning(RowAmount::OfLimit));
        }
        // Without a plan of its own, a row has that of the descriptor.
        let of_descriptor = match used {
            Some(_) => self.stack.own.get(..1)?,
            None => self.stack.own,
        };
        let own: Vec<&PartialLimit> = [&layer]
            .into_iter()
            .chain(used.map(|used| used.layer))
            .chain(of_descriptor.iter().copied())
            .collect();
        let stack = Stack {
            own: &own,
            ..*self.stack
        };
        let settled = self.settling.settle(&stack, here, Whole::Row)?;
        Some(meaning(RowAmount::Own(settled.amount)))
    }

    /// The index of a plan among those that rows use; `None` if it cannot be used, which is
    /// reported.
    fn used_plan(&mut self, name: &str, at: Location) -> Option<usize> {
        if let Some(known) = self.used.iter().position(|used| *used.name == *name) {
            return Some(known);
        }
        let plan = self.settling.plan(name, at)?;
        let layer = plan.layer.as_ref()?;
        if let Some(own) = layer
            .name
            .as_ref()
            .filter(|own| self.base.replaces.contains(own))
        {
            let what = format!(
                "the limit replaces {}, which is the name of the plan of this row",
                quoted(own)
            );
            self.settling.problems.error_in(
                at,
                what,
                "give the plan another name, or remove it from 'replaces'",
            );
            return None;
        }
        let own: Vec<&PartialLimit> = [layer]
            .into_iter()
            .chain(self.stack.own.first().copied())
            .collect();
        let stack = Stack {
            own: &own,
            ..*self.stack
        };
        let settled = self.settling.settle(&stack, plan.at, Whole::Plan)?;
        let limit = *self.settling.next_limit;
        *self.settling.next_limit = limit.checked_add(1)?;
        self.used.push(UsedPlan {
            name: name.into(),
            layer,
            settled,
            limit,
        });
        Some(self.used.len() - 1)
    }
}

/// Why a cell can be none. `ends_with_quotes`: a missing quote is noticed where the cell goes on in
/// the next line.
fn wrong_cell(
    cell: &[u8],
    ends_with_quotes: impl FnOnce() -> bool,
) -> Option<(String, &'static str)> {
    if cell.contains(&b'\n') && !ends_with_quotes() {
        return Some((
            "the cell goes over several lines".to_owned(),
            "close its quotes, or write \"\" for a quote in it",
        ));
    }
    if cell.len() > LONGEST_VALUE {
        return Some((
            format!("the cell has more than {LONGEST_VALUE} bytes"),
            "write a shorter one",
        ));
    }
    str::from_utf8(cell).is_err().then(|| {
        (
            "the cell is not UTF-8".to_owned(),
            "write the file in UTF-8",
        )
    })
}
