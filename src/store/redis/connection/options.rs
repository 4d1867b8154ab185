//! Where Redis is and how it is used: the defaults with their reasons, and the forms in which people write it.
//!
//! Nothing here repeats a secret, neither when printed nor in an error.

mod address;
mod error;
mod login;
mod tls;

use std::fmt;
use std::num::NonZeroU32;
use std::time::Duration;

pub use self::address::Address;
use self::address::{ParsedAddress, Scheme};
pub use self::error::OptionsError;
pub use self::login::{Login, Password, PasswordFileError, Secret};
pub use self::tls::{NameCheck, Tls, TlsError, TlsFiles};

/// How the store is built.
#[derive(Clone, Debug)]
pub struct Options {
    /// Which servers there are.
    pub topology: Topology,
    /// Who logs in to Redis.
    pub login: Login,
    /// Who logs in to the sentinels, which have users of their own.
    pub sentinel_login: Login,
    /// The number of the database; a cluster has only 0.
    pub database: u32,
    /// `None`: nothing is encrypted.
    pub tls: Option<Tls>,
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
    /// Fixed windows go by script too, which counts nothing when it comes too late. Costs Redis more, so it is off.
    pub fixed_windows_by_script: bool,
}

/// Which servers there are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Topology {
    /// One.
    Single(Address),
    /// One primary at a time; the sentinels know which.
    Sentinel {
        /// What they call it.
        master: String,
        /// Where they listen; at least one.
        sentinels: Vec<Address>,
    },
    /// Several that share the keys. Some of their addresses, at least one, lead to all of them.
    Cluster(Vec<Address>),
}

impl fmt::Display for Topology {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |list: &[Address]| list.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        match self {
            Self::Single(address) => address.fmt(out),
            Self::Sentinel { master, sentinels } => write!(out, "{master}, known to {}", list(sentinels)),
            Self::Cluster(nodes) => out.write_str(&list(nodes)),
        }
    }
}

/// Where Redis is, as settings write it; an empty text is a setting that is not set.
#[derive(Clone, Copy, Default)]
pub struct RawOptions<'a> {
    /// `single` (or nothing), `sentinel` or `cluster`.
    pub kind: &'a str,
    /// `host:port`, a path, or `redis://` or `rediss://[[user][:password]@]host[:port][/database]`; for Sentinel the master's name and the
    /// sentinels, for Cluster some nodes, with commas between them.
    pub url: &'a str,
    /// `tcp` or `unix`; for a single server only.
    pub socket_type: &'a str,
    /// `password` or `user:password`; goes before what the address says.
    pub auth: &'a str,
    /// The path of a file with the password; the user is that of `auth` (`user:`) or of the address.
    pub auth_file: &'a str,
    /// As `auth`, for sentinels.
    pub sentinel_auth: &'a str,
    /// As `auth_file`, for sentinels.
    pub sentinel_auth_file: &'a str,
    /// TLS although the address does not ask for it.
    pub tls: bool,
}

/// What addresses say together.
struct ParsedTopology {
    topology: Topology,
    scheme: Scheme,
    username: Option<String>,
    password: Option<Secret>,
    database: u32,
}

impl Options {
    /// Options for one server, with all defaults.
    #[must_use]
    pub fn new(address: Address) -> Self {
        Self::of(Topology::Single(address))
    }

