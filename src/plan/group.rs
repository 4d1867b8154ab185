//! A request that counts as a whole or not at all: what each check says, and what is to be written.
//!
//! The twin of `lua/all_or_none.lua`. Pure: a store brings the states and writes the outcome.

use smallvec::SmallVec;

use super::Plan;
use crate::algorithm::{Arrival, State};
use crate::time::Span;
use crate::verdict::Verdict;

/// The outcome for all checks of a plan.
#[derive(Debug)]
pub struct Group {
    /// One per check, in order.
    pub verdicts: SmallVec<[Verdict; 4]>,
    /// What to write: the check whose key it is, the state, and how long to keep it at least. Empty when the request is refused. A key
    /// stands here once.
    pub writes: SmallVec<[(usize, State, Span); 4]>,
}

/// The first check of a key, its state as of now, and how long to keep it when it changed.
type Known = (usize, Option<State>, Option<Span>);

impl Group {
    /// Steps all checks in order on what `stored` says of each, where a later check on the same key (`same`) sees the earlier one's step.
    ///
    /// When the request is refused nothing is written, and the checks that were not over say what they had left: what a look would.
    pub fn decide(plan: &Plan, at: Arrival, stored: impl Fn(usize) -> Option<State>, same: impl Fn(usize, usize) -> bool) -> Self {
        let mut verdicts: SmallVec<[Verdict; 4]> = SmallVec::new();
        let mut states: SmallVec<[Known; 4]> = SmallVec::new();
        for (index, check) in plan.checks.iter().enumerate() {
            let known = states.iter().position(|(other, ..)| same(*other, index));
            let place = known.unwrap_or_else(|| {
                states.push((index, stored(index), None));
                states.len() - 1
            });
            let (_, state, keep_for) = &mut states[place];
            let step = check.algorithm.step(state.take(), at, check.hits);
            *state = step.state;
            *keep_for = step.keep_for.or(*keep_for);
            verdicts.push(step.verdict);
        }
        if plan.refuses(verdicts.iter().map(|verdict| verdict.allowed)) {
            for (index, check) in plan.checks.iter().enumerate() {
                if verdicts[index].allowed {
                    let look = check.algorithm.step(stored(index), at, 0).verdict;
                    verdicts[index] = Verdict { allowed: true, ..look };
                }
            }
            return Self { verdicts, writes: SmallVec::new() };
        }
        let written = |(index, state, keep_for): Known| Some((index, state?, keep_for?));
        Self { verdicts, writes: states.into_iter().filter_map(written).collect() }
    }
}
