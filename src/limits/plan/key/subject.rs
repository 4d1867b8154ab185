//! A subject: the text inside the hash tag of its counter keys, and its exact name, such as
//! `shop|user=42`.
//!
//! No two subjects have the same name, whatever bytes a client sends. Therefore a row of a list can
//! be queried, reset and overridden by its name. A name consists of visible characters: any byte
//! may be written as `%` and two digits, and the separators of the parts have to be.
//!
//! A digest may belong to values of several limits. All of these are candidates, and more than one
//! is an error instead of a guess.

use std::fmt::{self, Write};
use std::str::FromStr;

use ipnet::Ipv6Net;
use percent_encoding::percent_decode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{DIGEST, PATTERN, VALUE, is_escaped, write_part};
use crate::core::request::notation::is_visible;
use crate::core::request::{DecodedRequest, Descriptor, Entry, MAX_ENTRIES};

/// Maximum bytes of a name: of a descriptor with this number of entries, all of them escaped.
pub(crate) const MAX_NAME_BYTES: usize = 64 << 10;

/// Hexadecimal digits of a SHA-256.
const DIGEST_CHARS: usize = 64;

/// An entry of a descriptor as text, in lists and responses.
#[derive(
    Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, JsonSchema, Serialize, Deserialize,
)]
#[schemars(rename = "Entry")]
pub struct EntryText {
    pub key: String,
    /// The value as it was sent. Bytes that are not UTF-8 are U+FFFD. A value of more than 128
    /// bytes is `sha256:` with its digest if Weir has only the digest.
    pub value: String,
}

impl fmt::Display for EntryText {
    /// `key=value` as operators write it in commands, which then mean this value and no other.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (key, value) = (self.key.as_bytes(), self.value.as_bytes());
        Entry { key, value }.fmt(out)
    }
}

/// One counter of a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Subject {
    pub domain: Part,
    /// In the order of the descriptor.
    pub entries: Vec<SubjectEntry>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SubjectEntry {
    pub key: Part,
    pub value: Part,
    /// The value is a pattern, whose values share the counter.
    pub is_shared: bool,
}

/// A text in a key, or the digest of a long text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Text(Vec<u8>),
    /// The SHA-256 of a text of more than 128 bytes, in lower-case hexadecimal digits.
    Digest(String),
}

/// Why a text is not the name of a subject.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("subject: {0}; copy the `subject` of an answer, such as shop|user=42")]
pub(crate) struct NoSubject(&'static str);

impl fmt::Display for Subject {
    /// Its name.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for chunk in self.tag().utf8_chunks() {
            for letter in chunk.valid().chars() {
                if is_visible(letter) && letter != ' ' {
                    out.write_char(letter)?;
                } else {
                    escape(out, letter.encode_utf8(&mut [0; 4]).as_bytes())?;
                }
            }
            escape(out, chunk.invalid())?;
        }
        Ok(())
    }
}

fn escape(out: &mut fmt::Formatter<'_>, bytes: &[u8]) -> fmt::Result {
    bytes.iter().try_for_each(|byte| write!(out, "%{byte:02x}"))
}

impl FromStr for Subject {
    type Err = NoSubject;

    /// Reads a name.
    fn from_str(name: &str) -> Result<Self, NoSubject> {
        if name.len() > MAX_NAME_BYTES {
            return Err(NoSubject("it is longer than 64 KiB"));
        }
        let mut parts = name.as_bytes().split(|&byte| byte == b'|');
        let domain = parts.next().unwrap_or_default();
        check_part(domain)?;
        if domain.is_empty() {
            return Err(NoSubject("it begins with no domain"));
        }
        parts.try_for_each(check_entry)?;
        let subject = Self::of_tag(name.as_bytes());
        if subject.entries.is_empty() || subject.entries.len() > MAX_ENTRIES {
            return Err(NoSubject("it has no entries, or more than 64"));
        }
        Ok(subject)
    }
}

/// Checks one entry of a name.
fn check_entry(entry: &[u8]) -> Result<(), NoSubject> {
    let (key, mark, value) = split_entry(entry);
    let mark = mark.ok_or(NoSubject("an entry has no value"))?;
    // A digest replaces the mark of a value.
    if mark == VALUE && value.first() == Some(&DIGEST) {
        return Err(NoSubject("a # of a value is written %23"));
    }
    check_part(key)?;
    if key.is_empty() {
        return Err(NoSubject("a key is empty"));
    }
    check_part(value)
}

