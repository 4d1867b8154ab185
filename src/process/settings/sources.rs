//! The variables of the environment: empty ones, misspelled ones, and those that an error of the
//! arguments is about.
//!
//! clap's own messages name flags: [`name_variables`] replaces those that the user set by a
//! variable. Weir's messages name variables, which `SettingSources::name` replaces.

use std::env;
use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Args, Command};

use super::exporters::MOGRIFIERS;
use super::setting::variable;
use super::{Flags, reference};

/// The message of an error of the arguments. If the user set the setting by a variable, the message
/// names this variable instead of the flag.
pub fn name_variables(
    message: &str,
    error: &clap::Error,
    command: &Command,
    arguments: &[OsString],
) -> String {
    let name = arguments.get(1);
    let subcommand = name.and_then(|name| command.find_subcommand(name));
    let settings = || {
        let arguments = subcommand.into_iter().flat_map(Command::get_arguments);
        arguments.filter(|argument| variable(argument).is_some())
    };
    if error.kind() == ErrorKind::InvalidUtf8 {
        let not_text = settings()
            .filter_map(variable)
            .find(|name| env::var_os(name).is_some_and(|value| value.to_str().is_none()));
        let named = not_text.map(|name| format!("{name}: the value is not UTF-8"));
        return named.unwrap_or_else(|| message.to_owned());
    }
    let (ErrorKind::InvalidValue | ErrorKind::ValueValidation, Some(ContextValue::String(invalid))) =
        (error.kind(), error.get(ContextKind::InvalidArg))
    else {
        return message.to_owned();
    };
    let setting = settings()
        .find(|argument| argument.to_string() == *invalid && !is_written(argument, arguments));
    match setting.and_then(variable) {
        Some(variable) => message.replace(&format!("'{invalid}'"), variable),
        None => message.to_owned(),
    }
}

/// Whether a flag is among the arguments.
fn is_written(argument: &Arg, arguments: &[OsString]) -> bool {
    let mut names = argument.get_all_aliases().unwrap_or_default();
    names.extend(argument.get_long());
    let is_it = |text: &str| {
        let name = text.split('=').next().unwrap_or_default();
        name.strip_prefix("--")
            .is_some_and(|name| names.contains(&name))
    };
    let mut texts = arguments.iter().filter_map(|argument| argument.to_str());
    texts.any(is_it)
}

/// The variables whose empty text is a value, as in envoyproxy/ratelimit: with
/// `RUNTIME_APPDIRECTORY=`, limits are in RUNTIME_SUBDIRECTORY itself.
const EMPTY_IS_A_VALUE: [&str; 1] = ["RUNTIME_APPDIRECTORY"];

