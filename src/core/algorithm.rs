//! Rate limiting algorithms: one pure, total step in whole numbers per algorithm, and the table of
//! their properties.
//!
//! A step takes the stored state, the store's time and the hits, and returns the verdict and the
//! state to store next. Algorithms do arithmetic; stores own atomicity. Each algorithm is defined
//! in a file of its own (see [`Definition`]), with a twin of the same name in `lua/` that runs
//! inside Redis. An algorithm is added by these two files, and by its lines in this one.
//!
//! Parsing, defaults, error messages, key tags, the wire and the letters in Lua derive from the
//! table.

pub mod concurrency;
mod definition;
pub mod fixed_window;
pub mod leaky_bucket;
mod leases;
pub(crate) mod messages;
pub mod options;
mod part;
pub mod places;
pub mod reservations;
pub mod sliding_window_buckets;
pub mod sliding_window_counter;
pub mod sliding_window_log;
mod ticks;
pub mod token_bucket;

pub use concurrency::Concurrency;
pub use definition::{Arrival, Definition, SCRIPT_PARAMETERS, Step};
pub use fixed_window::FixedWindow;
pub use leaky_bucket::LeakyBucket;
pub(crate) use options::with_field;
pub use options::{Debt, OptionError, OptionField};
pub use part::Part;
pub use reservations::{HeldHits, HoldChange, Holds, OnExpiry, Peaks, Reservations};
pub use sliding_window_buckets::SlidingWindowBuckets;
pub use sliding_window_counter::SlidingWindowCounter;
pub use sliding_window_log::SlidingWindowLog;
pub use ticks::{Flow, LARGEST_COUNT, Units};
pub use token_bucket::TokenBucket;

use crate::core::time::{Anchor, PeriodKind, Span, Weekday, Zone};

