//! The rules in force, in one atomic pointer, and how a reload replaces them.
//!
//! A request takes one snapshot and keeps it to its end: it never sees half of a reload. The thread
//! that reloads frees old rules, and never the request that is the last to use them, because
//! freeing a large configuration takes milliseconds.
//!
//! Overrides are part of the snapshot, next to the rules. None in force is a null pointer in it,
//! and no clock is read. A change makes a snapshot with the same rules and tallies; of old ones
//! that share rules only the newest keeps them.

pub mod files;
pub mod overrides;
mod replaced;
pub mod xds;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use arc_swap::ArcSwapOption;

use crate::core::lock;
use crate::core::time::Micros;
use crate::limits::overrides::{InForce, Overrides};
use crate::limits::plan::features;
use crate::limits::rules::Rules;
use crate::limits::rules::compile::Problem;
use crate::net::clock;
use crate::observe::metrics::{Metrics, Tallies};

/// A configuration: its rules and their counters.
#[derive(Clone, Debug)]
pub struct Snapshot {
    pub rules: Arc<Rules>,
    /// The operators' overrides of these rules; `None` while there are none.
    overrides: Option<Arc<Overrides>>,
    /// The metrics of their limits.
    pub tallies: Tallies,
    /// The number of the configuration since the start of the process, from 1 on.
    pub generation: u64,
}

impl Snapshot {
    /// The overrides in force now. The clock is read only if there are any: they end by the clock
    /// of this machine.
    #[inline]
    pub fn overrides(&self) -> Option<InForce<'_>> {
        let overrides = self.overrides.as_ref()?;
        Some(overrides.at(clock::now()))
    }
}

/// The last configuration that was rejected, while no later one is in force.
#[derive(Debug)]
pub struct RejectedConfig {
    pub at: Micros,
    pub problems: Vec<Problem>,
}

/// The rules in force.
#[derive(Debug)]
pub struct Live {
    current: ArcSwapOption<Snapshot>,
    metrics: Arc<Metrics>,
    /// Snapshots that requests may still use. Locked while rules or overrides are replaced.
    old: Mutex<Vec<Arc<Snapshot>>>,
    /// The overrides of the current snapshot, or of the first one until it comes.
    overrides: Mutex<Option<Arc<Overrides>>>,
    rejected: Mutex<Option<Arc<RejectedConfig>>>,
    /// The files are to be read at the next poll, changed or not.
    reload: AtomicBool,
}

impl Live {
    /// Without rules.
    pub fn new(metrics: Arc<Metrics>) -> Self {
        Self {
            current: ArcSwapOption::empty(),
            metrics,
            old: Mutex::default(),
            overrides: Mutex::default(),
            rejected: Mutex::default(),
            reload: AtomicBool::new(false),
        }
    }

    /// The metrics of the limits, and of the process.
    pub const fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    /// Requests that the thread that follows the files reads them now.
    pub fn ask_for_reload(&self) {
        self.reload.store(true, Ordering::Release);
    }

    /// Whether a reload was requested since the last call.
    fn take_reload(&self) -> bool {
        self.reload.swap(false, Ordering::AcqRel)
    }

    /// The rules in force; `None` before the first ones.
    pub fn load(&self) -> Option<Arc<Snapshot>> {
        self.current.load_full()
    }

    /// Puts `rules` in force. Metrics of limits that both configurations have go on counting.
    ///
    /// Another thread has to make large rules: counters live for longer, and would leave holes among
    /// them in the heap of one thread.
    pub fn replace(&self, mut rules: Rules) -> Arc<Snapshot> {
        // Before the lock, because it reads all limits.
        rules.digest();
        let mut old = lock(&self.old);
        let mut generation = 1;
        if let Some(before) = &*self.current.load() {
            features::follow(&mut rules, &before.rules);
            generation += before.generation;
        }
        let tallies = self.metrics.tallies(&rules);
        let overrides = lock(&self.overrides).clone();
        let snapshot = Arc::new(Snapshot {
            rules: Arc::new(rules),
            overrides,
            tallies,
            generation,
        });
        old.extend(self.current.swap(Some(Arc::clone(&snapshot))));
        self.metrics.config_loaded(&snapshot.rules, generation);
        *lock(&self.rejected) = None;
        free(&mut old, Some(&snapshot));
        snapshot
    }

    /// Puts overrides in force, and keeps the rules.
    pub fn replace_overrides(&self, overrides: Overrides) {
        let overrides = (!overrides.list.is_empty()).then(|| Arc::new(overrides));
        let mut old = lock(&self.old);
        lock(&self.overrides).clone_from(&overrides);
        if let Some(snapshot) = self.current.load_full() {
            let next = Snapshot {
                overrides,
                ..Snapshot::clone(&snapshot)
            };
            old.extend(self.current.swap(Some(Arc::new(next))));
        }
        free(&mut old, self.current.load().as_ref());
    }

