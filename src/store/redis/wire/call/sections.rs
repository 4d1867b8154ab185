//! The sections of a call and of its reply, in their order.

use super::{Section, holders, reservations, usage};

pub(super) static SECTIONS: [Section; 3] =
    [usage::SECTION, holders::SECTION, reservations::SECTION];
