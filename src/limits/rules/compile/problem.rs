//! Problems: what is wrong, where, and how to correct it.

use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use hashbrown::HashSet;

use super::locations::Resources;
use crate::limits::rules::limit::Origin;
use crate::limits::rules::source::{self, Document, Node, Position};
pub(super) use crate::limits::rules::source::{quoted, shown};

/// Problems shown per file, so that a broken file of 16 MiB does not become gigabytes of messages.
const MOST_PER_FILE: usize = 1_000;

/// Problems shown per domain of a control plane, because there may be thousands of domains, and
/// their problems are kept while they last.
pub(crate) const MOST_PER_DOMAIN: usize = 20;

/// How bad a problem is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// The files cannot be used.
    Error,
    /// The files can be used, but hardly mean what was intended.
    Warning,
}

impl Severity {
    /// The word in messages.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
        }
    }
}

/// How bad a problem is before it is known what the files are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Grade {
    Warning,
    /// The file says something else than its author meant, but envoyproxy/ratelimit accepts it: an
    /// error of `weir check` only.
    Mistake,
    Error,
}

/// One thing that is wrong in a file, or in a resource of a control plane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// How bad it is.
    pub severity: Severity,
    /// The name of the file, as the caller passed it, or `resource` and the name of the resource.
    pub file: String,
    /// In a resource, the keys and values from the root to the descriptor; empty for the whole
    /// resource, and in a file.
    pub path: String,
    /// From 1; 0 = the whole file.
    pub line: usize,
    /// From 1, in characters; 0 = the whole file.
    pub column: usize,
    /// What is wrong.
    pub what: String,
    /// How to correct it.
    pub remedy: String,
}

impl Problem {
    /// An error of a whole file or resource.
    #[must_use]
    pub fn whole(file: String, what: String, remedy: &str) -> Self {
        Self::new(Severity::Error, (file, Position::default()), what, remedy)
    }

    /// A problem at a position in a file.
    pub(in crate::limits::rules) fn new(
        severity: Severity,
        (file, at): (String, Position),
        what: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self {
            severity,
            file,
            path: String::new(),
            line: at.line as usize,
            column: at.column as usize,
            what: what.into(),
            remedy: remedy.into(),
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let severity = self.severity.name();
        let (file, what, remedy) = (
            OneLine(&self.file),
            OneLine(&self.what),
            OneLine(&self.remedy),
        );
        match self.line {
            0 if !self.path.is_empty() => write!(
                formatter,
                "{file}: {}: {severity}: {what}; {remedy}",
                OneLine(&self.path)
            ),
            0 => write!(formatter, "{file}: {severity}: {what}; {remedy}"),
            line => write!(
                formatter,
                "{file}:{line}:{}: {severity}: {what}; {remedy}",
                self.column
            ),
        }
    }
}

/// A text with its control characters escaped, which would end the line or control a terminal: file
/// names may contain any character.
pub(crate) struct OneLine<'a>(pub(crate) &'a str);

impl fmt::Display for OneLine<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        use fmt::Write;
        for c in self.0.chars() {
            match c {
                // Line separators, and marks that change the direction of the text around them.
                '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => {
                    write!(formatter, "{}", c.escape_unicode())?;
                }
                c if c.is_control() => write!(formatter, "{}", c.escape_debug())?,
                c => formatter.write_char(c)?,
            }
        }
        Ok(())
    }
}

/// A position in one of the files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Location {
    file: usize,
    at: Position,
}

impl Location {
    /// The beginning of a line of the same file.
    pub(super) const fn line(self, line: u32) -> Self {
        self.at(Position::line(line))
    }

    /// The same position in the file of another location.
    pub(super) const fn in_file_of(self, other: Self) -> Self {
        other.at(self.at)
    }

    /// A position in the same file.
    pub(super) const fn at(self, at: Position) -> Self {
        Self { at, ..self }
    }
}

/// Where a problem is.
pub(super) trait At {
    fn location(self, problems: &Problems) -> Location;
}

impl At for Location {
    fn location(self, _: &Problems) -> Location {
        self
    }
}

/// In the current file.
impl At for Position {
    fn location(self, problems: &Problems) -> Location {
        problems.here(self)
    }
}

/// In the current file.
impl At for &Node {
    fn location(self, problems: &Problems) -> Location {
        problems.here(self.at)
    }
}

impl At for &Rc<Node> {
    fn location(self, problems: &Problems) -> Location {
        problems.here(self.at)
    }
}

/// The problems found so far, in all files. Everything that reads shares them, because everything
/// may find some.
#[derive(Default)]
pub(super) struct Problems(RefCell<Found>);

