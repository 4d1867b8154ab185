//! Locations in the resources of a control plane, which have no lines: the path of keys from the
//! root to a descriptor.

use std::rc::Rc;
use std::sync::Arc;

use crate::limits::rules::source::{Node, Position, cut, shown};

/// Characters of a path, or of the name of a resource, in a message.
const LONGEST_PATH: usize = 400;

/// The descriptors of a domain, each with its resource, for messages about them.
pub(super) struct Resources {
    names: Vec<Arc<str>>,
    /// By their numbers less 1, parents before their children.
    descriptors: Vec<LocatedDescriptor>,
}

struct LocatedDescriptor {
    resource: usize,
    /// The number of the descriptor above it; 0: the root.
    parent: u32,
    key: Rc<Node>,
    value: Option<Rc<Node>>,
}

impl Resources {
    /// Resources without descriptors so far.
    pub(super) fn new(names: impl Iterator<Item = String>) -> Self {
        let names = names.map(|name| format!("resource {}", cut(&name, LONGEST_PATH)).into());
        Self {
            names: names.collect(),
            descriptors: Vec::new(),
        }
    }

    /// The resource of the descriptor at a position.
    pub(super) fn document(&self, at: Position) -> Arc<str> {
        let resource = self.descriptor(at.line).map_or(0, |own| own.resource);
        self.name(resource)
    }

    /// The position of the descriptor that is added next.
    pub(super) fn next(&self) -> Position {
        Position {
            line: u32::try_from(self.descriptors.len() + 1).unwrap_or(u32::MAX),
            column: 0,
        }
    }

    /// Adds a descriptor. `resource` is the index of a name.
    pub(super) fn add(
        &mut self,
        resource: usize,
        parent: Position,
        key: Rc<Node>,
        value: Option<Rc<Node>>,
    ) {
        self.descriptors.push(LocatedDescriptor {
            resource,
            parent: parent.line,
            key,
            value,
        });
    }

    /// A resource in a message.
    pub(super) fn name(&self, resource: usize) -> Arc<str> {
        self.names.get(resource).cloned().unwrap_or_default()
    }

    /// The resource and the path of a position.
    pub(super) fn show(&self, at: Position) -> (Arc<str>, String) {
        let own = self.descriptor(at.line);
        let mut levels = Vec::new();
        let mut next = own;
        while let Some(descriptor) = next {
            let key = shown(descriptor.key.text().unwrap_or_default());
            let value = descriptor.value.as_ref().and_then(|value| value.text());
            levels.push(match value {
                Some(value) => format!("{key}={}", shown(value)),
                None => key,
            });
            next = self.descriptor(descriptor.parent);
        }
        levels.reverse();
        let path = cut(&levels.join(" > "), LONGEST_PATH);
        (self.name(own.map_or(0, |own| own.resource)), path)
    }

    fn descriptor(&self, number: u32) -> Option<&LocatedDescriptor> {
        self.descriptors.get((number as usize).checked_sub(1)?)
    }
}
