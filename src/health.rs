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

#[derive(Clone, Copy, Debug)]
struct Conditions {
    needs_a_domain: bool,
    has_a_domain: bool,
    draining: bool,
}

impl Conditions {
    const fn hold(self) -> bool {
        !self.draining && (self.has_a_domain || !self.needs_a_domain)
    }
}

impl Health {
    /// Not draining, without a domain. With `needs_a_domain` that is unhealthy until the rules have one.
    #[must_use]
    pub fn new(needs_a_domain: bool) -> Self {
        let conditions = Conditions { needs_a_domain, has_a_domain: false, draining: false };
        Self(Arc::new(Inner { conditions: Mutex::new(conditions), serving: watch::Sender::new(conditions.hold()) }))
    }

    /// Rules are in force, with or without a domain.
    pub fn rules_loaded(&self, has_a_domain: bool) {
        self.change(|conditions| conditions.has_a_domain = has_a_domain);
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
