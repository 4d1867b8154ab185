//! `table`: reads what rows say, and makes the limits of a descriptor with a table, or with a plan.
//!
//! A table is read when its domain is complete, because its rows stand above the domain's defaults
//! and plans. Rows that say the same are compiled once.

mod records;
pub(crate) mod rows;

use std::sync::Arc;

use super::Compiler;
use super::build::Builder;
use super::data;
use super::domain::PendingTable;
use super::fields::{self, Fields};
use super::layers::Layers;
use super::problem::{Problems, quoted};
use crate::limits::rules::limit::{Level, Limit, LimitTable, Matching};
use crate::limits::rules::source::Node;

/// Reads which table a descriptor names; an error, which is reported, where it cannot have it.
pub(super) fn read(
    compiler: &Compiler<'_>,
    fields: &Fields<'_>,
    path: &[Level],
) -> Result<Option<PendingTable>, ()> {
    if let Some(node) = fields.get("table") {
        return read_named(compiler, fields, path, node).map(Some).ok_or(());
    }
    if let Some(node) = fields.get("table_key") {
        let remedy = "write 'table: ' and the name of a file, or remove it";
        compiler
            .problems
            .error(node, "'table_key' needs 'table'", remedy);
        return Err(());
    }
    if fields.meant("table") {
        Err(())
    } else {
        Ok(None)
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
        let what = format!("the name of the table {shown} does not end in .csv");
        return problems.fail(node, what, "give the file a name that ends in .csv");
    }
    let has_file = compiler.data.table(&node.at, name).is_some();
    if !has_file {
        let what = format!("the folder of limits has no file {shown} beside this one");
        let remedy = "create it with the line 'value,requests_per_unit' at its top, and set the \
            path to the folder, not to one file";
        problems.error(node, what, remedy);
    }
    let last = path.len().saturating_sub(1);
    let level = match fields.get("table_key") {
        Some(key) => level_of_key(problems, path, key),
        None => Some(last),
    };
    if let Some((what, remedy)) = path.get(level.unwrap_or(last)).and_then(why_no_rows) {
        return problems.fail(node, what, remedy);
    }
    has_file.then_some(())?;
    Some(PendingTable {
        name: name.into(),
        level: level?,
        has_default: fields.get("rate_limit").is_some(),
        at: node.at.clone(),
    })
}

/// The level with a `table_key`; `None`, with an error, if there is none.
fn level_of_key(problems: &Problems, path: &[Level], node: &Node) -> Option<usize> {
    let key = fields::text(problems, node, "table_key")?;
    let found = path.iter().rposition(|level| *level.key == *key);
    if found.is_none() {
        let key = quoted(key);
        let what = format!("no level from the root to this descriptor has the key {key}");
        let remedy = "write the key of this descriptor, or of one above it";
        problems.error(node, what, remedy);
    }
    found
}

/// Why rows cannot be those of a level's values.
fn why_no_rows(level: &Level) -> Option<(&'static str, &'static str)> {
    let is_one_value = || {
        let value = level.value.as_ref();
        level.matching == Matching::Text && value.is_some_and(|value| !value.contains('*'))
    };
    if level.share_threshold {
        let what = "a table gives each value numbers of its own, and with 'share_threshold' they \
            share a counter";
        return Some((what, "remove one of them"));
    }
    if level.matching.counts_addresses() {
        let what = "rows are compared byte by byte, and an address has several spellings, which \
            share a counter";
        let remedy = "write a descriptor for each network, or a 'match: set' of texts";
        return Some((what, remedy));
    }
    let what = "the descriptor has one value, and a table is for many";
    let remedy = "remove 'value', or write the numbers in 'rate_limit'";
    is_one_value().then_some((what, remedy))
}

impl Builder<'_, '_> {
    /// A limit with its table, and those of the plans that its rows use. `shadow_mode` is that of
    /// the descriptor.
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
            let what = format!(
                "the table {} has no rows, and the descriptor no 'rate_limit': nothing is limited",
                quoted(&named.name)
            );
            let remedy = "add rows, or a 'rate_limit' for values without a row";
            self.problems.warning(&named.at, what, remedy);
        }
        let table = LimitTable::new(rows, named.level, limit.id.limit, named.has_default);
        limit.table = Some(Arc::new(table));
        for of_plan in &mut of_plans {
            of_plan.table = limit.table.clone();
        }
        Some((limit, of_plans))
    }
}
