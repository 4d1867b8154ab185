//! The exact name of a subject: what is inside the hash tag of its counter key, as text, such as
//! `shop|user=42`.
//!
//! No two subjects have the same name, whatever bytes a client sends, so that a row of a list can
//! be asked about, reset and overridden as what it is. A name consists of visible characters: any
//! byte may be written as `%` and two digits, and what separates the parts has to be.
//!
//! Where only a digest is known, all limits that may count it are candidates, and several are an
//! error, not a guess.

use std::fmt::Write;

use super::{DIGEST, PATTERN, VALUE, is_reserved, write_part};
use crate::core::ask::written::is_visible;
use crate::core::ask::{Ask, Descriptor, Entry};

/// Entries of a descriptor at most, as in a request.
const MAX_ENTRIES: usize = 64;

/// Bytes of a name at most: those of a descriptor with as many entries, all of them escaped.
pub(crate) const MAX_NAME_BYTES: usize = 64 << 10;

/// Hexadecimal digits of a SHA-256.
const DIGEST_CHARS: usize = 64;

/// A subject: one counter of a limit, whichever that is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Subject {
    /// The domain.
    pub domain: Part,
    /// In the order of the descriptor.
    pub entries: Vec<SubjectEntry>,
}

/// An entry of its descriptor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SubjectEntry {
    /// The key.
    pub key: Part,
    /// The value.
    pub value: Part,
    /// The value is a pattern of a limit with `share_threshold`, whose values share the counter.
    pub is_shared: bool,
}

/// A text in a key, which is known by its digest if it is long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// It.
    Text(Vec<u8>),
    /// The SHA-256 of a text of more than 128 bytes, in lower-case hexadecimal digits.
    Digest(String),
}

/// Why a text is no name of a subject.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("subject: {0}; copy the `subject` of an answer, such as shop|user=42")]
pub(crate) struct NoSubject(&'static str);

/// The name of the subject of a counter key, or of the key of a usage record.
pub(crate) fn name(key: &[u8]) -> String {
    let mut name = String::new();
    for chunk in super::subject(key).utf8_chunks() {
        // The only brace is that behind a domain which is the hash tag.
        for letter in chunk.valid().chars().filter(|&letter| letter != '}') {
            if is_visible(letter) && letter != ' ' {
                name.push(letter);
            } else {
                letter
                    .encode_utf8(&mut [0; 4])
                    .bytes()
                    .for_each(|byte| escape(&mut name, byte));
            }
        }
        chunk
            .invalid()
            .iter()
            .for_each(|&byte| escape(&mut name, byte));
    }
    name
}

/// The name of the subject of these entries, where no limit shares its counter.
pub(crate) fn name_of<'e>(domain: &[u8], entries: impl Iterator<Item = Entry<'e>>) -> String {
    let entry = |entry: Entry<'_>| SubjectEntry {
        key: Part::Text(entry.key.to_vec()),
        value: Part::Text(entry.value.to_vec()),
        is_shared: false,
    };
    let subject = Subject {
        domain: Part::Text(domain.to_vec()),
        entries: entries.map(entry).collect(),
    };
    name(&[b"{", &*subject.tag(), b"}"].concat())
}

fn escape(name: &mut String, byte: u8) {
    // Writing to a string does not fail.
    let _ = write!(name, "%{byte:02x}");
}

