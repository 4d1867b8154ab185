//! Makes the limits of a domain once all its files are read: each with its plan, its rows, its
//! trial and the defaults.

use super::defaults::{
    Defaults, MakeLimit, OfLimit, PendingAmount, PendingTrial, settle_amount, settle_trial,
};
use super::problem::Problems;
use super::table::{PendingRows, Settling};
use super::{Compiler, Domain, ProcessDefaults};
use crate::limits::rules::limit::Limit;

/// A limit that waits for the defaults of its domain.
pub(super) struct PendingLimit {
    /// `None`: unlimited.
    pub(super) amount: Option<PendingAmount>,
    /// What it tries.
    pub(super) trial: Option<PendingTrial>,
    /// Makes the limit of what it has become.
    pub(super) make: Box<MakeLimit>,
    /// It has a plan or a table, which say what the amount is in place of `amount`.
    pub(super) rows: Option<PendingRows>,
}

/// Settles the limits of the domain. A limit whose options make no algorithm is reported, and is
/// not among the result.
pub(super) fn settle(
    compiler: &mut Compiler<'_>,
    domain: &mut Domain,
    process: ProcessDefaults,
) -> Vec<Limit> {
    let pending = std::mem::take(&mut domain.pending);
    if domain.defaults.is_invalid {
        // The defaults are reported. Without them, errors of the limits would be guesses.
        return Vec::new();
    }
    let Compiler {
        problems,
        data,
        rows: total,
        ..
    } = compiler;
    let (defaults, plans, next_limit) = (&domain.defaults, &domain.plans, &mut domain.next_limit);
    let (mut settled, mut of_plans) = (Vec::with_capacity(pending.len()), Vec::new());
    for PendingLimit {
        amount,
        trial,
        make,
        rows,
    } in pending
    {
        let limit = match (rows, amount) {
            (Some(rows), _) => {
                let mut settling = Settling {
                    problems,
                    data,
                    rows: total,
                    defaults,
                    plans,
                    process,
                    next_limit,
                };
                settling.limits(rows, trial, make).map(|(limit, more)| {
                    of_plans.extend(more);
                    limit
                })
            }
            (None, amount) => settle_limit(problems, (amount, trial), make, defaults, process),
        };
        settled.extend(limit);
    }
    settled.extend(of_plans);
    if !domain.replaced.is_empty() {
        let with_rows = || {
            settled
                .iter()
                .filter(|limit| limit.table.is_some() || limit.plan.is_some())
        };
        let of_rows = with_rows()
            .filter_map(Limit::own_table)
            .flat_map(|table| table.rows.names());
        domain.names.extend(
            with_rows()
                .filter_map(|limit| limit.name.as_deref())
                .chain(of_rows)
                .map(Box::from),
        );
    }
    settled
}

/// Settles a limit without plan and table.
fn settle_limit(
    problems: &mut Problems,
    (amount, trial): (Option<PendingAmount>, Option<PendingTrial>),
    make: Box<MakeLimit>,
    defaults: &Defaults,
    process: ProcessDefaults,
) -> Option<Limit> {
    let real = match &amount {
        Some(pending) => Some((
            pending.rate,
            settle_amount(problems, pending, defaults, process)?,
        )),
        None => None,
    };
    let of_real = real.as_ref().map(|(rate, settled)| (*rate, settled));
    let trial = match trial {
        Some(trial) => Some(settle_trial(problems, trial, of_real, defaults, process)?),
        None => None,
    };
    let on_store_failure = amount.and_then(|pending| {
        let of_layers = pending
            .layers
            .iter()
            .find_map(|layer| layer.fields.on_store_failure);
        pending
            .fields
            .on_store_failure
            .or(of_layers)
            .or(defaults.on_store_failure())
    });
    let usage = real.as_ref().and_then(|(_, settled)| settled.usage);
    Some(make(OfLimit {
        amount: real.map(|(_, settled)| settled.amount),
        usage,
        trial,
        on_store_failure,
    }))
}
