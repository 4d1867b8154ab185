//! Holds header blocks that are continued in CONTINUATION frames until they are complete; HTTP/2
//! gets each of them in one go.
//!
//! h2 decodes every frame of a block when it arrives, and a byte of HPACK may become a header of a
//! hundred bytes in memory. A connection could hold a megabyte with the first frame of a block that
//! never ends, and a ping finds out only after half a minute. Here an unfinished block takes its
//! bytes on the wire, at most [`MAX_CONTINUATIONS`] frames for each connection, in the budget of
//! all that clients leave unfinished.
//!
//! Blocks of one frame, which is nearly all, pass without a copy. Violations of the protocol pass
//! too: h2 answers them.
//!
//! Blocks in which an authority may have to be rewritten (see `authority`) are rewritten here,
//! before h2 gets any of their bytes. As long as there may be such blocks on a connection, those of
//! one frame are held too when the end of a reading cuts them.
//!
//! Sources: RFC 9113, sections 4.3 (a header block is contiguous) and 6.10 (CONTINUATION).
//!
//! A header list may have 256 KiB: with tracing, Envoy copies the `tracestate` of its client into
//! the call, and a call that is refused for its headers lets that client pass.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::authority::{Authorities, Next};
use super::frames::{CONTINUATION, END_HEADERS, FrameWalker, HEADERS};
use crate::net::bounds::{Charge, Unfinished};
use crate::observe::metrics::Metrics;

/// The unfinished CONTINUATION frames of one block, at most. With one more than this, h2 closes the
/// connection: its bound is 20 at the header list size and the frame size of `connection`.
pub(crate) const MAX_CONTINUATIONS: u32 = 21;

/// The first memory of a block. It doubles when the block needs more: many connections that grow in
/// small steps, each for a buffer of another size, would leave holes between them that nothing fits
/// in.
const FIRST_BYTES: usize = 4 << 10;

/// Follows the frames of a connection, to know where an unfinished header block begins.
#[derive(Debug)]
struct Blocks {
    frames: FrameWalker,
    max_frame_bytes: usize,
    /// A block of one frame is unfinished too until all of the frame has arrived.
    holds_single_frames: bool,
    /// The CONTINUATION frames of the block that is unfinished.
    unfinished: Option<u32>,
    /// The frame that is arriving ends its block.
    ends_block: bool,
    /// h2 closes the connection: nothing is held any more.
    is_violated: bool,
}

impl Blocks {
    /// The connection preface precedes the first frame.
    fn new(preface: &[u8], max_frame_bytes: u32) -> Self {
        let (frames, max_frame_bytes) =
            (FrameWalker::after(preface.len()), max_frame_bytes as usize);
        Self {
            frames,
            max_frame_bytes,
            holds_single_frames: false,
            unfinished: None,
            ends_block: false,
            is_violated: false,
        }
    }

    /// Follows `bytes`. Returns how many of them precede the block that is unfinished at their end;
    /// 0 when it began before them.
    fn follow(&mut self, bytes: &[u8]) -> usize {
        let (mut start, mut at) = (0, 0);
        while at < bytes.len() && !self.is_violated {
            let frame_start = at;
            let Some(piece) = self.frames.next(bytes, &mut at) else {
                break;
            };
            if piece.begins {
                let was_unfinished = self.unfinished.is_some();
                self.begin_frame();
                if !was_unfinished && self.unfinished.is_some() {
                    start = frame_start;
                }
            }
            if piece.ends && self.ends_block {
                (self.unfinished, self.ends_block) = (None, false);
            }
        }
        if self.unfinished.is_some() {
            start
        } else {
            bytes.len()
        }
    }

    fn begin_frame(&mut self) {
        let is_last = self.frames.has_flag(END_HEADERS);
        self.unfinished = match (self.unfinished, self.frames.kind()) {
            _ if self.frames.length() > self.max_frame_bytes => return self.violated(),
            (None, HEADERS) => {
                self.ends_block = is_last && self.holds_single_frames;
                (!is_last || self.ends_block).then_some(0)
            }
            (None, _) => None,
            (Some(continuations), CONTINUATION) if is_last => {
                self.ends_block = true;
                Some(continuations)
            }
            (Some(continuations), CONTINUATION) if continuations < MAX_CONTINUATIONS => {
                Some(continuations + 1)
            }
            (Some(_), _) => return self.violated(),
        };
    }

    fn violated(&mut self) {
        (self.unfinished, self.is_violated) = (None, true);
    }
}

/// A socket that gives header blocks only when they are complete.
#[derive(Debug)]
pub(crate) struct HeaderBlocks<S> {
    socket: S,
    blocks: Blocks,
    /// What rewrites the blocks of this connection, and counts it. `None`: nothing is to be
    /// rewritten.
    authorities: Option<Box<(Authorities, Arc<Metrics>)>>,
    budget: Unfinished,
    /// An unfinished block, after bytes that may be given: the first `complete`. Empty most of the
    /// time.
    held: BytesMut,
    complete: usize,
    memory: Option<Held>,
}

