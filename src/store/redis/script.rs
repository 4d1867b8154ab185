//! The scripts that run inside Redis: their text, and the name under which Redis keeps them.
//!
//! A script is asked for by its SHA-1, and sent whole only when Redis does not know it. Nothing of a request is ever part of a script's text:
//! Redis keeps every different text.

use std::sync::LazyLock;

use sha1::{Digest, Sha1};

/// A script.
#[derive(Debug)]
pub(super) struct Script {
    pub(super) text: &'static str,
    /// SHA-1 in hexadecimal digits, as EVALSHA takes it.
    pub(super) hash: String,
}

/// Gives back hits of fixed windows; see the file for arguments and reply.
pub(super) static FIXED_WINDOW: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("../../../lua/fixed_window.lua")));

impl Script {
    fn new(text: &'static str) -> Self {
        let hash = Sha1::digest(text).iter().map(|byte| format!("{byte:02x}")).collect();
        Self { text, hash }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_redis_s() {
        // SCRIPT LOAD "return 1" answers this.
        assert_eq!(Script::new("return 1").hash, "e0e1f9fabfc9d4800c877a703b823ac0578ff8db");
    }
}
