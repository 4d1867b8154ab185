//! The rules: the immutable compiled configuration, and the look-up of a descriptor's limit.
//!
//! `rules/source.rs` holds the configuration as written, `rules/compile.rs` compiles it, or reports all its problems at once, and this file
//! holds what the program runs.

pub mod compile;
pub mod diff;
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

/// The limits of one domain, and the settings of all its requests.
#[derive(Debug, Default)]
struct Domain {
    tree: Tree,
    commit: Commit,
    on_store_failure: Option<OnStoreFailure>,
}

/// Whether a refused request counts in its other checks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Commit {
    /// Each check counts on its own, as in envoyproxy/ratelimit.
    #[default]
    Each,
    /// A refused request counts nowhere.
    AllOrNone,
}

/// The result of looking up a descriptor.
#[derive(Debug)]
pub enum Lookup<'r> {
    /// No file defines this domain.
    UnknownDomain,
    /// The descriptor has no limit: no branch matches it, or the one that does has no limit.
    NoLimit,
    /// The limit on the branch of its last entry.
    Limit(&'r Limit),
}

impl Rules {
    /// Rules of these domains. `limits` is in the order of their ids.
    fn new(domains: HashMap<Box<[u8]>, Domain>, limits: Vec<Limit>) -> Self {
        debug_assert!(limits.iter().enumerate().all(|(index, limit)| limit.id.0 as usize == index));
        Self { domains, limits }
    }

    /// The domain's `commit`; `None` if no file defines the domain.
    #[must_use]
    pub fn commit(&self, domain: &[u8]) -> Option<Commit> {
        self.domains.get(domain).map(|domain| domain.commit)
    }

    /// The domain's default failure policy, which also holds for limits that requests bring along; `None`: the process's default holds.
    #[must_use]
    pub fn on_store_failure(&self, domain: &[u8]) -> Option<OnStoreFailure> {
        self.domains.get(domain).and_then(|domain| domain.on_store_failure)
    }

    /// Finds the limit of a descriptor.
    ///
    /// At each level the exact value is tried first, then wildcards in the order of the file, then the key alone, without backtracking. A
    /// limit counts only on the branch of the last entry. Source: envoyproxy/ratelimit, except that key and value are compared as a pair.
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
