//! The rules: the immutable compiled configuration, and the look-up of a descriptor's limit.
//!
//! `rules/domains.rs` has the limits in force of a control plane.
//!
//! `rules/source.rs` has the configuration as written, `rules/compile.rs` compiles it, or reports
//! all its problems at once, and this file has the compiled rules that requests use.
//!
//! Rules are a list of shared domains. A limit is found by the number of its domain, which the
//! domain keeps while it is in force, and its index there. If one domain of a thousand changes, the
//! other 999 are neither compiled nor copied, and keep their tallies.

pub(crate) mod address;
pub mod compile;
pub mod diff;
pub mod digest;
pub mod display_name;
pub mod domains;
pub mod limit;
pub(crate) mod messages;
pub mod place;
pub mod region;
pub(crate) mod source;
pub mod table;
pub mod thresholds;
pub(crate) mod tree;

use std::collections::HashSet;
use std::sync::{Arc, OnceLock};

use hashbrown::HashMap;

use crate::core::algorithm::reservations::is_reservation_key;
use crate::core::request::Entry;
use limit::{Limit, LimitId, LimitInForce, LimitTable, OnStoreFailure};
use region::RegionShare;
use tree::Tree;
pub use tree::trace;

/// All domains, and so all limits. Rules that follow each other may share domains, which need not
/// be compiled again.
#[derive(Debug, Default)]
pub struct Rules {
    by_name: HashMap<Box<[u8]>, Arc<Domain>>,
    /// By [`LimitId::domain`]. A number without a domain has one without a name. Successive rules
    /// share unchanged domains.
    pub by_number: Vec<Arc<Domain>>,
    /// Limits that have lost `reservations` in a reload of this process: their checks end the holds
    /// that are still open.
    pub without_reservations: HashSet<LimitId>,
}

