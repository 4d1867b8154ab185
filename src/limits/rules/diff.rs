//! Differences of two sets of rules: limits that were added, removed and changed.
//!
//! A limit is the same in both if its domain and the keys and values of its path are. The texts are
//! human-readable and have no control characters; each has a bound, because files may hold long
//! values. Of a domain with the same limits, in which a descriptor may find another one (the order
//! of patterns, a descriptor without a limit, a set), the digests differ.

use std::collections::{HashMap, HashSet};
use std::fmt;

use indexmap::IndexMap;
use serde::Serialize;

use super::compile::OneLine;
use super::limit::{
    Amount, Level, Limit, LimitId, LimitInForce, LimitTable, Matching, OnStoreFailure, RowMeaning,
    Scale,
};
use super::place::cut;
use super::region::RegionShare;
use super::table::RowNumber;
use super::{Commit, Rules};
use crate::core::algorithm::{Algorithm, Debt};
use crate::core::text;
use crate::core::time::{Period, Span, Unit, people};

/// The field of a domain whose limits are the same.
pub(crate) const DIGEST: &str = "digest";

/// Maximum characters of a path, or of the text of a field.
const LONGEST_TEXT: usize = 200;

/// The limits of which two sets of rules differ, in the order of the files.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// Only in the new rules.
    pub added: Vec<NamedLimit>,
    /// Only in the old rules.
    pub removed: Vec<NamedLimit>,
    /// In both, with other fields.
    pub changed: Vec<Changed>,
    /// Tables that both have, with other rows.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rows: Vec<ChangedRows>,
    /// This region has another share of a limit that both have.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub moves_shares: bool,
}

/// A limit of one of the two.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NamedLimit {
    /// Its path.
    pub limit: String,
    /// Its rate and its algorithm.
    pub amount: String,
}

/// A limit that both have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Changed {
    /// Its path.
    pub limit: String,
    /// At least one.
    pub fields: Vec<ChangedField>,
    /// Its counters have other keys: they start at zero.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub resets: bool,
}

/// One field of a limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ChangedField {
    /// Its name in a file, or `rate`.
    pub field: &'static str,
    /// Its value before.
    pub old: String,
    /// Its value now.
    pub new: String,
}

impl Difference {
    /// Compares two sets of rules.
    pub fn new(old: &Rules, new: &Rules) -> Self {
        let (old_limits, new_limits) = (limits_beyond(old, new), limits_beyond(new, old));
        let by_path = old_limits.iter().map(|&limit| (identity(limit), limit));
        let mut by_path: HashMap<_, &Limit> = by_path.collect();
        let mut difference = Self::default();
        for limit in new_limits {
            let Some(before) = by_path.remove(&identity(limit)) else {
                difference.added.push(NamedLimit::new(limit));
                continue;
            };
            // All amounts of a limit have one share: a plan makes a limit of its own.
            let share = |limit: &Limit| limit.amounts().map(|amount| amount.share).next();
            let shares = share(before).zip(share(limit));
            difference.moves_shares |= shares.is_some_and(|(before, after)| before != after);
            let rows = ChangedRows::new((old, before), (new, limit));
            difference.rows.extend(rows);
            let fields = changed_fields((old, before), (new, limit));
            if !fields.is_empty() {
                let keys = key(old, before).zip(key(new, limit));
                difference.changed.push(Changed {
                    limit: name_of(limit),
                    fields,
                    resets: keys.is_some_and(|(before, after)| before != after),
                });
            }
        }
        let removed = old_limits.into_iter();
        let removed = removed.filter(|limit| by_path.contains_key(&identity(limit)));
        difference.removed = removed.map(NamedLimit::new).collect();
        difference.compare_digests(old, new);
        difference
    }

