//! Overrides: orders of operators for some descriptors. The limits themselves do not change.
//!
//! `block` refuses the descriptors, `exempt` lets them pass without a count, and `raise` sets a
//! larger amount for their limit. `overrides/record.rs` defines the serialized form and all bounds;
//! this file compiles overrides to a tree for each domain, in which a plan looks up its
//! descriptors. This module does not store them.
//!
//! # Which one applies
//!
//! Of all overrides that match a descriptor and have not ended, the first one in this order:
//!
//! 1. A block or an exemption before a raise: an order to block has nothing to do with amounts.
//! 2. The more specific one. Entries are compared from the first to the last: an entry without
//!    wildcards before one with, and more text that is no wildcard before less; of networks the
//!    smaller one. So an address is exempt from the block of its network.
//! 3. A block before an exemption.
//! 4. The newest.
//!
//! An address is one value in all its spellings, both in an override and in a descriptor. Counters
//! of limits with networks use the same canonical text, and therefore the name of a counter is also
//! the entry of an override for it. A text with wildcards matches an address as it is sent, or by
//! its canonical text.
//!
//! A raise sets an amount, or adds one to the amount of the limit when it applies. A raise that
//! does not fit the limit of a descriptor (another unit, or not above its amount) is skipped.
//!
//! # Guarantees
//!
//! A raise never lowers a limit, an exempt quota always has hits left, and an exempt limit replaces
//! others as before: no request fails because of an exemption or a raise. A property test checks
//! this. Values are hashed only if an override has a digest at that level. Digests let operators
//! block a client with a long token, of which lists contain only the digest, or with a value that
//! is not UTF-8.

mod reach;
pub(crate) mod record;

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use hashbrown::HashMap;
use ipnet::IpNet;
use smallvec::SmallVec;

use crate::core::algorithm::Algorithm;
use crate::core::digest;
use crate::core::request::Entry;
use crate::core::request::notation::{Role, WildcardText};
use crate::core::time::{MAX_SAFE_INTEGER, Micros, Rate, Span};
use crate::limits::rules::address;
use crate::limits::rules::limit::{Amount, Units};
use crate::limits::rules::tree::{Branch, Tree};
pub use reach::{Reach, Unfit, above};
use record::invalid;
pub use record::{
    Ended, EntryRecord, Invalid, MAX_RECORD_BYTES, RateRecord, Record, instant, parse_instant,
};

/// Maximum number of overrides. A tree of this size takes some ten megabytes, and reading it takes
/// a fraction of a second.
pub const MAX_OVERRIDES: usize = 10_000;

/// Maximum number of overrides with a wildcard, because a look-up may have to try each of them.
pub const MAX_PATTERNS: usize = 1_000;

/// The action of an override.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The descriptor is over its limit, also where it has none.
    Block,
    /// The descriptor is allowed and not counted.
    Exempt,
    /// The descriptor's limit has this amount, if that is more, in this unit. Its counter stays.
    Raise(RaiseRate),
}

/// The amount of a raise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RaiseRate {
    /// The unit, and the whole units.
    pub rate: Rate,
    /// The units with their decimals.
    pub units: Units,
    /// The rate is added to the amount of the limit.
    pub is_added: bool,
}

impl fmt::Display for RaiseRate {
    /// As operators write it: `500/minute`, or `+500/minute` if it is added.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.is_added { "+" } else { "" };
        let rate = self.rate.to_string();
        let unit = rate.trim_start_matches(|digit: char| digit.is_ascii_digit());
        write!(out, "{sign}{}{unit}", self.units.0)
    }
}

impl Kind {
    /// All of them by their names, in the order of [`Kind::index`].
    pub const NAMES: [&'static str; 3] = ["block", "exempt", "raise"];

    /// Its index in [`Kind::NAMES`].
    pub const fn index(self) -> usize {
        match self {
            Self::Block => 0,
            Self::Exempt => 1,
            Self::Raise(_) => 2,
        }
    }

    /// As in commands and records.
    pub const fn name(self) -> &'static str {
        Self::NAMES[self.index()]
    }
}

