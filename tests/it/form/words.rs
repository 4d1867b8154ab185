//! The language of code, help texts and pages: plain technical English, in which a sentence names
//! its actor. This finds the phrases that are never right for programs, requests and values; names
//! of tests count too.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Phrases that name no actor, or take a program for a person.
const PHRASES: &[&str] = &[
    "nobody",
    "somebody",
    "anybody",
    "everybody",
    "whoever",
    "whomever",
    "it is said",
    "is told",
    "are told",
    "was told",
    "be told",
    "who asks",
    "who comes",
    "who leaves",
    "who left",
    "who waits",
    "has a place",
    "have a place",
    "no place",
    "let go",
    "speaks of",
    "tells of",
    "to be had",
    "not worth a line",
];

/// Folders and files whose text is checked.
const CHECKED: &[&str] = &[
    "src",
    "tests",
    "benches",
    "lua",
    "config",
    "deploy",
    "fuzz/Cargo.toml",
    "fuzz/fuzz_targets",
    "README.md",
    "CHANGELOG.md",
    "RELEASING.md",
    ".github",
    "ARCHITECTURE.md",
    "SECURITY.md",
    "Cargo.toml",
    ".clippy.toml",
    "build.rs",
];

/// Kinds of files that people read.
const EXTENSIONS: &[&str] = &[
    "rs", "md", "lua", "yaml", "yml", "sh", "toml", "py", "js", "css", "html",
];

/// This file holds the phrases.
const EXEMPT: &str = "tests/it/form/words.rs";

/// The phrases in one line. An underscore of a name counts as a space.
fn found_in(line: &str) -> Vec<&'static str> {
    let line = line.to_lowercase().replace('_', " ");
    let is_whole = |(at, phrase): (usize, &str)| {
        let is_letter = |c: Option<char>| c.is_some_and(char::is_alphanumeric);
        !is_letter(line[..at].chars().next_back())
            && !is_letter(line[at + phrase.len()..].chars().next())
    };
    PHRASES
        .iter()
        .copied()
        .filter(|phrase| line.match_indices(phrase).any(is_whole))
        .collect()
}

fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn files(path: &Path, found: &mut Vec<PathBuf>) {
    if path.is_dir() {
        for entry in fs::read_dir(path).expect("a folder") {
            files(&entry.expect("an entry").path(), found);
        }
    } else if path
        .extension()
        .is_some_and(|extension| EXTENSIONS.iter().any(|known| extension == *known))
    {
        found.push(path.to_owned());
    }
}

#[test]
fn files_have_none_of_the_phrases() {
    let mut all = Vec::new();
    for path in CHECKED {
        files(&repository().join(path), &mut all);
    }
    assert!(all.len() > 200, "the files are found: {}", all.len());
    let mut wrong = Vec::new();
    for file in all {
        let name = file
            .strip_prefix(repository())
            .expect("a file of the repository")
            .to_string_lossy()
            .into_owned();
        let text = String::from_utf8_lossy(&fs::read(&file).expect("readable")).into_owned();
        for (line, number) in text.lines().zip(1..).filter(|_| name != EXEMPT) {
            for phrase in found_in(line) {
                wrong.push(format!("{name}:{number}: {phrase:?}: {}", line.trim()));
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "{} phrases without an actor:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

fn help(command: &[&str], flag: &str) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_weir"))
        .args(command)
        .arg(flag)
        .env_clear()
        .output()
        .expect("the binary runs");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    assert!(
        output.status.success() && text.contains("Usage:"),
        "{command:?}: {text}"
    );
    text
}

/// Both helps of a command, and of all commands below it. Returns their number.
fn walk(command: &[&str], wrong: &mut Vec<String>) -> usize {
    let text = help(command, "--help");
    let both = text.clone() + &help(command, "-h");
    let found = both.lines().filter(|line| !found_in(line).is_empty());
    wrong.extend(found.map(|line| format!("{command:?}: {line}")));
    let (_, listed) = text.split_once("\nUsage:").expect("a usage");
    let listed = listed.split("\nOptions:\n").next().unwrap_or_default();
    let name = |line: &str| {
        let rest = line.strip_prefix("  ")?;
        let is_name = rest.starts_with(|letter: char| letter.is_ascii_lowercase());
        rest.split(' ')
            .next()
            .filter(|_| is_name)
            .map(str::to_owned)
    };
    let below = listed.lines().filter_map(name);
    below
        .filter(|name| *name != "help")
        .map(|name| walk(&[command, &[&*name]].concat(), wrong))
        .sum::<usize>()
        + 1
}

#[test]
fn help_texts_have_none_of_the_phrases() {
    let mut wrong = Vec::new();
    let commands = walk(&[], &mut wrong);
    assert!(commands > 15, "the commands are found: {commands}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn planted_phrases_are_found() {
    for (line, phrases) in [
        ("/// Nobody knows.", &["nobody"][..]),
        ("fn the_client_is_told_why() {}", &["is told"]),
        (
            "Whoever waits is told, and is let go.",
            &["whoever", "is told", "let go"],
        ),
        ("# there is no place", &["no place"]),
        ("The anybodys are no placebo; is toldest", &[]),
        ("Weir closes the connection after 30 s.", &[]),
    ] {
        assert_eq!(
            found_in(line),
            PHRASES
                .iter()
                .filter(|phrase| phrases.contains(phrase))
                .copied()
                .collect::<Vec<_>>(),
            "{line}"
        );
    }
}
