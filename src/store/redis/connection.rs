//! A connection to one Redis server: address and login (`options`), socket, handshake, and the
//! exchange of packed commands for exactly one reply to each.
//!
//! Of the state of its server, a connection keeps only which keys have a TTL. The rest, and the
//! purpose of the connection, belong to `topology`.
//!
//! RESP matches replies to commands by their order alone (redis.io, "Redis serialization protocol
//! specification", "Pipelining"). A caller that stops waiting before the last reply leaves replies
//! unread, which the next caller would take for its own. So a connection is not reused after such
//! an exchange, nor after an error. It never sends a command twice: only the caller can decide
//! which commands may be repeated.

pub(crate) mod handshake;
pub(crate) mod options;
#[cfg(test)]
pub(crate) mod simulated;
mod socket;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use bb8_redis::redis::{self, Value, parse_redis_value};
use tokio::time::{Duration, Instant, timeout_at};

use self::socket::Socket;
use crate::core::verdict::StoreError;
use crate::store::redis::error;
use crate::store::redis::wire::commands::CommandBuffer;
use crate::store::redis::wire::known_ttls::KnownTtls;
use crate::store::redis::wire::replies::{Parser, ReplyBuffer};
use crate::store::redis::wire::request::Reply;

/// The longest lifetime of a connection. Without it, Weir would keep using an address that its host
/// name no longer has, or a server that lost its role.
const MAX_LIFETIME: Duration = Duration::from_secs(60);

/// A connection that has passed its handshake, with the buffers of its current exchange.
#[derive(Debug)]
pub(crate) struct Connection {
    socket: Socket,
    outgoing: CommandBuffer,
    received: ReplyBuffer,
    /// The replies to the last query; fewer than its commands if the connection broke.
    pub(crate) replies: Vec<Value>,
    /// Bytes of `outgoing` that the socket took.
    written: usize,
    /// The I/O error that broke the connection.
    cause: Option<io::Error>,
    /// Also true while an exchange is under way: a caller that stopped waiting for the replies
    /// leaves the connection in this state.
    is_broken: bool,
    is_given_up: bool,
    retire_at: Instant,
    /// The counters that got a TTL over this connection.
    pub(crate) known_ttls: KnownTtls,
    /// The replies to requests of a batch, while it is sent; empty in between.
    pub(crate) of_requests: Vec<Reply>,
    /// The generation of the location that it leads to: see `Node`.
    pub(crate) generation: u64,
    /// Counter of open connections that includes this one.
    counted: Option<Arc<OpenConnections>>,
}

/// The connections of all threads to a server.
#[derive(Debug, Default)]
pub(crate) struct OpenConnections {
    /// Connections that were opened since the start.
    pub(crate) opened: AtomicU64,
    /// Connections that are open now.
    pub(crate) open: AtomicUsize,
    /// Whether a connection broke since the latest one was opened.
    pub(crate) broke: AtomicBool,
}

impl Drop for Connection {
    fn drop(&mut self) {
        if let Some(counted) = &self.counted {
            counted.open.fetch_sub(1, Ordering::Relaxed);
            counted.broke.fetch_or(self.is_broken, Ordering::Relaxed);
        }
    }
}

impl Connection {
    pub(super) fn new(socket: Socket) -> Self {
        Self {
            socket,
            outgoing: CommandBuffer::default(),
            received: ReplyBuffer::default(),
            replies: Vec::new(),
            written: 0,
            cause: None,
            is_broken: false,
            is_given_up: false,
            // Between 45 s and 60 s, because connections that were opened together should not be
            // replaced together.
            retire_at: Instant::now() + MAX_LIFETIME.mul_f64(0.75 + fastrand::f64() / 4.0),
            known_ttls: KnownTtls::default(),
            of_requests: Vec::new(),
            generation: 0,
            counted: None,
        }
    }

    /// Counts the connection as open until it is dropped.
    pub(crate) fn count_in(&mut self, connections: &Arc<OpenConnections>) {
        connections.opened.fetch_add(1, Ordering::Relaxed);
        connections.open.fetch_add(1, Ordering::Relaxed);
        self.counted = Some(Arc::clone(connections));
    }

    /// The bytes received during the last exchange.
    pub(crate) fn received(&self) -> &[u8] {
        self.received.bytes()
    }

    /// The buffer for the commands of the next exchange, emptied.
    pub(crate) fn outgoing(&mut self) -> &mut CommandBuffer {
        self.outgoing.clear();
        &mut self.outgoing
    }