    /// Adds the domains that differ in something without a name.
    fn compare_digests(&mut self, old: &Rules, new: &Rules) {
        for after in new.by_name.values().filter(|after| !old.shares(after)) {
            let name = one_line(&after.name);
            let prefix = format!("{name}.");
            let Some(before) = old.by_name.get(after.name.as_bytes()) else {
                continue;
            };
            let digests = [old.digest_of(before), new.digest_of(after)];
            let has_named = || self.limits().any(|limit| limit.starts_with(&prefix));
            let have_moved = || {
                let [one, other] = [before, after].map(|domain| domain.precedence());
                one.differs(&other)
            };
            if digests[0] != digests[1] && !self.moves_shares && (!has_named() || have_moved()) {
                let [old, new] = digests.map(|digest| format!("{digest:016x}"));
                let field = DIGEST;
                self.changed.push(Changed {
                    limit: name,
                    fields: vec![ChangedField { field, old, new }],
                    resets: false,
                });
            }
        }
    }

    /// Whether nothing differs.
    pub(crate) const fn is_empty(&self) -> bool {
        self.added.is_empty()
            && self.removed.is_empty()
            && self.changed.is_empty()
            && self.rows.is_empty()
            && !self.moves_shares
    }

    /// The limits that differ, or whose rows do. One may be there twice.
    pub(crate) fn limits(&self) -> impl Iterator<Item = &str> {
        let named = self.added.iter().chain(&self.removed);
        let changed = self.changed.iter();
        let changed = changed.filter(|one| one.fields[0].field != DIGEST);
        let changed = changed.map(|changed| &changed.limit);
        let all = named.map(|limit| &limit.limit).chain(changed);
        all.chain(self.rows.iter().map(|rows| &rows.limit))
            .map(String::as_str)
    }
}

impl NamedLimit {
    fn new(limit: &Limit) -> Self {
        let mut amount = rate(limit.into());
        match limit.amount.as_ref().map(|amount| amount.algorithm) {
            None => {}
            Some(Algorithm::FixedWindow(fixed)) => {
                amount += &FieldTexts::calendar(fixed.window).rest();
            }
            Some(other) => amount += &format!(", {}", other.kind().name()),
        }
        if let Some(table) = limit.own_table() {
            let file = one_line(&table.rows.file.document.name);
            amount += &format!(", {} rows of {file}", table.rows.len());
        }
        let limit = name_of(limit);
        Self { limit, amount }
    }
}

impl fmt::Display for NamedLimit {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} ({})", self.limit, self.amount)
    }
}

impl fmt::Display for Changed {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |ChangedField { field, old, new }: &_| format!("{field} {old} -> {new}");
        let fields: Vec<_> = self.fields.iter().map(text).collect();
        write!(out, "{}: {}", self.limit, fields.join(", "))?;
        write_resets(out, self.resets)
    }
}

fn write_resets(out: &mut fmt::Formatter<'_>, resets: bool) -> fmt::Result {
    match resets {
        true => out.write_str("; counters start at zero"),
        false => Ok(()),
    }
}

/// The limits of the domains that the other rules do not share.
fn limits_beyond<'r>(rules: &'r Rules, other: &Rules) -> Vec<&'r Limit> {
    let domains = rules.by_number.iter();
    let own = domains.filter(|domain| !other.shares(domain));
    own.flat_map(|domain| &domain.limits).collect()
}

/// The limits of the new rules that have lost `reservations`, now or in a reload before, and have
/// still the same algorithm.
pub fn lost_reservations(old: &Rules, new: &Rules) -> HashSet<LimitId> {
    let counter = |limit| {
        let mut kinds = Limit::amounts(limit).map(|amount| amount.algorithm.kind());
        (identity(limit), kinds.next())
    };
    let before = &old.without_reservations;
    let had = |limit: &&Limit| limit.has_holds() || before.contains(&limit.id);
    let had = limits_beyond(old, new).into_iter().filter(had);
    let had: HashSet<_> = had.map(counter).collect();
    let new_limits = limits_beyond(new, old).into_iter();
    let may_have_lost = |limit: &&Limit| !had.is_empty() && !limit.has_holds();
    let lost = new_limits.filter(|limit| may_have_lost(limit) && had.contains(&counter(limit)));
    let is_shared = |id: &&LimitId| new.shares(&old.by_number[id.domain as usize]);
    let shared = before.iter().filter(is_shared).copied();
    lost.map(|limit| limit.id).chain(shared).collect()
}

