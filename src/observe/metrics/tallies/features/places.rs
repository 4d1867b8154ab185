//! The places of limits of requests in flight.

use std::sync::Arc;

use crate::core::algorithm::Algorithm;
use crate::core::algorithm::places::Gauge;
use crate::core::answer::Effect;
use crate::core::time::{Micros, Span};
use crate::limits::rules::limit::Limit;
use crate::net::clock;
use crate::observe::metrics::exposition::LabelledSamples;
use crate::observe::metrics::families::families;

families! { ALL:
    /// Requests in flight: begun less ended through this process, without those that have expired.
    /// Add up all replicas; one alone may be below zero.
    HOLDERS = Gauge "weir_concurrency_holders" ["domain", "limit", "name"];
}

/// The gauges of one limit: of the rules in force, and of the previous rules, by which some
/// requests are still decided.
#[derive(Debug)]
pub(super) struct PlaceGauges {
    current: Arc<Gauge>,
    before: Option<Arc<Gauge>>,
}

impl PlaceGauges {
    /// The gauges of `limit`, which takes over the counts of its previous gauges.
    pub(super) fn new(limit: &Limit, known: Option<&Self>) -> Option<Self> {
        let Some(Algorithm::Concurrency(of_limit)) = limit.amount.map(|amount| amount.algorithm)
        else {
            return None;
        };
        let longest = Span::from_micros(of_limit.max_duration);
        let current = Arc::new(Gauge::new(longest));
        let known_gauges = known.into_iter().flat_map(Self::gauges);
        known_gauges.for_each(|gauge| current.absorb(gauge));
        Some(Self {
            current,
            before: known.map(|known| Arc::clone(&known.current)),
        })
    }

    pub(super) fn observe(&self, effect: Effect) {
        match effect {
            Effect::Acquired(change) => self.current.record(change, true, clock::now()),
            Effect::Released(change) => self.current.record(change, false, clock::now()),
            _ => {}
        }
    }

    pub(super) fn gather(&self, now: Micros, samples: &mut LabelledSamples<'_>) {
        let places: i64 = self.gauges().map(|gauge| gauge.places(now)).sum();
        samples.gauge(&HOLDERS, places as f64);
    }

    fn gauges(&self) -> impl Iterator<Item = &Arc<Gauge>> {
        self.before.iter().chain([&self.current])
    }
}
