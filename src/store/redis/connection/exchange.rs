//! One connection to Redis: write what was packed, read exactly its replies.
//!
//! A connection knows whether it may be used again: not after an error, and not when a caller left between its commands and their last reply, for
//! then the next caller would read somebody else's answer. It never tries anything twice; what is lost is the caller's to judge.

use std::io;

use bb8_redis::redis::{self, Cmd, ToRedisArgs, Value, parse_redis_value};
use tokio::time::{Duration, Instant, timeout_at};

use super::options::{Address, Login, Options, Password};
use super::socket::{self, Socket};
use crate::store::redis::error::{self, ConnectError};
use crate::store::redis::wire::known_ttls::KnownTtls;
use crate::store::redis::wire::replies::{Parser, ProtocolError, ReplyBuffer};
use crate::time::Micros;
use crate::verdict::StoreError;

/// A connection is replaced after about this long, so that a changed name or a machine that lost its role is left soon.
const LIFETIME: Duration = Duration::from_secs(60);

/// Buffers that grew beyond this for one large request are given back.
const KEPT_BYTES: usize = 64 << 10;

#[derive(Debug)]
pub(crate) struct Connection {
    socket: Socket,
    out: CommandBuffer,
    received: ReplyBuffer,
    replies: Vec<Value>,
    written: usize,
    /// What the system said when the connection broke.
    cause: Option<io::Error>,
    state: State,
    is_given_up: bool,
    retire_at: Instant,
    /// What this connection has told the server of its counters.
    known_ttls: KnownTtls,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Ready,
    /// Commands are under way; whoever finds a connection like this was not the one who asked.
    Busy,
    Broken,
}

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

impl Connection {
    /// Connects, logs in, and learns what it has to know about the server, in one round trip.
    pub(crate) async fn open(address: &Address, options: &Options, purpose: Purpose) -> Result<Opened, ConnectError> {
        let deadline = Instant::now() + options.connect_timeout;
        let error = match timeout_at(deadline, Self::handshake(address, options, purpose, deadline)).await {
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
        let mut connection = Self::new(Socket::connect(address, options.tls.as_ref(), deadline).await?);
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
            let said = steps.iter().zip(&connection.replies).find_map(|(&step, reply)| refused(step, reply));
            return Err(said.map_or_else(|| connection.why_closed(error::name(error), options), |name| ConnectError { name, cause: None }));
        }
        if let Some(name) = steps.iter().zip(&connection.replies).find_map(|(&step, reply)| refused(step, reply)) {
            let cause = (name == error::AUTH).then(|| sent(login).to_owned());
            return Err(ConnectError { name, cause });
        }
        let time = match connection.replies.last() {
            Some(Value::Array(values)) => values.first().and_then(time),
            _ if !purpose.is_to_count() => Some(Micros::default()),
            _ => None,
        };
        let time = time.ok_or(ConnectError { name: error::PROTOCOL, cause: None })?;
        Ok(Opened { connection, time })
    }

    fn new(socket: Socket) -> Self {
        Self {
            socket,
            out: CommandBuffer::default(),
            received: ReplyBuffer::default(),
            replies: Vec::new(),
            written: 0,
            cause: None,
            state: State::Ready,
            is_given_up: false,
            retire_at: Instant::now() + LIFETIME.mul_f64(0.75 + fastrand::f64() / 4.0),
            known_ttls: KnownTtls::default(),
        }
    }

    /// What ended the login, with a hint where one side may speak TLS and the other one not.
    fn why_closed(&mut self, name: &'static str, options: &Options) -> ConnectError {
        match (name, self.cause.take()) {
            (error::PROTOCOL, _) if self.received.bytes().starts_with(&socket::TLS_ALERT) => {
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

    /// Where the next batch is packed; empty.
    pub(crate) fn outgoing(&mut self) -> &mut CommandBuffer {
        self.out.clear();
        &mut self.out
    }

    /// Which counters the server was told to let expire.
    pub(crate) fn known_ttls(&mut self) -> &mut KnownTtls {
        &mut self.known_ttls
    }

    /// Sends what was packed and reads a reply to each command.
    ///
    /// # Errors
    /// `NotExecuted` when not a byte of it left, because it was too late or could not be written, else `Unknown`. Whatever stood between
    /// writing and the last reply breaks the connection.
    pub(crate) async fn exchange(&mut self, deadline: Instant) -> Result<Parser<'_>, StoreError> {
        // What was read of a broken connection may be the answer to something else.
        if self.is_broken() {
            return Err(StoreError::NotExecuted(error::IO));
        }
        if Instant::now() >= deadline {
            return Err(StoreError::NotExecuted(error::TIMEOUT));
        }
        self.state = State::Busy;
        self.written = 0;
        self.received.clear();
        let result = timeout_at(deadline, self.round_trip()).await.unwrap_or(Err(error::TIMEOUT));
        match result {
            Ok(()) => {
                self.state = State::Ready;
                Ok(self.received.tokens())
            }
            Err(name) => {
                self.state = State::Broken;
                Err(if self.written == 0 { StoreError::NotExecuted(name) } else { StoreError::Unknown(name) })
            }
        }
    }

    /// The same, with the replies as values: for what is asked rarely.
    ///
    /// # Errors
    /// Those of [`Connection::exchange`].
    pub(crate) async fn query(&mut self, deadline: Instant) -> Result<&[Value], StoreError> {
        self.replies.clear();
        let exchanged = self.exchange(deadline).await.map(drop);
        // Also those that came before it broke.
        let (mut parser, mut bytes) = (redis::Parser::new(), self.received.tokens().bytes());
        while self.replies.len() < self.out.commands
            && let Ok(value) = parser.parse_value(&mut bytes)
        {
            self.replies.push(value);
        }
        exchanged?;
        if self.replies.len() < self.out.commands {
            self.state = State::Broken;
            return Err(StoreError::Unknown(error::PROTOCOL));
        }
        Ok(&self.replies)
    }

    async fn round_trip(&mut self) -> Result<(), &'static str> {
        while self.written < self.out.bytes.len() {
            match self.socket.write(&self.out.bytes[self.written..]).await {
                Ok(count) if count > 0 => self.written += count,
                Ok(_) => return Err(error::IO),
                Err(cause) => {
                    self.cause = Some(cause);
                    // What TLS could not send whole it may have sent in part.
                    self.written = self.written.max(usize::from(self.socket.is_tls()));
                    return Err(error::IO);
                }
            }
        }
        self.socket.flush().await.map_err(|cause| self.broke(cause))?;
        for _ in 0..self.out.commands {
            self.receive().await?;
        }
        if self.received.has_unparsed() { Err(error::PROTOCOL) } else { Ok(()) }
    }

    /// Reads until another reply is whole.
    async fn receive(&mut self) -> Result<(), &'static str> {
        while !self.received.parse_reply().map_err(strange)? {
            match self.socket.read(self.received.spare().map_err(strange)?).await {
                Ok(0) => return Err(error::IO),
                Ok(count) => self.received.fill(count),
                Err(cause) => return Err(self.broke(cause)),
            }
        }
        Ok(())
    }