/// The command without the variables that are set to an empty text: manifests may have such
/// variables, and their settings then have their defaults.
pub fn without_empty_variables(command: Command) -> Command {
    let is_empty = |name: &str| {
        !EMPTY_IS_A_VALUE.contains(&name) && env::var_os(name).is_some_and(|value| value.is_empty())
    };
    let reset = |argument: Arg| match variable(&argument).is_some_and(is_empty) {
        true => argument.env(None::<&'static str>),
        false => argument,
    };
    command.mut_subcommands(|subcommand| subcommand.mut_args(reset))
}

/// A warning for each variable whose name is nearly the name of a setting. One letter in eight may
/// differ, and none of a short name, because variables of other programs must not cause warnings.
pub(super) fn misspelled(environment: &[(String, String)]) -> Vec<String> {
    let command = Flags::augment_args(Command::new(""));
    let names = command.get_arguments().filter_map(variable);
    let mut known: Vec<String> = names.map(str::to_owned).collect();
    known.extend(reference::names().map(str::to_owned));
    let nearest = |name: &str| {
        let upper = name.to_ascii_uppercase();
        let near = known.iter().filter_map(|known| {
            let most = (known.len() / 8).min(2);
            let is_as_long = known.len().abs_diff(name.len()) <= most;
            let distance = is_as_long.then(|| strsim::damerau_levenshtein(&upper, known))?;
            (distance <= most).then_some((distance, known))
        });
        near.min().map(|(_, known)| known)
    };
    let warning = |(name, value): &(String, String)| {
        let is_other = value.is_empty() || known.contains(name) || name.starts_with(MOGRIFIERS);
        let near = nearest(name).filter(|_| !is_other)?;
        Some(format!(
            "{name} is no setting of Weir and has no effect; write {near}"
        ))
    };
    let mut warnings: Vec<_> = environment.iter().filter_map(warning).collect();
    warnings.sort_unstable();
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::settings::SettingSources;

    #[test]
    fn nearly_right_names_have_a_warning_and_others_none() {
        let warned = |names: &[&str]| {
            let set: Vec<_> = names
                .iter()
                .map(|name| ((*name).to_owned(), "x".to_owned()))
                .collect();
            misspelled(&set)
        };
        for (name, setting) in [
            ("NEAR_LIMIT_RATO", "NEAR_LIMIT_RATIO"),
            ("REDIS_ULR", "REDIS_URL"),
            ("REDIS_PER_SECOND", "REDIS_PERSECOND"),
            ("Backend_Type", "BACKEND_TYPE"),
            ("host", "HOST"),
        ] {
            assert_eq!(
                warned(&[name]),
                [format!(
                    "{name} is no setting of Weir and has no effect; write {setting}"
                )]
            );
        }
        let others = "HOME PATH HOSTNAME USER PORTS REGIONS POD_IP KUBERNETES_PORT REDIS_HOST \
            REDIS_PORT REDIS_PASSWORD REDIS_PORT_6379_TCP REDIS_DB STATSD_SERVICE_HOST LOG_DIR \
            RUNTIME_DIRECTORY STATE_DIRECTORY OTEL_SERVICE_NAME RUST_LOG GRPC_TRACE WEIR_PORT \
            OTEL_EXPORTER_OTLP_METRICS_ENDPOINT DOG_STATSD_MOGRIFIER_A_TAGZ HTTP_PROXY CONFIG_PATH";
        let others: Vec<_> = others.split(' ').collect();
        assert_eq!(warned(&others), Vec::<String>::new());
        assert_eq!(
            misspelled(&[("REDIS_ULR".to_owned(), String::new())]),
            Vec::<String>::new()
        );
    }

    fn command() -> Command {
        Command::new("weir").subcommand(Flags::augment_args(Command::new("serve")))
    }

    /// Each flag renames its own variable, as a whole word, and no other.
    #[test]
    fn every_setting_is_named_as_it_was_given() {
        let settings: Vec<_> = command()
            .get_subcommands()
            .flat_map(Command::get_arguments)
            .cloned()
            .collect();
        let settings: Vec<_> = settings
            .iter()
            .filter_map(|argument| Some((variable(argument)?, argument.get_long()?, argument)))
            .collect();
        assert!(settings.len() > 50, "{}", settings.len());
        for (variable, flag, argument) in &settings {
            let value =
                match argument
                    .get_default_values()
                    .first()
                    .map(|value| value.to_string_lossy().into_owned())
                {
                    Some(default) => default,
                    None => argument
                        .get_value_names()
                        .map_or_else(String::new, |names| match &*names[0] {
                            "BOOL" => "true".to_owned(),
                            several if several.contains('|') => {
                                several.split('|').next().unwrap_or_default().to_owned()
                            }
                            "COUNT" | "SECONDS" | "MILLISECONDS" | "PORT" => "7".to_owned(),
                            "BYTES" => "2097152".to_owned(),
                            "DURATION" => "7s".to_owned(),
                            "MEMORY" => "512Mi".to_owned(),
                            "RATIO" => "0.7".to_owned(),
                            values if values.contains('|') => {
                                values.split('|').next().unwrap_or_default().to_owned()
                            }
                            _ => "text".to_owned(),
                        }),
                };
            let matches =
                command().try_get_matches_from(["weir", "serve", &format!("--{flag}={value}")]);
            let sources = SettingSources::new(
                &command(),
                &matches.unwrap_or_else(|error| panic!("{flag}: {error}")),
            );
            let message = format!(
                "{variable}: wrong, \u{e4}; {variable}_X X{variable} write {variable}=1 or NO_OTHER"
            );
            let named = format!(
                "--{flag}: wrong, \u{e4}; {variable}_X X{variable} write --{flag}=1 or NO_OTHER"
            );
            assert_eq!(sources.name(&message), named);
        }
        let none = command()
            .try_get_matches_from(["weir", "serve"])
            .expect("no arguments");
        assert_eq!(
            SettingSources::new(&command(), &none).name("PORT: 0"),
            "PORT: 0"
        );
    }

    #[test]
    fn a_flag_with_an_invalid_value_is_named_by_itself() {
        for arguments in [
            &["weir", "serve", "--grpc-port", "none"][..],
            &["weir", "serve", "--grpc-port=none"],
        ] {
            let mut command = command();
            let error = command
                .try_get_matches_from_mut(arguments)
                .expect_err("no port");
            let arguments: Vec<_> = arguments.iter().map(OsString::from).collect();
            let message = name_variables(&error.to_string(), &error, &command, &arguments);
            assert!(
                message.contains("'--grpc-port <PORT>'") && !message.contains("GRPC_PORT"),
                "{message}"
            );
            // As if a variable had given it.
            let message = name_variables(&error.to_string(), &error, &command, &arguments[..2]);
            assert!(
                message.contains("invalid value 'none' for GRPC_PORT: "),
                "{message}"
            );
        }
    }
}
