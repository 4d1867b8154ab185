//! The configuration of the control plane: its wanted resources, the ones in force, and how a
//! response changes both.
//!
//! If a resource cannot be used, Weir refuses only this resource: the limits that were in force
//! under its name stay. This file uses neither a clock nor a connection.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use bytes::Bytes;

use super::protocol::ApplyOutcome;
use super::resources::{self, Wanted};
use super::weight::weigh;
use crate::core::proto::xds::RateLimitConfig;
use crate::limits::rules::Rules;
use crate::limits::rules::compile::Problem;
use crate::limits::rules::domains::{Domains, Overlay, XdsOptions};
use crate::limits::rules::messages;

/// Maximum number of resources. A gateway has one for each listener and each shared policy.
pub(crate) const MAX_RESOURCES: usize = 100_000;

/// Maximum number of problems of a response in a NACK, and of elements without a name that are kept
/// for it.
const MOST_SHOWN: usize = 100;

#[derive(Debug, Default)]
pub(super) struct Configuration {
    domains: Domains,
    options: XdsOptions,
    /// Maximum size of the messages of all resources together, in bytes.
    max_bytes: usize,
    /// Maximum memory of all resources in bytes, as [`weigh`] estimates it.
    max_memory: u64,
    wanted: BTreeMap<String, Wanted>,
    /// The problems of resources without a readable name.
    unnamed: Vec<String>,
    /// The encoded resources in force, by name.
    pub(super) in_force: BTreeMap<String, Bytes>,
    /// The names of resources in force that nothing wants any more: their domains were refused
    /// under other names.
    outdated: BTreeSet<String>,
    /// Whether `in_force` has changed since [`Configuration::take_changed`].
    has_changed: bool,
    /// The number of changes of the resources and the options.
    changes: u64,
    /// The last result, while neither of both changes.
    last: Option<ApplyOutcome>,
}

/// The result of a change.
#[derive(Debug, Default)]
pub(super) struct Applied {
    /// New rules; `None` if the rules in force stay.
    pub(super) rules: Option<Rules>,
    /// The result for the control plane.
    pub(super) outcome: ApplyOutcome,
    /// Whether the configuration is the same as after the last change. Then nothing was compiled.
    pub(super) is_known: bool,
    /// The reasons of refusals.
    pub(super) problems: Vec<Problem>,
    /// Warnings about resources that were not refused.
    pub(super) warnings: Vec<Problem>,
    /// Refused resources or domains of which an earlier version is in force.
    pub(super) kept: usize,
    /// Refused resources or domains that have no limits in force.
    pub(super) absent: usize,
}

impl Configuration {
    /// A configuration without resources.
    pub(super) fn new(options: XdsOptions, max_bytes: usize, max_memory: u64) -> Self {
        Self {
            options,
            max_bytes,
            max_memory,
            ..Self::default()
        }
    }

