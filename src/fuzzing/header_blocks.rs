//! What stands under HTTP/2: whatever arrives and however it is cut, the reader gets exactly the
//! bytes before an unfinished header block; what is held is accounted for, has a bound, and is
//! given when the block ends.
//!
//! The model looks at all bytes at once, from the beginning of each frame.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use tokio::io::{AsyncRead, ReadBuf};

use super::Input;
use crate::net::bounds::MemoryBudget;
use crate::observe::metrics::Metrics;
use crate::service::server::wire::{MAX_CONTINUATIONS, MAX_FRAME_BYTES, Wire};

const FRAME_HEADER_BYTES: usize = 9;
const SMALL_BUDGET_BYTES: usize = 24 << 10;
const LARGE_BUDGET_BYTES: usize = 1 << 20;

/// The first memory of a block, which doubles.
const FIRST_BYTES: usize = 4 << 10;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 4;

/// Everything before an unfinished block was read.
fn assert_complete(model: &Model, sent: &[u8], read: &[u8], taken: usize) {
    assert!(
        read.len() >= model.complete && read.len() < model.complete + FRAME_HEADER_BYTES,
        "{} read: {model:?}",
        read.len()
    );
    // A part of a header is not held, because the frame may be any.
    assert!(
        model.is_open || read.len() == sent.len(),
        "{} of {} read: {model:?}",
        read.len(),
        sent.len()
    );
    assert!(
        taken >= sent.len() - read.len(),
        "what is held is accounted for"
    );
    assert!(model.is_open || taken == 0, "nothing is held: {model:?}");
}

pub(super) fn check(input: &[u8]) {
    let mut input = Input(input);
    let total = if input.byte().is_multiple_of(4) {
        SMALL_BUDGET_BYTES
    } else {
        LARGE_BUDGET_BYTES
    };
    let read_bytes = (usize::from(input.byte()) + 1) * 64;
    let cuts: Vec<_> = input
        .bytes(4)
        .iter()
        .map(|&cut| usize::from(cut) * 8 + 1)
        .collect();
    let sent = frames(&mut input);

    let budget = MemoryBudget::new(total);
    let chunks = Chunks::new(sent.clone(), cuts);
    let mut wire =
        Wire::new(chunks, b"", budget.clone(), Metrics::new(1, 0.8), None).with_any_authority();
    let mut read = Vec::new();
    let taken = || total - budget.unused_bytes();
    let model = Model::of(&sent);
    // The unfinished block and the part of a reading before it, in memory that doubles.
    let bound = 2 * (model.longest_block + 2 * read_bytes) + FIRST_BYTES;
    let outcome = read_all(&mut wire, read_bytes, &mut read, || {
        assert!(
            taken() <= bound,
            "{} of {bound} bytes for {model:?}",
            taken()
        );
    });
    assert!(sent.starts_with(&read), "{model:?}");
    if let Err(error) = outcome {
        // The connection ends.
        assert!(
            error.kind() == io::ErrorKind::OutOfMemory && bound > total,
            "{error}: {bound} of {total} for {model:?}"
        );
        return;
    }
    assert_complete(&model, &sent, &read, taken());
    if let Some(end) = model.end {
        wire.socket().bytes.extend(&end);
        if read_all(&mut wire, read_bytes, &mut read, || {}).is_ok() {
            assert!(
                read == [sent, end].concat(),
                "a block that is complete is given"
            );
            assert_eq!(taken(), 0);
        }
    }
    drop(wire);
    assert_eq!(taken(), 0, "the budget is whole again");
}

/// Reads all that can be read now.
fn read_all(
    wire: &mut Wire<Chunks>,
    at_a_time: usize,
    read: &mut Vec<u8>,
    each: impl Fn(),
) -> io::Result<()> {
    let mut bytes = vec![0; at_a_time];
    loop {
        let mut buffer = ReadBuf::new(&mut bytes);
        let polled =
            Pin::new(&mut *wire).poll_read(&mut Context::from_waker(Waker::noop()), &mut buffer);
        each();
        match polled {
            Poll::Pending => return Ok(()),
            Poll::Ready(result) => result?,
        }
        assert!(
            !buffer.filled().is_empty(),
            "an empty read would be the end of the connection"
        );
        read.extend_from_slice(buffer.filled());
    }
}

/// A socket whose reads return the bytes in chunks of these lengths by turns, and then nothing yet.
pub(super) struct Chunks {
    bytes: Vec<u8>,
    at: usize,
    cuts: Vec<usize>,
    next: usize,
}

