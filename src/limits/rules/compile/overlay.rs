//! The overlay: options for limits of a control plane whose messages have no field for them, by
//! domain and path of keys.
//!
//! It is a file that looks like a file of limits without amounts. Every entry whose keys and values
//! match adds what it says; of two that say the same, the one that stands first counts. What the
//! control plane says itself is never changed.
//!
//! What the overlay and the defaults add is a default, never an order. Where it makes no algorithm
//! of a limit, the limit is compiled without it, with a warning: the author of the overlay did not
//! see that limit, and its domain without limits would be worse.

pub(crate) mod read;

use std::sync::Arc;

use hashbrown::HashSet;

use super::SourceText;
use super::fields::Fields;
use super::partial::PartialLimit;
use super::problem::{Problem, Severity};
use crate::limits::rules::Commit;
use crate::limits::rules::limit::OnStoreFailure;
use crate::limits::rules::place::Place;
use crate::limits::rules::tree::Glob;
pub use read::XdsDefaults;

/// An overlay, compiled.
#[derive(Debug)]
pub struct Overlay {
    file: SourceText,
    defaults: Option<Arc<PartialLimit>>,
    domains: Vec<OverlayEntry>,
    entries: EntryNumber,
}

/// An overlay, and the warnings about it.
#[derive(Debug)]
pub struct ReadOverlay {
    /// What [`super::XdsOptions`] takes.
    pub overlay: Overlay,
    /// In the order of lines and columns.
    pub warnings: Vec<Problem>,
}

/// Equal texts mean the same.
impl PartialEq for Overlay {
    fn eq(&self, other: &Self) -> bool {
        (&self.file.name, &self.file.text) == (&other.file.name, &other.file.text)
    }
}

pub(in crate::limits::rules) type EntryNumber = u32;

/// A domain or a descriptor of the overlay.
#[derive(Debug)]
struct OverlayEntry {
    number: EntryNumber,
    at: Place,
    is_domain: bool,
    /// The key, or the name of the domain.
    key: Glob,
    /// `None`: any value, also none. A descriptor without a value has an empty one.
    value: Option<Glob>,
    commit: Option<Commit>,
    switches: Switches,
    limit: Option<Arc<PartialLimit>>,
    /// For the limits here and below.
    defaults: Option<Arc<PartialLimit>>,
    below: Vec<OverlayEntry>,
}

/// What a descriptor switches on.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Switches([bool; 5]);

impl Switches {
    const NAMES: [&str; 5] = [
        "shadow_mode",
        "quota_mode",
        "detailed_metric",
        "value_to_metric",
        "share_threshold",
    ];

    pub(super) fn read(fields: &Fields<'_>) -> Self {
        Self(Self::NAMES.map(|name| fields.switch(name)))
    }

    pub(super) fn has(self, name: &str) -> bool {
        let mut all = Self::NAMES.into_iter().zip(self.0);
        all.any(|(own, is_on)| own == name && is_on)
    }

    fn remove(&mut self, name: &str) {
        for (own, is_on) in Self::NAMES.into_iter().zip(&mut self.0) {
            *is_on &= own != name;
        }
    }

    /// Adds what others switch on.
    pub(super) fn add(&mut self, others: Self) {
        let all = self.0.iter_mut().zip(others.0);
        all.for_each(|(own, other)| *own |= other);
    }
}

impl Overlay {
    /// The number of its domains and descriptors.
    pub const fn entries(&self) -> usize {
        self.entries as usize
    }

    /// A warning for each entry that is not among `used`, and is not below such a one.
    pub(in crate::limits::rules) fn unused(&self, used: &HashSet<EntryNumber>) -> Vec<Problem> {
        let mut unused = Vec::new();
        let mut rest: Vec<&OverlayEntry> = self.domains.iter().rev().collect();
        while let Some(entry) = rest.pop() {
            if used.contains(&entry.number) {
                rest.extend(entry.below.iter().rev());
                continue;
            }
            let kind = match (entry.is_domain, &entry.limit) {
                (true, _) => "domain",
                (false, Some(_)) => "descriptor with a limit",
                (false, None) => "descriptor",
            };
            let what = format!("no {kind} of the control plane matches this entry");
            let remedy = "correct its names, keys and values, or remove it";
            unused.push(Problem::new(Severity::Warning, &entry.at, what, remedy));
        }
        unused
    }
}

