//! The command line: one file for each subcommand, or for several of a kind. Without one it serves.

mod admin;
mod amount;
mod arguments;
mod check;
mod completions;
mod connect;
mod entries;
mod envoy;
mod explain;
mod health;
mod hit;
pub mod load;
mod overrides;
mod print;
pub(crate) mod replay;
mod replicas;
mod serve;
mod top;
mod unmatched;
mod usage;
pub(crate) mod workload;

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use crate::core::time::parse_duration;
use crate::limits::overrides::Kind;
use crate::limits::rules::compile::Problem;
use crate::observe::telemetry;
use crate::process::settings::{self, Flags, SettingError, SettingSources, Settings};
use arguments::ParsedArguments;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

/// A rate-limit service for Envoy
#[derive(Debug, Parser)]
#[command(name = "weir", version, about)]
#[command(override_usage = "weir [COMMAND] [OPTIONS]")]
#[command(
    after_help = "Without a command, weir serves: `weir --port 0` means `weir serve --port 0`. \
    `weir COMMAND --help` explains all options of a command."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Answer rate-limit requests of Envoy (the default command)
    Serve(Box<Flags>),
    /// Check limit files and print all errors and warnings
    Check(check::CheckArgs),
    /// Explain which limits apply to a request and what is left of them
    Explain(explain::Explain),
    /// Show the usage of a subject, or the subjects with the most usage
    Usage(Box<usage::UsageCommand>),
    /// Count the hits of a subject in a recent interval
    Count(Box<usage::CountCommand>),
    /// Show the subjects with the most hits or refused hits
    Top(top::TopCommand),
    /// Show recent descriptors that matched no limit
    Unmatched(unmatched::UnmatchedArgs),
    /// Send rate-limit requests and print the answers
    Hit(hit::Hit),
    /// Generate load, and report throughput, latency and exactness
    Load(Box<load::LoadCommand>),
    /// Replay recorded requests against limit files and report refusals
    Replay(Box<replay::Replay>),
    /// Print an Envoy configuration that matches the limit files
    Envoy(Box<envoy::Envoy>),
    /// Block a descriptor: refuse its requests
    #[command(after_help = overrides::help(overrides::BLOCK))]
    Block(overrides::OverrideTarget),
    /// Exempt a descriptor: allow its requests without counting them
    #[command(after_help = overrides::help(overrides::EXEMPT))]
    Exempt(overrides::OverrideTarget),
    /// Raise the limit of a descriptor
    Raise(overrides::Raise),
    /// Remove the block of a descriptor
    Unblock(overrides::RemoveOverride),
    /// Remove the exemption of a descriptor
    Unexempt(overrides::RemoveOverride),
    /// Remove the raise of a descriptor
    Unraise(overrides::RemoveOverride),
    /// List overrides (blocks, exemptions and raises), or remove them
    Overrides(overrides::OverridesArgs),
    /// Reset the counter of a descriptor to zero
    Reset(overrides::ResetArgs),
    /// Check the health of the service on this machine
    Health(health::HealthArgs),
    /// Print a completion script for a shell
    Completions(completions::Completions),
}

/// Groups of commands in the help.
const GROUPS: [(&str, &[&str]); 5] = [
    ("Service", &["serve", "health"]),
    ("Limit files", &["check", "envoy", "replay"]),
    (
        "Query a running service",
        &["explain", "usage", "count", "top", "unmatched", "overrides"],
    ),
    (
        "Change a running service",
        &[
            "block", "exempt", "raise", "unblock", "unexempt", "unraise", "reset",
        ],
    ),
    ("Tools", &["hit", "load", "completions"]),
];

/// The declaration of all commands, whose help lists them in groups.
fn declaration() -> clap::Command {
    let command = Cli::command();
    let heading = *command.get_styles().get_header();
    let line = |name: &&str| {
        let about = command.find_subcommand(name)?.get_about()?;
        Some(format!("  {name:11}  {about}\n"))
    };
    let group = |(title, names): &(&str, &[&str])| {
        let lines: String = names.iter().filter_map(line).collect();
        format!("{heading}{title}:{heading:#}\n{lines}\n")
    };
    let groups: String = GROUPS.iter().map(group).collect();
    let options = format!("{heading}Options:{heading:#}\n{{options}}");
    command.help_template(format!(
        "{{about}}\n\n{{usage-heading}} {{usage}}\n\n{groups}{options}{{after-help}}"
    ))
}

/// The exit code for invalid arguments.
const USAGE_ERROR: u8 = 2;

