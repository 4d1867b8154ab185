//! Sources that send a text of the file if the request has it (`header-match`, `path-match`,
//! `query-match`, `address-match`).
//!
//! Weir finds one branch for each value: the exact one, else the first pattern. So at most one text
//! may match a request, in the whole domain: the matcher of a pattern excludes the exact values and
//! the patterns before it.

use super::source::{Kind, Source, network};
use super::yaml::{Yaml, map, one};
use crate::limits::rules::compile::Problem;
use crate::limits::rules::compile::outline::Outline;

/// A `*` in a value.
const ANY: char = '*';

/// Everything that the files write as the value of one key.
#[derive(Debug, Default)]
pub(super) struct Values {
    exact: Vec<String>,
    /// In the order of the files.
    patterns: Vec<Pattern>,
}

#[derive(Debug)]
struct Pattern {
    /// As it is written.
    text: String,
    prefix: String,
    /// The list of descriptors that it stands in.
    list: usize,
}

impl Values {
    /// The values of a key; problems are added where this source cannot send what the file limits.
    pub(super) fn collect(
        key: &str,
        source: &Source,
        descriptors: &[Outline],
        problems: &mut Vec<Problem>,
    ) -> Self {
        let mut all = Self::default();
        all.add(key, source, descriptors, &mut 0, problems);
        all
    }

    fn add(
        &mut self,
        key: &str,
        source: &Source,
        list: &[Outline],
        lists: &mut usize,
        problems: &mut Vec<Problem>,
    ) {
        *lists += 1;
        let number = *lists;
        for own in list {
            if &*own.key == key {
                match own.value.as_deref() {
                    Some(value) if own.is_by_more_than_text() => problems.push(own.at.error(
                        format!(
                            "{} only sends values that the file writes, and '{value}' matches \
                             others",
                            source.text
                        ),
                        format!(
                            "say a source that sends what the request has, such as --from {key}={}",
                            value_source(&source.kind)
                        ),
                    )),
                    None if own.limits_anything() => problems.push(own.at.error(
                        format!(
                            "the limit of '{key}' counts each value by itself, and {} only sends \
                             values that the file writes",
                            source.text
                        ),
                        format!(
                            "say a source that sends what the request has, such as --from {key}={}",
                            value_source(&source.kind)
                        ),
                    )),
                    None => {}
                    Some(value) if value.contains(ANY) => {
                        self.add_pattern(source, own, value, number, problems);
                    }
                    Some(value) if self.exact.iter().any(|known| known == value) => {}
                    Some(value) => self.exact.push(value.to_owned()),
                }
            }
            self.add(key, source, &own.children, lists, problems);
        }
    }

