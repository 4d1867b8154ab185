//! The domains of a control plane: those in force, and the changes by its next list of resources.
//!
//! A list is complete: a domain that is missing is removed. Domains are independent: one with a
//! mistake keeps its last good version, or is absent if it never had one, and the others apply. A
//! domain whose resources and options did not change since the last list is not compiled again.
//!
//! Files are all-or-nothing because one team writes them. A control plane collects the policies of
//! many, and one mistake must not freeze or drop the limits of the others. The refusal lists all
//! problems, and the valid domains are in force.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;

use hashbrown::HashSet;

use super::compile::{EntryNumber, Problem, compile_domain};
pub use super::compile::{Overlay, ReadOverlay, XdsDefaults, XdsOptions};
use super::{Domain, Rules};
use crate::core::proto::xds::RateLimitConfig;

/// Maximum number of warnings of one list. A control plane may send a hundred thousand duplicates.
pub(crate) const MOST_WARNINGS: usize = 1_000;

/// Resources that a control plane sent, and the domains in force.
#[derive(Debug, Default)]
pub struct Domains {
    entries: BTreeMap<String, KnownDomain>,
    /// Free numbers below the next one. A domain keeps its number, because the ids of its limits
    /// have to stay valid.
    free_numbers: Vec<u32>,
    settings: XdsOptions,
    /// Resources of the last list whose domain an earlier one defines.
    shadowed: Vec<Arc<RateLimitConfig>>,
    /// Whether there was a list.
    is_applied: bool,
    /// The bytes of the paths of all limits in force.
    path_bytes: usize,
    /// The warnings about entries of the overlay that match nothing.
    unused: Vec<Problem>,
}

/// Changes by a list of resources.
#[derive(Debug, Default)]
pub struct Applied {
    /// The next rules; `None` if nothing changed. The first list always has rules.
    pub rules: Option<Rules>,
    /// The domains of the list that are not in force as they were sent, in the order of their
    /// names; also those that were refused before.
    pub refused: Vec<Refused>,
    /// Likely mistakes, in domains that were compiled.
    pub warnings: Vec<Problem>,
    /// Names of domains that were not in force.
    pub added: Vec<String>,
    /// Names of domains in force that have other limits now.
    pub changed: Vec<String>,
    /// Names of domains that are no longer in force.
    pub removed: Vec<String>,
    /// The number of domains that were compiled. The others did not change since the last list.
    pub compiled: usize,
}

/// A domain that is not in force as it was sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The resource; of several with one domain the first.
    pub resource: String,
    pub domain: String,
    /// At least one error.
    pub problems: Vec<Problem>,
    /// The last good version stays in force. Otherwise the domain is unknown.
    pub keeps_old: bool,
    /// The last list did not have the same problem.
    pub is_new: bool,
}

#[derive(Debug, Default)]
struct KnownDomain {
    number: u32,
    received: Vec<Arc<RateLimitConfig>>,
    /// Why `received` is not in force; empty if it is.
    problems: Vec<Problem>,
    good: Option<Good>,
    /// The entries of the overlay that match something in `received`.
    used: Vec<EntryNumber>,
    /// Whether it was refused for the size of all domains together: another list may change that
    /// without a change of this domain.
    is_too_large: bool,
}

/// The version of a domain that is in force.
#[derive(Debug)]
struct Good {
    resources: Vec<Arc<RateLimitConfig>>,
    domain: Arc<Domain>,
    path_bytes: usize,
}

impl Domains {
    /// Applies a list of all resources, in any order.
    pub fn apply<R: Into<Arc<RateLimitConfig>>>(
        &mut self,
        resources: Vec<R>,
        settings: &XdsOptions,
    ) -> Applied {
        let mut resources: Vec<_> = resources.into_iter().map(Into::into).collect();
        sort(&mut resources);
        let mut applied = Applied::default();
        let is_other = self.settings != *settings;
        self.settings = settings.clone();
        let (before, mut refused) = (std::mem::take(&mut self.shadowed), Vec::new());
        let mut groups: BTreeMap<String, Vec<Arc<RateLimitConfig>>> = BTreeMap::new();
        for resource in resources {
            let group = groups.entry(resource.domain.clone()).or_default();
            match group.first() {
                // One without a domain is refused for that.
                Some(first) if !settings.merge_domains && !resource.domain.is_empty() => {
                    refused.push(Refused::shadowed(&resource, first, &before));
                    self.shadowed.push(resource);
                }
                _ => group.push(resource),
            }
        }
        self.remove_missing(&groups, &mut applied);
        for (domain, received) in groups {
            self.apply_domain(domain, received, is_other, &mut applied);
        }
        applied.refused.append(&mut refused);
        let has_changed = applied.added.len() + applied.changed.len() + applied.removed.len() > 0;
        if has_changed || !self.is_applied {
            self.is_applied = true;
            applied.rules = Some(self.rules());
        }
        applied.warnings.truncate(MOST_WARNINGS);
        self.report_unused(&mut applied);
        applied
    }

    /// The resources that are in force, in the order of their domains: from the last list, and for
    /// refused domains the last good ones.
    pub fn in_force(&self) -> impl Iterator<Item = &Arc<RateLimitConfig>> {
        self.entries
            .values()
            .filter_map(|entry| entry.good.as_ref())
            .flat_map(|good| good.resources.iter())
    }

    fn rules(&self) -> Rules {
        Rules::new(
            self.entries
                .values()
                .filter_map(|entry| Some((entry.number, Arc::clone(&entry.good.as_ref()?.domain)))),
        )
    }

