//! The decoder of replies: a buffer that collects received bytes until a reply is complete, and a
//! parser that borrows tokens from it.
//!
//! A reply is a sequence of tokens: an array is one token, followed by the tokens of its elements.
//! No tree of values is built, because replies to requests should cost no allocation.
//!
//! Only RESP2 is supported, which Redis speaks on every connection that does not send HELLO 3.
//! Anything else is a protocol error; nothing here guesses what a server may have meant.
//!
//! Source: redis.io, "Redis serialization protocol specification".

use bb8_redis::redis::{Value, from_redis_value_ref};
use memchr::memchr;

use crate::core::time::Micros;
use crate::store::redis::error;

/// The most bytes of all replies to one batch, and the longest string or array in one. More is no
/// answer to anything that Weir sends: the largest batch has some hundred checks with a few bytes
/// each.
pub(crate) const MAX_BYTES: usize = 1 << 20;

/// The first size of the buffer in bytes: several times the replies to a usual batch.
const INITIAL_BYTES: usize = 4_096;

/// A buffer that grew beyond this size for one large reply is shrunk to it.
const RETAINED_BYTES: usize = 64 << 10;

/// One element of a reply, named for its RESP2 data type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Token<'a> {
    /// `+`: a status such as OK or QUEUED.
    SimpleString(&'a [u8]),
    /// `-`: the line of an error without its prefix: a code, a space, a text.
    Error(&'a [u8]),
    /// `:`
    Integer(i64),
    /// `$`: any bytes.
    BulkString(&'a [u8]),
    /// `$-1` or `*-1`.
    Null,
    /// `*`: the number of elements, which follow as tokens of their own.
    Array(usize),
}

impl Token<'_> {
    /// The integer that an integer or a bulk string holds. `None` for any other token.
    pub(crate) fn integer(self) -> Option<i64> {
        match self {
            Self::Integer(number) => Some(number),
            Self::BulkString(text) => parse_integer(text).ok(),
            _ => None,
        }
    }
}

/// The tokens of complete replies, in order. Iteration ends early at bytes that are no complete
/// token.
#[derive(Clone, Debug)]
pub(crate) struct Parser<'a>(&'a [u8]);

impl<'a> Parser<'a> {
    /// The tokens of `bytes`.
    #[cfg(any(test, fuzzing))]
    pub(crate) const fn of(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// The next token, which stays in the iterator.
    pub(crate) fn peek(&self) -> Option<Token<'a>> {
        self.clone().next()
    }

    /// The bytes of the tokens that were not taken yet.
    pub(crate) const fn bytes(&self) -> &'a [u8] {
        self.0
    }
}

impl<'a> Iterator for Parser<'a> {
    type Item = Token<'a>;

    fn next(&mut self) -> Option<Token<'a>> {
        let (token, rest) = token(self.0).ok()??;
        self.0 = rest;
        Some(token)
    }
}

/// Takes the two elements of a reply to TIME: Unix seconds, and the microseconds of the current
/// second. `None` if they are something else.
///
/// Source: redis.io, command page of TIME.
pub(crate) fn time<'t>(tokens: &mut impl Iterator<Item = Token<'t>>) -> Option<Micros> {
    let mut part = || u64::try_from(tokens.next()?.integer()?).ok();
    let (seconds, micros) = (part()?, part()?);
    let micros = seconds.checked_mul(1_000_000)?.checked_add(micros);
    micros.map(Micros)
}

/// The time in a reply to TIME that the redis crate has parsed; `None` for any other reply. That
/// crate allocates for every value, and therefore parses only replies that belong to no request.
pub(crate) fn time_of(reply: &Value) -> Option<Micros> {
    // The redis crate casts integers to smaller and unsigned types.
    let parts: (i64, i64) = from_redis_value_ref(reply).ok()?;
    time(&mut <[i64; 2]>::from(parts).map(Token::Integer).into_iter())
}

