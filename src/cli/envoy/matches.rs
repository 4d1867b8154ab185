//! Sources that send a text of the file if the request has it (`header-match`, `path-match`,
//! `query-match`, `address-match`).
//!
//! Weir finds one branch for each value: the exact one, else the first pattern. So at most one text
//! may match a request, in the whole domain: the matcher of a pattern excludes the exact values and
//! the patterns before it.

use super::source::{KeySource, PATH, SourceKind, network};
use super::sources::all_of;
use super::yaml::{fill, list, scalar};
use crate::core::message::Message;
use crate::limits::rules::compile::Problem;
use crate::limits::rules::compile::outline::DescriptorTree;
use crate::limits::rules::messages;

/// A `*` in a value.
const ANY: char = '*';

/// Everything that the files write as the value of one key.
#[derive(Debug, Default)]
pub(super) struct KeyValues {
    exact: Vec<String>,
    /// In the order of the files.
    patterns: Vec<ValuePattern>,
}

#[derive(Debug)]
struct ValuePattern {
    /// As it is written.
    text: String,
    /// The list of descriptors that contains it.
    list: usize,
}

impl ValuePattern {
    fn prefix(&self) -> &str {
        self.text.trim_end_matches(ANY)
    }

    /// Whether a value may begin with its prefix and with this one.
    fn overlaps(&self, prefix: &str) -> bool {
        self.prefix().starts_with(prefix) || prefix.starts_with(self.prefix())
    }
}

impl KeyValues {
    /// The values of a key; problems are added where this source cannot send what the file limits.
    pub(super) fn collect(
        key: &str,
        source: &KeySource,
        descriptors: &[DescriptorTree],
        problems: &mut Vec<Problem>,
    ) -> Self {
        let mut all = Self::default();
        let of_key = all_of(descriptors);
        for (list, own) in of_key.iter().filter(|(_, own)| *own.key == *key) {
            if let Err(message) = all.add(own, *list, source) {
                problems.push(Problem::error(&own.at, message));
            }
        }
        all
    }

    fn add(
        &mut self,
        own: &DescriptorTree,
        list: usize,
        source: &KeySource,
    ) -> Result<(), Message> {
        let (key, text) = (&own.key, &source.text);
        let other = format!("{key}={}", value_source(&source.kind));
        let Some(value) = own.value.as_deref() else {
            return match own.limits_anything() {
                true => Err(messages::match_of_any_value(key, text, other)),
                false => Ok(()),
            };
        };
        if own.is_by_more_than_text() {
            return Err(messages::match_of_condition(text, value, other));
        }
        if !value.contains(ANY) {
            if !self.exact.iter().any(|known| known == value) {
                self.exact.push(value.to_owned());
            }
            return Ok(());
        }
        let prefix = value.strip_suffix(ANY);
        let prefix = prefix.filter(|prefix| !prefix.contains(ANY));
        let (Some(prefix), SourceKind::HeaderMatch(_)) = (prefix, &source.kind) else {
            return Err(messages::match_of_pattern(text, value, other));
        };
        if own.limits_anything() && !own.is_shared {
            return Err(messages::match_of_each_value(value, text, other));
        }
        let mut others = self.patterns.iter().filter(|known| known.list != list);
        if let Some(known) = others.find(|known| known.overlaps(prefix)) {
            return Err(messages::match_of_two_patterns(value, &known.text, other));
        }
        let text = value.to_owned();
        self.patterns.push(ValuePattern { text, list });
        Ok(())
    }

    /// All texts that are sent.
    pub(super) fn all(&self) -> impl Iterator<Item = &str> {
        let patterns = self.patterns.iter().map(|pattern| &*pattern.text);
        self.exact.iter().map(String::as_str).chain(patterns)
    }

