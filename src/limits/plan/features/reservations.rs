//! The checks of limits with `reservations`: the last entry of their descriptor may be an id, for
//! which they reserve hits, or whose hold they settle.

use crate::core::algorithm::places::RequestId;
use crate::core::algorithm::reservations::{self, Purpose};
use crate::core::algorithm::{Arrival, Reservations, State, Step};
use crate::core::answer::Effect;
use crate::core::time::Span;
use crate::limits::plan::{
    Check, CheckIndex, Checked, Checks, Disposition, Matcher, PlannedDescriptor, Slot, key,
};
use crate::limits::rules::{Commit, Rules};

/// The reservation or the settlement that a check makes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reservation {
    pub terms: Reservations,
    pub purpose: Purpose,
}

impl Reservation {
    pub(super) const fn without_id(terms: Reservations) -> Self {
        let purpose = Purpose::Plain;
        Self { terms, purpose }
    }
}

impl Matcher<'_, '_> {
    /// Like `disposition`, for a descriptor whose last entry is the id of a reservation. Everything
    /// after the plan sees the descriptor without it.
    #[inline(never)]
    pub(super) fn disposition_with_id(&mut self, planned: PlannedDescriptor<'_>) -> Disposition {
        let Some((last, entries)) = planned.entries.split_last() else {
            return self.disposition(planned);
        };
        let id = RequestId::of(last.value);
        let is_settlement = last.key == reservations::SETTLE;
        let disposition = self.disposition(PlannedDescriptor {
            entries,
            is_settlement,
            ..planned
        });
        let is_cancelled = std::mem::take(&mut self.is_cancelled);
        if let Disposition::Checked(Checked { check, .. }) = disposition
            && let check = &mut self.checks.list[check.0]
            && let Some(extras) = &mut check.extras
            && let Some(reservation) = &mut extras.reservation
        {
            if is_cancelled {
                check.hits = -1;
            }
            if !is_settlement {
                let least = reservation.terms.least_held(&check.algorithm);
                check.hits = check.hits.max(least);
            }
            reservation.purpose = match is_settlement {
                true => Purpose::Settle(id),
                false => Purpose::Reserve(id),
            };
        }
        disposition
    }
}

impl Check {
    /// The reservation or the settlement, if the limit has `reservations`.
    #[inline]
    pub fn reservation(&self) -> Option<&Reservation> {
        self.extras.as_ref()?.reservation.as_ref()
    }

    /// Whether requests can hold hits of the limit: then a counter has more than its state.
    #[inline]
    pub fn has_holds(&self) -> bool {
        self.reservation().is_some()
    }

    /// Whether the check reserves hits.
    pub fn reserves(&self) -> bool {
        matches!(self.purpose(), Some(Purpose::Reserve(_)))
    }

    /// The id whose hold the check settles.
    pub fn settles(&self) -> Option<RequestId> {
        match self.purpose()? {
            Purpose::Settle(id) => Some(id),
            Purpose::Reserve(_) | Purpose::Undo(_) | Purpose::Plain => None,
        }
    }

    /// Whether it refunds hits, releases places, or settles or gives back a reservation. Such a check
    /// refuses nothing, in debt and without the store too.
    pub fn returns(&self) -> bool {
        let ends = matches!(self.purpose(), Some(Purpose::Settle(_) | Purpose::Undo(_)));
        self.hits < 0 || ends
    }

    fn purpose(&self) -> Option<Purpose> {
        Some(self.reservation()?.purpose)
    }
}

impl Checks {
    /// Whether requests can hold hits of a check's limit.
    #[inline]
    pub fn has_holds(&self) -> bool {
        self.extras().any(|extras| extras.reservation.is_some())
    }

    /// Decides a check on the state of its key. A limit with holds has more than a state.
    pub fn step(&self, index: CheckIndex, state: Option<State>, at: Arrival) -> (Step, Effect) {
        let check = &self[index];
        let own = check.reservation().copied();
        if own.is_none() && !matches!(state, Some(State::Holds(_))) {
            return check.step_as(&check.algorithm, check.hits, state, at);
        }
        // Holds end also where the limit has no reservations any more.
        let Reservation { terms, purpose } = own.unwrap_or_default();
        let (step, mut change) = terms.step(&check.algorithm, purpose, check.hits, state, at);
        if check.reports_use()
            && let Some(State::Holds(holds)) = &step.state
        {
            change.open = holds.open_hits(&check.algorithm, at);
        }
        (step, change.into())
    }

    /// Lets checks of limits that have lost `reservations` end holds. They draw no hits ahead. A
    /// refused `all_or_none` request would take back the refund on Redis, but not the end.
    #[inline]
    pub(super) fn end_holds(&mut self, rules: &Rules, slots: &[Slot]) {
        if !rules.without_reservations.is_empty() {
            self.end_each_hold(rules, slots);
        }
    }

    #[cold]
    fn end_each_hold(&mut self, rules: &Rules, slots: &[Slot]) {
        for slot in slots {
            if let (Some(limit), Disposition::Checked(Checked { check, .. })) =
                (slot.limit, &slot.disposition)
                && self.commit == Commit::Each
                && rules.without_reservations.contains(&limit)
            {
                self.list[check.0].draws_ahead = false;
                self.extras_mut(*check).reservation.get_or_insert_default();
            }
        }
    }

    /// Shortens the life of the holds that the request makes.
    pub fn shorten_holds(&mut self, longest: Span) {
        let all = self.list.iter_mut();
        let reservations = all.filter_map(|check| check.extras.as_mut()?.reservation.as_mut());
        reservations.for_each(|one| one.terms.ttl = one.terms.ttl.min(longest));
    }

    /// Lets a check that has reserved hits leave its id these.
    pub fn undo(&mut self, CheckIndex(index): CheckIndex, left: u64) {
        let check = &mut self.list[index];
        if let Some(extras) = &mut check.extras
            && let Some(Reservation { purpose, .. }) = &mut extras.reservation
            && let Purpose::Reserve(id) = *purpose
        {
            (check.hits, *purpose) = (left.cast_signed(), Purpose::Undo(id));
        }
    }

    /// The same checks, where the limit of the one at `index` has `reservations`: for tests of
    /// stores.
    #[must_use]
    pub fn with_reservation(
        mut self,
        index: CheckIndex,
        terms: Reservations,
        purpose: Purpose,
    ) -> Self {
        self.extras_mut(index).reservation = Some(Reservation { terms, purpose });
        self
    }
}

/// The two keys of the holds of a counter, in the same hash slot: of the ids, sorted by the
/// ends of their lives, and of the hits of each id. No algorithm has their tags.
pub(crate) fn keys_of(counter: &[u8]) -> [Vec<u8>; 2] {
    let (subject, algorithm) = counter.split_at(key::up_to_subject(counter).len());
    [b"ro", b"rh"].map(|tag| [subject, tag, algorithm].concat())
}
