//! `measured.rs` has the figures of the tables of benches/README.md, and no others.
//!
//! `WEIR_WRITE=1 cargo test --lib cli::size::measured_tests` writes it anew, after a bench has
//! written its table.

use std::fmt::Write;
use std::path::PathBuf;
use std::time::Duration;

use super::costs;
use super::keys::{KeyShape, redis_bytes};
use crate::core::algorithm::AlgorithmKind;

const HEAD: &str = "\
//! Measured figures, from the tables of benches/README.md. Each has the table and the row that it
//! is from.
//!
//! This file is generated from that page: `WEIR_WRITE=1 cargo test --lib cli::size::measured_tests`
//! writes it anew. The same test compares the two.

#![allow(clippy::approx_constant, reason = \"a figure may be near a constant of mathematics\")]

use super::algorithm_costs::AlgorithmCosts;
use crate::core::algorithm::AlgorithmKind;
";

fn page() -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("benches/README.md");
    std::fs::read_to_string(path).expect("benches/README.md")
}

/// The rows of the tables between two markers, each as its cells.
fn rows(section: &str) -> Vec<Vec<String>> {
    let page = page();
    let (_, behind) = page
        .split_once(&format!("<!-- {section}: begin -->"))
        .expect("a marker");
    let (text, _) = behind
        .split_once(&format!("<!-- {section}: end -->"))
        .expect("a marker");
    let cells = |line: &str| {
        line.trim_matches('|')
            .split('|')
            .map(|cell| cell.trim().replace('`', ""))
            .collect()
    };
    text.lines()
        .filter(|line| line.starts_with('|'))
        .map(cells)
        .collect()
}

/// The row that begins with this cell.
fn row(section: &str, name: &str) -> Vec<String> {
    rows(section)
        .into_iter()
        .find(|row| row[0] == name)
        .unwrap_or_else(|| panic!("table {section} of benches/README.md has no row {name:?}"))
}

/// The number with which a cell begins.
fn number(cell: &str) -> f64 {
    let digits: String = cell
        .chars()
        .filter(|&letter| letter != ',')
        .take_while(|letter| letter.is_ascii_digit() || *letter == '.')
        .collect();
    digits
        .parse()
        .unwrap_or_else(|_| panic!("{cell:?} begins with no number"))
}

/// The number in brackets at the end of a cell.
fn ratio(cell: &str) -> f64 {
    number(
        cell.split_once('(')
            .unwrap_or_else(|| panic!("{cell:?} has no ratio"))
            .1,
    )
}

/// How many there are, and the CPU of a request to that of the first: a block of rows of the table
/// `scaling`.
fn curve(name: &str) -> Vec<(f64, f64)> {
    let rows = rows("scaling");
    let first = rows
        .iter()
        .position(|row| row[0] == name)
        .unwrap_or_else(|| panic!("table scaling has no row {name:?}"));
    let block = rows[first..]
        .iter()
        .enumerate()
        .take_while(|(index, row)| *index == 0 || row[0].is_empty());
    block
        .map(|(_, row)| (number(&row[1]), number(&row[2])))
        .collect()
}

/// A number as Rust has it, with `_` between thousands.
fn literal(value: f64) -> String {
    let text = format!("{value:?}");
    let (whole, fraction) = text.split_once('.').expect("a fraction");
    let grouped: Vec<&str> = whole
        .as_bytes()
        .rchunks(3)
        .rev()
        .map(|digits| std::str::from_utf8(digits).expect("digits"))
        .collect();
    format!("{}.{fraction}", grouped.join("_"))
}

fn list(values: &[f64]) -> String {
    format!(
        "[{}]",
        values
            .iter()
            .map(|&value| literal(value))
            .collect::<Vec<_>>()
            .join(", ")
    )
}

