//! Health: whether this process wants traffic.
//!
//! One status for `grpc.health.v1` and for `/healthcheck`. `app` derives it from the rules, the
//! store and the shutdown, and reports it here; this file asks none of them.

use std::fmt;

use tokio::sync::watch;

/// Whether the process wants traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Something that requests need is missing.
    NotReady(Missing),
    /// The process wants traffic.
    Ready,
    /// The process is shutting down. No other status follows.
    Draining,
}

/// What requests need and the process does not have. Nothing: the process is starting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each may be missing whatever the others are"
)]
pub struct Missing {
    /// Any rules: the control plane has not sent limits yet.
    pub limits: bool,
    /// A domain in the rules.
    pub domain: bool,
    /// A Redis server for all limits, or for all except those per second.
    pub redis: bool,
    /// A Redis server for limits per second, if they have a Redis of their own.
    pub redis_per_second: bool,
}

impl Missing {
    /// Whether nothing is missing.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self == Self::default()
    }
}

impl fmt::Display for Missing {
    /// One reason per line, each with the setting that makes it one.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reasons = [
            (self.is_empty(), "the process is starting"),
            (
                self.limits,
                "the control plane has not sent limits yet (FORCE_START_WITHOUT_INITIAL_CONFIG)",
            ),
            (
                self.domain,
                "no domain is loaded (HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED)",
            ),
            (
                self.redis,
                "no Redis server can be used (REDIS_HEALTH_CHECK_ACTIVE_CONNECTION)",
            ),
            (
                self.redis_per_second,
                "no Redis server of limits per second can be used \
                 (REDIS_HEALTH_CHECK_ACTIVE_CONNECTION)",
            ),
        ];
        reasons
            .iter()
            .filter(|(applies, _)| *applies)
            .try_for_each(|(_, reason)| writeln!(out, "{reason}"))
    }
}

/// The health of the process; clones share one status.
#[derive(Clone, Debug)]
pub struct Health(watch::Sender<Status>);

impl Default for Health {
    /// [`Status::NotReady`].
    fn default() -> Self {
        Self(watch::Sender::new(Status::NotReady(Missing::default())))
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
    #[must_use]
    pub fn is_ready(&self) -> bool {
        *self.0.borrow() == Status::Ready
    }

    /// Why the process is not ready, for people: one reason per line. `None` if it is.
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        match &*self.0.borrow() {
            Status::Ready => None,
            Status::NotReady(missing) => Some(missing.to_string()),
            Status::Draining => Some("the process is shutting down\n".to_owned()),
        }
    }

    /// Follows the status; a report of the same status again is no change.
    #[must_use]
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
        let not_ready = Status::NotReady(Missing {
            domain: true,
            ..Missing::default()
        });
        health.report(not_ready);
        assert_eq!(*changes.borrow_and_update(), not_ready);
    }

    #[test]
    fn every_reason_is_a_line() {
        let health = Health::default();
        assert_eq!(
            health.problem().as_deref(),
            Some("the process is starting\n")
        );
        health.report(Status::NotReady(Missing {
            limits: true,
            domain: true,
            redis: true,
            redis_per_second: true,
        }));
        let problem = health.problem().expect("four reasons");
        assert_eq!(
            problem
                .lines()
                .map(|line| line.split_whitespace().nth(1))
                .collect::<Vec<_>>(),
            [
                Some("control"),
                Some("domain"),
                Some("Redis"),
                Some("Redis")
            ]
        );
        health.report(Status::Ready);
        assert_eq!(health.problem(), None);
        health.report(Status::Draining);
        assert_eq!(
            health.problem().as_deref(),
            Some("the process is shutting down\n")
        );
    }
}
