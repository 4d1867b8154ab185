//! Decides requests with checks of limits with `lease`: by what is held, then by the denial cache,
//! then by the store, which some of them ask for more hits than their own.

use std::sync::Arc;

use smallvec::SmallVec;
use tokio::time::Instant;

use super::denial_cache::{CachedRefusals, DenialCache};
use super::failure_policies::PartialDecisions;
use super::leases::Draws;
use super::{Limiter, end_trip};
use crate::core::verdict::Decision;
use crate::limits::plan::{CheckIndex, CheckIndices, Checks};
use crate::observe::traces::TraceSpan;
use crate::store::Budget;

impl Limiter {
    /// Answers each check. Domains whose checks commit all or none have no leases.
    pub(super) async fn ask_with_leases(
        &self,
        checks: &Arc<Checks>,
        mut draws: Draws<'_>,
        began: Instant,
        budget: Budget,
        span: &TraceSpan,
    ) -> PartialDecisions {
        let cached = self.cached(checks, &mut draws, began);
        let picked: CheckIndices = (0..checks.len())
            .map(CheckIndex)
            .filter(|&index| draws.answer(index).is_none() && cached[index.0].is_none())
            .collect();
        let asked = if picked.iter().any(|&index| draws.ahead(index) > 0) {
            Arc::new(checks.with_ahead(|index| draws.ahead(index)))
        } else {
            Arc::clone(checks)
        };
        let trip = self.trip(span, picked.len());
        let mut answers = self.store.decide(&asked, &picked, budget).await.checks;
        end_trip(trip, &picked, &answers);
        let again = draws.finish(checks, &picked, &mut answers);
        if !again.is_empty() {
            let mut own = self.store.decide(checks, &again, budget).await.checks;
            draws.finish(checks, &again, &mut own);
            for &CheckIndex(index) in &again {
                answers[index] = own[index];
            }
        }
        if let Some(denial_cache) = &self.denial_cache {
            denial_cache.record(checks, &picked, &answers, began, Instant::now());
        }
        let decision = |(index, answer)| {
            let of_cache = cached[index];
            match draws.answer(CheckIndex(index)) {
                Some(verdict) => Ok(Decision::Lease(verdict)),
                None => of_cache.map_or(answer, |verdict| Ok(Decision::DenialCache(verdict))),
            }
        };
        let answers = answers
            .into_iter()
            .map(|answer| answer.map(Decision::Store));
        answers.enumerate().map(decision).collect()
    }

    /// The refusals of the denial cache, but for checks that are answered with what is held.
    fn cached(&self, checks: &Checks, draws: &mut Draws<'_>, began: Instant) -> CachedRefusals {
        let refused = |cache: &DenialCache| cache.refused(checks, began);
        let mut cached = self
            .denial_cache
            .as_ref()
            .map_or_else(|| SmallVec::from_elem(None, checks.len()), refused);
        for (index, refusal) in cached.iter_mut().enumerate() {
            let index = CheckIndex(index);
            let is_answered = draws.answer(index).is_some();
            if is_answered || (refusal.is_some() && draws.lifts_refusal(checks, index)) {
                *refusal = None;
            }
        }
        if checks.is_tracked() {
            self.store
                .note_refused(checks, |CheckIndex(index)| cached[index].is_some());
        }
        cached
    }
}
