//! The reservations of the memory store: the holds of each counter, next to the counters.

use super::bounded::{Bounded, BoundedTable};
use crate::core::algorithm::concurrency::HolderId;
use crate::core::algorithm::reservations::{Effect, Held, Holds};
use crate::core::algorithm::{Arrival, State, Step};
use crate::core::time::Micros;
use crate::limits::plan::{Check, Reserving};

/// The holds of all counters.
pub(super) type Reservations = BoundedTable<HoldsOfKey>;

#[derive(Debug, Default)]
pub(super) struct HoldsOfKey {
    holds: Holds,
    /// The end of all of them.
    until: Micros,
}

impl Bounded for HoldsOfKey {
    fn bytes(&self) -> usize {
        size_of::<Self>() + self.holds.bytes()
    }

    fn is_expired(&self, now: Micros) -> bool {
        self.holds.is_empty() || self.until <= now
    }
}

impl Reservations {
    /// Decides a check on the state and the holds of its key.
    pub(super) fn decide(
        &self,
        key: &[u8],
        check: &Check,
        reserving: &Reserving,
        state: Option<State>,
        at: Arrival,
    ) -> (Step, Effect) {
        let Reserving { terms, purpose, .. } = *reserving;
        self.step(key, at.now, HoldsOfKey::default, |of_key| {
            of_key.until = of_key.until.max(at.now + terms.keep_for());
            terms.step(
                &check.algorithm,
                purpose,
                check.hits,
                state,
                &mut of_key.holds,
                at,
            )
        })
    }

    /// The holds of a key that have not expired.
    pub(super) fn held(&self, key: &[u8], now: Micros) -> Option<Held> {
        self.read(key, now, |of_key| {
            Held::of(of_key.holds.iter().map(|(_, hold)| hold), now)
        })?
    }

    /// Whether an id has hits that a settlement would release.
    pub(super) fn holds(&self, key: &[u8], id: HolderId, now: Micros) -> bool {
        self.read(key, now, |of_key| of_key.holds.holds(id)) == Some(true)
    }
}
