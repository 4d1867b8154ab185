//! One compiled limit, with everything that a request needs of it computed in advance.
//!
//! `scale` ends here: algorithms, stores, usage and metrics count hits. The compiler multiplies,
//! and human-readable output divides. So stores and scripts need no scale, and a limit with one
//! costs a division.

use std::fmt;
use std::num::{NonZeroU32, NonZeroU64};
use std::sync::Arc;

use hashbrown::HashMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize, Serializer};

use super::display_name::display_name;
use super::place::Place;
use super::region::RegionShare;
use super::table::{RowNumber, Table};
use super::thresholds::Thresholds;
use crate::core::algorithm::{Algorithm, Reservations};
use crate::core::time::people::grouped;
use crate::core::time::{Period, Rate};
use crate::core::usage::Tracking;

/// Finds a limit in its rules.
///
/// A domain keeps its number while it is in force. A domain that does not change is then part of
/// the next rules without a copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct LimitId {
    /// The number of its domain in the rules.
    pub domain: u32,
    /// Its index among the limits of its domain.
    pub limit: u32,
}

impl LimitId {
    /// The limit at the index `limit` of the domain with that number.
    pub const fn new(domain: u32, limit: u32) -> Self {
        Self { domain, limit }
    }
}

/// A JSON object, as in `metadata`.
pub type Metadata = serde_json::Map<String, serde_json::Value>;

/// Maximum size of a limit's `metadata`, by [`encoded_bytes`]: each answer about the limit has it.
pub const MAX_METADATA_BYTES: usize = 16 << 10;

/// The bytes that metadata has as a `google.protobuf.Struct`, or a few more.
pub fn encoded_bytes(metadata: &Metadata) -> usize {
    /// Tags and lengths of a field and of its value.
    const AROUND: usize = 8;
    fn of_value(value: &serde_json::Value) -> usize {
        use serde_json::Value;
        match value {
            Value::Null | Value::Bool(_) => 4,
            Value::Number(_) => 11,
            Value::String(text) => AROUND + text.len(),
            Value::Array(items) => AROUND + items.iter().map(of_value).sum::<usize>(),
            Value::Object(fields) => AROUND + encoded_bytes(fields),
        }
    }
    let of_field = |(name, value): (&String, _)| AROUND + name.len() + of_value(value);
    metadata.iter().map(of_field).sum()
}

/// A limit and its path in the tree.
#[derive(Clone, Debug, Default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "what a file says, which does not depend on each other"
)]
pub struct Limit {
    /// Its position in the rules.
    pub id: LimitId,
    /// The domain that it belongs to.
    pub domain: Arc<str>,
    /// The levels from the root to the limit, one per entry of a descriptor that finds it.
    pub levels: Box<[Level]>,
    /// Other limits replace this one by it.
    pub name: Option<Box<str>>,
    /// The text that answers show: the name, or else the path in the domain; see [`display_name`].
    pub display_name: Box<str>,
    /// The rate and its algorithm; `None`: unlimited, or only rows have amounts.
    pub amount: Option<Amount>,
    /// An amount that is counted in addition and never refuses a hit.
    pub trial: Option<Box<Trial>>,
    /// Only rows of its table have amounts.
    pub is_by_rows: bool,
    /// The plan of its amount. A descriptor has one limit for each plan that rows of its table use,
    /// in addition to its own.
    pub plan: Option<Box<str>>,
    /// The table that its amounts are in, which all limits of the descriptor share.
    pub table: Option<Arc<LimitTable>>,
    /// Over the limit, the status is still OK.
    pub shadow_mode: bool,
    /// Over the limit, the request is refused only if all quota descriptors are over theirs.
    pub quota_mode: bool,
    /// The failure policy of the limit or its domain; `None`: the policy of the process.
    pub on_store_failure: Option<OnStoreFailure>,
    /// `track_usage`: the usage of each subject is recorded.
    pub usage: Option<Arc<Tracking>>,
    /// Metrics carry the request's values of all levels.
    pub detailed_metric: bool,
    /// Names of limits that this one switches off within a request.
    pub replaces: Box<[Box<str>]>,
    /// Returned in `dynamic_metadata` if the setting enables it.
    pub metadata: Option<Metadata>,
    /// Where it is written, for operators.
    pub origin: Place,
}