/// Checks one part of a name.
fn check_part(part: &[u8]) -> Result<(), NoSubject> {
    if let [DIGEST, digest @ ..] = part {
        let is_digit = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        let is_digest = digest.len() == DIGEST_CHARS && digest.iter().all(is_digit);
        let what = NoSubject("a # is followed by the 64 digits of a SHA-256");
        return is_digest.then_some(()).ok_or(what);
    }
    let mut bytes = part.iter();
    while let Some(byte) = bytes.next() {
        let mut is_digit = || bytes.next().is_some_and(u8::is_ascii_hexdigit);
        if *byte == b'%' {
            if !(is_digit() && is_digit()) {
                return Err(NoSubject("a % is followed by two hexadecimal digits"));
            }
        } else if is_escaped(*byte) {
            let what = "a part has one of {}|=~#, which is written as % and two digits";
            return Err(NoSubject(what));
        }
    }
    Ok(())
}

/// The key of an entry, the mark after it (`None` where the end is missing), and the value, which
/// includes the mark of a digest.
fn split_entry(entry: &[u8]) -> (&[u8], Option<u8>, &[u8]) {
    // A key that is a digest begins with the mark of one.
    let from = usize::from(entry.first() == Some(&DIGEST));
    let is_mark = |byte: &u8| [VALUE, PATTERN, DIGEST].contains(byte);
    let at = entry.iter().skip(from).position(is_mark);
    let (key, value) = entry.split_at(at.map_or(entry.len(), |at| from + at));
    let mark = value.first().copied();
    let has_text = mark.is_some_and(|mark| mark != DIGEST);
    (key, mark, &value[usize::from(has_text)..])
}

impl Subject {
    /// The subject of these entries, where no limit shares its counter.
    pub(crate) fn new<'e>(domain: &[u8], entries: impl IntoIterator<Item = Entry<'e>>) -> Self {
        let entry = |entry: Entry<'_>| SubjectEntry {
            key: Part::Text(entry.key.to_vec()),
            value: Part::Text(entry.value.to_vec()),
            is_shared: false,
        };
        Self {
            domain: Part::Text(domain.to_vec()),
            entries: entries.into_iter().map(entry).collect(),
        }
    }

    /// The subject of a counter key, or of the key of a usage record, also of one whose end is
    /// missing.
    pub(crate) fn of_key(key: &[u8]) -> Self {
        Self::of_tag(super::subject(key))
    }

    /// Reads the output of [`Subject::tag`], or the text between the braces of a key, which has one
    /// after a domain that is the hash tag.
    fn of_tag(tag: &[u8]) -> Self {
        let mut parts = tag.split(|&byte| byte == b'|');
        let domain = parts.next().unwrap_or_default();
        let entry = |entry| {
            let (key, mark, value) = split_entry(entry);
            SubjectEntry {
                key: Part::read(key),
                value: Part::read(value),
                is_shared: mark == Some(PATTERN),
            }
        };
        Self {
            domain: Part::read(domain.strip_suffix(b"}").unwrap_or(domain)),
            entries: parts.map(entry).collect(),
        }
    }

    /// The text inside the hash tag of its counter keys.
    pub(crate) fn tag(&self) -> Vec<u8> {
        let mut tag = Vec::new();
        self.domain.write(&mut tag, None);
        for entry in &self.entries {
            let mark = if entry.is_shared { PATTERN } else { VALUE };
            tag.push(b'|');
            entry.key.write(&mut tag, None);
            entry.value.write(&mut tag, Some(mark));
        }
        tag
    }

    /// Its only descriptor.
    ///
    /// # Errors
    /// Several values share the subject, or only the digest of a text is available: the reason.
    pub(crate) fn exact(&self) -> Result<DecodedRequest<'_>, &'static str> {
        let shared = "all values that match the pattern share the counter; write the entries of \
            one of them";
        match self.is_shared() {
            true => Err(shared),
            false => self.one_of(),
        }
    }

    /// Its entries, as lists show them.
    pub(crate) fn texts(&self) -> Vec<EntryText> {
        let text = |entry: &SubjectEntry| EntryText {
            key: entry.key.to_string(),
            value: entry.value.to_string(),
        };
        self.entries.iter().map(text).collect()
    }

    /// Whether values share the counter.
    pub(crate) fn is_shared(&self) -> bool {
        self.entries.iter().any(|entry| entry.is_shared)
    }

    /// Like `exact`, and for a counter that values share one of them: the text of the pattern,
    /// which matches itself, or the first address of the network.
    ///
    /// # Errors
    /// Only the digest of a text is available.
    pub(crate) fn one_of(&self) -> Result<DecodedRequest<'_>, &'static str> {
        let Part::Text(domain) = &self.domain else {
            return Err(DIGEST_ONLY);
        };
        let mut request = DecodedRequest::default();
        request.domain = domain;
        for entry in &self.entries {
            let (Part::Text(key), Part::Text(value)) = (&entry.key, &entry.value) else {
                return Err(DIGEST_ONLY);
            };
            let address = first_address(value).filter(|_| entry.is_shared);
            let value = address.unwrap_or(value);
            request.push(Entry { key, value });
        }
        request.close(Descriptor::default());
        Ok(request)
    }
}

