//! The options of the Redis store: addresses, logins, TLS and sizes, with the reasons of their
//! defaults.
//!
//! [`RawOptions`] are the settings as text, and [`Options::parse`] makes [`Options`] of them: the
//! store never meets an invalid address. The forms are the forms of envoyproxy/ratelimit. No output
//! of this module, `Debug` and errors included, may hold a secret.

mod error;
mod login;
mod tls;

use std::fmt;
use std::num::NonZeroU32;
use std::time::Duration;

use bb8_redis::redis::{ConnectionAddr, IntoConnectionInfo};

pub use self::error::OptionsError;
pub use self::login::{Login, Password, Secret};
pub(crate) use self::tls::REDIS;
pub use self::tls::{NameCheck, Tls, TlsError, TlsFiles};
pub use crate::net::dial::Address;

/// The options of the Redis store.
#[derive(Clone, Debug)]
pub struct Options {
    /// The servers.
    pub topology: Topology,
    /// The login to Redis.
    pub login: Login,
    /// The login to the Sentinels, which have users and passwords of their own.
    pub sentinel_login: Login,
    /// The number of the database (command SELECT). A cluster has only 0.
    pub database: u32,
    /// The TLS configuration of all connections; `None`: connections are not encrypted.
    pub tls: Option<Tls>,
    /// The largest number of connections per worker thread and server. A connection carries one
    /// batch at a time, so this is also the largest number of batches that a thread has in flight
    /// to a server. 10 as in envoyproxy/ratelimit.
    pub pool_size: NonZeroU32,
    /// The time from the lookup of the host name to the end of the handshake. 250 ms is far above a
    /// round trip within a region. It still allows several attempts per second while packets are
    /// lost.
    pub connect_timeout: Duration,
    /// The largest random time in seconds, but at most one window, that keys live beyond their
    /// window. Without it, the keys of one window would all expire at the same instant. 300 as in
    /// envoyproxy/ratelimit.
    pub expiry_jitter_secs: u32,
    /// The prefix of all keys, here for the keys of probes.
    pub key_prefix: String,
    /// Whether fixed windows are counted by script instead of INCRBY. A script that reaches Redis
    /// after its deadline counts nothing, but costs Redis more CPU. Off by default.
    pub fixed_windows_by_script: bool,
}

/// The kind of a Redis deployment, and its servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Topology {
    /// One server.
    Single(Address),
    /// One primary at a time, which the Sentinels name.
    Sentinel {
        /// The name of the primary in the Sentinels' configuration (`sentinel monitor`).
        master: String,
        /// The addresses of the Sentinels; at least one.
        sentinels: Vec<Address>,
    },
    /// The addresses of some nodes of a Redis Cluster, at least one. Weir queries them for all
    /// other nodes.
    Cluster(Vec<Address>),
}

impl fmt::Display for Topology {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |list: &[Address]| {
            let list: Vec<_> = list.iter().map(ToString::to_string).collect();
            list.join(", ")
        };
        match self {
            Self::Single(address) => address.fmt(out),
            Self::Sentinel { master, sentinels } => {
                write!(out, "{master}, known to {}", list(sentinels))
            }
            Self::Cluster(nodes) => out.write_str(&list(nodes)),
        }
    }
}

/// The settings of one Redis deployment, as text. An empty text is a setting that is not set.
#[derive(Clone, Copy, Default)]
pub struct RawOptions<'a> {
    /// `single` (or nothing), `sentinel` or `cluster`.
    pub kind: &'a str,
    /// `host:port`, a path, or `redis://` or `rediss://[[user][:password]@]host[:port][/database]`.
    /// For Sentinel, the name of the master and the addresses of Sentinels, separated by commas.
    /// For Cluster, the addresses of some nodes, separated by commas.
    pub url: &'a str,
    /// `tcp` or `unix`; used for a single server only.
    pub socket_type: &'a str,
    /// `password` or `user:password`; takes precedence over the login in the address.
    pub auth: &'a str,
    /// The path of a file with the password. The user is from `auth` (`user:`), else from the
    /// address.
    pub auth_file: &'a str,
    /// As `auth`, for the Sentinels.
    pub sentinel_auth: &'a str,
    /// As `auth_file`, for the Sentinels.
    pub sentinel_auth_file: &'a str,
    /// Whether to use TLS although no address has the scheme `rediss`.
    pub tls: bool,
}

