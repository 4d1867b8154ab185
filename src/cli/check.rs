//! `weir check`: files of limits without a service.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use crate::live::files;
use crate::rules::compile::{self, Severity};

#[derive(Args, Debug)]
pub(super) struct Check {
    /// A folder of limits, or one file
    #[arg(default_value = "config")]
    path: PathBuf,
    /// Take warnings for errors
    #[arg(long)]
    strict: bool,
    /// Several files may speak of one domain
    #[arg(long, alias = "merge_domain_configs")]
    merge_domains: bool,
    /// Read files whose name begins with a dot too
    #[arg(long)]
    dot_files: bool,
}

pub(super) fn run(check: &Check) -> ExitCode {
    let options = files::Options {
        path: check.path.clone(),
        ignore_dot_files: !check.dot_files,
        compile: compile::Options { merge_domains: check.merge_domains, strict: check.strict },
        ..Default::default()
    };
    let compiled = files::read(&options).and_then(|read| compile::compile(&read.texts, &options.compile));
    let (problems, summary) = match compiled {
        Ok(compiled) => {
            let (limits, domains) = (compiled.rules.limits().len(), compiled.rules.domains().count());
            (compiled.warnings, Some(format!("{limits} limits in {domains} domains")))
        }
        Err(problems) => (problems, None),
    };
    for problem in &problems {
        println!("{problem}");
    }
    let errors = problems.iter().filter(|problem| problem.severity == Severity::Error).count();
    let warnings = problems.len() - errors;
    let Some(summary) = summary else {
        println!("{}, {}", counted(errors, "error"), counted(warnings, "warning"));
        return ExitCode::FAILURE;
    };
    println!("ok: {summary}{}", if warnings == 0 { String::new() } else { format!(", {}", counted(warnings, "warning")) });
    ExitCode::SUCCESS
}

fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}
