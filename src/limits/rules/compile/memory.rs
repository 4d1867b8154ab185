//! The memory of limits, estimated while they are read, and its bound.
//!
//! Resources of a control plane are weighed before they are decoded (`src/live/xds/weight.rs`). The
//! shape of a file is known only when it is read: each part is weighed as it comes, and the first
//! part that does not fit ends the reading. The numbers are a tenth above the measured ones, with
//! the allocator's overhead. A limit that is used has a row of counters for each worker more.

use serde_json::Value;

use super::problem::Problems;
use crate::limits::rules::limit::{Level, Limit, Metadata, RowMeaning};
use crate::limits::rules::place::Place;
use crate::limits::rules::source;

/// A branch of the tree, with its entries in the tables of its level.
const BRANCH: usize = 200;
/// A limit with its counters while they are unused, in addition to its texts.
const LIMIT: usize = size_of::<Limit>() + 250;
/// A text, in addition to its bytes.
const TEXT: usize = 40;
/// Memory of a value of a set, or of a network, in addition to its bytes.
pub(super) const VALUE: usize = 100;
/// A row of a table, in addition to its bytes.
const ROW: usize = 40;
/// Numbers that a row shares with no other one, also as they are found again.
pub(super) const MEANING: usize = size_of::<RowMeaning>() + 80;
/// A map in metadata, which has room for six values.
const MAP: usize = 700;

/// The memory of the limits that are being read.
#[derive(Debug)]
pub(super) struct Memory {
    /// The most that they may take together with the texts of their files.
    most: u64,
    /// The bytes of these texts.
    texts: u64,
    /// The memory of the limits so far.
    pub(super) used: u64,
    /// A part did not fit, which is reported. Nothing else is read.
    pub(super) is_over: bool,
}

impl Memory {
    /// Of limits in these many bytes of text; `None`: without a bound.
    pub(super) fn new(most: Option<u64>, texts: u64) -> Self {
        Self {
            most: most.unwrap_or(u64::MAX),
            texts,
            used: 0,
            is_over: false,
        }
    }

    /// The memory for what is still to be read.
    pub(super) fn left(&self) -> u64 {
        let taken = self.texts.saturating_add(self.used);
        self.most.saturating_sub(taken)
    }

    /// Takes memory for what is written at `at`; `None`, with an error, if there is not enough.
    pub(super) fn take(&mut self, problems: &Problems, at: &Place, bytes: usize) -> Option<()> {
        let bytes = bytes as u64;
        if bytes <= self.left() && !self.is_over {
            self.used += bytes;
            return Some(());
        }
        if !std::mem::replace(&mut self.is_over, true) {
            problems.error(at, source::too_much_memory(self.most));
        }
        None
    }
}

/// The memory of a branch with this level.
pub(super) fn of_branch(level: &Level) -> usize {
    let value = level.value.as_ref();
    BRANCH + TEXT + level.key.len() + value.map_or(0, |value| TEXT + value.len())
}

/// The memory of a limit, whose path has so many bytes.
pub(super) fn of_limit(limit: &Limit, path_bytes: usize) -> usize {
    let texts = limit.replaces.iter().chain(&limit.name);
    let texts = texts.map(|text| TEXT + text.len());
    let metadata = limit.metadata.as_ref().map_or(0, of_metadata);
    LIMIT + size_of_val(&*limit.levels) + path_bytes.min(128) + texts.sum::<usize>() + metadata
}

/// The memory of a row with so many bytes, and so many new meanings.
pub(super) fn of_row(bytes: usize, meanings: usize) -> usize {
    ROW + bytes + meanings * MEANING
}

fn of_metadata(metadata: &Metadata) -> usize {
    fn of_value(value: &Value) -> usize {
        match value {
            Value::String(text) => TEXT + text.len(),
            Value::Array(items) => items.iter().map(|item| 80 + of_value(item)).sum(),
            Value::Object(fields) => of_metadata(fields),
            Value::Null | Value::Bool(_) | Value::Number(_) => 0,
        }
    }
    let of_field = |(name, value): (&String, _)| MAP / 6 + TEXT + name.len() + of_value(value);
    MAP + metadata.iter().map(of_field).sum::<usize>()
}