/// Properties of one algorithm other than its arithmetic.
#[derive(Clone, Copy, Debug)]
pub struct Spec {
    /// Which algorithm.
    pub kind: AlgorithmKind,
    /// Makes it of its numbers and options.
    define: fn(&Terms<'_>) -> Result<Algorithm, OptionError>,
    /// The value of `algorithm` in a configuration file.
    pub name: &'static str,
    /// Names the algorithm in the keys of its counters. Two letters: bytes of known number are
    /// copied without a call.
    pub key_tag: [u8; 2],
    /// Names the algorithm in a call of the script: `lua/` keeps its step under this number.
    pub wire_code: u8,
    /// Numbers in its row of the script's reply.
    pub reply_numbers: usize,
    /// The text of its twin.
    pub script: &'static str,
    /// Groups of the options that have a meaning for it, by their names in [`OPTIONS`].
    options: &'static [&'static [&'static str]],
}

impl Spec {
    /// Whether an option has a meaning for it.
    pub fn takes(&self, option: &str) -> bool {
        self.options.iter().any(|group| group.contains(&option))
    }
}

/// The options of all algorithms that count hits.
const COUNTED: &[&str] = &["scale", "default_cost", "count_denied"];
/// The options of those that may be in debt and hold hits.
const CHARGED: &[&str] = &["max_debt", "reservations"];
const CALENDAR: &[&str] = &["period", "timezone", "week_starts", "anchor"];
const BUCKETS: &[&str] = &["bucket_interval", "bucket_span", "subject_expiry"];

/// The table of all algorithms, in the order of [`AlgorithmKind`].
pub const TABLE: [Spec; 7] = [
    Spec {
        kind: AlgorithmKind::FixedWindow,
        define: |terms| Definition::try_new(terms).map(Algorithm::FixedWindow),
        name: "fixed_window",
        key_tag: *b"fw",
        wire_code: b'F',
        reply_numbers: 3,
        script: include_str!("../../lua/fixed_window.lua"),
        options: &[COUNTED, &["reservations", "lease"], CALENDAR],
    },
    Spec {
        kind: AlgorithmKind::SlidingWindowLog,
        define: |terms| Definition::try_new(terms).map(Algorithm::SlidingWindowLog),
        name: "sliding_window_log",
        key_tag: *b"sl",
        wire_code: b'L',
        reply_numbers: 3,
        script: include_str!("../../lua/sliding_window_log.lua"),
        options: &[COUNTED, CHARGED],
    },
    Spec {
        kind: AlgorithmKind::SlidingWindowCounter,
        define: |terms| Definition::try_new(terms).map(Algorithm::SlidingWindowCounter),
        name: "sliding_window_counter",
        key_tag: *b"sc",
        wire_code: b'C',
        reply_numbers: 4,
        script: include_str!("../../lua/sliding_window_counter.lua"),
        options: &[COUNTED, CHARGED, &["lease"]],
    },
    Spec {
        kind: AlgorithmKind::SlidingWindowBuckets,
        define: |terms| Definition::try_new(terms).map(Algorithm::SlidingWindowBuckets),
        name: "sliding_window_buckets",
        key_tag: *b"sb",
        wire_code: b'B',
        reply_numbers: 3,
        script: include_str!("../../lua/sliding_window_buckets.lua"),
        options: &[COUNTED, CHARGED, &["lease"], BUCKETS],
    },
    Spec {
        kind: AlgorithmKind::TokenBucket,
        define: |terms| Definition::try_new(terms).map(Algorithm::TokenBucket),
        name: "token_bucket",
        key_tag: *b"tb",
        wire_code: b'T',
        reply_numbers: 3,
        script: include_str!("../../lua/token_bucket.lua"),
        options: &[COUNTED, CHARGED, &["burst"]],
    },
    Spec {
        kind: AlgorithmKind::LeakyBucket,
        define: |terms| Definition::try_new(terms).map(Algorithm::LeakyBucket),
        name: "leaky_bucket",
        key_tag: *b"lb",
        wire_code: b'Q',
        reply_numbers: 3,
        script: include_str!("../../lua/leaky_bucket.lua"),
        options: &[COUNTED, &["max_debt", "max_delay"]],
    },
    Spec {
        kind: AlgorithmKind::Concurrency,
        define: |terms| Definition::try_new(terms).map(Algorithm::Concurrency),
        name: "concurrency",
        key_tag: *b"cc",
        wire_code: b'H',
        reply_numbers: 3,
        script: include_str!("../../lua/concurrency.lua"),
        options: &[&["default_cost", "max_duration"]],
    },
];

/// The algorithms without their numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum AlgorithmKind {
    /// `fixed_window`, the default.
    #[default]
    FixedWindow,
    /// `sliding_window_log`.
    SlidingWindowLog,
    /// `sliding_window_counter`.
    SlidingWindowCounter,
    /// `sliding_window_buckets`.
    SlidingWindowBuckets,
    /// `token_bucket`.
    TokenBucket,
    /// `leaky_bucket`.
    LeakyBucket,
    /// `concurrency`.
    Concurrency,
}

/// An algorithm with its numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// Windows aligned to the clock.
    FixedWindow(FixedWindow),
    /// A timestamp per hit.
    SlidingWindowLog(SlidingWindowLog),
    /// The current window and a weighted part of the previous one.
    SlidingWindowCounter(SlidingWindowCounter),
    /// A ring of counters of short intervals.
    SlidingWindowBuckets(SlidingWindowBuckets),
    /// A bucket of tokens that is refilled continuously.
    TokenBucket(TokenBucket),
    /// A queue that drains at a constant rate: a shaper.
    LeakyBucket(LeakyBucket),
    /// Places of requests in flight.
    Concurrency(Concurrency),
}

/// Evaluates an expression with the algorithm, whichever it is.
macro_rules! dispatch {
    ($algorithm:expr, $inner:ident => $result:expr) => {
        match $algorithm {
            Algorithm::FixedWindow($inner) => $result,
            Algorithm::SlidingWindowLog($inner) => $result,
            Algorithm::SlidingWindowCounter($inner) => $result,
            Algorithm::SlidingWindowBuckets($inner) => $result,
            Algorithm::TokenBucket($inner) => $result,
            Algorithm::LeakyBucket($inner) => $result,
            Algorithm::Concurrency($inner) => $result,
        }
    };
}
use dispatch;

