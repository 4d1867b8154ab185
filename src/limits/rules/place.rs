//! Places for messages: in a file of limits, in a table, or in a resource of a control plane, which
//! has no lines.

use std::fmt;
use std::sync::Arc;

/// Maximum characters of a path, or of the name of a resource, in a message.
pub(super) const LONGEST_PATH: usize = 400;

/// The beginning of a text that is longer than `longest` characters, followed by dots.
pub(super) fn cut(text: &str, longest: usize) -> String {
    let cut: String = text.chars().take(longest).collect();
    let more = if cut.len() < text.len() { "..." } else { "" };
    cut + more
}

/// A file, or a descriptor of a control plane.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Document {
    /// The path of a file below the folder of limits, or the resource of a control plane.
    pub name: Arc<str>,
    /// In a resource, the keys and values from the root to the descriptor.
    pub(super) path: Box<str>,
    /// The whole resource of a descriptor.
    pub(super) resource: Option<Arc<Document>>,
    /// Its file among those that are compiled together; a domain of a control plane counts as one.
    pub(super) file: usize,
    /// Its number among the descriptors of that domain, from 1 on.
    pub(super) number: u32,
}

/// A place in a document. Lines and columns are from 1 on, and columns count characters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// Data that all places in one document share.
    pub document: Arc<Document>,
    /// 0 = the whole document.
    pub line: u32,
    /// 0 = the whole line.
    pub column: u32,
}

impl Place {
    /// A whole document, of which no line is known.
    pub fn whole(document: Document) -> Self {
        let document = Arc::new(document);
        let (line, column) = (0, 0);
        Self {
            document,
            line,
            column,
        }
    }

    /// The whole of a document of that name, which is compiled with no other one.
    pub fn named(name: impl Into<Arc<str>>) -> Self {
        Self::whole(Document {
            name: name.into(),
            ..Document::default()
        })
    }

    /// A line and a column of the same document.
    #[must_use]
    pub fn at(&self, (line, column): (u32, u32)) -> Self {
        Self {
            document: Arc::clone(&self.document),
            line,
            column,
        }
    }

    /// The whole resource of a place in one.
    pub(super) fn without_path(mut self) -> Self {
        if let Some(resource) = self.document.resource.clone() {
            self.document = resource;
        }
        self
    }

    /// Places sort by it, in the order in which documents are compiled.
    pub(super) fn order(&self) -> (usize, u32, u32, u32) {
        let Document { file, number, .. } = *self.document;
        (file, number, self.line, self.column)
    }
}

impl fmt::Display for Place {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = &self.document.name;
        match self.line {
            0 if self.document.resource.is_none() => out.write_str(name),
            0 => write!(out, "{name}: {}", self.document.path),
            line => write!(out, "{name}:{line}"),
        }
    }
}
