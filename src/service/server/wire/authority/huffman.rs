//! Strings in Huffman's code: their codes one after the other, and the rewriting of `|` in place.
//!
//! The code is canonical: codes of one length follow each other, and behind the longer ones of the
//! same prefix. So the length of a code follows from the first bits of the text, and no table of
//! letters is needed.
//!
//! Source: RFC 7541, section 5.2 and appendix B.

/// The decoder of HTTP/2 refuses the block, and closes the connection.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Malformed;

/// The texts that are looked for. A text has one code only.
pub(super) const AUTHORITY: &[u8] = b"\xb8\x3b\x53\x39\xec\x32\x7d\x7f";
pub(super) const PATH: &[u8] = b"\xb9\x58\xd3\x3f";
pub(super) const METHOD_PATH: &[u8] = b"\x60\xb5\x77\x3f\xa5\xd0\x5b\x3b\x98\x85\x5e\xc1\xa4\xb4\x1a\x93\x25\x7e\
    \xec\xaf\xb4\x69\x2e\x73\x52\x64\xee\x2d\x9d\xcc\x42\xb1\xba\x73\xdb\x44\x9b\x46\x92\xe7\x35\x26\x4f";

/// The code of `|`. That of `+` is 0x7fb: the last three bits are the opposite.
const BAR: Code = Code {
    number: 0x7fc,
    bits: 11,
};
const OPPOSITE_BITS: usize = 3;

/// How many codes each length has, from 0 bits on. The last one of 30 bits is EOS.
const CODES: [u64; 31] = [
    0, 0, 0, 0, 0, 10, 26, 32, 6, 0, 5, 3, 2, 6, 2, 3, 0, 0, 0, 3, 8, 13, 26, 29, 12, 4, 15, 19,
    29, 0, 4,
];

/// The end of a string, which must not stand in one.
const EOS: u32 = 0x3fff_ffff;

/// For each length: the first text of 32 bits that begins with a longer code.
const LIMITS: [u64; CODES.len()] = limits();

const fn limits() -> [u64; CODES.len()] {
    let mut limits = [0; CODES.len()];
    let mut bits = 1;
    while bits < CODES.len() {
        limits[bits] = limits[bits - 1] + (CODES[bits] << (32 - bits));
        bits += 1;
    }
    limits
}

/// The code of a letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Code {
    number: u32,
    bits: usize,
}

/// The codes of a text, one after the other, up to the padding at its end or to what is none.
#[derive(Debug)]
struct Codes<'t> {
    text: &'t [u8],
    /// The bits in front of the next code.
    at: usize,
}

impl Codes<'_> {
    /// The next 32 bits; ones behind the end.
    fn window(&self) -> u32 {
        let (byte, bit) = (self.at / 8, self.at % 8);
        let mut window = [0xff; 8];
        let rest = &self.text[byte.min(self.text.len())..];
        let count = rest.len().min(5);
        window[..count].copy_from_slice(&rest[..count]);
        ((u64::from_be_bytes(window) << bit) >> 32) as u32
    }

    /// Whether what follows the last code is padding: less than a byte of ones.
    fn is_at_end(&self) -> bool {
        let left = (self.text.len() * 8).saturating_sub(self.at);
        left < 8 && self.window() == u32::MAX
    }
}

impl Iterator for Codes<'_> {
    type Item = Code;

    fn next(&mut self) -> Option<Code> {
        let window = self.window();
        let bits = LIMITS.iter().position(|&limit| u64::from(window) < limit)?;
        let number = window >> (32 - bits);
        if self.at + bits > self.text.len() * 8 || number == EOS {
            return None;
        }
        self.at += bits;
        Some(Code { number, bits })
    }
}

