//! One connection to the control plane: name resolution, TCP, TLS and HTTP/2, within a deadline.
//!
//! Each connection resolves the name and reads the certificates again, so that it follows a Service
//! that moved and files that were rotated.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;
use tonic::codegen::Service;
use tonic::transport::{Channel, Endpoint};

use super::Options;
use crate::net::tls;

/// The time for a connection, from the resolution of its name to the end of the TLS handshake.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// TCP probes a connection without traffic, so that one whose other end is gone ends within 40 s.
/// PINGs of HTTP/2 may not come as often: Go's gRPC servers close a connection with more than one
/// in five minutes.
const TCP_IDLE: Duration = Duration::from_secs(30);
const TCP_INTERVAL: Duration = Duration::from_secs(5);
const TCP_PROBES: u32 = 2;

/// The longest wait for the acknowledgement of an HTTP/2 PING.
const PING_TIMEOUT: Duration = Duration::from_secs(10);

/// The windows of HTTP/2 flow control. A configuration is some megabytes, and the connection has
/// one stream.
const WINDOW_BYTES: u32 = 1 << 20;

/// The protocol in TLS. Go's gRPC servers refuse a client that does not offer it. Source: RFC 7540,
/// section 3.3.
const ALPN: &[u8] = b"h2";

/// Where the control plane is, and how to speak to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// A host name or an IP address.
    pub host: String,
    /// The TCP port.
    pub port: u16,
    /// TLS; plain text without it.
    pub tls: Option<tls::ClientOptions>,
}

impl std::fmt::Display for Server {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { host, port, .. } = self;
        if host.contains(':') {
            write!(out, "[{host}]:{port}")
        } else {
            write!(out, "{host}:{port}")
        }
    }
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConnectError {
    #[error("the name {host} cannot be resolved ({error}); check CONFIG_GRPC_XDS_SERVER_URL")]
    Resolve { host: String, error: io::Error },
    #[error("it cannot be reached ({0})")]
    Tcp(io::Error),
    #[error("{0}")]
    Files(#[from] tls::TlsError),
    #[error("{0}")]
    Tls(String),
    #[error("it did not answer within {} s", CONNECT_TIMEOUT.as_secs())]
    Timeout,
    #[error("it does not speak HTTP/2 ({0})")]
    Http(String),
}

/// Opens a connection.
pub(super) async fn connect(options: &Options) -> Result<Channel, ConnectError> {
    let server = &options.server;
    let deadline = Instant::now() + CONNECT_TIMEOUT;
    let io = timeout_at(deadline, open(server, deadline))
        .await
        .map_err(|_| ConnectError::Timeout)??;
    let scheme = if server.tls.is_some() {
        "https"
    } else {
        "http"
    };
    let uri = |scheme: &str| {
        format!("{scheme}://{server}")
            .parse::<http::Uri>()
            .map_err(|error| ConnectError::Http(error.to_string()))
    };
    let endpoint = Endpoint::from(uri("http")?)
        .origin(uri(scheme)?)
        .http2_keep_alive_interval(options.ping)
        .keep_alive_timeout(PING_TIMEOUT)
        .keep_alive_while_idle(true)
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES);
    timeout_at(deadline, endpoint.connect_with_connector(Once(Some(io))))
        .await
        .map_err(|_| ConnectError::Timeout)?
        .map_err(|error| ConnectError::Http(causes(&error)))
}

async fn open(server: &Server, deadline: Instant) -> Result<Box<dyn Io>, ConnectError> {
    let stream = dial(server, deadline).await?;
    let Some(options) = &server.tls else {
        return Ok(Box::new(stream));
    };
    let mut config = tls::client_config(options)?;
    config.alpn_protocols = vec![ALPN.to_vec()];
    let name = ServerName::try_from(server.host.clone())
        .map_err(|_| ConnectError::Tls(format!("{} is no host name", server.host)))?;
    let stream = TlsConnector::from(Arc::new(config))
        .connect(name, stream)
        .await;
    stream
        .map(|stream| Box::new(stream) as Box<dyn Io>)
        .map_err(|error| ConnectError::Tls(explain(&error)))
}

/// Tries the addresses of the name one after the other, each for its share of the time that is
/// left.
async fn dial(server: &Server, deadline: Instant) -> Result<TcpStream, ConnectError> {
    let resolve_error = |error| ConnectError::Resolve {
        host: server.host.clone(),
        error,
    };
    let addresses: Vec<SocketAddr> = tokio::net::lookup_host((server.host.as_str(), server.port))
        .await
        .map_err(resolve_error)?
        .collect();
    let mut last = ConnectError::Tcp(io::ErrorKind::NotFound.into());
    for (index, address) in addresses.iter().enumerate() {
        let left =
            deadline.saturating_duration_since(Instant::now()) / (addresses.len() - index) as u32;
        match timeout_at(Instant::now() + left, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => {
                // A connection without them works; it is only found broken later.
                let keepalive = TcpKeepalive::new()
                    .with_time(TCP_IDLE)
                    .with_interval(TCP_INTERVAL)
                    .with_retries(TCP_PROBES);
                let _ = SockRef::from(&stream).set_tcp_keepalive(&keepalive);
                let _ = stream.set_nodelay(true);
                return Ok(stream);
            }
            Ok(Err(error)) => last = ConnectError::Tcp(error),
            Err(_) => last = ConnectError::Timeout,
        }
    }
    Err(last)
}

/// The error of a handshake, with what to change.
fn explain(error: &io::Error) -> String {
    use tokio_rustls::rustls::Error;
    const PEER: tls::Peer = tls::Peer {
        name: "the control plane",
        address: "CONFIG_GRPC_XDS_SERVER_URL",
        authorities: "CONFIG_GRPC_XDS_SERVER_TLS_CACERT",
        other_name: "set CONFIG_GRPC_XDS_SERVER_TLS_SAN",
    };
    match error
        .get_ref()
        .and_then(|inner| inner.downcast_ref::<Error>())
    {
        Some(Error::InvalidCertificate(error)) => tls::certificate_hint(error, &PEER),
        Some(Error::AlertReceived(alert)) if tls::is_about_certificates(*alert) => format!(
            "the control plane refuses the client's certificate ({error}): check \
             CONFIG_GRPC_XDS_CLIENT_TLS_CERT and CONFIG_GRPC_XDS_CLIENT_TLS_KEY"
        ),
        Some(Error::InvalidMessage(_)) => {
            format!("it does not speak TLS ({error}); check CONFIG_GRPC_XDS_SERVER_USE_TLS")
        }
        _ => format!("the TLS handshake failed: {error}"),
    }
}

/// An error and its causes as one text.
pub(super) fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        // Some errors repeat their cause.
        if !text.contains(&next) {
            text = format!("{text}: {next}");
        }
        cause = error.source();
    }
    text
}

/// A byte stream to the server, encrypted or not.
trait Io: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// Gives tonic the stream that is open already. It cannot open a second one: a new connection needs
/// new addresses and files.
struct Once(Option<Box<dyn Io>>);

impl Service<http::Uri> for Once {
    type Response = TokioIo<Box<dyn Io>>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: http::Uri) -> Self::Future {
        let taken = self
            .0
            .take()
            .map(TokioIo::new)
            .ok_or_else(|| io::ErrorKind::NotConnected.into());
        Box::pin(std::future::ready(taken))
    }
}
