//! Values of descriptors in logs, in the form that `LOG_SUBJECTS` selects. Values are hashed with a
//! secret only, because all addresses of IPv4 can be hashed in seconds. HMAC-SHA256 is the hash
//! that an operator's `openssl` computes too.

use std::borrow::Cow;
use std::sync::Arc;

use ring::hmac::{self, HMAC_SHA256};
use ring::rand::SystemRandom;

use crate::core::digest::{LONGEST_PLAIN, hex, sha256};
use crate::core::request::notation::Role;
use crate::limits::overrides::{Pattern, Value};

/// Characters of a domain, a key or a value.
pub(crate) const LONGEST_TEXT: usize = 64;
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
    /// As the first 16 digits of their HMAC-SHA256. Equal values are recognised, and no value can
    /// be found by trying all.
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
    pub(crate) fn display(&self, value: &[u8]) -> Option<Cow<'static, str>> {
        match self {
            Self::Plain => Some(format!("{:?}", cut(value)).into()),
            Self::Hashed(secret) => {
                // Overrides and subjects have only the digest of a long value.
                let long = (value.len() > LONGEST_PLAIN).then(|| hex(&sha256(value)));
                let digest = hmac::sign(secret, long.as_ref().map_or(value, String::as_bytes));
                Some(hex(&digest.as_ref()[..DIGEST_BYTES]).into())
            }
            Self::Off => None,
        }
    }

    /// An entry of an override or a reset, as operators write it, with its value in this form.
    pub fn entry(&self, entry: &Pattern) -> String {
        let text = entry.to_string();
        if let (Self::Plain, _) | (_, Value::Any) = (self, &entry.value) {
            return text;
        }
        let (key, written) = text.split_at(entry.key.escaped(Role::Key).len());
        let literal = entry.exact().map(|(_, value)| value.as_bytes());
        match self.display(literal.unwrap_or(&written.as_bytes()[1..])) {
            Some(value) => format!("{key}={value}"),
            None => key.to_owned(),
        }
    }
}

/// The first characters; bytes that are not UTF-8 as U+FFFD.
pub(crate) fn cut(bytes: &[u8]) -> String {
    // A character has at most four bytes: this is enough for all characters that are kept.
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

    #[test]
    fn a_text_is_cut_only_where_it_is_longer() {
        let longest = "x".repeat(LONGEST_TEXT);
        assert_eq!(cut(longest.as_bytes()), longest);
        assert_eq!(cut(format!("{longest}y").as_bytes()), longest + "...");
    }

    #[test]
    fn an_entry_of_an_override_has_the_digest_of_its_value() {
        // `printf %s 'what do ya want for nothing?' | openssl dgst -sha256 -hmac Jefe`; RFC 4231, 4.3.
        let entries = [
            "user=what do ya want for nothing?",
            "user",
            r"a\=\*",
            "ip=10.0.0.0/8",
        ];
        let entries = entries.map(|text| text.parse::<Pattern>().expect(text).canonical());
        let shown = |values: &LoggedValues| entries.each_ref().map(|entry| values.entry(entry));
        assert_eq!(shown(&LoggedValues::Off), ["user", "user", r"a\\", "ip"]);
        let hashed = shown(&LoggedValues::hashed_with(b"Jefe"));
        assert_eq!(hashed[..2], ["user=5bdcc146bf60754e", "user"]);
        assert!(hashed[2].len() == r"a\\=".len() + 16 && !hashed[3].contains("10"));
        assert_eq!(
            shown(&LoggedValues::Plain),
            entries.each_ref().map(ToString::to_string)
        );
        let digest = Pattern::literal("key", &[b'k'; 200]).by_digest();
        assert_eq!(LoggedValues::Off.entry(&digest), "key");
        let secret = LoggedValues::hashed_with(b"Jefe");
        let whole = secret.entry(&Pattern::literal("key", &[b'k'; 200]));
        assert_eq!(secret.entry(&digest), whole, "one value, one digest");
        assert!(LoggedValues::Plain.entry(&digest).starts_with("key#"));
    }
}
