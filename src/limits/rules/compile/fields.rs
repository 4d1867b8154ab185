//! The keys of a map, and the typed reading of their values.
//!
//! The Go service has one flat list of keys: it tolerates each of these keys anywhere, and ignores
//! it where it means nothing. Here such a key is a warning, and no file has to change; an error of
//! that service within an ignored value is an error here too.

use std::cell::Cell;

pub(super) use super::keys::Section;
use super::keys::{self, Author, Field, FieldValue, Format, names};
use super::problem::{Grade, Problems, excerpt, quoted};
use crate::core::message::Message;
use crate::core::time::{MAX_SAFE_INTEGER, Unit};
use crate::limits::rules::messages;
use crate::limits::rules::place::Place;
use crate::limits::rules::source::{Content, Node, ValueType};

const TABLES: [&str; 4] = ["table", "table_key", "plan", "plans"];

/// The keys that make a limit what it is. Next to `key` instead of below `rate_limit` they are
/// ignored, and the descriptor has no limit.
pub(super) const AMOUNT: [&str; 3] = ["unit", "requests_per_unit", "unlimited"];

/// The keys of a map that belong to its section.
pub(super) struct Fields<'n> {
    pub(super) problems: &'n Problems,
    /// The map.
    pub(super) node: &'n Node,
    found: Vec<(&'static str, &'n Node)>,
    /// The keys that misspelled ones were probably meant to be: that they are missing needs no
    /// second message.
    pub(super) meant: Vec<&'static str>,
    /// Whether a key has its meaning in another section.
    pub(super) has_misplaced: bool,
    /// Nothing was wrong in the values that [`Fields::value`] has read so far.
    pub(super) is_valid: Cell<bool>,
}

impl<'n> Fields<'n> {
    /// The value of a key; `None` if it is missing or null.
    pub(super) fn get(&self, key: &str) -> Option<&'n Node> {
        self.get_nullable(key).filter(|node| node.is_something())
    }

    /// The value of a key, also if it is null; `None` if it is missing.
    pub(super) fn get_nullable(&self, key: &str) -> Option<&'n Node> {
        let mut found = self.found.iter();
        let found = found.find(|(found, _)| *found == key);
        found.map(|&(_, node)| node)
    }

    /// Those of these keys that have a value.
    pub(super) fn present<'k>(
        &self,
        keys: impl IntoIterator<Item = &'k str>,
    ) -> impl Iterator<Item = (&'k str, &'n Node)> {
        let all = keys.into_iter();
        all.filter_map(|key| Some((key, self.get(key)?)))
    }

    /// Whether no key has a value, and none was probably meant to have one.
    pub(super) fn is_empty(&self) -> bool {
        self.meant.is_empty()
            && !self.has_misplaced
            && self.found.iter().all(|(key, _)| self.get(key).is_none())
    }

    /// Whether a misspelled key was probably meant to be this one.
    pub(super) fn meant(&self, key: &str) -> bool {
        self.meant.contains(&key)
    }

    /// The keys with the positions of their values, including nulls.
    pub(super) fn locations(&self) -> impl Iterator<Item = (&'static str, &'n Place)> {
        self.found.iter().map(|&(key, node)| (key, &node.at))
    }

    /// The text of a value, exactly as it is in the file; `None` if it is missing, or with an
    /// error if it is not text.
    pub(super) fn text(&self, key: &str) -> Option<&'n str> {
        text(self.problems, self.get(key)?, key)
    }

    /// A text that is not empty; `None`, with an error, without one.
    pub(super) fn required(&self, key: &str, missing: fn() -> Message) -> Option<&'n str> {
        let node = self.get(key);
        if let Some(node) = node.filter(|node| node.text() != Some("")) {
            return text(self.problems, node, key);
        }
        if !self.meant(key) {
            let at = node.map_or_else(|| self.lack(key), |node| &node.at);
            self.problems.error(at, missing());
        }
        None
    }

    /// A name for answers, rows and other limits; `None` if it is empty, or with an error if it is
    /// not text or has control characters.
    pub(super) fn name(&self) -> Option<&'n str> {
        let name = self.text("name").filter(|name| !name.is_empty())?;
        self.problems.accept(self.lack("name"), checked_name(name))
    }

    /// Reads the value of a key by its type; `None` if it is missing or, with an error, wrong.
    pub(super) fn read<T: FieldValue>(&self, key: &str) -> Option<T> {
        self.value(key, T::read)
    }

    /// As [`Fields::read`], by a function.
    pub(super) fn value<T>(
        &self,
        key: &str,
        read: impl FnOnce(&Problems, &Node, &str) -> Option<T>,
    ) -> Option<T> {
        let value = read(self.problems, self.get(key)?, key);
        self.is_valid.set(self.is_valid.get() && value.is_some());
        value
    }

    /// The value of a switch; false if it is missing or wrong.
    pub(super) fn switch(&self, key: &str) -> bool {
        self.read(key) == Some(true)
    }

    /// The entries of a list; empty if it is missing or, with an error, not a list.
    pub(super) fn items(&self, key: &str, no_list: fn(&'static str) -> Message) -> &'n [Node] {
        let items = |node| items(self.problems, node, no_list);
        self.get(key).and_then(items).unwrap_or_default()
    }

    /// The place for a report that a key has no value: the key's null, or the map.
    pub(super) fn lack(&self, key: &str) -> &'n Place {
        &self.get_nullable(key).unwrap_or(self.node).at
    }
}

