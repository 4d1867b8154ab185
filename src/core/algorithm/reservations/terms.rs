//! The option `reservations`, and what it needs of the other options of a limit.

use std::fmt;

use crate::core::algorithm::{Algorithm, OptionError, Options, messages};
use crate::core::text::name_of;
use crate::core::time::Span;

/// The longest `ttl`: a day.
pub const LONGEST_TTL: Span = Span::from_secs(86_400);

/// The shortest `ttl`.
pub const SHORTEST_TTL: Span = Span::from_secs(1);

/// The option `reservations` of a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Reservations {
    /// A hold that is not settled expires after it.
    pub ttl: Span,
    /// Per cent of the limit that one reservation can hold; the rest of a larger one is not held.
    pub max_share: u8,
    /// A smaller reservation holds these hits; 0: what it asks for.
    pub minimum: u32,
    /// Whether the hits of an expired hold are refunded.
    pub on_expiry: OnExpiry,
}

impl fmt::Display for Reservations {
    /// As in a file.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            ttl,
            max_share,
            minimum,
            on_expiry,
        } = self;
        let name = name_of(&OnExpiry::NAMED, on_expiry).unwrap_or_default();
        write!(out, "{{ttl: {ttl}, max_share: {max_share}%, ")?;
        if *minimum > 0 {
            write!(out, "minimum: {minimum}, ")?;
        }
        write!(out, "on_expiry: {name}}}")
    }
}

/// `on_expiry`: whether the hits of an expired hold are refunded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnExpiry {
    /// They are refunded.
    #[default]
    Release,
    /// They stay counted.
    Keep,
}

impl OnExpiry {
    /// All of them with their names in a file.
    pub const NAMED: [(&'static str, Self); 2] = [("release", Self::Release), ("keep", Self::Keep)];
}

impl Reservations {
    /// The most hits that one reservation can hold, at least one: a limit of 0 refuses it.
    pub fn most_held(&self, limit: &Algorithm) -> u64 {
        let share = u128::from(limit.capacity()) * u128::from(self.max_share) / 100;
        u64::try_from(share).unwrap_or(u64::MAX).max(1)
    }

    /// The smallest number of hits that a reservation asks for.
    pub fn least_held(&self, limit: &Algorithm) -> i64 {
        let least = u64::from(self.minimum).min(self.most_held(limit));
        least.cast_signed()
    }
}

impl Options {
    /// Whether requests can hold hits of the limit.
    pub(in crate::core::algorithm) fn has_holds(&self) -> bool {
        self.reservations.is_some()
    }

    /// Removes a default that the other options do not allow.
    pub(in crate::core::algorithm) fn leave_out_holds(&mut self, written: &Self) {
        if self.count_denied == Some(false) || self.lease == Some(true) {
            self.reservations = written.reservations;
        }
    }

    /// Settlements above the reserved hits have to count, and leases know nothing of reservations.
    pub(in crate::core::algorithm) fn check_holds(&self) -> Result<(), OptionError> {
        let Some(reservations) = self.reservations else {
            return Ok(());
        };
        let message = if !(SHORTEST_TTL..=LONGEST_TTL).contains(&reservations.ttl) {
            messages::reservation_ttl_out_of_range()
        } else if !self.counts_denied() {
            messages::reservations_without_count_denied()
        } else if self.lease == Some(true) {
            messages::reservations_with_lease()
        } else {
            return Ok(());
        };
        Err(message.of("reservations"))
    }
}
