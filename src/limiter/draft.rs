//! The decisions on one request while they are made.
//!
//! Leases and the denial cache decide checks before the store is asked, and take in its answers. The
//! store is asked once, and a second time only for what its first answer leaves open: draws that it
//! refused where refused hits do not count, and checks of which a look was not enough.

use std::sync::Arc;

use smallvec::SmallVec;
use tokio::time::Instant;

use super::Limiter;
use super::failure_policies::PartialDecisions;
use super::leases::Draws;
use crate::core::verdict::{Decision, Decisions, StoreError, Verdict};
use crate::limits::plan::{CheckIndex, CheckIndices, Checks};
use crate::observe::traces::TraceSpan;

/// Stands for the answer to a check that is open.
const OPEN: StoreError = StoreError::NotExecuted("not asked yet");

/// The answer of a store to one check.
pub(super) type Answer = Result<Verdict, StoreError>;

/// Checks that are decided, or are on their way.
#[derive(Debug)]
pub enum Begun<'c> {
    /// All checks are decided.
    Decided(Decisions),
    /// The store has to be asked.
    Open(Draft<'c>),
}

/// Decisions of which some are open.
#[derive(Debug)]
pub struct Draft<'c> {
    pub(super) checks: &'c Arc<Checks>,
    pub(super) began: Instant,
    pub(super) span: TraceSpan,
    /// One per check, by its index; an error where the store has to be asked, or gave no answer.
    pub(super) each: PartialDecisions,
    /// The checks to ask the store for, in ascending order.
    pub(super) open: CheckIndices,
    /// The checks as they are to be asked, if some are with other hits than their own.
    pub(super) asked: Option<Arc<Checks>>,
    draws: Option<Box<Draws<'c>>>,
}

impl Limiter {
    /// What leases and the denial cache decide of a request that begins now.
    pub(super) fn draft<'c>(&'c self, checks: &'c Arc<Checks>, span: TraceSpan) -> Draft<'c> {
        let began = Instant::now();
        let mut each: PartialDecisions = SmallVec::from_elem(Err(OPEN), checks.total());
        let (mut asked, replicas) = (None, self.failure_policies.replicas());
        let leases = self.leases.as_ref();
        let mut draws = leases.and_then(|leases| leases.begin(checks, began, replicas));
        if let Some(draws) = &draws {
            for (index, _) in checks.indexed() {
                let ahead = draws.ahead(index);
                if let Some(held) = draws.answer(index) {
                    each[index.0] = Ok(Decision::Lease(held));
                } else if ahead > 0 {
                    let asked = asked.get_or_insert_with(|| Checks::clone(checks));
                    asked.ask_ahead(index, ahead);
                }
            }
        }
        if let Some(denial_cache) = &self.denial_cache
            && each.iter().any(Result::is_err)
        {
            let refused = denial_cache.refused(checks, began);
            for ((index, _), refusal) in checks.indexed().zip(refused) {
                let Some(refusal) = refusal.filter(|_| each[index.0].is_err()) else {
                    continue;
                };
                let is_lifted = draws
                    .as_mut()
                    .is_some_and(|draws| draws.lifts_refusal(checks, index));
                let held = draws.as_ref().and_then(|draws| draws.answer(index));
                each[index.0] = match held {
                    Some(verdict) => Ok(Decision::Lease(verdict)),
                    None if is_lifted => Err(OPEN),
                    None => Ok(Decision::DenialCache(refusal)),
                };
            }
        }
        let mut open = checks.all();
        open.retain(|index| each[index.0].is_err());
        let is_part = (checks.trials().len() + 1..checks.total()).contains(&open.len());
        if checks.is_all_or_none() && is_part {
            // The others become looks: they must not be counted.
            asked.insert(Checks::clone(checks)).look_only(checks.len());
            open = checks.all();
        } else {
            self.note_refused(checks, &each);
        }
        Draft {
            checks,
            began,
            span,
            each,
            open,
            asked: asked.map(Arc::new),
            draws: draws.map(Box::new),
        }
    }

    /// Takes in the store's answers to the checks at `picked`.
    pub(super) fn take_in(
        &self,
        draft: &mut Draft<'_>,
        mut picked: CheckIndices,
        mut answers: SmallVec<[Answer; 4]>,
    ) {
        let checks = draft.checks;
        let are_looks = picked.iter().any(|index| draft.each[index.0].is_ok());
        if are_looks && draft.fits(&answers) {
            self.note_refused(checks, &draft.each);
        } else if are_looks {
            // Only the store decides which of them are over their limits.
            draft.each[..checks.len()].fill(Err(OPEN));
            draft.open = checks.indices();
        } else if let Some(draws) = &mut draft.draws {
            draft.open = draws.finish(checks, &picked, &mut answers);
        }
        picked.retain(|index| !draft.open.contains(index));
        if let Some(denial_cache) = self.denial_cache.as_ref().filter(|_| !are_looks) {
            denial_cache.record(checks, &picked, &answers, draft.began, Instant::now());
        }
        for index in picked {
            let each = &mut draft.each[index.0];
            if each.is_err() {
                let draws = draft.draws.as_ref();
                let held = draws.and_then(|draws| draws.answer(index));
                let answer = answers[index.0].map(Decision::Store);
                *each = held.map_or(answer, |verdict| Ok(Decision::Lease(verdict)));
            }
        }
    }

    fn note_refused(&self, checks: &Checks, each: &PartialDecisions) {
        if checks.is_tracked() {
            self.store.note_refused(checks, |CheckIndex(index)| {
                matches!(each[index], Ok(Decision::DenialCache(_)))
            });
        }
    }
}

impl Draft<'_> {
    /// Whether each check that looked has what it asks for.
    fn fits(&self, looks: &[Answer]) -> bool {
        self.checks.indexed().all(|(CheckIndex(index), check)| {
            let has_left =
                |look: &Verdict| look.allowed && check.hits.unsigned_abs() <= look.remaining;
            self.each[index].is_ok() || looks[index].as_ref().is_ok_and(has_left)
        })
    }
}