const DIGEST_ONLY: &str = "Weir knows a text of more than 128 bytes by its digest only; write the \
    entries with the whole value";

/// The network that groups addresses, if a value is one.
fn network(value: &[u8]) -> Option<Ipv6Net> {
    str::from_utf8(value).ok()?.parse().ok()
}

/// The first address of a network that groups some.
fn first_address(value: &[u8]) -> Option<&[u8]> {
    let network = network(value).filter(|network| network.trunc() == *network);
    network.and(value.split(|&byte| byte == b'/').next())
}

impl SubjectEntry {
    /// The bits of the network that it is, if it is one that groups addresses.
    pub(crate) fn prefix(&self) -> Option<u8> {
        match &self.value {
            Part::Text(value) if self.is_shared => Some(network(value)?.prefix_len()),
            _ => None,
        }
    }
}

impl Part {
    /// A part of a key or of a name, without its escapes.
    fn read(part: &[u8]) -> Self {
        match part {
            [DIGEST, digest @ ..] => Self::Digest(String::from_utf8_lossy(digest).into_owned()),
            text => Self::Text(percent_decode(text).collect()),
        }
    }

    fn write(&self, out: &mut Vec<u8>, mark: Option<u8>) {
        match self {
            Self::Text(text) => write_part(out, mark, text),
            Self::Digest(digest) => {
                out.extend(mark.filter(|&mark| mark == PATTERN));
                out.push(DIGEST);
                out.extend_from_slice(digest.as_bytes());
            }
        }
    }

    /// Whether it is this text.
    pub(crate) fn is(&self, text: &str) -> bool {
        match self {
            Self::Text(known) => known == text.as_bytes(),
            Self::Digest(digest) => {
                let mut part = Vec::new();
                write_part(&mut part, None, text.as_bytes());
                part.strip_prefix(&[DIGEST]) == Some(digest.as_bytes())
            }
        }
    }
}

