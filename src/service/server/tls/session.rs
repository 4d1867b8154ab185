//! A connection inside TLS after its handshake: rustls's state on a worker's socket.
//!
//! The socket below measures how long bytes on the wire waited. What HTTP/2 reads was in such
//! bytes, and the last bytes of a record decide when all of it is read: the measured wait stays a
//! lower bound of that of each call. A turn may read one record (16 KiB) more than a turn without
//! TLS.
//!
//! kTLS would save a copy, but needs a kernel module and unsafe code.

use std::io::{self, BufRead, IoSlice, Read, Write};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::rustls::ServerConnection;

use crate::service::server::socket::Socket;

/// rustls's state, and the socket.
#[derive(Debug)]
pub(in crate::service::server) struct TlsStream {
    session: Box<ServerConnection>,
    socket: Socket,
    is_closing: bool,
}

/// The socket as rustls reads and writes it; what has to wait is an error of its own.
struct Blocking<'a, 'b> {
    socket: &'a mut Socket,
    context: &'a mut Context<'b>,
}

fn blocking<T>(polled: Poll<io::Result<T>>) -> io::Result<T> {
    match polled {
        Poll::Ready(result) => result,
        Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
    }
}

impl Read for Blocking<'_, '_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let mut buffer = ReadBuf::new(bytes);
        blocking(Pin::new(&mut *self.socket).poll_read(self.context, &mut buffer))?;
        Ok(buffer.filled().len())
    }
}

impl Write for Blocking<'_, '_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        blocking(Pin::new(&mut *self.socket).poll_write(self.context, bytes))
    }

    /// An answer of several records leaves in one write.
    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        blocking(Pin::new(&mut *self.socket).poll_write_vectored(self.context, slices))
    }

    fn flush(&mut self) -> io::Result<()> {
        blocking(Pin::new(&mut *self.socket).poll_flush(self.context))
    }
}

impl TlsStream {
    pub(in crate::service::server) fn new(session: Box<ServerConnection>, socket: Socket) -> Self {
        Self {
            session,
            socket,
            is_closing: false,
        }
    }

    /// Sends what is encrypted.
    fn poll_send(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.session.wants_write() {
            match self.session.write_tls(&mut Blocking {
                socket: &mut self.socket,
                context,
            }) {
                Ok(0) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Poll::Pending,
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Reads from the socket once, and decrypts the records that are complete. Ready with false at
    /// the end of the stream.
    fn poll_receive(&mut self, context: &mut Context<'_>) -> Poll<io::Result<bool>> {
        match self.session.read_tls(&mut Blocking {
            socket: &mut self.socket,
            context,
        }) {
            Ok(0) => return Poll::Ready(Ok(false)),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Poll::Pending,
            Err(error) => return Poll::Ready(Err(error)),
        }
        let processed = self.session.process_new_packets();
        // An alert, or the answer to a change of keys. What cannot be sent now is sent before the
        // next answer.
        let sent = self.poll_send(context);
        if let Err(error) = processed {
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, error)));
        }
        if let Poll::Ready(Err(error)) = sent {
            return Poll::Ready(Err(error));
        }
        Poll::Ready(Ok(true))
    }
}

impl AsyncRead for TlsStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            let mut decrypted = self.session.reader();
            match decrypted.fill_buf() {
                Ok(bytes) => {
                    let count = bytes.len().min(buffer.remaining());
                    buffer.put_slice(&bytes[..count]);
                    decrypted.consume(count);
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
            if !ready!(self.poll_receive(context))? {
                return Poll::Ready(Ok(()));
            }
        }
    }
}

impl AsyncWrite for TlsStream {
    /// Takes bytes only when all before them are sent, so that no more than one write waits.
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_send(context))?;
        let written = self.session.writer().write(bytes)?;
        match self.poll_send(context) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            _ => Poll::Ready(Ok(written)),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_send(context))?;
        Pin::new(&mut self.socket).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.is_closing {
            self.is_closing = true;
            self.session.send_close_notify();
        }
        ready!(self.poll_send(context))?;
        Pin::new(&mut self.socket).poll_shutdown(context)
    }
}
