//! The settings that a user has given, by flags or by variables, and the warnings about them. A
//! message names a setting as its user wrote it.

use std::ffi::OsString;

use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command};

/// The variable of a field of flags, which is the field's name in capitals, and a reference to its
/// value.
macro_rules! setting {
    ($flags:ident.$field:ident) => {{
        const FIELD: &str = stringify!($field);
        const VARIABLE: [u8; FIELD.len()] = $crate::process::settings::setting::in_capitals(FIELD);
        (
            str::from_utf8(&VARIABLE).unwrap_or_default(),
            &$flags.$field,
        )
    }};
}
pub(super) use setting;

/// The name of a field in capitals; `N` is its length.
pub(super) const fn in_capitals<const N: usize>(field: &str) -> [u8; N] {
    let mut variable = *field.as_bytes().first_chunk().expect("the length of it");
    variable.make_ascii_uppercase();
    variable
}

/// The variable of an argument, if it is a setting.
pub(super) fn variable(argument: &Arg) -> Option<&str> {
    argument.get_env()?.to_str()
}

/// A setting of a command.
#[derive(Clone, Debug)]
struct Setting {
    variable: String,
    /// The flag, if the user has set it by the flag.
    flag: Option<String>,
    /// Whether it has another value than its default, and not an empty one.
    is_set: bool,
}

/// The settings of a command.
#[derive(Clone, Debug, Default)]
pub struct SettingSources(Vec<Setting>);

impl SettingSources {
    /// The settings of the subcommand in `matches`, which is a subcommand of `command`.
    pub fn new(command: &Command, matches: &ArgMatches) -> Self {
        let found = matches.subcommand();
        let found = found.and_then(|(name, own)| Some((command.find_subcommand(name)?, own)));
        found.map_or_else(Self::default, |(command, own)| Self::of(command, own))
    }

    /// The settings of a command that has read `matches`.
    pub(super) fn of(command: &Command, matches: &ArgMatches) -> Self {
        let setting = |argument: &Arg| {
            let source = matches.value_source(argument.get_id().as_str());
            let flag = argument.get_long();
            let flag = flag.filter(|_| source == Some(ValueSource::CommandLine));
            Some(Setting {
                variable: variable(argument)?.to_owned(),
                flag: flag.map(|flag| format!("--{flag}")),
                is_set: is_set(argument, matches),
            })
        };
        Self(command.get_arguments().filter_map(setting).collect())
    }

    /// The message, with the flag instead of the variable of each setting that the user set by a
    /// flag.
    pub fn name(&self, message: &str) -> String {
        let is_of_name =
            |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_';
        // Characters that are not ASCII are in no name: every cut is between characters.
        let mut named = String::with_capacity(message.len());
        let are_alike = |left: &u8, right: &u8| is_of_name(*left) == is_of_name(*right);
        for words in message.as_bytes().chunk_by(are_alike) {
            let word = String::from_utf8_lossy(words);
            let flag = self.find(&word).and_then(|setting| setting.flag.as_deref());
            named.push_str(flag.unwrap_or(&word));
        }
        named
    }

    /// The names among these, separated by spaces, whose settings are set.
    pub(super) fn set<'n>(&self, names: &'n str) -> Vec<&'n str> {
        let is_set = |name: &&str| {
            let found = self.find(name);
            debug_assert!(found.is_some() || self.0.is_empty(), "{name} is no setting");
            found.is_some_and(|setting| setting.is_set)
        };
        names.split_whitespace().filter(is_set).collect()
    }

    fn find(&self, variable: &str) -> Option<&Setting> {
        self.0.iter().find(|setting| setting.variable == variable)
    }
}

/// Whether a setting has another value than its default, and not an empty one.
fn is_set(argument: &Arg, matches: &ArgMatches) -> bool {
    let id = argument.get_id().as_str();
    let value = match matches.try_get_one(id) {
        // It may be written in several ways.
        Ok(Some(is_on)) => OsString::from(bool::to_string(is_on)),
        _ => matches.get_raw(id).into_iter().flatten().collect(),
    };
    !value.is_empty()
        && argument
            .get_default_values()
            .iter()
            .all(|default| **default != *value)
}

/// Warnings about the settings of a command.
#[derive(Debug, Default)]
pub(super) struct Warnings {
    pub(super) sources: SettingSources,
    pub(super) all: Vec<String>,
}

impl Warnings {
    pub(super) fn push(&mut self, warning: impl Into<String>) {
        self.all.push(warning.into());
    }

    /// Adds one warning about the settings among these names, separated by spaces, that are set.
    pub(super) fn no_effect(&mut self, names: &str, reason: &str) {
        let names = self.sources.set(names);
        self.all.extend(without_effect(&names, reason));
    }
}

/// The warning about settings with these names, if there are any.
pub(super) fn without_effect(names: &[&str], reason: &str) -> Option<String> {
    match names {
        [] => None,
        [name] => Some(format!("{name} has no effect: {reason}")),
        several => Some(format!("{} have no effect: {reason}", several.join(", "))),
    }
}

/// The text of a setting, unless it is empty.
pub(super) fn non_empty(text: Option<&String>) -> Option<&str> {
    text.map(String::as_str).filter(|text| !text.is_empty())
}

/// The parts of a list with commas.
pub(super) fn list(text: &str) -> impl Iterator<Item = &str> {
    text.split(',')
        .map(str::trim)
        .filter(|part| !part.is_empty())
}

/// Reads flags, and the warnings that begin with them. The machine's environment must have none of
/// their variables.
#[cfg(test)]
pub(super) fn read<F: clap::Args + clap::FromArgMatches>(
    arguments: &[&str],
) -> Result<(F, Warnings), clap::Error> {
    let mut command = F::augment_args(Command::new("weir"));
    let matches = command.try_get_matches_from_mut([&["weir"], arguments].concat())?;
    let sources = SettingSources::of(&command, &matches);
    let warnings = Warnings {
        sources,
        all: Vec::new(),
    };
    Ok((F::from_arg_matches(&matches)?, warnings))
}
