//! The reservations and settlements of limits with `reservations`.

use std::sync::Arc;

use crate::core::algorithm::reservations::{Outcome, Tally};
use crate::core::answer::Effect;
use crate::core::time::Micros;
use crate::limits::rules::limit::Limit;
use crate::net::clock;
use crate::observe::metrics::exposition::LabelledSamples;
use crate::observe::metrics::families::families;

families! { ALL:
    /// Reservations of hits, by their result: held, shortened to the share that one may hold,
    /// refused, or repeated with an id that was reserved or settled before.
    RESERVATIONS = Counter "weir_reservations_total" ["domain", "limit", "name", "result"];
    /// Settlements of reservations, by their result: their id had a hold that cost hits (matched)
    /// or none (cancelled), it had no hold (unknown), or was settled before (repeated).
    SETTLEMENTS = Counter "weir_settlements_total" ["domain", "limit", "name", "result"];
    /// Hits that are reserved and not settled: taken less settled through this process, without
    /// those that have expired. Add up all replicas; one alone may be below zero, and the sum is
    /// wrong for one ttl after a replica has restarted.
    RESERVED_HITS = Gauge "weir_reserved_hits" ["domain", "limit", "name"];
    /// The difference between settled and reserved hits, by its sign: settled hits above the
    /// reserved ones, and reserved hits below which a settlement was.
    DIFFERENCE = Counter "weir_reservation_difference_hits_total"
        ["domain", "limit", "name", "sign"];
    /// Reservations that expired before they were settled, by whether their hits were released
    /// (release) or stay charged (keep).
    EXPIRED = Counter "weir_reservations_expired_total"
        ["domain", "limit", "name", "on_expiry"];
    /// Reservations that were refunded at once, because another limit refused their requests or the
    /// store failed; they are also held or shortened.
    REFUNDED = Counter "weir_reservations_refunded_total" ["domain", "limit", "name"];
}

/// The counters of one limit.
#[derive(Clone, Debug)]
pub(super) struct HoldCounters(Arc<Tally>);

impl HoldCounters {
    /// The counters of `limit`: the `known` ones, unless its terms have changed.
    pub(super) fn new(limit: &Limit, known: Option<&Self>) -> Option<Self> {
        let terms = limit.amounts().filter_map(|amount| amount.reservations);
        let terms = terms.max_by_key(|terms| terms.ttl)?;
        let is_same =
            |Self(known): &&Self| (known.ttl, known.on_expiry) == (terms.ttl, terms.on_expiry);
        let same = known.filter(is_same).cloned();
        Some(same.unwrap_or_else(|| Self(Arc::new(Tally::new(&terms)))))
    }

    pub(super) fn observe(&self, effect: Effect, hits: i64) {
        if let Effect::Hold(change) = effect {
            self.0.record(&change, hits, clock::now());
        }
    }

    pub(super) fn gather(&self, now: Micros, samples: &mut LabelledSamples<'_>) {
        let Self(tally) = self;
        let both = |one, other| tally.count(one) + tally.count(other);
        let cancelled = tally.cancelled();
        let matched = both(Outcome::Matched, Outcome::MatchedLate).saturating_sub(cancelled);
        let ([released, kept], [above, below]) = (tally.expired(), tally.differences());
        for (family, label, count) in [
            (&RESERVATIONS, "held", tally.count(Outcome::Held)),
            (
                &RESERVATIONS,
                "refused",
                both(Outcome::Refused, Outcome::Full),
            ),
            (
                &RESERVATIONS,
                "repeated",
                both(Outcome::HeldBefore, Outcome::Overtaken),
            ),
            (&RESERVATIONS, "shortened", tally.count(Outcome::Shortened)),
            (
                &SETTLEMENTS,
                "repeated",
                tally.count(Outcome::SettledBefore),
            ),
            (&SETTLEMENTS, "unknown", tally.count(Outcome::Unknown)),
            (&SETTLEMENTS, "matched", matched),
            (&SETTLEMENTS, "cancelled", cancelled),
            (&EXPIRED, "release", released),
            (&EXPIRED, "keep", kept),
            (&DIFFERENCE, "above", above),
            (&DIFFERENCE, "below", below),
        ] {
            samples.count(family, Some(label), count);
        }
        samples.count(&REFUNDED, None, tally.count(Outcome::Undone));
        samples.gauge(&RESERVED_HITS, tally.held.places(now) as f64);
    }
}
