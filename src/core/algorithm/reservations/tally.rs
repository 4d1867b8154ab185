//! Counts of the reservations and settlements of one limit, for metrics.

use std::sync::atomic::{AtomicU64, Ordering};

use super::{HoldChange, Outcome};
use crate::core::algorithm::places::Gauge;
use crate::core::algorithm::{OnExpiry, Reservations};
use crate::core::time::{Micros, Span};

/// Counts the reservations and settlements of one limit, as far as this process has made them.
#[derive(Debug)]
pub struct Tally {
    /// The `ttl` of the limit.
    pub ttl: Span,
    pub on_expiry: OnExpiry,
    /// Reserved hits that are not settled.
    pub held: Gauge,
    /// By the number of the outcome.
    outcomes: [AtomicU64; Outcome::ALL.len()],
    /// Settlements of open holds that cost nothing.
    cancelled: AtomicU64,
    expired: AtomicU64,
    /// Settled hits beyond the reserved ones.
    above: AtomicU64,
    /// Reserved hits beyond the settled ones.
    below: AtomicU64,
}

impl Tally {
    /// No counts yet, for a limit with these terms.
    pub fn new(terms: &Reservations) -> Self {
        let ttl = terms.ttl;
        Self {
            ttl,
            on_expiry: terms.on_expiry,
            held: Gauge::new(ttl),
            outcomes: Default::default(),
            cancelled: AtomicU64::new(0),
            expired: AtomicU64::new(0),
            above: AtomicU64::new(0),
            below: AtomicU64::new(0),
        }
    }

    /// Number of checks with this outcome.
    pub fn count(&self, outcome: Outcome) -> u64 {
        self.outcomes[outcome as usize].load(Ordering::Relaxed)
    }

    /// Settled hits above the reserved ones, and reserved hits above the settled ones.
    pub fn differences(&self) -> [u64; 2] {
        [&self.above, &self.below].map(|hits| hits.load(Ordering::Relaxed))
    }

    /// Number of settlements of holds that cost nothing.
    pub fn cancelled(&self) -> u64 {
        self.cancelled.load(Ordering::Relaxed)
    }

    /// Number of holds that expired and were released, and of those that stay charged.
    pub fn expired(&self) -> [u64; 2] {
        let all = self.expired.load(Ordering::Relaxed);
        match self.on_expiry {
            OnExpiry::Release => [all, 0],
            OnExpiry::Keep => [0, all],
        }
    }

    /// Counts a step of a check with these hits.
    pub fn record(&self, change: &HoldChange, hits: i64, now: Micros) {
        self.held.record(change.places(), !change.is_end(), now);
        let add = |counter: &AtomicU64, number| counter.fetch_add(number, Ordering::Relaxed);
        add(&self.outcomes[change.outcome as usize], 1);
        add(&self.expired, change.expired.into());
        if change.outcome.has_matched() {
            let cost = hits.max(0).unsigned_abs();
            add(&self.cancelled, u64::from(cost == 0 && change.is_end()));
            add(&self.above, cost.saturating_sub(change.held));
            add(&self.below, change.held.saturating_sub(cost));
        }
    }
}
