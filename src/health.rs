//! Health: whether this process wants traffic.
//!
//! One answer for `grpc.health.v1` and for `/healthcheck`. It is made of conditions that all have to hold; nothing in here asks a backend.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::watch;

/// The health of the process; clones are the same one.
#[derive(Clone, Debug)]
pub struct Health(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    conditions: Mutex<Conditions>,
    serving: watch::Sender<bool>,
}

/// Whether the store can be used, for who wants health to depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreHealth {
    /// It can.
    Up,
    /// It cannot, or has not been reached yet.
    Down,
}

#[derive(Clone, Copy, Debug)]
struct Conditions {
    needs_a_domain: bool,
    has_a_domain: bool,
    store: StoreHealth,
    draining: bool,
}

impl Conditions {
    const fn hold(self) -> bool {
        !self.draining && matches!(self.store, StoreHealth::Up) && (self.has_a_domain || !self.needs_a_domain)
    }
}

impl Health {
    /// Not draining, without a domain, with a store that nobody asks after. With `needs_a_domain` that is unhealthy until the rules have one.
    #[must_use]
    pub fn new(needs_a_domain: bool) -> Self {
        let conditions = Conditions { needs_a_domain, has_a_domain: false, store: StoreHealth::Up, draining: false };
        Self(Arc::new(Inner { conditions: Mutex::new(conditions), serving: watch::Sender::new(conditions.hold()) }))
    }

    /// Rules are in force, with or without a domain.
    pub fn rules_loaded(&self, has_a_domain: bool) {
        self.change(|conditions| conditions.has_a_domain = has_a_domain);
    }

    /// The store can or cannot be used. Nobody says so unless health is to depend on it.
    pub fn store_is(&self, store: StoreHealth) {
        self.change(|conditions| conditions.store = store);
    }

    /// The process is about to end; nothing makes it healthy again.
    pub fn drain(&self) {
        self.change(|conditions| conditions.draining = true);
    }

    /// Whether all conditions hold.
    #[must_use]
    pub fn is_serving(&self) -> bool {
        *self.0.serving.borrow()
    }

    /// Follows [`Health::is_serving`].
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<bool> {
        self.0.serving.subscribe()
    }

    fn change(&self, change: impl FnOnce(&mut Conditions)) {
        // The lock is held until the answer is out, so that two changes cannot publish in the wrong order.
        let mut conditions = self.0.conditions.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut conditions);
        let hold = conditions.hold();
        self.0.serving.send_if_modified(|serving| std::mem::replace(serving, hold) != hold);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draining_is_final() {
        let health = Health::new(false);
        assert!(health.is_serving());
        health.drain();
        health.rules_loaded(true);
        assert!(!health.is_serving());
    }

    #[test]
    fn a_store_counts_when_somebody_speaks_of_it() {
        let health = Health::new(false);
        assert!(health.is_serving());
        for (store, is_serving) in [(StoreHealth::Down, false), (StoreHealth::Up, true), (StoreHealth::Down, false)] {
            health.store_is(store);
            assert_eq!(health.is_serving(), is_serving);
        }
        health.store_is(StoreHealth::Up);
        health.drain();
        assert!(!health.is_serving());
    }

    #[test]
    fn a_domain_is_waited_for_only_when_asked() {
        let health = Health::new(true);
        let mut changes = health.subscribe();
        assert!(!health.is_serving());
        health.clone().rules_loaded(true);
        assert!(health.is_serving());
        assert!(changes.has_changed().unwrap());
        assert!(*changes.borrow_and_update());
        health.rules_loaded(true);
        assert!(!changes.has_changed().unwrap(), "no news");
        health.rules_loaded(false);
        assert!(!*changes.borrow_and_update());
    }
}