    /// What the server says without being asked, to whoever subscribed to it. Waits for as long as it takes.
    ///
    /// # Errors
    /// The name of what broke the connection.
    pub(crate) async fn listen(&mut self) -> Result<Value, &'static str> {
        self.received.discard_parsed();
        let heard = self.receive().await.and_then(|()| parse_redis_value(self.received.tokens().bytes()).map_err(|_| error::PROTOCOL));
        if heard.is_err() {
            self.state = State::Broken;
        }
        heard
    }

    fn broke(&mut self, cause: io::Error) -> &'static str {
        self.cause = Some(cause);
        error::IO
    }

    /// Keeps the connection from being used again.
    pub(crate) fn give_up(&mut self) {
        self.is_given_up = true;
    }

    /// Whether something went wrong with it.
    pub(crate) fn is_broken(&self) -> bool {
        self.state != State::Ready
    }

    /// Whether another exchange may use the connection: the last one ended, nothing failed, and nobody gave the connection up.
    pub(crate) fn is_reusable(&self) -> bool {
        self.state == State::Ready && !self.is_given_up
    }

    /// Whether it should be replaced when there is another one.
    pub(crate) fn is_old(&self) -> bool {
        Instant::now() >= self.retire_at
    }

    /// Whether the other side has closed the connection, or said something unasked, since it was last used. Asks nobody.
    pub(crate) fn is_quiet(&mut self) -> bool {
        self.socket.is_quiet()
    }
}

fn strange(_: ProtocolError) -> &'static str {
    error::PROTOCOL
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

/// The reply to TIME.
pub(crate) fn time(reply: &Value) -> Option<Micros> {
    let Value::Array(parts) = reply else { return None };
    let [seconds, micros, ..] = parts.as_slice() else { return None };
    let (seconds, micros) = (u64::try_from(whole(seconds)?).ok()?, u64::try_from(whole(micros)?).ok()?);
    seconds.checked_mul(1_000_000)?.checked_add(micros).map(Micros)
}

/// A whole number, sent as such or as text.
pub(crate) fn whole(reply: &Value) -> Option<i64> {
    match reply {
        Value::Int(number) => Some(*number),
        Value::BulkString(text) => std::str::from_utf8(text).ok()?.parse().ok(),
        _ => None,
    }
}

/// Commands on their way out, packed into one run of bytes.
#[derive(Debug, Default)]
pub(crate) struct CommandBuffer {
    bytes: Vec<u8>,
    commands: usize,
    command: Cmd,
}

impl CommandBuffer {
    /// Begins a command; arguments may follow, then [`CommandBuffer::end`].
    pub(crate) fn command<T: ToRedisArgs>(&mut self, name: T) -> &mut Cmd {
        self.begin().arg(name)
    }

    /// Begins a command whose name is to follow.
    pub(crate) fn begin(&mut self) -> &mut Cmd {
        self.command.clear();
        &mut self.command
    }

    /// Packs the command that was begun last.
    pub(crate) fn end(&mut self) {
        self.command.write_packed_command(&mut self.bytes);
        self.commands += 1;
    }

    /// Packs a whole command.
    pub(crate) fn push<const N: usize>(&mut self, arguments: [&[u8]; N]) {
        self.size(b'*', N);
        for argument in arguments {
            self.size(b'$', argument.len());
            self.bytes.extend_from_slice(argument);
            self.bytes.extend_from_slice(b"\r\n");
        }
        self.commands += 1;
    }

    fn size(&mut self, kind: u8, size: usize) {
        self.bytes.push(kind);
        self.bytes.extend_from_slice(itoa::Buffer::new().format(size).as_bytes());
        self.bytes.extend_from_slice(b"\r\n");
    }

    #[cfg(test)]
    pub(crate) const fn commands(&self) -> usize {
        self.commands
    }

    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.bytes.shrink_to(KEPT_BYTES);
        self.commands = 0;
    }
}
