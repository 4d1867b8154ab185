//! `commit: all_or_none`: decides the checks of a request that is counted as a whole or not at all.
//!
//! The twin of `lua/all_or_none.lua`. Pure: a store passes the states in and writes the outcome.

use smallvec::SmallVec;

use super::{Check, CheckIndex, Checks};
use crate::core::algorithm::{Arrival, State};
use crate::core::answer::{Effect, Effects};
use crate::core::time::Span;
use crate::core::verdict::Verdict;

/// The outcome of all checks of a request.
#[derive(Debug)]
pub struct AllOrNone {
    /// One per check, by its index.
    pub verdicts: SmallVec<[Verdict; 4]>,
    /// The states to write: a check with the key, the new state, and the minimum time to keep it.
    /// Each key occurs once. If the request is over its limit: marks of the ids of its acquires.
    pub writes: SmallVec<[(CheckIndex, State, Span); 4]>,
    /// Changes of the places of limits of requests in flight.
    pub effects: Effects,
}

/// The first check with a key, the key's current state, and how long to keep that if it changed.
type Stepped = (CheckIndex, Option<State>, Option<Span>);

impl AllOrNone {
    /// Steps all checks in order. `stored` returns the stored state of a check's key, and `same`
    /// returns whether two checks have the same key; then the later check continues from the state
    /// that the earlier one left.
    ///
    /// If the request is over its limit nothing is counted. Allowed checks then report the verdicts
    /// of a peek, and the others the verdicts of checks with 0 hits. The ids of its acquires are
    /// marked, because their releases will arrive. If the request passes, refused hits of limits
    /// with `count_denied` are counted after all others: hits of checks in shadow mode, and of
    /// quotas.
    pub fn decide(
        checks: &Checks,
        at: Arrival,
        stored: impl Fn(CheckIndex) -> Option<State>,
        same: impl Fn(CheckIndex, CheckIndex) -> bool,
    ) -> Self {
        let mut effects = Effects::new();
        let mut verdicts: SmallVec<[Verdict; 4]> = SmallVec::new();
        let mut states: SmallVec<[Stepped; 4]> = SmallVec::new();
        for (index, check) in checks.indexed() {
            let known = states.iter().position(|(other, ..)| same(*other, index));
            let known = known.unwrap_or_else(|| {
                states.push((index, stored(index), None));
                states.len() - 1
            });
            let (_, state, keep_for) = &mut states[known];
            let free = check.algorithm.without_debt();
            let (step, effect) = check.step_as(&free, check.hits, state.take(), at);
            *state = step.state;
            *keep_for = step.keep_for.or(*keep_for);
            verdicts.push(step.verdict);
            if effect != Effect::None {
                effects.push((index, effect));
            }
        }
        if checks.is_over_limit(verdicts.iter().map(|verdict| verdict.allowed)) {
            for ((index, check), verdict) in checks.indexed().zip(&mut verdicts) {
                if verdict.allowed {
                    let (algorithm, state) = (&check.algorithm, stored(index));
                    let (peek, _) = check.step_as(algorithm, 0, state, at);
                    *verdict = Verdict {
                        allowed: true,
                        ..peek.verdict
                    };
                }
            }
            return Self {
                verdicts,
                writes: Self::refused_acquires(checks, at, stored, same),
                effects: Effects::new(),
            };
        }
        for ((index, check), verdict) in checks.indexed().zip(&mut verdicts) {
            if !verdict.allowed
                && check.algorithm.counts_denied()
                && let Some((_, state, keep_for)) =
                    states.iter_mut().find(|(other, ..)| same(*other, index))
            {
                let step = check.algorithm.step(state.take(), at, check.hits);
                *state = step.state;
                *keep_for = step.keep_for.or(*keep_for);
                *verdict = step.verdict;
            }
        }
        let written = |(index, state, keep_for): Stepped| Some((index, state?, keep_for?));
        Self {
            verdicts,
            writes: states.into_iter().filter_map(written).collect(),
            effects,
        }
    }

    fn refused_acquires(
        checks: &Checks,
        at: Arrival,
        stored: impl Fn(CheckIndex) -> Option<State>,
        same: impl Fn(CheckIndex, CheckIndex) -> bool,
    ) -> SmallVec<[(CheckIndex, State, Span); 4]> {
        let mut writes: SmallVec<[(CheckIndex, State, Span); 4]> = SmallVec::new();
        let acquires = |check: &Check| check.hits > 0 && check.algorithm.counts_in_flight();
        for (index, check) in checks.indexed().filter(|(_, check)| acquires(check)) {
            let known = writes.iter().position(|(other, ..)| same(*other, index));
            let state = known.map_or_else(|| stored(index), |at| Some(writes[at].1.clone()));
            if let Some((state, keep_for)) = check.note_refused(state, at.now) {
                match known {
                    Some(known) => (writes[known].1, writes[known].2) = (state, keep_for),
                    None => writes.push((index, state, keep_for)),
                }
            }
        }
        writes
    }
}
