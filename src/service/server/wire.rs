//! The adapter between a socket and HTTP/2, which follows the frames of each direction once, at
//! about twenty instructions for each frame. It validates none: h2 answers violations.
//!
//! Header blocks reach HTTP/2 only when they are whole, with authorities that it accepts
//! (`authority`); unfinished ones wait here, within the memory budget (`HeaderBlocks`). A turn
//! of a connection passes on only as many frames as [`FrameBudget`] has left, because h2 reads on until
//! nothing more has arrived, and keeps room for as many calls and frames as it ever had at a time.
//! In the other direction, the adapter counts resets and answers, which h2 does not report.
//!
//! Sources: RFC 9113, sections 4.1 (frames), 4.3 (a header block is contiguous), 6 (types and
//! flags of frames) and 7 (error codes); h2 0.4.

mod authority;

use std::io;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use bytes::{Buf, BytesMut};
use h2::Reason;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::unread::OfConnection;
use crate::net::bounds::{MemoryBudget, MemoryReservation};
use crate::observe::metrics::{ConnectionError, Metrics};
use authority::Authorities;

/// Initial size of the buffer of a block. It doubles when the block needs more: buffers of many
/// connections that grow in small steps would fragment the memory.
const FIRST_BYTES: usize = 4 << 10;

/// A connection's bytes between its socket and HTTP/2.
pub(crate) struct Wire<S> {
    socket: S,
    /// Bytes that HTTP/2 reads first: the connection preface, which was already read from the
    /// socket.
    first: &'static [u8],
    blocks: HeaderBlocks,
    turn: Arc<FrameBudget>,
    budget: MemoryBudget,
    /// `complete` bytes that may be passed on, an unfinished block up to `followed`, and frames for
    /// the next turn. Empty most of the time.
    held: BytesMut,
    /// The bytes of memory of `held`: more than its capacity when a part of it was passed on.
    allocated: usize,
    complete: usize,
    followed: usize,
    memory: Option<BlockCharge>,
    resets: Resets,
}

/// The frames that a connection may still pass on in its turn.
#[derive(Debug, Default)]
pub(super) struct FrameBudget {
    frames_left: AtomicUsize,
    /// The client does not read fast enough: something is not written yet.
    is_blocked: AtomicBool,
}

impl FrameBudget {
    pub(super) fn begin(&self, frames: usize) {
        self.frames_left.store(frames, Ordering::Relaxed);
    }

    pub(super) fn is_over(&self) -> bool {
        self.frames_left.load(Ordering::Relaxed) == 0
    }

    pub(super) fn is_blocked(&self) -> bool {
        self.is_blocked.load(Ordering::Relaxed)
    }
}

/// The charge of an unfinished block, and the wait until others need that memory.
struct BlockCharge(
    MemoryReservation,
    Pin<Box<dyn Future<Output = ()> + Send + Sync>>,
);

impl<S> Wire<S> {
    /// The next bytes of `socket` have to be the first frame. `unread` gets the answers that were
    /// written and the calls that were reset.
    pub(crate) fn new(
        socket: S,
        first: &'static [u8],
        budget: MemoryBudget,
        metrics: Arc<Metrics>,
        unread: Option<Arc<OfConnection>>,
    ) -> Self {
        Self {
            socket,
            first,
            turn: Arc::new(FrameBudget {
                frames_left: AtomicUsize::new(usize::MAX),
                ..FrameBudget::default()
            }),
            blocks: HeaderBlocks::new(Some(Authorities::new(Arc::clone(&metrics)))),
            budget,
            held: BytesMut::new(),
            allocated: 0,
            complete: 0,
            followed: 0,
            memory: None,
            resets: Resets {
                frames: FrameWalker::default(),
                code: 0,
                metrics,
                unread,
            },
        }
    }

    /// Passes on the frames of each turn only.
    pub(super) fn in_turns(mut self, turn: &Arc<FrameBudget>) -> Self {
        self.turn = Arc::clone(turn);
        self
    }

