//! What stands under HTTP/2: one adapter, which follows the frames of each direction once.
//!
//! Of what arrives, HTTP/2 gets header blocks only when they are whole (`blocks`), with authorities
//! that it accepts (`authority`). h2 decodes every frame of a block when it arrives, and a byte of
//! HPACK may become a header of a hundred bytes in memory. A connection could hold a megabyte with
//! the first frame of a block that never ends, and a ping finds out only after half a minute. Here an
//! unfinished block takes its bytes on the wire, at most [`blocks::MAX_CONTINUATIONS`] frames for each
//! connection, in the budget of all that clients leave unfinished. Nearly all blocks have one frame,
//! and pass without a copy.
//!
//! A header list may have 256 KiB: with tracing, Envoy copies the `tracestate` of its client into
//! the call, and a call that is refused for its headers lets that client pass.
//!
//! Of what is sent, resets are counted. Resets that arrive and answers that leave are
//! told to what keeps unread answers (`unread`), because h2 tells neither.
//!
//! Counts the calls that HTTP/2 resets by itself, and the connections that end for an error.
//!
//! h2 resets a call that it cannot accept (headers that are not well-formed, more calls at a time
//! than allowed, a client that exceeds its window) without a word to its user. To Envoy that is an
//! error of the service, and by default the request passes. So what h2 writes is followed from
//! frame to frame, and each RST_STREAM is counted by its error code. The codes of resets that
//! Weir's own code causes are not among h2's: CANCEL, when a call is cut off or its task is
//! dropped, and NO_ERROR, when it was answered before its message had arrived.
//!
//! Source: RFC 9113, sections 6.4 (RST_STREAM) and 7 (error codes); h2 0.4.
//!
//! Following the frames costs some twenty instructions each.

mod authority;
pub(crate) mod blocks;

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, BytesMut};
use h2::Reason;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::unread::OfConnection;
use crate::net::bounds::{Charge, Unfinished};
use crate::observe::metrics::{ConnectionError, Metrics};
use authority::Authorities;
use blocks::HeaderBlocks;
pub(crate) use blocks::MAX_FRAME_BYTES;
use blocks::{END_STREAM, FrameWalker, HEADERS, RST_STREAM};

#[cfg(any(test, fuzzing))]
pub(crate) use blocks::MAX_CONTINUATIONS;

/// The first memory of a block. It doubles when the block needs more: many connections that grow in
/// small steps, each for a buffer of another size, would leave holes between them that nothing fits
/// in.
const FIRST_BYTES: usize = 4 << 10;

/// A connection's bytes between its socket and HTTP/2.
pub(crate) struct Wire<S> {
    socket: S,
    /// What HTTP/2 reads first: the connection preface, which was read from the socket already.
    first: &'static [u8],
    blocks: HeaderBlocks,
    budget: Unfinished,
    /// An unfinished block, after bytes that may be given: the first `complete`. Empty most of the
    /// time.
    held: BytesMut,
    complete: usize,
    memory: Option<Held>,
    resets: Resets,
}

/// What an unfinished block takes of the budget, and the wait until others need it.
struct Held(Charge, Pin<Box<dyn Future<Output = ()> + Send + Sync>>);

impl<S> Wire<S> {
    /// The first frame is the next that `socket` reads.
    pub(crate) fn new(
        socket: S,
        first: &'static [u8],
        budget: Unfinished,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self {
            socket,
            first,
            blocks: HeaderBlocks::new(Some(Authorities::new(Arc::clone(&metrics)))),
            budget,
            held: BytesMut::new(),
            complete: 0,
            memory: None,
            resets: Resets {
                frames: FrameWalker::default(),
                code: 0,
                metrics,
                unread: None,
            },
        }
    }

    /// Tells which answers were written and which calls were reset.
    pub(super) fn with_unread(mut self, unread: Arc<OfConnection>) -> Self {
        self.resets.unread = Some(unread);
        self
    }

    /// Looks at no authority, as after the first call of most connections.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn with_any_authority(mut self) -> Self {
        self.blocks = HeaderBlocks::new(None);
        self
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

    /// Tells which calls the client has reset.
    fn reset(&mut self) {
        for stream in self.blocks.resets.drain(..) {
            if let Some(unread) = &self.resets.unread {
                unread.reset(stream);
            }
        }
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
            let before = buffer.filled().len();
            ready!(Pin::new(&mut this.socket).poll_read(context, buffer))?;
            let read = &mut buffer.filled_mut()[before..];
            if read.is_empty() {
                return Poll::Ready(Ok(()));
            }
            if this.held.is_empty() {
                let complete = this.blocks.follow(read, 0);
                this.hold(&read[complete..]);
                buffer.set_filled(before + complete);
                this.reset();
                if complete > 0 {
                    return Poll::Ready(Ok(()));
                }
            } else {
                let held = this.held.len();
                this.hold(read);
                buffer.set_filled(before);
                this.complete = this.blocks.follow(&mut this.held, held);
                this.reset();
            }
        }
        this.give(buffer);
        Poll::Ready(Ok(()))
    }
}

/// Writes are not vectored, because HTTP/2 then puts answers of up to 1 KiB together that it would
/// otherwise write one by one from 256 bytes on: ten statuses.
impl<S: AsyncWrite + Unpin> AsyncWrite for Wire<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.socket).poll_write(context, bytes))?;
        self.resets.follow(&bytes[..written]);
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(context)
    }
}

/// The frames of a connection as they are written.
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
                unread.written(self.frames.stream());
            }
        }
    }
}

/// Counts the end of a connection, unless its client ended it or broke it off.
pub(super) fn connection_ended(error: &h2::Error, metrics: &Metrics) {
    let error = match (error.reason(), error.get_io().map(io::Error::kind)) {
        (Some(code), _) if error.is_library() => ConnectionError::Code(code.into()),
        (_, Some(io::ErrorKind::OutOfMemory)) => ConnectionError::HeaderMemory,
        (_, Some(io::ErrorKind::TimedOut)) => ConnectionError::NotRead,
        _ => return,
    };
    metrics.http2.connection_ended(error);
}

#[cfg(test)]
pub(super) mod tests;
