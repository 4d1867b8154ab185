//! Files that descriptors name: of values (`values_file`), one in each line, and tables (`table`).
//!
//! They are in the folder of limits, because its scan finds, bounds and watches them like limit
//! files. The field of a limit file that names a file decides whether it is a list of values or a
//! table.

use hashbrown::{HashMap, HashSet};
use memchr::memmem;

use super::SourceText;
use super::memory::VALUE;
use super::problem::Problems;
use crate::limits::rules::messages;
use crate::limits::rules::place::Place;
use crate::limits::rules::source::{self, Content, Node};

/// The key that names a file of values.
const KEY: &str = "values_file";

/// The key that names a table.
const TABLE_KEY: &str = "table";

/// Maximum bytes of a value. Envoy's headers have at most 64 KiB.
pub(crate) const LONGEST_VALUE: usize = 64 << 10;

/// The files of values, and the tables.
#[derive(Default)]
pub(super) struct Data<'f>(HashMap<&'f str, DataFile<'f>>);

/// One file.
pub(super) struct DataFile<'f> {
    /// The whole file.
    pub(super) at: Place,
    pub(super) text: &'f [u8],
    /// Each with its line, from 1 on; `None`: it is a table.
    pub(super) values: Option<Vec<(&'f str, u32)>>,
}

impl<'f> Data<'f> {
    /// Reads the files that limit files name, and all other files that are tables.
    pub(super) fn read(problems: &Problems, files: &'f [SourceText], mut left: u64) -> Self {
        let mut data = Self::default();
        let named = named(files, left);
        for SourceText { name, text } in files {
            let is_list = named.lists.contains(name);
            let is_known = named.tables.contains(name);
            let is_table = is_table(name) && (is_known || !begins_limits(text));
            if !is_list && !is_table {
                continue;
            }
            let at = problems.open(name);
            let values = is_list.then(|| read(problems, &at, text, &mut left));
            if !is_list && !is_known && !named.has_unreadable {
                problems.error(&at, messages::unused_table());
            }
            data.0.insert(name, DataFile { at, text, values });
        }
        data
    }

    /// Whether a file is a list of values or a table.
    pub(super) fn has(&self, file: &str) -> bool {
        self.0.contains_key(file)
    }

    /// The file that is named at a place.
    pub(super) fn find(&self, from: &Place, name: &str) -> Option<&DataFile<'f>> {
        self.0.get(&*beside(&from.document.name, name)?)
    }

    /// The table that is named at a place.
    pub(super) fn table(&self, from: &Place, name: &str) -> Option<&DataFile<'f>> {
        self.find(from, name).filter(|file| file.values.is_none())
    }
}

/// Whether a file has the name of a table.
pub(crate) fn is_table(name: &str) -> bool {
    name.to_ascii_lowercase().ends_with(".csv")
}

/// The lines that are values. A line that begins with `#` is a comment.
fn read<'f>(
    problems: &Problems,
    file: &Place,
    text: &'f [u8],
    left: &mut u64,
) -> Vec<(&'f str, u32)> {
    let most = *left;
    let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
    let mut values = Vec::new();
    if let Some(message) = source::why_not_text(text) {
        problems.error(file, message);
        return values;
    }
    let line_end = if text.contains(&b'\n') { b'\n' } else { b'\r' };
    for (number, line) in (1..).zip(text.split(|&byte| byte == line_end)) {
        let line = line.trim_ascii();
        if line.is_empty() || line.starts_with(b"#") {
            continue;
        }
        let at = file.at((number, 1));
        if *left < VALUE as u64 {
            problems.error(&at, source::too_much_memory(most));
            break;
        }
        *left -= VALUE as u64;
        match str::from_utf8(line) {
            Ok(value) if value.len() <= LONGEST_VALUE => values.push((value, number)),
            Ok(_) => problems.error(&at, messages::value_too_long(LONGEST_VALUE)),
            Err(_) => problems.error(&at, messages::value_not_utf8()),
        }
    }
    values
}

