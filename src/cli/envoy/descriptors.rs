//! The descriptors that Envoy has to send for every limit of a domain to be found: one list of
//! actions for each list of keys that leads to a limit. What a list sends beyond that finds no
//! limit, because Weir looks every value up in the same tree.
//!
//! So no matcher of Envoy repeats what the tree means, except where an operator asks for it
//! (`matches`). A property test interprets the actions and compares with the limits of the file.
//! `skip_if_absent` is never used: with it Envoy leaves the entry out and sends the rest of the
//! descriptor, which is another limit.

use hashbrown::{HashMap, HashSet};

use super::matches::{KeyValues, default_action};
use super::reservations::Expiries;
use super::source::{KeySource, SourceKind};
use super::sources::{STREAM_ID, Sources, all_of, display};
use super::yaml::scalar;
use crate::core::message::Message;
use crate::limits::rules::compile::outline::DescriptorTree;
use crate::limits::rules::compile::{OneLine, Problem};
use crate::limits::rules::messages;

/// The most descriptors that one request may send: Weir refuses more.
const MOST_AT_ONCE: usize = 256;

/// The most lists of actions, so that a file of a million values does not become a configuration
/// that no Envoy can load.
const MOST_LISTS: usize = 4_096;

/// Limits that are named above a list of actions.
const MOST_NAMED: usize = 5;

/// The subject of a descriptor: a request or a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    Http,
    /// A connection, for which Envoy has entries instead of actions.
    Tcp,
}

/// One list of actions.
#[derive(Clone, Debug, Default)]
pub(super) struct ActionList {
    /// The actions, or for TCP the entries.
    pub(super) actions: Vec<String>,
    /// The limits that it finds, for people.
    limits: Vec<String>,
    further: usize,
    /// One of them counts requests in flight: it is asked again when a request has ended.
    pub(super) is_released: bool,
    /// Of its limits.
    pub(super) expiries: Expiries,
}

impl ActionList {
    /// Comments above it.
    pub(super) fn comments(&self) -> Vec<String> {
        let more = (self.further > 0).then(|| format!("and {} more", self.further));
        self.limits.iter().cloned().chain(more).collect()
    }
}

/// Everything that Envoy sends for a domain.
#[derive(Debug, Default)]
pub(super) struct Descriptors {
    pub(super) all: Vec<ActionList>,
    /// Limits for which nothing is sent, because the operator named other values.
    pub(super) left_out: Vec<String>,
    /// The keys that are sent, in their order.
    pub(super) keys: Vec<String>,
}

impl Descriptors {
    /// Whether one of them is sent again when a request has ended.
    pub(super) fn are_released(&self) -> bool {
        self.all.iter().any(|own| own.is_released)
    }

    /// Whether one of them has Envoy's own number of a request.
    pub(super) fn send_stream_id(&self) -> bool {
        let has_id = |own: &ActionList| own.actions.iter().any(|action| action.contains(STREAM_ID));
        self.are_reserved() || self.all.iter().any(has_id)
    }

    /// Whether hits of one of them are reserved.
    pub(super) fn are_reserved(&self) -> bool {
        self.all.iter().any(|own| own.expiries.are_reserved())
    }
}

/// Makes the descriptors of a domain.
///
/// # Errors
/// All reasons why Envoy would not send what the files limit.
pub(super) fn descriptors(
    outline: &[DescriptorTree],
    sources: &Sources,
    expiries: &HashMap<Vec<String>, Expiries>,
    protocol: Protocol,
) -> Result<Descriptors, Vec<Problem>> {
    let mut walk = DescriptorWalk {
        sources,
        expiries,
        protocol,
        values: HashMap::new(),
        found: Descriptors::default(),
        indices: HashMap::new(),
        problems: Vec::new(),
        reported: HashSet::new(),
    };
    walk.check_values(outline);
    for (key, source) in sources.all().filter(|_| protocol == Protocol::Http) {
        let is_needed = outline.iter().any(|own| own.uses(key));
        let sends_value = source.kind.sends_value_of_request();
        if is_needed && !sends_value && !matches!(source.kind, SourceKind::GenericKey(_)) {
            let values = KeyValues::collect(key, source, outline, &mut walk.problems);
            walk.values.insert(key.to_owned(), values);
        }
    }
    walk.level(outline, &[Vec::new()], &mut Vec::new());
    walk.finish(outline)
}

struct DescriptorWalk<'s> {
    sources: &'s Sources,
    expiries: &'s HashMap<Vec<String>, Expiries>,
    protocol: Protocol,
    /// Of keys whose source matches values of the file.
    values: HashMap<String, KeyValues>,
    found: Descriptors,
    /// The index of each list of actions.
    indices: HashMap<Vec<String>, usize>,
    problems: Vec<Problem>,
    /// Keys with a problem of their own, which is reported once.
    reported: HashSet<String>,
}

