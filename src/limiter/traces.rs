//! The spans of a decision and of its round trips.

use super::{Limiter, Undecided};
use crate::core::answer::Answer;
use crate::core::verdict::StoreError;
use crate::limits::plan::{CheckIndex, Checks};
use crate::observe::traces::{SpanKind, TraceSpan};
use crate::store::Store;

impl Undecided<'_> {
    /// The span of the decision.
    pub(super) fn decide_span(&self) -> TraceSpan {
        let span = self.span.child("decide", SpanKind::Internal);
        span.set("weir.checks", self.checks.len() as i64);
        span
    }
}

impl Limiter {
    /// The span of a round trip to Redis for `checks` checks. It is not around the call of the
    /// store, because another future around it costs each call hundreds of instructions.
    #[inline]
    pub(super) fn trip(&self, span: &TraceSpan, checks: usize) -> TraceSpan {
        match self.store {
            Store::Redis(_) if span.is_recorded() => {
                let trip = span.child("redis", SpanKind::Client);
                trip.set("db.system.name", "redis");
                trip.set("db.operation.batch.size", checks as i64);
                trip
            }
            Store::Redis(_) | Store::Memory(_) => TraceSpan::default(),
        }
    }
}

/// Ends a trip that was to answer the checks at `picked`. Checks apart do not fail it.
#[inline]
#[expect(clippy::needless_pass_by_value, reason = "the trip ends with its span")]
pub(super) fn end_trip(
    trip: TraceSpan,
    checks: &Checks,
    picked: &[CheckIndex],
    answers: &[Answer],
) {
    if trip.is_recorded()
        && let Some(error) = picked
            .iter()
            .filter(|&&index| !checks.is_apart(index))
            .find_map(|&CheckIndex(index)| answers[index].verdict.err())
    {
        trip.fail(error_type(error));
    }
}

/// Error type of a store's error in a span.
fn error_type(error: StoreError) -> &'static str {
    match error {
        StoreError::NotExecuted(_) => "not_executed",
        StoreError::Unknown(_) => "unknown_outcome",
        StoreError::Data(_) => "stored_data",
    }
}
