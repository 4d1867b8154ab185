//! Effect of an override on the limits in force, for the reply to the operator. The request path
//! does not use it.

use std::sync::Arc;

use super::{Kind, Override, Pattern, RaiseRate, Value, raised};
use crate::core::digest::sha256;
use crate::core::request::Entry;
use crate::core::time::Rate;
use crate::limits::rules::Rules;
use crate::limits::rules::address;
use crate::limits::rules::limit::{Amount, Level, Limit, LimitInForce, Scale, Units};

/// Why a raise does not fit a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unfit {
    /// The limit has another unit, or another multiple of it.
    OtherUnit(Rate),
    /// The limit has that amount, or more.
    NotAbove(Rate),
    /// These units are no whole number of hits, of which a unit has so many.
    Decimals(Scale, Units),
    /// The algorithm of the limit can hold at most this amount.
    AtMost(u64),
}

/// The limits of the descriptors that an override matches.
#[derive(Debug, Default)]
pub struct Reach<'r> {
    /// Limits that the override applies to, at most [`Reach::MOST`].
    pub limits: Vec<LimitInForce<'r>>,
    /// Limits with the same descriptors that the raise does not fit, with the same maximum.
    pub unfit: Vec<(&'r Limit, Unfit)>,
    /// Limits without an amount, for which a raise has no meaning.
    pub unlimited: usize,
    /// The rules have no such domain.
    pub unknown_domain: bool,
}

impl<'r> Reach<'r> {
    /// Maximum number of listed limits.
    pub const MOST: usize = 100;

    /// Finds the limits of the descriptors that `one` matches. For wildcards and digests these are
    /// all limits that a matching descriptor may have.
    pub fn new(rules: &'r Rules, one: &Override) -> Self {
        let mut reach = Self {
            unknown_domain: rules.domain(one.domain.as_bytes()).is_none(),
            ..Self::default()
        };
        let exact = |pattern| {
            let (key, value) = Pattern::exact(pattern)?;
            Some(Entry {
                key: key.as_bytes(),
                value: value.as_bytes(),
            })
        };
        let entries: Option<Vec<Entry<'_>>> = one.entries.iter().map(exact).collect();
        if let Some(entries) = entries {
            if let Some(limit) = rules.find(one.domain.as_bytes(), &entries) {
                reach.add(limit, limit.amount().into_iter(), one.kind);
            }
            return reach;
        }
        let of_domain = rules.limits().filter(|limit| *limit.domain == *one.domain);
        for limit in of_domain.filter(|limit| overlaps(&one.entries, &limit.levels)) {
            // Rows of a limit may have different amounts, of which some fit.
            reach.add(limit.into(), limit.amounts(), one.kind);
        }
        reach
    }

    fn add(
        &mut self,
        limit: LimitInForce<'r>,
        amounts: impl Iterator<Item = &'r Amount>,
        kind: Kind,
    ) {
        let mut fits = Ok(());
        if let Kind::Raise(raise) = kind {
            let mut all = amounts.map(|amount| raised(amount, &raise).map(drop));
            let Some(first) = all.next() else {
                self.unlimited += 1;
                return;
            };
            if first.is_err() && !all.any(|other| other.is_ok()) {
                fits = first;
            }
        }
        match fits {
            Ok(()) if self.limits.len() < Self::MOST => self.limits.push(limit),
            Err(unfit) if self.unfit.len() < Self::MOST => self.unfit.push((limit.limit, unfit)),
            _ => {}
        }
    }
}

/// Whether some descriptor matches both paths.
fn overlaps(entries: &[Pattern], levels: &[Level]) -> bool {
    entries.len() == levels.len()
        && entries.iter().zip(levels).all(|(entry, level)| {
            // Whether a set or an expression shares a value with a pattern is not computed: the
            // answer is yes.
            let is_text = !level.matching.is_by_more_than_text();
            let value = level.value.as_deref().filter(|_| is_text).unwrap_or("*");
            let is_common = match &entry.value {
                Value::Any => true,
                Value::Text(text) => intersect(&text.symbols(), &symbols(value)),
                Value::Network(network) => {
                    let other = address::read_network(value.as_bytes());
                    value.contains('*') || other.is_some_and(|other| network.contains(&other))
                }
                // The digest does not contain the value, which may match any pattern with a
                // wildcard.
                Value::Digest(digest) => value.contains('*') || sha256(value) == *digest,
            };
            is_common && intersect(&entry.key.symbols(), &symbols(&level.key))
        })
}