    /// The actions that send this value. A request that has it matches one of them, and no other
    /// request does.
    pub(super) fn actions(&self, key: &str, source: &KeySource, value: &str) -> Vec<String> {
        match &source.kind {
            SourceKind::QueryMatch(name) => {
                let parameter = matcher(name, "exact", value);
                vec![action("query_parameter", key, value, "", &[parameter])]
            }
            SourceKind::AddressMatch => {
                let Some(network) = network(value) else {
                    return Vec::new();
                };
                let blocks = [
                    ("key", &*scalar(key)),
                    ("value", &scalar(value)),
                    ("address", &scalar(&network.addr().to_string())),
                    ("bits", &network.prefix_len().to_string()),
                ];
                vec![fill(include_str!("templates/address_action.yaml"), &blocks)]
            }
            SourceKind::HeaderMatch(name) => {
                let lists = self.matchers(name, value).into_iter();
                let action = |headers: Vec<String>| action("header", key, value, "", &headers);
                lists.map(action).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Lists of matchers of a header: all of a list have to match, and no request matches two
    /// lists.
    fn matchers(&self, name: &str, value: &str) -> Vec<Vec<String>> {
        let Some(prefix) = value.strip_suffix(ANY) else {
            return exact(name, value).map(|matcher| vec![matcher]).collect();
        };
        let before = self.patterns.iter().take_while(|one| one.text != value);
        let before = before.filter(|pattern| pattern.overlaps(prefix));
        let before = before.map(|pattern| starting_with(name, pattern.prefix()));
        let others = self.exact.iter().filter(|other| other.starts_with(prefix));
        let others = others.flat_map(|other| exact(name, other));
        let mut matchers = vec![starting_with(name, prefix)];
        matchers.extend(others.chain(before).map(inverted));
        vec![matchers]
    }
}

/// A matcher of a header or a parameter by its text.
fn matcher(name: &str, kind: &str, text: &str) -> String {
    let (name, text) = (scalar(name), scalar(text));
    format!("name: {name}\nstring_match:\n  {kind}: {text}")
}

/// A matcher of all requests that have the header or the parameter.
fn present(name: &str) -> String {
    format!("name: {}\npresent_match: true", scalar(name))
}

fn inverted(matcher: String) -> String {
    matcher + "\ninvert_match: true"
}

/// The matchers of one value, of which at most one matches: a path has a query, or none.
fn exact(name: &str, value: &str) -> impl Iterator<Item = String> {
    let with_query = (name == PATH).then(|| matcher(name, "prefix", &format!("{value}?")));
    std::iter::once(matcher(name, "exact", value)).chain(with_query)
}

/// The matcher of all values that begin so. An empty prefix is one that Envoy refuses.
fn starting_with(name: &str, prefix: &str) -> String {
    match prefix {
        "" => present(name),
        prefix => matcher(name, "prefix", prefix),
    }
}

/// An action that sends a text where the headers or parameters match; `expected` may be a field
/// that excludes them.
fn action(what: &str, key: &str, value: &str, expected: &str, matchers: &[String]) -> String {
    format!(
        "\
{what}_value_match:
  descriptor_key: {}
  descriptor_value: {}
{expected}  {what}s:
    {}",
        scalar(key),
        scalar(value),
        list(matchers, 4)
    )
}

/// The action that sends the default of a source, for requests without a value; `None` if the
/// action of the source sends it.
pub(super) fn default_action(key: &str, kind: &SourceKind, default: &str) -> Option<String> {
    let (what, name) = match kind {
        SourceKind::Header(name) => ("header", name),
        SourceKind::Query(name) => ("query_parameter", name),
        _ => return None,
    };
    let expected = "  expect_match: false\n";
    Some(action(what, key, default, expected, &[present(name)]))
}

/// The source that sends what this one matches.
fn value_source(kind: &SourceKind) -> String {
    match kind {
        SourceKind::HeaderMatch(name) if name != PATH => format!("header:{name}"),
        SourceKind::QueryMatch(name) => format!("query:{name}"),
        SourceKind::AddressMatch => "remote-address".to_owned(),
        _ => "path".to_owned(),
    }
}
