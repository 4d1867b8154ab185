//! The simulation's socket: a stream in memory, and the function that opens one per connection.
//!
//! It lets the simulation run real connections against a Redis in the same process. It must not
//! fail or delay by itself: the simulated server injects the faults.

use std::cell::RefCell;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Waker};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt, DuplexStream, ReadBuf};

use crate::core::lock;

/// Opens Weir's end of a new connection.
pub(crate) type Connect =
    Arc<dyn Fn() -> Pin<Box<dyn Future<Output = io::Result<SimulatedStream>> + Send>>>;

thread_local! {
    static CONNECT: RefCell<Option<Connect>> = const { RefCell::new(None) };
}

/// Makes `connect` open all further connections of this thread. With `None` they are sockets again.
pub(crate) fn connect_by(connect: Option<Connect>) {
    CONNECT.set(connect);
}

/// Opens a simulated connection, if this thread simulates them.
pub(super) fn connect() -> Option<impl Future<Output = io::Result<SimulatedStream>> + Send> {
    CONNECT.with_borrow(|connect| connect.as_ref().map(|connect| connect()))
}

/// Weir's end of a connection.
#[derive(Debug)]
pub(crate) struct SimulatedStream(Mutex<DuplexStream>);

impl SimulatedStream {
    pub(crate) fn new(stream: DuplexStream) -> Self {
        Self(Mutex::new(stream))
    }

    pub(super) async fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner)
            .write(bytes)
            .await
    }

    pub(super) async fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.0
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner)
            .read(bytes)
            .await
    }

    /// Whether there is nothing to read.
    pub(super) fn is_quiet(&self) -> bool {
        let (mut stream, mut byte) = (lock(&self.0), [0]);
        let mut read = ReadBuf::new(&mut byte);
        let polled =
            Pin::new(&mut *stream).poll_read(&mut Context::from_waker(Waker::noop()), &mut read);
        polled.is_pending()
    }
}
