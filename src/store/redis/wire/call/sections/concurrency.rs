//! The section of limits of requests in flight: the ids of their checks. In the reply, the row of
//! such a check has the change of its places instead of a reset time.

use super::{Section, SectionRows};
use crate::core::algorithm::places::Change;
use crate::core::answer::Effect;
use crate::limits::plan::Check;
use crate::store::redis::wire::call::Call;

pub(super) const SECTION: Section = Section {
    script: "",
    code: None,
    write,
    read: |_, _, _, _| Ok(()),
};

fn write(call: &Call<'_>) -> SectionRows {
    let mut rows = SectionRows::default();
    let mut ids = Vec::new();
    for (_, _, check) in call.indexed() {
        if check.algorithm.counts_in_flight() {
            ids.extend_from_slice(&check.holder().0);
        }
    }
    rows.arguments.push(ids);
    rows
}

/// The effect of a check whose row has this number.
pub(in crate::store::redis::wire::call) fn effect(check: &Check, number: u64) -> Effect {
    match check.algorithm.counts_in_flight() {
        true => Effect::of_places(check.hits, Change::of_row(number)),
        false => Effect::None,
    }
}