/// One override.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Override {
    /// A digest of kind, domain and entries: an override replaces the one that it repeats.
    pub id: Box<str>,
    pub kind: Kind,
    /// The domain of its descriptors.
    pub domain: Box<str>,
    /// One for each entry of its descriptors, in their order; not empty.
    pub entries: Box<[Pattern]>,
    /// Time of expiry; `None`: in force until it is removed.
    pub until: Option<Micros>,
    /// The operator's reason.
    pub reason: Box<str>,
    /// The name of who ordered it.
    pub by: Box<str>,
    /// When.
    pub created_at: Micros,
}

/// An entry of an override: each `*` matches any text, as in files of limits, and `\*` is a star.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pattern {
    pub key: WildcardText,
    pub value: Value,
}

/// The value of an entry of an override.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Value {
    Any,
    /// This text, with wildcards.
    Text(WildcardText),
    /// The addresses and the networks in this one.
    Network(IpNet),
    /// The value with this SHA-256: a value of which Weir has only the digest, or that is not
    /// UTF-8.
    Digest([u8; 32]),
}

impl Override {
    /// Whether it has ended at this instant.
    pub fn has_ended(&self, now: Micros) -> bool {
        self.until.is_some_and(|until| until <= now)
    }

    /// The action and its descriptors. A new override replaces the one with the same identity.
    fn identity(&self) -> (usize, &str, &[Pattern]) {
        (self.kind.index(), &self.domain, &self.entries)
    }

    /// Adds an addition to this one, if both add an amount per the same unit. Without an end of its
    /// own, it ends as that one.
    pub fn add_to(&mut self, before: &Self) -> bool {
        let (Kind::Raise(new), Kind::Raise(old)) = (&mut self.kind, before.kind) else {
            return false;
        };
        let unit = |rate: &Rate| (rate.unit, rate.unit_multiplier);
        let is_sum = new.is_added && old.is_added && unit(&new.rate) == unit(&old.rate);
        if is_sum {
            let sum = (new.units.0 + old.units.0).min(MAX_SAFE_INTEGER as f64);
            new.units = Units::rounded(sum);
            new.rate.requests_per_unit = new.units.0 as u64;
            self.until = self.until.or(before.until);
        }
        is_sum
    }

    /// Whether it matches one descriptor.
    pub fn is_exact(&self) -> bool {
        self.entries.iter().all(|entry| entry.exact().is_some())
    }

    /// Whether an entry has a value: without one, all descriptors with these keys are meant.
    pub fn has_value(&self) -> bool {
        self.entries.iter().any(Pattern::has_value)
    }

    /// Whether a look-up has to compare it: a hash finds exact entries, and keys with any value.
    fn has_to_be_tried(&self) -> bool {
        self.entries.iter().any(|entry| entry.wildcards() > 0)
    }
}

impl FromStr for Pattern {
    type Err = Invalid;

    /// Reads `KEY=VALUE`, or `KEY` for any value.
    fn from_str(text: &str) -> Result<Self, Invalid> {
        let (key, value) = match text.split_once('=') {
            Some((key, value)) => (key, Value::Text(WildcardText::read(value))),
            None => (text, Value::Any),
        };
        if key.is_empty() {
            let remedy = "write KEY=VALUE, or KEY for any value";
            return invalid(format!("`{text}` has no key; {remedy}"));
        }
        let key = WildcardText::read(key);
        Ok(Self { key, value })
    }
}

impl fmt::Display for Pattern {
    /// As operators write it, on one line: `key=value`, or the key alone for any value. A digest is
    /// `key#` and its digits, which commands do not read.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.key.escaped(Role::Key))?;
        match &self.value {
            Value::Any => Ok(()),
            Value::Text(text) => write!(out, "={}", text.escaped(Role::Value)),
            Value::Network(network) => write!(out, "={network}"),
            Value::Digest(digest) => write!(out, "#{}", digest::hex(digest)),
        }
    }
}

