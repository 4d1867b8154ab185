//! The rules: the immutable compiled configuration, and how a descriptor finds its limit in it.
//!
//! What the user wrote is in `rules/source.rs`, what the program runs is here; `rules/compile.rs` leads from one to the other, or reports
//! all problems at once.

pub mod compile;
pub mod limit;
mod source;
mod tree;

use hashbrown::HashMap;

use crate::ask::Entry;
use limit::{Limit, LimitId, OnStoreFailure};
use tree::Tree;

/// All domains and all limits.
#[derive(Debug, Default)]
pub struct Rules {
    domains: HashMap<Box<[u8]>, Domain>,
    limits: Vec<Limit>,
}

/// The limits of one domain, and what holds for all its requests.
#[derive(Debug, Default)]
struct Domain {
    tree: Tree,
    commit: Commit,
    on_store_failure: Option<OnStoreFailure>,
}

/// What becomes of a request's other checks when one refuses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Commit {
    /// Each counts for itself, as in envoyproxy/ratelimit.
    #[default]
    Each,
    /// A refused request counts nowhere.
    AllOrNone,
}

/// What the look-up of a descriptor found.
#[derive(Debug)]
pub enum Lookup<'r> {
    /// No file speaks of this domain.
    UnknownDomain,
    /// Nothing limits the descriptor: no entry of the tree matches it, or the one that does has no limit.
    NoLimit,
    /// The limit on the node of its last entry.
    Limit(&'r Limit),
}

impl Rules {
    /// Rules of these domains, whose limits stand in `limits` at the place of their id.
    fn new(domains: HashMap<Box<[u8]>, Domain>, limits: Vec<Limit>) -> Self {
        debug_assert!(limits.iter().enumerate().all(|(index, limit)| limit.id.0 as usize == index));
        Self { domains, limits }
    }

    /// What becomes of the other checks of a request when one refuses; `None` when no file speaks of the domain.
    #[must_use]
    pub fn commit(&self, domain: &[u8]) -> Option<Commit> {
        self.domains.get(domain).map(|domain| domain.commit)
    }

    /// What answers for limits of the domain that say nothing themselves, also for those that requests bring along, while the store cannot;
    /// `None` when the domain says nothing either.
    #[must_use]
    pub fn on_store_failure(&self, domain: &[u8]) -> Option<OnStoreFailure> {
        self.domains.get(domain).and_then(|domain| domain.on_store_failure)
    }

    /// Finds the limit of a descriptor.
    ///
    /// At each level the exact value is tried first, then wildcards in the order of the file, then the key alone; there is no way back. A
    /// limit counts only on the node of the last entry. Source: envoyproxy/ratelimit, except that key and value are compared as a pair.
    #[must_use]
    pub fn find(&self, domain: &[u8], entries: &[Entry<'_>]) -> Lookup<'_> {
        let Some(domain) = self.domains.get(domain) else { return Lookup::UnknownDomain };
        domain.tree.find(entries).map_or(Lookup::NoLimit, |id| Lookup::Limit(self.limit(id)))
    }

    /// The limit of that id.
    #[must_use]
    pub fn limit(&self, id: LimitId) -> &Limit {
        &self.limits[id.0 as usize]
    }

    /// All limits, by id.
    #[must_use]
    pub fn limits(&self) -> &[Limit] {
        &self.limits
    }

    /// The names of all domains, in no particular order.
    pub fn domains(&self) -> impl Iterator<Item = &[u8]> {
        self.domains.keys().map(AsRef::as_ref)
    }
}
