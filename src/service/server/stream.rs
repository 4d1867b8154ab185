//! A connected socket of a client: TCP, or a unix socket.
//!
//! A socket belongs to the runtime that it is registered with, so that between threads it travels
//! as one of the standard library.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::os::unix::net::UnixStream as StdUnixStream;

use tokio::net::{TcpStream, UnixStream};
use tokio_util::either::Either;

/// A connected socket on its way to a runtime, non-blocking: TCP, or a unix socket.
pub(super) type Detached = Either<std::net::TcpStream, StdUnixStream>;

/// A connected socket on the runtime of the calling thread: TCP, or a unix socket.
pub(super) type Stream = Either<TcpStream, UnixStream>;

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

impl Client {
    /// Asks the operating system.
    pub(super) fn of(stream: &Stream) -> Self {
        match stream {
            Either::Left(stream) => stream
                .peer_addr()
                .map_or(Self::Unknown, |address| Self::At(address.ip())),
            Either::Right(_) => Self::Unknown,
        }
    }
}

/// Registers a socket with the runtime of the calling thread.
///
/// # Errors
/// The operating system's.
pub(super) fn attach(detached: Detached) -> io::Result<Stream> {
    Ok(match detached {
        Either::Left(stream) => Either::Left(TcpStream::from_std(stream)?),
        Either::Right(stream) => Either::Right(UnixStream::from_std(stream)?),
    })
}

/// Takes a socket away from its runtime.
///
/// # Errors
/// The operating system's.
pub(super) fn detach(stream: Stream) -> io::Result<Detached> {
    Ok(match stream {
        Either::Left(stream) => Either::Left(stream.into_std()?),
        Either::Right(stream) => Either::Right(stream.into_std()?),
    })
}

/// The bytes that have arrived and are not read.
///
/// # Errors
/// The operating system's.
pub(super) fn unread(stream: &Stream) -> io::Result<u64> {
    Ok(match stream {
        Either::Left(stream) => rustix::io::ioctl_fionread(stream)?,
        Either::Right(stream) => rustix::io::ioctl_fionread(stream)?,
    })
}
