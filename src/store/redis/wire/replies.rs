//! What Redis says, as it comes in: bytes until a reply is whole, then words, borrowed from them.
//!
//! A reply is a run of words, one behind the other, and nothing is made of them on the way: the replies to requests cost no allocation. Knows
//! the second version of the protocol, which Redis speaks to those who ask for no other. Source: redis.io, "Redis serialization protocol
//! specification".

use memchr::memchr;

use crate::time::Micros;

/// More in one exchange is no answer to anything that we ask: the largest request has some hundred checks of a few bytes each.
const MOST_BYTES: usize = 1 << 20;

/// Room for what is read at once; the replies to a usual request fit several times.
const CHUNK: usize = 4_096;

/// Room that was made for one large reply is given back beyond this.
const KEPT_BYTES: usize = 64 << 10;

/// What came in is no reply, or too much of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProtocolError;

/// One word of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Token<'a> {
    /// A short text of Redis's own, such as OK.
    SimpleString(&'a [u8]),
    /// The line of an error.
    Error(&'a [u8]),
    Integer(i64),
    BulkString(&'a [u8]),
    Null,
    /// So many values follow that belong to it.
    Array(usize),
}

impl Token<'_> {
    /// A whole number, sent as such or as text.
    pub(crate) fn integer(self) -> Option<i64> {
        match self {
            Self::Integer(number) => Some(number),
            Self::BulkString(text) => number(text).ok(),
            _ => None,
        }
    }
}

/// The words of whole replies, in order.
#[derive(Clone, Debug)]
pub(crate) struct Parser<'a>(&'a [u8]);

impl<'a> Parser<'a> {
    /// The words of `bytes`; ends early where they are no whole words.
    #[cfg(test)]
    pub(crate) const fn of(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// The next one; it is not taken.
    pub(crate) fn peek(&self) -> Option<Token<'a>> {
        self.clone().next()
    }

    /// The bytes of all that were not taken yet.
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

/// Takes the two values of a reply to TIME.
pub(crate) fn time<'w>(tokens: &mut impl Iterator<Item = Token<'w>>) -> Option<Micros> {
    let mut part = || u64::try_from(tokens.next()?.integer()?).ok();
    let (seconds, micros) = (part()?, part()?);
    seconds.checked_mul(1_000_000)?.checked_add(micros).map(Micros)
}

/// The first word of `bytes` and what stands behind it; `None` while it is not whole.
fn token(bytes: &[u8]) -> Result<Option<(Token<'_>, &[u8])>, ProtocolError> {
    let Some((&kind, line)) = bytes.split_first() else { return Ok(None) };
    // Before anything else: what is not Redis may never send the end of a line.
    if !b"+-:$*".contains(&kind) {
        return Err(ProtocolError);
    }
    let Some(end) = memchr(b'\n', line) else { return Ok(None) };
    let (line, rest) = (line[..end].strip_suffix(b"\r").ok_or(ProtocolError)?, &line[end + 1..]);
    let token = match kind {
        b'+' => Token::SimpleString(line),
        b'-' => Token::Error(line),
        b':' => Token::Integer(number(line)?),
        b'*' => length(line)?.map_or(Token::Null, Token::Array),
        _ => match length(line)? {
            None => Token::Null,
            Some(length) => {
                let Some((text, rest)) = rest.split_at_checked(length + 2) else { return Ok(None) };
                return Ok(Some((Token::BulkString(text.strip_suffix(b"\r\n").ok_or(ProtocolError)?), rest)));
            }
        },
    };
    Ok(Some((token, rest)))
}

/// How much follows; `None` says that there is nothing.
fn length(line: &[u8]) -> Result<Option<usize>, ProtocolError> {
    match number(line)? {
        -1 => Ok(None),
        length => usize::try_from(length).ok().filter(|&length| length <= MOST_BYTES).map(Some).ok_or(ProtocolError),
    }
}

fn number(text: &[u8]) -> Result<i64, ProtocolError> {
    std::str::from_utf8(text).ok().and_then(|text| text.parse().ok()).ok_or(ProtocolError)
}

/// What came in, and how far it was looked at.
#[derive(Default)]
pub(crate) struct ReplyBuffer {
    bytes: Vec<u8>,
    /// So many of the bytes came in; behind them is room.
    filled: usize,
    /// So many of them belong to words that were seen.
    parsed: usize,
    /// Values that the reply seen last still lacks.
    missing: usize,
}

impl std::fmt::Debug for ReplyBuffer {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Received").field("filled", &self.filled).field("seen", &self.parsed).finish_non_exhaustive()
    }
}

impl ReplyBuffer {
    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        (self.filled, self.parsed, self.missing) = (0, 0, 0);
        self.bytes.truncate(KEPT_BYTES);
        self.bytes.shrink_to(KEPT_BYTES);
    }

    /// Room for more to come in.
    ///
    /// # Errors
    /// More came in than any reply has.
    pub(crate) fn spare(&mut self) -> Result<&mut [u8], ProtocolError> {
        if self.filled == self.bytes.len() {
            if self.filled >= MOST_BYTES {
                return Err(ProtocolError);
            }
            self.bytes.resize((2 * self.filled).max(CHUNK), 0);
        }
        Ok(&mut self.bytes[self.filled..])
    }

    /// So many bytes of the room were filled.
    pub(crate) fn fill(&mut self, count: usize) {
        self.filled += count;
    }

    /// Sees the next reply, if all of it is there.
    ///
    /// # Errors
    /// It is none.
    pub(crate) fn parse_reply(&mut self) -> Result<bool, ProtocolError> {
        while let Some((token, rest)) = token(&self.bytes[self.parsed..self.filled])? {
            self.parsed = self.filled - rest.len();
            let own = if let Token::Array(values) = token { values } else { 0 };
            self.missing = self.missing.max(1) - 1 + own;
            if self.missing > MOST_BYTES {
                return Err(ProtocolError);
            }
            if self.missing == 0 {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether something came in behind the replies that were seen.
    pub(crate) fn has_unparsed(&self) -> bool {
        self.parsed < self.filled
    }

    /// The replies that were seen.
    pub(crate) fn tokens(&self) -> Parser<'_> {
        Parser(&self.bytes[..self.parsed])
    }

    /// Forgets the replies that were seen, but not one that was seen in part.
    pub(crate) fn discard_parsed(&mut self) {
        if self.missing > 0 {
            return;
        }
        self.bytes.copy_within(self.parsed..self.filled, 0);
        self.filled -= self.parsed;
        self.parsed = 0;
    }

    /// All that came in.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.filled]
    }
}