    /// Checks no authority, as after the first call of most connections.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn with_any_authority(mut self) -> Self {
        self.blocks = HeaderBlocks::new(None);
        self
    }

    #[cfg(any(test, fuzzing))]
    pub(crate) fn socket(&mut self) -> &mut S {
        &mut self.socket
    }

    /// Appends `bytes` to the held bytes. If blocks follow each other without a gap, the bytes that
    /// HTTP/2 has read are freed.
    fn hold(&mut self, bytes: &[u8]) {
        if self.held.capacity() - self.held.len() < bytes.len() {
            let capacity = (self.held.len() + bytes.len())
                .next_power_of_two()
                .max(FIRST_BYTES);
            let mut grown = BytesMut::with_capacity(capacity);
            grown.extend_from_slice(&self.held);
            (self.held, self.allocated) = (grown, capacity);
        }
        self.held.extend_from_slice(bytes);
    }

    /// Charges the held bytes, if they are an unfinished block. Frames that wait for their turn are
    /// less than a turn reads, and must not end the connection.
    fn charge(&mut self) {
        if self.blocks.unfinished.is_some() {
            let charge = || {
                let charge = self.budget.charge(0);
                let ended = Box::pin(charge.ended());
                BlockCharge(charge, ended)
            };
            let held = self.memory.get_or_insert_with(charge);
            held.0.set(self.allocated);
        } else {
            self.memory = None;
        }
    }

    /// Ready when the budget needs the memory of the unfinished block, because it is the oldest
    /// charge. The connection ends: if others waited for memory, a client that finishes no block
    /// could stop them all.
    fn poll_ended(&mut self, context: &mut Context<'_>) -> Poll<io::Error> {
        let Some(BlockCharge(_, ended)) = &mut self.memory else {
            return Poll::Pending;
        };
        ready!(ended.as_mut().poll(context));
        let problem = "too many unfinished header blocks";
        Poll::Ready(io::Error::new(io::ErrorKind::OutOfMemory, problem))
    }

    /// Reports the calls that the client has reset.
    fn reset(&mut self) {
        for stream in self.blocks.resets.drain(..) {
            if let Some(unread) = &self.resets.unread {
                unread.reset(stream);
            }
        }
    }

    /// Follows the held bytes of earlier turns.
    fn follow_held(&mut self) {
        let (held, followed) = (&mut self.held, self.followed);
        (self.complete, self.followed) = self.blocks.follow(held, followed, &self.turn);
        self.charge();
        self.reset();
    }

    /// Passes on the complete part of the held bytes.
    fn give(&mut self, buffer: &mut ReadBuf<'_>) {
        let count = self.complete.min(buffer.remaining());
        buffer.put_slice(&self.held[..count]);
        self.held.advance(count);
        self.complete -= count;
        self.followed -= count;
        if self.held.is_empty() {
            self.held = BytesMut::new();
            self.memory = None;
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Wire<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if !this.first.is_empty() {
            let (now, later) = this
                .first
                .split_at(this.first.len().min(buffer.remaining()));
            buffer.put_slice(now);
            this.first = later;
            return Poll::Ready(Ok(()));
        }
        while this.complete == 0 {
            if let Poll::Ready(error) = this.poll_ended(context) {
                return Poll::Ready(Err(error));
            }
            if this.turn.is_over() {
                // The connection begins the next one.
                return Poll::Pending;
            }
            if this.followed < this.held.len() {
                this.follow_held();
                continue;
            }
            let before = buffer.filled().len();
            ready!(Pin::new(&mut this.socket).poll_read(context, buffer))?;
            let read = &mut buffer.filled_mut()[before..];
            if read.is_empty() {
                return Poll::Ready(Ok(()));
            }
            if this.held.is_empty() {
                let (complete, followed) = this.blocks.follow(read, 0, &this.turn);
                this.hold(&read[complete..]);
                this.followed = followed - complete;
                if !this.held.is_empty() {
                    this.charge();
                }
                buffer.set_filled(before + complete);
                this.reset();
                if complete > 0 {
                    return Poll::Ready(Ok(()));
                }
            } else {
                this.hold(read);
                buffer.set_filled(before);
                this.follow_held();
            }
        }
        this.give(buffer);
        Poll::Ready(Ok(()))
    }
}

