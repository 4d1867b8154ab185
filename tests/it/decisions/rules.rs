//! Configuration and matching, as tables in `tests/vectors`, and as properties over random input.
//!
//! `config/NAME.yaml` stands beside `NAME.expect`; a case of several files is a folder with a file
//! `expect`. An expectation holds the options in its first line where there are any, then place,
//! severity and code of each problem, then, when the files can be used, one line per limit. The
//! sentences of all codes are in `config/messages.txt`.
//! `matching/NAME.yaml` stands beside `NAME.table`, whose lines are
//! `key=value, key=value -> path of the limit, or none`.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt::Write as _;
use std::fs;
use std::mem::discriminant;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use proptest::prelude::*;
use weir::core::algorithm::{Algorithm, AlgorithmKind};
use weir::core::request::Entry;
use weir::core::time::{Period, Span, Tick};
use weir::core::usage::{Settings, Tracking};
use weir::limits::rules::compile::{
    Compiled, Options, Overlay, Problem, ProcessDefaults, ReadOverlay, SourceText, codes, compile,
};
use weir::limits::rules::limit::{Amount, Limit, LimitId, LimitInForce, OnStoreFailure, Scale};
use weir::limits::rules::{Commit, Rules};

use self::resources::{Branch, trees};
use super::scenarios::line::bytes;

mod bombs;
mod resources;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn files_of(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let entries =
        fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<_> = entries
        .map(|entry| entry.expect("readable").path())
        .collect();
    paths.retain(|path| path.extension().is_some_and(|found| found == extension));
    paths.sort();
    paths
}

fn source(path: &Path) -> SourceText {
    let name = path
        .file_name()
        .expect("a file")
        .to_string_lossy()
        .into_owned();
    SourceText {
        name,
        text: fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display())),
    }
}

fn text(name: &str, text: &str) -> SourceText {
    SourceText {
        name: name.into(),
        text: text.into(),
    }
}

fn rules_of(yaml: &str) -> Rules {
    let compiled = compile(&[text("rules.yaml", yaml)], &Options::default());
    compiled
        .unwrap_or_else(|problems| panic!("{}\n{yaml}", problems[0]))
        .rules
}

/// What is not a window of even length.
fn show_period(period: Period, window: Span) -> String {
    match period {
        Period::Even(even) => {
            assert_eq!(even, window);
            String::new()
        }
        Period::Months(months) => format!(", calendar months: {months}"),
        Period::Calendar(calendar) => {
            let (week, anchor) = (calendar.week_starts(), calendar.anchor());
            let mut text = format!(", calendar of {}", calendar.zone());
            text.extend(week.map(|day| format!(", weeks from {day}")));
            text.extend(anchor.map(|anchor| format!(", anchor {anchor}")));
            text
        }
    }
}

/// The algorithm with its numbers, as far as they are not those of a limit that says nothing;
/// durations in milliseconds.
fn show_algorithm(amount: &Amount) -> String {
    if let Algorithm::Concurrency(it) = amount.algorithm {
        assert_eq!(it.limit, amount.rate.requests_per_unit);
        return format!(
            ", concurrency with max_duration {} ms",
            it.max_duration / 1_000
        );
    }
    let window = amount.rate.window().expect("a compiled rate");
    let hits = amount.scale.hits(amount.rate.requests_per_unit);
    let ms =
        |tick: Tick, ticks: u64| format!("{} ms", ticks as f64 * tick.micros() as f64 / 1_000.0);
    let (mut line, rate, (limit, of_window), debt) = match amount.algorithm {
        Algorithm::FixedWindow(it) => {
            let denied = (!it.count_denied).then_some(", denied hits are not counted");
            let months = show_period(it.window, window);
            assert_eq!(it.limit, hits);
            return denied.unwrap_or_default().to_owned() + &months;
        }
        Algorithm::SlidingWindowLog(it) => (
            ", sliding_window_log".to_owned(),
            Tick::FINEST,
            (it.limit, it.window),
            it.debt,
        ),
        Algorithm::SlidingWindowCounter(it) => (
            ", sliding_window_counter".to_owned(),
            it.tick,
            (it.limit, it.window),
            it.debt,
        ),
        Algorithm::SlidingWindowBuckets(it) => {
            let (interval, expiry) = (ms(Tick::FINEST, it.interval), ms(Tick::FINEST, it.expiry));
            let line = format!(
                ", sliding_window_buckets of {interval} x {}, expiry {expiry}",
                it.buckets
            );
            (line, Tick::FINEST, (it.limit, it.window), it.debt)
        }
        Algorithm::TokenBucket(it) => (
            format!(", token_bucket with burst {}", it.burst),
            it.tick,
            (it.flow.limit, it.flow.window),
            it.debt,
        ),
        Algorithm::LeakyBucket(it) => (
            format!(
                ", leaky_bucket with max_delay {}",
                ms(it.tick, it.max_delay)
            ),
            it.tick,
            (it.flow.limit, it.flow.window),
            it.debt,
        ),
        Algorithm::Concurrency(_) => unreachable!("it returned"),
    };
    assert_eq!(limit, hits);
    assert_eq!(
        of_window,
        window.micros().div_ceil(rate.micros()),
        "the window in ticks"
    );
    line += if debt.counts() {
        ", denied hits are counted"
    } else {
        ""
    };
    if debt.limits() != 1 {
        write!(line, " up to {} full limits", debt.limits()).expect("a string");
    }
    line
}

