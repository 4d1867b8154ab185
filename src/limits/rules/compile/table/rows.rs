//! The rows of a table: each is checked like a `rate_limit`, and resolved as a layer above its plan
//! and the descriptor's own numbers.
//!
//! Rows become the same nodes as a `rate_limit` in YAML, and one reader checks both.

use std::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashMap, HashTable};

use super::Records;
use crate::core::message::Message;
use crate::limits::rules::compile::build::Builder;
use crate::limits::rules::compile::data::{self, DataFile, LONGEST_VALUE};
use crate::limits::rules::compile::fields::{self, Section};
use crate::limits::rules::compile::layers::{Layers, Resolved};
use crate::limits::rules::compile::memory;
use crate::limits::rules::compile::partial::PartialLimit;
use crate::limits::rules::compile::problem::{Problems, quoted};
use crate::limits::rules::limit::{Limit, RowAmount, RowMeaning};
use crate::limits::rules::messages;
use crate::limits::rules::place::Place;
use crate::limits::rules::source::{self, Node};
use crate::limits::rules::table::{NotAdded, Table};

/// Maximum number of rows of all tables. A row takes at most 40 bytes in addition to its value, its
/// name, and numbers that no other row has.
pub(crate) const MOST_ROWS: usize = 2_000_000;

/// Maximum number of row texts whose meaning is cached while a table is read.
pub(crate) const MOST_KNOWN: usize = 100_000;

/// A plan that rows of a table use.
struct UsedPlan<'p> {
    layer: &'p PartialLimit,
    /// The limit of the descriptor with this plan, without its table.
    limit: Limit,
}

/// A table that is being read.
struct TableReading<'r, 'a, 'f> {
    builder: &'r mut Builder<'a, 'f>,
    /// The limit of the descriptor.
    base: &'r Limit,
    /// The setting of the descriptor.
    shadow_mode: bool,
    layers: &'r Layers<'r>,
    columns: Vec<&'static str>,
    /// The columns of values and of names.
    value: usize,
    name: Option<usize>,
    used: Vec<UsedPlan<'a>>,
    table: Table<RowMeaning>,
    /// Numbers of meanings, by the texts of all cells except value and name. `None`: the row is
    /// wrong.
    meanings: HashMap<Box<[u8]>, Option<u32>>,
    /// The numbers of names, by the name.
    names: HashTable<u32>,
    hasher: DefaultHashBuilder,
}

/// Reads a table, and returns its rows and the limits of the plans that they use, without the
/// table; `None` if it has no usable header, which is reported. `shadow_mode` is the setting of the
/// descriptor.
pub(super) fn read<'a, 'f>(
    builder: &mut Builder<'a, 'f>,
    (base, shadow_mode): (&Limit, bool),
    layers: &Layers<'_>,
    file: &DataFile<'f>,
) -> Option<(Table<RowMeaning>, Vec<Limit>)> {
    if let Some(message) = source::why_not_text(file.text) {
        return builder.problems.fail(&file.at, message);
    }
    // Of an export for old Macs. A comment would not end before a `\n`.
    let line_end = |&byte: &u8| if byte == b'\r' { b'\n' } else { byte };
    let is_mac = !file.text.contains(&b'\n');
    let with_lines = is_mac.then(|| file.text.iter().map(line_end).collect::<Vec<_>>());
    let mut records = Records::new(with_lines.as_deref().unwrap_or(file.text), &file.at);
    if records.next().is_none() {
        return builder.problems.fail(&file.at, messages::table_is_empty());
    }
    let columns = header(builder.problems, &records)?;
    let mut reading = TableReading {
        builder,
        base,
        shadow_mode,
        layers,
        value: columns.iter().position(|&column| column == "value")?,
        name: columns.iter().position(|&column| column == "name"),
        columns,
        used: Vec::new(),
        table: Table::new(file.at.clone()),
        meanings: HashMap::new(),
        names: HashTable::new(),
        hasher: DefaultHashBuilder::default(),
    };
    let mut key = Vec::new();
    while records.next().is_some() {
        *reading.builder.rows += 1;
        if *reading.builder.rows > MOST_ROWS {
            reading.error(&records.begin(), messages::too_many_rows(MOST_ROWS));
            break;
        }
        let before = reading.table.meanings().len();
        reading.row(&records, &mut key);
        let meanings = reading.table.meanings().len() - before;
        let bytes = memory::of_row(records.cells.as_slice().len(), meanings);
        let builder = &mut *reading.builder;
        let (memory, begin) = (&mut *builder.memory, records.begin());
        if memory.take(builder.problems, &begin, bytes).is_none() {
            break;
        }
    }
    reading.table.complete();
    let of_plans = reading.used.into_iter().map(|used| used.limit);
    Some((reading.table, of_plans.collect()))
}

/// Maximum number of columns, of which each has its place and perhaps a problem: more than there are
/// names.
const MOST_COLUMNS: usize = 64;

