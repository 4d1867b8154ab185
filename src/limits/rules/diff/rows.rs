//! What differs between the rows of two tables: how many were added, removed and changed, and the
//! first of them.

use std::fmt;

use serde::Serialize;

use super::{name_of, policy, rate_of, shown};
use crate::limits::rules::Rules;
use crate::limits::rules::limit::{Limit, LimitId, LimitInForce, LimitTable, RowMeaning};
use crate::limits::rules::table::RowNumber;

/// Rows that are named of those that differ.
const MOST_NAMED: usize = 5;

/// The rows of one table that differ.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ChangedRows {
    /// The path of its descriptor.
    pub limit: String,
    /// The name of its file.
    pub table: String,
    /// Only in the new table.
    pub added: usize,
    /// Only in the old table.
    pub removed: usize,
    /// In both, with another plan, amount, name, mode or failure policy of their own.
    pub changed: usize,
    /// The first of them, for people.
    pub first: Vec<String>,
}

/// Everything that a row says itself: its plan, what it stands for but for the number of its limit,
/// and its name.
fn says<'r>(
    rules: &'r Rules,
    limit: &Limit,
    table: &'r LimitTable,
    row: RowNumber,
) -> Option<(Option<&'r str>, RowMeaning, Option<&'r str>)> {
    let mut meaning = *table.rows.meaning(row)?;
    let of_row = rules.limit(LimitId::new(limit.id.domain, meaning.limit));
    let plan = of_row.plan.as_deref();
    let plan = plan.filter(|_| meaning.limit != table.owner);
    meaning.limit = 0;
    Some((plan, meaning, table.rows.name(row)))
}

impl ChangedRows {
    /// Compares the rows of a limit in two sets of rules; `None` if both have the same, or one of
    /// them has no table of its own.
    pub(super) fn new(old: (&Rules, &Limit), new: (&Rules, &Limit)) -> Option<Self> {
        let (before, after) = (old.1.own_table()?, new.1.own_table()?);
        let mut all = Self {
            limit: name_of(new.1),
            table: shown(&after.rows.file.document.name),
            ..Self::default()
        };
        for row in after.rows.rows() {
            let value = after.rows.value(row);
            let Some(known) = before.rows.find(value) else {
                all.added += 1;
                all.name(value, || format!("added ({})", text(new, after, row)));
                continue;
            };
            if says(new.0, new.1, after, row) != says(old.0, old.1, before, known) {
                all.changed += 1;
                all.name(value, || {
                    format!("{} -> {}", text(old, before, known), text(new, after, row))
                });
            }
        }
        for row in before.rows.rows() {
            let value = before.rows.value(row);
            if after.rows.find(value).is_none() {
                all.removed += 1;
                all.name(value, || format!("removed ({})", text(old, before, row)));
            }
        }
        (all.added + all.removed + all.changed > 0).then_some(all)
    }

    fn name(&mut self, value: &[u8], what: impl FnOnce() -> String) {
        if self.first.len() < MOST_NAMED {
            let value = shown(&String::from_utf8_lossy(value));
            self.first.push(format!("{value}: {}", what()));
        }
    }
}

/// The amount of a row, its plan, and what else it says.
fn text((rules, limit): (&Rules, &Limit), table: &LimitTable, row: RowNumber) -> String {
    let of_row = table.rows.meaning(row).map_or(limit, |meaning| {
        rules.limit(LimitId::new(limit.id.domain, meaning.limit))
    });
    let in_force = LimitInForce {
        limit: of_row,
        row: Some(row),
    };
    let mut text = in_force
        .amount()
        .map_or_else(|| "unlimited".to_owned(), rate_of);
    if let Some(plan) = &of_row.plan {
        text += &format!(", plan {}", shown(plan));
    }
    if let Some(name) = table.rows.name(row) {
        text += &format!(", name {}", shown(name));
    }
    text.extend(in_force.shadow_mode().then_some(", shadow_mode"));
    let meaning = table.rows.meaning(row);
    if let Some(policy) = meaning.and_then(|meaning| policy(meaning.on_store_failure?)) {
        text += &format!(", on_store_failure {policy}");
    }
    text
}

impl fmt::Display for ChangedRows {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (added, removed, changed) = (self.added, self.removed, self.changed);
        write!(
            out,
            "{}: rows of {}: {added} added, {removed} removed, {changed} changed: {}",
            self.limit,
            self.table,
            self.first.join("; ")
        )?;
        match added + removed + changed - self.first.len() {
            0 => Ok(()),
            more => write!(out, "; and {more} more"),
        }
    }
}
