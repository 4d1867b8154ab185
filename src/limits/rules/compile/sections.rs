//! The sections of files and overlays: maps by their meaning. `keys.rs` has their keys.

use Section::{
    Defaults, Descriptor, Overlay, OverlayDescriptor, OverlayDomain, OverlayLimit, Plan, RateLimit,
    Replaced, Reservations, Root, Row, Trial,
};

use crate::core::message::Message;
use crate::limits::rules::messages;

/// The sections of a file: its maps by their meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Section {
    Root,
    Descriptor,
    RateLimit,
    Replaced,
    Defaults,
    /// Of a file or of an overlay: the map `trial` in a limit.
    Trial,
    /// The map `reservations` in a limit.
    Reservations,
    /// A plan below `plans`.
    Plan,
    /// A row of a table, whose keys are the names of the columns.
    Row,
    /// The maps of an overlay: the root, a domain, a descriptor and a `rate_limit`.
    Overlay,
    OverlayDomain,
    OverlayDescriptor,
    OverlayLimit,
}

/// The format to which a section belongs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    Files,
    Plans,
    Tables,
    Overlay,
}

impl Section {
    pub(super) const fn format(self) -> Format {
        match self {
            Plan => Format::Plans,
            Row => Format::Tables,
            Overlay | OverlayDomain | OverlayDescriptor | OverlayLimit => Format::Overlay,
            _ => Format::Files,
        }
    }

    /// The place of its keys in messages, and the place where a map of it was expected.
    const fn places(self) -> (&'static str, &'static str) {
        match self {
            Root | Overlay => ("at the root of the file", "at the root of the file"),
            Descriptor | OverlayDescriptor => ("in a descriptor", "in the list of descriptors"),
            RateLimit | OverlayLimit => ("in rate_limit", "under rate_limit"),
            OverlayDomain => ("in a domain", "in the list of domains"),
            Replaced => ("in an entry of replaces", "in the list of replaces"),
            Defaults => ("in defaults", "under defaults"),
            Trial => ("in trial", "under trial"),
            Reservations => ("in reservations", "under reservations"),
            Plan => ("in a plan", "under the name of a plan"),
            Row => ("in a table", "in a table"),
        }
    }

    pub(super) const fn name(self) -> &'static str {
        self.places().0
    }

    /// The error of a value of another type than the map of the section.
    pub(super) fn no_map(self, found: &str) -> Message {
        let remedy = match self {
            Root => "begin the file with 'domain: ' and 'descriptors:'",
            Descriptor | OverlayDescriptor => "begin each descriptor with '- key: '",
            Overlay => "begin the file with 'domains:' or 'defaults:'",
            OverlayDomain => "begin each domain with '- domain: '",
            RateLimit | Plan | Row => "write 'unit: ' and 'requests_per_unit: ' below it",
            Replaced => "write '- name: ' and the name of a limit",
            Trial => "write 'requests_per_unit: ' and a number below it",
            Reservations => "write the time that the longest request takes, such as '{ttl: 60s}'",
            Defaults | OverlayLimit => "write 'algorithm: ' and its options below it",
        };
        messages::not_a_map(self.places().1, found, remedy)
    }
}
