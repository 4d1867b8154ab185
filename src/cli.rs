//! The command line: one file per subcommand; without one, `weir` serves.

mod check;
mod hit;
mod print;
mod serve;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Parser, Subcommand};

/// A rate-limit service for Envoy
#[derive(Debug, Parser)]
#[command(name = "weir", version, about, disable_help_subcommand = true)]
#[command(after_help = "Without a command, weir serves: `weir --port 0` is `weir serve --port 0`.")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Answer Envoy's requests (the default)
    Serve(Box<crate::settings::Flags>),
    /// Check files of limits, and print every problem in them
    Check(check::Check),
    /// Send one request to a running service, and print the verdicts
    Hit(hit::Hit),
}

/// Wrong use of the command line.
const USAGE: u8 = 2;

/// Runs what `arguments` (the program's name first) ask for.
#[must_use]
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let cli = match Cli::try_parse_from(with_default_command(arguments)) {
        Ok(cli) => cli,
        Err(error) => return told(refuse(&error)),
    };
    told(match cli.command {
        Command::Serve(flags) => serve::run(*flags),
        Command::Check(check) => check::run(&check),
        Command::Hit(hit) => hit::run(hit),
    })
}

/// An error as one line.
fn told(done: anyhow::Result<ExitCode>) -> ExitCode {
    done.unwrap_or_else(|error| {
        print::error(format_args!("weir: {error:#}"));
        ExitCode::FAILURE
    })
}

fn with_default_command(arguments: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut arguments: Vec<_> = arguments.into_iter().collect();
    let help = ["-h", "--help", "-V", "--version"];
    let serves = arguments.get(1).is_none_or(|first| first.to_str().is_some_and(|first| first.starts_with('-') && !help.contains(&first)));
    if serves {
        let place = arguments.len().min(1);
        arguments.insert(place, "serve".into());
    }
    arguments
}

/// Help as it is; an error as one line.
fn refuse(error: &clap::Error) -> anyhow::Result<ExitCode> {
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        print::out(error)?;
        return Ok(ExitCode::SUCCESS);
    }
    // Up to the empty line, after which clap shows how the command is used. What is missing stands on lines of its own.
    let text = error.to_string();
    let lines: Vec<_> = text.lines().map(str::trim).take_while(|line| !line.is_empty()).collect();
    let what = lines.join(" ");
    let what = what.trim_start_matches("error: ");
    let nearest = match error.get(ContextKind::SuggestedArg).or_else(|| error.get(ContextKind::SuggestedSubcommand)) {
        Some(ContextValue::String(nearest)) => format!("; did you mean `{nearest}`?"),
        Some(ContextValue::Strings(nearest)) if !nearest.is_empty() => format!("; did you mean `{}`?", nearest.join("` or `")),
        _ => "; `weir --help` and `weir COMMAND --help` tell what there is".to_owned(),
    };
    print::error(format_args!("weir: {what}{nearest}"));
    Ok(ExitCode::from(USAGE))
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
    fn the_declaration_is_sound() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }
}
