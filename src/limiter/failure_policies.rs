//! Failure policies decide the checks that the store did not decide, by each limit's
//! `on_store_failure`, and combine all decisions into one outcome of the request.
//!
//! A request that is certainly over a limit, by a count or by `deny`, is refused: a failure of
//! another check must not let it pass. Otherwise one `error` fails the request. Otherwise `local`
//! limits are decided by the memory store here, and `allow` allows. The local store has the code of
//! the memory store, which is in daily use and not only in outages. Nothing here waits, or sends
//! anything to the store again.
//!
//! The local store has the keys of Redis, and starts empty.

use std::num::NonZeroU32;

use super::replicas::{ReplicaCount, Source};
use crate::core::algorithm::Arrival;
use crate::core::answer::{Decision, Decisions, Effects};
use crate::core::time::Span;
use crate::limits::plan::{Check, CheckIndex, CheckIndices, Checks};
use crate::limits::rules::Commit;
use crate::limits::rules::limit::OnStoreFailure;
use crate::net::clock;
use crate::store::{Memory, StoreError, memory};

/// Options of the policy `local`.
#[derive(Clone, Debug)]
pub struct Options {
    /// The number of replicas that share each limit. This one allows 1/`replicas` of it, rounded
    /// up.
    pub replicas: Source,
    /// Maximum number of counted keys. Then a new key evicts one of the keys that recover soonest.
    pub max_keys: usize,
    /// Maximum memory of these keys in bytes.
    pub max_bytes: usize,
}

impl Default for Options {
    /// One replica, and about 10 MB of keys.
    fn default() -> Self {
        Self {
            replicas: Source::Fixed(NonZeroU32::MIN),
            max_keys: 100_000,
            max_bytes: memory::Options::default().max_bytes,
        }
    }
}

/// The policies, with the counters of `local`; clones share the counters.
#[derive(Clone, Debug)]
pub struct FailurePolicies {
    local: Memory,
    replicas: ReplicaCount,
}

impl FailurePolicies {
    /// Policies without any counters. A DNS name counts as one replica until `replicas::follow` has
    /// resolved it.
    pub fn new(options: &Options) -> Self {
        let replicas = match options.replicas {
            Source::Fixed(replicas) => replicas,
            Source::Dns(_) => NonZeroU32::MIN,
        };
        Self {
            // Usage records do not contain decisions of a policy.
            local: Memory::new(memory::Options {
                max_keys: options.max_keys,
                max_bytes: options.max_bytes,
                usage_bytes: 0,
            }),
            replicas: ReplicaCount::new(replicas),
        }
    }

    /// The counters of `local`, for sweeping and metrics.
    pub const fn local(&self) -> &Memory {
        &self.local
    }

    /// The number of replicas that share each limit.
    pub const fn replicas(&self) -> &ReplicaCount {
        &self.replicas
    }

    /// Completes the decisions of a request: decides the checks that the store did not decide, and
    /// releases what checks hold in the counters of `local`. Returns the effects on these counters.
    #[must_use]
    pub fn complete(
        &self,
        checks: &Checks,
        decisions: &mut Decisions,
        at: impl FnOnce() -> Arrival,
    ) -> Effects {
        let mut effects = self.apply(checks, &mut decisions.each, at);
        if checks.moves_places() || checks.has_holds() {
            // Whether the store or a policy decided the releases.
            let is_open = |index: CheckIndex| !matches!(decisions[index.0], Decision::Local(..));
            effects.extend(self.release(checks, is_open));
        }
        effects
    }

