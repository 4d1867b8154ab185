//! Health: readiness of this process for traffic.
//!
//! One status for `grpc.health.v1` and for `/healthcheck`. `app` derives it from the rules, the
//! store and the shutdown, and reports it here; this file depends on none of them.

use tokio::sync::watch;

/// Readiness of the process for traffic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Status {
    /// Something that requests need is missing: one reason each, with the setting that makes it
    /// one. Without reasons the process is starting.
    NotReady(Vec<&'static str>),
    /// The process wants traffic.
    Ready,
    /// The process is shutting down. No other status follows.
    Draining,
}

/// The health of the process; clones share one status.
#[derive(Clone, Debug)]
pub struct Health(watch::Sender<Status>);

impl Default for Health {
    /// [`Status::NotReady`].
    fn default() -> Self {
        Self(watch::Sender::new(Status::NotReady(Vec::new())))
    }
}

impl Health {
    /// Sets the status; without effect after [`Status::Draining`].
    pub fn report(&self, new: Status) {
        self.0.send_if_modified(|status| {
            let changes = *status != new && *status != Status::Draining;
            if changes {
                *status = new;
            }
            changes
        });
    }

    /// Whether the status is [`Status::Ready`].
    pub fn is_ready(&self) -> bool {
        *self.0.borrow() == Status::Ready
    }

    /// The reasons for which the process is not ready, human-readable, one per line. `None` if it
    /// is ready.
    pub fn problem(&self) -> Option<String> {
        match &*self.0.borrow() {
            Status::Ready => None,
            Status::NotReady(reasons) if reasons.is_empty() => {
                Some("the process is starting\n".to_owned())
            }
            Status::NotReady(reasons) => Some(reasons.join("\n") + "\n"),
            Status::Draining => Some("the process is shutting down\n".to_owned()),
        }
    }

    /// Subscribes to the status; a repeated report of the same status is not a change.
    pub fn subscribe(&self) -> watch::Receiver<Status> {
        self.0.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draining_is_final() {
        let health = Health::default();
        assert!(!health.is_ready());
        health.report(Status::Ready);
        assert!(health.is_ready());
        health.report(Status::Draining);
        health.report(Status::Ready);
        assert!(!health.is_ready());
    }

    #[test]
    fn only_changes_are_published() {
        let health = Health::default();
        let mut changes = health.subscribe();
        health.clone().report(Status::Ready);
        assert_eq!(*changes.borrow_and_update(), Status::Ready);
        health.report(Status::Ready);
        assert!(!changes.has_changed().unwrap(), "the same status again");
        let not_ready = Status::NotReady(vec!["no domain is loaded"]);
        health.report(not_ready.clone());
        assert_eq!(*changes.borrow_and_update(), not_ready);
    }

    #[test]
    fn every_reason_is_a_line() {
        let health = Health::default();
        assert_eq!(
            health.problem().as_deref(),
            Some("the process is starting\n")
        );
        health.report(Status::NotReady(vec!["no limits", "no domain"]));
        assert_eq!(health.problem().as_deref(), Some("no limits\nno domain\n"));
        health.report(Status::Ready);
        assert_eq!(health.problem(), None);
        health.report(Status::Draining);
        assert_eq!(
            health.problem().as_deref(),
            Some("the process is shutting down\n")
        );
    }
}
