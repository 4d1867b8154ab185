//! Features that only some limits have. This is their list: each has a file of its own, which the
//! plan calls from here, and most have data of a check, in [`Extras`].

mod concurrency;
pub(crate) mod reservations;
mod thresholds;
pub(crate) mod trials;
pub(crate) mod usage;

use std::sync::Arc;

use self::reservations::Reservation;
use super::{Check, Checks, Disposition, Matcher, PlannedDescriptor, Slot};
use crate::core::algorithm::places::RequestId;
use crate::core::algorithm::reservations::Purpose;
use crate::core::usage::Tracked;
use crate::limits::rules::Rules;
use crate::limits::rules::diff::lost_reservations;
use crate::limits::rules::limit::{Amount, LimitId, LimitInForce};
use crate::limits::rules::thresholds::Thresholds;

/// The data of a check.
#[derive(Clone, Debug, Default)]
pub(super) struct Extras {
    /// Its limit has `track_usage`.
    usage: Option<Tracked>,
    /// The limit whose places or holds metrics count.
    pub(super) limit: Option<LimitId>,
    /// Its limit is one of requests in flight: the id of the request.
    holder: Option<RequestId>,
    /// Its limit has `reservations`.
    reservation: Option<Reservation>,
    /// Its limit has `notify`.
    thresholds: Option<Thresholds>,
}

impl Extras {
    /// The data of a check of this limit with this amount; `None` for most. It has no id so far.
    #[inline]
    pub(super) fn of(limit: Option<LimitInForce<'_>>, amount: &Amount) -> Option<Box<Self>> {
        let tracking = limit.and_then(|found| found.limit.usage.as_ref());
        let thresholds = Some(amount.notify).filter(|own| *own != Thresholds::default());
        if tracking.is_none() && amount.reservations.is_none() && thresholds.is_none() {
            return None;
        }
        let holds = amount.reservations.and(limit);
        Some(Box::new(Self {
            usage: tracking.map(|tracking| (Arc::clone(tracking), amount.period())),
            limit: holds.map(|found| found.limit.id),
            holder: None,
            reservation: amount.reservations.map(Reservation::without_id),
            thresholds,
        }))
    }

    /// Records nothing of a check that has become a peek. A peek that ends holds which stay charged
    /// records their usage.
    pub(super) fn peek(&mut self) {
        match &mut self.reservation {
            Some(reservation) => reservation.purpose = Purpose::Plain,
            None => self.usage = None,
        }
    }

    /// Only decides: usage is not tracked, and no threshold is crossed.
    pub(super) fn leave_out_reports(&mut self) {
        (self.usage, self.thresholds) = (None, None);
    }
}

/// The keys of the counter of a check in addition to its own, `counter`.
pub(crate) fn further_keys(check: &Check, counter: &[u8]) -> Vec<Vec<u8>> {
    match check.has_holds() {
        true => reservations::keys_of(counter).into(),
        false => Vec::new(),
    }
}

/// Takes over from the rules before a reload what features need of them.
pub(crate) fn follow(rules: &mut Rules, before: &Rules) {
    rules.without_reservations = lost_reservations(before, rules);
}

/// Whether a limit counts anything, perhaps only its trial.
pub(super) fn counts(limit: LimitInForce<'_>) -> bool {
    limit.amount().is_some() || limit.trial().is_some()
}

impl Checks {
    /// Completes the plan of one counter, whose key is `subject` up to the algorithm.
    pub(super) fn complete(
        &mut self,
        rules: &Rules,
        limit: LimitInForce<'_>,
        slot: &Slot,
        subject: &[u8],
    ) {
        if let Some(trial) = trials::trial_of(&slot.disposition, limit) {
            let start = self.keys.len();
            self.keys.extend_from_slice(subject);
            self.add_trial(start, trial, 0);
        }
        self.end_holds(rules, std::slice::from_ref(slot));
    }
}

impl Matcher<'_, '_> {
    /// The disposition of a descriptor whose last entry is an id: of a request in flight, or of a
    /// reservation.
    pub(super) fn disposition_by_id(&mut self, planned: PlannedDescriptor<'_>) -> Disposition {
        match planned.limit {
            Some(found) if found.limit.counts_in_flight() => self.disposition_in_flight(planned),
            _ => self.disposition_with_id(planned),
        }
    }

    /// Completes the plan of a request.
    #[inline]
    pub(super) fn complete(&mut self, rules: &Rules, slots: &[Slot]) {
        self.add_trials(slots);
        self.checks.end_holds(rules, slots);
    }
}
