//! Keys and values as operators write them: in commands, in orders to the admin API, in
//! `OVERRIDES_FILE`, and in output of commands that is meant to be pasted.
//!
//! A `*` matches any text. `\*` is a star, `\\` a backslash, and `\u{2e}` the character with this
//! number in hexadecimal; a backslash before anything else is itself. Where no wildcard can be
//! meant, a `*` is a star. Clients choose values. Code that prints a value to be pasted has to
//! escape it: otherwise a client that sends the value `*` could have everyone blocked.
//!
//! Commands print entries in the quotes of a shell too. Commands that take no wildcards read the
//! same text: one row of a list fits them all.

use std::borrow::Cow;
use std::fmt::{self, Write};

/// A key or a value with wildcards: literal texts, and any text between each two of them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WildcardText(Box<[Box<str>]>);

impl WildcardText {
    /// Reads the operator's form.
    pub fn read(source: &str) -> Self {
        let mut pieces = vec![Vec::new()];
        scan(source.as_bytes(), |part| match part {
            TextPart::Any => pieces.push(Vec::new()),
            TextPart::Bytes(bytes) => {
                if let Some(last) = pieces.last_mut() {
                    last.extend_from_slice(bytes);
                }
            }
        });
        // Text is split only at characters of one byte, and an escape is a whole character.
        let text = |piece: Vec<u8>| String::from_utf8_lossy(&piece).into();
        Self(pieces.into_iter().map(text).collect())
    }

    /// This text and no other.
    pub fn literal(text: &str) -> Self {
        Self([text.into()].into())
    }

    /// The text, if it has no wildcards.
    pub fn as_literal(&self) -> Option<&str> {
        match &*self.0 {
            [text] => Some(text),
            _ => None,
        }
    }

    /// The literal texts; at least one.
    pub fn pieces(&self) -> impl DoubleEndedIterator<Item = &str> {
        self.0.iter().map(|piece| &**piece)
    }

    /// The number of wildcards.
    pub fn wildcards(&self) -> usize {
        self.0.len() - 1
    }

    /// Bytes of all literal texts.
    pub fn literal_bytes(&self) -> usize {
        self.pieces().map(str::len).sum()
    }

    /// Literal bytes, and `None` for each wildcard.
    pub fn symbols(&self) -> Vec<Option<u8>> {
        let mut symbols = Vec::with_capacity(self.literal_bytes() + self.wildcards());
        for (index, piece) in self.pieces().enumerate() {
            symbols.extend((index > 0).then_some(None));
            symbols.extend(piece.bytes().map(Some));
        }
        symbols
    }

    /// On one line, for people: [`WildcardText::read`] reads it.
    pub fn escaped(&self, role: Role) -> String {
        let pieces = self.pieces().map(|piece| escaped(piece, role));
        pieces.collect::<Vec<_>>().join("*")
    }
}

impl fmt::Display for WildcardText {
    /// The shortest way to write it, for programs.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, piece) in self.pieces().enumerate() {
            if index > 0 {
                out.write_char('*')?;
            }
            for letter in piece.chars() {
                if matches!(letter, '*' | '\\') {
                    out.write_char('\\')?;
                }
                out.write_char(letter)?;
            }
        }
        Ok(())
    }
}

/// The part of an entry that a text is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Before the first `=`.
    Key,
    /// After it.
    Value,
}

/// A literal text as it is written, on one line, with nothing invisible in it.
fn escaped(text: &str, role: Role) -> String {
    let mut line = String::with_capacity(text.len());
    for (at, letter) in text.char_indices() {
        // The first `=` ends a key, and no argument of a command begins with `-`.
        let is_part_of_key = role == Role::Value || !(letter == '=' || at == 0 && letter == '-');
        match letter {
            '*' | '\\' => line.extend(['\\', letter]),
            letter if is_visible(letter) && is_part_of_key => line.push(letter),
            letter => line.extend(letter.escape_unicode()),
        }
    }
    line
}

/// Whether people see a character as it is, and it leaves the order of its neighbours.
pub fn is_visible(letter: char) -> bool {
    // `escape_debug` knows which characters Unicode calls printable; quotes are not escaped here.
    matches!(letter, '\'' | '"' | ' ') || letter.escape_debug().eq([letter])
}

/// An exact entry as it is written: `key=value`. Bytes that are not UTF-8 are shown as U+FFFD.
pub fn entry(key: &[u8], value: &[u8]) -> String {
    format!(
        "{}={}",
        escaped(&String::from_utf8_lossy(key), Role::Key),
        escaped(&String::from_utf8_lossy(value), Role::Value)
    )
}

/// An exact key or value that was written: a `*` is a star.
pub fn read_exact(source: &[u8]) -> Vec<u8> {
    let mut exact = Vec::with_capacity(source.len());
    scan(source, |part| {
        exact.extend_from_slice(if let TextPart::Bytes(bytes) = part {
            bytes
        } else {
            b"*"
        });
    });
    exact
}

/// A written text as one word of a shell.
pub fn shell_word(source: &str) -> Cow<'_, str> {
    let is_plain = |letter: char| letter.is_alphanumeric() || "%+,-./:=@_".contains(letter);
    if !source.is_empty() && source.chars().all(is_plain) {
        return source.into();
    }
    format!("'{}'", source.replace('\'', r"'\''")).into()
}

