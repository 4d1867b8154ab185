//! Runs each target on its corpus and on mutations of it: for some seconds, the same inputs in each
//! run.
//!
//! `WEIR_FUZZ_SEED` chooses other inputs, and `WEIR_FUZZ_INPUTS` their number. libFuzzer finds
//! more, because it sees which code an input reaches.

use std::fs;
use std::path::{Path, PathBuf};

use fastrand::Rng;

use super::*;
use crate::testing::{cases, number_in};

/// The longest input, as libFuzzer has it by default.
const MAX_INPUT_BYTES: usize = 4_096;

fn folder(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("fuzz")
        .join(path)
}

/// The names in a folder, in order.
fn names(path: &str) -> Vec<String> {
    let entries = fs::read_dir(folder(path)).unwrap_or_else(|error| panic!("fuzz/{path}: {error}"));
    let mut names: Vec<_> = entries
        .map(|entry| {
            entry
                .expect("an entry")
                .file_name()
                .into_string()
                .expect("UTF-8")
        })
        .collect();
    names.sort();
    names
}

/// The seeds of a target. What a run of libFuzzer has added has a name without an extension.
fn corpus(target: &str) -> Vec<Vec<u8>> {
    let path = format!("corpus/{target}");
    let seeds = names(&path).into_iter().filter(|name| name.contains('.'));
    let seeds: Vec<_> = seeds
        .map(|name| fs::read(folder(&path).join(name)).expect("readable"))
        .collect();
    assert!(seeds.len() > 2, "{target} has a corpus");
    seeds
}

/// Prints the input if the property does not hold for it.
struct Reported<'a> {
    target: &'a str,
    seed: u64,
    number: u64,
    input: &'a [u8],
}

impl Drop for Reported<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let Self {
                target,
                seed,
                number,
                input,
            } = self;
            println!(
                "{target}: input {number} of WEIR_FUZZ_SEED={seed}; add it to \
                 fuzz/corpus/{target}:\n{}",
                input.escape_ascii()
            );
        }
    }
}

/// Checks the corpus of a target, and this many mutations of it.
fn run(target: &str, inputs: u64) {
    let (seed, inputs) = (
        number_in("WEIR_FUZZ_SEED").unwrap_or(1),
        number_in("WEIR_FUZZ_INPUTS").unwrap_or_else(|| cases(inputs)),
    );
    let (corpus, mut rng) = (corpus(target), Rng::with_seed(seed));
    let seeds = corpus.iter().cloned();
    let mutations = (0..inputs).map(|_| mutation(&mut rng, &corpus));
    for (number, input) in (0..).zip(seeds.chain(mutations)) {
        let _reported = Reported {
            target,
            seed,
            number,
            input: &input,
        };
        check(target, &input);
    }
}

/// A seed with some changes.
fn mutation(rng: &mut Rng, corpus: &[Vec<u8>]) -> Vec<u8> {
    let mut input = corpus[rng.usize(..corpus.len())].clone();
    for _ in 0..rng.usize(1..6) {
        let at = rng.usize(..=input.len());
        let end = rng.usize(at..=input.len().min(at + 32));
        match rng.u8(..9) {
            0 if at < input.len() => input[at] ^= 1 << rng.u8(..8),
            1 if at < input.len() => {
                input[at] = *rng
                    .choice(b"\0\x01\x7f\x80\xff\n\r\t \"'{}[]:,*%|=~#&-+09")
                    .expect("some");
            }
            2 if at < input.len() => input[at] = rng.u8(..),
            3 => drop(input.drain(at..end)),
            4 => input.extend_from_within(at..end),
            5 => drop(input.splice(at..at, [rng.u8(..)])),
            6 => {
                let copy = input[at..end].to_vec();
                let to = rng.usize(..=input.len());
                input.splice(to..to, copy);
            }
            _ => {
                let other = &corpus[rng.usize(..corpus.len())];
                let from = rng.usize(..=other.len());
                let to = rng.usize(from..=other.len().min(from + 64));
                // In place of a part, or between.
                input.splice(
                    at..if rng.bool() { at } else { end },
                    other[from..to].iter().copied(),
                );
            }
        }
    }
    input.truncate(MAX_INPUT_BYTES);
    input
}

#[test]
fn authority() {
    run("authority", 20_000);
}

#[test]
fn decode() {
    run("decode", 200_000);
}

#[test]
fn header_blocks() {
    run("header_blocks", 10_000);
}

#[test]
fn json() {
    run("json", 20_000);
}

#[test]
fn keys() {
    run("keys", 50_000);
}

#[test]
fn replies() {
    run("replies", 15_000);
}

#[test]
fn yaml() {
    run("yaml", 5_000);
}

/// Each target has a file, a line in the manifest, a corpus, and a test here.
#[test]
fn all_targets_are_complete() {
    let expected = TARGETS.map(|(name, _)| name);
    let sources: Vec<_> = expected.iter().map(|name| format!("{name}.rs")).collect();
    assert_eq!(names("fuzz_targets"), sources);
    assert_eq!(names("corpus"), expected);
    let manifest = fs::read_to_string(folder("Cargo.toml")).expect("readable");
    let tests = include_str!("tests.rs");
    for name in expected {
        let target =
            fs::read_to_string(folder(&format!("fuzz_targets/{name}.rs"))).expect("readable");
        assert!(
            target.contains(&format!(
                "fuzz_target!(|input: &[u8]| weir::fuzzing::check(\"{name}\", input));"
            )),
            "{name}: {target}"
        );
        assert!(
            manifest.contains(&format!(
                "name = \"{name}\"\npath = \"fuzz_targets/{name}.rs\"\n"
            )),
            "{name} is in fuzz/Cargo.toml"
        );
        assert!(
            tests.contains(&format!("fn {name}() {{\n    run(\"{name}\", ")),
            "{name} has a test"
        );
    }
}
