//! Refuses calls before they cost anything: whole frames of HTTP/2 are taken out of what was read, and a refusal is put into what is written.
//!
//! Done for a worker that is behind (see `backlog`), where reading a call the usual way costs so much that there would be no time left to
//! answer any. A call is refused here only if this changes nothing else: its headers and its message are there whole, the message ends the
//! stream, and its headers leave the table of header compression as it is. All else goes on to HTTP/2, which never hears of what was refused.
//!
//! Sources: RFC 9113 (frames: 4.1, 6.1 to 6.10; streams that are skipped: 5.1.1), RFC 7541 (header compression: 6.1 to 6.3).

use std::sync::LazyLock;

use bytes::Buf;

use super::body;

/// What a frame begins with: length, kind, flags, stream.
const HEAD: usize = 9;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const WINDOW_UPDATE: u8 = 8;

const END_STREAM: u8 = 0x1;
const END_HEADERS: u8 = 0x4;

/// Frames that say something about a refused call have so many bytes.
const ABOUT_A_CALL: usize = HEAD + 4;

/// Refusals that wait to be written, at most. Who does not read them is served as usual, which waits until they are read.
const MOST_UNWRITTEN: usize = 64 << 10;

/// A refusal, but for its stream: headers that end it, none of which changes a table.
static REFUSAL: LazyLock<Vec<u8>> = LazyLock::new(|| {
    // `:status: 200` is the 8th of the static table, `content-type` the 31st.
    let mut block = vec![0x88, 0x0f, 31 - 15];
    write_text("application/grpc", &mut block);
    for (name, value) in [("grpc-status", "8"), ("grpc-message", "overloaded")] {
        block.push(0);
        write_text(name, &mut block);
        write_text(value, &mut block);
    }
    frame(HEADERS, END_HEADERS | END_STREAM, 0, &block)
});

fn write_text(text: &str, block: &mut Vec<u8>) {
    block.push(u8::try_from(text.len()).unwrap_or_default());
    block.extend_from_slice(text.as_bytes());
}

/// A frame; what it holds is shorter than 16 MiB.
pub(super) fn frame(kind: u8, flags: u8, stream: u32, held: &[u8]) -> Vec<u8> {
    let length = u32::try_from(held.len()).unwrap_or_default().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), held].concat()
}

/// How a frame begins.
#[derive(Clone, Copy, Debug)]
struct Frame {
    length: usize,
    kind: u8,
    flags: u8,
    stream: u32,
}

impl Frame {
    fn read(head: &[u8; HEAD]) -> Self {
        let [a, b, c, kind, flags, ref stream @ ..] = *head;
        Self { length: u32::from_be_bytes([0, a, b, c]) as usize, kind, flags, stream: u32::from_be_bytes(*stream) & (u32::MAX >> 1) }
    }

    /// The frame that `bytes` begin with, what it holds, and what comes after it, if it is there whole.
    fn split(bytes: &[u8]) -> Option<(Self, &[u8], &[u8])> {
        let (head, rest) = bytes.split_first_chunk()?;
        let frame = Self::read(head);
        let (held, rest) = rest.split_at_checked(frame.length)?;
        Some((frame, held, rest))
    }
}

/// What has come of a call that may be refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Headers,
    /// And its message, but not yet its end, which some send by itself.
    Message,
    All,
    /// It is more than a usual call.
    Unusual,
}

impl Part {
    /// With one more frame.
    fn and(self, frame: &Frame, held: &[u8]) -> Self {
        match (self, frame.kind, frame.flags) {
            (Self::Headers, DATA, END_STREAM) if is_rate_limit(held) => Self::All,
            (Self::Headers, DATA, 0) if is_rate_limit(held) => Self::Message,
            (Self::Message, DATA, END_STREAM) if held.is_empty() => Self::All,
            (part, RST_STREAM | WINDOW_UPDATE, _) => part,
            _ => Self::Unusual,
        }
    }
}

