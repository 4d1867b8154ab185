//! The Lua script that runs inside Redis: its text, and the SHA-1 digest under which Redis caches it.
//!
//! All files of `lua/` are joined to one script. Weir calls it by its digest (EVALSHA), and sends the text (EVAL) only when Redis answers
//! NOSCRIPT. Nothing of a request may become part of the text, because Redis caches every different text.
//!
//! Source: redis.io, command pages of EVAL and EVALSHA.

use std::sync::LazyLock;

use sha1::{Digest, Sha1};

/// The text of the script. `frame.lua` comes first because the algorithms register their steps in its table; `decide.lua`, which calls the steps,
/// comes last.
pub(crate) const TEXT: &str = concat!(
    include_str!("../../../../lua/frame.lua"),
    include_str!("../../../../lua/all_or_none.lua"),
    include_str!("../../../../lua/fixed_window.lua"),
    include_str!("../../../../lua/log.lua"),
    include_str!("../../../../lua/sliding_window_log.lua"),
    include_str!("../../../../lua/sliding_window_counter.lua"),
    include_str!("../../../../lua/sliding_window_buckets.lua"),
    include_str!("../../../../lua/token_bucket.lua"),
    include_str!("../../../../lua/leaky_bucket.lua"),
    include_str!("../../../../lua/decide.lua"),
);

/// The SHA-1 digest of [`TEXT`] as 40 lower-case hexadecimal digits: the first argument of EVALSHA.
pub(crate) static HASH: LazyLock<String> = LazyLock::new(|| hash(TEXT));

fn hash(text: &str) -> String {
    Sha1::digest(text).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_the_one_that_redis_computes() {
        // What SCRIPT LOAD "return 1" answers.
        assert_eq!(hash("return 1"), "e0e1f9fabfc9d4800c877a703b823ac0578ff8db");
    }
}