    fn add_pattern(
        &mut self,
        source: &Source,
        own: &Outline,
        value: &str,
        list: usize,
        problems: &mut Vec<Problem>,
    ) {
        let key = &own.key;
        let other = || {
            format!(
                "say a source that sends what the request has: --from {key}={}",
                value_source(&source.kind)
            )
        };
        let prefix = value
            .strip_suffix(ANY)
            .filter(|prefix| !prefix.contains(ANY));
        let (Some(prefix), Kind::HeaderMatch(_) | Kind::PathMatch) = (prefix, &source.kind) else {
            let what = format!("{} cannot match '{value}'", source.text);
            return problems.push(own.at.error(what, other()));
        };
        if own.limits_anything() && !own.share_threshold {
            let what = format!(
                "'{value}' counts each value by itself, and {} sends the pattern for all of them",
                source.text
            );
            return problems.push(
                own.at
                    .error(what, other() + ", or write share_threshold: true"),
            );
        }
        let overlaps = |known: &&Pattern| {
            known.prefix.starts_with(prefix) || prefix.starts_with(&known.prefix)
        };
        if let Some(known) = self
            .patterns
            .iter()
            .filter(|known| known.list != list)
            .find(overlaps)
        {
            let what = format!(
                "'{value}' and '{}', in another list of descriptors, may match the same request",
                known.text
            );
            return problems.push(own.at.error(what, other()));
        }
        self.patterns.push(Pattern {
            text: value.to_owned(),
            prefix: prefix.to_owned(),
            list,
        });
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
    pub(super) fn actions(&self, key: &str, source: &Source, value: &str) -> Vec<Yaml> {
        let entry = [
            ("descriptor_key", key.into()),
            ("descriptor_value", value.into()),
        ];
        match &source.kind {
            Kind::QueryMatch(name) => {
                let parameter = map([
                    ("name", name.as_str().into()),
                    ("string_match", one("exact", value)),
                ]);
                let [key, value] = entry;
                vec![one(
                    "query_parameter_value_match",
                    map([key, value, ("query_parameters", vec![parameter].into())]),
                )]
            }
            Kind::AddressMatch => {
                let Some((address, bits)) = network(value) else {
                    return Vec::new();
                };
                let range = map([
                    ("address_prefix", address.to_string().into()),
                    ("prefix_len", u32::from(bits).into()),
                ]);
                let [key, value] = entry;
                vec![one(
                    "remote_address_match",
                    map([key, value, ("address_matcher", one("ranges", vec![range]))]),
                )]
            }
            Kind::HeaderMatch(name) => self
                .matchers(name, value)
                .into_iter()
                .map(|headers| header_value_match(entry.clone(), headers))
                .collect(),
            Kind::PathMatch => self
                .matchers(PATH, value)
                .into_iter()
                .map(|headers| header_value_match(entry.clone(), headers))
                .collect(),
            _ => Vec::new(),
        }
    }

    /// Lists of matchers of a header: all of a list have to match, and no request matches two
    /// lists.
    fn matchers(&self, name: &str, value: &str) -> Vec<Vec<Yaml>> {
        let one_by_one = exact(name, value)
            .into_iter()
            .map(|matcher| vec![matcher])
            .collect();
        let Some(prefix) = value.strip_suffix(ANY) else {
            return one_by_one;
        };
        let before = self
            .patterns
            .iter()
            .take_while(|pattern| pattern.text != value);
        let before: Vec<_> = before
            .filter(|pattern| {
                pattern.prefix.starts_with(prefix) || prefix.starts_with(&pattern.prefix)
            })
            .collect();
        let mut matchers = vec![starting_with(name, prefix)];
        // A value that is the text of a pattern is that pattern's, as an exact one is.
        let others = self
            .exact
            .iter()
            .chain(self.patterns.iter().map(|pattern| &pattern.text))
            .filter(|other| *other != value);
        for other in others.filter(|other| other.starts_with(prefix)) {
            matchers.extend(
                exact(name, other)
                    .into_iter()
                    .map(|matcher| matcher.with("invert_match", true)),
            );
        }
        matchers.extend(
            before
                .iter()
                .map(|pattern| starting_with(name, &pattern.prefix).with("invert_match", true)),
        );
        let is_taken = before
            .iter()
            .any(|pattern| value.starts_with(&pattern.prefix));
        let own_text = if is_taken { one_by_one } else { Vec::new() };
        [matchers].into_iter().chain(own_text).collect()
    }
}

/// The header that is a path with its query.
const PATH: &str = ":path";

/// The matchers of one value, of which at most one matches: a path has a query, or none.
fn exact(name: &str, value: &str) -> Vec<Yaml> {
    let matcher =
        |kind: &str, text: String| map([("name", name.into()), ("string_match", one(kind, text))]);
    let with_query = (name == PATH).then(|| matcher("prefix", format!("{value}?")));
    [matcher("exact", value.to_owned())]
        .into_iter()
        .chain(with_query)
        .collect()
}

/// The matcher of all values that begin so. An empty prefix is one that Envoy refuses.
fn starting_with(name: &str, prefix: &str) -> Yaml {
    match prefix {
        "" => map([("name", name.into()), ("present_match", true.into())]),
        prefix => map([
            ("name", name.into()),
            ("string_match", one("prefix", prefix)),
        ]),
    }
}

fn header_value_match([key, value]: [(&str, Yaml); 2], headers: Vec<Yaml>) -> Yaml {
    one(
        "header_value_match",
        map([key, value, ("headers", headers.into())]),
    )
}

/// The action that sends the default of a source, for requests without a value; `None` if the
/// action of the source sends it.
pub(super) fn default_action(key: &str, kind: &Kind, default: &str) -> Option<Yaml> {
    let entry = |matcher: (&str, Yaml)| {
        map([
            ("descriptor_key", key.into()),
            ("descriptor_value", default.into()),
            ("expect_match", false.into()),
            matcher,
        ])
    };
    let present = |name: &str| map([("name", name.into()), ("present_match", true.into())]);
    match kind {
        Kind::Header(name) => Some(one(
            "header_value_match",
            entry(("headers", vec![present(name)].into())),
        )),
        Kind::Query(name) => Some(one(
            "query_parameter_value_match",
            entry(("query_parameters", vec![present(name)].into())),
        )),
        _ => None,
    }
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
