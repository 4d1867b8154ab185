//! The overlay: options for limits of a control plane whose messages have no field for them, by
//! domain and path of keys.
//!
//! It is a file like a file of limits, without amounts. Every entry whose keys and values match
//! adds its options; if two entries set the same option, the first one in the file counts. Options
//! of the control plane itself are never changed.
//!
//! Options of the overlay and the defaults are defaults, never orders. If they make no valid
//! algorithm of a limit, the limit is compiled without them, with a warning: the author of the
//! overlay did not see that limit, and its domain without limits would be worse.

use std::sync::Arc;

use hashbrown::HashSet;

use super::fields::{self, Fields, Section};
use super::partial::{LayerSource, PartialLimit};
use super::problem::{Problem, Problems, Severity};
use super::{Options, SourceText};
use crate::core::algorithm::messages::calendar_with_multiplier;
use crate::limits::rules::place::Place;
use crate::limits::rules::source::Node;
use crate::limits::rules::tree::Glob;
use crate::limits::rules::{Commit, messages};

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
    /// Input for [`super::XdsOptions`].
    pub overlay: Overlay,
    /// In the order of lines and columns.
    pub warnings: Vec<Problem>,
}

/// Overlays with the same name and text are equal.
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
    switches: Vec<&'static str>,
    limit: Option<Arc<PartialLimit>>,
    /// For the limits here and below.
    defaults: Option<Arc<PartialLimit>>,
    below: Vec<OverlayEntry>,
}

/// Names of the options that a descriptor switches on.
pub(super) fn switches(fields: &Fields<'_>) -> Vec<&'static str> {
    const NAMES: [&str; 5] = [
        "shadow_mode",
        "quota_mode",
        "detailed_metric",
        "value_to_metric",
        "share_threshold",
    ];
    let names = NAMES.into_iter();
    names.filter(|name| fields.switch(name)).collect()
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
            let message = messages::unused_entry(kind);
            unused.push(Problem::new(Severity::Warning, &entry.at, message));
        }
        unused
    }
}

/// Layers of an overlay, the strongest first.
type OverlayLayers<'o> = Vec<&'o Arc<PartialLimit>>;

/// A position in the overlay on the way from the root of a domain to a descriptor, and its layers.
#[derive(Default)]
pub(super) struct Cursor<'o> {
    /// For each level from the root on, the entries that may match it, and the defaults that
    /// entries above it give, first of these first.
    stack: Vec<(Vec<&'o [OverlayEntry]>, OverlayLayers<'o>)>,
    /// The weakest layers, the strongest first: defaults of the domain, of the overlay, and of the
    /// process.
    base: OverlayLayers<'o>,
    pub(super) commit: Option<Commit>,
    pub(super) used: HashSet<EntryNumber>,
}

/// Layers that an overlay and the defaults of the process add to a descriptor.
#[derive(Default)]
pub(super) struct OverlayMatch<'o> {
    pub(super) switches: Vec<&'static str>,
    /// The strongest first.
    pub(super) layers: OverlayLayers<'o>,
}

