//! Problems: the error, its place, and its remedy.

use std::cell::RefCell;
use std::fmt;
use std::num::NonZeroUsize;
use std::rc::Rc;
use std::sync::Arc;

use hashbrown::{HashMap, HashSet};
use serde::{Serialize, Serializer};

use crate::core::message::{Code, Message};
use crate::limits::rules::messages;
use crate::limits::rules::place::{Document, Place};
use crate::limits::rules::source::{self, Node};
pub(super) use crate::limits::rules::source::{excerpt, quoted};

/// Maximum number of problems shown per file: messages of a broken file of 16 MiB could take
/// gigabytes.
const MOST_PER_FILE: usize = 1_000;

/// Maximum number of problems of one kind shown per file: an author who repeats a mistake needs the
/// first few of them, and then the other kinds.
pub(crate) const MOST_OF_A_KIND: usize = 20;

/// Maximum number of problems shown of all files.
const MOST: usize = 10_000;

/// Maximum number of problems shown per domain of a control plane: there may be thousands of
/// domains, and their problems are kept until they are solved.
pub(crate) const MOST_PER_DOMAIN: usize = 20;

/// The effect of a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The files cannot be used.
    Error,
    /// The files can be used, but probably do not mean what their author intended.
    Warning,
}

impl Severity {
    /// The word in messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
        }
    }
}

/// Severity of a problem, before the purpose of the compilation is applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Grade {
    Warning,
    /// The file means something else than its author intended, but envoyproxy/ratelimit accepts it:
    /// an error of `weir check` only.
    Mistake,
    Error,
}

/// One thing that is wrong in a file, or in a resource of a control plane.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// The name of the file, as the caller passed it, or `resource` and the name of the resource.
    pub file: String,
    /// In a resource, the keys and values from the root to the descriptor; empty for the whole
    /// resource, and in a file.
    #[serde(skip)]
    pub path: String,
    /// From 1; 0 = the whole file.
    #[serde(serialize_with = "null_for_0")]
    pub line: usize,
    /// From 1, in characters; 0 = the whole file.
    #[serde(serialize_with = "null_for_0")]
    pub column: usize,
    pub severity: Severity,
    #[serde(flatten)]
    pub message: Message,
}

fn null_for_0<S: Serializer>(number: &usize, serializer: S) -> Result<S::Ok, S::Error> {
    NonZeroUsize::new(*number).serialize(serializer)
}

impl Problem {
    /// An error of a whole file or resource.
    pub fn whole(file: String, message: Message) -> Self {
        Self::error(&Place::named(file), message)
    }

    /// An error at a place.
    pub fn error(at: &Place, message: Message) -> Self {
        Self::new(Severity::Error, at, message)
    }

    /// A problem at a place.
    pub(super) fn new(severity: Severity, at: &Place, message: Message) -> Self {
        Self {
            severity,
            file: at.document.name.to_string(),
            path: at.document.path.to_string(),
            line: at.line as usize,
            column: at.column as usize,
            message,
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (file, severity) = (&self.file, self.severity.name());
        let at = match self.line {
            0 if self.path.is_empty() => file.clone(),
            0 => format!("{file}: {}", self.path),
            line => format!("{file}:{line}:{}", self.column),
        };
        let [at, message] = [at, self.message.to_string()];
        let (at, message) = (OneLine(&at), OneLine(&message));
        write!(formatter, "{at}: {severity}: {message}")
    }
}

/// A text with its control characters escaped, which would end the line or control a terminal: file
/// names may contain any character.
pub(crate) struct OneLine<'a>(pub(crate) &'a str);

impl fmt::Display for OneLine<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        use fmt::Write;
        // Line separators, and marks that change the direction of the text around them.
        let is_mark = |c| matches!(c, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        for c in self.0.chars() {
            match c.is_control() || is_mark(c) {
                true => write!(formatter, "{}", c.escape_debug())?,
                false => formatter.write_char(c)?,
            }
        }
        Ok(())
    }
}

/// The problems found so far, in all files. Everything that reads shares them, because everything
/// may find some. A clone adds to the same ones, and may be for another site.
#[derive(Clone, Default)]
pub(super) struct Problems {
    found: Rc<RefCell<Found>>,
    site: Site,
}

/// Place of the values that are read.
#[derive(Clone, Default)]
enum Site {
    /// In a map, after their keys.
    #[default]
    Map,
    /// In a row of a table, whose keys are in the first line.
    Row,
    /// In a layer that is left out if it has a problem, which is a warning then: the place of the
    /// limit, and the name of the layer.
    Layer(Place, Arc<str>),
}

#[derive(Default)]
struct Found {
    /// The files, or one domain of a control plane.
    files: Vec<File>,
    is_domain: bool,
    all: Vec<(Place, Grade, Message)>,
    /// A problem is reported once, though aliases lead to its place more than once.
    reported: HashSet<((usize, u32, u32, u32), String)>,
    worst: Option<Grade>,
}

#[derive(Default)]
struct File {
    whole: Place,
    found: usize,
    unshown: usize,
    kinds: HashMap<Code, usize>,
}

impl Found {
    fn is_full(&self, file: usize) -> bool {
        let most = match self.is_domain {
            true => MOST_PER_DOMAIN,
            false => MOST_PER_FILE,
        };
        let file = self.files.get(file);
        self.all.len() >= MOST || file.is_some_and(|file| file.found + file.unshown >= most)
    }
}

impl Problems {
    /// Adds a file, and returns the whole of it.
    pub(super) fn open(&self, name: &str) -> Place {
        let files = &mut self.found.borrow_mut().files;
        let whole = Place::whole(Document {
            name: name.into(),
            file: files.len(),
            ..Document::default()
        });
        files.push(File {
            whole: whole.clone(),
            ..File::default()
        });
        whole
    }

