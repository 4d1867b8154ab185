//! `weir completions`: scripts with which shells complete commands and flags.

use std::process::ExitCode;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap_complete::aot;

use super::print;

#[derive(Args, Debug)]
#[command(after_help = "Example for bash, in ~/.bashrc: source <(weir completions bash)")]
pub(super) struct Completions {
    /// Print the script for this shell
    #[arg(value_parser = shells())]
    shell: aot::Shell,
}

/// Those with which it was tried.
fn shells() -> impl TypedValueParser<Value = aot::Shell> {
    PossibleValuesParser::new(["bash", "zsh", "fish"]).try_map(|name| name.parse::<aot::Shell>())
}

/// `command` is the declaration of all commands.
pub(super) fn run(
    completions: &Completions,
    mut command: clap::Command,
) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    aot::generate(completions.shell, &mut command, "weir", &mut script);
    print::out(String::from_utf8(script)?)?;
    Ok(ExitCode::SUCCESS)
}
