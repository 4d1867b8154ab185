//! Makes a connection ready for use: connects, logs in, selects the database, and learns what it has to know about the server, in one round
//! trip.
//!
//! Says why a connection cannot be made. It never repeats a password, nor a text of the server.

use bb8_redis::redis::Value;
use tokio::time::{Instant, timeout_at};

use super::exchange::Connection;
use super::options::{Address, Login, Options, Password};
use super::socket::{self, Socket};
use crate::store::redis::error::{self, ConnectError};
use crate::store::redis::wire::values::time;
use crate::time::Micros;
use crate::verdict::StoreError;

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Counting; the server has to know transactions.
    Count,
    /// The same, on a server that has to say that it is a primary.
    CountOnPrimary,
    /// Asking a node of a cluster who the others are.
    QueryCluster,
    /// Asking a Sentinel, which has passwords of its own.
    QuerySentinel,
    /// Looking at a server that may not be able to count at all; logs in and no more.
    Inspect,
}

impl Purpose {
    fn is_to_count(self) -> bool {
        matches!(self, Self::Count | Self::CountOnPrimary)
    }

    fn login(self, options: &Options) -> &Login {
        if self == Self::QuerySentinel { &options.sentinel_login } else { &options.login }
    }
}

/// A new connection, and the time that the server's clock showed; 0 when it was not asked.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) connection: Connection,
    pub(crate) time: Micros,
}

/// Connects, logs in, and learns what it has to know about the server, in one round trip.
pub(crate) async fn open(address: &Address, options: &Options, purpose: Purpose) -> Result<Opened, ConnectError> {
    let deadline = Instant::now() + options.connect_timeout;
    let error = match timeout_at(deadline, handshake(address, options, purpose, deadline)).await {
        Ok(Ok(opened)) => return Ok(opened),
        Ok(Err(error)) => error,
        Err(_) => ConnectError { name: error::CONNECT_TIMEOUT, cause: None },
    };
    // Certificates may have been replaced; the next attempt has the new ones.
    if let (Some(tls), error::TLS | error::TLS_CERTIFICATE | error::IO) = (&options.tls, error.name) {
        tls.read_again();
    }
    Err(error)
}

async fn handshake(address: &Address, options: &Options, purpose: Purpose, deadline: Instant) -> Result<Opened, ConnectError> {
    let login = purpose.login(options);
    let who = login.read().await.map_err(|error| ConnectError { name: error::AUTH, cause: Some(error.to_string()) })?;
    let mut connection = Connection::new(Socket::connect(address, options.tls.as_ref(), deadline).await?);
    let mut steps = Vec::new();
    let out = connection.outgoing();
    if let Some((username, password)) = who {
        let command = out.command("AUTH");
        if let Some(username) = username {
            command.arg(username);
        }
        command.arg(password.expose());
        out.end();
        steps.push(error::AUTH);
    }
    if options.database != 0 && matches!(purpose, Purpose::Count | Purpose::CountOnPrimary | Purpose::Inspect) {
        out.command("SELECT").arg(options.database);
        out.end();
        steps.push(error::DATABASE);
    }
    if purpose == Purpose::CountOnPrimary {
        out.command("ROLE");
        out.end();
        steps.push(ROLE);
    }
    let commands: &[&str] = match purpose {
        Purpose::Count | Purpose::CountOnPrimary => &["MULTI", "TIME", "EXEC"],
        Purpose::QueryCluster | Purpose::QuerySentinel => &["PING"],
        Purpose::Inspect => &[],
    };
    for name in commands {
        out.command(name);
        out.end();
        steps.push(error::UNSUPPORTED);
    }
    // The timeout around all of this is shorter.
    if let Err(error) = connection.query(deadline + options.connect_timeout).await {
        // Some say why, and hang up.
        let said = steps.iter().zip(connection.replies()).find_map(|(&step, reply)| refused(step, reply));
        return Err(
            said.map_or_else(|| why_closed(&mut connection, error::name(error), options), |name| ConnectError { name, cause: None })
        );
    }
    if let Some(name) = steps.iter().zip(connection.replies()).find_map(|(&step, reply)| refused(step, reply)) {
        let cause = (name == error::AUTH).then(|| sent(login).to_owned());
        return Err(ConnectError { name, cause });
    }
    let time = match connection.replies().last() {
        Some(Value::Array(values)) => values.first().and_then(time),
        _ if !purpose.is_to_count() => Some(Micros::default()),
        _ => None,
    };
    let time = time.ok_or(ConnectError { name: error::PROTOCOL, cause: None })?;
    Ok(Opened { connection, time })
}

/// What ended the login, with a hint where one side may speak TLS and the other one not.
fn why_closed(connection: &mut Connection, name: &'static str, options: &Options) -> ConnectError {
    match (name, connection.take_cause()) {
        (error::PROTOCOL, _) if connection.received().starts_with(&socket::TLS_ALERT) => {
            ConnectError { name: error::TLS, cause: Some(socket::SPEAKS_TLS.to_owned()) }
        }
        (error::IO, cause) => {
            let told = cause.map_or(ConnectError { name, cause: None }, |cause| socket::connect_error(name, &cause));
            let hint = if options.tls.is_some() { socket::MAY_WANT_A_CERTIFICATE } else { socket::MAY_SPEAK_TLS };
            match told {
                ConnectError { name: error::IO, cause } => {
                    let cause = cause.unwrap_or_else(|| "closed by the other side".to_owned());
                    ConnectError { name, cause: Some(format!("{cause}, during the login; {hint}")) }
                }
                about_tls => about_tls,
            }
        }
        (name, cause) => ConnectError { name, cause: cause.map(|cause| cause.to_string()) },
    }
}

/// What a person should know about a refused login, and nothing more.
fn sent(login: &Login) -> &'static str {
    match (&login.password, &login.username) {
        (None, _) => "no password was sent",
        (Some(Password::Text(_)), None) => "a password was sent, no user name",
        (Some(Password::Text(_)), Some(_)) => "a user name and a password were sent",
        (Some(Password::File(_)), None) => "a password out of a file was sent, no user name",
        (Some(Password::File(_)), Some(_)) => "a user name, and a password out of a file, were sent",
    }
}

/// The step of the handshake that asks for the server's role.
const ROLE: &str = "role";

/// The error of a reply to one step of the handshake.
fn refused(step: &'static str, reply: &Value) -> Option<&'static str> {
    if step == ROLE {
        // Who may not ask cannot know; a replica refuses the first write.
        let Value::Array(role) = reply else { return None };
        let is_primary = matches!(role.first(), Some(Value::BulkString(name)) if name == b"master");
        return (!is_primary).then_some(error::READONLY);
    }
    let Value::ServerError(error) = reply else { return None };
    let kind = error::classify(error);
    // An error of no known kind is named by the step that it answers.
    Some(if matches!(kind.error(), StoreError::Unknown(_)) { step } else { kind.name })
}
