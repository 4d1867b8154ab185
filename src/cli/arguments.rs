//! Reads the arguments: the default command, unknown arguments, and errors as one line.
//!
//! Weir is strict about arguments, except when it is started as `ratelimit`, which is the name of
//! envoyproxy/ratelimit in manifests: that program ignores all arguments.

use std::ffi::OsString;
use std::path::Path;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{ArgMatches, Command};

use crate::process::settings;

/// The name of envoyproxy/ratelimit's program.
const REFERENCE_NAME: &str = "ratelimit";

/// Arguments that were read.
pub(super) struct ParsedArguments {
    pub(super) matches: ArgMatches,
    /// The names of the arguments that were ignored. Their values may be secrets.
    pub(super) ignored: Vec<String>,
}

/// Adds the default command to the arguments.
pub(super) fn with_default_command(
    command: &Command,
    arguments: impl IntoIterator<Item = OsString>,
) -> Vec<OsString> {
    let mut arguments: Vec<_> = arguments.into_iter().collect();
    let help = ["-h", "--help", "-V", "--version"];
    let is_flag = |first: &str| first.starts_with('-') && !help.contains(&first);
    let is_known = |first: &str| {
        help.contains(&first) || first == "help" || command.find_subcommand(first).is_some()
    };
    let is_tolerant = is_tolerant(&arguments);
    let serves = arguments.get(1).is_none_or(|first| {
        let first = first.to_str();
        first.is_some_and(is_flag) || (is_tolerant && !first.is_some_and(is_known))
    });
    if serves {
        let after_name = arguments.len().min(1);
        arguments.insert(after_name, "serve".into());
    }
    arguments
}

/// Reads arguments with a command. Unknown ones are an error unless the program was started as
/// `ratelimit`.
pub(super) fn parse(
    command: &mut Command,
    mut arguments: Vec<OsString>,
) -> Result<ParsedArguments, clap::Error> {
    let mut ignored = Vec::new();
    // Each turn removes an argument.
    loop {
        match command.try_get_matches_from_mut(&arguments) {
            Ok(matches) => return Ok(ParsedArguments { matches, ignored }),
            Err(error) => match unknown(&error, &arguments).filter(|_| is_tolerant(&arguments)) {
                None => return Err(error),
                Some(index) => {
                    let argument = arguments.remove(index).to_string_lossy().into_owned();
                    let name = argument.split('=').next();
                    let name = name.filter(|name| name.starts_with('-'));
                    ignored.extend(name.map(str::to_owned));
                }
            },
        }
    }
}

/// Whether unknown arguments are ignored.
fn is_tolerant(arguments: &[OsString]) -> bool {
    let program = arguments.first().map(Path::new);
    program.and_then(Path::file_name) == Some(REFERENCE_NAME.as_ref())
}

/// The index of the argument that an error does not know, after the name of the program and the
/// command.
fn unknown(error: &clap::Error, arguments: &[OsString]) -> Option<usize> {
    let (ErrorKind::UnknownArgument, Some(ContextValue::String(unknown))) =
        (error.kind(), error.get(ContextKind::InvalidArg))
    else {
        return None;
    };
    let is_short = unknown.len() == 2 && unknown.starts_with('-') && unknown != "--";
    let is_it = |argument: &str| {
        let behind = argument.strip_prefix(unknown.as_str());
        // clap reads `-name` as several short flags.
        behind.is_some_and(|behind| behind.is_empty() || behind.starts_with('=') || is_short)
    };
    let found = |&index: &usize| is_it(&arguments[index].to_string_lossy());
    (2..arguments.len()).find(found)
}

/// An error of the arguments as one line, with a remedy.
pub(super) fn message(error: &clap::Error, command: &Command, arguments: &[OsString]) -> String {
    // clap prints the error (missing arguments on lines of their own), an empty line, and the
    // usage.
    let text = error.to_string();
    let lines = text.lines().map(str::trim);
    let lines: Vec<_> = lines.take_while(|line| !line.is_empty()).collect();
    let text = lines.join(" ");
    let text = text.trim_start_matches("error: ");
    let message = settings::name_variables(text, error, command, arguments);
    let suggested = [ContextKind::SuggestedArg, ContextKind::SuggestedSubcommand];
    match suggested.iter().find_map(|kind| error.get(*kind)) {
        Some(ContextValue::String(nearest)) => format!("{message}; did you mean `{nearest}`?"),
        Some(ContextValue::Strings(nearest)) if !nearest.is_empty() => {
            format!("{message}; did you mean `{}`?", nearest.join("` or `"))
        }
        _ => format!("{message}; see `weir --help` and `weir COMMAND --help`"),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::super::Cli;
    use super::*;

    fn arguments(arguments: &[&str]) -> Vec<OsString> {
        with_default_command(&Cli::command(), arguments.iter().map(OsString::from))
    }

    #[test]
    fn serving_is_the_default() {
        assert_eq!(arguments(&["weir"]), ["weir", "serve"]);
        assert_eq!(
            arguments(&["weir", "--port", "0"]),
            ["weir", "serve", "--port", "0"]
        );
        assert_eq!(arguments(&["weir", "--help"]), ["weir", "--help"]);
        assert_eq!(arguments(&["weir", "check", "x"]), ["weir", "check", "x"]);
        assert_eq!(
            arguments(&["weir", "x"]),
            ["weir", "x"],
            "a misspelled command"
        );
        assert_eq!(
            arguments(&["/bin/ratelimit", "x"]),
            ["/bin/ratelimit", "serve", "x"]
        );
        assert_eq!(
            arguments(&["/bin/ratelimit", "check"]),
            ["/bin/ratelimit", "check"]
        );
    }

    #[test]
    fn unknown_arguments_are_ignored_under_the_name_of_the_reference() {
        for (given, ignored, port) in [
            (
                &["--quotaRateLimitServiceAddr=a:1"][..],
                &["--quotaRateLimitServiceAddr"][..],
                8080_u16,
            ),
            (&["--token", "hunter2", "--port", "7"], &["--token"], 7),
            (&["-config_dir", "/data", "--port=7"], &["-config_dir"], 7),
            (
                &["x", "y", "--z", "-", "-v=1", "--port=7"],
                &["--z", "-", "-v"],
                7,
            ),
            (&["serve", "serve"], &[], 8080),
            (&[], &[], 8080),
        ] {
            for (name, is_tolerant) in [
                ("/bin/ratelimit", true),
                ("ratelimit", true),
                ("/bin/ratelimit/weir", false),
                ("weir", given.is_empty()),
            ] {
                let line = arguments(&[&[name], given].concat());
                match parse(&mut Cli::command(), line) {
                    Ok(parsed) => {
                        let (_, matches) = parsed.matches.subcommand().expect("a command");
                        assert_eq!(
                            (parsed.ignored, matches.get_one("port")),
                            (
                                ignored.iter().map(ToString::to_string).collect(),
                                Some(&port)
                            )
                        );
                        assert!(is_tolerant || given.is_empty(), "{name} {given:?}");
                    }
                    Err(error) => assert!(!is_tolerant, "{name} {given:?}: {error}"),
                }
            }
        }
        let wrong = parse(
            &mut Cli::command(),
            arguments(&["ratelimit", "--x", "--port", "none"]),
        );
        assert!(
            wrong.is_err_and(|error| error.to_string().contains("none")),
            "a known argument has to have a good value"
        );
    }
}