/// The first token of `bytes` and the bytes after it; `None` while the token is incomplete.
fn token(bytes: &[u8]) -> Result<Option<(Token<'_>, &[u8])>, &'static str> {
    let Some((&data_type, line)) = bytes.split_first() else {
        return Ok(None);
    };
    // Checked before the line is complete: a server that is no Redis may never send the end of a
    // line.
    if !b"+-:$*".contains(&data_type) {
        return Err(error::PROTOCOL);
    }
    let Some(end) = memchr(b'\n', line) else {
        return Ok(None);
    };
    let rest = &line[end + 1..];
    let line = line[..end].strip_suffix(b"\r").ok_or(error::PROTOCOL)?;
    let token = match data_type {
        b'+' => Token::SimpleString(line),
        b'-' => Token::Error(line),
        b':' => Token::Integer(parse_integer(line)?),
        b'*' => length(line)?.map_or(Token::Null, Token::Array),
        _ => match length(line)? {
            None => Token::Null,
            Some(length) => {
                let Some((text, rest)) = rest.split_at_checked(length + 2) else {
                    return Ok(None);
                };
                return Ok(Some((
                    Token::BulkString(text.strip_suffix(b"\r\n").ok_or(error::PROTOCOL)?),
                    rest,
                )));
            }
        },
    };
    Ok(Some((token, rest)))
}

/// The length of a bulk string or an array; `None` for -1, which is null.
fn length(line: &[u8]) -> Result<Option<usize>, &'static str> {
    match parse_integer(line)? {
        -1 => Ok(None),
        length => usize::try_from(length)
            .ok()
            .filter(|&length| length <= MAX_BYTES)
            .map(Some)
            .ok_or(error::PROTOCOL),
    }
}

fn parse_integer(text: &[u8]) -> Result<i64, &'static str> {
    let text = std::str::from_utf8(text).map_err(|_| error::PROTOCOL)?;
    text.parse().map_err(|_| error::PROTOCOL)
}

/// The bytes that a connection has received, and how many of them were parsed.
#[derive(Debug, Default)]
pub(crate) struct ReplyBuffer {
    bytes: Vec<u8>,
    /// Received bytes; the rest of `bytes` is free.
    filled: usize,
    /// Bytes of parsed tokens.
    parsed: usize,
    /// Tokens that the reply parsed last still misses.
    missing: usize,
}

impl ReplyBuffer {
    /// Discards all bytes.
    pub(crate) fn clear(&mut self) {
        (self.filled, self.parsed, self.missing) = (0, 0, 0);
        self.bytes.truncate(RETAINED_BYTES);
        self.bytes.shrink_to(RETAINED_BYTES);
    }