/// One connection's.
#[derive(Debug, Default)]
pub(super) struct Gate {
    /// Of the frame that is passing: its head as far as it came, and what is still to come behind it.
    head: [u8; HEAD],
    head_bytes: usize,
    left: usize,
    /// The last stream that HTTP/2 has heard of, and the last one that was refused.
    last: u32,
    refused: u32,
    /// By stream: the calls in what is looked at now.
    calls: Vec<(u32, Part)>,
    /// Refusals, and how much of them is written.
    refusals: Vec<u8>,
    written: usize,
}

impl Gate {
    /// Takes in what goes on to HTTP/2 as it is.
    pub(super) fn pass(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let of_frame = self.left.min(bytes.len());
            self.left -= of_frame;
            bytes.advance(of_frame);
            let of_head = (HEAD - self.head_bytes).min(bytes.len());
            self.head[self.head_bytes..][..of_head].copy_from_slice(&bytes[..of_head]);
            self.head_bytes += of_head;
            bytes.advance(of_head);
            if self.head_bytes == HEAD {
                let frame = Frame::read(&self.head);
                if frame.kind == HEADERS {
                    self.last = self.last.max(frame.stream);
                }
                self.left = frame.length;
                self.head_bytes = 0;
            }
        }
    }

    /// Whether something may be said of a refused call that HTTP/2 would take ill, because it has heard of no later one.
    pub(super) fn is_ahead(&self) -> bool {
        self.refused > self.last
    }

    /// Takes out of `bytes` what is said of refused calls and, if they are late, the calls that can be refused; moves the rest to the beginning.
    /// Returns how much that is, where the beginning of a frame is held back that has to be given again with what comes behind it, and how
    /// many calls were refused.
    pub(super) fn refuse(&mut self, bytes: &mut [u8], are_late: bool) -> (usize, usize, u64) {
        let mut at = 0;
        while at < bytes.len() && (self.head_bytes > 0 || self.left > 0) {
            at += self.pass_frame(&bytes[at..]);
        }
        if are_late {
            self.find_calls(&bytes[at..]);
        }
        let (mut kept, mut calls, mut data) = (at, 0, 0);
        while at < bytes.len() {
            let rest = &bytes[at..];
            let whole = Frame::split(rest).map(|(frame, ..)| frame);
            if whole.is_none() && rest.len() < ABOUT_A_CALL {
                break;
            }
            let Some(frame) = whole.filter(|frame| self.refuses(frame)) else {
                let passed = self.pass_frame(rest);
                bytes.copy_within(at..at + passed, kept);
                kept += passed;
                at += passed;
                continue;
            };
            match frame.kind {
                HEADERS => {
                    let place = self.refusals.len();
                    self.refusals.extend_from_slice(&REFUSAL);
                    self.refusals[place + 5..place + HEAD].copy_from_slice(&frame.stream.to_be_bytes());
                    self.refused = self.refused.max(frame.stream);
                    calls += 1;
                }
                DATA => data += frame.length,
                _ => {}
            }
            at += HEAD + frame.length;
        }
        if data > 0 {
            // What the connection may send is given back, as HTTP/2 would have done.
            let given_back = u32::try_from(data).unwrap_or_default().to_be_bytes();
            self.refusals.extend(frame(WINDOW_UPDATE, 0, 0, &given_back));
        }
        self.calls.clear();
        (kept, at, calls)
    }

    /// Finds the calls that are whole in `bytes`, which begin with a frame. Frames of several calls may be mixed.
    fn find_calls(&mut self, mut bytes: &[u8]) {
        let room = MOST_UNWRITTEN.saturating_sub(self.refusals.len()) / REFUSAL.len();
        while let Some((frame, held, rest)) = Frame::split(bytes) {
            bytes = rest;
            if let Ok(place) = self.find(frame.stream) {
                let (_, part) = &mut self.calls[place];
                *part = part.and(&frame, held);
            } else if (frame.kind, frame.flags) == (HEADERS, END_HEADERS)
                && frame.stream > self.calls.last().map_or(self.last, |&(stream, _)| stream)
                && self.calls.len() < room
                && leaves_the_table(held)
            {
                self.calls.push((frame.stream, Part::Headers));
            }
        }
    }

    fn find(&self, stream: u32) -> Result<usize, usize> {
        self.calls.binary_search_by_key(&stream, |&(stream, _)| stream)
    }

    /// Whether HTTP/2 is not to see a frame: of a call that is refused, or about one that was.
    fn refuses(&self, frame: &Frame) -> bool {
        match self.find(frame.stream) {
            Ok(place) => self.calls[place].1 == Part::All,
            Err(_) => matches!(frame.kind, RST_STREAM | WINDOW_UPDATE) && frame.stream > self.last,
        }
    }

    /// Lets the rest of a frame pass, as far as it is there. Returns how much that was.
    fn pass_frame(&mut self, bytes: &[u8]) -> usize {
        let count = self.rest_of_frame(bytes);
        self.pass(&bytes[..count]);
        count
    }

    /// How much of `bytes` belongs to the frame that is passing.
    fn rest_of_frame(&self, bytes: &[u8]) -> usize {
        let of_head = HEAD - self.head_bytes;
        let length = match bytes.first_chunk() {
            _ if self.left > 0 => self.left,
            Some(head) if self.head_bytes == 0 => HEAD + Frame::read(head).length,
            // Only when its head is whole is it known how long it is.
            _ => of_head,
        };
        length.min(bytes.len())
    }

    /// Refusals that are still to be written, between two frames of HTTP/2.
    pub(super) fn unwritten(&self) -> &[u8] {
        &self.refusals[self.written..]
    }

    /// So much of them was written.
    pub(super) fn wrote(&mut self, count: usize) {
        self.written += count;
        if self.written == self.refusals.len() {
            self.refusals.clear();
            self.written = 0;
        }
    }

    /// Whether a part of the refusals was written, so that nothing else may be until the rest is.
    pub(super) fn is_writing(&self) -> bool {
        self.written > 0
    }
}

