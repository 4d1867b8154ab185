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
use crate::limits::rules::messages;
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
                problems.warning(&item.at, messages::networks_after_texts(quoted(key), first));
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
            return problems.warning(at, messages::values_unreached(first));
        }
        for ((text, at), (known, other)) in matched.items().zip(known.iter().zip(others)) {
            if let Some(first) = other {
                problems.warning(at, messages::value_unreached(text, first));
            } else if known.is_some() {
                problems.warning(at, messages::repeated_value(text));
            }
        }
    }

    /// Completes the level.
    pub(super) fn finish(&mut self, compiler: &mut Compiler<'_>) {
        let (message, branch) = match self.tree.complete() {
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
                let message = messages::all_regexes_too_large(MOST_REGEX_BYTES);
                (message, self.places.len().saturating_sub(1))
            }
            Err(last) => (messages::regexes_too_large(LARGEST_REGEXES), last),
        };
        if let Some(at) = self.places.get(branch) {
            compiler.problems.error(at, message);
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
        problems.error(
            at,
            messages::repeated_descriptor(quoted(&level.key), value, first),
        );
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
            let message = match is_pattern {
                true => messages::pattern_unreached(first),
                false => messages::key_unreached(first),
            };
            problems.warning(at, message);
        }
        let is_for_all = regex.flatten().is_some_and(is_for_all)
            || value.is_some_and(|value| value.bytes().all(|byte| byte == b'*'));
        if is_pattern
            && is_for_all
            && let Some(first) = self.seen.get(&(level.key.clone(), None))
        {
            problems.warning(first, messages::every_value_unreached(at));
        }
    }
}
