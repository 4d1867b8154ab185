//! The domains of a control plane: those in force, and the changes by its next list of resources.
//!
//! A list is complete: a domain that is missing is removed. Domains are independent: one with a
//! mistake keeps its last good version, or is absent if it never had one, and the others apply. A
//! domain whose resources and options did not change since the last list is not compiled again.
//!
//! Files are all-or-nothing because one team writes them. A control plane collects the policies of
//! many, and one mistake must not freeze or drop the limits of the others. The refusal lists all
//! problems, and the valid domains are in force.

use std::collections::BTreeMap;
use std::sync::Arc;

use hashbrown::HashSet;

use super::compile::{EntryNumber, Problem, compile_domain};
pub use super::compile::{Overlay, ReadOverlay, XdsDefaults, XdsOptions};
use super::messages;
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
    /// The bytes of the paths of all limits in force.
    path_bytes: usize,
}

/// Changes by a list of resources.
#[derive(Debug, Default)]
pub struct Applied {
    /// The next rules; `None` if nothing changed.
    pub rules: Option<Rules>,
    /// The domains of the list that are not in force as they were sent, in the order of their
    /// names; also those that were refused before.
    pub refused: Vec<Refused>,
    /// Likely mistakes in domains that were compiled, and all entries of the overlay that match
    /// nothing.
    pub warnings: Vec<Problem>,
}

/// A domain that is not in force as it was sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    pub domain: String,
    /// At least one error.
    pub problems: Vec<Problem>,
    /// The last good version stays in force. Otherwise the domain is unknown.
    pub keeps_old: bool,
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
    /// Applies a list of all resources, in any order, each with a name of its own.
    pub fn apply<R: Into<Arc<RateLimitConfig>>>(
        &mut self,
        resources: Vec<R>,
        settings: &XdsOptions,
    ) -> Applied {
        let mut resources: Vec<_> = resources.into_iter().map(Into::into).collect();
        resources.sort_by(|one, other| one.name.cmp(&other.name));
        let mut applied = Applied::default();
        let is_other = self.settings != *settings;
        self.settings = settings.clone();
        let mut refused = Vec::new();
        let mut groups: BTreeMap<String, Vec<Arc<RateLimitConfig>>> = BTreeMap::new();
        for resource in resources {
            let group = groups.entry(resource.domain.clone()).or_default();
            match group.first() {
                // One without a domain is refused for that.
                Some(first) if !settings.merge_domains && !resource.domain.is_empty() => {
                    refused.push(Refused::shadowed(&resource, &first.name));
                }
                _ => group.push(resource),
            }
        }
        let mut has_changed = self.remove_missing(&groups);
        for (domain, received) in groups {
            has_changed |= self.apply_domain(domain, received, is_other, &mut applied);
        }
        applied.refused.append(&mut refused);
        applied.rules = has_changed.then(|| self.rules());
        applied.warnings.truncate(MOST_WARNINGS);
        applied.warnings.extend(self.unused());
        applied
    }

    /// The resources that are in force, in the order of their domains: from the last list, and for
    /// refused domains the last good ones.
    pub fn in_force(&self) -> impl Iterator<Item = &Arc<RateLimitConfig>> {
        let good = self
            .entries
            .values()
            .filter_map(|entry| entry.good.as_ref());
        good.flat_map(|good| &good.resources)
    }

    fn rules(&self) -> Rules {
        let entries = self.entries.values();
        let good = entries.filter_map(|entry| Some((entry.number, entry.good.as_ref()?)));
        Rules::new(good.map(|(number, good)| (number, Arc::clone(&good.domain))))
    }

    /// Removes the other domains. Returns whether one of them was in force.
    fn remove_missing(&mut self, groups: &BTreeMap<String, Vec<Arc<RateLimitConfig>>>) -> bool {
        let mut has_changed = false;
        self.entries.retain(|domain, entry| {
            if groups.contains_key(domain) {
                return true;
            }
            self.free_numbers.push(entry.number);
            if let Some(good) = &entry.good {
                self.path_bytes -= good.path_bytes;
                has_changed = true;
            }
            false
        });
        has_changed
    }

    /// Compiles a domain if it has changed. Returns whether other limits are in force.
    fn apply_domain(
        &mut self,
        domain: String,
        received: Vec<Arc<RateLimitConfig>>,
        is_other: bool,
        applied: &mut Applied,
    ) -> bool {
        let known = self.entries.get(&domain);
        if let Some(entry) = known
            && !is_other
            && !entry.is_too_large
            && is_same(&entry.received, &received)
        {
            if !entry.problems.is_empty() {
                applied.refused.push(entry.refused(domain));
            }
            return false;
        }
        let next = self.entries.len() as u32;
        let number = known.map(|entry| entry.number);
        let number = number.or_else(|| self.free_numbers.pop()).unwrap_or(next);
        let good = known.and_then(|entry| entry.good.as_ref());
        let others = self.path_bytes - good.map_or(0, |good| good.path_bytes);
        let compiled = compile_domain(&received, number, &self.settings, others);
        let entry = self.entries.entry(domain.clone()).or_default();
        entry.number = number;
        (entry.received, entry.problems) = (received, compiled.problems);
        (entry.used, entry.is_too_large) = (compiled.used, compiled.is_too_large);
        let (resources, new, path_bytes) = match (compiled.domain, &entry.good) {
            (Some(new), _) => {
                applied.warnings.append(&mut entry.problems);
                (entry.received.clone(), new, compiled.path_bytes)
            }
            (None, good) => {
                applied.refused.push(entry.refused(domain));
                // Other options apply to the last good version too.
                let Some(good) = good.as_ref().filter(|_| is_other) else {
                    return false;
                };
                let resources = good.resources.clone();
                let again = compile_domain(&resources, number, &self.settings, others);
                let Some(new) = again.domain else {
                    return false;
                };
                (resources, new, again.path_bytes)
            }
        };
        self.path_bytes = others + path_bytes;
        entry.good = Some(Good {
            resources,
            domain: Arc::new(new),
            path_bytes,
        });
        true
    }

    /// Warnings about entries of the overlay that match nothing.
    fn unused(&self) -> Vec<Problem> {
        let used = self.entries.values().flat_map(|entry| &entry.used);
        let used: HashSet<_> = used.copied().collect();
        let overlay = self.settings.overlay.as_ref();
        let mut unused = overlay.map_or_else(Vec::new, |overlay| overlay.unused(&used));
        unused.truncate(MOST_WARNINGS);
        unused
    }
}

impl Refused {
    /// A resource whose domain the resource `first` defines.
    fn shadowed(resource: &RateLimitConfig, first: &str) -> Self {
        let RateLimitConfig { name, domain, .. } = resource;
        let message = messages::repeated_resource(domain, first);
        Self {
            domain: domain.clone(),
            problems: vec![Problem::whole(format!("resource {name}"), message)],
            keeps_old: false,
        }
    }
}

impl KnownDomain {
    fn refused(&self, domain: String) -> Refused {
        Refused {
            domain,
            problems: self.problems.clone(),
            keeps_old: self.good.is_some(),
        }
    }
}

/// Resources that did not change are the same ones.
fn is_same(known: &[Arc<RateLimitConfig>], received: &[Arc<RateLimitConfig>]) -> bool {
    let mut pairs = known.iter().zip(received);
    known.len() == received.len()
        && pairs.all(|(known, received)| Arc::ptr_eq(known, received) || known == received)
}

#[cfg(test)]
mod tests;
