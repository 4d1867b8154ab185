//! `weir check`: checks limit files without a service.

mod revision;

use std::collections::HashSet;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use serde::Serialize;

use super::{print, success_if};
use crate::limits::rules::Rules;
use crate::limits::rules::compile::{self, OneLine, Problem, Severity, SourceText};
use crate::limits::rules::diff::Difference;
use crate::limits::rules::domains::Overlay;
use crate::limits::rules::limit::Limit;
use crate::limits::rules::messages;
use crate::live::files;
use crate::process::settings::{ReadFlags, Settings};

/// Characters of a line of a file that are shown below a problem.
const LONGEST_EXCERPT: usize = 100;
/// Lines of more bytes are not shown: a file of one line can have thousands of problems.
const LONGEST_LINE: usize = 10_000;
/// The most of them before the column of the problem.
const BEFORE_COLUMN: usize = 60;

/// In which order regions take new shares.
const ORDER_OF_REGIONS: &str = "shares: lower a region first, and raise another only after the \
    first has reloaded and its windows have ended: otherwise together they admit more than the \
    limit\n";

#[derive(Args, Debug)]
pub(super) struct CheckArgs {
    /// Check this folder of limit files, or this file; several are checked together [default: the
    /// path that weir serve reads]
    paths: Vec<PathBuf>,
    /// Treat warnings as errors
    #[arg(long)]
    strict: bool,
    /// Print the output in this format
    #[arg(long, default_value = "text", value_name = "text|json")]
    format: print::Format,
    /// Compare with this folder or file, or with PATHS at this revision of git, such as HEAD or
    /// origin/main, and print the limits that PATHS add, remove and change
    #[arg(long, value_name = "OLD|REVISION")]
    diff: Option<PathBuf>,
    /// Fail if --diff finds one of these: limits that are added, removed or changed, or whose counters
    /// start at zero
    #[arg(long, value_name = "KIND,...", value_delimiter = ',')]
    #[arg(requires = "diff")]
    fail_on: Vec<DifferenceKind>,
    /// Check an overlay for limits of a control plane instead of PATHS
    #[arg(long, value_name = "FILE", conflicts_with_all = ["paths", "diff"])]
    overlay: Option<PathBuf>,
    /// Print the JSON Schema of limit files for editors, and check nothing
    #[arg(long, conflicts_with_all = ["paths", "diff", "overlay"])]
    schema: bool,
    #[command(flatten)]
    read: ReadFlags,
}

/// A kind of differences.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum DifferenceKind {
    Added,
    Removed,
    Changed,
    Resets,
}

impl DifferenceKind {
    /// Its name, and the first such difference.
    fn find(self, all: &Difference) -> (&'static str, Option<String>) {
        fn first<T: Display>(mut all: impl Iterator<Item = T>) -> Option<String> {
            all.next().map(|one| one.to_string())
        }
        let changed = all.changed.iter();
        match self {
            Self::Added => ("added", first(all.added.iter())),
            Self::Removed => ("removed", first(all.removed.iter())),
            Self::Changed => ("changed", first(changed).or_else(|| first(all.rows.iter()))),
            Self::Resets => {
                let rows = || first(all.rows.iter().filter(|one| one.resets));
                let limits = first(changed.filter(|one| one.resets));
                ("resets", limits.or_else(rows))
            }
        }
    }
}

/// Contents of the files, and the result as JSON.
#[derive(Debug, Default, Serialize)]
struct CheckedFiles {
    problems: Vec<Problem>,
    skipped: Vec<String>,
    #[serde(rename = "diff", skip_serializing_if = "Option::is_none")]
    difference: Option<Difference>,
    summary: CheckSummary,
    #[serde(skip)]
    texts: Vec<SourceText>,
    /// `None` if there is an error, and of an overlay.
    #[serde(skip)]
    rules: Option<Rules>,
    /// The domains and descriptors of an overlay, which has no limits of its own.
    #[serde(skip)]
    entries: Option<usize>,
}

/// Checks the files. `settings`, of `weir serve` in this environment, were checked when they were
/// read.
pub(super) fn run(check: &CheckArgs, settings: &Settings) -> anyhow::Result<ExitCode> {
    if check.schema {
        print::out(format!("{:#}\n", compile::json_schema()))?;
        return Ok(ExitCode::SUCCESS);
    }
    let xds = settings.xds.as_ref().filter(|_| check.paths.is_empty());
    let overlay_in_force = xds.and_then(|xds| xds.overlay_file.as_ref());
    let found = match check.overlay.as_ref().or(overlay_in_force) {
        Some(overlay) if check.diff.is_none() => read_overlay(check, overlay),
        _ => compile(check, &settings.files),
    };
    let mut found = found.unwrap_or_else(|problems| CheckedFiles {
        problems,
        ..CheckedFiles::default()
    });
    if let Some(old) = &check.diff {
        let given = Some(&*check.paths).filter(|paths| !paths.is_empty());
        let served = std::slice::from_ref(&settings.files.path);
        found.compare(check, old, given.unwrap_or(served));
    }
    let paint = match print::has_colours() {
        true => coloured,
        false => plain,
    };
    found.summary = found.summary();
    check.format.print(&found, |found| found.text(paint))?;
    let mut is_wanted = true;
    for kind in &check.fail_on {
        let first = found.difference.as_ref().map(|all| kind.find(all));
        if let Some((name, Some(first))) = first {
            print::error(format_args!("weir: --fail-on {name}: {first}"));
            is_wanted = false;
        }
    }
    Ok(success_if(is_wanted && found.summary.ok))
}