/// `trial`: another amount for the same requests, with a count of its own of the hits that it would
/// refuse.
#[derive(Clone, Debug)]
pub struct Trial {
    /// Its rate and algorithm.
    pub amount: Amount,
    /// `track_usage` of the limit: the trial has records of its own.
    pub usage: Option<Arc<Tracking>>,
}

/// The table of a descriptor.
#[derive(Debug)]
pub struct LimitTable {
    /// By value.
    pub rows: Table<RowMeaning>,
    /// The index of the entry whose value picks the row.
    pub level: usize,
    /// The descriptor's own limit, for rows without a plan, as [`LimitId::limit`].
    pub owner: u32,
    /// Whether it also applies to values without a row; otherwise they have no limit.
    pub has_default: bool,
    /// The number of rows of each limit that has some.
    counts: HashMap<u32, usize>,
}

impl LimitTable {
    /// The table of a descriptor with these rows.
    pub fn new(rows: Table<RowMeaning>, level: usize, owner: u32, has_default: bool) -> Self {
        let mut counts = HashMap::new();
        for meaning in rows.rows().filter_map(|row| rows.meaning(row)) {
            *counts.entry(meaning.limit).or_default() += 1;
        }
        Self {
            rows,
            level,
            owner,
            has_default,
            counts,
        }
    }

    /// The number of rows of a limit.
    pub fn rows_of(&self, limit: LimitId) -> usize {
        self.counts.get(&limit.limit).copied().unwrap_or_default()
    }

    /// The limit of values without a row.
    pub fn default(&self) -> Option<u32> {
        self.has_default.then_some(self.owner)
    }
}

/// The meaning of rows of a table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RowMeaning {
    /// The limit of the plan of these rows, or of the descriptor, as [`LimitId::limit`].
    pub limit: u32,
    pub amount: RowAmount,
    /// `shadow_mode` of the row; `None`: as its limit.
    pub shadow_mode: Option<bool>,
    /// `on_store_failure` of the row; `None`: as its limit.
    pub on_store_failure: Option<OnStoreFailure>,
}

/// Memory of a row with numbers of its own; config/tables.md and deploy/bounds.md document about 150
/// bytes. It is full: a further option needs a type with a niche, such as `NonZeroU32`.
const _: () = assert!(size_of::<RowMeaning>() <= 152);

/// The amount of a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RowAmount {
    OfLimit,
    /// Its own; `None` = unlimited.
    Own(Option<Amount>),
}

/// A limit as one descriptor has it: fields of the row of its value take precedence over fields of
/// the limit.
#[derive(Clone, Copy, Debug)]
pub struct LimitInForce<'r> {
    pub limit: &'r Limit,
    /// The row, in the limit's table.
    pub row: Option<RowNumber>,
}

impl<'r> From<&'r Limit> for LimitInForce<'r> {
    fn from(limit: &'r Limit) -> Self {
        Self { limit, row: None }
    }
}

impl<'r> LimitInForce<'r> {
    #[inline]
    fn row(self) -> Option<(&'r Table<RowMeaning>, RowNumber)> {
        let row = self.row?;
        Some((&self.limit.table.as_ref()?.rows, row))
    }

