//! How logs show what clients chose: escaped, cut, and as `LOG_SUBJECTS` says.
//!
//! Values are hashed with a secret only, because all addresses of IPv4 can be hashed in seconds.
//! HMAC-SHA256 is what the `openssl` of an operator computes too.

use std::borrow::Cow;
use std::fmt::Write;
use std::sync::Arc;

use ring::hmac::{self, HMAC_SHA256};
use ring::rand::SystemRandom;

use crate::core::ask::Entry;
use crate::core::digest::hex;
use crate::core::verdict::{Decision, Wait};
use crate::limits::plan::{By, Outcome};

/// Characters of a domain, a key or a value.
pub(crate) const LONGEST_TEXT: usize = 64;
/// Entries of a descriptor that a line shows.
const MAX_ENTRIES: usize = 8;
/// Bytes of a digest that are shown, as two digits each.
const DIGEST_BYTES: usize = 8;

/// The shortest secret of digests in bytes. A shorter one can be found by trying.
pub const MIN_SECRET_BYTES: usize = 16;

/// How logs show the values of descriptors. Keys, domains and limits are of the configuration and
/// always shown.
#[derive(Clone, Debug, Default)]
pub enum LoggedValues {
    /// As they are.
    #[default]
    Plain,
    /// As the first 16 digits of their HMAC-SHA256, so that equal values are recognised and none
    /// can be found by trying all.
    Hashed(Arc<hmac::Key>),
    /// Not at all.
    Off,
}

impl LoggedValues {
    /// Digests with this secret: equal in all processes that have it.
    pub fn hashed_with(secret: &[u8]) -> Self {
        Self::Hashed(Arc::new(hmac::Key::new(HMAC_SHA256, secret)))
    }

    /// Digests with a random secret: equal in this process until it ends. `None`: the operating
    /// system gives no random numbers.
    pub fn hashed() -> Option<Self> {
        hmac::Key::generate(HMAC_SHA256, &SystemRandom::new())
            .ok()
            .map(|key| Self::Hashed(Arc::new(key)))
    }

    /// A value as it is shown; `None`: not at all.
    fn shown(&self, value: &[u8]) -> Option<Cow<'static, str>> {
        match self {
            Self::Plain => Some(format!("{:?}", cut(value)).into()),
            Self::Hashed(secret) => {
                let digest = hmac::sign(secret, value);
                Some(hex(&digest.as_ref()[..DIGEST_BYTES]).into())
            }
            Self::Off => None,
        }
    }
}

/// What decided, if anything did.
pub(super) const fn by(outcome: &Outcome<'_>) -> Option<&'static str> {
    match outcome.by {
        By::NoLimit | By::Unlimited => None,
        By::Exempt | By::Block(_) => Some("override"),
        By::Check { decision, .. } => match decision {
            Decision::Store(_) => Some("store"),
            Decision::Lease(_) => Some("lease"),
            Decision::DenialCache(_) => Some("denial_cache"),
            failed => failed.policy(),
        },
    }
}

/// When a refused check would be allowed.
pub(super) fn retry_after(decision: &Decision) -> Option<String> {
    decision.retry_after().map(|wait| match wait {
        Wait::For(span) => span.to_string(),
        Wait::Never => "never".to_owned(),
    })
}

/// The entries, values and unusual keys in Rust's notation of texts, so that none looks like
/// another entry.
pub(super) fn shown(entries: &[Entry<'_>], values: &LoggedValues) -> String {
    let mut text = String::new();
    for (index, entry) in entries.iter().take(MAX_ENTRIES).enumerate() {
        let comma = if index == 0 { "" } else { ", " };
        let (equals, value) = values
            .shown(entry.value)
            .map_or(("", Cow::default()), |value| ("=", value));
        let key = cut(entry.key);
        let is_plain = !key.is_empty()
            && key
                .chars()
                .all(|char| char.is_alphanumeric() || "_-.:/@".contains(char));
        let key = if is_plain { key } else { format!("{key:?}") };
        // Writing to a string does not fail.
        let _ = write!(text, "{comma}{key}{equals}{value}");
    }
    if let Some(more @ 1..) = entries.len().checked_sub(MAX_ENTRIES) {
        let _ = write!(text, " and {more} more");
    }
    text
}

/// The first characters; bytes that are not UTF-8 as U+FFFD.
pub(super) fn cut(bytes: &[u8]) -> String {
    // A character has at most four bytes, so that this is enough for all that are kept.
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(4 * LONGEST_TEXT)]);
    let mut kept: String = text.chars().take(LONGEST_TEXT).collect();
    if kept.len() < bytes.len() && text.chars().count() >= LONGEST_TEXT {
        kept.push_str("...");
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry<'a>(key: &'a str, value: &'a str) -> Entry<'a> {
        Entry {
            key: key.as_bytes(),
            value: value.as_bytes(),
        }
    }

    #[test]
    fn keys_and_values_are_escaped_and_cut() {
        let shown = |entries: &[Entry<'_>]| shown(entries, &LoggedValues::Plain);
        let long = "é".repeat(10_000);
        let text = shown(&[entry("k", "a\", forged=\"b\n"), entry("long", &long)]);
        let expected = format!(
            "k=\"a\\\", forged=\\\"b\\n\", long=\"{}...\"",
            "é".repeat(LONGEST_TEXT)
        );
        assert_eq!(text, expected);
        assert_eq!(
            shown(&[Entry {
                key: b"k",
                value: b"\xff"
            }]),
            "k=\"\u{fffd}\""
        );
        assert_eq!(
            shown(&[entry("a, b=\"c\"", "v"), entry("", "")]),
            "\"a, b=\\\"c\\\"\"=\"v\", \"\"=\"\""
        );
        let many = vec![entry("k", "v"); 64];
        assert!(shown(&many).ends_with("k=\"v\" and 56 more"));
        assert_eq!(
            cut("x".repeat(LONGEST_TEXT).as_bytes()),
            "x".repeat(LONGEST_TEXT)
        );
    }

    /// The digest is that of RFC 4231, test case 2, so that other programs compute it too.
    #[test]
    fn values_are_hashed_or_left_out() {
        let entries = [
            entry("user", "what do ya want for nothing?"),
            entry("path", ""),
        ];
        assert_eq!(
            shown(&entries, &LoggedValues::hashed_with(b"Jefe")),
            "user=5bdcc146bf60754e, path=923598ca6d64af2a"
        );
        assert_eq!(shown(&entries, &LoggedValues::Off), "user, path");
        let (one, other) = (
            LoggedValues::hashed().expect("random numbers"),
            LoggedValues::hashed().expect("random numbers"),
        );
        assert_eq!(shown(&entries, &one), shown(&entries, &one.clone()));
        assert_ne!(shown(&entries, &one), shown(&entries, &other));
        assert_eq!(format!("{one:?}"), "Hashed(Key { algorithm: SHA256 })");
    }
}
