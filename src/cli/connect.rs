//! Connections of commands to a running service: to its gRPC port, over TCP or a unix socket, with
//! TLS or without, and to its ports of HTTP.

use std::time::Duration;

use anyhow::Context as _;
use http::Uri;
use tonic::transport::{Channel, Endpoint};

use crate::net::dial::{Address, Connector, Dial, TcpOptions};
use crate::net::http::client::HttpClient;
use crate::net::tls::{self, ClientOptions, Peer};

/// The longest time for a connection of a command that has no time of its own.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3_600);

/// How messages name a server of TLS.
const SERVICE: Peer = Peer {
    name: "the service",
    address: "--address",
    authorities: "--cacert",
    other_name: Some("write that name as --server-name"),
    identity: "--cert and --key",
    without_tls: "leave out --tls",
};

/// Connects to a gRPC port. With `timeout` the attempt takes that long at most, and so does each
/// call.
///
/// # Errors
/// The files of TLS cannot be used, or the service cannot be reached.
pub(super) async fn connect(
    address: &Address,
    tls: Option<&ClientOptions>,
    timeout: Option<Duration>,
) -> anyhow::Result<Channel> {
    let uri = match address {
        Address::Tcp { .. } => format!("http://{address}"),
        Address::Unix(_) => "http://localhost".to_owned(),
    };
    let endpoint =
        Endpoint::try_from(uri).with_context(|| format!("{address}: write HOST:PORT"))?;
    let endpoint = match timeout {
        Some(timeout) => endpoint.connect_timeout(timeout).timeout(timeout),
        None => endpoint,
    };
    let mut connector = connector(address.clone(), timeout.unwrap_or(CONNECT_TIMEOUT));
    connector.dial.tls = tls.map(tls::http2_client_config).transpose()?;
    let connected = endpoint.connect_with_connector(connector).await;
    connected.with_context(|| format!("no service at {address}; is `weir serve` running?"))
}

/// A client of the HTTP port of a URI; answers have at most so many bytes.
///
/// # Errors
/// The URI has no host.
pub(super) fn http_client(
    uri: &Uri,
    timeout: Duration,
    max_body_bytes: usize,
) -> anyhow::Result<HttpClient> {
    let address = Address::of(uri, 80).with_context(|| format!("{uri} names no host"))?;
    Ok(HttpClient::new(connector(address, timeout), max_body_bytes))
}

fn connector(address: Address, timeout: Duration) -> Connector {
    Connector {
        dial: Dial {
            address,
            tls: None,
            tcp: TcpOptions::default(),
        },
        timeout,
        peer: &SERVICE,
    }
}
