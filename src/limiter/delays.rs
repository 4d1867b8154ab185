//! Delays of requests by shapers.

use std::time::Duration;

use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, sleep_until};

use crate::core::answer::Decision;
use crate::core::time::Span;
use crate::limits::plan::Checks;

/// The wait of a request that is decided.
#[derive(Debug)]
pub(super) struct Delay {
    until: Instant,
    _permit: Option<OwnedSemaphorePermit>,
}

impl Delay {
    /// The delay of a request that is decided now and has to be answered by `latest`; `None` if it
    /// has none.
    pub(super) fn of(
        checks: &Checks,
        decisions: &[Decision],
        latest: Instant,
        permit: Option<OwnedSemaphorePermit>,
    ) -> Option<Self> {
        let delay = longest_delay(checks, decisions);
        // A sleep takes a tick of the timer even when its time has come already.
        (delay > Span::ZERO).then(|| Self {
            until: latest.min(Instant::now() + Duration::from(delay)),
            _permit: permit,
        })
    }

    /// Waits for its end.
    pub(super) async fn pass(self) {
        sleep_until(self.until).await;
    }
}

/// Whether a check may delay its request.
pub(super) fn is_shaped(checks: &Checks) -> bool {
    checks.iter().any(|check| check.algorithm.may_delay())
}

/// Time that a request is delayed: the longest delay of its shapers if the whole request is allowed,
/// else zero. A shaper in shadow mode does not delay.
pub(crate) fn longest_delay(checks: &Checks, decisions: &[Decision]) -> Span {
    let refused = checks.is_over_limit(decisions.iter().map(Decision::allows));
    if refused || decisions.iter().find_map(Decision::failure).is_some() {
        return Span::ZERO;
    }
    let shapers = checks
        .iter()
        .zip(decisions)
        .filter(|(check, _)| !check.modes.shadow);
    shapers
        .filter_map(|(_, decision)| decision.verdict())
        .map(|verdict| verdict.delay)
        .max()
        .unwrap_or_default()
}
