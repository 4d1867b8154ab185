//! Compiles files to rules, or reports everything that is wrong with them.
//!
//! Limits of a control plane are compiled in the same way (`compile/resource.rs`), one domain at a
//! time.
//!
//! All problems of all files are found in one run, each with its location and a remedy, because an
//! author wants to correct them in one go. Whatever envoyproxy/ratelimit refuses is an error;
//! whatever it silently ignores is a warning. No code here reads files or the clock: the caller
//! passes the texts, sorted by name, and this order decides between wildcards of a domain that
//! several files share.

mod build;
pub(crate) mod data;
pub(crate) mod descriptor;
pub(crate) mod domain;
mod features;
mod fields;
mod keys;
mod layers;
pub(crate) mod matching;
mod memory;
mod options;
pub mod outline;
pub(crate) mod overlay;
mod partial;
pub(crate) mod problem;
pub(crate) mod resource;
mod schema;
mod siblings;
pub(crate) mod table;

use std::sync::Arc;

use hashbrown::{HashMap, HashSet};

pub use super::messages::codes;
use super::region::RegionShare;
pub(crate) use super::source::too_much_memory;
use super::source::{Content, Node};
use super::{Commit, Rules, messages};
use crate::core::message::Message;
use build::{build, share_of_domain};
use data::Data;
pub(crate) use data::is_table;
use domain::Domain;
use fields::Section;
pub(crate) use fields::nearest;
use memory::Memory;
use overlay::Cursor;
pub(super) use overlay::EntryNumber;
pub use overlay::{Overlay, ReadOverlay, XdsDefaults};
pub(crate) use problem::OneLine;
pub use problem::{Problem, Severity};
use problem::{Problems, excerpt, quoted};
pub use resource::XdsOptions;
pub(super) use resource::compile_domain;
pub use schema::json_schema;
use siblings::Siblings;

/// Options of a compilation.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Several files may define one domain. Otherwise each domain has one file, as in
    /// envoyproxy/ratelimit.
    pub merge_domains: bool,
    /// Settings of the process that apply where a file has none.
    pub process: ProcessDefaults,
    /// Warnings are errors.
    pub strict: bool,
    /// For `weir check`: files that envoyproxy/ratelimit accepts, but that cannot mean what they
    /// do, are errors. A service that loads files warns of them.
    pub for_check: bool,
    /// Maximum memory of the limits in bytes, together with the texts of their files; `None`:
    /// without a bound.
    pub max_memory: Option<u64>,
}

/// Settings of the process for all limits of files and control planes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessDefaults {
    /// `STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT`: the `commit` of domains that declare none.
    pub commit: Commit,
    /// `USE_CALENDAR_MONTH_RATE_LIMIT`: fixed windows per month follow the calendar.
    pub calendar_months: bool,
    /// `REGION`: the name in `region_shares`.
    pub region: Option<Arc<str>>,
    /// `REGION_SHARE`: the share of limits without `region_shares`.
    pub region_share: RegionShare,
}

/// One file.
#[derive(Clone, Debug)]
pub struct SourceText {
    /// The name in messages: the path below the folder.
    pub name: String,
    /// Its bytes.
    pub text: Vec<u8>,
}

/// Rules, and the warnings about them.
#[derive(Debug)]
pub struct Compiled {
    pub rules: Rules,
    /// In the order of files, lines and columns.
    pub warnings: Vec<Problem>,
}

/// The rules of one file without a mistake.
#[cfg(test)]
pub(crate) fn rules_of(text: &str) -> Rules {
    let file = SourceText {
        name: "limits.yaml".to_owned(),
        text: text.into(),
    };
    let compiled = compile(&[file], &Options::default());
    compiled.expect("limits without a mistake").rules
}

/// Compiles files, in the order given.
///
/// # Errors
/// All problems of all files, including warnings, in the order of files, lines and columns, if at
/// least one is an error.
pub fn compile(files: &[SourceText], options: &Options) -> Result<Compiled, Vec<Problem>> {
    let problems = Problems::default();
    let texts = files.iter().map(|file| file.text.len() as u64);
    let memory = Memory::new(options.max_memory, texts.sum());
    let mut compiler = Compiler {
        data: Data::read(&problems, files, memory.left()),
        memory,
        ..Compiler::new(&problems)
    };
    let mut domains: HashMap<Box<str>, (Domain, Siblings)> = HashMap::new();
    let is_limits = |file: &&SourceText| !compiler.data.has(&file.name);
    for file in files.iter().filter(is_limits).collect::<Vec<_>>() {
        compile_file(&mut compiler, &mut domains, file, options);
    }
    let mut built = Vec::with_capacity(domains.len());
    for (mut domain, mut siblings) in domains.into_values() {
        let before = compiler.memory.used;
        siblings.finish(&mut compiler);
        check_for_limits(&problems, &domain);
        let mut rules = build(&mut compiler, &mut domain, &options.process);
        rules.tree = siblings.tree;
        rules.memory = domain.memory + compiler.memory.used - before;
        check_replaced(&problems, &domain);
        built.push((domain.number, Arc::new(rules)));
    }
    let warnings = problems.finish(options.strict, options.strict || options.for_check)?;
    let rules = Rules::new(built);
    Ok(Compiled { rules, warnings })
}