    /// Writes the packed commands and reads one reply to each, by `deadline`.
    ///
    /// # Errors
    /// `NotExecuted` if no byte was sent: the connection is broken, the deadline has passed, or the
    /// socket took nothing. `Unknown` if some were sent: Redis may have executed the commands.
    /// Except when the deadline has already passed at the call, an error breaks the connection.
    pub(crate) async fn exchange(&mut self, deadline: Instant) -> Result<Parser<'_>, StoreError> {
        // The next bytes of a broken connection may be replies to earlier commands.
        if self.is_broken {
            return Err(StoreError::NotExecuted(error::IO));
        }
        if Instant::now() >= deadline {
            return Err(StoreError::NotExecuted(error::TIMEOUT));
        }
        self.is_broken = true;
        self.written = 0;
        self.received.clear();
        let result = timeout_at(deadline, self.round_trip())
            .await
            .unwrap_or(Err(error::TIMEOUT));
        match result {
            Ok(()) => {
                self.is_broken = false;
                Ok(self.received.tokens())
            }
            Err(name) if self.written == 0 => Err(StoreError::NotExecuted(name)),
            Err(name) => Err(StoreError::Unknown(name)),
        }
    }

    /// As [`Connection::exchange`], with the replies as values. It allocates, and is for commands
    /// outside the request path.
    ///
    /// # Errors
    /// The errors of [`Connection::exchange`], and `Unknown` if a reply is not valid RESP.
    pub(crate) async fn query(&mut self, deadline: Instant) -> Result<&[Value], StoreError> {
        self.replies.clear();
        let exchanged = self.exchange(deadline).await.map(drop);
        // Replies that came before an error are kept: they may name its reason.
        let (mut parser, mut bytes) = (redis::Parser::new(), self.received.tokens().bytes());
        while self.replies.len() < self.outgoing.commands()
            && let Ok(value) = parser.parse_value(&mut bytes)
        {
            self.replies.push(value);
        }
        exchanged?;
        if self.replies.len() < self.outgoing.commands() {
            self.is_broken = true;
            return Err(StoreError::Unknown(error::PROTOCOL));
        }
        Ok(&self.replies)
    }

    async fn round_trip(&mut self) -> Result<(), &'static str> {
        while self.written < self.outgoing.bytes().len() {
            let rest = &self.outgoing.bytes()[self.written..];
            match self.socket.write(rest).await {
                Ok(count) if count > 0 => self.written += count,
                Ok(_) => return Err(error::IO),
                Err(cause) => {
                    self.cause = Some(cause);
                    // TLS may have sent a part of the bytes whose write failed.
                    self.written = self.written.max(usize::from(self.socket.is_tls()));
                    return Err(error::IO);
                }
            }
        }
        let flushed = self.socket.flush().await;
        flushed.map_err(|cause| self.io_error(cause))?;
        for _ in 0..self.outgoing.commands() {
            self.receive().await?;
        }
        if self.received.has_unparsed() {
            Err(error::PROTOCOL)
        } else {
            Ok(())
        }
    }

    /// Reads until the buffer holds one more complete reply.
    async fn receive(&mut self) -> Result<(), &'static str> {
        while !self.received.parse_reply()? {
            let spare = self.received.spare()?;
            match self.socket.read(spare).await {
                Ok(0) => return Err(error::IO),
                Ok(count) => self.received.fill(count),
                Err(cause) => return Err(self.io_error(cause)),
            }
        }
        Ok(())
    }

    /// Reads the next message of a subscription (redis.io, "Redis Pub/Sub"). Waits without a
    /// deadline.
    ///
    /// # Errors
    /// The name of the error that broke the connection.
    pub(crate) async fn listen(&mut self) -> Result<Value, &'static str> {
        self.received.discard_parsed();
        let message = self.receive().await.and_then(|()| {
            parse_redis_value(self.received.tokens().bytes()).map_err(|_| error::PROTOCOL)
        });
        if message.is_err() {
            self.is_broken = true;
        }
        message
    }

    /// Keeps `cause` for the log and returns the name of the error.
    fn io_error(&mut self, cause: io::Error) -> &'static str {
        self.cause = Some(cause);
        error::IO
    }

    /// Forbids further use of the connection after the current exchange.
    pub(crate) fn give_up(&mut self) {
        self.is_given_up = true;
    }

    /// Whether another exchange may use the connection: the last one is complete, and
    /// [`Connection::give_up`] was not called.
    pub(crate) fn is_reusable(&self) -> bool {
        !self.is_broken && !self.is_given_up
    }

    /// Whether another exchange may use the connection, and the server has not closed it.
    pub(crate) fn is_usable(&mut self) -> bool {
        self.is_reusable() && self.is_quiet()
    }

    /// Whether its lifetime has passed: it should be replaced once another connection is ready.
    pub(crate) fn is_old(&self) -> bool {
        Instant::now() >= self.retire_at
    }

    /// Whether the server has neither closed the connection nor sent anything since the last
    /// exchange. Sends nothing and does not wait.
    pub(crate) fn is_quiet(&mut self) -> bool {
        self.socket.is_quiet()
    }
}
