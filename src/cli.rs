//! The command line: one file per subcommand. Without a subcommand, `weir` serves.

mod check;
mod completions;
mod health;
mod hit;
mod print;
mod serve;

use std::ffi::OsString;
use std::process::ExitCode;

use crate::rules::compile::Problem;
use crate::settings::{self, SettingError};
use crate::telemetry;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, Parser, Subcommand};

/// A rate-limit service for Envoy
#[derive(Debug, Parser)]
#[command(name = "weir", version, about, override_usage = "weir [COMMAND] [OPTIONS]")]
#[command(after_help = "Without a command, weir serves: `weir --port 0` means `weir serve --port 0`.")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve rate-limit requests of Envoy (the default)
    Serve(Box<crate::settings::Flags>),
    /// Check limit files, and print every problem in them
    Check(check::Check),
    /// Send requests to a running service, and print its answers
    Hit(hit::Hit),
    /// Ask a running service on this machine whether it is healthy
    Health(health::Health),
    /// Print a script with which a shell completes commands and flags
    Completions(completions::Completions),
}

/// The exit code for invalid arguments.
const USAGE_ERROR: u8 = 2;

/// Runs the command in `arguments`, whose first one is the name of the program.
#[must_use]
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let arguments = with_default_command(arguments);
    // Only the service writes a log.
    let serves = arguments.get(1).is_some_and(|command| command == "serve");
    let format = if serves { settings::log_format_of(&arguments) } else { telemetry::Format::Text };
    let cli = match Cli::try_parse_from(arguments) {
        Ok(cli) => cli,
        Err(error) => return exit_code(help_or_error(&error, format), format),
    };
    let result = match cli.command {
        Command::Serve(flags) => serve::run(*flags),
        Command::Check(check) => check::run(&check),
        Command::Hit(hit) => hit::run(hit),
        Command::Health(health) => health::run(&health),
        Command::Completions(completions) => completions::run(&completions, Cli::command()),
    };
    exit_code(result, format)
}

/// Arguments that clap cannot refuse.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct UsageError(String);

/// Limit files without which a service does not start, with their problems.
#[derive(Debug, thiserror::Error)]
#[error("the limit files cannot be used; `weir check` checks them without a start")]
struct UnusableLimits(Vec<Problem>);

/// The exit code of a command; an error is printed as one line, and problems of files as one each, in the format of compilers. A setting that
/// cannot be used is an invalid argument too.
fn exit_code(result: anyhow::Result<ExitCode>, format: telemetry::Format) -> ExitCode {
    result.unwrap_or_else(|error| {
        let problems = error.downcast_ref::<UnusableLimits>().map_or(&[][..], |unusable| &unusable.0);
        print::failure(format, &format!("{error:#}"), problems);
        if error.is::<UsageError>() || error.is::<SettingError>() { ExitCode::from(USAGE_ERROR) } else { ExitCode::FAILURE }
    })
}

fn with_default_command(arguments: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut arguments: Vec<_> = arguments.into_iter().collect();
    let help = ["-h", "--help", "-V", "--version"];
    let serves = arguments.get(1).is_none_or(|first| first.to_str().is_some_and(|first| first.starts_with('-') && !help.contains(&first)));
    if serves {
        let after_name = arguments.len().min(1);
        arguments.insert(after_name, "serve".into());
    }
    arguments
}

/// Prints help as it is, and an error of the arguments as one line.
fn help_or_error(error: &clap::Error, format: telemetry::Format) -> anyhow::Result<ExitCode> {
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        let help = error.render();
        if print::has_colours() {
            print::out(help.ansi())?;
        } else {
            print::out(help)?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    // clap prints the error (missing arguments on lines of their own), an empty line, and the usage.
    let text = error.to_string();
    let lines: Vec<_> = text.lines().map(str::trim).take_while(|line| !line.is_empty()).collect();
    let message = lines.join(" ");
    let message = message.trim_start_matches("error: ");
    let remedy = match error.get(ContextKind::SuggestedArg).or_else(|| error.get(ContextKind::SuggestedSubcommand)) {
        Some(ContextValue::String(nearest)) => format!("; did you mean `{nearest}`?"),
        Some(ContextValue::Strings(nearest)) if !nearest.is_empty() => format!("; did you mean `{}`?", nearest.join("` or `")),
        _ => "; see `weir --help` and `weir COMMAND --help`".to_owned(),
    };
    print::failure(format, &format!("{message}{remedy}"), &[]);
    Ok(ExitCode::from(USAGE_ERROR))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(arguments: &[&str]) -> Vec<OsString> {
        with_default_command(arguments.iter().map(OsString::from))
    }

    #[test]
    fn serving_is_the_default() {
        assert_eq!(command(&["weir"]), ["weir", "serve"]);
        assert_eq!(command(&["weir", "--port", "0"]), ["weir", "serve", "--port", "0"]);
        assert_eq!(command(&["weir", "--help"]), ["weir", "--help"]);
        assert_eq!(command(&["weir", "check", "x"]), ["weir", "check", "x"]);
    }

    #[test]
    fn the_declaration_is_valid() {
        Cli::command().debug_assert();
    }
}
