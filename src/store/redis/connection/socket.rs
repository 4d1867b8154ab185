//! What carries the bytes to Redis and back: TCP, TLS over TCP, or a unix socket. Knows nothing of what they mean.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use rustls::pki_types::ServerName;
use rustls::{AlertDescription, CertificateError};
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpStream, UnixStream, lookup_host};
use tokio::time::{Duration, Instant, timeout_at};
use tokio_rustls::client::TlsStream;
use tokio_rustls::{TlsConnector, rustls};

use super::options::{Address, Tls};
use crate::store::redis::error::{self, ConnectError};

/// A peer that is gone without a word is noticed after about this long on a connection that nobody uses.
const KEEPALIVE: Duration = Duration::from_secs(10);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);

/// Of a name with several addresses, one that has not answered after this long is left for the next one.
const SILENT: Duration = Duration::from_millis(50);

/// And after this long on one where bytes wait to be acknowledged; no request waits as long.
#[cfg(target_os = "linux")]
const UNACKNOWLEDGED: Duration = Duration::from_secs(2);

/// How an answer begins with which TLS refuses what is not TLS.
pub(crate) const TLS_ALERT: [u8; 2] = [0x15, 0x03];

/// Hints for the log.
pub(crate) const SPEAKS_TLS: &str = "the port speaks TLS: set REDIS_TLS=true, or write rediss:// in REDIS_URL";
pub(crate) const MAY_SPEAK_TLS: &str = "if the port speaks TLS, set REDIS_TLS=true, or write rediss:// in REDIS_URL";
pub(crate) const MAY_WANT_A_CERTIFICATE: &str = "Redis may want another client certificate (REDIS_TLS_CLIENT_CERT)";
const NO_HANDSHAKE: &str = "there is a connection, but nothing answers the TLS handshake: the server hangs, or the port does not speak TLS";
const NOT_TLS: &str = "what comes back is not TLS: the port does not speak it; write another one, or switch TLS off";

#[derive(Debug)]
pub(crate) enum Socket {
    Tcp(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
    Unix(UnixStream),
    #[cfg(test)]
    Simulated(super::simulated::SimulatedStream),
}

impl Socket {
    /// Connects, and shakes hands if that is wanted. The caller ends what takes longer than `deadline`; it is needed here to say what took
    /// so long.
    pub(crate) async fn connect(address: &Address, tls: Option<&Tls>, deadline: Instant) -> Result<Self, ConnectError> {
        #[cfg(test)]
        if let Some(connecting) = super::simulated::connect() {
            return connecting.await.map(Self::Simulated).map_err(|cause| connect_error(error::CONNECT, &cause));
        }
        let (host, stream) = match address {
            Address::Unix(path) => {
                return UnixStream::connect(path).await.map(Self::Unix).map_err(|cause| connect_error(error::CONNECT, &cause));
            }
            Address::Tcp { host, port } => (host, tcp(host, *port).await.map_err(|cause| connect_error(error::CONNECT, &cause))?),
        };
        let Some(tls) = tls else { return Ok(Self::Tcp(stream)) };
        let no_name =
            |_| ConnectError { name: error::TLS, cause: Some("the host of REDIS_URL is no name that a certificate can be for".to_owned()) };
        let name = ServerName::try_from(host.clone()).map_err(no_name)?;
        match timeout_at(deadline, TlsConnector::from(tls.config()).connect(name, stream)).await {
            Ok(Ok(stream)) => Ok(Self::Tls(Box::new(stream))),
            Ok(Err(cause)) => Err(connect_error(error::CONNECT, &cause)),
            Err(_) => Err(ConnectError { name: error::CONNECT_TIMEOUT, cause: Some(NO_HANDSHAKE.to_owned()) }),
        }
    }

    pub(crate) fn is_tls(&self) -> bool {
        matches!(self, Self::Tls(_))
    }

    /// Sends some of it. What TLS takes may still be on its way until [`Socket::flush`].
    pub(crate) async fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(bytes).await,
            Self::Unix(stream) => stream.write(bytes).await,
            // A server that refuses our certificate says so after the handshake and hangs up; what it said tells more than a broken pipe.
            Self::Tls(stream) => match stream.write(bytes).await {
                Err(error) => match read_now(stream) {
                    Poll::Ready(Err(why)) if about_tls(&why).is_some() => Err(why),
                    _ => Err(error),
                },
                written => written,
            },
            #[cfg(test)]
            Self::Simulated(wire) => wire.write(bytes).await,
        }
    }

    pub(crate) async fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Tcp(_) | Self::Unix(_) => Ok(()),
            #[cfg(test)]
            Self::Simulated(_) => Ok(()),
            Self::Tls(stream) => stream.flush().await,
        }
    }

    pub(crate) async fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(bytes).await,
            Self::Unix(stream) => stream.read(bytes).await,
            Self::Tls(stream) => stream.read(bytes).await,
            #[cfg(test)]
            Self::Simulated(wire) => wire.read(bytes).await,
        }
    }

    /// Whether the other side has neither hung up nor said anything since the last reply. What TLS says on its own account, such as a
    /// ticket for the next session, is no reply.
    pub(crate) fn is_quiet(&mut self) -> bool {
        let is_empty = |read: io::Result<usize>| matches!(read, Err(error) if error.kind() == io::ErrorKind::WouldBlock);
        let mut byte = [0];
        match self {
            Self::Tcp(stream) => is_empty(stream.try_read(&mut byte)),
            Self::Unix(stream) => is_empty(stream.try_read(&mut byte)),
            Self::Tls(stream) => read_now(stream).is_pending(),
            #[cfg(test)]
            Self::Simulated(wire) => is_empty(wire.try_read(&mut byte)),
        }
    }
}

