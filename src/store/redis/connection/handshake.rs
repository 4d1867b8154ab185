//! The handshake of a connection: it connects, then logs in, selects the database and checks the
//! server in one round trip.
//!
//! It exists because every connection of a lane has to be able to count, and because a failed
//! attempt should name its cause. It sends no HELLO: a connection without it speaks RESP2
//! (redis.io, command HELLO). An error never repeats a password or a text of the server, which may
//! quote one.

use bb8_redis::redis::Value;
use tokio::time::{Instant, timeout_at};

use super::Connection;
use super::options::{Address, Login, Options, Password, Secret, Tls};
use super::socket::{self, Socket};
use crate::core::time::Micros;
use crate::core::verdict::StoreError;
use crate::store::redis::error::{self, RedisFailure};
use crate::store::redis::wire::commands::CommandBuffer;
use crate::store::redis::wire::replies::time_of;

/// Purpose of a connection, which decides the commands of its handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// To count. The server has to support transactions.
    Count,
    /// To count, on a server that has to report the role of a primary.
    CountOnPrimary,
    /// To query a cluster node for the slots of all nodes.
    QueryCluster,
    /// To query a Sentinel for the primary, with the Sentinels' login.
    QuerySentinel,
    /// To inspect a server that may not be able to count. The handshake logs in, selects the
    /// database, and checks nothing else.
    Inspect,
}

impl Purpose {
    fn counts(self) -> bool {
        matches!(self, Self::Count | Self::CountOnPrimary)
    }

    fn login(self, options: &Options) -> &Login {
        if self == Self::QuerySentinel {
            &options.sentinel_login
        } else {
            &options.login
        }
    }
}

/// Connects to `address` and performs the handshake, within `options.connect_timeout`; a little
/// longer only to find out why TLS fails. Returns the connection with the Unix time of the server's
/// clock, from TIME; 0 if the purpose is not to count.
///
/// # Errors
/// The name of the error, and its cause if the log may show it. The server's text is not part of
/// it.
pub(crate) async fn open(
    address: &Address,
    options: &Options,
    purpose: Purpose,
) -> Result<(Connection, Micros), RedisFailure> {
    let deadline = Instant::now() + options.connect_timeout;
    let opened = handshake(address, options, purpose, deadline).await;
    opened.inspect_err(|failure| {
        // The certificate files may have been replaced. The next attempt uses the new ones.
        if let error::TLS | error::TLS_CERTIFICATE | error::IO = failure.error {
            options.tls.iter().for_each(Tls::reload);
        }
    })
}

async fn handshake(
    address: &Address,
    options: &Options,
    purpose: Purpose,
    deadline: Instant,
) -> Result<(Connection, Micros), RedisFailure> {
    let late = |_| RedisFailure::new(error::CONNECT_TIMEOUT);
    let login = purpose.login(options);
    let credentials = timeout_at(deadline, login.read()).await.map_err(late)?;
    let credentials = credentials.map_err(|error| RedisFailure::because(error::AUTH, error))?;
    let socket = Socket::connect(address, options.tls.as_ref(), deadline).await?;
    let mut connection = Connection::new(socket);
    let steps = write_steps(connection.outgoing(), options, purpose, credentials);
    // The later deadline keeps the two timeouts from racing.
    let query = connection.query(deadline + options.connect_timeout);
    let answered = timeout_at(deadline, query).await.map_err(late)?;
    if let Err(error) = answered.map(drop) {
        // A server that has too many clients sends an error reply and closes the connection.
        return Err(match first_error(&steps, &connection.replies) {
            Some((name, _)) => RedisFailure::new(name),
            None => explain_failure(&mut connection, error::name(error), options),
        });
    }
    if let Some((name, reply)) = first_error(&steps, &connection.replies) {
        let cause = (name == error::AUTH).then(|| refused_login(login, reply).into());
        return Err(RedisFailure::with(name, cause));
    }
    let time = match connection.replies.last() {
        Some(reply) if purpose.counts() => time_of(reply),
        _ => Some(Micros::default()),
    };
    let time = time.ok_or(RedisFailure::new(error::PROTOCOL))?;
    Ok((connection, time))
}

