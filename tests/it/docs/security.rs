//! SECURITY.md gives every bound with its figure: each is that of the constant which its row names.

use std::iter::Peekable;
use std::str::Chars;

use crate::support::tools;

/// A row of a table of bounds: what is bounded, its figure, and where the constant is.
struct Row {
    what: String,
    figure: String,
    name: String,
    file: String,
}

fn rows(page: &str) -> Vec<Row> {
    let row = |line: &str| {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let &[what, figure, _, constant] = &cells[..] else {
            return None;
        };
        let (name, file) = constant
            .strip_prefix('`')?
            .strip_suffix('`')?
            .split_once("` in `")?;
        Some(Row {
            what: what.to_owned(),
            figure: figure.to_owned(),
            name: name.to_owned(),
            file: file.to_owned(),
        })
    };
    page.lines()
        .filter(|line| line.starts_with('|'))
        .filter_map(row)
        .collect()
}

/// A figure of the page in bytes, seconds or pieces.
fn figure(text: &str) -> f64 {
    let (number, unit) = text
        .trim_start_matches("above ")
        .split_once(' ')
        .unwrap_or((text, ""));
    let factor = match unit {
        "KiB" => 1_024.0,
        "MiB" => 1_048_576.0,
        "s" | "" => 1.0,
        _ => panic!("{text:?} has an unknown unit"),
    };
    factor
        * number
            .replace(',', "")
            .parse::<f64>()
            .unwrap_or_else(|error| panic!("{text:?}: {error}"))
}

/// The value of a constant, or of a field where a default is made, in its own file or in one beside
/// it.
fn value(name: &str, file: &str) -> f64 {
    let text = tools::file(file);
    let constant = text
        .split(&format!("const {name}: "))
        .nth(1)
        .and_then(|rest| rest.split_once("= ")?.1.split_once(';'));
    let field = || {
        text.split(&format!("            {name}: "))
            .nth(1)
            .and_then(|rest| rest.split_once(",\n"))
    };
    match constant.or_else(field) {
        Some((expression, _)) => sum(&mut expression.chars().peekable(), file),
        None if file == "src/service/server/connection.rs" => {
            value(name, "src/service/server/body.rs")
        }
        None => panic!("{file} has no {name}"),
    }
}

/// `a << b` and `a + b`, which stand nowhere together.
fn sum(text: &mut Peekable<Chars<'_>>, file: &str) -> f64 {
    let mut value = product(text, file);
    loop {
        match next(text) {
            Some('<') => {
                text.next();
                text.next();
                value *= 2_f64.powf(product(text, file));
            }
            Some('+') => {
                text.next();
                value += product(text, file);
            }
            _ => return value,
        }
    }
}

fn product(text: &mut Peekable<Chars<'_>>, file: &str) -> f64 {
    let mut value = factor(text, file);
    while next(text) == Some('*') {
        text.next();
        value *= factor(text, file);
    }
    value
}

fn factor(text: &mut Peekable<Chars<'_>>, file: &str) -> f64 {
    if next(text) == Some('(') {
        text.next();
        let value = sum(text, file);
        assert_eq!(text.next(), Some(')'), "{file}");
        return value;
    }
    let word = word(text);
    let value = match word.as_str() {
        "Duration::from_secs" | "Span::from_secs" => return factor(text, file),
        number if number.starts_with(|first: char| first.is_ascii_digit()) => {
            number.replace('_', "").parse().expect("a number")
        }
        name => value(name, file),
    };
    if next(text) == Some('a') {
        // A cast.
        assert!(
            ["as", "u32", "usize"].contains(&self::word(text).as_str()) && next(text).is_some(),
            "{file}"
        );
        self::word(text);
    }
    value
}

fn word(text: &mut Peekable<Chars<'_>>) -> String {
    next(text);
    let mut word = String::new();
    while let Some(letter) =
        text.next_if(|letter| letter.is_ascii_alphanumeric() || matches!(letter, '_' | ':'))
    {
        word.push(letter);
    }
    assert!(
        !word.is_empty(),
        "not an expression that this test reads, at {:?}",
        text.collect::<String>()
    );
    word
}

/// The next letter that is not a space.
fn next(text: &mut Peekable<Chars<'_>>) -> Option<char> {
    while text.next_if(|letter| letter.is_whitespace()).is_some() {}
    text.peek().copied()
}

#[test]
fn every_bound_has_the_figure_of_its_constant() {
    let rows = rows(&tools::file("SECURITY.md"));
    assert!(rows.len() > 30, "the tables are found: {}", rows.len());
    let wrong: Vec<_> = rows
        .iter()
        .filter(|row| figure(&row.figure).to_bits() != value(&row.name, &row.file).to_bits())
        .map(|row| {
            format!(
                "{}: {} on the page, and {} is {}",
                row.what,
                row.figure,
                row.name,
                value(&row.name, &row.file)
            )
        })
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A bound that is added to the listeners has a row.
#[test]
fn every_bound_of_the_listeners_is_on_the_page() {
    let rows = rows(&tools::file("SECURITY.md"));
    for file in [
        "src/service/server/body.rs",
        "src/service/server/header_blocks.rs",
        "src/service/server/wait_permits.rs",
        "src/service/pages.rs",
        "src/net/http/bodies.rs",
        "src/service/pages/json.rs",
        "src/desk/admin.rs",
    ] {
        let text = tools::file(file);
        for name in text
            .split("\nconst ")
            .skip(1)
            .filter_map(|rest| rest.split(':').next())
        {
            let is_bound = name.starts_with("MAX_") || name.ends_with("DEADLINE");
            assert!(
                !is_bound || rows.iter().any(|row| row.name == name && row.file == file),
                "SECURITY.md does not give {name} of {file}"
            );
        }
    }
}

#[test]
fn expressions_are_read_as_rust_does() {
    let read = |text: &str| {
        sum(
            &mut text.chars().peekable(),
            "src/service/server/connection.rs",
        )
    };
    assert_eq!(read("4 << 20").to_bits(), 4_194_304_f64.to_bits());
    assert_eq!(read("256 * (64 + 4)").to_bits(), 17_408_f64.to_bits());
    assert_eq!(
        read("(512 << 10) + 32 as u32 * 32_768").to_bits(),
        1_572_864_f64.to_bits()
    );
    assert_eq!(read("Duration::from_secs(5)").to_bits(), 5_f64.to_bits());
    assert_eq!(read("KEEP_ALIVE").to_bits(), 30_f64.to_bits());
}
