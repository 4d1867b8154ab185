//! The script that runs inside Redis: its text, and the name under which Redis keeps it.
//!
//! All of `lua/` is one text. It is asked for by its SHA-1, and sent whole only when Redis does not know it. Nothing of a request is ever
//! part of it: Redis keeps every different text.

use std::sync::LazyLock;

use sha1::{Digest, Sha1};

/// The frame first, because the algorithms enter themselves into its tables; last what runs them.
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

/// SHA-1 of the text in hexadecimal digits, as EVALSHA takes it.
pub(crate) static HASH: LazyLock<String> = LazyLock::new(|| hash(TEXT));

fn hash(text: &str) -> String {
    Sha1::digest(text).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_redis_s() {
        // SCRIPT LOAD "return 1" answers this.
        assert_eq!(hash("return 1"), "e0e1f9fabfc9d4800c877a703b823ac0578ff8db");
    }
}
