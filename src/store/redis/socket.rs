//! What carries the bytes between Weir and Redis.

use std::io;

use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::Duration;

use super::options::Address;

/// A peer that is gone without a word is noticed after about this long on a connection that nobody uses.
const KEEPALIVE: Duration = Duration::from_secs(10);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);

/// What carries the bytes; TLS is one more of these.
#[derive(Debug)]
pub(super) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
    #[cfg(test)]
    Simulated(super::simulation::Wire),
}

impl Socket {
    pub(super) async fn connect(address: &Address) -> io::Result<Self> {
        #[cfg(test)]
        if let Some(server) = super::simulation::server() {
            return server.connect().await.map(Self::Simulated);
        }
        match address {
            Address::Unix(path) => UnixStream::connect(path).await.map(Self::Unix),
            Address::Tcp { host, port } => {
                let stream = TcpStream::connect((host.as_str(), *port)).await?;
                // A batch is one write and waits for its reply: held-back packets would only cost time.
                stream.set_nodelay(true)?;
                let keepalive = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE_INTERVAL);
                SockRef::from(&stream).set_tcp_keepalive(&keepalive)?;
                Ok(Self::Tcp(stream))
            }
        }
    }

    pub(super) async fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(bytes).await,
            Self::Unix(stream) => stream.write(bytes).await,
            #[cfg(test)]
            Self::Simulated(wire) => wire.write(bytes).await,
        }
    }

    pub(super) async fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(bytes).await,
            Self::Unix(stream) => stream.read(bytes).await,
            #[cfg(test)]
            Self::Simulated(wire) => wire.read(bytes).await,
        }
    }

    /// Reads a byte that should not be there.
    pub(super) fn peek_nothing(&self) -> io::Result<usize> {
        let mut byte = [0];
        match self {
            Self::Tcp(stream) => stream.try_read(&mut byte),
            Self::Unix(stream) => stream.try_read(&mut byte),
            #[cfg(test)]
            Self::Simulated(wire) => wire.try_read(&mut byte),
        }
    }
}