#[cfg(test)]
mod tests {
    use bb8_redis::redis::{Value, parse_redis_value};
    use proptest::prelude::*;

    use super::*;

    /// Lets bytes come in, so many at a time; how many replies were seen.
    fn receive(received: &mut ReplyBuffer, bytes: &[u8], at_a_time: usize) -> Result<usize, ProtocolError> {
        let mut replies = 0;
        for piece in bytes.chunks(at_a_time) {
            for part in piece.chunks(CHUNK) {
                let spare = received.spare()?;
                let count = spare.len().min(part.len());
                spare[..count].copy_from_slice(&part[..count]);
                received.fill(count);
                assert_eq!(count, part.len(), "the tests' parts fit into the room");
            }
            while received.parse_reply()? {
                replies += 1;
            }
        }
        Ok(replies)
    }

    #[test]
    fn words_are_read_wherever_what_comes_in_is_cut() {
        let text = b"+OK\r\n-ERR no\r\n:-7\r\n$-1\r\n*-1\r\n$0\r\n\r\n*2\r\n*1\r\n:1\r\n$4\r\n\r\n*1\r\n*0\r\n";
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
        for at_a_time in 1..=text.len() {
            let mut received = ReplyBuffer::default();
            assert_eq!(receive(&mut received, text, at_a_time), Ok(8), "{at_a_time} bytes at a time");
            assert!(!received.has_unparsed());
            assert!(received.tokens().eq(tokens), "{at_a_time} bytes at a time");
        }
    }

    #[test]
    fn what_redis_never_says_is_strange_at_once() {
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
            assert_eq!(receive(&mut ReplyBuffer::default(), text.as_bytes(), 100), Err(ProtocolError), "{text:?}");
        }
        let endless = vec![b'+'; 2 * MOST_BYTES];
        assert_eq!(receive(&mut ReplyBuffer::default(), &endless, CHUNK), Err(ProtocolError), "nor is there a reply of that length");
    }

    #[test]
    fn what_is_behind_the_replies_that_were_seen_is_kept() {
        let mut received = ReplyBuffer::default();
        assert_eq!(receive(&mut received, b":1\r\n:2\r", 100), Ok(1));
        assert!(received.has_unparsed());
        received.discard_parsed();
        assert_eq!(receive(&mut received, b"\n*2\r\n:3\r\n", 100), Ok(1));
        received.discard_parsed();
        assert_eq!(receive(&mut received, b":4\r\n", 100), Ok(1), "half a reply is not forgotten");
        assert!(received.tokens().eq([Token::Integer(2), Token::Array(2), Token::Integer(3), Token::Integer(4)]));
        received.clear();
        assert!(!received.has_unparsed() && received.tokens().next().is_none());
    }

    fn any_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Nil),
            Just(Value::Okay),
            any::<i64>().prop_map(Value::Int),
            prop::collection::vec(any::<u8>(), 0..9).prop_map(Value::BulkString),
            "[A-Z]{3,6}".prop_map(Value::SimpleString),
        ];
        leaf.prop_recursive(3, 20, 5, |inner| prop::collection::vec(inner, 0..5).prop_map(Value::Array))
    }

    fn write(value: &Value, out: &mut Vec<u8>) {
        match value {
            Value::Nil => out.extend(b"$-1\r\n"),
            Value::Okay => out.extend(b"+OK\r\n"),
            Value::Int(number) => out.extend(format!(":{number}\r\n").bytes()),
            Value::SimpleString(text) => out.extend(format!("+{text}\r\n").bytes()),
            Value::BulkString(text) => {
                out.extend(format!("${}\r\n", text.len()).bytes());
                out.extend(text);
                out.extend(b"\r\n");
            }
            Value::Array(values) => {
                out.extend(format!("*{}\r\n", values.len()).bytes());
                for value in values {
                    write(value, out);
                }
            }
            other => panic!("{other:?}"),
        }
    }

    proptest! {
        #[test]
        fn replies_end_where_the_redis_crate_ends_them(values in prop::collection::vec(any_value(), 1..4), at_a_time in 1_usize..40) {
            let mut text = Vec::new();
            for value in &values {
                write(value, &mut text);
            }
            let mut received = ReplyBuffer::default();
            prop_assert_eq!(receive(&mut received, &text, at_a_time), Ok(values.len()));
            prop_assert_eq!(received.tokens().bytes(), &text[..]);
            // One by one too.
            for value in &values {
                let mut one = Vec::new();
                write(value, &mut one);
                prop_assert_eq!(&parse_redis_value(&one).expect("a good reply"), value);
                prop_assert_eq!(receive(&mut ReplyBuffer::default(), &one, at_a_time), Ok(1));
            }
        }
    }
}