fn show_amount(amount: &Amount) -> String {
    let rate = amount.rate;
    let mut line = match rate.unit_multiplier {
        _ if rate.unit == weir::core::time::Unit::None => rate.to_string(),
        1 => format!("{} per {}", rate.requests_per_unit, rate.unit.name()),
        many => format!(
            "{} per {many} {}s",
            rate.requests_per_unit,
            rate.unit.name()
        ),
    };
    line.extend(
        Some(amount.scale)
            .filter(|scale| *scale != Scale::ONE)
            .map(|scale| format!(", in units of {scale} hits")),
    );
    line += if amount.lease { ", lease" } else { "" };
    for threshold in amount.notify.each() {
        write!(line, ", notify at {threshold}").expect("a string");
    }
    line += &show_algorithm(amount);
    line.extend(
        amount
            .default_cost
            .map(|cost| format!(", {cost} hits by default")),
    );
    line
}

fn show_usage(usage: Option<&Arc<Tracking>>) -> String {
    let Some(tracking) = usage else {
        return String::new();
    };
    let Settings {
        interval,
        buckets,
        expiry,
        subjects,
    } = tracking.settings;
    format!(", usage in {buckets} buckets of {interval}, expiry {expiry}, {subjects} subjects")
}

/// A limit on one line, with everything that it says.
fn show(limit: &Limit) -> String {
    let mut line = format!("limit {}: ", limit.path());
    let none = if limit.is_by_rows {
        "by its rows"
    } else {
        "unlimited"
    };
    line += &limit
        .amount
        .map_or_else(|| none.to_owned(), |amount| show_amount(&amount));
    line.extend(limit.trial.as_ref().map(|trial| {
        format!(
            ", tries [{}{}]",
            show_amount(&trial.amount),
            show_usage(trial.usage.as_ref())
        )
    }));
    let policy = limit.on_store_failure.and_then(|policy| {
        OnStoreFailure::NAMED
            .into_iter()
            .find(|&(_, named)| named == policy)
    });
    line.extend(policy.map(|(name, _)| format!(", on store failure {name}")));
    line += &show_usage(limit.usage.as_ref());
    let flags = [
        ("shadow", limit.shadow_mode),
        ("quota", limit.quota_mode),
        ("detailed", limit.detailed_metric),
    ];
    line.extend(
        flags
            .iter()
            .filter(|(_, set)| *set)
            .map(|(flag, _)| format!(", {flag}")),
    );
    for level in &limit.levels {
        let flags = [
            ("shared", level.is_shared),
            ("value to metric", level.value_to_metric),
        ];
        line.extend(
            flags
                .iter()
                .filter(|(_, set)| *set)
                .map(|(flag, _)| format!(", {}: {flag}", level.key)),
        );
    }
    line.extend(limit.name.iter().map(|name| format!(", name '{name}'")));
    line.extend(limit.plan.iter().map(|plan| format!(", plan '{plan}'")));
    line.extend(
        limit
            .table
            .iter()
            .map(|table| format!(", {} of {} rows", table.rows_of(limit.id), table.rows.len())),
    );
    line.extend(
        limit
            .replaces
            .iter()
            .map(|name| format!(", replaces '{name}'")),
    );
    line.extend(limit.metadata.iter().map(|metadata| {
        format!(
            ", metadata {}",
            serde_json::to_string(metadata).expect("JSON")
        )
    }));
    line
}