/// Reads the keys of a map; `None`, with an error, if the node is not a map.
pub(super) fn read<'n>(
    problems: &'n Problems,
    node: &'n Node,
    section: Section,
) -> Option<Fields<'n>> {
    let Content::Mapping(entries) = &node.content else {
        let found = match node.text().filter(|_| node.is_something()) {
            Some(text) => quoted(text),
            None => node.value_type().name().to_owned(),
        };
        return problems.fail(&node.at, section.no_map(&found));
    };
    let mut fields = Fields {
        problems,
        node,
        found: Vec::with_capacity(entries.len().min(keys::fields().len())),
        meant: Vec::new(),
        has_misplaced: false,
        is_valid: Cell::new(true),
    };
    for (key, value) in entries.iter() {
        let Some(name) = key_text(problems, key) else {
            continue;
        };
        match section.find_field(name) {
            Some(field) if field.sections.contains(&section) => {
                fields.found.push((field.key, value));
            }
            // A resource that a control plane dumps has its name there.
            Some(field) if field.key == "name" && section == Section::Root => {
                check_ignored(problems, value);
            }
            Some(field) => {
                fields.has_misplaced = true;
                report_misplaced(problems, section, (key, value), field);
            }
            None => fields
                .meant
                .extend(unknown_key(problems, key, name, Some(section))),
        }
    }
    Some(fields)
}

/// Reports a key that has its meaning in other sections.
fn report_misplaced(
    problems: &Problems,
    section: Section,
    (key, value): (&Node, &Node),
    field: &Field,
) {
    let (known, sections, place) = (field.key, field.sections, section.name());
    // If a key belongs to both, the remedy names the more frequent section.
    let is_near = |other: &&Section| {
        other.format() == section.format() && (**other != Section::Trial || sections.len() == 1)
    };
    let near = sections.iter().filter(is_near);
    let names: Vec<&str> = near.map(|section| section.name()).collect();
    let names = names.join(" or ");
    if field.author == Author::Weir
        || matches!(section, Section::Defaults | Section::Trial)
        || section.format() != Format::Files
    {
        return problems.error(&key.at, messages::misplaced_key(known, place, names));
    }
    if section == Section::Descriptor && AMOUNT.contains(&known) {
        problems.add(&key.at, Grade::Mistake, messages::amount_next_to_key(known));
    } else {
        problems.warning(&key.at, messages::ignored_key(known, place, names));
    }
    if known != "metadata" {
        check_ignored(problems, value);
    }
}

/// The name of a key; `None`, with an error, if it is not text.
fn key_text<'n>(problems: &Problems, key: &'n Node) -> Option<&'n str> {
    let found = key.value_type().name();
    let message = match (key.value_type(), key.text()) {
        (ValueType::Text, Some(text)) => return Some(text),
        (ValueType::Nothing, _) | (_, None) => messages::key_without_name(found),
        (_, Some(text)) => messages::key_not_text(quoted(text), found),
    };
    problems.fail(&key.at, message)
}