/// The overrides in `all` that conflict with a raise: blocks and exemptions of all its descriptors,
/// which take precedence over it, and larger raises, over which it takes precedence. `limits` are
/// the limits that it applies to.
pub fn above<'o>(
    all: &'o [Arc<Override>],
    one: &'o Override,
    limits: &'o [LimitInForce<'_>],
) -> impl Iterator<Item = &'o Override> {
    let is_above = |other: &Override| match (other.kind, one.kind) {
        (Kind::Raise(old), Kind::Raise(new)) => other.id != one.id && exceeds(old, new, limits),
        (_, kind) => matches!(kind, Kind::Raise(_)),
    };
    let covers_all = |other: &Override| {
        other.domain == one.domain
            && other.entries.len() == one.entries.len()
            && (other.entries.iter().zip(&*one.entries)).all(|(other, one)| covers(other, one))
    };
    let all = all.iter().map(|other| &**other);
    all.filter(move |other| is_above(other) && covers_all(other))
}

/// Whether a raise gives one of the limits more than another raise does.
fn exceeds(old: RaiseRate, new: RaiseRate, limits: &[LimitInForce<'_>]) -> bool {
    let mut amounts = limits.iter().filter_map(|limit| limit.amount());
    amounts.any(|amount| {
        let [old, new] = [old, new].map(|raise| raised(amount, &raise));
        matches!((old, new), (Ok(old), Ok(new)) if old.hits() > new.hits())
    })
}

/// Whether the first pattern matches all that the second one does.
fn covers(one: &Pattern, other: &Pattern) -> bool {
    let network = |text: &super::WildcardText| address::read_network(text.as_literal()?.as_bytes());
    let has_value = match (&one.value, &other.value) {
        (Value::Any, _) => true,
        (Value::Text(one), Value::Text(other)) => contains(&one.symbols(), &other.symbols()),
        (Value::Network(one), Value::Network(other)) => one.contains(other),
        (Value::Network(one), Value::Text(text)) => {
            network(text).is_some_and(|other| one.contains(&other))
        }
        (one, other) => one == other,
    };
    has_value && contains(&one.key.symbols(), &other.key.symbols())
}

/// Whether a pattern matches each text of another pattern, if each wildcard of the other falls into
/// one of its own. The wildcards of the other are compared as a byte that no text has.
pub(super) fn contains(one: &[Option<u8>], other: &[Option<u8>]) -> bool {
    let letters = other.iter().map(|symbol| symbol.or(Some(0xff)));
    intersect(one, &letters.collect::<Vec<_>>())
}

/// The bytes of a pattern in a file, where each `*` is a wildcard.
pub(super) fn symbols(text: &str) -> Vec<Option<u8>> {
    let symbol = |byte| (byte != b'*').then_some(byte);
    text.bytes().map(symbol).collect()
}

/// Whether some text matches both patterns, in which `None` is a wildcard. Takes at most the
/// product of their lengths, and little where the patterns begin with different texts.
/// `reached[j]`: whether the part of `one` read so far and the first `j` bytes of `other` match the
/// same text.
pub(super) fn intersect(one: &[Option<u8>], other: &[Option<u8>]) -> bool {
    let is_fixed = |(left, right): &(&Option<u8>, &Option<u8>)| left.is_some() && right.is_some();
    let mut both_fixed = one.iter().zip(other).take_while(is_fixed);
    if both_fixed.any(|(left, right)| left != right) {
        return false;
    }
    let mut reached = vec![false; other.len() + 1];
    reached[0] = true;
    for (index, byte) in other.iter().enumerate() {
        reached[index + 1] = reached[index] && byte.is_none();
    }
    for &byte in one {
        let mut diagonal = reached[0];
        reached[0] = reached[0] && byte.is_none();
        for (index, &facing) in other.iter().enumerate() {
            let above = reached[index + 1];
            reached[index + 1] = match (byte, facing) {
                // A wildcard ends here, or matches one more byte of the other pattern.
                (None, _) | (_, None) => above || reached[index],
                _ => diagonal && byte == facing,
            };
            diagonal = above;
        }
    }
    reached[other.len()]
}