/// Compiles the files: those that `weir serve` would read, unless a path is given.
fn compile(check: &CheckArgs, served: &files::Options) -> Result<CheckedFiles, Vec<Problem>> {
    let mut options = check.read.options(served.path.clone());
    (options.compile.strict, options.compile.for_check) = (check.strict, true);
    let read = if check.paths.is_empty() {
        options.beside = served.beside;
        options.compile.max_memory = served.compile.max_memory;
        read(&options)?
    } else {
        read_all(&options, &check.paths, read)?
    };
    let (problems, rules) = match compile::compile(&read.texts, &options.compile) {
        Ok(compiled) => (compiled.warnings, Some(compiled.rules)),
        Err(problems) => (problems, None),
    };
    Ok(CheckedFiles {
        problems,
        texts: read.texts,
        rules,
        skipped: read.skipped,
        ..CheckedFiles::default()
    })
}

fn read_overlay(check: &CheckArgs, path: &Path) -> Result<CheckedFiles, Vec<Problem>> {
    let mut options = check.read.options(path.to_owned());
    (options.compile.strict, options.compile.for_check) = (check.strict, true);
    let name = path.to_string_lossy();
    let mut texts = match path.is_dir() {
        true => Vec::new(),
        false => files::read(&options)?.texts,
    };
    let Some(text) = texts.first_mut() else {
        let problem = Problem::whole(name.into_owned(), messages::overlay_of_many_files());
        return Err(vec![problem]);
    };
    text.name = name.into_owned();
    let (problems, entries) = match Overlay::read(text.clone(), &options.compile) {
        Ok(read) => (read.warnings, Some(read.overlay.entries())),
        Err(problems) => (problems, None),
    };
    Ok(CheckedFiles {
        problems,
        texts,
        entries,
        ..CheckedFiles::default()
    })
}

/// Reads limit files. They, and so their problems, have names relative to the current folder, so
/// that an editor finds them.
///
/// # Errors
/// The problems of files that cannot be read.
pub(super) fn read(options: &files::Options) -> Result<files::Read, Vec<Problem>> {
    let from_here = |name: &mut String| *name = from_here(options, name);
    let mut read = files::read(options).map_err(|mut problems| {
        let files = problems.iter_mut().map(|problem| &mut problem.file);
        files.for_each(from_here);
        problems
    })?;
    let names = read.texts.iter_mut().map(|text| &mut text.name);
    names.chain(&mut read.skipped).for_each(from_here);
    Ok(read)
}

/// Reads the limit files of several paths, each file once, and sorted by name.
///
/// # Errors
/// As `read`, of the first path.
fn read_all(
    options: &files::Options,
    paths: &[PathBuf],
    read: impl Fn(&files::Options) -> Result<files::Read, Vec<Problem>>,
) -> Result<files::Read, Vec<Problem>> {
    let (mut options, mut all) = (options.clone(), files::Read::default());
    for path in paths {
        options.path.clone_from(path);
        let read = read(&options)?;
        all.texts.extend(read.texts);
        all.skipped.extend(read.skipped);
    }
    all.texts.sort_by(|one, other| one.name.cmp(&other.name));
    all.texts.dedup_by(|one, other| one.name == other.name);
    Ok(all)
}

/// The path of `name` from the current folder: `name` is in the folder, or is the path itself.
fn from_here(options: &files::Options, name: &str) -> String {
    let path = &*options.path;
    let folder = path.parent().filter(|_| options.beside).unwrap_or(path);
    let is_inside = (options.beside || folder.is_dir()) && Path::new(name) != path;
    let from_here = if is_inside { &*folder.join(name) } else { path };
    from_here.to_string_lossy().into_owned()
}

/// A line for each limit that differs.
fn differences(difference: &Difference) -> String {
    fn lines(what: &str, limits: &[impl Display]) -> String {
        let line = |limit| format!("{what}: {limit}\n");
        limits.iter().map(line).collect()
    }
    let order = Some(ORDER_OF_REGIONS).filter(|_| difference.moves_shares);
    lines("added", &difference.added)
        + &lines("removed", &difference.removed)
        + &lines("changed", &difference.changed)
        + &lines("changed", &difference.rows)
        + order.unwrap_or_default()
}

