//! One level of the tree under construction, and conflicts between its descriptors: one may be a
//! duplicate, or unreachable.

use std::sync::Arc;

use hashbrown::hash_map::Entry;
use hashbrown::{HashMap, HashSet};

use super::Compiler;
use super::matching::{MOST_REGEX_BYTES, Match};
use super::problem::{Problems, quoted};
use crate::limits::rules::address;
use crate::limits::rules::limit::{Level, Matching};
use crate::limits::rules::place::Place;
use crate::limits::rules::source::Node;
use crate::limits::rules::tree::{Branch, LARGEST_REGEXES, Tree, is_for_all};

/// Maximum number of patterns of one level that are compared with earlier ones. It bounds the time
/// of loading.
const MOST_PATTERNS: usize = 1_000;

/// One level under construction.
#[derive(Default)]
pub(super) struct Siblings {
    pub(super) tree: Tree,
    /// Key and value as a pair: (`a_b`, `c`) is not (`a`, `b_c`).
    seen: HashMap<(Arc<str>, Option<Arc<str>>), Place>,
    /// The place of each branch of the tree in the file, in the order of the branches.
    places: Vec<Place>,
    /// The patterns so far.
    patterns: usize,
    /// Keys with networks: all values that are addresses count by their canonical text there.
    with_networks: HashSet<Arc<str>>,
    /// Keys whose values count as they are sent, and where each was first written.
    as_sent: HashMap<Arc<str>, Place>,
}

impl Siblings {
    /// Notes which keys of a list have networks, before its descriptors are read: their addresses
    /// then count by canonical text. Descriptors of an earlier file are already read, and are
    /// reported.
    pub(super) fn add_networks(&mut self, problems: &Problems, items: &[Node]) {
        for item in items {
            let text = |name| item.get(name).and_then(Node::text);
            let (Some("cidr"), Some(key)) = (text("match"), text("key")) else {
                continue;
            };
            if let Some(first) = self.as_sent.remove(key) {
                let shown = quoted(key);
                let what = format!(
                    "the networks of {shown} come after {first}, where its addresses count as they \
                     are spelled"
                );
                let remedy = "write all descriptors of the key in one file, or those with networks \
                    in the first one";
                problems.warning(&item.at, what, remedy);
            }
            self.with_networks.insert(key.into());
        }
    }

    /// Counts addresses in one spelling where a descriptor compares its values as text and its
    /// siblings have networks of its key. Without networks, its values are noted as texts.
    pub(super) fn count_addresses(&mut self, level: &mut Level, at: &Place) {
        if !matches!(level.matching, Matching::Text | Matching::Address) {
            return;
        }
        if self.with_networks.contains(&level.key) {
            level.matching = Matching::Address;
            let text = level.value.as_deref().unwrap_or_default();
            if let Some(address) = address::read(text.as_bytes()) {
                level.value = Some(address.to_string().into());
            }
        } else if !self.as_sent.contains_key(&level.key) {
            self.as_sent.insert(level.key.clone(), at.clone());
        }
    }

    /// Adds a branch that is written at `at`. Warns of its values and networks that earlier
    /// branches have.
    pub(super) fn add(
        &mut self,
        problems: &Problems,
        at: &Place,
        level: &Level,
        matched: Option<&Match>,
        branch: Branch,
    ) {
        let own = self.places.len();
        self.places.push(at.clone());
        let Some(matched) = matched else {
            return self.tree.add(&level.key, level.value.as_ref(), branch);
        };
        let (key, text) = (&level.key, level.value.as_deref().unwrap_or_default());
        let known = self.tree.add_matched(key, text, &matched.what, branch);
        let of_other = |branch: &Option<usize>| {
            let other = branch.filter(|branch| *branch != own)?;
            self.places.get(other).map(Place::to_string)
        };
        let others: Vec<Option<String>> = known.iter().map(of_other).collect();
        if let Some(Some(first)) = others.first()
            && others.iter().all(Option::is_some)
        {
            let what =
                format!("this descriptor is never reached: what it matches is in {first} already");
            return problems.warning(at, what, "remove it");
        }
        for ((text, at), (known, other)) in matched.items().zip(known.iter().zip(others)) {
            if let Some(first) = other {
                let why = format!("the descriptor in {first} has it already");
                let what = format!("{text} is never matched here: {why}");
                problems.warning(at, what, "remove it from one of the two");
            } else if known.is_some() {
                problems.warning(at, format!("{text} occurs here twice"), "remove one");
            }
        }
    }

