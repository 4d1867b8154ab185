//! Errors of the settings of Redis, each with the remedy.

/// An invalid setting of Redis, with the remedy. The text never repeats the value of the setting,
/// which may hold a password.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OptionsError {
    /// The type is not one of the three.
    #[error("unknown type of Redis: write single, sentinel or cluster")]
    Type,
    /// The address is empty.
    #[error(
        "the address of Redis is empty: write host:port, \
         redis://[user:password@]host[:port][/database] or the path of a unix socket"
    )]
    Empty,
    /// The address has none of the forms that Weir supports.
    #[error(
        "invalid address of Redis: write host:port, redis://[user:password@]host[:port][/database] \
         or the path of a unix socket"
    )]
    Syntax,
    /// A character that ends the host, or a `%`, is in the user or the password.
    #[error(
        "the user or the password in the address of Redis has a character that means something \
         else there: percent-encode it, `/` as %2F, `?` as %3F, `#` as %23, `@` as %40 and `%` as \
         %25, or set the password in a setting of its own"
    )]
    Escapes,
    /// The address is `host` or `host:`.
    #[error(
        "the address of Redis has no port: write host:port, for example redis:6379, and an IPv6 \
         address in brackets, for example [::1]:6379"
    )]
    NoPort,
    /// The port is not a number, or out of range.
    #[error(
        "the port of Redis is not a number from 1 to 65535: write host:port, for example redis:6379"
    )]
    Port,
    /// An IPv6 address without brackets.
    #[error("the IPv6 address has no brackets: write it in brackets, for example [::1]:6379")]
    Brackets,
    /// The database is not a number, or negative.
    #[error("the database of Redis is not a number from 0: write redis://host:port/0")]
    Database,
    /// The address has a user but no password.
    #[error(
        "the address of Redis has a user but no password: write redis://user:password@host:port, \
         or set the password in a setting of its own"
    )]
    NoPassword,
    /// The setting of a single server is a list of addresses.
    #[error(
        "the address of a single Redis is a list: write one host:port, or set the type to sentinel \
         or cluster"
    )]
    UnexpectedList,
    /// The socket type is neither of the two.
    #[error("unknown socket type: write tcp or unix")]
    SocketType,
    /// The socket type is `tcp`, but the address is a path.
    #[error(
        "the address of Redis is a path but the socket type is tcp: set the socket type to unix, \
         or write host:port"
    )]
    PathForTcp,
    /// The name of the master or the addresses of the Sentinels are missing.
    #[error(
        "the master or its Sentinels are missing: write both, for example \
         mymaster,sentinel-1:26379,sentinel-2:26379"
    )]
    Sentinels,
    /// The address of a Sentinel has a login, which could be meant for the Sentinels or for Redis.
    #[error(
        "the address of a Sentinel holds a login: remove it, and set the password for Redis and \
         the one for the Sentinels in their own settings"
    )]
    SentinelLogin,
    /// The addresses of one deployment contradict each other.
    #[error(
        "the addresses of one Redis differ: write the same scheme, user, password and database in \
         every address that has a scheme"
    )]
    Inconsistent,
    /// The address of a cluster has a database.
    #[error("a Redis Cluster has only database 0: remove the database from the address")]
    ClusterDatabase,
    /// TLS is on for a unix socket.
    #[error("TLS does not work over a unix socket: write host:port, or switch TLS off")]
    UnixTls,
    /// Both a password and a password file are set. Holds the end of the name of the file's
    /// setting.
    #[error("a password is set besides this password file: set only one of the two")]
    TwoPasswords(&'static str),
    /// The password file cannot be used. Holds the end of the setting's name, and the reason.
    #[error("{1}; write the path of a file that holds only the password")]
    PasswordFile(&'static str, String),
    /// A file of certificates or keys cannot be used. Holds the whole message, which names the
    /// setting.
    #[error("{0}")]
    Tls(String),
}

impl OptionsError {
    /// The end of the name of the invalid setting, after `REDIS_` or `REDIS_PERSECOND_`; `None` if
    /// the message names the setting.
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