impl DescriptorWalk<'_> {
    /// Finds the values of the files that their sources never send.
    fn check_values(&mut self, outline: &[DescriptorTree]) {
        for (_, own) in all_of(outline) {
            let written = own.value.as_deref();
            if let Some(source) = self.sources.get(&own.key)
                && let Some(value) = written.filter(|_| !own.is_by_more_than_text())
                && let Some(reason) = source.kind.never_sends(value)
            {
                let message = messages::unsent_value(&source.text, value, reason);
                self.problems.push(Problem::error(&own.at, message));
            }
        }
    }

    /// Adds the lists of a level. `before` are the lists that lead to it, and `path` the names of
    /// the levels.
    fn level(&mut self, level: &[DescriptorTree], before: &[Vec<String>], path: &mut Vec<String>) {
        // Keys whose values the operator names are followed once for each value.
        let mut named: HashSet<&str> = HashSet::new();
        for own in level {
            if self.found.all.len() > MOST_LISTS {
                return;
            }
            let Some(source) = self.source(own) else {
                continue;
            };
            let values = match &source.kind {
                SourceKind::GenericKey(values) if !values.is_empty() => values,
                _ => {
                    let elements = self.elements(own, level, &source);
                    self.branch(own, &elements, before, path);
                    continue;
                }
            };
            let key = &*own.key;
            if !named.insert(key) {
                continue;
            }
            for own in level.iter().filter(|own| *own.key == *key) {
                if !values.iter().any(|value| leads_to(level, own, value)) {
                    self.leave_out(own, path);
                }
            }
            for value in values {
                if let Some(found) = find(level, key, value) {
                    self.branch(found, &[self.fixed(key, value)], before, path);
                }
            }
        }
    }

    /// Adds the lists of a descriptor and of those below it. `elements` are the ways in which Envoy
    /// sends its entry, of which a request takes one.
    fn branch(
        &mut self,
        own: &DescriptorTree,
        elements: &[String],
        before: &[Vec<String>],
        path: &mut Vec<String>,
    ) {
        if !own.limits_anything() {
            return;
        }
        if !self.found.keys.iter().any(|key| **key == *own.key) {
            self.found.keys.push(own.key.to_string());
        }
        let with = |list: &Vec<String>, element: &String| {
            let element = std::slice::from_ref(element);
            [list, element].concat()
        };
        let all = elements.iter();
        let lists = all.flat_map(|element| before.iter().map(move |list| with(list, element)));
        let lists: Vec<Vec<String>> = lists.take(MOST_LISTS + 1).collect();
        path.push(display(&own.key, own.value.as_deref()));
        if own.has_limit {
            for list in &lists {
                self.add(list, path, own);
            }
        }
        self.level(&own.children, &lists, path);
        path.pop();
    }

    fn add(&mut self, list: &[String], path: &[String], own: &DescriptorTree) {
        let index = *self.indices.entry_ref(list).or_insert_with(|| {
            self.found.all.push(ActionList {
                actions: list.to_vec(),
                ..ActionList::default()
            });
            self.found.all.len() - 1
        });
        let descriptor = &mut self.found.all[index];
        descriptor.is_released |= own.counts_in_flight;
        descriptor.expiries.add(self.expiries.get(path));
        if descriptor.expiries.are_mixed() {
            self.problems
                .push(Problem::error(&own.at, messages::mixed_reservations()));
        }
        if descriptor.limits.len() < MOST_NAMED {
            descriptor.limits.push(named(path, own));
        } else {
            descriptor.further += 1;
        }
    }

    fn leave_out(&mut self, own: &DescriptorTree, path: &mut Vec<String>) {
        path.push(display(&own.key, own.value.as_deref()));
        if own.has_limit {
            self.found.left_out.push(named(path, own));
        }
        for below in &own.children {
            self.leave_out(below, path);
        }
        path.pop();
    }

    /// The source of a descriptor's key; `None` if it needs none, or with a problem.
    fn source(&mut self, own: &DescriptorTree) -> Option<KeySource> {
        if !own.limits_anything() {
            return None;
        }
        let key = &*own.key;
        let message = match self.sources.get(key) {
            None => without_source(own, self.protocol),
            Some(source) => match unsent(source, key, self.protocol) {
                None => return Some(source.clone()),
                Some(why) => why,
            },
        };
        if self.reported.insert(key.to_owned()) {
            self.problems.push(Problem::error(&own.at, message));
        }
        None
    }

    /// The ways in which Envoy sends the entry of a descriptor of a level.
    fn elements(
        &mut self,
        own: &DescriptorTree,
        level: &[DescriptorTree],
        source: &KeySource,
    ) -> Vec<String> {
        let key = &*own.key;
        match &source.kind {
            SourceKind::GenericKey(_) => match fixed_value(own) {
                Some(value) => vec![self.fixed(key, value)],
                None => {
                    let limit = display(key, own.value.as_deref());
                    let message = messages::fixed_value_of_any(limit, key);
                    self.problems.push(Problem::error(&own.at, message));
                    Vec::new()
                }
            },
            kind if self.protocol == Protocol::Tcp => {
                let operator = kind.of_connection().into_iter();
                operator.map(|operator| entry(key, operator)).collect()
            }
            kind if kind.sends_value_of_request() => {
                let default = source.default.as_deref();
                let mut elements = vec![kind.action(key, default)];
                elements.extend(default.and_then(|default| default_action(key, kind, default)));
                elements
            }
            // The value of a request is one text in the whole domain: an exact value of
            // another level may lead to this pattern.
            _ => {
                let Some(values) = self.values.get(key) else {
                    return Vec::new();
                };
                let leading_here = values.all().filter(|value| leads_to(level, own, value));
                let actions = leading_here.flat_map(|value| values.actions(key, source, value));
                actions.collect()
            }
        }
    }

    /// An entry with a text of the configuration.
    fn fixed(&self, key: &str, value: &str) -> String {
        match self.protocol {
            Protocol::Http => {
                let (key, value) = (scalar(key), scalar(value));
                format!("generic_key:\n  descriptor_key: {key}\n  descriptor_value: {value}")
            }
            // A `%` begins an operator there.
            Protocol::Tcp => entry(key, &value.replace('%', "%%")),
        }
    }

    fn finish(mut self, outline: &[DescriptorTree]) -> Result<Descriptors, Vec<Problem>> {
        self.problems.extend(self.sources.unused(outline));
        let all = self.found.all.iter();
        let is_sent = |own: &&ActionList| !own.actions.iter().any(|action| is_match(action));
        let is_many = all.len() > MOST_LISTS;
        // A peek and a reservation.
        let sent = all.filter(is_sent);
        let sent = sent.map(|own| 1 + usize::from(own.expiries.are_reserved()));
        let are_too_many = is_many || sent.sum::<usize>() > MOST_AT_ONCE;
        if let (true, Some(first)) = (are_too_many, outline.first()) {
            let message = messages::too_many_descriptors(MOST_AT_ONCE, MOST_LISTS);
            self.problems.push(Problem::error(&first.at, message));
        }
        if self.problems.is_empty() {
            return Ok(self.found);
        }
        let place = |one: &Problem| (one.file.clone(), one.line, one.column);
        self.problems.sort_by_cached_key(place);
        self.problems.dedup();
        Err(self.problems)
    }
}