/// What an unfinished block takes of the budget, and the wait until others need it.
struct Held(Charge, Pin<Box<dyn Future<Output = ()> + Send + Sync>>);

impl fmt::Debug for Held {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}

impl<S> HeaderBlocks<S> {
    pub(crate) fn new(socket: S, preface: &[u8], max_frame_bytes: u32, budget: Unfinished) -> Self {
        let blocks = Blocks::new(preface, max_frame_bytes);
        Self {
            socket,
            blocks,
            authorities: None,
            budget,
            held: BytesMut::new(),
            complete: 0,
            memory: None,
        }
    }

    /// From the preface on, looks for authorities that have to be rewritten.
    pub(crate) fn rewriting_authorities(mut self, preface: &[u8], metrics: Arc<Metrics>) -> Self {
        self.blocks.holds_single_frames = true;
        self.authorities = Some(Box::new((Authorities::after(preface.len()), metrics)));
        self
    }

    /// Rewrites what h2 gets next.
    fn rewrite(
        authorities: &mut Option<Box<(Authorities, Arc<Metrics>)>>,
        blocks: &mut Blocks,
        bytes: &mut [u8],
    ) {
        let Some(looks) = authorities else { return };
        let (looks, metrics) = &mut **looks;
        match looks.rewrite(bytes) {
            _ if blocks.is_violated => {}
            Next::Look => return,
            Next::LookAfterFirst => return metrics.http2().authority_rewritten(),
            Next::Pass => {}
        }
        (*authorities, blocks.holds_single_frames) = (None, false);
    }

    #[cfg(any(test, fuzzing))]
    pub(crate) fn socket(&mut self) -> &mut S {
        &mut self.socket
    }

    /// Holds `bytes` behind those that are held already. Where blocks follow each other without a
    /// gap, the bytes that were given need no memory any more.
    fn hold(&mut self, bytes: &[u8]) {
        if self.held.capacity() - self.held.len() < bytes.len() {
            let capacity = (self.held.len() + bytes.len())
                .next_power_of_two()
                .max(FIRST_BYTES);
            let charge = || {
                let charge = self.budget.charge(0);
                let ended = Box::pin(charge.ended());
                Held(charge, ended)
            };
            self.memory.get_or_insert_with(charge).0.set(capacity);
            let mut grown = BytesMut::with_capacity(capacity);
            grown.extend_from_slice(&self.held);
            self.held = grown;
        }
        self.held.extend_from_slice(bytes);
    }

    /// Ready when the budget needs the memory of the unfinished block: it was the oldest of what is
    /// unfinished. The connection ends: to wait for memory would let a client that finishes no
    /// block stop all others.
    fn poll_ended(&mut self, context: &mut Context<'_>) -> Poll<io::Error> {
        let Some(Held(_, ended)) = &mut self.memory else {
            return Poll::Pending;
        };
        ended.as_mut().poll(context).map(|()| {
            io::Error::new(
                io::ErrorKind::OutOfMemory,
                "too many unfinished header blocks",
            )
        })
    }

    /// Gives what is complete of the held bytes.
    fn give(&mut self, buffer: &mut ReadBuf<'_>) {
        let count = self.complete.min(buffer.remaining());
        buffer.put_slice(&self.held[..count]);
        self.held.advance(count);
        self.complete -= count;
        if self.held.is_empty() {
            self.held = BytesMut::new();
            self.memory = None;
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for HeaderBlocks<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        while this.complete == 0 {
            if let Poll::Ready(error) = this.poll_ended(context) {
                return Poll::Ready(Err(error));
            }
            let before = buffer.filled().len();
            ready!(Pin::new(&mut this.socket).poll_read(context, buffer))?;
            let read = &buffer.filled()[before..];
            let passes = this.blocks.follow(read);
            if read.is_empty() || (passes == read.len() && this.held.is_empty()) {
                Self::rewrite(
                    &mut this.authorities,
                    &mut this.blocks,
                    &mut buffer.filled_mut()[before..],
                );
                return Poll::Ready(Ok(()));
            }
            if this.held.is_empty() {
                this.hold(&read[passes..]);
                buffer.set_filled(before + passes);
                if passes > 0 {
                    Self::rewrite(
                        &mut this.authorities,
                        &mut this.blocks,
                        &mut buffer.filled_mut()[before..],
                    );
                    return Poll::Ready(Ok(()));
                }
            } else {
                let unfinished = if passes == 0 {
                    this.held.len() + read.len()
                } else {
                    read.len() - passes
                };
                this.hold(read);
                buffer.set_filled(before);
                this.complete = this.held.len() - unfinished;
                Self::rewrite(
                    &mut this.authorities,
                    &mut this.blocks,
                    &mut this.held[..this.complete],
                );
            }
        }
        this.give(buffer);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for HeaderBlocks<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(context, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write_vectored(context, slices)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(context)
    }
}

#[cfg(test)]
pub(super) mod tests;
