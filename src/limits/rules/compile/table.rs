//! `table`: reads what rows say, and makes the limits of a descriptor with a table, or with a plan.
//!
//! A table is read when its domain is complete, because its rows stand above the domain's defaults
//! and plans. Rows that say the same are compiled once.

mod records;
pub(crate) mod rows;

use std::sync::Arc;

use super::algorithm_fields::AlgorithmFields;
use super::data::{self, Data};
use super::defaults::{self, Defaults, MakeLimit, OfLimit, PendingAmount, PendingTrial, Settled};
use super::fields::{self, Fields};
use super::numbers::{self, Numbers, Sum};
use super::plans::{Plan, Plans};
use super::problem::{Location, Problems, quoted};
use super::{Compiler, ProcessDefaults, units};
use crate::core::time::Rate;
use crate::core::usage;
use crate::limits::rules::limit::{Amount, Level, Limit, LimitId, LimitTable, Matching};

/// The table that a descriptor names.
pub(super) struct PendingTable {
    /// The name of the file that names it.
    from: Box<str>,
    /// Its name there.
    name: Box<str>,
    /// The index of the entry whose value picks the row.
    level: usize,
    /// Where it is named.
    at: Location,
}

/// A limit with a plan or with a table.
pub(super) struct PendingRows {
    /// The plan of the `rate_limit`.
    pub(super) plan: Option<(Location, Box<str>)>,
    /// The numbers of the `rate_limit`.
    pub(super) numbers: Numbers,
    /// There is a `rate_limit`, for values without a row.
    pub(super) has_default: bool,
    pub(super) table: Option<PendingTable>,
    /// Where the `rate_limit` is, or the descriptor.
    pub(super) at: Location,
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

/// What the limits of a descriptor are made with.
pub(super) struct Settling<'a, 'f> {
    pub(super) problems: &'a mut Problems,
    pub(super) data: &'a Data<'f>,
    /// Rows of all tables so far.
    pub(super) rows: &'a mut usize,
    pub(super) defaults: &'a Defaults,
    pub(super) plans: &'a Plans,
    pub(super) process: ProcessDefaults,
    /// The number of the domain's next limit.
    pub(super) next_limit: &'a mut u32,
}

/// What numbers come to as those of a limit.
#[derive(Clone, Copy)]
enum OwnAmount {
    /// `None`: unlimited.
    Complete(Option<Amount>),
    /// Rows have to complete them.
    Partial,
}

impl OwnAmount {
    /// The amount of the limit, and whether it is that of each row.
    const fn parts(self) -> (Option<Amount>, bool) {
        match self {
            Self::Complete(amount) => (amount, false),
            Self::Partial => (None, true),
        }
    }
}

/// Whose amount numbers come to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Whole {
    Row,
    RateLimit,
    /// A `rate_limit` whose numbers stand below those of rows too.
    AboveRows,
    /// Rows may complete it.
    Plan,
}