/// Writes the commands that the handshake needs. Returns for each the name of its errors that have
/// none of their own.
fn write_steps(
    out: &mut CommandBuffer,
    options: &Options,
    purpose: Purpose,
    credentials: Option<(Option<String>, Secret)>,
) -> Vec<&'static str> {
    let mut steps = Vec::new();
    // AUTH without a user name means the user `default` (redis.io, command AUTH).
    if let Some((username, password)) = credentials {
        out.command("AUTH").arg(username).arg(password.expose());
        out.end();
        steps.push(error::AUTH);
    }
    if options.database != 0 && (purpose.counts() || purpose == Purpose::Inspect) {
        out.command("SELECT").arg(options.database);
        out.end();
        steps.push(error::DATABASE);
    }
    if purpose == Purpose::CountOnPrimary {
        out.push([b"ROLE"]);
        steps.push(ROLE);
    }
    let check: Option<&[u8]> = match purpose {
        // Without MULTI, which not every request needs: a request that needs it gets the error.
        Purpose::Count | Purpose::CountOnPrimary => Some(b"TIME"),
        Purpose::QueryCluster | Purpose::QuerySentinel => Some(b"PING"),
        Purpose::Inspect => None,
    };
    if let Some(name) = check {
        out.push([name]);
        steps.push(error::UNSUPPORTED);
    }
    steps
}

/// The error of a connection that failed before it had any reply, with a hint if only one side may
/// speak TLS.
pub(crate) fn explain_failure(
    connection: &mut Connection,
    name: &'static str,
    options: &Options,
) -> RedisFailure {
    match (name, connection.cause.take()) {
        (error::PROTOCOL, _) if connection.received().starts_with(&socket::TLS_ALERT) => {
            RedisFailure::because(error::TLS, socket::SPEAKS_TLS)
        }
        (error::IO, cause) => {
            let closed = || RedisFailure::because(name, "Redis closed the connection");
            let explained = cause.map_or_else(closed, |cause| socket::connect_error(name, &cause));
            if explained.error != error::IO {
                return explained;
            }
            let hint = if options.tls.is_some() {
                socket::MAY_WANT_A_CERTIFICATE
            } else {
                socket::MAY_SPEAK_TLS
            };
            let cause = explained.cause.unwrap_or_default();
            RedisFailure::because(name, format!("{cause} before it replied; {hint}"))
        }
        // Without a password the handshake may send nothing that needs one.
        (error::AUTH, _) if options.login.password.is_none() => {
            RedisFailure::because(name, refused_login(&options.login, &Value::Nil))
        }
        (error, cause) => RedisFailure::with(error, cause.map(|cause| cause.to_string().into())),
    }
}

/// Why a login was refused, without the text of the server.
fn refused_login(login: &Login, reply: &Value) -> String {
    let text = match reply {
        Value::ServerError(error) => error.details().unwrap_or_default(),
        _ => "",
    };
    let sent = credentials_sent(login);
    match login.password {
        None => format!("Redis wants a password, and {sent}"),
        Some(_) if text.contains("without any password") => {
            format!("Redis has no password for the user `default`, and {sent}")
        }
        Some(_) => format!("the user name or the password is wrong: {sent}"),
    }
}

/// The kinds of credentials that a refused login sent, without their values.
fn credentials_sent(login: &Login) -> &'static str {
    match (&login.password, &login.username) {
        (None, _) => "no password was sent",
        (Some(Password::Text(_)), None) => "a password was sent, no user name",
        (Some(Password::Text(_)), Some(_)) => {
            "a user name and a password were sent; the user is what is before the first colon"
        }
        (Some(Password::File(_)), None) => "a password out of a file was sent, no user name",
        (Some(Password::File(_)), Some(_)) => {
            "a user name, and a password out of a file, were sent"
        }
    }
}

/// The name of the handshake's step that queries the server's role. It is no error name.
const ROLE: &str = "role";

/// The name of the first error among the replies to the steps of the handshake, and that reply. A
/// step is the name for errors that have none of their own.
fn first_error<'r>(
    steps: &[&'static str],
    replies: &'r [Value],
) -> Option<(&'static str, &'r Value)> {
    steps.iter().zip(replies).find_map(|(&step, reply)| {
        let name = match reply {
            // The first element of a reply to ROLE is the role: master, slave or sentinel
            // (redis.io, command ROLE). A user without the right to ROLE gets an error reply, and
            // the handshake continues: a replica refuses the first write.
            Value::Array(role) if step == ROLE => match role.first() {
                Some(Value::BulkString(name)) if name == b"master" => return None,
                _ => error::READONLY,
            },
            Value::ServerError(error) if step != ROLE => match error::classify(error) {
                StoreError::Unknown(_) => step,
                error => error::name(error),
            },
            _ => return None,
        };
        Some((name, reply))
    })
}
