//! What a table holds for one key.

use super::packed::Packed;

/// A 128-bit keyed hash of a counter key; never zero.
pub(super) type Fingerprint = u128;

/// A key and its state. A slot without an entry is all zero: a gap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) key: Fingerprint,
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
