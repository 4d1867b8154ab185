//! Nodes that no file holds: limits of a control plane become the same tree that a file becomes, so
//! that one compiler checks both.

use std::rc::Rc;

use super::{Content, Node, Pair, Place, ValueType, scalar};

impl Node {
    /// Text, whatever it looks like.
    pub(in crate::limits::rules) fn of_text(at: &Place, text: &str) -> Rc<Self> {
        Self::of_scalar(at, text, ValueType::Text)
    }

    /// What the text means without quotes: a number, a bool or null.
    pub(in crate::limits::rules) fn of_plain(at: &Place, text: &str) -> Rc<Self> {
        Self::of_scalar(at, text, scalar::resolve(text).into())
    }

    fn of_scalar(at: &Place, text: &str, value_type: ValueType) -> Rc<Self> {
        let content = Content::Scalar {
            text: text.into(),
            plain: false,
            value_type,
        };
        Rc::new(Self::new(at.clone(), content))
    }

    pub(in crate::limits::rules) fn of_list(at: &Place, items: Vec<Rc<Self>>) -> Rc<Self> {
        Rc::new(Self::new(at.clone(), Content::Sequence(items)))
    }

    /// A map, in which no key occurs twice.
    pub(in crate::limits::rules) fn of_map(at: &Place, entries: Vec<Pair>) -> Rc<Self> {
        Rc::new(Self::new(at.clone(), Content::Mapping(entries)))
    }
}