/// Position of a limit: the domain, the levels, and the plan if its descriptor has another limit.
type LimitIdentity<'r> = (&'r str, Vec<(&'r str, Option<&'r str>)>, Option<&'r str>);

/// Identity of a limit, by which both sets are compared.
fn identity(limit: &Limit) -> LimitIdentity<'_> {
    let levels = limit.levels.iter();
    let levels = levels.map(|level| (&*level.key, level.value.as_deref()));
    (&limit.domain, levels.collect(), plan_of_rows(limit))
}

/// The plan of a limit that its descriptor has in addition to its own.
fn plan_of_rows(limit: &Limit) -> Option<&str> {
    let is_of_rows = limit.table.is_some() && limit.own_table().is_none();
    limit.plan.as_deref().filter(|_| is_of_rows)
}

/// The path of a limit, with the plan that distinguishes it from others of that path.
pub(crate) fn name_of(limit: &Limit) -> String {
    let plan = plan_of_rows(limit).map(|plan| format!(", plan {}", one_line(plan)));
    one_line(&limit.path()) + &plan.unwrap_or_default()
}

/// The parts of the keys of a limit's counters that its fields decide: the algorithm, how values are
/// counted, and the hash slot. `None` for a limit without counters.
fn key(rules: &Rules, limit: &Limit) -> Option<(Vec<u8>, bool)> {
    let mut parts = Vec::new();
    limit.amounts().next()?.algorithm.write_key_tag(&mut parts);
    for level in &limit.levels {
        let counting = (level.is_shared, level.matching);
        parts.extend(format!("{counting:?}").bytes());
    }
    let commit = rules.commit(limit.domain.as_bytes());
    Some((parts, commit == Some(Commit::AllOrNone)))
}

fn changed_fields(old: (&Rules, &Limit), new: (&Rules, &Limit)) -> Vec<ChangedField> {
    let mut values: IndexMap<&'static str, [Option<String>; 2]> = IndexMap::new();
    // A table is next to the file that names it, in the folder that is compared.
    let text = |field: &str, value: String| match (field, value.rsplit_once('/')) {
        ("table", Some((_, name))) => Some(name.to_owned()),
        _ => Some(value),
    };
    for (field, value) in fields(new.0, new.1) {
        values.entry(field).or_default()[1] = text(field, value);
    }
    for (field, value) in fields(old.0, old.1) {
        values.entry(field).or_default()[0] = text(field, value);
    }
    values.retain(|_, [old, new]| old != new);
    let one_line = |value: Option<String>| one_line(value.as_deref().unwrap_or("none"));
    let field = |(field, values): (_, [_; 2])| {
        let [old, new] = values.map(one_line);
        ChangedField { field, old, new }
    };
    values.into_iter().map(field).collect()
}