/// Writes are not vectored. HTTP/2 then joins answers of up to 1 KiB into one write. With vectored
/// writes it would write each answer from 256 bytes on (ten statuses) by itself.
impl<S: AsyncWrite + Unpin> AsyncWrite for Wire<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.socket).poll_write(context, bytes);
        if written.is_pending() {
            self.turn.is_blocked.store(true, Ordering::Relaxed);
        }
        let written = ready!(written)?;
        self.resets.follow(&bytes[..written]);
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.socket).poll_flush(context))?;
        self.turn.is_blocked.store(false, Ordering::Relaxed);
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(context)
    }
}

/// The walk over the frames that are written to a connection.
///
/// h2 resets a call that it cannot accept (malformed headers, more calls at a time than allowed, a
/// client that exceeds its window) without reporting it. To Envoy that is an error of the service,
/// and by default the request passes: each RST_STREAM is counted by its error code. Resets by
/// Weir's own code have other codes than h2's: CANCEL, when a call is cut off or its task is
/// dropped, and NO_ERROR, when it was answered before its message had arrived.
#[derive(Debug)]
struct Resets {
    frames: FrameWalker,
    /// The payload of a RST_STREAM frame as far as it was written.
    code: u32,
    metrics: Arc<Metrics>,
    /// Observer of the answers that were written.
    unread: Option<Arc<OfConnection>>,
}

impl Resets {
    #[inline]
    fn follow(&mut self, bytes: &[u8]) {
        let mut at = 0;
        while at < bytes.len() {
            let Some(piece) = self.frames.next(bytes, &mut at) else {
                return;
            };
            if self.frames.kind() == RST_STREAM {
                self.code = bytes[piece.payload]
                    .iter()
                    .fold(self.code, |code, &byte| code << 8 | u32::from(byte));
                if piece.ends
                    && ![u32::from(Reason::NO_ERROR), Reason::CANCEL.into()].contains(&self.code)
                {
                    self.metrics.http2.stream_reset(self.code);
                }
            } else if self.frames.kind() == HEADERS
                && piece.ends
                && self.frames.has_flag(END_STREAM)
                && let Some(unread) = &self.unread
            {
                unread.mark_written(self.frames.stream());
            }
        }
    }
}

/// Counts the end of a connection, unless its client closed or aborted it.
pub(super) fn connection_ended(error: &h2::Error, metrics: &Metrics) {
    let error = match (error.reason(), error.get_io().map(io::Error::kind)) {
        (Some(code), _) if error.is_library() => ConnectionError::Code(code.into()),
        (_, Some(io::ErrorKind::OutOfMemory)) => ConnectionError::HeaderMemory,
        (_, Some(io::ErrorKind::TimedOut)) => ConnectionError::NotRead,
        _ => return,
    };
    metrics.http2.connection_ended(error);
}

/// The largest frame that a client may send: HTTP/2's default. Source: RFC 9113, section 6.5.2,
/// SETTINGS_MAX_FRAME_SIZE.
pub(crate) const MAX_FRAME_BYTES: u32 = 16 * 1_024;

/// Maximum number of CONTINUATION frames of one block without END_HEADERS. With one more than this,
/// h2 closes the connection, at the header list size of `connection` and this frame size.
pub(crate) const MAX_CONTINUATIONS: u32 = 20;

/// The frames of a connection as they arrive.
///
/// h2 decodes every frame of a block when it arrives, and a byte of HPACK may become a header of a
/// hundred bytes in memory. A connection could hold a megabyte with the first frame of a block that
/// never ends, and a ping detects that only after half a minute. Here an unfinished block takes its
/// bytes on the wire, in at most [`MAX_CONTINUATIONS`] frames. Nearly all blocks have one frame,
/// and pass without a copy; as long as the authorities of a connection are checked, a block is
/// unfinished too if a read ends within it.
#[derive(Debug, Default)]
struct HeaderBlocks {
    frames: FrameWalker,
    unfinished: Option<OpenBlock>,
    /// Checks the authorities of this connection. `None`: nothing is to be rewritten.
    authorities: Option<Box<Authorities>>,
    /// Whether h2 will close the connection: then no bytes are held any more.
    is_violated: bool,
    /// The calls that the client has reset and that are not reported yet.
    resets: Vec<u32>,
}

