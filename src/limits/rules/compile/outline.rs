//! The descriptors of a domain as files write them, with the positions of their keys: for programs
//! that read limits and do not decide by them.
//!
//! Rules have no positions of keys, and descriptors without a limit matter to such programs.

use super::data::Data;
use super::fields::{self, Fields, Section};
use super::matching::Match;
use super::problem::{Problem, Problems, quoted};
use super::{Compiler, SourceText, descriptor};
use crate::limits::rules::messages;
use crate::limits::rules::place::Place;
use crate::limits::rules::source::{Content, Node, Pair, ValueType};
use crate::limits::rules::tree::Glob;
use crate::limits::rules::tree::trace::How;

/// One descriptor.
#[derive(Clone, Debug)]
pub struct DescriptorTree {
    /// Its key, or a pattern.
    pub key: Box<str>,
    /// Its value or a pattern; `None` = any value.
    pub value: Option<Box<str>>,
    /// Its condition other than text.
    matched: Option<Match>,
    /// All values that match the pattern share one counter.
    pub is_shared: bool,
    /// Whether it has a `rate_limit`.
    pub has_limit: bool,
    /// Whether it has a limit of requests in flight.
    pub counts_in_flight: bool,
    /// Where its key is written.
    pub at: Place,
    /// The descriptors below it.
    pub children: Vec<DescriptorTree>,
}

impl DescriptorTree {
    /// Whether it has a limit, or one below it.
    pub fn limits_anything(&self) -> bool {
        self.has_limit || self.children.iter().any(Self::limits_anything)
    }

    /// Whether it leads to a limit by this key, its own or one below.
    pub fn uses(&self, key: &str) -> bool {
        let mut below = self.children.iter();
        self.limits_anything() && (*self.key == *key || below.any(|child| child.uses(key)))
    }

    /// Whether it matches this key with this value and leads to a limit, or one below does.
    pub fn has_value(&self, key: &str, value: &str) -> bool {
        let is_it = *self.key == *key && self.matches(value);
        let mut below = self.children.iter();
        self.limits_anything() && (is_it || below.any(|child| child.has_value(key, value)))
    }

    /// The place of a value that it matches in the order of precedence: smaller ones come first,
    /// of networks those with the longest prefix, and of equal ones the first of the file.
    pub fn rank(&self, value: &str) -> (How, u8) {
        match (&self.matched, self.value.as_deref()) {
            (Some(matched), _) => matched.rank(value),
            (None, Some(own)) if own == value => (How::Exact, 0),
            (None, Some(_)) => (How::Pattern, 0),
            (None, None) => (How::AnyValue, 0),
        }
    }

    /// Whether it matches by a set, networks or a regular expression.
    pub const fn is_by_more_than_text(&self) -> bool {
        self.matched.is_some()
    }

    /// Whether a value is its value, or matches its pattern.
    pub fn matches(&self, value: &str) -> bool {
        match (&self.matched, self.value.as_deref()) {
            (Some(matched), _) => matched.matches(value),
            (None, Some(own)) => own == value || Glob::new(own).matches(value.as_bytes()),
            (None, None) => true,
        }
    }
}

/// A key of a flat map, and its text.
#[derive(Clone, Debug)]
pub struct WrittenPair {
    pub key: Box<str>,
    /// The text of its value.
    pub text: Box<str>,
    /// Where the key is written.
    pub at: Place,
}

/// The descriptors of a domain, in the order of files that [`super::compile`] accepts. Empty if no
/// file has the domain.
pub fn outline(files: &[SourceText], domain: &str) -> Vec<DescriptorTree> {
    let mut all = Vec::new();
    let problems = Problems::default();
    let mut compiler = Compiler {
        data: Data::read(&problems, files, u64::MAX),
        ..Compiler::new(&problems)
    };
    let is_limits = |file: &&SourceText| !compiler.data.has(&file.name);
    for file in files.iter().filter(is_limits).collect::<Vec<_>>() {
        let root = problems.document(&problems.open(&file.name), &file.text, u64::MAX);
        if let Some(root) = root.ok().flatten()
            && let Some(fields) = fields::read(&problems, &root, Section::Root)
            && fields.text("domain") == Some(domain)
            && let Some(list) = fields.get("descriptors")
        {
            all.extend(level(&mut compiler, list));
        }
    }
    all
}

