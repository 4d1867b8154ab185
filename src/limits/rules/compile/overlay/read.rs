//! Reads overlays, and the defaults of the process.

use std::rc::Rc;
use std::sync::Arc;

use super::super::defaults;
use super::super::fields::{self, Fields, Section};
use super::super::partial::{PartialLimit, Source};
use super::super::problem::{Problem, Problems, quoted};
use super::super::{Options, SourceText};
use super::{Entry, EntryNumber, OverlaidDomain, OverlaidLevel, Overlay, ReadOverlay, Switches};
use crate::limits::rules::source::{self, Content, Node, Position, ValueType};
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
        let mut reader = Reader {
            problems: Problems::default(),
            name: file.name.clone(),
            entries: Vec::new(),
        };
        reader.problems.open(&file.name);
        let (mut defaults, mut domains) = (None, Vec::new());
        match source::read(&file.text) {
            Ok(document) => {
                for note in document.warnings {
                    reader.problems.warning(note.at, note.what, note.remedy);
                }
                reader.problems.count_further(document.further_warnings);
                match document
                    .root
                    .filter(|root| root.value_type() != ValueType::Nothing)
                {
                    Some(root) => (defaults, domains) = reader.root(&root),
                    None => reader.problems.warning(
                        Position::default(),
                        "the file has no entries",
                        "write 'domains:', or remove the file",
                    ),
                }
            }
            Err(note) => reader.problems.error(note.at, note.what, note.remedy),
        }
        let (is_refused, problems) = reader
            .problems
            .finish(options.strict, options.strict || options.for_check);
        if is_refused {
            return Err(problems);
        }
        Ok(ReadOverlay {
            overlay: Self {
                file,
                defaults,
                domains,
                entries: reader.entries,
            },
            warnings: problems,
        })
    }
}

/// Reads the nodes of an overlay.
struct Reader {
    problems: Problems,
    /// Of the file.
    name: String,
    entries: Vec<Entry>,
}

impl Reader {
    fn root(&mut self, root: &Node) -> (Option<Arc<PartialLimit>>, Vec<OverlaidDomain>) {
        let Some(fields) = fields::read(&mut self.problems, root, Section::Overlay) else {
            return Default::default();
        };
        let defaults = self.defaults(&fields);
        let items = fields
            .get("domains")
            .map(|list| self.items(list, "domains", "- domain: "))
            .unwrap_or_default();
        let domains = items.iter().filter_map(|item| self.domain(item)).collect();
        if self.entries.len() > MOST_ENTRIES {
            let what = format!("the file has more than {MOST_ENTRIES} domains and descriptors");
            self.problems
                .error(Position::default(), what, "name several at once by '*'");
        }
        (defaults, domains)
    }

    fn domain(&mut self, node: &Node) -> Option<OverlaidDomain> {
        let fields = fields::read(&mut self.problems, node, Section::OverlayDomain)?;
        let entry = self.entry(node, None, "domain");
        let name = self.required(
            &fields,
            "domain",
            "the entry has no domain",
            "write 'domain: ' and a domain, or a pattern with '*'",
        );
        let commit = fields
            .get("commit")
            .and_then(|node| defaults::commit(&mut self.problems, node));
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
        let items = fields
            .get("descriptors")
            .map(|list| self.items(list, "descriptors", "- key: "))
            .unwrap_or_default();
        items
            .iter()
            .filter_map(|item| self.level(item, above))
            .collect()
    }

