//! Compiles files to rules, or reports everything that is wrong with them.
//!
//! Limits of a control plane take the same way (`compile/resource.rs`), one domain at a time.
//!
//! All problems of all files are found in one run, each with its location and a remedy, so that
//! they can be corrected in one go. What envoyproxy/ratelimit refuses is an error; what it silently
//! ignores is a warning. Nothing here reads files or the clock: the caller passes the texts, sorted
//! by name, and wildcards of a domain that several files share are in that order.

pub(crate) mod data;
mod defaults;
pub(crate) mod descriptor;
mod fields;
mod locations;
pub(crate) mod matching;
mod options;
pub mod outline;
pub(crate) mod overlay;
mod partial;
pub(crate) mod plans;
pub(crate) mod problem;
mod rate;
pub(crate) mod resource;
mod sections;
mod settle;
mod siblings;
mod suspicion;
pub(crate) mod table;
mod values;

use std::sync::Arc;

use hashbrown::{HashMap, HashSet};

use super::limit::Limit;
use super::source::{self, Position, ValueType};
use super::{Commit, Rules};
use data::Data;
pub(crate) use data::is_table;
use defaults::{Declared, Defaults};
pub(crate) use fields::nearest;
use fields::{Fields, Section};
use overlay::Cursor;
pub(super) use overlay::EntryNumber;
pub use overlay::{Overlay, ReadOverlay, XdsDefaults};
use plans::Plans;
pub(crate) use problem::OneLine;
use problem::{Location, Problems, quoted};
pub use problem::{Problem, Severity};
pub use resource::XdsOptions;
pub(super) use resource::{CompiledDomain, compile_domain};
use settle::PendingLimit;
use siblings::Siblings;

/// How to compile.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Several files may define one domain. Otherwise each domain has one file, as in
    /// envoyproxy/ratelimit.
    pub merge_domains: bool,
    /// What the settings of the process say where a file says nothing.
    pub process: ProcessDefaults,
    /// Warnings are errors.
    pub strict: bool,
    /// For `weir check`: what envoyproxy/ratelimit accepts, but what cannot be meant, is an error.
    /// A service that loads files warns of it.
    pub for_check: bool,
}

/// What the settings of the process say for all limits, wherever they come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessDefaults {
    /// `STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT`: the `commit` of domains that declare none.
    pub commit: Commit,
    /// `USE_CALENDAR_MONTH_RATE_LIMIT`: fixed windows per month follow the calendar.
    pub calendar_months: bool,
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
    /// What the program runs.
    pub rules: Rules,
    /// In the order of files, lines and columns.
    pub warnings: Vec<Problem>,
}

/// Compiles files, in the order given.
///
/// # Errors
/// All problems of all files, including warnings, in the order of files, lines and columns, if at
/// least one is an error.
pub fn compile(files: &[SourceText], options: &Options) -> Result<Compiled, Vec<Problem>> {
    let mut compiler = Compiler::default();
    compiler.data = Data::read(&mut compiler.problems, files);
    let mut domains: HashMap<Box<str>, Domain> = HashMap::new();
    for file in files
        .iter()
        .filter(|file| !compiler.data.has(&file.name))
        .collect::<Vec<_>>()
    {
        compiler.problems.open(&file.name);
        compile_file(&mut compiler, &mut domains, file, options);
    }
    for domain in domains.values_mut() {
        domain.siblings.finish(&mut compiler);
        check_for_limits(&mut compiler.problems, domain);
        domain.limits = settle::settle(&mut compiler, domain, options.process);
        check_replaced(&mut compiler.problems, domain);
    }
    let (refused, problems) = compiler
        .problems
        .finish(options.strict, options.strict || options.for_check);
    if refused {
        return Err(problems);
    }
    let rules = Rules::new(
        domains
            .into_values()
            .map(|domain| (domain.number, Arc::new(domain.finish(options.process)))),
    );
    Ok(Compiled {
        rules,
        warnings: problems,
    })
}

/// The state that all files share.
#[derive(Default)]
struct Compiler<'o> {
    problems: Problems,
    path_bytes: usize,
    /// The limits come from a control plane: what is unusual in a file, such as a node without a
    /// limit, is not in what a program generates.
    from_control_plane: bool,
    /// Adds to what the control plane says.
    overlay: Cursor<'o>,
    /// The files that descriptors name.
    data: Data<'o>,
    /// Rows of all tables so far.
    rows: usize,
    matched: matching::Totals,
}

/// A domain under construction.
struct Domain {
    name: Box<str>,
    /// Its number in the rules.
    number: u32,
    /// The number of its next limit.
    next_limit: u32,
    /// Where its first file defines it.
    first: Location,
    siblings: Siblings,
    /// The names of its limits.
    names: HashSet<Box<str>>,
    /// The names in `replaces`, which a later file may define.
    replaced: Vec<(Location, Box<str>)>,
    commit: Option<Declared<Commit>>,
    defaults: Defaults,
    plans: Plans,
    /// Whether a file contains a limit, or the attempt of one.
    mentions_limit: bool,
    /// Its limits, which depend on the defaults that a later file may hold.
    pending: Vec<PendingLimit>,
    /// The limits that are settled.
    limits: Vec<Limit>,
}

