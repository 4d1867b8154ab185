//! The parts of calls and replies that only some limits need, one file each.

mod concurrency;
mod reservations;
mod usage;

use smallvec::SmallVec;

pub(super) use self::concurrency::effect;
pub(super) use self::reservations::verdict;
pub use self::usage::RefusedHits;
use super::{Call, Notes};
use crate::core::answer::Answer;
use crate::core::verdict::StoreError;

/// The sections of a call and of its reply, in their order.
pub(in crate::store::redis::wire) static SECTIONS: [Section; 3] =
    [usage::SECTION, concurrency::SECTION, reservations::SECTION];

/// A part of calls and replies that only some limits need.
pub(in crate::store::redis::wire) struct Section {
    /// The text of its functions in the script.
    pub(in crate::store::redis::wire) script: &'static str,
    /// The code by which the script defines the functions of the part, if it has rows. `None`: the
    /// code of the algorithm does.
    pub(super) code: Option<u8>,
    pub(super) write: fn(&Call<'_>) -> SectionRows,
    /// Takes the rows of the section from the front of the reply, and adds what they have to the
    /// answers and to the notes.
    pub(super) read: ReadSection,
}

type ReadSection = fn(&Call<'_>, &mut &[u8], &mut [Answer], &mut Notes) -> Result<(), StoreError>;

/// Rows of a section in a call.
#[derive(Default)]
pub(super) struct SectionRows {
    /// Further keys, after the keys of the checks.
    pub(super) keys: Vec<Vec<u8>>,
    /// The arguments. Without rows the first is empty.
    pub(super) arguments: SmallVec<[Vec<u8>; 2]>,
}
