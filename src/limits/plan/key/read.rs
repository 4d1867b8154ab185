//! Reads a counter key again, for people: its domain, and the entries of its path.

use percent_encoding::percent_decode;
use serde::{Deserialize, Serialize};

use super::{DIGEST, PATTERN, VALUE};
use crate::core::ask::written;

/// An entry of a descriptor as text, as lists and answers show it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct EntryText {
    /// The key.
    pub key: String,
    /// The value as it was sent, whatever it contains. One of more than 128 bytes is `sha256:` with
    /// its digest, where Weir knows it by that only.
    pub value: String,
}

impl EntryText {
    /// `key=value` as operators write it in commands, which then mean this value and no other.
    #[must_use]
    pub fn written(&self) -> String {
        written::entry(self.key.as_bytes(), self.value.as_bytes())
    }
}

/// What a key names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Parts {
    /// The domain.
    pub domain: String,
    /// Keys and values; for a shared counter the pattern. What the key has a digest of reads
    /// `sha256:` and the digest.
    pub entries: Vec<EntryText>,
}

/// The characters of a digest in a key.
const DIGEST_CHARS: usize = 64;

/// Reads a key as [`super::write`] writes it, also one whose end is missing. Bytes that are not
/// UTF-8 are shown as `\xff`.
pub(crate) fn read(key: &[u8]) -> Parts {
    // Neither the prefix nor an escaped part contains a brace.
    let path = match key.contains(&b'{') {
        true => super::subject(key),
        false => &[],
    };
    let mut parts = path.split(|&byte| byte == b'|');
    let domain = parts.next().unwrap_or_default();
    let domain = text(domain.strip_suffix(b"}").unwrap_or(domain));
    Parts {
        domain,
        entries: parts.map(entry).collect(),
    }
}

fn entry(part: &[u8]) -> EntryText {
    // A long key is a digest itself, behind the same mark as that of a value.
    let is_digest = part.first() == Some(&DIGEST);
    let from = if is_digest {
        (1 + DIGEST_CHARS).min(part.len())
    } else {
        0
    };
    let end = part[from..]
        .iter()
        .position(|byte| [VALUE, PATTERN, DIGEST].contains(byte))
        .map_or(part.len(), |at| from + at);
    let (key, value) = part.split_at(end);
    let value = match value {
        [VALUE | PATTERN, rest @ ..] => rest,
        digest => digest,
    };
    EntryText {
        key: text(key),
        value: text(value),
    }
}

/// A part without its escapes.
fn text(part: &[u8]) -> String {
    if let Some((&DIGEST, digest)) = part.split_first() {
        return format!("sha256:{}", String::from_utf8_lossy(digest));
    }
    let bytes: Vec<u8> = percent_decode(part).collect();
    let mut shown = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        shown.push_str(chunk.valid());
        for byte in chunk.invalid() {
            shown.push_str(&format!("\\x{byte:02x}"));
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::core::algorithm::{Algorithm, Options};
    use crate::core::ask::Entry;
    use crate::core::time::{Rate, Unit};
    use crate::limits::rules::Commit;
    use crate::limits::rules::limit::Level;

    fn key(domain: &str, entries: &[(&str, &str)], levels: &[Level]) -> Vec<u8> {
        key_of(domain, entries, levels, Commit::Each)
    }

    fn key_of(domain: &str, entries: &[(&str, &str)], levels: &[Level], commit: Commit) -> Vec<u8> {
        let rate = Rate {
            requests_per_unit: 1,
            unit: Unit::Minute,
            unit_multiplier: 1,
        };
        let algorithm = Algorithm::try_new(&rate, &Options::default()).expect("a limit");
        let entries: Vec<_> = entries
            .iter()
            .map(|(key, value)| Entry {
                key: key.as_bytes(),
                value: value.as_bytes(),
            })
            .collect();
        let mut key = Vec::new();
        super::super::write(
            &mut key,
            "prefix:",
            domain.as_bytes(),
            &entries,
            levels,
            Some(&algorithm),
            commit,
        );
        key
    }

    fn owned(entries: &[(&str, &str)]) -> Vec<EntryText> {
        entries
            .iter()
            .map(|&(key, value)| EntryText {
                key: key.to_owned(),
                value: value.to_owned(),
            })
            .collect()
    }

    #[test]
    fn patterns_digests_and_bytes_are_readable() {
        let level = Level {
            key: "path".into(),
            value: Some("/a*".into()),
            share_threshold: true,
            ..Level::default()
        };
        assert_eq!(
            read(&key("d", &[("path", "/ab")], &[level])).entries,
            owned(&[("path", "/a*")])
        );
        let long = "x".repeat(200);
        let Parts { domain, entries } = read(&key(
            &long,
            &[(&long, "v"), ("k", &long), (&long, &long)],
            &[],
        ));
        let is_digest = |text: &str| {
            text.strip_prefix("sha256:")
                .is_some_and(|digits| digits.len() == DIGEST_CHARS)
        };
        let [one, two, three] = entries.as_slice() else {
            panic!("{entries:?}")
        };
        assert!(
            [&domain, &one.key, &two.value, &three.key, &three.value]
                .into_iter()
                .all(|text| is_digest(text)),
            "{entries:?}"
        );
        assert_eq!((one.value.as_str(), two.key.as_str()), ("v", "k"));
        assert_eq!(
            read(b"w1{d|k=%zz%f").entries,
            owned(&[("k", "%zz%f")]),
            "not written by Weir"
        );
        assert_eq!(
            read(b"w1{d|k=a\xffb}fw60").entries,
            owned(&[("k", "a\\xffb")])
        );
        assert_eq!(
            (read(b""), read(b"}{")),
            (Parts::default(), Parts::default())
        );
    }

    proptest! {
        #![proptest_config(crate::testing::property(256))]

        /// What a key was made of is what is read in it.
        #[test]
        fn a_key_is_read_as_it_was_written(domain in "[a-z|{}%#=~./]{1,12}", entries in prop::collection::vec(("[a-z|{}%#=~]{1,6}", "\\PC{0,20}"), 1..4), in_slot: bool) {
            let entries: Vec<_> = entries.iter().map(|(key, value)| (&**key, &**value)).collect();
            let commit = if in_slot { Commit::AllOrNone } else { Commit::Each };
            prop_assert_eq!(read(&key_of(&domain, &entries, &[], commit)), Parts { domain, entries: owned(&entries) });
        }

        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            read(&bytes);
        }
    }
}