impl fmt::Display for Part {
    /// Its text, or its digest.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => out.write_str(&String::from_utf8_lossy(text)),
            Self::Digest(digest) => write!(out, "sha256:{digest}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::core::digest::{hex, sha256};
    use proptest::prelude::*;

    use super::*;
    use crate::core::algorithm::{Algorithm, Options};
    use crate::core::time::{Rate, Unit};
    use crate::limits::rules::Commit;
    use crate::limits::rules::limit::Level;

    fn name(key: &[u8]) -> String {
        Subject::of_key(key).to_string()
    }

    fn key(domain: &[u8], entries: &[(&[u8], &[u8])], levels: &[Level]) -> Vec<u8> {
        key_of(domain, entries, levels, Commit::Each)
    }

    fn key_of(
        domain: &[u8],
        entries: &[(&[u8], &[u8])],
        levels: &[Level],
        commit: Commit,
    ) -> Vec<u8> {
        let rate = Rate {
            requests_per_unit: 1,
            unit: Unit::Minute,
            unit_multiplier: 1,
        };
        let algorithm = Algorithm::try_new(&rate, &Options::default()).expect("a limit");
        let entries: Vec<_> = entries
            .iter()
            .map(|&(key, value)| Entry { key, value })
            .collect();
        let mut key = Vec::new();
        super::super::write(
            &mut key,
            "prefix:",
            domain,
            &entries,
            levels,
            Some(&algorithm),
            commit,
        );
        key
    }

    #[test]
    fn names_are_readable_and_exact() {
        assert_eq!(
            name(&key(b"shop", &[(b"user", b"42"), (b"path", b"/a b")], &[])),
            "shop|user=42|path=/a%20b"
        );
        assert_eq!(
            name(&key(b"d", &[(b"a=b", b"\xff\n|#")], &[])),
            "d|a%3db=%ff%0a%7c%23"
        );
        let level = Level {
            key: "path".into(),
            value: Some("/a*".into()),
            is_shared: true,
            ..Level::default()
        };
        let shared = name(&key(b"d", &[(b"path", b"/ab")], &[level]));
        assert_eq!(shared, "d|path~/a*");
        let shared = shared.parse::<Subject>().expect("a subject");
        assert!(
            shared.entries[0].is_shared && shared.exact().is_err_and(|why| why.contains("pattern"))
        );
        let long = "x".repeat(200);
        let digest = hex(&sha256(&long));
        let subject = name(&key(b"d", &[(b"user", long.as_bytes())], &[]))
            .parse::<Subject>()
            .expect("a subject");
        assert_eq!(subject.entries[0].value, Part::Digest(digest.clone()));
        assert_eq!(
            (
                subject.exact().is_err(),
                subject.entries[0].value.to_string()
            ),
            (true, format!("sha256:{digest}"))
        );
        // Written out it is the same.
        let whole = format!("d|user={long}")
            .parse::<Subject>()
            .expect("a subject");
        assert_eq!(whole.tag(), subject.tag());
    }

    #[test]
    fn what_is_no_name_is_refused() {
        for (text, why) in [
            ("", "no domain"),
            ("|user=42", "no domain"),
            ("shop", "no entries"),
            ("shop|user", "no value"),
            ("shop|", "no value"),
            ("shop|=42", "a key is empty"),
            ("shop|user=4=2", "=~#"),
            ("shop|user={", "=~#"),
            ("shop|user=%4", "two hexadecimal digits"),
            ("shop|user=%+4", "two hexadecimal digits"),
            ("shop|user=%é", "two hexadecimal digits"),
            ("shop|user#42", "64 digits"),
            ("shop|user=#42", "%23"),
            ("#42|user=1", "64 digits"),
            (&format!("shop{}", "|a=b".repeat(65)), "more than 64"),
            (&format!("shop|a={}", "b".repeat(70_000)), "64 KiB"),
        ] {
            assert!(
                text.parse::<Subject>()
                    .is_err_and(|error| error.0.contains(why)),
                "{text}: {:?}",
                text.parse::<Subject>()
            );
        }
    }

    /// Lists show keys of Weir, and whatever else a store has.
    #[test]
    fn entries_are_readable() {
        let texts = |key: &[u8]| {
            let texts = Subject::of_key(key).texts().into_iter();
            texts.map(|text| (text.key, text.value)).collect::<Vec<_>>()
        };
        let level = Level {
            key: "path".into(),
            value: Some("/a*".into()),
            is_shared: true,
            ..Level::default()
        };
        let own = |key: &str, value: &str| vec![(key.to_owned(), value.to_owned())];
        assert_eq!(
            texts(&key(b"d", &[(b"path", b"/ab")], &[level])),
            own("path", "/a*")
        );
        let long = "x".repeat(200);
        let long = long.as_bytes();
        let subject = Subject::of_key(&key(long, &[(long, b"v"), (b"k", long), (long, long)], &[]));
        let digest = format!("sha256:{}", hex(&sha256(long)));
        assert_eq!(subject.domain.to_string(), digest);
        let entry = |key: &str, value: &str| format!("{key}={value}");
        assert_eq!(
            subject
                .texts()
                .iter()
                .map(EntryText::to_string)
                .collect::<Vec<_>>(),
            [
                entry(&digest, "v"),
                entry("k", &digest),
                entry(&digest, &digest)
            ]
        );
        assert_eq!(
            texts(b"w1{d|k=%zz%f"),
            own("k", "%zz%f"),
            "not written by Weir"
        );
        assert_eq!(texts(b"w1{d|k=a\xffb}fw60"), own("k", "a\u{fffd}b"));
        for nothing in [&b""[..], b"}{"] {
            assert_eq!(Subject::of_key(nothing), Subject::new(b"", []));
        }
    }

    proptest! {
        #![proptest_config(crate::testing::property(256))]

        /// Lists show the texts from which a key was made.
        #[test]
        fn a_key_is_read_as_it_was_written(
            domain in "[a-z|{}%#=~./]{1,12}",
            entries in prop::collection::vec(("[a-z|{}%#=~]{1,6}", "\\PC{0,20}"), 1..4),
            in_slot: bool,
        ) {
            let bytes: Vec<_> = entries
                .iter()
                .map(|(key, value)| (key.as_bytes(), value.as_bytes()))
                .collect();
            let commit = if in_slot {
                Commit::AllOrNone
            } else {
                Commit::Each
            };
            let subject = Subject::of_key(&key_of(domain.as_bytes(), &bytes, &[], commit));
            let texts = subject
                .texts()
                .into_iter()
                .map(|text| (text.key, text.value));
            prop_assert_eq!(
                (subject.domain.to_string(), texts.collect::<Vec<_>>()),
                (domain, entries)
            );
        }

    }
}
