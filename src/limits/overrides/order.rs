//! The order in which overrides apply; see [`super`].
//!
//! All overrides that match are looked at, not the first branch as with limits: no order may hide
//! another one behind a branch without a match, or behind one that has ended. So an end needs no
//! poll. A property test compares the tree with a list in this order.

use std::cmp::Reverse;

use super::{Kind, Override};

/// Sorts before that of an override that it precedes.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Precedence {
    is_raise: bool,
    /// For each entry whether it has wildcards, and the bits that are none.
    entries: Vec<(bool, Reverse<usize>)>,
    kind: usize,
    created_at: Reverse<u64>,
    id: Box<str>,
}

impl Precedence {
    pub(super) fn new(one: &Override) -> Self {
        Self {
            is_raise: matches!(one.kind, Kind::Raise(_)),
            entries: one
                .entries
                .iter()
                .map(|entry| (entry.has_wildcards(), Reverse(entry.literal_bits())))
                .collect(),
            kind: one.kind.index(),
            created_at: Reverse(one.created_at.0),
            id: one.id.clone(),
        }
    }
}
