//! The language of code, help texts and pages: plain technical English, in which a sentence names
//! its actor. This finds the phrases that are never right for programs, requests and values; names
//! of tests count too.

use std::fs;
use std::path::{Path, PathBuf};

use regex::Regex;

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
    "CONTRIBUTING.md",
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

/// Patterns that make sentences hard to read, with the most that comments of the code and pages may
/// have of each. The numbers only fall: rewrite the sentence instead of raising one.
const PATTERNS: [(&str, usize, usize); 9] = [
    (r"^What\b", 1, 5),
    (r"\bso that\b", 5, 0),
    (r"\b(that|those) of\b", 5, 3),
    (r"\b(says?|tells?|said|told)\b", 3, 3),
    (r"\bbehind\b", 3, 3),
    (r"\b(stands?|standing|stood)\b", 1, 1),
    (r"\bat (most|least)(\s*[.,;:)]|$)", 4, 1),
    (r"\bbesides?\b", 2, 4),
    (
        r"\bin (the )?place of\b|\bis none\b|\bcomes? to\b|\blacks?\b",
        7,
        0,
    ),
];

/// The comments of a file of code without its tests, and whether each opens a comment.
fn comments(text: &str) -> Vec<(&str, bool)> {
    let own = text.split("\n#[cfg(test)]").next().unwrap_or(text);
    let comment = |line| {
        let (before, comment): (&str, _) = str::split_once(line, "//")?;
        let is_whole = before.trim().is_empty();
        let is_comment = is_whole || before.ends_with(' ') && comment.starts_with(' ');
        let text = comment.trim_start_matches(['/', '!']).trim();
        is_comment.then_some((text, is_whole))
    };
    let mut was_comment = false;
    let mut found = Vec::new();
    for line in own.lines() {
        let comment = comment(line);
        found.extend(comment.map(|(text, _)| (text, !was_comment)));
        was_comment = comment.is_some_and(|(_, is_whole)| is_whole);
    }
    found
}

/// The lines of a page without its blocks of code.
fn sentences(text: &str) -> Vec<(&str, bool)> {
    let mut is_code = false;
    let is_sentence = |line: &&str| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence
    };
    text.lines()
        .filter(is_sentence)
        .map(|line| (line, true))
        .collect()
}

/// How many of the lines' patterns there are. A pattern that begins with `^` opens a text.
fn count_patterns(lines: &[(&str, bool)], counts: &mut [usize; PATTERNS.len()]) {
    for ((pattern, ..), count) in PATTERNS.iter().zip(counts) {
        let regex = Regex::new(&format!("(?i){pattern}")).expect("a pattern");
        let is_opening = pattern.starts_with('^');
        let lines = lines.iter().filter(|(_, opens)| *opens || !is_opening);
        *count += lines
            .map(|(line, _)| regex.find_iter(line).count())
            .sum::<usize>();
    }
}

#[test]
fn comments_and_pages_have_ever_fewer_of_the_patterns() {
    let mut all = Vec::new();
    for path in CHECKED
        .iter()
        .chain(&["benches/README.md", "tests/README.md"])
    {
        files(&repository().join(path), &mut all);
    }
    all.sort();
    all.dedup();
    let (mut in_code, mut in_pages) = ([0; PATTERNS.len()], [0; PATTERNS.len()]);
    for file in all {
        let name = file
            .strip_prefix(repository())
            .expect("a file of the repository");
        let name = name.to_string_lossy();
        let text = String::from_utf8_lossy(&fs::read(&file).expect("readable")).into_owned();
        let is_test = ["test", "fuzzing", "simulation"]
            .iter()
            .any(|part| name.contains(part));
        if name.starts_with("src/") && name.ends_with(".rs") && !is_test {
            count_patterns(&comments(&text), &mut in_code);
        } else if name.ends_with(".md") && name != "CHANGELOG.md" {
            count_patterns(&sentences(&text), &mut in_pages);
        }
    }
    let counts = in_code.into_iter().zip(in_pages);
    let found = PATTERNS.iter().zip(counts);
    let wrong: Vec<_> = found
        .filter(|((_, code, pages), (in_code, in_pages))| in_code > code || in_pages > pages)
        .collect();
    assert!(
        wrong.is_empty(),
        "more than before, in code and in pages: {wrong:#?}"
    );
    assert!(in_code.iter().sum::<usize>() > 0, "comments are found");
}
