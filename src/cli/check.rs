//! `weir check`: checks limit files without a service.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;

use super::print;
use crate::live::files;
use crate::rules::compile::{self, Compiled, Problem, Severity};
use crate::settings::ReadFlags;

#[derive(Args, Debug)]
pub(super) struct Check {
    /// Folder of limit files, or one file
    #[arg(default_value = "config")]
    path: PathBuf,
    /// Treat warnings as errors
    #[arg(long)]
    strict: bool,
    #[command(flatten)]
    read: ReadFlags,
}

pub(super) fn run(check: &Check) -> anyhow::Result<ExitCode> {
    let (problems, summary) = match compile(check) {
        Ok(compiled) => {
            let (limits, domains) = (compiled.rules.limits().len(), compiled.rules.domains().count());
            (compiled.warnings, Some(format!("{} in {}", counted(limits, "limit"), counted(domains, "domain"))))
        }
        Err(problems) => (problems, None),
    };
    let mut text: String = problems.iter().map(|problem| format!("{problem}\n")).collect();
    let errors = problems.iter().filter(|problem| problem.severity == Severity::Error).count();
    let warnings = problems.len() - errors;
    text += &match &summary {
        None => format!("{}, {}\n", counted(errors, "error"), counted(warnings, "warning")),
        Some(summary) if warnings == 0 => format!("ok: {summary}\n"),
        Some(summary) => format!("ok: {summary}, {}\n", counted(warnings, "warning")),
    };
    print::out(text)?;
    Ok(if summary.is_some() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Compiles the files. Problems name files relative to the current folder, so that an editor finds them.
///
/// # Errors
/// All problems of all files.
fn compile(check: &Check) -> Result<Compiled, Vec<Problem>> {
    let options = check.read.options(check.path.clone(), check.strict);
    let mut read = files::read(&options).map_err(|mut problems| {
        for problem in &mut problems {
            problem.file = from_here(&check.path, &problem.file);
        }
        problems
    })?;
    for text in &mut read.texts {
        text.name = from_here(&check.path, &text.name);
    }
    compile::compile(&read.texts, &options.compile)
}

/// The path of `name` from the current folder: `name` is in the folder `path`, or is `path` itself.
fn from_here(path: &Path, name: &str) -> String {
    let is_in_folder = path.is_dir() && Path::new(name) != path;
    let named = if is_in_folder { path.join(name) } else { path.to_owned() };
    named.to_string_lossy().into_owned()
}

fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}