/// All fields of a limit, with the names of files. A field that the limit does not have is missing.
pub fn fields<'r>(
    rules: &Rules,
    in_force: impl Into<LimitInForce<'r>>,
) -> Vec<(&'static str, String)> {
    let in_force = in_force.into();
    let (limit, amount) = (in_force.limit, in_force.amount());
    let mut texts = FieldTexts::default();
    texts.add("rate", Some(rate(in_force)));
    let share = amount.and_then(|amount| share(rules, limit, amount));
    texts.add("share", share);
    texts.extend(amount.map(FieldTexts::of_amount));
    texts.add_features(in_force);
    texts.add("plan", limit.plan.as_ref());
    let table = limit.table.as_deref().filter(|_| in_force.row.is_none());
    texts.add("table", table.map(|table| &table.rows.file));
    texts.add("rows", table.map(|table| table.rows_of(limit.id)));
    texts.add("row", in_force.row_origin());
    texts.add("name", in_force.name());
    texts.add("shadow_mode", Some(in_force.shadow_mode()));
    texts.add("quota_mode", Some(limit.quota_mode));
    let policy = in_force.on_store_failure().and_then(policy);
    texts.add("on_store_failure", policy);
    let commit = rules.commit(limit.domain.as_bytes()).unwrap_or_default();
    texts.add("commit", text::name_of(&Commit::NAMED, &commit));
    texts.add_list("replaces", limit.replaces.iter());
    texts.add("detailed_metric", Some(limit.detailed_metric));
    let levels = || limit.levels.iter();
    let keys = |is_on: fn(&&Level) -> bool| levels().filter(is_on).map(|level| &level.key);
    texts.add_list("value_to_metric", keys(|level| level.value_to_metric));
    texts.add_list("share_threshold", keys(|level| level.is_shared));
    let prefix = |level: &Level| match level.matching {
        Matching::Cidr { prefix } => prefix,
        _ => None,
    };
    texts.add_list("prefix", levels().filter_map(prefix));
    let metadata = limit.metadata.clone().map(serde_json::Value::from);
    texts.add("metadata", metadata);
    texts.0
}

