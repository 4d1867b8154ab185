//! A client that sends calls in every form that HTTP/2 and HPACK have, as its input says, and knows
//! what it has sent.
//!
//! Source: RFC 7541 and RFC 9113, section 6.

use std::collections::{BTreeMap, VecDeque};

use super::PREFACE;
use crate::core::proto;
use crate::fuzzing::Input;

const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const CONTINUATION: u8 = 9;
/// A type that no standard defines, which HTTP/2 ignores.
const UNKNOWN: u8 = 0x50;

const END_STREAM: u8 = 0x1;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;

const MAX_CALLS: u32 = 200;
const MAX_BYTES: usize = 1 << 18;
const MAX_TABLE_BYTES: usize = 4_096;
const MAX_FRAME_BYTES: usize = 16 << 10;

/// The fields of a call have up to this many bytes: less than HTTP/2 accepts, also where Huffman's
/// code is longer than they are.
const MAX_FIELD_BYTES: usize = 40_000;

/// CONTINUATION frames of a block: fewer than HTTP/2 accepts.
const MAX_FRAGMENTS: usize = 16;

const PATHS: [&str; 3] = [
    proto::METHOD_PATH,
    "/grpc.health.v1.Health/Check",
    "/index.html",
];

/// The names of fields: from the static table and others.
const NAMES: [&str; 6] = [
    "tracestate",
    "user-agent",
    "x-a",
    "host",
    "authority",
    "grpc-timeout",
];

/// What authorities consist of.
const LETTERS: &[u8] = b"|a|0.-_~+|z";

/// The static table as far as it is used: its index, name and value. Source: RFC 7541, appendix A.
const STATIC: [(usize, &str, &str); 9] = [
    (1, ":authority", ""),
    (2, ":method", "GET"),
    (3, ":method", "POST"),
    (4, ":path", "/"),
    (5, ":path", "/index.html"),
    (6, ":scheme", "http"),
    (7, ":scheme", "https"),
    (38, "host", ""),
    (58, "user-agent", ""),
];
const STATIC_ENTRIES: usize = 61;

/// A call, apart from its method and scheme.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Call {
    pub path: String,
    pub authority: String,
    pub fields: Vec<(String, Vec<u8>)>,
}

#[derive(Default)]
pub(super) struct Sender {
    wire: Vec<u8>,
    table: Table,
    /// The last value of each name.
    last: BTreeMap<String, Vec<u8>>,
}

/// The dynamic table, the newest entry first.
struct Table {
    entries: VecDeque<(String, Vec<u8>)>,
    max_bytes: usize,
}

impl Default for Table {
    fn default() -> Self {
        Self {
            entries: VecDeque::new(),
            max_bytes: MAX_TABLE_BYTES,
        }
    }
}

impl Table {
    fn evict(&mut self) {
        let bytes = |entries: &VecDeque<(String, Vec<u8>)>| {
            entries
                .iter()
                .map(|(name, value)| name.len() + value.len() + 32)
                .sum::<usize>()
        };
        while bytes(&self.entries) > self.max_bytes {
            self.entries.pop_back();
        }
    }

    fn insert(&mut self, name: &str, value: &[u8]) {
        self.entries.push_front((name.to_owned(), value.to_vec()));
        self.evict();
    }

    /// The indices of all entries that `is_meant` accepts.
    fn indices(&self, is_meant: impl Fn(&str, &[u8]) -> bool) -> Vec<usize> {
        let fixed = STATIC
            .iter()
            .filter(|(_, name, value)| is_meant(name, value.as_bytes()))
            .map(|(index, ..)| *index);
        let dynamic = self
            .entries
            .iter()
            .enumerate()
            .filter(|(_, (name, value))| is_meant(name, value));
        fixed
            .chain(dynamic.map(|(index, _)| index + 1 + STATIC_ENTRIES))
            .collect()
    }
}

impl Sender {
    /// The bytes of a connection, and its calls in their order.
    pub(super) fn send(mut self, input: &mut Input<'_>) -> (Vec<u8>, Vec<Call>) {
        self.wire.extend(PREFACE);
        self.frame(SETTINGS, 0, 0, &[]);
        let mut calls = Vec::new();
        while !input.is_empty() && (calls.len() as u32) < MAX_CALLS && self.wire.len() < MAX_BYTES {
            let stream = 1 + 2 * calls.len() as u32;
            calls.push(self.call(stream, input));
        }
        (self.wire, calls)
    }

    fn frame(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        self.wire.extend(&(payload.len() as u32).to_be_bytes()[1..]);
        self.wire.extend([kind, flags]);
        self.wire.extend(stream.to_be_bytes());
        self.wire.extend(payload);
    }