    #[inline]
    fn meaning(self) -> Option<&'r RowMeaning> {
        let (rows, row) = self.row()?;
        rows.meaning(row)
    }

    /// The amount; `None` = unlimited.
    #[inline]
    pub fn amount(self) -> Option<&'r Amount> {
        if self.row.is_none() {
            return self.limit.amount.as_ref();
        }
        match self.meaning().map(|meaning| &meaning.amount) {
            Some(RowAmount::Own(amount)) => amount.as_ref(),
            Some(RowAmount::OfLimit) | None => self.limit.amount.as_ref(),
        }
    }

    /// The name as it is written, by which other limits replace it.
    #[inline]
    pub fn name(self) -> Option<&'r str> {
        let of_row = self.row().and_then(|(rows, row)| rows.name(row));
        of_row.or(self.limit.name.as_deref())
    }

    /// The name that answers show, or the path in the domain without one.
    #[inline]
    pub fn display_name(self) -> &'r str {
        let of_row = self.row().and_then(|(rows, row)| rows.display_name(row));
        of_row.unwrap_or(&self.limit.display_name)
    }

    /// Whether the status is OK also over the limit.
    #[inline]
    pub fn shadow_mode(self) -> bool {
        let of_row = self.meaning().and_then(|meaning| meaning.shadow_mode);
        of_row.unwrap_or(self.limit.shadow_mode)
    }

    /// The failure policy; `None`: the policy of the process.
    #[inline]
    pub fn on_store_failure(self) -> Option<OnStoreFailure> {
        let of_row = self.meaning().and_then(|meaning| meaning.on_store_failure);
        of_row.or(self.limit.on_store_failure)
    }

    /// The trial. Only values without a row have one, because a row has numbers of its own.
    pub fn trial(self) -> Option<&'r Trial> {
        self.limit.trial.as_deref().filter(|_| self.row.is_none())
    }

    /// Where its row is written.
    pub fn row_origin(self) -> Option<Place> {
        let (rows, row) = self.row()?;
        Some(rows.file.at((rows.line(row), 0)))
    }
}

/// `on_store_failure`: the failure policy, which decides a check that the store did not decide in
/// time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnStoreFailure {
    /// The request is an error (UNAVAILABLE): Envoy's `failure_mode_deny` decides.
    #[default]
    Error,
    /// The check is allowed.
    Allow,
    /// The check is refused.
    Deny,
    /// The memory store decides, with this replica's share of the limit.
    Local,
}

impl OnStoreFailure {
    /// All of them with the names that files and settings use.
    pub const NAMED: [(&'static str, Self); 4] = [
        ("error", Self::Error),
        ("allow", Self::Allow),
        ("deny", Self::Deny),
        ("local", Self::Local),
    ];
}

/// `scale`: hits in one unit of a limit's amount. Operators read and write units; algorithms and
/// stores count hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scale(NonZeroU32);

impl Scale {
    /// A unit is a hit.
    pub const ONE: Self = Self(NonZeroU32::MIN);

    /// The scale of a limit with these options; `None`, the usual one, if it is 0 or not written.
    pub fn new(scale: Option<u32>) -> Self {
        scale.and_then(NonZeroU32::new).map_or(Self::ONE, Self)
    }

    /// Converts units to hits; saturates.
    pub fn hits(self, units: u64) -> u64 {
        units.saturating_mul(self.0.get().into())
    }

    /// The whole units in these hits.
    pub fn units(self, hits: u64) -> u64 {
        hits / u64::from(self.0.get())
    }

    /// The units that have these hits, rounded up.
    pub fn units_rounded_up(self, hits: u64) -> u64 {
        hits.div_ceil(self.0.get().into())
    }

    /// These hits in units, with at most as many decimals as the scale has zeros or digits, rounded
    /// down. Of a scale such as 1000 they are exact.
    pub fn decimal(self, hits: u64) -> Units {
        self.rounded(hits, |hits, scale| hits / scale)
    }

    /// The same, rounded up.
    pub fn decimal_rounded_up(self, hits: u64) -> Units {
        self.rounded(hits, u128::div_ceil)
    }

    /// The hits, where they may differ from units.
    pub fn exact(self, hits: u64) -> Option<u64> {
        (self != Self::ONE).then_some(hits)
    }

    /// The hits of these units; `None` if they are not whole. A sum of decimals is not exact in its
    /// last binary digits.
    pub fn hits_of(self, Units(units): Units) -> Option<u64> {
        let exact = units * f64::from(self.0.get());
        let error = (exact - exact.round()).abs();
        (error <= (exact * 1e-14).clamp(1e-9, 0.01)).then_some(exact.round() as u64)
    }