/// A block that has begun.
#[derive(Clone, Copy, Debug)]
struct OpenBlock {
    /// Its CONTINUATION frames, but the last one.
    continuations: u32,
    /// Whether the arriving frame ends the block.
    ends: bool,
}

impl HeaderBlocks {
    fn new(authorities: Option<Authorities>) -> Self {
        Self {
            authorities: authorities.map(Box::new),
            ..Self::default()
        }
    }

    /// Follows `bytes[from..]`, which have just arrived, and rewrites the blocks that end there. If
    /// a block is unfinished at the call, it begins at `bytes[0]`. Returns the number of bytes
    /// before the block that is unfinished at the end, and the number of bytes that were followed:
    /// the turn may be over before a frame.
    #[inline]
    fn follow(&mut self, bytes: &mut [u8], from: usize, turn: &FrameBudget) -> (usize, usize) {
        let (mut start, mut at) = (0, from);
        let mut frames_left = turn.frames_left.load(Ordering::Relaxed);
        while at < bytes.len() && !self.is_violated {
            // A turn does not end between the headers of a call and a message that came with them.
            let is_over = frames_left == 0
                || frames_left == 1 && bytes.get(at + FRAME_KIND_AT) == Some(&HEADERS);
            if is_over && self.unfinished.is_none() && self.frames.is_between() {
                frames_left = 0;
                break;
            }
            let frame_start = at;
            let Some(piece) = self.frames.next(bytes, &mut at) else {
                break;
            };
            if piece.begins {
                frames_left = frames_left.saturating_sub(1);
                if self.unfinished.is_none() {
                    start = frame_start;
                }
                self.begin_frame();
            }
            if piece.ends && self.unfinished.is_some() {
                self.end_frame(&mut bytes[start..at]);
            } else if piece.ends && self.frames.kind() == RST_STREAM {
                // Only when the frame is complete: until then h2 may answer the call.
                self.resets.push(self.frames.stream());
            }
        }
        turn.frames_left.store(frames_left, Ordering::Relaxed);
        let followed = if self.is_violated { bytes.len() } else { at };
        let is_whole = self.unfinished.is_none();
        (if is_whole { followed } else { start }, followed)
    }

    fn begin_frame(&mut self) {
        let ends = self.frames.has_flag(END_HEADERS);
        self.is_violated = self.frames.length() > MAX_FRAME_BYTES as usize;
        self.unfinished = match (self.unfinished, self.frames.kind()) {
            _ if self.is_violated => None,
            (None, HEADERS) => (!ends || self.authorities.is_some()).then_some(OpenBlock {
                continuations: 0,
                ends,
            }),
            (None, _) => None,
            (Some(OpenBlock { continuations, .. }), CONTINUATION)
                if ends || continuations < MAX_CONTINUATIONS =>
            {
                Some(OpenBlock {
                    continuations: continuations + u32::from(!ends),
                    ends,
                })
            }
            (Some(_), _) => {
                self.is_violated = true;
                None
            }
        };
    }

    /// Handles the end of a frame of a block. `block` ends with this frame.
    fn end_frame(&mut self, block: &mut [u8]) {
        if let Some(authorities) = &mut self.authorities
            && !authorities.follow(&self.frames, block)
        {
            self.authorities = None;
        }
        self.unfinished = self.unfinished.filter(|unfinished| !unfinished.ends);
    }
}

/// The length of a frame header.
const FRAME_HEADER_BYTES: usize = 9;

/// Position of a frame's type in its header.
const FRAME_KIND_AT: usize = 3;

const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const CONTINUATION: u8 = 9;

const END_STREAM: u8 = 0x1;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;

