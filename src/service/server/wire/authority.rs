//! Rewrites each `|` in the `:authority` of calls to `+` before HTTP/2 sees it.
//!
//! Istio names clusters `outbound|8081||ratelimit.default.svc.cluster.local`, and Envoy sends the
//! name of the cluster as `:authority` unless its configuration sets another. RFC 3986 does not
//! allow the `|`: h2 resets such a call before Weir sees it, and Envoy lets the request pass.
//! envoyproxy/ratelimit accepts it, and Weir does not use the authority.
//!
//! Sources: RFC 9113, sections 6.2 (HEADERS) and 6.10 (CONTINUATION); RFC 3986, section 3.2.2; RFC
//! 7541, sections 2.3 (indices), 4 (eviction), 5 (integers and strings), 6 (representations), and
//! appendices A (the static table) and B (Huffman's code).

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;

use super::{END_HEADERS, FrameWalker, HEADERS, PADDED, PRIORITY};
use crate::core::proto;
use crate::observe::metrics::Metrics;

/// Bytes of a HEADERS frame in front of its block, with PRIORITY: the stream that it depends on,
/// and a weight.
const PRIORITY_BYTES: usize = 5;

/// State of the header blocks of one connection.
///
/// They are checked until the first `ShouldRateLimit`. If no `:authority` had a `|` by then, all
/// that follows passes untouched, at no cost. Otherwise all blocks of the connection are rewritten
/// to its end: the client sends the authority again whenever it was evicted from the dynamic table,
/// with tracing about every forty calls.
#[derive(Debug)]
pub(super) struct Authorities {
    names: Names,
    /// Ranges of the parts of the arriving block, from the beginning of its first frame.
    fragments: SmallVec<[Range<usize>; 1]>,
    is_rewriting: bool,
    metrics: Arc<Metrics>,
}

impl Authorities {
    pub(super) fn new(metrics: Arc<Metrics>) -> Self {
        Self {
            names: Names::default(),
            fragments: SmallVec::new(),
            is_rewriting: false,
            metrics,
        }
    }

    /// Handles the end of a frame, the last frame of `block`. Rewrites the block if it is whole.
    /// Returns false if nothing is to be rewritten on this connection any more.
    pub(super) fn follow(&mut self, frame: &FrameWalker, block: &mut [u8]) -> bool {
        // HTTP/2 closes the connection if a block is malformed.
        self.follow_frame(frame, block).unwrap_or(false)
    }

    fn follow_frame(&mut self, frame: &FrameWalker, block: &mut [u8]) -> Result<bool, Malformed> {
        let fragment = fragment(frame, block)?;
        self.fragments.push(fragment);
        if !frame.has_flag(END_HEADERS) {
            return Ok(true);
        }
        let fragments = std::mem::take(&mut self.fragments);
        let seen = self.rewrite(block, &fragments)?;
        if seen.is_rewritten && !self.is_rewriting {
            self.is_rewriting = true;
            self.metrics.http2.authority_rewritten();
        }
        Ok(self.is_rewriting || !seen.is_limit)
    }

    /// Rewrites a block that is in these parts of `bytes`, without padding and priorities. One in
    /// several parts is copied into one buffer, rewritten, and copied back.
    fn rewrite(&mut self, bytes: &mut [u8], parts: &[Range<usize>]) -> Result<Seen, Malformed> {
        if let [one] = parts {
            return self.names.follow(&mut bytes[one.clone()]);
        }
        let mut block = Vec::with_capacity(parts.iter().map(Range::len).sum());
        for part in parts {
            block.extend_from_slice(&bytes[part.clone()]);
        }
        let seen = self.names.follow(&mut block)?;
        let mut rest = &block[..];
        for part in parts.iter().filter(|_| seen.is_rewritten) {
            let (rewritten, later) = rest.split_at(part.len());
            bytes[part.clone()].copy_from_slice(rewritten);
            rest = later;
        }
        Ok(seen)
    }
}

/// The part of a frame that belongs to its block. `bytes` end with the frame.
fn fragment(frame: &FrameWalker, bytes: &[u8]) -> Result<Range<usize>, Malformed> {
    let (mut start, mut end) = (bytes.len() - frame.length(), bytes.len());
    if frame.kind() == HEADERS {
        if frame.has_flag(PADDED) {
            let padding = usize::from(*bytes.get(start).ok_or(Malformed)?);
            (start, end) = (start + 1, end.checked_sub(padding).ok_or(Malformed)?);
        }
        if frame.has_flag(PRIORITY) {
            start += PRIORITY_BYTES;
        }
    }
    (start <= end).then_some(start..end).ok_or(Malformed)
}

