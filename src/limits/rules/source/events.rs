//! Parses bytes to a tree of nodes, with a bound on everything that a file can make large.
//!
//! The parser's events are pulled one by one, without recursion: a constant bounds the nesting, and
//! not the stack. The tree is at most [`DEEPEST`] levels deep, which makes recursion over it safe
//! everywhere else.

use std::sync::Arc;

use hashbrown::{HashMap, HashSet};
use saphyr_parser::{Event, Marker, Parser, ScalarStyle, ScanError, Tag};

use super::{
    Content, Form, Node, Note, Pair, ParsedDocument, Place, ValueType, after, quoted, quotes,
    too_much_memory,
};
use crate::core::message::Message;
use crate::limits::rules::messages;

/// Maximum bytes of one file: 160,000 limits of a hundred bytes.
const LARGEST_FILE: usize = 16 << 20;
/// Maximum levels of lists and maps: two per level of descriptors, and Envoy sends few entries.
const DEEPEST: usize = 64;
/// Maximum number of nodes of one file, before aliases. It bounds the memory for reading.
const MOST_NODES: usize = 2_000_000;
/// Memory of a node, with its place in a list or map.
const NODE: u64 = 90;
/// Maximum number of commas and opening brackets of one file. The parser holds all tokens of a list
/// or map in brackets until it knows whether that is a key. A bound on nodes would be too late for
/// these: each can cost 800 bytes.
const MOST_IN_BRACKETS: usize = 500_000;
/// The memory of each of them in a line: tokens of lines before are not held.
const TOKEN: u64 = 800;
/// Maximum number of warnings of one file that are kept, as [`MOST_OF_A_KIND`]. Further ones are
/// counted: each takes more bytes than the repeated key that it is about.
///
/// [`MOST_OF_A_KIND`]: crate::limits::rules::compile::problem::MOST_OF_A_KIND
const MOST_WARNINGS: usize = 20;
/// Maximum number of nodes that all aliases of a file expand to together, because aliases of
/// aliases can grow exponentially.
const MOST_ALIASED: usize = 100_000;

/// Reads the first document of a file, whose nodes may take `most` bytes. `whole` is the place of
/// the file.
///
/// # Errors
/// The file is unreadable: the position, the error, and the remedy.
pub(in crate::limits::rules) fn read(
    bytes: &[u8],
    whole: &Place,
    most: u64,
) -> Result<ParsedDocument, Note> {
    let text = decode(bytes, whole)?;
    bound_tokens(text, whole, most)?;
    let mut parser = Parser::new_from_str(text);
    let mut builder = Builder {
        most,
        ..Builder::default()
    };
    let mut root = None;
    // Ends at the end of the first document, or of the stream if it has no document.
    while let Some(event) = parser.next_event() {
        let (event, span) = event.map_err(|error| scan_error(text, &error, whole))?;
        match event {
            Event::DocumentEnd => {
                root = builder.root.take();
                break;
            }
            Event::StreamEnd => break,
            event => builder.take(event, whole.at(position(&span.start)))?,
        }
    }
    if root.is_some()
        && let Some(Ok((Event::DocumentStart(_), span))) = parser.next_event()
    {
        let at = whole.at(position(&span.start));
        builder.warn(|| Note::new(&at, messages::second_document()));
    }
    Ok(ParsedDocument {
        root,
        warnings: builder.warnings,
        further_warnings: builder.further_warnings,
    })
}

/// Why a file is not text in UTF-8, by its first bytes.
pub(in crate::limits::rules) fn why_not_text(bytes: &[u8]) -> Option<Message> {
    match bytes {
        // With or without a byte order mark.
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] | [0, 1..=0x7f, ..] | [1..=0x7f, 0, ..] => {
            Some(messages::file_is_utf16())
        }
        [b'P', b'K', 3, 4, ..] => Some(messages::file_is_workbook()),
        _ => None,
    }
}

fn decode<'b>(bytes: &'b [u8], whole: &Place) -> Result<&'b str, Note> {
    let size = bytes.len();
    if size > LARGEST_FILE {
        return Err(Note::new(
            whole,
            messages::file_too_large(size, LARGEST_FILE),
        ));
    }
    if let Some(message) = why_not_text(bytes) {
        return Err(Note::new(whole, message));
    }
    std::str::from_utf8(bytes).map_err(|error| {
        let before = String::from_utf8_lossy(&bytes[..error.valid_up_to()]);
        Note::new(&whole.at(after(&before)), messages::file_not_utf8())
    })
}

