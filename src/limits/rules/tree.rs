//! The tree of one domain, and the look-up of a descriptor in it.
//!
//! A look-up allocates nothing, and takes no longer where a level has more branches: exact values
//! are found by their hash, and only those patterns are tried whose prefix the value has. It never
//! backtracks, neither between siblings nor inside a pattern: no client can slow a look-up down by
//! the values that it sends.
//!
//! Sets, networks and regular expressions are in `tree/matchers.rs`. Levels without them do not pay
//! for them.
//!
//! The overrides of operators are looked up in such trees too, with all matches
//! ([`Tree::each_match`]) instead of the first.
//!
//! Key and value are matched as a pair. envoyproxy/ratelimit joins them by `_`: there `user` with
//! the value `*` also matches the key `user_id`.

mod digest;
mod matchers;
pub(crate) mod regexes;
pub mod trace;

use std::sync::Arc;

pub(super) use digest::Precedence;
use hashbrown::{Equivalent, HashMap};
use ipnet::IpNet;
use matchers::{Matchers, OfKey};
use memchr::memmem;
pub(super) use regexes::{
    LARGEST_SET as LARGEST_REGEXES, check as check_regex, is_for_all, is_match as regex_matches,
};
use smallvec::SmallVec;

use super::address;
use super::limit::LimitId;
use crate::core::digest::sha256;
use crate::core::request::Entry;
use crate::core::request::notation::WildcardText;

/// One level: siblings, by key and value. `T` is the content at the end of a path.
#[derive(Debug, Default)]
pub(crate) struct Tree<T = LimitId> {
    branches: Vec<Branch<T>>,
    /// Key and value without a `*`. The text of a pattern is not in here: a client that sends it
    /// would choose the pattern that counts it.
    exact: HashMap<TreeKey, BranchIndex>,
    /// The patterns without a `*` in the key, in the order of the files, by the key and the prefix
    /// of the value up to its first `*`.
    by_prefix: HashMap<TreeKey, Vec<EntryPattern>>,
    /// The lengths of all such prefixes, each once.
    prefix_lengths: Vec<usize>,
    /// The other patterns, in order. Each of them has to be tried.
    by_trying: Vec<EntryPattern>,
    /// Keys with the SHA-256 of a value. Only overrides have them.
    by_digest: HashMap<Box<[u8]>, HashMap<[u8; 32], BranchIndex>>,
    /// Keys without a value.
    any_value: HashMap<Arc<[u8]>, BranchIndex>,
    /// Conditions other than text; `None` on most levels.
    matchers: Option<Box<Matchers>>,
}

/// An index of [`Tree::branches`]. Branches are in the order of the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct BranchIndex(usize);

/// Condition of a branch other than text.
#[derive(Clone, Debug)]
pub(super) enum Matched {
    /// These values.
    Set(Vec<Box<str>>),
    /// The addresses in these networks.
    Networks(Vec<IpNet>),
    /// The values that a regular expression matches as a whole.
    Regex(Box<str>),
}

/// A key and value, the content for a path that ends with it, and the level below.
#[derive(Debug)]
pub(crate) struct Branch<T = LimitId> {
    leaf: Option<T>,
    /// `None` without a level below: most branches are leaves, and an empty tree takes ten times as
    /// much memory.
    children: Option<Box<Tree<T>>>,
}

impl<T> Branch<T> {
    pub(crate) fn new(leaf: Option<T>, children: Tree<T>) -> Self {
        Self {
            leaf,
            children: (!children.branches.is_empty()).then(|| Box::new(children)),
        }
    }
}

/// A key and a value, of which the limits hold the texts too. An entry of a request and an equal one
/// of a tree have the same hash.
#[derive(Debug, PartialEq, Eq, Hash)]
struct TreeKey<B = Arc<[u8]>> {
    key: B,
    value: B,
}

impl Equivalent<TreeKey> for TreeKey<&[u8]> {
    fn equivalent(&self, pair: &TreeKey) -> bool {
        self.key == &*pair.key && self.value == &*pair.value
    }
}