/// Fields with their texts. A field without a value is missing.
#[derive(Default)]
pub(super) struct FieldTexts(Vec<(&'static str, String)>);

impl FieldTexts {
    pub(super) fn add(&mut self, field: &'static str, value: Option<impl ToString>) {
        self.0.extend(value.map(|value| (field, value.to_string())));
    }

    /// Adds values, separated by commas.
    pub(super) fn add_list(
        &mut self,
        field: &'static str,
        values: impl Iterator<Item = impl ToString>,
    ) {
        let texts: Vec<_> = values.map(|value| value.to_string()).collect();
        self.add(field, (!texts.is_empty()).then(|| texts.join(", ")));
    }

    fn extend(&mut self, others: impl IntoIterator<Item = Self>) {
        self.0
            .extend(others.into_iter().flat_map(|others| others.0));
    }

    /// The fields that the others do not have with the same text.
    pub(super) fn without(mut self, others: &Self) -> Self {
        self.0.retain(|field| !others.0.contains(field));
        self
    }

    /// The text that follows another one on its line.
    pub(super) fn rest(self) -> String {
        let text = |(name, value)| format!(", {name} {value}");
        self.0.into_iter().map(text).collect()
    }
}

/// The name of a failure policy.
fn policy(policy: OnStoreFailure) -> Option<&'static str> {
    text::name_of(&OnStoreFailure::NAMED, &policy)
}

/// This region's part of an amount; `None` if that is the whole amount.
fn share(rules: &Rules, limit: &Limit, amount: &Amount) -> Option<String> {
    let region = rules.domain(limit.domain.as_bytes())?.region.as_ref();
    let region = region.map_or_else(String::new, |name| format!(" ({name})"));
    let whole = people::grouped(amount.whole);
    (amount.share != RegionShare::default()).then(|| format!("{} of {whole}{region}", amount.share))
}

fn rate(limit: LimitInForce<'_>) -> String {
    match limit.amount() {
        Some(amount) => rate_of(amount),
        None if limit.limit.is_by_rows && limit.row.is_none() => "by its rows".to_owned(),
        None => "unlimited".to_owned(),
    }
}

pub(super) fn rate_of(amount: &Amount) -> String {
    let (rate, unit) = (amount.rate, amount.rate.unit.name());
    match rate.unit_multiplier {
        _ if rate.unit == Unit::None => rate.to_string(),
        1 => format!("{} per {unit}", rate.requests_per_unit),
        multiplier => format!("{} per {multiplier} {unit}s", rate.requests_per_unit),
    }
}

impl FieldTexts {
    /// The algorithm and its options, with their defaults filled in.
    pub(super) fn of_amount(amount: &Amount) -> Self {
        let algorithm = &amount.algorithm;
        let mut texts = Self::default();
        texts.add("algorithm", Some(algorithm.kind().name()));
        match algorithm {
            Algorithm::FixedWindow(fixed) => texts.extend([Self::calendar(fixed.window)]),
            Algorithm::SlidingWindowLog(_) | Algorithm::SlidingWindowCounter(_) => {}
            Algorithm::TokenBucket(bucket) => {
                texts.add("burst", Some(amount.scale.units(bucket.burst)));
            }
            Algorithm::LeakyBucket(bucket) => {
                texts.add("max_delay", Some(bucket.tick.span(bucket.max_delay)));
            }
            Algorithm::Concurrency(concurrency) => {
                let longest = Span::from_micros(concurrency.max_duration);
                texts.add("max_duration", Some(longest));
            }
            Algorithm::SlidingWindowBuckets(ring) => {
                let span = |ticks: u64| Some(Span::from_micros(ticks));
                let all_buckets = ring.interval.saturating_mul(ring.buckets.into());
                texts.add("bucket_interval", span(ring.interval));
                texts.add("bucket_span", span(all_buckets));
                texts.add("subject_expiry", span(ring.expiry));
            }
        }
        let scale = Some(amount.scale);
        texts.add("scale", scale.filter(|scale| *scale != Scale::ONE));
        texts.add("default_cost", amount.default_cost);
        texts.add("lease", amount.lease.then_some(true));
        texts.add("reservations", amount.reservations);
        let debt = Some(algorithm.debt()).filter(|_| !algorithm.counts_in_flight());
        texts.add("count_denied", debt.map(Debt::counts));
        let has_bound = |debt: &Debt| *debt != Debt::ONE && *debt != Debt::NONE;
        texts.add("max_debt", debt.filter(has_bound).map(Debt::limits));
        texts
    }

    /// The fields of a limit that follows the calendar.
    fn calendar(period: Period) -> Self {
        let mut texts = Self::default();
        let (zone, week_starts, anchor) = match period {
            Period::Even(_) => return texts,
            Period::Months(_) => ("UTC".to_owned(), None, None),
            Period::Calendar(calendar) => {
                let zone = calendar.zone().to_string();
                (zone, calendar.week_starts(), calendar.anchor())
            }
        };
        texts.add("period", Some("calendar"));
        texts.add("timezone", Some(zone));
        texts.add("week_starts", week_starts);
        texts.add("anchor", anchor);
        texts
    }
}

/// A text of a file on one line and of bounded length.
fn one_line(text: &str) -> String {
    OneLine(&cut(text, LONGEST_TEXT)).to_string()
}

/// Maximum number of changed rows that are listed.
const MOST_NAMED: usize = 5;

/// The rows of one table that differ.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ChangedRows {
    /// The path of its descriptor.
    pub limit: String,
    /// The name of its file.
    pub table: String,
    /// Only in the new table.
    pub added: usize,
    /// Only in the old table.
    pub removed: usize,
    /// In both, with another plan, amount, name, mode or failure policy of their own.
    pub changed: usize,
    /// The first of them, human-readable.
    pub first: Vec<String>,
    /// Counters of a row have other keys: they start at zero.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub resets: bool,
}

/// All own fields of a row: its plan, its meaning without the number of its limit, and its name.
fn says<'r>(
    rules: &'r Rules,
    limit: &Limit,
    table: &'r LimitTable,
    row: RowNumber,
) -> Option<(Option<&'r str>, RowMeaning, Option<&'r str>)> {
    let mut meaning = *table.rows.meaning(row)?;
    let of_row = rules.limit(LimitId::new(limit.id.domain, meaning.limit));
    let plan = of_row.plan.as_deref();
    let plan = plan.filter(|_| meaning.limit != table.owner);
    meaning.limit = 0;
    Some((plan, meaning, table.rows.name(row)))
}