    /// Completes the level.
    pub(super) fn finish(&mut self, compiler: &mut Compiler<'_>) {
        let (what, branch) = match self.tree.complete() {
            Ok(0) => return,
            Ok(bytes) => {
                let total = &mut compiler.matched.regex_bytes;
                *total = total.saturating_add(bytes);
                if let Some(at) = self.places.last() {
                    let _ = compiler.memory.take(compiler.problems, at, bytes);
                }
                if *total <= MOST_REGEX_BYTES {
                    return;
                }
                let what = format!(
                    "the tables of all regular expressions need more than {MOST_REGEX_BYTES} bytes"
                );
                (what, self.places.len().saturating_sub(1))
            }
            Err(last) => {
                let what = "the table of the regular expressions of this level and key needs more";
                (format!("{what} than {LARGEST_REGEXES} bytes"), last)
            }
        };
        if let Some(at) = self.places.get(branch) {
            let remedy =
                "write fewer that begin with .*, join them with |, or write a set of values";
            compiler.problems.error(at, what, remedy);
        }
    }

    /// Whether the level of a descriptor already has one with the same key and value, which is
    /// reported.
    pub(super) fn is_duplicate(&mut self, problems: &Problems, at: &Place, level: &Level) -> bool {
        let first = match self.seen.entry((level.key.clone(), level.value.clone())) {
            Entry::Vacant(entry) => {
                entry.insert(at.clone());
                return false;
            }
            Entry::Occupied(entry) => entry.get().to_string(),
        };
        let value = level.value.as_ref();
        let value = value.map(|value| format!("value {}", quoted(value)));
        let value = value.as_deref().unwrap_or("no value");
        let key = quoted(&level.key);
        let what =
            format!("this level already has a descriptor with key {key} and {value}, in {first}");
        let remedy = "merge the two descriptors, or change the key or the value of one";
        problems.error(at, what, remedy);
        true
    }

    /// Warns of a descriptor that no entry reaches, because an earlier pattern of its level matches
    /// all that it matches; and of an earlier descriptor with the key alone if this is a pattern
    /// for all values of the key.
    pub(super) fn warn_of_unreachable(
        &mut self,
        problems: &Problems,
        at: &Place,
        level: &Level,
        matched: Option<&Match>,
    ) {
        let regex = matched.map(Match::regex);
        let key = &*level.key;
        let value = level.value.as_deref().filter(|_| regex.is_none());
        // Sets and networks are found before all patterns.
        if regex == Some(None) {
            return;
        }
        let is_pattern =
            regex.is_some() || key.contains('*') || value.is_some_and(|value| value.contains('*'));
        // A value without a '*' is found before all patterns.
        if (!is_pattern && value.is_some()) || self.patterns >= MOST_PATTERNS {
            return;
        }
        self.patterns += usize::from(is_pattern);
        let first = self.tree.pattern_before(key, value);
        if let Some(first) = first.and_then(|branch| self.places.get(branch)) {
            let what = format!(
                "this descriptor is never reached: the pattern in {first} matches everything that \
                 it matches"
            );
            let remedy = match is_pattern {
                true => "move it before that pattern, or remove it",
                false => "remove it, or remove that pattern",
            };
            problems.warning(at, what, remedy);
        }
        let is_for_all = regex.flatten().is_some_and(is_for_all)
            || value.is_some_and(|value| value.bytes().all(|byte| byte == b'*'));
        if is_pattern
            && is_for_all
            && let Some(first) = self.seen.get(&(level.key.clone(), None))
        {
            let what = format!(
                "this descriptor is never reached: the pattern in {at} matches every value of the \
                 key"
            );
            problems.warning(first, what, "remove it, or remove that pattern");
        }
    }
}