#[derive(Default)]
struct Found {
    files: Vec<File>,
    all: Vec<(Location, Grade, String, String)>,
    /// A problem is reported once, though aliases lead to its location more than once.
    reported: HashSet<(Location, String)>,
    /// Where problems are warnings, and whose they are: those of what is left out for them.
    left_out: Option<(Location, Arc<str>)>,
    worst: Option<Grade>,
}

struct File {
    name: Arc<str>,
    found: usize,
    unshown: usize,
    /// The resources, if it is a domain of a control plane and no file.
    resources: Option<Resources>,
}

impl File {
    fn new(name: &str, resources: Option<Resources>) -> Self {
        Self {
            name: name.into(),
            found: 0,
            unshown: 0,
            resources,
        }
    }

    fn is_full(&self) -> bool {
        let most = match self.resources {
            Some(_) => MOST_PER_DOMAIN,
            None => MOST_PER_FILE,
        };
        self.found >= most
    }

    fn problem(&self, severity: Severity, at: Position, what: String, remedy: String) -> Problem {
        match &self.resources {
            None => Problem::new(severity, (self.name.to_string(), at), what, remedy),
            Some(resources) => {
                let (file, path) = resources.show(at);
                let whole = (file.to_string(), Position::default());
                Problem {
                    path,
                    ..Problem::new(severity, whole, what, remedy)
                }
            }
        }
    }

    /// What is said of problems that are not shown.
    fn more(&self, severity: Severity) -> Option<Problem> {
        let of = match self.resources {
            Some(_) => "domain",
            None => "file",
        };
        let what = format!("{} more problems in this {of} are not shown", self.unshown);
        let remedy = "correct these first".to_owned();
        (self.unshown > 0).then(|| self.problem(severity, Position::default(), what, remedy))
    }
}

impl Problems {
    /// Begins a file: problems from now on are in it.
    pub(super) fn open(&self, name: &str) {
        self.0.borrow_mut().files.push(File::new(name, None));
    }

    /// Begins a domain of a control plane: problems from now on are in these resources of it. A
    /// position in it is a descriptor, by its number.
    pub(super) fn open_domain(&self, resources: Resources) {
        let domain = File::new("", Some(resources));
        self.0.borrow_mut().files.push(domain);
    }

    /// What `ask` says of the resources of the current domain; the default in a file.
    pub(super) fn of_resources<T: Default>(&self, ask: impl FnOnce(&mut Resources) -> T) -> T {
        let mut found = self.0.borrow_mut();
        let domain = found.files.last_mut();
        let resources = domain.and_then(|file| file.resources.as_mut());
        resources.map(ask).unwrap_or_default()
    }

    /// Where a limit at a position in the current file, or domain of a control plane, is written.
    pub(super) fn origin(&self, at: Position) -> Origin {
        let found = self.0.borrow();
        let Some(file) = found.files.last() else {
            return Origin::default();
        };
        match &file.resources {
            Some(resources) => Origin {
                document: resources.document(at),
                line: 0,
            },
            None => Origin {
                document: Arc::clone(&file.name),
                line: at.line,
            },
        }
    }

    /// The name of the current file.
    pub(super) fn name(&self) -> Arc<str> {
        let found = self.0.borrow();
        let name = found.files.last().map(|file| Arc::clone(&file.name));
        name.unwrap_or_default()
    }

    /// Whether a file has no errors.
    pub(super) fn is_clean(&self, file: Location) -> bool {
        let is_error = |(location, grade, ..): &(Location, Grade, _, _)| {
            location.file == file.file && *grade == Grade::Error
        };
        !self.0.borrow().all.iter().any(is_error)
    }

    /// The location of a position in the current file.
    pub(super) fn here(&self, at: Position) -> Location {
        let file = self.0.borrow().files.len().saturating_sub(1);
        Location { file, at }
    }

    /// The location as text: file and line, or resource and path.
    pub(super) fn show(&self, location: Location) -> String {
        let found = self.0.borrow();
        let Some(file) = found.files.get(location.file) else {
            return String::new();
        };
        match &file.resources {
            Some(resources) => {
                let (resource, path) = resources.show(location.at);
                format!("{resource}: {path}")
            }
            None => format!("{}:{}", file.name, location.at.line),
        }
    }

    /// Adds an error.
    pub(super) fn error(&self, at: impl At, what: impl Into<String>, remedy: impl Into<String>) {
        self.add(at, Grade::Error, what.into(), remedy.into());
    }