/// Connects to the first address of the name that answers; one that is silent is not waited for if there is another.
async fn connect_to_any(host: &str, port: u16) -> io::Result<TcpStream> {
    let addresses: Vec<_> = lookup_host((host, port)).await?.collect();
    let mut refused = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for (index, address) in addresses.iter().enumerate() {
        let connected = if index + 1 < addresses.len() {
            timeout_at(Instant::now() + SILENT, TcpStream::connect(address)).await.unwrap_or(Err(io::ErrorKind::TimedOut.into()))
        } else {
            TcpStream::connect(address).await
        };
        match connected {
            Ok(stream) => return Ok(stream),
            Err(error) => refused = error,
        }
    }
    Err(refused)
}

async fn tcp(host: &str, port: u16) -> io::Result<TcpStream> {
    let stream = connect_to_any(host, port).await?;
    // A batch is one write and waits for its reply: held-back packets would only cost time.
    stream.set_nodelay(true)?;
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE_INTERVAL);
    let socket = SockRef::from(&stream);
    socket.set_tcp_keepalive(&keepalive)?;
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(UNACKNOWLEDGED))?;
    Ok(stream)
}

/// Reads at most a byte if there is one, without waiting; 0 is the end.
fn read_now(stream: &mut TlsStream<TcpStream>) -> Poll<io::Result<usize>> {
    let mut byte = [0];
    let mut read = ReadBuf::new(&mut byte);
    let reading = poll_fn(|context| Pin::new(&mut *stream).poll_read(context, &mut read));
    // A task that has done much is told to wait although there are bytes; here that would hide them.
    let polled = pin!(tokio::task::unconstrained(reading)).poll(&mut Context::from_waker(Waker::noop()));
    polled.map_ok(|()| read.filled().len())
}

fn about_tls(error: &io::Error) -> Option<&rustls::Error> {
    error.get_ref()?.downcast_ref()
}

/// What an error on the way to a connection means; `name` is for those that are not about TLS.
pub(crate) fn connect_error(name: &'static str, error: &io::Error) -> ConnectError {
    let Some(tls) = about_tls(error) else { return ConnectError { name, cause: Some(error.to_string()) } };
    let (name, cause) = match tls {
        rustls::Error::InvalidCertificate(certificate) => (error::TLS_CERTIFICATE, distrusted(certificate)),
        rustls::Error::AlertReceived(alert) => refused(*alert),
        rustls::Error::InvalidMessage(_) => (error::TLS, NOT_TLS.to_owned()),
        other => (error::TLS, other.to_string()),
    };
    ConnectError { name, cause: Some(cause) }
}

/// Why we do not trust Redis.
fn distrusted(error: &CertificateError) -> String {
    match error {
        CertificateError::UnknownIssuer => {
            "the authority that signed Redis's certificate is unknown here: set REDIS_TLS_CACERT to its certificate".to_owned()
        }
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => format!("Redis's certificate has expired: {error}"),
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            format!("Redis's certificate is for another name than REDIS_URL: {error}")
        }
        _ => format!("Redis's certificate cannot be used: {error}"),
    }
}

/// Why Redis does not trust us.
fn refused(alert: AlertDescription) -> (&'static str, String) {
    use AlertDescription::{
        AccessDenied, BadCertificate, CertificateExpired, CertificateRequired, CertificateRevoked, CertificateUnknown, UnknownCA,
        UnsupportedCertificate,
    };
    match alert {
        CertificateRequired => (error::TLS_CERTIFICATE, "Redis wants a client certificate: set REDIS_TLS_CLIENT_CERT".to_owned()),
        AccessDenied
        | BadCertificate
        | CertificateExpired
        | CertificateRevoked
        | CertificateUnknown
        | UnknownCA
        | UnsupportedCertificate => {
            (error::TLS_CERTIFICATE, format!("Redis refuses the client certificate ({alert:?}): check REDIS_TLS_CLIENT_CERT"))
        }
        _ => (error::TLS, format!("Redis ends the TLS handshake ({alert:?}); it may want a client certificate (REDIS_TLS_CLIENT_CERT)")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_tls_have_names_and_the_others_keep_theirs() {
        use rustls::Error;
        let name = |tls: Error| connect_error(error::CONNECT, &io::Error::new(io::ErrorKind::InvalidData, tls)).name;
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
        for error in [Error::AlertReceived(AlertDescription::HandshakeFailure), Error::DecryptError] {
            assert_eq!(name(error.clone()), "tls", "{error}");
        }
        let plain = connect_error(error::CONNECT, &io::ErrorKind::ConnectionRefused.into());
        assert_eq!((plain.name, plain.cause.as_deref()), ("connect", Some("connection refused")));
    }
}