/// Bounds the tokens that the parser holds, by the memory that nodes may take.
fn bound_tokens(text: &str, whole: &Place, most: u64) -> Result<(), Note> {
    let most_of_a_line = usize::try_from(most / TOKEN).unwrap_or(usize::MAX);
    let (mut all, mut longest) = (0, 0);
    for line in text.lines() {
        let in_brackets = |byte: &u8| matches!(byte, b',' | b'[' | b'{');
        let count = line.bytes().filter(in_brackets).count();
        (all, longest) = (all + count, count.max(longest));
    }
    let (what, most) = match (all > MOST_IN_BRACKETS, longest > most_of_a_line) {
        (true, _) => ("the file", MOST_IN_BRACKETS),
        (_, true) => ("a line", most_of_a_line),
        _ => return Ok(()),
    };
    Err(Note::new(whole, messages::too_many_brackets(what, most)))
}

/// The nodes under construction.
#[derive(Default)]
struct Builder {
    open: Vec<Open>,
    root: Option<Node>,
    /// By the parser's number; an anchor whose node is still open is not in it.
    anchors: HashMap<usize, Node>,
    /// Of scalars, each once: most texts of a file are keys and units.
    texts: HashSet<Arc<str>>,
    nodes: usize,
    /// The most bytes of nodes.
    most: u64,
    aliased: usize,
    warnings: Vec<Note>,
    further_warnings: usize,
}

/// A list or map whose end has not come yet.
#[derive(Default)]
struct Open {
    at: Place,
    anchor: usize,
    is_mapping: bool,
    /// The items of a list, or the maps that a map merges, the strongest first.
    items: Vec<Node>,
    /// The pairs of a map so far, each key once: a file may repeat one a million times.
    pairs: Vec<Pair>,
    /// A key whose value has not come yet.
    key: Option<Node>,
    /// The index of each key.
    indices: HashMap<Arc<str>, usize>,
}

impl Open {
    /// Adds an item, or a key or value. Returns a key that came before, and the line of the first.
    fn add(&mut self, node: Node) -> Result<Option<(Node, u32)>, Note> {
        if !self.is_mapping {
            self.items.push(node);
            return Ok(None);
        }
        let Some(key) = self.key.take() else {
            self.key = Some(node);
            return Ok(None);
        };
        if is_merge(&key) {
            self.items.extend(merge_sources(&node)?);
            return Ok(None);
        }
        let Some(name) = key.shared_text().cloned() else {
            self.pairs.push((key, node));
            return Ok(None);
        };
        let index = *self.indices.entry(name).or_insert(self.pairs.len());
        let Some(pair) = self.pairs.get_mut(index) else {
            self.pairs.push((key, node));
            return Ok(None);
        };
        let first = pair.0.at.line;
        *pair = (key.clone(), node);
        Ok(Some((key, first)))
    }

    /// Its content, with the merged maps.
    fn content(mut self) -> Content {
        if !self.is_mapping {
            return Content::Sequence(self.items.into());
        }
        if !self.items.is_empty() {
            let mut taken: HashSet<Arc<str>> = self.indices.into_keys().collect();
            for source in self.items {
                let Content::Mapping(entries) = &source.content else {
                    continue;
                };
                let is_new = |(key, _): &&Pair| {
                    let name = key.shared_text();
                    name.is_none_or(|name| taken.insert(Arc::clone(name)))
                };
                self.pairs.extend(entries.iter().filter(is_new).cloned());
            }
        }
        Content::Mapping(self.pairs.into())
    }
}