/// The state that all files share.
struct Compiler<'o> {
    problems: &'o Problems,
    path_bytes: usize,
    /// The limits come from a control plane: structures that are unusual in a file, such as a node
    /// without a limit, are normal in generated messages, and are not reported.
    from_control_plane: bool,
    /// Adds options of the overlay to the control plane's.
    overlay: Cursor<'o>,
    /// The files that descriptors name.
    data: Data<'o>,
    /// Rows of all tables so far.
    rows: usize,
    matched: matching::Totals,
    memory: Memory,
    /// The keys of levels, each once.
    keys: HashSet<Arc<str>>,
}

impl<'o> Compiler<'o> {
    fn new(problems: &'o Problems) -> Self {
        Self {
            problems,
            path_bytes: 0,
            from_control_plane: false,
            overlay: Cursor::default(),
            data: Data::default(),
            rows: 0,
            matched: matching::Totals::default(),
            memory: Memory::new(None, 0),
            keys: HashSet::new(),
        }
    }

    /// The text of a key, which limits share.
    fn key(&mut self, key: &str) -> Arc<str> {
        Arc::clone(self.keys.get_or_insert_with(key, |key| key.into()))
    }
}

fn compile_file(
    compiler: &mut Compiler<'_>,
    domains: &mut HashMap<Box<str>, (Domain, Siblings)>,
    file: &SourceText,
    options: &Options,
) {
    let problems = compiler.problems;
    let whole = problems.open(&file.name);
    let before = compiler.memory.used;
    let Ok(root) = problems.document(&whole, &file.text, compiler.memory.left()) else {
        return;
    };
    let empty = match root.is_none() && !file.text.trim_ascii().is_empty() {
        true => messages::file_of_comments,
        false => messages::file_is_empty,
    };
    let Some(mut root) = root.filter(Node::is_something) else {
        return problems.error(&whole, empty());
    };
    if let Some(message) = foreign(&root) {
        return problems.error(&root.at, message);
    }
    let items = root.take_list("descriptors");
    let Some(fields) = fields::read(problems, &root, Section::Root) else {
        return;
    };
    let location = fields.lack("domain");
    let number = u32::try_from(domains.len()).unwrap_or(u32::MAX);
    let domain = |name| Domain::new(name, number, location.clone());
    let new = |name| (domain(name), Siblings::default());
    // A file without a domain of its own is an error already. The rest of it is checked in a domain
    // that is dropped.
    let mut scratch = new("");
    let (domain, siblings) = match fields.required("domain", messages::no_domain) {
        None => &mut scratch,
        Some(name) => match domains.get(name).map(|(known, _)| &known.first) {
            Some(first) if !options.merge_domains => {
                problems.error(location, messages::repeated_domain(quoted(name), first));
                &mut scratch
            }
            _ => domains.entry(name.into()).or_insert_with(|| new(name)),
        },
    };
    domain::read(problems, &fields, domain);
    domain.mentions_limit |= fields.meant("descriptors") || fields.has_misplaced;
    if let Some(list) = fields.get("descriptors") {
        let is_complete =
            !options.merge_domains && share_of_domain(compiler, domain, &options.process).is_some();
        let mut reader = descriptor::DescriptorReader {
            compiler,
            domain,
            complete: is_complete.then_some(&options.process),
            path: Vec::new(),
        };
        reader.list(list, items, siblings);
    }
    domain.memory += compiler.memory.used - before;
    // Reports the errors of limits in the dropped domain, too.
    build(compiler, &mut scratch.0, &options.process);
}

/// Warns of a domain without limits, where all requests of Envoy are allowed. Not after an error,
/// which may be the cause.
fn check_for_limits(problems: &Problems, domain: &Domain) {
    if !domain.mentions_limit && !problems.has_errors() {
        let message = messages::domain_without_limits(quoted(&domain.name));
        problems.warning(&domain.first, message);
    }
}

/// Warns of names in `replaces` that no limit has. The Go service ignores them.
fn check_replaced(problems: &Problems, domain: &Domain) {
    let is_unknown = |(_, name): &&(_, Box<str>)| !domain.names.contains(name);
    for (at, name) in domain.replaced.iter().filter(is_unknown) {
        let near = fields::nearest(name, domain.names.iter().map(AsRef::as_ref));
        let (own, name) = (quoted(&domain.name), quoted(name));
        let message = messages::unknown_replaced(own, name);
        problems.warning(at, message.or_near(near.map(excerpt).as_deref()));
    }
}

/// Describes a file with another purpose, such as a manifest of Kubernetes: one message instead of
/// one for each of its keys.
fn foreign(root: &Node) -> Option<Message> {
    let Content::Mapping(entries) = &root.content else {
        return None;
    };
    let names = || entries.iter().filter_map(|(key, _)| key.text());
    let own = ["domain", "descriptors"];
    if names().any(|name| nearest(name, own.into_iter()).is_some()) {
        return None;
    }
    if let (Some(_), Some(kind)) = (root.get("apiVersion"), root.get("kind")) {
        let kind = quoted(kind.text().unwrap_or_default());
        return Some(match root.get("data") {
            Some(_) => messages::manifest_with_data(kind),
            None => messages::manifest(kind),
        });
    }
    let own = || Section::Root.keys().chain(["key", "rate_limit"]);
    let is_own = |name: &str| own().any(|own| own == name);
    let first = names().next().filter(|_| !names().any(is_own))?;
    Some(messages::file_of_other_keys(quoted(first)))
}
