//! Connections of commands to a gRPC port: over TCP or a unix socket, with TLS or without.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use anyhow::Context as _;
use http::Uri;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, Error};
use tonic::codegen::Service;
use tonic::transport::{Channel, Endpoint};

use crate::net::tls::{self, ClientOptions, Peer};

/// Where a gRPC port is.
#[derive(Clone, Debug)]
pub(super) enum Target {
    /// `HOST:PORT`.
    Tcp(String),
    /// The path of a unix socket.
    Unix(PathBuf),
}

impl From<SocketAddr> for Target {
    fn from(address: SocketAddr) -> Self {
        Self::Tcp(address.to_string())
    }
}

impl std::fmt::Display for Target {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tcp(address) => out.write_str(address),
            Self::Unix(path) => write!(out, "unix:{}", path.display()),
        }
    }
}

impl Target {
    /// The authority of calls; a unix socket has none of its own.
    fn authority(&self) -> &str {
        match self {
            Self::Tcp(address) => address,
            Self::Unix(_) => "localhost",
        }
    }
}

/// How messages name a server of TLS.
const SERVICE: Peer = Peer {
    name: "the service",
    address: "--address",
    authorities: "--cacert",
    other_name: "write that name as --server-name",
};

/// Connects. With `timeout` the attempt takes that long at most, and so does each call.
///
/// # Errors
/// The files of TLS cannot be used, or the service cannot be reached.
pub(super) async fn connect(
    target: &Target,
    tls: Option<&ClientOptions>,
    timeout: Option<Duration>,
) -> anyhow::Result<Channel> {
    let endpoint = Endpoint::try_from(format!("http://{}", target.authority()))
        .with_context(|| format!("{target}: write HOST:PORT"))?;
    let tls = match tls {
        None => None,
        Some(options) => {
            let mut config = tls::client_config(options)?;
            config.alpn_protocols = vec![b"h2".to_vec()];
            let host = endpoint
                .uri()
                .host()
                .unwrap_or_default()
                .trim_start_matches('[')
                .trim_end_matches(']')
                .to_owned();
            let name = ServerName::try_from(host)
                .with_context(|| format!("{target}: TLS needs a host name or an IP address"))?;
            Some((Arc::new(config), name))
        }
    };
    let endpoint = match timeout {
        Some(timeout) => endpoint.connect_timeout(timeout).timeout(timeout),
        None => endpoint,
    };
    let connector = Connector {
        target: target.clone(),
        tls,
    };
    let connected = endpoint.connect_with_connector(connector).await;
    connected.with_context(|| format!("no service at {target}; is `weir serve` running?"))
}

/// Opens the connection of a channel.
#[derive(Clone)]
struct Connector {
    target: Target,
    tls: Option<(Arc<ClientConfig>, ServerName<'static>)>,
}

trait Wire: AsyncRead + AsyncWrite + Send + Unpin {}
impl<W: AsyncRead + AsyncWrite + Send + Unpin> Wire for W {}

impl Connector {
    async fn open(self) -> io::Result<TokioIo<Box<dyn Wire>>> {
        let stream: Box<dyn Wire> = match &self.target {
            Target::Tcp(address) => {
                let stream = TcpStream::connect(address).await?;
                // Otherwise each request after the first waits 40 ms for the acknowledgement of the
                // one before.
                let _ = stream.set_nodelay(true);
                Box::new(stream)
            }
            Target::Unix(path) => Box::new(UnixStream::connect(path).await?),
        };
        let stream = match self.tls {
            None => stream,
            Some((config, name)) => Box::new(
                TlsConnector::from(config)
                    .connect(name, stream)
                    .await
                    .map_err(with_hint)?,
            ),
        };
        Ok(TokioIo::new(stream))
    }
}

/// The error of a handshake, with what to change.
fn with_hint(error: io::Error) -> io::Error {
    match error
        .get_ref()
        .and_then(|error| error.downcast_ref::<Error>())
    {
        Some(Error::InvalidCertificate(certificate)) => {
            io::Error::other(tls::certificate_hint(certificate, &SERVICE))
        }
        Some(Error::InvalidMessage(_)) => {
            io::Error::other("the port does not speak TLS: leave out --tls")
        }
        _ => error,
    }
}

impl Service<Uri> for Connector {
    type Response = TokioIo<Box<dyn Wire>>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        Box::pin(self.clone().open())
    }
}
