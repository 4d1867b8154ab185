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
use crate::limits::rules::source::Position;
use crate::limits::rules::tree::Glob;
pub use read::XdsDefaults;

/// An overlay, compiled.
#[derive(Debug)]
pub struct Overlay {
    file: SourceText,
    defaults: Option<Arc<PartialLimit>>,
    domains: Vec<OverlaidDomain>,
    entries: Vec<OverlayEntry>,
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

/// The number of an entry: a domain or a descriptor of the overlay.
pub(in crate::limits::rules) type EntryNumber = u32;

/// A domain or a descriptor of the overlay, for the warning that nothing matches it.
#[derive(Debug)]
struct OverlayEntry {
    at: Position,
    above: Option<EntryNumber>,
    what: &'static str,
}

#[derive(Debug)]
struct OverlaidDomain {
    entry: EntryNumber,
    name: Glob,
    commit: Option<Commit>,
    defaults: Option<Arc<PartialLimit>>,
    levels: Vec<OverlaidLevel>,
}

#[derive(Debug)]
struct OverlaidLevel {
    entry: EntryNumber,
    key: Glob,
    /// `None`: any value, also none. A descriptor without a value has an empty one.
    value: Option<Glob>,
    switches: Switches,
    limit: Option<Arc<PartialLimit>>,
    /// For the limits here and below.
    defaults: Option<Arc<PartialLimit>>,
    below: Vec<OverlaidLevel>,
}

/// What a descriptor switches on.
#[derive(Clone, Copy, Debug, Default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "they are fields of a descriptor"
)]
pub(super) struct Switches {
    pub(super) shadow_mode: bool,
    pub(super) quota_mode: bool,
    pub(super) detailed_metric: bool,
    pub(super) value_to_metric: bool,
    pub(super) share_threshold: bool,
}

impl Switches {
    pub(super) fn read(fields: &Fields<'_>) -> Self {
        let switch = |key| fields.switch(key);
        Self {
            shadow_mode: switch("shadow_mode"),
            quota_mode: switch("quota_mode"),
            detailed_metric: switch("detailed_metric"),
            value_to_metric: switch("value_to_metric"),
            share_threshold: switch("share_threshold"),
        }
    }

    pub(super) const fn or(self, other: Self) -> Self {
        Self {
            shadow_mode: self.shadow_mode | other.shadow_mode,
            quota_mode: self.quota_mode | other.quota_mode,
            detailed_metric: self.detailed_metric | other.detailed_metric,
            value_to_metric: self.value_to_metric | other.value_to_metric,
            share_threshold: self.share_threshold | other.share_threshold,
        }
    }
}

impl Overlay {
    /// The number of its domains and descriptors.
    #[must_use]
    pub fn entries(&self) -> usize {
        self.entries.len()
    }

    /// A warning for each entry that is not among `used`, and is not below such a one.
    pub(in crate::limits::rules) fn unused(&self, used: &HashSet<EntryNumber>) -> Vec<Problem> {
        let is_unused = |number: EntryNumber| !used.contains(&number);
        let outermost = (0..)
            .zip(&self.entries)
            .filter(|&(number, entry)| is_unused(number) && !entry.above.is_some_and(is_unused));
        let problem = |entry: &OverlayEntry| {
            let what = format!("no {} of the control plane matches this entry", entry.what);
            let remedy = "correct its names, keys and values, or remove it";
            let at = (self.file.name.clone(), entry.at);
            Problem::new(Severity::Warning, at, what, remedy)
        };
        outermost.map(|(_, entry)| problem(entry)).collect()
    }
}

/// Layers of an overlay, the strongest first.
type Layers<'o> = Vec<&'o Arc<PartialLimit>>;

/// The overlay on the way down from the root of a domain to a descriptor, and what it adds there.
#[derive(Default)]
pub(super) struct Cursor<'o> {
    /// For each level from the root on, the entries that may match it, and the defaults that
    /// entries above it give, first of these first.
    stack: Vec<(Vec<&'o [OverlaidLevel]>, Layers<'o>)>,
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
            .filter(|entry| entry.name.matches(domain.as_bytes()));
        let mut levels = Vec::new();
        for entry in matching {
            cursor.used.insert(entry.entry);
            cursor.commit = cursor.commit.or(entry.commit);
            cursor.base.extend(&entry.defaults);
            levels.push(&entry.levels[..]);
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
            let is_match = |level: &&'o OverlaidLevel| {
                let value = level.value.as_ref();
                level.key.matches(key.as_bytes())
                    && value.is_none_or(|value| value.matches(value_text))
            };
            let is_pattern = key.contains('*') || value.is_some_and(|value| value.contains('*'));
            for level in levels.iter().copied().flatten().filter(is_match) {
                if (has_limit || level.limit.is_none())
                    && (is_pattern || !level.switches.share_threshold)
                {
                    self.used.insert(level.entry);
                }
                added.add(level, is_pattern);
                defaults.extend(&level.defaults);
                below.push(&level.below[..]);
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
    fn add(&mut self, level: &'o OverlaidLevel, is_pattern: bool) {
        self.switches = self.switches.or(Switches {
            share_threshold: level.switches.share_threshold && is_pattern,
            ..level.switches
        });
        self.layers.extend(&level.limit);
    }

    /// The name of a limit without one.
    pub(super) fn name(&self) -> Option<&'o str> {
        self.layers.iter().find_map(|layer| layer.name.as_deref())
    }
}
