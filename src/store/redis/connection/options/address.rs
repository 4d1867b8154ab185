//! The address of one server, and the forms in which settings write it.
//!
//! The forms are those of envoyproxy/ratelimit. An error never repeats the text of a setting, which
//! may hold a password.

use bb8_redis::redis::{ConnectionAddr, IntoConnectionInfo};

use super::error::OptionsError;
use super::login::Secret;
pub use crate::net::dial::Address;

/// The port of an address with a scheme and without a port.
const DEFAULT_PORT: u16 = 6379;

const LOCALHOST: &str = "localhost";

/// The scheme of an address, which selects TLS or plaintext.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Scheme {
    /// `rediss://` or `valkeys://`.
    Tls,
    /// `redis://` or `valkey://`.
    Plaintext,
    /// No scheme, or a unix socket.
    #[default]
    Unspecified,
}

/// What the text of an address holds besides it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Extras {
    pub(super) scheme: Scheme,
    pub(super) username: Option<String>,
    pub(super) password: Option<Secret>,
    pub(super) database: u32,
}

type Parsed = Result<(Address, Extras), OptionsError>;

/// Parses the address of a single server: `host:port`, a path (it begins with `/`, or `is_unix` is
/// true), or a URL.
pub(super) fn single(url: &str, is_unix: Option<bool>) -> Parsed {
    let address = match (url.split_once("://"), is_unix) {
        (Some((scheme, rest)), _) => return with_scheme(scheme, rest),
        (None, Some(true)) => Address::Unix(url.into()),
        (None, Some(false)) if url.starts_with('/') => return Err(OptionsError::PathForTcp),
        (None, None) if url.starts_with('/') => Address::Unix(url.into()),
        (None, _) => host_and_port(url)?,
    };
    Ok((address, Extras::default()))
}

/// Parses one address of a list: `host:port`, or a URL with a port.
pub(super) fn list_item(item: &str) -> Parsed {
    let parsed = match item.split_once("://") {
        Some((_, rest)) if !names_port(authority(rest)) && !has_unescaped_login(rest) => {
            return Err(OptionsError::NoPort);
        }
        Some((scheme, rest)) => with_scheme(scheme, rest)?,
        None => (host_and_port(item)?, Extras::default()),
    };
    match parsed {
        (Address::Unix(_), _) => Err(OptionsError::Syntax),
        parsed => Ok(parsed),
    }
}

fn with_scheme(scheme: &str, rest: &str) -> Parsed {
    let scheme = match scheme.to_ascii_lowercase().as_str() {
        "unix" if rest.starts_with('/') && !rest.contains(['?', '#']) => {
            return Ok((Address::Unix(rest.into()), Extras::default()));
        }
        "redis" | "valkey" => Scheme::Plaintext,
        "rediss" | "valkeys" => Scheme::Tls,
        _ => return Err(OptionsError::Syntax),
    };
    if has_unescaped_login(rest) {
        return Err(OptionsError::Escapes);
    }
    if authority(rest).contains(',') {
        return Err(OptionsError::UnexpectedList);
    }
    // No host is this machine, as in Go.
    let (login, host) = rest.split_at(rest.rfind('@').map_or(0, |at| at + 1));
    let here = if host.starts_with(':') { LOCALHOST } else { "" };
    // The redis crate decodes the escapes of user, password and path. Its error does not name the
    // invalid part.
    let info = format!("redis://{login}{here}{host}")
        .into_connection_info()
        .map_err(|_| invalid_part(rest))?;
    let ConnectionAddr::Tcp(host, port) = info.addr() else {
        return Err(OptionsError::Syntax);
    };
    let login = info.redis_settings();
    let (host, port) = (host.clone(), *port);
    let extras = Extras {
        scheme,
        username: login
            .username()
            .filter(|user| !user.is_empty())
            .map(str::to_owned),
        password: login.password().map(Secret::new),
        database: u32::try_from(login.db()).map_err(|_| OptionsError::Database)?,
    };
    Ok((Address::Tcp { host, port }, extras))
}

/// Whether a `/`, `?` or `#` is in the login of `rest`, the text after the scheme: there it ends the
/// host.
fn has_unescaped_login(rest: &str) -> bool {
    let (_, behind) = rest.split_once(['/', '?', '#']).unwrap_or_default();
    behind.contains('@')
}

/// `host:port` of `rest`, the text after the scheme.
fn authority(rest: &str) -> &str {
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    authority
        .rsplit_once('@')
        .map_or(authority, |(_, host_and_port)| host_and_port)
}

/// Whether `authority` has a port. An invalid port counts, so that the error is about the port.
fn names_port(authority: &str) -> bool {
    !authority.ends_with(']') && authority.contains(':')
}

/// The error of an address with a scheme that the redis crate refuses.
fn invalid_part(rest: &str) -> OptionsError {
    let authority = authority(rest);
    if authority.is_empty() {
        return OptionsError::Syntax;
    }
    let with_port = if names_port(authority) {
        authority.to_owned()
    } else {
        format!("{authority}:{DEFAULT_PORT}")
    };
    let login = rest.rsplit_once('@').unwrap_or_default().0;
    match host_and_port(&with_port) {
        Err(error) => error,
        Ok(_) if login.contains('%') => OptionsError::Escapes,
        Ok(_) => OptionsError::Database,
    }
}

fn host_and_port(text: &str) -> Result<Address, OptionsError> {
    if text.contains(',') {
        return Err(OptionsError::UnexpectedList);
    }
    if text.contains(['/', '@', '?', '#']) || text.contains(char::is_whitespace) {
        return Err(OptionsError::Syntax);
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
    // No host is this machine, as in Go.
    let host = if host.is_empty() { LOCALHOST } else { host }.to_owned();
    Ok(Address::Tcp { host, port })
}