    fn remove_missing(
        &mut self,
        groups: &BTreeMap<String, Vec<Arc<RateLimitConfig>>>,
        applied: &mut Applied,
    ) {
        self.entries.retain(|domain, entry| {
            if groups.contains_key(domain) {
                return true;
            }
            self.free_numbers.push(entry.number);
            if let Some(good) = &entry.good {
                self.path_bytes -= good.path_bytes;
                applied.removed.push(domain.clone());
            }
            false
        });
    }

    fn apply_domain(
        &mut self,
        domain: String,
        received: Vec<Arc<RateLimitConfig>>,
        is_other: bool,
        applied: &mut Applied,
    ) {
        let known = self.entries.get(&domain);
        if let Some(entry) = known
            .filter(|entry| !is_other && !entry.is_too_large && is_same(&entry.received, &received))
        {
            if !entry.problems.is_empty() {
                applied.refused.push(entry.refused(domain, false));
            }
            return;
        }
        let next = self.entries.len() as u32;
        let number = known
            .map(|entry| entry.number)
            .or_else(|| self.free_numbers.pop())
            .unwrap_or(next);
        let own_bytes = known
            .and_then(|entry| entry.good.as_ref())
            .map_or(0, |good| good.path_bytes);
        let others = self.path_bytes - own_bytes;
        let compiled = compile_domain(&received, number, &self.settings, others);
        applied.compiled += 1;
        let entry = self
            .entries
            .entry(domain.clone())
            .or_insert_with(|| KnownDomain {
                number,
                ..KnownDomain::default()
            });
        let was_refused = std::mem::replace(&mut entry.problems, compiled.problems);
        entry.received = received;
        (entry.used, entry.is_too_large) = (compiled.used, compiled.is_too_large);
        let (resources, new, path_bytes) = match (compiled.domain, &entry.good) {
            (Some(new), _) => {
                applied.warnings.append(&mut entry.problems);
                (entry.received.clone(), new, compiled.path_bytes)
            }
            (None, good) => {
                let is_new = entry.problems != was_refused;
                applied.refused.push(entry.refused(domain.clone(), is_new));
                // Other options apply to the last good version too.
                let Some(good) = good.as_ref().filter(|_| is_other) else {
                    return;
                };
                let resources = good.resources.clone();
                let again = compile_domain(&resources, number, &self.settings, others);
                applied.compiled += 1;
                let Some(new) = again.domain else { return };
                (resources, new, again.path_bytes)
            }
        };
        self.path_bytes = others + path_bytes;
        let good = Good {
            resources,
            domain: Arc::new(new),
            path_bytes,
        };
        match entry.good.replace(good) {
            Some(_) => applied.changed.push(domain),
            None => applied.added.push(domain),
        }
    }

    /// Warns of entries of the overlay that match nothing, when others do than before.
    fn report_unused(&mut self, applied: &mut Applied) {
        let Some(overlay) = &self.settings.overlay else {
            return self.unused.clear();
        };
        let used: HashSet<_> = self
            .entries
            .values()
            .flat_map(|entry| entry.used.iter().copied())
            .collect();
        let mut unused = overlay.unused(&used);
        unused.truncate(MOST_WARNINGS);
        if unused != self.unused {
            applied.warnings.extend(unused.iter().cloned());
            self.unused = unused;
        }
    }
}

impl Refused {
    /// A resource whose domain an earlier resource defines. `before` are the resources of the last
    /// list.
    fn shadowed(
        resource: &RateLimitConfig,
        first: &RateLimitConfig,
        before: &[Arc<RateLimitConfig>],
    ) -> Self {
        let (RateLimitConfig { name, domain, .. }, first) = (resource, &first.name);
        let what = format!("the domain '{domain}' is already defined, in resource {first}");
        let remedy = "send one resource for each domain, or set MERGE_DOMAIN_CONFIG=true, with \
            which resources may share a domain";
        let is_same = |known: &Arc<RateLimitConfig>| (&known.name, &known.domain) == (name, domain);
        Self {
            resource: name.clone(),
            domain: domain.clone(),
            problems: vec![Problem::whole(format!("resource {name}"), what, remedy)],
            keeps_old: false,
            is_new: !before.iter().any(is_same),
        }
    }
}

impl KnownDomain {
    fn refused(&self, domain: String, is_new: bool) -> Refused {
        let first = self.received.first();
        let resource = first.map(|resource| resource.name.clone());
        Refused {
            resource: resource.unwrap_or_default(),
            domain,
            problems: self.problems.clone(),
            keeps_old: self.good.is_some(),
            is_new,
        }
    }
}

/// Sorts resources by their names. Resources with one name are a mistake of the control plane: they
/// are sorted by content, to make the result independent of the order of the message.
fn sort(resources: &mut [Arc<RateLimitConfig>]) {
    resources.sort_by(|one, other| {
        one.name
            .cmp(&other.name)
            .then_with(|| one.domain.cmp(&other.domain))
            .then_with(|| match one == other {
                true => Ordering::Equal,
                false => format!("{one:?}").cmp(&format!("{other:?}")),
            })
    });
}

/// Resources that did not change are the same ones.
fn is_same(known: &[Arc<RateLimitConfig>], received: &[Arc<RateLimitConfig>]) -> bool {
    known.len() == received.len()
        && known
            .iter()
            .zip(received)
            .all(|(known, received)| Arc::ptr_eq(known, received) || known == received)
}

#[cfg(test)]
mod tests;
