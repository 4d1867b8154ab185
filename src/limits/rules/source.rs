//! YAML in source form: nodes with their positions, text as it is in the file, and typed reading of
//! single values.
//!
//! A library that deserializes into structs would lose both the text of the file (`0x10` as a value
//! is text) and its positions. So parser events with positions become a tree here, which is refused
//! early if it is too deep or too large, and serde_yaml, which only this file may name, reads
//! single values from it. The compiler defines the meaning of the keys.

mod events;
mod quotes;
mod scalar;

use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde_yaml::Value;

use super::limit::Metadata;
use super::messages;
use super::place::{Place, cut};
use crate::core::message::Message;
pub(super) use events::{read, why_not_text};

/// The problem of limits that need more than `most` bytes.
pub(crate) fn too_much_memory(most: u64) -> Message {
    let mib = most as f64 / f64::from(1 << 20);
    messages::too_much_memory(format_args!("{mib:.1}"))
}

/// Maximum characters of the file's own text in a message.
const LONGEST_QUOTE: usize = 60;

/// A text of the file, on one line and of bounded length.
pub(super) fn excerpt(text: &str) -> String {
    let cut = cut(text, LONGEST_QUOTE);
    cut.chars().flat_map(char::escape_debug).collect()
}

/// Puts a text in quotes.
pub(super) fn quoted(text: &str) -> String {
    format!("'{}'", excerpt(text))
}

/// The line and column after a text that begins the file.
fn after(text: &str) -> (u32, u32) {
    let last = text.rsplit('\n').next().unwrap_or_default();
    let (before, column) = (text.matches('\n').count(), last.chars().count());
    (before as u32 + 1, column as u32 + 1)
}

/// A problem that the reader found.
#[derive(Debug)]
pub(super) struct Note {
    pub(super) at: Place,
    pub(super) message: Message,
}

impl Note {
    pub(super) fn new(at: &Place, message: Message) -> Self {
        let at = at.clone();
        Self { at, message }
    }
}

/// The first document of a file.
#[derive(Debug)]
pub(super) struct ParsedDocument {
    /// `None` if there are only comments.
    pub(super) root: Option<Node>,
    /// Values that may not mean what their author intended.
    pub(super) warnings: Vec<Note>,
    /// The number of warnings beyond those that are kept.
    pub(super) further_warnings: usize,
}

/// A part of a document. Its clones share its content, as do aliases.
#[derive(Clone, Debug)]
pub(super) struct Node {
    /// Where it begins; for an alias, where the alias is.
    pub(super) at: Place,
    pub(super) content: Content,
}

/// A limit has about ten nodes while its file is read.
const _: () = assert!(size_of::<Node>() <= 40);

#[derive(Clone, Debug)]
pub(super) enum Content {
    /// Scalars of a file with the same text share it.
    Scalar {
        text: Arc<str>,
        form: Form,
    },
    Sequence(Arc<[Node]>),
    /// Merge keys are resolved, and of a key that was repeated only the last one is there.
    Mapping(Arc<[Pair]>),
}

/// The form of a scalar, which decides its type.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Form {
    /// Without quotes and without a tag.
    Plain,
    /// As if it were plain, by its tag.
    AsPlain,
    Text,
    Binary,
}

/// A key and its value.
pub(super) type Pair = (Node, Node);

/// The type of a node, for messages and decisions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum ValueType {
    /// `~`, `null` or nothing at all.
    Nothing,
    /// `true`, `yes`, `on`, `y` and their opposites.
    Bool(bool),
    /// A whole number that fits 64 bits with a sign.
    Int(i64),
    /// A whole number beyond that, still within 64 bits.
    Huge(u64),
    /// A number with a fraction, an exponent or no bound.
    Float(f64),
    /// Anything else: dates too, and numbers that nothing can hold.
    Text,
    Binary,
    Sequence,
    Mapping,
}

impl ValueType {
    /// The words for it in a message.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Nothing => "empty",
            Self::Bool(_) => "a bool",
            Self::Int(_) => "a whole number",
            Self::Huge(_) => "a number of more than 63 bits",
            Self::Float(_) => "a floating-point number",
            Self::Text => "text",
            Self::Binary => "binary data",
            Self::Sequence => "a list",
            Self::Mapping => "a map",
        }
    }
}

/// Limits of a control plane and rows of tables become the same nodes as a file, and one compiler
/// checks all.
impl Node {
    /// A text node, even if the text is like a number or a bool.
    pub(super) fn of_text(at: &Place, text: &str) -> Self {
        Self::of_scalar(at, text, Form::Text)
    }

    /// A plain scalar without quotes, which may be a number, a bool or null.
    pub(super) fn of_plain(at: &Place, text: &str) -> Self {
        Self::of_scalar(at, text, Form::AsPlain)
    }

    fn of_scalar(at: &Place, text: &str, form: Form) -> Self {
        let text = text.into();
        Self::of(at, Content::Scalar { text, form })
    }

    fn of(at: &Place, content: Content) -> Self {
        let at = at.clone();
        Self { at, content }
    }

    pub(super) fn of_list(at: &Place, items: Vec<Self>) -> Self {
        Self::of(at, Content::Sequence(items.into()))
    }

