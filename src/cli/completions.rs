//! `weir completions`: scripts with which shells complete commands and flags.

use std::process::ExitCode;

use clap::Args;
use clap_complete::aot;

use super::print;

#[derive(Args, Debug)]
#[command(after_help = "Example for bash, in ~/.bashrc: source <(weir completions bash)")]
pub(super) struct Completions {
    /// The shell that reads the script
    shell: Shell,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Shell {
    Bash,
    Zsh,
    Fish,
}

/// `command` is the declaration of all commands.
pub(super) fn run(
    completions: &Completions,
    mut command: clap::Command,
) -> anyhow::Result<ExitCode> {
    let shell = match completions.shell {
        Shell::Bash => aot::Shell::Bash,
        Shell::Zsh => aot::Shell::Zsh,
        Shell::Fish => aot::Shell::Fish,
    };
    let mut script = Vec::new();
    aot::generate(shell, &mut command, "weir", &mut script);
    print::out(String::from_utf8(script)?)?;
    Ok(ExitCode::SUCCESS)
}