impl Builder {
    fn take(&mut self, event: Event<'_>, at: Place) -> Result<(), Note> {
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                self.count_node(&at)?;
                let form = form_of(style == ScalarStyle::Plain, tag.as_deref());
                let text = self.shared(&text);
                let content = Content::Scalar { text, form };
                self.finish(Node { at, content }, anchor)?;
            }
            Event::SequenceStart(anchor, _) => self.begin(at, anchor, false)?,
            Event::MappingStart(anchor, _) => self.begin(at, anchor, true)?,
            Event::SequenceEnd | Event::MappingEnd => self.end()?,
            Event::Alias(anchor) => self.alias(anchor, at)?,
            _ => {}
        }
        Ok(())
    }

    fn shared(&mut self, text: &str) -> Arc<str> {
        Arc::clone(self.texts.get_or_insert_with(text, |text| text.into()))
    }

    fn warn(&mut self, note: impl FnOnce() -> Note) {
        if self.warnings.len() < MOST_WARNINGS {
            self.warnings.push(note());
        } else {
            self.further_warnings += 1;
        }
    }

    fn count_node(&mut self, at: &Place) -> Result<(), Note> {
        self.nodes += 1;
        if self.nodes > MOST_NODES {
            return Err(Note::new(at, messages::too_many_nodes(MOST_NODES)));
        }
        if self.nodes as u64 * NODE > self.most {
            return Err(Note::new(at, too_much_memory(self.most)));
        }
        Ok(())
    }

    fn begin(&mut self, at: Place, anchor: usize, is_mapping: bool) -> Result<(), Note> {
        self.count_node(&at)?;
        if self.open.len() >= DEEPEST {
            return Err(too_deep(&at));
        }
        self.open.push(Open {
            at,
            anchor,
            is_mapping,
            ..Open::default()
        });
        Ok(())
    }

    fn end(&mut self) -> Result<(), Note> {
        let Some(open) = self.open.pop() else {
            return Ok(());
        };
        let (at, anchor) = (open.at.clone(), open.anchor);
        let content = open.content();
        self.finish(Node { at, content }, anchor)
    }

    fn alias(&mut self, anchor: usize, at: Place) -> Result<(), Note> {
        let Some(target) = self.anchors.get(&anchor) else {
            return Err(Note::new(&at, messages::alias_of_itself()));
        };
        let height = height(target, &mut self.aliased);
        if self.aliased > MOST_ALIASED {
            return Err(Note::new(&at, messages::too_many_aliases(MOST_ALIASED)));
        }
        if self.open.len() + height > DEEPEST {
            return Err(too_deep(&at));
        }
        let node = Node {
            at,
            ..target.clone()
        };
        self.finish(node, 0)
    }

    fn finish(&mut self, node: Node, anchor: usize) -> Result<(), Note> {
        if anchor > 0 {
            self.anchors.insert(anchor, node.clone());
        }
        let Some(open) = self.open.last_mut() else {
            self.root = Some(node);
            return Ok(());
        };
        if let Some((key, first)) = open.add(node)? {
            self.warn(|| {
                let name = quoted(key.text().unwrap_or_default());
                Note::new(&key.at, messages::repeated_key(name, first))
            });
        }
        Ok(())
    }
}

/// The levels of lists and maps in a node, including itself. Adds its nodes to `size`, with every
/// alias expanded, until these are more than aliases may expand to.
fn height(node: &Node, size: &mut usize) -> usize {
    *size += 1;
    let below: &mut dyn Iterator<Item = &Node> = match &node.content {
        Content::Scalar { .. } => return 0,
        Content::Sequence(items) => &mut items.iter(),
        Content::Mapping(pairs) => &mut pairs.iter().flat_map(|(key, value)| [key, value]),
    };
    let mut highest = 0;
    for node in below {
        if *size > MOST_ALIASED {
            break;
        }
        highest = highest.max(height(node, size));
    }
    highest + 1
}

/// `<<` without quotes.
fn is_merge(key: &Node) -> bool {
    matches!(&key.content, Content::Scalar { text, form: Form::Plain } if &**text == "<<")
}

/// The maps that a merge key names, the strongest first.
fn merge_sources(value: &Node) -> Result<Vec<Node>, Note> {
    let wrong = |node: &Node| {
        let found = node.value_type().name();
        Note::new(&node.at, messages::merge_of_no_map(found))
    };
    match &value.content {
        Content::Mapping(_) => Ok(vec![value.clone()]),
        Content::Sequence(items) => {
            let is_other = |item: &&Node| item.value_type() != ValueType::Mapping;
            match items.iter().find(is_other) {
                Some(item) => Err(wrong(item)),
                None => Ok(items.to_vec()),
            }
        }
        Content::Scalar { .. } => Err(wrong(value)),
    }
}

/// The form of a scalar. A tag that YAML does not define makes it text, as `!!str` does.
fn form_of(is_plain: bool, tag: Option<&Tag>) -> Form {
    match tag.map(|tag| (tag.is_yaml_core_schema(), tag.suffix.as_str())) {
        None if is_plain => Form::Plain,
        Some((true, "int" | "bool" | "float" | "null")) => Form::AsPlain,
        Some((true, "binary")) => Form::Binary,
        None | Some(_) => Form::Text,
    }
}

fn position(mark: &Marker) -> (u32, u32) {
    (mark.line() as u32, mark.col() as u32 + 1)
}

fn too_deep(at: &Place) -> Note {
    Note::new(at, messages::nested_too_deep(DEEPEST))
}

