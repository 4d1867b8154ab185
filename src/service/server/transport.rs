//! What HTTP/2 reads and writes: the bytes of the socket, or those inside TLS. It gives the preface
//! again, which was read already.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::rustls::ServerConnection;

use super::socket::Socket;
use super::tls::TlsStream;

/// The bytes of a connection, with something in front of what will be read.
#[derive(Debug)]
pub(super) struct Transport {
    first: &'static [u8],
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Plain(Socket),
    Tls(Box<TlsStream>),
}

impl Transport {
    /// Through TLS if its state after the handshake is given.
    pub(super) fn new(socket: Socket, tls: Option<Box<ServerConnection>>) -> Self {
        let kind = match tls {
            None => Kind::Plain(socket),
            Some(session) => Kind::Tls(Box::new(TlsStream::new(session, socket))),
        };
        Self { first: b"", kind }
    }

    /// Gives these bytes, which were read, once more.
    pub(super) fn replay(&mut self, first: &'static [u8]) {
        self.first = first;
    }

    /// The socket below.
    pub(super) fn socket(&self) -> &Socket {
        match &self.kind {
            Kind::Plain(socket) => socket,
            Kind::Tls(stream) => stream.socket(),
        }
    }
}

impl AsyncRead for Transport {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.first.is_empty() {
            let (now, later) = self
                .first
                .split_at(self.first.len().min(buffer.remaining()));
            buffer.put_slice(now);
            self.first = later;
            return Poll::Ready(Ok(()));
        }
        match &mut self.kind {
            Kind::Plain(socket) => Pin::new(socket).poll_read(context, buffer),
            Kind::Tls(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Transport {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match &mut self.kind {
            Kind::Plain(socket) => Pin::new(socket).poll_write(context, bytes),
            Kind::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    /// Not so, because HTTP/2 then puts answers of up to 1 KiB together that it would otherwise
    /// write one by one from 256 bytes on: ten statuses.
    fn is_write_vectored(&self) -> bool {
        false
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.kind {
            Kind::Plain(socket) => Pin::new(socket).poll_flush(context),
            Kind::Tls(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.kind {
            Kind::Plain(socket) => Pin::new(socket).poll_shutdown(context),
            Kind::Tls(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}