    fn rounded(self, hits: u64, divide: fn(u128, u128) -> u128) -> Units {
        let scale = u128::from(self.0.get());
        // The smallest power of ten that is at least the scale.
        let parts = 10_u128.pow((scale - 1).checked_ilog10().map_or(0, |log| log + 1));
        Units(divide(u128::from(hits) * parts, scale) as f64 / parts as f64)
    }
}

/// An amount or used hits in units of a `scale`, for operators: a number in JSON, whole if it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Units(pub f64);

/// No amount is NaN.
impl Eq for Units {}

impl Units {
    /// The decimals that were meant by a product or a sum of decimals.
    pub fn rounded(units: f64) -> Self {
        let nearest = (units * 1e9).round() / 1e9;
        Self(if units.fract() == 0.0 { units } else { nearest })
    }
}

impl Serialize for Units {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        match self.0.fract() == 0.0 {
            true => out.serialize_u64(self.0 as u64),
            false => out.serialize_f64(self.0),
        }
    }
}

impl fmt::Display for Units {
    /// With `,` between thousands.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.0.to_string();
        let decimals = text.find('.').map_or("", |point| &text[point..]);
        write!(out, "{}{decimals}", grouped(self.0 as u64))
    }
}

impl fmt::Display for Scale {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}

/// A rate and its algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Amount {
    /// This region's share of the amount in the files, in units of `scale` hits.
    pub rate: Rate,
    /// The number in `rate` as it is written, for all regions together.
    pub whole: u64,
    pub share: RegionShare,
    /// `burst` is another number than the amount, and does not grow with it.
    pub has_own_burst: bool,
    /// The hits of a unit.
    pub scale: Scale,
    /// `default_cost`: the hits of a request that names none.
    pub default_cost: Option<NonZeroU64>,
    /// `lease`: a replica may draw hits of a busy key ahead of its requests.
    pub lease: bool,
    /// `reservations`: requests may reserve hits and settle them later.
    pub reservations: Option<Reservations>,
    /// `notify`: the parts of the capacity whose use is reported.
    pub notify: Thresholds,
    /// The rate that the response shows: where a key can take more hits at once than a window has
    /// (`burst`, `max_delay`), the rate for that many hits. The remaining hits are then never more
    /// than the limit in the same response.
    pub display_rate: Rate,
    /// The algorithm of this rate and the limit's options. It counts hits.
    pub algorithm: Algorithm,
}

impl Amount {
    /// `algorithm` was made of `rate` and `scale`.
    pub fn new(rate: Rate, scale: Scale, algorithm: Algorithm) -> Self {
        Self {
            rate,
            whole: rate.requests_per_unit,
            share: RegionShare::default(),
            has_own_burst: false,
            scale,
            default_cost: None,
            lease: false,
            reservations: None,
            notify: Thresholds::default(),
            display_rate: rate.widened(scale.units_rounded_up(algorithm.capacity())),
            algorithm,
        }
    }

    /// The hits of a period; unlike the capacity without `burst` and `max_delay`.
    pub fn hits(&self) -> u64 {
        match self.algorithm {
            Algorithm::TokenBucket(_) | Algorithm::LeakyBucket(_) => {
                self.scale.hits(self.rate.requests_per_unit)
            }
            algorithm => algorithm.capacity(),
        }
    }

    /// The amount of all regions together in units. A raise in regions has them rounded up.
    pub fn whole_units(&self) -> Units {
        match self.share == RegionShare::default() {
            true => self.scale.decimal(self.hits()),
            false => Units(self.whole as f64),
        }
    }

    /// The rate of all regions together.
    pub fn whole_rate(&self) -> Rate {
        Rate {
            requests_per_unit: self.whole,
            ..self.rate
        }
    }

    /// The period of its amount; `None` for requests in flight.
    pub fn period(&self) -> Option<Period> {
        match self.algorithm {
            Algorithm::FixedWindow(fixed) => Some(fixed.window),
            _ => {
                let even = || self.rate.window().map(Period::Even);
                self.rate.calendar_months().or_else(even)
            }
        }
    }
}

/// Matching and counting of values at a level.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Matching {
    #[default]
    Text,
    /// By text; an address counts by its one canonical text, or as it is written in the files.
    Address,
    /// `set`
    Set {
        /// Some of its values are addresses: all spellings of one share a counter.
        has_addresses: bool,
    },
    /// `cidr`
    Cidr {
        /// IPv6 addresses share a counter with their network of this prefix length.
        prefix: Option<u8>,
    },
    /// `regex`
    Regex,
}