impl<'a> Settling<'a, '_> {
    /// The limits of a descriptor: that of its `rate_limit` or, in its place, of rows without a
    /// plan; and those of the plans that rows use. The trial is that of values without a row.
    pub(super) fn limits(
        &mut self,
        pending: PendingRows,
        trial: Option<PendingTrial>,
        make: Box<MakeLimit>,
    ) -> Option<(Limit, Vec<Limit>)> {
        let PendingRows {
            plan,
            numbers,
            has_default,
            table,
            at,
        } = pending;
        let of_plan = match &plan {
            Some((at, name)) => Some(self.plan(name, *at)?),
            None => None,
        };
        if numbers.fields.is_concurrency() {
            let (what, remedy) = (
                "a concurrency limit has no table and no plan",
                "write the number in 'rate_limit', or another 'algorithm'",
            );
            self.problems.error_in(at, what, remedy);
            return None;
        }
        let mut chain = vec![&numbers];
        if let Some(plan) = of_plan {
            chain.push(plan.numbers.as_ref()?);
        }
        let whole = if table.is_some() {
            Whole::AboveRows
        } else {
            Whole::RateLimit
        };
        let amount = if has_default {
            self.amount(&chain, at, whole)?
        } else {
            OwnAmount::Partial
        };
        let usage = match amount {
            OwnAmount::Complete(None) if table.is_none() => None,
            _ => defaults::settle_usage(
                self.problems,
                (&numbers.fields, &numbers.keys, at),
                self.defaults,
            )?,
        };
        let trial = match trial {
            Some(trial) => Some(self.trial(trial, &chain, (at, usage))?),
            None => None,
        };
        let shared = make(OfLimit {
            usage,
            trial,
            ..OfLimit::default()
        });
        let mut base = self.limit(&shared, (amount, plan.map(|(_, name)| name)), &chain);
        let Some(named) = table else {
            return Some((base, Vec::new()));
        };
        let file = self.data.table(&named.from, &named.name)?;
        let (rows, used) = rows::read(self, (&base, &chain), file)?;
        if rows.is_empty() && !has_default {
            let what = format!(
                "the table {} has no rows, and the descriptor no 'rate_limit': nothing is limited",
                quoted(&named.name)
            );
            self.problems.warning_in(
                named.at,
                what,
                "add rows, or a 'rate_limit' for values without a row",
            );
        }
        let table = Arc::new(LimitTable::new(
            rows,
            named.level,
            base.id.limit,
            has_default,
        ));
        let of_plans = used.into_iter().map(|used| Limit {
            id: LimitId::new(base.id.domain, used.limit),
            trial: None,
            table: Some(Arc::clone(&table)),
            ..self.limit(
                &shared,
                (used.amount, Some(used.name)),
                &[used.numbers, &numbers],
            )
        });
        let of_plans = of_plans.collect();
        base.table = Some(table);
        Some((base, of_plans))
    }

    /// A limit of the descriptor: what its numbers do not say is what all limits of the descriptor
    /// share, or the domain's default.
    fn limit(
        &self,
        shared: &Limit,
        (amount, plan): (OwnAmount, Option<Box<str>>),
        chain: &[&Numbers],
    ) -> Limit {
        let (amount, is_by_rows) = amount.parts();
        let on_store_failure = chain
            .iter()
            .find_map(|numbers| numbers.fields.on_store_failure);
        let name = chain.iter().find_map(|numbers| numbers.name.clone());
        Limit {
            amount,
            is_by_rows,
            plan,
            shown: Limit::shown(name.as_deref(), &shared.levels),
            name,
            shadow_mode: chain
                .iter()
                .find_map(|numbers| numbers.shadow_mode)
                .unwrap_or(shared.shadow_mode),
            on_store_failure: on_store_failure.or(self.defaults.on_store_failure()),
            ..shared.clone()
        }
    }

    /// The plan of that name. An error if there is none, unless plans are wrong anyway.
    fn plan(&mut self, name: &str, at: Location) -> Option<&'a Plan> {
        let plans = self.plans;
        match plans.find(name) {
            Ok(plan) => Some(plan),
            Err((what, remedy)) => {
                if !plans.is_invalid {
                    self.problems.error_in(at, what, remedy);
                }
                None
            }
        }
    }

    /// What numbers that stand above each other come to; `None` if they make no limit, which is
    /// reported.
    fn amount(&mut self, chain: &[&Numbers], at: Location, whole: Whole) -> Option<OwnAmount> {
        match numbers::sum(chain) {
            Sum::Unlimited { beside: Some(_) } | Sum::Lacks(_) if whole == Whole::Plan => {
                Some(OwnAmount::Partial)
            }
            Sum::Unlimited {
                beside: Some((key, key_at)),
            } if whole != Whole::AboveRows => {
                let (own, below) = match (whole, key_at) {
                    (Whole::RateLimit, _) => ("rate_limit", "its plan is"),
                    (_, Some(_)) => ("row", "its plan or the rate_limit is"),
                    (_, None) => ("plan of the row", "the rate_limit is"),
                };
                let what = format!(
                    "the {own} has '{key}' and no 'requests_per_unit', and {below} unlimited"
                );
                self.problems.error_in(
                    key_at.unwrap_or(at),
                    what,
                    format!("write 'requests_per_unit' for a limit, or remove '{key}'"),
                );
                None
            }
            Sum::Unlimited { .. } => Some(OwnAmount::Complete(None)),
            Sum::Limited(rate) => self
                .settle(chain, rate, at)
                .map(|settled| OwnAmount::Complete(Some(settled.amount))),
            Sum::Lacks(key) => {
                let whole = if whole == Whole::Row {
                    "the row"
                } else {
                    "the rate_limit"
                };
                let what =
                    format!("{whole} has no '{key}', and neither has its plan or the descriptor");
                self.problems.error_in(
                    at,
                    what,
                    format!("write '{key}' here, in a plan or in 'rate_limit'"),
                );
                None
            }
            Sum::TooLong(rate) => {
                let (what, remedy) = units::too_long(&rate);
                self.problems.error_in(at, what, remedy);
                None
            }
        }
    }

    /// The trial beside these numbers.
    fn trial(
        &mut self,
        trial: PendingTrial,
        chain: &[&Numbers],
        (at, usage): (Location, Option<usage::Settings>),
    ) -> Option<Settled> {
        let real = match numbers::sum(chain) {
            Sum::Limited(rate) => Some((
                rate,
                Settled {
                    usage,
                    ..self.settle(chain, rate, at)?
                },
            )),
            Sum::Unlimited { .. } | Sum::Lacks(_) | Sum::TooLong(_) => None,
        };
        if real.is_none() && trial.written.rate(None).is_none() {
            let what = "the trial has no 'unit' or no 'requests_per_unit', and the limit beside it \
                is unlimited";
            self.problems
                .error_in(trial.at, what, "write both in the trial");
            return None;
        }
        defaults::settle_trial(
            self.problems,
            trial,
            real.as_ref().map(|(rate, settled)| (*rate, settled)),
            self.defaults,
            self.process,
        )
    }

    fn settle(&mut self, chain: &[&Numbers], rate: Rate, at: Location) -> Option<Settled> {
        let (fields, below) = AlgorithmFields::of_chain(chain.iter().map(|numbers| numbers.fields));
        let pending = PendingAmount {
            rate,
            fields,
            below,
            at,
            keys: numbers::keys(chain),
            layers: Vec::new(),
            has_last_value: false,
        };
        defaults::settle_amount(self.problems, &pending, self.defaults, self.process)
    }
}
