//! The sections of files and overlays, and the keys that belong to each.

use Section::{
    Defaults, Descriptor, Overlay, OverlayDescriptor, OverlayDomain, OverlayLimit, Plan, RateLimit,
    Replaced, Root, Row, Trial,
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
    /// A plan below `plans`.
    Plan,
    /// A row of a table: the names of its columns.
    Row,
    /// The maps of an overlay: the root, a domain, a descriptor and a `rate_limit`.
    Overlay,
    OverlayDomain,
    OverlayDescriptor,
    OverlayLimit,
}

impl Section {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Root | Self::Overlay => "at the root of the file",
            Self::Descriptor | Self::OverlayDescriptor => "in a descriptor",
            Self::RateLimit | Self::OverlayLimit => "in rate_limit",
            Self::OverlayDomain => "in a domain",
            Self::Replaced => "in an entry of replaces",
            Self::Defaults => "in defaults",
            Self::Trial => "in trial",
            Self::Plan => "in a plan",
            Self::Row => "in a table",
        }
    }

    pub(super) fn keys(self) -> impl Iterator<Item = &'static str> {
        keys()
            .filter(move |(_, sections)| sections.contains(&self))
            .map(|(key, _)| key)
    }

    /// The names of its keys, for a remedy.
    pub(super) fn list(self) -> String {
        self.keys().collect::<Vec<_>>().join(", ")
    }

    pub(super) const fn format(self) -> Format {
        match self {
            Self::Root
            | Self::Descriptor
            | Self::RateLimit
            | Self::Replaced
            | Self::Defaults
            | Self::Trial => Format::Files,
            Self::Plan => Format::Plans,
            Self::Row => Format::Tables,
            Self::Overlay | Self::OverlayDomain | Self::OverlayDescriptor | Self::OverlayLimit => {
                Format::Overlay
            }
        }
    }

    /// Where a map of the section was expected.
    pub(super) const fn expected(self) -> &'static str {
        match self {
            Self::Root | Self::Overlay => "at the root of the file",
            Self::Descriptor | Self::OverlayDescriptor => "in the list of descriptors",
            Self::RateLimit | Self::OverlayLimit => "under rate_limit",
            Self::OverlayDomain => "in the list of domains",
            Self::Replaced => "in the list of replaces",
            Self::Defaults => "under defaults",
            Self::Trial => "under trial",
            Self::Plan => "under the name of a plan",
            Self::Row => "in a table",
        }
    }

    pub(super) const fn remedy_for_map(self) -> &'static str {
        match self {
            Self::Root => "begin the file with 'domain: ' and 'descriptors:'",
            Self::Descriptor | Self::OverlayDescriptor => "begin each descriptor with '- key: '",
            Self::Overlay => "begin the file with 'domains:' or 'defaults:'",
            Self::OverlayDomain => "begin each domain with '- domain: '",
            Self::RateLimit | Self::Plan | Self::Row => {
                "write 'unit: ' and 'requests_per_unit: ' below it"
            }
            Self::Replaced => "write '- name: ' and the name of a limit",
            Self::Trial => "write 'requests_per_unit: ' and a number below it",
            Self::Defaults | Self::OverlayLimit => "write 'algorithm: ' and its options below it",
        }
    }

    /// All keys of the sections of the same format.
    pub(super) fn all_keys(self) -> impl Iterator<Item = &'static str> {
        self.of_format().map(|(key, _)| key)
    }

    /// The key of that name, if a section of the same format has one.
    pub(super) fn known(self, name: &str) -> Option<(&'static str, &'static [Section])> {
        self.of_format().find(|(known, _)| *known == name)
    }

    fn of_format(self) -> impl Iterator<Item = (&'static str, &'static [Section])> {
        let is_near = move |other: &Section| other.format() == self.format();
        keys().filter(move |(_, sections)| sections.iter().any(is_near))
    }
}

/// What sections are sections of.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    Files,
    Plans,
    Tables,
    Overlay,
}

/// The sections that each key belongs to, but for the options of algorithms.
const KEYS: [(&str, &[Section]); 37] = [
    ("domain", &[Root, OverlayDomain]),
    ("domains", &[Overlay]),
    ("key", &[Descriptor, OverlayDescriptor]),
    ("value", &[Descriptor, Row, OverlayDescriptor]),
    ("match", &[Descriptor]),
    ("values", &[Descriptor]),
    ("values_file", &[Descriptor]),
    ("prefix", &[Descriptor]),
    ("table", &[Descriptor]),
    ("table_key", &[Descriptor]),
    ("rate_limit", &[Descriptor, OverlayDescriptor]),
    ("shadow_mode", &[Descriptor, Plan, Row, OverlayDescriptor]),
    ("quota_mode", &[Descriptor, OverlayDescriptor]),
    ("detailed_metric", &[Descriptor, OverlayDescriptor]),
    ("value_to_metric", &[Descriptor, OverlayDescriptor]),
    ("share_threshold", &[Descriptor, OverlayDescriptor]),
    ("metadata", &[Descriptor]),
    (
        "descriptors",
        &[Root, Descriptor, OverlayDomain, OverlayDescriptor],
    ),
    ("unit", &[RateLimit, Trial, Plan, Row]),
    (
        "unit_multiplier",
        &[RateLimit, Trial, Plan, Row, OverlayLimit],
    ),
    ("requests_per_unit", &[RateLimit, Trial, Plan, Row]),
    ("unlimited", &[RateLimit, Plan, Row]),
    ("plan", &[RateLimit, Row]),
    ("name", &[RateLimit, Replaced, Plan, Row, OverlayLimit]),
    ("replaces", &[RateLimit]),
    ("trial", &[RateLimit, OverlayLimit]),
    ("algorithm", &OF_OPTIONS),
    (
        "on_store_failure",
        &[RateLimit, Defaults, Plan, Row, OverlayLimit],
    ),
    ("region_shares", &[RateLimit, Defaults, Plan, OverlayLimit]),
    ("track_usage", &OF_USAGE),
    ("usage_interval", &OF_USAGE),
    ("usage_buckets", &OF_USAGE),
    ("usage_expiry", &OF_USAGE),
    ("usage_subjects", &OF_USAGE),
    ("plans", &[Root]),
    (
        "defaults",
        &[Root, Overlay, OverlayDomain, OverlayDescriptor],
    ),
    ("commit", &[Root, OverlayDomain]),
];

/// The sections of what is recorded of a limit, which is the same for all of its plans.
const OF_USAGE: [Section; 3] = [RateLimit, Defaults, OverlayLimit];

/// The sections of an algorithm and its options.
const OF_OPTIONS: [Section; 6] = [RateLimit, Defaults, Trial, Plan, Row, OverlayLimit];

/// All keys with the sections that they belong to.
fn keys() -> impl Iterator<Item = (&'static str, &'static [Section])> {
    let options = OPTIONS.iter().map(|&(name, _)| (name, &OF_OPTIONS[..]));
    KEYS.into_iter().chain(options)
}

/// Keys that Weir adds, besides the options of algorithms. The Go service refuses all of these, so
/// that they are not tolerated anywhere.
pub(super) const OWN_KEYS: [&str; 20] = [
    "table",
    "table_key",
    "plan",
    "plans",
    "match",
    "values",
    "values_file",
    "prefix",
    "unit_multiplier",
    "trial",
    "algorithm",
    "on_store_failure",
    "region_shares",
    "track_usage",
    "usage_interval",
    "usage_buckets",
    "usage_expiry",
    "usage_subjects",
    "defaults",
    "commit",
];
