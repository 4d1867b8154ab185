//! Follows the header blocks of one connection, and rewrites the `|` of their `:authority` to a
//! `+`.
//!
//! The length of everything stays: a raw `|` is one byte, as is `+`, and Huffman's codes for both
//! have 11 bits. So the block has no other length, an entry of the dynamic table has no other size,
//! nothing else is evicted, and what refers to the entry later refers to the rewritten text.
//!
//! Which values are `:authority` is known by following the names in the dynamic table. The other
//! way, to rewrite the `|` of every value on such a connection, needs no table, but would also
//! change trace headers: a `tracestate` may hold `|`, and spans would lose their place in other
//! vendors' traces.
//!
//! Sizes and evictions need not be followed: an index counts from the newest entry, and entries
//! leave the table at its other end. An entry that is too large to be stored takes all older ones
//! with it, so that no index reaches it either. So the names of the newest entries suffice, as many
//! as the table can hold.
//!
//! | of a header field | handled |
//! |---|---|
//! | an index into the static or the dynamic table | nothing to rewrite: what was inserted has been rewritten |
//! | a literal with incremental indexing, without indexing, never indexed | the value is rewritten if the name is `:authority` |
//! | its name by a static index, a dynamic index, raw, or in Huffman's code | all are known |
//! | its value raw, or in Huffman's code | `|` becomes `+`, byte for byte or bit for bit |
//! | an update of the table's size | skipped |
//!
//! HTTP/2 closes the connection where a block is malformed, or an index has no entry. So nothing is
//! followed any more (see [`Malformed`]), or what is followed does not matter.
//!
//! Source: RFC 7541, sections 2.3 (indices), 4 (eviction), 5 (integers and strings) and 6
//! (representations), and appendix A (the static table).

use std::collections::VecDeque;
use std::ops::Range;

use super::huffman::{self, Malformed};
use crate::core::proto;

/// The most entries of a dynamic table: the smallest have 32 bytes, and all together the 4,096 of
/// SETTINGS_HEADER_TABLE_SIZE, of which HTTP/2 announces no other value than the default. Source:
/// section 4.1.
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

/// What a header block held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Seen {
    /// The `:authority` had a `|`, which was rewritten.
    pub is_rewritten: bool,
    /// The call is a `ShouldRateLimit`.
    pub is_limit: bool,
}

/// The names in the dynamic table of a connection's decoder, the newest first.
#[derive(Debug, Default)]
pub(super) struct Names(VecDeque<Name>);

impl Names {
    /// Follows a whole header block, and rewrites it.
    ///
    /// # Errors
    /// [`Malformed`].
    pub(super) fn follow(&mut self, block: &mut [u8]) -> Result<Seen, Malformed> {
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
            0 => Text::read(block, at)?.name(block),
            1 => Name::Authority,
            4 | 5 => Name::Path,
            index if index <= STATIC_ENTRIES => Name::Other,
            index => *self.0.get(index - STATIC_ENTRIES - 1).ok_or(Malformed)?,
        };
        let value = Text::read(block, at)?;
        match name {
            Name::Authority => seen.is_rewritten |= value.rewrite(block)?,
            Name::Path => {
                let path = proto::METHOD_PATH.as_bytes();
                seen.is_limit |= value.is(block, path, huffman::METHOD_PATH);
            }
            Name::Other => {}
        }
        Ok(name)
    }
}

/// Reads an integer whose first byte has so many bits for it. Source: section 5.1.
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

/// A string: where it is in its block. Source: section 5.2.
#[derive(Debug)]
struct Text {
    bytes: Range<usize>,
    is_huffman: bool,
}

impl Text {
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
            _ if self.is(block, b":authority", huffman::AUTHORITY) => Name::Authority,
            _ if self.is(block, b":path", huffman::PATH) => Name::Path,
            _ => Name::Other,
        }
    }

    /// Whether it is this text, raw or in Huffman's code.
    fn is(&self, block: &[u8], raw: &[u8], in_huffman: &[u8]) -> bool {
        block[self.bytes.clone()] == *if self.is_huffman { in_huffman } else { raw }
    }

    /// Rewrites each `|` to `+`. True: there was one.
    fn rewrite(&self, block: &mut [u8]) -> Result<bool, Malformed> {
        let bytes = &mut block[self.bytes.clone()];
        if self.is_huffman {
            return huffman::rewrite(bytes);
        }
        let mut is_rewritten = false;
        for byte in bytes.iter_mut().filter(|byte| **byte == b'|') {
            (*byte, is_rewritten) = (b'+', true);
        }
        Ok(is_rewritten)
    }
}