impl<T> Tree<T> {
    /// Adds a branch as the last one. Of two branches with the same key and value, the first one
    /// counts. A value of a file is not empty.
    pub(crate) fn add(&mut self, key: &Arc<str>, value: Option<&Arc<str>>, branch: Branch<T>) {
        let index = self.push(branch);
        let is_pattern = key.contains('*') || value.is_some_and(|value| value.contains('*'));
        match value {
            _ if is_pattern => {
                let value = value.map(|value| Glob::new(value));
                self.add_pattern(Glob::new(key), value, index);
            }
            Some(value) => self.add_exact(Arc::clone(key), Arc::clone(value), index),
            None => self.add_any_value(Arc::clone(key), index),
        }
    }

    /// Adds a branch for texts whose stars may be literal, as in overrides. In files each `*` is a
    /// wildcard.
    pub(crate) fn add_texts(
        &mut self,
        key: &WildcardText,
        value: Option<&WildcardText>,
        branch: Branch<T>,
    ) {
        let index = self.push(branch);
        match (key.as_literal(), value.map(WildcardText::as_literal)) {
            (Some(key), Some(Some(value))) => self.add_exact(key.into(), value.into(), index),
            (Some(key), None) => self.add_any_value(key.into(), index),
            _ => {
                let glob = |text: &WildcardText| Glob::of(text.pieces());
                self.add_pattern(glob(key), value.map(glob), index);
            }
        }
    }

    fn push(&mut self, branch: Branch<T>) -> BranchIndex {
        self.branches.push(branch);
        BranchIndex(self.branches.len() - 1)
    }

    fn add_exact(&mut self, key: Arc<str>, value: Arc<str>, branch: BranchIndex) {
        let (key, value) = (key.into(), value.into());
        self.exact.entry(TreeKey { key, value }).or_insert(branch);
    }

    fn add_any_value(&mut self, key: Arc<str>, branch: BranchIndex) {
        self.any_value.entry(key.into()).or_insert(branch);
    }

    /// Adds a branch for the addresses and the networks in this one.
    pub(crate) fn add_network(&mut self, key: &str, network: IpNet, branch: Branch<T>) {
        let index = self.push(branch);
        self.matchers_mut(key).add_network(network, index);
    }

    /// Adds a branch for the value with this SHA-256.
    pub(crate) fn add_digest(&mut self, key: &str, value: [u8; 32], branch: Branch<T>) {
        let index = self.push(branch);
        let of_key = self.by_digest.entry(key.as_bytes().into());
        of_key.or_default().entry(value).or_insert(index);
    }

    /// Adds a branch that matches by more than text, which is written so. Of each value or network,
    /// returns the number of the branch that has it already. Regular expressions match nothing
    /// until they are compiled.
    pub(super) fn add_matched(
        &mut self,
        key: &str,
        source: &str,
        matched: &Matched,
        branch: Branch<T>,
    ) -> Vec<Option<usize>> {
        let index = self.push(branch);
        let of_key = self.matchers_mut(key);
        of_key.sources.push((index, source.into()));
        let number = |known: Option<BranchIndex>| known.map(|branch| branch.0);
        match matched {
            Matched::Set(values) => {
                let known = values.iter().map(|value| of_key.add_value(value, index));
                known.map(number).collect()
            }
            Matched::Networks(networks) => {
                let known = networks.iter().map(|it| of_key.add_network(*it, index));
                known.map(number).collect()
            }
            Matched::Regex(regex) => {
                of_key.regexes.add(regex, index);
                Vec::new()
            }
        }
    }

    /// Ends the level: compiles its regular expressions, one table for each key, and returns their
    /// bytes.
    ///
    /// # Errors
    /// The expressions of a key are too large together: the number of the branch of the last one.
    pub(super) fn complete(&mut self) -> Result<usize, usize> {
        self.branches.shrink_to_fit();
        let all = self.matchers.iter_mut().flat_map(|all| all.values_mut());
        let bytes: Result<_, BranchIndex> = all.map(|of_key| of_key.regexes.compile()).sum();
        bytes.map_err(|last| last.0)
    }