/// The rows by which the tables of a limit differ in two sets of rules, each with its numbers in
/// both; none unless both have a table of their own.
pub(crate) fn differing_rows<'r>(
    old: (&'r Rules, &'r Limit),
    new: (&'r Rules, &'r Limit),
) -> impl Iterator<Item = [Option<RowNumber>; 2]> {
    let tables = old.1.own_table().zip(new.1.own_table());
    tables.into_iter().flat_map(move |(before, after)| {
        let after_rows = after.rows.rows().filter_map(move |row| {
            let known = before.rows.find(after.rows.value(row));
            let same = known.is_some_and(|known| {
                says(new.0, new.1, after, row) == says(old.0, old.1, before, known)
            });
            (!same).then_some([known, Some(row)])
        });
        let is_removed = move |row: &RowNumber| after.rows.find(before.rows.value(*row)).is_none();
        let removed = before.rows.rows().filter(is_removed);
        after_rows.chain(removed.map(|row| [Some(row), None]))
    })
}

impl ChangedRows {
    /// Compares the rows of a limit in two sets of rules; `None` if both have the same, or one of
    /// them has no table of its own.
    fn new(old: (&Rules, &Limit), new: (&Rules, &Limit)) -> Option<Self> {
        let (before, after) = (old.1.own_table()?, new.1.own_table()?);
        let mut all = Self {
            limit: name_of(new.1),
            table: one_line(&after.rows.file.document.name),
            ..Self::default()
        };
        for rows in differing_rows(old, new) {
            match rows {
                [Some(row), None] => {
                    all.removed += 1;
                    let what = || format!("removed ({})", text(old, before, row));
                    all.name(before.rows.value(row), what);
                }
                [None, Some(row)] => {
                    all.added += 1;
                    let what = || format!("added ({})", text(new, after, row));
                    all.name(after.rows.value(row), what);
                }
                [Some(known), Some(row)] => {
                    all.changed += 1;
                    let keys = [(old, before, known), (new, after, row)].map(key_of_row);
                    all.resets |= matches!(&keys, [Some(old), Some(new)] if old != new);
                    all.name(after.rows.value(row), || {
                        format!("{} -> {}", text(old, before, known), text(new, after, row))
                    });
                }
                [None, None] => {}
            }
        }
        (all.added + all.removed + all.changed > 0).then_some(all)
    }

    fn name(&mut self, value: &[u8], what: impl FnOnce() -> String) {
        if self.first.len() < MOST_NAMED {
            let value = one_line(&String::from_utf8_lossy(value));
            self.first.push(format!("{value}: {}", what()));
        }
    }
}

/// The limit of a row.
fn limit_of<'r>(
    (rules, limit): (&'r Rules, &'r Limit),
    table: &LimitTable,
    row: RowNumber,
) -> LimitInForce<'r> {
    let meaning = table.rows.meaning(row);
    let of_row = meaning.map(|meaning| LimitId::new(limit.id.domain, meaning.limit));
    LimitInForce {
        limit: of_row.map_or(limit, |id| rules.limit(id)),
        row: Some(row),
    }
}

/// The part of the keys of a row's counters that its fields decide; `None` without counters.
fn key_of_row((of, table, row): ((&Rules, &Limit), &LimitTable, RowNumber)) -> Option<Vec<u8>> {
    let mut tag = Vec::new();
    let amount = limit_of(of, table, row).amount()?;
    amount.algorithm.write_key_tag(&mut tag);
    Some(tag)
}

