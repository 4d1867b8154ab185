//! A socket whose client has to read each written buffer in time; until then, nothing more is read
//! from it.
//!
//! HTTP/1 and HTTP/2 buffer what they cannot write. A client that does not read would make them
//! buffer any amount for any time.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// A socket with a time limit for its flushes.
#[derive(Debug)]
pub struct TimedWrites<S> {
    socket: S,
    limit: Duration,
    /// Runs from the first write that blocked until a flush. Most connections never have one.
    overdue: Option<Pin<Box<Sleep>>>,
    /// Something would have been read meanwhile.
    has_paused: bool,
}

impl<S> TimedWrites<S> {
    /// The client has to take everything up to a flush within `limit`.
    pub fn new(socket: S, limit: Duration) -> Self {
        Self {
            socket,
            limit,
            overdue: None,
            has_paused: false,
        }
    }

    /// The outcome of a write; an error when it has to wait and the client's time is over.
    fn in_time<T>(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            return written;
        }
        let overdue = self
            .overdue
            .get_or_insert_with(|| Box::pin(sleep(self.limit)));
        ready!(overdue.as_mut().poll(context));
        let error = io::Error::new(io::ErrorKind::TimedOut, "the client does not read");
        Poll::Ready(Err(error))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for TimedWrites<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.overdue.is_some() {
            self.has_paused = true;
            return self.in_time(context, Poll::Pending);
        }
        Pin::new(&mut self.socket).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for TimedWrites<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.socket).poll_write(context, bytes);
        self.in_time(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.socket).poll_write_vectored(context, slices);
        self.in_time(context, written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.socket).poll_flush(context);
        ready!(self.in_time(context, flushed))?;
        self.overdue = None;
        if std::mem::take(&mut self.has_paused) {
            context.waker().wake_by_ref();
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut_down = Pin::new(&mut self.socket).poll_shutdown(context);
        self.in_time(context, shut_down)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
    use tokio::time::{Instant, timeout};

    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    #[tokio::test(start_paused = true)]
    async fn a_client_that_does_not_read_is_not_read_and_fails_in_time() {
        let (mut client, server) = duplex(100);
        let mut server = TimedWrites::new(server, LIMIT);
        client.write_all(b"x").await.unwrap();
        let before = Instant::now();
        let written = server.write_all(&[7; 101]).await;
        assert_eq!(written.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert_eq!(before.elapsed().as_secs(), LIMIT.as_secs());
        assert_eq!(
            server.read_u8().await.unwrap_err().kind(),
            io::ErrorKind::TimedOut,
            "what it has sent is not read"
        );
    }

    /// To take a byte now and then is not enough: all that was written has to be taken.
    #[tokio::test(start_paused = true)]
    async fn the_limit_is_for_everything_that_was_written() {
        let (mut client, server) = duplex(100);
        let mut server = TimedWrites::new(server, LIMIT);
        let reads = async {
            loop {
                tokio::time::sleep(LIMIT / 4).await;
                client.read_u8().await.unwrap();
            }
        };
        let written = tokio::select! {
            written = server.write_all(&[7; 200]) => written,
            () = reads => unreachable!("it reads for ever"),
        };
        assert_eq!(written.unwrap_err().kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_client_in_time_is_served_and_read_again() {
        let (mut client, server) = duplex(100);
        let mut server = TimedWrites::new(server, LIMIT);
        client.write_all(b"x").await.unwrap();
        for _ in 0..3 {
            let takes = async {
                tokio::time::sleep(LIMIT / 2).await;
                let mut bytes = [0; 200];
                client.read_exact(&mut bytes).await.unwrap();
            };
            let writes = async {
                server.write_all(&[7; 200]).await.unwrap();
                server.flush().await.unwrap();
            };
            tokio::join!(takes, writes);
        }
        assert_eq!(server.read_u8().await.unwrap(), b'x');
        // Idle is not overdue.
        assert!(timeout(3 * LIMIT, server.read_u8()).await.is_err());
        server.write_all(b"x").await.unwrap();
    }

    /// A task whose reading has paused continues when its writes are flushed, although nothing else
    /// wakes it.
    #[tokio::test(start_paused = true)]
    async fn reading_continues_after_the_flush() {
        let (mut client, server) = duplex(100);
        let mut server = TimedWrites::new(server, LIMIT);
        client.write_all(b"x").await.unwrap();
        let mut left: &[u8] = &[7; 150];
        // As HTTP/2 does: read first, then write.
        let turns = std::future::poll_fn(move |context| {
            let mut byte = [0];
            let mut buffer = ReadBuf::new(&mut byte);
            if left.len() < 150
                && Pin::new(&mut server)
                    .poll_read(context, &mut buffer)
                    .is_ready()
            {
                return Poll::Ready(byte);
            }
            while !left.is_empty() {
                let count = ready!(Pin::new(&mut server).poll_write(context, left)).unwrap();
                left = &left[count..];
            }
            ready!(Pin::new(&mut server).poll_flush(context)).unwrap();
            Poll::Pending
        });
        let takes = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let mut bytes = [0; 150];
            client.read_exact(&mut bytes).await.unwrap();
        };
        let (read, ()) = timeout(LIMIT / 2, async { tokio::join!(turns, takes) })
            .await
            .unwrap();
        assert_eq!(read, *b"x");
    }
}
