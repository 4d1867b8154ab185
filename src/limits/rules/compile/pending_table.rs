//! Which table a descriptor names: what is known before the domain is complete and its rows are read.

use std::sync::Arc;

use super::problem::Location;

/// The table that a descriptor names.
pub(super) struct PendingTable {
    /// The name of the file that names it.
    pub(super) from: Arc<str>,
    /// Its name there.
    pub(super) name: Box<str>,
    /// The index of the entry whose value picks the row.
    pub(super) level: usize,
    /// There is a `rate_limit` too, for values without a row.
    pub(super) has_default: bool,
    /// Where it is named.
    pub(super) at: Location,
}