/// Layers of an overlay, the strongest first.
type Layers<'o> = Vec<&'o Arc<PartialLimit>>;

/// The overlay on the way down from the root of a domain to a descriptor, and what it adds there.
#[derive(Default)]
pub(super) struct Cursor<'o> {
    /// For each level from the root on, the entries that may match it, and the defaults that
    /// entries above it give, first of these first.
    stack: Vec<(Vec<&'o [OverlayEntry]>, Layers<'o>)>,
    /// The weakest layers, the strongest first: defaults of the domain, of the overlay, and of the
    /// process.
    base: Layers<'o>,
    pub(super) commit: Option<Commit>,
    pub(super) used: HashSet<EntryNumber>,
}

/// What an overlay and the defaults of the process add to a descriptor.
#[derive(Default)]
pub(super) struct Added<'o> {
    pub(super) switches: Switches,
    /// The strongest first.
    pub(super) layers: Layers<'o>,
}

impl<'o> Cursor<'o> {
    /// At the root of the domain of that name.
    pub(super) fn new(
        overlay: Option<&'o Overlay>,
        process: Option<&'o Arc<PartialLimit>>,
        domain: &str,
    ) -> Self {
        let mut cursor = Self::default();
        let matching = overlay
            .into_iter()
            .flat_map(|overlay| &overlay.domains)
            .filter(|entry| entry.key.matches(domain.as_bytes()));
        let mut levels = Vec::new();
        for entry in matching {
            cursor.used.insert(entry.number);
            cursor.commit = cursor.commit.or(entry.commit);
            cursor.base.extend(&entry.defaults);
            levels.push(&entry.below[..]);
        }
        let of_all = overlay.and_then(|overlay| overlay.defaults.as_ref());
        cursor.base.extend(of_all.into_iter().chain(process));
        if !levels.is_empty() {
            cursor.stack.push((levels, Vec::new()));
        }
        cursor
    }

    /// The failure policy of the whole domain.
    pub(super) fn on_store_failure(&self) -> Option<OnStoreFailure> {
        self.base.iter().find_map(|layer| layer.on_store_failure)
    }

    /// What holds for the whole domain, the strongest first.
    pub(super) fn base(&self) -> impl Iterator<Item = &Arc<PartialLimit>> {
        self.base.iter().copied()
    }

    /// Goes down to a descriptor; [`Cursor::leave`] goes back.
    pub(super) fn enter(&mut self, key: &str, value: Option<&str>, has_limit: bool) -> Added<'o> {
        let mut added = Added::default();
        let (mut below, mut defaults) = (Vec::new(), Vec::new());
        if let Some((levels, _)) = self.stack.last() {
            let value_text = value.unwrap_or_default().as_bytes();
            let is_pattern = key.contains('*') || value.is_some_and(|value| value.contains('*'));
            for entry in levels.iter().copied().flatten() {
                let mut globs = entry.value.iter();
                if !entry.key.matches(key.as_bytes()) || !globs.all(|own| own.matches(value_text)) {
                    continue;
                }
                let mut switches = entry.switches;
                if !is_pattern {
                    switches.remove("share_threshold");
                }
                let has_threshold = entry.switches.has("share_threshold");
                if (has_limit || entry.limit.is_none()) && (is_pattern || !has_threshold) {
                    self.used.insert(entry.number);
                }
                added.switches.add(switches);
                added.layers.extend(&entry.limit);
                defaults.extend(&entry.defaults);
                below.push(&entry.below[..]);
            }
            self.stack.push((below, defaults));
        }
        let defaults = self.stack.iter().rev().flat_map(|(_, defaults)| defaults);
        added.layers.extend(defaults.chain(&self.base));
        added
    }

    pub(super) fn leave(&mut self) {
        if self.stack.len() > 1 {
            self.stack.pop();
        }
    }
}

impl<'o> Added<'o> {
    /// The name of a limit without one.
    pub(super) fn name(&self) -> Option<&'o str> {
        self.layers.iter().find_map(|layer| layer.name.as_deref())
    }
}
