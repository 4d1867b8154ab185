//! The byte stream to Redis: TCP, TLS over TCP, or a unix socket.
//!
//! It opens the stream, sets the socket's options, and names the errors of TLS with their remedy.
//! It knows no commands and no replies.

use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use rustls::AlertDescription;
use rustls::pki_types::ServerName;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpStream, UnixStream, lookup_host};
use tokio::time::{Duration, Instant, timeout_at};
use tokio_rustls::client::TlsStream;
use tokio_rustls::{TlsConnector, rustls};

use super::options::{Address, REDIS, Tls};
use crate::net::tls;
use crate::store::redis::error::{self, ConnectError};

/// Idle time before the first TCP keepalive probe (RFC 9293, section 3.8.4). Probes find a peer
/// that vanished without closing.
const KEEPALIVE: Duration = Duration::from_secs(10);

/// Time between two TCP keepalive probes.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);

/// Time beyond the deadline of a connection whose TLS handshake got no answer, to find out whether
/// the port speaks plaintext.
const PLAINTEXT_TEST: Duration = Duration::from_millis(100);

/// Time for one address of a host name before the next address is tried; the last one has the time
/// that is left.
const NEXT_ADDRESS_AFTER: Duration = Duration::from_millis(50);

/// Time after which the kernel closes a connection whose bytes are not acknowledged
/// (`TCP_USER_TIMEOUT` in tcp(7)). Far above the default `STORE_TIMEOUT`, so that requests fail by
/// their own deadlines.
#[cfg(target_os = "linux")]
const USER_TIMEOUT: Duration = Duration::from_secs(2);

/// The first bytes of a TLS record with an alert: the content type `alert`, and the first byte of
/// the version (RFC 8446, section 5.1). A TLS port answers plaintext with such a record.
pub(crate) const TLS_ALERT: [u8; 2] = [0x15, 0x03];

// Hints for the log.
pub(crate) const SPEAKS_TLS: &str =
    "the port speaks TLS: set REDIS_TLS=true, or write rediss:// in REDIS_URL";
pub(crate) const MAY_SPEAK_TLS: &str =
    "if the port speaks TLS, set REDIS_TLS=true, or write rediss:// in REDIS_URL";
pub(crate) const MAY_WANT_A_CERTIFICATE: &str =
    "Redis may want another client certificate (REDIS_TLS_CLIENT_CERT)";
const NO_HANDSHAKE: &str =
    "Redis accepted the connection but does not answer the TLS handshake: it hangs";
const NOT_TLS: &str = "the port does not speak TLS: write a port that does, or switch TLS off \
    (REDIS_TLS, rediss:// in REDIS_URL)";
const NO_DNS: &str = "no DNS server answered in time";

/// An open stream to Redis.
#[derive(Debug)]
pub(crate) enum Socket {
    Tcp(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
    Unix(UnixStream),
    #[cfg(test)]
    Simulated(super::simulated::SimulatedStream),
}

impl Socket {
    /// Connects to `address`, and performs the TLS handshake if `tls` is given, by `deadline`. Only
    /// to find out why a TLS handshake got no answer it takes [`PLAINTEXT_TEST`] longer.
    ///
    /// # Errors
    /// The name and the cause of the failure.
    pub(crate) async fn connect(
        address: &Address,
        tls: Option<&Tls>,
        deadline: Instant,
    ) -> Result<Self, ConnectError> {
        #[cfg(test)]
        if let Some(connecting) = super::simulated::connect() {
            return by(deadline, connecting).await.map(Self::Simulated);
        }
        let (host, port) = match address {
            Address::Unix(path) => {
                return by(deadline, UnixStream::connect(path))
                    .await
                    .map(Self::Unix);
            }
            Address::Tcp { host, port } => (host, *port),
        };
        let addresses = resolve(host, port, deadline).await?;
        let stream = by(deadline, connect_tcp(&addresses)).await?;
        let Some(tls) = tls else {
            return Ok(Self::Tcp(stream));
        };
        let invalid_name = |_| {
            ConnectError {
            name: error::TLS,
            cause: Some(
                "TLS needs a host name or IP address that a certificate can hold: correct the host \
                 in REDIS_URL"
                    .to_owned(),
            ),
        }
        };
        let name = ServerName::try_from(host.clone()).map_err(invalid_name)?;
        match timeout_at(
            deadline,
            TlsConnector::from(tls.config()).connect(name, stream),
        )
        .await
        {
            Ok(Ok(stream)) => Ok(Self::Tls(Box::new(stream))),
            Ok(Err(cause)) => Err(connect_error(error::CONNECT, &cause)),
            // Redis waits for the end of a line, which the first message of TLS does not have.
            Err(_) => Err(
                match timeout_at(deadline + PLAINTEXT_TEST, speaks_plaintext(&addresses)).await {
                    Ok(true) => ConnectError {
                        name: error::TLS,
                        cause: Some(NOT_TLS.to_owned()),
                    },
                    Ok(false) | Err(_) => ConnectError {
                        name: error::CONNECT_TIMEOUT,
                        cause: Some(NO_HANDSHAKE.to_owned()),
                    },
                },
            ),
        }
    }

