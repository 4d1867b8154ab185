//! Sources that send a text of the file if the request has it (`header-match`, `path-match`,
//! `query-match`, `address-match`).
//!
//! Weir finds one branch for each value: the exact one, else the first pattern. So at most one text
//! may match a request, in the whole domain: the matcher of a pattern excludes the exact values and
//! the patterns before it.

use super::source::{Kind, Source, network};
use super::yaml::{fill, list, scalar};
use crate::limits::rules::compile::Problem;
use crate::limits::rules::compile::outline::Outline;

/// A `*` in a value.
const ANY: char = '*';

/// Everything that the files write as the value of one key.
#[derive(Debug, Default)]
pub(super) struct Values {
    exact: Vec<String>,
    /// In the order of the files.
    patterns: Vec<ValuePattern>,
}

#[derive(Debug)]
struct ValuePattern {
    /// As it is written.
    text: String,
    prefix: String,
    /// The list of descriptors that it stands in.
    list: usize,
}

/// Collects the values of a key; problems are those of values that its source cannot send.
struct Collector<'c> {
    key: &'c str,
    source: &'c Source,
    all: Values,
    /// Lists of descriptors so far.
    lists: usize,
    problems: &'c mut Vec<Problem>,
}

impl Collector<'_> {
    fn add(&mut self, list: &[Outline]) {
        self.lists += 1;
        let (key, number) = (self.key, self.lists);
        for own in list {
            if *own.key == *key {
                let source = &self.source.text;
                match own.value.as_deref() {
                    Some(value) if own.is_by_more_than_text() => self.error(
                        own,
                        format!(
                            "{source} only sends values that the file writes, and '{value}' \
                             matches others"
                        ),
                        ", such as",
                    ),
                    None if own.limits_anything() => self.error(
                        own,
                        format!(
                            "the limit of '{key}' counts each value by itself, and {source} only \
                             sends values that the file writes"
                        ),
                        ", such as",
                    ),
                    None => {}
                    Some(value) if value.contains(ANY) => self.add_pattern(own, value, number),
                    Some(value) if self.all.exact.iter().any(|known| known == value) => {}
                    Some(value) => self.all.exact.push(value.to_owned()),
                }
            }
            self.add(&own.children);
        }
    }

    fn add_pattern(&mut self, own: &Outline, value: &str, list: usize) {
        let source = &self.source.text;
        let prefix = value
            .strip_suffix(ANY)
            .filter(|prefix| !prefix.contains(ANY));
        let (Some(prefix), Kind::HeaderMatch(_) | Kind::PathMatch) = (prefix, &self.source.kind)
        else {
            return self.error(own, format!("{source} cannot match '{value}'"), ":");
        };
        if own.limits_anything() && !own.share_threshold {
            let what = format!(
                "'{value}' counts each value by itself, and {source} sends the pattern for all of \
                 them"
            );
            self.error(own, what, ":");
            if let Some(problem) = self.problems.last_mut() {
                problem.remedy += ", or write share_threshold: true";
            }
            return;
        }
        let mut others = self.all.patterns.iter().filter(|known| known.list != list);
        if let Some(known) = others.find(|known| known.overlaps(prefix)) {
            let what = format!(
                "'{value}' and '{}', in another list of descriptors, may match the same request",
                known.text
            );
            return self.error(own, what, ":");
        }
        self.all.patterns.push(ValuePattern {
            text: value.to_owned(),
            prefix: prefix.to_owned(),
            list,
        });
    }

    /// Adds a problem whose remedy is another source.
    fn error(&mut self, own: &Outline, what: String, before: &str) {
        let (key, other) = (self.key, value_source(&self.source.kind));
        let remedy = "say a source that sends what the request has";
        let remedy = format!("{remedy}{before} --from {key}={other}");
        self.problems.push(Problem::error(&own.at, what, remedy));
    }
}

impl ValuePattern {
    /// Whether a value may begin with its prefix and with this one.
    fn overlaps(&self, prefix: &str) -> bool {
        self.prefix.starts_with(prefix) || prefix.starts_with(&self.prefix)
    }
}

impl Values {
    /// The values of a key; problems are added where this source cannot send what the file limits.
    pub(super) fn collect(
        key: &str,
        source: &Source,
        descriptors: &[Outline],
        problems: &mut Vec<Problem>,
    ) -> Self {
        let mut collector = Collector {
            key,
            source,
            all: Self::default(),
            lists: 0,
            problems,
        };
        collector.add(descriptors);
        collector.all
    }

    /// All texts that are sent.
    pub(super) fn all(&self) -> impl Iterator<Item = &str> {
        self.exact
            .iter()
            .chain(self.patterns.iter().map(|pattern| &pattern.text))
            .map(String::as_str)
    }

    /// The actions that send this value. A request that has it matches one of them, and no other
    /// request does.
    pub(super) fn actions(&self, key: &str, source: &Source, value: &str) -> Vec<String> {
        let by_header = |name: &str| {
            let lists = self.matchers(name, value).into_iter();
            let action = |headers: Vec<String>| action("header", key, value, "", &headers);
            lists.map(action).collect()
        };
        match &source.kind {
            Kind::QueryMatch(name) => {
                let parameter = matcher(name, "exact", value);
                vec![action("query_parameter", key, value, "", &[parameter])]
            }
            Kind::AddressMatch => {
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
            Kind::HeaderMatch(name) => by_header(name),
            Kind::PathMatch => by_header(PATH),
            _ => Vec::new(),
        }
    }

    /// Lists of matchers of a header: all of a list have to match, and no request matches two
    /// lists.
    fn matchers(&self, name: &str, value: &str) -> Vec<Vec<String>> {
        let Some(prefix) = value.strip_suffix(ANY) else {
            return exact(name, value).map(|matcher| vec![matcher]).collect();
        };
        let before = self.patterns.iter();
        let before = before
            .take_while(|pattern| pattern.text != value)
            .filter(|pattern| pattern.overlaps(prefix));
        let mut matchers = vec![starting_with(name, prefix)];
        for other in self.exact.iter().filter(|other| other.starts_with(prefix)) {
            matchers.extend(exact(name, other).map(inverted));
        }
        for pattern in before {
            matchers.push(inverted(starting_with(name, &pattern.prefix)));
        }
        vec![matchers]
    }
}

/// The header that is a path with its query.
const PATH: &str = ":path";

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
    [matcher(name, "exact", value)]
        .into_iter()
        .chain(with_query)
}

/// The matcher of all values that begin so. An empty prefix is one that Envoy refuses.
fn starting_with(name: &str, prefix: &str) -> String {
    match prefix {
        "" => present(name),
        prefix => matcher(name, "prefix", prefix),
    }
}

/// An action that sends a text where the headers or parameters match; `expected` may be a field
/// that says that they must not.
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
pub(super) fn default_action(key: &str, kind: &Kind, default: &str) -> Option<String> {
    let (what, name) = match kind {
        Kind::Header(name) => ("header", name),
        Kind::Query(name) => ("query_parameter", name),
        _ => return None,
    };
    let expected = "  expect_match: false\n";
    Some(action(what, key, default, expected, &[present(name)]))
}

/// The source that sends what this one matches.
fn value_source(kind: &Kind) -> String {
    match kind {
        Kind::HeaderMatch(name) => format!("header:{name}"),
        Kind::QueryMatch(name) => format!("query:{name}"),
        Kind::AddressMatch => "remote-address".to_owned(),
        _ => "path".to_owned(),
    }
}
