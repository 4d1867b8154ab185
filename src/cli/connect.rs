//! Connections of commands to a running service: to its gRPC port, over TCP or a unix socket, with
//! TLS or without, and to its HTTP ports.

use std::fmt::Display;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use http::Uri;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, timeout_at};
use tonic::transport::{Channel, Endpoint};

use crate::net::dial::{Address, Connector, Dial, TcpOptions};
use crate::net::http::HttpClient;
use crate::net::tls::{self, ClientOptions, NameCheck, Peer, SubjectName};

/// Connect timeout of a command without a timeout of its own.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3_600);

/// The begin of a connection of HTTP/2 with empty SETTINGS (RFC 9113, section 3.4), which a service
/// answers with its own.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// The time for this answer.
const FIRST_BYTE_TIMEOUT: Duration = Duration::from_secs(1);

/// The words of error messages about the TLS server.
pub(super) const SERVICE: Peer = Peer {
    name: "the service",
    address: "the address",
    authorities: "--cacert",
    other_name: Some("write that name as --server-name"),
    identity: "--cert and --key",
    without_tls: "leave out --tls",
};

/// Flags of commands that ask a gRPC port.
#[derive(Args, Debug)]
pub(super) struct ClientTlsFlags {
    /// Connect with TLS
    #[arg(long)]
    tls: bool,
    /// Trust the certificate authorities in this PEM file, with TLS [default: the system's
    /// authorities]
    #[arg(long, value_name = "PATH")]
    cacert: Option<PathBuf>,
    /// Present the client certificate in this PEM file, with TLS
    #[arg(long, value_name = "PATH", requires = "key")]
    cert: Option<PathBuf>,
    /// Use the private key in this PEM file for --cert
    #[arg(long, value_name = "PATH", requires = "cert")]
    key: Option<PathBuf>,
    /// Expect a server certificate for this name, with TLS [default: the host in the
    /// address]
    #[arg(long, value_name = "NAME", value_parser = server_name)]
    server_name: Option<SubjectName>,
}

impl ClientTlsFlags {
    /// Options of TLS, if any of the flags is given: each of them turns TLS on.
    ///
    /// # Errors
    /// The certificate and its key do not belong together.
    pub(super) fn options(&self) -> anyhow::Result<Option<ClientOptions>> {
        let is_on =
            self.tls || self.cacert.is_some() || self.cert.is_some() || self.server_name.is_some();
        let files = [
            ("--cacert", self.cacert.as_deref()),
            ("--cert", self.cert.as_deref()),
            ("--key", self.key.as_deref()),
        ];
        let name = self.server_name.clone();
        let name_check = name.map_or(NameCheck::Strict, NameCheck::Only);
        Ok(is_on.then_some(ClientOptions::try_new(files, name_check)?))
    }
}

fn server_name(text: &str) -> Result<SubjectName, String> {
    SubjectName::parse(text).ok_or_else(|| "write a DNS name, an IP address or a URI".to_owned())
}

/// The address of a service with default settings on this machine.
pub(super) fn usual_address() -> Address {
    let host = "127.0.0.1".to_owned();
    Address::Tcp { host, port: 8081 }
}

/// Reads `HOST:PORT`, with an IPv6 address in brackets, or `unix:PATH`.
///
/// # Errors
/// The form of a valid address.
pub(super) fn address(text: &str) -> Result<Address, String> {
    if let Some(path) = text.strip_prefix("unix:") {
        return Ok(Address::Unix(path.into()));
    }
    host_and_port(text).map(|(host, port)| Address::Tcp { host, port })
}

/// Reads `HOST:PORT`, with an IPv6 address in brackets.
///
/// # Errors
/// The form of a valid address.
pub(super) fn host_and_port(text: &str) -> Result<(String, u16), String> {
    let (host, port) = text.rsplit_once(':').unwrap_or_default();
    let in_brackets = host.starts_with('[') && host.ends_with(']');
    let is_name = !host.is_empty() && !host.contains(['/', '@', ' ', '|']);
    match port.parse() {
        Ok(port @ 1..) if is_name && (in_brackets || !host.contains(':')) => {
            Ok((host.trim_matches(['[', ']']).to_owned(), port))
        }
        _ => Err("write HOST:PORT, such as localhost:8081 or [::1]:8081".to_owned()),
    }
}

