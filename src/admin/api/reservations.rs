//! Reservations of counters, in explanations and in the usage of a subject.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Parts;
use super::subject::CountedSubject;
use crate::limits::plan::{Disposition, Plan};
use crate::limits::rules::limit::Units;
use crate::net::clock;

/// Maximum number of counters of a request whose reservations are read.
const MOST_INSPECTED: usize = 20;

/// Reservations of a counter that are not settled.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Reserved {
    /// Their number.
    #[schemars(range(min = 1))]
    pub reservations: u64,
    /// Their hits, in the units of the limit.
    pub hits: Units,
    /// Seconds since the oldest was made.
    pub oldest_seconds: f64,
}

impl Parts {
    /// The reservations of descriptors by their index, where there are some and the store answers.
    /// Reads the first [`MOST_INSPECTED`] counters of limits with reservations.
    pub(super) async fn reserved(&self, plan: &Plan) -> Vec<(usize, Reserved)> {
        let with_holds = plan.slots.iter().enumerate().filter_map(|(index, slot)| {
            let Disposition::Checked(planned) = &slot.disposition else {
                return None;
            };
            plan.checks[planned.check]
                .has_holds()
                .then_some((index, planned))
        });
        let mut all = Vec::new();
        for (index, planned) in with_holds.take(MOST_INSPECTED) {
            let held = self.limiter.held_hits(&plan.checks, planned.check).await;
            let reserved = held.ok().flatten().map(|held| Reserved {
                reservations: held.reservations,
                hits: planned.scale.decimal_rounded_up(held.hits),
                oldest_seconds: clock::now().since(held.since).micros() as f64 / 1e6,
            });
            all.extend(reserved.map(|reserved| (index, reserved)));
        }
        all
    }
}

impl CountedSubject {
    /// The hits that reservations hold; `None` if the limit has no `reservations`, or the store did
    /// not answer.
    pub(super) async fn held(&self, parts: &Parts) -> Option<u64> {
        if !self.check().has_holds() {
            return None;
        }
        let held = parts.limiter.held_hits(self.checks(), self.index).await;
        Some(held.ok()?.map_or(0, |held| held.hits))
    }
}