    /// Adds a domain of a control plane, and returns the whole of its first resource.
    pub(super) fn open_domain(&self, resource: &str) -> Place {
        self.found.borrow_mut().is_domain = true;
        self.open(resource)
    }

    /// Whether a file has no errors.
    pub(super) fn is_clean(&self, file: &Place) -> bool {
        let is_error = |(place, grade, _): &(Place, Grade, _)| {
            place.document.file == file.document.file && *grade == Grade::Error
        };
        !self.found.borrow().all.iter().any(is_error)
    }

    /// For the values of a row.
    pub(super) fn in_row(&self) -> Self {
        let site = Site::Row;
        Self {
            site,
            ..self.clone()
        }
    }

    /// For the values of a layer that is left out of the limit at this place if it has a problem.
    pub(super) fn in_layer(&self, limit: &Place, source: &str) -> Self {
        let site = Site::Layer(limit.clone(), source.into());
        Self {
            site,
            ..self.clone()
        }
    }

    /// How the author writes this value of this key.
    pub(super) fn written(&self, key: &str, value: impl fmt::Display) -> String {
        match self.site {
            Site::Row => value.to_string(),
            Site::Map | Site::Layer(..) => format!("{key}: {value}"),
        }
    }

    /// Adds an error.
    pub(super) fn error(&self, at: &Place, message: Message) {
        self.add(at, Grade::Error, message);
    }

    /// Adds an error instead of a value.
    pub(super) fn fail<T>(&self, at: &Place, message: Message) -> Option<T> {
        self.error(at, message);
        None
    }

    /// The value; or adds an error.
    pub(super) fn accept<T>(&self, at: &Place, read: Result<T, Message>) -> Option<T> {
        read.map_err(|message| self.error(at, message)).ok()
    }

    /// Adds a warning.
    pub(super) fn warning(&self, at: &Place, message: Message) {
        self.add(at, Grade::Warning, message);
    }

    /// Reads the document of a file, whose nodes may take `most` bytes, and adds its warnings.
    /// Returns its root, if it is more than comments; `Err` if it is unreadable, which is reported.
    pub(super) fn document(
        &self,
        file: &Place,
        text: &[u8],
        most: u64,
    ) -> Result<Option<Node>, ()> {
        let document = match source::read(text, file, most) {
            Ok(document) => document,
            Err(note) => {
                self.error(&note.at, note.message);
                return Err(());
            }
        };
        for note in document.warnings {
            self.warning(&note.at, note.message);
        }
        if let Some(file) = self.found.borrow_mut().files.get_mut(file.document.file) {
            file.unshown += document.further_warnings;
        }
        Ok(document.root)
    }

    /// Whether the file has too many problems to show another one, which is then only counted and
    /// needs no message.
    pub(super) fn is_full(&self, at: &Place) -> bool {
        self.found.borrow().is_full(at.document.file)
    }

    /// Adds a problem of this grade.
    pub(super) fn add(&self, at: &Place, grade: Grade, message: Message) {
        let (at, grade, message) = match &self.site {
            Site::Layer(limit, source) if grade != Grade::Warning => {
                let message = messages::with_layer_left_out(message, source);
                (limit, Grade::Warning, message)
            }
            Site::Layer(limit, _) => (limit, grade, message),
            Site::Map | Site::Row => (at, grade, message),
        };
        let mut found = self.found.borrow_mut();
        let found = &mut *found;
        found.worst = found.worst.max(Some(grade));
        let index = at.document.file;
        let is_full = found.is_full(index);
        let Some(file) = found.files.get_mut(index) else {
            return;
        };
        let of_kind = file.kinds.entry(message.code).or_default();
        if is_full || *of_kind >= MOST_OF_A_KIND {
            file.unshown += 1;
        } else if found.reported.insert((at.order(), message.what.clone())) {
            *of_kind += 1;
            file.found += 1;
            found.all.push((at.clone(), grade, message));
        }
    }

    /// Whether there is an error, for any purpose of the compilation.
    pub(super) fn has_errors(&self) -> bool {
        self.found.borrow().worst == Some(Grade::Error)
    }

    /// All problems in the order of files, lines and columns: `Err` if one of them is an error.
    pub(super) fn finish(
        &self,
        warnings_are_errors: bool,
        mistakes_are_errors: bool,
    ) -> Result<Vec<Problem>, Vec<Problem>> {
        let mut found = self.found.take();
        // Grades from here on are errors.
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
        found.all.sort_by_key(|(at, ..)| at.order());
        let of = if found.is_domain { "domain" } else { "file" };
        let mut problems = Vec::with_capacity(found.all.len());
        let mut all = found.all.into_iter().peekable();
        for (index, file) in found.files.iter().enumerate() {
            let is_here = |(at, ..): &(Place, _, _)| at.document.file == index;
            while let Some((at, grade, message)) = all.next_if(is_here) {
                problems.push(Problem::new(severity(grade), &at, message));
            }
            if file.unshown > 0 {
                let (severity, at) = (severity(Grade::Warning), &file.whole);
                let message = messages::more_problems(file.unshown, of);
                problems.push(Problem::new(severity, at, message));
            }
        }
        if refused { Err(problems) } else { Ok(problems) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_is_one_line_whatever_a_file_is_called() {
        let file = "a\n\u{1b}[2J\u{202e}é.yaml".to_owned();
        let problem = Problem {
            line: 1,
            column: 2,
            ..Problem::whole(file, messages::yaml_other("wr\rong"))
        };
        let shown = problem.to_string();
        let expected = "a\\n\\u{1b}[2J\\u{202e}é.yaml:1:2: error: this is not YAML: wr\\rong; ";
        assert!(shown.starts_with(expected), "{shown}");
    }
}
