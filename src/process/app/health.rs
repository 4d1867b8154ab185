//! The conditions of health, all in one place: the rules in force, and the store if the settings
//! ask for it.

use std::sync::Arc;
use std::time::Duration;

use super::redis::{Deployments, MAIN, PER_SECOND};
use crate::live::Live;
use crate::observe::health::{Health, Status};

/// Interval at which the conditions are checked. They are atomic reads, and a probe of a load
/// balancer is no quicker.
const TICK: Duration = Duration::from_millis(250);

// Reasons why the process is not ready, with the settings that make them.
const NO_LIMITS: &str =
    "the control plane has not sent limits yet (FORCE_START_WITHOUT_INITIAL_CONFIG)";
const NO_DOMAIN: &str = "no domain is loaded (HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED)";
const NO_REDIS: &str = "no Redis server can be used (REDIS_HEALTH_CHECK_ACTIVE_CONNECTION)";
const NO_REDIS_PER_SECOND: &str = "no Redis server of limits per second can be used \
    (REDIS_HEALTH_CHECK_ACTIVE_CONNECTION)";

/// The conditions that have to hold for the process to be ready.
pub(super) struct Conditions {
    /// The rules in force.
    pub live: Arc<Live>,
    /// Whether there must be rules. The rules of files are loaded before the process serves.
    pub needs_limits: bool,
    /// Whether the rules must have a domain.
    pub needs_a_domain: bool,
    /// The Redis deployments that must be usable. None for the memory store, or if health does not
    /// depend on Redis.
    pub deployments: Deployments,
}

impl Conditions {
    /// Reports the conditions now and every 250 ms; never ends.
    pub(super) async fn report(self, health: Health) {
        let mut tick = tokio::time::interval(TICK);
        loop {
            tick.tick().await;
            health.report(self.status());
        }
    }

    /// Whether the process is ready: all conditions hold now.
    pub(super) fn status(&self) -> Status {
        let live = self.live.load();
        let mut domains = live.iter().flat_map(|live| live.rules.domains());
        let has_a_domain = domains.next().is_some();
        let is_unusable = |sought| {
            self.deployments
                .iter()
                .any(|(name, deployment)| *name == sought && !deployment.is_usable())
        };
        let reasons = [
            (self.needs_limits && live.is_none(), NO_LIMITS),
            (self.needs_a_domain && !has_a_domain, NO_DOMAIN),
            (is_unusable(MAIN), NO_REDIS),
            (is_unusable(PER_SECOND), NO_REDIS_PER_SECOND),
        ];
        let missing = reasons.into_iter().filter(|(is_missing, _)| *is_missing);
        let missing: Vec<_> = missing.map(|(_, reason)| reason).collect();
        if missing.is_empty() {
            Status::Ready
        } else {
            Status::NotReady(missing)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::rules::Rules;
    use crate::limits::rules::compile::rules_of;
    use crate::observe::metrics::Metrics;

    #[test]
    fn a_domain_is_required_only_if_the_settings_say_so() {
        let live = Arc::new(Live::new(Metrics::new(1, 0.8)));
        let conditions = |needs_a_domain| Conditions {
            live: Arc::clone(&live),
            needs_limits: false,
            needs_a_domain,
            deployments: Vec::new(),
        };
        assert_eq!(conditions(false).status(), Status::Ready);
        let not_ready = Status::NotReady(vec![NO_DOMAIN]);
        for (rules, status) in [
            (None, not_ready.clone()),
            (Some(Rules::default()), not_ready),
            (Some(rules_of("domain: d")), Status::Ready),
        ] {
            rules.map(|rules| live.replace(rules));
            assert_eq!(conditions(true).status(), status);
        }
        live.reject(Vec::new());
        assert_eq!(
            conditions(true).status(),
            Status::Ready,
            "a rejected configuration changes nothing"
        );
    }

    #[test]
    fn the_first_limits_are_waited_for_unless_the_settings_allow_a_start_without() {
        let live = Arc::new(Live::new(Metrics::new(1, 0.8)));
        let conditions = |needs_limits| Conditions {
            live: Arc::clone(&live),
            needs_limits,
            needs_a_domain: false,
            deployments: Vec::new(),
        };
        assert_eq!(conditions(false).status(), Status::Ready);
        let not_ready = Status::NotReady(vec![NO_LIMITS]);
        assert_eq!(conditions(true).status(), not_ready);
        live.replace(Rules::default());
        assert_eq!(
            conditions(true).status(),
            Status::Ready,
            "an empty list is a configuration"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn changes_are_reported_within_a_tick() {
        let live = Arc::new(Live::new(Metrics::new(1, 0.8)));
        let conditions = Conditions {
            live: Arc::clone(&live),
            needs_limits: false,
            needs_a_domain: true,
            deployments: Vec::new(),
        };
        let health = Health::default();
        let check = async {
            for (rules, is_ready) in [(rules_of("domain: d"), true), (Rules::default(), false)] {
                live.replace(rules);
                tokio::time::sleep(TICK + TICK / 2).await;
                assert_eq!(health.is_ready(), is_ready);
            }
        };
        tokio::select! {
            () = conditions.report(health.clone()) => {}
            () = check => {}
        }
    }
}