impl Pattern {
    /// The entry that matches only this key and this value, for any bytes.
    pub fn literal(key: &str, value: &[u8]) -> Self {
        let value = match str::from_utf8(value) {
            Ok(value) => Value::Text(WildcardText::literal(value)),
            Err(_) => Value::Digest(digest::sha256(value)),
        };
        let key = WildcardText::literal(key);
        Self { key, value }
    }

    /// The entry of a pattern of a file, in which each `*` is a wildcard.
    pub fn of_file(key: &str, pattern: &str) -> Self {
        let text = |text: &str| WildcardText::read(&text.replace('\\', r"\\"));
        let (key, value) = (text(key), Value::Text(text(pattern)));
        Self { key, value }
    }

    fn has_wildcards(&self) -> bool {
        matches!(self.value, Value::Any | Value::Network(_)) || self.wildcards() > 0
    }

    /// The wildcards in its texts.
    fn wildcards(&self) -> usize {
        let of_value = match &self.value {
            Value::Text(text) => text.wildcards(),
            _ => 0,
        };
        self.key.wildcards() + of_value
    }

    /// The bits of its key and value outside of wildcards.
    fn literal_bits(&self) -> usize {
        let of_value = match &self.value {
            Value::Any => 0,
            Value::Text(text) => 8 * text.literal_bytes(),
            Value::Network(network) => network.prefix_len().into(),
            Value::Digest(digest) => 8 * digest.len(),
        };
        8 * self.key.literal_bytes() + of_value
    }

    /// Replaces an address by its canonical text, and the text of a network by the network.
    #[must_use]
    pub fn canonical(self) -> Self {
        let Some((_, text)) = self.exact() else {
            return self;
        };
        let value = match address::read_network(text.as_bytes()) {
            None => return self,
            Some(network) if network.prefix_len() == network.max_prefix_len() => {
                Value::Text(WildcardText::literal(&network.addr().to_string()))
            }
            Some(network) => Value::Network(network),
        };
        Self { value, ..self }
    }

    /// Whether it has a value, at least a part of one.
    pub fn has_value(&self) -> bool {
        match &self.value {
            Value::Text(text) => text.as_literal().is_some() || text.literal_bytes() > 0,
            Value::Network(network) => network.prefix_len() > 0,
            Value::Digest(_) => true,
            Value::Any => false,
        }
    }

    /// With the digest of a long value, as keys of counters have it: such a value may be a secret.
    /// A value with a wildcard stays.
    #[must_use]
    pub fn by_digest(self) -> Self {
        match self.exact() {
            Some((_, text)) if text.len() > digest::LONGEST_PLAIN => Self {
                value: Value::Digest(digest::sha256(text)),
                ..self
            },
            _ => self,
        }
    }

    /// Key and value, if the pattern matches only this pair and the value is no digest.
    pub fn exact(&self) -> Option<(&str, &str)> {
        let Value::Text(value) = &self.value else {
            return None;
        };
        Some((self.key.as_literal()?, value.as_literal()?))
    }
}

/// An index of [`Overrides::list`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rank(u32);

/// The overrides on one branch of a tree.
type Ranks = SmallVec<[Rank; 2]>;

/// Overrides, compiled.
#[derive(Debug, Default)]
pub struct Overrides {
    /// All of them, in the order in which they apply.
    pub list: Vec<Arc<Override>>,
    by_domain: HashMap<Box<[u8]>, Tree<Ranks>>,
    /// The number of overrides that were not compiled, because there are too many.
    pub left_out: usize,
}

/// Overrides at one instant.
#[derive(Clone, Copy, Debug)]
pub struct InForce<'o> {
    overrides: &'o Overrides,
    now: Micros,
    raises_only: bool,
}