impl<'o> Cursor<'o> {
    /// At the root of the domain of that name.
    pub(super) fn new(
        overlay: Option<&'o Overlay>,
        process: Option<&'o Arc<PartialLimit>>,
        domain: &str,
    ) -> Self {
        let mut cursor = Self::default();
        let domains = overlay.into_iter().flat_map(|overlay| &overlay.domains);
        let mut levels = Vec::new();
        for entry in domains.filter(|entry| entry.key.matches(domain.as_bytes())) {
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

    /// Layers for the whole domain, the strongest first.
    pub(super) fn base(&self) -> impl Iterator<Item = &Arc<PartialLimit>> {
        self.base.iter().copied()
    }

    /// Descends to a descriptor; [`Cursor::leave`] ascends.
    pub(super) fn enter(
        &mut self,
        key: &str,
        value: Option<&str>,
        has_limit: bool,
    ) -> OverlayMatch<'o> {
        let mut added = OverlayMatch::default();
        let (mut below, mut defaults) = (Vec::new(), Vec::new());
        if let Some((levels, _)) = self.stack.last() {
            let value_text = value.unwrap_or_default().as_bytes();
            let is_pattern = key.contains('*') || value.is_some_and(|value| value.contains('*'));
            for entry in levels.iter().copied().flatten() {
                let mut globs = entry.value.iter();
                if !entry.key.matches(key.as_bytes()) || !globs.all(|own| own.matches(value_text)) {
                    continue;
                }
                // Entries whose options apply to no descriptor are reported as unused.
                let has_threshold = entry.switches.contains(&"share_threshold");
                if (has_limit || entry.limit.is_none()) && (is_pattern || !has_threshold) {
                    self.used.insert(entry.number);
                }
                let switches = entry.switches.iter();
                let apply = |name: &&&str| is_pattern || **name != "share_threshold";
                added.switches.extend(switches.filter(apply));
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

/// Maximum number of domains and descriptors of an overlay. Every compiled descriptor may be
/// compared with each of them.
pub(crate) const MOST_ENTRIES: usize = 10_000;

impl Overlay {
    /// Reads an overlay.
    ///
    /// # Errors
    /// All its problems, including warnings, in the order of lines and columns, if at least one is
    /// an error.
    pub fn read(file: SourceText, options: &Options) -> Result<ReadOverlay, Vec<Problem>> {
        let problems = Problems::default();
        let whole = problems.open(&file.name);
        let mut reader = OverlayReader {
            problems: &problems,
            entries: 0,
        };
        let (mut defaults, mut domains) = (None, Vec::new());
        let most = options.max_memory.unwrap_or(u64::MAX);
        if let Ok(root) = problems.document(&whole, &file.text, most) {
            let root = root.filter(Node::is_something);
            if root.is_none() {
                problems.warning(&whole, messages::overlay_is_empty());
            }
            let read = |root| fields::read(&problems, root, Section::Overlay);
            if let Some(fields) = root.as_ref().and_then(read) {
                defaults = reader.defaults(&fields);
                domains = reader.list(&fields, Section::OverlayDomain);
            }
        }
        let entries = reader.entries;
        if entries > MOST_ENTRIES as EntryNumber {
            problems.error(&whole, messages::too_many_entries(MOST_ENTRIES));
        }
        let warnings = problems.finish(options.strict, options.strict || options.for_check)?;
        let overlay = Self {
            file,
            defaults,
            domains,
            entries,
        };
        Ok(ReadOverlay { overlay, warnings })
    }
}

/// Reads the nodes of an overlay.
struct OverlayReader<'r> {
    problems: &'r Problems,
    /// The number of entries so far.
    entries: EntryNumber,
}

impl OverlayReader<'_> {
    /// The domains of the overlay, or the descriptors of an entry.
    fn list(&mut self, fields: &Fields<'_>, section: Section) -> Vec<OverlayEntry> {
        let items = match section {
            Section::OverlayDomain => fields.items("domains", messages::domains_no_list),
            _ => fields.items("descriptors", messages::overlay_descriptors_no_list),
        };
        let items = items.iter();
        items.filter_map(|item| self.entry(item, section)).collect()
    }

    fn entry(&mut self, node: &Node, section: Section) -> Option<OverlayEntry> {
        let fields = fields::read(self.problems, node, section)?;
        let number = self.entries;
        self.entries = number.saturating_add(1);
        let is_domain = section == Section::OverlayDomain;
        let key = match is_domain {
            true => fields.required("domain", messages::entry_without_domain),
            false => fields.required("key", messages::entry_without_key),
        };
        let value = fields.text("value");
        let commit = fields.read("commit");
        let switches = switches(&fields);
        let limit = fields.get("rate_limit").and_then(|node| self.limit(node));
        let defaults = self.defaults(&fields);
        let below = self.list(&fields, Section::OverlayDescriptor);
        Some(OverlayEntry {
            number,
            at: node.at.clone(),
            is_domain,
            key: Glob::new(key?),
            value: value.map(Glob::new),
            commit,
            switches,
            limit,
            defaults,
            below,
        })
    }

    fn limit(&mut self, node: &Node) -> Option<Arc<PartialLimit>> {
        let fields = fields::read(self.problems, node, Section::OverlayLimit)?;
        let layer = PartialLimit::read(self.problems, &fields)?;
        for error in layer.foreign() {
            let at = layer.place(error.option).unwrap_or(&layer.places.at);
            self.problems.error(at, error.message);
        }
        let multiplier = fields.get("unit_multiplier");
        if let Some(Node { at, .. }) = multiplier.filter(|_| layer.has_calendar()) {
            self.problems.error(at, calendar_with_multiplier());
        }
        let source = LayerSource::Overlay(node.at.to_string().into());
        Some(Arc::new(layer.moved_outside(source)))
    }

    fn defaults(&mut self, fields: &Fields<'_>) -> Option<Arc<PartialLimit>> {
        let node = fields.get("defaults")?;
        let fields = fields::read(self.problems, node, Section::Defaults)?;
        let layer = PartialLimit::read(self.problems, &fields)?;
        let source = LayerSource::Defaults(Some(node.at.to_string().into()));
        Some(Arc::new(layer.moved_outside(source)))
    }
}

/// Options for all limits of a control plane that do not set them: the defaults of the process.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct XdsDefaults(pub(super) Option<Arc<PartialLimit>>);

impl std::str::FromStr for XdsDefaults {
    type Err = String;

    /// Reads the content of a `defaults`, on one line: `algorithm: token_bucket, burst: 20`. An
    /// empty text has none.
    fn from_str(text: &str) -> Result<Self, String> {
        let content = text.trim();
        let inside = content.strip_prefix('{');
        let inside = inside.and_then(|inside| inside.strip_suffix('}'));
        let content = inside.unwrap_or(content);
        let depth = content.bytes().try_fold(0_u32, |depth, byte| match byte {
            b'{' => Some(depth + 1),
            b'}' => depth.checked_sub(1),
            _ => Some(depth),
        });
        if depth != Some(0) {
            return Err(messages::brace_without_other().to_string());
        }
        if content.trim().is_empty() {
            return Ok(Self::default());
        }
        let text = format!("{{{content}}}");
        let problems = Problems::default();
        let root = problems.document(&problems.open(""), text.as_bytes(), u64::MAX);
        let read = root.ok().flatten().and_then(|root| {
            let fields = fields::read(&problems, &root, Section::Defaults)?;
            let mut keys = fields.locations().map(|(key, _)| key);
            for key in keys.by_ref().filter(|key| fields.get(key).is_none()) {
                problems.error(&root.at, messages::key_without_value(key));
            }
            PartialLimit::read(&problems, &fields)
        });
        let text = |problem: &Problem| problem.message.to_string();
        let texts = |all: Vec<Problem>| all.iter().map(text).collect::<Vec<_>>().join("; ");
        problems.finish(true, true).map_err(texts)?;
        let name = "the default of all limits of the control plane";
        let source = LayerSource::Defaults(Some(name.into()));
        let layer = read.map(|layer| layer.moved_outside(source));
        Ok(Self(layer.map(Arc::new)))
    }
}