impl Matching {
    /// Whether the level has a list of its own, or an expression, instead of a text in which `*` is
    /// special.
    pub const fn is_by_more_than_text(self) -> bool {
        matches!(self, Self::Set { .. } | Self::Cidr { .. } | Self::Regex)
    }

    /// Whether all spellings of an address share a counter.
    pub const fn counts_addresses(self) -> bool {
        match self {
            Self::Address | Self::Cidr { .. } => true,
            Self::Set { has_addresses } => has_addresses,
            Self::Text | Self::Regex => false,
        }
    }
}

/// One level of the path to a limit, as it is written.
#[derive(Clone, Debug, Default)]
pub struct Level {
    /// Limits below one level share its texts, which the tree has too.
    pub key: Arc<str>,
    /// The value or pattern, or `set:`, `cidr:` or `regex:` followed by the values or the
    /// expression; `None` = any value. It is unique among the branches of a level.
    pub value: Option<Arc<str>>,
    pub matching: Matching,
    /// All values that match the pattern share one counter.
    pub is_shared: bool,
    /// Metrics carry the request's value of this level.
    pub value_to_metric: bool,
}

impl Level {
    /// Whether it has a value that is not a pattern, or a list of values.
    pub fn is_one_value(&self) -> bool {
        let value = self.value.as_deref();
        value.is_some_and(|value| self.matching.is_by_more_than_text() || !value.contains('*'))
    }

    /// `key` or `key_value`, as in the names of metrics.
    pub fn text(&self) -> String {
        match &self.value {
            Some(value) => format!("{}_{value}", self.key),
            None => self.key.to_string(),
        }
    }
}

impl Limit {
    /// The same limit for rows with this plan. Rows have numbers of their own, and no trial.
    pub(super) fn of_plan(&self, plan: &str, number: u32) -> Self {
        Self {
            id: LimitId::new(self.id.domain, number),
            plan: Some(plan.into()),
            trial: None,
            ..self.clone()
        }
    }

    /// Whether it counts nothing.
    pub const fn is_unlimited(&self) -> bool {
        self.amount.is_none() && !self.is_by_rows
    }

    /// Whether it limits requests in flight.
    #[inline]
    pub fn counts_in_flight(&self) -> bool {
        let amount = self.amount.as_ref();
        amount.is_some_and(|amount| amount.algorithm.counts_in_flight())
    }

    /// Whether requests can hold hits of it, or of a row.
    pub fn has_holds(&self) -> bool {
        self.amounts().any(|amount| amount.reservations.is_some())
    }

    /// The table with the rows of this limit and of the limits of their plans; `None` for a limit
    /// of a plan.
    pub fn own_table(&self) -> Option<&LimitTable> {
        let table = self.table.as_deref();
        table.filter(|table| table.owner == self.id.limit)
    }

    /// The possible amounts: its own, and the amounts of its rows, each at least once.
    pub fn amounts(&self) -> impl Iterator<Item = &Amount> {
        let meanings = self.table.iter().flat_map(|table| table.rows.meanings());
        let of_rows = meanings.filter(|meaning| meaning.limit == self.id.limit);
        let of_rows = of_rows.filter_map(|meaning| match &meaning.amount {
            RowAmount::Own(amount) => amount.as_ref(),
            RowAmount::OfLimit => None,
        });
        self.amount.iter().chain(of_rows)
    }

    /// The full key: the domain and all levels as written, joined by dots. Names the limit in
    /// messages, over reloads too.
    pub fn path(&self) -> String {
        format!("{}.{}", self.domain, self.path_in_domain())
    }

    /// All levels as written, joined by dots. Names the limit within its domain in metrics, over
    /// reloads too.
    pub fn path_in_domain(&self) -> String {
        joined(&self.levels)
    }

    /// [`Limit::display_name`] of a limit with this name and these levels.
    pub fn display_name_of(name: Option<&str>, levels: &[Level]) -> Box<str> {
        match name {
            Some(name) => display_name(name.as_bytes()).into(),
            None => display_name(joined(levels).as_bytes()).into(),
        }
    }
}

fn joined(levels: &[Level]) -> String {
    levels.iter().map(Level::text).collect::<Vec<_>>().join(".")
}
