//! TLS on the gRPC port: certificates, handshakes, and encrypted connections.
//!
//! A handshake with an RSA key takes about a millisecond of CPU, in which a worker would answer
//! about eighty calls. When clients come back all at once, and when a client opens connections
//! without end, there are thousands of them. Therefore threads of a lower priority do the
//! handshakes, and hand the finished connection with its keys to a worker, which then only encrypts
//! and decrypts (AES of a call takes about a microsecond).
//!
//! A `Session` carries a finished handshake from its thread to the worker that serves the
//! connection.
//!
//! TLS is above the socket that measures how long bytes waited (`socket`): it measures the bytes on
//! the wire. HTTP/2 can read a record only after its last bytes have arrived: the measured wait
//! stays a lower bound of each call's wait. A turn may read one record (16 KiB) more than a turn
//! without TLS.
//!
//! kTLS would save a copy, but needs a kernel module and unsafe code.

mod certificates;
pub(crate) mod handshakes;

use std::io;
use std::sync::Arc;

use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::{ServerConfig, ServerConnection};
use tokio_rustls::server::TlsStream;

use crate::service::server::socket::Socket;
pub use certificates::{Certificates, Options};
pub use handshakes::Handshakes;

/// Maximum of encrypted bytes that cannot be sent yet: one record.
const MAX_UNSENT_BYTES: usize = 16 << 10;

/// The state of TLS after a handshake.
#[derive(Debug)]
pub(super) struct Session {
    connection: Box<ServerConnection>,
    config: Arc<ServerConfig>,
}

impl Session {
    /// Resumes the connection on a socket of the calling thread's runtime. tokio-rustls begins with
    /// a handshake, and finds that it is complete.
    ///
    /// # Errors
    /// The socket's.
    pub(super) async fn resume(self, socket: Socket) -> io::Result<TlsStream<Socket>> {
        let finished = |new: &mut ServerConnection| {
            *new = *self.connection;
            new.set_buffer_limit(Some(MAX_UNSENT_BYTES));
        };
        TlsAcceptor::from(self.config)
            .accept_with(socket, finished)
            .await
    }
}
