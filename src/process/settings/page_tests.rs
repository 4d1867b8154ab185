//! `deploy/settings.md`: the reference of all settings, generated from the flags and compared with
//! the file.
//!
//! `WEIR_WRITE=1 cargo test --lib settings::page_tests` writes the file anew.

use std::any::TypeId;
use std::fmt::Write;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Arg, Args, Command};

use super::reference;
use super::*;
use crate::limits::rules::limit::OnStoreFailure;

const INTRODUCTION: &str = "\
# Settings

All settings of `weir serve`. Give a setting as a flag, as in `weir serve --grpc-port 9081`, or as
an environment variable, as in `GRPC_PORT=9081 weir serve`. A flag overrides its variable, and a
variable overrides the default. Weir reads settings once, at its start. An empty variable counts as
not set, with one exception, as in envoyproxy/ratelimit: with `RUNTIME_APPDIRECTORY=`, limits are in
RUNTIME_ROOT/RUNTIME_SUBDIRECTORY itself. `weir check` reads the same variables, and rejects the
same values.

This page is generated from the flags; `weir serve --help` shows the same. After a change of a flag,
`WEIR_WRITE=1 cargo test --lib settings::page_tests` writes it anew.
";

/// Value names: what the page calls the type, and what may be written.
const TYPES: &[(&str, &str, &str)] = &[
    (
        "ADDRESS",
        "address",
        "an IP address, or a name of this machine",
    ),
    (
        "BOOL",
        "boolean",
        "`true` or `false`, also `1`, `0`, `t` and `f`; a flag without a value is `true`",
    ),
    ("BYTES", "bytes", "a whole number of bytes"),
    ("COUNT", "count", "a whole number"),
    (
        "DURATION",
        "duration",
        "numbers with a unit (`ns`, `us`, `ms`, `s`, `m`, `h`), such as `250ms` or `1m30s`; or `0`",
    ),
    (
        "ENDPOINT",
        "endpoint",
        "a URL that begins with `http://` or `https://`",
    ),
    ("HEADER", "header name", "the name of an HTTP header"),
    (
        "HOST:PORT",
        "host and port",
        "a host name or an IP address (IPv6 in brackets) and a port, such as `envoy-gateway:18001`",
    ),
    ("HOST", "host", "an IP address or a name"),
    ("[HOST]:PORT", "address and port", "`host:port`, or `:port`"),
    (
        "LEVEL",
        "log level",
        "a level, or targets with levels, such as `info,weir=debug`",
    ),
    ("MEMORY", "memory", "bytes, also as `512Mi` or `1Gi`"),
    (
        "MILLISECONDS",
        "milliseconds",
        "a whole number of milliseconds",
    ),
    ("MODE", "permissions", "octal digits, `0` to `0777`"),
    ("PASSWORD", "password", "a secret; Weir never shows it"),
    ("PATH", "path", "the path of a file or folder"),
    (
        "PERCENT",
        "percentage",
        "a percentage above `0%`, such as `40%` or `33.3%`; at most `100%`",
    ),
    ("PORT", "port", "0 to 65535"),
    (
        "RATIO",
        "ratio",
        "a number that is not negative, such as `0.8`",
    ),
    ("SECONDS", "seconds", "a whole number of seconds"),
    ("SECRET", "secret", "any text; Weir never shows it"),
    ("TEXT", "text", "any text"),
    ("URL", "URL", "addresses of Redis; see `REDIS_URL`"),
];

/// The flags in the order of `--help`, under their headings.
fn flags() -> Vec<(String, Vec<Arg>)> {
    let command = Flags::augment_args(Command::new("weir"));
    let mut headings: Vec<(String, Vec<Arg>)> = Vec::new();
    for argument in command.get_arguments() {
        let heading = argument
            .get_help_heading()
            .expect("every flag has a heading");
        match headings.iter_mut().find(|(known, _)| known == heading) {
            Some((_, arguments)) => arguments.push(argument.clone()),
            None => headings.push((heading.to_owned(), vec![argument.clone()])),
        }
    }
    headings
}