/// Maximum number of entries of a dynamic table. An entry has at least 32 bytes, and all together
/// have at most SETTINGS_HEADER_TABLE_SIZE: 4,096, because HTTP/2 announces only the default.
/// Source: section 4.1.
const MAX_ENTRIES: usize = 4_096 / 32;

/// The entries of the static table.
const STATIC_ENTRIES: usize = 61;

/// The integers of HTTP/2's decoder have at most this many bytes.
const MAX_INTEGER_BYTES: usize = 5;

/// A name of a header field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Name {
    Authority,
    Path,
    Other,
}

/// Content of a header block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Seen {
    /// The `:authority` had a `|`, which was rewritten.
    pub is_rewritten: bool,
    /// The call is a `ShouldRateLimit`.
    pub is_limit: bool,
}

/// The names in the dynamic table of a connection's decoder, the newest first. They identify the
/// values of `:authority`: a `|` in other headers, such as `tracestate`, has a meaning.
///
/// All lengths stay the same: a raw `|` is one byte, as is `+`, and Huffman's codes for both have
/// 11 bits. So the same entries are evicted, and later references to an entry yield the rewritten
/// text.
///
/// Sizes and evictions need not be followed: an index counts from the newest entry, and entries
/// leave the table at its other end. An entry that is too large to be stored evicts all older ones,
/// and no index reaches it either. So the names of the newest entries suffice, as many as the table
/// can hold.
///
/// HTTP/2 closes the connection if a block is malformed or an index has no entry. Then the walk
/// stops (see [`Malformed`]), or its result does not matter.
#[derive(Debug, Default)]
struct Names(VecDeque<Name>);

impl Names {
    /// Follows a whole header block, and rewrites it.
    ///
    /// # Errors
    /// [`Malformed`].
    fn follow(&mut self, block: &mut [u8]) -> Result<Seen, Malformed> {
        let mut seen = Seen::default();
        let mut at = 0;
        while let Some(&first) = block.get(at) {
            match first {
                // Indexed.
                0x80.. => drop(integer(block, &mut at, 7)?),
                // With incremental indexing.
                0x40..0x80 => {
                    let name = self.literal(block, &mut at, 6, &mut seen)?;
                    self.0.truncate(MAX_ENTRIES - 1);
                    self.0.push_front(name);
                }
                // An update of the table's size.
                0x20..0x40 => drop(integer(block, &mut at, 5)?),
                // Without indexing, or never indexed.
                0..0x20 => drop(self.literal(block, &mut at, 4, &mut seen)?),
            }
        }
        Ok(seen)
    }

    /// Follows a literal, and rewrites its value. Returns its name.
    fn literal(
        &self,
        block: &mut [u8],
        at: &mut usize,
        prefix_bits: u8,
        seen: &mut Seen,
    ) -> Result<Name, Malformed> {
        let name = match integer(block, at, prefix_bits)? {
            0 => HpackString::read(block, at)?.name(block),
            1 => Name::Authority,
            4 | 5 => Name::Path,
            index if index <= STATIC_ENTRIES => Name::Other,
            index => *self.0.get(index - STATIC_ENTRIES - 1).ok_or(Malformed)?,
        };
        let value = HpackString::read(block, at)?;
        match name {
            Name::Authority => seen.is_rewritten |= value.rewrite(block)?,
            Name::Path => {
                let path = proto::METHOD_PATH.as_bytes();
                seen.is_limit |= value.is(block, path, METHOD_PATH);
            }
            Name::Other => {}
        }
        Ok(name)
    }
}