fn algorithm(name: &str, kind: AlgorithmKind) -> String {
    let (of_table, of_sizing, of_usage) = (
        row("algorithms", name),
        row("sizing", name),
        row("usage", name),
    );
    let numbers =
        |cells: &[String]| list(&cells.iter().map(|cell| number(cell)).collect::<Vec<_>>());
    format!(
        "    AlgorithmCosts {{\n        kind: AlgorithmKind::{kind:?},\n        memory_micros: \
         {},\n        redis_request_micros: {},\n        redis_micros: {},\n        memory_bytes: \
         {},\n        cluster_ratio: {},\n        usage_memory_ratio: {},\n        \
         usage_redis_ratio: {},\n        usage_weir_micros: {},\n        usage_weir_ratio: \
         {},\n        redis_tls_ratio: {},\n    }},\n",
        literal(number(&of_table[1])),
        literal(number(&row("speed", &format!("Weir, Redis, {name}"))[1])),
        numbers(&of_table[2..5]),
        literal(number(&of_table[5])),
        numbers(&of_sizing[1..4]),
        literal(ratio(&of_usage[1])),
        list(
            &of_usage[2..5]
                .iter()
                .map(|cell| ratio(cell))
                .collect::<Vec<_>>()
        ),
        literal(number(&of_usage[5])),
        literal(ratio(&of_usage[5])),
        numbers(&of_sizing[4..7]),
    )
}

/// The file, from the tables.
fn generated() -> String {
    let mut text = HEAD.to_owned();
    let mut constant = |name: &str, doc: &str, kind: &str, value: &str| {
        let _ = write!(
            text,
            "\n/// {doc}\npub(super) const {name}: {kind} = {value};\n"
        );
    };
    let all: String = AlgorithmKind::OVER_TIME
        .iter()
        .map(|&(name, kind)| algorithm(name, kind))
        .collect();
    constant(
        "ALGORITHMS",
        "One row for each algorithm.",
        &format!("[AlgorithmCosts; {}]", AlgorithmKind::OVER_TIME.len()),
        &format!("[\n{all}]"),
    );
    let mut scalar = |name: &str, doc: &str, section: &str, of: &str| {
        constant(name, doc, "f64", &literal(number(&row(section, of)[1])));
    };
    scalar(
        "MEMORY_MICROS",
        "µs of CPU of a request with one fixed window in memory (table speed, `Weir, memory`).",
        "speed",
        "Weir, memory",
    );
    let three = "Weir, Redis, fixed_window, 3 descriptors";
    scalar(
        "REDIS_3_DESCRIPTORS_MICROS",
        &format!(
            "µs of CPU of Weir for a request with three of them in Redis (table speed, `{three}`)."
        ),
        "speed",
        three,
    );
    for (name, doc, of) in [
        (
            "PROCESS_BYTES",
            "Bytes of a process at its start (table sizing).",
            "at the start, two threads, 100 limits",
        ),
        (
            "CONNECTION_BYTES",
            "Bytes of a connection that has made calls (table sizing).",
            "a connection that has made calls",
        ),
        ("LIMIT_BYTES", "Bytes of a limit (table sizing).", "a limit"),
    ] {
        scalar(name, doc, "sizing", of);
    }
    scalar(
        "USAGE_LISTS_INCRS",
        "CPU of Redis to write a subject to all lists of its limit, to a plain INCR (table usage).",
        "usage",
        "CPU of Redis to write it to all lists, to an INCR",
    );
    let of_memory = [
        "bytes in memory, after one hit",
        "bytes in memory, with 60 buckets",
    ]
    .map(|name| number(&row("usage", name)[1]));
    constant(
        "USAGE_BYTES",
        "Bytes of a usage record in memory after one hit, and with the default number of buckets \
         (table usage).",
        "[f64; 2]",
        &list(&of_memory),
    );
    let incr = page()
        .split_once("sixteen to a round trip, which cost redis-server ")
        .map(|(_, rest)| number(rest));
    constant(
        "INCR_MICROS",
        "µs of CPU of Redis for a plain INCR (table algorithms).",
        "f64",
        &literal(incr.expect("the figure below the table")),
    );
    let tls = ["plaintext", "TLS 1.3, P-256"].map(|name| number(&row("tls", name)[1]));
    constant(
        "TLS_CALL_MICROS",
        "µs of CPU of a call without TLS and with it, to be compared with each other only (table \
         tls).",
        "[f64; 2]",
        &list(&tls),
    );
    for (name, of, what) in [
        ("CONNECTIONS", "connections", "connections of a thread"),
        ("DESCRIPTORS", "descriptors", "descriptors of a request"),
        ("LIMITS", "limits", "limits"),
        ("KEYS", "keys", "keys in memory"),
    ] {
        let points: Vec<_> = curve(of)
            .iter()
            .map(|&(x, y)| format!("({}, {})", literal(x), literal(y)))
            .collect();
        let doc = format!(
            "The number of {what}, and the CPU of a request to that with one (table scaling, \
             `{of}`)."
        );
        constant(
            name,
            &doc.replace(
                "to that with one (table scaling, `keys`)",
                "to that with the fewest (table scaling, `keys`)",
            ),
            "&[(f64, f64)]",
            &format!("&[{}]", points.join(", ")),
        );
    }
    let machine = page()
        .split_once("windows of 2.0 s. ")
        .and_then(|(_, rest)| Some(rest.split_once(", the server")?.0.to_owned()));
    constant(
        "MACHINE",
        "Where it was measured (table speed).",
        "&str",
        &format!("{:?}", machine.expect("the machine below the table speed")),
    );
    text
}

