//! The draft of the decisions on a request, in which each check is open or decided. Draws, the
//! denial cache, the store and the failure policies decide open checks, and nothing else does.
//!
//! The store does not depend on the others. It receives the open checks once, and a second time
//! only the checks that its first answer leaves open: draws that it refused where refused hits do
//! not count, and checks for which a peek was not enough. Checks that take no part in the request
//! are decided by the store alone, because each of them has to be counted.

use std::sync::Arc;

use smallvec::SmallVec;
use tokio::time::Instant;

use super::delays::Delay;
use super::{DenialCache, Draws, Limiter, Undecided};
use crate::core::answer::{Answer, Answers, Decision, Decisions, Effect, Effects};
use crate::core::verdict::{StoreError, Verdict};
use crate::limits::plan::{CheckIndex, CheckIndices, Checks};
use crate::observe::traces::TraceSpan;

/// The decisions on the checks of a request that is being decided.
#[derive(Debug)]
pub(super) struct Draft<'c> {
    pub(super) of: Undecided<'c>,
    pub(super) began: Instant,
    /// The span of the decision.
    pub(super) span: TraceSpan,
    /// One per check, by its index; `None` if the check is open: the store has to decide it.
    pub(super) decided: SmallVec<[Option<Decision>; 4]>,
    effects: Effects,
    /// The checks to send to the store, in ascending order: the open ones, or all of them as peeks.
    pub(super) to_send: CheckIndices,
    /// The checks as they are sent, if some have other hits than their own.
    pub(super) sent_as: Option<Arc<Checks>>,
    /// Hits that were drawn ahead, if they have a part in it.
    pub(super) draws: Option<Box<Draws<'c>>>,
    /// The delay of the request, if it is decided and a shaper delays it.
    pub(super) delay: Option<Delay>,
}

impl Limiter {
    /// Decides checks by drawn hits and the denial cache, as far as these do. Neither waits.
    pub(super) fn draft<'c>(&'c self, of: Undecided<'c>) -> Draft<'c> {
        let (checks, began) = (of.checks, Instant::now());
        let mut draft = Draft {
            of,
            began,
            span: of.decide_span(),
            decided: SmallVec::from_elem(None, checks.total()),
            effects: Effects::new(),
            to_send: checks.all(),
            sent_as: None,
            draws: self.draws(checks, began),
            delay: None,
        };
        let ahead = draft.use_draws();
        if let Some(denial_cache) = &self.denial_cache {
            draft.use_denial_cache(denial_cache);
        }
        let decided = &draft.decided;
        draft.to_send.retain(|index| decided[index.0].is_none());
        let is_part = (checks.apart().len() + 1..checks.total()).contains(&draft.to_send.len());
        draft.sent_as = if checks.is_all_or_none() && is_part {
            // The others only peek: they must not be counted.
            let mut peeks = Checks::clone(checks);
            peeks.peek_only(checks.len());
            draft.to_send = checks.all();
            Some(Arc::new(peeks))
        } else {
            self.note_refused(&draft);
            ahead.map(Arc::new)
        };
        draft
    }

    /// Takes in the store's answers to the checks at `picked`.
    pub(super) fn take_in(
        &self,
        draft: &mut Draft<'_>,
        mut picked: CheckIndices,
        answers: Answers,
    ) {
        let (checks, mut each) = (draft.of.checks, answers.each);
        let are_peeks = picked.iter().any(|index| !draft.is_open(*index));
        if are_peeks {
            if draft.fits(&each) || draft.stays_refused(&picked, &each) {
                self.note_refused(draft);
            } else {
                // Only the store decides which of them are over their limits.
                draft.decided[..checks.len()].fill(None);
                draft.to_send = checks.indices();
            }
        } else if let Some(draws) = &mut draft.draws {
            draft.to_send = draws.take_in(checks, &picked, &mut each);
        }
        picked.retain(|index| !draft.to_send.contains(index));
        if let Some(denial_cache) = self.denial_cache.as_ref().filter(|_| !are_peeks) {
            denial_cache.record(checks, &picked, &each, draft.began, Instant::now);
        }
        for index in picked {
            if !draft.is_open(index) {
                continue;
            }
            let answer = &each[index.0];
            if answer.effect != Effect::None {
                draft.effects.push((index, answer.effect));
            }
            let decision = match draft.drawn(index) {
                Some(verdict) => Decision::Lease(verdict),
                None => Decision::of_store(answer.verdict),
            };
            draft.decided[index.0] = Some(decision);
        }
    }

    /// Notes hits on tracked checks that the denial cache has refused.
    fn note_refused(&self, draft: &Draft<'_>) {
        let checks = draft.of.checks;
        if checks.is_tracked() {
            self.store.note_refused(checks, |CheckIndex(index)| {
                matches!(draft.decided[index], Some(Decision::DenialCache(_)))
            });
        }
    }
}

impl Draft<'_> {
    fn is_open(&self, CheckIndex(index): CheckIndex) -> bool {
        self.decided[index].is_none()
    }

    /// Decides the open checks that the denial cache refuses. Draws may lift a refusal: held hits
    /// answer it, or the store is asked.
    fn use_denial_cache(&mut self, denial_cache: &DenialCache) {
        if self.decided.iter().all(Option::is_some) {
            return;
        }
        let checks = self.of.checks;
        let refused = denial_cache.refused(checks, self.began);
        for (index, refusal) in checks.indices().into_iter().zip(refused) {
            let Some(refusal) = refusal.filter(|_| self.is_open(index)) else {
                continue;
            };
            let draws = self.draws.as_mut();
            let is_lifted = draws.is_some_and(|draws| draws.lifts_refusal(checks, index));
            let decision = match self.drawn(index) {
                Some(verdict) => Decision::Lease(verdict),
                None if is_lifted => continue,
                None => Decision::DenialCache(refusal),
            };
            self.decided[index.0] = Some(decision);
        }
    }

    /// Whether each check that peeked has as many hits left as it needs.
    fn fits(&self, peeks: &[Answer]) -> bool {
        self.of.checks.indexed().all(|(index, check)| {
            let has_left =
                |peek: Verdict| peek.allowed && check.hits.unsigned_abs() <= peek.remaining;
            !self.is_open(index) || peeks[index.0].verdict.is_ok_and(has_left)
        })
    }

    /// Whether the request is refused, although the store did not answer some of the peeks: a refusal
    /// is final. Decides the checks without an answer.
    fn stays_refused(&mut self, picked: &[CheckIndex], peeks: &[Answer]) -> bool {
        let checks = self.of.checks;
        let decided = self.decided[..checks.len()].iter();
        let allows = |decision: &Option<Decision>| decision.is_none_or(|it| it.allows());
        if !checks.is_over_limit(decided.map(allows)) {
            return false;
        }
        let open = picked.iter().filter(|&&index| self.is_open(index));
        let failed = open.filter_map(|&index| Some((index, peeks[index.0].verdict.err()?)));
        let failed: SmallVec<[_; 4]> = failed.collect();
        for (index, error) in &failed {
            self.decided[index.0] = Some(Decision::PolicyAllows(*error));
        }
        !failed.is_empty()
    }

    /// The decisions on all checks, of which none is open.
    pub(super) fn decisions(&mut self) -> Decisions {
        let not_sent = Decision::Fails(StoreError::NotExecuted("not sent"));
        let each = self
            .decided
            .iter()
            .map(|decision| decision.unwrap_or(not_sent));
        Decisions {
            each: each.collect(),
            effects: std::mem::take(&mut self.effects),
        }
    }
}