    fn of(topology: Topology) -> Self {
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

    /// The key of a probe. The number changes the slot of a cluster that it belongs to.
    pub(crate) fn probe_key(&self, number: u32) -> Vec<u8> {
        format!("{}w1{{weir|probe={number}}}", self.key_prefix).into_bytes()
    }

    /// Reads the settings in any form that envoyproxy/ratelimit takes, and the files that they name.
    ///
    /// # Errors
    /// What is wrong and how to write it, without repeating it.
    pub fn parse(written: &RawOptions<'_>, files: &TlsFiles) -> Result<Self, OptionsError> {
        let is_unix = match written.socket_type.trim() {
            "" => None,
            text if text.eq_ignore_ascii_case("unix") => Some(true),
            text if text.eq_ignore_ascii_case("tcp") => Some(false),
            _ => return Err(OptionsError::SocketType),
        };
        let url = written.url.trim();
        let found = match written.kind.trim().to_ascii_lowercase().as_str() {
            "" | "single" | "sentinel" | "cluster" if url.is_empty() => return Err(OptionsError::Empty),
            "" | "single" => single(url, is_unix)?,
            "sentinel" => sentinel(url)?,
            "cluster" => cluster(url)?,
            _ => return Err(OptionsError::Type),
        };
        let tls = if found.scheme == Scheme::Tls || written.tls {
            if matches!(found.topology, Topology::Single(Address::Unix(_))) {
                return Err(OptionsError::UnixTls);
            }
            Some(Tls::read(files.clone()).map_err(|error| OptionsError::Tls(error.to_string()))?)
        } else {
            None
        };
        let ParsedTopology { topology, username, password, database, .. } = found;
        let nobody = Login::default();
        Ok(Self {
            login: login(("AUTH_FILE", written.auth, written.auth_file), username, password)?,
            sentinel_login: match topology {
                Topology::Sentinel { .. } => login(("SENTINEL_AUTH_FILE", written.sentinel_auth, written.sentinel_auth_file), None, None)?,
                _ => nobody,
            },
            database,
            tls,
            ..Self::of(topology)
        })
    }
}

fn single(url: &str, is_unix: Option<bool>) -> Result<ParsedTopology, OptionsError> {
    let ParsedAddress { address, scheme, username, password, database } = ParsedAddress::of_one(url, is_unix)?;
    Ok(ParsedTopology { topology: Topology::Single(address), scheme, username, password, database })
}

fn sentinel(url: &str) -> Result<ParsedTopology, OptionsError> {
    let (master, rest) = url.split_once(',').ok_or(OptionsError::Sentinels)?;
    let master = master.trim();
    // These are the characters that a sentinel takes in a name; others are a sign that the name was left out.
    let is_name = !master.is_empty() && master.chars().all(|c| c.is_ascii_alphanumeric() || ".-_".contains(c));
    if !is_name || rest.trim().is_empty() {
        return Err(OptionsError::Sentinels);
    }
    let found = several(rest)?;
    if found.username.is_some() || found.password.is_some() {
        return Err(OptionsError::SentinelLogin);
    }
    let Topology::Cluster(sentinels) = found.topology else { return Err(OptionsError::Sentinels) };
    Ok(ParsedTopology { topology: Topology::Sentinel { master: master.to_owned(), sentinels }, ..found })
}

fn cluster(url: &str) -> Result<ParsedTopology, OptionsError> {
    let found = several(url)?;
    if found.database == 0 { Ok(found) } else { Err(OptionsError::ClusterDatabase) }
}

/// A list of servers, of which some say more than where they listen.
fn several(list: &str) -> Result<ParsedTopology, OptionsError> {
    let places = list.split(',').map(|item| ParsedAddress::of_many(item.trim())).collect::<Result<Vec<_>, _>>()?;
    let mut schemes = places.iter().filter(|place| place.scheme != Scheme::Unspecified);
    let first = schemes.next();
    let agrees =
        |place: &ParsedAddress| first.is_some_and(|first| *place == ParsedAddress { address: place.address.clone(), ..first.clone() });
    if !schemes.all(agrees) {
        return Err(OptionsError::Disagree);
    }
    let (username, password) = first.map(|place| (place.username.clone(), place.password.clone())).unwrap_or_default();
    let (scheme, database) = first.map_or((Scheme::Unspecified, 0), |place| (place.scheme, place.database));
    let nodes = places.into_iter().map(|place| place.address).collect();
    Ok(ParsedTopology { topology: Topology::Cluster(nodes), scheme, username, password, database })
}

/// `auth` and `file` go before what the address says; `setting` is the name of the one for the file.
fn login(
    (setting, auth, file): (&'static str, &str, &str),
    username: Option<String>,
    password: Option<Secret>,
) -> Result<Login, OptionsError> {
    let (user, text) = auth.split_once(':').map_or(("", auth), |(user, text)| (user, text));
    let user = Some(user.to_owned()).filter(|user| !user.is_empty());
    if !file.is_empty() {
        if !text.is_empty() || password.is_some() {
            return Err(OptionsError::TwoPasswords(setting));
        }
        let login = Login { username: user.or(username), password: Some(Password::File(file.into())) };
        return match login.check() {
            Ok(()) => Ok(login),
            Err(error) => Err(OptionsError::PasswordFile(setting, error.to_string())),
        };
    }
    if !auth.is_empty() {
        // The user of an address that has a password goes with that password.
        let username = user.or(if password.is_none() { username } else { None });
        return Ok(Login { username, password: Some(Password::Text(Secret::new(text))) });
    }
    if username.is_some() && password.is_none() {
        return Err(OptionsError::NoPassword);
    }
    Ok(Login { username, password: password.map(Password::Text) })
}

#[cfg(test)]
mod tests;