fn value_name(argument: &Arg) -> &str {
    argument
        .get_value_names()
        .and_then(|names| names.first())
        .map_or("", clap::builder::Str::as_str)
}

fn variable(argument: &Arg) -> Option<&str> {
    argument.get_env()?.to_str()
}

/// The name of the type, or the values that may be written.
fn type_of(argument: &Arg) -> String {
    let name = value_name(argument);
    if name.contains('|') {
        return name
            .split('|')
            .map(|value| format!("`{value}`"))
            .collect::<Vec<_>>()
            .join(", ");
    }
    let known = TYPES.iter().find(|(value_name, ..)| *value_name == name);
    known
        .unwrap_or_else(|| {
            panic!(
                "--{}: the value name {name:?} is not in TYPES",
                argument.get_id()
            )
        })
        .1
        .to_owned()
}

/// The meaning, as sentences, and the default.
fn meaning_and_default(argument: &Arg) -> (String, String) {
    let help = argument
        .get_long_help()
        .or_else(|| argument.get_help())
        .expect("every flag has a help text")
        .to_string();
    let (help, computed) = match help.split_once(" [default: ") {
        Some((before, rest)) => {
            let (default, after) = rest.split_once(']').expect("a default ends");
            (format!("{before}{after}"), Some(default.to_owned()))
        }
        None => (help, None),
    };
    let sentence = |text: &str| {
        if text.ends_with(['.', ':']) {
            text.to_owned()
        } else {
            format!("{text}.")
        }
    };
    let meaning: Vec<_> = help
        .split("\n\n")
        .map(|paragraph| sentence(paragraph.trim()))
        .collect();
    let default = match argument.get_default_values() {
        [] => computed.unwrap_or_else(|| "not set".to_owned()),
        [default] if default.is_empty() => "empty".to_owned(),
        [default] => format!("`{}`", default.to_string_lossy()),
        several => panic!("--{}: {several:?}", argument.get_id()),
    };
    (meaning.join(" ").replace('|', "\\|"), default)
}

fn anchor(heading: &str) -> String {
    heading
        .to_lowercase()
        .chars()
        .filter_map(|c| {
            if c == ' ' {
                Some('-')
            } else {
                Some(c).filter(|c| c.is_alphanumeric())
            }
        })
        .collect()
}

const REFERENCE_HEADINGS: [&str; 2] =
    ["Variables with another default", "Variables without effect"];

fn page() -> String {
    let mut page = INTRODUCTION.to_owned();
    let headings = flags();
    page.push_str("\n## Contents\n\n- [Types](#types)\n");
    for (heading, _) in &headings {
        let _ = writeln!(page, "- [{heading}](#{})", anchor(heading));
    }
    page.push_str("- [Variables of envoyproxy/ratelimit](#variables-of-envoyproxyratelimit)\n");
    for heading in REFERENCE_HEADINGS {
        let _ = writeln!(page, "  - [{heading}](#{})", anchor(heading));
    }
    page.push_str("\n## Types\n\n| type | values |\n|---|---|\n");
    for (_, name, values) in TYPES {
        let _ = writeln!(page, "| {name} | {values} |");
    }
    for (heading, arguments) in &headings {
        let _ = write!(
            page,
            "\n## {heading}\n\n| flag | variable | type | default | meaning \
             |\n|---|---|---|---|---|\n"
        );
        for argument in arguments {
            let (meaning, default) = meaning_and_default(argument);
            let names = std::iter::once(argument.get_long().expect("a long name"))
                .chain(argument.get_all_aliases().unwrap_or_default());
            let names = names
                .map(|name| format!("`--{name}`"))
                .collect::<Vec<_>>()
                .join(", ");
            let variable =
                variable(argument).map_or_else(|| "none".to_owned(), |name| format!("`{name}`"));
            let _ = writeln!(
                page,
                "| {names} | {variable} | {} | {default} | {meaning} |",
                type_of(argument)
            );
        }
    }
    reference_tables(&headings, &mut page);
    page
}