/// The names of the columns; `None` if no column has values. An unknown column is one without a
/// name.
fn header(problems: &Problems, row: &Records<'_>) -> Option<Vec<&'static str>> {
    let mut columns: Vec<&'static str> = Vec::with_capacity(row.cells.len());
    if let Some(message) = other_separator(row, |cells| cells.contains(&"value")) {
        return problems.fail(&row.begin(), message);
    }
    let count = row.cells.len();
    if count > MOST_COLUMNS {
        return problems.fail(
            &row.begin(),
            messages::too_many_columns(count, MOST_COLUMNS),
        );
    }
    for (index, cell) in row.cells.iter().enumerate() {
        let text = String::from_utf8_lossy(cell.trim_ascii()).into_owned();
        let at = row.at(index);
        let known = Section::Row.keys().find(|known| *known == text);
        let column = match known {
            Some(known) if columns.contains(&known) => {
                problems.fail(&at, messages::repeated_column(quoted(known)))
            }
            Some(known) => Some(known),
            None => {
                let near = fields::nearest(&text, Section::Row.keys());
                let message = messages::unknown_column(quoted(&text), Section::Row.list());
                problems.fail(&at, message.or_near(near))
            }
        };
        columns.push(column.unwrap_or_default());
    }
    if !columns.contains(&"value") {
        return problems.fail(&row.begin(), messages::no_column_value());
    }
    Some(columns)
}

impl TableReading<'_, '_, '_> {
    fn error(&self, at: &Place, message: Message) {
        self.builder.problems.error(at, message);
    }

    /// Reads a row. `key` is a buffer.
    fn row(&mut self, row: &Records<'_>, key: &mut Vec<u8>) {
        let (own, first) = (row.cells.len(), self.columns.len());
        if own != first {
            let message = other_separator(row, |cells| cells.len() == first);
            let cells = if own == 1 { "cell" } else { "cells" };
            let other = || messages::wrong_cell_count(own, cells, first);
            return self.error(&row.begin(), message.unwrap_or_else(other));
        }
        for (index, cell) in row.cells.iter().enumerate() {
            let ends_with_quotes = || row.ends_with_quotes(index);
            if let Some(message) = wrong_cell(cell, ends_with_quotes) {
                return self.error(&row.at(index), message);
            }
        }
        let name = self.name(row);
        let meaning = self.meaning(row, key);
        let text = row.cells.get(self.value).unwrap_or_default();
        let at = row.at(self.value);
        if text.is_empty() {
            return self.error(&at, messages::row_without_value());
        }
        let value = str::from_utf8(text).unwrap_or_default();
        data::warn_of_odd(self.builder.problems, &at, value);
        // The value is added also if the rest is wrong, for the comparison with all others.
        let meaning = meaning.unwrap_or_default();
        match self.table.add(text, row.line, meaning, name) {
            Ok(()) => {}
            Err(NotAdded::Repeated { line }) => {
                let text = quoted(&String::from_utf8_lossy(text));
                self.error(&at, messages::repeated_row(text, line));
            }
            Err(NotAdded::Full) => self.error(&row.begin(), messages::table_is_full()),
        }
    }

    /// The number of the row's name.
    fn name(&mut self, row: &Records<'_>) -> Option<u32> {
        let column = self.name?;
        let name = str::from_utf8(row.cells.get(column)?).ok()?.trim();
        if name.is_empty() {
            return None;
        }
        let hash = self.hasher.hash_one(name);
        let is_it = |&number: &u32| self.table.name_of(number) == Some(name);
        if let Some(&known) = self.names.find(hash, is_it) {
            return Some(known);
        }
        let problems = self.builder.problems;
        problems.accept(&row.at(column), fields::checked_name(name))?;
        if self.base.replaces.iter().any(|other| **other == *name) {
            self.error(&row.at(column), messages::row_replaces_itself(quoted(name)));
        }
        let number = self.table.add_name(name)?;
        let (table, hasher) = (&self.table, &self.hasher);
        let hash_of = |&number: &u32| hasher.hash_one(table.name_of(number).unwrap_or_default());
        self.names.insert_unique(hash, number, hash_of);
        Some(number)
    }

    /// The meaning of the row; `None` if it is wrong, which is reported. `key` is a buffer.
    fn meaning(&mut self, row: &Records<'_>, key: &mut Vec<u8>) -> Option<u32> {
        key.clear();
        for (column, cell) in self.columns.iter().zip(&row.cells) {
            if !matches!(*column, "value" | "name" | "") {
                // With lengths, cells cannot run together.
                key.extend_from_slice(&(cell.len() as u64).to_le_bytes());
                key.extend_from_slice(cell);
            }
        }
        // Wrong rows are read again: each is reported with its place.
        if let Some(Some(meaning)) = self.meanings.get(&**key) {
            return Some(*meaning);
        }
        let meaning = self.layer(row).and_then(|layer| {
            let meaning = self.resolve(row, &layer)?;
            Some(self.table.add_meaning(meaning))
        });
        if self.meanings.len() >= MOST_KNOWN {
            self.meanings.clear();
        }
        self.meanings.insert(key.as_slice().into(), meaning);
        meaning
    }

    /// The row as a layer.
    fn layer(&mut self, row: &Records<'_>) -> Option<PartialLimit> {
        let mut entries = Vec::new();
        for (index, (&column, cell)) in self.columns.iter().zip(&row.cells).enumerate() {
            let text = str::from_utf8(cell).unwrap_or_default().trim();
            if matches!(column, "value" | "name" | "") || text.is_empty() {
                continue;
            }
            let at = row.at(index);
            let node = match column {
                "plan" => Node::of_text(&at, text),
                _ => Node::of_plain(&at, text),
            };
            entries.push((Node::of_text(&at, column), node));
        }
        let all = Node::of_map(&row.begin(), entries);
        let problems = &self.builder.problems.in_row();
        let fields = fields::read(problems, &all, Section::Row)?;
        PartialLimit::read_of_many(problems, &fields)
    }

    fn resolve(&mut self, row: &Records<'_>, layer: &PartialLimit) -> Option<RowMeaning> {
        let of_plan = match &layer.plan {
            Some(name) => Some(self.used_plan(name, layer.place("plan")?)?),
            None => None,
        };
        let used = of_plan.and_then(|index| self.used.get(index));
        let limit = used.map_or(self.base, |used| &used.limit);
        let meaning = |amount| RowMeaning {
            limit: limit.id.limit,
            amount,
            shadow_mode: layer.shadow_mode,
            on_store_failure: layer.on_store_failure,
        };
        let is_policy_of_nothing = limit.amount.is_none() && layer.on_store_failure.is_some();
        if layer.has_no_amount() && !limit.is_by_rows && !is_policy_of_nothing {
            return Some(meaning(RowAmount::OfLimit));
        }
        // Without a plan of its own, a row has the plan of the descriptor.
        let of_descriptor = match used {
            Some(_) => self.layers.own.get(..1)?,
            None => self.layers.own,
        };
        let mut own = vec![layer];
        own.extend(used.map(|used| used.layer));
        own.extend(of_descriptor);
        let layers = self.layers.with_own(&own);
        let resolved = self.builder.complete(&layers, &row.begin(), "row")?;
        Some(meaning(RowAmount::Own(resolved.amount)))
    }

    /// The index of a plan among those that rows use; `None` if it cannot be used, which is
    /// reported.
    fn used_plan(&mut self, name: &str, at: &Place) -> Option<usize> {
        let is_it = |used: &UsedPlan<'_>| used.limit.plan.as_deref() == Some(name);
        if let Some(known) = self.used.iter().position(is_it) {
            return Some(known);
        }
        let plan = self.builder.plan(name, at)?;
        let layer = plan.layer.as_ref()?;
        let name_of_plan = layer.name.as_ref();
        if let Some(own) = name_of_plan.filter(|own| self.base.replaces.contains(own)) {
            return self
                .builder
                .problems
                .fail(at, messages::plan_replaces_itself(quoted(own)));
        }
        let mut own = vec![layer];
        own.extend(self.layers.own.first());
        let layers = self.layers.with_own(&own);
        let resolved = match layers.rate() {
            Ok(rate) => self.builder.resolve(&layers, rate, &plan.at)?,
            Err(_) => Resolved::by_rows(),
        };
        let number = *self.builder.next_limit;
        *self.builder.next_limit = number.checked_add(1)?;
        let mut limit = Limit {
            shadow_mode: self.shadow_mode,
            ..self.base.of_plan(name, number)
        };
        resolved.fill(&mut limit, &layers);
        self.used.push(UsedPlan { layer, limit });
        Some(self.used.len() - 1)
    }
}

