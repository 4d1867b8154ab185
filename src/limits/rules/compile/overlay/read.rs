//! Reads overlays, and the defaults of the process.

use std::rc::Rc;
use std::sync::Arc;

use super::super::defaults;
use super::super::fields::{self, Fields, Section};
use super::super::partial::{LayerSource, PartialLimit};
use super::super::problem::{Problem, Problems};
use super::super::{Options, SourceText};
use super::{
    EntryNumber, OverlaidDomain, OverlaidLevel, Overlay, OverlayEntry, ReadOverlay, Switches,
};
use crate::limits::rules::source::{Node, Position, ValueType};
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
        problems.open(&file.name);
        let mut reader = OverlayReader {
            problems: &problems,
            name: &file.name,
            entries: Vec::new(),
        };
        let (mut defaults, mut domains) = (None, Vec::new());
        if let Some(document) = problems.document(&file.text) {
            let is_something = |root: &Rc<Node>| root.value_type() != ValueType::Nothing;
            match document.root.filter(is_something) {
                Some(root) => (defaults, domains) = reader.root(&root),
                None => problems.warning(
                    Position::default(),
                    "the file has no entries",
                    "write 'domains:', or remove the file",
                ),
            }
        }
        let entries = reader.entries;
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
    /// Of the file.
    name: &'r str,
    entries: Vec<OverlayEntry>,
}

impl OverlayReader<'_> {
    fn root(&mut self, root: &Node) -> (Option<Arc<PartialLimit>>, Vec<OverlaidDomain>) {
        let Some(fields) = fields::read(self.problems, root, Section::Overlay) else {
            return Default::default();
        };
        let defaults = self.defaults(&fields);
        let remedy = "begin each entry below it with '- domain: '";
        let items = fields.items("domains", remedy);
        let domains = items.iter().filter_map(|item| self.domain(item)).collect();
        if self.entries.len() > MOST_ENTRIES {
            let what = format!("the file has more than {MOST_ENTRIES} domains and descriptors");
            self.problems
                .error(Position::default(), what, "name several at once by '*'");
        }
        (defaults, domains)
    }

    fn domain(&mut self, node: &Node) -> Option<OverlaidDomain> {
        let fields = fields::read(self.problems, node, Section::OverlayDomain)?;
        let entry = self.entry(node, None, "domain");
        let what = "the entry has no domain";
        let remedy = "write 'domain: ' and a domain, or a pattern with '*'";
        let name = fields.required("domain", what, remedy);
        let commit = fields
            .get("commit")
            .and_then(|node| defaults::commit(self.problems, node));
        let defaults = self.defaults(&fields);
        let levels = self.levels(&fields, entry);
        Some(OverlaidDomain {
            entry,
            name: Glob::new(name?),
            commit,
            defaults,
            levels,
        })
    }

    fn levels(&mut self, fields: &Fields<'_>, above: EntryNumber) -> Vec<OverlaidLevel> {
        let remedy = "begin each entry below it with '- key: '";
        let levels = fields.items("descriptors", remedy).iter();
        levels.filter_map(|item| self.level(item, above)).collect()
    }

    fn level(&mut self, node: &Node, above: EntryNumber) -> Option<OverlaidLevel> {
        let fields = fields::read(self.problems, node, Section::OverlayDescriptor)?;
        let what = if fields.get("rate_limit").is_some() {
            "descriptor with a limit"
        } else {
            "descriptor"
        };
        let entry = self.entry(node, Some(above), what);
        let what = "the descriptor has no key";
        let remedy = "write 'key: ' and a key, or a pattern with '*'";
        let key = fields.required("key", what, remedy);
        let value = fields.text("value");
        let switches = Switches::read(&fields);
        let limit = fields.get("rate_limit").and_then(|node| self.limit(node));
        let defaults = self.defaults(&fields);
        let below = self.levels(&fields, entry);
        Some(OverlaidLevel {
            entry,
            key: Glob::new(key?),
            value: value.map(Glob::new),
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
            let at = layer.place(error.option).unwrap_or(layer.places.at);
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
        let source = LayerSource::Overlay(self.source(node));
        Some(Arc::new(layer.moved_outside(source)))
    }

    fn defaults(&mut self, fields: &Fields<'_>) -> Option<Arc<PartialLimit>> {
        let node = fields.get("defaults")?;
        let fields = fields::read(self.problems, node, Section::Defaults)?;
        let layer = PartialLimit::read(self.problems, &fields)?;
        let source = LayerSource::Defaults(Some(self.source(node)));
        Some(Arc::new(layer.moved_outside(source)))
    }

    /// The name of a layer in messages.
    fn source(&self, node: &Node) -> Arc<str> {
        format!("{}:{}", self.name, node.at.line).into()
    }

    fn entry(
        &mut self,
        node: &Node,
        above: Option<EntryNumber>,
        what: &'static str,
    ) -> EntryNumber {
        let number = EntryNumber::try_from(self.entries.len()).unwrap_or(EntryNumber::MAX);
        self.entries.push(OverlayEntry {
            at: node.at,
            above,
            what,
        });
        number
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
        problems.open("");
        let root = problems
            .document(text.as_bytes())
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
