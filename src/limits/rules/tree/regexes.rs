//! The regular expressions of a level and key: one search finds the first that matches the whole
//! value.
//!
//! They are compiled to one table of states, which a search walks with one step for each byte of
//! the value: some nanoseconds, for any value and any number of expressions. An automaton that
//! makes its states when it meets them would take any expression, but clients choose the values:
//! with 200 expressions, each new state cost as much as 10,000 steps. So expressions with too large
//! a table are refused.
//!
//! Measured for a path: 40 ns by the table, with 1 expression or 200; 95 ns by such an automaton,
//! and 160 µs with 200 expressions. A `RegexSet` would allocate a list of all that match.

use regex_automata::dfa::{Automaton, StartKind, dense};
use regex_automata::nfa::thompson;
use regex_automata::util::syntax;
use regex_automata::{Anchored, Input, MatchKind};

use super::BranchIndex;
use crate::core::message::Message;
use crate::limits::rules::messages;

/// Maximum bytes of the text of one regular expression.
pub(crate) const LONGEST: usize = 4 << 10;

/// Maximum bytes of the table of one regular expression: `\w+@\w+` of all letters of Unicode takes
/// a third of a megabyte, and `.*a.{15}` is too large.
pub(crate) const LARGEST: usize = 2 << 20;

/// Maximum bytes of the table of all expressions of a level and key. A table grows with the product
/// of expressions that begin with `.*`: ten of them take 3 MiB.
pub(crate) const LARGEST_SET: usize = 8 << 20;

/// Maximum bytes of the NFA from which a table is made. It grows with the texts of the expressions.
const LARGEST_NFA: usize = 4 << 20;

/// Maximum depth of nested groups.
pub(crate) const DEEPEST: u32 = 50;

/// Expressions that match every value. A `.` matches a line break too.
const FOR_ALL: [&str; 6] = [".*", "(.*)", "^.*$", "^.*", ".*$", "(?s).*"];

/// The regular expressions in the order of the files.
#[derive(Debug, Default)]
pub(super) struct Regexes {
    pub(super) all: Vec<(BranchIndex, Box<str>)>,
    compiled: Option<Table>,
}

impl Regexes {
    pub(super) fn add(&mut self, regex: &str, branch: BranchIndex) {
        self.all.push((branch, regex.into()));
        self.compiled = None;
    }

    /// The first that matches every value.
    pub(super) fn for_all(&self) -> Option<BranchIndex> {
        let first = self.all.iter().find(|(_, regex)| is_for_all(regex));
        first.map(|&(branch, _)| branch)
    }

    /// Compiles all of them, and returns the bytes that they take.
    ///
    /// # Errors
    /// Together they are too large: the branch of the last one.
    pub(super) fn compile(&mut self) -> Result<usize, BranchIndex> {
        let Some((last, _)) = self.all.last() else {
            return Ok(0);
        };
        let texts = self.all.iter().map(|(_, regex)| &**regex);
        let compiled = build(texts, LARGEST_SET).map_err(|_| *last)?;
        let bytes = compiled.memory_usage();
        self.compiled = Some(compiled);
        Ok(bytes)
    }

    /// The first that matches the whole value.
    pub(super) fn find(&self, value: &[u8]) -> Option<BranchIndex> {
        let first = search(self.compiled.as_ref()?, value)?;
        self.all.get(first).map(|&(branch, _)| branch)
    }

    /// Whether the expression of a branch matches, compiled by itself.
    pub(super) fn has(&self, branch: BranchIndex, value: &[u8]) -> bool {
        let own = self.all.iter().find(|(own, _)| *own == branch);
        own.is_some_and(|(_, regex)| is_match(regex, value))
    }
}

/// Whether an expression matches every value, by its text alone.
pub(crate) fn is_for_all(regex: &str) -> bool {
    FOR_ALL.contains(&regex)
}

/// Whether an expression matches the whole value. Compiles it, so it is slow.
pub(crate) fn is_match(regex: &str, value: &[u8]) -> bool {
    let compiled = build([regex].into_iter(), LARGEST);
    compiled.is_ok_and(|compiled| search(&compiled, value).is_some())
}

/// Checks one expression.
///
/// # Errors
/// The expression is invalid or too large.
pub(crate) fn check(regex: &str) -> Result<(), Message> {
    if regex.len() > LONGEST {
        return Err(messages::regex_too_long(LONGEST));
    }
    let no_regex = |error: &str| messages::no_regex(last_line(error));
    // By itself first: a group that the expression closes is its own.
    if let Err(error) = syntax::parse_with(regex, &syntax_config()) {
        return Err(no_regex(&error.to_string()));
    }
    match build([regex].into_iter(), LARGEST) {
        Ok(_) => Ok(()),
        Err(None) => Err(messages::regex_too_large(LARGEST)),
        Err(Some(error)) if error.contains("word boundar") => Err(messages::regex_word_boundary()),
        Err(Some(error)) => Err(no_regex(&error)),
    }
}

/// The last line of a message, after the expression and the marks below it.
fn last_line(message: &str) -> &str {
    let line = message.trim_end().lines().next_back();
    let line = line.unwrap_or_default().trim();
    line.strip_prefix("error: ").unwrap_or(line)
}