/// The treatment of refused hits in a [`Definition`] that has it in its field `debt`.
macro_rules! debt_in_field {
    () => {
        fn debt(&self) -> Debt {
            self.debt
        }

        fn set_debt(&mut self, debt: Debt) {
            self.debt = debt;
        }
    };
}
use debt_in_field;

impl Algorithm {
    /// Which algorithm it is.
    pub const fn kind(&self) -> AlgorithmKind {
        match self {
            Self::FixedWindow(_) => AlgorithmKind::FixedWindow,
            Self::SlidingWindowLog(_) => AlgorithmKind::SlidingWindowLog,
            Self::SlidingWindowCounter(_) => AlgorithmKind::SlidingWindowCounter,
            Self::SlidingWindowBuckets(_) => AlgorithmKind::SlidingWindowBuckets,
            Self::TokenBucket(_) => AlgorithmKind::TokenBucket,
            Self::LeakyBucket(_) => AlgorithmKind::LeakyBucket,
            Self::Concurrency(_) => AlgorithmKind::Concurrency,
        }
    }
}

/// The stored state of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// Of [`FixedWindow`].
    FixedWindow {
        /// The number of the window since the epoch.
        window: u64,
        /// Hits counted in it: allowed ones, and with `count_denied` also refused ones.
        count: u64,
    },
    /// Of [`SlidingWindowLog`].
    Log(Box<sliding_window_log::Log>),
    /// Of [`SlidingWindowCounter`].
    Counter {
        /// The number of the current window since the epoch.
        window: u64,
        /// Hits counted in the current window.
        current: u64,
        /// Hits counted in the previous window.
        previous: u64,
    },
    /// Of [`SlidingWindowBuckets`].
    Buckets(Box<sliding_window_buckets::Ring>),
    /// Of [`TokenBucket`].
    Tokens {
        /// The tick of the last change.
        last: u64,
        /// The level at that tick, in units. Negative: debt.
        level: i64,
        /// The units of the limit which wrote the state. A limit of another amount may have others.
        units: Units,
    },
    /// Of [`LeakyBucket`].
    Queue {
        /// The tick of the last change.
        last: u64,
        /// The backlog at that tick, in units.
        backlog: u64,
        /// The units of the limit which wrote the state. A limit of another amount may have others.
        units: Units,
    },
    /// Of [`Concurrency`].
    Holders(Box<concurrency::Holders>),
    /// Of a counter with [`reservations`].
    Holds(Box<Holds>),
}

/// The options of a limit except its rate; `None` = not written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// `algorithm`.
    pub kind: AlgorithmKind,
    /// `burst`: the capacity of a `token_bucket`, in the unit of the rate; default: the rate's
    /// hits. At a rate of 0 nothing passes, whatever the burst is.
    pub burst: Option<u64>,
    /// `scale`: the rate's hits and the burst are in units of so many hits, and responses report
    /// the same units; default: 1.
    pub scale: Option<u32>,
    /// `default_cost`: the hits of a request that names none; default: 1.
    pub default_cost: Option<u64>,
    /// `bucket_interval` of `sliding_window_buckets`; default: a sixtieth of the window.
    pub bucket_interval: Option<Span>,
    /// `bucket_span` of `sliding_window_buckets`: the time that all buckets cover; default: the
    /// window and one interval.
    pub bucket_span: Option<Span>,
    /// `subject_expiry` of `sliding_window_buckets`: an idle key is dropped after it; default: the
    /// span.
    pub subject_expiry: Option<Span>,
    /// `max_delay` of a `leaky_bucket`; default: zero. However long it is, at most 2^32 - 1 hits
    /// wait, or one full limit if that is more.
    pub max_delay: Option<Span>,
    /// `max_duration` of a `concurrency` limit, which has to be written: after it, a request has
    /// lost its place.
    pub max_duration: Option<Span>,
    /// `count_denied`: refused hits count; default: true for `fixed_window`, false for all others.
    pub count_denied: Option<bool>,
    /// `lease`: a replica may draw hits of a busy key ahead of its requests; default: false.
    pub lease: Option<bool>,
    /// `reservations`: requests may reserve hits and settle them later; default: none. Then
    /// `count_denied` is true.
    pub reservations: Option<Reservations>,
    /// `max_debt`: how many full limits below zero refused hits may take a key, if they count;
    /// default: 1. A `fixed_window` counts all of them.
    pub max_debt: Option<u32>,
    /// `period` of a `fixed_window`; default: by the setting below for months, `fixed` for all
    /// others.
    pub period: Option<PeriodKind>,
    /// `timezone` of a calendar; default: UTC.
    pub timezone: Option<Zone>,
    /// `week_starts` of a calendar of weeks; default: Monday.
    pub week_starts: Option<Weekday>,
    /// `anchor` of a calendar: the day, and the time of day, at which a window begins; default: the
    /// first day at midnight.
    pub anchor: Option<Anchor>,
    /// A `fixed_window` per month follows the calendar (`USE_CALENDAR_MONTH_RATE_LIMIT`); no option
    /// of a file.
    pub calendar_months: bool,
}

