//! The reservations of the memory store: the holds of each counter, next to the counters.

use super::bounded::{Bounded, BoundedTable};
use crate::core::algorithm::concurrency::HolderId;
use crate::core::algorithm::reservations::{HeldHits, Holds};
use crate::core::algorithm::{Arrival, State, Step};
use crate::core::answer::Effect;
use crate::core::time::Micros;
use crate::limits::plan::{Check, Reservation};

/// The holds of all counters.
pub(super) type Reservations = BoundedTable<Holds>;

impl Bounded for Holds {
    fn bytes(&self) -> usize {
        Self::bytes(self)
    }

    fn is_expired(&self, now: Micros) -> bool {
        self.is_empty() || self.until <= now
    }
}

impl Reservations {
    /// Decides a check on the state and the holds of its key.
    pub(super) fn decide(
        &self,
        key: &[u8],
        check: &Check,
        &Reservation { terms, purpose }: &Reservation,
        state: Option<State>,
        at: Arrival,
    ) -> (Step, Effect) {
        let (step, change) = self.step(key, at.now, Holds::default, |holds| {
            terms.step(&check.algorithm, purpose, check.hits, state, holds, at)
        });
        (step, change.into())
    }

    /// The holds of a key that have not expired.
    pub(super) fn held_hits(&self, key: &[u8], now: Micros) -> Option<HeldHits> {
        self.read(key, now, |holds| {
            HeldHits::of(holds.iter().map(|(_, hold)| hold), now)
        })?
    }

    /// Whether an id has hits that a settlement would release.
    pub(super) fn holds(&self, key: &[u8], id: HolderId, now: Micros) -> bool {
        self.read(key, now, |holds| holds.holds(id)) == Some(true)
    }
}