/// Reads an integer with a prefix of `prefix_bits` in its first byte. Source: section 5.1.
fn integer(block: &[u8], at: &mut usize, prefix_bits: u8) -> Result<usize, Malformed> {
    let (&first, rest) = block
        .get(*at..)
        .and_then(<[u8]>::split_first)
        .ok_or(Malformed)?;
    *at += 1;
    let mask = (1 << prefix_bits) - 1;
    let mut value = usize::from(first & mask);
    if value < mask.into() {
        return Ok(value);
    }
    for (index, &byte) in rest.iter().take(MAX_INTEGER_BYTES - 1).enumerate() {
        *at += 1;
        value += usize::from(byte & 0x7f) << (7 * index);
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(Malformed)
}

/// Position of a string in its block. Source: section 5.2.
#[derive(Debug)]
struct HpackString {
    bytes: Range<usize>,
    is_huffman: bool,
}

impl HpackString {
    fn read(block: &[u8], at: &mut usize) -> Result<Self, Malformed> {
        let is_huffman = block.get(*at).ok_or(Malformed)? & 0x80 != 0;
        let length = integer(block, at, 7)?;
        let bytes = *at..*at + length;
        *at = bytes.end;
        let is_whole = bytes.end <= block.len();
        is_whole
            .then_some(Self { bytes, is_huffman })
            .ok_or(Malformed)
    }

    fn name(&self, block: &[u8]) -> Name {
        match self {
            _ if self.is(block, b":authority", AUTHORITY) => Name::Authority,
            _ if self.is(block, b":path", PATH) => Name::Path,
            _ => Name::Other,
        }
    }

    /// Whether it is this text, raw or in Huffman's code.
    fn is(&self, block: &[u8], raw: &[u8], in_huffman: &[u8]) -> bool {
        block[self.bytes.clone()] == *if self.is_huffman { in_huffman } else { raw }
    }

    /// Rewrites each `|` to `+`. Returns whether there was one.
    fn rewrite(&self, block: &mut [u8]) -> Result<bool, Malformed> {
        let bytes = &mut block[self.bytes.clone()];
        if self.is_huffman {
            return rewrite(bytes);
        }
        let mut is_rewritten = false;
        for byte in bytes.iter_mut().filter(|byte| **byte == b'|') {
            (*byte, is_rewritten) = (b'+', true);
        }
        Ok(is_rewritten)
    }
}

/// A block that the decoder of HTTP/2 refuses; HTTP/2 then closes the connection.
#[derive(Debug, PartialEq, Eq)]
struct Malformed;

/// The names and values that are searched for, in Huffman's code. A text has only one code.
const AUTHORITY: &[u8] = b"\xb8\x3b\x53\x39\xec\x32\x7d\x7f";
const PATH: &[u8] = b"\xb9\x58\xd3\x3f";
const METHOD_PATH: &[u8] = b"\x60\xb5\x77\x3f\xa5\xd0\x5b\x3b\x98\x85\x5e\xc1\xa4\xb4\x1a\x93\x25\x7e\
    \xec\xaf\xb4\x69\x2e\x73\x52\x64\xee\x2d\x9d\xcc\x42\xb1\xba\x73\xdb\x44\x9b\x46\x92\xe7\x35\x26\x4f";

/// The code of `|`. The code of `+` is 0x7fb: the last three bits are inverted.
const BAR: Code = Code {
    number: 0x7fc,
    bits: 11,
};
const OPPOSITE_BITS: usize = 3;

/// Number of codes of each length, from 0 bits on. The last one of 30 bits is EOS.
const CODES: [u64; 31] = [
    0, 0, 0, 0, 0, 10, 26, 32, 6, 0, 5, 3, 2, 6, 2, 3, 0, 0, 0, 3, 8, 13, 26, 29, 12, 4, 15, 19,
    29, 0, 4,
];

/// The end-of-string code, which must not appear in a string.
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

/// The 32 bits of a text from `at` on; ones after its end.
fn window(text: &[u8], at: usize) -> u32 {
    let (byte, bit) = (at / 8, at % 8);
    let mut window = [0xff; 8];
    let rest = &text[byte.min(text.len())..];
    let count = rest.len().min(5);
    window[..count].copy_from_slice(&rest[..count]);
    ((u64::from_be_bytes(window) << bit) >> 32) as u32
}

/// The code that begins at the bit `at`; `None` if padding or an invalid code does.
fn code(text: &[u8], at: usize) -> Option<Code> {
    let window = window(text, at);
    let bits = LIMITS.iter().position(|&limit| u64::from(window) < limit)?;
    let number = window >> (32 - bits);
    let is_whole = at + bits <= text.len() * 8 && number != EOS;
    is_whole.then_some(Code { number, bits })
}

/// Whether the rest from the bit `at` on is padding: less than a byte of ones.
fn is_padding(text: &[u8], at: usize) -> bool {
    let left = (text.len() * 8).saturating_sub(at);
    left < 8 && window(text, at) == u32::MAX
}

/// Rewrites each `|` of a text in Huffman's code to `+`, in place. Returns whether there was one.
///
/// The code is canonical: codes of one length follow each other, after the shorter codes. So the
/// length of a code follows from the first bits of the text, and no table of letters is needed.
///
/// # Errors
/// The text is not one in Huffman's code.
fn rewrite(text: &mut [u8]) -> Result<bool, Malformed> {
    let (mut at, mut is_rewritten) = (0, false);
    while let Some(code) = code(text, at) {
        at += code.bits;
        if code == BAR {
            for bit in at - OPPOSITE_BITS..at {
                text[bit / 8] ^= 0x80 >> (bit % 8);
            }
            is_rewritten = true;
        }
    }
    is_padding(text, at)
        .then_some(is_rewritten)
        .ok_or(Malformed)
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
        let (mut at, mut letters) = (0, Vec::new());
        while let Some(code) = code(text, at) {
            at += code.bits;
            letters.push(symbol(code)?);
        }
        is_padding(text, at).then_some(letters)
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
