//! Why a descriptor finds its limit, or none: each level of its look-up, with the branches that
//! were passed over.
//!
//! The look-up itself decides which branch matches; this only describes it. It is slow, and used
//! for explanations.

use std::borrow::Cow;
use std::fmt;
use std::sync::LazyLock;

use hashbrown::HashMap;

use super::{BranchIndex, EntryPattern, Glob, Tree};
use crate::core::request::Entry;
use crate::limits::rules::limit::LimitId;

/// Maximum number of branches of a level that are named in addition to the one that matches. A
/// level may have a hundred thousand.
const MAX_NAMED: usize = 20;

/// Maximum number of branches and keys that are named in all look-ups of a request. A request may
/// have thousands of descriptors.
const MAX_NAMED_OF_REQUEST: usize = 200 * MAX_NAMED;

/// The look-up of one descriptor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace<'t> {
    /// One for each entry, up to the first that no branch matches.
    pub levels: Vec<TracedLevel<'t>>,
    pub end: End<'t>,
}

/// The end of a look-up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End<'t> {
    /// No branch matches the entry of the last level; the branches have these keys.
    NoBranch(Named<String>),
    /// The branch of the last entry has no limit; these branches are below it.
    NoLimit(Named<BranchText<'t>>),
    /// The limit on the branch of the last entry.
    Limit(LimitId),
}

/// One level of a look-up: siblings, of which at most one matches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TracedLevel<'t> {
    /// The branch that matches, and how.
    pub matched: Option<(BranchText<'t>, How)>,
    /// Other branches that have the entry's key, in the order of the files.
    pub passed: Named<(BranchText<'t>, WhyNot)>,
}

/// Some of a list, and how many more it has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named<T> {
    /// The first ones.
    pub first: Vec<T>,
    /// The number of the others.
    pub more: usize,
}

/// A branch as it is written. Of several `*` in a row, one is left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BranchText<'t> {
    pub key: Cow<'t, str>,
    /// The value or pattern; `None` = any value.
    pub value: Option<Cow<'t, str>>,
    /// The value is a set, networks or a regular expression.
    pub(super) is_matcher: bool,
}

/// How a branch matches an entry, in the order of precedence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum How {
    /// Key and value are equal. Where a set or a network has the value, so are two spellings of one
    /// address.
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
    /// It matches too, but one that matches comes first: in this way, or in the same way and
    /// earlier in the files.
    Later(How),
}

impl fmt::Display for BranchText<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.value {
            Some(value) => write!(out, "{}={value}", self.key),
            None => out.write_str(&self.key),
        }
    }
}

impl<T> Named<T> {
    /// The first of `count` elements, of which `left` may still be named. No others are made.
    fn new(all: impl Iterator<Item = T>, count: usize, left: &mut usize) -> Self {
        let first: Vec<T> = all.take(MAX_NAMED.min(*left)).collect();
        *left -= first.len();
        let more = count.saturating_sub(first.len());
        Self { first, more }
    }
}

/// The level below a branch without one.
static NO_BRANCHES: LazyLock<Tree> = LazyLock::new(Tree::default);

/// The look-ups of one request. The branches of a level are listed once, even if several
/// descriptors pass it.
#[derive(Debug)]
pub struct Tracer<'t> {
    tree: &'t Tree,
    levels: HashMap<*const Tree, Branches<'t>>,
    /// The branches and keys that may still be named.
    left: usize,
}

/// The branches of a level as they are written.
#[derive(Debug, Default)]
struct Branches<'t> {
    /// In the order of the files; `None` for one that repeats another, which no look-up finds.
    all: Vec<Option<BranchText<'t>>>,
    count: usize,
    by_key: HashMap<Cow<'t, str>, Vec<BranchIndex>>,
    /// Branches with a `*` in the key.
    by_pattern: Vec<(Glob, BranchIndex)>,
    /// Each once, sorted.
    keys: Vec<String>,
}

impl<'t> Tracer<'t> {
    pub(in crate::limits::rules) fn new(tree: &'t Tree) -> Self {
        Self {
            tree,
            levels: HashMap::new(),
            left: MAX_NAMED_OF_REQUEST,
        }
    }