/// Why Envoy does not send this source under this key; `None` if it does.
fn unsent(source: &KeySource, key: &str, protocol: Protocol) -> Option<Message> {
    let (kind, text) = (&source.kind, &source.text);
    let is_tcp = protocol == Protocol::Tcp;
    Some(match (kind, kind.only_key()) {
        (SourceKind::GenericKey(_), _) => return None,
        _ if is_tcp && kind.of_connection().is_some() => return None,
        _ if is_tcp => messages::source_of_http(text),
        (SourceKind::Connection(_), _) => messages::source_of_tcp(text),
        (_, Some(only)) if only != key => messages::source_of_other_key(text, only, key),
        _ => return None,
    })
}

/// The branch of a level that Weir takes for a value, in its order of precedence.
fn find<'o>(level: &'o [DescriptorTree], key: &str, value: &str) -> Option<&'o DescriptorTree> {
    // Of equal ones the first.
    let found = level.iter().filter(|own| *own.key == *key);
    let found = found.filter(|own| own.matches(value));
    found.min_by_key(|own| own.rank(value))
}

/// Whether Weir takes this branch of a level for a value.
fn leads_to(level: &[DescriptorTree], own: &DescriptorTree, value: &str) -> bool {
    find(level, &own.key, value).is_some_and(|found| std::ptr::eq(found, own))
}

/// The value, if it is the only one that matches.
fn fixed_value(own: &DescriptorTree) -> Option<&str> {
    let value = own.value.as_deref();
    value.filter(|value| !value.contains('*') && !own.is_by_more_than_text())
}

/// Whether an action depends on the request: then only some of many lists are sent.
fn is_match(action: &str) -> bool {
    let name = action.lines().next();
    name.is_some_and(|name| name.ends_with("_match:"))
}

fn entry(key: &str, value: &str) -> String {
    format!("key: {}\nvalue: {}", scalar(key), scalar(value))
}

fn named(path: &[String], own: &DescriptorTree) -> String {
    OneLine(&format!("{} ({})", path.join(", "), own.at)).to_string()
}

/// A key that Envoy could take from anywhere.
fn without_source(own: &DescriptorTree, protocol: Protocol) -> Message {
    let key = &*own.key;
    if key.contains('*') {
        return messages::source_of_key_pattern(key);
    }
    let fixed = fixed_value(own).is_some();
    let likely = match (key, protocol) {
        ("generic_key", _) => "generic-key",
        (_, Protocol::Tcp) if fixed => "generic-key",
        (_, Protocol::Tcp) => "server-name",
        ("masked_remote_address", _) => "masked-remote-address:24,64",
        ("path" | "PATH", _) => "path",
        ("method" | "METHOD", _) => "method",
        ("header_match", _) => "header-match:NAME",
        ("query_match", _) => "query-match:NAME",
        _ => "header:NAME",
    };
    messages::key_without_source(key, likely)
}
