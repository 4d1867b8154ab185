//! The tree of one domain, and the way of a descriptor through it.
//!
//! A look-up allocates nothing, and does not take longer where a level has more branches: values are looked up, and of the patterns only
//! those are tried that begin like the value. There is no way back, neither between siblings nor inside of a pattern, so that no client can
//! make it slow with a value of its choice.

use hashbrown::{Equivalent, HashMap};
use memchr::memmem;

use super::limit::LimitId;
use crate::ask::Entry;

/// One level: siblings, by key and value.
#[derive(Debug, Default)]
pub(super) struct Tree {
    branches: Vec<Branch>,
    /// Key and value as written. Patterns are in here too, by their own text.
    exact: HashMap<Pair, usize>,
    /// In the order of the files.
    patterns: Vec<(Pattern, usize)>,
    /// Patterns whose key is plain, by key and what stands before the first `*` of the value: places in `patterns`, in order.
    by_prefix: HashMap<Pair, Vec<usize>>,
    /// Every length of what stands before the first `*` of such a value, once.
    prefix_lengths: Vec<usize>,
    /// Patterns that only trying finds, because the `*` is in the key: places in `patterns`, in order.
    by_trying: Vec<usize>,
    /// Keys without a value.
    any_value: HashMap<Box<[u8]>, usize>,
}

/// What stands under a key and value.
#[derive(Debug)]
pub(super) struct Branch {
    pub(super) limit: Option<LimitId>,
    pub(super) children: Tree,
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Pair {
    key: Box<[u8]>,
    value: Box<[u8]>,
}

/// An entry of a request hashes like the pair that it equals.
#[derive(Hash)]
struct PairOfRequest<'a> {
    key: &'a [u8],
    value: &'a [u8],
}

impl Equivalent<Pair> for PairOfRequest<'_> {
    fn equivalent(&self, pair: &Pair) -> bool {
        self.key == &*pair.key && self.value == &*pair.value
    }
}

impl Tree {
    /// Adds a branch behind those that are there; of two with one key and value the first one stays. A value is not empty.
    pub(super) fn add(&mut self, key: &str, value: Option<&str>, branch: Branch) {
        let index = self.branches.len();
        let is_pattern = key.contains('*') || value.is_some_and(|value| value.contains('*'));
        if is_pattern {
            self.add_pattern(Pattern { key: Glob::new(key), value: value.map(Glob::new) }, index);
        }
        match value {
            Some(value) => {
                self.exact.entry(Pair { key: key.as_bytes().into(), value: value.as_bytes().into() }).or_insert(index);
            }
            None if is_pattern => {}
            None => {
                self.any_value.entry(key.as_bytes().into()).or_insert(index);
            }
        }
        self.branches.push(branch);
    }

    fn add_pattern(&mut self, pattern: Pattern, index: usize) {
        let place = self.patterns.len();
        match &pattern {
            Pattern { key: Glob { first: key, rest: None }, value: Some(Glob { first: prefix, .. }) } => {
                if !self.prefix_lengths.contains(&prefix.len()) {
                    self.prefix_lengths.push(prefix.len());
                }
                self.by_prefix.entry(Pair { key: key.clone(), value: prefix.clone() }).or_default().push(place);
            }
            _ => self.by_trying.push(place),
        }
        self.patterns.push((pattern, index));
    }

    /// The limit on the branch of the last entry.
    pub(super) fn find(&self, entries: &[Entry<'_>]) -> Option<LimitId> {
        let (last, way) = entries.split_last()?;
        let mut level = self;
        for entry in way {
            level = &level.branch(entry)?.children;
        }
        level.branch(last)?.limit
    }

    /// The exact value, then patterns, then the key alone.
    fn branch(&self, entry: &Entry<'_>) -> Option<&Branch> {
        let index = self
            .exact
            .get(&PairOfRequest { key: entry.key, value: entry.value })
            .copied()
            .or_else(|| self.pattern(entry))
            .or_else(|| self.any_value.get(entry.key).copied())?;
        self.branches.get(index)
    }

    /// The first pattern in the order of the files.
    fn pattern(&self, entry: &Entry<'_>) -> Option<usize> {
        let prefixes = self.prefix_lengths.iter().filter_map(|&length| entry.value.get(..length));
        let alike = prefixes.filter_map(|prefix| self.by_prefix.get(&PairOfRequest { key: entry.key, value: prefix }));
        let first_of = |places: &Vec<usize>| places.iter().copied().find(|&place| self.patterns[place].0.matches(entry));
        let first = alike.chain([&self.by_trying]).filter_map(first_of).min()?;
        Some(self.patterns[first].1)
    }
}

/// A key and a value of which at least one holds a `*`.
#[derive(Debug)]
struct Pattern {
    key: Glob,
    /// `None` = any value.
    value: Option<Glob>,
}

impl Pattern {
    fn matches(&self, entry: &Entry<'_>) -> bool {
        self.key.matches(entry.key) && self.value.as_ref().is_none_or(|value| value.matches(entry.value))
    }
}

/// Text in which each `*` stands for any bytes, also none.
#[derive(Debug)]
struct Glob {
    first: Box<[u8]>,
    /// What stands behind the first `*`; `None` without one.
    rest: Option<Rest>,
}

#[derive(Debug)]
struct Rest {
    /// What stands between two `*`. Searching for one of them is linear, whatever it looks like.
    middle: Vec<memmem::Finder<'static>>,
    last: Box<[u8]>,
}

impl Glob {
    fn new(text: &str) -> Self {
        let Some((first, behind)) = text.split_once('*') else { return Self { first: text.as_bytes().into(), rest: None } };
        let (middle, last) = behind.rsplit_once('*').unwrap_or(("", behind));
        let middle = middle.split('*').filter(|piece| !piece.is_empty()).map(|piece| memmem::Finder::new(piece).into_owned()).collect();
        Self { first: first.as_bytes().into(), rest: Some(Rest { middle, last: last.as_bytes().into() }) }
    }

    /// Beginning and end may not overlap; the pieces between are taken leftmost first, which finds a way whenever there is one.
    fn matches(&self, text: &[u8]) -> bool {
        let Some(rest) = &self.rest else { return text == &*self.first };
        let Some(behind) = text.strip_prefix(&*self.first) else { return false };
        let Some(mut between) = behind.strip_suffix(&*rest.last) else { return false };
        for piece in &rest.middle {
            let Some(at) = piece.find(between) else { return false };
            between = &between[at + piece.needle().len()..];
        }
        true
    }
}
