//! Where Redis is and how it is used: the defaults with their reasons, and the forms in which people write an address.
//!
//! Nothing here repeats a secret, neither when printed nor in an error.

use std::fmt;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use bb8_redis::redis::{ConnectionAddr, IntoConnectionInfo};

/// The port of a `redis://` address that names none.
const PORT: u16 = 6379;

/// How the store is built.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where Redis listens.
    pub topology: Topology,
    /// The user of Redis's access lists; `None` is its default user.
    pub username: Option<String>,
    /// The user's password; `None` when Redis asks for none.
    pub password: Option<Secret>,
    /// The number of the database.
    pub database: u32,
    /// Connections per core at most. Each carries one batch at a time, so this is also how many batches of a core wait for Redis at once;
    /// 10 as in envoyproxy/ratelimit.
    pub pool_size: NonZeroU32,
    /// For the way from looking up the name to the first reply. 250 ms is far above a round trip within a region and still lets Weir try
    /// again several times a second while something drops its packets.
    pub connect_timeout: Duration,
    /// Keys live for a random time of at most this many seconds (and at most one window) longer than their window needs, so that the keys
    /// of one window do not all expire at the same instant. 300 as in envoyproxy/ratelimit.
    pub expiry_jitter_secs: u32,
    /// Goes in front of the keys of probes, as of all others.
    pub key_prefix: String,
    /// Fixed windows go by script too, which counts nothing that comes too late.
    pub fixed_windows_by_script: bool,
}

/// How many servers there are, and how they are found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Topology {
    /// One.
    Single(Address),
    /// The primary that these Sentinels know by this name.
    Sentinel {
        /// The name.
        master: String,
        /// The Sentinels.
        sentinels: Vec<Address>,
    },
    /// A cluster, of which these nodes are known.
    Cluster(Vec<Address>),
}

impl fmt::Display for Topology {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |addresses: &[Address]| addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        match self {
            Self::Single(address) => address.fmt(out),
            Self::Sentinel { master, sentinels } => write!(out, "the primary {master} that the Sentinels at {} know", list(sentinels)),
            Self::Cluster(nodes) => write!(out, "the cluster around {}", list(nodes)),
        }
    }
}

/// Where Redis listens.
#[derive(Clone, Debug, PartialEq, Eq)]
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

/// A text that is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Keeps `text` from being printed.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    pub(super) fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("***")
    }
}

/// Why an address cannot be used, and how to write it. Never repeats what was written: it may hold a password.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// Nothing was written.
    #[error("the address of Redis is empty: write host:port, redis://[user:password@]host[:port][/database] or the path of a unix socket")]
    Empty,
    /// None of the known forms.
    #[error("this is no address of Redis: write host:port, redis://[user:password@]host[:port][/database] or the path of a unix socket")]
    Form,
    /// `host` or `host:` alone.
    #[error("the address of Redis has no port: write host:port, as in redis:6379, and an IPv6 address in brackets, as in [::1]:6379")]
    NoPort,
    /// The port is no number of a port.
    #[error("the port of Redis is no number from 1 to 65535: write host:port, as in redis:6379")]
    Port,
    /// An IPv6 address without brackets.
    #[error("write an IPv6 address in brackets, as in [::1]:6379")]
    Brackets,
    /// The database is no number.
    #[error("the database of Redis is no number: write redis://host:port/0")]
    Database,
    /// A user without a password.
    #[error("the address of Redis names a user but no password: write redis://user:password@host:port, or set REDIS_AUTH to user:password")]
    NoPassword,
    /// `rediss://`.
    #[error("TLS to Redis is not supported yet: write redis:// in place of rediss://")]
    Tls,
    /// A list of addresses.
    #[error("several addresses of Redis need Sentinel or Cluster, which are not supported yet: write one host:port")]
    Several,
    /// A socket type other than the two.
    #[error("the socket type of Redis is tcp or unix")]
    SocketType,
    /// The socket type says tcp, the address is a path.
    #[error("the address of Redis is a path but the socket type is tcp: set REDIS_SOCKET_TYPE to unix, or write host:port")]
    PathForTcp,
}

impl Options {
    /// Options for an address, with all defaults.
    #[must_use]
    pub fn new(address: Address) -> Self {
        Self {
            topology: Topology::Single(address),
            username: None,
            password: None,
            database: 0,
            pool_size: const { NonZeroU32::new(10).expect("10 is not 0") },
            connect_timeout: Duration::from_millis(250),
            expiry_jitter_secs: 300,
            key_prefix: String::new(),
            fixed_windows_by_script: false,
        }
    }

