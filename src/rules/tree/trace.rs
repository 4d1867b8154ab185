//! Why a descriptor finds its limit, or none: each level of its look-up, with the branches that were passed over.
//!
//! The look-up itself decides which branch matches; this only describes it. It is slow, for people who ask.

use std::fmt;

use super::{Branch, BranchIndex, Glob, Pattern, Tree};
use crate::ask::Entry;
use crate::rules::limit::LimitId;

/// The most branches of a level that are named besides the one that matches. A level may have a hundred thousand.
const MAX_NAMED: usize = 20;

/// The look-up of one descriptor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// One for each entry, up to the first that no branch matches.
    pub levels: Vec<Level>,
    /// How it ended.
    pub end: End,
}

/// How a look-up ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// No branch matches the entry of the last level; the branches have these keys.
    NoBranch(Named<String>),
    /// The branch of the last entry has no limit; these branches are below it.
    NoLimit(Named<Written>),
    /// The limit on the branch of the last entry.
    Limit(LimitId),
}

/// One level of a look-up: siblings, of which at most one matches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Level {
    /// The branch that matches, and how.
    pub matched: Option<(Written, How)>,
    /// Other branches that have the entry's key, in the order of the files.
    pub passed: Named<(Written, WhyNot)>,
}

/// Some of a list, and how many more it has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named<T> {
    /// The first ones.
    pub first: Vec<T>,
    /// The number of the others.
    pub more: usize,
}

/// A branch as it is written. Of several `*` in a row in a key without a value, one is left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// The key.
    pub key: String,
    /// The value or pattern; `None` = any value.
    pub value: Option<String>,
}

/// How a branch matches an entry, in the order of precedence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum How {
    /// Key and value are equal. Where a set or a network has the value, so are two spellings of one address.
    Exact,
    /// The value is in a set.
    Set,
    /// The value is an address in a network; of several, in that with the longest prefix.
    Network,
    /// By a `*` in the key or in the value, or by a regular expression.
    Pattern,
    /// The key is equal, and the branch has no value.
    AnyValue,
}

/// Why another branch with the entry's key was passed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhyNot {
    /// It has another value, or a pattern that the value does not match.
    OtherValue,
    /// It matches too, but one that matches comes first: in this way, or in the same way and earlier in the files.
    Later(How),
}

impl fmt::Display for Written {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.value {
            Some(value) => write!(out, "{}={value}", self.key),
            None => out.write_str(&self.key),
        }
    }
}

impl<T> Named<T> {
    fn new(all: impl Iterator<Item = T>) -> Self {
        let mut all = all.fuse();
        let first = all.by_ref().take(MAX_NAMED).collect();
        Self { first, more: all.count() }
    }
}