    /// Decides the checks that the store did not decide ([`Decision::Fails`]). Policies do not
    /// apply to checks that take no part in the request. `at` is called only if `local` decides a
    /// check. Returns the effects on the local counters.
    #[must_use]
    pub fn apply(
        &self,
        checks: &Checks,
        decisions: &mut [Decision],
        at: impl FnOnce() -> Arrival,
    ) -> Effects {
        let (decisions, apart) = decisions.split_at_mut(checks.len());
        for decision in apart {
            if let Decision::Fails(error) = *decision {
                *decision = Decision::PolicyAllows(error);
            }
        }
        let Some(first) = decisions.iter().find_map(Decision::failure) else {
            return Effects::new();
        };
        // Checks that commit all or none fail together.
        let of_all = (checks.commit == Commit::AllOrNone).then_some(first);
        let mut local = CheckIndices::new();
        for ((index, check), decision) in checks.indexed().zip(&mut *decisions) {
            if let Some(error) = of_all.or(decision.failure()) {
                *decision = by_policy(check, error);
            }
            if decision.store_error().is_some() && check.on_store_failure == OnStoreFailure::Local {
                local.push(index);
            }
        }
        if checks.is_over_limit(decisions.iter().map(Decision::allows)) {
            for decision in &mut *decisions {
                if let Decision::Fails(error) = *decision {
                    *decision = Decision::PolicyAllows(error);
                }
            }
            if checks.commit == Commit::AllOrNone {
                // A request that is refused as a whole is counted nowhere.
                return Effects::new();
            }
        } else if decisions.iter().find_map(Decision::failure).is_some() {
            for index in local {
                if let Some(error) = decisions[index.0].store_error() {
                    decisions[index.0] = Decision::Fails(error);
                }
            }
            return Effects::new();
        }
        if local.is_empty() {
            return Effects::new();
        }
        self.decide_locally(checks, &local, decisions, at())
    }

    /// Releases places and settles holds in the counters of `local` too, for the checks that
    /// are `is_open`: they may have been acquired while the store failed. Returns the effects on
    /// these counters.
    #[must_use]
    pub fn release(&self, checks: &Checks, is_open: impl Fn(CheckIndex) -> bool) -> Effects {
        let is_held = |check: &Check| {
            let key = checks.key(check);
            match check.settles() {
                Some(id) => self.local.read_holds(key, |holds| holds.has_hits(id)) == Some(true),
                None => {
                    check.hits < 0 && check.algorithm.counts_in_flight() && self.local.contains(key)
                }
            }
        };
        let open = checks.indexed().filter(|(index, check)| {
            check.on_store_failure == OnStoreFailure::Local && is_open(*index) && is_held(check)
        });
        let picked: CheckIndices = open.map(|(index, _)| index).collect();
        if picked.is_empty() {
            return Effects::new();
        }
        // As `decide_locally` counted them.
        let replicas = self.replicas.get();
        let releases = checks.subset(&picked, |algorithm| algorithm.share(replicas), |_| true);
        let at = Arrival {
            now: clock::now(),
            max_wait: Span::ZERO,
        };
        self.local.decide_all(&releases, at).effects_of(&picked)
    }

    fn decide_locally(
        &self,
        checks: &Checks,
        local: &[CheckIndex],
        decisions: &mut [Decision],
        at: Arrival,
    ) -> Effects {
        let replicas = self.replicas.get();
        let shares = checks.subset(
            local,
            |algorithm| algorithm.share(replicas),
            |index| decisions[index.0].allows(),
        );
        let answers = self.local.decide_all(&shares, at);
        for (&index, answer) in local.iter().zip(&answers.each) {
            if let (Ok(verdict), Some(error)) = (answer.verdict, decisions[index.0].store_error()) {
                decisions[index.0] = Decision::Local(verdict, error, replicas);
            }
        }
        answers.effects_of(local)
    }
}

/// The decision by a check's own policy; `local` allows until it is decided. A limit in shadow mode
/// neither refuses nor fails its request. Neither does a check that returns hits or places, or that
/// settles: its request was answered before.
fn by_policy(check: &Check, error: StoreError) -> Decision {
    let is_free = check.modes.shadow || check.returns();
    match check.on_store_failure {
        OnStoreFailure::Error if !is_free => Decision::Fails(error),
        OnStoreFailure::Deny if !is_free => Decision::PolicyRefuses(error),
        OnStoreFailure::Error
        | OnStoreFailure::Deny
        | OnStoreFailure::Allow
        | OnStoreFailure::Local => Decision::PolicyAllows(error),
    }
}

#[cfg(test)]
mod tests;
