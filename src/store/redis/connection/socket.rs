//! The byte stream to Redis: TCP, TLS over TCP, or a unix socket.
//!
//! It opens the stream with `net::dial`, and maps errors to the names by which the store counts
//! them. It contains no commands and no replies.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use socket2::TcpKeepalive;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt, ReadBuf};
use tokio::time::{Duration, Instant, timeout_at};
use tokio_rustls::client::TlsStream;

use super::options::{Address, REDIS, Tls};
use crate::net::dial::{self, Dial, DialError, TcpOptions};
use crate::net::tls;
use crate::store::redis::error::{self, RedisFailure};

/// Options of TCP. The times are far above the default `STORE_TIMEOUT`: requests fail by their own
/// deadlines before the kernel closes the connection.
const TCP: TcpOptions = TcpOptions {
    next_address_after: Some(Duration::from_millis(50)),
    keepalive: Some(
        TcpKeepalive::new()
            .with_time(Duration::from_secs(10))
            .with_interval(Duration::from_secs(5)),
    ),
    user_timeout: Some(Duration::from_secs(2)),
};

/// Time beyond the deadline of a connection whose TLS handshake got no answer, to find out whether
/// the port speaks plaintext.
const PLAINTEXT_TEST: Duration = Duration::from_millis(100);

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

/// An open stream to Redis.
#[derive(Debug)]
pub(crate) enum Socket {
    Plain(dial::Socket),
    Tls(Box<TlsStream<dial::Socket>>),
    #[cfg(test)]
    Simulated(super::simulated::SimulatedStream),
}

impl Socket {
    /// Connects to `address`, and performs the TLS handshake if `tls` is given, by `deadline`. It
    /// takes [`PLAINTEXT_TEST`] longer only to find out why a TLS handshake got no answer.
    ///
    /// # Errors
    /// The name and the cause of the failure.
    pub(crate) async fn connect(
        address: &Address,
        tls: Option<&Tls>,
        deadline: Instant,
    ) -> Result<Self, RedisFailure> {
        #[cfg(test)]
        if let Some(connecting) = super::simulated::connect() {
            return match timeout_at(deadline, connecting).await {
                Ok(connected) => connected.map(Self::Simulated).map_err(DialError::Connect),
                Err(_) => Err(DialError::Timeout),
            }
            .map_err(dial_error);
        }
        let dial = Dial {
            address: address.clone(),
            tls: None,
            tcp: TCP,
        };
        let stream = dial.open(deadline).await.map_err(dial_error)?;
        let Some(tls) = tls else {
            return Ok(Self::Plain(stream));
        };
        match dial.secure(stream, &tls.config(), deadline).await {
            Ok(stream) => Ok(Self::Tls(Box::new(stream))),
            // Redis waits for the end of a line, which the first message of TLS does not have.
            Err(DialError::HandshakeTimeout)
                if speaks_plaintext(&dial, deadline + PLAINTEXT_TEST).await =>
            {
                let cause = format!("the port does not speak TLS: {}", REDIS.without_tls);
                Err(RedisFailure::because(error::TLS, cause))
            }
            Err(error) => Err(dial_error(error)),
        }
    }

    pub(crate) fn is_tls(&self) -> bool {
        matches!(self, Self::Tls(_))
    }

    /// Writes some of `bytes` and returns how many. TLS may buffer them until [`Socket::flush`].
    pub(crate) async fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.write(bytes).await,
            // With TLS 1.3 the client's handshake is complete before the server checks the client
            // certificate. A server that refuses it sends an alert and closes. The alert names the
            // reason, which a broken pipe does not.
            Self::Tls(stream) => match stream.write(bytes).await {
                Err(error) => match try_read_byte(stream) {
                    Poll::Ready(Err(alert)) if tls::hint(&alert, &REDIS).is_some() => Err(alert),
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
            Self::Plain(_) => Ok(()),
            #[cfg(test)]
            Self::Simulated(_) => Ok(()),
            Self::Tls(stream) => stream.flush().await,
        }
    }

    /// Reads into `bytes` and returns the count; 0 means that the server has closed the stream.
    pub(crate) async fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.read(bytes).await,
            Self::Tls(stream) => stream.read(bytes).await,
            #[cfg(test)]
            Self::Simulated(wire) => wire.read(bytes).await,
        }
    }

    /// Whether the server has neither closed the stream nor sent data since the last reply. Session
    /// tickets of TLS are not data (RFC 8446, section 4.6.1).
    pub(crate) fn is_quiet(&mut self) -> bool {
        match self {
            Self::Plain(stream) => try_read_byte(stream).is_pending(),
            Self::Tls(stream) => try_read_byte(stream).is_pending(),
            #[cfg(test)]
            Self::Simulated(wire) => wire.is_quiet(),
        }
    }
}

/// Whether the server answers a PING in plaintext by `deadline`: with PONG, or with an error.
async fn speaks_plaintext(dial: &Dial, deadline: Instant) -> bool {
    let mut byte = [0];
    let asked = async {
        let mut stream = dial.open(deadline).await.ok()?;
        stream.write_all(b"PING\r\n").await.ok()?;
        stream.read_exact(&mut byte).await.ok()
    };
    timeout_at(deadline, asked).await.is_ok() && matches!(byte, [b'+' | b'-'])
}

/// Reads one byte without waiting. Pending means that no byte has arrived, and a count of 0 that
/// the server has closed the stream.
fn try_read_byte(stream: &mut (impl AsyncRead + Unpin)) -> Poll<io::Result<usize>> {
    let mut byte = [0];
    let mut read = ReadBuf::new(&mut byte);
    let reading = poll_fn(|context| Pin::new(&mut *stream).poll_read(context, &mut read));
    // Tokio makes a task that used up its budget wait although there are bytes, which would hide
    // them here.
    let polled =
        pin!(tokio::task::unconstrained(reading)).poll(&mut Context::from_waker(Waker::noop()));
    polled.map_ok(|()| read.filled().len())
}

fn dial_error(error: DialError) -> RedisFailure {
    match error {
        DialError::Connect(cause) | DialError::Handshake(cause) => {
            connect_error(error::CONNECT, &cause)
        }
        DialError::Name { host, cause } => {
            RedisFailure::because(error::DNS, format!("{host}: {cause}"))
        }
        DialError::Timeout => RedisFailure::new(error::CONNECT_TIMEOUT),
        DialError::HandshakeTimeout => RedisFailure::because(error::CONNECT_TIMEOUT, NO_HANDSHAKE),
        DialError::CertificateName(_) => RedisFailure::because(error::TLS, error.explain(&REDIS)),
    }
}

/// The name and the cause of an I/O error of a connection; an error that is not from TLS gets
/// `name`.
pub(crate) fn connect_error(name: &'static str, error: &io::Error) -> RedisFailure {
    match tls::hint(error, &REDIS) {
        None => RedisFailure::because(name, error.to_string()),
        Some(hint) if hint.is_about_certificates => {
            RedisFailure::because(error::TLS_CERTIFICATE, hint.text)
        }
        Some(hint) => RedisFailure::because(error::TLS, hint.text),
    }
}

#[cfg(test)]
mod tests {
    use tokio_rustls::rustls::{self, AlertDescription};

    use super::*;

    #[test]
    fn tls_errors_have_their_own_names_and_other_errors_keep_theirs() {
        use rustls::{CertificateError, Error};
        let name = |tls: Error| {
            connect_error(
                error::CONNECT,
                &io::Error::new(io::ErrorKind::InvalidData, tls),
            )
            .error
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
            (plain.error, plain.cause.as_deref()),
            ("connect", Some("connection refused"))
        );
    }
}
