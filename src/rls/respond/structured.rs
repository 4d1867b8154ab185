//! Structured Fields: how names and numbers enter a header.
//!
//! Names are text of the configuration, or keys of the request. A header holds printable ASCII only, and a line break in it would begin another
//! header, so that no text enters one except as a [`Name`]. Source: RFC 9651, sections 3.3.1 and 3.3.3.

use sfv::{Integer, StringRef, string_ref};

/// The longest name in a header, in bytes. A name of the configuration has no bound, and clients and proxies accept few KiB of headers.
pub(super) const MAX_NAME_BYTES: usize = 128;

/// The name of a limit as clients see it: printable ASCII, and not empty text that a header could not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Name(sfv::String);

impl Name {
    /// Bytes outside printable ASCII become `%` and two hexadecimal digits, as in a URL. Text that is too long is cut.
    pub(super) fn new(text: impl AsRef<[u8]>) -> Self {
        const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
        let mut out = String::new();
        for &byte in text.as_ref() {
            let escaped = [b'%', DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]].map(char::from);
            let written = if matches!(byte, b' '..=b'~') { &[char::from(byte)][..] } else { &escaped[..] };
            if out.len() + written.len() > MAX_NAME_BYTES {
                break;
            }
            out.extend(written);
        }
        // Cannot fail: all of it is printable ASCII.
        Self(sfv::String::from_string(out).unwrap_or_else(|_| string_ref("").to_owned()))
    }

    /// The name as a value of a Structured Field, whose serializer escapes quotes and backslashes.
    pub(super) fn value(&self) -> &StringRef {
        &self.0
    }

    /// The name as plain text: printable ASCII, which may contain quotes and backslashes.
    pub(super) fn text(&self) -> &str {
        self.0.as_str()
    }
}

/// A number as a value of a Structured Field, which has at most 15 digits: a larger number becomes the largest one.
pub(super) fn integer(number: impl TryInto<Integer>) -> Integer {
    number.try_into().unwrap_or(Integer::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use sfv::{BareItem, Item, KeyRef, List, ListEntry, ListSerializer, Parser};

    use super::*;

    #[test]
    fn names_are_printable_ascii() {
        for (text, name) in [
            (&b"per-user"[..], "per-user"),
            ("café \u{1f980}".as_bytes(), "caf%C3%A9 %F0%9F%A6%80"),
            (b"a\r\nset-cookie: b", "a%0D%0Aset-cookie: b"),
            (b"\xff\x00\x7f", "%FF%00%7F"),
            (br#"a "quoted" \ one"#, r#"a "quoted" \ one"#),
        ] {
            assert_eq!(Name::new(text).text(), name);
        }
        assert_eq!(Name::new([b'a'; 129]).text().len(), MAX_NAME_BYTES);
        assert_eq!(Name::new([b'\n'; 129]).text().len(), 126, "an escape is not cut");
    }

    proptest! {
        /// Any name and any numbers are one member of a list that a parser reads back, and one line of printable ASCII.
        #[test]
        fn what_is_written_is_read_back(
            members in proptest::collection::vec((proptest::collection::vec(any::<u8>(), 0..200), any::<u64>(), any::<u64>()), 1..20),
        ) {
            let (quota, window) = (KeyRef::constant("q"), KeyRef::constant("w"));
            let mut list = ListSerializer::new();
            for (name, q, w) in &members {
                let _ = list.bare_item(Name::new(name).value()).parameter(quota, integer(*q)).parameter(window, integer(*w));
            }
            let header = list.finish().expect("at least one member");
            prop_assert!(header.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{header:?}");
            let parsed: List = Parser::new(&header).parse().expect("a list");
            prop_assert_eq!(parsed.len(), members.len());
            for (entry, (name, q, w)) in parsed.iter().zip(&members) {
                let ListEntry::Item(Item { bare_item: BareItem::String(read), params }) = entry else { panic!("a string: {entry:?}") };
                let written = Name::new(name);
                prop_assert_eq!(read.as_str(), written.text());
                let number = |key: &KeyRef| match params.get(key) { Some(BareItem::Integer(number)) => i64::from(*number), other => panic!("{other:?}") };
                let capped = |number: u64| number.min(999_999_999_999_999) as i64;
                prop_assert_eq!([number(quota), number(window)], [capped(*q), capped(*w)]);
            }
        }
    }
}
