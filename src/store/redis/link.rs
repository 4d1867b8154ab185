//! One connection to Redis: write what was packed, read exactly its replies.
//!
//! A link knows whether it may be used again: not after an error, and not when a caller left between its commands and their last reply, for
//! then the next caller would read somebody else's answer. It never tries anything twice; what is lost is the caller's to judge.

use std::io;
use std::ops::Range;

use bb8_redis::redis::{Cmd, Parser, ToRedisArgs, Value};
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::{Duration, Instant, timeout, timeout_at};

use super::clock::Clock;
use super::error;
use super::options::{Address, Options};
use crate::time::Micros;
use crate::verdict::StoreError;

/// A peer that is gone without a word is noticed after about this long on a connection that nobody uses.
const KEEPALIVE: Duration = Duration::from_secs(10);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);

/// A link is replaced after about this long, so that a changed name or a machine that lost its role is left soon.
pub(super) const LIFETIME: Duration = Duration::from_secs(60);

/// More in one exchange is no answer to anything that we ask: the largest request has some hundred checks of a few bytes each.
const MOST_REPLY_BYTES: usize = 1 << 20;

/// What is read at once; the replies to a usual request fit several times.
const CHUNK: usize = 4_096;

/// Buffers that grew beyond this for one large request are given back.
const KEPT_BYTES: usize = 64 << 10;

/// Why there is no link.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) name: &'static str,
    /// What the system says; never what the server says.
    pub(super) cause: Option<io::Error>,
}

#[derive(Debug)]
pub(super) struct Link {
    socket: Socket,
    out: Outgoing,
    received: Received,
    replies: Vec<Value>,
    written: usize,
    state: State,
    is_condemned: bool,
    retire_at: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Ready,
    /// Commands are under way; whoever finds a link like this was not the one who asked.
    Busy,
    Broken,
}

impl Link {
    /// Connects, logs in, and learns the server's time and that it knows transactions, in one round trip.
    pub(super) async fn open(options: &Options, clock: &Clock) -> Result<Self, Refusal> {
        match timeout(options.connect_timeout, Self::shake_hands(options, clock)).await {
            Ok(result) => result,
            Err(_) => Err(Refusal { name: error::CONNECT_TIMEOUT, cause: None }),
        }
    }

    async fn shake_hands(options: &Options, clock: &Clock) -> Result<Self, Refusal> {
        let socket = Socket::connect(&options.address).await.map_err(|cause| Refusal { name: error::CONNECT, cause: Some(cause) })?;
        let mut link = Self {
            socket,
            out: Outgoing::default(),
            received: Received::default(),
            replies: Vec::new(),
            written: 0,
            state: State::Ready,
            is_condemned: false,
            retire_at: Instant::now() + LIFETIME.mul_f64(0.75 + fastrand::f64() / 4.0),
        };
        let mut names = Vec::new();
        let out = link.outgoing();
        if let Some(password) = &options.password {
            match &options.username {
                Some(username) => out.command("AUTH").arg(username).arg(password.expose()),
                None => out.command("AUTH").arg(password.expose()),
            };
            out.end();
            names.push(error::AUTH);
        }
        if options.database != 0 {
            out.command("SELECT").arg(options.database);
            out.end();
            names.push(error::DATABASE);
        }
        for name in ["MULTI", "TIME", "EXEC"] {
            out.command(name);
            out.end();
            names.push(error::UNSUPPORTED);
        }
        // The timeout around all of this is shorter.
        let deadline = Instant::now() + 2 * options.connect_timeout;
        let replies = link.exchange(deadline).await.map_err(|error| Refusal { name: error::name(error), cause: None })?;
        let at = Instant::now();
        if let Some(name) = names.iter().zip(replies).find_map(|(&step, reply)| refused(step, reply)) {
            return Err(Refusal { name, cause: None });
        }
        let time = match replies.last() {
            Some(Value::Array(values)) => values.first().and_then(time),
            _ => None,
        };
        let time = time.ok_or(Refusal { name: error::PROTOCOL, cause: None })?;
        clock.restart(time, at);
        Ok(link)
    }

    /// Where the next batch is packed; empty.
    pub(super) fn outgoing(&mut self) -> &mut Outgoing {
        self.out.clear();
        &mut self.out
    }

    /// Sends what was packed and reads a reply to each command.
    ///
    /// # Errors
    /// `NotExecuted` when not a byte of it left, because it was too late or could not be written, else `Unknown`. Whatever stood between
    /// writing and the last reply breaks the link.
    pub(super) async fn exchange(&mut self, deadline: Instant) -> Result<&[Value], StoreError> {
        if Instant::now() >= deadline {
            return Err(StoreError::NotExecuted(error::TIMEOUT));
        }
        self.state = State::Busy;
        self.written = 0;
        self.replies.clear();
        let result = timeout_at(deadline, self.converse()).await.unwrap_or(Err(error::TIMEOUT));
        match result {
            Ok(()) => {
                self.state = State::Ready;
                Ok(&self.replies)
            }
            Err(name) => {
                self.state = State::Broken;
                Err(if self.written == 0 { StoreError::NotExecuted(name) } else { StoreError::Unknown(name) })
            }
        }
    }