impl Tree {
    /// Looks up a descriptor as [`Tree::find`] does.
    pub(in crate::rules) fn trace(&self, entries: &[Entry<'_>]) -> Trace {
        let (mut levels, mut tree, mut limit) = (Vec::with_capacity(entries.len()), self, None);
        for entry in entries {
            let branch = tree.branch(entry);
            levels.push(tree.level(entry, branch));
            let Some(branch) = branch else { return Trace { levels, end: End::NoBranch(tree.keys()) } };
            (tree, limit) = (&branch.children, branch.limit);
        }
        let end = limit.map_or_else(|| End::NoLimit(Named::new(tree.written().into_iter().flatten())), End::Limit);
        Trace { levels, end }
    }

    fn level(&self, entry: &Entry<'_>, found: Option<&Branch>) -> Level {
        let found = found.and_then(|found| self.branches.iter().position(|branch| std::ptr::eq(branch, found)));
        let mut matched = None;
        let mut passed = Vec::new();
        for (index, written) in self.written().into_iter().enumerate() {
            let Some(written) = written else { continue };
            if !Glob::new(&written.key).matches(entry.key) {
                continue;
            }
            let how = match self.matchers(entry.key).filter(|matchers| matchers.is_one(BranchIndex(index))) {
                Some(matchers) => matchers.how(BranchIndex(index), entry.value),
                // An address that is found by its canonical text.
                None if found == Some(index) => Some(written.how(entry).unwrap_or(How::Exact)),
                None => written.how(entry),
            };
            match how {
                Some(how) if found == Some(index) => matched = Some((written, how)),
                Some(how) => passed.push((written, WhyNot::Later(how))),
                None => passed.push((written, WhyNot::OtherValue)),
            }
        }
        Level { matched, passed: Named::new(passed.into_iter()) }
    }

    /// All branches as they are written; `None` for one that repeats another, which no look-up finds.
    fn written(&self) -> Vec<Option<Written>> {
        let mut all: Vec<Option<Written>> = self.branches.iter().map(|_| None).collect();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let mut put = |BranchIndex(index): BranchIndex, key, value| all[index] = Some(Written { key, value });
        for (Pattern { key, value }, branch) in &self.patterns {
            if value.is_none() {
                put(*branch, key.text(), None);
            }
        }
        for (key, branch) in &self.any_value {
            put(*branch, text(key), None);
        }
        for (branch, key, written) in self.matchers.iter().flat_map(|matchers| matchers.written()) {
            put(branch, text(key), Some(written.to_owned()));
        }
        for (pair, branch) in &self.exact {
            put(*branch, text(&pair.key), Some(text(&pair.value)));
        }
        all
    }

    fn keys(&self) -> Named<String> {
        let mut keys: Vec<String> = self.written().into_iter().flatten().map(|written| written.key).collect();
        keys.sort_unstable();
        keys.dedup();
        Named::new(keys.into_iter())
    }
}

impl Written {
    /// How it matches an entry, whatever else does.
    fn how(&self, entry: &Entry<'_>) -> Option<How> {
        let is_key = self.key.as_bytes() == entry.key;
        match &self.value {
            Some(value) if is_key && value.as_bytes() == entry.value => return Some(How::Exact),
            None if is_key && !self.key.contains('*') => return Some(How::AnyValue),
            _ => {}
        }
        let value_matches = self.value.as_ref().is_none_or(|value| Glob::new(value).matches(entry.value));
        (Glob::new(&self.key).matches(entry.key) && value_matches).then_some(How::Pattern)
    }
}

impl Glob {
    fn text(&self) -> String {
        let mut text = String::from_utf8_lossy(&self.first).into_owned();
        if let Some(rest) = &self.rest {
            for piece in &rest.middle {
                text += &format!("*{}", String::from_utf8_lossy(piece.needle()));
            }
            text += &format!("*{}", String::from_utf8_lossy(&rest.last));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A tree with branches at one level, each with a limit of its number unless it is of the second half, and a branch `below` under the last.
    fn tree(branches: &[(&str, Option<&str>)]) -> Tree {
        let mut tree = Tree::default();
        for (number, (key, value)) in (0..).zip(branches) {
            let mut children = Tree::default();
            children.add("below", None, Branch { limit: Some(LimitId::new(1, number)), children: Tree::default() });
            tree.add(key, *value, Branch { limit: Some(LimitId::new(0, number)).filter(|_| number % 2 == 0), children });
        }
        tree
    }

    fn entry<'a>(key: &'a str, value: &'a str) -> Entry<'a> {
        Entry { key: key.as_bytes(), value: value.as_bytes() }
    }

    fn written(key: &str, value: Option<&str>) -> Written {
        Written { key: key.to_owned(), value: value.map(str::to_owned) }
    }

    #[test]
    fn each_level_says_what_matched_and_what_was_passed_over() {
        let tree = tree(&[("user", Some("al*")), ("user", Some("alice")), ("user", None), ("user", Some("bob")), ("path", None)]);
        let trace = tree.trace(&[entry("user", "alice"), entry("below", "x")]);
        assert_eq!(trace.end, End::Limit(LimitId::new(1, 1)));
        assert_eq!(trace.levels[0].matched, Some((written("user", Some("alice")), How::Exact)));
        let passed = [
            (written("user", Some("al*")), WhyNot::Later(How::Pattern)),
            (written("user", None), WhyNot::Later(How::AnyValue)),
            (written("user", Some("bob")), WhyNot::OtherValue),
        ];
        assert_eq!(trace.levels[0].passed, Named { first: passed.to_vec(), more: 0 });
        assert_eq!(trace.levels[1].matched, Some((written("below", None), How::AnyValue)));

        let trace = tree.trace(&[entry("user", "alice")]);
        assert_eq!(trace.end, End::NoLimit(Named { first: vec![written("below", None)], more: 0 }), "its limits are below it");
        let trace = tree.trace(&[entry("ip", "alice"), entry("below", "x")]);
        assert_eq!(trace.levels.len(), 1);
        assert_eq!(trace.end, End::NoBranch(Named { first: vec!["path".to_owned(), "user".to_owned()], more: 0 }));
    }

    #[test]
    fn of_many_branches_some_are_named() {
        let values: Vec<String> = (0..50).map(|number| format!("u{number}")).collect();
        let branches: Vec<_> = values.iter().map(|value| ("user", Some(value.as_str()))).collect();
        let trace = tree(&branches).trace(&[entry("user", "x")]);
        assert_eq!((trace.levels[0].passed.first.len(), trace.levels[0].passed.more), (MAX_NAMED, 30));
    }

    proptest! {
        /// What is named as matching is what the look-up finds; each other branch alone in a tree matches if, and only if, it is called a later one.
        #[test]
        fn it_says_what_the_look_up_does(
            branches in prop::collection::vec(("[ab*]{1,3}", prop::option::of("[xy*]{1,3}")), 1..8),
            key in "[ab]{1,2}",
            value in "[xy]{0,3}",
        ) {
            let branches: Vec<_> = branches.iter().map(|(key, value)| (key.as_str(), value.as_deref())).collect();
            let (tree, asked) = (tree(&branches), [entry(&key, &value)]);
            let trace = tree.trace(&asked);
            let found = tree.branch(&asked[0]).and_then(|found| tree.branches.iter().position(|branch| std::ptr::eq(branch, found)));
            let matched = trace.levels[0].matched.as_ref();
            prop_assert_eq!(matched.is_some(), found.is_some());
            match (&trace.end, tree.find(&asked)) {
                (End::Limit(named), Some(limit)) => prop_assert_eq!(*named, limit),
                (End::Limit(_), None) | (End::NoLimit(_) | End::NoBranch(_), Some(_)) => prop_assert!(false, "{trace:?}"),
                (End::NoLimit(_) | End::NoBranch(_), None) => {}
            }
            for (written, why) in &trace.levels[0].passed.first {
                let alone = self::tree(&[(&written.key, written.value.as_deref())]);
                let matches = alone.branch(&asked[0]).is_some();
                match why {
                    WhyNot::OtherValue => prop_assert!(!matches, "{written} {trace:?}"),
                    WhyNot::Later(how) => {
                        prop_assert!(matches, "{written} {trace:?}");
                        prop_assert!(matched.is_some_and(|(_, best)| best <= how), "{written} {trace:?}");
                    }
                }
            }
        }
    }
}