impl CheckedFiles {
    /// Adds the difference from the files in `old`, or from `paths` at this revision, which only
    /// have to be good enough for a service. Their errors are added to the problems.
    fn compare(&mut self, check: &CheckArgs, old: &Path, paths: &[PathBuf]) {
        let options = check.read.options(old.to_owned());
        let revision = old.to_string_lossy();
        let at_revision = |options: &_| revision::read(options, &revision);
        let of_revision = || read_all(&options, paths, at_revision);
        let read = match old.exists() {
            true if revision::may_be(old) && of_revision().is_ok() => {
                let message = messages::path_and_revision(&revision);
                Err(vec![Problem::whole(revision.to_string(), message)])
            }
            true => read(&options),
            false => of_revision(),
        };
        let mut texts = Vec::new();
        let compiled = read.and_then(|read| {
            texts = read.texts;
            compile::compile(&texts, &options.compile)
        });
        match compiled {
            Ok(old) => {
                let new = self.rules.as_ref();
                self.difference = new.map(|new| Difference::new(&old.rules, new));
            }
            Err(problems) => {
                self.problems.extend(problems);
                self.texts.extend(texts);
                self.rules = None;
            }
        }
    }

    /// Each problem as a compiler prints it, and a summary in the last line.
    fn text(&self, paint: Paint) -> String {
        let mut text = String::new();
        for name in self.skipped.iter().map(|name| OneLine(name)) {
            text += &format!("{name}: skipped: pages and backup files hold no limits\n");
        }
        // Problems are in the order of the files.
        let mut source: (&str, Vec<&str>) = ("", Vec::new());
        for problem in &self.problems {
            if source.0 != problem.file {
                let file = self.texts.iter().find(|text| text.name == problem.file);
                let lines = file.and_then(|file| str::from_utf8(&file.text).ok());
                source = (&problem.file, lines.unwrap_or_default().lines().collect());
            }
            let (word, colour) = match problem.severity {
                Severity::Error => ("error", RED),
                Severity::Warning => ("warning", YELLOW),
            };
            let painted = format!(": {}: ", paint(word, colour));
            let problem_text = problem.to_string();
            text += &problem_text.replacen(&format!(": {word}: "), &painted, 1);
            text.push('\n');
            let line = problem.line.checked_sub(1).and_then(|at| source.1.get(at));
            if let Some(line) = line.filter(|line| line.len() <= LONGEST_LINE) {
                text += &excerpt(line, problem.line, problem.column, paint);
            }
        }
        if let Some(difference) = &self.difference {
            text += &differences(difference);
        }
        text + &self.last_line(paint)
    }

    fn last_line(&self, paint: Paint) -> String {
        let summary = &self.summary;
        let warned = counted(summary.warnings, "warning");
        let found = match (&self.rules, self.entries) {
            (Some(rules), _) => {
                let limits = counted(rules.limit_count(), "limit");
                let domains = counted(rules.domains().count(), "domain");
                format!("{limits} in {domains}{}", tables(rules))
            }
            (None, Some(1)) => "an overlay of 1 entry".to_owned(),
            (None, Some(entries)) => format!("an overlay of {entries} entries"),
            (None, None) => return format!("{}, {warned}\n", counted(summary.errors, "error")),
        };
        let mut text = format!("{}: {found}", paint("ok", GREEN));
        if summary.warnings > 0 {
            text += &format!(", {warned}");
        }
        if let Some(all) = &self.difference {
            let [added, removed] = [&all.added, &all.removed].map(Vec::len);
            let changed = all.changed.len();
            text += &format!("; {added} added, {removed} removed, {changed} changed");
        }
        text + "\n"
    }

    fn summary(&self) -> CheckSummary {
        let is_error = |problem: &&Problem| problem.severity == Severity::Error;
        let errors = self.problems.iter().filter(is_error).count();
        let counts = match &self.rules {
            Some(rules) => Some((rules.limit_count(), rules.domains().count())),
            None => self.entries.map(|_| (0, 0)),
        };
        let tables = self.rules.iter().flat_map(Rules::limits);
        let rows = tables.filter_map(|limit| Some(limit.own_table()?.rows.len()));
        CheckSummary {
            ok: counts.is_some(),
            errors,
            warnings: self.problems.len() - errors,
            limits: counts.map(|(limits, _)| limits),
            domains: counts.map(|(_, domains)| domains),
            rows: rows.reduce(|sum, rows| sum + rows),
        }
    }
}