/// The rows of the tables of a limit, each on one line.
fn rows(rules: &Rules, limit: &Limit) -> Vec<String> {
    let Some(table) = limit.own_table() else {
        return Vec::new();
    };
    let row = |row| {
        let meaning = table.rows.meaning(row).expect("a row of the table");
        let of_row = rules.limit(LimitId::new(limit.id.domain, meaning.limit));
        let in_force = LimitInForce {
            limit: of_row,
            row: Some(row),
        };
        let shown = Limit {
            amount: in_force.amount().copied(),
            is_by_rows: false,
            name: in_force.name().map(Into::into),
            shadow_mode: in_force.shadow_mode(),
            on_store_failure: in_force.on_store_failure(),
            table: None,
            ..of_row.clone()
        };
        let value = String::from_utf8_lossy(table.rows.value(row)).into_owned();
        format!(
            "  {} '{value}': {}",
            in_force.row_origin().expect("a row"),
            show(&shown)
        )
    };
    table.rows.rows().map(row).collect()
}

/// The problems of files, and what becomes of them.
fn outcome(files: &[SourceText], options: &Options) -> (Vec<Problem>, Vec<String>) {
    match compile(files, options) {
        Ok(Compiled { rules, warnings }) if rules.limit_count() == 0 => {
            (warnings, vec!["no limits".to_owned()])
        }
        Ok(Compiled { rules, warnings }) => {
            let mut domains: Vec<_> = rules
                .domains()
                .filter(|domain| rules.commit(domain) == Some(Commit::AllOrNone))
                .collect();
            domains.sort_unstable();
            let commits = domains
                .into_iter()
                .map(|domain| format!("domain {}: all or none", String::from_utf8_lossy(domain)));
            let limits = rules
                .limits()
                .flat_map(|limit| [show(limit)].into_iter().chain(rows(&rules, limit)));
            (warnings, commits.chain(limits).collect())
        }
        Err(problems) => (problems, vec!["refused".to_owned()]),
    }
}

/// The problems of an overlay, and what becomes of it.
fn outcome_of_overlay(file: &SourceText, options: &Options) -> (Vec<Problem>, Vec<String>) {
    match Overlay::read(file.clone(), options) {
        Ok(ReadOverlay { overlay, warnings }) => {
            let entries = format!("an overlay of {} entries", overlay.entries());
            (warnings, vec![entries])
        }
        Err(problems) => (problems, vec!["refused".to_owned()]),
    }
}

/// Place, severity and code of a problem.
fn show_problem(problem: &Problem) -> String {
    let at = match problem.line {
        0 => problem.file.clone(),
        line => format!("{}:{line}:{}", problem.file, problem.column),
    };
    format!(
        "{at}: {}: {}",
        problem.severity.name(),
        problem.message.code
    )
}

/// The severities and sentences of each code.
#[derive(Default)]
struct Messages(BTreeMap<String, (BTreeSet<&'static str>, Vec<String>)>);

impl Messages {
    fn add(&mut self, problem: &Problem) {
        let (severities, sentences) = self.0.entry(problem.message.code.to_string()).or_default();
        severities.insert(problem.severity.name());
        let sentence = problem.message.to_string();
        if !sentences.iter().any(|known| form(known) == form(&sentence)) {
            sentences.push(sentence);
        }
    }

    /// As in the golden list.
    fn show(&self) -> String {
        let code = |(code, (severities, sentences)): (&String, &(BTreeSet<_>, Vec<String>))| {
            let severities: Vec<_> = severities.iter().copied().collect();
            let sentences = sentences.join("\n  ");
            format!("{code}: {}\n  {sentences}\n", severities.join(" or "))
        };
        self.0.iter().map(code).collect()
    }
}

/// A sentence without texts in quotes, numbers and places, which depend on the file.
fn form(sentence: &str) -> Vec<&str> {
    let parts = sentence.split('\'').step_by(2);
    let words = parts.flat_map(str::split_whitespace);
    words
        .filter(|word| !word.contains(|c: char| c.is_ascii_digit()))
        .collect()
}

/// Codes that no vector has, after the reason.
const WITHOUT_VECTOR: &[(&str, &str)] = &[
    (
        "bounds of large files: rules/bombs.rs and src/fuzzing/bounds_tests.rs",
        "all-regexes-too-large cell-too-long file-too-large paths-too-long regex-too-long \
         regexes-too-large table-is-full too-many-aliases too-many-brackets too-many-entries \
         too-many-nodes too-many-plans too-many-regexes too-many-rows too-many-values \
         too-much-memory value-too-long",
    ),
    (
        "resources of a control plane: src/limits/rules/domains/tests.rs",
        "concurrency-by-default metadata-too-deep multiplier-left-out options-in-metadata \
         repeated-resource resource-without-domain second-limit too-many-levels \
         unlimited-with-options unusable-resource unused-entry",
    ),
    (
        "the defaults of a setting: src/limits/rules/domains/tests.rs",
        "brace-without-other key-without-value",
    ),
    (
        "the folder and arguments of a command: src/live/files/scan.rs and src/cli/check.rs",
        "changing-files file-above-maximum files-above-maximum folders-too-deep \
         link-out-of-folder link-to-folder-above link-without-target no-files \
         not-a-folder-or-file overlay-of-many-files path-and-revision pipe-too-large several-files \
         table-above-maximum tables-above-maximum too-many-files unreadable-file \
         unreadable-revision",
    ),
    (
        "sources of `weir envoy`: src/cli/envoy/tests.rs and src/limits/rules/compile/outline.rs",
        "fixed-value-of-any key-of-pair-not-text key-without-source match-of-any-value \
         match-of-condition match-of-each-value match-of-pattern match-of-two-patterns \
         mixed-reservations no-pairs source-not-text source-of-http source-of-key-pattern \
         source-of-other-key source-of-tcp too-many-descriptors two-sources unsent-value \
         unusable-source unused-source unused-source-value",
    ),
    (
        "the compiler checks the window first",
        "window-out-of-range",
    ),
];

fn word_behind<'w>(words: &'w str, name: &str) -> Option<&'w str> {
    let mut words = words.split_whitespace();
    words.find_map(|word| word.strip_prefix(name))
}