    /// A map, in which no key occurs twice.
    pub(super) fn of_map(at: &Place, entries: Vec<Pair>) -> Self {
        Self::of(at, Content::Mapping(entries.into()))
    }

    /// Whether it is not empty.
    pub(super) fn is_something(&self) -> bool {
        self.value_type() != ValueType::Nothing
    }

    pub(super) fn value_type(&self) -> ValueType {
        match &self.content {
            Content::Sequence(_) => ValueType::Sequence,
            Content::Mapping(_) => ValueType::Mapping,
            Content::Scalar { text, form } => match form {
                Form::Plain | Form::AsPlain => scalar::resolve(text),
                Form::Text => ValueType::Text,
                Form::Binary => ValueType::Binary,
            },
        }
    }

    /// The text of a scalar as in the file, without quotes.
    pub(super) fn text(&self) -> Option<&str> {
        self.shared_text().map(AsRef::as_ref)
    }

    /// The text of a scalar, for what shares it.
    pub(super) fn shared_text(&self) -> Option<&Arc<str>> {
        match &self.content {
            Content::Scalar { text, .. } => Some(text),
            Content::Sequence(_) | Content::Mapping(_) => None,
        }
    }

    /// The value of a key of a map.
    pub(super) fn get(&self, name: &str) -> Option<&Self> {
        let Content::Mapping(entries) = &self.content else {
            return None;
        };
        let entry = entries.iter().find(|(key, _)| key.text() == Some(name));
        entry.map(|(_, value)| value)
    }

    /// Takes the items out of a list in a map: who reads them drops each, and the nodes of a large
    /// file make room for its limits.
    pub(super) fn take_list(&mut self, name: &str) -> Vec<Self> {
        let Content::Mapping(entries) = &mut self.content else {
            return Vec::new();
        };
        let mut entries = Arc::make_mut(entries).iter_mut();
        let list = entries.find(|(key, _)| key.text() == Some(name));
        list.map_or_else(Vec::new, |(_, list)| list.take_items())
    }

    /// Takes the items out of a list.
    pub(super) fn take_items(&mut self) -> Vec<Self> {
        match &mut self.content {
            Content::Sequence(items) => std::mem::take(items).to_vec(),
            Content::Scalar { .. } | Content::Mapping(_) => Vec::new(),
        }
    }

    /// Reads the node as a `T`; `None` if it is something else.
    pub(super) fn read<T: DeserializeOwned>(&self) -> Option<T> {
        serde_yaml::from_value(self.value().ok()?).ok()
    }

    /// Whether it is a number that a leading zero makes octal: `010` is eight.
    pub(super) fn is_octal_by_zero(&self) -> bool {
        let digits = self.text().unwrap_or_default();
        let digits = digits.trim_start_matches(['+', '-']).as_bytes();
        let is_digit = |byte: &u8| byte.is_ascii_digit() || *byte == b'_';
        matches!(self.value_type(), ValueType::Int(_) | ValueType::Huge(_))
            && matches!(digits, [b'0', _, ..])
            && digits.iter().all(is_digit)
    }

    /// Reads a map as a JSON object. Keys that are not text become the text that they have in the
    /// file.
    ///
    /// # Errors
    /// A value that JSON cannot hold, with its position.
    pub(super) fn metadata(&self) -> Result<Metadata, Note> {
        serde_yaml::from_value(self.value()?).map_err(|_| {
            let found = self.value_type().name();
            Note::new(&self.at, messages::metadata_not_a_map(found))
        })
    }

    /// The value of YAML, if JSON can hold it.
    fn value(&self) -> Result<Value, Note> {
        Ok(match &self.content {
            Content::Scalar { text, .. } => match self.value_type() {
                ValueType::Nothing => Value::Null,
                ValueType::Bool(bool) => bool.into(),
                ValueType::Int(int) => int.into(),
                ValueType::Huge(huge) => huge.into(),
                ValueType::Float(float) if !float.is_finite() => {
                    let message = messages::metadata_not_finite(excerpt(text));
                    return Err(Note::new(&self.at, message));
                }
                ValueType::Float(float) => float.into(),
                ValueType::Binary => {
                    return Err(Note::new(&self.at, messages::metadata_is_binary()));
                }
                ValueType::Text | ValueType::Sequence | ValueType::Mapping => Value::from(&**text),
            },
            Content::Sequence(items) => {
                let items = items.iter().map(Self::value);
                Value::Sequence(items.collect::<Result<_, _>>()?)
            }
            Content::Mapping(entries) => {
                let entry = |(key, value): &Pair| match key.text() {
                    Some(name) if key.value_type() != ValueType::Binary => {
                        Ok((Value::from(name), value.value()?))
                    }
                    _ => {
                        let found = key.value_type().name();
                        Err(Note::new(&key.at, messages::metadata_key_not_text(found)))
                    }
                };
                Value::Mapping(entries.iter().map(entry).collect::<Result<_, _>>()?)
            }
        })
    }
}

/// A text of YAML as any value, for tests of what is printed.
#[cfg(test)]
pub(crate) mod any {
    pub(crate) use serde_yaml::Value;

    /// Reads a text that is YAML.
    pub(crate) fn read(text: &str) -> Value {
        serde_yaml::from_str(text).unwrap_or_else(|error| panic!("{text}: {error}"))
    }
}