/// Rewrites each `|` to `+`. True: there was one.
///
/// # Errors
/// The text is not one in Huffman's code.
pub(super) fn rewrite(text: &mut [u8]) -> Result<bool, Malformed> {
    let (mut at, mut is_rewritten) = (0, false);
    loop {
        let mut codes = Codes { text, at };
        let Some(code) = codes.next() else {
            return if codes.is_at_end() {
                Ok(is_rewritten)
            } else {
                Err(Malformed)
            };
        };
        at = codes.at;
        if code == BAR {
            for bit in at - OPPOSITE_BITS..at {
                text[bit / 8] ^= 0x80 >> (bit % 8);
            }
            is_rewritten = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::proto;

    /// The letters whose codes have up to 8 bits, in the order of their codes.
    const SHORT: [&[u8]; 4] = [
        b"012aceiost",
        b" %-./3456789=A_bdfghlmnpru",
        b":BCDEFGHIJKLMNOPQRSTUVWYjkqvwxyz",
        b"&*,;XZ",
    ];

    /// The first codes of these lengths.
    const SHORT_FIRST: [u32; SHORT.len()] = [0x0, 0x14, 0x5c, 0xf8];

    /// The letter of a code of up to 8 bits.
    fn symbol(code: Code) -> Option<u8> {
        let row = code.bits.checked_sub(5)?;
        let index = code.number.checked_sub(*SHORT_FIRST.get(row)?)?;
        SHORT[row].get(index as usize).copied()
    }

    fn decoded(text: &[u8]) -> Option<Vec<u8>> {
        let mut codes = Codes { text, at: 0 };
        let letters: Option<_> = codes.by_ref().map(symbol).collect();
        letters.filter(|_| codes.is_at_end())
    }

    /// Source: RFC 7541, appendices C.4 and C.6.
    #[test]
    fn the_examples_of_the_standard() {
        for (text, expected) in [
            (&b"\xf1\xe3\xc2\xe5\xf2\x3a\x6b\xa0\xab\x90\xf4\xff"[..], "www.example.com"),
            (b"\xa8\xeb\x10\x64\x9c\xbf", "no-cache"),
            (b"\x25\xa8\x49\xe9\x5b\xa9\x7d\x7f", "custom-key"),
            (b"\x25\xa8\x49\xe9\x5b\xb8\xe8\xb4\xbf", "custom-value"),
            (b"\x64\x02", "302"),
            (b"\xae\xc3\x77\x1a\x4b", "private"),
            (b"\xd0\x7a\xbe\x94\x10\x54\xd4\x44\xa8\x20\x05\x95\x04\x0b\x81\x66\xe0\x82\xa6\x2d\x1b\xff", "Mon, 21 Oct 2013 20:13:21 GMT"),
            (b"\x9d\x29\xad\x17\x18\x63\xc7\x8f\x0b\x97\xc8\xe9\xae\x82\xae\x43\xd3", "https://www.example.com"),
        ] {
            assert_eq!(decoded(text).map(|text| String::from_utf8_lossy(&text).into_owned()).as_deref(), Some(expected));
        }
    }

    #[test]
    fn the_texts_that_are_looked_for_are_those_names_and_that_path() {
        for (text, expected) in [
            (AUTHORITY, ":authority"),
            (PATH, ":path"),
            (METHOD_PATH, proto::METHOD_PATH),
        ] {
            assert_eq!(decoded(text).as_deref(), Some(expected.as_bytes()));
        }
    }

    /// `+` and `|` at each bit of a byte: in front of them are letters of 5 and 6 bits.
    #[test]
    fn a_bar_becomes_a_plus_wherever_it_stands() {
        let encoded = |letter: u128, before: usize| {
            let bits = 5 * before as u32 + 11 + 6;
            // Letters `a`, the letter, and `-`; then ones.
            let text = (0..before).fold(0_u128, |text, _| text << 5 | 3) << 17 | letter << 6 | 0x16;
            let bytes = (text << (128 - bits) | u128::MAX >> bits).to_be_bytes();
            bytes[..bits.div_ceil(8) as usize].to_vec()
        };
        for before in 0..16 {
            let mut text = encoded(0x7fc, before);
            assert_eq!(rewrite(&mut text), Ok(true));
            assert_eq!(text, encoded(0x7fb, before), "{before} letters in front");
            assert_eq!(rewrite(&mut text), Ok(false));
            assert_eq!(text, encoded(0x7fb, before));
        }
    }

    #[test]
    fn what_is_no_text_is_invalid() {
        for text in [
            &b"\xff"[..],
            b"\xff\xff\xff\xff",
            b"\x18\xff\xff",
            b"\xff\xff\xff\xfc\x18",
            b"\x00\x00\x01",
            b"\xfe",
        ] {
            assert_eq!(rewrite(&mut text.to_vec()), Err(Malformed), "{text:x?}");
        }
        assert_eq!(rewrite(&mut []), Ok(false));
    }

    /// Every bit pattern is the beginning of exactly one code.
    #[test]
    fn the_lengths_make_a_complete_code() {
        assert_eq!(CODES.iter().sum::<u64>(), 257);
        assert_eq!(LIMITS.last(), Some(&(1 << 32)));
        assert!(LIMITS.is_sorted());
    }
}