impl Domain {
    fn new(name: &str, number: u32, first: Location) -> Self {
        Self {
            name: name.into(),
            number,
            next_limit: 0,
            first,
            siblings: Siblings::default(),
            names: HashSet::new(),
            replaced: Vec::new(),
            commit: None,
            defaults: Defaults::default(),
            plans: Plans::default(),
            mentions_limit: false,
            pending: Vec::new(),
            limits: Vec::new(),
        }
    }

    fn finish(self, process: ProcessDefaults) -> super::Domain {
        super::Domain {
            name: self.name,
            tree: self.siblings.tree,
            limits: self.limits,
            commit: self.commit.map_or(process.commit, |commit| commit.value),
            on_store_failure: self.defaults.on_store_failure(),
        }
    }
}

fn compile_file(
    compiler: &mut Compiler<'_>,
    domains: &mut HashMap<Box<str>, Domain>,
    file: &SourceText,
    options: &Options,
) {
    let document = match source::read(&file.text) {
        Ok(document) => document,
        Err(note) => return compiler.problems.error(note.at, note.what, note.remedy),
    };
    for note in document.warnings {
        compiler.problems.warning(note.at, note.what, note.remedy);
    }
    compiler.problems.count_further(document.further_warnings);
    let holds_only_comments = document.root.is_none() && !file.text.trim_ascii().is_empty();
    let Some(root) = document
        .root
        .filter(|root| root.value_type() != ValueType::Nothing)
    else {
        let what = if holds_only_comments {
            "the file holds only comments"
        } else {
            "the file is empty"
        };
        return compiler
            .problems
            .error(Position::default(), what, REMEDY_FOR_DOMAIN);
    };
    let Some(fields) = fields::read(&mut compiler.problems, &root, Section::Root) else {
        return;
    };
    let location = compiler.problems.here(fields.lack("domain").at);
    // A file without a domain of its own is an error already. The rest of it is checked in a domain
    // that is dropped.
    let mut scratch = Domain::new("", 0, location);
    let number = u32::try_from(domains.len()).unwrap_or(u32::MAX);
    let domain = match domain_name(compiler, &fields) {
        None => &mut scratch,
        Some(name) => match domains.get(name).map(|known| known.first) {
            Some(first) if !options.merge_domains => {
                let what = format!(
                    "the domain {} is already defined, in {}",
                    quoted(name),
                    compiler.problems.show(first)
                );
                let remedy = "merge the files, or set MERGE_DOMAIN_CONFIG=true, with which files \
                    may share a domain";
                compiler
                    .problems
                    .error(fields.lack("domain").at, what, remedy);
                &mut scratch
            }
            _ => domains
                .entry(name.into())
                .or_insert_with(|| Domain::new(name, number, location)),
        },
    };
    defaults::read(&mut compiler.problems, &fields, domain);
    domain.mentions_limit |= fields.meant("descriptors") || fields.has_misplaced();
    if let Some(list) = fields.get("descriptors") {
        let mut siblings = std::mem::take(&mut domain.siblings);
        descriptor::read_list(compiler, domain, list, &mut siblings, &mut Vec::new());
        domain.siblings = siblings;
    }
    settle::settle(compiler, &mut scratch, options.process);
}

const REMEDY_FOR_DOMAIN: &str = "write 'domain: ' and the domain that Envoy sends";

/// The domain of a file; `None`, with an error, when it has none.
fn domain_name<'n>(compiler: &mut Compiler<'_>, fields: &Fields<'n>) -> Option<&'n str> {
    let name = match fields.get("domain") {
        Some(node) => fields::text(&mut compiler.problems, node, "domain")?,
        None => "",
    };
    if name.is_empty() && !fields.meant("domain") {
        compiler.problems.error(
            fields.lack("domain").at,
            "the file has no domain",
            REMEDY_FOR_DOMAIN,
        );
    }
    Some(name).filter(|name| !name.is_empty())
}

/// A domain without limits is a warning: Envoy's requests in it are all allowed. After an error it
/// may be no more than a consequence.
fn check_for_limits(problems: &mut Problems, domain: &Domain) {
    if !domain.mentions_limit && !problems.has_errors() {
        let what = format!(
            "the domain {} has no limits: only limits that requests bring along are enforced in it",
            quoted(&domain.name)
        );
        problems.warning_in(
            domain.first,
            what,
            "add a descriptor with 'rate_limit', or remove the file",
        );
    }
}

/// A name that no limit has is a warning, because the Go service ignores it.
fn check_replaced(problems: &mut Problems, domain: &Domain) {
    for (location, name) in domain
        .replaced
        .iter()
        .filter(|(_, name)| !domain.names.contains(name))
    {
        let near = fields::nearest(name, domain.names.iter().map(AsRef::as_ref));
        let what = format!(
            "no limit of the domain {} has the name {}",
            quoted(&domain.name),
            quoted(name)
        );
        let remedy = near.map_or_else(
            || "give a limit this name, or remove the entry".to_owned(),
            |near| format!("write {}", quoted(near)),
        );
        problems.warning_in(*location, what, remedy);
    }
}
