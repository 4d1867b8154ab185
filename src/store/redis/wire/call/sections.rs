//! The parts of calls and replies that only some limits need, one file each.

mod concurrency;
mod reservations;
mod usage;

use smallvec::SmallVec;

pub(super) use self::concurrency::effect;
pub use self::usage::RefusedHits;
use super::read::CheckRow;
use super::{Call, Notes};
use crate::core::algorithm::Arrival;
use crate::core::answer::{Answer, Effect};
use crate::core::time::Span;
use crate::core::verdict::{StoreError, Verdict};
use crate::limits::plan::Check;

/// The sections of a call and of its reply, in their order.
pub(super) static SECTIONS: [Section; 3] =
    [usage::SECTION, concurrency::SECTION, reservations::SECTION];

/// A part of calls and replies that only some limits need.
pub(super) struct Section {
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

/// The verdict of a row on the check at this position, to whose answer sections have added its
/// effect.
pub(super) fn verdict(
    call: &Call<'_>,
    row: CheckRow,
    (position, check): (usize, &Check),
    effect: Effect,
    notes: &Notes,
    at: Arrival,
) -> Result<Verdict, StoreError> {
    if !check.has_holds() {
        return call.verdict(row, check, check.hits, at);
    }
    let room = notes.rooms.iter().find(|(of, _)| *of == position);
    let room_after = room.map_or(Span::ZERO, |(_, room)| *room);
    reservations::verdict(call, row, check, effect, room_after, at)
}
