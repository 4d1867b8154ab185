//! Connections to other servers: Redis, a control plane, a trace collector, and, for commands, a
//! running Weir.
//!
//! One deadline covers name resolution, TCP with its options or a unix socket, and the TLS
//! handshake. The caller passes the TLS configuration (`tls::client_config`), because each client
//! decides when its files are read again. A [`Peer`] has the words for error messages. StatsD is
//! not here: it has a blocking thread, and mostly uses UDP.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::TokioIo;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream, lookup_host};
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_util::either::Either;
use tonic::codegen::Service;

use super::throttle::Throttle;
use super::tls::{Peer, hint};
use crate::core::lock;

/// Address of a server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// A host name or IP address, and a port.
    Tcp {
        /// The host, without the brackets of an IPv6 address.
        host: String,
        port: u16,
    },
    /// The path of a unix socket.
    Unix(PathBuf),
}

impl fmt::Display for Address {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port } if host.contains(':') => write!(out, "[{host}]:{port}"),
            Self::Tcp { host, port } => write!(out, "{host}:{port}"),
            Self::Unix(path) => write!(out, "{}", path.display()),
        }
    }
}

impl From<SocketAddr> for Address {
    fn from(address: SocketAddr) -> Self {
        Self::Tcp {
            host: address.ip().to_string(),
            port: address.port(),
        }
    }
}

impl Address {
    /// The server of a URI, with `port` if the URI has none; `None` without a host.
    pub fn of(uri: &Uri, port: u16) -> Option<Self> {
        let host = uri.host()?.trim_matches(['[', ']']);
        Some(Self::Tcp {
            host: host.to_owned(),
            port: uri.port_u16().unwrap_or(port),
        })
    }
}

/// The options of TCP. Segments are never delayed (`TCP_NODELAY`): clients write whole messages,
/// and then wait for the answer.
#[derive(Clone, Debug, Default)]
pub struct TcpOptions {
    /// The time for one of several addresses before the next one is tried; without it, an equal
    /// share of the remaining time. The last address gets all of the remaining time.
    pub next_address_after: Option<Duration>,
    /// Probes of a connection without traffic (RFC 9293, section 3.8.4), which find a peer that
    /// vanished without closing.
    pub keepalive: Option<TcpKeepalive>,
    /// The time after which the kernel closes a connection whose bytes are not acknowledged
    /// (`TCP_USER_TIMEOUT` in tcp(7)).
    pub user_timeout: Option<Duration>,
}

/// Options of connections to one server.
#[derive(Clone, Debug)]
pub struct Dial {
    /// The address of the server.
    pub address: Address,
    /// TLS; plain text without it.
    pub tls: Option<Arc<ClientConfig>>,
    pub tcp: TcpOptions,
}

/// Failure of a connection.
#[derive(Debug)]
pub enum DialError {
    /// The name cannot be resolved.
    Name {
        /// The name.
        host: String,
        /// The resolver's error.
        cause: String,
    },
    /// No address accepts a connection.
    Connect(io::Error),
    /// No address answered in time.
    Timeout,
    /// No certificate can hold this name.
    CertificateName(String),
    /// The TLS handshake failed.
    Handshake(io::Error),
    /// The TLS handshake was not answered in time.
    HandshakeTimeout,
}

impl DialError {
    /// The error, with the change that fixes it.
    pub fn explain(&self, peer: &Peer) -> String {
        let address = peer.address;
        match self {
            Self::Name { host, cause } => {
                format!("the name {host} cannot be resolved ({cause}); check {address}")
            }
            Self::Connect(error) => format!("it cannot be reached ({error})"),
            Self::Timeout => "it did not answer in time".to_owned(),
            Self::CertificateName(host) => format!(
                "TLS needs a host name or IP address that a certificate can hold, which {host} is \
                 not: correct the host in {address}"
            ),
            Self::Handshake(error) => hint(error, peer).map_or_else(
                || format!("the TLS handshake failed ({error})"),
                |hint| hint.text,
            ),
            Self::HandshakeTimeout => {
                "it accepted the connection but does not answer the TLS handshake".to_owned()
            }
        }
    }
}