/// Position in one direction of a connection, through bytes that arrive in pieces of any length:
/// between two frames, in the header of one, or in its payload.
#[derive(Debug, Default)]
struct FrameWalker {
    /// The header as far as it has arrived, and the bytes of the payload that are still to come.
    header: [u8; FRAME_HEADER_BYTES],
    header_bytes: usize,
    payload_left: usize,
}

/// A piece of one frame.
#[derive(Debug)]
struct Piece {
    /// The frame's header is complete with this piece.
    pub begins: bool,
    /// The part of the payload, among the bytes that were followed.
    pub payload: Range<usize>,
    /// The payload is complete with this piece.
    pub ends: bool,
}

impl FrameWalker {
    /// Follows `bytes` from `at` on to the end of a frame or of the bytes, and moves `at` there.
    /// `None` if they end within a header.
    #[inline]
    fn next(&mut self, bytes: &[u8], at: &mut usize) -> Option<Piece> {
        let begins = self.payload_left == 0;
        if begins {
            let arrived = (FRAME_HEADER_BYTES - self.header_bytes).min(bytes.len() - *at);
            self.header[self.header_bytes..][..arrived].copy_from_slice(&bytes[*at..][..arrived]);
            self.header_bytes += arrived;
            *at += arrived;
            if self.header_bytes < FRAME_HEADER_BYTES {
                return None;
            }
            self.header_bytes = 0;
            self.payload_left = self.length();
        }
        let arrived = self.payload_left.min(bytes.len() - *at);
        self.payload_left -= arrived;
        let payload = *at..*at + arrived;
        *at = payload.end;
        Some(Piece {
            begins,
            payload,
            ends: self.payload_left == 0,
        })
    }

    /// Whether the bytes so far end with a frame.
    fn is_between(&self) -> bool {
        self.header_bytes == 0 && self.payload_left == 0
    }

    /// The length of the payload of the frame that began last.
    fn length(&self) -> usize {
        let [a, b, c, ..] = self.header;
        u32::from_be_bytes([0, a, b, c]) as usize
    }

    /// The type of the frame that began last.
    fn kind(&self) -> u8 {
        self.header[3]
    }

    /// The stream of the frame that began last.
    fn stream(&self) -> u32 {
        let [.., a, b, c, d] = self.header;
        u32::from_be_bytes([a, b, c, d]) & (u32::MAX >> 1)
    }

    fn has_flag(&self, flag: u8) -> bool {
        self.header[4] & flag != 0
    }
}

#[cfg(test)]
pub(super) mod tests;

#[cfg(test)]
mod frames_tests {
    use super::*;

    /// Kinds and lengths of the frames that end, and the pieces of their payloads put together.
    fn frames(chunks: &[&[u8]]) -> Vec<(u8, usize, Vec<u8>)> {
        let (mut walker, mut ended, mut payload) = (FrameWalker::default(), Vec::new(), Vec::new());
        for chunk in chunks {
            let mut at = 0;
            while at < chunk.len() {
                let Some(piece) = walker.next(chunk, &mut at) else {
                    break;
                };
                if piece.begins {
                    payload.clear();
                }
                payload.extend_from_slice(&chunk[piece.payload]);
                if piece.ends {
                    ended.push((walker.kind(), walker.length(), payload.clone()));
                }
            }
        }
        ended
    }

    #[test]
    fn frames_are_the_same_however_they_are_cut() {
        let sent = [
            &b"\0\0\x03\x01\x04\x80\0\0\x07abc"[..],
            b"\0\0\0\x04\x01\0\0\0\0",
            b"\0\0\x01\0\x01\0\0\x01\x02x",
        ]
        .concat();
        let expected = vec![
            (1, 3, b"abc".to_vec()),
            (4, 0, Vec::new()),
            (0, 1, b"x".to_vec()),
        ];
        for length in 1..=sent.len() {
            assert_eq!(
                frames(&sent.chunks(length).collect::<Vec<_>>()),
                expected,
                "in chunks of {length}"
            );
        }
    }
}