/// Runs the command in `arguments`, whose first one is the name of the program.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let mut command = settings::without_empty_variables(declaration());
    let arguments = arguments::with_default_command(&command, arguments);
    // Only the service writes a log.
    let format = match arguments.get(1) {
        Some(command) if command == "serve" => settings::log_format_of(&arguments),
        _ => telemetry::Format::Text,
    };
    let parsed = arguments::parse(&mut command, arguments.clone());
    let parsed = parsed.and_then(|parsed| Ok((Cli::from_arg_matches(&parsed.matches)?, parsed)));
    let (cli, ParsedArguments { matches, ignored }) = match parsed {
        Ok(parsed) => parsed,
        Err(error) => {
            let result = help_or_error(&error, &command, &arguments, format);
            return exit_code(result, &SettingSources::default(), format);
        }
    };
    // The command as it is declared knows also the variables that are empty.
    let sources = SettingSources::new(&Cli::command(), &matches);
    let result = match cli.command {
        Command::Serve(flags) => serve::run(*flags, &sources, &ignored),
        Command::Check(check) => {
            of_environment(&mut command).and_then(|settings| check::run(&check, &settings))
        }
        Command::Explain(explain) => explain::run(&explain),
        Command::Usage(command) => usage::run(&command),
        Command::Count(command) => usage::count(&command),
        Command::Top(top) => top::run(&top),
        Command::Unmatched(unmatched) => unmatched::run(&unmatched),
        Command::Hit(hit) => hit::run(hit),
        Command::Load(load) => load::run(*load),
        Command::Replay(replay) => replay::run(&replay),
        Command::Envoy(envoy) => envoy::run(&envoy),
        Command::Block(target) => overrides::create(&target, Kind::Block, false),
        Command::Exempt(target) => overrides::create(&target, Kind::Exempt, false),
        Command::Raise(raise) => {
            overrides::create(&raise.target, Kind::Raise(raise.to), raise.replace)
        }
        Command::Unblock(target) => overrides::remove_override(&target, "block"),
        Command::Unexempt(target) => overrides::remove_override(&target, "exempt"),
        Command::Unraise(target) => overrides::remove_override(&target, "raise"),
        Command::Overrides(overrides) => overrides::overrides(&overrides),
        Command::Reset(reset) => overrides::reset(&reset),
        Command::Health(health) => health::run(&health),
        Command::Completions(completions) => completions::run(&completions, Cli::command()),
    };
    exit_code(result, &sources, format)
}

/// The settings with which `weir serve` would start in this environment.
fn of_environment(command: &mut clap::Command) -> anyhow::Result<Settings> {
    let arguments = ["weir", "serve"].map(OsString::from);
    let matches = command.try_get_matches_from_mut(&arguments);
    let read = matches.and_then(|matches| {
        let serve = matches.subcommand_matches("serve").unwrap_or(&matches);
        let flags = Flags::from_arg_matches(serve)?;
        Ok((flags, SettingSources::new(&Cli::command(), &matches)))
    });
    let wrong = |error| UsageError(arguments::message(&error, command, &arguments));
    let (flags, sources) = read.map_err(wrong)?;
    Ok(Settings::try_new(flags, sources)?)
}

/// Arguments that clap cannot refuse.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct UsageError(String);

/// Reads a duration in the notation of limits, such as `250ms` or `1m30s`; also days and weeks of
/// 24 hours, such as `30d`, which limit files do not have.
///
/// # Errors
/// What to write.
fn duration(text: &str) -> Result<Duration, String> {
    let parsed = parse_duration(text);
    let days = || {
        let span: jiff::Span = text.parse().ok()?;
        let relative = jiff::SpanRelativeTo::days_are_24_hours();
        Duration::try_from(span.to_duration(relative).ok()?).ok()
    };
    parsed.or_else(|error| days().ok_or_else(|| error.report().1.to_owned()))
}

/// The exit code of a command that did what it was asked for, or not all of it.
fn success_if(is_success: bool) -> ExitCode {
    ExitCode::from(u8::from(!is_success))
}

/// Files that cannot be used, with their problems.
#[derive(Debug, thiserror::Error)]
enum UnusableFiles {
    /// Limit files without which a service does not start.
    #[error("the limit files cannot be used; `weir check` checks them without a start")]
    Limits(Vec<Problem>),
    /// Limit files and sources of which `weir envoy` makes no configuration.
    #[error("nothing is printed, because Envoy would not send what the files limit")]
    Envoy(Vec<Problem>),
}

/// The exit code of a command; an error is printed as one line, and problems of files as one each,
/// in the format of compilers. A setting that cannot be used is an invalid argument too.
fn exit_code(
    result: anyhow::Result<ExitCode>,
    sources: &SettingSources,
    format: telemetry::Format,
) -> ExitCode {
    result.unwrap_or_else(|error| {
        let problems = match error.downcast_ref() {
            Some(UnusableFiles::Limits(problems) | UnusableFiles::Envoy(problems)) => &problems[..],
            None => &[],
        };
        print::failure(format, &sources.name(&format!("{error:#}")), problems);
        if error.is::<UsageError>() || error.is::<SettingError>() {
            ExitCode::from(USAGE_ERROR)
        } else {
            ExitCode::FAILURE
        }
    })
}

/// Prints help as it is, and an error of the arguments as one line.
fn help_or_error(
    error: &clap::Error,
    command: &clap::Command,
    arguments: &[OsString],
    format: telemetry::Format,
) -> anyhow::Result<ExitCode> {
    if !error.use_stderr() {
        let help = error.render();
        match print::has_colours() {
            true => print::out(help.ansi())?,
            false => print::out(help)?,
        };
        return Ok(ExitCode::SUCCESS);
    }
    print::failure(format, &arguments::message(error, command, arguments), &[]);
    Ok(ExitCode::from(USAGE_ERROR))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_days() {
        for (text, hours) in [
            ("30d", Some(720)),
            ("1w", Some(168)),
            ("1d12h", Some(36)),
            ("2h", Some(2)),
        ] {
            let expected = hours.map(|hours| Duration::from_secs(hours * 3_600));
            assert_eq!(duration(text).ok(), expected, "{text}");
        }
        for text in ["", "5", "-2d", "1mo", "1y", "x"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_declaration_is_valid_and_its_help_has_each_command_once() {
        let command = declaration();
        let mut all: Vec<_> = command
            .get_subcommands()
            .map(clap::Command::get_name)
            .collect();
        let mut listed: Vec<_> = GROUPS
            .iter()
            .flat_map(|(_, names)| *names)
            .copied()
            .collect();
        all.sort_unstable();
        listed.sort_unstable();
        assert_eq!(listed, all);
        command.debug_assert();
    }
}
