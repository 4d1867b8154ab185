//! The sections of limit files and overlays, and the table of all their fields: the sections of each
//! key, the form of its value, and its meaning. The reader, nearest names, messages about misplaced
//! keys, the JSON Schema and the page of fields derive from it.

use std::sync::{Arc, LazyLock};

use Author::{Go, Weir};
use Section::{
    Defaults, Descriptor, Overlay, OverlayDescriptor, OverlayDomain, OverlayLimit, Plan, RateLimit,
    Replaced, Reservations, Root, Row, Trial,
};

use super::problem::Problems;
use crate::core::algorithm::{AlgorithmKind, OPTIONS, OnExpiry, with_field};
use crate::core::message::Message;
use crate::core::time::{Span, Unit};
use crate::core::usage;
use crate::limits::rules::limit::OnStoreFailure;
use crate::limits::rules::region::RegionShares;
use crate::limits::rules::source::Node;
use crate::limits::rules::thresholds::Thresholds;
use crate::limits::rules::{Commit, messages};

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

/// The form of a value, as far as it does not depend on other fields.
#[derive(Clone, Copy)]
pub(super) enum Form {
    /// Text; a whole number or a bool is its text.
    Text,
    Texts,
    Bool,
    /// A whole number from the first to the second.
    Whole(u64, u64),
    /// One of several names.
    OneOf(fn() -> Vec<&'static str>),
    /// One of several names, in any letter case.
    OneOfAnyCase(fn() -> Vec<&'static str>),
    /// Text that matches a regular expression, after its name for authors.
    Pattern(&'static str, &'static str),
    /// A list of texts that match a regular expression, or the text of such a list.
    Patterns(&'static str, &'static str),
    /// Texts that match a regular expression, by names of the author.
    PatternByName(&'static str, &'static str),
    Map(Section),
    /// Maps of this section by names of the author.
    MapByName(Section),
    List(Section),
    /// A map of anything.
    Any,
}

/// One field: a row of the table.
#[derive(Clone, Copy)]
pub(super) struct Field {
    pub(super) key: &'static str,
    pub(super) author: Author,
    /// The sections that it belongs to.
    pub(super) sections: &'static [Section],
    pub(super) form: Form,
    /// Its meaning and default, for authors of files.
    pub(super) doc: &'static str,
}

/// A type of values in a file.
pub(super) trait FieldValue: Sized {
    const FORM: Form;

    /// Reads the value of a key; `None`, with an error, if it is something else.
    fn read(problems: &Problems, node: &Node, key: &str) -> Option<Self>;
}

/// The values of `match`.
#[derive(Clone, Copy)]
pub(super) enum MatchKind {
    Exact,
    Set,
    Cidr,
    Regex,
}

impl MatchKind {
    /// All of them with their names in a file.
    pub(super) const NAMED: [(&'static str, Self); 4] = [
        ("exact", Self::Exact),
        ("set", Self::Set),
        ("cidr", Self::Cidr),
        ("regex", Self::Regex),
    ];
}

/// Whole per cents from 1% to 100%.
pub(super) const PERCENT: &str = "^0*(100|[1-9][0-9]?)%$";

impl Section {
    pub(super) const fn format(self) -> Format {
        match self {
            Plan => Format::Plans,
            Row => Format::Tables,
            Overlay | OverlayDomain | OverlayDescriptor | OverlayLimit => Format::Overlay,
            _ => Format::Files,
        }
    }

    /// Its name in the schema and on the page of fields, the place of its keys in messages, and the
    /// place where a map of it was expected.
    const fn names(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Root | Overlay => ("file", "at the root of the file", "at the root of the file"),
            Descriptor | OverlayDescriptor => (
                "descriptor",
                "in a descriptor",
                "in the list of descriptors",
            ),
            RateLimit | OverlayLimit => ("rate_limit", "in rate_limit", "under rate_limit"),
            OverlayDomain => ("domain", "in a domain", "in the list of domains"),
            Replaced => (
                "replaces",
                "in an entry of replaces",
                "in the list of replaces",
            ),
            Defaults => ("defaults", "in defaults", "under defaults"),
            Trial => ("trial", "in trial", "under trial"),
            Reservations => ("reservations", "in reservations", "under reservations"),
            Plan => ("plan", "in a plan", "under the name of a plan"),
            Row => ("row", "in a table", "in a table"),
        }
    }

    /// In the schema and on the page of fields.
    pub(super) const fn short_name(self) -> &'static str {
        self.names().0
    }

    pub(super) const fn name(self) -> &'static str {
        self.names().1
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
        messages::not_a_map(self.names().2, found, remedy)
    }