/// A connection without TLS.
pub type Socket = Either<TcpStream, UnixStream>;

/// A byte stream, encrypted or not.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

impl Connection for Box<dyn Stream> {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl Dial {
    /// Opens a connection without TLS by `deadline`.
    ///
    /// # Errors
    /// Any [`DialError`] except TLS errors.
    pub async fn open(&self, deadline: Instant) -> Result<Socket, DialError> {
        let (host, port) = match &self.address {
            Address::Tcp { host, port } => (host, *port),
            Address::Unix(path) => {
                let connected = timeout_at(deadline, UnixStream::connect(path)).await;
                let connected = connected.map_err(|_| DialError::Timeout)?;
                return connected.map(Either::Right).map_err(DialError::Connect);
            }
        };
        let addresses = resolve(host, port, deadline).await?;
        let stream = self.tcp.connect(&addresses, deadline).await?;
        Ok(Either::Left(stream))
    }

    /// Performs the TLS handshake on an open connection by `deadline`.
    ///
    /// # Errors
    /// TLS errors.
    pub async fn secure<S: Stream>(
        &self,
        stream: S,
        tls: &Arc<ClientConfig>,
        deadline: Instant,
    ) -> Result<TlsStream<S>, DialError> {
        // The name that the certificate has to hold; a unix socket has none of its own.
        let host = match &self.address {
            Address::Tcp { host, .. } => host,
            Address::Unix(_) => "localhost",
        };
        let name = ServerName::try_from(host.to_owned())
            .map_err(|_| DialError::CertificateName(host.to_owned()))?;
        let connecting = TlsConnector::from(Arc::clone(tls)).connect(name, stream);
        timeout_at(deadline, connecting)
            .await
            .map_err(|_| DialError::HandshakeTimeout)?
            .map_err(DialError::Handshake)
    }