/// Reports an unknown key, and returns the key that it was probably meant to be.
fn unknown_key(
    problems: &Problems,
    key: &Node,
    name: &str,
    section: Option<Section>,
) -> Option<&'static str> {
    let all = || section.unwrap_or(Section::Root).of_format();
    // A name such as `requests_per_minute` has the unit too.
    let unit = name.strip_prefix("requests_per_").and_then(Unit::named);
    let near = match section {
        _ if problems.is_full(&key.at) => None,
        Some(section) if unit.is_some() => section.keys().find(|key| *key == AMOUNT[1]),
        Some(section) => nearest(name, section.keys()).or_else(|| nearest(name, all())),
        None => nearest(name, all()),
    };
    let place = section.map_or(String::new(), |section| format!(" {}", section.name()));
    let found = quoted(name) + &place;
    let message = match (near.zip(unit), section) {
        (_, Some(Section::Plan | Section::Row))
            if Section::RateLimit.keys().any(|key| key == name) =>
        {
            messages::key_of_whole_limit(found)
        }
        (_, Some(section)) if section.format() == Format::Overlay && TABLES.contains(&name) => {
            messages::key_of_tables(found)
        }
        (Some((near, unit)), _) => messages::key_with_unit(found, near, unit.name()),
        (None, Some(section)) => messages::unknown_key(found, section.list()).or_near(near),
        (None, None) => messages::unknown_ignored_key(found).or_near(near),
    };
    problems.error(&key.at, message);
    near
}

/// The existing name that a wrong one was probably meant to be: the nearest by edit distance, if it
/// is the only one, and has the same digits, because another number is another meaning.
pub(crate) fn nearest<'k>(wrong: &str, known: impl Iterator<Item = &'k str>) -> Option<&'k str> {
    /// A longer text is not a misspelled name, and costly to compare.
    const LONGEST_NAME: usize = 64;
    if wrong.len() > LONGEST_NAME {
        return None;
    }
    let plain = |name: &str| -> String {
        let letters = name.chars().filter(|letter| letter.is_alphanumeric());
        letters.flat_map(char::to_lowercase).collect()
    };
    let digits = |name: &str| -> String { name.chars().filter(char::is_ascii_digit).collect() };
    let (number, wrong) = (digits(wrong), plain(wrong));
    let mut near: Vec<_> = known
        .filter(|name| digits(name) == number)
        .map(|name| (strsim::damerau_levenshtein(&wrong, &plain(name)), name))
        .filter(|&(distance, name)| distance <= (name.len() / 3).max(1))
        .collect();
    near.sort_unstable();
    match near[..] {
        [(first, _), (second, _), ..] if first == second => None,
        _ => near.first().map(|&(_, name)| name),
    }
}

/// Checks an ignored value for errors of the Go service: unknown keys, lists of anything but maps,
/// and numbers with a fraction.
fn check_ignored(problems: &Problems, node: &Node) {
    match &node.content {
        Content::Scalar { .. } => {
            if matches!(node.value_type(), ValueType::Huge(_) | ValueType::Float(_)) {
                no_float::<()>(problems, node);
            }
        }
        Content::Sequence(items) => {
            for item in items.iter() {
                match item.value_type() {
                    ValueType::Mapping => check_ignored(problems, item),
                    other => problems.error(&item.at, messages::ignored_item(other.name())),
                }
            }
        }
        Content::Mapping(entries) => {
            for (key, value) in entries.iter() {
                let Some(name) = key_text(problems, key) else {
                    continue;
                };
                if Section::Root.find_field(name).is_none() {
                    unknown_key(problems, key, name, None);
                } else if name != "metadata" {
                    check_ignored(problems, value);
                }
            }
        }
    }
}

fn no_float<T>(problems: &Problems, node: &Node) -> Option<T> {
    let text = node.text().unwrap_or_default();
    let (shown, kind) = (quoted(text), node.value_type().name());
    let message = messages::number_without_meaning(shown, kind, text.escape_default());
    problems.fail(&node.at, message)
}

/// The text of a value, exactly as it is in the file; `None`, with an error, if it is not text.
pub(super) fn text<'n>(problems: &Problems, node: &'n Node, key: &str) -> Option<&'n str> {
    match (node.value_type(), node.text()) {
        (ValueType::Text | ValueType::Bool(_) | ValueType::Int(_), Some(text)) => Some(text),
        (ValueType::Huge(_) | ValueType::Float(_), _) => no_float(problems, node),
        (value_type, _) => problems.fail(&node.at, messages::not_text(key, value_type.name())),
    }
}

/// The entries of a list; `None`, with an error, if the node is not a list.
pub(super) fn items<'n>(
    problems: &Problems,
    node: &'n Node,
    no_list: fn(&'static str) -> Message,
) -> Option<&'n [Node]> {
    if let Content::Sequence(items) = &node.content {
        return Some(items);
    }
    problems.fail(&node.at, no_list(node.value_type().name()))
}

/// Checks a name: a line break in it would be a line break in headers and logs.
pub(super) fn checked_name(name: &str) -> Result<&str, Message> {
    match name.chars().any(char::is_control) {
        true => Err(messages::name_of_many_lines(quoted(name))),
        false => Ok(name),
    }
}