    /// Adds an error, so that there is no value.
    pub(super) fn fail<T>(
        &self,
        at: impl At,
        what: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Option<T> {
        self.error(at, what, remedy);
        None
    }

    /// The value, or an error without one: what is wrong, and how to correct it.
    pub(super) fn accept<T, W: Into<String>, R: Into<String>>(
        &self,
        at: impl At,
        read: Result<T, (W, R)>,
    ) -> Option<T> {
        match read {
            Ok(value) => Some(value),
            Err((what, remedy)) => self.fail(at, what, remedy),
        }
    }

    /// Adds what is an error for `weir check`, and a warning when a service loads the file.
    pub(super) fn mistake(&self, at: impl At, what: impl Into<String>, remedy: impl Into<String>) {
        self.add(at, Grade::Mistake, what.into(), remedy.into());
    }

    /// Adds a warning.
    pub(super) fn warning(&self, at: impl At, what: impl Into<String>, remedy: impl Into<String>) {
        self.add(at, Grade::Warning, what.into(), remedy.into());
    }

    /// Reads a document of the current file, and takes its warnings over; `None`, with an error, if
    /// it cannot be read.
    pub(super) fn document(&self, text: &[u8]) -> Option<Document> {
        let mut document = source::read(text)
            .map_err(|note| self.error(note.at, note.what, note.remedy))
            .ok()?;
        for note in std::mem::take(&mut document.warnings) {
            self.warning(note.at, note.what, note.remedy);
        }
        if let Some(file) = self.0.borrow_mut().files.last_mut() {
            file.unshown += document.further_warnings;
        }
        Some(document)
    }

    /// Takes the problems of another list over, as problems of this file, with remedies as `word`
    /// puts them.
    pub(super) fn adopt(&self, file: Location, others: Self, word: impl Fn(String) -> String) {
        for (location, grade, what, remedy) in others.0.into_inner().all {
            self.add(file.at(location.at), grade, what, word(remedy));
        }
    }

    /// Whether the current file has so many problems that another one would only be counted, so
    /// that its message is not needed.
    pub(super) fn is_full(&self) -> bool {
        self.0.borrow().files.last().is_some_and(File::is_full)
    }

    /// From now on, problems are warnings there: what has them is not used for this limit. `None`:
    /// problems are what they are.
    pub(super) fn warn_only(&self, left_out: Option<(Location, Arc<str>)>) {
        self.0.borrow_mut().left_out = left_out;
    }

    fn add(&self, at: impl At, grade: Grade, what: String, remedy: String) {
        let location = at.location(self);
        let mut found = self.0.borrow_mut();
        let found = &mut *found;
        let (location, grade, what) = match &found.left_out {
            Some((at, source)) if grade != Grade::Warning => {
                let what = format!("{what}: {source} is not used for this limit");
                (*at, Grade::Warning, what)
            }
            Some((at, _)) => (*at, grade, what),
            None => (location, grade, what),
        };
        found.worst = found.worst.max(Some(grade));
        let Some(file) = found.files.get_mut(location.file) else {
            return;
        };
        if file.is_full() {
            file.unshown += 1;
        } else if found.reported.insert((location, what.clone())) {
            file.found += 1;
            found.all.push((location, grade, what, remedy));
        }
    }

    /// Whether there is an error, whatever the files are compiled for.
    pub(super) fn has_errors(&self) -> bool {
        self.0.borrow().worst == Some(Grade::Error)
    }

    /// All problems in the order of files, lines and columns: `Err` if one of them is an error.
    pub(super) fn finish(
        &self,
        warnings_are_errors: bool,
        mistakes_are_errors: bool,
    ) -> Result<Vec<Problem>, Vec<Problem>> {
        let mut found = self.0.take();
        // What is an error from here on.
        let from = match (warnings_are_errors, mistakes_are_errors) {
            (true, _) => Grade::Warning,
            (false, true) => Grade::Mistake,
            (false, false) => Grade::Error,
        };
        let severity = |grade| match grade >= from {
            true => Severity::Error,
            false => Severity::Warning,
        };
        let refused = found.worst.is_some_and(|worst| worst >= from);
        found.all.sort_by_key(|(location, ..)| *location);
        let mut problems = Vec::with_capacity(found.all.len());
        let mut all = found.all.into_iter().peekable();
        for (index, file) in found.files.iter().enumerate() {
            while let Some((location, grade, what, remedy)) =
                all.next_if(|(location, ..)| location.file == index)
            {
                problems.push(file.problem(severity(grade), location.at, what, remedy));
            }
            problems.extend(file.more(severity(Grade::Warning)));
        }
        if refused { Err(problems) } else { Ok(problems) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_is_one_line_whatever_a_file_is_called() {
        let (file, what, remedy) = (
            "a\n\u{1b}[2J\u{202e}é.yaml".to_owned(),
            "wr\rong".to_owned(),
            "right".to_owned(),
        );
        let problem = Problem {
            severity: Severity::Error,
            file,
            path: String::new(),
            line: 1,
            column: 2,
            what,
            remedy,
        };
        assert_eq!(
            problem.to_string(),
            "a\\n\\u{1b}[2J\\u{202e}é.yaml:1:2: error: wr\\rong; right"
        );
    }
}