#[test]
fn every_file_of_the_config_vectors_gives_what_is_expected() {
    let folder = root().join("tests/vectors/config");
    let mut cases: Vec<(Vec<PathBuf>, PathBuf)> = files_of(&folder, "yaml")
        .into_iter()
        .map(|path| (vec![path.clone()], path.with_extension("expect")))
        .collect();
    for entry in fs::read_dir(&folder).expect("the vectors") {
        let path = entry.expect("readable").path();
        if path.is_dir() {
            let files = ["yaml", "txt", "csv"]
                .map(|ending| files_of(&path, ending))
                .concat();
            cases.push((files, path.join("expect")));
        }
    }
    assert!(cases.len() > 60, "only {} cases were found", cases.len());
    cases.sort();
    let (mut wrong, mut messages) = (String::new(), Messages::default());
    for (paths, expect) in cases {
        let expected = fs::read_to_string(&expect).unwrap_or_default();
        let (first, _) = expected.split_once('\n').unwrap_or_default();
        let words = first.strip_prefix("options:").unwrap_or_default();
        let options = Options {
            merge_domains: words.contains("merge_domains"),
            strict: words.contains("strict"),
            for_check: words.contains("for_check"),
            max_memory: None,
            process: ProcessDefaults {
                commit: if words.contains("all_or_none") {
                    Commit::AllOrNone
                } else {
                    Commit::Each
                },
                calendar_months: words.contains("calendar_months"),
                region: word_behind(words, "region=").map(Into::into),
                region_share: word_behind(words, "region_share=")
                    .map(|share| share.parse().expect("a share"))
                    .unwrap_or_default(),
            },
        };
        let files: Vec<_> = paths.iter().map(|path| source(path)).collect();
        let (problems, limits) = match words.contains("overlay") {
            true => outcome_of_overlay(&files[0], &options),
            false => outcome(&files, &options),
        };
        for problem in &problems {
            messages.add(problem);
        }
        let lines = problems.iter().map(show_problem).chain(limits);
        let options = first.starts_with("options:").then_some(first);
        let lines = options.map(str::to_owned).into_iter().chain(lines);
        check_or_write(&expect, &lines.collect::<Vec<_>>(), &mut wrong);
    }
    let messages = messages.show();
    let lines: Vec<_> = messages.lines().map(str::to_owned).collect();
    check_or_write(&folder.join("messages.txt"), &lines, &mut wrong);
    assert!(wrong.is_empty(), "{wrong}");
}