/// Whether headers say nothing that later ones may refer to.
fn leaves_the_table(mut block: &[u8]) -> bool {
    while let Some(&first) = block.first() {
        let passed = match first {
            // Named by its place in a table.
            0x80.. => skip_number(&mut block, 7).is_some(),
            // Remembered, or a new size of the table.
            0x20.. => false,
            // The name may have a place in a table; all else is written out.
            _ => skip_number(&mut block, 4).is_some_and(|name| (name != 0 || skip_text(&mut block)) && skip_text(&mut block)),
        };
        if !passed {
            return false;
        }
    }
    true
}

fn skip_text(block: &mut &[u8]) -> bool {
    match skip_number(block, 7) {
        Some(length) if length <= block.len() => {
            block.advance(length);
            true
        }
        _ => false,
    }
}

/// Reads a number that begins in the last `bits` of the first byte. Those beyond two more bytes are none that Weir takes.
fn skip_number(block: &mut &[u8], bits: u32) -> Option<usize> {
    let most = usize::from(u8::MAX >> (8 - bits));
    let mut number = usize::from(block.try_get_u8().ok()?) & most;
    if number == most {
        for shift in [0, 7] {
            let next = usize::from(block.try_get_u8().ok()?);
            number += (next & 0x7f) << shift;
            if next < 0x80 {
                return Some(number);
            }
        }
        return None;
    }
    Some(number)
}

/// Whether a body looks like a `RateLimitRequest`: a domain, and then descriptors. What asks for health or for reflection has other fields.
fn is_rate_limit(body: &[u8]) -> bool {
    const DOMAIN: u8 = 1 << 3 | 2;
    const DESCRIPTORS: u8 = 2 << 3 | 2;
    let Some(mut message) = body::single(body) else { return false };
    if message.first() == Some(&DOMAIN) {
        message.advance(1);
        let Ok(length) = prost::encoding::decode_varint(&mut message) else { return false };
        message = usize::try_from(length).ok().and_then(|length| message.get(length..)).unwrap_or_default();
    }
    message.first() == Some(&DESCRIPTORS)
}

#[cfg(test)]
mod tests;