fn level(compiler: &mut Compiler<'_>, list: &Node) -> Vec<DescriptorTree> {
    let Content::Sequence(items) = &list.content else {
        return Vec::new();
    };
    let problems = compiler.problems;
    let descriptor = |item: &Node| {
        let fields: Fields<'_> = fields::read(problems, item, Section::Descriptor)?;
        let (own, matched) = descriptor::read_level(compiler, &fields)?;
        let (limit, below) = (fields.get("rate_limit"), fields.get("descriptors"));
        let fields_of_limit =
            limit.and_then(|limit| fields::read(problems, limit, Section::RateLimit));
        Some(DescriptorTree {
            key: own.key.as_ref().into(),
            value: own.value.as_deref().map(Into::into),
            matched,
            is_shared: own.is_shared,
            has_limit: limit.is_some() || fields.get("table").is_some(),
            counts_in_flight: fields_of_limit.is_some_and(|fields| fields.counts_in_flight()),
            at: fields.lack("key").clone(),
            children: below.map_or_else(Vec::new, |list| level(compiler, list)),
        })
    };
    items.iter().filter_map(descriptor).collect()
}

/// Reads a file that is one map of texts.
///
/// # Errors
/// Everything else, with its position.
pub fn read_pairs(file: &SourceText) -> Result<Vec<WrittenPair>, Vec<Problem>> {
    let problems = Problems::default();
    let whole = problems.open(&file.name);
    let root = problems.document(&whole, &file.text, u64::MAX);
    let pairs = root
        .ok()
        .and_then(|root| pairs(&problems, &whole, root.as_ref()));
    problems.finish(true, true)?;
    Ok(pairs.unwrap_or_default())
}

/// The pairs of a map except invalid ones, which are reported; `None` if the node is not a map.
fn pairs(problems: &Problems, whole: &Place, root: Option<&Node>) -> Option<Vec<WrittenPair>> {
    let Some(root) = root else {
        return problems.fail(whole, messages::no_pairs("empty"));
    };
    let Content::Mapping(entries) = &root.content else {
        return problems.fail(whole, messages::no_pairs(root.value_type().name()));
    };
    let pair = |(key, value): &Pair| {
        let Some(name) = key.text() else {
            let found = key.value_type().name();
            return problems.fail(&key.at, messages::key_of_pair_not_text(found));
        };
        let value_type = value.value_type();
        let Some(text) = value.text().filter(|_| value_type == ValueType::Text) else {
            let message = messages::source_not_text(quoted(name), value_type.name());
            return problems.fail(&key.at, message);
        };
        Some(WrittenPair {
            key: name.into(),
            text: text.into(),
            at: key.at.clone(),
        })
    };
    Some(entries.iter().filter_map(pair).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str, text: &str) -> SourceText {
        SourceText {
            name: name.to_owned(),
            text: text.into(),
        }
    }

    #[test]
    fn the_outline_has_what_the_files_say_and_where() {
        let a = "domain: d\ndescriptors:\n- key: a\n  value: 0x10\n  descriptors:\n  - { value: \
            'b*', key: c, share_threshold: true, rate_limit: { unit: day } }\n";
        let files = [
            file("a", a),
            file("b", "domain: other\ndescriptors: [{ key: x }]"),
            file("c", "domain: d\ndescriptors: [{ key: e }]"),
        ];
        let all = outline(&files, "d");
        assert_eq!(
            all.iter()
                .map(|own| (&*own.key, own.value.as_deref(), own.has_limit))
                .collect::<Vec<_>>(),
            [("a", Some("0x10"), false), ("e", None, false)]
        );
        let below = &all[0].children[0];
        assert_eq!(
            (
                &*below.key,
                below.value.as_deref(),
                below.is_shared,
                below.has_limit
            ),
            ("c", Some("b*"), true, true)
        );
        let Place {
            document,
            line,
            column,
        } = &below.at;
        assert_eq!((&*document.name, *line, *column), ("a", 6, 25));
        assert!(outline(&files, "none").is_empty());
    }

    #[test]
    fn a_map_of_texts_is_read_with_positions() {
        let pairs = read_pairs(&file("m", "# sources\nuser: header:x-user\n'path': path\n"))
            .expect("pairs");
        let shown: Vec<_> = pairs
            .iter()
            .map(|pair| (&*pair.key, &*pair.text, pair.at.line))
            .collect();
        assert_eq!(shown, [("user", "header:x-user", 2), ("path", "path", 3)]);
        for (text, expected) in [
            ("", "m: error: the file is empty"),
            ("- a\n", "m: error: the file is a list"),
            (
                "a: [b]\nc: 1\n",
                "m:1:1: error: the source of 'a' is a list, not text",
            ),
            ("a: b\na: c\n", "m:2:1: error: "),
            ("a: {", "m:"),
        ] {
            let problems = read_pairs(&file("m", text)).expect_err(text);
            assert!(
                problems[0].to_string().starts_with(expected),
                "{text}: {problems:?}"
            );
        }
    }
}