    pub(crate) fn is_tls(&self) -> bool {
        matches!(self, Self::Tls(_))
    }

    /// Writes some of `bytes` and returns how many. TLS may buffer them until [`Socket::flush`].
    pub(crate) async fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(bytes).await,
            Self::Unix(stream) => stream.write(bytes).await,
            // With TLS 1.3 the client's handshake is complete before the server checks the client
            // certificate. A server that refuses it sends an alert and closes. The alert names the
            // reason, which a broken pipe does not.
            Self::Tls(stream) => match stream.write(bytes).await {
                Err(error) => match try_read_byte(stream) {
                    Poll::Ready(Err(alert)) if tls_error(&alert).is_some() => Err(alert),
                    _ => Err(error),
                },
                written => written,
            },
            #[cfg(test)]
            Self::Simulated(wire) => wire.write(bytes).await,
        }
    }

    /// Sends the bytes that TLS has buffered.
    pub(crate) async fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Tcp(_) | Self::Unix(_) => Ok(()),
            #[cfg(test)]
            Self::Simulated(_) => Ok(()),
            Self::Tls(stream) => stream.flush().await,
        }
    }

    /// Reads into `bytes` and returns the count; 0 means that the server has closed the stream.
    pub(crate) async fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(bytes).await,
            Self::Unix(stream) => stream.read(bytes).await,
            Self::Tls(stream) => stream.read(bytes).await,
            #[cfg(test)]
            Self::Simulated(wire) => wire.read(bytes).await,
        }
    }

    /// Whether the server has neither closed the stream nor sent data since the last reply. Session
    /// tickets of TLS are not data (RFC 8446, section 4.6.1).
    pub(crate) fn is_quiet(&mut self) -> bool {
        let is_empty = |read: io::Result<usize>| matches!(read, Err(error) if error.kind() == io::ErrorKind::WouldBlock);
        let mut byte = [0];
        match self {
            Self::Tcp(stream) => is_empty(stream.try_read(&mut byte)),
            Self::Unix(stream) => is_empty(stream.try_read(&mut byte)),
            Self::Tls(stream) => try_read_byte(stream).is_pending(),
            #[cfg(test)]
            Self::Simulated(wire) => is_empty(wire.try_read(&mut byte)),
        }
    }
}

/// The result of `connecting`, if it comes by `deadline`.
async fn by<T>(
    deadline: Instant,
    connecting: impl Future<Output = io::Result<T>>,
) -> Result<T, ConnectError> {
    match timeout_at(deadline, connecting).await {
        Ok(connected) => connected.map_err(|cause| connect_error(error::CONNECT, &cause)),
        Err(_) => Err(ConnectError {
            name: error::CONNECT_TIMEOUT,
            cause: None,
        }),
    }
}

/// The addresses of `host`, of which there is at least one.
async fn resolve(
    host: &str,
    port: u16,
    deadline: Instant,
) -> Result<Vec<SocketAddr>, ConnectError> {
    let failed = |cause: String| ConnectError {
        name: error::DNS,
        cause: Some(format!("{host}: {cause}")),
    };
    match timeout_at(deadline, lookup_host((host, port))).await {
        Ok(Ok(addresses)) => Some(addresses.collect::<Vec<_>>())
            .filter(|addresses| !addresses.is_empty())
            .ok_or_else(|| failed("the name has no address".to_owned())),
        Ok(Err(cause)) => Err(failed(cause.to_string())),
        Err(_) => Err(failed(NO_DNS.to_owned())),
    }
}

/// Whether the server answers a PING in plaintext: with PONG, or with an error.
async fn speaks_plaintext(addresses: &[SocketAddr]) -> bool {
    let mut byte = [0];
    let asked = async {
        let mut stream = connect_to_any(addresses).await?;
        stream.write_all(b"PING\r\n").await?;
        stream.read_exact(&mut byte).await
    };
    asked.await.is_ok() && matches!(byte, [b'+' | b'-'])
}

