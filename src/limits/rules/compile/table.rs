//! `table`: reads what rows say, and makes the limits of a descriptor with a table, or with a plan.
//!
//! A table is read when its domain is complete, because its rows stand above the domain's defaults
//! and plans. Rows that say the same are compiled once.

mod records;
pub(crate) mod rows;

use std::sync::Arc;

use super::Compiler;
use super::data;
use super::fields::{self, Fields};
use super::problem::{Location, quoted};
use super::settle::{Settling, Stack, fill};
use crate::limits::rules::limit::{Level, Limit, LimitId, LimitTable, Matching};
use rows::UsedPlan;

/// The table that a descriptor names.
pub(super) struct PendingTable {
    /// The name of the file that names it.
    from: Box<str>,
    /// Its name there.
    name: Box<str>,
    /// The index of the entry whose value picks the row.
    level: usize,
    /// There is a `rate_limit` too, for values without a row.
    pub(super) has_default: bool,
    /// Where it is named.
    at: Location,
}

/// Reads which table a descriptor names; `None` without one, and an error, which is reported, where
/// it cannot have it.
pub(super) fn read(
    compiler: &mut Compiler<'_>,
    fields: &Fields<'_>,
    path: &[Level],
) -> Option<Result<PendingTable, ()>> {
    let problems = &mut compiler.problems;
    let Some(node) = fields.get("table") else {
        if let Some(node) = fields.get("table_key") {
            problems.error_at(
                node,
                "'table_key' needs 'table'",
                "write 'table: ' and the name of a file, or remove it",
            );
            return Some(Err(()));
        }
        return fields.meant("table").then_some(Err(()));
    };
    let Some(name) = fields::text(problems, node, "table") else {
        return Some(Err(()));
    };
    if !data::is_table(name) {
        problems.error_at(
            node,
            format!(
                "the name of the table {} does not end in .csv",
                quoted(name)
            ),
            "give the file a name that ends in .csv",
        );
        return Some(Err(()));
    }
    let mut is_valid = true;
    if compiler.data.table(problems.name(), name).is_none() {
        let what = format!(
            "the folder of limits has no file {} beside this one",
            quoted(name)
        );
        problems.error_at(
            node,
            what,
            "create it with the line 'value,requests_per_unit' at its top, and set the path to the \
             folder, not to one file",
        );
        is_valid = false;
    }
    let mut level = path.len().saturating_sub(1);
    if let Some(node) = fields.get("table_key") {
        let key = fields::text(problems, node, "table_key");
        match key.map(|key| path.iter().rposition(|level| *level.key == *key)) {
            Some(Some(found)) => level = found,
            Some(None) => {
                let what = format!(
                    "no level from the root to this descriptor has the key {}",
                    quoted(key.unwrap_or_default())
                );
                problems.error_at(
                    node,
                    what,
                    "write the key of this descriptor, or of one above it",
                );
                is_valid = false;
            }
            None => is_valid = false,
        }
    }
    if let Some((what, remedy)) = path.get(level).and_then(why_no_rows) {
        problems.error_at(node, what, remedy);
        is_valid = false;
    }
    let from = problems.name().into();
    Some(if is_valid {
        Ok(PendingTable {
            from,
            name: name.into(),
            level,
            has_default: fields.get("rate_limit").is_some(),
            at: problems.here(node.at),
        })
    } else {
        Err(())
    })
}

/// Why rows cannot be those of a level's values.
fn why_no_rows(level: &Level) -> Option<(&'static str, &'static str)> {
    if level.share_threshold {
        return Some((
            "a table gives each value numbers of its own, and with 'share_threshold' they share a \
             counter",
            "remove one of them",
        ));
    }
    if level.matching.counts_addresses() {
        let what = "rows are compared byte by byte, and an address has several spellings, which \
            share a counter";
        return Some((
            what,
            "write a descriptor for each network, or a 'match: set' of texts",
        ));
    }
    let is_one_value = level
        .value
        .as_ref()
        .is_some_and(|value| level.matching == Matching::Text && !value.contains('*'));
    is_one_value.then_some((
        "the descriptor has one value, and a table is for many",
        "remove 'value', or write the numbers in 'rate_limit'",
    ))
}

impl Settling<'_, '_> {
    /// A limit with its table, and those of the plans that its rows use. `shadow_mode` is that of
    /// the descriptor.
    pub(super) fn with_rows(
        &mut self,
        mut limit: Limit,
        shadow_mode: bool,
        stack: &Stack<'_>,
        named: PendingTable,
    ) -> Option<(Limit, Vec<Limit>)> {
        let file = self.data.table(&named.from, &named.name)?;
        let (rows, used) = rows::read(self, (&limit, stack), file)?;
        if rows.is_empty() && !named.has_default {
            let what = format!(
                "the table {} has no rows, and the descriptor no 'rate_limit': nothing is limited",
                quoted(&named.name)
            );
            let remedy = "add rows, or a 'rate_limit' for values without a row";
            self.problems.warning_in(named.at, what, remedy);
        }
        let table = LimitTable::new(rows, named.level, limit.id.limit, named.has_default);
        limit.table = Some(Arc::new(table));
        let of_plan = |used: UsedPlan<'_>| {
            let own = stack.own.first().copied();
            let own: Vec<_> = [used.layer].into_iter().chain(own).collect();
            let of_plan = Limit {
                id: LimitId::new(limit.id.domain, used.limit),
                trial: None,
                shadow_mode,
                ..limit.clone()
            };
            fill(
                of_plan,
                &used.settled,
                Some(used.name),
                &Stack {
                    own: &own,
                    ..*stack
                },
            )
        };
        let of_plans = used.into_iter().map(of_plan).collect();
        Some((limit, of_plans))
    }
}