impl Subject {
    /// The subject of this name.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn read(name: &str) -> Result<Self, NoSubject> {
        if name.len() > MAX_NAME_BYTES {
            return Err(NoSubject("it is longer than 64 KiB"));
        }
        let mut parts = name.split('|');
        let domain = Part::read(parts.next().unwrap_or_default())?;
        if domain == Part::Text(Vec::new()) {
            return Err(NoSubject("it begins with no domain"));
        }
        let entries: Vec<_> = parts.map(SubjectEntry::read).collect::<Result<_, _>>()?;
        if entries.is_empty() || entries.len() > MAX_ENTRIES {
            return Err(NoSubject("it has no entries, or more than 64"));
        }
        Ok(Self { domain, entries })
    }

    /// What is inside the hash tag of its counter keys.
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
    /// It is that of several values, or a text is known by its digest only: why.
    pub(crate) fn exact(&self) -> Result<Ask<'_>, &'static str> {
        if self.is_shared() {
            return Err(
                "the counter is that of all values that match its pattern; write the entries of \
                 one of them",
            );
        }
        self.one_of()
    }

    /// Whether values share the counter.
    pub(crate) fn is_shared(&self) -> bool {
        self.entries.iter().any(|entry| entry.is_shared)
    }

    /// The same, and of a counter that values share one of them: the text of the pattern, which
    /// matches itself, or the first address of the network.
    ///
    /// # Errors
    /// A text is known by its digest only.
    pub(crate) fn one_of(&self) -> Result<Ask<'_>, &'static str> {
        let Part::Text(domain) = &self.domain else {
            return Err(DIGEST_ONLY);
        };
        let mut ask = Ask::default();
        ask.domain = domain;
        for entry in &self.entries {
            let (Part::Text(key), Part::Text(value)) = (&entry.key, &entry.value) else {
                return Err(DIGEST_ONLY);
            };
            let value: &[u8] = if entry.is_shared {
                first_address(value).unwrap_or(value)
            } else {
                value
            };
            ask.push(Entry { key, value });
        }
        ask.close(Descriptor::default());
        Ok(ask)
    }
}

const DIGEST_ONLY: &str = "Weir knows a text of more than 128 bytes by its digest only; write the \
    entries with the whole value";

/// The first address of a network that groups some.
fn first_address(value: &[u8]) -> Option<&[u8]> {
    let network: ipnet::Ipv6Net = str::from_utf8(value).ok()?.parse().ok()?;
    let end = value.iter().position(|&byte| byte == b'/')?;
    (network.trunc() == network).then_some(&value[..end])
}

impl SubjectEntry {
    /// The bits of the network that it is, if it is one that groups addresses.
    pub(crate) fn prefix(&self) -> Option<u8> {
        let Part::Text(value) = &self.value else {
            return None;
        };
        let network: ipnet::Ipv6Net = str::from_utf8(value).ok()?.parse().ok()?;
        self.is_shared.then_some(network.prefix_len())
    }

    fn read(text: &str) -> Result<Self, NoSubject> {
        let bytes = text.as_bytes();
        // A key that is a digest begins with the mark of one.
        let from = usize::from(bytes.first() == Some(&DIGEST));
        let at = bytes
            .iter()
            .skip(from)
            .position(|byte| [VALUE, PATTERN, DIGEST].contains(byte));
        let (key, value) = text.split_at(from + at.ok_or(NoSubject("an entry has no value"))?);
        let is_shared = value.as_bytes().first() == Some(&PATTERN);
        let value = value
            .strip_prefix([char::from(VALUE), char::from(PATTERN)])
            .unwrap_or(value);
        // A digest stands in the place of the mark of a value.
        if text.as_bytes().get(key.len()) == Some(&VALUE)
            && value.as_bytes().first() == Some(&DIGEST)
        {
            return Err(NoSubject("a # of a value is written %23"));
        }
        let key = Part::read(key)?;
        if key == Part::Text(Vec::new()) {
            return Err(NoSubject("a key is empty"));
        }
        Ok(Self {
            key,
            value: Part::read(value)?,
            is_shared,
        })
    }
}

