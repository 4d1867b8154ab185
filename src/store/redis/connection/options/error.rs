//! What can be wrong with the settings of Redis, and how to write them.

/// What is wrong with the settings and how to write them. Never repeats what was written: it may hold a password.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OptionsError {
    /// None of the three topologies.
    #[error("Redis is `single`, `sentinel` or `cluster`")]
    Type,
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
    #[error("the address of Redis names a user but no password: write redis://user:password@host:port, or set a password beside it")]
    NoPassword,
    /// A list of addresses for one server.
    #[error("several addresses are several servers: write one host:port, or set the type to sentinel or cluster")]
    Several,
    /// A socket type other than the two.
    #[error("the socket type of Redis is tcp or unix")]
    SocketType,
    /// The socket type says tcp, the address is a path.
    #[error("the address of Redis is a path but the socket type is tcp: set the socket type to unix, or write host:port")]
    PathForTcp,
    /// No master, or no sentinel.
    #[error("write the name of the master, then the sentinels: mymaster,sentinel-1:26379,sentinel-2:26379")]
    Sentinels,
    /// A login where it is not clear for whom.
    #[error("sentinels and Redis have logins of their own: leave them out of the addresses and set the two passwords beside them")]
    SentinelLogin,
    /// Addresses of one Redis that say different things.
    #[error("the addresses of one Redis have to agree: the same user, password, database and scheme in all that name one")]
    Disagree,
    /// A cluster and a database.
    #[error("a Redis Cluster has no databases but 0: leave the number out")]
    ClusterDatabase,
    /// TLS over a unix socket.
    #[error("a unix socket does not speak TLS: write host:port, or switch TLS off")]
    UnixTls,
    /// A password and a file with a password; the end of the setting's name.
    #[error("there is a password beside the one in the file: set only one of the two")]
    TwoPasswords(&'static str),
    /// The end of the setting's name, and why the file gives no password.
    #[error("{1}; write the path of a file that holds only the password")]
    PasswordFile(&'static str, String),
    /// A whole sentence about a file of certificates.
    #[error("{0}")]
    Tls(String),
}

impl OptionsError {
    /// The end of the name of the setting that is wrong, behind `REDIS_` or `REDIS_PERSECOND_`; `None`: the text names it.
    #[must_use]
    pub fn setting(&self) -> Option<&'static str> {
        match self {
            Self::Type => Some("TYPE"),
            Self::SocketType => Some("SOCKET_TYPE"),
            Self::TwoPasswords(setting) | Self::PasswordFile(setting, _) => Some(setting),
            Self::UnixTls => Some("TLS"),
            Self::Tls(_) => None,
            _ => Some("URL"),
        }
    }
}