/// Connects to the first address that accepts, in the resolver's order, one attempt at a time.
async fn connect_to_any(addresses: &[SocketAddr]) -> io::Result<TcpStream> {
    let mut last_error = io::ErrorKind::AddrNotAvailable.into();
    for (index, address) in addresses.iter().enumerate() {
        let connected = if index + 1 < addresses.len() {
            timeout_at(
                Instant::now() + NEXT_ADDRESS_AFTER,
                TcpStream::connect(address),
            )
            .await
            .unwrap_or(Err(io::ErrorKind::TimedOut.into()))
        } else {
            TcpStream::connect(address).await
        };
        match connected {
            Ok(stream) => return Ok(stream),
            Err(error) => last_error = error,
        }
    }
    Err(last_error)
}

async fn connect_tcp(addresses: &[SocketAddr]) -> io::Result<TcpStream> {
    let stream = connect_to_any(addresses).await?;
    // A batch is one write, and then waits for its replies. Nagle's algorithm would only delay it.
    stream.set_nodelay(true)?;
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE)
        .with_interval(KEEPALIVE_INTERVAL);
    let socket = SockRef::from(&stream);
    socket.set_tcp_keepalive(&keepalive)?;
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(USER_TIMEOUT))?;
    Ok(stream)
}

/// Reads one byte without waiting. Pending means that there is none, and a count of 0 that the
/// server has closed the stream.
fn try_read_byte(stream: &mut TlsStream<TcpStream>) -> Poll<io::Result<usize>> {
    let mut byte = [0];
    let mut read = ReadBuf::new(&mut byte);
    let reading = poll_fn(|context| Pin::new(&mut *stream).poll_read(context, &mut read));
    // Tokio makes a task that used up its budget wait although there are bytes, which would hide
    // them here.
    let polled =
        pin!(tokio::task::unconstrained(reading)).poll(&mut Context::from_waker(Waker::noop()));
    polled.map_ok(|()| read.filled().len())
}

fn tls_error(error: &io::Error) -> Option<&rustls::Error> {
    error.get_ref()?.downcast_ref()
}

/// The name and the cause of an I/O error of a connection; an error that is not from TLS gets
/// `name`.
pub(crate) fn connect_error(name: &'static str, error: &io::Error) -> ConnectError {
    let Some(tls) = tls_error(error) else {
        return ConnectError {
            name,
            cause: Some(error.to_string()),
        };
    };
    let (name, cause) = match tls {
        rustls::Error::InvalidCertificate(certificate) => (
            error::TLS_CERTIFICATE,
            tls::certificate_hint(certificate, &REDIS),
        ),
        rustls::Error::AlertReceived(alert) => alert_error(*alert),
        rustls::Error::InvalidMessage(_) => (error::TLS, NOT_TLS.to_owned()),
        other => (error::TLS, other.to_string()),
    };
    ConnectError {
        name,
        cause: Some(cause),
    }
}

/// What an alert of the server means (RFC 8446, section 6.2), and the remedy.
fn alert_error(alert: AlertDescription) -> (&'static str, String) {
    match alert {
        AlertDescription::CertificateRequired => (
            error::TLS_CERTIFICATE,
            "Redis wants a client certificate: set REDIS_TLS_CLIENT_CERT and REDIS_TLS_CLIENT_KEY"
                .to_owned(),
        ),
        _ if tls::is_about_certificates(alert) => (
            error::TLS_CERTIFICATE,
            format!(
                "Redis refuses the client certificate ({alert:?}): check REDIS_TLS_CLIENT_CERT"
            ),
        ),
        _ => (
            error::TLS,
            format!(
                "Redis ends the TLS handshake ({alert:?}); it may want a client certificate \
                 (REDIS_TLS_CLIENT_CERT)"
            ),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tls_errors_have_their_own_names_and_other_errors_keep_theirs() {
        use rustls::{CertificateError, Error};
        let name = |tls: Error| {
            connect_error(
                error::CONNECT,
                &io::Error::new(io::ErrorKind::InvalidData, tls),
            )
            .name
        };
        let certificates = [
            Error::InvalidCertificate(CertificateError::UnknownIssuer),
            Error::InvalidCertificate(CertificateError::Expired),
            Error::InvalidCertificate(CertificateError::NotValidForName),
            Error::AlertReceived(AlertDescription::CertificateRequired),
            Error::AlertReceived(AlertDescription::UnknownCA),
        ];
        for error in certificates {
            assert_eq!(name(error.clone()), "tls_certificate", "{error}");
        }
        for error in [
            Error::AlertReceived(AlertDescription::HandshakeFailure),
            Error::DecryptError,
        ] {
            assert_eq!(name(error.clone()), "tls", "{error}");
        }
        let plain = connect_error(error::CONNECT, &io::ErrorKind::ConnectionRefused.into());
        assert_eq!(
            (plain.name, plain.cause.as_deref()),
            ("connect", Some("connection refused"))
        );
    }
}