    pub(super) fn keys(self) -> impl Iterator<Item = &'static str> {
        let own = fields().iter();
        let own = own.filter(move |field| field.sections.contains(&self));
        own.map(|field| field.key)
    }

    /// The names of its keys, for a remedy.
    pub(super) fn list(self) -> String {
        self.keys().collect::<Vec<_>>().join(", ")
    }

    /// All keys of the sections of the same format.
    pub(super) fn of_format(self) -> impl Iterator<Item = &'static str> {
        let near = fields().iter().filter(move |field| self.is_near(field));
        near.map(|field| field.key)
    }

    /// The field of that key, if a section of the same format has one.
    pub(super) fn find_field(self, key: &str) -> Option<&'static Field> {
        let field = fields().iter().find(|field| field.key == key);
        field.filter(|field| self.is_near(field))
    }

    fn is_near(self, field: &Field) -> bool {
        let format = self.format();
        field.sections.iter().any(|other| other.format() == format)
    }
}

/// The names of a list, in its order.
pub(super) fn names<T>(named: &[(&'static str, T)]) -> Vec<&'static str> {
    named.iter().map(|&(name, _)| name).collect()
}

/// All fields.
pub(super) fn fields() -> &'static [Field] {
    /// Made once, because each key of each map is looked up in it.
    static ALL: LazyLock<Vec<Field>> = LazyLock::new(|| {
        let options = OPTIONS.iter().map(|option| Field {
            key: option.name,
            author: Weir,
            sections: &OF_OPTIONS,
            form: with_field!(option.field, field => form_of(field)),
            doc: option.doc,
        });
        FIELDS.iter().copied().chain(options).collect()
    });
    fn form_of<O, V: FieldValue>(_: fn(&mut O) -> &mut Option<V>) -> Form {
        V::FORM
    }
    &ALL
}

/// The largest whole number of a field that is not an amount of hits.
pub(super) const U32: u64 = u32::MAX as u64;

const DESCRIPTORS: [Section; 2] = [Descriptor, OverlayDescriptor];
const OF_DEFAULTS: [Section; 4] = [Root, Overlay, OverlayDomain, OverlayDescriptor];
const OF_DESCRIPTORS: [Section; 4] = [Root, Descriptor, OverlayDomain, OverlayDescriptor];
const OF_AMOUNT: [Section; 4] = [RateLimit, Trial, Plan, Row];
const OF_MULTIPLIER: [Section; 5] = [RateLimit, Trial, Plan, Row, OverlayLimit];
const OF_NAME: [Section; 5] = [RateLimit, Replaced, Plan, Row, OverlayLimit];
const OF_POLICY: [Section; 5] = [RateLimit, Defaults, Plan, Row, OverlayLimit];
const OF_SHADOW_MODE: [Section; 4] = [Descriptor, Plan, Row, OverlayDescriptor];
const OF_SHARES: [Section; 4] = [RateLimit, Defaults, Plan, OverlayLimit];
const OF_VALUE: [Section; 3] = [Descriptor, Row, OverlayDescriptor];

/// The sections with options of usage records, which are the same for all plans of a limit.
const OF_USAGE: [Section; 3] = [RateLimit, Defaults, OverlayLimit];

/// The sections of an algorithm and its options.
const OF_OPTIONS: [Section; 6] = [RateLimit, Defaults, Trial, Plan, Row, OverlayLimit];

/// Rows of a table: author, key, sections, form, meaning.
macro_rules! table {
    ($($author:ident $key:ident $sections:expr, $form:expr; $doc:literal)+) => {
        [$(Field {
            key: stringify!($key),
            author: $author,
            sections: &$sections,
            form: $form,
            doc: $doc,
        }),+]
    };
}

/// All fields but the options of algorithms.
static FIELDS: &[Field] = &table![
    Go domain [Root, OverlayDomain], Form::Text;
        "The domain that Envoy sends."
    Go domains [Overlay], Form::List(OverlayDomain);
        "Domains of a control plane, by name or pattern."
    Go key DESCRIPTORS, Form::Text;
        "Key of an entry that Envoy sends, or a pattern with *."
    Go value OF_VALUE, Form::Text;
        "Value of the entry, or a pattern with *. Without it, each value has its own counter."
    Weir match [Descriptor], MatchKind::FORM;
        "How the value matches: by text or a pattern with *, by a set, by networks, or by a \
        regular expression. Default: exact."
    Weir values [Descriptor], Form::Texts;
        "The values of a set, or the networks of match: cidr."
    Weir values_file [Descriptor], Form::Text;
        "File with the values or networks, one in each line, relative to this file."
    Weir prefix [Descriptor], Form::Whole(1, 128);
        "Bits of the IPv6 networks that have one counter each, with match: cidr."
    Weir table [Descriptor], Form::Text;
        "CSV file (.csv) with a row for each value, relative to this file."
    Weir table_key [Descriptor], Form::Text;
        "Key of the level whose value picks the row of the table. Default: the key of this \
        descriptor."
    Go rate_limit DESCRIPTORS, Form::Map(RateLimit);
        "The limit of this descriptor. Without it, the descriptor is not limited."
    Go shadow_mode OF_SHADOW_MODE, Form::Bool;
        "The limit counts and never refuses. Default: false."
    Go quota_mode DESCRIPTORS, Form::Bool;
        "A request is refused only if all of its quota descriptors are over their limits. Default: \
        false."
    Go detailed_metric DESCRIPTORS, Form::Bool;
        "Metrics have the values of all levels. Default: false."
    Go value_to_metric DESCRIPTORS, Form::Bool;
        "Metrics have the value of this level; of an address in a network or a set, the text that \
        is counted. Default: false."
    Go share_threshold DESCRIPTORS, Form::Bool;
        "All values that match share one counter; needs a pattern with * or match. Default: false."
    Go metadata [Descriptor], Form::Any;
        "Returned to Envoy as dynamic metadata if RESPONSE_DYNAMIC_METADATA=true and the limit does \
        not refuse. At most 16 KiB, and 64 KiB in one answer."
    Go descriptors OF_DESCRIPTORS, Form::List(Descriptor);
        "The descriptors of the next level."
    Go unit OF_AMOUNT, Unit::FORM;
        "Unit of the window. Required, except for concurrency."
    Weir unit_multiplier OF_MULTIPLIER, Form::Whole(1, U32);
        "Number of units in one window, which has at most 100 years. Default: 1."
    Go requests_per_unit OF_AMOUNT, u64::FORM;
        "Hits that one window admits; 0 refuses all. Required."
    Go unlimited [RateLimit, Plan, Row], Form::Bool;
        "The limit admits all hits and counts none. Default: false."
    Weir plan [RateLimit, Row], Form::Text;
        "The plan whose fields apply where this limit has none."
    Go name OF_NAME, Form::Text;
        "Name of the limit: clients see it in x-ratelimit-limit, and replaces refers to it."
    Go replaces [RateLimit], Form::List(Replaced);
        "Limits of the same request that this one switches off, by their names."
    Weir trial [RateLimit, OverlayLimit], Form::Map(Trial);
        "Another amount that is counted next to this limit and refuses nothing."
    Weir algorithm OF_OPTIONS, AlgorithmKind::FORM;
        "How hits are counted and refused. Default: fixed_window."
    Weir on_store_failure OF_POLICY, OnStoreFailure::FORM;
        "The answer while Redis cannot decide. Default: the setting ON_STORE_FAILURE."
    Weir region_shares OF_SHARES, Arc::<RegionShares>::FORM;
        "Share of each region in the amount. Default: the setting REGION_SHARE."
    Weir notify OF_POLICY, Thresholds::FORM;
        "Parts of the amount, in ascending order, whose use is reported. Default: none."
    Weir track_usage OF_USAGE, Form::Bool;
        "Records the usage of each subject. Default: false."
    Weir usage_interval OF_USAGE, Span::FORM;
        "Length of one bucket of usage, at least 1s. Default: 1m."
    Weir usage_buckets OF_USAGE, Form::Whole(1, usage::MOST_BUCKETS as u64);
        "Number of buckets of usage. Default: 60."
    Weir usage_expiry OF_USAGE, Span::FORM;
        "Longest time for which the usage of an idle subject is kept. Default: the longest of 720h, \
        all buckets, and two periods of the limit and some days."
    Weir usage_subjects OF_USAGE, Form::Whole(1, usage::MOST_SUBJECTS as u64);
        "Number of subjects in each list of the heaviest. Default: 10000."
    Weir ttl [Reservations], Span::FORM;
        "Time after which an open reservation expires, from 1s to 24h. Required."
    Weir max_share [Reservations], Form::Pattern("percent", PERCENT);
        "Part of the limit that one reservation can hold. Default: 50%."
    Weir minimum [Reservations], u32::FORM;
        "Hits that a smaller reservation holds. Default: 0."
    Weir on_expiry [Reservations], OnExpiry::FORM;
        "Whether the hits of an expired reservation are refunded. Default: release."
    Weir plans [Root], Form::MapByName(Plan);
        "Fields of limits by the names of plans, for rate_limit and for rows of tables."
    Weir defaults OF_DEFAULTS, Form::Map(Defaults);
        "Options of all limits of the domain that do not set them."
    Weir commit [Root, OverlayDomain], Commit::FORM;
        "Whether a request that one limit refuses still counts in its other limits. Default: each, \
        or all_or_none with STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT=true."
];
