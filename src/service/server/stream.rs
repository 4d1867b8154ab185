//! A connected socket of a client: TCP, or a unix socket.
//!
//! A socket belongs to the runtime that it is registered with, so that between threads it travels
//! as one of the standard library.

use std::io;
use std::net::IpAddr;
use std::os::unix::net::UnixStream as StdUnixStream;

use tokio::net::{TcpStream, UnixStream};
use tokio_util::either::Either;

/// A connected socket on its way to a runtime, non-blocking: TCP, or a unix socket.
pub(super) type Detached = Either<std::net::TcpStream, StdUnixStream>;

/// A connected socket on the runtime of the calling thread: TCP, or a unix socket.
pub(super) type Stream = Either<TcpStream, UnixStream>;

/// The address of a client, for the log. `None`: a process on this machine, or a client that is
/// gone.
pub(super) fn client(stream: &Stream) -> Option<IpAddr> {
    match stream {
        // An IPv4 client of a dual-stack socket.
        Either::Left(stream) => Some(stream.peer_addr().ok()?.ip().to_canonical()),
        Either::Right(_) => None,
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

/// Takes the error that the kernel has noted, if it has any.
pub(super) fn failure(stream: &Stream) -> Option<io::Error> {
    let noted = match stream {
        Either::Left(stream) => stream.take_error(),
        Either::Right(stream) => stream.take_error(),
    };
    noted.unwrap_or_else(Some)
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
