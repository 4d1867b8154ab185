//! A stream whose answers must be taken in time: a client that does not read must not hold an answer in memory for as long as it likes.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// Writes fail when the client has not taken an answer so long after the first write that had to wait for it. hyper flushes after each answer.
pub(super) struct WriteDeadline<S> {
    stream: S,
    time: Duration,
    /// From a write that had to wait until the next flush.
    late: Option<Pin<Box<Sleep>>>,
}

impl<S> WriteDeadline<S> {
    pub(super) fn new(stream: S, time: Duration) -> Self {
        Self { stream, time, late: None }
    }

    fn in_time<T>(&mut self, context: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            return written;
        }
        let late = self.late.get_or_insert_with(|| Box::pin(sleep(self.time)));
        ready!(late.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WriteDeadline<S> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WriteDeadline<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.in_time(context, written)
    }

    fn poll_write_vectored(mut self: Pin<&mut Self>, context: &mut Context<'_>, slices: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.in_time(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_flush(context))?;
        self.late = None;
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
    use tokio::time::{Instant, timeout};

    use super::*;

    const TIME: Duration = Duration::from_secs(30);

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_is_taken_byte_by_byte_is_cut_off() {
        let (server, mut client) = duplex(8);
        let mut server = WriteDeadline::new(server, TIME);
        let began = Instant::now();
        let reading = async {
            loop {
                tokio::time::sleep(TIME / 10).await;
                if client.read_u8().await.is_err() {
                    return;
                }
            }
        };
        let error = tokio::select! {
            written = server.write_all(&[0; 100]) => written.expect_err("too slow"),
            () = reading => unreachable!("the server ends first"),
        };
        assert_eq!((error.kind(), began.elapsed().as_secs()), (io::ErrorKind::TimedOut, TIME.as_secs()));
    }

    #[tokio::test(start_paused = true)]
    async fn each_answer_has_its_own_time() {
        let (server, mut client) = duplex(8);
        let mut server = WriteDeadline::new(server, TIME);
        for _ in 0..5 {
            let (mut taken, half) = ([0; 16], TIME * 2 / 3);
            let read = async {
                tokio::time::sleep(half).await;
                client.read_exact(&mut taken).await
            };
            let write = async {
                server.write_all(&[0; 16]).await?;
                server.flush().await
            };
            let (written, read) = tokio::join!(write, read);
            assert!(written.is_ok() && read.is_ok());
            // A client may be idle for any time between two answers.
            assert!(timeout(2 * TIME, client.read_u8()).await.is_err());
        }
    }
}
