//! Finds the quote that was not closed, in a file that is not YAML.
//!
//! The parser reads on to the next quote of the file and reports the text after that quote, or its
//! indentation, which is far from the mistake.

use super::after;

/// The line and column of the first quote that opens a value or a key and is not closed, or is
/// closed only by a quote of a later line before more text.
pub(super) fn unclosed(text: &str) -> Option<(u32, u32)> {
    let mut line_start = 0;
    while line_start < text.len() {
        let length = text[line_start..].find('\n');
        let end = length.map_or(text.len(), |length| line_start + length);
        let mut at = line_start;
        // A quote opens a text only where a value or a key may begin: `it's` is text.
        let mut may_open = true;
        while at < end {
            let byte = text.as_bytes()[at];
            match byte {
                b'#' if at == line_start || text.as_bytes()[at - 1].is_ascii_whitespace() => break,
                b'"' | b'\'' if may_open => match closing(text, at) {
                    Some(close) if close < end => at = close,
                    Some(close) if ends_a_value(&text[close + 1..]) => {
                        line_start = close + 1;
                        break;
                    }
                    _ => {
                        let before = text[..at].trim_start_matches('\u{feff}');
                        return Some(after(before));
                    }
                },
                _ => {}
            }
            may_open = match byte {
                b'[' | b'{' | b',' => true,
                b':' | b'-' | b'?' => {
                    let next = text.as_bytes().get(at + 1);
                    next.is_some_and(u8::is_ascii_whitespace)
                }
                b' ' | b'\t' | 0xef | 0xbb | 0xbf => may_open,
                _ => false,
            };
            at += 1;
        }
        if line_start <= end {
            line_start = end + 1;
        }
    }
    None
}

/// The quote that closes the one at `open`.
fn closing(text: &str, open: usize) -> Option<usize> {
    let bytes = text.as_bytes();
    let quote = bytes[open];
    let mut at = open + 1;
    while at < bytes.len() {
        match (bytes[at], bytes.get(at + 1)) {
            (b'\\', _) if quote == b'"' => at += 1,
            (byte, next) if byte == quote => {
                if quote == b'"' || next != Some(&quote) {
                    return Some(at);
                }
                at += 1;
            }
            _ => {}
        }
        at += 1;
    }
    None
}

/// Whether a quoted text may be followed by this text.
fn ends_a_value(behind: &str) -> bool {
    let line = behind.lines().next().unwrap_or_default().trim_start();
    line.is_empty() || line.starts_with(['#', ',', ']', '}', ':'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_quote_that_is_not_closed_is_found_and_no_other_one() {
        for (text, expected) in [
            ("a: \"b\nc: d\n", Some((1, 4))),
            ("x: y\na: \"b\n  c: \"d\"\n", Some((2, 4))),
            ("a: \"two\n  lines\"\nb: 'c\n", Some((3, 4))),
            ("- {key: 'a, value: b}\n- {key: 'c'}\n", Some((1, 9))),
            ("é: [\"a\", \"b]\n", Some((1, 10))),
            ("\u{feff}\"a: b\n", Some((1, 1))),
            (
                "a: it's\nb: 5\" x\n# \"c\nd: 'it''s' # '\ne: \"\\\"\"\n",
                None,
            ),
            ("a: \"two\n  lines\" # \"\nb: ''\nc: \"\"\n", None),
            ("", None),
        ] {
            assert_eq!(unclosed(text), expected, "{text}");
        }
    }
}