impl Part {
    fn read(text: &str) -> Result<Self, NoSubject> {
        if let Some(digest) = text.strip_prefix(char::from(DIGEST)) {
            let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
            let is_digest = digest.len() == DIGEST_CHARS && digest.bytes().all(is_digit);
            return if is_digest {
                Ok(Self::Digest(digest.to_owned()))
            } else {
                Err(NoSubject("a # stands before the 64 digits of a SHA-256"))
            };
        }
        let mut bytes = Vec::with_capacity(text.len());
        let mut rest = text.as_bytes();
        while let Some((&byte, behind)) = rest.split_first() {
            rest = behind;
            if byte == b'%' {
                let digits = behind
                    .get(..2)
                    .and_then(|digits| str::from_utf8(digits).ok());
                let digits =
                    digits.filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()));
                let byte = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
                bytes.push(byte.ok_or(NoSubject("a % stands before two hexadecimal digits"))?);
                rest = &behind[2..];
            } else if is_reserved(byte) {
                return Err(NoSubject(
                    "a part has one of {}|=~#, which is written as % and two digits",
                ));
            } else {
                bytes.push(byte);
            }
        }
        Ok(Self::Text(bytes))
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

    /// For people: what it is, or its digest.
    pub(crate) fn shown(&self) -> String {
        match self {
            Self::Text(text) => String::from_utf8_lossy(text).into_owned(),
            Self::Digest(digest) => format!("sha256:{digest}"),
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

    fn key(domain: &[u8], entries: &[(&[u8], &[u8])], levels: &[Level]) -> Vec<u8> {
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
            Commit::Each,
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
            share_threshold: true,
            ..Level::default()
        };
        let shared = name(&key(b"d", &[(b"path", b"/ab")], &[level]));
        assert_eq!(shared, "d|path~/a*");
        let shared = Subject::read(&shared).expect("a subject");
        assert!(
            shared.entries[0].is_shared && shared.exact().is_err_and(|why| why.contains("pattern"))
        );
        let long = "x".repeat(200);
        let digest = hex(&sha256(&long));
        let subject = Subject::read(&name(&key(b"d", &[(b"user", long.as_bytes())], &[])))
            .expect("a subject");
        assert_eq!(subject.entries[0].value, Part::Digest(digest.clone()));
        assert_eq!(
            (subject.exact().is_err(), subject.entries[0].value.shown()),
            (true, format!("sha256:{digest}"))
        );
        // Written out it is the same.
        let whole = Subject::read(&format!("d|user={long}")).expect("a subject");
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
                Subject::read(text).is_err_and(|error| error.0.contains(why)),
                "{text}: {:?}",
                Subject::read(text)
            );
        }
    }

    fn bytes() -> impl Strategy<Value = Vec<u8>> {
        prop_oneof![
            prop::collection::vec(any::<u8>(), 1..8),
            "[a|{}%#=~.é ]{1,8}".prop_map(String::into_bytes),
            (120_usize..140, any::<u8>()).prop_map(|(length, byte)| vec![byte; length]),
        ]
    }

    proptest! {
        #![proptest_config(crate::testing::property(256))]

        /// The name of a counter leads to that counter again, whatever a client sends.
        #[test]
        fn a_name_is_read_as_the_tag_that_it_names(domain in bytes(), entries in prop::collection::vec((bytes(), bytes()), 1..4)) {
            let entries: Vec<_> = entries.iter().map(|(key, value)| (&**key, &**value)).collect();
            let key = key(&domain, &entries, &[]);
            let name = name(&key);
            let subject = Subject::read(&name).expect("a subject");
            prop_assert_eq!(subject.tag(), super::super::subject(&key));
            prop_assert!(name.chars().all(|letter| is_visible(letter) && letter != ' '), "{}", name);
            if let Ok(exact) = subject.exact() {
                let found: Vec<_> = exact.first().iter().map(|entry| (entry.key, entry.value)).collect();
                prop_assert_eq!((exact.domain, found), (&*domain, entries));
            }
        }

        /// Whatever is read is one subject: its name leads to it again.
        #[test]
        fn any_text_is_read_or_refused(text in "[ad|{}%0-9a-f#=~]{0,20}|\\PC{0,20}") {
            if let Ok(subject) = Subject::read(&text) {
                let tag = subject.tag();
                let again = Subject::read(&name(&[b"w1{", &*tag, b"}"].concat())).expect("a name");
                prop_assert_eq!(again.tag(), tag);
            }
        }
    }
}
