//! A connected socket of a client: TCP, or a unix socket.
//!
//! A socket belongs to the runtime that it is registered with, so that between threads it travels
//! as one of the standard library.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};

/// A connected socket on its way to a runtime, non-blocking.
#[derive(Debug)]
pub(super) enum Detached {
    Tcp(std::net::TcpStream),
    Unix(StdUnixStream),
}

/// A connected socket on the runtime of the calling thread.
#[derive(Debug)]
pub(super) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// The client of a connection, for the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Client {
    At(IpAddr),
    /// A process on this machine, or a client that is gone.
    Unknown,
}

impl fmt::Display for Client {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // An IPv4 client of a dual-stack socket.
            Self::At(address) => address.to_canonical().fmt(out),
            Self::Unknown => out.write_str("unknown"),
        }
    }
}

impl Stream {
    /// Registers a socket with the runtime of the calling thread.
    ///
    /// # Errors
    /// The operating system's.
    pub(super) fn attach(detached: Detached) -> io::Result<Self> {
        match detached {
            Detached::Tcp(stream) => TcpStream::from_std(stream).map(Self::Tcp),
            Detached::Unix(stream) => UnixStream::from_std(stream).map(Self::Unix),
        }
    }

    /// Takes the socket away from its runtime.
    ///
    /// # Errors
    /// The operating system's.
    pub(super) fn detach(self) -> io::Result<Detached> {
        match self {
            Self::Tcp(stream) => stream.into_std().map(Detached::Tcp),
            Self::Unix(stream) => stream.into_std().map(Detached::Unix),
        }
    }

    /// The bytes that have arrived and are not read.
    ///
    /// # Errors
    /// The operating system's.
    pub(super) fn unread(&self) -> io::Result<u64> {
        let unread = match self {
            Self::Tcp(stream) => rustix::io::ioctl_fionread(stream),
            Self::Unix(stream) => rustix::io::ioctl_fionread(stream),
        };
        Ok(unread?)
    }

    /// The client. Asks the operating system.
    pub(super) fn client(&self) -> Client {
        match self {
            Self::Tcp(stream) => stream
                .peer_addr()
                .map_or(Client::Unknown, |address| Client::At(address.ip())),
            Self::Unix(_) => Client::Unknown,
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_read(context, buffer),
            Self::Unix(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write(context, bytes),
            Self::Unix(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write_vectored(context, slices),
            Self::Unix(stream) => Pin::new(stream).poll_write_vectored(context, slices),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_flush(context),
            Self::Unix(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Unix(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}