    /// The key of a probe. The number changes the slot of a cluster that it belongs to.
    pub(super) fn probe_key(&self, number: u32) -> Vec<u8> {
        format!("{}w1{{weir|probe={number}}}", self.key_prefix).into_bytes()
    }

    /// Reads an address in any form that envoyproxy/ratelimit takes: `host:port`, a path (it begins with `/`, or `socket_type` is `unix`),
    /// `redis://[[user][:password]@]host[:port][/database]` and `unix://path`. `auth` is `password` or `user:password` and goes before what
    /// the address says.
    ///
    /// # Errors
    /// What is wrong and how to write it, without repeating it.
    pub fn parse(url: &str, socket_type: Option<&str>, auth: Option<&str>) -> Result<Self, AddressError> {
        let url = url.trim();
        let is_unix = match socket_type.map(str::trim).filter(|text| !text.is_empty()) {
            None => None,
            Some(text) if text.eq_ignore_ascii_case("unix") => Some(true),
            Some(text) if text.eq_ignore_ascii_case("tcp") => Some(false),
            Some(_) => return Err(AddressError::SocketType),
        };
        let auth = auth.filter(|text| !text.is_empty());
        let mut options = match (url.split_once("://"), is_unix) {
            _ if url.is_empty() => return Err(AddressError::Empty),
            (Some((scheme, rest)), _) => with_scheme(scheme, rest, auth.is_some())?,
            (None, Some(true)) => Self::new(Address::Unix(url.into())),
            (None, Some(false)) if url.starts_with('/') => return Err(AddressError::PathForTcp),
            (None, None) if url.starts_with('/') => Self::new(Address::Unix(url.into())),
            (None, _) => Self::new(host_and_port(url)?),
        };
        if let Some(auth) = auth {
            let (username, password) = auth.split_once(':').map_or((None, auth), |(user, password)| (Some(user), password));
            options.username = username.filter(|user| !user.is_empty()).map(str::to_owned);
            options.password = Some(Secret::new(password));
        }
        Ok(options)
    }
}

fn with_scheme(scheme: &str, rest: &str, has_auth: bool) -> Result<Options, AddressError> {
    match scheme.to_ascii_lowercase().as_str() {
        "unix" if rest.starts_with('/') && !rest.contains(['?', '#']) => Ok(Options::new(Address::Unix(rest.into()))),
        "redis" => {
            if authority(rest).contains(',') {
                return Err(AddressError::Several);
            }
            // The redis crate undoes the escapes of user, password and path; the error it gives does not say which part is wrong.
            let info = format!("redis://{rest}").into_connection_info().map_err(|_| what_is_wrong(rest))?;
            let ConnectionAddr::Tcp(host, port) = info.addr() else { return Err(AddressError::Form) };
            let login = info.redis_settings();
            let mut options = Options::new(Address::Tcp { host: host.clone(), port: *port });
            options.username = login.username().filter(|user| !user.is_empty()).map(str::to_owned);
            options.password = login.password().map(Secret::new);
            options.database = u32::try_from(login.db()).map_err(|_| AddressError::Database)?;
            if options.username.is_some() && options.password.is_none() && !has_auth {
                return Err(AddressError::NoPassword);
            }
            Ok(options)
        }
        "rediss" | "valkeys" => Err(AddressError::Tls),
        _ => Err(AddressError::Form),
    }
}

/// `host:port` out of what follows the scheme.
fn authority(rest: &str) -> &str {
    let place = rest.split(['/', '?', '#']).next().unwrap_or_default();
    place.rsplit_once('@').map_or(place, |(_, place)| place)
}

fn what_is_wrong(rest: &str) -> AddressError {
    let place = authority(rest);
    if place.is_empty() {
        return AddressError::Form;
    }
    let with_port = if place.ends_with(']') || !place.contains(':') { format!("{place}:{PORT}") } else { place.to_owned() };
    host_and_port(&with_port).err().unwrap_or(AddressError::Database)
}

