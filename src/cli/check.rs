//! `weir check`: checks limit files without a service.

use std::collections::HashSet;
use std::fmt::{Display, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use serde::Serialize;

use super::print;
use crate::limits::rules::Rules;
use crate::limits::rules::compile::{self, OneLine, Problem, Severity, SourceText};
use crate::limits::rules::diff::Difference;
use crate::limits::rules::domains::Overlay;
use crate::live::files;
use crate::process::settings::{ReadFlags, Settings};

/// Characters of a line of a file that are shown below a problem.
const LONGEST_EXCERPT: usize = 100;
/// Lines of more bytes are not shown: a file of one line can have thousands of problems.
const LONGEST_LINE: usize = 10_000;
/// The most of them before the column of the problem.
const BEFORE_COLUMN: usize = 60;

#[derive(Args, Debug)]
pub(super) struct Check {
    /// Folder of limit files, or one file [default: those that weir serve would read]
    path: Option<PathBuf>,
    /// Treat warnings as errors
    #[arg(long)]
    strict: bool,
    /// Format of the output: text for people, json for programs
    #[arg(long, default_value = "text", value_name = "text|json")]
    format: print::Format,
    /// Folder of limit files, or one file, to compare with: print the limits that PATH adds,
    /// removes and changes
    #[arg(long, value_name = "OLD")]
    diff: Option<PathBuf>,
    /// Check this overlay for limits of a control plane, in place of PATH
    #[arg(long, value_name = "FILE", conflicts_with_all = ["path", "diff"])]
    overlay: Option<PathBuf>,
    #[command(flatten)]
    read: ReadFlags,
}

/// What the files hold.
#[derive(Debug, Default)]
struct Found {
    problems: Vec<Problem>,
    /// The numbers of limits and domains; `None` if there is an error.
    counts: Option<(usize, usize)>,
    texts: Vec<SourceText>,
    /// `None` if there is an error.
    rules: Option<Rules>,
    skipped: Vec<String>,
    difference: Option<Difference>,
    /// The domains and descriptors of an overlay, which has no limits of its own.
    entries: Option<usize>,
}

/// Checks the files, beside `settings`: those of `weir serve` in this environment, which were
/// checked when they were read.
pub(super) fn run(check: &Check, settings: &Settings) -> anyhow::Result<ExitCode> {
    let path = check.path.as_ref().unwrap_or(&settings.files.path);
    let overlay_in_force = settings
        .xds
        .as_ref()
        .and_then(|xds| xds.overlay_file.as_ref())
        .filter(|_| check.path.is_none());
    let found = match (check.overlay.as_ref().or(overlay_in_force), &check.diff) {
        (_, Some(old)) => compared(compile(check, path), check, old),
        (Some(overlay), None) => read_overlay(check, overlay),
        (None, None) => compile(check, path),
    };
    print::out(match check.format {
        print::Format::Text if print::has_colours() => coloured(&found.text()),
        print::Format::Text => found.text(),
        print::Format::Json => found.json()?,
    })?;
    Ok(if found.counts.is_some() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Compiles the files.
fn compile(check: &Check, path: &Path) -> Found {
    let mut options = check.read.options(path.to_owned(), check.strict);
    options.compile.for_check = true;
    let read = match read(&options) {
        Ok(read) => read,
        Err(problems) => {
            return Found {
                problems,
                ..Found::default()
            };
        }
    };
    let (problems, rules) = match compile::compile(&read.texts, &options.compile) {
        Ok(compiled) => (compiled.warnings, Some(compiled.rules)),
        Err(problems) => (problems, None),
    };
    let counts = rules
        .as_ref()
        .map(|rules| (rules.limit_count(), rules.domains().count()));
    Found {
        problems,
        counts,
        texts: read.texts,
        skipped: read.skipped,
        rules,
        difference: None,
        entries: None,
    }
}

fn read_overlay(check: &Check, path: &Path) -> Found {
    let mut options = check.read.options(path.to_owned(), check.strict);
    options.compile.for_check = true;
    let texts = if path.is_dir() {
        Err(vec![not_a_file(path)])
    } else {
        files::read(&options).map(|read| read.texts)
    };
    let mut texts = match texts {
        Ok(texts) => texts,
        Err(problems) => {
            return Found {
                problems,
                ..Found::default()
            };
        }
    };
    for text in &mut texts {
        text.name = path.to_string_lossy().into_owned();
    }
    let (problems, entries) = match texts
        .first()
        .map(|text| Overlay::read(text.clone(), &options.compile))
    {
        Some(Ok(read)) => (read.warnings, Some(read.overlay.entries())),
        Some(Err(problems)) => (problems, None),
        None => (vec![not_a_file(path)], None),
    };
    Found {
        problems,
        counts: entries.map(|_| (0, 0)),
        texts,
        entries,
        ..Found::default()
    }
}

fn not_a_file(path: &Path) -> Problem {
    Problem {
        severity: Severity::Error,
        file: path.to_string_lossy().into_owned(),
        path: String::new(),
        line: 0,
        column: 0,
        what: "an overlay is one file".to_owned(),
        remedy: "name the file".to_owned(),
    }
}

/// The same with the difference from the files in `old`, which only have to be good enough for a
/// service. Their errors are added to the problems.
fn compared(mut found: Found, check: &Check, old: &Path) -> Found {
    let options = check.read.options(old.to_owned(), false);
    let mut texts = Vec::new();
    let compiled = read(&options).and_then(|read| {
        texts = read.texts;
        compile::compile(&texts, &options.compile)
    });
    match (compiled, &found.rules) {
        (Ok(old), Some(new)) => found.difference = Some(Difference::new(&old.rules, new)),
        (Ok(_), None) => {}
        (Err(problems), _) => {
            found.problems.extend(problems);
            found.texts.extend(texts);
            found.counts = None;
        }
    }
    found
}

/// Reads limit files. They, and so their problems, have names relative to the current folder, so
/// that an editor finds them.
///
/// # Errors
/// The problems of files that cannot be read.
pub(super) fn read(options: &files::Options) -> Result<files::Read, Vec<Problem>> {
    let from_here = |name: &mut String| *name = from_here(&options.path, name);
    match files::read(options) {
        Ok(mut read) => {
            read.texts
                .iter_mut()
                .map(|text| &mut text.name)
                .chain(&mut read.skipped)
                .for_each(from_here);
            Ok(read)
        }
        Err(mut problems) => {
            problems
                .iter_mut()
                .map(|problem| &mut problem.file)
                .for_each(from_here);
            Err(problems)
        }
    }
}

/// The path of `name` from the current folder: `name` is in the folder `path`, or is `path` itself.
fn from_here(path: &Path, name: &str) -> String {
    let is_in_folder = path.is_dir() && Path::new(name) != path;
    let named = if is_in_folder {
        path.join(name)
    } else {
        path.to_owned()
    };
    named.to_string_lossy().into_owned()
}

/// A line for each limit that differs.
fn differences(difference: &Difference) -> String {
    fn lines(what: &str, limits: &[impl Display]) -> String {
        let line = |limit| format!("{what}: {limit}\n");
        limits.iter().map(line).collect()
    }
    lines("added", &difference.added)
        + &lines("removed", &difference.removed)
        + &lines("changed", &difference.changed)
        + &lines("changed", &difference.rows)
}

impl Found {
    fn errors(&self) -> usize {
        self.problems
            .iter()
            .filter(|problem| problem.severity == Severity::Error)
            .count()
    }

    /// Each problem as a compiler prints it, and a summary in the last line.
    fn text(&self) -> String {
        let mut text = String::new();
        for name in &self.skipped {
            text += &format!(
                "{}: skipped: pages and backup files hold no limits\n",
                OneLine(name)
            );
        }
        // Problems are in the order of the files.
        let mut source: Option<(&str, Vec<&str>)> = None;
        for problem in &self.problems {
            if source
                .as_ref()
                .is_none_or(|(name, _)| *name != problem.file)
            {
                let file = self.texts.iter().find(|text| text.name == problem.file);
                let lines = file
                    .and_then(|file| std::str::from_utf8(&file.text).ok())
                    .map(|text| text.lines().collect());
                source = Some((&problem.file, lines.unwrap_or_default()));
            }
            let line = problem
                .line
                .checked_sub(1)
                .and_then(|index| source.as_ref()?.1.get(index).copied());
            let line = line.filter(|line| line.len() <= LONGEST_LINE);
            text += &format!("{problem}\n");
            text += &line
                .map(|line| excerpt(line, problem.line, problem.column))
                .unwrap_or_default();
        }
        text += &self
            .difference
            .as_ref()
            .map(differences)
            .unwrap_or_default();
        text + &self.summary()
    }

    /// The last line.
    fn summary(&self) -> String {
        let (errors, warnings) = (self.errors(), self.problems.len() - self.errors());
        let warned = counted(warnings, "warning");
        let Some((limits, domains)) = self.counts else {
            return format!("{}, {warned}\n", counted(errors, "error"));
        };
        let warned = if warnings == 0 {
            String::new()
        } else {
            format!(", {warned}")
        };
        let compared = self.difference.as_ref().map(|difference| {
            format!(
                "; {} added, {} removed, {} changed",
                difference.added.len(),
                difference.removed.len(),
                difference.changed.len()
            )
        });
        let tables = self.rules.as_ref().map(tables).unwrap_or_default();
        let what = match self.entries {
            Some(1) => "an overlay of 1 entry".to_owned(),
            Some(entries) => format!("an overlay of {entries} entries"),
            None => format!(
                "{} in {}",
                counted(limits, "limit"),
                counted(domains, "domain")
            ),
        };
        let compared = compared.unwrap_or_default();
        format!("ok: {what}{tables}{warned}{compared}\n")
    }

    /// One JSON object on one line.
    fn json(&self) -> anyhow::Result<String> {
        #[derive(Serialize)]
        struct Report<'a> {
            problems: Vec<Entry<'a>>,
            skipped: &'a [String],
            #[serde(skip_serializing_if = "Option::is_none")]
            diff: Option<&'a Difference>,
            summary: Summary,
        }
        #[derive(Serialize)]
        struct Entry<'a> {
            file: &'a str,
            /// Without a line, the problem is the whole file's.
            line: Option<usize>,
            column: Option<usize>,
            severity: &'static str,
            what: &'a str,
            remedy: &'a str,
        }
        #[derive(Serialize)]
        struct Summary {
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
        let problems = self.problems.iter().map(|problem| Entry {
            file: &problem.file,
            line: Some(problem.line).filter(|&line| line > 0),
            column: Some(problem.column).filter(|&column| column > 0),
            severity: problem.severity.name(),
            what: &problem.what,
            remedy: &problem.remedy,
        });
        let (limits, domains) = self.counts.unzip();
        let tables = self
            .rules
            .iter()
            .flat_map(Rules::limits)
            .filter_map(|limit| limit.own_table());
        let rows = tables
            .map(|table| table.rows.len())
            .reduce(|sum, rows| sum + rows);
        let (errors, warnings) = (self.errors(), self.problems.len() - self.errors());
        let summary = Summary {
            ok: self.counts.is_some(),
            errors,
            warnings,
            limits,
            domains,
            rows,
        };
        print::json(&Report {
            problems: problems.collect(),
            skipped: &self.skipped,
            diff: self.difference.as_ref(),
            summary,
        })
    }
}

/// The rows and plans of all tables, if there are some.
fn tables(rules: &Rules) -> String {
    let tables = || rules.limits().filter_map(|limit| limit.own_table());
    let rows: usize = tables().map(|table| table.rows.len()).sum();
    let plans = rules
        .limits()
        .filter_map(|limit| Some((&limit.domain, limit.plan.as_deref()?)))
        .collect::<HashSet<_>>()
        .len();
    let of_tables = match tables().count() {
        0 => String::new(),
        count => format!(", {} in {}", counted(rows, "row"), counted(count, "table")),
    };
    let of_plans = if plans == 0 {
        String::new()
    } else {
        format!(", {}", counted(plans, "plan"))
    };
    of_tables + &of_plans
}

/// A line of a file with a mark below the column, as compilers print it. Of a long line, the part
/// around the column is shown.
fn excerpt(line: &str, number: usize, column: usize) -> String {
    let line = line.trim_start_matches('\u{feff}');
    let column = column.saturating_sub(1);
    let first = if column >= LONGEST_EXCERPT {
        column - BEFORE_COLUMN
    } else {
        0
    };
    let more = if first > 0 { "..." } else { "" };
    let part = |from: usize, count: usize| {
        let characters = line.chars().skip(from).take(count);
        // A tab is as wide as any other character here, so that the mark is below its column.
        characters
            .map(|c| if c == '\t' { ' ' } else { c })
            .collect::<String>()
    };
    let before = format!("{more}{}", OneLine(&part(first, column - first)));
    let behind = part(column, LONGEST_EXCERPT - (column - first));
    let rest = if line.chars().nth(first + LONGEST_EXCERPT).is_some() {
        "..."
    } else {
        ""
    };
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = writeln!(text, "{number:>5} | {before}{}{rest}", OneLine(&behind));
    let _ = writeln!(text, "      | {}^", " ".repeat(before.chars().count()));
    text
}

/// The same text with the words that compilers colour in colour. Lines of files begin with a
/// number, and are left as they are.
fn coloured(text: &str) -> String {
    let (red, yellow, green, off) = ("\u{1b}[1;31m", "\u{1b}[1;33m", "\u{1b}[1;32m", "\u{1b}[0m");
    text.lines()
        .map(|line| {
            let line = match line {
                line if line.starts_with("      | ") => {
                    line.replacen('^', &format!("{green}^{off}"), 1)
                }
                line if line.starts_with("ok: ") => {
                    line.replacen("ok", &format!("{green}ok{off}"), 1)
                }
                line if line.starts_with(' ') => line.to_owned(),
                line => {
                    let first = |word: &str| line.find(word).unwrap_or(usize::MAX);
                    match (first(": error: "), first(": warning: ")) {
                        (usize::MAX, usize::MAX) => line.to_owned(),
                        (error, warning) if error < warning => {
                            line.replacen(": error: ", &format!(": {red}error{off}: "), 1)
                        }
                        _ => line.replacen(": warning: ", &format!(": {yellow}warning{off}: "), 1),
                    }
                }
            };
            line + "\n"
        })
        .collect()
}

fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_change_nothing_but_colours() {
        let text = "a: error: b.yaml:1:2: warning: error: x; y\n    1 | a: error: ^\n      |    \
            ^\nc: skipped: d\nok: 1 limit\n1 error, 0 warnings\n";
        let shown = coloured(text);
        assert_eq!(shown.matches('\u{1b}').count(), 6, "{shown:?}");
        assert!(
            shown.starts_with("a: \u{1b}[1;31merror\u{1b}[0m: b.yaml"),
            "{shown:?}"
        );
        let plain = ["[1;31m", "[1;33m", "[1;32m", "[0m"]
            .iter()
            .fold(shown, |text, code| {
                text.replace(&format!("\u{1b}{code}"), "")
            });
        assert_eq!(plain, text);
    }

    #[test]
    fn the_mark_is_below_the_column() {
        assert_eq!(
            excerpt("  key: é x", 12, 8),
            "   12 |   key: é x\n      |        ^\n"
        );
        assert_eq!(
            excerpt("\tkey: \u{1b}[2J x", 3, 12),
            "    3 |  key: \\u{1b}[2J x\n      |                 ^\n"
        );
        assert_eq!(excerpt("", 1, 1), "    1 | \n      | ^\n");
        assert_eq!(
            excerpt("ab", 1, 9),
            "    1 | ab\n      |   ^\n",
            "a column behind the end"
        );
        let long = format!("{}X{}", "a".repeat(500), "b".repeat(500));
        let shown = excerpt(&long, 1, 501);
        let (text, mark) = shown.split_once('\n').unwrap();
        assert_eq!(
            text.chars().nth(mark.trim_end().chars().count() - 1),
            Some('X'),
            "{shown}"
        );
        assert!(text.len() < 120, "{shown}");
    }
}