fn reference_tables(headings: &[(String, Vec<Arg>)], page: &mut String) {
    let [other_default, no_effect] = REFERENCE_HEADINGS;
    page.push_str(
        "\n## Variables of envoyproxy/ratelimit\n\nA variable of envoyproxy/ratelimit that is \
         above means the same here. Others have no effect.\n",
    );
    let _ = write!(
        page,
        "\n### {other_default}\n\n| variable | default there | default here |\n|---|---|---|\n"
    );
    let code = |text: &str| {
        if text.is_empty() {
            "empty".to_owned()
        } else {
            format!("`{text}`")
        }
    };
    for (name, default) in reference::variables() {
        let Some(argument) = headings
            .iter()
            .flat_map(|(_, arguments)| arguments)
            .find(|argument| variable(argument) == Some(name))
        else {
            continue;
        };
        let (_, ours) = meaning_and_default(argument);
        let same = ours.trim_matches('`').eq_ignore_ascii_case(default)
            || (default.is_empty() && ["empty", "not set"].contains(&&*ours));
        if !same {
            let _ = writeln!(page, "| `{name}` | {} | {ours} |", code(default));
        }
    }
    let introduction = "A variable with one of the values in brackets, or empty, is ignored. \
        Another value is a warning in the log.";
    let _ = write!(
        page,
        "\n### {no_effect}\n\n{introduction}\n\n| variables | reason |\n|---|---|\n"
    );
    for (reason, settings) in reference::NOT_ACTED_ON {
        let names = settings.iter().map(|(name, harmless)| match harmless {
            [] => format!("`{name}`"),
            harmless => format!("`{name}` (`{}`)", harmless.join("`, `")),
        });
        let _ = writeln!(
            page,
            "| {} | {reason} |",
            names.collect::<Vec<_>>().join(", ")
        );
    }
}

#[test]
fn the_page_of_settings_is_what_the_flags_say() {
    crate::testing::assert_written(
        "deploy/settings.md",
        None,
        &page(),
        "--lib settings::page_tests",
    );
}

/// A value name is a promise about what the parser takes.
#[test]
fn value_names_are_those_of_the_parsers() {
    for argument in flags().into_iter().flat_map(|(_, arguments)| arguments) {
        let parsed = argument.get_value_parser().type_id();
        let name = value_name(&argument).to_owned();
        for (value_name, type_id) in [
            ("BOOL", TypeId::of::<bool>()),
            ("DURATION", TypeId::of::<Duration>()),
            ("PORT", TypeId::of::<u16>()),
            ("RATIO", TypeId::of::<f32>()),
            ("error|allow|deny|local", TypeId::of::<OnStoreFailure>()),
        ] {
            assert_eq!(
                parsed == type_id,
                name == value_name,
                "--{}: {name}",
                argument.get_id()
            );
        }
        let is_text = parsed == TypeId::of::<String>() || parsed == TypeId::of::<PathBuf>();
        let is_number = ["COUNT", "BYTES", "SECONDS", "PORT", "RATIO"].contains(&&*name);
        assert!(!(is_text && is_number), "--{}: {name}", argument.get_id());
    }
}

/// A help text begins with one short sentence, which is all that `-h` shows.
#[test]
fn help_texts_begin_with_a_short_sentence() {
    for argument in flags().into_iter().flat_map(|(_, arguments)| arguments) {
        let help = argument.get_help().expect("a help text").to_string();
        let first = help.split(" [default: ").next().unwrap_or_default();
        assert!(first.len() <= 110, "--{}: {first}", argument.get_id());
        assert!(
            first.chars().next().is_some_and(char::is_uppercase),
            "--{}: {first}",
            argument.get_id()
        );
    }
}