impl Overrides {
    /// Compiles overrides. Of overrides with one identity the newest is taken. Above
    /// [`MAX_OVERRIDES`] or [`MAX_PATTERNS`] the oldest are left out.
    pub fn new(list: Vec<impl Into<Arc<Override>>>) -> Self {
        let mut list: Vec<Arc<Override>> = list.into_iter().map(Into::into).collect();
        list.sort_by(|one, other| {
            let by_age = other.created_at.cmp(&one.created_at);
            one.identity().cmp(&other.identity()).then(by_age)
        });
        list.dedup_by(|older, newer| older.identity() == newer.identity());
        let before = list.len();
        list.sort_by_key(|one| Reverse(one.created_at));
        let mut patterns = 0;
        list.retain(|one| {
            patterns += usize::from(one.has_to_be_tried());
            !one.has_to_be_tried() || patterns <= MAX_PATTERNS
        });
        list.truncate(MAX_OVERRIDES);
        let left_out = before - list.len();
        list.sort_by_cached_key(|one| precedence(one));
        let mut domains: HashMap<&str, Members<'_>> = HashMap::new();
        for (rank, one) in (0..).zip(&list) {
            let mut members = domains.entry(&one.domain).or_default();
            for entry in &one.entries {
                members = members.below.entry(entry).or_default();
            }
            members.ranks.push(Rank(rank));
        }
        let tree =
            |(domain, members): (&str, Members<'_>)| (domain.as_bytes().into(), members.tree());
        Self {
            by_domain: domains.into_iter().map(tree).collect(),
            list,
            left_out,
        }
    }

    /// Whether there is room for one more.
    ///
    /// # Errors
    /// Another override has the id, or there are too many in force at `now`.
    pub fn admit(&self, one: &Override, now: Micros) -> Result<(), Invalid> {
        let mut all = self.list.iter();
        if all.any(|other| other.id == one.id && one.identity() != other.identity()) {
            return invalid(format!(
                "another override has the id {}; remove that first",
                one.id
            ));
        }
        let is_other = |other: &&Arc<Override>| other.id != one.id && !other.has_ended(now);
        let others = || self.list.iter().filter(is_other);
        if others().count() >= MAX_OVERRIDES {
            return invalid(format!(
                "there are {MAX_OVERRIDES} overrides already, which is the most; remove some, or \
                 use a wildcard"
            ));
        }
        let tried = others().filter(|other| other.has_to_be_tried());
        if one.has_to_be_tried() && tried.count() >= MAX_PATTERNS {
            let most =
                format!("there are {MAX_PATTERNS} overrides with a * already, which is the most");
            return invalid(format!(
                "{most}; remove some, or write whole values, of which there may be {MAX_OVERRIDES}"
            ));
        }
        Ok(())
    }

    /// The overrides in force at `now`.
    pub const fn at(&self, now: Micros) -> InForce<'_> {
        InForce {
            overrides: self,
            now,
            raises_only: false,
        }
    }
}

impl<'o> InForce<'o> {
    /// The overrides that apply to this number of hits. A refund has to reach the counter even if
    /// the descriptor is blocked or exempt: only raises apply to negative hits.
    #[must_use]
    pub const fn for_hits(self, hits: i64) -> Self {
        Self {
            raises_only: self.raises_only || hits < 0,
            ..self
        }
    }

    /// The override that applies to a descriptor, and its effect, which for a raise contains the
    /// new amount. `amount` is the amount of the limit; `None`: no limit, or an unlimited one.
    pub fn find(
        &self,
        domain: &[u8],
        entries: &[Entry<'_>],
        amount: Option<&Amount>,
    ) -> Option<(&'o Override, Applied)> {
        let tree = self.overrides.by_domain.get(domain)?;
        let mut matching: SmallVec<[Rank; 4]> = SmallVec::new();
        tree.each_match(entries, &mut |ranks| matching.extend_from_slice(ranks));
        matching.sort_unstable();
        let all = &self.overrides.list;
        let mut matching = matching.iter().filter_map(|rank| all.get(rank.0 as usize));
        matching.find_map(|one| {
            let applied = match one.kind {
                _ if one.has_ended(self.now) => return None,
                Kind::Block | Kind::Exempt if self.raises_only => return None,
                Kind::Block => Applied::Block {
                    ends_in: one.until.map(|until| until.since(self.now)),
                },
                Kind::Exempt => Applied::Exempt,
                Kind::Raise(raise) => Applied::Raise(raised(amount?, &raise).ok()?),
            };
            Some((&**one, applied))
        })
    }
}

/// Effect of an override on a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applied {
    /// Over its limit.
    Block {
        /// The time to the end of the block; `None`: it has none.
        ends_in: Option<Span>,
    },
    /// Allowed and not counted.
    Exempt,
    /// Its limit has this amount.
    Raise(Amount),
}

