//! The rules in force, behind one atomic pointer, and how they are replaced.
//!
//! A request takes one snapshot and keeps it to its end, so that it never sees half of a reload. Replacing is all or nothing. Rules that are
//! no longer in force are freed by whoever replaces or watches, never by the request that happens to be the last to use them: freeing a
//! large configuration takes milliseconds.

pub mod files;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use arc_swap::ArcSwapOption;

use crate::metrics::{Metrics, Tallies};
use crate::rules::Rules;
use crate::rules::compile::Problem;

/// Rules and what belongs to them.
#[derive(Debug)]
pub struct Snapshot {
    /// The rules.
    pub rules: Arc<Rules>,
    /// The counters of their limits.
    pub tallies: Tallies,
    /// Which configuration this is, counted from 1 since the process began.
    pub generation: u64,
}

/// The last configuration that was refused, while no later one is in force.
#[derive(Debug)]
pub struct RejectedConfig {
    /// When.
    pub at: SystemTime,
    /// Why.
    pub problems: Vec<Problem>,
}

/// The rules in force.
#[derive(Debug)]
pub struct Live {
    current: ArcSwapOption<Snapshot>,
    metrics: Arc<Metrics>,
    /// Held while rules are replaced.
    old: Mutex<Vec<Arc<Snapshot>>>,
    refusal: Mutex<Option<Arc<RejectedConfig>>>,
}

impl Live {
    /// No rules yet.
    #[must_use]
    pub fn new(metrics: Arc<Metrics>) -> Self {
        Self { current: ArcSwapOption::empty(), metrics, old: Mutex::default(), refusal: Mutex::default() }
    }

    /// The rules in force; `None` before the first ones.
    #[must_use]
    pub fn load(&self) -> Option<Arc<Snapshot>> {
        self.current.load_full()
    }

    /// Puts `rules` in force. Counters of limits that were there before go on.
    pub fn replace(&self, rules: Rules) -> Arc<Snapshot> {
        let mut old = lock(&self.old);
        let generation = self.current.load().as_ref().map_or(0, |snapshot| snapshot.generation) + 1;
        let tallies = self.metrics.tallies(&rules);
        let snapshot = Arc::new(Snapshot { rules: Arc::new(rules), tallies, generation });
        old.extend(self.current.swap(Some(Arc::clone(&snapshot))));
        self.metrics.config_loaded(&snapshot.rules, generation);
        *lock(&self.refusal) = None;
        free(&mut old);
        snapshot
    }

    /// Remembers that a configuration was refused; what is in force stays. False: it is the same refusal as before, and was not counted.
    #[expect(clippy::disallowed_methods, reason = "for people who look; nothing is decided by it")]
    pub fn reject(&self, problems: Vec<Problem>) -> bool {
        let mut refusal = lock(&self.refusal);
        if refusal.as_ref().is_some_and(|last| last.problems == problems) {
            return false;
        }
        *refusal = Some(Arc::new(RejectedConfig { at: SystemTime::now(), problems }));
        self.metrics.config_refused();
        true
    }

    /// Why the last configuration was refused; `None` when it is in force.
    #[must_use]
    pub fn rejected(&self) -> Option<Arc<RejectedConfig>> {
        lock(&self.refusal).clone()
    }

    /// Frees rules that are no longer in force and that no request uses any more.
    pub fn free_old(&self) {
        free(&mut lock(&self.old));
    }
}

fn free(old: &mut Vec<Arc<Snapshot>>) {
    old.retain(|snapshot| Arc::strong_count(snapshot) > 1 || Arc::strong_count(&snapshot.rules) > 1);
}

/// What is behind these locks is replaced as a whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::compile::Severity;

    fn problem(what: &str) -> Problem {
        Problem { severity: Severity::Error, file: "a.yaml".into(), line: 1, column: 1, what: what.into(), remedy: "mend it".into() }
    }

    #[test]
    fn a_request_keeps_its_rules_and_does_not_free_them() {
        let live = Live::new(Metrics::new(1, 0.8));
        assert!(live.load().is_none());
        live.replace(Rules::default());
        let used = live.load().unwrap();
        let rules = Arc::downgrade(&used.rules);
        assert_eq!(live.replace(Rules::default()).generation, 2);
        assert_eq!(used.generation, 1);
        drop(used);
        assert!(rules.upgrade().is_some(), "the last user frees nothing");
        live.free_old();
        assert!(rules.upgrade().is_none());
    }

    #[test]
    fn rules_that_only_a_plan_holds_are_not_freed_by_it() {
        let live = Live::new(Metrics::new(1, 0.8));
        let plan = Arc::clone(&live.replace(Rules::default()).rules);
        live.replace(Rules::default());
        live.free_old();
        assert_eq!(Arc::strong_count(&plan), 2);
        drop(plan);
        live.free_old();
        assert!(lock(&live.old).is_empty());
    }

    #[test]
    fn a_refusal_is_remembered_until_rules_are_in_force() {
        let metrics = Metrics::new(1, 0.8);
        let live = Live::new(Arc::clone(&metrics));
        assert!(live.reject(vec![problem("one")]));
        assert!(!live.reject(vec![problem("one")]));
        assert!(live.reject(vec![problem("two")]));
        assert_eq!(live.rejected().unwrap().problems[0].what, "two");
        assert!(metrics.encode().contains("ratelimit_service_config_load_error 2\n"));
        live.replace(Rules::default());
        assert!(live.rejected().is_none());
    }
}