impl Chunks {
    pub(super) fn new(bytes: Vec<u8>, cuts: Vec<usize>) -> Self {
        Self {
            bytes,
            at: 0,
            cuts,
            next: 0,
        }
    }
}

impl AsyncRead for Chunks {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let cut = self
            .cuts
            .get(self.next % self.cuts.len().max(1))
            .copied()
            .unwrap_or(usize::MAX);
        let count = cut.min(buffer.remaining()).min(self.bytes.len() - self.at);
        if count == 0 {
            return Poll::Pending;
        }
        buffer.put_slice(&self.bytes[self.at..][..count]);
        (self.at, self.next) = (self.at + count, self.next + 1);
        Poll::Ready(Ok(()))
    }
}

/// Frames by instructions of two bytes, so that a short input makes long frames, and bytes as they
/// are.
fn frames(input: &mut Input<'_>) -> Vec<u8> {
    let mut wire = Vec::new();
    while !input.is_empty() && wire.len() < 1 << 19 {
        let (what, length) = (input.byte(), usize::from(input.byte()));
        let kind = match what % 8 {
            0..=1 => HEADERS,
            2..=4 => CONTINUATION,
            5 => DATA,
            6 => input.byte(),
            _ => {
                wire.extend(input.bytes(length));
                continue;
            }
        };
        let flags = if what & 8 == 0 { 0 } else { END_HEADERS };
        let length = if what & 16 == 0 { length } else { length * 64 };
        wire.extend(&(length as u32).to_be_bytes()[1..]);
        wire.extend([kind, flags, 0, 0, 0, 1]);
        wire.resize(wire.len() + length, 7);
    }
    wire
}

/// What the reader has to get of some bytes.
#[derive(Debug)]
struct Model {
    /// The bytes before an unfinished block, or all.
    complete: usize,
    /// A block is unfinished.
    is_open: bool,
    /// What ends it; `None` in the middle of a frame header.
    end: Option<Vec<u8>>,
    /// The bytes of the longest block that was unfinished at any time.
    longest_block: usize,
}

impl Model {
    fn of(sent: &[u8]) -> Self {
        let passes = |longest_block| Self {
            complete: sent.len(),
            is_open: false,
            end: None,
            longest_block,
        };
        let (mut at, mut block, mut longest) = (0, None::<(usize, u32)>, 0);
        loop {
            if let Some((start, _)) = block {
                longest = longest.max(at.min(sent.len()) - start);
            }
            let Some(&[a, b, c, kind, flags, ..]) = sent
                .get(at..)
                .and_then(|rest| rest.first_chunk::<FRAME_HEADER_BYTES>())
            else {
                let Some((start, _)) = block else {
                    return passes(longest);
                };
                let end = (at == sent.len())
                    .then(|| vec![0, 0, 0, CONTINUATION, END_HEADERS, 0, 0, 0, 1]);
                return Self {
                    complete: start,
                    is_open: true,
                    end,
                    longest_block: longest.max(sent.len() - start),
                };
            };
            let length = u32::from_be_bytes([0, a, b, c]) as usize;
            let (is_last, behind) = (flags & END_HEADERS != 0, at + FRAME_HEADER_BYTES + length);
            if length > MAX_FRAME_BYTES as usize {
                return passes(longest);
            }
            block = match (block, kind) {
                (None, HEADERS) if !is_last => Some((at, 0)),
                (None, _) => None,
                (Some((start, continuations)), CONTINUATION)
                    if is_last || continuations < MAX_CONTINUATIONS =>
                {
                    longest = longest.max(behind.min(sent.len()) - start);
                    if is_last && behind <= sent.len() {
                        None
                    } else {
                        Some((start, continuations + u32::from(!is_last)))
                    }
                }
                (Some(_), _) => return passes(longest),
            };
            if let (Some((start, _)), true) = (block, behind > sent.len()) {
                let mut end = vec![7; behind - sent.len()];
                if !is_last {
                    end.extend([0, 0, 0, CONTINUATION, END_HEADERS, 0, 0, 0, 1]);
                }
                return Self {
                    complete: start,
                    is_open: true,
                    end: Some(end),
                    longest_block: longest.max(sent.len() - start),
                };
            }
            if behind > sent.len() {
                return passes(longest);
            }
            at = behind;
        }
    }
}
