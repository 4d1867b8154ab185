//! Shared by the tests of all layers, and of `tests/it`, which compiles this file as well: the
//! number of cases of tests with random inputs, and files that tests write.
//!
//! A test with random inputs names the cases of a full run. `WEIR_TEST_CASES` is the share that is
//! played, in per cent of them: 20 by default, 500 at night.

use std::path::Path;

use proptest::test_runner::{Config, RngSeed};

/// The default share, in per cent.
const DEFAULT_SHARE: u64 = 20;

/// A share has at least this number of cases, or a quarter of a smaller full run.
const MIN_CASES: u64 = 50;

/// The number in an environment variable, if it is set.
pub(crate) fn number_in(name: &str) -> Option<u64> {
    #[expect(clippy::disallowed_methods, reason = "the length of a test can be set")]
    let text = std::env::var(name).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|error| panic!("{name}={text}: {error}")),
    )
}

/// The number of cases to play, of a test with `full` cases.
pub(crate) fn cases(full: u64) -> u64 {
    let share = number_in("WEIR_TEST_CASES").unwrap_or(DEFAULT_SHARE);
    (full * share / 100).max(MIN_CASES.min(full / 4))
}

/// Configuration of a property with `full` cases. proptest prints the smallest values that fail;
/// the seed that is printed here repeats the run.
pub(crate) fn property(full: u64) -> Config {
    let mut config = Config {
        cases: cases(full) as u32,
        failure_persistence: None,
        ..Config::default()
    };
    if config.rng_seed == RngSeed::Random {
        config.rng_seed = RngSeed::Fixed(fastrand::u64(..));
    }
    println!(
        "{0} cases: PROPTEST_CASES={0} PROPTEST_RNG_SEED={1} repeats them",
        config.cases, config.rng_seed
    );
    config
}

/// The text of a file of the repository.
pub(crate) fn repository_file(path: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path))
        .unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Compares a file of the repository with a generated text, or, with a `part`, the lines between
/// `<!-- part: begin -->` and `<!-- part: end -->` in it. `WEIR_WRITE=1 cargo test` with these
/// arguments writes them.
///
/// # Panics
/// The file has another text.
pub(crate) fn assert_written(path: &str, part: Option<&str>, generated: &str, arguments: &str) {
    let text = repository_file(path);
    let marker = |end: &str| part.map_or(String::new(), |part| format!("<!-- {part}: {end} -->\n"));
    let (begin, end) = (marker("begin"), marker("end"));
    let from = text.find(&begin).expect("a begin") + begin.len();
    let to = if part.is_some() {
        text.find(&end).expect("an end")
    } else {
        text.len()
    };
    #[expect(clippy::disallowed_methods, reason = "whether to write the file")]
    if std::env::var_os("WEIR_WRITE").is_some() {
        let new = [&text[..from], generated, &text[to..]].concat();
        std::fs::write(Path::new(env!("CARGO_MANIFEST_DIR")).join(path), new).expect("writable");
        return;
    }
    let written = &text[from..to];
    let lines = written.lines().chain(std::iter::repeat(""));
    let differs = generated.lines().zip(lines).find(|(new, old)| new != old);
    assert!(
        generated == written,
        "{path} is not what is generated; `WEIR_WRITE=1 cargo test {arguments}` writes it. The \
         first line that differs: {differs:?}"
    );
}