impl Options {
    /// Options for one server, with all defaults.
    pub fn new(address: Address) -> Self {
        Self::with_topology(Topology::Single(address))
    }

    fn with_topology(topology: Topology) -> Self {
        Self {
            topology,
            login: Login::default(),
            sentinel_login: Login::default(),
            database: 0,
            tls: None,
            pool_size: const { NonZeroU32::new(10).expect("10 is not 0") },
            connect_timeout: Duration::from_millis(250),
            expiry_jitter_secs: 300,
            key_prefix: String::new(),
            fixed_windows_by_script: false,
        }
    }

    /// The key of a probe. `number` is part of its hash tag, because a probe needs a key in any
    /// hash slot of a cluster.
    pub(crate) fn probe_key(&self, number: u32) -> Vec<u8> {
        format!("{}w1{{weir|probe={number}}}", self.key_prefix).into_bytes()
    }

    /// The key of a marker, as [`Self::probe_key`].
    pub(crate) fn marker_key(&self, number: u32) -> Vec<u8> {
        format!("{}w1{{weir|marker={number}}}", self.key_prefix).into_bytes()
    }

    /// Parses settings in any form that envoyproxy/ratelimit accepts, and reads the files that they
    /// name.
    ///
    /// # Errors
    /// The first invalid setting, with the remedy and without its value.
    pub fn parse(raw: &RawOptions<'_>, files: &TlsFiles) -> Result<Self, OptionsError> {
        let is_unix = match raw.socket_type.trim().to_ascii_lowercase().as_str() {
            "" => None,
            "unix" => Some(true),
            // Go dials tcp4 and tcp6 too.
            "tcp" | "tcp4" | "tcp6" => Some(false),
            _ => return Err(OptionsError::SocketType),
        };
        let url = raw.url.trim();
        let (topology, extras) = match raw.kind.trim().to_ascii_lowercase().as_str() {
            "" | "single" | "sentinel" | "cluster" if url.is_empty() => {
                return Err(OptionsError::Empty);
            }
            "" | "single" => {
                let (address, extras) = single(url, is_unix)?;
                (Topology::Single(address), extras)
            }
            "sentinel" => parse_sentinel(url)?,
            "cluster" => parse_cluster(url)?,
            _ => return Err(OptionsError::Type),
        };
        let tls = if extras.scheme == Scheme::Tls || raw.tls {
            if matches!(topology, Topology::Single(Address::Unix(_))) {
                return Err(OptionsError::UnixTls);
            }
            Some(Tls::read(files.clone()).map_err(|error| OptionsError::Tls(error.to_string()))?)
        } else {
            None
        };
        let (username, password) = (extras.username, extras.password);
        let file = ("AUTH_FILE", raw.auth_file);
        let sentinel_file = ("SENTINEL_AUTH_FILE", raw.sentinel_auth_file);
        Ok(Self {
            login: parse_login(raw.auth, file, username, password)?,
            sentinel_login: match topology {
                Topology::Sentinel { .. } => {
                    parse_login(raw.sentinel_auth, sentinel_file, None, None)?
                }
                _ => Login::default(),
            },
            database: extras.database,
            tls,
            ..Self::with_topology(topology)
        })
    }
}

fn parse_sentinel(url: &str) -> Result<(Topology, Extras), OptionsError> {
    let (master, rest) = url.split_once(',').ok_or(OptionsError::Sentinels)?;
    let master = master.trim();
    // Sentinel accepts these characters in a name. Others mean that the name is missing and that
    // this is an address.
    let is_in_name = |c: char| c.is_ascii_alphanumeric() || ".-_".contains(c);
    let is_name = !master.is_empty() && master.chars().all(is_in_name);
    if !is_name || rest.trim().is_empty() {
        return Err(OptionsError::Sentinels);
    }
    let (sentinels, extras) = parse_list(rest)?;
    if extras.username.is_some() || extras.password.is_some() {
        return Err(OptionsError::SentinelLogin);
    }
    let master = master.to_owned();
    Ok((Topology::Sentinel { master, sentinels }, extras))
}

