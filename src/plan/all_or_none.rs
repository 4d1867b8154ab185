//! A request that counts as a whole or not at all: what each check says, and what is to be written.
//!
//! The twin of `lua/all_or_none.lua`. Pure: a store brings the states and writes the outcome.

use smallvec::SmallVec;

use super::{CheckIndex, Checks};
use crate::algorithm::{Arrival, State};
use crate::time::Span;
use crate::verdict::Verdict;

/// The outcome for all checks of a plan.
#[derive(Debug)]
pub struct AllOrNone {
    /// One per check, in order.
    pub verdicts: SmallVec<[Verdict; 4]>,
    /// What to write: the check whose key it is, the state, and how long to keep it at least. Empty when the request is refused. A key
    /// stands here once.
    pub writes: SmallVec<[(CheckIndex, State, Span); 4]>,
}

/// The first check of a key, its state as of now, and how long to keep it when it changed.
type Known = (CheckIndex, Option<State>, Option<Span>);

impl AllOrNone {
    /// Steps all checks in order on what `stored` says of each, where a later check on the same key (`same`) sees the earlier one's step.
    ///
    /// When the request is refused nothing is written, and the checks that were not over say what they had left: what a look would.
    pub fn decide(
        checks: &Checks,
        at: Arrival,
        stored: impl Fn(CheckIndex) -> Option<State>,
        same: impl Fn(CheckIndex, CheckIndex) -> bool,
    ) -> Self {
        let mut verdicts: SmallVec<[Verdict; 4]> = SmallVec::new();
        let mut states: SmallVec<[Known; 4]> = SmallVec::new();
        for (index, check) in checks.indexed() {
            let known = states.iter().position(|(other, ..)| same(*other, index));
            let known = known.unwrap_or_else(|| {
                states.push((index, stored(index), None));
                states.len() - 1
            });
            let (_, state, keep_for) = &mut states[known];
            let step = check.algorithm.step(state.take(), at, check.hits);
            *state = step.state;
            *keep_for = step.keep_for.or(*keep_for);
            verdicts.push(step.verdict);
        }
        if checks.is_over_limit(verdicts.iter().map(|verdict| verdict.allowed)) {
            for ((index, check), verdict) in checks.indexed().zip(&mut verdicts) {
                if verdict.allowed {
                    let look = check.algorithm.step(stored(index), at, 0).verdict;
                    *verdict = Verdict { allowed: true, ..look };
                }
            }
            return Self { verdicts, writes: SmallVec::new() };
        }
        let written = |(index, state, keep_for): Known| Some((index, state?, keep_for?));
        Self { verdicts, writes: states.into_iter().filter_map(written).collect() }
    }
}
