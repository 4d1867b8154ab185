//! Where one server listens, and the forms in which people write that.
//!
//! Nothing here repeats what was written: it may hold a password.

use std::fmt;
use std::path::PathBuf;

use bb8_redis::redis::{ConnectionAddr, IntoConnectionInfo};

use super::error::OptionsError;
use super::login::Secret;

/// The port of a `redis://` address that names none.
const PORT: u16 = 6379;

/// Where Redis listens.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// A host name or IP address, and a port.
    Tcp {
        /// Without the brackets of an IPv6 address.
        host: String,
        /// Its port.
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

/// Whether an address asks for TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scheme {
    /// `rediss://`.
    Tls,
    /// `redis://`.
    Plaintext,
    /// No scheme.
    Unspecified,
}

/// All that one address says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ParsedAddress {
    pub(super) address: Address,
    pub(super) scheme: Scheme,
    pub(super) username: Option<String>,
    pub(super) password: Option<Secret>,
    pub(super) database: u32,
}

impl ParsedAddress {
    fn new(address: Address) -> Self {
        Self { address, scheme: Scheme::Unspecified, username: None, password: None, database: 0 }
    }

    /// One server: `host:port`, a path (it begins with `/`, or the socket type says so), or an address with a scheme.
    pub(super) fn of_one(url: &str, is_unix: Option<bool>) -> Result<Self, OptionsError> {
        match (url.split_once("://"), is_unix) {
            (Some((scheme, rest)), _) => with_scheme(scheme, rest),
            (None, Some(true)) => Ok(Self::new(Address::Unix(url.into()))),
            (None, Some(false)) if url.starts_with('/') => Err(OptionsError::PathForTcp),
            (None, None) if url.starts_with('/') => Ok(Self::new(Address::Unix(url.into()))),
            (None, _) => host_and_port(url).map(Self::new),
        }
    }

    /// One server of several: `host:port`, or an address with a scheme that names its port.
    pub(super) fn of_many(item: &str) -> Result<Self, OptionsError> {
        let place = match item.split_once("://") {
            Some((_, rest)) if !names_port(authority(rest)) => return Err(OptionsError::NoPort),
            Some((scheme, rest)) => with_scheme(scheme, rest)?,
            None => Self::new(host_and_port(item)?),
        };
        if matches!(place.address, Address::Unix(_)) { Err(OptionsError::Form) } else { Ok(place) }
    }
}

fn with_scheme(scheme: &str, rest: &str) -> Result<ParsedAddress, OptionsError> {
    let scheme = match scheme.to_ascii_lowercase().as_str() {
        "unix" if rest.starts_with('/') && !rest.contains(['?', '#']) => return Ok(ParsedAddress::new(Address::Unix(rest.into()))),
        "redis" | "valkey" => Scheme::Plaintext,
        "rediss" | "valkeys" => Scheme::Tls,
        _ => return Err(OptionsError::Form),
    };
    if authority(rest).contains(',') {
        return Err(OptionsError::Several);
    }
    // The redis crate undoes the escapes of user, password and path; the error it gives does not say which part is wrong.
    let info = format!("redis://{rest}").into_connection_info().map_err(|_| what_is_wrong(rest))?;
    let ConnectionAddr::Tcp(host, port) = info.addr() else { return Err(OptionsError::Form) };
    let login = info.redis_settings();
    Ok(ParsedAddress {
        address: Address::Tcp { host: host.clone(), port: *port },
        scheme,
        username: login.username().filter(|user| !user.is_empty()).map(str::to_owned),
        password: login.password().map(Secret::new),
        database: u32::try_from(login.db()).map_err(|_| OptionsError::Database)?,
    })
}

/// `host:port` out of what follows the scheme.
fn authority(rest: &str) -> &str {
    let place = rest.split(['/', '?', '#']).next().unwrap_or_default();
    place.rsplit_once('@').map_or(place, |(_, place)| place)
}

/// Also where that is no number, so that what is wrong is said about the port.
fn names_port(authority: &str) -> bool {
    !authority.ends_with(']') && authority.contains(':')
}

fn what_is_wrong(rest: &str) -> OptionsError {
    let place = authority(rest);
    if place.is_empty() {
        return OptionsError::Form;
    }
    let with_port = if names_port(place) { place.to_owned() } else { format!("{place}:{PORT}") };
    host_and_port(&with_port).err().unwrap_or(OptionsError::Database)
}

fn host_and_port(text: &str) -> Result<Address, OptionsError> {
    if text.contains(',') {
        return Err(OptionsError::Several);
    }
    if text.contains(['/', '@', '?', '#']) || text.contains(char::is_whitespace) {
        return Err(OptionsError::Form);
    }
    let (host, port) = text.rsplit_once(':').ok_or(OptionsError::NoPort)?;
    let host = match host.strip_prefix('[').map(|host| host.strip_suffix(']')) {
        Some(Some(host)) => host,
        Some(None) => return Err(OptionsError::NoPort),
        None if host.contains(':') => return Err(OptionsError::Brackets),
        None => host,
    };
    let port = match port.parse() {
        Ok(0) => return Err(OptionsError::Port),
        Ok(port) => port,
        Err(_) if port.is_empty() => return Err(OptionsError::NoPort),
        Err(_) => return Err(OptionsError::Port),
    };
    if host.is_empty() {
        return Err(OptionsError::Form);
    }
    Ok(Address::Tcp { host: host.to_owned(), port })
}