    async fn converse(&mut self) -> Result<(), &'static str> {
        while self.written < self.out.bytes.len() {
            match self.socket.write(&self.out.bytes[self.written..]).await {
                Ok(count) if count > 0 => self.written += count,
                _ => return Err(error::IO),
            }
        }
        let mut left = MOST_REPLY_BYTES;
        while self.replies.len() < self.out.commands {
            match self.received.parse() {
                Ok(Some(reply)) => self.replies.push(reply),
                Ok(None) => match self.socket.read(&mut self.received.chunk).await {
                    Ok(count) if count > 0 => {
                        self.received.unread = 0..count;
                        left = left.checked_sub(count).ok_or(error::PROTOCOL)?;
                    }
                    _ => return Err(error::IO),
                },
                Err(()) => return Err(error::PROTOCOL),
            }
        }
        if self.received.unread.is_empty() { Ok(()) } else { Err(error::PROTOCOL) }
    }

    /// Not to be used again by another caller.
    pub(super) fn condemn(&mut self) {
        self.is_condemned = true;
    }

    /// Whether the link must not be used again: broken, left in the middle, or old.
    pub(super) fn is_spent(&self) -> bool {
        self.state != State::Ready || self.is_condemned || Instant::now() >= self.retire_at
    }

    /// Whether the other side has closed the link, or said something unasked, since it was last used. Asks nobody.
    pub(super) fn is_quiet(&self) -> bool {
        matches!(self.socket.peek_nothing(), Err(error) if error.kind() == io::ErrorKind::WouldBlock)
    }
}

/// The error of a reply to one step of the handshake.
fn refused(step: &'static str, reply: &Value) -> Option<&'static str> {
    let Value::ServerError(error) = reply else { return None };
    let kind = error::classify(error);
    // An error of no known kind is named by the step that it answers.
    Some(if matches!(kind.error(), StoreError::Unknown(_)) { step } else { kind.name })
}

/// The reply to TIME.
pub(super) fn time(reply: &Value) -> Option<Micros> {
    let Value::Array(parts) = reply else { return None };
    let [seconds, micros, ..] = parts.as_slice() else { return None };
    let (seconds, micros) = (u64::try_from(whole(seconds)?).ok()?, u64::try_from(whole(micros)?).ok()?);
    seconds.checked_mul(1_000_000)?.checked_add(micros).map(Micros)
}

/// A whole number, sent as such or as text.
pub(super) fn whole(reply: &Value) -> Option<i64> {
    match reply {
        Value::Int(number) => Some(*number),
        Value::BulkString(text) => std::str::from_utf8(text).ok()?.parse().ok(),
        _ => None,
    }
}

/// Commands on their way out, packed into one run of bytes.
#[derive(Debug, Default)]
pub(super) struct Outgoing {
    bytes: Vec<u8>,
    commands: usize,
    command: Cmd,
}

impl Outgoing {
    /// Begins a command; arguments may follow, then [`Outgoing::end`].
    pub(super) fn command<T: ToRedisArgs>(&mut self, name: T) -> &mut Cmd {
        self.begin().arg(name)
    }

    /// Begins a command whose name is to follow.
    pub(super) fn begin(&mut self) -> &mut Cmd {
        self.command.clear();
        &mut self.command
    }

    /// Packs the command that was begun last.
    pub(super) fn end(&mut self) {
        self.command.write_packed_command(&mut self.bytes);
        self.commands += 1;
    }

    fn clear(&mut self) {
        self.bytes.clear();
        self.bytes.shrink_to(KEPT_BYTES);
        self.commands = 0;
    }
}

/// What came in and was not parsed yet, and the parser with the reply that it has half of.
struct Received {
    parser: Parser,
    chunk: Box<[u8; CHUNK]>,
    unread: Range<usize>,
}

impl Default for Received {
    fn default() -> Self {
        Self { parser: Parser::new(), chunk: Box::new([0; CHUNK]), unread: 0..0 }
    }
}

impl std::fmt::Debug for Received {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Received").field("unread", &self.unread).finish_non_exhaustive()
    }
}

impl Received {
    /// The next whole reply; `None` when more has to come in first.
    fn parse(&mut self) -> Result<Option<Value>, ()> {
        match self.parser.parse_value(Unread { bytes: &self.chunk[..], unread: &mut self.unread }) {
            Ok(value) => Ok(Some(value)),
            // The parser keeps what it has and goes on from there.
            Err(error) if error.is_timeout() => Ok(None),
            Err(_) => Err(()),
        }
    }
}

/// Feeds the parser; says "would block", which is not the end, when nothing is left.
struct Unread<'a> {
    bytes: &'a [u8],
    unread: &'a mut Range<usize>,
}

impl io::Read for Unread<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let count = self.unread.len().min(out.len());
        if count == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        out[..count].copy_from_slice(&self.bytes[self.unread.start..self.unread.start + count]);
        self.unread.start += count;
        Ok(count)
    }
}

/// What carries the bytes; TLS is one more of these.
#[derive(Debug)]
enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Socket {
    async fn connect(address: &Address) -> io::Result<Self> {
        match address {
            Address::Unix(path) => UnixStream::connect(path).await.map(Self::Unix),
            Address::Tcp { host, port } => {
                let stream = TcpStream::connect((host.as_str(), *port)).await?;
                // A batch is one write and waits for its reply: held-back packets would only cost time.
                stream.set_nodelay(true)?;
                let keepalive = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE_INTERVAL);
                SockRef::from(&stream).set_tcp_keepalive(&keepalive)?;
                Ok(Self::Tcp(stream))
            }
        }
    }

    async fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(bytes).await,
            Self::Unix(stream) => stream.write(bytes).await,
        }
    }

    async fn read(&mut self, bytes: &mut [u8; CHUNK]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(bytes).await,
            Self::Unix(stream) => stream.read(bytes).await,
        }
    }

    /// Reads a byte that should not be there.
    fn peek_nothing(&self) -> io::Result<usize> {
        let mut byte = [0];
        match self {
            Self::Tcp(stream) => stream.try_read(&mut byte),
            Self::Unix(stream) => stream.try_read(&mut byte),
        }
    }
}