    fn add_pattern(&mut self, key: Glob, value: Option<Glob>, branch: BranchIndex) {
        let patterns = match (&key, &value) {
            (Glob { first, rest: None }, Some(Glob { first: prefix, .. })) => {
                if !self.prefix_lengths.contains(&prefix.len()) {
                    self.prefix_lengths.push(prefix.len());
                }
                let (key, value) = (first[..].into(), prefix[..].into());
                self.by_prefix.entry(TreeKey { key, value }).or_default()
            }
            _ => &mut self.by_trying,
        };
        patterns.push(EntryPattern { key, value, branch });
    }

    /// The earliest pattern that matches everything that this key and value match; without a value,
    /// any value. A `*` in them matches any text: only a `*` of the other pattern matches it,
    /// because the other texts of a pattern contain none.
    pub(super) fn pattern_before(&self, key: &str, value: Option<&str>) -> Option<usize> {
        let entry = Entry {
            key: key.as_bytes(),
            value: value.unwrap_or("*").as_bytes(),
        };
        let of_key = self.matchers(key.as_bytes());
        let regex = of_key.and_then(|of_key| of_key.regexes.for_all());
        let first = self.pattern(&entry).into_iter().chain(regex).min();
        first.map(|branch| branch.0)
    }

    /// Calls `visit` with the content of each branch whose path matches the entries, in no
    /// particular order. An address matches by its canonical text too. A look-up visits each branch
    /// at most once, and its time grows with the number of matching patterns.
    pub(crate) fn each_match(&self, entries: &[Entry<'_>], visit: &mut impl FnMut(&T)) {
        let Some((entry, below)) = entries.split_first() else {
            return;
        };
        let (key, text) = (entry.key, address::canonical(entry.value));
        let of_key = self.matchers(key);
        let mut matched = of_key
            .map(|of_key| of_key.networks(entry.value))
            .unwrap_or_default();
        matched.extend(self.any_value.get(key).copied());
        self.add_by_text(entry, &mut matched);
        if let Some(value) = text.as_deref().filter(|text| *text != entry.value) {
            self.add_by_text(&Entry { key, value }, &mut matched);
        }
        matched.sort_unstable();
        matched.dedup();
        for branch in matched
            .iter()
            .filter_map(|index| self.branches.get(index.0))
        {
            if below.is_empty() {
                branch.leaf.iter().for_each(&mut *visit);
            } else if let Some(children) = &branch.children {
                children.each_match(below, visit);
            }
        }
    }

    /// Adds the branches that match an entry by its text.
    fn add_by_text(&self, entry: &Entry<'_>, matched: &mut SmallVec<[BranchIndex; 2]>) {
        let tried = self.patterns_of(entry).flatten();
        let patterns = tried.filter(|pattern| pattern.matches(entry));
        let patterns = patterns.map(|pattern| pattern.branch);
        // Only values of keys with such branches are hashed.
        let digests = self.by_digest.get(entry.key);
        let digested = digests.and_then(|digests| digests.get(&sha256(entry.value)).copied());
        let exact = self.exact(entry.key, entry.value).into_iter();
        matched.extend(exact.chain(digested).chain(patterns));
    }

    /// The limit on the branch of the last entry.
    pub(super) fn find(&self, entries: &[Entry<'_>]) -> Option<T>
    where
        T: Copy,
    {
        let (last, above) = entries.split_last()?;
        let mut level = self;
        for entry in above {
            level = level.branch(entry)?.children.as_deref()?;
        }
        level.branch(last)?.leaf
    }

    /// The exact value, then sets, networks, patterns and expressions, then the key alone.
    fn branch(&self, entry: &Entry<'_>) -> Option<&Branch<T>> {
        self.branches.get(self.index(entry)?.0)
    }

    #[inline]
    fn index(&self, entry: &Entry<'_>) -> Option<BranchIndex> {
        self.exact(entry.key, entry.value)
            .or_else(|| {
                if self.matchers.is_none() {
                    self.pattern(entry)
                } else {
                    self.matched(entry)
                }
            })
            .or_else(|| self.any_value.get(entry.key).copied())
    }

    #[inline]
    fn exact(&self, key: &[u8], value: &[u8]) -> Option<BranchIndex> {
        self.exact.get(&TreeKey { key, value }).copied()
    }

    /// The lists of the patterns that may match an entry, each in the order of the files.
    #[inline]
    fn patterns_of<'t>(
        &'t self,
        entry: &'t Entry<'_>,
    ) -> impl Iterator<Item = &'t Vec<EntryPattern>> {
        let (key, value) = (entry.key, entry.value);
        let lengths = self.prefix_lengths.iter();
        let by_prefix = lengths.filter_map(move |&length| {
            let value = value.get(..length)?;
            self.by_prefix.get(&TreeKey { key, value })
        });
        by_prefix.chain([&self.by_trying])
    }

    fn matchers(&self, key: &[u8]) -> Option<&OfKey> {
        self.matchers.as_deref()?.get(key)
    }

    fn matchers_mut(&mut self, key: &str) -> &mut OfKey {
        let all = self.matchers.get_or_insert_default();
        all.entry(key.as_bytes().into()).or_default()
    }

    /// Sets, then the network with the longest prefix, then patterns and regular expressions in the
    /// order of the files. A separate function, to keep levels without them short.
    #[inline(never)]
    fn matched(&self, entry: &Entry<'_>) -> Option<BranchIndex> {
        let Some(of_key) = self.matchers(entry.key) else {
            return self.pattern(entry);
        };
        let before = of_key.before_patterns(entry.value, |value| self.exact(entry.key, value));
        before.or_else(|| {
            let regex = of_key.regexes.find(entry.value);
            self.pattern(entry).into_iter().chain(regex).min()
        })
    }

    /// The first pattern in the order of the files.
    fn pattern(&self, entry: &Entry<'_>) -> Option<BranchIndex> {
        let first_of = |patterns: &Vec<EntryPattern>| {
            let first = patterns.iter().find(|pattern| pattern.matches(entry))?;
            Some(first.branch)
        };
        self.patterns_of(entry).filter_map(first_of).min()
    }
}

/// A key and a value, of which at least one contains a `*`.
#[derive(Debug)]
struct EntryPattern {
    key: Glob,
    /// `None` = any value.
    value: Option<Glob>,
    branch: BranchIndex,
}

impl EntryPattern {
    fn matches(&self, entry: &Entry<'_>) -> bool {
        let value = self.value.as_ref();
        self.key.matches(entry.key) && value.is_none_or(|value| value.matches(entry.value))
    }
}

/// Whether a text of a file matches a key or a value; each `*` matches any bytes.
pub(crate) fn matches(written: &str, text: &[u8]) -> bool {
    Glob::new(written).matches(text)
}

/// A text in which each `*` matches any bytes, also none.
#[derive(Debug)]
pub(super) struct Glob {
    first: Box<[u8]>,
    /// The text after the first `*`; `None` without one.
    rest: Option<Rest>,
}

#[derive(Debug)]
struct Rest {
    /// The texts between two `*`. The search for each takes linear time for any text.
    middle: Vec<memmem::Finder<'static>>,
    last: Box<[u8]>,
}

impl Glob {
    pub(super) fn new(text: &str) -> Self {
        Self::of(text.split('*'))
    }

    /// Of the texts around each `*`.
    fn of<'t>(mut pieces: impl DoubleEndedIterator<Item = &'t str>) -> Self {
        let first = pieces.next().unwrap_or_default().as_bytes().into();
        let Some(last) = pieces.next_back() else {
            return Self { first, rest: None };
        };
        let middle = pieces.filter(|piece| !piece.is_empty());
        let middle = middle.map(|piece| memmem::Finder::new(piece).into_owned());
        let rest = Rest {
            middle: middle.collect(),
            last: last.as_bytes().into(),
        };
        let rest = Some(rest);
        Self { first, rest }
    }

    /// The first and the last text may not overlap. The texts between match at the leftmost
    /// position, which finds a match if there is one.
    pub(super) fn matches(&self, text: &[u8]) -> bool {
        let Some(rest) = &self.rest else {
            return text == &*self.first;
        };
        let Some(behind) = text.strip_prefix(&*self.first) else {
            return false;
        };
        let Some(mut between) = behind.strip_suffix(&*rest.last) else {
            return false;
        };
        for piece in &rest.middle {
            let Some(at) = piece.find(between) else {
                return false;
            };
            between = &between[at + piece.needle().len()..];
        }
        true
    }
}

#[cfg(test)]
mod matchers_tests;