    /// Opens a connection, with TLS if there is any, by `deadline`.
    ///
    /// # Errors
    /// [`DialError`].
    pub async fn connect(&self, deadline: Instant) -> Result<Box<dyn Stream>, DialError> {
        let stream = self.open(deadline).await?;
        match &self.tls {
            None => Ok(Box::new(stream)),
            Some(tls) => Ok(Box::new(self.secure(stream, tls, deadline).await?)),
        }
    }
}

/// Maximum number of names whose addresses are remembered. They are names in settings, and of
/// servers that a cluster or Sentinels announce.
const MAX_NAMES: usize = 1_024;

/// The time after a failed lookup in which connections do not wait for another one.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The last addresses of each name. While no DNS server answers, connections go to them: a server
/// that works is not lost.
static KNOWN: Mutex<BTreeMap<(String, u16), KnownAddresses>> = Mutex::new(BTreeMap::new());

/// Connections to the last known addresses of a name, since the start.
static UNRESOLVED: AtomicU64 = AtomicU64::new(0);

#[derive(Clone, Debug, Default)]
struct KnownAddresses {
    addresses: Vec<SocketAddr>,
    /// When the latest lookup failed; `None` if it succeeded.
    failed: Option<Instant>,
    /// Whether the log has a line about it.
    is_logged: bool,
    lines: Throttle,
}

/// How many connections went to the last known addresses of a name, because it could not be
/// resolved.
pub fn unresolved() -> u64 {
    UNRESOLVED.load(Ordering::Relaxed)
}

/// The addresses of `host`, of which there is at least one: the last known ones if the name cannot
/// be resolved.
async fn resolve(host: &str, port: u16, deadline: Instant) -> Result<Vec<SocketAddr>, DialError> {
    if let Ok(ip) = host.parse() {
        return Ok(vec![SocketAddr::new(ip, port)]);
    }
    let name = (host.to_owned(), port);
    let known = lock(&KNOWN).get(&name).cloned();
    let now = Instant::now();
    let failed_lately = |at: Instant| now.saturating_duration_since(at) < RETRY_AFTER;
    if let Some(known) = &known
        && known.failed.is_some_and(failed_lately)
    {
        UNRESOLVED.fetch_add(1, Ordering::Relaxed);
        return Ok(known.addresses.clone());
    }
    // The other half is for the connection to a known address.
    let until = match known {
        Some(_) => now + deadline.saturating_duration_since(now) / 2,
        None => deadline,
    };
    let found = match timeout_at(until, lookup_host((host, port))).await {
        Ok(Ok(addresses)) => Some(addresses.collect::<Vec<_>>())
            .filter(|addresses| !addresses.is_empty())
            .ok_or_else(|| "the name has no address".to_owned()),
        Ok(Err(cause)) => Err(cause.to_string()),
        Err(_) => Err("no DNS server answered in time".to_owned()),
    };
    remember(name, found)
}

/// Remembers the result of a lookup, or finds the addresses of the one before.
fn remember(
    name: (String, u16),
    found: Result<Vec<SocketAddr>, String>,
) -> Result<Vec<SocketAddr>, DialError> {
    let mut names = lock(&KNOWN);
    let has_room = names.len() < MAX_NAMES;
    let known = names.get_mut(&name);
    match (found, known) {
        (Ok(addresses), Some(known)) => {
            known.addresses.clone_from(&addresses);
            known.failed = None;
            if std::mem::take(&mut known.is_logged) {
                tracing::info!(name = name.0, "DNS: name resolved again");
            }
            Ok(addresses)
        }
        (Ok(addresses), None) => {
            if has_room {
                let known = names.entry(name).or_default();
                known.addresses.clone_from(&addresses);
            }
            Ok(addresses)
        }
        (Err(cause), Some(known)) => {
            known.failed = Some(Instant::now());
            UNRESOLVED.fetch_add(1, Ordering::Relaxed);
            if !known.is_logged && known.lines.admit(Instant::now()).is_some() {
                known.is_logged = true;
                tracing::warn!(
                    name = name.0,
                    cause,
                    "DNS: cannot resolve the name; connecting to its last known addresses"
                );
            }
            Ok(known.addresses.clone())
        }
        (Err(cause), None) => {
            let host = name.0;
            Err(DialError::Name { host, cause })
        }
    }
}

impl TcpOptions {
    /// Connects to the first address that accepts, in the resolver's order, one attempt at a time.
    async fn connect(
        &self,
        addresses: &[SocketAddr],
        deadline: Instant,
    ) -> Result<TcpStream, DialError> {
        let mut last = DialError::Timeout;
        for (index, address) in addresses.iter().enumerate() {
            let left = deadline.saturating_duration_since(Instant::now());
            let until = match (addresses.len() - index, self.next_address_after) {
                (1, _) => deadline,
                (_, Some(time)) => Instant::now() + time.min(left),
                (addresses, None) => Instant::now() + left / addresses as u32,
            };
            match timeout_at(until, TcpStream::connect(address)).await {
                Ok(Ok(stream)) => {
                    self.apply(&stream);
                    return Ok(stream);
                }
                Ok(Err(error)) => last = DialError::Connect(error),
                Err(_) => last = DialError::Timeout,
            }
        }
        Err(last)
    }

    /// Sets the options. Errors are ignored: without them a connection works, but it is slower, or
    /// Weir finds later that it is broken.
    fn apply(&self, stream: &TcpStream) {
        let _ = stream.set_nodelay(true);
        let socket = SockRef::from(stream);
        if let Some(keepalive) = &self.keepalive {
            let _ = socket.set_tcp_keepalive(keepalive);
        }
        #[cfg(target_os = "linux")]
        if self.user_timeout.is_some() {
            let _ = socket.set_tcp_user_timeout(self.user_timeout);
        }
    }
}

/// Opens the connections of tonic's and hyper's clients. All go to one server; the URI is ignored.
#[derive(Clone, Debug)]
pub struct Connector {
    /// The server, and the options of connections to it.
    pub dial: Dial,
    /// Timeout of each connection attempt.
    pub timeout: Duration,
    /// Names of the server and of its settings in error messages.
    pub peer: &'static Peer,
}

impl Service<Uri> for Connector {
    type Response = TokioIo<Box<dyn Stream>>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let connector = self.clone();
        Box::pin(async move {
            let deadline = Instant::now() + connector.timeout;
            let connected = connector.dial.connect(deadline).await;
            connected
                .map(TokioIo::new)
                .map_err(|error| io::Error::other(error.explain(connector.peer)))
        })
    }
}