#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "a variable of this test, not a setting of Weir"
)]
fn the_figures_are_those_of_the_tables() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src/cli/size/measured.rs");
    let expected = generated();
    if std::env::var_os("WEIR_WRITE").is_some() {
        return std::fs::write(path, expected).expect("writable");
    }
    // The formatter may break lines.
    let plain = |text: &str| {
        text.chars()
            .filter(|letter| !letter.is_whitespace())
            .collect::<String>()
            .replace(",]", "]")
            .replace(",)", ")")
            .replace(",}", "}")
    };
    let kept = std::fs::read_to_string(path).expect("measured.rs");
    assert!(
        plain(&kept) == plain(&expected),
        "run `WEIR_WRITE=1 cargo test --lib cli::size::measured_tests`; the tables say:\n{expected}"
    );
}

#[test]
fn the_batches_are_those_of_the_columns() {
    let heads = &rows("algorithms")[0];
    assert_eq!(
        heads[2..5],
        ["Redis, 1 at a time", "in batches of 16", "of 64"]
    );
    assert_eq!(
        rows("usage")[0][1..6],
        [
            "in memory",
            "Redis, 1 at a time",
            "in batches of 16",
            "of 64",
            "Weir beside Redis, of 64"
        ]
    );
    let of_sizing = &rows("sizing")[0];
    for (offset, what) in [
        (1, "Redis Cluster / one server, 1 at a time"),
        (4, "TLS / plaintext, 1 at a time"),
    ] {
        assert_eq!(
            of_sizing[offset..offset + 3],
            [what, "in batches of 16", "of 64"]
        );
    }
}

/// The table has keys such as `w1{bench|user=12345}x`. Its figures have a few bytes of buffers in
/// them.
#[test]
fn the_bytes_of_a_key_in_redis_are_those_of_the_table() {
    for (name, kind) in AlgorithmKind::OVER_TIME {
        let measured = number(&row("algorithms", name)[6]);
        let shape = KeyShape {
            algorithm: kind,
            bytes: 21,
            entries: 1,
            window: Duration::from_secs(60),
        };
        let modelled = redis_bytes(&shape, Some(20_000.0));
        assert!(
            (modelled / measured - 1.0).abs() < 0.08,
            "{name}: {modelled} by the model, {measured} in the table"
        );
    }
}

#[test]
fn curves_are_interpolated() {
    let curve = [(1.0, 1.0), (4.0, 2.0), (16.0, 6.0)];
    for (x, straight, over_powers) in [
        (0.5, 1.0, 1.0),
        (1.0, 1.0, 1.0),
        (2.5, 1.5, 1.661),
        (4.0, 2.0, 2.0),
        (8.0, 3.333, 4.0),
        (16.0, 6.0, 6.0),
        (28.0, 10.0, 6.0),
    ] {
        assert!(
            (costs::straight(&curve, x) - straight).abs() < 0.001,
            "{x}: {}",
            costs::straight(&curve, x)
        );
        assert!(
            (costs::over_powers(&curve, x) - over_powers).abs() < 0.001,
            "{x}: {}",
            costs::over_powers(&curve, x)
        );
    }
}
