//! The time of a decision: `STORE_TIMEOUT` (500 ms) bounds callers with a longer deadline. The
//! `grpc-timeout` of the caller, less a margin, comes first.

use std::time::Duration;

use tokio::time::Instant;

use super::Limiter;
use crate::core::time::Span;
use crate::store::Budget;

/// The part of the caller's deadline that the response needs to travel back.
const MARGIN: Duration = Duration::from_millis(3);

/// The same for callers with a deadline below [`SHORT_DEADLINE`].
const SMALL_MARGIN: Duration = Duration::from_millis(2);
const SHORT_DEADLINE: Duration = Duration::from_millis(10);

impl Limiter {
    /// The time of a decision that begins now, for a caller with this deadline.
    pub(super) fn budget(&self, began: Instant, timeout: Option<Duration>) -> Budget {
        let left = timeout.map(less_margin);
        let most = self.options.store_timeout;
        let allowed = left.unwrap_or(Duration::MAX).min(most);
        Budget {
            deadline: began + allowed,
            max_wait: left.map_or(Span::MAX, Span::from),
            allowed,
            caller: timeout,
        }
    }
}

/// The rest of a deadline without the margin for the response.
pub(crate) fn less_margin(timeout: Duration) -> Duration {
    timeout.saturating_sub(if timeout < SHORT_DEADLINE {
        SMALL_MARGIN
    } else {
        MARGIN
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_deadline_leaves_a_margin_for_the_response() {
        for (timeout_ms, left_ms) in [(20, 17), (10, 7), (9, 7), (2, 0), (0, 0), (10_000, 9_997)] {
            assert_eq!(
                less_margin(Duration::from_millis(timeout_ms)),
                Duration::from_millis(left_ms),
                "{timeout_ms} ms"
            );
        }
    }
}
