//! A finished handshake on its way from the thread that made it to the worker that serves the
//! connection.
//!
//! TLS is above the socket that measures how long bytes waited (`socket`): those are the bytes on
//! the wire. What HTTP/2 reads was in such bytes, and the last bytes of a record decide when all of
//! it is read: the measured wait stays a lower bound of that of each call. A turn may read one record
//! (16 KiB) more than a turn without TLS.
//!
//! kTLS would save a copy, but needs a kernel module and unsafe code.

use std::io;
use std::sync::Arc;

use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::{ServerConfig, ServerConnection};
use tokio_rustls::server::TlsStream;

use crate::service::server::socket::Socket;

/// What is encrypted and cannot be sent yet, at most: one record.
const MAX_UNSENT_BYTES: usize = 16 << 10;

/// The state of TLS after a handshake.
#[derive(Debug)]
pub(in crate::service::server) struct Session {
    connection: Box<ServerConnection>,
    config: Arc<ServerConfig>,
}

impl Session {
    pub(super) fn new(connection: ServerConnection, config: Arc<ServerConfig>) -> Self {
        Self {
            connection: Box::new(connection),
            config,
        }
    }

    /// Goes on with the connection on a socket of the calling thread's runtime. tokio-rustls begins
    /// with a handshake, and finds that this one is over.
    ///
    /// # Errors
    /// The socket's.
    pub(in crate::service::server) async fn resume(
        self,
        socket: Socket,
    ) -> io::Result<TlsStream<Socket>> {
        let finished = |new: &mut ServerConnection| {
            *new = *self.connection;
            new.set_buffer_limit(Some(MAX_UNSENT_BYTES));
        };
        TlsAcceptor::from(self.config)
            .accept_with(socket, finished)
            .await
    }
}
