//! The source of each key, from the command line (`--from KEY=SOURCE`) and from a file.

use hashbrown::HashSet;

use super::source::{KeySource, SourceKind};
use crate::limits::rules::compile::Problem;
use crate::limits::rules::compile::outline::{DescriptorTree, WrittenPair};
use crate::limits::rules::messages;
use crate::limits::rules::place::Place;

/// The header with Envoy's own number of a request, an id that no client can choose.
pub(super) const STREAM_ID: &str = "x-stream-id";

/// Reads `KEY=SOURCE`.
///
/// # Errors
/// What to write.
pub(super) fn key_source(text: &str) -> Result<(String, KeySource), String> {
    let pair = text.split_once('=').filter(|(key, _)| !key.is_empty());
    let (key, source) = pair.ok_or("write KEY=SOURCE, such as user=header:x-user")?;
    Ok((key.to_owned(), source.parse()?))
}

/// The sources of all keys.
#[derive(Debug, Default)]
pub(super) struct Sources {
    /// In the order in which they were given.
    all: Vec<(String, KeySource, Place)>,
}

impl Sources {
    /// Sources of the command line, which take precedence over a file's.
    ///
    /// # Errors
    /// All sources that are wrong, and keys that have two.
    pub(super) fn try_new(
        given: &[(String, KeySource)],
        file: &[WrittenPair],
    ) -> Result<Self, Vec<Problem>> {
        let mut problems = Vec::new();
        let mut sources = Self::default();
        for (key, source) in given {
            if sources.get(key).is_some() {
                problems.push(Problem::error(&command_line(), messages::two_sources(key)));
            }
            let source = (key.clone(), source.clone(), command_line());
            sources.all.push(source);
        }
        for WrittenPair { key, text, at } in file {
            match text.parse::<KeySource>() {
                // The command line wins over the file, as with settings.
                Ok(_) if given.iter().any(|(given, _)| **given == **key) => {}
                Ok(source) => sources.all.push((key.to_string(), source, at.clone())),
                Err(error) => {
                    problems.push(Problem::error(at, messages::unusable_source(key, error)));
                }
            }
        }
        match problems.is_empty() {
            true => Ok(sources),
            false => Err(problems),
        }
    }

    /// Adds missing sources: of keys that Envoy can send in one way only, and of the ids of
    /// requests in flight.
    pub(super) fn with_only_ways(mut self, outline: &[DescriptorTree]) -> Self {
        for key in ["remote_address", "source_cluster", "destination_cluster"] {
            if outline.iter().any(|own| own.uses(key)) {
                self.add_missing(key, &key.replace('_', "-"));
            }
        }
        let all = all_of(outline).into_iter().map(|(_, own)| own);
        let (ids, others): (Vec<_>, Vec<_>) = all.partition(|own| own.counts_in_flight);
        let others: HashSet<&str> = others.iter().map(|own| &*own.key).collect();
        for own in ids.iter().filter(|own| !others.contains(&*own.key)) {
            self.add_missing(&own.key, &format!("header:{STREAM_ID}"));
        }
        self
    }

    fn add_missing(&mut self, key: &str, source: &str) {
        if let (None, Ok(source)) = (self.get(key), source.parse()) {
            self.all.push((key.to_owned(), source, command_line()));
        }
    }

    pub(super) fn get(&self, key: &str) -> Option<&KeySource> {
        let found = self.all().find(|(own, _)| *own == key);
        found.map(|(_, source)| source)
    }

    pub(super) fn all(&self) -> impl Iterator<Item = (&str, &KeySource)> {
        self.all.iter().map(|(key, source, _)| (&**key, source))
    }

    /// The sources of keys that no limit has, and the values of `generic-key` that no descriptor
    /// has: misspelled, most likely.
    pub(super) fn unused(&self, outline: &[DescriptorTree]) -> Vec<Problem> {
        // Those that lead to limits, each once.
        let mut keys: Vec<&str> = Vec::new();
        for (_, own) in all_of(outline) {
            if own.limits_anything() && !keys.contains(&&*own.key) {
                keys.push(&own.key);
            }
        }
        let mut problems = Vec::new();
        for (key, source, at) in &self.all {
            if !keys.contains(&key.as_str()) {
                let message = messages::unused_source(key, keys.join(", "));
                problems.push(Problem::error(at, message));
            } else if let SourceKind::GenericKey(values) = &source.kind {
                let is_known =
                    |value: &&String| outline.iter().any(|own| own.has_value(key, value));
                for value in values.iter().filter(|value| !is_known(value)) {
                    let message = messages::unused_source_value(key, value);
                    problems.push(Problem::error(at, message));
                }
            }
        }
        problems
    }
}

/// An entry as operators write it; without a value, its key.
pub(super) fn display(key: &str, value: Option<&str>) -> String {
    match value {
        Some(value) => format!("{key}={value}"),
        None => key.to_owned(),
    }
}

fn command_line() -> Place {
    Place::named("--from")
}

/// All descriptors in the order of the files, each with the number of its list.
pub(super) fn all_of(outline: &[DescriptorTree]) -> Vec<(usize, &DescriptorTree)> {
    fn add<'o>(
        list: &'o [DescriptorTree],
        lists: &mut usize,
        all: &mut Vec<(usize, &'o DescriptorTree)>,
    ) {
        *lists += 1;
        let number = *lists;
        for own in list {
            all.push((number, own));
            add(&own.children, lists, all);
        }
    }
    let mut all = Vec::new();
    add(outline, &mut 0, &mut all);
    all
}