/// A part of a written text.
enum TextPart<'t> {
    /// Any text.
    Any,
    /// These bytes.
    Bytes(&'t [u8]),
}

fn scan(source: &[u8], mut take: impl FnMut(TextPart<'_>)) {
    let mut rest = source;
    while let Some(at) = rest.iter().position(|byte| matches!(byte, b'*' | b'\\')) {
        take(TextPart::Bytes(&rest[..at]));
        let (special, behind) = rest[at..].split_at(1);
        rest = behind;
        match (special, behind) {
            (b"*", _) => take(TextPart::Any),
            (_, [literal @ (b'*' | b'\\'), behind @ ..]) => {
                take(TextPart::Bytes(&[*literal]));
                rest = behind;
            }
            _ => match number(behind) {
                Some((letter, behind)) => {
                    take(TextPart::Bytes(letter.encode_utf8(&mut [0; 4]).as_bytes()));
                    rest = behind;
                }
                None => take(TextPart::Bytes(special)),
            },
        }
    }
    take(TextPart::Bytes(rest));
}

/// The character of `u{...}`, and the text after it.
fn number(text: &[u8]) -> Option<(char, &[u8])> {
    let digits = text.strip_prefix(b"u{")?;
    let end = digits.iter().take(7).position(|&byte| byte == b'}')?;
    let (digits, behind) = digits.split_at(end);
    // `from_str_radix` would take a sign too.
    let digits = str::from_utf8(digits)
        .ok()
        .filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()))?;
    Some((
        char::from_u32(u32::from_str_radix(digits, 16).ok()?)?,
        &behind[1..],
    ))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pieces(source: &str) -> Vec<String> {
        WildcardText::read(source)
            .pieces()
            .map(str::to_owned)
            .collect()
    }

    #[test]
    fn stars_backslashes_and_numbers_can_be_written() {
        for (source, expected) in [
            ("", &[""][..]),
            ("*", &["", ""]),
            (r"\*", &["*"]),
            (r"\\*", &["\\", ""]),
            (r"\\\*", &["\\*"]),
            (r"4\**2", &["4*", "2"]),
            (r"C:\dir\", &[r"C:\dir\"]),
            (r"\\host\share", &[r"\host\share"]),
            (r"\u{1b}[\u{1F600}", &["\u{1b}[\u{1f600}"]),
            (
                r"\u{}\u{d800}\u{110000}\u{+1}\u{1234567}\u{1",
                &[r"\u{}\u{d800}\u{110000}\u{+1}\u{1234567}\u{1"],
            ),
        ] {
            assert_eq!(pieces(source), expected, "{source}");
        }
        assert_eq!(WildcardText::read(r"a*\*\b").to_string(), r"a*\*\\b");
        assert_eq!(
            WildcardText::read("a*b").symbols(),
            [Some(b'a'), None, Some(b'b')]
        );
        assert_eq!(read_exact(b"*\\*\\\\\xff\\x"), b"**\\\xff\\x");
    }

    #[test]
    fn entries_are_written_on_one_line_and_as_one_word() {
        assert_eq!(entry(b"user", b"*"), r"user=\*");
        let hostile = entry("-a=é".as_bytes(), "=-\n\u{202e}\u{200b}'\"".as_bytes());
        assert_eq!(hostile, r#"\u{2d}a\u{3d}é==-\u{a}\u{202e}\u{200b}'""#);
        assert_eq!(shell_word("user=42"), "user=42");
        assert_eq!(shell_word(r"user=\*"), r"'user=\*'");
        assert_eq!(shell_word("it's $(x)"), r"'it'\''s $(x)'");
        assert_eq!(shell_word(""), "''");
    }

    proptest! {
        #![proptest_config(crate::testing::property(256))]

        #[test]
        fn what_is_written_is_read_as_it_was(
            pieces in prop::collection::vec(r"[a*\\u{}01\n=-]{0,8}|\PC{0,4}", 1..4),
        ) {
            let text = WildcardText(pieces.iter().map(|piece| (&**piece).into()).collect());
            prop_assert_eq!(&WildcardText::read(&text.to_string()), &text);
            prop_assert_eq!(&WildcardText::read(&text.escaped(Role::Value)), &text);
            prop_assert_eq!(&WildcardText::read(&text.escaped(Role::Key)), &text);
        }

        /// Whatever a client sends, its entry is written as that entry and no other.
        #[test]
        fn an_entry_is_read_as_it_was(key in r"[a*\\=-]{1,5}|\PC{1,4}", value in any::<String>()) {
            let line = entry(key.as_bytes(), value.as_bytes());
            let (written_key, written_value) = line.split_once('=').expect("an entry");
            prop_assert_eq!(WildcardText::read(written_key), WildcardText::literal(&key));
            prop_assert_eq!(WildcardText::read(written_value), WildcardText::literal(&value));
            prop_assert_eq!(read_exact(written_value.as_bytes()), value.as_bytes());
            prop_assert!(!line.chars().any(char::is_control) && !line.starts_with('-'));
        }
    }
}
