//! The socket of a connection: gives again the first bytes, which were read already, and lets the gate refuse calls while its worker is behind.
//!
//! Otherwise it is a plain socket, whose bytes go straight to HTTP/2; the gate only looks on, to know where a frame begins.

use std::io;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::backlog::Intake;
use super::gate::Gate;
use crate::metrics::Metrics;

/// What is read at a time where calls may be refused.
const READ_BYTES: usize = 64 << 10;

/// So much is read without a call for HTTP/2 in it; then other connections have their turn.
const MOST_READINGS: usize = 4;

/// A socket with something in front of what it will receive.
#[derive(Debug)]
pub(super) struct Socket {
    first: &'static [u8],
    stream: TcpStream,
    intake: Arc<Intake>,
    metrics: Arc<Metrics>,
    gate: Gate,
    /// What was read while the worker was behind; what of it is still to go on to HTTP/2, and what has to be looked at together with what comes
    /// next. Empty in good times.
    read: Vec<u8>,
    kept: Range<usize>,
    held: Range<usize>,
}

impl Socket {
    pub(super) fn new(first: &'static [u8], stream: TcpStream, intake: Arc<Intake>, metrics: Arc<Metrics>) -> Self {
        Self { first, stream, intake, metrics, gate: Gate::default(), read: Vec::new(), kept: 0..0, held: 0..0 }
    }

    /// Reads as from any socket.
    fn poll_plain(&mut self, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        if !self.intake.is_behind() {
            self.intake.came();
            self.read = Vec::new();
        }
        self.gate.pass(&buffer.filled()[before..]);
        Poll::Ready(Ok(()))
    }

    /// Reads through the gate what has waited too long or comes behind what was refused, until something of it goes on.
    fn poll_gate(&mut self, context: &mut Context<'_>, is_late: bool) -> Poll<io::Result<()>> {
        self.read.resize(READ_BYTES, 0);
        for _ in 0..MOST_READINGS {
            self.read.copy_within(self.held.clone(), 0);
            self.held = 0..self.held.len();
            let mut room = ReadBuf::new(&mut self.read);
            room.set_filled(self.held.len());
            ready!(Pin::new(&mut self.stream).poll_read(context, &mut room))?;
            let count = room.filled().len();
            let is_end = count == self.held.len();
            let (kept, held, refused) = if is_end { (count, count, 0) } else { self.gate.refuse(&mut self.read[..count], is_late) };
            self.metrics.calls_refused(refused);
            (self.kept, self.held) = (0..kept, held..count);
            if kept > 0 || is_end {
                return Poll::Ready(Ok(()));
            }
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }

    /// Gives what was kept.
    fn give(&mut self, buffer: &mut ReadBuf<'_>) {
        let count = self.kept.len().min(buffer.remaining());
        buffer.put_slice(&self.read[self.kept.start..][..count]);
        self.kept.start += count;
    }

    /// Writes the refusals. To be called between two frames.
    fn poll_refuse(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.gate.unwritten().is_empty() {
            let count = ready!(Pin::new(&mut self.stream).poll_write(context, self.gate.unwritten()))?;
            if count == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.gate.wrote(count);
        }
        Poll::Ready(Ok(()))
    }

    /// Finishes a refusal that could be written only in part.
    fn poll_finish(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.gate.is_writing() { self.poll_refuse(context) } else { Poll::Ready(Ok(())) }
    }
}

impl AsyncRead for Socket {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if !self.first.is_empty() {
            let (now, later) = self.first.split_at(self.first.len().min(buffer.remaining()));
            buffer.put_slice(now);
            self.first = later;
            return Poll::Ready(Ok(()));
        }
        if self.kept.is_empty() {
            let is_late = self.intake.is_late();
            if !is_late && self.held.is_empty() && !self.gate.is_ahead() {
                return self.poll_plain(context, buffer);
            }
            ready!(self.poll_gate(context, is_late))?;
        }
        self.give(buffer);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Socket {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.poll_finish(context))?;
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    /// Not so, because HTTP/2 then puts answers of up to 1 KiB together that it would otherwise write one by one from 256 bytes on: ten statuses.
    fn is_write_vectored(&self) -> bool {
        false
    }

    /// Called by HTTP/2 when it has written whole frames and no part of one.
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_refuse(context))?;
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
