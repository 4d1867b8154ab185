//! Reads overlays, and the defaults of the process.

use std::rc::Rc;
use std::sync::Arc;

use super::super::defaults::COMMITS;
use super::super::fields::{self, Fields, Section};
use super::super::options;
use super::super::partial::{LayerSource, PartialLimit};
use super::super::problem::{Problem, Problems};
use super::super::{Options, SourceText};
use super::{EntryNumber, Overlay, OverlayEntry, ReadOverlay, Switches};
use crate::limits::rules::source::{Node, ValueType};
use crate::limits::rules::tree::Glob;

/// Domains and descriptors of an overlay. Every compiled descriptor may be compared with each of
/// them.
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
        if let Some(document) = problems.document(&whole, &file.text) {
            let is_something = |root: &Rc<Node>| root.value_type() != ValueType::Nothing;
            match document.root.filter(is_something) {
                Some(root) => {
                    if let Some(fields) = fields::read(&problems, &root, Section::Overlay) {
                        defaults = reader.defaults(&fields);
                        domains = reader.list(&fields, Section::OverlayDomain);
                    }
                }
                None => problems.warning(
                    &whole,
                    "the file has no entries",
                    "write 'domains:', or remove the file",
                ),
            }
        }
        let entries = reader.entries;
        if entries > MOST_ENTRIES as EntryNumber {
            let what = format!("the file has more than {MOST_ENTRIES} domains and descriptors");
            problems.error(&whole, what, "name several at once by '*'");
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
        let (key, remedy) = match section {
            Section::OverlayDomain => ("domains", "begin each entry below it with '- domain: '"),
            _ => ("descriptors", "begin each entry below it with '- key: '"),
        };
        let items = fields.items(key, remedy).iter();
        items.filter_map(|item| self.entry(item, section)).collect()
    }

    fn entry(&mut self, node: &Node, section: Section) -> Option<OverlayEntry> {
        let fields = fields::read(self.problems, node, section)?;
        let number = self.entries;
        self.entries = number.saturating_add(1);
        let is_domain = section == Section::OverlayDomain;
        let key = if is_domain {
            let remedy = "write 'domain: ' and a domain, or a pattern with '*'";
            fields.required("domain", "the entry has no domain", remedy)
        } else {
            let remedy = "write 'key: ' and a key, or a pattern with '*'";
            fields.required("key", "the descriptor has no key", remedy)
        };
        let value = fields.text("value");
        let commit = fields.value("commit", options::named(&COMMITS));
        let switches = Switches::read(&fields);
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
            self.problems.error(at, error.what, error.remedy);
        }
        if let Some(node) = fields
            .get("unit_multiplier")
            .filter(|_| layer.has_calendar())
        {
            let what =
                "'unit_multiplier' has no meaning beside 'period: calendar': a window is one unit";
            self.problems
                .error(node, what, "remove it, or remove 'period'");
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
pub struct XdsDefaults(pub(in crate::limits::rules::compile) Option<Arc<PartialLimit>>);

impl std::str::FromStr for XdsDefaults {
    type Err = String;

    /// Reads the content of a `defaults`, on one line: `algorithm: token_bucket, burst: 20`. An
    /// empty text has none.
    fn from_str(text: &str) -> Result<Self, String> {
        let content = text.trim();
        let content = content
            .strip_prefix('{')
            .and_then(|inside| inside.strip_suffix('}'))
            .unwrap_or(content);
        let depth = content.bytes().try_fold(0_u32, |depth, byte| match byte {
            b'{' => Some(depth + 1),
            b'}' => depth.checked_sub(1),
            _ => Some(depth),
        });
        if depth != Some(0) {
            return Err("a brace has no other half; write 'algorithm: ' and its options, separated by commas".into());
        }
        if content.trim().is_empty() {
            return Ok(Self::default());
        }
        let text = format!("{{{content}}}");
        let problems = Problems::default();
        let root = problems
            .document(&problems.open(""), text.as_bytes())
            .and_then(|document| document.root);
        let read = root.and_then(|root| {
            let fields = fields::read(&problems, &root, Section::Defaults)?;
            for (key, _) in fields
                .locations()
                .filter(|(key, _)| fields.get(key).is_none())
            {
                let remedy = format!("write a value behind '{key}: '");
                problems.error(&*root, format!("'{key}' has no value"), remedy);
            }
            PartialLimit::read(&problems, &fields)
        });
        let text = |problem: &Problem| format!("{}; {}", problem.what, problem.remedy);
        problems.finish(true, true).map_err(|problems| {
            let texts: Vec<_> = problems.iter().map(text).collect();
            texts.join("; ")
        })?;
        let source = LayerSource::Defaults(Some(
            "the default of all limits of the control plane".into(),
        ));
        Ok(Self(
            read.map(|layer| Arc::new(layer.moved_outside(source))),
        ))
    }
}