/// The numbers and options that an algorithm is made of.
#[derive(Clone, Copy, Debug)]
pub struct Terms<'o> {
    /// Hits per window.
    limit: u64,
    window: Span,
    /// The options that belong to the algorithm.
    options: &'o Options,
    debt: Debt,
}

/// An option of algorithms: the row that its reading, its defaults, its errors and its description
/// derive from.
#[derive(Clone, Copy, Debug)]
pub struct OptionRow {
    /// Its name in a file.
    pub name: &'static str,
    /// Its value in [`Options`].
    pub field: OptionField,
    /// Its meaning and default, for authors of files.
    pub doc: &'static str,
}

/// Options by the types of their fields, which have the same names.
macro_rules! option_rows {
    ($($kind:ident $option:ident $doc:literal),+ $(,)?) => {
        [$(OptionRow {
            name: stringify!($option),
            field: OptionField::$kind(|options| &mut options.$option),
            doc: $doc,
        }),+]
    };
}

/// All options.
pub const OPTIONS: [OptionRow; 16] = option_rows![
    Amount burst "Capacity of a token_bucket: hits at once. Default: requests_per_unit.",
    Number scale "Hits in one unit of requests_per_unit and burst; answers are in the same units. \
        Default: 1.",
    Amount default_cost "Hits of a request that names none. Default: 1.",
    Duration bucket_interval "Time of one bucket of sliding_window_buckets. Default: a sixtieth of \
        the window.",
    Duration bucket_span "Time that all buckets of sliding_window_buckets cover. Default: the \
        window and one interval.",
    Duration subject_expiry "Time after which an idle key of sliding_window_buckets is dropped. \
        Default: bucket_span.",
    Duration max_delay "Longest delay of a request by a leaky_bucket. Default: 0s.",
    Duration max_duration "Time after which a request of a concurrency limit no longer counts as \
        in flight. Required for concurrency.",
    Bool count_denied "Whether refused hits count. Default: true for a fixed_window, false for all \
        others.",
    Bool lease "Whether a replica may draw hits of a busy key ahead of its requests. Default: \
        false.",
    Reservations reservations "Lets requests reserve hits and settle them later. Default: none.",
    Number max_debt "Number of full limits, 1 to 100, that refused hits may take a key below zero \
        if they count. Default: 1.",
    Period period "Whether windows of a fixed_window follow the calendar of a time zone. Default: \
        fixed.",
    Zone timezone "Time zone of a calendar, a name of the IANA database. Default: UTC.",
    Weekday week_starts "First day of a week of the calendar. Default: monday.",
    Anchor anchor "Date, with or without a time of day, at which a window of the calendar begins: \
        2026-03-31, 2026-03-31T06:00. Default: the first day at midnight.",
];

#[cfg(test)]
mod tests;