/// Connects to a gRPC port. With `timeout`, the attempt and each call take at most that long.
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
    let no_address = || format!("{address}: write HOST:PORT");
    let mut endpoint = Endpoint::try_from(uri).with_context(no_address)?;
    if let Some(timeout) = timeout {
        endpoint = endpoint.connect_timeout(timeout).timeout(timeout);
    }
    let dial = dial(address, tls)?;
    check_accepted(&dial).await?;
    let connector = connector(dial, timeout.unwrap_or(CONNECT_TIMEOUT));
    let connected = endpoint.connect_with_connector(connector).await;
    connected.map_err(|error| no_service(address, &error.into()))
}

/// The time between two attempts to connect.
const CONNECT_AGAIN: Duration = Duration::from_millis(100);

/// Asks again while nothing listens at the address: a service may be starting, or the network may
/// not know of it yet. The caller bounds the time, which is `timeout`.
///
/// # Errors
/// What `ask` returns.
pub(super) async fn until_connected<T, F: Future<Output = anyhow::Result<T>>>(
    timeout: Duration,
    ask: impl Fn() -> F,
) -> anyhow::Result<T> {
    let end = Instant::now() + timeout.saturating_sub(CONNECT_AGAIN);
    loop {
        match ask().await {
            Err(error) if error.is::<NoService>() && Instant::now() < end => {
                tokio::time::sleep(CONNECT_AGAIN).await;
            }
            result => return result,
        }
    }
}

/// A service that cannot be reached.
#[derive(Debug, thiserror::Error)]
#[error("no service at {address}: {cause}; is `weir serve` running?")]
pub(super) struct NoService {
    address: String,
    cause: String,
}

/// Connects once with TLS, and waits for the first byte of the answer. With TLS 1.3 an alert about
/// the client's certificate arrives after the handshake, and an error of a write would hide it.
///
/// # Errors
/// The service refuses the client. Other errors are left to the connection that follows.
pub(super) async fn check_accepted(dial: &Dial) -> anyhow::Result<()> {
    let deadline = Instant::now() + FIRST_BYTE_TIMEOUT;
    if dial.tls.is_none() {
        return Ok(());
    }
    let Ok(mut stream) = dial.connect(deadline).await else {
        return Ok(());
    };
    // An error of the write comes after the alert.
    let _ = stream.write_all(PREFACE).await;
    let _ = stream.flush().await;
    let read = timeout_at(deadline, stream.read_u8()).await;
    let (error, address) = (read.ok().and_then(Result::err), &dial.address);
    let refused = error.and_then(|error| Some((tls::hint(&error, &SERVICE)?.text, error)));
    let Some((hint, error)) = refused else {
        return Ok(());
    };
    anyhow::bail!("{address} refuses the client ({error}): {hint}")
}

/// The error for a service that cannot be reached, with the remedy. It has only the root cause,
/// because each layer of the transport repeats it.
pub(super) fn no_service(address: &impl Display, error: &anyhow::Error) -> anyhow::Error {
    let (address, cause) = (address.to_string(), error.root_cause().to_string());
    NoService { address, cause }.into()
}

/// A client of the HTTP port of a URI. Longer answers than `max_body_bytes` are errors.
///
/// # Errors
/// The URI has no host.
pub(super) fn http_client(
    uri: &Uri,
    timeout: Duration,
    max_body_bytes: usize,
) -> anyhow::Result<HttpClient> {
    let address = Address::of(uri, 80).with_context(|| format!("{uri} names no host"))?;
    let connector = connector(dial(&address, None)?, timeout);
    Ok(HttpClient::new(connector, max_body_bytes))
}

/// The dialer of a port, with TLS or without.
///
/// # Errors
/// The files of TLS cannot be used.
pub(super) fn dial(address: &Address, tls: Option<&ClientOptions>) -> anyhow::Result<Dial> {
    Ok(Dial {
        address: address.clone(),
        tls: tls.map(tls::http2_client_config).transpose()?,
        tcp: TcpOptions::default(),
    })
}

const fn connector(dial: Dial, timeout: Duration) -> Connector {
    Connector {
        dial,
        timeout,
        peer: &SERVICE,
    }
}