/// The value that the text of a node names; `None`, with an error, for any other text. `noun` is
/// the kind of value in the message.
pub(super) fn one_of<T: Copy>(
    problems: &Problems,
    node: &Node,
    key: &str,
    noun: &str,
    named: &[(&'static str, T)],
) -> Option<T> {
    let text = text(problems, node, key)?;
    let found = named.iter().find(|(name, _)| *name == text);
    if found.is_none() {
        let near = nearest(text, named.iter().map(|&(name, _)| name));
        let message = messages::unknown_value(noun, quoted(text), list(named));
        problems.error(&node.at, message.or_near(near));
    }
    found.map(|&(_, value)| value)
}

/// All names, for messages.
pub(super) fn list<T>(named: &[(&'static str, T)]) -> String {
    names(named).join(", ")
}

/// A bool; `None`, with an error, if it is anything else.
pub(super) fn bool(problems: &Problems, node: &Node, key: &str) -> Option<bool> {
    if let Some(bool) = node.read::<bool>() {
        return Some(bool);
    }
    let written = |value| problems.written(key, value);
    let message = match (node.value_type(), node.text()) {
        (ValueType::Text, Some(text @ ("true" | "false"))) => {
            messages::value_in_quotes(key, found(node), written(text))
        }
        _ => messages::not_a_bool(key, found(node), written("true"), written("false")),
    };
    problems.fail(&node.at, message)
}

/// Description of an unexpected value for a message: a text or a number itself, or its kind.
fn found(node: &Node) -> String {
    match (node.value_type(), node.text()) {
        (ValueType::Binary | ValueType::Nothing, _) | (_, None) => {
            node.value_type().name().to_owned()
        }
        (_, Some(text)) => quoted(text),
    }
}

/// A whole number from 0 to 2^32 - 1; `None`, with an error, if it is anything else.
pub(super) fn number(problems: &Problems, node: &Node, key: &str) -> Option<u32> {
    let number = whole(problems, node, key, "2^32-1", u32::MAX.into())?;
    u32::try_from(number).ok()
}

/// A number of hits, from 0 to 2^53 - 1; `None`, with an error, if it is anything else.
pub(super) fn amount(problems: &Problems, node: &Node, key: &str) -> Option<u64> {
    whole(problems, node, key, "2^53-1", MAX_SAFE_INTEGER)
}

/// A whole number up to `most`, which is `power`.
fn whole(problems: &Problems, node: &Node, key: &str, power: &str, most: u64) -> Option<u64> {
    let number = node.read::<u64>().filter(|&number| number <= most);
    let text = node.text().unwrap_or_default();
    if let Some(number) = number {
        if node.is_octal_by_zero() {
            let written = problems.written(key, number);
            problems.warning(
                &node.at,
                messages::octal_number(quoted(text), number, written),
            );
        }
        return Some(number);
    }
    let (found, is_rate) = (
        found(node),
        matches!(key, "requests_per_unit" | "unit_multiplier"),
    );
    let message = match node.value_type() {
        ValueType::Int(_) if text.starts_with('-') => match key {
            "requests_per_unit" => messages::negative_requests(found),
            "unit_multiplier" => messages::negative_multiplier(found),
            _ => messages::negative_number(key, found),
        },
        ValueType::Int(_) | ValueType::Huge(_) => match is_rate {
            true => messages::rate_too_large(key, found, most, power),
            false => messages::number_too_large(key, found, most, power),
        },
        ValueType::Float(_) => messages::number_with_fraction(key, found, most),
        ValueType::Text if is_number(text.trim(), most) => {
            let written = problems.written(key, excerpt(text.trim()));
            messages::value_in_quotes(key, found, written)
        }
        _ => messages::not_a_number(key, found, problems.written(key, 100)),
    };
    problems.fail(&node.at, message)
}

fn is_number(text: &str, most: u64) -> bool {
    text.parse::<u64>().is_ok_and(|number| number <= most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_key_is_found_in_spite_of_case_and_separators() {
        for (wrong, right) in [
            ("ratelimit", Some("rate_limit")),
            ("rateLimit", Some("rate_limit")),
            ("request_per_unit", Some("requests_per_unit")),
            ("descriptor", Some("descriptors")),
            ("Domain", Some("domain")),
            ("vlaue", Some("value")),
            ("shadow-mode", Some("shadow_mode")),
            ("brust", Some("burst")),
            ("Algorithms", Some("algorithm")),
            ("x", None),
        ] {
            assert_eq!(nearest(wrong, Section::Root.of_format()), right, "{wrong}");
        }
    }
}