    /// Whether the resources in force have changed since the last call.
    pub(super) fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.has_changed)
    }

    /// The resources in force have to be saved again.
    pub(super) fn set_changed(&mut self) {
        self.has_changed = true;
    }

    /// Applies the wanted resources once more, with another overlay. Before the first response there
    /// is nothing to apply: no limits are known, which is not the same as none.
    pub(super) fn apply_overlay(&mut self, overlay: Overlay) -> Applied {
        self.options.overlay = Some(Arc::new(overlay));
        if self.changes == 0 && self.last.is_none() {
            return Applied {
                is_known: true,
                ..Applied::default()
            };
        }
        self.has_new_content();
        self.apply_wanted()
    }

    /// Applies resources that were in force when they were saved.
    pub(super) fn restore(&mut self, resources: BTreeMap<String, Bytes>) -> Applied {
        let resources = resources.into_iter();
        self.wanted = resources.map(|(name, found)| (name, Ok(found))).collect();
        let applied = self.apply_wanted();
        self.has_changed = false;
        applied
    }

    /// Applies a response: all resources, each an encoded `Any`.
    pub(super) fn apply(&mut self, packed: &[Bytes]) -> Applied {
        let (wanted, unnamed) = self.unpack(packed);
        if wanted != self.wanted || unnamed != self.unnamed {
            (self.wanted, self.unnamed) = (wanted, unnamed);
            self.has_new_content();
        }
        self.apply_wanted()
    }

    /// The resources that a response wants, and the problems of those without a readable name.
    fn unpack(&self, packed: &[Bytes]) -> (BTreeMap<String, Wanted>, Vec<String>) {
        let (mut wanted, mut unnamed) = (BTreeMap::<String, Wanted>::new(), Vec::new());
        if packed.len() > MAX_RESOURCES {
            let count = packed.len();
            let what = format!("it has {count} resources; at most {MAX_RESOURCES} are possible");
            return (self.wanted.clone(), vec![what]);
        }
        let (mut prolonged, mut has_content) = (false, packed.is_empty());
        for packed in packed {
            match resources::unpack(packed) {
                Ok((name, None)) => {
                    prolonged = true;
                    if let Some(known) = self.wanted.get(&name) {
                        wanted.insert(name, known.clone());
                    }
                    continue;
                }
                Ok((name, Some(resource))) => insert(&mut wanted, name, resource),
                // Only some are kept: a response may have a million of them.
                Err(what) if unnamed.len() < MOST_SHOWN => unnamed.push(what),
                Err(_) => {}
            }
            has_content = true;
        }
        // A response that only prolongs times to live need not name all resources.
        if prolonged && !has_content {
            return (self.wanted.clone(), unnamed);
        }
        // The order of resources in a response is random, but messages about them must have a fixed
        // order.
        unnamed.sort_unstable();
        if !unnamed.is_empty() {
            // A resource that seems to be missing may be one whose name cannot be read.
            for (name, resource) in &self.in_force {
                let entry = wanted.entry(name.clone());
                entry.or_insert_with(|| Ok(resource.clone()));
            }
        }
        (wanted, unnamed)
    }

    fn has_new_content(&mut self) {
        self.changes += 1;
        self.last = None;
    }

    /// Compiles the wanted resources, unless they are the same as last time.
    fn apply_wanted(&mut self) -> Applied {
        if let Some(outcome) = &self.last {
            return Applied {
                outcome: outcome.clone(),
                is_known: true,
                ..Applied::default()
            };
        }
        let mut applied = Applied::default();
        let (resources, broken) = self.decode(&mut applied);
        let compiled = self.domains.apply(resources, &self.options);
        (applied.rules, applied.warnings) = (compiled.rules, compiled.warnings);
        let mut kept_domains = HashSet::new();
        for refusal in compiled.refused {
            applied.problems.extend(refusal.problems);
            if refusal.keeps_old {
                applied.kept += 1;
                kept_domains.insert(refusal.domain);
            } else {
                applied.absent += 1;
            }
        }
        self.put_in_force(&broken, &kept_domains);
        let unnamed = self.unnamed.iter();
        let unnamed = unnamed.map(|what| problem("without a name", what.clone()));
        applied.problems.extend(unnamed);
        if !applied.problems.is_empty() {
            let shown = applied.problems.iter().take(MOST_SHOWN);
            let shown: Vec<_> = shown.map(ToString::to_string).collect();
            applied.outcome = ApplyOutcome::Refused {
                content: self.changes,
                message: shown.join("\n"),
            };
        }
        self.last = Some(applied.outcome.clone());
        applied
    }

    /// Decodes the wanted resources one at a time, except those already in force. A resource that
    /// cannot be decoded keeps its version in force. Also returns the names of such resources.
    fn decode(&self, applied: &mut Applied) -> (Vec<Arc<RateLimitConfig>>, HashSet<String>) {
        let (mut resources, mut broken) = (Vec::new(), HashSet::new());
        let in_force = self.domains.in_force().map(|own| (&*own.name, own));
        let in_force: HashMap<&str, &Arc<RateLimitConfig>> = in_force.collect();
        let weight_in_force = |name: &String| {
            let old = self.in_force.get(name);
            old.map_or(0, |old| weigh(old, u64::MAX).unwrap_or_default())
        };
        let (max_bytes, max_memory) = (self.max_bytes, self.max_memory);
        let outdated = self.outdated.iter();
        let outdated = outdated.filter(|name| !self.wanted.contains_key(*name));
        let names = self.wanted.keys().chain(outdated);
        let charged = names.map(weight_in_force).sum::<u64>();
        let (mut bytes, mut left) = (0, max_memory.saturating_sub(charged));
        for (name, wanted) in &self.wanted {
            let old = self.in_force.get(name).zip(in_force.get(&**name).copied());
            let usable = wanted.as_ref().map_err(Clone::clone).and_then(|wanted| {
                bytes += wanted.len();
                if bytes > max_bytes {
                    let what = format!("the resources have more than {max_bytes} bytes together");
                    let setting = "the value of XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES or its default";
                    return Err(format!("{what}, {setting}"));
                }
                if let Some((_, same)) = old.filter(|(old, _)| *old == wanted) {
                    return Ok(Arc::clone(same));
                }
                // While the new version is compiled, both are in memory.
                let charged = weight_in_force(name);
                let weight = weigh(wanted, left.saturating_add(charged));
                let weight = weight.map_err(|why| why.explain(max_memory))?;
                let resource = resources::decode(name, wanted)?;
                left -= weight.saturating_sub(charged);
                Ok(Arc::new(resource))
            });
            match usable {
                Ok(resource) => resources.push(resource),
                Err(what) => {
                    applied.problems.push(problem(name, what));
                    broken.insert(name.clone());
                    match old {
                        Some((_, old)) => {
                            applied.kept += 1;
                            resources.push(Arc::clone(old));
                        }
                        None => applied.absent += 1,
                    }
                }
            }
        }
        (resources, broken)
    }

    /// Notes the resources in force after `broken` resources could not be decoded, and these
    /// domains kept their last good version.
    fn put_in_force(&mut self, broken: &HashSet<String>, kept: &HashSet<String>) {
        let mut next = BTreeMap::new();
        for resource in self.domains.in_force() {
            let RateLimitConfig { name, domain, .. } = &**resource;
            let (old, wanted) = (self.in_force.get(name), self.wanted.get(name));
            let resource = match broken.contains(name) || kept.contains(domain) {
                // A copy, because a part of an earlier response keeps all of it in memory.
                true => old.map(|old| Bytes::copy_from_slice(old)),
                false => wanted.and_then(|wanted| wanted.clone().ok()),
            };
            next.extend(resource.map(|resource| (name.clone(), resource)));
        }
        self.has_changed |= self.in_force != next;
        self.in_force = next;
        let names = self.in_force.keys();
        let outdated = names.filter(|name| !self.wanted.contains_key(*name));
        self.outdated = outdated.cloned().collect();
    }
}

fn content(wanted: &Wanted) -> &[u8] {
    match wanted {
        Ok(config) => config,
        Err(what) => what.as_bytes(),
    }
}

/// Adds a resource. Two different resources with one name are an error: neither their order nor
/// chance may decide which one applies.
fn insert(wanted: &mut BTreeMap<String, Wanted>, name: String, resource: Wanted) {
    match wanted.get_mut(&name) {
        None => {
            wanted.insert(name, resource);
        }
        Some(known) if content(known) == content(&resource) => {}
        Some(known) => {
            *known = Err("the response has two different resources of this name".to_owned());
        }
    }
}

fn problem(resource: &str, what: String) -> Problem {
    Problem::whole(
        format!("resource {resource}"),
        messages::unusable_resource(what),
    )
}

#[cfg(test)]
mod tests;
