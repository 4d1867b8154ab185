//! The sections of files and overlays, and the keys that belong to each.

use Author::{Go, Weir};
use Section::{
    Defaults, Descriptor, Overlay, OverlayDescriptor, OverlayDomain, OverlayLimit, Plan, RateLimit,
    Replaced, Reservations, Root, Row, Trial,
};

use crate::core::algorithm::OPTIONS;

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

/// The service that reads a key. A misplaced key of Weir is always an error, because the Go service
/// rejects files with keys that it does not know: no file in use has one.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Author {
    Go,
    Weir,
}

/// A key, the service that reads it, and the sections that it belongs to.
pub(super) type Key = (&'static str, Author, &'static [Section]);

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

    /// Error and remedy for a value of another type than the map of the section.
    pub(super) fn no_map(self, found: &str) -> (String, &'static str) {
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
        (
            format!("expected a map {}, found {found}", self.places().1),
            remedy,
        )
    }

    pub(super) fn keys(self) -> impl Iterator<Item = &'static str> {
        keys()
            .filter(move |(.., sections)| sections.contains(&self))
            .map(|(key, ..)| key)
    }

    /// The names of its keys, for a remedy.
    pub(super) fn list(self) -> String {
        self.keys().collect::<Vec<_>>().join(", ")
    }

    /// All keys of the sections of the same format.
    pub(super) fn of_format(self) -> impl Iterator<Item = &'static str> {
        let near = keys().filter(move |key| self.is_near(key));
        near.map(|(key, ..)| key)
    }

    /// The key of that name, if a section of the same format has one.
    pub(super) fn find_key(self, name: &str) -> Option<Key> {
        let key = keys().find(|(known, ..)| *known == name);
        key.filter(|key| self.is_near(key))
    }

    fn is_near(self, (.., sections): &Key) -> bool {
        let format = self.format();
        sections.iter().any(|other| other.format() == format)
    }
}

/// All keys but the options of algorithms.
static KEYS: [Key; 42] = [
    ("domain", Go, &[Root, OverlayDomain]),
    ("domains", Go, &[Overlay]),
    ("key", Go, &DESCRIPTORS),
    ("value", Go, &[Descriptor, Row, OverlayDescriptor]),
    ("match", Weir, &[Descriptor]),
    ("values", Weir, &[Descriptor]),
    ("values_file", Weir, &[Descriptor]),
    ("prefix", Weir, &[Descriptor]),
    ("table", Weir, &[Descriptor]),
    ("table_key", Weir, &[Descriptor]),
    ("rate_limit", Go, &DESCRIPTORS),
    ("shadow_mode", Go, &OF_SHADOW_MODE),
    ("quota_mode", Go, &DESCRIPTORS),
    ("detailed_metric", Go, &DESCRIPTORS),
    ("value_to_metric", Go, &DESCRIPTORS),
    ("share_threshold", Go, &DESCRIPTORS),
    ("metadata", Go, &[Descriptor]),
    ("descriptors", Go, &OF_DESCRIPTORS),
    ("unit", Go, &[RateLimit, Trial, Plan, Row]),
    ("unit_multiplier", Weir, &OF_MULTIPLIER),
    ("requests_per_unit", Go, &[RateLimit, Trial, Plan, Row]),
    ("unlimited", Go, &[RateLimit, Plan, Row]),
    ("plan", Weir, &[RateLimit, Row]),
    ("name", Go, &[RateLimit, Replaced, Plan, Row, OverlayLimit]),
    ("replaces", Go, &[RateLimit]),
    ("trial", Weir, &[RateLimit, OverlayLimit]),
    ("algorithm", Weir, &OF_OPTIONS),
    ("on_store_failure", Weir, &OF_POLICY),
    ("region_shares", Weir, &OF_SHARES),
    ("notify", Weir, &OF_POLICY),
    ("track_usage", Weir, &OF_USAGE),
    ("usage_interval", Weir, &OF_USAGE),
    ("usage_buckets", Weir, &OF_USAGE),
    ("usage_expiry", Weir, &OF_USAGE),
    ("usage_subjects", Weir, &OF_USAGE),
    ("ttl", Weir, &[Reservations]),
    ("max_share", Weir, &[Reservations]),
    ("minimum", Weir, &[Reservations]),
    ("on_expiry", Weir, &[Reservations]),
    ("plans", Weir, &[Root]),
    ("defaults", Weir, &OF_DEFAULTS),
    ("commit", Weir, &[Root, OverlayDomain]),
];

const DESCRIPTORS: [Section; 2] = [Descriptor, OverlayDescriptor];
const OF_DEFAULTS: [Section; 4] = [Root, Overlay, OverlayDomain, OverlayDescriptor];
const OF_DESCRIPTORS: [Section; 4] = [Root, Descriptor, OverlayDomain, OverlayDescriptor];
const OF_MULTIPLIER: [Section; 5] = [RateLimit, Trial, Plan, Row, OverlayLimit];
const OF_POLICY: [Section; 5] = [RateLimit, Defaults, Plan, Row, OverlayLimit];
const OF_SHADOW_MODE: [Section; 4] = [Descriptor, Plan, Row, OverlayDescriptor];
const OF_SHARES: [Section; 4] = [RateLimit, Defaults, Plan, OverlayLimit];

/// The sections with options of usage records, which are the same for all plans of a limit.
const OF_USAGE: [Section; 3] = [RateLimit, Defaults, OverlayLimit];

/// The sections of an algorithm and its options.
const OF_OPTIONS: [Section; 6] = [RateLimit, Defaults, Trial, Plan, Row, OverlayLimit];

/// All keys.
fn keys() -> impl Iterator<Item = Key> {
    let options = OPTIONS
        .iter()
        .map(|&(name, _)| (name, Weir, &OF_OPTIONS[..]));
    KEYS.iter().copied().chain(options)
}
