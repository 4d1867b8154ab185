//! The socket of a client: measures how long bytes waited before they were read. With TLS these are
//! the bytes on the wire.
//!
//! The kernel reports how many bytes wait in a socket, but not since when. If a read leaves some
//! unread, the socket notes, with one `ioctl`, how many had arrived by then. When it reads them, it
//! has a lower bound of their wait. Without overload, a read leaves nothing and costs nothing more.
//! The kernel's own times of arrival (`SO_TIMESTAMPNS`) were tried: segments that wait are merged,
//! up to 64 KB, and have the time of the last.

use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::Instant;
use tokio_util::either::Either;

use super::overload::QueueDelay;
use super::unread::OfConnection;

/// The shortest time between two notes, and the most notes of a connection.
const NOTE_INTERVAL: Duration = Duration::from_millis(1);
const MAX_NOTES: usize = 256;

/// The number of bytes of the connection that had arrived by this time.
#[derive(Debug)]
struct Arrived {
    bytes: u64,
    by: Instant,
}

/// A socket that notes when bytes arrived.
#[derive(Debug)]
pub(super) struct Socket {
    stream: Stream,
    queue_delay: Arc<QueueDelay>,
    unread: Arc<OfConnection>,
    /// The bytes that were read so far.
    read: u64,
    /// Notes about waiting bytes, in order. Empty without overload.
    arrived: VecDeque<Arrived>,
}

impl Socket {
    pub(super) fn new(
        stream: Stream,
        queue_delay: Arc<QueueDelay>,
        unread: Arc<OfConnection>,
    ) -> Self {
        Self {
            stream,
            queue_delay,
            unread,
            read: 0,
            arrived: VecDeque::new(),
        }
    }

    pub(super) fn client(&self) -> Option<IpAddr> {
        client(&self.stream)
    }

    /// Records how many bytes have arrived by now.
    fn record_arrived(&mut self) {
        let is_recent = |last: &Arrived| last.by.elapsed() < NOTE_INTERVAL;
        if !self.queue_delay.is_measured() || self.arrived.back().is_some_and(is_recent) {
            return;
        }
        if self.arrived.len() == MAX_NOTES {
            // With fewer notes calls seem to have waited for a shorter time, never for a longer
            // one.
            let mut index = 0;
            self.arrived.retain(|_| {
                index += 1;
                index % 2 == 0
            });
        }
        if let Ok(unread) = unread(&self.stream)
            && unread > 0
        {
            self.arrived.push_back(Arrived {
                bytes: self.read + unread,
                by: Instant::now(),
            });
        }
    }

    /// The client has closed the connection, or closed it without reading everything: then the
    /// kernel has noted an error, perhaps after the end.
    #[cold]
    fn has_ended(&self) {
        if failure(&self.stream).is_some() {
            self.unread.broken();
        }
    }

    fn observe_write(&self, polled: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Err(_)) = &polled {
            self.unread.broken();
        }
        polled
    }

    /// Bytes were read; they left no room for more if `may_be_more`.
    fn has_read(&mut self, bytes: usize, may_be_more: bool) {
        self.read += bytes as u64;
        let read = self.read;
        while self
            .arrived
            .front()
            .is_some_and(|arrived| arrived.bytes < read)
        {
            self.arrived.pop_front();
        }
        self.queue_delay
            .read(bytes, self.arrived.front().map(|arrived| arrived.by));
        if may_be_more {
            self.record_arrived();
        } else {
            self.queue_delay.caught_up();
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.queue_delay.may_read(context) {
            self.record_arrived();
            return Poll::Pending;
        }
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(context, buffer);
        match polled {
            Poll::Ready(Ok(())) => {
                let bytes = buffer.filled().len() - before;
                if bytes == 0 {
                    self.has_ended();
                }
                self.has_read(bytes, buffer.remaining() == 0);
            }
            Poll::Ready(Err(_)) => self.unread.broken(),
            Poll::Pending => self.queue_delay.caught_up(),
        }
        polled
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.observe_write(polled)
    }

    /// For TLS, whose answers may have several records.
    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.observe_write(polled)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// A connected socket that is registered with no runtime, non-blocking: TCP, or a unix socket.
pub(super) type Detached = Either<std::net::TcpStream, StdUnixStream>;

/// A connected socket on the runtime of the calling thread: TCP, or a unix socket.
pub(super) type Stream = Either<TcpStream, UnixStream>;

/// The address of a client, for the log. `None`: a process on this machine, or a client that has
/// disconnected.
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

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use tokio::io::AsyncReadExt;

    use tokio_util::either::Either;

    use super::*;

    #[tokio::test]
    async fn what_waits_is_noted_only_for_load_shedding() {
        for (worker, notes) in [(Some(Arc::default()), 1), (None, 0)] {
            let (mut client, server) = UnixStream::pair().expect("two sockets");
            client.write_all(&[7; 100]).expect("a buffer");
            server.set_nonblocking(true).expect("a socket");
            let queue_delay = QueueDelay::new(worker);
            queue_delay.begin();
            let stream = attach(Either::Right(server)).expect("a runtime");
            let unread = OfConnection::new(&Arc::default());
            let mut socket = Socket::new(stream, queue_delay, unread);
            socket
                .read_exact(&mut [0; 10])
                .await
                .expect("what was sent");
            assert_eq!(socket.arrived.len(), notes);
        }
    }
}