    /// The overrides in force, also before the first rules.
    pub fn overrides(&self) -> Option<Arc<Overrides>> {
        lock(&self.overrides).clone()
    }

    /// Records that a configuration was rejected. The rules in force stay. Returns false, and
    /// counts nothing, if the last rejection had the same problems.
    pub fn reject(&self, problems: Vec<Problem>) -> bool {
        let mut rejected = lock(&self.rejected);
        let last = rejected.as_ref().map(|last| &last.problems);
        if last == Some(&problems) {
            return false;
        }
        *rejected = Some(Arc::new(RejectedConfig {
            at: clock::now(),
            problems,
        }));
        self.metrics.config_refused();
        true
    }

    /// Forgets the rejection: the last configuration was accepted, and did not change the rules in
    /// force.
    pub fn clear_rejection(&self) {
        if lock(&self.rejected).take().is_some() {
            self.metrics.config_confirmed();
        }
    }

    /// The last configuration, if it was rejected; `None` if it is in force.
    pub fn rejected(&self) -> Option<Arc<RejectedConfig>> {
        lock(&self.rejected).clone()
    }

    /// Frees rules that are no longer in force and that no request uses.
    pub fn free_old(&self) {
        free(&mut lock(&self.old), self.current.load().as_ref());
    }
}

/// Drops the snapshots that nothing uses. A plan may use rules for longer than their snapshot; of
/// snapshots that differ in their overrides only, and share their rules, the newest one keeps
/// those.
fn free(old: &mut Vec<Arc<Snapshot>>, current: Option<&Arc<Snapshot>>) {
    let current = current.iter().map(|snapshot| Arc::as_ptr(&snapshot.rules));
    let mut kept: Vec<*const Rules> = current.collect();
    for index in (0..old.len()).rev() {
        let snapshot = &old[index];
        let rules = Arc::as_ptr(&snapshot.rules);
        if Arc::strong_count(snapshot) > 1
            || (Arc::strong_count(&snapshot.rules) > 1 && !kept.contains(&rules))
        {
            kept.push(rules);
        } else {
            old.remove(index);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::overrides::{EntryRecord, Record};
    use crate::limits::rules::messages;

    fn problem(what: &str) -> Problem {
        Problem::whole("a.yaml".into(), messages::unusable_resource(what))
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
    fn rules_that_only_a_plan_uses_are_not_freed_by_it() {
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
    fn overrides_change_without_the_rules_and_leave_nothing_behind() {
        let record = |value: &str| Record {
            kind: "block".to_owned(),
            domain: "d".to_owned(),
            entries: vec![EntryRecord {
                key: "user".to_owned(),
                value: Some(value.to_owned()),
                value_sha256: None,
            }],
            ..Record::default()
        };
        let overrides =
            |value: &str| Overrides::new(vec![record(value).read().expect("an override")]);
        let live = Live::new(Metrics::new(1, 0.8));
        live.replace_overrides(overrides("1"));
        assert!(live.load().is_none());
        let first = live.replace(Rules::default());
        assert!(
            first.overrides().is_some(),
            "they were there before the rules"
        );
        for value in 2..20 {
            live.replace_overrides(overrides(&value.to_string()));
        }
        let next = live.load().expect("rules");
        assert_eq!(
            (next.generation, Arc::ptr_eq(&next.rules, &first.rules)),
            (1, true),
            "the rules are those of before"
        );
        assert_eq!(lock(&live.old).len(), 1, "but the one in use all are freed");
        let plan = Arc::clone(&next.rules);
        drop((first, next));
        live.replace(Rules::default());
        live.free_old();
        assert_eq!(
            (lock(&live.old).len(), Arc::strong_count(&plan)),
            (1, 2),
            "one keeps the rules of the plan"
        );
        assert!(
            live.load().expect("rules").overrides().is_some(),
            "a reload keeps them"
        );
        live.replace_overrides(Overrides::default());
        drop(plan);
        live.free_old();
        assert!(lock(&live.old).is_empty());
        assert!(
            live.load().expect("rules").overrides().is_none(),
            "none in force is nothing to ask"
        );
    }

    #[test]
    fn a_rejection_is_kept_until_rules_are_in_force() {
        let metrics = Metrics::new(1, 0.8);
        let live = Live::new(Arc::clone(&metrics));
        assert!(live.reject(vec![problem("one")]));
        assert!(!live.reject(vec![problem("one")]));
        assert!(live.reject(vec![problem("two")]));
        assert_eq!(live.rejected().unwrap().problems[0].message.what, "two");
        assert!(
            metrics
                .encode()
                .contains("ratelimit_service_config_load_error 2\n")
        );
        live.replace(Rules::default());
        assert!(live.rejected().is_none());
        live.reject(vec![problem("three")]);
        assert!(
            metrics
                .encode()
                .contains("weir_config_last_load_successful 0\n")
        );
        live.clear_rejection();
        assert!(live.rejected().is_none());
        assert!(
            metrics
                .encode()
                .contains("weir_config_last_load_successful 1\n")
        );
    }
}