#[derive(Debug, Default, Serialize)]
struct CheckSummary {
    ok: bool,
    errors: usize,
    warnings: usize,
    /// Not counted if there is an error.
    limits: Option<usize>,
    domains: Option<usize>,
    /// Of all tables.
    #[serde(skip_serializing_if = "Option::is_none")]
    rows: Option<usize>,
}

/// The rows and plans of all tables, if there are some.
fn tables(rules: &Rules) -> String {
    let tables: Vec<_> = rules.limits().filter_map(Limit::own_table).collect();
    let rows = tables.iter().map(|table| table.rows.len()).sum();
    let plan = |limit: &Limit| Some((limit.domain.clone(), limit.plan.clone()?));
    let plans: HashSet<_> = rules.limits().filter_map(plan).collect();
    let plans = plans.len();
    let mut text = String::new();
    if !tables.is_empty() {
        let (rows, tables) = (counted(rows, "row"), counted(tables.len(), "table"));
        text += &format!(", {rows} in {tables}");
    }
    if plans > 0 {
        text += &format!(", {}", counted(plans, "plan"));
    }
    text
}

/// A line of a file with a mark below the column, as compilers print it. Of a long line, the part
/// around the column is shown.
fn excerpt(line: &str, number: usize, column: usize, paint: Paint) -> String {
    let line = line.trim_start_matches('\u{feff}');
    let column = column.saturating_sub(1);
    let (first, more) = match column {
        LONGEST_EXCERPT.. => (column - BEFORE_COLUMN, "..."),
        _ => (0, ""),
    };
    // A tab is printed as one space to keep the mark below its column.
    let line = line.replace('\t', " ");
    let (mut characters, length) = (line.chars().skip(first), column - first);
    let before: String = characters.by_ref().take(length).collect();
    let after: String = characters.by_ref().take(LONGEST_EXCERPT - length).collect();
    let rest = characters.next().map_or("", |_| "...");
    let before = format!("{more}{}", OneLine(&before));
    let indent = " ".repeat(before.chars().count());
    let (after, mark) = (OneLine(&after), paint("^", GREEN));
    format!("{number:>5} | {before}{after}{rest}\n      | {indent}{mark}\n")
}

/// Writes a word that compilers colour, with the number of its colour (ECMA-48, SGR).
type Paint = fn(&str, u8) -> String;
const RED: u8 = 31;
const GREEN: u8 = 32;
const YELLOW: u8 = 33;

fn coloured(word: &str, colour: u8) -> String {
    format!("\u{1b}[1;{colour}m{word}\u{1b}[0m")
}

fn plain(word: &str, _: u8) -> String {
    word.to_owned()
}

fn counted(count: usize, what: &str) -> String {
    crate::core::time::people::counted(count as u64, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_change_nothing_but_colours() {
        let (name, text) = ("a: error: b.yaml".to_owned(), b"x\n a: error: ^\n".to_vec());
        let problem = |severity| Problem {
            line: 2,
            column: 12,
            severity,
            ..Problem::whole(
                name.clone(),
                messages::unusable_source("x", "warning: error: x"),
            )
        };
        let found = CheckedFiles {
            problems: vec![problem(Severity::Error), problem(Severity::Warning)],
            texts: vec![SourceText {
                name: name.clone(),
                text,
            }],
            rules: Some(Rules::default()),
            ..CheckedFiles::default()
        };
        let shown = found.text(coloured);
        assert_eq!(shown.matches('\u{1b}').count(), 10, "{shown:?}");
        assert!(
            shown.starts_with("a: \u{1b}[1;31merror\u{1b}[0m: b.yaml"),
            "{shown:?}"
        );
        let codes = ["[1;31m", "[1;33m", "[1;32m", "[0m"];
        let plain_again = codes.iter().fold(shown, |text, code| {
            text.replace(&format!("\u{1b}{code}"), "")
        });
        assert_eq!(plain_again, found.text(plain));
    }

    #[test]
    fn the_mark_is_below_the_column() {
        assert_eq!(
            excerpt("  key: é x", 12, 8, plain),
            "   12 |   key: é x\n      |        ^\n"
        );
        assert_eq!(
            excerpt("\tkey: \u{1b}[2J x", 3, 12, plain),
            "    3 |  key: \\u{1b}[2J x\n      |                 ^\n"
        );
        assert_eq!(excerpt("", 1, 1, plain), "    1 | \n      | ^\n");
        assert_eq!(
            excerpt("ab", 1, 9, plain),
            "    1 | ab\n      |   ^\n",
            "a column behind the end"
        );
        let long = format!("{}X{}", "a".repeat(500), "b".repeat(500));
        let shown = excerpt(&long, 1, 501, plain);
        let (text, mark) = shown.split_once('\n').unwrap();
        assert_eq!(
            text.chars().nth(mark.trim_end().chars().count() - 1),
            Some('X'),
            "{shown}"
        );
        assert!(text.len() < 120, "{shown}");
    }
}