/// The error for a line whose one cell has the cells that are meant, separated by something else.
fn other_separator(row: &Records<'_>, are_meant: impl Fn(&[&str]) -> bool) -> Option<Message> {
    let text = str::from_utf8(row.cells.get(0)?).ok();
    let text = text.filter(|_| row.cells.len() == 1)?;
    let separates = |separator: &char| {
        let cells = text.split(*separator);
        let cells: Vec<_> = cells.map(|cell| cell.trim().trim_matches('"')).collect();
        text.contains(*separator) && are_meant(&cells)
    };
    let separator = [';', '\t', '|'].into_iter().find(separates)?;
    Some(messages::other_separator(format_args!("{separator:?}")))
}

/// Why a cell is invalid. `ends_with_quotes`: a missing quote is noticed where the cell continues
/// in the next line.
fn wrong_cell(cell: &[u8], ends_with_quotes: impl FnOnce() -> bool) -> Option<Message> {
    if cell.contains(&b'\n') && !ends_with_quotes() {
        Some(messages::cell_of_many_lines())
    } else if cell.len() > LONGEST_VALUE {
        Some(messages::cell_too_long(LONGEST_VALUE))
    } else {
        str::from_utf8(cell)
            .err()
            .map(|_| messages::cell_not_utf8())
    }
}
