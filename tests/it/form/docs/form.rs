//! The form of the pages: title, introduction, contents; links, anchors and names of files; sizes;
//! metrics and figures that pages repeat.

use std::collections::BTreeSet;
use std::path::Path;

use weir::core::algorithm::OPTIONS;
use weir::observe::metrics::all_families;

use super::pages;
use crate::operators::cli::weir;
use crate::support::tools;

/// The time of a newcomer: three minutes.
const LONGEST_README_BYTES: usize = 12 << 10;
const LONGEST_README_WORDS: usize = 1300;

/// The text that is read at 3 a.m., or before the first change of the code, fits on a sheet or two.
const PAGE_BYTES: usize = 20 << 10;
const ARCHITECTURE_BYTES: usize = 16 << 10;

/// Two pages in which an operator searches by heading.
const OPERATOR_BYTES: usize = 26 << 10;
const OPERATOR: [&str; 2] = ["deploy/runbooks.md", "deploy/support-desk.md"];

/// Pages that are generated from the code, and may be longer.
const LONG: [&str; 3] = [
    "deploy/bounds.md",
    "deploy/metrics.md",
    "deploy/settings.md",
];

/// Pages that the README does not list: itself, and the page that a registry of charts shows.
const UNLISTED: [&str; 2] = ["README.md", "deploy/helm/weir/README.md"];

/// All pages but the changelog, without their generated parts. The number only falls: shorten
/// another page for a section that is added.
const WRITTEN_WORDS: usize = 48_000;

/// The lines of a page outside of its code blocks.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut in_code = false;
    text.lines().filter(move |line| {
        let is_fence = line.starts_with("```");
        in_code ^= is_fence;
        !in_code && !is_fence
    })
}

/// The targets of the links of a page, images included.
fn links(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for line in prose(text) {
        // Every second part is code.
        let plain: String = line.split('`').step_by(2).collect::<Vec<_>>().join("`");
        found.extend(
            plain
                .split("](")
                .skip(1)
                .filter_map(|rest| Some(rest.split_once(')')?.0.to_owned())),
        );
    }
    found
}

/// The anchors of a page's headings, as GitHub makes them.
fn anchors(text: &str) -> Vec<String> {
    let is_kept = |letter: char| letter.is_alphanumeric() || matches!(letter, ' ' | '-' | '_');
    prose(text)
        .filter(|line| line.starts_with('#'))
        .map(|line| line.trim_start_matches('#').trim())
        .map(|heading| {
            heading
                .to_lowercase()
                .chars()
                .filter(|&letter| is_kept(letter))
                .collect::<String>()
                .replace(' ', "-")
        })
        .collect()
}

#[test]
fn every_link_leads_to_a_file_and_to_a_heading() {
    for page in pages() {
        let text = tools::file(&page);
        let folder = Path::new(&page).parent().expect("a folder");
        for link in links(&text).iter().filter(|link| !link.starts_with("http")) {
            let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
            let path = if path.is_empty() {
                Path::new(&page).to_owned()
            } else {
                folder.join(path)
            };
            assert!(
                tools::repository().join(&path).exists(),
                "{page}: there is no {link}"
            );
            if !anchor.is_empty() {
                let target = tools::file(&path.to_string_lossy());
                assert!(
                    anchors(&target).iter().any(|known| known == anchor),
                    "{page}: there is no heading for {link}"
                );
            }
        }
    }
}

/// The page for contributors names files in code, as `src/lib.rs`.
#[test]
fn the_architecture_names_files_that_exist() {
    let page = tools::file("ARCHITECTURE.md");
    let named = page.split('`').skip(1).step_by(2).filter(|code| {
        ["src/", "lua/", "tests/", "benches/", "fuzz/"]
            .iter()
            .any(|folder| code.starts_with(folder))
            && !code.contains("NAME")
    });
    let missing: Vec<_> = named
        .filter(|path| !tools::repository().join(path).exists())
        .collect();
    assert!(missing.is_empty(), "ARCHITECTURE.md names {missing:?}");
}

/// The words of a text, as `wc -w` counts them.
fn words(text: &str) -> usize {
    text.split_ascii_whitespace().count()
}

/// A page without what is between the marks of generated parts.
fn without_generated(text: &str) -> String {
    let mut parts = text.split(": begin -->");
    let first = parts.next().unwrap_or_default();
    let rest = parts.filter_map(|part| Some(part.split_once(": end -->")?.1));
    first.to_owned() + &rest.collect::<String>()
}

#[test]
fn all_pages_together_are_short() {
    let others = ["CHANGELOG.md", "deploy/settings.md"];
    let pages = pages()
        .into_iter()
        .filter(|page| !others.contains(&&**page));
    let count: usize = pages
        .map(|page| words(&without_generated(&tools::file(&page))))
        .sum();
    assert!(
        count <= WRITTEN_WORDS,
        "the pages have {count} words, more than {WRITTEN_WORDS}"
    );
}

/// The README has the one list of pages.
#[test]
fn the_readme_lists_every_page_once() {
    let readme = tools::file("README.md");
    let (_, section) = readme
        .split_once("\n## Documentation\n")
        .expect("the list of pages");
    let tables: Vec<&str> = section
        .lines()
        .filter(|line| line.starts_with('|'))
        .collect();
    let mut listed = links(&tables.join("\n"));
    listed.sort();
    let mut all = pages();
    all.retain(|page| !UNLISTED.contains(&&**page));
    assert_eq!(listed, all, "the list of README.md, and the pages");
}