/// The limits of one domain, and the settings of all its requests.
#[derive(Debug, Default)]
pub struct Domain {
    /// The name that Envoy sends.
    pub name: Arc<str>,
    tree: Tree,
    /// By [`LimitId::limit`]: the limits of descriptors in the order of the files, then the limits
    /// of plans in tables.
    pub limits: Vec<Limit>,
    /// Whether a refused request counts in its other checks.
    pub commit: Commit,
    /// The default failure policy, which also holds for limits that requests bring along; `None`:
    /// the process's default holds.
    pub on_store_failure: Option<OnStoreFailure>,
    /// The name of the region that this process is in, if it has one.
    pub region: Option<Arc<str>>,
    /// The region's share of limits that requests bring along.
    pub share: RegionShare,
    /// The memory of its limits in bytes, estimated while they were read.
    pub memory: u64,
    /// Its part of [`Rules::digest`].
    digest: OnceLock<u64>,
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

impl Commit {
    /// Both with their names in a file.
    pub(crate) const NAMED: [(&'static str, Self); 2] =
        [("each", Self::Each), ("all_or_none", Self::AllOrNone)];
}

impl Rules {
    /// Rules of these domains, each at its number. A number that is left out has no domain.
    fn new(domains: impl IntoIterator<Item = (u32, Arc<Domain>)>) -> Self {
        let mut rules = Self::default();
        for (number, domain) in domains {
            let number = number as usize;
            let ids = (0..).map(|index| LimitId::new(number as u32, index));
            let mut limits = domain.limits.iter().zip(ids);
            debug_assert!(limits.all(|(limit, id)| limit.id == id));
            if rules.by_number.len() <= number {
                rules.by_number.resize_with(number + 1, Arc::default);
            }
            let name = domain.name.as_bytes().into();
            rules.by_name.insert(name, Arc::clone(&domain));
            rules.by_number[number] = domain;
        }
        rules
    }

    /// Rules of domains with these limits, in which no descriptor finds one.
    #[cfg(test)]
    pub(crate) fn of_limits<const N: usize>(domains: [(&str, Vec<Limit>); N]) -> Self {
        let domain = |(name, limits): (&str, _)| {
            Arc::new(Domain {
                name: name.into(),
                limits,
                ..Domain::default()
            })
        };
        Self::new((0..).zip(domains.into_iter().map(domain)))
    }

    /// The domain's `commit`; `None` if no file defines the domain.
    pub fn commit(&self, domain: &[u8]) -> Option<Commit> {
        Some(self.domain(domain)?.commit)
    }

    /// Finds the limit of a descriptor: on the branch of its last entry, or in a row of the
    /// branch's table. `None` also if no file defines the domain.
    ///
    /// At each level the exact value is tried first, then sets, the network with the longest
    /// prefix, wildcards and regular expressions in the order of the file, and the key alone,
    /// without backtracking. A limit counts only on the branch of the last entry. Source:
    /// envoyproxy/ratelimit, except that key and value are compared as a pair.
    pub fn find(&self, domain: &[u8], entries: &[Entry<'_>]) -> Option<LimitInForce<'_>> {
        self.domain(domain)?.find(entries)
    }

    /// The domain of this name, if a file defines it.
    pub(crate) fn domain(&self, name: &[u8]) -> Option<&Domain> {
        self.by_name.get(name).map(AsRef::as_ref)
    }

    /// Explains why [`Rules::find`] finds a limit or none, for the descriptors of a request; `None`
    /// if no file defines the domain.
    pub fn tracer(&self, domain: &[u8]) -> Option<trace::Tracer<'_>> {
        Some(trace::Tracer::new(&self.domain(domain)?.tree))
    }

    pub fn limit(&self, id: LimitId) -> &Limit {
        &self.by_number[id.domain as usize].limits[id.limit as usize]
    }

    /// All limits, grouped by domain, in the order of the files.
    pub fn limits(&self) -> impl Iterator<Item = &Limit> {
        self.by_number.iter().flat_map(|domain| &domain.limits)
    }

    /// The number of limits.
    pub fn limit_count(&self) -> usize {
        self.limits().count()
    }

    /// The memory of all limits in bytes, estimated while they were read.
    pub fn memory(&self) -> u64 {
        self.by_number.iter().map(|domain| domain.memory).sum()
    }

    /// The names of all domains, in no particular order.
    pub fn domains(&self) -> impl Iterator<Item = &[u8]> {
        self.by_name.keys().map(AsRef::as_ref)
    }

    /// Whether `domain` is one of these, and not only a domain with the same name.
    pub fn shares(&self, domain: &Arc<Domain>) -> bool {
        let own = self.by_name.get(domain.name.as_bytes());
        own.is_some_and(|own| Arc::ptr_eq(own, domain))
    }
}

impl Domain {
    /// [`Rules::find`] in this domain.
    #[inline]
    pub(crate) fn find(&self, entries: &[Entry<'_>]) -> Option<LimitInForce<'_>> {
        let Some(id) = self.tree.find(entries) else {
            return self.find_reservation(entries);
        };
        let limit = &self.limits[id.limit as usize];
        match &limit.table {
            None => Some(limit.into()),
            Some(table) => self.find_row(limit, table, entries),
        }
    }

    /// The limit of a descriptor with the id of a reservation as one more entry.
    #[inline(never)]
    fn find_reservation(&self, entries: &[Entry<'_>]) -> Option<LimitInForce<'_>> {
        let (last, path) = entries.split_last()?;
        if !is_reservation_key(last.key) {
            return None;
        }
        self.tree.find(path)?;
        self.find(path).filter(|found| found.limit.has_holds())
    }

    /// The limit of a descriptor whose branch has a table. A separate function, to keep look-ups
    /// without a table short.
    #[inline(never)]
    fn find_row<'r>(
        &'r self,
        limit: &'r Limit,
        table: &LimitTable,
        entries: &[Entry<'_>],
    ) -> Option<LimitInForce<'r>> {
        let entry = entries.get(table.level);
        let value = entry.map_or(&[][..], |entry| entry.value);
        let Some(row) = table.rows.find(value) else {
            return table.has_default.then(|| limit.into());
        };
        let meaning = table.rows.meaning(row);
        let of_row = meaning.and_then(|meaning| self.limits.get(meaning.limit as usize));
        Some(LimitInForce {
            limit: of_row.unwrap_or(limit),
            row: Some(row),
        })
    }
}