/// The amount of a row, its plan, and its other fields.
fn text(of: (&Rules, &Limit), table: &LimitTable, row: RowNumber) -> String {
    let (meaning, name) = (table.rows.meaning(row), table.rows.name(row));
    let in_force = limit_of(of, table, row);
    let limit = in_force.limit;
    let amount = in_force.amount();
    let mut text = amount.map_or_else(|| "unlimited".to_owned(), rate_of);
    let mut texts = FieldTexts::default();
    texts.add("plan", limit.plan.as_deref().map(one_line));
    texts.add("name", name.map(one_line));
    text += &texts.rest();
    text.extend(in_force.shadow_mode().then_some(", shadow_mode"));
    if let Some(policy) = meaning.and_then(|meaning| policy(meaning.on_store_failure?)) {
        text += &format!(", on_store_failure {policy}");
    }
    text
}

impl fmt::Display for ChangedRows {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (added, removed, changed) = (self.added, self.removed, self.changed);
        write!(
            out,
            "{}: rows of {}: {added} added, {removed} removed, {changed} changed: {}",
            self.limit,
            self.table,
            self.first.join("; ")
        )?;
        match added + removed + changed - self.first.len() {
            0 => {}
            more => write!(out, "; and {more} more")?,
        }
        write_resets(out, self.resets)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::rules::compile::rules_of;

    const OLD: &str = "
domain: d
descriptors:
- key: same
  rate_limit: { unit: day, requests_per_unit: 1 }
- key: user
  value: alice
  rate_limit: { unit: minute, requests_per_unit: 10 }
- key: user
  rate_limit: { unit: minute, requests_per_unit: 10 }
  descriptors:
  - key: path
    rate_limit: { unit: second, requests_per_unit: 5, algorithm: token_bucket, burst: 9 }
- key: gone
  rate_limit: { unit: hour, requests_per_unit: 2, algorithm: leaky_bucket, max_delay: 1s }
";

    #[test]
    fn added_removed_and_changed_limits_are_listed_in_the_order_of_the_files() {
        let new = OLD
            .replace(
                "value: alice\n  rate_limit: { unit: minute, requests_per_unit: 10 }",
                "value: alice\n  rate_limit: { unlimited: true }",
            )
            .replace("burst: 9", "burst: 8, on_store_failure: local")
            .replace("gone", "new");
        let difference = Difference::new(&rules_of(OLD), &rules_of(&new));
        let lines = |texts: Vec<String>| texts.join("\n");
        assert_eq!(
            lines(difference.added.iter().map(ToString::to_string).collect()),
            "d.new (2 per hour, leaky_bucket)"
        );
        assert_eq!(
            lines(difference.removed.iter().map(ToString::to_string).collect()),
            "d.gone (2 per hour, leaky_bucket)"
        );
        let changed = lines(difference.changed.iter().map(ToString::to_string).collect());
        let expected = "d.user_alice: rate 10 per minute -> unlimited, algorithm fixed_window -> \
            none, count_denied true -> none\n\
                        d.user.path: burst 9 -> 8, on_store_failure none -> local";
        assert_eq!(changed, expected);
    }

    #[test]
    fn limits_that_have_lost_reservations_are_known_over_reloads() {
        let of = |algorithm: &str, option: &str| {
            rules_of(&format!(
                "domain: d\ndescriptors:\n- key: other\n  rate_limit: {{ unit: day, \
                 requests_per_unit: 1 }}\n- key: a\n  rate_limit: {{ unit: day, \
                 requests_per_unit: 9, algorithm: {algorithm}{option} }}\n"
            ))
        };
        let option = ", reservations: { ttl: 5s }";
        let lost = |old: &Rules, mut new: Rules| {
            new.without_reservations = lost_reservations(old, &new);
            new
        };
        let with = of("fixed_window", option);
        let first = lost(&with, of("fixed_window", ""));
        let expected = HashSet::from([LimitId::new(0, 1)]);
        assert_eq!(first.without_reservations, expected);
        let second = lost(&first, of("fixed_window", ", count_denied: false"));
        assert_eq!(second.without_reservations, expected);
        let shared = Rules::new([(0, std::sync::Arc::clone(&second.by_number[0]))]);
        assert_eq!(lost(&second, shared).without_reservations, expected);
        for other in [
            of("token_bucket", ""),
            of("fixed_window", option),
            Rules::default(),
        ] {
            let none = lost(&second, other);
            assert!(none.without_reservations.is_empty());
        }
        assert!(
            lost(&of("fixed_window", ""), with)
                .without_reservations
                .is_empty()
        );
    }