    /// Looks up a descriptor as [`Tree::find`] does.
    pub fn trace(&mut self, entries: &[Entry<'_>]) -> Trace<'t> {
        let (mut levels, mut tree, mut limit) =
            (Vec::with_capacity(entries.len()), self.tree, None);
        for entry in entries {
            let found = tree.index(entry);
            levels.push(self.level(tree, entry, found));
            let branch = found.and_then(|BranchIndex(index)| tree.branches.get(index));
            let Some(branch) = branch else {
                let end = End::NoBranch(self.keys(tree));
                return Trace { levels, end };
            };
            let children = branch.children.as_deref();
            (tree, limit) = (children.unwrap_or(&NO_BRANCHES), branch.leaf);
        }
        let end = limit.map_or_else(|| End::NoLimit(self.below(tree)), End::Limit);
        Trace { levels, end }
    }

    /// The cached branches of a level, and the number of names that may still be listed.
    fn siblings(&mut self, tree: &'t Tree) -> (&mut Branches<'t>, &mut usize) {
        let branches = self.levels.entry(std::ptr::from_ref(tree));
        let branches = branches.or_insert_with(|| Branches::new(tree));
        (branches, &mut self.left)
    }

    fn level(
        &mut self,
        tree: &'t Tree,
        entry: &Entry<'_>,
        found: Option<BranchIndex>,
    ) -> TracedLevel<'t> {
        let (siblings, left) = self.siblings(tree);
        let most = MAX_NAMED.min(*left);
        let of_key = siblings.by_key.get(&*String::from_utf8_lossy(entry.key));
        let of_key = of_key.map_or(&[][..], Vec::as_slice);
        let patterns = siblings.by_pattern.iter();
        let of_patterns = patterns.filter(|(key, _)| key.matches(entry.key));
        let of_patterns: Vec<_> = of_patterns.map(|(_, index)| *index).collect();
        // One more, which may be the one that matches.
        let few = of_key.iter().take(most + 1);
        let few = few.chain(of_patterns.iter().take(most + 1));
        let mut few: Vec<_> = few.copied().collect();
        few.sort_unstable();
        let seen = |index: BranchIndex| {
            let branch = siblings.all.get(index.0)?.clone()?;
            let how = match tree.matchers(entry.key) {
                Some(matchers) if branch.is_matcher => matchers.how(index, entry.value),
                _ => branch.how(entry),
            };
            Some((branch, how))
        };
        // An address may be found by its canonical text.
        let matched = found.and_then(seen);
        let matched = matched.map(|(branch, how)| (branch, how.unwrap_or(How::Exact)));
        let others = few.into_iter().filter(|&index| found != Some(index));
        let others = others.filter_map(seen);
        let others =
            others.map(|(branch, how)| (branch, how.map_or(WhyNot::OtherValue, WhyNot::Later)));
        let count = of_key.len() + of_patterns.len();
        let count = count.saturating_sub(usize::from(matched.is_some()));
        let passed = Named::new(others, count, left);
        TracedLevel { matched, passed }
    }

    fn below(&mut self, tree: &'t Tree) -> Named<BranchText<'t>> {
        let (siblings, left) = self.siblings(tree);
        Named::new(siblings.all.iter().flatten().cloned(), siblings.count, left)
    }

    fn keys(&mut self, tree: &'t Tree) -> Named<String> {
        let (Branches { keys, .. }, left) = self.siblings(tree);
        Named::new(keys.iter().cloned(), keys.len(), left)
    }
}

impl Tree {
    /// Calls `visit` with each branch and its text, in no particular order.
    pub(super) fn texts<'t>(&'t self, mut visit: impl FnMut(BranchIndex, BranchText<'t>)) {
        let mut put = |branch: BranchIndex, key, value, is_matcher| {
            let text = BranchText {
                key,
                value,
                is_matcher,
            };
            visit(branch, text);
        };
        let patterns = self.by_prefix.values().flatten();
        for EntryPattern { key, value, branch } in patterns.chain(&self.by_trying) {
            let text = |glob: &Glob| glob.text().into();
            put(*branch, text(key), value.as_ref().map(text), false);
        }
        for (key, branch) in &self.any_value {
            put(*branch, String::from_utf8_lossy(key), None, false);
        }
        for (key, of_key) in self.matchers.iter().flat_map(|all| &**all) {
            for (branch, source) in &of_key.sources {
                let value = Some(Cow::Borrowed(&**source));
                put(*branch, String::from_utf8_lossy(key), value, true);
            }
        }
        for (pair, branch) in &self.exact {
            let [key, value] = [&pair.key, &pair.value].map(|text| String::from_utf8_lossy(text));
            put(*branch, key, Some(value), false);
        }
    }
}

impl<'t> Branches<'t> {
    fn new(tree: &'t Tree) -> Self {
        let mut all: Vec<Option<BranchText<'t>>> = tree.branches.iter().map(|_| None).collect();
        tree.texts(|branch, text| all[branch.0] = Some(text));
        let mut siblings = Self {
            count: all.iter().flatten().count(),
            ..Self::default()
        };
        for (index, branch) in all.iter().enumerate() {
            let Some(BranchText { key, .. }) = branch else {
                continue;
            };
            let index = BranchIndex(index);
            if key.contains('*') {
                siblings.by_pattern.push((Glob::new(key), index));
            } else {
                siblings.by_key.entry(key.clone()).or_default().push(index);
            }
        }
        let exact = siblings.by_key.keys().map(ToString::to_string);
        let patterns = siblings.by_pattern.iter().map(|(key, _)| key.text());
        let mut keys: Vec<String> = exact.chain(patterns).collect();
        keys.sort_unstable();
        keys.dedup();
        (siblings.all, siblings.keys) = (all, keys);
        siblings
    }
}

impl BranchText<'_> {
    /// How the branch matches an entry, independent of other branches.
    fn how(&self, entry: &Entry<'_>) -> Option<How> {
        let is_text = |own: &str, text: &[u8]| own.as_bytes() == text && !own.contains('*');
        let is_key = is_text(&self.key, entry.key);
        match &self.value {
            None if is_key => return Some(How::AnyValue),
            Some(value) if is_key && is_text(value, entry.value) => return Some(How::Exact),
            _ => {}
        }
        let matches = |own: &str, text: &[u8]| Glob::new(own).matches(text);
        let value = self.value.as_ref();
        let value_matches = value.is_none_or(|value| matches(value, entry.value));
        (matches(&self.key, entry.key) && value_matches).then_some(How::Pattern)
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

    use super::super::Branch;
    use super::*;

    /// A tree with branches at one level, each with a limit of its number unless it is of the
    /// second half, and a branch `below` under the last.
    fn tree(branches: &[(&str, Option<&str>)]) -> Tree {
        let mut tree = Tree::default();
        for (number, (key, value)) in (0..).zip(branches) {
            let mut children = Tree::default();
            let below = Branch::new(Some(LimitId::new(1, number)), Tree::default());
            children.add(&"below".into(), None, below);
            let leaf = Some(LimitId::new(0, number)).filter(|_| number % 2 == 0);
            let value = value.map(Into::into);
            tree.add(&(*key).into(), value.as_ref(), Branch::new(leaf, children));
        }
        tree
    }

    fn entry<'a>(key: &'a str, value: &'a str) -> Entry<'a> {
        Entry {
            key: key.as_bytes(),
            value: value.as_bytes(),
        }
    }

    fn branch_text<'t>(key: &'t str, value: Option<&'t str>) -> BranchText<'t> {
        BranchText {
            key: key.into(),
            value: value.map(Cow::Borrowed),
            is_matcher: false,
        }
    }

    #[test]
    fn each_level_says_what_matched_and_what_was_passed_over() {
        let tree = tree(&[
            ("user", Some("al*")),
            ("user", Some("alice")),
            ("user", None),
            ("user", Some("bob")),
            ("path", None),
        ]);
        let trace = Tracer::new(&tree).trace(&[entry("user", "alice"), entry("below", "x")]);
        assert_eq!(trace.end, End::Limit(LimitId::new(1, 1)));
        assert_eq!(
            trace.levels[0].matched,
            Some((branch_text("user", Some("alice")), How::Exact))
        );
        let passed = [
            (
                branch_text("user", Some("al*")),
                WhyNot::Later(How::Pattern),
            ),
            (branch_text("user", None), WhyNot::Later(How::AnyValue)),
            (branch_text("user", Some("bob")), WhyNot::OtherValue),
        ];
        assert_eq!(
            trace.levels[0].passed,
            Named {
                first: passed.to_vec(),
                more: 0
            }
        );
        assert_eq!(
            trace.levels[1].matched,
            Some((branch_text("below", None), How::AnyValue))
        );

        let trace = Tracer::new(&tree).trace(&[entry("user", "alice")]);
        assert_eq!(
            trace.end,
            End::NoLimit(Named {
                first: vec![branch_text("below", None)],
                more: 0
            }),
            "its limits are below it"
        );
        let trace = Tracer::new(&tree).trace(&[entry("ip", "alice"), entry("below", "x")]);
        assert_eq!(trace.levels.len(), 1);
        assert_eq!(
            trace.end,
            End::NoBranch(Named {
                first: vec!["path".to_owned(), "user".to_owned()],
                more: 0
            })
        );
    }

    #[test]
    fn of_many_branches_some_are_named() {
        let values: Vec<String> = (0..50).map(|number| format!("u{number}")).collect();
        let branches: Vec<_> = values
            .iter()
            .map(|value| ("user", Some(value.as_str())))
            .collect();
        let tree = tree(&branches);
        let trace = Tracer::new(&tree).trace(&[entry("user", "x")]);
        assert_eq!(
            (
                trace.levels[0].passed.first.len(),
                trace.levels[0].passed.more
            ),
            (MAX_NAMED, 30)
        );
    }

    proptest! {
        #![proptest_config(crate::testing::property(256))]

        /// The branch that the trace names as matching is the one that the look-up finds; each
        /// other branch alone in a tree matches if, and only if, the trace reports it as a later
        /// one.
        #[test]
        fn it_says_what_the_look_up_does(
            branches in
                prop::collection::vec(("[ab*]{1,3}", prop::option::of("[xy*]{1,3}")), 1..8),
            key in "[ab]{1,2}",
            value in "[xy]{0,3}",
        ) {
            let branches: Vec<_> = branches
                .iter()
                .map(|(key, value)| (key.as_str(), value.as_deref()))
                .collect();
            let (tree, asked) = (tree(&branches), [entry(&key, &value)]);
            let trace = Tracer::new(&tree).trace(&asked);
            let found = tree.branch(&asked[0]).and_then(|found| {
                tree.branches
                    .iter()
                    .position(|branch| std::ptr::eq(branch, found))
            });
            let matched = trace.levels[0].matched.as_ref();
            prop_assert_eq!(matched.is_some(), found.is_some());
            match (&trace.end, tree.find(&asked)) {
                (End::Limit(named), Some(limit)) => prop_assert_eq!(*named, limit),
                (End::Limit(_), None) | (End::NoLimit(_) | End::NoBranch(_), Some(_)) => {
                    prop_assert!(false, "{trace:?}");
                }
                (End::NoLimit(_) | End::NoBranch(_), None) => {}
            }
            for (branch, why) in &trace.levels[0].passed.first {
                let alone = self::tree(&[(&branch.key, branch.value.as_deref())]);
                let matches = alone.branch(&asked[0]).is_some();
                match why {
                    WhyNot::OtherValue => prop_assert!(!matches, "{branch} {trace:?}"),
                    WhyNot::Later(how) => {
                        prop_assert!(matches, "{branch} {trace:?}");
                        prop_assert!(
                            matched.is_some_and(|(_, best)| best <= how),
                            "{branch} \
                            {trace:?}"
                        );
                    }
                }
            }
        }
    }
}