/// An error and its causes as one text.
pub fn causes(error: &dyn std::error::Error) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::TcpListener;

    const PEER: Peer = Peer {
        name: "the server",
        address: "URL",
        authorities: "CACERT",
        other_name: None,
        identity: "CERT and KEY",
        without_tls: "leave out --tls",
    };

    fn dial(address: Address) -> Dial {
        Dial {
            address,
            tls: None,
            tcp: TcpOptions::default(),
        }
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(5)
    }

    #[tokio::test]
    async fn an_address_that_refuses_is_followed_by_the_next() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let accepting = listener.local_addr().expect("an address");
        let refusing = SocketAddr::from(([127, 0, 0, 1], 1));
        let options = TcpOptions::default();
        assert!(
            options
                .connect(&[refusing, accepting], soon())
                .await
                .is_ok()
        );
        let error = options.connect(&[refusing], soon()).await;
        assert!(matches!(error, Err(DialError::Connect(_))), "{error:?}");
    }

    #[tokio::test]
    async fn a_name_that_cannot_be_resolved_has_the_addresses_of_the_last_answer() {
        let name = || ("weir.known.invalid".to_owned(), 7);
        let two = vec![SocketAddr::from(([127, 0, 0, 1], 7)); 2];
        let failed = || Err("no answer".to_owned());
        assert!(remember(name(), failed()).is_err(), "never known");
        assert_eq!(remember(name(), Ok(two.clone())).expect("found"), two);
        let before = unresolved();
        assert_eq!(remember(name(), failed()).expect("known"), two);
        // Within a second no lookup is waited for, and then the real one fails.
        for wait in [Duration::ZERO, RETRY_AFTER] {
            tokio::time::sleep(wait).await;
            let found = resolve(&name().0, 7, soon()).await;
            assert_eq!(found.expect("known"), two);
        }
        assert!(unresolved() >= before + 3);
        assert!(resolve(&name().0, 8, soon()).await.is_err(), "another port");
        let one = vec![two[0]];
        assert_eq!(remember(name(), Ok(one.clone())).expect("found"), one);
        assert_eq!(remember(name(), failed()).expect("known"), one);
    }

    #[tokio::test]
    async fn errors_say_what_to_change() {
        let unknown = dial(Address::Tcp {
            host: "no such name".to_owned(),
            port: 1,
        });
        let error = unknown.connect(soon()).await.err().expect("no name");
        let text = error.explain(&PEER);
        assert!(
            text.starts_with("the name no such name cannot be resolved (")
                && text.ends_with("); check URL"),
            "{text}"
        );
        let folder = tempfile::tempdir().expect("a folder");
        let missing = dial(Address::Unix(folder.path().join("socket")));
        let error = missing.connect(soon()).await.err().expect("no socket");
        assert!(error.explain(&PEER).starts_with("it cannot be reached ("));
    }

    #[test]
    fn addresses_of_uris_have_no_brackets_and_a_port() {
        for (uri, address) in [
            ("http://[::1]:5/x", "[::1]:5"),
            ("https://a.b", "a.b:443"),
            ("http://10.0.0.1:1", "10.0.0.1:1"),
        ] {
            let found = Address::of(&uri.parse().expect("a URI"), 443).expect("a host");
            assert_eq!(found.to_string(), address);
        }
        assert_eq!(Address::of(&"/path".parse().expect("a URI"), 1), None);
    }
}