fn parse_cluster(url: &str) -> Result<(Topology, Extras), OptionsError> {
    let (nodes, extras) = parse_list(url)?;
    if extras.database != 0 {
        return Err(OptionsError::ClusterDatabase);
    }
    Ok((Topology::Cluster(nodes), extras))
}

/// Parses addresses separated by commas. Those with a scheme have to agree in all but the address;
/// the others follow them.
fn parse_list(list: &str) -> Result<(Vec<Address>, Extras), OptionsError> {
    let items = list.split(',').map(|item| list_item(item.trim()));
    let (addresses, extras): (Vec<_>, Vec<_>) = items.collect::<Result<_, _>>()?;
    let mut with_scheme = extras
        .into_iter()
        .filter(|extras| extras.scheme != Scheme::Unspecified);
    let agreed = with_scheme.next().unwrap_or_default();
    if with_scheme.any(|other| other != agreed) {
        return Err(OptionsError::Inconsistent);
    }
    Ok((addresses, agreed))
}

/// The login of `user:password` or a password, or of a file with the name of its setting, and of
/// the login in the address.
fn parse_login(
    auth: &str,
    (setting, file): (&'static str, &str),
    username: Option<String>,
    password: Option<Secret>,
) -> Result<Login, OptionsError> {
    let (user, text) = auth.split_once(':').unwrap_or(("", auth));
    let user = Some(user.to_owned()).filter(|user| !user.is_empty());
    let new_login = |username, password| Login { username, password };
    if !file.is_empty() {
        if !text.is_empty() || password.is_some() {
            return Err(OptionsError::TwoPasswords(setting));
        }
        login::read_file(file.as_ref())
            .map_err(|error| OptionsError::PasswordFile(setting, error))?;
        let password = Password::File(file.into());
        return Ok(new_login(user.or(username), Some(password)));
    }
    if !auth.is_empty() {
        // `auth` replaces the password in the address together with its user. A user alone in
        // the address is kept.
        let username = user.or(username.filter(|_| password.is_none()));
        return Ok(new_login(username, Some(Password::Text(Secret::new(text)))));
    }
    if username.is_some() && password.is_none() {
        return Err(OptionsError::NoPassword);
    }
    Ok(new_login(username, password.map(Password::Text)))
}

/// The port of an address with a scheme and without a port.
const DEFAULT_PORT: u16 = 6379;

const LOCALHOST: &str = "localhost";

/// The scheme of an address, which selects TLS or plaintext.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Scheme {
    /// `rediss://` or `valkeys://`.
    Tls,
    /// `redis://` or `valkey://`.
    Plaintext,
    /// No scheme, or a unix socket.
    #[default]
    Unspecified,
}

/// Parts of an address's text other than the address.
#[derive(Debug, Default, PartialEq, Eq)]
struct Extras {
    scheme: Scheme,
    username: Option<String>,
    password: Option<Secret>,
    database: u32,
}

type Parsed = Result<(Address, Extras), OptionsError>;

/// Parses the address of a single server: `host:port`, a path (it begins with `/`, or `is_unix` is
/// true), or a URL.
fn single(url: &str, is_unix: Option<bool>) -> Parsed {
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
fn list_item(item: &str) -> Parsed {
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
    let username = login.username().filter(|user| !user.is_empty());
    let (host, port) = (host.clone(), *port);
    let extras = Extras {
        scheme,
        username: username.map(str::to_owned),
        password: login.password().map(Secret::new),
        database: u32::try_from(login.db()).map_err(|_| OptionsError::Database)?,
    };
    Ok((Address::Tcp { host, port }, extras))
}

/// Whether a `/`, `?` or `#` is in the login of `rest`, the text after the scheme: there it ends
/// the host.
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

/// Whether `authority` has a port. An invalid port counts, because the error should be about the
/// port.
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

#[cfg(test)]
mod tests;
