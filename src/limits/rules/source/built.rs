//! Nodes that no file holds: limits of a control plane become the same tree that a file becomes, so
//! that one compiler checks both.

use std::rc::Rc;

use super::{Content, Node, Pair, Position, Tag};

impl Node {
    /// Text, whatever it looks like.
    pub(in crate::limits::rules) fn of_text(at: Position, text: &str) -> Rc<Self> {
        Self::of(
            at,
            Content::Scalar {
                text: text.into(),
                plain: false,
                tag: Tag::Text,
            },
        )
    }

    /// What the text means without quotes: a number, a bool or null.
    pub(in crate::limits::rules) fn of_plain(at: Position, text: impl Into<Box<str>>) -> Rc<Self> {
        Self::of(
            at,
            Content::Scalar {
                text: text.into(),
                plain: true,
                tag: Tag::Implied,
            },
        )
    }

    /// A list.
    pub(in crate::limits::rules) fn of_list(at: Position, items: Vec<Rc<Self>>) -> Rc<Self> {
        Self::of(at, Content::Sequence(items))
    }

    /// A map, in which no key occurs twice.
    pub(in crate::limits::rules) fn of_map(at: Position, entries: Vec<Pair>) -> Rc<Self> {
        Self::of(at, Content::Mapping(entries))
    }

    /// Size and height bound what aliases expand to, and no alias refers to such a node.
    fn of(at: Position, content: Content) -> Rc<Self> {
        Rc::new(Self {
            at,
            content,
            size: 1,
            height: 0,
        })
    }
}
