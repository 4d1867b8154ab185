//! Names in answers, computed once, when a limit is compiled.
//!
//! Envoy puts a name between quotes into a header and escapes nothing: a line break in it would
//! begin another header. A name of the configuration has no bound, and clients and proxies accept
//! few KiB of headers.

use std::borrow::Cow;

use percent_encoding::percent_encode_byte;

/// Maximum bytes of a name in an answer.
pub const MAX_DISPLAY_NAME_BYTES: usize = 128;

/// A name in an answer: printable ASCII without quotes and backslashes. Other bytes become `%` and
/// two hexadecimal digits, as in a URL. Text that is too long is cut.
pub fn display_name(name: &[u8]) -> Cow<'_, str> {
    let is_plain = |byte: &u8| matches!(byte, b' '..=b'~') && !matches!(byte, b'"' | b'\\');
    if name.len() <= MAX_DISPLAY_NAME_BYTES
        && name.iter().all(is_plain)
        && let Ok(name) = str::from_utf8(name)
    {
        return Cow::Borrowed(name);
    }
    let mut out = String::new();
    for byte in name {
        let mut plain = [0; 4];
        let written = match is_plain(byte) {
            true => char::from(*byte).encode_utf8(&mut plain),
            false => percent_encode_byte(*byte),
        };
        if out.len() + written.len() > MAX_DISPLAY_NAME_BYTES {
            break;
        }
        out.push_str(written);
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_are_printable_ascii() {
        for (text, name) in [
            (&b"per-user"[..], "per-user"),
            ("café \u{1f980}".as_bytes(), "caf%C3%A9 %F0%9F%A6%80"),
            (b"a\r\nset-cookie: b", "a%0D%0Aset-cookie: b"),
            (b"\xff\x00\x7f", "%FF%00%7F"),
            (br#"a "quoted" \ one"#, "a %22quoted%22 %5C one"),
        ] {
            assert_eq!(display_name(text), name);
        }
        assert_eq!(display_name(&[b'a'; 129]).len(), MAX_DISPLAY_NAME_BYTES);
        assert_eq!(
            display_name(&[b'\n'; 129]).len(),
            126,
            "an escape is not cut"
        );
    }

    proptest! {
        #![proptest_config(crate::testing::property(256))]

        #[test]
        fn any_name_is_short_and_leaves_no_header_and_no_quotes(
            name in prop::collection::vec(any::<u8>(), 0..300),
        ) {
            let display = display_name(&name);
            prop_assert!(
                display.len() <= MAX_DISPLAY_NAME_BYTES
                    && display
                        .bytes()
                        .all(|byte| matches!(byte, b' '..=b'~') && byte != b'"' && byte != b'\\')
            );
        }
    }
}