/// The amount that a limit is raised to.
///
/// # Errors
/// The raise does not fit this limit.
pub fn raised(amount: &Amount, raise: &RaiseRate) -> Result<Amount, Unfit> {
    let (rate, to, scale) = (amount.whole_rate(), raise.rate, amount.scale);
    if (rate.unit, rate.unit_multiplier) != (to.unit, to.unit_multiplier) {
        return Err(Unfit::OtherUnit(rate));
    }
    let own = scale.hits(rate.requests_per_unit);
    let added = scale.hits_of(raise.units);
    let added = added.ok_or(Unfit::Decimals(scale, raise.units))?;
    let whole = match raise.is_added {
        true => own.saturating_add(added),
        false => added,
    };
    if whole <= own {
        return Err(Unfit::NotAbove(rate));
    }
    // Shares of whole units are whole, as in files.
    let units = scale.units(whole);
    let limit = match scale.hits(units) == whole {
        true => scale.hits(amount.share.of(units)),
        false => amount.share.of(whole),
    };
    let too_large = |largest| Unfit::AtMost(scale.units(largest));
    let mut algorithm = amount.algorithm.with_limit(limit).map_err(too_large)?;
    // Two amounts may have the same share.
    if let (true, Algorithm::TokenBucket(bucket)) = (amount.has_own_burst, &mut algorithm) {
        bucket.burst = amount.algorithm.capacity();
    }
    let own = Rate {
        requests_per_unit: scale.units_rounded_up(limit),
        ..rate
    };
    Ok(Amount {
        rate: own,
        whole: scale.units_rounded_up(whole),
        display_rate: Amount::new(own, scale, algorithm).display_rate,
        algorithm,
        ..*amount
    })
}

/// Of two overrides, the one with the smaller precedence applies; see the top of this file.
///
/// Limits take the first branch that matches; overrides compare all matches, because an override
/// must not be hidden by a branch without a match or by an expired one. So expiry needs no timer. A
/// property test compares the tree with a list in this order.
fn precedence(one: &Override) -> impl Ord + use<> {
    let text = |entry: &Pattern| (entry.has_wildcards(), Reverse(entry.literal_bits()));
    (
        matches!(one.kind, Kind::Raise(_)),
        one.entries.iter().map(text).collect::<Vec<_>>(),
        one.kind.index(),
        Reverse(one.created_at),
        one.id.clone(),
    )
}

/// The overrides whose paths begin alike, before they become a tree.
#[derive(Default)]
struct Members<'p> {
    /// Of those whose path ends here.
    ranks: Ranks,
    below: BTreeMap<&'p Pattern, Members<'p>>,
}

impl Members<'_> {
    fn tree(self) -> Tree<Ranks> {
        let mut tree = Tree::default();
        for (Pattern { key, value }, mut members) in self.below {
            let ranks = Some(std::mem::take(&mut members.ranks));
            let branch = Branch::new(ranks.filter(|ranks| !ranks.is_empty()), members.tree());
            match (value, key.as_literal()) {
                (Value::Any, _) => tree.add_texts(key, None, branch),
                (Value::Text(value), _) => tree.add_texts(key, Some(value), branch),
                (Value::Network(network), Some(key)) => tree.add_network(key, *network, branch),
                (Value::Digest(value), Some(key)) => tree.add_digest(key, *value, branch),
                // Records do not combine them with a wildcard.
                (Value::Network(_) | Value::Digest(_), None) => {}
            }
        }
        tree
    }
}
#[cfg(test)]
mod tests;