/// Compares a file with what is found. `WEIR_WRITE=1 cargo test --test it -- config_vectors` writes
/// it instead, to be read.
fn check_or_write(path: &Path, lines: &[String], wrong: &mut String) {
    let found: String = lines.iter().map(|line| format!("{line}\n")).collect();
    if std::env::var_os("WEIR_WRITE").is_some() {
        return fs::write(path, found).expect("a file that can be written");
    }
    let expected = fs::read_to_string(path).unwrap_or_default();
    if found != expected {
        writeln!(wrong, "=== {}", path.display()).expect("a string");
        let [expected, found]: [BTreeSet<_>; 2] =
            [&expected, &found].map(|it| it.lines().collect());
        for line in expected.difference(&found) {
            writeln!(wrong, "expected: {line}").expect("a string");
        }
        for line in found.difference(&expected) {
            writeln!(wrong, "found:    {line}").expect("a string");
        }
    }
}

/// Each code is in the list of messages, or has a reason to be in no vector.
#[test]
fn every_code_has_a_vector() {
    let list = root().join("tests/vectors/config/messages.txt");
    let list = fs::read_to_string(list).expect("the list of messages");
    let heads = list.lines().filter(|line| !line.starts_with(' '));
    let heads = heads.filter_map(|line| line.split_once(':'));
    let listed: BTreeSet<_> = heads.map(|(code, _)| code.to_owned()).collect();
    let excepted = WITHOUT_VECTOR
        .iter()
        .flat_map(|(_, codes)| codes.split(' '));
    let excepted: BTreeSet<_> = excepted.map(str::to_owned).collect();
    let all: BTreeSet<_> = codes().map(|code| code.to_string()).collect();
    assert_eq!(
        listed.intersection(&excepted).collect::<Vec<_>>(),
        Vec::<&String>::new()
    );
    let known: BTreeSet<_> = listed.union(&excepted).cloned().collect();
    let differing: Vec<_> = all.symmetric_difference(&known).collect();
    assert!(
        differing.is_empty(),
        "codes without a vector or without a row: {differing:?}"
    );
}

fn find(rules: &Rules, domain: &[u8], entries: &[(Vec<u8>, Vec<u8>)]) -> String {
    let entries: Vec<_> = entries
        .iter()
        .map(|(key, value)| Entry { key, value })
        .collect();
    match rules.find(domain, &entries) {
        None if rules.commit(domain).is_none() => "unknown domain".into(),
        None => "none".into(),
        Some(limit) => limit.limit.path(),
    }
}

#[test]
fn every_line_of_the_matching_vectors_finds_its_limit() {
    let mut lines = 0;
    for path in files_of(&root().join("tests/vectors/matching"), "table") {
        let rules = match compile(&[source(&path.with_extension("yaml"))], &Options::default()) {
            Ok(compiled) => compiled.rules,
            Err(problems) => panic!("{}", problems[0]),
        };
        let table = fs::read_to_string(&path).expect("readable");
        for line in table
            .lines()
            .filter(|line| !line.is_empty() && !line.starts_with('#'))
        {
            let (descriptor, expected) = line
                .split_once("-> ")
                .unwrap_or_else(|| panic!("{}: {line}: no '-> '", path.display()));
            let descriptor = descriptor.strip_suffix(' ').unwrap_or(descriptor);
            let entries: Vec<_> = descriptor
                .split(", ")
                .filter(|entry| !entry.is_empty())
                .map(|entry| {
                    entry
                        .split_once('=')
                        .unwrap_or_else(|| panic!("{line}: {entry}: no '='"))
                })
                .map(|(key, value)| {
                    [key, value]
                        .map(|text| bytes(text).expect("escapes"))
                        .into()
                })
                .collect();
            assert_eq!(
                find(&rules, b"d", &entries),
                expected,
                "{}: {line}",
                path.display()
            );
            lines += 1;
        }
    }
    assert!(lines > 60, "only {lines} lines were found");
}

#[test]
fn every_example_is_right_without_a_warning() {
    let files: Vec<_> = files_of(&root().join("config"), "yaml")
        .iter()
        .map(|path| source(path))
        .collect();
    assert!(files.len() >= 2);
    let compiled = compile(
        &files,
        &Options {
            strict: true,
            ..Options::default()
        },
    )
    .unwrap_or_else(|problems| panic!("{}", problems[0]));
    let found = |entries: &[(&str, &str)]| {
        let entries: Vec<_> = entries
            .iter()
            .map(|(key, value)| (key.as_bytes().to_vec(), value.as_bytes().to_vec()))
            .collect();
        find(&compiled.rules, b"demo", &entries)
    };
    assert_eq!(
        found(&[("remote_address", "1.2.3.4")]),
        "demo.remote_address"
    );
    assert_eq!(
        found(&[("path", "/login"), ("remote_address", "1.2.3.4")]),
        "demo.path_/login.remote_address"
    );
    assert_eq!(
        found(&[("generic_key", "whole-site")]),
        "demo.generic_key_whole-site"
    );
    let limit = compiled
        .rules
        .limits()
        .find(|limit| limit.path() == "demo.remote_address")
        .expect("it is there");
    assert_eq!(
        show(limit),
        "limit demo.remote_address: 20 per minute, name 'per-client'"
    );
    let of_algorithms = compiled
        .rules
        .limits()
        .filter(|limit| &*limit.domain == "algorithms");
    let kinds: HashSet<_> = of_algorithms
        .filter_map(|limit| limit.amount.map(|amount| discriminant(&amount.algorithm)))
        .collect();
    assert_eq!(
        kinds.len(),
        AlgorithmKind::NAMED.len(),
        "an example for each algorithm"
    );
}

