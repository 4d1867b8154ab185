//! The checks of limits with `track_usage`, and the keys of what stores record of their subjects.

use std::sync::Arc;

use crate::core::usage::{Order, Tracked, Tracking};
use crate::limits::plan::key::{self, VALUE, VERSION};
use crate::limits::plan::{Check, CheckIndex, Checks};
use crate::limits::rules::Commit;

/// Tag that follows the subject in the key of a usage record. No algorithm has it.
const USAGE: &[u8] = b"us";

impl Check {
    /// The limit of the check with the period of its amount, if that has `track_usage`.
    #[inline]
    pub fn tracked(&self) -> Option<&Tracked> {
        self.extras.as_ref()?.usage.as_ref()
    }

    /// The limit of the check, if that has `track_usage`.
    #[inline]
    pub fn tracking(&self) -> Option<&Arc<Tracking>> {
        self.tracked().map(|(tracking, _)| tracking)
    }

    /// Whether its limit has `track_usage`.
    #[inline]
    pub fn is_tracked(&self) -> bool {
        self.tracked().is_some()
    }
}

impl Checks {
    /// Whether a check or a trial is of a limit with `track_usage`.
    #[inline]
    pub fn is_tracked(&self) -> bool {
        self.extras().any(|extras| extras.usage.is_some())
    }

    /// The checks and trials of limits with `track_usage`.
    pub fn all_tracked(&self) -> impl Iterator<Item = (CheckIndex, &Tracked)> {
        let all = self.list.iter().enumerate();
        all.filter_map(|(index, check)| Some((CheckIndex(index), check.tracked()?)))
    }

    /// The same checks, of which the one at `index` is of a limit with `track_usage`: for tests of
    /// stores.
    #[must_use]
    pub fn tracked(mut self, index: CheckIndex, tracked: Tracked) -> Self {
        self.extras_mut(index).usage = Some(tracked);
        self
    }
}

/// Replaces `out` with the key of a counter's usage record, in the same hash slot. It does not
/// contain the algorithm: a change of the algorithm keeps the record.
pub(crate) fn write_key(counter: &[u8], out: &mut Vec<u8>) {
    let subject = key::up_to_subject(counter);
    out.clear();
    out.extend_from_slice(subject);
    if counter[subject.len()..].starts_with(key::APART) {
        out.extend_from_slice(key::APART);
    }
    out.extend_from_slice(USAGE);
}

/// The key of a counter's usage record.
pub(crate) fn key_of(counter: &[u8]) -> Vec<u8> {
    let mut record = Vec::with_capacity(counter.len());
    write_key(counter, &mut record);
    record
}

/// The key of the snapshots of a usage record.
pub(crate) fn snapshots_of(record: &[u8]) -> Vec<u8> {
    let subject = record.strip_suffix(USAGE).unwrap_or(record);
    [subject, b"up"].concat()
}

/// The key of the index of a limit in this order. The index has its own hash slot, or shares its
/// domain's slot.
pub(crate) fn index(prefix: &str, tracking: &Tracking, order: Order) -> Vec<u8> {
    let mut out = [prefix.as_bytes(), VERSION, b"{"].concat();
    key::write_part(&mut out, None, tracking.domain.as_bytes());
    if tracking.is_in_slot_of_domain {
        out.push(b'}');
    }
    for (key, value) in &tracking.levels {
        out.push(b'|');
        key::write_part(&mut out, None, key.as_bytes());
        if let Some(value) = value {
            key::write_part(&mut out, Some(VALUE), value.as_bytes());
        }
    }
    out.push(b'}');
    out.extend_from_slice(tag(tracking));
    out.extend_from_slice(match order {
        Order::Total => b"ut",
        Order::Refused => b"ur",
        Order::LastSeen => b"ul",
        Order::FirstSeen => b"uf",
    });
    out
}

/// The key of the record of a subject, as [`key::subject`] returns it.
pub(crate) fn record(prefix: &str, tracking: &Tracking, subject: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    key::write_subject(&mut out, prefix, subject, Commit::Each);
    out.extend_from_slice(tag(tracking));
    out.extend_from_slice(USAGE);
    out
}

const fn tag(tracking: &Tracking) -> &'static [u8] {
    if tracking.is_trial { key::APART } else { b"" }
}
