//! One connection to Redis: write what was packed, read exactly its replies.
//!
//! A connection knows whether it may be used again: not after an error, and not when a caller left between its commands and their last reply, for
//! then the next caller would read somebody else's answer. It never tries anything twice; what is lost is the caller's to judge.

use std::io;

use bb8_redis::redis::{self, Value, parse_redis_value};
use tokio::time::{Duration, Instant, timeout_at};

use super::socket::Socket;
use crate::store::redis::error;
use crate::store::redis::wire::commands::CommandBuffer;
use crate::store::redis::wire::known_ttls::KnownTtls;
use crate::store::redis::wire::replies::{Parser, ProtocolError, ReplyBuffer};
use crate::verdict::StoreError;

/// A connection is replaced after about this long, so that a changed name or a machine that lost its role is left soon.
const LIFETIME: Duration = Duration::from_secs(60);

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

impl Connection {
    pub(super) fn new(socket: Socket) -> Self {
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

    /// The replies to the last query, of those that came.
    pub(super) fn replies(&self) -> &[Value] {
        &self.replies
    }

    /// All bytes that came in during the last exchange.
    pub(super) fn received(&self) -> &[u8] {
        self.received.bytes()
    }

    /// What the system said when the connection broke.
    pub(super) fn take_cause(&mut self) -> Option<io::Error> {
        self.cause.take()
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
        while self.replies.len() < self.out.commands()
            && let Ok(value) = parser.parse_value(&mut bytes)
        {
            self.replies.push(value);
        }
        exchanged?;
        if self.replies.len() < self.out.commands() {
            self.state = State::Broken;
            return Err(StoreError::Unknown(error::PROTOCOL));
        }
        Ok(&self.replies)
    }

    async fn round_trip(&mut self) -> Result<(), &'static str> {
        while self.written < self.out.bytes().len() {
            match self.socket.write(&self.out.bytes()[self.written..]).await {
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
        for _ in 0..self.out.commands() {
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
