//! What a decision costs in instructions, counted by callgrind and held to figures that are written down: no busy machine hides a regression.
//!
//! Another compiler or C library makes other instructions: then the figures are only reported, and written anew to be put in their place.
//! Hash maps with random keys make the counts vary by a few in a thousand; what is counted is the mean of many calls.

mod cases;

use std::fmt::Write as _;
use std::fs;
use std::io::{self, Write as _};
use std::path::Path;
use std::process::Command;

use crate::support::tools;

/// Where the figures are written down.
const KEPT: &str = "tests/vectors/instructions.txt";

/// Where they are written by each run.
const NEW: &str = "target/instructions.txt";

const REMEDY: &str = "if that is meant: cp target/instructions.txt tests/vectors/instructions.txt";

/// By how much a count may differ: a share of it, and instructions.
const TOLERANCE: (f64, f64) = (0.02, 1.0);

const HEAD: &str =
    "# Instructions of one call, built as the tests are. Written by `cargo test --test it instructions` to target/instructions.txt.\n";

/// What decides how many instructions there are, apart from the code.
const BUILT: &str = "# built with ";

/// What was counted, and with what it was built.
#[derive(Debug, PartialEq)]
struct Figures {
    built: String,
    /// By name, in the order of the cases.
    counts: Vec<(String, f64)>,
}

impl Figures {
    fn parse(text: &str) -> Self {
        let built = text.lines().find_map(|line| line.strip_prefix(BUILT)).unwrap_or_default().to_owned();
        let count = |line: &str| line.trim().split_once("  ").map(|(count, name)| (name.to_owned(), count.parse().expect("a number")));
        Self { built, counts: text.lines().filter(|line| !line.starts_with('#')).filter_map(count).collect() }
    }

    fn text(&self) -> String {
        let mut text = format!("{HEAD}{BUILT}{}\n", self.built);
        for (name, count) in &self.counts {
            let _ = writeln!(text, "{count:>9.1}  {name}");
        }
        text
    }

    fn of(&self, name: &str) -> Option<f64> {
        self.counts.iter().find(|(known, _)| known == name).map(|&(_, count)| count)
    }
}

/// What became more, and what became less, than was written down.
fn compare(kept: &Figures, new: &Figures) -> (Vec<String>, Vec<String>) {
    let (mut more, mut less) = (Vec::new(), Vec::new());
    for (name, count) in &new.counts {
        let Some(before) = kept.of(name) else {
            more.push(format!("{name}: {count:.1}, and nothing is written down"));
            continue;
        };
        let (share, few) = TOLERANCE;
        let line = format!("{name}: {count:.1} instructions, {before:.1} before ({:+.1} %)", (count / before - 1.0) * 100.0);
        if *count > before * (1.0 + share) + few {
            more.push(line);
        } else if *count < before * (1.0 - share) - few {
            less.push(line);
        }
    }
    more.extend(kept.counts.iter().filter(|(name, _)| new.of(name).is_none()).map(|(name, _)| format!("{name}: is not counted any more")));
    (more, less)
}

fn first_line(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().map(|output| output.stdout).unwrap_or_default();
    String::from_utf8_lossy(&output).lines().next().unwrap_or("unknown").to_owned()
}

/// The compiler; its target; the C library, which copies memory; and whether memory is copied and searched by wide registers.
fn built() -> String {
    let compiler = first_line("rustc", &["--version"]);
    let target = format!("{}-{}", std::env::consts::ARCH, std::env::consts::OS);
    let library = first_line("getconf", &["GNU_LIBC_VERSION"]);
    let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let wide = if cpu.split_whitespace().any(|flag| flag == "avx2") { "avx2" } else { "no avx2" };
    let incremental = if option_env!("CARGO_INCREMENTAL") == Some("0") { ", not incremental" } else { "" };
    format!("{compiler}, {target}, {library}, {wide}{incremental}")
}

/// Runs the cases of this binary under callgrind. Before each call of a function with this in its name it writes what it has counted to a file
/// of its own: every second file is what stands between [`cases::counted_by_callgrind`] and [`cases::no_more_counted_by_callgrind`].
fn count(folder: &Path) -> Figures {
    let out = folder.join("out");
    let mut command = Command::new("valgrind");
    command.args(["--tool=callgrind", "--dump-before=*counted_by_callgrind*"]);
    command.arg(format!("--callgrind-out-file={}", out.display())).arg(std::env::current_exe().expect("a program"));
    command.args(["instructions::cases::counted", "--exact", "--ignored", "--nocapture", "--test-threads=1"]);
    let output = command.output().expect("valgrind is installed; tests/run.sh install does it");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    let cases = text.lines().filter_map(|line| line.strip_prefix(cases::COUNTED)?.split_once(' '));
    let counts = cases.enumerate().map(|(place, (calls, name))| {
        let file = format!("{}.{}", out.display(), 2 * (place + 1));
        let dump = fs::read_to_string(&file).unwrap_or_else(|error| panic!("{file}: {error}"));
        let total = dump.lines().find_map(|line| line.strip_prefix("totals: ").or(line.strip_prefix("summary: ")));
        let total: f64 = total.and_then(|total| total.trim().parse().ok()).unwrap_or_else(|| panic!("{file} has no total"));
        assert!(total > 0.0, "{name}: nothing was counted");
        (name.to_owned(), total / calls.parse::<f64>().expect("a number"))
    });
    Figures { built: built(), counts: counts.collect() }
}

#[test]
fn instructions_are_no_more_than_is_written_down() {
    let folder = tempfile::tempdir().expect("a folder");
    let new = count(folder.path());
    fs::write(tools::repository().join(NEW), new.text()).expect("target/ is there");
    let kept = Figures::parse(&tools::file(KEPT));
    let (more, less) = compare(&kept, &new);
    // Around the test runner, which shows nothing of tests that pass.
    let report = |text: String| io::stderr().write_all(text.as_bytes()).expect("stderr");
    if kept.built != new.built {
        let changes = [more, less].concat().join("\n");
        report(format!("instructions: counted with {}, written down with {}; {REMEDY}\n{changes}\n", new.built, kept.built));
        return;
    }
    if !less.is_empty() {
        report(format!("instructions: less than before; write it down: cp {NEW} {KEPT}\n{}\n", less.join("\n")));
    }
    assert!(more.is_empty(), "more instructions than before; {REMEDY}\n{}", more.join("\n"));
}

#[test]
fn figures_are_read_as_they_are_written_and_compared() {
    let figures = |counts: &[(&str, f64)]| Figures {
        built: "rustc 1.0, glibc".to_owned(),
        counts: counts.iter().map(|&(name, count)| (name.to_owned(), count)).collect(),
    };
    let kept = figures(&[("a, 1", 1_000.0), ("b", 1_000.0), ("c", 10.5), ("d", 1.0)]);
    assert_eq!(Figures::parse(&kept.text()), kept);
    let (more, less) = compare(&kept, &figures(&[("a, 1", 1_022.0), ("b", 900.0), ("c", 11.0), ("e", 1.0)]));
    assert_eq!(
        more,
        ["a, 1: 1022.0 instructions, 1000.0 before (+2.2 %)", "e: 1.0, and nothing is written down", "d: is not counted any more"]
    );
    assert_eq!(less, ["b: 900.0 instructions, 1000.0 before (-10.0 %)"]);
}
