//! The instructions of a decision, counted by callgrind and compared with recorded counts. A busy
//! machine does not change them.
//!
//! Another compiler or C library makes other instructions; then differences are only reported. Each
//! run writes its counts to a file that can replace the recorded one. Random keys of hash maps
//! change the counts by a few in a thousand, so that each is the mean of many calls.

mod cases;

use std::fmt::Write as _;
use std::fs;
use std::io::{self, Write as _};
use std::path::Path;
use std::process::Command;

use crate::support::tools;

/// The file of the recorded counts.
const RECORDED: &str = "tests/vectors/instructions.txt";

const REMEDY: &str = "to record them: WEIR_WRITE=1 cargo test --test it instructions";

/// The permitted difference of a count: a share of it plus a number of instructions.
const TOLERANCE: (f64, f64) = (0.02, 1.0);

const HEAD: &str = "# Instructions of one call, built as the tests are. Written by `WEIR_WRITE=1 \
    cargo test --test it instructions`.\n";

/// The prefix of the line that names what changes instruction counts apart from the code.
const BUILT: &str = "# built with ";

/// Counts, and the tools with which the code was built.
#[derive(Debug, PartialEq)]
struct Counts {
    built: String,
    /// Instructions of one call by the name of the case, in the order of the cases.
    counts: Vec<(String, f64)>,
}

impl Counts {
    fn parse(text: &str) -> Self {
        let built = text
            .lines()
            .find_map(|line| line.strip_prefix(BUILT))
            .unwrap_or_default()
            .to_owned();
        let count = |line: &str| {
            line.trim()
                .split_once("  ")
                .map(|(count, name)| (name.to_owned(), count.parse().expect("a number")))
        };
        Self {
            built,
            counts: text
                .lines()
                .filter(|line| !line.starts_with('#'))
                .filter_map(count)
                .collect(),
        }
    }

    fn text(&self) -> String {
        let mut text = format!("{HEAD}{BUILT}{}\n", self.built);
        for (name, count) in &self.counts {
            let _ = writeln!(text, "{count:>9.1}  {name}");
        }
        text
    }

    fn of(&self, name: &str) -> Option<f64> {
        self.counts
            .iter()
            .find(|(known, _)| known == name)
            .map(|&(_, count)| count)
    }
}

/// The counts that are above the recorded ones, and those that are below.
fn compare(recorded: &Counts, new: &Counts) -> (Vec<String>, Vec<String>) {
    let (mut more, mut less) = (Vec::new(), Vec::new());
    for (name, count) in &new.counts {
        let Some(before) = recorded.of(name) else {
            more.push(format!("{name}: {count:.1}, and no count is recorded"));
            continue;
        };
        let (share, few) = TOLERANCE;
        let line = format!(
            "{name}: {count:.1} instructions, {before:.1} before ({:+.1} %)",
            (count / before - 1.0) * 100.0
        );
        if *count > before * (1.0 + share) + few {
            more.push(line);
        } else if *count < before * (1.0 - share) - few {
            less.push(line);
        }
    }
    more.extend(
        recorded
            .counts
            .iter()
            .filter(|(name, _)| new.of(name).is_none())
            .map(|(name, _)| format!("{name}: is no longer counted")),
    );
    (more, less)
}

fn first_line(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program)
        .args(arguments)
        .output()
        .map(|output| output.stdout)
        .unwrap_or_default();
    String::from_utf8_lossy(&output)
        .lines()
        .next()
        .unwrap_or("unknown")
        .to_owned()
}

/// The compiler, its target, the C library (which copies memory), and whether the CPU has wide
/// registers for copying and searching.
fn built() -> String {
    let compiler = first_line("rustc", &["--version"]);
    let target = format!("{}-{}", std::env::consts::ARCH, std::env::consts::OS);
    let library = first_line("getconf", &["GNU_LIBC_VERSION"]);
    let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let wide = if cpu.split_whitespace().any(|flag| flag == "avx2") {
        "avx2"
    } else {
        "no avx2"
    };
    let incremental = if option_env!("CARGO_INCREMENTAL") == Some("0") {
        ", not incremental"
    } else {
        ""
    };
    format!("{compiler}, {target}, {library}, {wide}{incremental}")
}

/// Runs the cases of this binary under callgrind. Before each call of a function whose name
/// contains `counted_by_callgrind` it writes its count to a new file. Every second file is the
/// count from [`cases::counted_by_callgrind`] to [`cases::no_more_counted_by_callgrind`].
fn count(folder: &Path) -> Counts {
    let out = folder.join("out");
    let mut command = Command::new("valgrind");
    command.args(["--tool=callgrind", "--dump-before=*counted_by_callgrind*"]);
    command
        .arg(format!("--callgrind-out-file={}", out.display()))
        .arg(std::env::current_exe().expect("a program"));
    command.args([
        "service::instructions::cases::counted",
        "--exact",
        "--ignored",
        "--nocapture",
        "--test-threads=1",
    ]);
    let output = command
        .output()
        .expect("valgrind is installed; tests/run.sh install does it");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{text}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let cases = text
        .lines()
        .filter_map(|line| line.strip_prefix(cases::COUNTED)?.split_once(' '));
    let counts = cases.enumerate().map(|(index, (calls, name))| {
        let file = format!("{}.{}", out.display(), 2 * (index + 1));
        let dump = fs::read_to_string(&file).unwrap_or_else(|error| panic!("{file}: {error}"));
        let total = dump.lines().find_map(|line| {
            line.strip_prefix("totals: ")
                .or(line.strip_prefix("summary: "))
        });
        let total: f64 = total
            .and_then(|total| total.trim().parse().ok())
            .unwrap_or_else(|| panic!("{file} has no total"));
        assert!(total > 0.0, "{name}: nothing was counted");
        (
            name.to_owned(),
            total / calls.parse::<f64>().expect("a number"),
        )
    });
    Counts {
        built: built(),
        counts: counts.collect(),
    }
}

#[test]
fn instructions_are_no_more_than_recorded() {
    let folder = tempfile::tempdir().expect("a folder");
    let new = count(folder.path());
    if std::env::var_os("WEIR_WRITE").is_some() {
        fs::write(tools::repository().join(RECORDED), new.text()).expect("a file to write");
    }
    let recorded = Counts::parse(&tools::file(RECORDED));
    let (more, less) = compare(&recorded, &new);
    // Written to stderr directly, because the test runner hides the output of tests that pass.
    let report = |text: String| io::stderr().write_all(text.as_bytes()).expect("stderr");
    if recorded.built != new.built {
        let changes = [more, less].concat().join("\n");
        report(format!(
            "instructions: counted with {}, recorded with {}; {REMEDY}\n{changes}\n",
            new.built, recorded.built
        ));
        return;
    }
    if !less.is_empty() {
        report(format!(
            "instructions: fewer than recorded; {REMEDY}\n{}\n",
            less.join("\n")
        ));
    }
    assert!(
        more.is_empty(),
        "more instructions than recorded; {REMEDY}\n{}",
        more.join("\n")
    );
}