    #[test]
    fn equal_rules_do_not_differ_and_each_field_counts() {
        let same = Difference::new(&rules_of(OLD), &rules_of(OLD));
        assert_eq!(same, Difference::default());
        let with = |options: &str, more: &str| {
            rules_of(&format!(
                "domain: d\ndescriptors:\n- key: a\n  value: b*\n  rate_limit: {{ unit: day, \
                 requests_per_unit: 1{options} }}\n{more}"
            ))
        };
        for (options, more, field) in [
            ("0", "", "rate"),
            (", unit_multiplier: 2", "", "rate"),
            (
                ", algorithm: sliding_window_log, count_denied: true",
                "",
                "algorithm",
            ),
            (", count_denied: false", "", "count_denied"),
            (", name: n", "", "name"),
            (", notify: [80%]", "", "notify"),
            (", on_store_failure: deny", "", "on_store_failure"),
            ("", "  shadow_mode: true\n", "shadow_mode"),
            ("", "  quota_mode: true\n", "quota_mode"),
            ("", "  detailed_metric: true\n", "detailed_metric"),
            ("", "  value_to_metric: true\n", "value_to_metric"),
            ("", "  share_threshold: true\n", "share_threshold"),
            ("", "  metadata: { team: x }\n", "metadata"),
            ("", "commit: all_or_none\n", "commit"),
        ] {
            let difference = Difference::new(&with("", ""), &with(options, more));
            let changed = difference.changed.iter();
            let fields = changed.flat_map(|changed| &changed.fields);
            let fields: Vec<_> = fields.map(|changed| changed.field).collect();
            assert_eq!(fields, [field], "{options}{more}");
        }
    }

    #[test]
    fn calendars_differ_by_zone_and_begin() {
        let limit = |more: &str| {
            rules_of(&format!(
                "domain: d\ndescriptors: [{{ key: a, rate_limit: {{ unit: month, \
                 requests_per_unit: 1, period: {more} }} }}]\n"
            ))
        };
        let zone = "calendar, timezone: Europe/Berlin";
        for (old, new, shown) in [
            (
                "fixed",
                zone,
                "period none -> calendar, timezone none -> Europe/Berlin",
            ),
            ("calendar", zone, "timezone UTC -> Europe/Berlin"),
            (
                zone,
                "calendar, timezone: europe/berlin, anchor: 2026-01-31",
                "anchor none -> day 31",
            ),
            (
                "calendar, anchor: 2026-01-31",
                "calendar, anchor: 2026-03-31T06:00",
                "anchor day 31 -> day 31 at 06:00",
            ),
            (
                "calendar, anchor: 2026-01-31",
                "calendar, anchor: 2026-03-31",
                "",
            ),
        ] {
            let changed: Vec<_> = Difference::new(&limit(old), &limit(new))
                .changed
                .iter()
                .map(ToString::to_string)
                .collect();
            let expected: Vec<_> = Some(format!("d.a: {shown}; counters start at zero"))
                .filter(|_| !shown.is_empty())
                .into_iter()
                .collect();
            assert_eq!(changed, expected);
        }
    }

    #[test]
    fn texts_of_files_are_bounded_and_on_one_line() {
        let new = format!(
            "domain: d\ndescriptors:\n- key: \"a\\n{}\"\n  rate_limit: {{ unit: day, \
             requests_per_unit: 1 }}\n",
            "x".repeat(1_000)
        );
        let difference = Difference::new(&Rules::default(), &rules_of(&new));
        let text = difference.added[0].to_string();
        assert!(
            text.starts_with("d.a\\nxxx") && text.ends_with("x... (1 per day)") && text.len() < 230,
            "{text}"
        );
    }
}
