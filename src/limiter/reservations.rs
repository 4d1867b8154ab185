//! Reservations of a request that is refused, or fails: what it has newly reserved is given back at
//! once, by one more call of the store. A hold is held only if its request was admitted as a whole.
//!
//! If the store does not answer the call, it is repeated until the hold has expired. It may have
//! run before: a repeated one changes nothing. A replica that ends before leaves the hold to its
//! `ttl`.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::places::spawn;
use super::{Limiter, OPERATOR_TIMEOUT, Undecided, arriving, observe};
use crate::core::algorithm::reservations::Outcome;
use crate::core::algorithm::{Algorithm, Holds};
use crate::core::answer::{Answer, Decision, Decisions, Effect, HeldHits, HoldChange};
use crate::core::time::Span;
use crate::core::verdict::{StoreError, Verdict};
use crate::limits::plan::{CheckIndex, CheckIndices, Checks};
use crate::net::clock;
use crate::observe::metrics::Tallies;
use crate::store::memory::Memory;
use crate::store::{Budget, Store};

/// Maximum number of requests of all workers whose reservations wait for the store to be given back.
pub const MAX_WAITING: usize = 1_000;

/// The first wait before a call is repeated; the next ones are twice as long, up to [`LONGEST_WAIT`].
const FIRST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(5);

static WAITING: Semaphore = Semaphore::const_new(MAX_WAITING);

/// New reservations of a refused request.
struct NewHolds {
    /// Its checks, by their indices in the request.
    picked: CheckIndices,
    /// The same checks, which give back.
    checks: Arc<Checks>,
    longest_ttl: Span,
}

impl NewHolds {
    /// Of the checks that a store decided with these algorithms; `None` if the request is admitted,
    /// or has reserved nothing.
    fn of(
        checks: &Checks,
        decisions: &Decisions,
        is_own: impl Fn(&Decision) -> bool,
        algorithm: impl Fn(Algorithm) -> Algorithm,
    ) -> Option<Self> {
        let is_new = |&(index, effect): &(CheckIndex, Effect)| match effect {
            Effect::Hold(change) if change.is_new() && is_own(&decisions[index.0]) => {
                Some((index, change.held.saturating_sub(change.stepped)))
            }
            _ => None,
        };
        let new: Vec<_> = decisions.effects.iter().filter_map(is_new).collect();
        let fails = || decisions.iter().find_map(Decision::failure).is_some();
        let is_over = || checks.is_over_limit(decisions.iter().map(Decision::allows));
        if new.is_empty() || !(is_over() || fails()) {
            return None;
        }
        let picked: CheckIndices = new.iter().map(|(index, _)| *index).collect();
        let mut gives = checks.subset(&picked, algorithm, |_| true);
        for (at, (_, before)) in new.iter().enumerate() {
            gives.undo(CheckIndex(at), *before);
        }
        let ttls = gives
            .iter()
            .filter_map(|check| Some(check.reservation()?.terms.ttl));
        Some(Self {
            longest_ttl: ttls.max().unwrap_or_default(),
            checks: Arc::new(gives),
            picked,
        })
    }

    /// Takes in the answers. Returns whether the store has given back all.
    fn take_in(&self, of: Undecided<'_>, answers: &[Answer], decisions: &mut Decisions) -> bool {
        for (index, answer) in self.picked.iter().zip(answers) {
            of.observe([(*index, answer.effect)]);
            if let (Ok(after), Decision::Store(verdict) | Decision::Local(verdict, ..)) =
                (answer.verdict, &mut decisions.each[index.0])
            {
                let (allowed, retry_after) = (verdict.allowed, verdict.retry_after);
                *verdict = Verdict {
                    allowed,
                    retry_after,
                    ..after
                };
            }
        }
        for (index, effect) in &mut decisions.effects {
            if let Some(at) = self.picked.iter().position(|picked| picked == index) {
                let undone = answers.get(at).map(|answer| answer.effect.hold());
                let (reserved, undone) = (effect.hold(), undone.unwrap_or_default());
                // The holds of others that have expired in both steps stay charged.
                let kept = reserved.kept.saturating_add(undone.kept);
                let undone = HoldChange::of(Outcome::Undone);
                *effect = Effect::Hold(HoldChange { kept, ..undone });
            }
        }
        answers.iter().all(|answer| answer.verdict.is_ok())
    }
}

impl Undecided<'_> {
    /// Gives back what a refused request has reserved in memory.
    pub(super) fn undo_in(
        self,
        memory: &Memory,
        decisions: &mut Decisions,
        is_own: impl Fn(&Decision) -> bool,
        algorithm: impl Fn(Algorithm) -> Algorithm,
    ) {
        if let Some(new) = NewHolds::of(self.checks, decisions, is_own, algorithm) {
            let answers =
                memory.decide_at(&new.checks, &new.checks.indices(), arriving(Span::ZERO));
            new.take_in(self, &answers.each, decisions);
        }
    }
}

impl Limiter {
    /// The sum of the holds of a check's counter that are not settled.
    ///
    /// # Errors
    /// The store did not answer.
    pub async fn held_hits(
        &self,
        checks: &Checks,
        index: CheckIndex,
    ) -> Result<Option<HeldHits>, StoreError> {
        match &self.store {
            Store::Memory(memory) => {
                let open = |holds: &Holds| HeldHits::of(holds.open(), clock::now());
                Ok(memory
                    .read_holds(checks.key(&checks[index]), open)
                    .flatten())
            }
            Store::Redis(redis) => {
                let deadline = Instant::now() + OPERATOR_TIMEOUT;
                redis.held_hits(checks, index, deadline).await
            }
        }
    }

    /// Gives back what a refused request has reserved.
    pub(super) async fn undo(
        &self,
        store: &Store,
        of: Undecided<'_>,
        budget: &Budget,
        decisions: &mut Decisions,
    ) {
        let (policies, replicas) = (&self.failure_policies, self.failure_policies.replicas());
        let is_local = |decision: &Decision| matches!(decision, Decision::Local(..));
        let share = |algorithm: Algorithm| algorithm.share(replicas.get());
        of.undo_in(policies.local(), decisions, is_local, share);
        let is_stored = |decision: &Decision| matches!(decision, Decision::Store(_));
        let Some(new) = NewHolds::of(of.checks, decisions, is_stored, |algorithm| algorithm) else {
            return;
        };
        let picked = new.checks.indices();
        let answers = store.decide(&new.checks, &picked, budget).await;
        if !new.take_in(of, &answers.each, decisions)
            && let Ok(permit) = WAITING.try_acquire()
        {
            let (limiter, tallies) = (self.clone(), of.tallies.cloned());
            // A hold that is not given back ends with its ttl.
            spawn(async move {
                limiter.repeat(&new, tallies.as_ref()).await;
                drop(permit);
            });
        }
    }

    /// Repeats the call until the store has answered it, or the holds have expired.
    async fn repeat(&self, new: &NewHolds, tallies: Option<&Tallies>) {
        let (end, mut wait) = (Instant::now() + Duration::from(new.longest_ttl), FIRST_WAIT);
        while Instant::now() + wait < end {
            tokio::time::sleep(wait).await;
            let budget = self.budget(Instant::now(), None);
            let picked = new.checks.indices();
            let answers = self.store.decide(&new.checks, &picked, &budget).await;
            observe(tallies, &new.checks, answers.effects());
            if answers.each.iter().all(|answer| answer.verdict.is_ok()) {
                return;
            }
            wait = (2 * wait).min(LONGEST_WAIT);
        }
    }
}
