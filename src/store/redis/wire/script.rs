//! The Lua script that runs inside Redis: its texts, and the SHA-1 digests under which Redis caches
//! them.
//!
//! The files of `lua/` are joined to one script. Weir calls it by its digest (EVALSHA), and sends
//! the text (EVAL) only when Redis answers NOSCRIPT. Nothing of a request may become part of the
//! text, because Redis caches every different text. There are two: one for declared keys, and one
//! for keys of several hash slots, which decides the same and reads each key by itself.
//!
//! Source: redis.io, command pages of EVAL and EVALSHA.
//!
//! The script decides everything but plain fixed windows. It reads and steps everything first and
//! writes last. A million random operations per algorithm give the same verdicts and states as the
//! Rust steps (`tests/it/redis/differential.rs`; each test run does fewer,
//! `WEIR_DIFFERENTIAL_OPERATIONS` sets how many).

use std::sync::LazyLock;

use ring::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};

use crate::core::algorithm;
use crate::core::digest::hex;
use crate::store::redis::wire::call::sections::SECTIONS;

/// A text of the script.
#[derive(Debug)]
pub(crate) struct Script {
    pub(crate) text: String,
    /// Its SHA-1 digest as 40 lower-case hexadecimal digits: the first argument of EVALSHA.
    pub(crate) hash: String,
}

/// The script on declared keys, which in a cluster belong to one hash slot.
pub(crate) static SCRIPT: LazyLock<Script> =
    LazyLock::new(|| Script::new("", include_str!("../../../../lua/read_at_once.lua")));

/// The script on keys of several hash slots of one node of a cluster: its keys are arguments.
pub(crate) static CROSS_SLOT_SCRIPT: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        include_str!("../../../../lua/undeclared_keys.lua"),
        include_str!("../../../../lua/read_each.lua"),
    )
});

impl Script {
    /// `frame.lua` comes first, after `keys`, because the algorithms register their steps in its
    /// table; the scripts of sections, of which each may call those before it, come after them;
    /// `decide.lua`, which calls the steps, comes last, after `reads`, which reads the states.
    fn new(keys: &str, reads: &str) -> Self {
        let mut text = keys.to_owned();
        text += concat!(
            include_str!("../../../../lua/frame.lua"),
            include_str!("../../../../lua/all_or_none.lua"),
            include_str!("../../../../lua/log.lua"),
        );
        text.extend(algorithm::TABLE.iter().map(|spec| spec.script));
        text.extend(SECTIONS.iter().rev().map(|section| section.script));
        text += include_str!("../../../../lua/clock.lua");
        text += reads;
        text += include_str!("../../../../lua/decide.lua");
        let hash = hash(&text);
        Self { text, hash }
    }
}

fn hash(text: &str) -> String {
    hex(digest(&SHA1_FOR_LEGACY_USE_ONLY, text.as_bytes()).as_ref())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_the_one_that_redis_computes() {
        // What SCRIPT LOAD "return 1" answers.
        assert_eq!(hash("return 1"), "e0e1f9fabfc9d4800c877a703b823ac0578ff8db");
    }

    /// The numbers of a line of Lua that are no comment.
    fn numbers(line: &str) -> impl Iterator<Item = u8> {
        let code = line.split("--").next().unwrap_or_default();
        code.split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
            .filter_map(|word| word.parse().ok())
    }

    #[test]
    fn the_script_has_a_step_under_the_code_of_each_algorithm() {
        for spec in &algorithm::TABLE {
            let step = format!("steps[{}] = function(", spec.wire_code);
            assert_eq!(spec.script.matches(&step).count(), 1, "{}", spec.name);
            let others = algorithm::TABLE
                .iter()
                .filter(|other| other.wire_code != spec.wire_code);
            for line in spec.script.lines() {
                assert!(
                    others
                        .clone()
                        .all(|other| numbers(line).all(|number| number != other.wire_code)),
                    "{}: {line}",
                    spec.name
                );
            }
        }
    }

    #[test]
    fn each_code_in_the_script_carries_its_letter() {
        let codes: Vec<u8> = algorithm::TABLE
            .iter()
            .map(|spec| spec.wire_code)
            .chain([b'A', b'R', b'U'])
            .collect();
        let mut found = 0;
        for line in CROSS_SLOT_SCRIPT.text.lines() {
            for code in numbers(line).filter(|number| codes.contains(number)) {
                found += 1;
                assert!(line.contains(&format!("'{}'", char::from(code))), "{line}");
            }
        }
        assert!(found > 20, "{found}");
    }

    #[test]
    fn the_script_answers_rows_of_the_size_in_the_table() {
        for spec in &algorithm::TABLE {
            let wide = format!("code == {} and 32 or 24", spec.wire_code);
            let is_wide = SCRIPT.text.contains(&wide);
            assert_eq!(
                if is_wide { 4 } else { 3 },
                spec.reply_numbers,
                "{}",
                spec.name
            );
        }
    }
}