/// The place of the tab that the parser reports at `mark`, which is often the end of the line
/// before: the next one that indents a line, or the one that follows a `:` in this line.
fn tab(text: &str, mark: &Marker, follows: bool) -> Option<(u32, u32)> {
    let (own, is_tab) = (mark.line().saturating_sub(1), |c| c == '\t');
    let indent = |line: &str| {
        let mut blanks = line.chars().take_while(|c| matches!(c, ' ' | '\t'));
        blanks.position(is_tab)
    };
    let mut lines = text.lines().enumerate().skip(own);
    let (number, column) = match follows {
        true => {
            let (number, line) = lines.next()?;
            (number, line.chars().position(is_tab)?)
        }
        false => lines.find_map(|(number, line)| Some((number, indent(line)?)))?,
    };
    let is_here = number == own && !follows;
    let column = if is_here { mark.col() } else { column };
    Some((number as u32 + 1, column as u32 + 1))
}

/// Words of the parser, and the message for them.
type ScanMessage = (&'static str, fn() -> Message);

/// The parser's messages for common mistakes, in any of these words.
const SCAN_ERRORS: [ScanMessage; 7] = [
    ("unknown anchor", messages::yaml_anchor),
    (TABS, messages::yaml_tab),
    ("unexpected end of stream", messages::yaml_quotes),
    (INDENTATION, messages::yaml_indentation),
    (
        "expected ',' or|expected node content|misplaced bracket",
        messages::yaml_brackets,
    ),
    (
        "alphabetic or numeric|unexpected character",
        messages::yaml_first_character,
    ),
    (ESCAPES, messages::yaml_escape),
];
const TABS: &str = "tabs disallowed|tab cannot|found a tab|start with a tab";
const INDENTATION: &str = "not allowed in this context|simple key|did not find expected key|\
    wrongly indented|invalid indentation";
const ESCAPES: &str = "unknown escape character|expected hexadecimal|Unicode character escape";

/// Explains the parser's message for the usual mistakes; other messages are passed on.
fn scan_error(text: &str, error: &ScanError, whole: &Place) -> Note {
    let (at, info) = (position(error.marker()), error.info());
    let note = |at, message| Note::new(&whole.at(at), message);
    if info.contains("recursion limit") {
        return too_deep(&whole.at(at));
    }
    if let Some(quote) = quotes::unclosed(text).filter(|quote| *quote <= at) {
        return note(quote, messages::yaml_open_quote());
    }
    let is_one = |words: &str| words.split('|').any(|words| info.contains(words));
    let known = SCAN_ERRORS.iter().find(|(words, _)| is_one(words));
    let follows = info.contains("valid YAML whitespace");
    if (follows || known.is_some_and(|(words, _)| *words == TABS))
        && let Some(tab) = tab(text, error.marker(), follows)
    {
        return note(tab, messages::yaml_tab());
    }
    let other = || messages::yaml_other(info.escape_debug());
    note(at, known.map_or_else(other, |(_, message)| message()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root(text: &str) -> Node {
        read(text.as_bytes(), &Place::default(), u64::MAX)
            .expect("reads")
            .root
            .expect("has a root")
    }

    #[test]
    fn nodes_remember_where_they_stand() {
        let root = root("a: 1\nb:\n  - c: ü\n    d: \"x\"\n");
        let b = root.get("b").expect("b");
        assert_eq!((b.at.line, b.at.column), (3, 3));
        let Content::Sequence(items) = &b.content else {
            panic!("a list")
        };
        let d = &items[0].get("d").expect("d").at;
        assert_eq!((d.line, d.column), (4, 8));
    }

    #[test]
    fn a_byte_order_mark_is_no_column() {
        let root = root("\u{feff}a: 1\n");
        assert_eq!((root.at.line, root.at.column), (1, 1));
        assert_eq!(root.get("a").expect("a").read::<u32>(), Some(1));
    }

    #[test]
    fn own_keys_win_over_merged_ones_wherever_they_stand() {
        let root =
            root("x: &x {a: 1, b: 2}\ny: &y {b: 3, c: 4}\nz:\n  a: 9\n  <<: [*x, *y]\n  c: 8\n");
        let z = root.get("z").expect("z");
        let read = |name| z.get(name).and_then(Node::read::<u32>);
        assert_eq!(
            (read("a"), read("b"), read("c")),
            (Some(9), Some(2), Some(8))
        );
    }

    #[test]
    fn nothing_but_comments_is_no_document() {
        for text in ["# nothing\n", ""] {
            let document = read(text.as_bytes(), &Place::default(), u64::MAX).expect("reads");
            assert!(document.root.is_none());
        }
    }
}