    fn call(&mut self, stream: u32, input: &mut Input<'_>) -> Call {
        let what = input.byte();
        let mut block = Vec::new();
        if what & 0x10 != 0 {
            self.table.max_bytes = (usize::from(input.byte()) * 17).min(MAX_TABLE_BYTES);
            self.table.evict();
            integer(&mut block, 0x20, 5, self.table.max_bytes);
        }
        if what & 0x20 != 0 {
            let payload = input.bytes(12);
            self.frame(UNKNOWN, 0xff, 0, payload);
        }
        let path = PATHS[usize::from(what) % PATHS.len()].to_owned();
        let authority = self.authority(input);
        self.field(
            &mut block,
            ":method",
            if what & 4 == 0 { b"POST" } else { b"GET" },
            input.byte(),
        );
        // The pseudo headers in any order.
        if what & 8 == 0 {
            self.field(&mut block, ":authority", authority.as_bytes(), input.byte());
        }
        self.field(&mut block, ":path", path.as_bytes(), input.byte());
        self.field(&mut block, ":scheme", b"http", input.byte());
        if what & 8 != 0 {
            self.field(&mut block, ":authority", authority.as_bytes(), input.byte());
        }
        let mut fields = Vec::<(String, Vec<u8>)>::new();
        for _ in 0..what >> 6 {
            let (name, value) = self.other(input, MAX_FIELD_BYTES.saturating_sub(block.len()));
            self.field(&mut block, &name, &value, input.byte());
            fields.push((name, value));
        }
        // As a map of headers has them: those of one name together.
        let mut sorted = Vec::<(String, Vec<u8>)>::new();
        for (index, (name, _)) in fields.iter().enumerate() {
            if fields[..index].iter().all(|(before, _)| before != name) {
                sorted.extend(fields.iter().filter(|(other, _)| other == name).cloned());
            }
        }
        self.block(stream, &block, input);
        Call {
            path,
            authority,
            fields: sorted,
        }
    }

    /// The last value of this name, if `is_repeated`.
    fn repeated(&self, name: &str, is_repeated: bool) -> Option<Vec<u8>> {
        self.last.get(name).filter(|_| is_repeated).cloned()
    }

    fn authority(&mut self, input: &mut Input<'_>) -> String {
        let what = input.byte();
        let value = self
            .repeated(":authority", what & 1 == 1)
            .unwrap_or_else(|| {
                let letters = input
                    .bytes(1 + usize::from(what >> 3))
                    .iter()
                    .map(|&byte| LETTERS[usize::from(byte) % LETTERS.len()]);
                let letters: Vec<_> = letters.collect();
                let times = if what & 6 == 0 { 40 } else { 1 };
                // HTTP/2 accepts no empty one, nor one that begins like a path.
                [b"x", &letters.repeat(times)[..]].concat()
            });
        self.last.insert(":authority".to_owned(), value.clone());
        String::from_utf8_lossy(&value).into_owned()
    }

    /// A field of any bytes that HTTP/2 accepts.
    fn other(&mut self, input: &mut Input<'_>, most: usize) -> (String, Vec<u8>) {
        let (what, length) = (input.byte(), usize::from(input.byte()));
        let name = NAMES[usize::from(what >> 2) % NAMES.len()].to_owned();
        let value = self.repeated(&name, what & 1 == 1).unwrap_or_else(|| {
            let letters = input.bytes(length % 64).iter().map(|&byte| {
                if byte < 0x20 || byte == 0x7f {
                    b'|'
                } else {
                    byte
                }
            });
            let times = if what & 2 == 0 { 1 } else { 1 + length * 4 };
            letters.collect::<Vec<_>>().repeat(times)
        });
        let value = value[..value.len().min(most)].to_vec();
        self.last.insert(name.clone(), value.clone());
        (name, value)
    }

    /// Writes a field in one of its forms. The first two bits of `how` choose the representation,
    /// the next ones Huffman's code for name and value, and the others which of several entries is
    /// meant.
    fn field(&mut self, block: &mut Vec<u8>, name: &str, value: &[u8], how: u8) {
        let which = usize::from(how >> 4);
        let whole = self
            .table
            .indices(|other, text| other == name && text == value);
        if how & 3 == 3 && !whole.is_empty() {
            return integer(block, 0x80, 7, whole[which % whole.len()]);
        }
        let (first, bits) = [(0x40, 6), (0, 4), (0x10, 4), (0x40, 6)][usize::from(how & 3)];
        // One choice more: the name as a literal.
        let mut names = self.table.indices(|other, _| other == name);
        names.push(0);
        let index = names[which % names.len()];
        integer(block, first, bits, index);
        if index == 0 {
            text(block, name.as_bytes(), how & 4 != 0);
        }
        text(block, value, how & 8 != 0);
        if first == 0x40 {
            self.table.insert(name, value);
        }
    }

