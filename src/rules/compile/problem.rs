//! Problems: what is wrong, where, and how to correct it.

use std::fmt;

use hashbrown::HashSet;

use crate::rules::source::{Node, Position};

/// Problems shown per file, so that a broken file of 16 MiB does not become gigabytes of messages.
const MOST_PER_FILE: usize = 1_000;
/// Characters of the file's own text in a message.
const LONGEST_QUOTE: usize = 60;

/// How bad a problem is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// The files cannot be used.
    Error,
    /// The files can be used, but hardly mean what was intended.
    Warning,
}

/// One thing that is wrong in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// How bad it is.
    pub severity: Severity,
    /// The name of the file, as the caller passed it.
    pub file: String,
    /// From 1; 0 = the whole file.
    pub line: usize,
    /// From 1, in characters; 0 = the whole file.
    pub column: usize,
    /// What is wrong.
    pub what: String,
    /// How to correct it.
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

/// A text with its control characters escaped, which would end the line or control a terminal: file names may contain any character.
struct OneLine<'a>(&'a str);

impl fmt::Display for OneLine<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        use fmt::Write;
        for c in self.0.chars() {
            match c {
                // Line separators, and marks that change the direction of the text around them.
                '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => write!(formatter, "{}", c.escape_unicode())?,
                c if c.is_control() => write!(formatter, "{}", c.escape_debug())?,
                c => formatter.write_char(c)?,
            }
        }
        Ok(())
    }
}

/// A position in one of the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Location {
    file: usize,
    at: Position,
}

/// The problems found so far, in all files.
#[derive(Default)]
pub(super) struct Problems {
    files: Vec<File>,
    found: Vec<(Location, Severity, String, String)>,
    /// A problem is reported once, though aliases lead to its location more than once.
    reported: HashSet<(Location, String)>,
    errors: bool,
    warnings: bool,
}

struct File {
    name: Box<str>,
    found: usize,
    unshown: usize,
}

impl Problems {
    /// Begins a file: problems from now on are in it.
    pub(super) fn open(&mut self, name: &str) {
        self.files.push(File { name: name.into(), found: 0, unshown: 0 });
    }

    /// The location of a position in the current file.
    pub(super) fn here(&self, at: Position) -> Location {
        Location { file: self.files.len().saturating_sub(1), at }
    }

    /// The location as text: file and line.
    pub(super) fn show(&self, location: Location) -> String {
        let name = self.files.get(location.file).map_or("", |file| &file.name);
        format!("{name}:{}", location.at.line)
    }

    /// Adds an error in the current file.
    pub(super) fn error(&mut self, at: Position, what: impl Into<String>, remedy: impl Into<String>) {
        self.add(self.here(at), Severity::Error, what.into(), remedy.into());
    }

    /// The same, at a node.
    pub(super) fn error_at(&mut self, node: &Node, what: impl Into<String>, remedy: impl Into<String>) {
        self.error(node.at, what, remedy);
    }

    /// Adds a warning in the current file.
    pub(super) fn warning(&mut self, at: Position, what: impl Into<String>, remedy: impl Into<String>) {
        self.warning_in(self.here(at), what, remedy);
    }

    /// The same, in any file.
    pub(super) fn warning_in(&mut self, location: Location, what: impl Into<String>, remedy: impl Into<String>) {
        self.add(location, Severity::Warning, what.into(), remedy.into());
    }

    /// Adds an error in any file.
    pub(super) fn error_in(&mut self, location: Location, what: impl Into<String>, remedy: impl Into<String>) {
        self.add(location, Severity::Error, what.into(), remedy.into());
    }

    /// Whether the current file has so many problems that another one would only be counted, so that its message is not needed.
    pub(super) fn is_full(&self) -> bool {
        self.files.last().is_some_and(|file| file.found >= MOST_PER_FILE)
    }

    fn add(&mut self, location: Location, severity: Severity, what: String, remedy: String) {
        match severity {
            Severity::Error => self.errors = true,
            Severity::Warning => self.warnings = true,
        }
        let Some(file) = self.files.get_mut(location.file) else { return };
        if file.found >= MOST_PER_FILE {
            file.unshown += 1;
        } else if self.reported.insert((location, what.clone())) {
            file.found += 1;
            self.found.push((location, severity, what, remedy));
        }
    }

    /// All problems in the order of files, lines and columns, and whether one of them is an error. With `strict`, warnings are errors.
    pub(super) fn finish(mut self, strict: bool) -> (bool, Vec<Problem>) {
        let last = Position { line: u32::MAX, column: u32::MAX };
        for (index, file) in self.files.iter().enumerate().filter(|(_, file)| file.unshown > 0) {
            let what = format!("{} more problems in this file are not shown", file.unshown);
            let remedy = "correct these first".to_owned();
            self.found.push((Location { file: index, at: last }, Severity::Warning, what, remedy));
        }
        self.found.sort_by_key(|(location, ..)| *location);
        let files = self.files;
        let problems = self.found.into_iter().map(|(location, severity, what, remedy)| {
            let at = if location.at == last { Position::default() } else { location.at };
            let file = files[location.file].name.to_string();
            let severity = if strict { Severity::Error } else { severity };
            Problem { severity, file, line: at.line as usize, column: at.column as usize, what, remedy }
        });
        (self.errors || (strict && self.warnings), problems.collect())
    }
}

/// A text of the file in quotes, on one line and of bounded length.
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