    /// The free part of the buffer, never empty. The caller receives into it and then calls
    /// [`ReplyBuffer::fill`].
    ///
    /// # Errors
    /// 1 MiB was received: more than any reply has.
    pub(crate) fn spare(&mut self) -> Result<&mut [u8], &'static str> {
        if self.filled == self.bytes.len() {
            if self.filled >= MAX_BYTES {
                return Err(error::PROTOCOL);
            }
            self.bytes.resize((2 * self.filled).max(INITIAL_BYTES), 0);
        }
        Ok(&mut self.bytes[self.filled..])
    }

    /// Records that `count` bytes were received into the free part.
    pub(crate) fn fill(&mut self, count: usize) {
        self.filled += count;
    }

    /// Parses up to the end of the next reply. Returns false while the reply is incomplete.
    ///
    /// # Errors
    /// The bytes are no reply.
    pub(crate) fn parse_reply(&mut self) -> Result<bool, &'static str> {
        while let Some((token, rest)) = token(&self.bytes[self.parsed..self.filled])? {
            self.parsed = self.filled - rest.len();
            let elements = if let Token::Array(elements) = token {
                elements
            } else {
                0
            };
            self.missing = self.missing.max(1) - 1 + elements;
            if self.missing > MAX_BYTES {
                return Err(error::PROTOCOL);
            }
            if self.missing == 0 {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether bytes were received after the parsed ones.
    pub(crate) fn has_unparsed(&self) -> bool {
        self.parsed < self.filled
    }

    /// The tokens that were parsed.
    pub(crate) fn tokens(&self) -> Parser<'_> {
        Parser(&self.bytes[..self.parsed])
    }

    /// Discards the parsed replies. Does nothing while one is parsed in part.
    pub(crate) fn discard_parsed(&mut self) {
        if self.missing > 0 {
            return;
        }
        self.bytes.copy_within(self.parsed..self.filled, 0);
        self.filled -= self.parsed;
        self.parsed = 0;
    }

    /// All received bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.filled]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Receives `bytes` in pieces of `piece_size`. Returns the number of parsed replies.
    fn receive(
        received: &mut ReplyBuffer,
        bytes: &[u8],
        piece_size: usize,
    ) -> Result<usize, &'static str> {
        let mut replies = 0;
        for piece in bytes.chunks(piece_size) {
            for part in piece.chunks(INITIAL_BYTES) {
                let spare = received.spare()?;
                let count = spare.len().min(part.len());
                spare[..count].copy_from_slice(&part[..count]);
                received.fill(count);
                assert_eq!(count, part.len(), "a part fits into the free space");
            }
            while received.parse_reply()? {
                replies += 1;
            }
        }
        Ok(replies)
    }

    #[test]
    fn tokens_are_parsed_wherever_the_received_bytes_are_split() {
        let text = b"+OK\r\n-ERR \
            no\r\n:-7\r\n$-1\r\n*-1\r\n$0\r\n\r\n*2\r\n*1\r\n:1\r\n$4\r\n\r\n*1\r\n*0\r\n";
        let tokens = [
            Token::SimpleString(b"OK"),
            Token::Error(b"ERR no"),
            Token::Integer(-7),
            Token::Null,
            Token::Null,
            Token::BulkString(b""),
            Token::Array(2),
            Token::Array(1),
            Token::Integer(1),
            Token::BulkString(b"\r\n*1"),
            Token::Array(0),
        ];
        for piece_size in 1..=text.len() {
            let mut received = ReplyBuffer::default();
            assert_eq!(
                receive(&mut received, text, piece_size),
                Ok(8),
                "{piece_size} bytes at a time"
            );
            assert!(!received.has_unparsed());
            assert!(received.tokens().eq(tokens), "{piece_size} bytes at a time");
        }
    }

    #[test]
    fn bytes_that_redis_never_sends_are_an_error_at_once() {
        for text in [
            "HTTP",
            "\x15\x03",
            "+OK\n",
            ":x\r\n",
            ":\r\n",
            "*-2\r\n",
            "$-2\r\n",
            "$1\r\nab\r\n",
            "*1\r\n_\r\n",
            "$9999999999\r\n",
            "*1048577\r\n",
        ] {
            assert_eq!(
                receive(&mut ReplyBuffer::default(), text.as_bytes(), 100),
                Err(error::PROTOCOL),
                "{text:?}"
            );
        }
        let endless = vec![b'+'; 2 * MAX_BYTES];
        assert_eq!(
            receive(&mut ReplyBuffer::default(), &endless, INITIAL_BYTES),
            Err(error::PROTOCOL),
            "no reply is that long"
        );
    }

    #[test]
    fn bytes_behind_the_parsed_replies_are_kept() {
        let mut received = ReplyBuffer::default();
        assert_eq!(receive(&mut received, b":1\r\n:2\r", 100), Ok(1));
        assert!(received.has_unparsed());
        received.discard_parsed();
        assert_eq!(receive(&mut received, b"\n*2\r\n:3\r\n", 100), Ok(1));
        received.discard_parsed();
        assert_eq!(
            receive(&mut received, b":4\r\n", 100),
            Ok(1),
            "an incomplete reply is kept"
        );
        assert!(received.tokens().eq([
            Token::Integer(2),
            Token::Array(2),
            Token::Integer(3),
            Token::Integer(4)
        ]));
        received.clear();
        assert!(!received.has_unparsed() && received.tokens().next().is_none());
    }
}
