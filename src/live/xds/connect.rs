//! One connection to the control plane: name resolution, TCP, TLS and HTTP/2, within a deadline.
//!
//! Each connection resolves the name and reads the certificates again, to follow a Service that
//! moved and files that were rotated.

use std::time::Duration;

use socket2::TcpKeepalive;
use tonic::transport::{Channel, Endpoint};

use super::Options;
use crate::net::dial::{Address, Connector, Dial, TcpOptions, causes};
use crate::net::tls::{self, Peer};

/// The time for a connection, from the resolution of its name to the end of the TLS handshake.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// A connection whose other end is gone ends within 40 s, with traffic or without. PINGs of HTTP/2
/// may not come as often: Go's gRPC servers close a connection with more than one in five minutes.
const TCP: TcpOptions = TcpOptions {
    next_address_after: None,
    keepalive: Some(
        TcpKeepalive::new()
            .with_time(Duration::from_secs(30))
            .with_interval(Duration::from_secs(5))
            .with_retries(2),
    ),
    user_timeout: Some(Duration::from_secs(40)),
};

/// The longest wait for the acknowledgement of an HTTP/2 PING.
pub(crate) const PING_TIMEOUT: Duration = Duration::from_secs(10);

/// The windows of HTTP/2 flow control. A configuration is some megabytes, and the connection has
/// one stream.
const WINDOW_BYTES: u32 = 1 << 20;

/// The control plane in the messages of errors.
const PEER: Peer = Peer {
    name: "the control plane",
    address: "CONFIG_GRPC_XDS_SERVER_URL",
    authorities: "CONFIG_GRPC_XDS_SERVER_TLS_CACERT",
    other_name: Some("set CONFIG_GRPC_XDS_SERVER_TLS_SAN"),
    identity: "CONFIG_GRPC_XDS_CLIENT_TLS_CERT and CONFIG_GRPC_XDS_CLIENT_TLS_KEY",
    without_tls: "set CONFIG_GRPC_XDS_SERVER_USE_TLS=false, or write a port that does in \
        CONFIG_GRPC_XDS_SERVER_URL",
};

/// The address of the control plane, and how to speak to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// Its host and its port.
    pub address: Address,
    /// TLS; plain text without it.
    pub tls: Option<tls::ClientOptions>,
}

/// Opens a connection. The error is written for operators, with the remedy.
pub(super) async fn connect(options: &Options) -> Result<Channel, String> {
    let Server { address, tls } = &options.server;
    let tls = tls.as_ref().map(tls::http2_client_config).transpose();
    let tls = tls.map_err(|error| error.to_string())?;
    let uri = |scheme: &str| {
        format!("{scheme}://{address}")
            .parse::<http::Uri>()
            .map_err(|error| format!("CONFIG_GRPC_XDS_SERVER_URL: {error}"))
    };
    let origin = uri(if tls.is_some() { "https" } else { "http" })?;
    let endpoint = Endpoint::from(uri("http")?)
        .origin(origin)
        .http2_keep_alive_interval(options.ping)
        .keep_alive_timeout(PING_TIMEOUT)
        .keep_alive_while_idle(true)
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES);
    let dial = Dial {
        address: address.clone(),
        tls,
        tcp: TCP,
    };
    let connector = Connector {
        dial,
        timeout: CONNECT_TIMEOUT,
        peer: &PEER,
    };
    let connected = endpoint.connect_with_connector(connector).await;
    connected.map_err(|error| {
        // tonic's own words are only that there is a transport.
        let cause = std::error::Error::source(&error);
        cause.map_or_else(|| error.to_string(), causes)
    })
}
