//! What a table holds for one key.

use super::packed::Packed;
use crate::core::fingerprint::Fingerprint;

/// The fingerprint of a counter key; never zero, which marks a gap.
pub(super) type EntryKey = u128;

pub(super) fn key_of(fingerprint: Fingerprint) -> EntryKey {
    fingerprint.bits().max(1)
}

/// A key and its state. A slot without an entry is all zero: a gap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) key: EntryKey,
    pub(super) packed: Packed,
}

impl Entry {
    pub(super) const GAP: Self = Self {
        key: 0,
        packed: Packed::EMPTY,
    };

    pub(super) const fn is_gap(&self) -> bool {
        self.key == 0
    }
}