/// The page of metrics is generated; no other page names a metric that does not exist.
#[test]
fn the_pages_name_metrics_that_exist() {
    let declared: BTreeSet<&str> = all_families().map(|family| family.name).collect();
    for page in pages() {
        let text = tools::file(&page);
        let words = text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
        let is_metric =
            |word: &&str| word.starts_with("weir_") || word.starts_with("ratelimit_service_");
        for name in words.filter(is_metric) {
            // A histogram is asked by its buckets.
            let name = name.trim_end_matches("_bucket");
            assert!(declared.contains(name), "{page}: there is no metric {name}");
        }
    }
}

#[test]
fn pages_are_short() {
    for page in pages().iter().filter(|page| !LONG.contains(&&***page)) {
        let longest = match &**page {
            "README.md" => LONGEST_README_BYTES,
            "ARCHITECTURE.md" => ARCHITECTURE_BYTES,
            page if OPERATOR.contains(&page) => OPERATOR_BYTES,
            _ => PAGE_BYTES,
        };
        let length = tools::file(page).len();
        assert!(
            length <= longest,
            "{page} has {length} bytes, more than {longest}; move something into another page"
        );
    }
}

#[test]
fn the_readme_is_read_in_three_minutes() {
    let count = words(&tools::file("README.md"));
    assert!(
        count <= LONGEST_README_WORDS,
        "README.md has {count} words, more than {LONGEST_README_WORDS}"
    );
}

/// Every option of the algorithms has a section in their page, or a link to its section elsewhere.
#[test]
fn the_page_of_algorithms_has_every_option() {
    let text = tools::file("config/algorithms.md");
    let linked = |name: &str| {
        let mut before = text.split("](");
        before.any(|text| {
            text.rsplit('[')
                .next()
                .is_some_and(|text| text.contains(name))
        })
    };
    let is_missing =
        |name: &&str| !text.contains(&format!("\n### {name}\n")) && !linked(&format!("`{name}`"));
    let missing: Vec<_> = OPTIONS
        .iter()
        .map(|option| option.name)
        .filter(is_missing)
        .collect();
    assert!(
        missing.is_empty(),
        "config/algorithms.md has no section of {missing:?}"
    );
}

/// The pages that describe the flags of a command.
const COMMANDS: [(&[&str], &[&str]); 8] = [
    (
        &["check"],
        &[
            "config/README.md",
            "deploy/limits-in-git.md",
            "deploy/control-plane.md",
            "deploy/settings.md",
        ],
    ),
    (
        &["explain"],
        &[
            "deploy/support-desk.md",
            "config/limits.md",
            "deploy/settings.md",
        ],
    ),
    (&["usage", "count"], &["deploy/support-desk.md"]),
    (
        &[
            "top",
            "unmatched",
            "block",
            "exempt",
            "raise",
            "unblock",
            "unexempt",
            "unraise",
            "overrides",
            "reset",
        ],
        &["deploy/support-desk.md"],
    ),
    (
        &["hit", "load"],
        &["deploy/capacity.md", "deploy/support-desk.md"],
    ),
    (
        &["replay"],
        &[
            "config/replay.md",
            "deploy/capacity.md",
            "deploy/settings.md",
        ],
    ),
    (
        &["envoy"],
        &["deploy/envoy/README.md", "deploy/settings.md"],
    ),
    (
        &["serve", "health", "completions"],
        &["deploy/settings.md", "deploy/listeners.md"],
    ),
];

/// Every flag of every command is on a page of the command.
#[test]
fn the_pages_name_every_flag() {
    let help = |arguments: &[&str]| {
        let output = weir(arguments, &[]);
        String::from_utf8(output.stdout).expect("UTF-8")
    };
    let all = help(&["--help"]);
    let listed = COMMANDS.iter().flat_map(|(commands, _)| *commands).count();
    let lines = all
        .lines()
        .filter(|line| line.starts_with("  ") && !line.contains(" -"));
    assert_eq!(
        lines.count(),
        listed,
        "a command is missing in COMMANDS: {all}"
    );
    let mut missing = Vec::new();
    for (command, pages) in COMMANDS
        .iter()
        .flat_map(|(all, pages)| all.iter().map(move |one| (one, pages)))
    {
        let text: String = pages.iter().map(|page| tools::file(page)).collect();
        let is_letter = |letter: char| letter.is_ascii_alphanumeric() || letter == '-';
        let described: BTreeSet<&str> = text.split(|letter| !is_letter(letter)).collect();
        let help = help(&[command, "--help"]);
        // A line of a flag begins with it, or with its short form.
        let flag = |line: &'_ str| {
            let line = line.trim_start();
            let long = line
                .get(4..)
                .filter(|_| !line.starts_with("--"))
                .unwrap_or(line);
            let end = long.find(|letter| !is_letter(letter)).unwrap_or(long.len());
            long.starts_with("--").then(|| long[..end].to_owned())
        };
        let flags: BTreeSet<String> = help.lines().filter_map(flag).collect();
        assert!(
            flags.len() > 1 || *command == "completions",
            "{command}: {help}"
        );
        let unknown = flags
            .iter()
            .filter(|flag| **flag != "--help" && !described.contains(&***flag));
        missing.extend(unknown.map(|flag| format!("{command} {flag}")));
    }
    assert!(
        missing.is_empty(),
        "no page of the command describes {missing:?}"
    );
}