/// By recursion over all splits: slow, and plainly right.
fn naive_glob(pattern: &[u8], text: &[u8]) -> bool {
    match pattern.split_first() {
        None => text.is_empty(),
        Some((b'*', rest)) => (0..=text.len()).any(|skip| naive_glob(rest, &text[skip..])),
        Some((byte, rest)) => text
            .split_first()
            .is_some_and(|(first, behind)| first == byte && naive_glob(rest, behind)),
    }
}

/// The rules of matching, as the documentation words them.
fn naive_find(mut level: &[Branch], entries: &[(String, String)]) -> String {
    let mut path = "d".to_owned();
    for (index, (key, value)) in entries.iter().enumerate() {
        let is_pattern = |branch: &&Branch| branch.key.contains('*') || branch.value.contains('*');
        let exact = |branch: &&Branch| {
            !branch.value.is_empty()
                && branch.key == *key
                && branch.value == *value
                && !is_pattern(branch)
        };
        let pattern = |branch: &&Branch| {
            is_pattern(branch)
                && naive_glob(branch.key.as_bytes(), key.as_bytes())
                && (branch.value.is_empty()
                    || naive_glob(branch.value.as_bytes(), value.as_bytes()))
        };
        let any_value = |branch: &&Branch| branch.value.is_empty() && branch.key == *key;
        let found = level
            .iter()
            .find(exact)
            .or_else(|| level.iter().find(pattern))
            .or_else(|| level.iter().find(any_value));
        let Some(branch) = found else {
            return "none".into();
        };
        path = path
            + "."
            + &branch.key
            + if branch.value.is_empty() { "" } else { "_" }
            + &branch.value;
        if index + 1 == entries.len() && branch.limit.is_some() {
            return path;
        }
        level = &branch.below;
    }
    "none".into()
}

proptest! {
    #![proptest_config(crate::testing::property(400))]

    #[test]
    fn find_is_what_the_documentation_says(
        branches in trees(),
        requests in proptest::collection::vec(
            proptest::collection::vec(("[ab_*]{0,4}", "[ab_*]{0,5}"), 0..4),
            8,
        ),
    ) {
        let yaml: Vec<_> = branches.iter().map(Branch::yaml).collect();
        let rules = rules_of(&serde_json::json!({"domain": "d", "descriptors": yaml}).to_string());
        // Random requests seldom go deep: the ones that follow the tree do.
        let mut requests = requests;
        let mut level = &branches;
        let mut way = Vec::new();
        while let Some(branch) = level.last() {
            way.push((branch.key.replace('*', "a"), branch.value.replace('*', "")));
            requests.push(way.clone());
            level = &branch.below;
        }
        for entries in requests {
            let as_bytes: Vec<_> = entries
                .iter()
                .map(|(key, value)| (key.clone().into_bytes(), value.clone().into_bytes()))
                .collect();
            prop_assert_eq!(
                find(&rules, b"d", &as_bytes),
                naive_find(&branches, &entries),
                "{:?} \
                in {:?}",
                entries,
                branches
            );
        }
    }

    #[test]
    fn a_pattern_matches_what_it_should(
        pattern in "[ab*]{0,7}\\*[ab*]{0,7}",
        value in "[ab]{0,12}",
    ) {
        let rules = rules_of(&format!(
            "domain: d\ndescriptors: [{{key: k, value: \"{pattern}\", \
            rate_limit: {{unlimited: true}}}}]"
        ));
        let found = find(&rules, b"d", &[(b"k".to_vec(), value.clone().into_bytes())]) != "none";
        prop_assert_eq!(found, naive_glob(pattern.as_bytes(), value.as_bytes()));
    }
}
