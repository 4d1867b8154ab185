//! Delays of requests by shapers.

use crate::core::answer::Decision;
use crate::core::time::Span;
use crate::limits::plan::Checks;

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