    /// Writes a block in frames.
    fn block(&mut self, stream: u32, block: &[u8], input: &mut Input<'_>) {
        let how = input.byte();
        let mut flags = END_STREAM;
        let mut rest = block;
        let mut payload = Vec::new();
        let padding = if how & 1 == 0 {
            0
        } else {
            usize::from(input.byte())
        };
        if how & 1 != 0 {
            flags |= PADDED;
            payload.push(padding as u8);
        }
        if how & 2 != 0 {
            flags |= PRIORITY;
            payload.extend([0x80, 0, 0, 0, 7]);
        }
        let mut fragments = Vec::new();
        for _ in 0..usize::from(how >> 2 & 3) {
            let length = usize::from(input.byte()) * if how & 0x10 == 0 { 1 } else { 64 };
            let (fragment, later) =
                rest.split_at(length.min(rest.len()).min(MAX_FRAME_BYTES - 300));
            fragments.push(fragment);
            rest = later;
        }
        fragments.extend(rest.chunks(MAX_FRAME_BYTES - 300).take(MAX_FRAGMENTS));
        if rest.is_empty() {
            fragments.push(rest);
        }
        let count = fragments.len();
        for (index, fragment) in fragments.into_iter().enumerate() {
            if index > 0 {
                (flags, payload) = (0, Vec::new());
            }
            payload.extend(fragment);
            if index == 0 {
                payload.resize(payload.len() + padding, b'|');
            }
            let last = if index + 1 == count { END_HEADERS } else { 0 };
            self.frame(
                if index == 0 { HEADERS } else { CONTINUATION },
                flags | last,
                stream,
                &payload,
            );
        }
    }
}

/// Source: RFC 7541, section 5.1.
fn integer(block: &mut Vec<u8>, first: u8, bits: u8, value: usize) {
    let most = (1 << bits) - 1;
    if value < most {
        return block.push(first | value as u8);
    }
    block.push(first | most as u8);
    let mut rest = value - most;
    while rest >= 0x80 {
        block.push(0x80 | rest as u8);
        rest >>= 7;
    }
    block.push(rest as u8);
}

/// Source: RFC 7541, section 5.2.
fn text(block: &mut Vec<u8>, text: &[u8], is_huffman: bool) {
    if !is_huffman {
        integer(block, 0, 7, text.len());
        return block.extend(text);
    }
    let codes = codes();
    let (mut encoded, mut bits, mut waiting) = (Vec::new(), 0_u64, 0_u32);
    for &letter in text {
        let (code, length) = codes[usize::from(letter)];
        (bits, waiting) = (
            bits << length | u64::from(code),
            waiting + u32::from(length),
        );
        while waiting >= 8 {
            waiting -= 8;
            encoded.push((bits >> waiting) as u8);
        }
    }
    if waiting > 0 {
        encoded.push((bits << (8 - waiting)) as u8 | 0xff >> waiting);
    }
    integer(block, 0x80, 7, encoded.len());
    block.extend(encoded);
}

/// The length of each letter's code, in bits. Source: RFC 7541, appendix B.
#[rustfmt::skip]
const LENGTHS: [u8; 256] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28,
    28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 28,
     6, 10, 10, 12, 13,  6,  8, 11, 10, 10,  8, 11,  8,  6,  6,  6,
     5,  5,  5,  6,  6,  6,  6,  6,  6,  6,  7,  8, 15,  6, 12, 10,
    13,  6,  7,  7,  7,  7,  7,  7,  7,  7,  7,  7,  7,  7,  7,  7,
     7,  7,  7,  7,  7,  7,  7,  7,  8,  7,  8, 13, 19, 13, 14,  6,
    15,  5,  6,  5,  6,  5,  6,  6,  6,  5,  7,  7,  6,  6,  6,  5,
     6,  7,  6,  5,  5,  6,  7,  7,  7,  7,  7, 15, 11, 14, 13, 28,
    20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23,
    24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24,
    22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23,
    21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25,
    19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27,
    20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23,
    26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26,
];

/// The code of each letter: those of one length follow each other in the order of the letters.
fn codes() -> &'static [(u32, u8); 256] {
    static CODES: std::sync::OnceLock<[(u32, u8); 256]> = std::sync::OnceLock::new();
    CODES.get_or_init(|| {
        let (mut codes, mut next) = ([(0, 0); 256], 0);
        for length in 1..=30 {
            next <<= 1;
            for letter in (0..256).filter(|&letter| LENGTHS[letter] == length) {
                codes[letter] = (next, length);
                next += 1;
            }
        }
        codes
    })
}