fn syntax_config() -> syntax::Config {
    syntax::Config::new()
        .utf8(false)
        .dot_matches_new_line(true)
        .nest_limit(DEEPEST)
}

type Table = dense::DFA<Vec<u32>>;

/// Compiles expressions.
///
/// # Errors
/// They are invalid; `None`: they are too large.
fn build<'r>(all: impl Iterator<Item = &'r str>, largest: usize) -> Result<Table, Option<String>> {
    let whole: Vec<String> = all.map(|regex| format!("\\A(?:{regex})\\z")).collect();
    let config = thompson::Config::new().utf8(false);
    let nfa = thompson::Compiler::new()
        .configure(config.nfa_size_limit(Some(LARGEST_NFA)))
        .syntax(syntax_config())
        .build_many(&whole)
        .map_err(|error| error.size_limit().is_none().then(|| error.to_string()))?;
    let config = dense::Config::new()
        .start_kind(StartKind::Anchored)
        .match_kind(MatchKind::LeftmostFirst)
        .dfa_size_limit(Some(largest))
        .determinize_size_limit(Some(largest));
    dense::Builder::new()
        .configure(config)
        .build_from_nfa(&nfa)
        .map_err(|error| (!error.is_size_limit_exceeded()).then(|| error.to_string()))
}

/// The number of the first expression that matches the whole value. A table without bytes to stop
/// at always has an answer.
fn search(table: &Table, value: &[u8]) -> Option<usize> {
    let input = Input::new(value).anchored(Anchored::Yes);
    let found = table.try_search_fwd(&input).ok()?;
    found.map(|found| found.pattern().as_usize())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(all: &[&str]) -> Regexes {
        let mut set = Regexes::default();
        all.iter()
            .enumerate()
            .for_each(|(index, regex)| set.add(regex, BranchIndex(index)));
        set.compile().expect("small expressions");
        set
    }

    #[test]
    fn the_first_that_matches_the_whole_value_is_found() {
        let set = set(&[
            "a",
            "a+",
            "(?i)b|bc",
            ".*c",
            "(?-u:\\b)x(?-u:\\b).*",
            "(?-u:\\xff)+",
        ]);
        for (value, expected) in [
            (&b"a"[..], Some(0)),
            (b"aa", Some(1)),
            (b"BC", Some(2)),
            (b"bc", Some(2)),
            (b"abc", Some(3)),
            (b"\nc", Some(3)),
            (b"x y", Some(4)),
            (b"xy", None),
            (b"\xff\xff", Some(5)),
            (b"aab", None),
            (b"", None),
        ] {
            assert_eq!(set.find(value).map(|found| found.0), expected, "{value:?}");
            for index in 0..6 {
                let is_first = set.find(value) == Some(BranchIndex(index));
                assert!(!is_first || set.has(BranchIndex(index), value));
            }
        }
    }

    #[test]
    fn what_is_wrong_or_too_large_is_refused() {
        for (regex, why) in [
            ("(", "unclosed group"),
            ("a)(b", "unopened group"),
            ("(?=a)", "look-around"),
            ("(a)\\1", "backreferences"),
            ("a{100000}", "bytes"),
            ("\\w{100}", "bytes"),
            (".*a.{15}", "bytes"),
            ("\\bx", "word boundary"),
            ("((a{100}){100}){100}", "bytes"),
            (
                &"(".repeat(60)
                    .chars()
                    .chain(")".repeat(60).chars())
                    .collect::<String>(),
                "nest",
            ),
            (&"a".repeat(LONGEST + 1), "bytes"),
        ] {
            let error = check(regex).expect_err(regex);
            assert!(error.what.contains(why), "{error:?}");
        }
        for regex in ["(a|b)+c", "\\d{1,3}", "", "(?i)bot.*", "[^/]+/v[0-9]+"] {
            assert_eq!(check(regex), Ok(()), "{regex}");
        }
    }

    #[test]
    fn many_together_are_too_large() {
        let mut set = Regexes::default();
        for index in 0..20 {
            set.add(&format!(".*word{index}.*"), BranchIndex(index));
        }
        assert_eq!(set.compile(), Err(BranchIndex(19)));
        let mut set = Regexes::default();
        for index in 0..200 {
            set.add(&format!("/v{index}/items/[0-9]+(/.*)?"), BranchIndex(index));
        }
        assert!(set.compile().is_ok_and(|bytes| bytes < 2 << 20));
        assert_eq!(set.find(b"/v199/items/7/x"), Some(BranchIndex(199)));
    }

    #[test]
    fn a_long_value_takes_one_step_for_each_byte_and_no_memory() {
        let set = set(&["(a*)*b", "(a|a)*c", "(.*)(.*)(.*)d"]);
        let value = vec![b'a'; 1 << 20];
        let counted = allocation_counter::measure(|| {
            assert_eq!(set.find(&value), None);
            assert!(set.find(b"aaaaab").is_some() && set.find(b"zzzz").is_none());
        });
        assert_eq!(counted.count_total, 0);
    }
}