    fn level(&mut self, node: &Node, above: EntryNumber) -> Option<OverlaidLevel> {
        let fields = fields::read(&mut self.problems, node, Section::OverlayDescriptor)?;
        let what = if fields.get("rate_limit").is_some() {
            "descriptor with a limit"
        } else {
            "descriptor"
        };
        let entry = self.entry(node, Some(above), what);
        let key = self.required(
            &fields,
            "key",
            "the descriptor has no key",
            "write 'key: ' and a key, or a pattern with '*'",
        );
        let value = fields
            .get("value")
            .and_then(|node| fields::text(&mut self.problems, node, "value"));
        let switches = Switches::read(&mut self.problems, &fields);
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
        let fields = fields::read(&mut self.problems, node, Section::OverlayLimit)?;
        let layer = PartialLimit::read(&mut self.problems, &fields)?;
        for error in layer.foreign() {
            let at = layer.place(error.option).unwrap_or(layer.places.at);
            self.problems.error_in(at, error.what, error.remedy);
        }
        if let Some(node) = fields
            .get("unit_multiplier")
            .filter(|_| layer.has_calendar())
        {
            let what =
                "'unit_multiplier' has no meaning beside 'period: calendar': a window is one unit";
            self.problems
                .error_at(node, what, "remove it, or remove 'period'");
        }
        let source = Source::Overlay(self.source(node));
        Some(Arc::new(layer.from_outside(source)))
    }

    fn defaults(&mut self, fields: &Fields<'_>) -> Option<Arc<PartialLimit>> {
        let node = fields.get("defaults")?;
        let fields = fields::read(&mut self.problems, node, Section::Defaults)?;
        let layer = PartialLimit::read(&mut self.problems, &fields)?;
        let source = Source::Defaults(Some(self.source(node)));
        Some(Arc::new(layer.from_outside(source)))
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
        self.entries.push(Entry {
            at: node.at,
            above,
            what,
        });
        number
    }

    /// A text that is not empty; `None`, with an error, without one.
    fn required<'n>(
        &mut self,
        fields: &Fields<'n>,
        key: &str,
        what: &str,
        remedy: &str,
    ) -> Option<&'n str> {
        let node = fields.get(key);
        match node.filter(|node| node.text().is_none_or(|text| !text.is_empty())) {
            Some(node) => fields::text(&mut self.problems, node, key),
            None => {
                if !fields.meant(key) {
                    self.problems
                        .error_at(node.unwrap_or_else(|| fields.lack(key)), what, remedy);
                }
                None
            }
        }
    }

    fn items<'n>(&mut self, list: &'n Node, key: &str, first: &str) -> &'n [Rc<Node>] {
        if let Content::Sequence(items) = &list.content {
            return items;
        }
        let what = format!(
            "{} is {}, not a list",
            quoted(key),
            list.value_type().name()
        );
        self.problems.error_at(
            list,
            what,
            format!("begin each entry below it with '{first}'"),
        );
        &[]
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
        if content.contains(['{', '}']) {
            return Err(
                "a brace has no meaning here; write 'algorithm: ' and its options, separated by \
                 commas"
                    .to_owned(),
            );
        }
        if content.trim().is_empty() {
            return Ok(Self::default());
        }
        let text = format!("{{{content}}}");
        let mut problems = Problems::default();
        problems.open("");
        let mut read = None;
        match source::read(text.as_bytes()) {
            Ok(document) => {
                for note in document.warnings {
                    problems.error(note.at, note.what, note.remedy);
                }
                if let Some(root) = document.root {
                    let fields = fields::read(&mut problems, &root, Section::Defaults);
                    for key in fields
                        .iter()
                        .flat_map(Fields::locations)
                        .map(|(key, _)| key)
                    {
                        if fields
                            .as_ref()
                            .is_some_and(|fields| fields.get(key).is_none())
                        {
                            problems.error_at(
                                &root,
                                format!("'{key}' has no value"),
                                format!("write a value behind '{key}: '"),
                            );
                        }
                    }
                    read = fields.and_then(|fields| PartialLimit::read(&mut problems, &fields));
                }
            }
            Err(note) => problems.error(note.at, note.what, note.remedy),
        }
        let (is_refused, problems) = problems.finish(true, true);
        if is_refused {
            return Err(problems
                .iter()
                .map(|problem| format!("{}; {}", problem.what, problem.remedy))
                .collect::<Vec<_>>()
                .join("; "));
        }
        let source = Source::Defaults(Some(
            "the default of all limits of the control plane".into(),
        ));
        Ok(Self(read.map(|layer| Arc::new(layer.from_outside(source)))))
    }
}