fn host_and_port(text: &str) -> Result<Address, AddressError> {
    if text.contains(',') {
        return Err(AddressError::Several);
    }
    if text.contains(['/', '@', '?', '#']) || text.contains(char::is_whitespace) {
        return Err(AddressError::Form);
    }
    let (host, port) = text.rsplit_once(':').ok_or(AddressError::NoPort)?;
    let host = match host.strip_prefix('[').map(|host| host.strip_suffix(']')) {
        Some(Some(host)) => host,
        Some(None) => return Err(AddressError::NoPort),
        None if host.contains(':') => return Err(AddressError::Brackets),
        None => host,
    };
    let port = match port.parse() {
        Ok(0) => return Err(AddressError::Port),
        Ok(port) => port,
        Err(_) if port.is_empty() => return Err(AddressError::NoPort),
        Err(_) => return Err(AddressError::Port),
    };
    if host.is_empty() {
        return Err(AddressError::Form);
    }
    Ok(Address::Tcp { host: host.to_owned(), port })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(host: &str, port: u16) -> Address {
        Address::Tcp { host: host.to_owned(), port }
    }

    #[test]
    fn the_forms_of_the_reference_are_read() {
        let unix = |path: &str| Address::Unix(path.into());
        let table = [
            ("redis:6379", None, tcp("redis", 6379)),
            ("redis:6379", Some("tcp"), tcp("redis", 6379)),
            (" 10.0.0.1:7000 ", Some("TCP"), tcp("10.0.0.1", 7000)),
            ("[::1]:6379", None, tcp("::1", 6379)),
            ("/run/redis.sock", None, unix("/run/redis.sock")),
            ("/run/redis.sock", Some(""), unix("/run/redis.sock")),
            ("redis.sock", Some("unix"), unix("redis.sock")),
            ("unix:///run/redis.sock", None, unix("/run/redis.sock")),
            ("redis://redis", None, tcp("redis", 6379)),
            ("REDIS://redis:1", Some("unix"), tcp("redis", 1)),
            ("redis://[::1]:7000", None, tcp("::1", 7000)),
            ("redis://[::1]", None, tcp("::1", 6379)),
        ];
        for (url, socket_type, expected) in table {
            let options = Options::parse(url, socket_type, None).unwrap_or_else(|error| panic!("{url}: {error}"));
            assert_eq!(options.topology, Topology::Single(expected), "{url}");
            assert_eq!((options.username, options.password, options.database), (None, None, 0), "{url}");
        }
    }

    #[test]
    fn logins_are_read_and_never_printed() {
        let table = [
            ("redis://u:p%40ss@h/3", None, (Some("u"), "p@ss", 3)),
            ("redis://:s3cret@h:1/", None, (None, "s3cret", 0)),
            ("h:1", Some("s3cret"), (None, "s3cret", 0)),
            ("h:1", Some("u:s3:cret"), (Some("u"), "s3:cret", 0)),
            ("redis://u:old@h/2", Some("s3cret"), (None, "s3cret", 2)),
            ("redis://u@h/2", Some("v:s3cret"), (Some("v"), "s3cret", 2)),
        ];
        for (url, auth, (username, password, database)) in table {
            let options = Options::parse(url, None, auth).unwrap_or_else(|error| panic!("{url}: {error}"));
            assert_eq!(options.username.as_deref(), username, "{url}");
            assert_eq!(options.password.as_ref().map(Secret::expose), Some(password), "{url}");
            assert_eq!(options.database, database, "{url}");
            assert!(!format!("{options:?}").contains(password), "{options:?}");
        }
    }

    #[test]
    fn mistakes_say_how_to_write_it_and_repeat_nothing() {
        let table = [
            ("", None, AddressError::Empty),
            ("redis", None, AddressError::NoPort),
            ("redis:", None, AddressError::NoPort),
            ("[::1]", None, AddressError::NoPort),
            ("redis:0", None, AddressError::Port),
            ("redis:65536", None, AddressError::Port),
            ("redis:s3cret", None, AddressError::Port),
            (":6379", None, AddressError::Form),
            ("::1:6379", None, AddressError::Brackets),
            ("a:1,b:2", None, AddressError::Several),
            ("redis://a:1,b:2", None, AddressError::Several),
            ("redis://u:s3cret@h:port", None, AddressError::Port),
            ("redis://u:s3cret@h/db", None, AddressError::Database),
            ("redis://u:s3cret@h/-1", None, AddressError::Database),
            ("redis://u@h", None, AddressError::NoPassword),
            ("redis://", None, AddressError::Form),
            ("rediss://u:s3cret@h", None, AddressError::Tls),
            ("http://u:s3cret@h", None, AddressError::Form),
            ("u:s3cret@h:1", None, AddressError::Form),
            ("redis:6379", Some("udp"), AddressError::SocketType),
            ("/run/redis.sock", Some("tcp"), AddressError::PathForTcp),
        ];
        for (url, socket_type, expected) in table {
            let error = Options::parse(url, socket_type, None).expect_err(url);
            assert_eq!(error, expected, "{url}");
            assert!(!error.to_string().contains("s3cret"), "{error}");
        }
    }
}