/// Warns of a value that is probably not the one that was meant: of what an export or a copy leaves
/// in it, and of what no editor shows.
pub(super) fn warn_of_odd(problems: &Problems, at: &Place, value: &str) {
    let is_invisible = |c: char| matches!(c, '\0' | '\u{feff}' | '\u{200b}');
    let message = if value.starts_with("=\"") {
        messages::value_is_formula()
    } else if value.contains(is_invisible) {
        messages::value_with_invisible_character()
    } else if value.trim() != value {
        messages::value_with_blank()
    } else {
        return;
    };
    problems.warning(at, message);
}

/// The names of the files that files of limits name.
#[derive(Default)]
struct NamedFiles {
    lists: HashSet<String>,
    tables: HashSet<String>,
    /// A file that may name some cannot be read.
    has_unreadable: bool,
}

fn named(files: &[SourceText], left: u64) -> NamedFiles {
    let mut named = NamedFiles::default();
    let finders = [memmem::Finder::new(KEY), memmem::Finder::new(TABLE_KEY)];
    let may_name = |text: &[u8]| finders.iter().any(|finder| finder.find(text).is_some());
    let is_limits = |file: &&SourceText| !is_table(&file.name) && may_name(&file.text);
    for file in files.iter().filter(is_limits) {
        match source::read(&file.text, &Place::default(), left) {
            Ok(document) => {
                let root = document.root.iter();
                root.for_each(|root| collect(root, &file.name, &mut named));
            }
            Err(_) => named.has_unreadable = true,
        }
    }
    // A file of limits is not a list of values, even if another file names it as one.
    named.lists.retain(|name| {
        let mut files = files.iter();
        files.all(|file| file.name != *name || !begins_limits(&file.text))
    });
    named
}

/// Whether a text is a file of limits: a line begins with its domain.
fn begins_limits(text: &[u8]) -> bool {
    let mut lines = text.split(|&byte| byte == b'\n');
    lines.any(|line| line.starts_with(b"domain:"))
}

fn collect(node: &Node, file: &str, names: &mut NamedFiles) {
    match &node.content {
        Content::Scalar { .. } => {}
        Content::Sequence(items) => items.iter().for_each(|item| collect(item, file, names)),
        Content::Mapping(entries) => {
            for (key, value) in entries.iter() {
                match (key.text(), value.text()) {
                    (Some(KEY), Some(name)) => names.lists.extend(beside(file, name)),
                    (Some(TABLE_KEY), Some(name)) => names.tables.extend(beside(file, name)),
                    _ => collect(value, file, names),
                }
            }
        }
    }
}

/// The name of a file that is named from another, relative to the folder of that; `None` if it is
/// outside of all that are read.
fn beside(from: &str, name: &str) -> Option<String> {
    let folder = from.rsplit_once('/').map(|(folder, _)| folder);
    let mut parts: Vec<&str> = folder.iter().flat_map(|folder| folder.split('/')).collect();
    if name.starts_with('/') {
        return None;
    }
    for part in name.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()?),
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_relative_to_the_file_that_has_them() {
        for (from, name, expected) in [
            ("limits.yaml", "vips.txt", Some("vips.txt")),
            ("a/limits.yaml", "vips.txt", Some("a/vips.txt")),
            (
                "a/limits.yaml",
                "../lists/./vips.txt",
                Some("lists/vips.txt"),
            ),
            (
                "/etc/weir/limits.yaml",
                "vips.txt",
                Some("/etc/weir/vips.txt"),
            ),
            ("limits.yaml", "../vips.txt", None),
            ("limits.yaml", "/etc/passwd", None),
        ] {
            assert_eq!(beside(from, name).as_deref(), expected, "{from} {name}");
        }
    }

    #[test]
    fn lines_are_values_but_for_comments() {
        let problems = Problems::default();
        let values = read(
            &problems,
            &problems.open("v.txt"),
            b"\xef\xbb\xbfalice\r\n\n# bob\n  carol d \n\xff\nlast",
            &mut u64::MAX.clone(),
        );
        assert_eq!(values, [("alice", 1), ("carol d", 4), ("last", 6)]);
        let problems = problems.finish(false, false).expect_err("a line is wrong");
        assert!(
            problems[0]
                .to_string()
                .starts_with("v.txt:5:1: error: the value is not UTF-8"),
            "{problems:?}"
        );
    }
}
