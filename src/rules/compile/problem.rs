//! Problems: what is wrong, where, and how to write it right.

use std::fmt;

use hashbrown::HashSet;

use crate::rules::source::{Node, Position};

/// Problems shown per file. Whoever has more repairs these first; a broken 16 MiB file must not become gigabytes of messages.
const MOST_PER_FILE: usize = 1_000;
/// Characters of the user's own text in a message.
const LONGEST_QUOTE: usize = 60;

/// How bad a problem is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// The files cannot be used.
    Error,
    /// They can, but hardly mean what was intended.
    Warning,
}

/// One thing that is wrong in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// How bad it is.
    pub severity: Severity,
    /// The name of the file, as the caller gave it.
    pub file: String,
    /// From 1; 0 = the whole file.
    pub line: usize,
    /// From 1, in characters; 0 = the whole file.
    pub column: usize,
    /// What is wrong.
    pub what: String,
    /// How to write it right.
    pub remedy: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let severity = match self.severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
        };
        let (file, what, remedy) = (OneLine(&self.file), OneLine(&self.what), OneLine(&self.remedy));
        match self.line {
            0 => write!(formatter, "{file}: {severity}: {what}; {remedy}"),
            line => write!(formatter, "{file}:{line}:{}: {severity}: {what}; {remedy}", self.column),
        }
    }
}

/// A text without what would end the line or drive a terminal: names of files may hold any character.
struct OneLine<'a>(&'a str);

impl fmt::Display for OneLine<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        use fmt::Write;
        for c in self.0.chars() {
            match c {
                // Separators of lines, and marks that turn the direction of the text around them.
                '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => write!(formatter, "{}", c.escape_unicode())?,
                c if c.is_control() => write!(formatter, "{}", c.escape_debug())?,
                c => formatter.write_char(c)?,
            }
        }
        Ok(())
    }
}

/// A place in one of the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Location {
    file: usize,
    at: Position,
}

/// What was found so far, in all files.
#[derive(Default)]
pub(super) struct Problems {
    files: Vec<File>,
    found: Vec<(Location, Severity, String, String)>,
    /// Aliases lead to the same place more than once; it is told once.
    told: HashSet<(Location, String)>,
    errors: bool,
    warnings: bool,
}

struct File {
    name: Box<str>,
    found: usize,
    unshown: usize,
}

impl Problems {
    /// Begins a file: what is found from now on is in it.
    pub(super) fn open(&mut self, name: &str) {
        self.files.push(File { name: name.into(), found: 0, unshown: 0 });
    }

    /// A place in the current file.
    pub(super) fn here(&self, at: Position) -> Location {
        Location { file: self.files.len().saturating_sub(1), at }
    }

    /// The place as messages about another one name it.
    pub(super) fn show(&self, place: Location) -> String {
        let name = self.files.get(place.file).map_or("", |file| &file.name);
        format!("{name}:{}", place.at.line)
    }

    /// Something in the current file that makes it unusable.
    pub(super) fn error(&mut self, at: Position, what: impl Into<String>, remedy: impl Into<String>) {
        self.add(self.here(at), Severity::Error, what.into(), remedy.into());
    }

    /// The same, at a node.
    pub(super) fn error_at(&mut self, node: &Node, what: impl Into<String>, remedy: impl Into<String>) {
        self.error(node.at, what, remedy);
    }

    /// Something in the current file that is hardly meant so.
    pub(super) fn warning(&mut self, at: Position, what: impl Into<String>, remedy: impl Into<String>) {
        self.warning_in(self.here(at), what, remedy);
    }

    /// The same, in any file.
    pub(super) fn warning_in(&mut self, place: Location, what: impl Into<String>, remedy: impl Into<String>) {
        self.add(place, Severity::Warning, what.into(), remedy.into());
    }

    /// Something that makes its file unusable, in any file.
    pub(super) fn error_in(&mut self, place: Location, what: impl Into<String>, remedy: impl Into<String>) {
        self.add(place, Severity::Error, what.into(), remedy.into());
    }

    /// Whether the current file has so many problems that another one would only be counted: its words need not be found.
    pub(super) fn is_full(&self) -> bool {
        self.files.last().is_some_and(|file| file.found >= MOST_PER_FILE)
    }

    fn add(&mut self, place: Location, severity: Severity, what: String, remedy: String) {
        match severity {
            Severity::Error => self.errors = true,
            Severity::Warning => self.warnings = true,
        }
        let Some(file) = self.files.get_mut(place.file) else { return };
        if file.found >= MOST_PER_FILE {
            file.unshown += 1;
        } else if self.told.insert((place, what.clone())) {
            file.found += 1;
            self.found.push((place, severity, what, remedy));
        }
    }

    /// All problems in the order of files, lines and columns, and whether one of them is an error. With `strict` all of them are.
    pub(super) fn finish(mut self, strict: bool) -> (bool, Vec<Problem>) {
        let last = Position { line: u32::MAX, column: u32::MAX };
        for (index, file) in self.files.iter().enumerate().filter(|(_, file)| file.unshown > 0) {
            let what = format!("{} more problems in this file are not shown", file.unshown);
            let remedy = "correct these first".to_owned();
            self.found.push((Location { file: index, at: last }, Severity::Warning, what, remedy));
        }
        self.found.sort_by_key(|(place, ..)| *place);
        let files = self.files;
        let problems = self.found.into_iter().map(|(place, severity, what, remedy)| {
            let at = if place.at == last { Position::default() } else { place.at };
            let file = files[place.file].name.to_string();
            let severity = if strict { Severity::Error } else { severity };
            Problem { severity, file, line: at.line as usize, column: at.column as usize, what, remedy }
        });
        (self.errors || (strict && self.warnings), problems.collect())
    }
}

/// The user's own text in quotes, on one line and of bounded length.
pub(super) fn quoted(text: &str) -> String {
    let shown: String = text.chars().take(LONGEST_QUOTE).flat_map(char::escape_debug).collect();
    let more = if text.chars().nth(LONGEST_QUOTE).is_some() { "..." } else { "" };
    format!("'{shown}{more}'")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_is_one_line_whatever_a_file_is_called() {
        let (file, what, remedy) = ("a\n\u{1b}[2J\u{202e}é.yaml".to_owned(), "wr\rong".to_owned(), "right".to_owned());
        let problem = Problem { severity: Severity::Error, file, line: 1, column: 2, what, remedy };
        assert_eq!(problem.to_string(), "a\\n\\u{1b}[2J\\u{202e}é.yaml:1:2: error: wr\\rong; right");
    }
}
